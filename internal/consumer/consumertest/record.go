// Package consumertest is a record, a broker and a gateway in memory. They behave as PostgreSQL, JetStream and a payment gateway do towards the
// relay and the consumer, leases, tokens, revisions, redeliveries and delays included, and go wrong on demand. It is for tests, and at
// home in a synctest bubble.
package consumertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"pollux/internal/consumer"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// Op is an operation of the record or the broker.
type Op string

// The operations.
const (
	OpRead          Op = "read"
	OpExtend        Op = "extend"
	OpWrite         Op = "write"
	OpBury          Op = "bury"
	OpPing          Op = "ping"
	OpClaim         Op = "claim"
	OpRelease       Op = "release"
	OpSetAside      Op = "set_aside"
	OpQueues        Op = "queues"
	OpDue           Op = "due"
	OpPublishEvents Op = "publish_events"
	OpObserve       Op = "observe"
	OpMaintain      Op = "maintain"
	OpPublish       Op = "publish"
	OpBacklog       Op = "backlog"
	OpStream        Op = "stream"
)

// Fault is what goes wrong with an operation. The zero value is nothing.
type Fault struct {
	Wait  time.Duration // the operation takes so long
	Err   error         // it ends with this error,
	After bool          // but was done all the same: the answer was lost
}

// ErrAway is the usual error of a record or a broker that is away.
var ErrAway = errors.New("connection refused")

// States of a job.
const (
	Scheduled = "scheduled"
	InFlight  = "in_flight"
	Held      = "held"
	Deferred  = "deferred"
	Dead      = "dead"
)

// Job is the poll job of a pending payment.
type Job struct {
	State       string
	NextPollAt  time.Time
	LockedUntil time.Time
	Token       string
	Revision    int64
	Counters    redelivery.Counters
	LastDelay   time.Duration
	WindowBegan time.Time
}

// Payment is a payment as the record has it.
type Payment struct {
	payment.Payment
	Detail    string
	ExpiresAt time.Time // zero: none
	Turns     int       // how often its status changed
	Job       *Job      // nil when it is final
	Letters   []Letter  // each time that it died
	Attempts  []consumer.Result
}

// Letter is a dead letter.
type Letter struct {
	Reason  redelivery.Reason
	Message string
	Body    []byte
}

type event struct {
	outbox.Event
	published bool
	retryAt   time.Time
	aside     string
	stream    string
	sequence  uint64
	bornAt    time.Time
}

// Record is the record of consumers and relays. It is safe for concurrent use. Its hooks must be set before it is used, are called
// without a lock, and may be nil.
type Record struct {
	Fault  func(Op) Fault                 // what goes wrong with the next operation
	Refuse func(r consumer.Result) string // why the database refuses a result; empty when it does not

	mu       sync.Mutex
	payments map[payment.ID]*Payment
	events   []*event
	buried   []consumer.Poison
	streams  map[string]outbox.StreamState
	ops      map[Op]int
	sizes    map[Op][]int

	observing chan struct{} // the lock on the rows of the streams, which is held while a stream is looked at
}

var (
	_ consumer.Record = (*Record)(nil)
	_ outbox.Record   = (*Record)(nil)
)

// NewRecord returns an empty record.
func NewRecord() *Record {
	return &Record{payments: map[payment.ID]*Payment{}, streams: map[string]outbox.StreamState{}, ops: map[Op]int{}, sizes: map[Op][]int{},
		observing: make(chan struct{}, 1)}
}

// Track inserts a pending payment whose first poll is due after a delay. Its id is the next one.
func (r *Record) Track(p payment.Payment, after time.Duration) payment.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	p.ID, p.Status, p.CreatedAt = payment.ID(len(r.payments)+1), payment.Pending, now
	r.payments[p.ID] = &Payment{Payment: p, Job: &Job{State: Scheduled, NextPollAt: now.Add(after), WindowBegan: now}}
	return p.ID
}

// Payment returns a copy of a payment.
func (r *Record) Payment(id payment.ID) Payment {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := *r.payments[id]
	if p.Job != nil {
		job := *p.Job
		p.Job = &job
	}
	return p
}

// Payments returns copies of all payments, by id.
func (r *Record) Payments() []Payment {
	r.mu.Lock()
	ids := slices.Sorted(maps.Keys(r.payments))
	r.mu.Unlock()
	all := make([]Payment, len(ids))
	for i, id := range ids {
		all[i] = r.Payment(id)
	}
	return all
}

// Change changes a payment under the record's lock.
func (r *Record) Change(id payment.ID, change func(*Payment)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.payments[id])
}

// Lease leases a job as a relay's claim does and returns the poll to publish.
func (r *Record) Lease(id payment.ID, lease time.Duration) message.Poll {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lease(r.payments[id], lease)
}

func (r *Record) lease(p *Payment, lease time.Duration) message.Poll {
	j := p.Job
	j.State, j.Token, j.LockedUntil = InFlight, uuid.NewString(), time.Now().Add(lease)
	return message.Poll{Payment: p.ID, Token: j.Token, Revision: j.Revision}
}

// Resolve gives a pending payment a final status, as a webhook does. It reports whether it was pending.
func (r *Record) Resolve(id payment.ID, s payment.Status) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resolve(r.payments[id], s)
}

func (r *Record) resolve(p *Payment, s payment.Status) bool {
	if p.Status != payment.Pending {
		return false
	}
	p.Status, p.Job = s, nil
	p.Turns++
	r.announce(fmt.Sprintf("%d-%d-%s", p.ID, p.Turns, s), "payments.resolved."+p.Gateway+"."+string(s))
	return true
}

func (r *Record) announce(id, subject string) {
	r.events = append(r.events, &event{Event: outbox.Event{Seq: int64(len(r.events) + 1), ID: id, Subject: subject, Body: []byte(`{}`)}, bornAt: time.Now()})
}

// Buried returns the messages that belong to no payment.
func (r *Record) Buried() []consumer.Poison {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.buried)
}

// Ops returns how often an operation was asked for.
func (r *Record) Ops(op Op) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ops[op]
}

// Sizes returns how many rows each successful operation was about.
func (r *Record) Sizes(op Op) []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sizes[op])
}

// Unpublished returns how many events wait.
func (r *Record) Unpublished() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.events {
		if !e.published && e.aside == "" {
			n++
		}
	}
	return n
}

// do runs an operation with its fault. The operation runs under the lock.
func (r *Record) do(ctx context.Context, op Op, rows int, run func()) error {
	var f Fault
	if r.Fault != nil {
		f = r.Fault(op)
	}
	r.mu.Lock()
	r.ops[op]++
	r.mu.Unlock()
	if err := pass(ctx, f.Wait); err != nil {
		return err
	}
	if f.Err != nil && !f.After {
		return f.Err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	run()
	if f.Err == nil {
		r.sizes[op] = append(r.sizes[op], rows)
	}
	return f.Err
}

// pass lets d pass, or less when ctx ends.
func pass(ctx context.Context, d time.Duration) error {
	if d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// Read implements consumer.Record.
func (r *Record) Read(ctx context.Context, polls []message.Poll) (jobs []consumer.Job, err error) {
	err = r.do(ctx, OpRead, len(polls), func() {
		now := time.Now()
		for _, poll := range polls {
			jobs = append(jobs, r.read(poll, now))
		}
	})
	if err != nil {
		return nil, err
	}
	return jobs, nil
}

func (r *Record) read(poll message.Poll, now time.Time) consumer.Job {
	p, ok := r.payments[poll.Payment]
	if !ok {
		return consumer.Job{ReadAt: now}
	}
	j := consumer.Job{Tracked: true, Payment: p.Payment, Detail: p.Detail, ReadAt: now}
	if !p.ExpiresAt.IsZero() {
		j.HasDeadline, j.UntilEnd = true, p.ExpiresAt.Sub(now)
	}
	if job := p.Job; job != nil {
		j.TokenCurrent, j.Dead, j.Revision, j.Counters = job.Token == poll.Token, job.State == Dead, job.Revision, job.Counters
		j.UntilDue, j.DueAt, j.Age, j.Previous = job.NextPollAt.Sub(now), job.NextPollAt, now.Sub(job.WindowBegan), job.LastDelay
		j.LeaseLeft = job.LockedUntil.Sub(now)
	}
	return j
}

// Extend implements consumer.Record.
func (r *Record) Extend(ctx context.Context, polls []message.Poll, d time.Duration) (ours []bool, err error) {
	err = r.do(ctx, OpExtend, len(polls), func() {
		until := time.Now().Add(d)
		for _, poll := range polls {
			job := r.payments[poll.Payment].Job
			ok := job != nil && job.Token == poll.Token
			if ok && until.After(job.LockedUntil) {
				job.LockedUntil = until
			}
			ours = append(ours, ok)
		}
	})
	if err != nil {
		return nil, err
	}
	return ours, nil
}

// Write implements consumer.Record.
func (r *Record) Write(ctx context.Context, results []consumer.Result, worker string, lease time.Duration) (verdicts []consumer.Verdict, err error) {
	refused := make([]string, len(results))
	if r.Refuse != nil {
		for i, result := range results {
			refused[i] = r.Refuse(result)
		}
	}
	err = r.do(ctx, OpWrite, len(results), func() {
		for i, result := range results {
			verdicts = append(verdicts, consumer.Verdict{Refused: refused[i]})
			if refused[i] == "" {
				verdicts[i].Applied = r.write(result, lease)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return verdicts, nil
}

func (r *Record) write(result consumer.Result, lease time.Duration) bool {
	p := r.payments[result.Payment]
	if result.Polled {
		p.Attempts = append(p.Attempts, result)
	}
	j, d := p.Job, result.Disposition
	if j == nil || j.Token != result.Token || j.Revision != result.Revision {
		return false
	}
	if result.DetailNew {
		p.Detail = d.Detail
	}
	if d.Verb == redelivery.Resolve {
		p.Detail = d.Detail
		return r.resolve(p, d.Status)
	}
	now := time.Now()
	j.Revision++
	j.Counters = d.Counters
	switch d.Verb {
	case redelivery.DeadLetter:
		r.bury(p, Letter{Reason: d.Reason, Message: result.Answer.Message, Body: result.Body})
		return true
	case redelivery.Defer: // it stays due when it was: only its lease keeps it from being claimed
		j.State, j.LockedUntil = Deferred, now.Add(d.Delay+lease)
		return true
	case redelivery.Hold:
		j.State, j.LockedUntil = Held, now.Add(d.Delay+lease)
	case redelivery.Park:
		j.State, j.LockedUntil, j.Token = Scheduled, time.Time{}, ""
	}
	j.NextPollAt, j.LastDelay = now.Add(d.Delay), d.Delay
	return true
}

func (r *Record) bury(p *Payment, l Letter) {
	p.Job.State, p.Job.LockedUntil, p.Job.Token = Dead, time.Time{}, ""
	p.Letters = append(p.Letters, l)
	r.announce(fmt.Sprintf("%d-dead-%d-%s", p.ID, p.Job.Counters.Replays, l.Reason), message.DeadSubject(p.Gateway, string(l.Reason)))
}

// Bury implements consumer.Record.
func (r *Record) Bury(ctx context.Context, p consumer.Poison) error {
	return r.do(ctx, OpBury, 1, func() { r.buried = append(r.buried, p) })
}

// Ping implements consumer.Record.
func (r *Record) Ping(ctx context.Context) error { return r.do(ctx, OpPing, 0, func() {}) }

// Claim implements outbox.Record.
func (r *Record) Claim(ctx context.Context, rooms []outbox.Room, n int, _ string, lease time.Duration) (jobs []outbox.Job, err error) {
	err = r.do(ctx, OpClaim, n, func() {
		due := r.due()
		for _, room := range rooms {
			of := due[room.Queue]
			for _, p := range of[:min(len(of), room.N, n-len(jobs))] {
				poll := r.lease(p, lease)
				jobs = append(jobs, outbox.Job{Queue: room.Queue, Payment: p.ID, Token: poll.Token, Revision: poll.Revision, DueAt: p.Job.NextPollAt,
					TraceParent: p.TraceParent, Lag: time.Since(p.Job.NextPollAt)})
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return jobs, nil
}

// due returns the payments of each queue that may be claimed, the oldest first.
func (r *Record) due() map[outbox.Queue][]*Payment {
	now := time.Now()
	due := map[outbox.Queue][]*Payment{}
	for _, p := range r.payments {
		if j := p.Job; j != nil && j.State != Dead && !j.NextPollAt.After(now) && !j.LockedUntil.After(now) {
			q := outbox.Queue{Gateway: p.Gateway, Lane: p.Lane}
			due[q] = append(due[q], p)
		}
	}
	for _, of := range due {
		slices.SortFunc(of, func(a, b *Payment) int {
			return cmp.Or(a.Job.NextPollAt.Compare(b.Job.NextPollAt), cmp.Compare(a.ID, b.ID))
		})
	}
	return due
}

// Release implements outbox.Record.
func (r *Record) Release(ctx context.Context, jobs []outbox.Job) error {
	return r.do(ctx, OpRelease, len(jobs), func() {
		for _, job := range jobs {
			if j := r.payments[job.Payment].Job; j != nil && j.Token == job.Token && j.State == InFlight {
				j.State, j.Token, j.LockedUntil = Scheduled, "", time.Time{}
			}
		}
	})
}

// SetAside implements outbox.Record.
func (r *Record) SetAside(ctx context.Context, aside []outbox.SetAside) error {
	return r.do(ctx, OpSetAside, len(aside), func() {
		for _, s := range aside {
			if p := r.payments[s.Job.Payment]; p.Job != nil && p.Job.Token == s.Job.Token {
				r.bury(p, Letter{Reason: redelivery.ReasonUnpublishable, Message: s.Reason})
			}
		}
	})
}

// Queues implements outbox.Record.
func (r *Record) Queues(ctx context.Context) (queues []outbox.Queue, err error) {
	err = r.do(ctx, OpQueues, 0, func() {
		for _, p := range r.payments {
			q := outbox.Queue{Gateway: p.Gateway, Lane: p.Lane}
			if p.Job != nil && !slices.Contains(queues, q) {
				queues = append(queues, q)
			}
		}
	})
	return queues, err
}

// Due implements outbox.Record.
func (r *Record) Due(ctx context.Context, queues []outbox.Queue, most int) (counts []int, err error) {
	err = r.do(ctx, OpDue, 0, func() {
		due := r.due()
		for _, q := range queues {
			counts = append(counts, min(len(due[q]), most))
		}
	})
	return counts, err
}

// PublishEvents implements outbox.Record. An error after all is a commit whose answer was lost.
func (r *Record) PublishEvents(ctx context.Context, n int, retry time.Duration, publish func(context.Context, []outbox.Event) []outbox.Receipt) (int, error) {
	var taken []*event
	err := r.do(ctx, OpPublishEvents, n, func() {
		now := time.Now()
		for _, e := range r.events {
			if len(taken) < n && !e.published && e.aside == "" && !e.retryAt.After(now) {
				e.retryAt = now.Add(time.Hour) // locked, until it is marked
				e.Lag = now.Sub(e.bornAt)
				taken = append(taken, e)
			}
		}
	})
	if err != nil || len(taken) == 0 {
		r.unlock(taken)
		return 0, err
	}
	events := make([]outbox.Event, len(taken))
	for i, e := range taken {
		events[i] = e.Event
	}
	receipts := publish(ctx, events)
	if ctx.Err() != nil {
		r.unlock(taken)
		return len(taken), ctx.Err()
	}
	r.mark(taken, receipts, retry)
	return len(taken), nil
}

func (r *Record) unlock(taken []*event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range taken {
		e.retryAt = time.Time{}
	}
}

func (r *Record) mark(taken []*event, receipts []outbox.Receipt, retry time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, e := range taken {
		var refused *outbox.Refusal
		switch receipt := receipts[i]; {
		case receipt.Err == nil:
			e.published, e.stream, e.sequence = true, receipt.Stream, receipt.Sequence
		case errors.As(receipt.Err, &refused):
			e.aside = refused.Reason
		default:
			e.retryAt = time.Now().Add(retry)
		}
	}
}

// Observe implements outbox.Record.
func (r *Record) Observe(ctx context.Context, name string, look outbox.Look) (found outbox.Recovery, err error) {
	if err := r.do(ctx, OpObserve, 0, func() {}); err != nil {
		return found, err
	}
	select {
	case r.observing <- struct{}{}:
		defer func() { <-r.observing }()
	case <-ctx.Done():
		return found, ctx.Err()
	}
	r.mu.Lock()
	known, ok := r.streams[name]
	r.mu.Unlock()
	var mark outbox.Mark
	if known.LastID != "" {
		mark = outbox.Mark{Sequence: known.LastSequence, ID: known.LastID}
	}
	s, err := look(ctx, name, mark)
	if err != nil {
		return found, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	recreated := ok && !known.Created.Equal(s.Created)
	if found.Lost = recreated || ok && (s.LastSequence < known.LastSequence || s.Replaced); found.Lost {
		found.Jobs, found.Events = r.rearm(s, recreated)
	}
	r.streams[name] = s
	return found, nil
}

func (r *Record) rearm(s outbox.StreamState, recreated bool) (jobs, events int) {
	for _, p := range r.payments {
		if j := p.Job; s.Name == message.StreamPoll && j != nil && (j.State == InFlight || j.State == Held) {
			j.State, j.Token, j.LockedUntil = Scheduled, "", time.Time{}
			jobs++
		}
	}
	for _, e := range r.events {
		if e.stream == s.Name && (recreated || s.Replaced || e.sequence > s.LastSequence) {
			e.published, e.retryAt, e.stream, e.sequence = false, time.Time{}, "", 0
			events++
		}
	}
	return jobs, events
}

// Maintain implements outbox.Record.
func (r *Record) Maintain(ctx context.Context) error { return r.do(ctx, OpMaintain, 0, func() {}) }

// Line is one process's connection to a record. Once it is cut every operation fails, as those of a process that was killed would never have
// been asked for.
type Line struct {
	consumer.Record
	cut atomic.Bool
}

// Cut ends the connection for good.
func (l *Line) Cut() { l.cut.Store(true) }

func (l *Line) state() error {
	if l.cut.Load() {
		return ErrAway
	}
	return nil
}

// Read implements consumer.Record.
func (l *Line) Read(ctx context.Context, polls []message.Poll) ([]consumer.Job, error) {
	if err := l.state(); err != nil {
		return nil, err
	}
	return l.Record.Read(ctx, polls)
}

// Extend implements consumer.Record.
func (l *Line) Extend(ctx context.Context, polls []message.Poll, d time.Duration) ([]bool, error) {
	if err := l.state(); err != nil {
		return nil, err
	}
	return l.Record.Extend(ctx, polls, d)
}

// Write implements consumer.Record.
func (l *Line) Write(ctx context.Context, results []consumer.Result, worker string, lease time.Duration) ([]consumer.Verdict, error) {
	if err := l.state(); err != nil {
		return nil, err
	}
	return l.Record.Write(ctx, results, worker, lease)
}

// Bury implements consumer.Record.
func (l *Line) Bury(ctx context.Context, p consumer.Poison) error {
	if err := l.state(); err != nil {
		return err
	}
	return l.Record.Bury(ctx, p)
}

// Ping implements consumer.Record.
func (l *Line) Ping(ctx context.Context) error {
	if err := l.state(); err != nil {
		return err
	}
	return l.Record.Ping(ctx)
}
