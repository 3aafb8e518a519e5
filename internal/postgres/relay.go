package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// Relay is the record as the outbox relay sees it. It is safe for concurrent use.
type Relay struct {
	pool         *pgxpool.Pool
	keepEvents   time.Duration
	keepAttempts time.Duration
	jobs         horizon[outbox.Queue]
	events       horizon[struct{}]
	given        given
}

var _ outbox.Record = (*Relay)(nil)

// NewRelay returns the record for a relay. Published events are kept for keepEvents, attempts for keepAttempts, both by whole days.
func NewRelay(pool *pgxpool.Pool, keepEvents, keepAttempts time.Duration) *Relay {
	return &Relay{pool: pool, keepEvents: keepEvents, keepAttempts: keepAttempts}
}

// claimSQL walks each queue from its front in its part of the index and leases what is due. The claim moves the rows' claimable time
// behind the lease, so the next claim does not meet them. The outer join makes one row that says what time it is when there is nothing to claim.
const claimSQL = `
	with due as materialized (
	  select j.payment_id, j.claimable_at
	  from unnest($1::text[], $2::text[], $3::int[], $4::timestamptz[]) as room(gateway, lane, n, front)
	  cross join lateral (
	    select payment_id, claimable_at
	    from pollux.poll_jobs
	    where gateway = room.gateway
	      and lane = room.lane
	      and claimable_at >= room.front
	      and claimable_at <= now()
	    order by claimable_at
	    limit room.n
	    for update skip locked
	  ) j
	  limit $5
	), claimed as (
	  update pollux.poll_jobs j
	  set state = 'in_flight',
	      locked_until = now() + $6::bigint * interval '1 microsecond',
	      locked_by = $7,
	      lock_token = gen_random_uuid(),
	      updated_at = now()
	  from due
	  join pollux.payments p on p.id = due.payment_id
	  where j.payment_id = due.payment_id
	  returning j.payment_id, j.gateway, j.lane, j.lock_token::text, j.revision, j.next_poll_at, p.traceparent, due.claimable_at
	)
	select now(), c.*
	from (values (1)) as one
	left join claimed c on true`

// Claim implements outbox.Record.
func (r *Relay) Claim(ctx context.Context, rooms []outbox.Room, limit int, owner string, lease time.Duration) ([]outbox.Job, error) {
	queues, gateways, lanes, n := make([]outbox.Queue, len(rooms)), make([]string, len(rooms)), make([]string, len(rooms)), make([]int32, len(rooms))
	for i, room := range rooms {
		queues[i], gateways[i], lanes[i], n[i] = room.Queue, room.Gateway, room.Lane, int32(max(room.N, 0))
	}
	fronts, sweep := r.jobs.begin(queues)
	began := time.Now()
	rows, err := r.pool.Query(ctx, claimSQL, gateways, lanes, n, fronts, limit, lease.Microseconds(), owner)
	if err != nil {
		return nil, describe("claiming due jobs", err)
	}
	claimed, err := readClaim(rows)
	if err != nil {
		return nil, describe("claiming due jobs", err)
	}
	if sweep {
		r.jobs.end(time.Since(began))
	}
	for _, room := range rooms {
		if at, walked := claimed.reached(room, limit); walked {
			r.jobs.reached(room.Queue, at)
		}
	}
	slices.SortStableFunc(claimed.jobs, func(a, b outbox.Job) int { return a.DueAt.Compare(b.DueAt) })
	return claimed.jobs, nil
}

// claim is what a claim found.
type claim struct {
	now  time.Time
	jobs []outbox.Job
	took map[outbox.Queue]taken
}

// taken is how much was taken of a queue, and how far that went.
type taken struct {
	n    int
	upTo time.Time
}

// reached returns up to which instant a queue was walked, and false when the limit was reached before it.
func (c *claim) reached(room outbox.Room, limit int) (time.Time, bool) {
	t := c.took[room.Queue]
	if t.n < room.N && len(c.jobs) < limit { // to its end
		return c.now.Add(-slack), true
	}
	return t.upTo, t.n > 0
}

func readClaim(rows pgx.Rows) (c claim, err error) {
	defer rows.Close()
	c.took = map[outbox.Queue]taken{}
	var id, revision *int64
	var gateway, lane, token, trace *string
	var due, claimable *time.Time
	for rows.Next() {
		if err := rows.Scan(&c.now, &id, &gateway, &lane, &token, &revision, &due, &trace, &claimable); err != nil {
			return c, err
		}
		if id == nil {
			continue
		}
		j := outbox.Job{Queue: outbox.Queue{Gateway: *gateway, Lane: *lane}, Payment: payment.ID(*id), Token: *token, Revision: *revision,
			DueAt: *due, Lag: c.now.Sub(*due)}
		if trace != nil {
			j.TraceParent = *trace
		}
		t := c.took[j.Queue]
		t.n++
		if claimable.After(t.upTo) {
			t.upTo = *claimable
		}
		c.took[j.Queue], c.jobs = t, append(c.jobs, j)
	}
	return c, rows.Err()
}

// releaseSQL ends leases. Jobs are taken in the order of their payments, as by everybody.
const releaseSQL = `
	update pollux.poll_jobs j
	set state = 'scheduled', locked_until = null, locked_by = null, lock_token = null, updated_at = now()
	from unnest($1::bigint[], $2::text[]::uuid[]) as i(id, token)
	where j.payment_id = i.id
	  and j.lock_token = i.token
	  and j.state = 'in_flight'`

// Release implements outbox.Record.
func (r *Relay) Release(ctx context.Context, jobs []outbox.Job) error {
	polls := make([]message.Poll, len(jobs))
	for i, j := range jobs {
		polls[i] = message.Poll{Payment: j.Payment, Token: j.Token}
	}
	slices.SortFunc(polls, byPayment)
	ids, tokens := pollKeys(polls)
	err := again(ctx, r.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, releaseSQL, ids, tokens)
		return err
	})
	r.jobs.forget()
	return describe("releasing jobs", err)
}

// SetAside implements outbox.Record: each job becomes a dead letter.
func (r *Relay) SetAside(ctx context.Context, aside []outbox.SetAside) error {
	for _, s := range aside {
		reason := clean(s.Reason, maxMessage)
		err := again(ctx, r.pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `
				update pollux.poll_jobs
				set state = 'dead', locked_until = null, locked_by = null, lock_token = null, revision = revision + 1, last_message = $3, updated_at = now()
				where payment_id = $1
				  and lock_token = $2::text::uuid`, s.Job.Payment, s.Job.Token, reason)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			_, err = tx.Exec(ctx, `select pollux.bury($1, $2, '', 0::smallint, '', $3, '', '', '', null)`,
				s.Job.Payment, string(redelivery.ReasonUnpublishable), reason)
			return err
		})
		if err != nil {
			return describe(fmt.Sprintf("setting job %d aside", s.Job.Payment), err)
		}
	}
	return nil
}

// queuesSQL goes from queue to queue along the index, whatever the number of jobs.
const queuesSQL = `
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
	select gateway, lane from queue`

// Queues implements outbox.Record.
func (r *Relay) Queues(ctx context.Context) ([]outbox.Queue, error) {
	rows, err := r.pool.Query(ctx, queuesSQL)
	if err != nil {
		return nil, describe("listing the queues", err)
	}
	queues, err := pgx.CollectRows(rows, pgx.RowToStructByPos[outbox.Queue])
	return queues, describe("listing the queues", err)
}

// lookSQL says whether there are events to publish, and what time it is. It is what an idle relay does, a hundred times a second.
const lookSQL = `
	select now(), exists (
	  select from pollux.outbox
	  where published_at is null
	    and publish_at >= $1
	    and publish_at <= now()
	)`

// dueSQL walks each queue from its front in its part of the index, no further than is asked for.
const dueSQL = `
	select (
	  select count(*)
	  from (
	    select
	    from pollux.poll_jobs
	    where gateway = queue.gateway
	      and lane = queue.lane
	      and claimable_at >= queue.front
	      and claimable_at <= now()
	    order by claimable_at
	    limit $4
	  ) as waits
	)
	from unnest($1::text[], $2::text[], $3::timestamptz[]) with ordinality as queue(gateway, lane, front, ord)
	order by queue.ord`

// Due implements outbox.Record.
func (r *Relay) Due(ctx context.Context, queues []outbox.Queue, most int) ([]int, error) {
	gateways, lanes := make([]string, len(queues)), make([]string, len(queues))
	for i, q := range queues {
		gateways[i], lanes[i] = q.Gateway, q.Lane
	}
	fronts, _ := r.jobs.begin(queues)
	rows, err := r.pool.Query(ctx, dueSQL, gateways, lanes, fronts, most)
	if err != nil {
		return nil, describe("counting due polls", err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowTo[int])
	return counts, describe("counting due polls", err)
}

// PublishEvents implements outbox.Record.
func (r *Relay) PublishEvents(ctx context.Context, n int, retry time.Duration, publish func(context.Context, []outbox.Event) []outbox.Receipt) (int, error) {
	if n <= 0 {
		return 0, nil
	}
	fronts, sweep := r.events.begin([]struct{}{{}})
	began := time.Now()
	var now time.Time
	var some bool
	if err := r.pool.QueryRow(ctx, lookSQL, fronts[0]).Scan(&now, &some); err != nil {
		return 0, describe("looking for events", err)
	}
	if sweep {
		r.events.end(time.Since(began))
	}
	if !some {
		r.events.reached(struct{}{}, now.Add(-slack))
		return 0, nil
	}
	var events []takenEvent
	var known map[string]knownStream
	var spans map[string]span
	var lost map[string]int
	err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) (err error) {
		if events, err = takeEvents(ctx, tx, fronts[0], n); err != nil || len(events) == 0 {
			return err
		}
		if known, err = r.knownStreams(ctx, tx); err != nil {
			return err
		}
		receipts := publish(ctx, published(events))
		if err := markEvents(ctx, tx, events, receipts, retry); err != nil {
			return err
		}
		spans = sequences(receipts)
		lost, err = compare(ctx, tx, known, spans)
		return err
	})
	if err != nil {
		r.events.forget() // what was taken is free again, behind the front
		return len(events), describe("publishing events", err)
	}
	if len(lost) > 0 {
		r.events.forget()
		return len(events), &outbox.LostError{Events: lost}
	}
	for name, g := range spans {
		r.given.note(name, known[name], g.last)
	}
	if len(events) < n {
		r.events.reached(struct{}{}, now.Add(-slack))
	} else {
		r.events.reached(struct{}{}, events[n-1].publishAt)
	}
	return len(events), nil
}

// takenEvent is an event and the columns that find its row.
type takenEvent struct {
	outbox.Event
	createdAt, publishAt time.Time
}

func published(taken []takenEvent) []outbox.Event {
	events := make([]outbox.Event, len(taken))
	for i, e := range taken {
		events[i] = e.Event
	}
	return events
}

// takeSQL locks events until the end of the transaction, the oldest first.
const takeSQL = `
	select seq, event_id, subject, body, coalesce(traceparent, ''), created_at, publish_at, now()
	from pollux.outbox
	where published_at is null
	  and publish_at >= $1
	  and publish_at <= now()
	order by publish_at, seq
	limit $2
	for update skip locked`

func takeEvents(ctx context.Context, tx pgx.Tx, front time.Time, n int) ([]takenEvent, error) {
	rows, err := tx.Query(ctx, takeSQL, front, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e takenEvent, err error) {
		var now time.Time
		err = row.Scan(&e.Seq, &e.ID, &e.Subject, &e.Body, &e.TraceParent, &e.createdAt, &e.publishAt, &now)
		e.Lag = now.Sub(e.createdAt)
		return e, err
	})
}

// markSQL notes what became of events: published, set aside for good, or to be tried again.
const markSQL = `
	update pollux.outbox o
	set published_at = case when i.stream is not null then now() end,
	    stream = i.stream,
	    stream_seq = i.position,
	    set_aside = i.aside,
	    tries = o.tries + 1,
	    publish_at = case
	      when i.aside is not null then 'infinity'
	      when i.stream is null then now() + $6::bigint * interval '1 microsecond'
	      else o.publish_at
	    end
	from unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::bigint[], $5::text[]) as i(seq, created_at, stream, position, aside)
	where o.seq = i.seq
	  and o.created_at = i.created_at`

func markEvents(ctx context.Context, tx pgx.Tx, events []takenEvent, receipts []outbox.Receipt, retry time.Duration) error {
	seqs, created := make([]int64, len(events)), make([]time.Time, len(events))
	streams, positions, asides := make([]*string, len(events)), make([]*int64, len(events)), make([]*string, len(events))
	for i, e := range events {
		seqs[i], created[i] = e.Seq, e.createdAt
		var refused *outbox.Refusal
		switch receipt := receipts[i]; {
		case receipt.Err == nil:
			position := int64(receipt.Sequence)
			streams[i], positions[i] = &receipt.Stream, &position
		case errors.As(receipt.Err, &refused):
			reason := clean(refused.Reason, maxMessage)
			asides[i] = &reason
		}
	}
	_, err := tx.Exec(ctx, markSQL, seqs, created, streams, positions, asides, retry.Microseconds())
	return err
}

// knownStream is what is known of a stream: a sequence that it had given by then, and its incarnation.
type knownStream struct {
	incarnation
	last int64
}

// incarnation tells whether a stream is still the same one, with nothing lost since. Its zero value is that of a stream that nobody has looked at.
type incarnation struct{ created, lostAt time.Time }

func (i incarnation) is(other incarnation) bool {
	return i.created.Equal(other.created) && i.lostAt.Equal(other.lostAt)
}

// knownStreams is what is known of the streams of events now, before anything more is published.
func (r *Relay) knownStreams(ctx context.Context, tx pgx.Tx) (map[string]knownStream, error) {
	rows, err := tx.Query(ctx, `
		select name, last_sequence, created, coalesce(lost_at, 'epoch')
		from pollux.streams
		where name = any ($1)
		  and isfinite(created)`, []string{message.StreamEvents, message.StreamDead})
	if err != nil {
		return nil, err
	}
	known := map[string]knownStream{}
	var name string
	var k knownStream
	_, err = pgx.ForEachRow(rows, []any{&name, &k.last, &k.created, &k.lostAt}, func() error {
		known[name] = knownStream{k.incarnation, r.given.by(name, k)}
		return nil
	})
	return known, err
}

// given remembers the last sequence that this relay was given by each stream. The record has what the last look saw, which may be some seconds
// older: to write it with every batch would leave so many dead versions of one row that a transaction that is left open anywhere slowed every batch down.
// The zero value is ready. It is safe for concurrent use.
type given struct {
	mu   sync.Mutex
	last map[string]knownStream
}

func (g *given) note(stream string, k knownStream, last int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil {
		g.last = map[string]knownStream{}
	}
	if old := g.last[stream]; old.is(k.incarnation) {
		last = max(last, old.last)
	}
	g.last[stream] = knownStream{k.incarnation, last}
}

// by is the last sequence that a stream had given: what is known of it, or what was given here since.
func (g *given) by(stream string, k knownStream) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if here := g.last[stream]; here.is(k.incarnation) {
		return max(k.last, here.last)
	}
	return k.last
}

// reserve is how far below the sequence of a message that was stored after a loss the lost ones may begin: between them lies what other relays had
// under way at the time. Events that are published again for nothing cost little: the broker or their readers know their ids.
const reserve = 10_000

// compare holds what streams gave against what was known of them before the messages were sent. A stream that gives a sequence that it had given by
// then has lost what had it, perhaps everything: what was in it is made publishable again. It does so where Observe cannot: a stream may
// have grown beyond what is remembered of it before anybody looks. An error says that somebody else saw a loss meanwhile: the receipts may be from before it,
// and worth nothing. It returns how many events of each stream are publishable again.
//
// It comes last in its transaction: until that ends a relay that looks at the stream waits.
func compare(ctx context.Context, tx pgx.Tx, known map[string]knownStream, spans map[string]span) (map[string]int, error) {
	lost := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(spans)) {
		k, ok := known[name]
		if !ok {
			continue // nobody has looked at it yet
		}
		// The transaction that puts a loss right locks the row, all others share it.
		confirm, args := `
			select 1
			from pollux.streams
			where name = $1
			  and created = $2
			  and coalesce(lost_at, 'epoch') = $3
			for share`, []any{name, k.created, k.lostAt}
		isLost := spans[name].first <= k.last
		if isLost {
			confirm, args = `
				update pollux.streams
				set last_sequence = $4, last_id = '', lost_at = now()
				where name = $1
				  and created = $2
				  and coalesce(lost_at, 'epoch') = $3`, append(args, spans[name].last)
		}
		tag, err := tx.Exec(ctx, confirm, args...)
		if err != nil {
			return nil, err
		}
		if tag.RowsAffected() == 0 {
			return nil, fmt.Errorf("the stream %s lost messages while events were published to it; they are published again", name)
		}
		if !isLost {
			continue
		}
		if lost[name], err = rearmEvents(ctx, tx, name, spans[name].first-1); err != nil {
			return nil, err
		}
	}
	return lost, nil
}

// span is the sequences that a stream gave to the messages of a batch: the first that it gave anew, the last of all.
type span struct{ first, last int64 }

// sequences are the spans of receipts by stream. What was stored before has the sequence that it had then.
func sequences(receipts []outbox.Receipt) map[string]span {
	given := map[string]span{}
	for _, r := range receipts {
		if r.Err != nil {
			continue
		}
		g, ok := given[r.Stream]
		if !ok {
			g = span{first: math.MaxInt64}
		}
		at := int64(r.Sequence)
		if !r.Duplicate {
			g.first = min(g.first, at)
		}
		g.last = max(g.last, at)
		given[r.Stream] = g
	}
	return given
}

// Observe implements outbox.Record. The stream's row is locked while the stream is looked at: what is remembered is then never newer than what is seen.
func (r *Relay) Observe(ctx context.Context, name string, look outbox.Look) (outbox.Recovery, error) {
	var found outbox.Recovery
	err := again(ctx, r.pool, func(tx pgx.Tx) error {
		found = outbox.Recovery{}
		_, err := tx.Exec(ctx, `insert into pollux.streams (name, created, last_sequence) values ($1, '-infinity', 0) on conflict (name) do nothing`, name)
		if err != nil {
			return err
		}
		var created pgtype.Timestamptz
		var k knownStream
		var lastID string
		err = tx.QueryRow(ctx, `
			select created, last_sequence, last_id, coalesce(lost_at, 'epoch')
			from pollux.streams
			where name = $1
			for update`, name).Scan(&created, &k.last, &lastID, &k.lostAt)
		if err != nil {
			return err
		}
		k.created = created.Time
		given := r.given.by(name, k)
		var mark outbox.Mark
		if lastID != "" {
			mark = outbox.Mark{Sequence: uint64(k.last), ID: lastID}
		}
		s, err := look(ctx, name, mark)
		if err != nil {
			return err
		}
		s.Created = s.Created.Truncate(time.Microsecond)
		known := created.InfinityModifier == pgtype.Finite
		recreated := known && !k.created.Equal(s.Created)
		truncated := known && !recreated && (int64(s.LastSequence) < given || s.Replaced)
		if known && !recreated && !truncated && int64(s.LastSequence) == k.last {
			return nil
		}
		if found.Lost = recreated || truncated; found.Lost {
			if err := rearm(ctx, tx, s, recreated, min(given, k.last), &found); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `
			update pollux.streams
			set created = $2, last_sequence = $3, last_id = $4, seen_at = now(), lost_at = case when $5 then now() else lost_at end
			where name = $1`, name, s.Created, int64(s.LastSequence), s.LastID, found.Lost)
		return err
	})
	if found.Lost {
		r.jobs.forget()
	}
	return found, describe("observing stream "+name, err)
}

// rearm makes publishable again what a stream has lost.
func rearm(ctx context.Context, tx pgx.Tx, s outbox.StreamState, recreated bool, known int64, found *outbox.Recovery) error {
	switch s.Name {
	case message.StreamPoll:
		return rearmJobs(ctx, tx, []string{"in_flight", "held"}, found)
	case message.StreamDeferred:
		return rearmJobs(ctx, tx, []string{"deferred"}, found)
	}
	above := min(int64(s.LastSequence), known)
	if recreated {
		above = -1
	}
	n, err := rearmEvents(ctx, tx, s.Name, above)
	found.Events = n
	return err
}

// rearmEvents makes events publishable that a stream has lost: those above a sequence, and those shortly below that others may have given anew by now.
func rearmEvents(ctx context.Context, tx pgx.Tx, stream string, above int64) (int, error) {
	tag, err := tx.Exec(ctx, `
		update pollux.outbox
		set published_at = null, stream = null, stream_seq = null, publish_at = now()
		where stream = $1
		  and stream_seq > $2`, stream, above-reserve)
	return int(tag.RowsAffected()), err
}

// rearmJobs makes jobs due at their time again: a lease protects a message that is no more. They are locked in the order of their payments,
// as by the consumers that are writing meanwhile.
func rearmJobs(ctx context.Context, tx pgx.Tx, states []string, found *outbox.Recovery) error {
	tag, err := tx.Exec(ctx, `
		with lost as materialized (
		  select payment_id
		  from pollux.poll_jobs
		  where state = any ($1)
		  order by payment_id
		  for update
		)
		update pollux.poll_jobs j
		set state = 'scheduled', locked_until = null, locked_by = null, lock_token = null, updated_at = now()
		from lost
		where j.payment_id = lost.payment_id`, states)
	found.Jobs = int(tag.RowsAffected())
	return err
}

// Maintain implements outbox.Record. What somebody else holds a lock on is left for the next time: partitions are made three days before they are needed, and
// the default one takes what has none.
func (r *Relay) Maintain(ctx context.Context) error { return r.maintainAt(ctx, time.Now) }

// maintainAt drops what is old by the database's clock and by ours: a clock that is wrong for a while must not take the log of a month with it.
func (r *Relay) maintainAt(ctx context.Context, ours func() time.Time) error {
	for {
		var did *string
		err := r.pool.QueryRow(ctx, `
			select pollux.maintain($1::bigint * interval '1 second' + ahead, $2::bigint * interval '1 second' + ahead)
			from (select greatest(now() - $3::timestamptz, interval '0') as ahead) clocks`,
			int64(r.keepEvents.Seconds()), int64(r.keepAttempts.Seconds()), ours()).Scan(&did)
		switch {
		case conflict(err):
			return nil
		case err != nil:
			return describe("maintaining the partitions", err)
		case did == nil:
			return nil
		}
	}
}

// Check reports whether the record can be reached and fits this build.
func (r *Relay) Check(ctx context.Context) error { return CheckSchema(ctx, r.pool) }
