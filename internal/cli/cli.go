// Package cli is the command line of operators: what `pollux` understands.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/config"
	"pollux/internal/postgres"
	"pollux/internal/terminal"
)

// Command is the command `pollux` with all that is below it.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pollux",
		Short: "Brings pending payments to their final status",
		Long: `pollux is the operator's tool: it applies migrations and streams, checks the configuration, and shows and replays
the payments that are with a person. The services are consumer, outbox-relay and webhook.

Exit codes: 0 done; 1 it went wrong; 2 nothing was tried, the command line or the configuration is wrong; 3 done, and something was
found that a person should see.`,
	}
	config.AddFlags(cmd.PersistentFlags())
	cmd.PersistentFlags().StringP("output", "o", "table", "table, or json for machines")
	cmd.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		if err := requireUTF8(cmd, args); err != nil {
			return err
		}
		if o := output(cmd); o != "table" && o != "json" {
			return app.Usage("-o %q: table or json", o)
		}
		return nil
	}
	cmd.AddCommand(migrateCommand(), streamsCommand(), configCommand(), dlqCommand(), approveCommand(), paymentCommand(), paymentsCommand(), verifyCommand(),
		breakerCommand(), gatewayCommand(), webhookCommand(), auditCommand(), doctorCommand(), healthcheckCommand(), restoredCommand(), permsCommand(), versionCommand())
	return cmd
}

func versionCommand() *cobra.Command {
	type build struct {
		Version  string `json:"version"`
		Go       string `json:"go"`
		Platform string `json:"platform"`
	}
	return &cobra.Command{
		Use: "version", Short: "Shows which build this is", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := build{app.Version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return show(cmd, b, func(w io.Writer) { fmt.Fprintf(w, "pollux %s (%s, %s)\n", b.Version, b.Go, b.Platform) })
		},
	}
}

func output(cmd *cobra.Command) string {
	o, _ := cmd.Flags().GetString("output")
	return o
}

// load reads the configuration for a command that uses only a part of it.
func load(cmd *cobra.Command, skip config.Skip) (config.Config, error) {
	return app.Load(config.Options{Flags: cmd.Flags(), Skip: skip | config.SkipGateways | config.SkipWebhooks | config.SkipTelemetry})
}

// openDatabase opens a pool whose database can be reached.
func openDatabase(cmd *cobra.Command) (*pgxpool.Pool, string, error) {
	cfg, err := load(cmd, config.SkipBroker)
	if err != nil {
		return nil, "", err
	}
	url := cfg.Database.Access()
	pool, err := postgres.Open(postgres.Options{URL: url, MaxConns: 2, Name: "pollux-cli"})
	if err != nil {
		return nil, "", err
	}
	if err := postgres.Reach(cmd.Context(), pool); err != nil {
		pool.Close()
		return nil, "", err
	}
	return pool, url, nil
}

// withDatabase opens the database for fn, with the schema that this build needs.
func withDatabase(cmd *cobra.Command, fn func(context.Context, *pgxpool.Pool) error) error {
	pool, _, err := openDatabase(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.CheckSchema(cmd.Context(), pool); err != nil {
		return busy(err)
	}
	return busy(fn(cmd.Context(), pool))
}

// busy adds what the schema says to do about a lock that was not given in time, and who gives a right that is missing.
func busy(err error) error {
	var denied *postgres.Denied
	if errors.As(err, &denied) && !slices.Contains(denied.Roles, postgres.RoleOperator) {
		return app.Hint(err, "that is for the login of pollux migrate up, which owns the schema; docs/permissions.md says what each may do")
	}
	if denied != nil {
		return app.Hint(err, "an administrator grants this login %s, or %s to look only; docs/permissions.md says what each may do", postgres.RoleOperator, postgres.RoleReadOnly)
	}
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) && refusal.Code == "55P03" && refusal.Hint != "" {
		return app.Hint(err, "%s", refusal.Hint)
	}
	return err
}

// withSchema is for commands that change the schema: fn is given the URL of a database that can be reached.
func withSchema(cmd *cobra.Command, fn func(ctx context.Context, url string) error) error {
	pool, url, err := openDatabase(cmd)
	if err != nil {
		return err
	}
	pool.Close()
	return fn(cmd.Context(), url)
}

// show prints a value: as JSON, or by table.
func show(cmd *cobra.Command, value any, table func(io.Writer)) error {
	if output(cmd) == "json" {
		return terminal.JSON(cmd.OutOrStdout(), value)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// row prints a row of a table. What came from outside is made harmless to a terminal.
func row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, terminal.Line(fmt.Sprint(c)))
	}
	fmt.Fprintln(w)
}

// ago is how long ago an instant was, in one unit. Clocks differ: what is a moment ahead is now.
func ago(t time.Time) string {
	d := max(time.Since(t), 0)
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

// instant is a time as people read it, in UTC like the times in logs.
func instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// when is an instant and how long ago it was.
func when(t time.Time) string { return instant(t) + "  " + ago(t) }

// utc is an instant that may be missing, in UTC.
func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	at := t.UTC()
	return &at
}

// inUTC makes all times below a pointer those of UTC, as -o json has them.
func inUTC[T any](v T) T {
	toUTC(reflect.ValueOf(&v).Elem())
	return v
}

func toUTC(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			toUTC(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			toUTC(v.Index(i))
		}
	case reflect.Struct:
		if t, ok := v.Addr().Interface().(*time.Time); ok {
			*t = t.UTC()
			return
		}
		for i := range v.NumField() {
			toUTC(v.Field(i))
		}
	}
}

// orDash is a cell that is never empty, so that a column can be followed.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// cut shortens a text to n characters.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// counted is a number with its noun.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// orEmpty makes JSON of no elements an empty array and not null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
