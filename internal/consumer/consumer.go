package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/payment"
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
	source   Source
	gateway  Gateway
	record   Record
	recorder *Recorder
	policy   func(class string) redelivery.Policy
	metrics  Metrics
	tracer   Tracer
	log      *slog.Logger

	slots   chan struct{} // one for each payment in hand
	inHand  inHand
	pauses  pauses
	unknown once
	wait    sync.WaitGroup
}

// New returns a consumer. policy says how a class of payments is retried; it must be safe for concurrent use. recorder may be shared by the
// consumers of a process and must run longer than they.
func New(cfg Config, source Source, gw Gateway, record Record, recorder *Recorder, policy func(class string) redelivery.Policy,
	metrics Metrics, tracer Tracer, log *slog.Logger) *Consumer {
	return &Consumer{
		cfg: cfg, source: source, gateway: gw, record: record, recorder: recorder, policy: policy, metrics: metrics, tracer: tracer,
		log:   log.With("gateway", cfg.Gateway, "lane", cfg.Lane),
		slots: make(chan struct{}, cfg.Workers),
	}
}

// Run works until ctx ends. What was begun is then finished within Drain, what was not goes back to the broker at once, and Run returns nil.
func (c *Consumer) Run(ctx context.Context) error {
	work, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	for ctx.Err() == nil {
		n := c.freeSlots(ctx)
		deliveries, err := c.source.Fetch(ctx, n)
		c.release(n - len(deliveries))
		if err != nil {
			if ctx.Err() == nil {
				c.log.WarnContext(ctx, "fetching deliveries", "error", err)
			}
			continue
		}
		if ctx.Err() != nil {
			c.giveBack(deliveries, 0)
			break
		}
		c.metrics.Held(c.cfg.Gateway, c.cfg.Lane, c.source.Held())
		if err := c.handle(work, deliveries); err != nil {
			c.log.WarnContext(ctx, "the database is away; nothing is fetched until it is back", "error", err)
			c.awaitRecord(ctx)
		}
	}
	stop := time.AfterFunc(c.cfg.Drain, func() { giveUp(errors.New("stopped before the gateway answered")) })
	defer stop.Stop()
	err := c.source.Close()
	c.wait.Wait()
	return err
}

// freeSlots waits for a free slot and takes all that are free.
func (c *Consumer) freeSlots(ctx context.Context) int {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for n := 1; ; n++ {
		select {
		case c.slots <- struct{}{}:
		default:
			return n
		}
	}
}

func (c *Consumer) release(n int) {
	for range n {
		<-c.slots
	}
}

// giveBack returns deliveries that were not begun.
func (c *Consumer) giveBack(deliveries []Delivery, delay time.Duration) {
	for _, d := range deliveries {
		c.end(d.Return(delay))
		c.release(1)
	}
}

// end notes that the broker could not be told how a delivery ended. It delivers again, and the record knows what to do then.
func (c *Consumer) end(err error) {
	if err != nil {
		c.log.Warn("telling the broker how a delivery ended", "error", err)
	}
}

// awaitRecord waits until the record can be reached. Nothing is fetched meanwhile, so that no message is delivered over and over for a trouble of ours.
func (c *Consumer) awaitRecord(ctx context.Context) {
	b := backoff.WithContext(backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(100*time.Millisecond), backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0)), ctx)
	_ = backoff.Retry(func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return c.record.Ping(ctx)
	}, b) // it ends with success or with ctx
}

// task is a delivery on its way.
type task struct {
	delivery Delivery
	poll     message.Poll
	job      Job
	policy   redelivery.Policy
	seen     redelivery.Observation
	readAt   time.Time // this process's clock, for durations only
}

func (t *task) gatewayStatus() string {
	if t.seen.Answer == nil {
		return ""
	}
	return t.seen.Answer.GatewayStatus
}

// handle reads the rows of all deliveries in one query, decides, and begins what is to be polled. An error is the record's; all is given back then.
func (c *Consumer) handle(ctx context.Context, deliveries []Delivery) error {
	tasks, polls := c.decode(ctx, deliveries)
	if len(tasks) == 0 {
		return nil
	}
	jobs, err := c.read(ctx, polls)
	if err != nil {
		for _, t := range tasks {
			c.finish(t, t.delivery.Return(redelivery.LocalDelay))
		}
		return err
	}
	now := time.Now()
	for i, t := range tasks {
		t.job, t.readAt = jobs[i], now
		t.policy = c.policy(t.job.Payment.Class)
		t.seen = c.observe(t)
		c.carryOut(ctx, t, t.policy.Decide(t.seen), nil)
	}
	return nil
}

// decode turns deliveries into tasks. What cannot be read is buried with its bytes; what is in hand already comes again later.
func (c *Consumer) decode(ctx context.Context, deliveries []Delivery) (tasks []*task, polls []message.Poll) {
	for _, d := range deliveries {
		p, err := message.DecodePoll(d.Body())
		switch {
		case err != nil:
			c.bury(ctx, d, err)
			c.release(1)
		case !c.inHand.take(p.Payment):
			c.end(d.Return(redelivery.LocalDelay))
			c.release(1)
		default:
			tasks, polls = append(tasks, &task{delivery: d, poll: p}), append(polls, p)
		}
	}
	return tasks, polls
}

// bury hands an undecodable message to a person. If that cannot be recorded the message stays with the broker.
func (c *Consumer) bury(ctx context.Context, d Delivery, why error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AckWait/2)
	defer cancel()
	err := c.record.Bury(ctx, Poison{Subject: message.PollSubject(c.cfg.Gateway, c.cfg.Lane), Gateway: c.cfg.Gateway,
		Body: d.Body(), Why: why.Error(), Count: d.Count()})
	if err != nil {
		c.log.WarnContext(ctx, "burying an undecodable message", "error", err)
		c.end(d.Return(redelivery.LocalDelay))
		return
	}
	c.metrics.Delivery(c.cfg.Gateway, redelivery.DeadLetter, redelivery.ReasonUndecodable)
	c.log.ErrorContext(ctx, "an undecodable message is with a person", "error", why, "hint", "pollux dlq list")
	c.end(d.Ack())
}

// read reads the jobs of polls, and prolongs leases that would run out during a poll: a message that waited long in a backlog would otherwise
// be claimed again while the gateway answers, and its result refused, for ever.
func (c *Consumer) read(ctx context.Context, polls []message.Poll) ([]Job, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.AckWait/4, errors.New("the database did not answer in time"))
	defer cancel()
	jobs, err := c.record.Read(ctx, polls)
	if err != nil {
		return nil, err
	}
	var short []message.Poll
	var at []int
	for i, j := range jobs {
		if j.TokenCurrent && j.LeaseLeft < c.cfg.AckWait {
			short, at = append(short, polls[i]), append(at, i)
		}
	}
	if short == nil {
		return jobs, nil
	}
	held, err := c.record.Extend(ctx, short, c.cfg.Lease)
	for i, ok := range held {
		jobs[at[i]].TokenCurrent = ok
	}
	return jobs, err
}

func (c *Consumer) observe(t *task) redelivery.Observation {
	j := t.job
	recorded := int(j.Revision - t.poll.Revision)
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
		Unrecorded:    max(t.delivery.Count()-1-recorded, 0),
		HoldsLeft:     c.cfg.HoldBudget - c.source.Held(),
		Paused:        c.pauses.left(j.Payment.Account, time.Now()),
		Chance:        rand.Float64(),
	}
}

// carryOut does what was decided. answer is nil before the gateway was asked.
func (c *Consumer) carryOut(ctx context.Context, t *task, d redelivery.Disposition, answer *gateway.Answer) {
	switch {
	case d.Verb == redelivery.Poll:
		c.wait.Add(1)
		c.recorder.Expect()
		go func() {
			defer c.wait.Done()
			c.poll(ctx, t)
		}()
	case d.Recorded():
		if answer == nil {
			c.recorder.Expect()
		}
		c.wait.Add(1)
		c.recorder.Add(c.result(ctx, t, d, answer), func(v Verdict, err error) {
			defer c.wait.Done()
			c.recorded(t, d, v, err)
		})
	default:
		if answer != nil {
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

// poll asks the gateway and decides again.
func (c *Consumer) poll(ctx context.Context, t *task) {
	p := t.job.Payment
	ctx, done := c.tracer.Poll(ctx, p.TraceParent, message.PollSubject(c.cfg.Gateway, c.cfg.Lane), c.cfg.Gateway, p.ID)
	defer done(nil)
	c.metrics.Lateness(c.cfg.Gateway, c.cfg.Lane, max(-t.job.UntilDue, 0))
	c.metrics.InFlight(c.cfg.Gateway, 1)
	answer := c.ask(ctx, p)
	c.metrics.InFlight(c.cfg.Gateway, -1)
	c.metrics.Call(c.cfg.Gateway, answer.Class, answer.Took)
	t.seen.Answer = &answer
	d := t.policy.Decide(t.seen)
	if answer.Class == gateway.RateLimited {
		c.pauses.until(p.Account, time.Now().Add(d.Delay))
	}
	c.carryOut(ctx, t, d, &answer)
}

// ask asks the gateway once. An adapter that panics is a fault of ours: it costs the payment nothing but, again and again, makes its message poison.
func (c *Consumer) ask(ctx context.Context, p payment.Payment) (answer gateway.Answer) {
	began := time.Now()
	ctx, called := c.tracer.Call(ctx, c.cfg.Gateway)
	defer func() {
		if r := recover(); r != nil {
			c.log.ErrorContext(ctx, "the gateway's adapter panicked", "payment_id", p.ID, "stack", string(debug.Stack()))
			answer = gateway.Answer{Class: gateway.Local, Message: "the adapter panicked", Took: time.Since(began)}
		}
		called(answer)
	}()
	return c.gateway.Poll(ctx, gateway.Query{
		Payment: p.ID, Account: p.Account, Reference: p.Reference, MerchantRef: p.MerchantReference,
		AmountMinor: p.AmountMinor, Currency: p.Currency, TraceParent: c.tracer.TraceParent(ctx, p.TraceParent),
	})
}

func (c *Consumer) result(ctx context.Context, t *task, d redelivery.Disposition, answer *gateway.Answer) Result {
	r := Result{
		Payment: t.poll.Payment, Gateway: c.cfg.Gateway, Account: t.job.Payment.Account, Token: t.poll.Token, Revision: t.job.Revision,
		Disposition: d, Policy: t.policy.Name, DueAt: t.job.DueAt, StartedAt: t.job.ReadAt,
		TraceID: traceID(c.tracer.TraceParent(ctx, t.job.Payment.TraceParent)),
	}
	if answer != nil {
		r.Polled, r.Answer = true, *answer
		r.DetailNew = d.Detail != "" && d.Detail != t.job.Detail
	}
	if d.Verb == redelivery.DeadLetter && d.Reason == redelivery.ReasonPoison {
		r.Body = t.delivery.Body()
	}
	return r
}

// recorded ends a delivery after its result was written, or was not.
func (c *Consumer) recorded(t *task, d redelivery.Disposition, v Verdict, err error) {
	switch {
	case err != nil: // the row is as it was, or it is not known: the next delivery reads what is true
		c.finish(t, t.delivery.Return(redelivery.LocalDelay))
		return
	case !v.Applied:
		c.metrics.Superseded(1)
		c.finish(t, t.delivery.Return(redelivery.MinDelay))
		return
	}
	c.metrics.Delivery(c.cfg.Gateway, d.Verb, d.Reason)
	switch d.Verb {
	case redelivery.Hold:
		c.finish(t, t.delivery.Return(d.Delay))
		return
	case redelivery.Resolve:
		c.metrics.Resolved(c.cfg.Gateway, d.Status)
		c.metrics.Finality(c.cfg.Gateway, t.job.Payment.Class, t.job.ReadAt.Sub(t.job.Payment.CreatedAt)+time.Since(t.readAt))
	case redelivery.DeadLetter:
		c.log.Error("a payment is with a person", "payment_id", t.poll.Payment, "reason", d.Reason, "hint", fmt.Sprintf("pollux dlq show %d", t.poll.Payment))
	}
	if status := t.gatewayStatus(); d.Reason == redelivery.ReasonUnknownStatus && c.unknown.first(status) {
		c.log.Error("the gateway says a status that the status map does not have; its payments stay pending", "status", status,
			"payment_id", t.poll.Payment, "hint", "add it to the gateway's status map")
	}
	c.finish(t, t.delivery.Ack())
}

// finish lets go of a task.
func (c *Consumer) finish(t *task, err error) {
	c.end(err)
	c.inHand.drop(t.poll.Payment)
	c.release(1)
}

// traceID is the trace id of a W3C traceparent, or nothing.
func traceID(traceParent string) string {
	if len(traceParent) != 55 {
		return ""
	}
	return traceParent[3:35]
}
