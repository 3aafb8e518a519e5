package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/postgres"
	"pollux/internal/terminal"
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
		Long: `up applies what is missing, under a lock: several at once take turns. One that is up to date changes nothing.

Then it gives the roles of the programs (pollux_relay, pollux_consumer, …) exactly the rights that this build needs, takes from everybody (PUBLIC) what nobody needs, and makes the roles that do not
exist, where this login may. Where it may not, and where a role has other rights all the same, it says so on standard error, and all goes on: one login may do everything.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withSchema(cmd, func(ctx context.Context, url string) error {
				steps, err := postgres.Migrate(ctx, url)
				if err != nil {
					return err
				}
				granted, err := postgres.Grant(ctx, url)
				if err != nil {
					return err
				}
				noteGranted(cmd.ErrOrStderr(), granted)
				return show(cmd, migrationsOf(steps), func(w io.Writer) {
					for _, s := range steps {
						row(w, "applied", s.Version, s.Name)
					}
					if rights := granted.Public.Excess; len(rights) > 0 {
						row(w, "revoked", "-", "from everybody: "+strings.Join(rights, ", "))
					}
					if rights := granted.Public.Missing; len(rights) > 0 {
						row(w, "granted", "-", "to everybody: "+strings.Join(rights, ", "))
					}
					if len(granted.Changed) > 0 {
						row(w, "granted", "-", joinRoles(granted.Changed))
					}
					if len(steps) == 0 {
						row(w, "the schema is up to date")
					}
				})
			})
		},
	}
}

// noteGranted says what an administrator has to do.
func noteGranted(w io.Writer, g postgres.Granted) {
	if len(g.Missing) > 0 {
		fmt.Fprintf(w, "there is no role %s, and this login may not make any; where each program is to have a login of its own, an administrator runs the beginning of: pollux perms print postgres, and then\n"+
			"pollux migrate up is run again. Until then one login does everything\n", joinRoles(g.Missing))
	}
	if g.Owner != "" {
		fmt.Fprintf(w, "no rights were granted: the schema belongs to %s, who runs pollux migrate up\n", terminal.Line(g.Owner))
	}
	for _, h := range g.Left {
		fmt.Fprintf(w, "%s has not exactly its rights: %s; that comes from a role that it is a member of, or from somebody else than the owner of the schema who granted or took it: an administrator mends that\n",
			terminal.Line(h.Login), terminal.Line(leftOf(h)))
	}
}

// leftOf says how somebody's rights are not as they must be.
func leftOf(h postgres.Holding) string {
	var what []string
	if h.Everything != "" {
		what = append(what, h.Everything)
	}
	if len(h.Missing) > 0 {
		what = append(what, "it lacks "+strings.Join(h.Missing, ", "))
	}
	if len(h.Excess) > 0 {
		what = append(what, "it has "+strings.Join(h.Excess, ", ")+" too much")
	}
	return strings.Join(what, "; ")
}

func joinRoles(roles []postgres.Role) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
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
