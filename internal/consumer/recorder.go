package consumer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"pollux/internal/message"
	"pollux/internal/outage"
	"pollux/internal/redelivery"
)

// RecorderConfig says how results are gathered.
type RecorderConfig struct {
	Worker   string        // who wrote them: for a person who looks at the rows
	Lease    time.Duration // how long beyond its delay a held message is left to the broker
	Batch    int           // at most so many results in one transaction
	Linger   time.Duration // how long a result waits for others, while others are on their way
	Writers  int           // transactions at once
	Patience time.Duration // how long writing is tried again while the database is away
}

// Recorder writes results, many in one transaction. It writes at once when no other result is on its way. It is safe for concurrent use.
type Recorder struct {
	cfg       RecorderConfig
	record    Record
	sleeper   Sleeper // nil: nothing is put to sleep at the broker
	tracer    BatchTracer
	metrics   Metrics
	log       *slog.Logger
	away      *outage.Log // the record, by who wants something of it: this recorder, and the consumers that share it
	bed       *outage.Log // where polls sleep
	in        chan entry
	expected  atomic.Int64
	failing   atomic.Bool
	gathering chan struct{} // of the writers that are not writing one gathers; two would share what comes and write halves
	writers   sync.WaitGroup
	hurry     event
	closed    event
}

// event happens once.
type event struct {
	once sync.Once
	c    chan struct{}
}

func (e *event) happen() { e.once.Do(func() { close(e.c) }) }

type entry struct {
	result Result
	done   func(Verdict, error)
}

// ErrClosed is the error of a result that is handed to a recorder after Close.
var ErrClosed = errors.New("the recorder is closed")

// NewRecorder returns a running recorder. Close ends it.
func NewRecorder(cfg RecorderConfig, record Record, metrics Metrics, log *slog.Logger) *Recorder {
	r := &Recorder{cfg: cfg, record: record, metrics: metrics, log: log, in: make(chan entry, cfg.Batch), gathering: make(chan struct{}, 1),
		away: outage.New(log, outage.Words{Begins: "the record is away; nothing is polled until it is back, and nothing is lost", Over: "the record is back",
			Hint: "can PostgreSQL be reached where database.url says?"}),
		bed: outage.New(log, outage.Words{Begins: "polls cannot be put to sleep at the broker; they sleep in their rows", Over: "polls can be put to sleep at the broker again",
			Hint: "can NATS be reached where nats.urls says, with JetStream and the streams? pollux streams diff"}),
		hurry: event{c: make(chan struct{})}, closed: event{c: make(chan struct{})}}
	for range cfg.Writers {
		r.writers.Go(r.run)
	}
	return r
}

// WithSleeper returns the recorder with a place where polls sleep while a breaker is open. Without one they sleep in their rows. It is called before
// anything is added.
func (r *Recorder) WithSleeper(s Sleeper) *Recorder {
	r.sleeper = s
	return r
}

// WithTracer returns the recorder with a tracer. It is called before anything is added.
func (r *Recorder) WithTracer(t BatchTracer) *Recorder {
	r.tracer = t
	return r
}

// Expect announces a result, so that those that are there wait for it a little. Each is followed by Add or Forget.
func (r *Recorder) Expect() { r.expected.Add(1) }

// Forget takes an announcement back.
func (r *Recorder) Forget() { r.expected.Add(-1) }

// Add hands in an announced result. done is called once, when the result is written or could not be; after Close that is at once, with ErrClosed.
func (r *Recorder) Add(result Result, done func(Verdict, error)) {
	select {
	case r.in <- entry{result, done}:
	case <-r.closed.c:
		r.Forget()
		done(Verdict{}, ErrClosed)
		return
	}
	select {
	case <-r.closed.c: // perhaps nobody gathers any more
		r.turnAway()
	default:
	}
}

func (r *Recorder) turnAway() {
	for {
		select {
		case e := <-r.in:
			r.Forget()
			e.done(Verdict{}, ErrClosed)
		default:
			return
		}
	}
}

// Failing reports whether the last results could not be written in all of Patience, and none was since.
func (r *Recorder) Failing() bool { return r.failing.Load() }

// GiveUp ends the patience for good: what cannot be written at the first try is not tried again. It is for a process that ends.
func (r *Recorder) GiveUp() { r.hurry.happen() }

// Close writes what was added and returns. It may be called again.
func (r *Recorder) Close() {
	r.closed.happen()
	r.writers.Wait()
}

func (r *Recorder) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	batch, results := make([]entry, 0, r.cfg.Batch), make([]Result, 0, r.cfg.Batch)
	for {
		batch = r.gather(batch[:0], timer)
		if len(batch) == 0 {
			return
		}
		results = results[:0]
		for _, e := range batch {
			results = append(results, e.result)
		}
		r.write(batch, results)
		clear(batch)
		clear(results)
	}
}

// gather waits for a result and adds to it what is there and, for Linger, what is on its way. It returns nothing when the recorder is closed.
func (r *Recorder) gather(batch []entry, timer *time.Timer) []entry {
	r.gathering <- struct{}{}
	defer func() { <-r.gathering }()
	first, ok := r.first()
	if !ok {
		return batch
	}
	r.Forget()
	batch = append(batch, first)
	timer.Reset(r.cfg.Linger)
	for len(batch) < r.cfg.Batch {
		e, ok := r.next(timer)
		if !ok {
			break
		}
		r.Forget()
		batch = append(batch, e)
	}
	return batch
}

// first waits for a result. It returns none when the recorder is closed and none is left.
func (r *Recorder) first() (e entry, ok bool) {
	select {
	case e = <-r.in:
		return e, true
	case <-r.closed.c:
	}
	select {
	case e = <-r.in:
		return e, true
	default:
		return e, false
	}
}

// next returns a result that is there, or one that is on its way if it comes in time.
func (r *Recorder) next(timer *time.Timer) (e entry, ok bool) {
	select {
	case e = <-r.in:
		return e, true
	default:
	}
	if r.expected.Load() <= 0 {
		return e, false
	}
	select {
	case e = <-r.in:
		return e, true
	case <-timer.C:
		return e, false
	}
}

func (r *Recorder) write(batch []entry, results []Result) {
	began := time.Now()
	r.putToSleep(results)
	verdicts, err := r.patiently(results)
	r.metrics.Batch(len(batch), time.Since(began))
	if err != nil {
		for _, e := range batch {
			e.done(Verdict{}, err)
		}
		return
	}
	for i, e := range batch {
		if verdicts[i].Refused == "" {
			e.done(verdicts[i], nil)
		}
	}
	r.setAside(batch, verdicts)
}

// napInRow is how long a poll sleeps in its row that could not be put to sleep at the broker.
const napInRow = 30 * time.Second

// putToSleep publishes the polls that are deferred, before that is recorded: a row that says so without a message would sleep until somebody looks after
// it. What cannot be published sleeps in its row.
func (r *Recorder) putToSleep(results []Result) {
	var polls []Sleep
	var at []int
	for i := range results {
		d := &results[i]
		if d.Disposition.Verb != redelivery.Defer {
			continue
		}
		polls, at = append(polls, Sleep{Gateway: d.Gateway, Poll: message.Poll{Payment: d.Payment, Token: d.Token, Revision: d.Revision + 1},
			ID: message.DeferredID(d.Token, d.Disposition.Counters.Deferrals), TraceParent: d.TraceParent}), append(at, i)
	}
	if polls == nil {
		return
	}
	errs := make([]error, len(polls))
	if r.sleeper != nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), r.cfg.Patience/2, errors.New("the broker did not store deferred polls in time"))
		defer cancel()
		errs = r.sleeper.Sleep(ctx, polls)
	}
	var failed error
	for i, err := range errs {
		if err != nil || r.sleeper == nil {
			d := &results[at[i]].Disposition
			d.Verb, d.Delay, failed = redelivery.Park, napInRow, err
		}
	}
	switch {
	case failed != nil:
		r.bed.Failed(context.Background(), "deferred polls", failed)
	case r.sleeper != nil:
		r.bed.Well(context.Background(), "deferred polls")
	}
}

// partResults is the recorder itself, of those who want something of the record.
const partResults = "results"

// patiently writes results and tries again while the database is away, for Patience: asking the gateway once more would cost more. Trying again is
// harmless, because what was written moved the revisions on.
func (r *Recorder) patiently(results []Result) ([]Verdict, error) {
	b := patience(20*time.Millisecond, time.Second)
	b.MaxElapsedTime = r.cfg.Patience
	b.Reset()
	for {
		verdicts, err := r.try(results)
		if err == nil {
			r.failing.Store(false)
			r.away.Well(context.Background(), partResults)
			return verdicts, nil
		}
		r.away.Failed(context.Background(), partResults, err)
		wait := b.NextBackOff()
		if wait == backoff.Stop {
			r.failing.Store(true)
			return nil, err
		}
		select {
		case <-time.After(wait):
		case <-r.hurry.c:
			return nil, err
		}
	}
}

// try writes results once. A database that says nothing leaves time for a second try.
func (r *Recorder) try(results []Result) ([]Verdict, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), r.cfg.Patience/2, errors.New("the database did not answer in time"))
	defer cancel()
	if r.tracer == nil {
		return r.record.Write(ctx, results, r.cfg.Worker, r.cfg.Lease)
	}
	ctx, written := r.tracer.Record(ctx, len(results), func(i int) string { return results[i].TraceParent })
	verdicts, err := r.record.Write(ctx, results, r.cfg.Worker, r.cfg.Lease)
	written(err)
	return verdicts, err
}

// setAside hands payments whose result the database refuses to a person. Their verdicts say that it was refused, and applied when the person has it.
func (r *Recorder) setAside(batch []entry, verdicts []Verdict) {
	var refused []entry
	var plain []Result
	for i, e := range batch {
		if why := verdicts[i].Refused; why != "" {
			refused, plain = append(refused, e), append(plain, stripped(e.result, why))
		}
	}
	if plain == nil {
		return
	}
	r.metrics.Refused(len(plain))
	second, err := r.patiently(plain)
	for i, e := range refused {
		v := Verdict{Refused: plain[i].Answer.Message}
		switch {
		case err != nil:
			r.log.Warn("a refused result cannot be set aside; its delivery goes back to the broker", "payment_id", e.result.Payment, "error", err)
		case second[i].Refused != "":
			r.log.Error("the database refuses a result and its dead letter too; its delivery goes back to the broker", "payment_id", e.result.Payment,
				"reason", v.Refused, "dead_letter_refused", second[i].Refused)
		case second[i].Applied:
			v.Applied = true
			r.log.Error("the database refuses a result; the payment is with a person", "payment_id", e.result.Payment, "reason", v.Refused)
		}
		e.done(v, nil)
	}
}

// stripped is what can surely be written of a result: that it was refused and why, and nothing of the answer but its class.
func stripped(r Result, why string) Result {
	r.Polled, r.DetailNew = false, false
	r.Answer.GatewayStatus, r.Answer.Detail, r.Answer.Message = "", "", why
	r.Disposition = redelivery.Disposition{Verb: redelivery.DeadLetter, Reason: redelivery.ReasonRefused, Counters: r.Disposition.Counters}
	return r
}
