//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/gatewaysim"
	"pollux/internal/message"
)

// settleFor is how long everything may take to come to rest after the last blow: leases of 10 s, a payment that is polled until its bounds are
// reached, and two cores that do other work besides. It is a bound for a test that fails, not a measure.
const settleFor = 90 * time.Second

// settle waits until nothing is on its way any more: each payment final or with a person, each event published, nothing pending at the broker.
func (w *world) settle() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleFor)
	defer cancel()
	var left []string
	for {
		now, err := w.unsettled(ctx)
		switch {
		case err == nil && len(now) == 0:
			w.log("settled")
			return
		case err == nil:
			left = now
		case ctx.Err() == nil:
			left = []string{err.Error()}
		}
		if ctx.Err() != nil {
			w.t.Fatalf("not settled %s after everything was alive again:\n%s", settleFor, strings.Join(left, "\n"))
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// unsettled says what is still on its way, with examples. The rows are asked first: what they wait for is what the broker still has.
func (w *world) unsettled(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var left []string
	for _, q := range []string{`
		select state || ': ' || count(*) || ', such as ' || (array_agg(format(
		  'payment %s (%s): due in %s, leased for %s by %s, revision %s, attempts %s, failures %s, last %s (%s)', payment_id, lane,
		  next_poll_at - now(), coalesce(locked_until - now(), '0'), coalesce(locked_by, 'nobody'), revision, attempts, failures, last_class, last_message)
		  order by payment_id))[1:4]::text
		from pollux.poll_jobs
		where state <> 'dead'
		group by state`, `
		select 'events that are not published: ' || count(*) || ', such as ' || (array_agg(format(
		  '%s on %s, tried %s times, due in %s, set aside: %s', event_id, subject, tries, publish_at - now(), set_aside) order by seq))[1:4]::text
		from pollux.outbox
		where published_at is null
		having count(*) > 0`,
	} {
		rows, err := w.pool.Query(ctx, q)
		if err != nil {
			return nil, err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, err
		}
		left = append(left, found...)
	}
	broker, err := w.atBroker(ctx)
	return append(left, broker...), err
}

// atBroker says what the broker still has, and which streams no relay has looked at since they were made anew.
func (w *world) atBroker(ctx context.Context) (left []string, err error) {
	nc, js, err := w.nats.connect()
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	for _, lane := range append(slices.Clone(message.Lanes), message.LaneRetry, message.LaneReplay, message.LaneDeferred) {
		stream, name := message.StreamPoll, message.ConsumerName(gatewayName, lane)
		if lane == message.LaneDeferred {
			stream, name = message.StreamDeferred, message.DeferredConsumer(gatewayName)
		}
		c, err := js.Consumer(ctx, stream, name)
		if lane == message.LaneDeferred && errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue // nothing has slept
		}
		if err != nil {
			return nil, fmt.Errorf("lane %s: %w", lane, err)
		}
		i := c.CachedInfo()
		if i.NumPending > 0 || i.NumAckPending > 0 {
			left = append(left, fmt.Sprintf("lane %s at the broker: %d pending, %d ack-pending, %d redelivered", lane, i.NumPending, i.NumAckPending, i.NumRedelivered))
		}
	}
	for _, name := range []string{message.StreamPoll, message.StreamDeferred, message.StreamEvents, message.StreamDead} {
		s, err := js.Stream(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", name, err)
		}
		var seen time.Time
		err = w.pool.QueryRow(ctx, `select coalesce(max(created), 'epoch') from pollux.streams where name = $1`, name).Scan(&seen)
		if err != nil {
			return nil, err
		}
		if made := s.CachedInfo().Created.Truncate(time.Microsecond); !seen.Equal(made) {
			left = append(left, fmt.Sprintf("no relay has seen that the stream %s was made anew at %s; the last one that was seen was made at %s", name, made, seen))
		}
		if n := s.CachedInfo().State.Msgs; name == message.StreamDeferred && n > 0 {
			left = append(left, fmt.Sprintf("%d polls sleep at the broker", n))
		}
	}
	return left, nil
}

// finding is what was found about all payments; the lists of complaints are what the test is about.
type finding struct {
	final, withPerson, unknownThere, absent int
	superseded                              int // answers that were refused since their lease had gone
	complaints                              []string
}

func (f *finding) complain(format string, a ...any) {
	f.complaints = append(f.complaints, fmt.Sprintf(format, a...))
}

// check compares everything with everything: the payment service's memory, the rows, the gateway's book and log, and the streams.
func (w *world) check(all []tracked) finding {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var f finding
	rows, err := w.rows(ctx)
	w.must(err)
	events, err := w.events(ctx)
	w.must(err)
	calls := w.calls(&f)
	for _, t := range all {
		r, there := rows[t.Reference]
		delete(rows, t.Reference)
		w.checkTransaction(&f, t, there, r.order, calls[t.Reference])
		if there {
			f.checkPayment(w.sim, r, calls[t.Reference], events)
		}
	}
	for reference := range rows {
		f.complain("%s is in the record and nobody tracked it", reference)
	}
	w.checkTables(ctx, &f)
	f.checkStreams(events)
	w.log("%d final, %d with a person, %d of unknown commits there, %d never committed, %d answers superseded",
		f.final, f.withPerson, f.unknownThere, f.absent, f.superseded)
	f.fail(w)
	return f
}

// row is a payment with all that belongs to it.
type row struct {
	ID         int64
	Reference  string
	Status     string
	Source     *string
	Revision   int
	Job        *string // its state
	Lease      bool    // the job has a token
	Letters    []string
	Events     []string // the ids of all its events
	Finals     int      // those that say that it is final
	Letter     int      // those that say that it is with a person
	Resolves   int      // recorded polls that made it final
	Superseded int      // recorded polls that changed nothing
	Trail      []string // the classes of its recorded polls, the last first

	order bool
}

// rows reads all payments, by reference, and orders without one.
func (w *world) rows(ctx context.Context) (map[string]row, error) {
	found, err := w.pool.Query(ctx, `
		select p.id, p.reference, p.status, p.status_source, p.revision, j.state, j.lock_token is not null,
		  (select array_agg(d.reason order by d.id) from pollux.dead_letters d where d.payment_id = p.id and d.state in ('open', 'replaying') and not d.review),
		  e.ids, coalesce(e.finals, 0), coalesce(e.letters, 0), coalesce(a.resolves, 0), coalesce(a.superseded, 0), a.trail
		from pollux.payments p
		left join pollux.poll_jobs j on j.payment_id = p.id
		left join (
		  select payment_id, array_agg(event_id order by seq) as ids,
		    count(*) filter (where subject like 'payments.resolved.%' or subject like 'payments.late_success.%') as finals,
		    count(*) filter (where subject like 'payments.dead.%') as letters
		  from pollux.outbox
		  group by payment_id
		) e on e.payment_id = p.id
		left join (
		  select payment_id, count(*) filter (where disposition = 'resolve' and applied) as resolves, count(*) filter (where not applied) as superseded,
		    array_agg(class order by at desc) filter (where applied) as trail
		  from pollux.poll_attempts
		  group by payment_id
		) a on a.payment_id = p.id`)
	if err != nil {
		return nil, err
	}
	all := map[string]row{}
	for found.Next() {
		var r row
		err := found.Scan(&r.ID, &r.Reference, &r.Status, &r.Source, &r.Revision, &r.Job, &r.Lease, &r.Letters, &r.Events, &r.Finals, &r.Letter,
			&r.Resolves, &r.Superseded, &r.Trail)
		if err != nil {
			found.Close()
			return nil, err
		}
		all[r.Reference] = r
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	orders, err := w.pool.Query(ctx, `select reference from orders`)
	if err != nil {
		return nil, err
	}
	var reference string
	_, err = pgx.ForEachRow(orders, []any{&reference}, func() error {
		r, ok := all[reference]
		if !ok {
			return fmt.Errorf("the order %s is there and its payment is not: they were written in one transaction", reference)
		}
		r.order = true
		all[reference] = r
		return nil
	})
	return all, err
}

// calls is the gateway's log by payment.
func (w *world) calls(f *finding) map[string][]gatewaysim.Call {
	stats := w.sim.Stats()
	if stats.Dropped > 0 {
		f.complain("the gateway's log has lost %d calls: it cannot be checked", stats.Dropped)
	}
	if stats.Followed > 0 || stats.Leaked > 0 {
		f.complain("%d redirects to another host were followed, %d of them with the key", stats.Followed, stats.Leaked)
	}
	by := map[string][]gatewaysim.Call{}
	for _, c := range w.sim.Log() {
		by[c.Reference] = append(by[c.Reference], c)
	}
	return by
}

// checkTransaction compares what the payment service knows of a transaction with what the database has of it.
func (w *world) checkTransaction(f *finding, t tracked, there, order bool, calls []gatewaysim.Call) {
	switch {
	case t.fate == acknowledged && !there:
		f.complain("%s was committed and is not there", t.Reference)
	case t.fate == absent && there:
		f.complain("%s was not committed and is there", t.Reference)
	case there && !order:
		f.complain("%s is there and its order is not: they were written in one transaction", t.Reference)
	case !there && len(calls) > 0:
		f.complain("%s was not committed, and the gateway was asked about it %d times", t.Reference, len(calls))
	}
	if !there {
		f.absent++
	} else if t.fate == unknown {
		f.unknownThere++
	}
}

// checkPayment compares a payment with the gateway's truth, with its log, and with the events that tell of it.
func (f *finding) checkPayment(sim *gatewaysim.Simulator, r row, calls []gatewaysim.Call, events map[string]event) {
	truth, _ := sim.Truth(r.Reference)
	f.superseded += r.Superseded
	if r.Status == "pending" {
		f.withPerson++
		f.checkLetter(r, truth, calls)
	} else {
		f.final++
		f.checkFinal(r, truth, calls)
	}
	ids := slices.Clone(r.Events)
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 1 {
		f.complain("%s has the events %v: one is right", r.Reference, r.Events)
	}
	for _, id := range r.Events {
		e, there := events[id]
		switch {
		case !there:
			f.complain("the event %s of %s is in no stream", id, r.Reference)
		case e.Payment != r.ID || r.Status != "pending" && e.Status != r.Status:
			f.complain("the event %s says that payment %d is %q; it is payment %d, which is %s", id, e.Payment, e.Status, r.ID, r.Status)
		case e.Reference != r.Reference && r.Status != "pending":
			f.complain("the event %s of %s is in the stream about %s: the broker took one for a copy of the other", id, r.Reference, e.Reference)
		}
	}
}

func (f *finding) checkFinal(r row, truth string, calls []gatewaysim.Call) {
	switch {
	case truth != r.Status:
		f.complain("%s is %s and should be %s", r.Reference, r.Status, truth)
	case r.Revision != 1 || r.Finals != 1 || r.Resolves != 1 || r.Letter != 0:
		f.complain("%s is %s by %d changes, %d events and %d recorded polls (1 each is right), and has %d events of a dead letter",
			r.Reference, r.Status, r.Revision, r.Finals, r.Resolves, r.Letter)
	case r.Source == nil || *r.Source != "poll":
		f.complain("%s is %s and nobody polled it", r.Reference, r.Status)
	case r.Job != nil || len(r.Letters) > 0:
		f.complain("%s is %s and still has a job or a letter (%v)", r.Reference, r.Status, r.Letters)
	case !slices.ContainsFunc(calls, func(c gatewaysim.Call) bool { return words[c.Told] == r.Status }):
		f.complain("%s is %s and the gateway never said so", r.Reference, r.Status)
	}
}

// words are the statuses of the gateway's words.
var words = map[string]string{"succeeded": "succeeded", "failed": "failed", "canceled": "cancelled", "expired": "expired"}

// checkLetter checks that a payment that is pending is with a person, once, and had to go there: the gateway never answers rightly about it, or
// one of its policy's bounds was reached, by the gateway's log too.
func (f *finding) checkLetter(r row, truth string, calls []gatewaysim.Call) {
	if r.Job == nil || *r.Job != "dead" || r.Lease || len(r.Letters) != 1 || r.Letter != 1 {
		f.complain("%s is pending, and not with a person once: job %v, letters %v, %d events of one", r.Reference, deref(r.Job), r.Letters, r.Letter)
		return
	}
	if r.Revision != 0 || r.Finals != 0 || r.Resolves != 0 {
		f.complain("%s is pending and was final: %d changes, %d events, %d recorded polls", r.Reference, r.Revision, r.Finals, r.Resolves)
	}
	reason, reached := r.Letters[0], false
	switch reason {
	case "mismatch":
		reached = truth == gatewaysim.Review
	case "attempts":
		answers := 0
		for _, c := range calls {
			if c.Told != "" {
				answers++
			}
		}
		reached = answers >= maxAttempts
	case "failures":
		reached = len(calls) >= maxFailures && failedInRow(r.Trail) >= maxFailures
	}
	if !reached {
		f.complain("%s (truth %s) is with a person because of %s, which it did not reach: polls from the last on %v, calls %s",
			r.Reference, truth, reason, r.Trail, outcomes(calls))
	}
}

// failedInRow is how many of the last polls failed. Those that cost a payment nothing are between the others and do not count.
func failedInRow(trail []string) (n int) {
	for _, class := range trail {
		switch class {
		case "transport", "malformed":
			n++
		case "unauthorized", "rate_limited", "local":
		default:
			return n
		}
	}
	return n
}

func deref(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}

func outcomes(calls []gatewaysim.Call) string {
	all := make([]string, len(calls))
	for i, c := range calls {
		all[i] = c.Outcome.String()
	}
	return strings.Join(all, " ")
}

// checkTables looks at what belongs to no payment in particular.
func (w *world) checkTables(ctx context.Context, f *finding) {
	for _, q := range []struct{ what, sql string }{
		{"jobs that are leased or due", `select count(*) from pollux.poll_jobs where lock_token is not null or locked_until > now() or claimable_at <= now()`},
		{"dead letters of a message without a payment", `select count(*) from pollux.dead_letters where payment_id is null`},
		{"dead letters that are closed", `select count(*) from pollux.dead_letters where state not in ('open', 'replaying')`},
		{"events that were set aside or not published", `select count(*) from pollux.outbox where set_aside is not null or published_at is null`},
		{"events that came twice", `select count(*) - count(distinct event_id) from pollux.outbox`},
	} {
		var n int
		w.must(w.pool.QueryRow(ctx, q.sql).Scan(&n))
		if n != 0 {
			f.complain("%d %s", n, q.what)
		}
	}
}

// event is what the streams have of an event.
type event struct {
	ID        string `json:"event_id"`
	Payment   int64  `json:"payment_id"`
	Reference string `json:"reference"`
	Status    string `json:"status"`
	header    string // its id for the broker
	other     string // the reference of another payment whose event has the same id
}

// events reads both streams of events whole.
func (w *world) events(ctx context.Context) (map[string]event, error) {
	nc, js, err := w.nats.connect()
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	all := map[string]event{}
	for _, name := range []string{message.StreamEvents, message.StreamDead} {
		if err := readStream(ctx, js, name, all); err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
	}
	return all, nil
}

func readStream(ctx context.Context, js jetstream.JetStream, name string, all map[string]event) error {
	s, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := c.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for range s.CachedInfo().State.Msgs {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		var e event
		if err := json.Unmarshal(m.Data(), &e); err != nil {
			return err
		}
		e.header = m.Headers().Get(message.HeaderID)
		if was, twice := all[e.ID]; twice && was.Reference != e.Reference {
			e.other = was.Reference
		}
		all[e.ID] = e
	}
	return nil
}

// checkStreams checks what services that read events rely on: an event has the same id for the broker as in its body.
func (f *finding) checkStreams(events map[string]event) {
	for _, e := range events {
		if e.header != e.ID {
			f.complain("the event %s has the id %q for the broker", e.ID, e.header)
		}
		if e.other != "" {
			f.complain("the event %s is about %s, and one with the same id about %s: a service that has had one drops the other", e.ID, e.Reference, e.other)
		}
	}
}

// fail fails the test when there are complaints, and says the first twenty.
func (f *finding) fail(w *world) {
	w.t.Helper()
	if len(f.complaints) > 0 {
		w.t.Errorf("%d complaints:\n%s", len(f.complaints), strings.Join(f.complaints[:min(len(f.complaints), 20)], "\n"))
	}
}

// until waits until a condition holds, which it must within a time that only a test that fails uses up.
func (w *world) until(what string, holds func(context.Context) (bool, error)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), settleFor, errors.New(what))
	defer cancel()
	for {
		ok, err := holds(ctx)
		if err == nil && ok {
			return
		}
		if ctx.Err() != nil {
			w.t.Fatalf("after %s still not: %s (%v)", settleFor, what, err)
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// count reads a number from the record.
func (w *world) count(ctx context.Context, sql string, args ...any) (n int, err error) {
	err = w.pool.QueryRow(ctx, sql, args...).Scan(&n)
	return n, err
}
