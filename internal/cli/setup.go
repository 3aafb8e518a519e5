package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/postgres"
)

func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Applies the migrations of the schema pollux"}
	cmd.AddCommand(
		&cobra.Command{
			Use: "up", Short: "Brings the schema to this build's version", Args: app.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				cfg, err := load(cmd, config.SkipBroker)
				if err != nil {
					return err
				}
				steps, err := postgres.Migrate(cmd.Context(), cfg.Database.URL.Reveal())
				if err != nil {
					return err
				}
				return show(cmd, steps, func(w io.Writer) {
					for _, s := range steps {
						row(w, "applied", s.Version, s.Name)
					}
					if len(steps) == 0 {
						row(w, "up to date")
					}
				})
			},
		},
		&cobra.Command{
			Use: "status", Short: "Lists the migrations and which are applied", Args: app.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				cfg, err := load(cmd, config.SkipBroker)
				if err != nil {
					return err
				}
				all, err := postgres.Migrations(cmd.Context(), cfg.Database.URL.Reveal())
				if err != nil {
					return err
				}
				missing := false
				err = show(cmd, all, func(w io.Writer) {
					row(w, "VERSION", "APPLIED", "NAME")
					for _, m := range all {
						row(w, m.Version, applied(m), m.Name)
					}
				})
				for _, m := range all {
					missing = missing || m.AppliedAt.IsZero()
				}
				if err == nil && missing {
					return app.ErrFindings
				}
				return err
			},
		},
		downCommand(),
	)
	return cmd
}

func applied(m postgres.Migration) string {
	if m.AppliedAt.IsZero() {
		return "no"
	}
	return m.AppliedAt.UTC().Format("2006-01-02 15:04:05Z")
}

func downCommand() *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use: "down", Short: "Takes the newest migration back, with the data of its tables", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !sure {
				return app.Usage("this deletes data for good; say --yes-delete-data if that is meant")
			}
			cfg, err := load(cmd, config.SkipBroker)
			if err != nil {
				return err
			}
			step, err := postgres.MigrateDown(cmd.Context(), cfg.Database.URL.Reveal())
			if err != nil {
				return err
			}
			return show(cmd, step, func(w io.Writer) { row(w, "taken back", step.Version, step.Name) })
		},
	}
	cmd.Flags().BoolVar(&sure, "yes-delete-data", false, "yes, the data of the migration's tables may be deleted")
	return cmd
}

func streamsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "streams", Short: "Compares the broker's streams with their definitions and applies them"}
	var replicas int
	cmd.PersistentFlags().IntVar(&replicas, "replicas", 0, "copies of each stream in a cluster; 0 takes what the definitions say")
	cmd.AddCommand(
		&cobra.Command{
			Use: "diff", Short: "Shows what differs, field by field; exit code 3 when something does", Args: app.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return withBroker(cmd, func(conn *broker.Conn) error {
					diffs, err := conn.Diff(cmd.Context(), broker.Options{Replicas: replicas})
					if err != nil {
						return err
					}
					if err := show(cmd, diffs, func(w io.Writer) { printDifferences(w, diffs) }); err != nil || len(diffs) == 0 {
						return err
					}
					return app.ErrFindings
				})
			},
		},
		&cobra.Command{
			Use: "apply", Short: "Creates missing streams and changes those that differ, where that loses nothing", Args: app.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return withBroker(cmd, func(conn *broker.Conn) error {
					done, err := conn.Apply(cmd.Context(), broker.Options{Replicas: replicas})
					if err != nil {
						return err
					}
					return show(cmd, done, func(w io.Writer) { printDifferences(w, done) })
				})
			},
		},
	)
	return cmd
}

func printDifferences(w io.Writer, diffs []broker.Difference) {
	if len(diffs) == 0 {
		row(w, "nothing differs")
		return
	}
	row(w, "STREAM", "CONSUMER", "FIELD", "IS", "DECLARED", "")
	for _, d := range diffs {
		field := d.Field
		if field == "" {
			field = "(missing)"
		}
		row(w, d.Stream, d.Consumer, field, d.Have, d.Want, d.Blocked)
	}
}

func withBroker(cmd *cobra.Command, fn func(*broker.Conn) error) error {
	cfg, err := load(cmd, config.SkipDatabase)
	if err != nil {
		return err
	}
	conn, err := app.Dial(cmd.Context(), cfg, "pollux-cli")
	if err != nil {
		return err
	}
	defer conn.Close()
	return fn(conn)
}

func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Checks the configuration"}
	cmd.AddCommand(&cobra.Command{
		Use: "check [FILE]", Short: "Says everything that is wrong with a configuration; exit code 2 when something is",
		Long: `check reads the file, the environment and the flags as a service would, and says everything that is wrong at once, with lines.
With a FILE it reads that file alone, and does not ask for the secrets that it names: for a machine that does not have them.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return checkFile(cmd, args[0])
			}
			if _, err := app.Load(config.Options{Flags: cmd.Flags()}); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the configuration is good")
			return nil
		},
	})
	return cmd
}

func checkFile(cmd *cobra.Command, file string) error {
	problems, err := config.Check(file)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return &config.Invalid{Problems: problems}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s is good\n", file)
	return nil
}
