package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pollux/internal/audit"
	"pollux/internal/deadletter"
)

// By is who acts and why, for the audit log.
type By struct {
	audit.Actor
	Reason string
}

func (b By) act(action string, outcome audit.Outcome, changes []audit.Change) audit.Act {
	return audit.Act{Actor: b.Actor, Action: action, Outcome: outcome, Reason: b.Reason, Changes: changes}
}

// writeActs writes several acts, the last thing of a transaction. Acts that change nothing are left out.
func writeActs(ctx context.Context, tx pgx.Tx, acts ...audit.Act) error {
	for _, a := range acts {
		if err := writeAct(ctx, tx, a); err != nil {
			return err
		}
	}
	return nil
}

// letterState is a letter in the audit log.
type letterState struct {
	State  string `json:"state,omitempty"`
	Owner  string `json:"owner,omitempty"`
	Link   string `json:"link,omitempty"`
	Note   string `json:"note,omitempty"`
	Replay int64  `json:"replay,omitempty"`
	Times  *int   `json:"replays,omitempty"`
	Why    string `json:"refused,omitempty"`
}

// held is a letter that is locked and to be changed.
type held struct {
	deadletter.Case
	ID          int64
	Owner, Link string
}

// Change changes the letters of a selection, at most deadletter.MaxChange, in one transaction with the rows of the audit log: what was refused is
// there too. Letters that cannot be changed are refused with a reason.
func (s *Letters) Change(ctx context.Context, sel deadletter.Selection, change deadletter.Change, by By) (deadletter.Outcome, error) {
	sel = sel.Distinct()
	var o deadletter.Outcome
	err := again(ctx, s.pool, func(tx pgx.Tx) error {
		o = deadletter.Outcome{}
		letters, err := hold(ctx, tx, sel, change.Verb)
		if err != nil {
			return err
		}
		if len(letters) > deadletter.MaxChange {
			return fmt.Errorf("more than %d letters are chosen; narrow the filter", deadletter.MaxChange)
		}
		var done, refused []audit.Change
		seen := make(map[int64]bool, len(letters))
		for _, l := range letters {
			seen[l.ID] = true
			if why := change.Verb.Refuses(l.Case); why != "" {
				o.Refused = append(o.Refused, deadletter.Refusal{ID: l.ID, Why: why})
				refused = append(refused, audit.Change{Target: audit.Letter(l.ID), Before: letterState{State: l.State}, After: letterState{Why: why}})
				continue
			}
			o.Changed = append(o.Changed, l.ID)
			before, after := states(l, change)
			done = append(done, audit.Change{Target: audit.Letter(l.ID), Before: before, After: after})
		}
		for _, id := range sel.IDs {
			if !seen[id] {
				why := deadletter.Missing.Why("")
				o.Refused = append(o.Refused, deadletter.Refusal{ID: id, Why: why})
				refused = append(refused, audit.Change{Target: audit.Letter(id), After: letterState{Why: why}})
			}
		}
		if err := alter(ctx, tx, o.Changed, change, by); err != nil {
			return err
		}
		action := "dlq." + string(change.Verb)
		return writeActs(ctx, tx, by.act(action, audit.Refused, refused), by.act(action, audit.Done, done))
	})
	return o, describe("changing dead letters", err)
}

// states are a letter before and after a change, as far as that changes it.
func states(l held, change deadletter.Change) (before, after letterState) {
	switch change.Verb {
	case deadletter.Assign:
		return letterState{Owner: orNobody(l.Owner)}, letterState{Owner: orNobody(change.Owner)}
	case deadletter.Remark:
		after = letterState{Note: change.Note}
		if change.Link != "" {
			before.Link, after.Link = l.Link, change.Link
		}
		return before, after
	}
	return letterState{State: l.State}, letterState{State: change.Verb.To()}
}

func orNobody(owner string) string {
	if owner == "" {
		return deadletter.Nobody
	}
	return owner
}

// hold locks the letters of a selection in the order of their ids. Whoever makes letters open again locks their jobs first: a payment that becomes final
// meanwhile then waits, and closes them.
func hold(ctx context.Context, tx pgx.Tx, sel deadletter.Selection, verb deadletter.Verb) ([]held, error) {
	if verb == deadletter.Reopen {
		var c clauses
		_, err := tx.Exec(ctx, `
			select
			from pollux.poll_jobs
			where payment_id = any (array(select d.payment_id from `+letterTables+` where `+c.selection(sel)+` limit `+c.arg(deadletter.MaxChange+1)+`))
			order by payment_id
			for update`, c.args...)
		if err != nil {
			return nil, err
		}
	}
	var c clauses
	rows, err := tx.Query(ctx, `
		select d.id, d.state, d.review, d.owner, d.link, d.payment_id is not null, coalesce(p.status, ''), coalesce(j.state = 'dead', false),
		  exists (
		    select from pollux.dead_letters o
		    where o.payment_id = d.payment_id
		      and o.id <> d.id
		      and o.review = d.review
		      and (not d.review or o.reason = d.reason)
		      and o.state in ('open', 'replaying', 'parked')
		  )
		from pollux.dead_letters d
		left join pollux.payments p on p.id = d.payment_id
		left join pollux.poll_jobs j on j.payment_id = d.payment_id
		where `+c.selection(sel)+`
		order by d.id
		limit `+c.arg(deadletter.MaxChange+1)+`
		for update of d`, c.args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h held, err error) {
		return h, row.Scan(&h.ID, &h.State, &h.Review, &h.Owner, &h.Link, &h.Payment, &h.Status, &h.Dead, &h.Other)
	})
}

// alter makes a change to letters that are held.
func alter(ctx context.Context, tx pgx.Tx, ids []int64, change deadletter.Change, by By) error {
	if len(ids) == 0 {
		return nil
	}
	var batch pgx.Batch
	switch to := change.Verb.To(); {
	case to != "":
		batch.Queue(`
			update pollux.dead_letters
			set state = $2,
			    closed_at = case when $2 in ('resolved', 'discarded') then now() end,
			    closed_by = case when $2 in ('resolved', 'discarded') then $3 end
			where id = any ($1::bigint[])`, ids, to, by.Name)
	case change.Verb == deadletter.Assign:
		batch.Queue(`update pollux.dead_letters set owner = $2 where id = any ($1::bigint[])`, ids, change.Owner)
	case change.Link != "":
		batch.Queue(`update pollux.dead_letters set link = $2 where id = any ($1::bigint[])`, ids, change.Link)
	}
	if change.Note != "" {
		batch.Queue(`
			insert into pollux.dead_letter_notes (letter_id, actor, text)
			select id, $2, $3
			from unnest($1::bigint[]) as i(id)`, ids, by.Name, change.Note)
	}
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, &batch).Close()
}
