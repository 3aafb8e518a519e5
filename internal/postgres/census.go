package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/payment"
)

// Census counts payments. It is for people who look and for checks after a run: it reads whole tables.
type Census struct {
	Tracked   int
	Scheduled int // due, or asleep for the first time
	InFlight  int
	Held      int
	Parked    int // asleep after a poll
	Deferred  int
	Dead      int
	ByStatus  map[payment.Status]int
	Polls     int64
}

// Pending is how many payments are pending, those with a person included.
func (c Census) Pending() int { return c.ByStatus[payment.Pending] }

// Final is how many payments have a final status.
func (c Census) Final() int { return c.Tracked - c.Pending() }

// Settled reports whether each payment is final or with a person.
func (c Census) Settled() bool { return c.Pending() == c.Dead }

// Count counts the payments whose id is from or above.
func Count(ctx context.Context, pool *pgxpool.Pool, from payment.ID) (Census, error) {
	c := Census{ByStatus: map[payment.Status]int{}}
	err := pool.QueryRow(ctx, `
		select
		  count(*) filter (where state = 'scheduled' and (revision = 0 or next_poll_at <= now())),
		  count(*) filter (where state = 'in_flight'),
		  count(*) filter (where state = 'held'),
		  count(*) filter (where state = 'scheduled' and revision > 0 and next_poll_at > now()),
		  count(*) filter (where state = 'deferred'),
		  count(*) filter (where state = 'dead'),
		  (select count(*) from pollux.poll_attempts where payment_id >= $1)
		from pollux.poll_jobs
		where payment_id >= $1`, int64(from)).Scan(&c.Scheduled, &c.InFlight, &c.Held, &c.Parked, &c.Deferred, &c.Dead, &c.Polls)
	if err != nil {
		return c, describe("counting jobs", err)
	}
	rows, err := pool.Query(ctx, `
		select status, count(*)
		from pollux.payments
		where id >= $1
		group by status`, int64(from))
	if err != nil {
		return c, describe("counting payments", err)
	}
	for rows.Next() {
		var status payment.Status
		var n int
		if err := rows.Scan(&status, &n); err != nil {
			rows.Close()
			return c, describe("counting payments", err)
		}
		c.ByStatus[status], c.Tracked = n, c.Tracked+n
	}
	return c, describe("counting payments", rows.Err())
}

// Waiting is how many payments from an id on are neither final nor with a person. It is cheap: it reads their jobs only.
func Waiting(ctx context.Context, pool *pgxpool.Pool, from payment.ID) (n int, err error) {
	err = pool.QueryRow(ctx, `
		select count(*)
		from pollux.poll_jobs
		where payment_id >= $1
		  and state <> 'dead'`, int64(from)).Scan(&n)
	return n, describe("counting jobs", err)
}

// Quantiles are the medians and the 99th percentiles of a run.
type Quantiles struct {
	Finality50, Finality99 time.Duration // from tracking to the final status
	Lateness50, Lateness99 time.Duration // of polls after the first: how long after they were due they began
	First50, First99       time.Duration // the same of first polls
	Span                   time.Duration // from the first payment tracked to the last one settled
	Working                time.Duration // from the first poll to the last payment settled
}

// Measure computes the quantiles of payments whose id is from or above, over those that were settled within the last window (0: over all).
func Measure(ctx context.Context, pool *pgxpool.Pool, from payment.ID, window time.Duration) (Quantiles, error) {
	var f50, f99, l50, l99, a50, a99, span, working float64
	err := pool.QueryRow(ctx, `
		with finals as (
		  select extract(epoch from status_updated_at - created_at)::float8 as took, created_at, status_updated_at
		  from pollux.payments
		  where id >= $1
		    and status <> 'pending'
		    and ($2::bigint = 0 or status_updated_at >= now() - $2::bigint * interval '1 microsecond')
		), polls as (
		  select extract(epoch from a.at - a.due_at)::float8 as late, a.at = min(a.at) over (partition by a.payment_id) as first
		  from pollux.poll_attempts a
		  where a.payment_id >= $1
		    and ($2::bigint = 0 or a.at >= now() - $2::bigint * interval '1 microsecond')
		), settled as (
		  select greatest((select max(status_updated_at) from pollux.payments where id >= $1 and status <> 'pending'),
		    (select max(died_at) from pollux.dead_letters where payment_id >= $1)) as at
		)
		select
		  coalesce((select percentile_disc(0.5) within group (order by took) from finals), 0),
		  coalesce((select percentile_disc(0.99) within group (order by took) from finals), 0),
		  coalesce((select percentile_disc(0.5) within group (order by late) from polls where not first), 0),
		  coalesce((select percentile_disc(0.99) within group (order by late) from polls where not first), 0),
		  coalesce((select percentile_disc(0.5) within group (order by late) from polls where first), 0),
		  coalesce((select percentile_disc(0.99) within group (order by late) from polls where first), 0),
		  coalesce((select extract(epoch from settled.at - (select min(created_at) from pollux.payments where id >= $1))::float8 from settled), 0),
		  coalesce((select extract(epoch from settled.at - (select min(at) from pollux.poll_attempts where payment_id >= $1))::float8 from settled), 0)`,
		int64(from), window.Microseconds()).Scan(&f50, &f99, &l50, &l99, &a50, &a99, &span, &working)
	d := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return Quantiles{d(f50), d(f99), d(l50), d(l99), d(a50), d(a99), d(span), d(working)}, describe("measuring", err)
}

// Standing is where one payment stands, for a check against the gateway's own book.
type Standing struct {
	ID        payment.ID
	Gateway   string
	Reference string
	Status    payment.Status
	Source    string // who said so: poll, webhook, operator, reconciliation; nothing while nobody has
	Revision  int    // how often its status has changed
	Person    bool   // its job is dead and a letter is open
	Job       bool
	Leased    bool // its job has a lease that has not run out
	Due       bool // its job is due
	Events    int  // events of its final status
	Resolves  int  // recorded polls that ended it
	Polls     int
	Announced bool // all its events are published
}

// Standings reads the standing of each payment whose id is from or above.
func Standings(ctx context.Context, pool *pgxpool.Pool, from payment.ID) ([]Standing, error) {
	rows, err := pool.Query(ctx, `
		select p.id, p.gateway, p.reference, p.status, coalesce(p.status_source, ''), p.revision,
		  coalesce(j.state = 'dead', false) and d.payment_id is not null,
		  j.payment_id is not null, coalesce(j.locked_until > now(), false), coalesce(j.claimable_at <= now(), false),
		  coalesce(e.n, 0), coalesce(a.n, 0), coalesce(a.polls, 0), coalesce(e.announced, true)
		from pollux.payments p
		left join pollux.poll_jobs j on j.payment_id = p.id
		left join pollux.dead_letters d on d.payment_id = p.id and d.state in ('open', 'replaying', 'parked') and not d.review
		left join (
		  select payment_id, count(*) filter (where subject like 'payments.resolved.%' or subject like 'payments.late_success.%') as n, bool_and(published_at is not null) as announced
		  from pollux.outbox
		  where payment_id >= $1
		  group by payment_id
		) e on e.payment_id = p.id
		left join (
		  select payment_id, count(*) filter (where disposition = 'resolve' and applied) as n, count(*) as polls
		  from pollux.poll_attempts
		  where payment_id >= $1
		  group by payment_id
		) a on a.payment_id = p.id
		where p.id >= $1`, int64(from))
	if err != nil {
		return nil, describe("reading standings", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Standing])
	return all, describe("reading standings", err)
}

// Unpublished is how many events of payments from an id on are not published yet. Those set aside are not counted.
func Unpublished(ctx context.Context, pool *pgxpool.Pool, from payment.ID) (n int, err error) {
	err = pool.QueryRow(ctx, `
		select count(*)
		from pollux.outbox
		where published_at is null
		  and set_aside is null
		  and payment_id >= $1`, int64(from)).Scan(&n)
	return n, describe("counting events", err)
}
