package cli

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/postgres"
)

// migration is a step of the schema as -o json shows it.
type migration struct {
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"` // null when it is not applied
}

func migrationOf(m postgres.Migration) migration {
	v := migration{Version: m.Version, Name: m.Name}
	if !m.AppliedAt.IsZero() {
		at := m.AppliedAt.UTC()
		v.AppliedAt = &at
	}
	return v
}

func migrationsOf(all []postgres.Migration) []migration {
	list := make([]migration, len(all))
	for i, m := range all {
		list[i] = migrationOf(m)
	}
	return list
}

func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Applies the migrations of the schema pollux"}
	cmd.AddCommand(migrateUp(), migrateStatus(), migrateDown())
	return cmd
}

func migrateUp() *cobra.Command {
	return &cobra.Command{
		Use: "up", Short: "Brings the schema to this build's version", Args: app.NoArgs,
		Long: `up applies what is missing, under a lock: several at once take turns. One that is up to date changes nothing.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withSchema(cmd, func(ctx context.Context, url string) error {
				steps, err := postgres.Migrate(ctx, url)
				if err != nil {
					return err
				}
				return show(cmd, migrationsOf(steps), func(w io.Writer) {
					for _, s := range steps {
						row(w, "applied", s.Version, s.Name)
					}
					if len(steps) == 0 {
						row(w, "the schema is up to date")
					}
				})
			})
		},
	}
}

func migrateStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Lists the migrations and which are applied; exit code 3 when one is missing", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withSchema(cmd, func(ctx context.Context, url string) error {
				all, err := postgres.Migrations(ctx, url)
				if err != nil {
					return err
				}
				return showStatus(cmd, migrationsOf(all))
			})
		},
	}
}

func showStatus(cmd *cobra.Command, all []migration) error {
	missing := 0
	for _, m := range all {
		if m.AppliedAt == nil {
			missing++
		}
	}
	err := show(cmd, all, func(w io.Writer) {
		row(w, "VERSION", "APPLIED", "NAME")
		for _, m := range all {
			at := "no"
			if m.AppliedAt != nil {
				at = instant(*m.AppliedAt)
			}
			row(w, m.Version, at, m.Name)
		}
		if missing > 0 {
			row(w, counted(missing, "migration is", "migrations are")+" missing; run: pollux migrate up")
		}
	})
	if err == nil && missing > 0 {
		return app.ErrFindings
	}
	return err
}

func migrateDown() *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use: "down", Short: "Takes the newest migration back, with the data of its tables", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !sure {
				return app.Usage("this deletes the data of the newest migration's tables for good; say --yes-delete-data if that is meant")
			}
			return withSchema(cmd, func(ctx context.Context, url string) error {
				step, err := postgres.MigrateDown(ctx, url)
				if err != nil {
					return err
				}
				return show(cmd, migrationOf(step), func(w io.Writer) { row(w, "taken back", step.Version, step.Name) })
			})
		},
	}
	cmd.Flags().BoolVar(&sure, "yes-delete-data", false, "yes, the data of the migration's tables may be deleted")
	return cmd
}
