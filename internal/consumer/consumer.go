package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"golang.org/x/time/rate"

	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/outage"
	"pollux/internal/redelivery"
)

// Config says how a consumer of one queue works. The zero value is not usable; see Validate.
type Config struct {
	Gateway    string
	Lane       string
	Workers    int           // payments in hand at once: being asked about, or waiting to be recorded
	AckWait    time.Duration // how long the broker waits before it delivers again
	Lease      time.Duration // how long the record keeps a job for us
	HoldBudget int           // messages of the queue that may be held at the broker, fleet-wide
	Deferred   bool          // the queue is the gateway's deferred polls
	Build      string        // the version of the program, for a person who looks at a dead letter
	Drain      time.Duration // how long Run goes on with what was begun after its context ended
}

// Validate returns every problem at once.
func (c Config) Validate() error {
	var errs []error
	if !message.ValidToken(c.Gateway) || !message.ValidToken(c.Lane) {
		errs = append(errs, fmt.Errorf("queue %q/%q: not a valid gateway and lane", c.Gateway, c.Lane))
	}
	if c.Workers <= 0 {
		errs = append(errs, fmt.Errorf("workers: %d: more than 0", c.Workers))
	}
	if c.AckWait <= 0 || c.Lease <= c.AckWait {
		errs = append(errs, fmt.Errorf("lease: %s: longer than ack_wait (%s)", c.Lease, c.AckWait))
	}
	if c.HoldBudget < 0 || c.Drain < 0 {
		errs = append(errs, errors.New("hold_budget, drain: not below 0"))
	}
	return errors.Join(errs...)
}

// Consumer works off the deliveries of one queue.
type Consumer struct {
	cfg      Config
	subject  string
	source   Source
	gateway  Gateway
	record   Record
	recorder *Recorder
	gate     Gate
	policy   func(class string) redelivery.Policy
	metrics  Metrics
	tracer   Tracer
	log      *slog.Logger

	bounds   func() Bounds
	slots    chan struct{} // one for each payment in hand, and for each that may not be taken at present; only Run takes them
	unused   int           // of these the latter; only Run touches it
	inHand   inHand
	unknown  once
	unheard  rate.Sometimes // bounds what is logged while the broker cannot be told anything
	unread   rate.Sometimes // the same while the record can be reached and not be read
	underway sync.WaitGroup // polls, results on their way to the record, and burials
}

// WithGate returns the consumer with a gate before the gateway. Without one it only keeps the pauses that a gateway asks for, each process for itself.
func (c *Consumer) WithGate(g Gate) *Consumer {
	c.gate = g
	return c
}

// Bounds are the bounds of a consumer that may change while it runs.
type Bounds struct {
	Workers    int // at most Config.Workers, at least 1
	HoldBudget int // as Config.HoldBudget
}

// WithBounds returns the consumer with bounds that it asks for each time that it takes deliveries, instead of those of its configuration. The function must be fast and safe
// for concurrent use.
func (c *Consumer) WithBounds(now func() Bounds) *Consumer {
	c.bounds = now
	return c
}

// New returns a consumer. policy says how a class of payments is retried; it must be safe for concurrent use. recorder may be shared by the
// consumers of a process and must run longer than they.
func New(cfg Config, source Source, gw Gateway, record Record, recorder *Recorder, policy func(class string) redelivery.Policy,
	metrics Metrics, tracer Tracer, log *slog.Logger) *Consumer {
	return &Consumer{
		cfg: cfg, subject: message.PollSubject(cfg.Gateway, cfg.Lane),
		source: source, gateway: gw, record: record, recorder: recorder, gate: &pauses{}, policy: policy, metrics: metrics, tracer: tracer,
		log:     log.With("gateway", cfg.Gateway, "lane", cfg.Lane),
		slots:   make(chan struct{}, cfg.Workers),
		bounds:  func() Bounds { return Bounds{Workers: cfg.Workers, HoldBudget: cfg.HoldBudget} },
		unheard: rate.Sometimes{Interval: time.Second},
		unread:  rate.Sometimes{Interval: outage.First},
	}
}

var errStopped = errors.New("stopped before the gateway answered")

// Run works until ctx ends and returns nil. What was not begun then goes back to the broker at once; what was begun is finished within Drain.
// After Drain calls that still run are ended, at no cost to their payments, and results that cannot be written go back to the
// broker. A consumer runs once.
func (c *Consumer) Run(ctx context.Context) error {
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	retry := patience(100*time.Millisecond, 5*time.Second)
	for ctx.Err() == nil {
		deliveries, err := c.fetch(ctx)
		if err != nil {
			wait := retry.NextBackOff()
			c.log.WarnContext(ctx, "fetching deliveries", "error", err, "retry_in", wait)
			sleep(ctx, wait)
			continue
		}
		retry.Reset()
		c.handle(ctx, work, deliveries)
	}
	late := time.AfterFunc(c.cfg.Drain, func() { stop(errStopped); c.recorder.GiveUp() })
	defer late.Stop()
	for _, d := range c.inHand.idle() {
		c.end(d.Return(0))
	}
	if err := c.source.Close(); err != nil {
		c.log.WarnContext(ctx, "closing the source; what it had fetched comes again after ack_wait", "error", err)
	}
	c.underway.Wait()
	return nil
}

// fetch waits for deliveries, as many as there are free slots. It returns none when ctx ends.
func (c *Consumer) fetch(ctx context.Context) ([]Delivery, error) {
	n := c.freeSlots(ctx)
	if n == 0 {
		return nil, nil
	}
	deliveries, err := c.source.Fetch(ctx, n)
	c.release(n - len(deliveries))
	if err == nil && ctx.Err() == nil {
		return deliveries, nil
	}
	for _, d := range deliveries {
		c.end(d.Return(0))
	}
	c.release(len(deliveries))
	if ctx.Err() != nil {
		return nil, nil
	}
	return nil, err
}

// freeSlots waits for a free slot and takes all that are free, or none when ctx ends. While results cannot be recorded one payment at a
// time is tried: whatever the gateway says about more would be lost, and asked again.
func (c *Consumer) freeSlots(ctx context.Context) int {
	if !c.takeSlot(ctx) {
		return 0
	}
	if c.recorder.Failing() {
		n := 1
		for n < c.cfg.Workers-c.unused && c.take(ctx) {
			n++
		}
		c.release(n - 1)
		return 1
	}
	for n := 1; ; n++ {
		select {
		case c.slots <- struct{}{}:
		default:
			return n
		}
	}
}

// takeSlot waits for a slot that may be used.
func (c *Consumer) takeSlot(ctx context.Context) bool {
	for {
		unused := c.cfg.Workers - min(max(c.bounds().Workers, 1), c.cfg.Workers)
		for ; c.unused > unused; c.unused-- {
			c.release(1)
		}
		if !c.take(ctx) {
			return false
		}
		if c.unused >= unused {
			return true
		}
		c.unused++ // the bound is lower than it was: this slot is not used from now on
	}
}

func (c *Consumer) take(ctx context.Context) bool {
	select {
	case c.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Consumer) release(n int) {
	for range n {
		<-c.slots
	}
}

// end notes that the broker could not be told how a delivery ended. It delivers again, and the record knows what to do then.
func (c *Consumer) end(err error) {
	if err != nil {
		c.unheard.Do(func() { c.log.Warn("telling the broker how a delivery ended", "error", err) })
	}
}

// task is a delivery on its way.
type task struct {
	delivery    Delivery
	poll        message.Poll
	job         Job
	policy      redelivery.Policy
	seen        redelivery.Observation
	disposition redelivery.Disposition
	answer      gateway.Answer
	traceParent string
	expected    bool      // the recorder was told of a result
	began       time.Time // when it was handed out, by this process's clock, for durations only
	readAt      time.Time // as began: when its row was read
}

// handle reads the rows of all deliveries in one query, decides, and begins what is to be polled. ctx ends the waiting, work what was begun.
func (c *Consumer) handle(ctx, work context.Context, deliveries []Delivery) {
	began := time.Now()
	tasks, polls := c.decode(work, deliveries)
	if len(tasks) == 0 {
		return
	}
	jobs, err := c.read(ctx, polls)
	switch {
	case ctx.Err() != nil:
		c.giveBack(tasks, 0)
		return
	case err != nil:
		c.putBack(ctx, tasks, err)
		return
	}
	held, now := c.source.Held(), time.Now()
	left := c.bounds().HoldBudget - held
	c.metrics.Held(c.cfg.Gateway, c.cfg.Lane, held)
	for i, t := range tasks {
		t.job, t.began, t.readAt = jobs[i], began, now
		if t.delivery.Count() == 1 {
			c.metrics.Waited(c.cfg.Gateway, c.cfg.Lane, t.delivery.Waited())
		}
		t.policy, t.traceParent = c.policy(t.job.Payment.Class), t.job.Payment.TraceParent
		t.seen = c.observe(t, left)
		c.carryOut(work, t, t.policy.Decide(t.seen))
	}
}

// putBack gives back deliveries whose rows cannot be read. While the record is away nothing is fetched, by nobody, so that they may come back soon. A
// record that can be reached and not be read is fetched for all the same: they come back late, or each would be delivered over and over.
func (c *Consumer) putBack(ctx context.Context, tasks []*task, err error) {
	if c.ping(ctx) == nil {
		c.unread.Do(func() {
			c.log.ErrorContext(ctx, "the record can be reached but not be read; deliveries go back to the broker", "error", err, "retry_in", c.cfg.AckWait)
		})
		c.giveBack(tasks, c.cfg.AckWait)
		return
	}
	c.giveBack(tasks, redelivery.LocalDelay)
	_ = backoff.Retry(func() error {
		err := c.ping(ctx)
		if err == nil {
			c.recorder.away.Well(ctx, c.part())
		} else if ctx.Err() == nil {
			c.recorder.away.Failed(ctx, c.part(), err)
		}
		return err
	}, backoff.WithContext(patience(100*time.Millisecond, 2*time.Second), ctx)) // it ends with success or with ctx
}

// part is what this consumer is called among those that want something of the record.
func (c *Consumer) part() string { return c.cfg.Gateway + "/" + c.cfg.Lane }

func (c *Consumer) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return c.record.Ping(ctx)
}

func (c *Consumer) giveBack(tasks []*task, delay time.Duration) {
	for _, t := range tasks {
		c.finish(t, t.delivery.Return(delay))
	}
}

// decode turns deliveries into tasks. What cannot be read is buried with its bytes; what is in hand already waits for its turn.
func (c *Consumer) decode(ctx context.Context, deliveries []Delivery) (tasks []*task, polls []message.Poll) {
	room := make([]task, len(deliveries))
	tasks, polls = make([]*task, 0, len(deliveries)), make([]message.Poll, 0, len(deliveries))
	for i, d := range deliveries {
		p, err := message.DecodePoll(d.Body())
		switch {
		case err != nil:
			c.underway.Go(func() { c.bury(ctx, d, err) })
		case !c.inHand.take(p.Payment, d):
			c.release(1)
		default:
			t := &room[i]
			t.delivery, t.poll = d, p
			tasks, polls = append(tasks, t), append(polls, p)
		}
	}
	return tasks, polls
}

// bury hands an undecodable message to a person. If that cannot be recorded the message stays with the broker.
func (c *Consumer) bury(ctx context.Context, d Delivery, why error) {
	defer c.release(1)
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AckWait/2)
	defer cancel()
	err := c.record.Bury(ctx, Poison{Subject: c.subject, Gateway: c.cfg.Gateway, Body: d.Body(), Why: why.Error(), Count: d.Count()})
	if err != nil {
		c.log.WarnContext(ctx, "burying an undecodable message", "error", err)
		c.end(d.Return(later(d)))
		return
	}
	c.metrics.Delivery(c.cfg.Gateway, redelivery.DeadLetter, redelivery.ReasonUndecodable)
	c.log.ErrorContext(ctx, "an undecodable message is with a person", "error", why, "hint", "pollux dlq list")
	c.end(d.Ack())
}

// later is how long a message goes back for that has nowhere to go: longer each time, up to a minute.
func later(d Delivery) time.Duration {
	return redelivery.LocalDelay * time.Duration(min(max(d.Count(), 1), 60))
}

// read reads the jobs of polls, and again while that fails, for as long as the broker leaves the deliveries to us: what is in hand is
// delivered to nobody else meanwhile, so that an outage of the record makes no message look like poison.
func (c *Consumer) read(ctx context.Context, polls []message.Poll) (jobs []Job, err error) {
	if jobs, err = c.readOnce(ctx, polls); err == nil {
		c.recorder.away.Well(ctx, c.part())
		return jobs, nil
	}
	if ctx.Err() == nil {
		c.recorder.away.Failed(ctx, c.part(), err)
	}
	b := patience(50*time.Millisecond, 2*time.Second)
	b.MaxElapsedTime = c.cfg.AckWait / 2
	jobs, err = backoff.RetryWithData(func() ([]Job, error) { return c.readOnce(ctx, polls) }, backoff.WithContext(b, ctx))
	if err == nil {
		c.recorder.away.Well(ctx, c.part())
	}
	return jobs, err
}

// readOnce reads the jobs of polls and prolongs leases that would run out during a poll: a message that waited long in a backlog would
// otherwise be claimed again while the gateway answers, and its result refused, for ever. While results cannot be recorded it prolongs all:
// that a row can be written is known then before the gateway is asked.
func (c *Consumer) readOnce(ctx context.Context, polls []message.Poll) ([]Job, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.AckWait/4, errors.New("the database did not answer in time"))
	defer cancel()
	began := time.Now()
	jobs, err := c.record.Read(ctx, polls)
	if err != nil {
		return nil, err
	}
	c.metrics.Read(len(polls), time.Since(began))
	all := c.recorder.Failing()
	var short []message.Poll
	var at []int
	for i, j := range jobs {
		if j.TokenCurrent && (all || j.LeaseLeft < c.cfg.AckWait) {
			short, at = append(short, polls[i]), append(at, i)
		}
	}
	if short == nil {
		return jobs, nil
	}
	ours, err := c.record.Extend(ctx, short, c.cfg.Lease)
	if err != nil {
		return nil, err
	}
	for i, ok := range ours {
		jobs[at[i]].TokenCurrent = ok
	}
	return jobs, nil
}

func (c *Consumer) observe(t *task, holdsLeft int) redelivery.Observation {
	j := &t.job
	return redelivery.Observation{
		Tracked:       j.Tracked,
		Status:        j.Payment.Status,
		TokenCurrent:  j.TokenCurrent,
		Dead:          j.Dead,
		UntilDue:      j.UntilDue,
		Age:           j.Age,
		HasDeadline:   j.HasDeadline,
		UntilDeadline: j.UntilEnd,
		Counters:      j.Counters,
		Previous:      j.Previous,
		Unrecorded:    c.unrecorded(t),
		HoldsLeft:     holdsLeft,
		Open:          !c.cfg.Deferred && c.gate.Open(j.Payment.Account), // what sleeps is woken to find out
		Chance:        rand.Float64(),
	}
}

// unrecorded is how many deliveries of a message ended without a record. Deferred ones go back to sleep without one.
func (c *Consumer) unrecorded(t *task) int {
	if c.cfg.Deferred {
		return 0
	}
	return max(t.delivery.Count()-1-int(t.job.Revision-t.poll.Revision), 0)
}

// carryOut does what was decided, before the gateway was asked or after. A poll announces its result to the recorder; whatever it ends
// with is either recorded or takes that back.
func (c *Consumer) carryOut(ctx context.Context, t *task, d redelivery.Disposition) {
	t.disposition = d
	switch {
	case d.Verb == redelivery.Poll:
		c.recorder.Expect()
		t.expected = true
		c.underway.Go(func() { c.poll(ctx, t) })
	case d.Recorded():
		if !t.expected {
			c.recorder.Expect()
		}
		c.underway.Add(1)
		c.recorder.Add(c.result(t), func(v Verdict, err error) {
			defer c.underway.Done()
			c.recorded(ctx, t, v, err)
		})
	default:
		if t.expected {
			c.recorder.Forget()
		}
		c.metrics.Delivery(c.cfg.Gateway, d.Verb, d.Reason)
		if d.Verb == redelivery.Return {
			c.finish(t, t.delivery.Return(d.Delay))
			return
		}
		c.finish(t, t.delivery.Ack())
	}
}

// poll asks the gateway, if it may, and decides again. A payment that is answered with nonsense once more says nothing new about the gateway, only about
// itself: a few such payments must not keep the breaker of a gateway open that answers all others, and they must come to their own end.
func (c *Consumer) poll(ctx context.Context, t *task) {
	p := &t.job.Payment
	ctx, done := c.tracer.Poll(ctx, c.origin(t), c.subject, c.cfg.Gateway, p.ID)
	defer done(nil)
	pass, no := c.gate.Enter(ctx, p.Account)
	if pass == nil {
		c.carryOut(ctx, t, c.refused(ctx, t, no))
		return
	}
	c.metrics.Lateness(ctx, c.cfg.Gateway, c.cfg.Lane, max(-t.job.UntilDue, 0))
	c.metrics.InFlight(c.cfg.Gateway, 1)
	t.answer = c.ask(ctx, t)
	c.metrics.InFlight(c.cfg.Gateway, -1)
	c.metrics.Call(ctx, c.cfg.Gateway, t.answer.Class, t.answer.Took)
	said, again := t.answer.Class, t.answer.Class == gateway.Malformed && t.job.LastClass == gateway.Malformed.String()
	if again {
		said = gateway.Local
	}
	pass.Done(said, min(t.answer.RetryAfter, t.policy.MaxRetryAfter))
	t.seen.Answer, t.seen.Open = &t.answer, !again && c.gate.Open(p.Account)
	c.carryOut(ctx, t, t.policy.Decide(t.seen))
}

// origin says where a delivery comes from. A relay that traces sends another context than the payment's, in a trace of the payment's own where it was polled before; a
// relay that does not passes the payment's on each time.
func (c *Consumer) origin(t *task) Origin {
	carried, own := t.delivery.TraceParent(), t.job.Payment.TraceParent
	later := c.cfg.Deferred || t.delivery.Count() > 1 || t.job.Revision > 0 && (carried == "" || carried == own)
	return Origin{TraceParent: cmp.Or(carried, own), Later: later}
}

// The times after which a poll goes on that was woken too early, or that lost its turn.
const (
	shortestNap = 100 * time.Millisecond
	longestNap  = 30 * time.Second
)

// refused decides what becomes of a poll that may not be made now. One that slept already goes back to where it slept.
func (c *Consumer) refused(ctx context.Context, t *task, no Refusal) redelivery.Disposition {
	back := redelivery.Disposition{Verb: redelivery.Return, Reason: redelivery.ReasonLocal, Delay: redelivery.MinDelay, Counters: t.seen.Counters}
	switch {
	case ctx.Err() != nil:
		return back
	case no.Open && c.cfg.Deferred:
		back.Reason, back.Delay = redelivery.ReasonCircuitOpen, min(max(no.Wait, shortestNap), longestNap)
		return back
	}
	t.seen.Open, t.seen.Paused = no.Open, max(no.Wait, shortestNap)
	return t.policy.Decide(t.seen)
}

// ask asks the gateway once. An adapter that panics over an answer has not understood it, and does so each time: it is malformed, so that
// the payment comes to a person and the gateway is not asked for ever. A call that we ended ourselves says nothing about the gateway.
func (c *Consumer) ask(ctx context.Context, t *task) (answer gateway.Answer) {
	began, p := time.Now(), &t.job.Payment
	ctx, called := c.tracer.Call(ctx, c.cfg.Gateway)
	t.traceParent = c.tracer.TraceParent(ctx, p.TraceParent)
	defer func() {
		if r := recover(); r != nil {
			c.log.ErrorContext(ctx, "the gateway's adapter panicked", "payment_id", p.ID, "panic", fmt.Sprintf("%T", r), "stack", string(debug.Stack()))
			answer = gateway.Answer{Class: gateway.Malformed, Message: "the gateway's adapter panicked", Took: time.Since(began)}
		}
		if ctx.Err() != nil && (answer.Class == gateway.Transport || answer.Class == gateway.Malformed) {
			answer = gateway.Answer{Class: gateway.Local, Message: errStopped.Error(), Took: answer.Took}
		}
		called(answer)
	}()
	return c.gateway.Poll(ctx, gateway.Query{
		Payment: p.ID, Account: p.Account, Reference: p.Reference, MerchantRef: p.MerchantReference,
		AmountMinor: p.AmountMinor, Currency: p.Currency, TraceParent: t.traceParent,
	})
}

func (c *Consumer) result(t *task) Result {
	d := t.disposition
	r := Result{
		Payment: t.poll.Payment, Gateway: c.cfg.Gateway, Account: t.job.Payment.Account, Token: t.poll.Token, Revision: t.job.Revision,
		Disposition: d, Policy: t.policy.Name, DueAt: t.job.DueAt, StartedAt: t.job.ReadAt, TraceParent: t.traceParent,
	}
	if t.seen.Answer != nil {
		r.Polled, r.Answer = true, t.answer
		r.DetailNew = d.Detail != "" && d.Detail != t.job.Detail
	}
	if d.Verb == redelivery.DeadLetter {
		r.PolicyHash, r.Build = t.policy.Hash(), c.cfg.Build
	}
	if d.Verb == redelivery.DeadLetter && d.Reason == redelivery.ReasonPoison {
		r.Body = t.delivery.Body()
	}
	return r
}

// recorded ends a delivery after its result was written, or was not.
func (c *Consumer) recorded(ctx context.Context, t *task, v Verdict, err error) {
	d := t.disposition
	switch {
	case err != nil: // the row is as it was, or it is not known: the next delivery reads what is true
		c.finish(t, t.delivery.Return(redelivery.LocalDelay))
		return
	case v.Refused != "" && !v.Applied: // not even a dead letter can be written
		c.finish(t, t.delivery.Return(later(t.delivery)))
		return
	case v.Refused != "":
		d = redelivery.Disposition{Verb: redelivery.DeadLetter, Reason: redelivery.ReasonRefused}
	case !v.Applied:
		c.metrics.Superseded(1)
		c.finish(t, t.delivery.Return(redelivery.LocalDelay))
		return
	}
	c.metrics.Delivery(c.cfg.Gateway, d.Verb, d.Reason)
	switch d.Verb {
	case redelivery.Hold:
		c.finish(t, t.delivery.Return(d.Delay))
	default:
		c.finish(t, t.delivery.Ack())
	}
	if t.seen.Answer != nil {
		c.metrics.Delivered(ctx, c.cfg.Gateway, time.Since(t.began))
	}
	c.report(ctx, t, d)
}

// report counts and says what became of a payment.
func (c *Consumer) report(ctx context.Context, t *task, d redelivery.Disposition) {
	switch {
	case d.Verb == redelivery.Resolve:
		c.metrics.Resolved(c.cfg.Gateway, d.Status)
		c.metrics.Finality(ctx, c.cfg.Gateway, t.job.Payment.Class, t.job.ReadAt.Sub(t.job.Payment.CreatedAt)+time.Since(t.readAt), d.Counters.Attempts)
	case d.Verb == redelivery.DeadLetter:
		c.log.Error("a payment is with a person", "payment_id", t.poll.Payment, "reason", d.Reason, "hint", "pollux dlq list")
	case d.Reason == redelivery.ReasonUnknownStatus && c.unknown.first(t.answer.GatewayStatus):
		c.log.Error("the gateway says a status that the status map does not have; its payments stay pending",
			"status", t.answer.GatewayStatus, "payment_id", t.poll.Payment, "hint", "add it to the gateway's status map")
	}
}

// finish lets go of a task. Other deliveries of its payment come again now, and read what is true by then.
func (c *Consumer) finish(t *task, err error) {
	c.end(err)
	for _, d := range c.inHand.drop(t.poll.Payment) {
		c.end(d.Return(redelivery.MinDelay))
	}
	c.release(1)
}

// patience returns delays that grow from first to about longest and never end by themselves.
func patience(first, longest time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(first), backoff.WithMaxInterval(longest), backoff.WithMaxElapsedTime(0))
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
