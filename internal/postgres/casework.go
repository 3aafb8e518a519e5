package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/audit"
	"pollux/internal/casework"
	"pollux/internal/redelivery"
)

// Casework is the record as operators see single payments. It is safe for concurrent use.
type Casework struct{ pool *pgxpool.Pool }

var (
	_ casework.Record = (*Casework)(nil)
	_ casework.Book   = (*Casework)(nil)
)

// NewCasework returns the record of single payments.
func NewCasework(pool *pgxpool.Pool) *Casework { return &Casework{pool} }

// placeOf is the expression of where a payment p with its job j is. open and kept are the conditions that a letter is open, and that one is there that its
// payment's end has not closed.
func placeOf(open, kept string) string {
	return `
	case
	  when p.id is null then 'nowhere'
	  when p.status <> 'pending' and j.payment_id is null then 'final'
	  when p.status <> 'pending' or j.payment_id is null then 'nowhere'
	  when j.state = 'dead' then case when ` + kept + ` then 'with_person' else 'nowhere' end
	  when ` + open + ` then 'nowhere'
	  when j.held_until > now() then 'held'
	  when j.state in ('scheduled', 'in_flight', 'held', 'deferred') then j.state
	  else 'nowhere'
	end`
}

// placeSQL is placeOf for a few payments: letters are looked up by their payment, one by one. (For exists the planner would hash all letters, and a condition on
// the state might lead it to another index.)
var placeSQL = placeOf(
	`(select bool_or(l.state = 'open') from pollux.dead_letters l where l.payment_id = p.id)`,
	`(select bool_or(l.state <> 'resolved') from pollux.dead_letters l where l.payment_id = p.id)`)

// paymentColumns are the columns of a payment p, in the order of paymentFields.
var paymentColumns = `
	p.id, p.gateway, p.account, p.reference, p.merchant_reference, p.class, p.lane, p.amount_minor, p.currency, p.status, p.status_detail,
	coalesce(p.status_source, ''), p.status_updated_at, p.created_at, p.expires_at, coalesce(p.traceparent, ''), ` + placeSQL

func paymentFields(p *casework.Payment) []any {
	return []any{&p.ID, &p.Gateway, &p.Account, &p.Reference, &p.MerchantReference, &p.Class, &p.Lane, &p.AmountMinor, &p.Currency, &p.Status, &p.StatusDetail,
		&p.StatusSource, &p.StatusSince, &p.TrackedAt, &p.ExpiresAt, &p.TraceParent, &p.Place}
}

// Find implements casework.Record.
func (c *Casework) Find(ctx context.Context, k casework.Key) (int64, error) {
	accounts, references := make([]string, len(k.Names)), make([]string, len(k.Names))
	for i, n := range k.Names {
		accounts[i], references[i] = n[0], n[1]
	}
	rows, err := c.pool.Query(ctx, `
		select p.id from pollux.payments p where p.id = $1
		union all
		select p.id
		from unnest($3::text[], $4::text[]) as n(account, reference)
		join pollux.payments p on p.gateway = $2 and p.account = n.account and p.reference = n.reference
		order by 1`, k.ID, k.Gateway, accounts, references)
	if err != nil {
		return 0, describe("finding a payment", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	switch {
	case err != nil:
		return 0, describe("finding a payment", err)
	case len(ids) == 0:
		return 0, casework.ErrNotFound
	case len(ids) > 1:
		return 0, fmt.Errorf("%w: %d", casework.ErrAmbiguous, ids)
	}
	return ids[0], nil
}

// caseSQL reads what an act depends on.
var caseSQL = `
	select now(), ` + paymentColumns + `, coalesce(j.next_poll_at, 'epoch'), coalesce(j.locked_until > now(), false),
	  case when j.held_until > now() then j.held_until end,
	  coalesce((select max(l.id) filter (where l.state not in ('resolved', 'discarded') and not l.review) from pollux.dead_letters l where l.payment_id = p.id), 0)
	from pollux.payments p
	left join pollux.poll_jobs j on j.payment_id = p.id
	where p.id = $1`

func readStanding(ctx context.Context, tx pgx.Tx, id int64) (casework.Standing, error) {
	var s casework.Standing
	var held *time.Time
	fields := append([]any{&s.Now}, paymentFields(&s.Payment)...)
	err := tx.QueryRow(ctx, caseSQL, id).Scan(append(fields, &s.Due, &s.Leased, &held, &s.Letter)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, casework.ErrNotFound
	}
	if held != nil {
		s.HeldUntil = *held
	}
	return s, err
}

// lockStanding locks a payment and its job, in the order of everybody, and reads what an act depends on.
func lockStanding(ctx context.Context, tx pgx.Tx, id int64) (casework.Standing, error) {
	if _, err := tx.Exec(ctx, `select from pollux.poll_jobs where payment_id = $1 for update`, id); err != nil {
		return casework.Standing{}, err
	}
	if _, err := tx.Exec(ctx, `select from pollux.payments where id = $1 for update`, id); err != nil {
		return casework.Standing{}, err
	}
	return readStanding(ctx, tx, id)
}

// Act implements casework.Record.
func (c *Casework) Act(ctx context.Context, id int64, a casework.Act, judge func(casework.Standing, casework.Act) error) (casework.Outcome, error) {
	var o casework.Outcome
	var refusal error
	err := again(ctx, c.pool, func(tx pgx.Tx) error {
		before, err := lockStanding(ctx, tx, id)
		if err != nil {
			return err
		}
		o = casework.Outcome{ID: id, Verb: a.Verb, Before: condition(before)}
		if refusal = judge(before, a); refusal != nil {
			return writeAct(ctx, tx, refusedAct(audit.Payment(id), a, refusal))
		}
		if err := carryOut(ctx, tx, before, a); err != nil {
			return err
		}
		after, err := readStanding(ctx, tx, id)
		if err != nil {
			return err
		}
		o.After = condition(after)
		return writeAct(ctx, tx, audit.Act{Actor: a.By, Action: "payment." + string(a.Verb), Outcome: audit.Done, Reason: a.Reason,
			Changes: []audit.Change{{Target: audit.Payment(id), Before: o.Before, After: o.After}}})
	})
	switch {
	case errors.Is(err, casework.ErrNotFound):
		return casework.Outcome{}, err
	case err != nil:
		return casework.Outcome{}, describe("changing a payment", err)
	}
	return o, refusal
}

// Refuse implements casework.Record.
func (c *Casework) Refuse(ctx context.Context, k casework.Key, a casework.Act, why error) error {
	return writeAct(ctx, c.pool, refusedAct(audit.Text("payment:"+k.String(), 255), a, why))
}

// refusedAct is an act that was refused: its reason, and why not.
func refusedAct(target string, a casework.Act, refusal error) audit.Act {
	reason := "refused: " + refusal.Error()
	if a.Reason != "" {
		reason = a.Reason + "; " + reason
	}
	return audit.Act{Actor: a.By, Action: "payment." + string(a.Verb), Outcome: audit.Refused, Reason: reason, Changes: []audit.Change{{Target: target}}}
}

// condition is what acts change of a standing.
func condition(s casework.Standing) casework.Condition {
	c := casework.Condition{Status: s.Payment.Status, Source: s.Payment.StatusSource, Place: s.Payment.Place}
	if !s.Payment.Status.Final() {
		due := s.Due.UTC()
		c.Due = &due
	}
	if !s.HeldUntil.IsZero() {
		held := s.HeldUntil.UTC()
		c.HeldUntil = &held
	}
	return c
}

// The statements of the acts. Each ends a lease, so that whoever has the job changes nothing any more: a new token comes by the relay's claim alone. A poll that
// an operator wants now goes before the retries.
const (
	pollNowSQL = `
		update pollux.poll_jobs
		set state = 'scheduled', lane = case when lane = 'high' then lane else 'normal' end, next_poll_at = now(), held_until = null,
		    locked_until = null, locked_by = null, lock_token = null, revision = revision + 1, updated_at = now()
		where payment_id = $1`
	holdSQL = `
		update pollux.poll_jobs
		set state = 'scheduled', held_until = $2, locked_until = null, locked_by = null, lock_token = null, revision = revision + 1, updated_at = now()
		where payment_id = $1`
	unholdSQL = `
		update pollux.poll_jobs
		set held_until = null, next_poll_at = greatest(next_poll_at, now()), updated_at = now()
		where payment_id = $1`
	forceSQL = `
		update pollux.payments
		set status = $2, status_detail = 'forced', status_source = 'operator'
		where id = $1`
)

func carryOut(ctx context.Context, tx pgx.Tx, s casework.Standing, a casework.Act) error {
	args, sql := []any{s.Payment.ID}, ""
	switch a.Verb {
	case casework.PollNow:
		sql = pollNowSQL
	case casework.Hold:
		sql, args = holdSQL, append(args, casework.HoldUntil(s, a))
	case casework.Release:
		sql = unholdSQL
	case casework.Force:
		sql, args = forceSQL, append(args, string(a.Status))
	default:
		return fmt.Errorf("there is no act %q", a.Verb)
	}
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

// Dossier implements casework.Record.
func (c *Casework) Dossier(ctx context.Context, id int64) (d casework.Dossier, err error) {
	err = pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		d, err = dossier(ctx, tx, id)
		return err
	})
	if errors.Is(err, casework.ErrNotFound) {
		return d, err
	}
	return d, describe("reading a payment", err)
}

func dossier(ctx context.Context, tx pgx.Tx, id int64) (casework.Dossier, error) {
	d, err := readCase(ctx, tx, id)
	if err != nil {
		return d, err
	}
	if d.Letters, err = newestRows[casework.Letter](ctx, tx, `
		select id, reason, state, gateway_status, message, created_at, died_at, closed_at, coalesce(closed_by, '')
		from pollux.dead_letters
		where payment_id = $2
		order by died_at desc
		limit $1`, id); err != nil {
		return d, err
	}
	if d.Attempts, err = attemptsOf(ctx, tx, id); err != nil {
		return d, err
	}
	if d.Events, err = eventsOf(ctx, tx, d); err != nil {
		return d, err
	}
	if d.Notices, err = newestRows[casework.Notice](ctx, tx, `
		select event_id, received_at, kind, status, decision, why
		from pollux.webhook_events
		where payment_id = $2
		order by received_at desc
		limit $1`, id); err != nil {
		return d, err
	}
	if d.Breaker, err = newestRows[casework.Transition](ctx, tx, `
		select at, from_state, to_state, cause, reason, actor, retry_at
		from (`+transitionsSQL(`
		    and at <= $5
		    and id >= coalesce((
		      select max(b.id) from pollux.breaker_transitions b where b.gateway = $2 and b.account = $3 and b.at <= $4), 0) - $6`)+`) t
		order by `+newestTransition+`
		limit $1`, d.Payment.Gateway, d.Payment.Account, d.Payment.TrackedAt, d.End(), writtenLate); err != nil {
		return d, err
	}
	for len(d.Breaker) > 1 && !d.Breaker[1].At.After(d.Payment.TrackedAt) {
		d.Breaker = d.Breaker[1:]
	}
	d.Acts, err = actsOf(ctx, tx, d)
	return d, err
}

// newestRows reads the newest rows of a kind, the oldest of them first. The first argument of the statement is how many. Statements order them by a time that no
// index has alone, so that none is walked in search of a few rows.
func newestRows[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, append([]any{casework.MaxRows}, args...)...)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	slices.Reverse(list)
	return list, err
}

// readCase reads a payment with its job.
func readCase(ctx context.Context, tx pgx.Tx, id int64) (casework.Dossier, error) {
	var d casework.Dossier
	var j casework.Job
	var there bool
	var delay int64
	fields := append([]any{&d.Now}, paymentFields(&d.Payment)...)
	fields = append(fields, &there, &j.State, &j.Due, &j.LockedUntil, &j.LockedBy, &j.HeldUntil, &j.Lane, &j.Attempts, &j.Failures, &j.NotFounds, &j.Deferrals, &j.Replays,
		&delay, &j.LastClass, &j.LastMessage, &j.WindowFrom)
	err := tx.QueryRow(ctx, `
		select now(), `+paymentColumns+`, j.payment_id is not null, coalesce(j.state, ''), coalesce(j.next_poll_at, 'epoch'), j.locked_until, coalesce(j.locked_by, ''),
		  j.held_until, coalesce(j.lane, ''), coalesce(j.attempts, 0), coalesce(j.failures, 0), coalesce(j.not_founds, 0), coalesce(j.deferrals, 0),
		  coalesce(j.replays, 0), coalesce(j.last_delay_ms, 0), coalesce(j.last_class, ''), coalesce(j.last_message, ''), coalesce(j.window_started_at, 'epoch')
		from pollux.payments p
		left join pollux.poll_jobs j on j.payment_id = p.id
		where p.id = $1`, id).Scan(fields...)
	if errors.Is(err, pgx.ErrNoRows) {
		return d, casework.ErrNotFound
	}
	if there {
		j.Delay = time.Duration(delay) * time.Millisecond
		j.Counters = redelivery.Counters{Attempts: j.Attempts, Failures: j.Failures, NotFounds: j.NotFounds, Deferrals: j.Deferrals, Replays: j.Replays}
		d.Job = &j
	}
	return d, err
}

func attemptsOf(ctx context.Context, tx pgx.Tx, id int64) ([]casework.Attempt, error) {
	rows, err := tx.Query(ctx, `
		select at, due_at, took_us, class, http_status, gateway_status, retry_after_ms, message, disposition, reason, delay_ms, applied, policy, worker, trace_id
		from pollux.poll_attempts
		where payment_id = $1
		order by at desc
		limit $2`, id, casework.MaxRows)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a casework.Attempt, err error) {
		var us int64
		err = row.Scan(&a.At, &a.Due, &us, &a.Class, &a.HTTPStatus, &a.GatewayStatus, &a.RetryAfterMS, &a.Message, &a.Disposition, &a.Reason, &a.DelayMS, &a.Applied,
			&a.Policy, &a.Worker, &a.TraceID)
		a.Took, a.TookMS = time.Duration(us)*time.Microsecond, us/1000
		return a, err
	})
	slices.Reverse(list)
	return list, err
}

// eventsOf reads the events of a payment, of all that the outbox still has.
func eventsOf(ctx context.Context, tx pgx.Tx, d casework.Dossier) ([]casework.Event, error) {
	return newestRows[casework.Event](ctx, tx, `
		select event_id, subject, created_at, published_at, coalesce(set_aside, '')
		from pollux.outbox
		where payment_id = $2
		  and created_at >= $3
		order by created_at desc, seq desc
		limit $1`, d.Payment.ID, d.Payment.TrackedAt)
}

func actsOf(ctx context.Context, tx pgx.Tx, d casework.Dossier) ([]audit.Entry, error) {
	targets := []string{audit.Payment(d.Payment.ID)}
	for _, l := range d.Letters {
		targets = append(targets, audit.Letter(l.ID))
	}
	rows, err := tx.Query(ctx, `
		select `+entryColumns+`
		from pollux.audit_log
		where target = any ($1)
		order by seq desc
		limit $2`, targets, casework.MaxRows)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, scanEntry)
	slices.Reverse(list)
	return list, err
}

// conditions is the where of a statement that is put together, with its arguments.
type conditions struct {
	sql  string
	args []any
}

// add adds a condition: the argument stands between before and after.
func (c *conditions) add(before string, arg any, after string) {
	c.args = append(c.args, arg)
	c.sql += fmt.Sprintf("\n  and %s$%d%s", before, len(c.args), after)
}

// chosen is the from and where of a filter. What is pending is found by its job, so that the final ones, which are a thousand times as many, are not read.
func chosen(f casework.Filter) (from, id string, c conditions) {
	from, id = `pollux.payments p left join pollux.poll_jobs j on j.payment_id = p.id`, `p.id`
	if f.Pending() {
		from, id = `pollux.poll_jobs j join pollux.payments p on p.id = j.payment_id`, `j.payment_id`
		c.sql += "\n  and p.status = 'pending'"
	}
	if f.Status.Final() {
		c.add(`p.status = `, string(f.Status), ``)
	}
	for column, value := range map[string]string{"p.gateway": f.Gateway, "p.account": f.Account, "p.class": f.Class, "p.currency": f.Currency} {
		if value != "" {
			c.add(column+` = `, value, ``)
		}
	}
	if f.Place != "" {
		c.sql += jobIn[f.Place]
		c.add(`(`+placeSQL+`) = `, string(f.Place), ``)
	}
	if f.Older > 0 {
		c.add(`p.created_at <= now() - `, f.Older.Microseconds(), `::bigint * interval '1 microsecond'`)
	}
	if f.Newer > 0 {
		c.add(`p.created_at >= now() - `, f.Newer.Microseconds(), `::bigint * interval '1 microsecond'`)
	}
	if f.Least != nil {
		c.add(`p.amount_minor >= `, *f.Least, ``)
	}
	if f.Most != nil {
		c.add(`p.amount_minor <= `, *f.Most, ``)
	}
	if f.Text != "" {
		c.add(`(p.reference || ' ' || p.merchant_reference) like '%' || `, escapeLike(f.Text), ` || '%'`)
	}
	return from, id, c
}

// jobIn is what the job of a payment in a place says of itself: few others are looked at then.
var jobIn = map[casework.Place]string{
	casework.Scheduled:  "\n  and j.state = 'scheduled'",
	casework.InFlight:   "\n  and j.state = 'in_flight'",
	casework.Held:       "\n  and (j.state = 'held' or j.held_until > now())",
	casework.Deferred:   "\n  and j.state = 'deferred'",
	casework.WithPerson: "\n  and j.state = 'dead'",
}

// List implements casework.Book.
func (c *Casework) List(ctx context.Context, f casework.Filter, before int64, limit int) ([]casework.Waiting, error) {
	from, id, cond := chosen(f)
	if before > 0 {
		cond.add(id+` < `, before, ``)
	}
	rows, err := c.pool.Query(ctx, fmt.Sprintf(`
		select %s, case when j.state <> 'dead' then greatest(j.next_poll_at, j.held_until) end, coalesce(j.attempts, 0), coalesce(j.failures, 0)
		from %s
		where true%s
		order by %s desc
		limit %d`, paymentColumns, from, cond.sql, id, limit), cond.args...)
	if err != nil {
		return nil, describe("listing payments", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w casework.Waiting, err error) {
		return w, row.Scan(append(paymentFields(&w.Payment), &w.Due, &w.Attempts, &w.Failures)...)
	})
	return list, describe("listing payments", err)
}

// Totals implements casework.Book.
func (c *Casework) Totals(ctx context.Context, f casework.Filter) ([]casework.Total, error) {
	from, _, cond := chosen(f)
	rows, err := c.pool.Query(ctx, `
		select p.currency, count(*), least(sum(p.amount_minor), 9223372036854775807)::bigint
		from `+from+`
		where true`+cond.sql+`
		group by p.currency
		order by p.currency`, cond.args...)
	if err != nil {
		return nil, describe("adding payments up", err)
	}
	totals, err := pgx.CollectRows(rows, pgx.RowToStructByPos[casework.Total])
	return totals, describe("adding payments up", err)
}

// countedSQL is every payment and every job, each with where it is, for a count: everything is read once.
var countedSQL = `
	select coalesce(p.id, j.payment_id) as id, p.id is not null as tracked, ` + placeOf(`coalesce(d.open, false)`, `d.payment_id is not null`) + ` as place,
	  coalesce(j.held_until > now(), false) as by_hand,
	  case when j.state <> 'dead' and j.claimable_at < now() - $1::bigint * interval '1 microsecond' then j.claimable_at end as overdue,
	  case
	    when p.id is null then 'a poll job without a payment'
	    when p.status <> 'pending' then 'its status is ' || p.status || ' and it still has a poll job'
	    when j.payment_id is null then 'it is pending and has no poll job'
	    when j.state = 'dead' then 'its poll job is dead and it has no dead letter'
	    when d.open then 'it has an open dead letter and is polled all the same'
	    else 'its poll job is ' || j.state || ', which is no state'
	  end as why
	from pollux.payments p
	full join pollux.poll_jobs j on j.payment_id = p.id
	left join (
	  select payment_id, bool_or(state = 'open') as open
	  from pollux.dead_letters
	  where state <> 'resolved'
	    and not review
	    and payment_id is not null
	  group by payment_id
	) d on d.payment_id = coalesce(p.id, j.payment_id)`

// Count implements casework.Book.
func (c *Casework) Count(ctx context.Context) (casework.Count, error) {
	n := casework.Count{In: map[casework.Place]int64{}, Strays: []casework.Stray{}, Events: casework.Events{Named: []casework.Stray{}}}
	err := pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// The planner takes the places for a million different ones and would sort them on disk.
		if _, err := tx.Exec(ctx, `set local work_mem = '64MB'; set local jit = off; set local enable_sort = off`); err != nil {
			return err
		}
		if err := countPlaces(ctx, tx, &n); err != nil || n.Lost == 0 {
			return err
		}
		rows, err := tx.Query(ctx, `select id, why from (`+countedSQL+`) x where place = 'nowhere' order by id limit $2`, casework.Patience.Microseconds(), casework.MaxStrays)
		if err != nil {
			return err
		}
		n.Strays, err = pgx.CollectRows(rows, pgx.RowToStructByPos[casework.Stray])
		return err
	})
	if err != nil {
		return n, describe("counting payments", err)
	}
	n.Events, err = c.countEvents(ctx)
	return n, describe("counting events", err)
}

// announcedSQL is every payment with the events that say how it ended, and what is wrong with them; nothing where nothing is. An event has the time of its change of status, as the
// trigger writes both in one transaction. A day's events are dropped together with their partition, and those of the default partition are kept for an hour at the least: so an event
// must be there while its day's partition is, or within the hour. Of a payment whose status changed again the event of the last change is looked for; the earlier ones may be there.
const announcedSQL = `
	with days as (
	  select to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp at time zone 'UTC' as began
	  from pg_catalog.pg_inherits i
	  join pg_catalog.pg_class c on c.oid = i.inhrelid
	  where i.inhparent = 'pollux.outbox'::regclass
	    and c.relname ~ '_\d{8}$'
	), said as (
	  select payment_id, array_agg(event_id) as ids
	  from pollux.outbox
	  where subject like 'payments.resolved.%' or subject like 'payments.late\_success.%'
	  group by payment_id
	), told as (
	  select p.id, s.payment_id, p.status, p.revision, s.ids, p.id || '-' || p.revision || '-' || p.status as last,
	    p.status <> 'pending' and (
	      p.status_updated_at > now() - interval '1 hour'
	      or exists (select from days d where p.status_updated_at >= d.began and p.status_updated_at < d.began + interval '1 day')
	    ) as kept
	  from pollux.payments p
	  full join said s on s.payment_id = p.id
	)
	select coalesce(id, payment_id, 0) as id, coalesce(kept, false) as kept,
	  case
	    when ids = array[last] and status <> 'pending' then null
	    when ids is null and not kept then null
	    when id is null then 'event ' || ids[1] || ' says how it ended, and it is not tracked'
	    when kept and (ids is null or last <> all (ids)) then 'its status is ' || status || ', and its event ' || last || ' is not in the outbox'
	    else (
	      select case when count(*) > 1 then 'its event ' || e.id || ' is in the outbox ' || count(*) || ' times'
	                  else 'event ' || e.id || ' says what its status never was' end
	      from unnest(ids) as e(id)
	      cross join lateral regexp_match(e.id, '^(\d{1,19})-([1-9]\d{0,8})-(succeeded|failed|cancelled|expired)$') as m
	      group by e.id, m
	      having count(*) > 1
	        or m is null
	        or m[1] <> told.id::text
	        or m[2]::integer > told.revision
	        or m[2]::integer = told.revision and m[3] <> told.status
	      order by e.id
	      limit 1
	    )
	  end as why
	from told`

// countEvents keeps the partitions of the outbox where they are while it looks: the catalogue is not read as of a snapshot.
func (c *Casework) countEvents(ctx context.Context) (e casework.Events, err error) {
	err = pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `lock table only pollux.outbox in access share mode; set local work_mem = '64MB'; set local jit = off; set local enable_sort = off`); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `select count(*) filter (where kept), count(why) from (`+announcedSQL+`) x`).Scan(&e.Judged, &e.Wrong); err != nil {
			return err
		}
		e.Named = []casework.Stray{}
		if e.Wrong == 0 {
			return nil
		}
		rows, err := tx.Query(ctx, `select id, why from (`+announcedSQL+`) x where why is not null order by id limit $1`, casework.MaxStrays)
		if err != nil {
			return err
		}
		e.Named, err = pgx.CollectRows(rows, pgx.RowToStructByPos[casework.Stray])
		return err
	})
	return e, err
}

func countPlaces(ctx context.Context, tx pgx.Tx, n *casework.Count) error {
	rows, err := tx.Query(ctx, `
		select place, count(*), count(*) filter (where tracked), count(*) filter (where by_hand and place = 'held'), count(overdue), min(overdue)
		from (`+countedSQL+`) x
		group by place`, casework.Patience.Microseconds())
	if err != nil {
		return err
	}
	var place casework.Place
	var all, tracked, byHand, overdue int64
	var oldest *time.Time
	_, err = pgx.ForEachRow(rows, []any{&place, &all, &tracked, &byHand, &overdue, &oldest}, func() error {
		n.Tracked += tracked
		if place == casework.Nowhere {
			n.Lost = all
			return nil
		}
		n.In[place], n.ByHand, n.Overdue = all, n.ByHand+byHand, n.Overdue+overdue
		if oldest != nil && (n.Oldest == nil || oldest.Before(*n.Oldest)) {
			n.Oldest = oldest
		}
		return nil
	})
	return err
}

// escapeLike makes a text that like takes as it is.
func escapeLike(s string) string {
	var b []rune
	for _, r := range s {
		if r == '%' || r == '_' || r == '\\' {
			b = append(b, '\\')
		}
		b = append(b, r)
	}
	return string(b)
}
