package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/audit"
)

// Numbering is how far the ids of a table have come.
type Numbering struct {
	Sequence string `json:"sequence"`
	Before   int64  `json:"before"` // the last id that the backup knows of
	After    int64  `json:"after"`  // no id up to it is given out any more
}

// skipSQL moves all sequences of ids on. That of the schema's versions is the tool's own, and counts in 32 bits.
const skipSQL = `
	select s.sequencename, coalesce(s.last_value, s.start_value), setval(format('%I.%I', s.schemaname, s.sequencename)::regclass, coalesce(s.last_value, s.start_value) + $1)
	from pg_sequences s
	where s.schemaname = 'pollux' and s.data_type = 'bigint'::regtype
	order by s.sequencename`

// SkipIDs moves the ids of all tables on by gap, which must be more than were given out since the backup that the database was restored from, and writes the act
// with what it did. An id that a backup does not know was given to a payment, and with it the ids of its events, by which services tell a new event from one that they
// have had: were it given to another payment, the event of that one would be dropped. Called again it moves them on again, which costs nothing: 64 bits last for nine
// thousand million gaps of a thousand million.
func SkipIDs(ctx context.Context, pool *pgxpool.Pool, gap int64, act audit.Act) ([]Numbering, error) {
	const doing = "moving the ids on"
	var moved []Numbering
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, skipSQL, gap)
		if err != nil {
			return err
		}
		moved, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Numbering])
		if err != nil {
			return err
		}
		before, after := map[string]int64{}, map[string]int64{}
		for _, n := range moved {
			before[n.Sequence], after[n.Sequence] = n.Before, n.After
		}
		act.Changes = []audit.Change{{Target: "record", Before: before, After: after}}
		return writeAct(ctx, tx, act)
	})
	return moved, describe(doing, err)
}
