package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/message"
)

// difference is something that is not as it was declared, as -o json shows it.
type difference struct {
	Stream   string `json:"stream"`
	Consumer string `json:"consumer"` // empty: of the stream itself
	Field    string `json:"field"`    // empty: it is missing altogether
	Is       string `json:"is"`
	Declared string `json:"declared"`
	Blocked  string `json:"blocked"` // why apply does not change it, and what to do instead; empty when it does
}

func differencesOf(ds []broker.Difference) []difference {
	list := make([]difference, len(ds))
	for i, d := range ds {
		list[i] = difference{d.Stream, d.Consumer, d.Field, d.Have, d.Want, d.Blocked}
	}
	return list
}

// what names the thing that differs.
func (d difference) what() string {
	switch {
	case d.Consumer == "":
		return d.Stream
	case d.Stream == message.StreamPoll: // its consumers have the name of a queue
		return d.Consumer
	}
	return d.Consumer + " of " + d.Stream
}

func streamsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "streams", Short: "Compares the broker's streams and consumers with what is declared, and applies that"}
	var replicas int
	cmd.PersistentFlags().IntVar(&replicas, "replicas", 0, "copies of each stream in a cluster: 1, 3 or 5; 0 leaves those of existing streams alone and gives new ones one")
	cmd.AddCommand(streamsDiff(&replicas), streamsApply(&replicas))
	return cmd
}

func streamsDiff(replicas *int) *cobra.Command {
	return &cobra.Command{
		Use: "diff", Short: "Shows what differs, field by field; exit code 3 when something does", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withBroker(cmd, *replicas, func(ctx context.Context, conn *broker.Conn, o broker.Options) error {
				found, err := conn.Diff(ctx, o)
				if err != nil {
					return err
				}
				readers, err := conn.MissingReaders(ctx, o.Readers)
				if err != nil {
					return err
				}
				bucket, err := bucketDifference(ctx, conn)
				if err != nil {
					return err
				}
				diffs := append(differencesOf(append(found, readers...)), bucket...)
				err = show(cmd, diffs, func(w io.Writer) { printDifferences(w, diffs) })
				if err == nil && len(diffs) > 0 {
					return app.ErrFindings
				}
				return err
			})
		},
	}
}

func streamsApply(replicas *int) *cobra.Command {
	return &cobra.Command{
		Use: "apply", Short: "Creates missing streams and changes what differs, where that loses nothing", Args: app.NoArgs,
		Long: `apply creates missing streams and changes what differs. What a running system cannot bear, a change that would throw away messages or needs a stream
to be made anew, it refuses: then nothing is changed at all, and it says what to do. What is as it should be is not touched.

It also makes the bucket in which the fleet keeps what it agrees on, and the durable consumers of the services in nats.readers. Other consumers are made by the services when they start; apply changes those that exist and differ from the configuration.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withBroker(cmd, *replicas, func(ctx context.Context, conn *broker.Conn, o broker.Options) error {
				found, err := conn.Apply(ctx, o)
				if err != nil {
					return err
				}
				bucket, err := bucketDifference(ctx, conn)
				if err != nil {
					return err
				}
				if err := conn.EnsureKV(ctx, o.Replicas); err != nil {
					return err
				}
				readers, err := conn.EnsureReaders(ctx, o.Readers)
				if err != nil {
					return err
				}
				done := append(differencesOf(append(found, readers...)), bucket...)
				return show(cmd, done, func(w io.Writer) { printApplied(w, done) })
			})
		},
	}
}

// bucketDifference is how the bucket of the fleet is not as it should be, if it is not.
func bucketDifference(ctx context.Context, conn *broker.Conn) ([]difference, error) {
	var differs *broker.BucketError
	err := conn.CheckKV(ctx)
	switch {
	case !errors.As(err, &differs):
		return nil, err
	case differs.Missing:
		return []difference{{Stream: broker.FleetBucket}}, nil
	}
	return []difference{{Stream: broker.FleetBucket, Field: "bucket", Is: differs.Why, Declared: "as the fleet needs it"}}, nil
}

func printDifferences(w io.Writer, diffs []difference) {
	if len(diffs) == 0 {
		row(w, "nothing differs")
		return
	}
	blocked := 0
	row(w, "STREAM OR CONSUMER", "FIELD", "IS", "DECLARED")
	for _, d := range diffs {
		if d.Field == "" {
			row(w, d.what(), "-", "missing", "-")
			continue
		}
		row(w, d.what(), d.Field, orNotSet(d.Is), orNotSet(d.Declared))
	}
	for _, d := range diffs {
		if d.Blocked != "" {
			row(w, fmt.Sprintf("%s: %s %s", d.what(), d.Field, d.Blocked))
			blocked++
		}
	}
	if blocked == 0 {
		row(w, "to change that, run as the migrator: pollux streams apply")
	}
}

func printApplied(w io.Writer, done []difference) {
	for _, d := range done {
		if d.Field == "" {
			row(w, "created", d.what())
			continue
		}
		row(w, "changed", d.what(), d.Field, orNotSet(d.Is)+" → "+orNotSet(d.Declared))
	}
	if len(done) == 0 {
		row(w, "nothing differs")
	}
}

func orNotSet(s string) string {
	if s == "" {
		return "not set"
	}
	return s
}

// patience is how long a command waits for NATS.
const patience = 5 * time.Second

// usersOf are the users of NATS that a command is for, the likeliest first: what apply changes only the migrator may, and whoever applies looks first.
func usersOf(cmd *cobra.Command) []string {
	switch {
	case strings.HasSuffix(cmd.CommandPath(), " streams apply"):
		return []string{message.UserMigrator}
	case strings.HasSuffix(cmd.CommandPath(), " streams diff"):
		return []string{message.UserOperator, message.UserMigrator, message.UserReadOnly}
	}
	return []string{message.UserOperator}
}

// dialAs connects as the first of the users whose inboxes the server lets us read: which user our key belongs to it does not say before that.
func dialAs(ctx context.Context, cfg config.Config, users ...string) (conn *broker.Conn, err error) {
	for _, user := range users {
		conn, err = app.Dial(ctx, cfg, "pollux-"+user)
		var no *broker.PermissionError
		if !errors.As(err, &no) || !no.Subscribe || cfg.NATS.InboxPrefix != "" {
			break
		}
	}
	return conn, err
}

func withBroker(cmd *cobra.Command, replicas int, fn func(context.Context, *broker.Conn, broker.Options) error) error {
	switch replicas {
	case 0, 1, 3, 5:
	default:
		return app.Usage("--replicas %d: 1, 3 or 5", replicas)
	}
	cfg, err := load(cmd, config.SkipDatabase)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), patience, fmt.Errorf("no connection within %s", patience))
	defer cancel()
	conn, err := dialAs(ctx, cfg, usersOf(cmd)...)
	var forbidden *broker.PermissionError
	if errors.As(err, &forbidden) && strings.HasSuffix(cmd.CommandPath(), " streams apply") {
		return app.Hint(err, "streams are made and changed by the user migrator: run it with that one's nats.nkey_file, which pollux perms keys wrote. docs/permissions.md")
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	err = fn(cmd.Context(), conn, broker.Options{Replicas: replicas, Consumers: app.Subscriptions(cfg), Readers: cfg.NATS.Readers})
	if errors.Is(err, nats.ErrNoResponders) {
		return app.Hint(err, "this NATS server runs without JetStream: start it with --jetstream and a --store_dir")
	}
	return err
}
