package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/redelivery"
)

// Relay is the record as the outbox relay sees it. It is safe for concurrent use.
type Relay struct {
	pool         *pgxpool.Pool
	keepEvents   time.Duration
	keepAttempts time.Duration
}

var _ outbox.Record = (*Relay)(nil)

// NewRelay returns the record for a relay. Published events are kept for keepEvents, attempts for keepAttempts, both by whole days.
func NewRelay(pool *pgxpool.Pool, keepEvents, keepAttempts time.Duration) *Relay {
	return &Relay{pool: pool, keepEvents: keepEvents, keepAttempts: keepAttempts}
}

// Claim implements outbox.Record. Each queue is one short walk from the front of its part of the index; the claim moves the
// rows' claimable time behind the lease, so the next claim does not meet them.
func (r *Relay) Claim(ctx context.Context, rooms []outbox.Room, limit int, owner string, lease time.Duration) ([]outbox.Job, error) {
	gateways, lanes, n := make([]string, len(rooms)), make([]string, len(rooms)), make([]int32, len(rooms))
	for i, room := range rooms {
		gateways[i], lanes[i], n[i] = room.Gateway, room.Lane, int32(max(room.N, 0))
	}
	rows, err := r.pool.Query(ctx, `
		with due as materialized (
		  select j.payment_id
		  from unnest($1::text[], $2::text[], $3::int[]) as room(gateway, lane, n)
		  cross join lateral (
		    select payment_id
		    from pollux.poll_jobs
		    where gateway = room.gateway
		      and lane = room.lane
		      and claimable_at <= now()
		    order by claimable_at
		    limit room.n
		    for update skip locked
		  ) j
		  limit $6
		)
		update pollux.poll_jobs j
		set state = 'in_flight',
		    locked_until = now() + $4::bigint * interval '1 microsecond',
		    locked_by = $5,
		    lock_token = gen_random_uuid(),
		    updated_at = now()
		from due
		join pollux.payments p on p.id = due.payment_id
		where j.payment_id = due.payment_id
		returning j.payment_id, j.gateway, j.lane, j.lock_token::text, j.revision, j.next_poll_at, p.traceparent, now()`,
		gateways, lanes, n, lease.Microseconds(), owner, limit)
	if err != nil {
		return nil, describe("claiming due jobs", err)
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (outbox.Job, error) {
		var j outbox.Job
		var trace *string
		var now time.Time
		err := row.Scan(&j.Payment, &j.Gateway, &j.Lane, &j.Token, &j.Revision, &j.DueAt, &trace, &now)
		if trace != nil {
			j.TraceParent = *trace
		}
		j.Lag = now.Sub(j.DueAt)
		return j, err
	})
	if err != nil {
		return nil, describe("claiming due jobs", err)
	}
	slices.SortStableFunc(jobs, func(a, b outbox.Job) int { return a.DueAt.Compare(b.DueAt) })
	return jobs, nil
}

// Release implements outbox.Record.
func (r *Relay) Release(ctx context.Context, jobs []outbox.Job) error {
	ids, tokens := jobKeys(jobs)
	_, err := r.pool.Exec(ctx, `
		update pollux.poll_jobs j
		set state = 'scheduled', locked_until = null, locked_by = null, lock_token = null, updated_at = now()
		from unnest($1::bigint[], $2::text[]::uuid[]) as i(id, token)
		where j.payment_id = i.id
		  and j.lock_token = i.token
		  and j.state = 'in_flight'`, ids, tokens)
	return describe("releasing jobs", err)
}

func jobKeys(jobs []outbox.Job) (ids []int64, tokens []string) {
	for _, j := range jobs {
		ids, tokens = append(ids, int64(j.Payment)), append(tokens, j.Token)
	}
	return ids, tokens
}

// SetAside implements outbox.Record: each job becomes a dead letter.
func (r *Relay) SetAside(ctx context.Context, aside []outbox.SetAside) error {
	for _, s := range aside {
		err := again(ctx, r.pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `
				update pollux.poll_jobs
				set state = 'dead', locked_until = null, locked_by = null, lock_token = null, last_message = $3, updated_at = now()
				where payment_id = $1
				  and lock_token = $2::text::uuid`, s.Job.Payment, s.Job.Token, s.Reason)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			_, err = tx.Exec(ctx, `select pollux.bury($1, $2, '', 0::smallint, '', $3, '', '', '', null)`,
				s.Job.Payment, string(redelivery.ReasonUnpublishable), s.Reason)
			return err
		})
		if err != nil {
			return describe(fmt.Sprintf("setting job %d aside", s.Job.Payment), err)
		}
	}
	return nil
}

// Queues implements outbox.Record: a walk from queue to queue along the index, whatever the number of jobs.
func (r *Relay) Queues(ctx context.Context) ([]outbox.Queue, error) {
	rows, err := r.pool.Query(ctx, `
		with recursive queue as (
		  (select gateway, lane from pollux.poll_jobs order by gateway, lane limit 1)
		  union all
		  select next.gateway, next.lane
		  from queue
		  cross join lateral (
		    select gateway, lane
		    from pollux.poll_jobs
		    where (gateway, lane) > (queue.gateway, queue.lane)
		    order by gateway, lane
		    limit 1
		  ) next
		)
		select gateway, lane from queue`)
	if err != nil {
		return nil, describe("listing the queues", err)
	}
	queues, err := pgx.CollectRows(rows, pgx.RowToStructByPos[outbox.Queue])
	return queues, describe("listing the queues", err)
}

// errNothing ends a transaction in which nothing was to do.
var errNothing = errors.New("nothing to do")

// PublishEvents implements outbox.Record.
func (r *Relay) PublishEvents(ctx context.Context, n int, retry time.Duration, publish func(context.Context, []outbox.Event) []outbox.Receipt) (int, error) {
	var taken int
	err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		events, created, err := takeEvents(ctx, tx, n)
		if err != nil {
			return err
		}
		if taken = len(events); taken == 0 {
			return errNothing
		}
		receipts := publish(ctx, events)
		return markEvents(ctx, tx, events, created, receipts, retry)
	})
	if errors.Is(err, errNothing) {
		return 0, nil
	}
	return taken, describe("publishing events", err)
}

func takeEvents(ctx context.Context, tx pgx.Tx, n int) (events []outbox.Event, created []time.Time, err error) {
	rows, err := tx.Query(ctx, `
		select seq, event_id, subject, body, traceparent, created_at, now()
		from pollux.outbox
		where published_at is null
		  and set_aside is null
		  and retry_at <= now()
		order by seq
		limit $1
		for update skip locked`, n)
	if err != nil {
		return nil, nil, err
	}
	for rows.Next() {
		var e outbox.Event
		var trace *string
		var at, now time.Time
		if err := rows.Scan(&e.Seq, &e.ID, &e.Subject, &e.Body, &trace, &at, &now); err != nil {
			rows.Close()
			return nil, nil, err
		}
		if trace != nil {
			e.TraceParent = *trace
		}
		e.Lag = now.Sub(at)
		events, created = append(events, e), append(created, at)
	}
	return events, created, rows.Err()
}

func markEvents(ctx context.Context, tx pgx.Tx, events []outbox.Event, created []time.Time, receipts []outbox.Receipt, retry time.Duration) error {
	seqs, streams, positions := make([]int64, len(events)), make([]*string, len(events)), make([]*int64, len(events))
	asides, failed := make([]*string, len(events)), 0
	for i, e := range events {
		seqs[i] = e.Seq
		var refused *outbox.Refusal
		switch receipt := receipts[i]; {
		case receipt.Err == nil:
			position := int64(receipt.Sequence)
			streams[i], positions[i] = &receipt.Stream, &position
		case errors.As(receipt.Err, &refused):
			asides[i] = &refused.Reason
		default:
			failed++
		}
	}
	_, err := tx.Exec(ctx, `
		update pollux.outbox o
		set published_at = case when i.stream is not null then now() end,
		    stream = i.stream,
		    stream_seq = i.position,
		    set_aside = i.aside,
		    tries = o.tries + 1,
		    retry_at = case when i.stream is null then now() + $6::bigint * interval '1 microsecond' else o.retry_at end
		from unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::bigint[], $5::text[]) as i(seq, created_at, stream, position, aside)
		where o.seq = i.seq
		  and o.created_at = i.created_at`, seqs, created, streams, positions, asides, retry.Microseconds())
	return err
}

// Observe implements outbox.Record. The stream's row is locked while the stream is looked at: what is remembered is then never newer than what is seen.
func (r *Relay) Observe(ctx context.Context, name string, look func(context.Context, string) (outbox.StreamState, error)) (outbox.Recovery, error) {
	var found outbox.Recovery
	err := again(ctx, r.pool, func(tx pgx.Tx) error {
		found = outbox.Recovery{}
		_, err := tx.Exec(ctx, `insert into pollux.streams (name, created, last_sequence) values ($1, '-infinity', 0) on conflict (name) do nothing`, name)
		if err != nil {
			return err
		}
		var created pgtype.Timestamptz
		var last int64
		err = tx.QueryRow(ctx, `
			select created, last_sequence
			from pollux.streams
			where name = $1
			for update`, name).Scan(&created, &last)
		if err != nil {
			return err
		}
		s, err := look(ctx, name)
		if err != nil {
			return err
		}
		s.Created = s.Created.Truncate(time.Microsecond)
		known := created.InfinityModifier == pgtype.Finite
		recreated := known && !created.Time.Equal(s.Created)
		truncated := known && !recreated && int64(s.LastSequence) < last
		if known && !recreated && int64(s.LastSequence) == last {
			return nil
		}
		if found.Lost = recreated || truncated; found.Lost {
			if err := rearm(ctx, tx, s, recreated, &found); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `
			update pollux.streams
			set created = $2, last_sequence = $3, seen_at = now(), lost_at = case when $4 then now() else lost_at end
			where name = $1`, name, s.Created, int64(s.LastSequence), found.Lost)
		return err
	})
	return found, describe("observing stream "+name, err)
}

// rearm makes publishable again what a stream has lost. Jobs are due at their time again: a lease protects a message that is no more.
func rearm(ctx context.Context, tx pgx.Tx, s outbox.StreamState, recreated bool, found *outbox.Recovery) error {
	var states []string
	switch s.Name {
	case message.StreamPoll:
		states = []string{"in_flight", "held"}
	case message.StreamDeferred:
		states = []string{"deferred"}
	}
	if states != nil {
		tag, err := tx.Exec(ctx, `
			update pollux.poll_jobs
			set state = 'scheduled', locked_until = null, locked_by = null, lock_token = null, updated_at = now()
			where state = any ($1)`, states)
		found.Jobs = int(tag.RowsAffected())
		return err
	}
	above := int64(s.LastSequence)
	if recreated {
		above = -1
	}
	tag, err := tx.Exec(ctx, `
		update pollux.outbox
		set published_at = null, stream = null, stream_seq = null, retry_at = '-infinity'
		where stream = $1
		  and stream_seq > $2`, s.Name, above)
	found.Events = int(tag.RowsAffected())
	return err
}

// Maintain implements outbox.Record.
func (r *Relay) Maintain(ctx context.Context) error {
	_, err := r.pool.Exec(ctx, `select pollux.maintain($1::bigint * interval '1 second', $2::bigint * interval '1 second')`,
		int64(r.keepEvents.Seconds()), int64(r.keepAttempts.Seconds()))
	return describe("maintaining the partitions", err)
}

// Check reports whether the record can be reached and fits this build.
func (r *Relay) Check(ctx context.Context) error { return CheckSchema(ctx, r.pool) }
