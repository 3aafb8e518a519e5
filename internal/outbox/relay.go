package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"golang.org/x/sync/errgroup"

	"pollux/internal/message"
	"pollux/internal/outage"
	"pollux/internal/redelivery"
)

// Config says how a relay works. The zero value is not usable; see Validate.
type Config struct {
	Owner          string        // who holds the leases: for a person who looks at the rows
	Queues         []Queue       // the queues of the configuration; others are found in the record
	Every          time.Duration // how often it looks while there is nothing to do
	Batch          int           // jobs or events in one claim
	InFlight       int           // batches that are published at once, while the next is claimed
	Lease          time.Duration // how long a claimed job is out of other relays' sight
	Backlog        int           // undelivered messages of a queue above which nothing more is published to it
	PublishTimeout time.Duration // for a batch to be stored
	Retry          time.Duration // before an event that was not stored is tried again
	Watch          time.Duration // how often streams and queues are looked at
}

// Validate returns every problem at once.
func (c Config) Validate() error {
	var errs []error
	positive := func(name string, ok bool, v any) {
		if !ok {
			errs = append(errs, fmt.Errorf("relay.%s: %v: more than 0", name, v))
		}
	}
	positive("every", c.Every > 0, c.Every)
	positive("batch", c.Batch > 0, c.Batch)
	positive("in_flight", c.InFlight > 0, c.InFlight)
	positive("backlog", c.Backlog > 0, c.Backlog)
	positive("publish_timeout", c.PublishTimeout > 0, c.PublishTimeout)
	positive("retry", c.Retry > 0, c.Retry)
	positive("watch", c.Watch > 0, c.Watch)
	if c.Lease <= c.PublishTimeout {
		errs = append(errs, fmt.Errorf("relay.lease: %s: longer than publish_timeout (%s), or a batch would be claimed again while it is published", c.Lease, c.PublishTimeout))
	}
	return errors.Join(errs...)
}

// Metrics is what a relay counts.
type Metrics interface {
	RelayClaimed(gateway, lane string, n int, lag time.Duration)
	// Claim says how many polls of all queues a claim leased, and how long that took.
	Claim(n int, took time.Duration)
	RelayEvents(n int, lag time.Duration)
	Published(stream string, n int, took time.Duration)
	Duplicates(stream string, n int)
	PublishFailed(stream string, n int)
	SetAside(kind string, n int)
	StreamLost(stream string, jobs, events int)
	Backlog(gateway, lane string, n int)
	// Ready says how many polls of a queue are due and wait in the database, MostReady at the most.
	Ready(gateway, lane string, n int)
	// Succeeded says that one of the Loops did its work without an error.
	Succeeded(loop string)
}

// Tracer begins the spans of what is sent.
type Tracer interface {
	// Send begins the span of sending messages together, and for each message one in the trace that it belongs to, whose context it puts into the message. The
	// returned function ends them all and is called once, with a receipt for each. Where nothing is traced it does nothing.
	Send(ctx context.Context, messages []Message) (context.Context, func([]Receipt))
}

// Loops are what a relay does over and over, each by itself.
var Loops = []string{loopPolls, loopEvents, loopStreams, loopPartitions}

const (
	loopPolls      = "polls"      // publishes what is due
	loopEvents     = "events"     // publishes events
	loopStreams    = "streams"    // looks after streams and queues
	loopPartitions = "partitions" // makes and drops partitions
)

// MostReady is up to where polls that are due are counted, in each queue: 10,000 entries of an index take some milliseconds, and whoever scales consumers
// by the number needs no more.
const MostReady = 10_000

// Relay publishes due polls and unpublished events. Any number of relays may run side by side.
type Relay struct {
	cfg     Config
	record  Record
	broker  Broker
	metrics Metrics
	tracer  Tracer // nil: nothing is traced
	log     *slog.Logger
	waits   *outage.Log // by loop
	backlog *backlog

	slots      chan struct{} // one for each batch that is published
	publishing sync.WaitGroup
	trails     map[string]*trail // of the streams that relays alone publish to
	failed     failure           // the first batch that was not published, for Once; Run's are logged and tried again
	doubt      bool              // of the events loop: the last events were not stored
}

// New returns a relay. It does nothing before Run or Once.
func New(cfg Config, record Record, broker Broker, metrics Metrics, log *slog.Logger) *Relay {
	return &Relay{cfg: cfg, record: record, broker: broker, metrics: metrics, log: log,
		waits: outage.New(log, outage.Words{Begins: "the relay waits; nothing is lost", Over: "the relay goes on",
			Hint: "can PostgreSQL be reached where database.url says, and NATS where nats.urls says?"}),
		trails:  map[string]*trail{message.StreamPoll: {}, message.StreamEvents: {}, message.StreamDead: {}},
		backlog: newBacklog(cfg, broker, metrics, log), slots: make(chan struct{}, cfg.InFlight)}
}

// WithTracer returns the relay with a tracer. It is called before Run or Once.
func (r *Relay) WithTracer(t Tracer) *Relay {
	r.tracer = t
	return r
}

// Run relays until ctx ends. It then finishes what it is doing, within a few times PublishTimeout even if the database and the broker say nothing, and
// returns nil. A database or a broker that is away is waited for: nothing is lost meanwhile, since nothing is claimed. A relay runs once.
func (r *Relay) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	start := func(name string, every time.Duration, step func(context.Context) (int, error)) {
		g.Go(func() error { r.loop(ctx, name, every, step); return nil })
	}
	start(loopPolls, r.cfg.Every, r.polls)
	start(loopEvents, r.cfg.Every, r.events)
	start(loopStreams, r.cfg.Watch, r.watch)
	start(loopPartitions, time.Hour, r.maintain)
	err := g.Wait()
	r.publishing.Wait()
	r.backlog.asking.Wait()
	return err
}

// Once relays until nothing is due that a queue has room for and no event is unpublished, for cron. It returns what it took from the database, and
// every error: events are published although polls cannot be, and the other way round.
func (r *Relay) Once(ctx context.Context) (polls, events int, err error) {
	_, watching := r.watch(ctx)
	polls, polling := r.drainPolls(ctx)
	events, telling := drain(ctx, r.events)
	_, maintaining := r.maintain(ctx)
	return polls, events, errors.Join(watching, polling, telling, maintaining)
}

// drainPolls claims until nothing comes although every level is known and nothing is under way.
func (r *Relay) drainPolls(ctx context.Context) (total int, err error) {
	for {
		r.backlog.refresh(ctx)
		r.backlog.asking.Wait()
		n, err := drain(ctx, r.polls)
		r.publishing.Wait()
		total += n
		if err = errors.Join(err, r.failed.take()); err != nil || n == 0 {
			return total, err
		}
	}
}

// drain runs step until there is nothing to do.
func drain(ctx context.Context, step func(context.Context) (int, error)) (total int, err error) {
	for {
		n, err := step(ctx)
		total += n
		if err != nil || n == 0 {
			return total, err
		}
		if ctx.Err() != nil {
			return total, context.Cause(ctx)
		}
	}
}

// loop runs step again at once while there is a backlog, every interval while there is none, and ever more slowly while it fails. Half a batch or
// more is a backlog; what is less is better gathered for an interval than chased row by row.
func (r *Relay) loop(ctx context.Context, name string, every time.Duration, step func(context.Context) (int, error)) {
	retry := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second),
		backoff.WithMaxElapsedTime(0))
	for ctx.Err() == nil {
		n, err := step(ctx)
		wait := every
		switch {
		case err != nil && ctx.Err() != nil:
			return
		case err != nil:
			wait = retry.NextBackOff()
			r.waits.Failed(ctx, name, err)
		default:
			retry.Reset()
			r.waits.Well(ctx, name)
			r.metrics.Succeeded(name)
			if n > r.cfg.Batch/2 {
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// polls claims due jobs and leaves them to be published while the next are claimed. It returns how many it claimed. A batch that is not stored is no
// error of this loop: its queues are left alone for a while, and the others go on.
func (r *Relay) polls(ctx context.Context) (int, error) {
	jobs, err := r.claim(ctx)
	if err != nil || len(jobs) == 0 {
		return 0, err
	}
	r.slots <- struct{}{} // one is free again within twice PublishTimeout, whatever the broker and the database do
	r.publishing.Go(func() {
		if err := r.publish(ctx, jobs); err != nil {
			attrs := []any{"claimed", len(jobs), "error", err}
			if hint := outage.Hint(err); hint != "" {
				attrs = append(attrs, "hint", hint)
			}
			r.log.WarnContext(ctx, "not all polls were published; they are due again, at the latest when their lease ends", attrs...)
			r.failed.set(err)
		}
		<-r.slots
	})
	return len(jobs), nil
}

var (
	errDatabase = errors.New("the database did not answer in time")
	errBroker   = errors.New("the broker did not answer in time")
)

// finishing is a context that outlives ctx, by d at the most. A claim or a publish that is cut off half-way leaves jobs that wait for their lease.
func finishing(ctx context.Context, d time.Duration, why error) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), d, why)
}

func (r *Relay) claim(ctx context.Context) ([]Job, error) {
	rooms, err := r.backlog.rooms(ctx)
	if len(rooms) == 0 {
		return nil, err
	}
	ctx, cancel := finishing(ctx, r.cfg.PublishTimeout, errDatabase)
	defer cancel()
	began := time.Now()
	jobs, err := r.record.Claim(ctx, rooms, r.cfg.Batch, r.cfg.Owner, r.cfg.Lease)
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	r.metrics.Claim(len(jobs), time.Since(began))
	r.backlog.took(jobs)
	for q, late := range lags(jobs) {
		r.metrics.RelayClaimed(q.Gateway, q.Lane, late.n, late.most)
	}
	return jobs, nil
}

type lag struct {
	n    int
	most time.Duration
}

// lags sums up a claim by queue.
func lags(jobs []Job) map[Queue]lag {
	by := make(map[Queue]lag, 1)
	for _, j := range jobs {
		l := by[j.Queue]
		by[j.Queue] = lag{l.n + 1, max(l.most, j.Lag)}
	}
	return by
}

// publish publishes claimed jobs. Those that were not stored are due again at once; those that never can be go to a person.
func (r *Relay) publish(ctx context.Context, jobs []Job) error {
	messages := make([]Message, len(jobs))
	var subject string
	for i, j := range jobs {
		if i == 0 || j.Queue != jobs[i-1].Queue {
			subject = message.PollSubject(j.Gateway, j.Lane)
		}
		messages[i] = Message{
			Subject:     subject,
			ID:          j.Token,
			Body:        message.EncodePoll(message.Poll{Payment: j.Payment, Token: j.Token, Revision: j.Revision}),
			TraceParent: j.TraceParent,
			Later:       j.Revision > 0,
		}
	}
	before, _ := r.trails[message.StreamPoll].seen()
	receipts := r.send(ctx, messages)
	r.trails[message.StreamPoll].note(message.StreamPoll, before[0], messages, receipts)
	stored := make(map[Queue]bool, 1) // of a queue that had anything to store
	var back []Job
	var aside []SetAside
	var failure error
	for i, receipt := range receipts {
		q := jobs[i].Queue
		if receipt.Err == nil {
			stored[q] = true
			continue
		}
		if refused, ok := errors.AsType[*Refusal](receipt.Err); ok {
			aside = append(aside, SetAside{Job: jobs[i], Reason: refused.Reason})
			continue
		}
		if _, known := stored[q]; !known {
			stored[q] = false
		}
		back, failure = append(back, jobs[i]), receipt.Err
	}
	r.backlog.landed(jobs, stored)
	return errors.Join(failure, r.giveBack(ctx, back), r.setAside(ctx, aside))
}

// giveBack releases jobs whose message was not stored, or may not have been: if it was, its token is out of date.
func (r *Relay) giveBack(ctx context.Context, jobs []Job) error {
	if len(jobs) == 0 {
		return nil
	}
	ctx, cancel := finishing(ctx, r.cfg.PublishTimeout, errDatabase)
	defer cancel()
	return r.record.Release(ctx, jobs)
}

func (r *Relay) setAside(ctx context.Context, aside []SetAside) error {
	if len(aside) == 0 {
		return nil
	}
	r.metrics.SetAside("poll", len(aside))
	r.log.ErrorContext(ctx, "polls cannot be published and are with a person", "count", len(aside),
		"reason", redelivery.ReasonUnpublishable, "first", aside[0].Reason, "hint", "pollux dlq list")
	ctx, cancel := finishing(ctx, r.cfg.PublishTimeout, errDatabase)
	defer cancel()
	return r.record.SetAside(ctx, aside)
}

// events publishes a batch of events and returns its size. After some that were not stored it asks the broker before it takes others.
func (r *Relay) events(ctx context.Context) (int, error) {
	if r.doubt {
		if err := r.reachable(ctx); err != nil {
			return 0, err
		}
	}
	var failure error
	ctx, cancel := finishing(ctx, 2*r.cfg.PublishTimeout, errDatabase)
	defer cancel()
	n, err := r.record.PublishEvents(ctx, r.cfg.Batch, r.cfg.Retry, func(ctx context.Context, events []Event) []Receipt {
		messages := make([]Message, len(events))
		var most time.Duration
		for i, e := range events {
			messages[i] = Message{Subject: e.Subject, ID: e.ID, Body: e.Body, TraceParent: e.TraceParent}
			most = max(most, e.Lag)
		}
		r.metrics.RelayEvents(len(events), most)
		receipts := r.send(ctx, messages)
		for _, stream := range []string{message.StreamEvents, message.StreamDead} { // a sequence that was given before is seen by the record
			r.trails[stream].note(stream, Mark{}, messages, receipts)
		}
		failure = r.reportEvents(ctx, events, receipts)
		return receipts
	})
	r.doubt = failure != nil
	if lost, ok := errors.AsType[*LostError](err); ok {
		err = r.eventsLost(ctx, lost)
	}
	return n, errors.Join(err, failure)
}

// eventsLost says what is published again, and looks at the streams at once: one that was made anew has lost more than its last messages.
func (r *Relay) eventsLost(ctx context.Context, lost *LostError) error {
	var errs []error
	for stream, n := range lost.Events {
		r.reportLoss(ctx, stream, Recovery{Lost: true, Events: n})
		errs = append(errs, r.observe(ctx, stream))
	}
	return errors.Join(errs...)
}

// reachable asks the broker something that costs nothing.
func (r *Relay) reachable(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.PublishTimeout, errBroker)
	defer cancel()
	_, err := r.broker.Stream(ctx, message.StreamEvents)
	return err
}

// reportEvents says what was set aside and what will be tried again. It returns an error when nothing was stored that could be.
func (r *Relay) reportEvents(ctx context.Context, events []Event, receipts []Receipt) error {
	var failure error
	failed, stored := 0, 0
	for i, receipt := range receipts {
		if receipt.Err == nil {
			stored++
			continue
		}
		if refused, ok := errors.AsType[*Refusal](receipt.Err); ok {
			r.metrics.SetAside("event", 1)
			r.log.ErrorContext(ctx, "an event cannot be published and is set aside", "event_id", events[i].ID, "reason", refused.Reason)
			continue
		}
		failed, failure = failed+1, receipt.Err
	}
	if failure != nil && stored > 0 {
		r.log.WarnContext(ctx, "some events were not stored; they are tried again", "count", failed, "error", failure, "retry_in", r.cfg.Retry)
		return nil
	}
	return failure
}

// send publishes and counts. It finishes although ctx ends.
func (r *Relay) send(ctx context.Context, messages []Message) []Receipt {
	ctx, cancel := finishing(ctx, r.cfg.PublishTimeout, errBroker)
	defer cancel()
	sent := func([]Receipt) {}
	if r.tracer != nil {
		ctx, sent = r.tracer.Send(ctx, messages)
	}
	began := time.Now()
	receipts := r.broker.Publish(ctx, messages)
	took := time.Since(began)
	sent(receipts)
	stored, twice, failed := map[string]int{}, map[string]int{}, map[string]int{}
	for _, receipt := range receipts {
		switch {
		case receipt.Err != nil:
			failed[receipt.Stream]++
		default:
			stored[receipt.Stream]++
			if receipt.Duplicate {
				twice[receipt.Stream]++
			}
		}
	}
	for stream, n := range stored {
		r.metrics.Published(stream, n, took)
	}
	for stream, n := range twice {
		r.metrics.Duplicates(stream, n)
	}
	for stream, n := range failed {
		r.metrics.PublishFailed(stream, n)
	}
	return receipts
}

// watch looks for queues that the configuration does not know and for streams that lost messages. What goes wrong with one does not keep it
// from looking at the others.
func (r *Relay) watch(ctx context.Context) (int, error) {
	errs := []error{r.findQueues(ctx), r.countReady(ctx)}
	for _, name := range []string{message.StreamPoll, message.StreamDeferred, message.StreamEvents, message.StreamDead} {
		if ctx.Err() == nil {
			errs = append(errs, r.observe(ctx, name))
		}
	}
	return 0, errors.Join(errs...)
}

func (r *Relay) findQueues(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.PublishTimeout, errDatabase)
	defer cancel()
	found, err := r.record.Queues(ctx)
	if err != nil {
		return err
	}
	for _, q := range r.backlog.learn(found) {
		r.log.WarnContext(ctx, "payments of a queue that the configuration does not name; they wait until a consumer for it exists",
			"gateway", q.Gateway, "lane", q.Lane)
	}
	return nil
}

// countReady says how many polls are due and not claimed.
func (r *Relay) countReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.PublishTimeout, errDatabase)
	defer cancel()
	queues := r.backlog.known()
	if len(queues) == 0 {
		return nil
	}
	counts, err := r.record.Due(ctx, queues, MostReady)
	if err != nil {
		return err
	}
	for i, q := range queues {
		r.metrics.Ready(q.Gateway, q.Lane, counts[i])
	}
	return nil
}

func (r *Relay) observe(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*r.cfg.PublishTimeout, errDatabase)
	defer cancel()
	recovery, err := r.record.Observe(ctx, name, func(ctx context.Context, name string, mark Mark) (StreamState, error) {
		t, ok := r.trails[name]
		if !ok {
			return r.broker.Stream(ctx, name, mark)
		}
		mine, lost := t.seen()
		s, err := r.broker.Stream(ctx, name, append(mine, mark)...)
		if err == nil && !s.Replaced {
			t.held(mine)
		}
		if err == nil {
			s.Replaced = t.of(s.Created) && (s.Replaced || lost)
		}
		return s, err
	})
	if err != nil {
		return err
	}
	if t, ok := r.trails[name]; ok && recovery.Lost {
		t.forget()
	}
	if recovery.Lost {
		r.reportLoss(ctx, name, recovery)
	}
	return nil
}

func (r *Relay) reportLoss(ctx context.Context, stream string, recovery Recovery) {
	r.metrics.StreamLost(stream, recovery.Jobs, recovery.Events)
	r.log.ErrorContext(ctx, "a stream lost messages; what was in them is published again", "stream", stream,
		"jobs", recovery.Jobs, "events", recovery.Events)
}

// maintain has no deadline but the end of ctx: the first time after a long stand-still it moves rows.
func (r *Relay) maintain(ctx context.Context) (int, error) { return 0, r.record.Maintain(ctx) }

// failure keeps the first of several errors until it is taken.
type failure struct {
	mu  sync.Mutex
	err error
}

func (f *failure) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

func (f *failure) take() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.err
	f.err = nil
	return err
}
