// Package cli is the command line of operators: what `pollux` understands.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/config"
	"pollux/internal/postgres"
)

// Command is the command `pollux` with all that is below it.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pollux",
		Short: "Brings pending payments to their final status",
		Long: `pollux is the operator's tool: it applies migrations and streams, checks the configuration, and shows and replays
the payments that are with a person. The services are consumer and outbox-relay.

Exit codes: 0 done, 1 it went wrong, 2 the command line or the configuration is wrong, 3 done, and something was found that a person should see.`,
		Args: app.NoArgs,
	}
	config.AddFlags(cmd.PersistentFlags())
	cmd.PersistentFlags().StringP("output", "o", "table", "table, or json for machines")
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if o := output(cmd); o != "table" && o != "json" {
			return app.Usage("-o %s: table or json", o)
		}
		return nil
	}
	cmd.AddCommand(migrateCommand(), streamsCommand(), configCommand(), dlqCommand(), versionCommand())
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Shows which build this is",
		Args:  app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), app.Version())
			return nil
		},
	}
}

func output(cmd *cobra.Command) string {
	o, _ := cmd.Flags().GetString("output")
	return o
}

// load reads the configuration for a command that uses only a part of it.
func load(cmd *cobra.Command, skip config.Skip) (config.Config, error) {
	return app.Load(config.Options{Flags: cmd.Flags(), Skip: skip | config.SkipGateways})
}

// withDatabase opens the database for fn.
func withDatabase(cmd *cobra.Command, fn func(context.Context, *pgxpool.Pool) error) error {
	cfg, err := load(cmd, config.SkipBroker)
	if err != nil {
		return err
	}
	pool, err := postgres.Open(postgres.Options{URL: cfg.Database.URL.Reveal(), MaxConns: 2, Name: "pollux-cli"})
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx := cmd.Context()
	if err := postgres.CheckSchema(ctx, pool); err != nil {
		return err
	}
	return fn(ctx, pool)
}

// show prints a value: as JSON, or by table.
func show(cmd *cobra.Command, value any, table func(io.Writer)) error {
	out := cmd.OutOrStdout()
	if output(cmd) == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(value)
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// row prints a row of a table. What came from outside is made harmless to a terminal.
func row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, safe(fmt.Sprint(c)))
	}
	fmt.Fprintln(w)
}

// safe escapes what a terminal would obey and what would break a table.
func safe(s string) string {
	if strings.IndexFunc(s, unsafe) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unsafe(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// unsafe reports whether a character is a control character, or one that changes the direction or the place of others.
func unsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' || r == unicode.ReplacementChar
}

// ago is how long ago an instant was, in one unit.
func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	}
	return fmt.Sprintf("%dd ago", int(d.Hours()/24))
}

// errNothingChosen is the error of a command that changes things and was not told which.
var errNothingChosen = errors.New("nothing chosen: name ids, or a filter, or --all")
