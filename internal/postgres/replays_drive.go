package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"pollux/internal/audit"
	"pollux/internal/deadletter"
)

// Drive is Replays for a driver. It releases in the name of whoever drives.
type Drive struct {
	*Replays
	By By
}

var _ deadletter.Stepper = Drive{}

// Step implements deadletter.Stepper.
func (s Drive) Step(ctx context.Context, id int64, next func(deadletter.Progress) deadletter.Deed) (p deadletter.Progress, deed deadletter.Deed, err error) {
	err = again(ctx, s.pool, func(tx pgx.Tx) error {
		if p, err = progress(ctx, tx, id); err != nil {
			return err
		}
		deed = next(p)
		acts, err := s.carryOut(ctx, tx, &p, deed)
		if err != nil {
			return err
		}
		if err := noteAnswers(ctx, tx, id); err != nil {
			return err
		}
		return writeActs(ctx, tx, acts...)
	})
	return p, deed, describe("driving a replay", err)
}

// progressSQL counts the letters of a replay, all and those of its leg, in one look at them.
const progressSQL = `
	select ` + itemCounts + `,
	  count(*) filter (where i.leg = r.leg),
	  count(*) filter (where i.leg = r.leg and i.state = 'queued' and i.answered_at is null),
	  count(*) filter (where i.leg = r.leg and i.came_back),
	  count(*) filter (where i.leg = r.leg and i.state in ('resolved', 'failed_again'))
	from pollux.replays r
	join pollux.replay_items i on i.replay_id = r.id
	where r.id = $1`

// paceSQL says how many letters the rate allows by now, ahead included, and how long until it allows one more.
const paceSQL = `
	select
	  case when r.ahead >= interval '0' then least(floor(extract(epoch from least(r.ahead, $2::bigint * interval '1 microsecond')) * r.rate)::bigint + 1, 1000000) else 0 end,
	  greatest(-extract(epoch from r.ahead), 0)::float8
	from (
	  select rate, now() + $2::bigint * interval '1 microsecond' - next_release_at as ahead
	  from pollux.replays
	  where id = $1
	) r`

// progress locks a replay and reads where it stands.
func progress(ctx context.Context, tx pgx.Tx, id int64) (p deadletter.Progress, err error) {
	if p.Replay, err = lockReplay(ctx, tx, id); err != nil {
		return p, err
	}
	l := &p.Leg
	if err = tx.QueryRow(ctx, progressSQL, id).Scan(append(countFields(&p.Counts), &l.Released, &l.Unanswered, &l.CameBack, &l.Ended)...); err != nil {
		return p, err
	}
	var wait float64
	if err = tx.QueryRow(ctx, paceSQL, id, p.Ahead().Microseconds()).Scan(&p.Ready, &wait); err != nil {
		return p, err
	}
	p.Wait = time.Duration(wait * float64(time.Second))
	if p.State == deadletter.Running && p.Stage < len(deadletter.Canary) {
		failing, err := failing(ctx, tx, id)
		l.CameBack += failing
		return p, err
	}
	return p, nil
}

// failing counts those of the leg whose last call failed with the fingerprint of before. While only a few are tried that counts as soon as it is recorded:
// whether the payment dies of it may take a day to know.
func failing(ctx context.Context, tx pgx.Tx, id int64) (n int64, err error) {
	err = tx.QueryRow(ctx, `
		select count(*)
		from pollux.replay_items i
		join pollux.replays r on r.id = i.replay_id
		cross join lateral (
		  select a.*
		  from pollux.poll_attempts a
		  where a.payment_id = i.payment_id
		    and a.at >= i.released_at
		  order by a.at desc
		  limit 1
		) a
		where i.replay_id = $1
		  and i.leg = r.leg
		  and i.state = 'queued'
		  and a.class in ('transport', 'malformed', 'not_found', 'unknown_status', 'mismatch')
		  and pollux.fingerprint(a.class, a.http_status, a.gateway_status, a.message) = i.fingerprint`, id).Scan(&n)
	return n, err
}

// carryOut does a deed, brings the progress up to date with it, and returns what is to be audited.
func (s Drive) carryOut(ctx context.Context, tx pgx.Tx, p *deadletter.Progress, d deadletter.Deed) ([]audit.Act, error) {
	switch {
	case d.Stop != "":
		p.State, p.Why = deadletter.Stopped, d.Stop
		return s.end(ctx, tx, p, "replay.stop")
	case d.Finish:
		p.State = deadletter.Done
		return s.end(ctx, tx, p, "replay.finish")
	case d.Advance:
		p.Stage++
		_, err := tx.Exec(ctx, `update pollux.replays set stage = $2, leg = leg + 1 where id = $1`, p.ID, p.Stage)
		return nil, err
	case d.Release > 0:
		return s.release(ctx, tx, p, d.Release)
	}
	return nil, nil
}

func (s Drive) end(ctx context.Context, tx pgx.Tx, p *deadletter.Progress, action string) ([]audit.Act, error) {
	_, err := tx.Exec(ctx, `update pollux.replays set state = $2, why = $3, ended_at = now() where id = $1`, p.ID, p.State, p.Why)
	return []audit.Act{s.By.act(action, audit.Done, []audit.Change{{Target: replayTarget(p.ID),
		Before: replayState{State: deadletter.Running}, After: replayState{State: p.State, Why: p.Why}}})}, err
}

// queueItemsSQL makes the dead jobs of open letters due, one gap after the other. It locks jobs in the order of their payments and then the letters, like
// everybody; of two who want the same one, one finds its job alive.
const queueItemsSQL = `
	with next as materialized (
	  select i.ord, i.letter_id, i.payment_id
	  from unnest($2::int[], $3::bigint[], $4::bigint[]) as i(ord, letter_id, payment_id)
	), dead as materialized (
	  select j.payment_id
	  from pollux.poll_jobs j
	  where j.payment_id = any ($4::bigint[])
	    and j.state = 'dead'
	  order by j.payment_id
	  for update
	), open as materialized (
	  select d.id, d.replays
	  from pollux.dead_letters d
	  where d.id = any (array(select n.letter_id from next n join dead on dead.payment_id = n.payment_id))
	    and d.state = 'open'
	  order by d.id
	  for update
	), place as materialized (
	  select n.*, o.replays, greatest(r.next_release_at, now()) + (row_number() over (order by n.ord) - 1) / r.rate * interval '1 second' as due
	  from next n
	  join open o on o.id = n.letter_id
	  join pollux.replays r on r.id = $1
	), alive as (
	  update pollux.poll_jobs j
	  set state = 'scheduled',
	      lane = 'replay',
	      next_poll_at = p.due,
	      window_started_at = p.due,
	      attempts = 0, failures = 0, not_founds = 0, last_delay_ms = 0,
	      replays = j.replays + 1, revision = j.revision + 1, updated_at = now()
	  from place p
	  where j.payment_id = p.payment_id
	  returning p.ord, p.letter_id, p.replays, j.revision
	), taken as (
	  update pollux.dead_letters l
	  set state = 'replaying'
	  from alive a
	  where l.id = a.letter_id
	), paced as (
	  update pollux.replays r
	  set next_release_at = greatest(r.next_release_at, now()) + (select count(*) from alive) / r.rate * interval '1 second', driven_at = now(), driver = $5
	  where r.id = $1
	)
	update pollux.replay_items i
	set state = 'queued', revision = a.revision, released_at = now(), leg = (select r.leg from pollux.replays r where r.id = $1)
	from alive a
	where i.replay_id = $1
	  and i.ord = a.ord
	returning i.letter_id, a.replays`

// release makes the payments of the next n letters due. Those that cannot be polled any more are refused.
func (s Drive) release(ctx context.Context, tx pgx.Tx, p *deadletter.Progress, n int) ([]audit.Act, error) {
	ords, letters, payments, err := nextItems(ctx, tx, p.ID, n)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, queueItemsSQL, p.ID, ords, letters, payments, s.By.Name)
	if err != nil {
		return nil, err
	}
	done, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (audit.Change, error) {
		var letter int64
		var before int
		err := row.Scan(&letter, &before)
		after := before + 1
		return audit.Change{Target: audit.Letter(letter), Before: letterState{State: deadletter.Open, Times: &before},
			After: letterState{State: deadletter.Replaying, Replay: p.ID, Times: &after}}, err
	})
	if err != nil {
		return nil, err
	}
	refused, err := refuse(ctx, tx, p, ords)
	released := int64(len(done))
	p.Counts.Chosen, p.Counts.Queued = p.Counts.Chosen-released-int64(len(refused)), p.Counts.Queued+released
	return []audit.Act{s.By.act("dlq.replay", audit.Refused, refused), s.By.act("dlq.replay", audit.Done, done)}, err
}

// nextItems are the next n letters of a replay.
func nextItems(ctx context.Context, tx pgx.Tx, id int64, n int) (ords []int32, letters, payments []int64, err error) {
	rows, err := tx.Query(ctx, `
		select ord, letter_id, payment_id
		from pollux.replay_items
		where replay_id = $1
		  and state = 'chosen'
		order by ord
		limit $2`, id, n)
	if err != nil {
		return nil, nil, nil, err
	}
	var ord int32
	var letter, payment int64
	_, err = pgx.ForEachRow(rows, []any{&ord, &letter, &payment}, func() error {
		ords, letters, payments = append(ords, ord), append(letters, letter), append(payments, payment)
		return nil
	})
	return ords, letters, payments, err
}

// refuse says of letters that were to be released and were not what is true of them now.
func refuse(ctx context.Context, tx pgx.Tx, p *deadletter.Progress, ords []int32) ([]audit.Change, error) {
	rows, err := tx.Query(ctx, `
		update pollux.replay_items i
		set state = case when v.verdict = 'already_final' then 'final' else 'refused' end, verdict = v.verdict, detail = v.detail, ended_at = now()
		from (
		  select d.id,
		    case when p.status <> 'pending' then 'already_final' when d.state <> 'open' then 'not_open' when j.state <> 'dead' then 'already_polled' end as verdict,
		    case when p.status <> 'pending' then p.status when d.state <> 'open' then d.state else '' end as detail
		  from pollux.replay_items c
		  join pollux.dead_letters d on d.id = c.letter_id
		  join pollux.payments p on p.id = d.payment_id
		  left join pollux.poll_jobs j on j.payment_id = d.payment_id
		  where c.replay_id = $1
		    and c.ord = any ($2::int[])
		    and c.state = 'chosen'
		) v
		where i.replay_id = $1
		  and i.ord = any ($2::int[])
		  and i.letter_id = v.id
		  and i.state = 'chosen'
		  and v.verdict is not null
		returning i.letter_id, i.verdict, i.detail`, p.ID, ords)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (audit.Change, error) {
		var letter int64
		var verdict deadletter.Verdict
		var detail string
		err := row.Scan(&letter, &verdict, &detail)
		if verdict == deadletter.AlreadyFinal {
			p.Counts.Final++
		} else {
			p.Counts.Refused++
		}
		return audit.Change{Target: audit.Letter(letter), After: letterState{Replay: p.ID, Why: verdict.Why(detail)}}, err
	})
}

// answersLooked is how many letters without an answer are looked at in one step.
const answersLooked = 5000

// noteAnswers notes which released payments the gateway has answered about. It waits for nobody, since by now others may wait for what this transaction has
// locked.
func noteAnswers(ctx context.Context, tx pgx.Tx, id int64) error {
	_, err := tx.Exec(ctx, `
		with asked as materialized (
		  select i.ord
		  from pollux.replay_items i
		  join pollux.poll_jobs j on j.payment_id = i.payment_id
		  where i.replay_id = $1
		    and i.ord = any (array(
		      select w.ord from pollux.replay_items w where w.replay_id = $1 and w.state = 'queued' and w.answered_at is null order by w.ord limit $2))
		    and j.attempts > 0
		  for update of i skip locked
		)
		update pollux.replay_items i
		set answered_at = now()
		from asked
		where i.replay_id = $1
		  and i.ord = asked.ord
		  and i.state = 'queued'`, id, answersLooked)
	return err
}
