package postgres

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pollux/internal/audit"
	"pollux/internal/casework"
	"pollux/internal/consumer"
	"pollux/internal/deadletter"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

var (
	seed  = flag.Uint64("history.seed", 0, "repeats the random history of this seed (those of several workers only nearly)")
	steps = flag.Int("history.steps", 150, "steps of each worker of a random history")
)

// TestRandomHistories lets relays, consumers, webhooks, operators and a broker that fails do whatever comes to their minds, and looks after each step
// whether the record is sound.
func TestRandomHistories(t *testing.T) {
	for _, workers := range []int{1, 4} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			chosen := *seed
			if chosen == 0 {
				chosen = rand.Uint64()
			}
			t.Logf("repeat with -history.seed=%d", chosen)
			h := &history{t: t, record: newRecord(t), published: map[string]int{}}
			h.observe(t, message.StreamPoll, longAgo, 0)
			var wg sync.WaitGroup
			for i := range workers {
				w := &worker{history: h, rand: rand.New(rand.NewPCG(chosen, uint64(i))), relay: NewRelay(h.pool, time.Hour, time.Hour), name: fmt.Sprintf("worker-%d", i)}
				wg.Go(w.run)
			}
			wg.Wait()
			h.end()
		})
	}
}

// history is what the workers of a test share.
type history struct {
	*record
	t *testing.T

	mu         sync.Mutex
	payments   int
	deliveries []outbox.Job // all that were ever claimed: a broker may deliver any of them again
	finished   int          // transitions out of pending, as those who made them saw it
	published  map[string]int
	streams    int
}

// worker does one thing after the other, with its own chance.
type worker struct {
	*history
	rand  *rand.Rand
	relay *Relay
	name  string
}

func (w *worker) run() {
	acts := []struct {
		name   string
		weight int
		do     func(context.Context) error
	}{
		{"track", 3, w.track}, {"claim", 6, w.claim}, {"write", 12, w.write}, {"time passes", 4, w.pass}, {"webhook", 3, w.webhook}, {"operator", 1, w.operator}, {"act", 4, w.act},
		{"replay", 3, w.replay}, {"release", 1, w.release}, {"extend", 1, w.extend}, {"set aside", 1, w.setAside}, {"publish", 4, w.publishSome},
		{"lose the stream", 1, w.loseStream}, {"maintain", 1, w.maintainOnce},
	}
	total := 0
	for _, a := range acts {
		total += a.weight
	}
	for step := range *steps {
		at := w.rand.IntN(total)
		i := slices.IndexFunc(acts, func(a struct {
			name   string
			weight int
			do     func(context.Context) error
		}) bool {
			at -= a.weight
			return at < 0
		})
		if err := acts[i].do(w.t.Context()); err != nil {
			w.t.Errorf("%s, step %d: %s: %v", w.name, step, acts[i].name, err)
			return
		}
		if what := broken(w.t, w.record); what != "" {
			w.t.Errorf("%s, step %d: after %s the record has %s", w.name, step, acts[i].name, what)
			return
		}
	}
}

func (w *worker) track(ctx context.Context) error {
	w.mu.Lock()
	n := min(w.rand.IntN(8)+1, 120-w.payments)
	first := w.payments
	w.payments += n
	w.mu.Unlock()
	for i := range n {
		again := 1 + w.rand.IntN(2)
		for range again {
			if _, err := w.pool.Exec(ctx, `select pollux.track_payment('sim', $1, 1, 'EUR', lane => $2)`, fmt.Sprintf("p%d", first+i), []string{"high", "normal"}[i%2]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *worker) claim(ctx context.Context) error {
	lease := []time.Duration{0, 5 * time.Millisecond, time.Minute}[w.rand.IntN(3)]
	jobs, err := w.relay.Claim(ctx, room(w.rand.IntN(20)), w.rand.IntN(20), w.name, lease)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deliveries = append(w.deliveries, jobs...)
	return err
}

// some are deliveries, recent ones mostly, some of them twice.
func (w *worker) some() []outbox.Job {
	w.mu.Lock()
	defer w.mu.Unlock()
	var jobs []outbox.Job
	for range w.rand.IntN(12) {
		if n := len(w.deliveries); n > 0 {
			back := min(w.rand.IntN(30), n-1)
			if w.rand.IntN(10) == 0 {
				back = w.rand.IntN(n)
			}
			jobs = append(jobs, w.deliveries[n-1-back])
		}
	}
	return jobs
}

func (w *worker) write(ctx context.Context) error {
	jobs := w.some()
	rows, err := w.jobs.Read(ctx, pollsOf(jobs))
	if err != nil {
		return err
	}
	results := make([]consumer.Result, len(jobs))
	for i := range jobs {
		verb := []redelivery.Verb{redelivery.Resolve, redelivery.Hold, redelivery.Park, redelivery.Defer, redelivery.DeadLetter}[w.rand.IntN(5)]
		d := redelivery.Disposition{Verb: verb, Reason: redelivery.ReasonFailure, Delay: time.Duration(w.rand.IntN(20)) * time.Millisecond, Counters: rows[i].Counters,
			Status: payment.Statuses[1+w.rand.IntN(4)], Detail: "x"}
		if verb == redelivery.Resolve && w.rand.IntN(15) == 0 {
			d.Status = []payment.Status{"bogus", payment.Pending}[w.rand.IntN(2)]
		}
		results[i] = result(jobs[i], rows[i], d, gateway.Answer{Class: gateway.Transport})
		results[i].DetailNew = w.rand.IntN(2) == 0
	}
	verdicts, err := w.jobs.Write(ctx, results, w.name, []time.Duration{0, time.Minute}[w.rand.IntN(2)])
	for i, v := range verdicts {
		d := results[i].Disposition
		if v.Refused != "" && (d.Verb != redelivery.Resolve || d.Status.Final()) {
			return fmt.Errorf("a good result is refused: %s", v.Refused)
		}
		if v.Applied && !v.Late && d.Verb == redelivery.Resolve {
			w.finish(1)
		}
	}
	return err
}

func (h *history) finish(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.finished += int(n)
}

// pass ends some leases and waits: what they were waiting for.
func (w *worker) pass(ctx context.Context) error {
	return again(ctx, w.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			update pollux.poll_jobs
			set next_poll_at = least(next_poll_at, now()), locked_until = case when lock_token is not null then least(locked_until, now()) end
			where payment_id in (select payment_id from pollux.poll_jobs where payment_id % 3 = $1 and state <> 'dead' order by payment_id for update)`, w.rand.IntN(3))
		return err
	})
}

// any is a payment, or none.
func (w *worker) any(ctx context.Context) (id int64, err error) {
	err = w.pool.QueryRow(ctx, `select id from pollux.payments order by id offset $1 limit 1`, w.rand.IntN(120)).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return id, err
}

func (w *worker) webhook(ctx context.Context) error {
	id, err := w.any(ctx)
	if err != nil {
		return err
	}
	to := payment.Statuses[1+w.rand.IntN(4)]
	var n int64
	err = again(ctx, w.pool, func(tx pgx.Tx) error { // an operator may be in the way, see there
		if _, err := tx.Exec(ctx, `select from pollux.poll_jobs where payment_id = $1 for update`, id); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `update pollux.payments set status = $2, status_source = 'webhook' where id = $1 and status = 'pending'`, id, string(to))
		if err != nil {
			return err
		}
		if n = tag.RowsAffected(); n > 0 || to != payment.Succeeded {
			return nil
		}
		_, err = tx.Exec(ctx, `update pollux.payments set status = 'succeeded', status_source = 'webhook' where id = $1 and status in ('failed', 'cancelled', 'expired')`, id)
		return err
	})
	w.finish(n)
	return err
}

// operator changes several payments at once in psql, without a thought for locks; the database may end such a statement, and it is typed again.
func (w *worker) operator(ctx context.Context) error {
	id, err := w.any(ctx)
	if err != nil {
		return err
	}
	var n int64
	err = again(ctx, w.pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select count(*) from (select from pollux.payments where id between $1 and $1 + 3 and status = 'pending' for update) p`, id).Scan(&n); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update pollux.payments set status = $2, status_source = 'operator' where id between $1 and $1 + 3`, id, string(payment.Statuses[1+w.rand.IntN(4)]))
		return err
	})
	if err == nil {
		w.finish(n)
	}
	return err
}

// act is what an operator does to one payment with the command line.
func (w *worker) act(ctx context.Context) error {
	id, err := w.any(ctx)
	if err != nil || id == 0 {
		return err
	}
	a := []casework.Act{
		{Verb: casework.PollNow}, {Verb: casework.Hold, For: time.Duration(w.rand.IntN(20)+1) * time.Millisecond}, {Verb: casework.Hold, For: time.Hour}, {Verb: casework.Release},
		{Verb: casework.Force, Status: payment.Statuses[1+w.rand.IntN(4)], Overrule: w.rand.IntN(2) == 0},
	}[w.rand.IntN(5)]
	a.By = audit.Actor{Name: w.name, Origin: "test"}
	o, err := w.casework().Act(ctx, id, a, casework.Judge)
	var refusal *casework.Refusal
	switch {
	case errors.As(err, &refusal):
		return nil
	case err == nil && o.Before.Status == payment.Pending && o.After.Status.Final():
		w.finish(1)
	}
	return err
}

func (w *worker) replay(ctx context.Context) error {
	letters, err := w.letters.List(ctx, deadletter.Filter{}, deadletter.Page{Limit: 10})
	if err != nil {
		return err
	}
	var ids []int64
	for _, l := range letters {
		ids = append(ids, l.ID)
	}
	w.rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	o := order(ids...)
	o.NoCanary = w.rand.IntN(2) == 0
	r, _, err := w.replays.Create(ctx, o, operator)
	if errors.Is(err, deadletter.ErrNothing) {
		return nil
	}
	if err != nil {
		return err
	}
	for range w.rand.IntN(4) {
		if _, _, err := (Drive{w.replays, operator}).Step(ctx, r.ID, deadletter.Next); err != nil {
			return err
		}
	}
	return w.turn(ctx, r.ID)
}

// turn does something with a replay as a whole, some replay of late mostly. That its state does not allow it is no fault.
func (w *worker) turn(ctx context.Context, id int64) (err error) {
	id -= int64(w.rand.IntN(3))
	var refused *deadletter.StateError
	switch w.rand.IntN(6) {
	case 0:
		_, err = w.replays.Cancel(ctx, id, operator)
	case 1:
		_, err = w.replays.Undo(ctx, id, operator)
	case 2:
		_, err = w.replays.Resume(ctx, id, operator)
	case 3:
		_, err = w.letters.Change(ctx, deadletter.Selection{}, deadletter.Change{Verb: deadletter.Park, Note: "x"}, operator)
	case 4:
		var parked deadletter.Filter
		if parked, err = deadletter.Parse("state=parked,discarded"); err == nil {
			_, err = w.letters.Change(ctx, deadletter.Selection{Filter: parked}, deadletter.Change{Verb: deadletter.Reopen}, operator)
		}
	default:
		_, _, err = (Drive{w.replays, operator}).Step(ctx, id, deadletter.Next)
	}
	if errors.As(err, &refused) || errors.Is(err, deadletter.ErrNoReplay) {
		return nil
	}
	return err
}

func (w *worker) release(ctx context.Context) error { return w.relay.Release(ctx, w.some()) }

func (w *worker) extend(ctx context.Context) error {
	_, err := w.jobs.Extend(ctx, pollsOf(w.some()), time.Second)
	return err
}

func (w *worker) setAside(ctx context.Context) error {
	var aside []outbox.SetAside
	for _, j := range w.some() {
		aside = append(aside, outbox.SetAside{Job: j, Reason: "too large"})
	}
	return w.relay.SetAside(ctx, aside[:min(len(aside), 2)])
}

func (w *worker) publishSome(ctx context.Context) error {
	_, err := w.relay.PublishEvents(ctx, w.rand.IntN(30), time.Millisecond, func(_ context.Context, events []outbox.Event) []outbox.Receipt {
		w.mu.Lock()
		defer w.mu.Unlock()
		receipts := make([]outbox.Receipt, len(events))
		for i, e := range events {
			if receipts[i].Stream, receipts[i].Sequence = message.StreamEvents, uint64(len(w.published)); w.rand.IntN(4) == 0 {
				receipts[i].Err = errors.New("no answer")
				continue
			}
			w.published[e.ID]++
		}
		return receipts
	})
	return err
}

func (w *worker) loseStream(ctx context.Context) error {
	_, err := w.relay.Observe(ctx, message.StreamPoll, func(context.Context, string, outbox.Mark) (outbox.StreamState, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.streams++
		return outbox.StreamState{Name: message.StreamPoll, Created: longAgo.Add(time.Duration(w.streams) * time.Hour)}, nil
	})
	return err
}

func (w *worker) maintainOnce(ctx context.Context) error { return w.relay.Maintain(ctx) }

// end brings everything to its end and looks whether all is there, once.
func (h *history) end() {
	t := h.t
	if t.Failed() {
		return
	}
	if n := h.count(t); !n.Sound() {
		t.Errorf("payments are in no place: %+v", n)
	}
	if err := h.verifyAudit(t, nil); err != nil {
		t.Error(err)
	}
	for {
		h.exec(t, `update pollux.poll_jobs set held_until = null, next_poll_at = least(next_poll_at, now()), locked_until = case when lock_token is not null then least(locked_until, now()) end where state <> 'dead'`)
		h.relay.jobs.forget()
		h.giveUpReplays(t)
		h.reopen(t)
		h.record.replay(t, h.openLetters(t, ""))
		jobs := h.record.claim(t, 1000, time.Minute)
		if len(jobs) == 0 {
			break
		}
		var results []consumer.Result
		for i, row := range h.read(t, jobs) {
			d, a := resolve(payment.Succeeded)
			results = append(results, result(jobs[i], row, d, a))
		}
		for _, v := range h.record.write(t, results...) {
			if v.Applied {
				h.finish(1)
			}
		}
	}
	h.exec(t, `update pollux.outbox set publish_at = now() where published_at is null`)
	h.relay.events.forget()
	for n := 1; n > 0; {
		var err error
		if n, err = h.relay.PublishEvents(t.Context(), 100, time.Second, func(ctx context.Context, events []outbox.Event) []outbox.Receipt {
			for _, e := range events {
				h.published[e.ID]++
			}
			return stored(ctx, events)
		}); err != nil {
			t.Fatal(err)
		}
	}
	requireSound(t, h.record)
	if n := query[int](t, h.record, `select count(*) from pollux.payments where status = 'pending'`); n != 0 {
		t.Errorf("%d payments are pending for ever", n)
	}
	if n := query[int](t, h.record, `select count(*) from pollux.dead_letters where state <> 'resolved' and not review`); n != 0 {
		t.Errorf("%d letters are open for ever", n)
	}
	if n := query[int](t, h.record, `select count(*) from pollux.payments`); n != h.payments || n != h.finished {
		t.Errorf("%d payments are in the record, %d were tracked, %d were finished", n, h.payments, h.finished)
	}
	for _, id := range h.eventIDs(t, "true") {
		if h.published[id] != 1 {
			t.Errorf("event %s was published %d times", id, h.published[id])
		}
	}
	if n := query[int](t, h.record, `select count(*) from pollux.outbox`); n != len(h.published) {
		t.Errorf("%d events were published of %d", len(h.published), n)
	}
}
