package cli

import (
	"context"
	"io"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/audit"
	"pollux/internal/postgres"
)

// The gap is more ids than ten days of a hundred million payments a day use up; the most that may be asked for leaves room for a thousand restores.
const (
	defaultGap = 1_000_000_000
	maxGap     = 1_000_000_000_000_000
)

func restoredCommand() *cobra.Command {
	var o order
	var gap int64
	cmd := &cobra.Command{
		Use: "restored", Short: "Tells Pollux that its database is a backup; before anything tracks a payment in it", Args: app.NoArgs,
		Long: `restored makes a database that was restored from a backup, or fell back to a replica that was behind, safe to go on with. Run it before the
payment service and the services of Pollux are started.

Ids that were given out after the backup was made are in events that other services have had, and an event is told from a new one by its id. So no id is
given out twice: all of them go on far behind the last. It writes the audit log; docs/operations.md says what else is to be done.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(true); err != nil {
				return err
			}
			if gap < 1 || gap > maxGap {
				return app.Usage("--gap %d: from 1 to %d; more than the payments that were tracked since the backup", gap, int64(maxGap))
			}
			return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
				moved, err := postgres.SkipIDs(ctx, pool, gap, o.act("record.restored", audit.Done))
				if err != nil {
					return err
				}
				return show(cmd, moved, func(w io.Writer) { printMoved(w, moved) })
			})
		},
	}
	o.flags(cmd)
	cmd.Flags().Int64Var(&gap, "gap", defaultGap, "how many ids are left out: more than were given out since the backup")
	return cmd
}

func printMoved(w io.Writer, moved []postgres.Numbering) {
	row(w, "IDS", "LAST IN THE BACKUP", "THE NEXT IS ABOVE")
	for _, n := range moved {
		row(w, n.Sequence, n.Before, n.After)
	}
	row(w, "now start the services; then bring back what was tracked since the backup: pollux gateway list GATEWAY --since the backup, or pollux payments import")
}
