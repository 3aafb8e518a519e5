package consumertest

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/message"
	"pollux/internal/outbox"
)

// duplicateWindow is how long a stream remembers the ids of its messages.
const duplicateWindow = 2 * time.Minute

// Published is a message as a stream has it.
type Published struct {
	outbox.Message
	Sequence uint64
	At       time.Time
}

type stream struct {
	created time.Time
	last    uint64
	log     []Published
	ids     map[string]Published
}

// pending is a message that was delivered and not acknowledged.
type pending struct {
	Published
	count int
	again time.Time // when it is delivered again: after AckWait, or the delay of a NAK
}

// queue is the durable consumer of a queue.
type queue struct {
	ackWait time.Duration
	limit   int
	fresh   []Published
	pending map[uint64]*pending
	change  chan struct{} // closed when something may have become deliverable
	counts  int           // deliveries
}

// Broker is what relays publish to and consumers fetch from. It is safe for concurrent use. Its hooks must be set before it is used and
// may be nil.
type Broker struct {
	Fault    func(Op) Fault
	Message  func(outbox.Message) Fault           // what goes wrong with one message
	Delay    func(time.Duration) time.Duration    // what a broker with a bad clock makes of a NAK's delay
	Lose     func() bool                          // an acknowledgement or a NAK is lost on its way
	Disorder func(n int, swap func(i, j int))     // in what order messages are delivered
	Refuse   func(outbox.Message) (reason string) // messages that are never taken

	Session atomic.Uint64 // of the receipts: another one after a crash

	mu      sync.Mutex
	streams map[string]*stream
	queues  map[outbox.Queue]*queue
	ops     map[Op]int
}

var (
	_ outbox.Broker    = (*Broker)(nil)
	_ consumer.Sleeper = (*Broker)(nil)
)

// NewBroker returns a broker with the streams of Pollux and no consumer.
func NewBroker() *Broker {
	b := &Broker{streams: map[string]*stream{}, queues: map[outbox.Queue]*queue{}, ops: map[Op]int{}}
	for _, name := range []string{message.StreamPoll, message.StreamDeferred, message.StreamEvents, message.StreamDead} {
		b.streams[name] = &stream{created: time.Now(), ids: map[string]Published{}}
	}
	return b
}

// Wipe makes all streams anew, as a broker that comes back with an empty disk. Consumers that were bound are bound again.
func (b *Broker) Wipe() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, s := range b.streams {
		b.streams[name] = &stream{created: s.created.Add(time.Second), ids: map[string]Published{}}
	}
	for _, q := range b.queues {
		q.fresh, q.pending = nil, map[uint64]*pending{}
	}
}

// LoseTail takes the last n messages out of a stream and from its consumers, as a crash before they were synced.
func (b *Broker) LoseTail(name string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[name]
	for _, p := range s.log[len(s.log)-n:] {
		delete(s.ids, p.ID)
		for _, q := range b.queues {
			q.fresh = slices.DeleteFunc(q.fresh, func(f Published) bool { return f.ID == p.ID })
		}
	}
	s.log, s.last = s.log[:len(s.log)-n], s.last-uint64(n)
}

// Messages returns what a stream has stored.
func (b *Broker) Messages(name string) []Published {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.streams[name].log)
}

// Left returns how many messages of a queue are undelivered, and how many delivered and not acknowledged.
func (b *Broker) Left(gateway, lane string) (fresh, unacknowledged int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[outbox.Queue{Gateway: gateway, Lane: lane}]
	return len(q.fresh), len(q.pending)
}

// Deliveries returns how many deliveries of a queue there were.
func (b *Broker) Deliveries(gateway, lane string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queues[outbox.Queue{Gateway: gateway, Lane: lane}].counts
}

// Ops returns how often an operation was asked for.
func (b *Broker) Ops(op Op) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ops[op]
}

func (b *Broker) begin(ctx context.Context, op Op) (Fault, error) {
	var f Fault
	if b.Fault != nil {
		f = b.Fault(op)
	}
	b.mu.Lock()
	b.ops[op]++
	b.mu.Unlock()
	return f, pass(ctx, f.Wait)
}

// Publish implements outbox.Broker.
func (b *Broker) Publish(ctx context.Context, messages []outbox.Message) []outbox.Receipt {
	receipts := make([]outbox.Receipt, len(messages))
	f, err := b.begin(ctx, OpPublish)
	for i, m := range messages {
		switch {
		case err != nil:
			receipts[i].Err = err
		case f.Err != nil && !f.After:
			receipts[i].Err = f.Err
		default:
			receipts[i] = b.publish(m)
			receipts[i].Err = cmp.Or(receipts[i].Err, f.Err)
		}
	}
	return receipts
}

func (b *Broker) publish(m outbox.Message) outbox.Receipt {
	if b.Refuse != nil {
		if reason := b.Refuse(m); reason != "" {
			return outbox.Receipt{Err: &outbox.Refusal{Reason: reason}}
		}
	}
	var f Fault
	if b.Message != nil {
		f = b.Message(m)
	}
	if f.Err != nil && !f.After {
		return outbox.Receipt{Err: f.Err}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	name := streamOf(m.Subject)
	s, now := b.streams[name], time.Now()
	if old, known := s.ids[m.ID]; known && now.Sub(old.At) < duplicateWindow {
		return outbox.Receipt{Stream: name, Sequence: old.Sequence, Duplicate: true, Err: f.Err}
	}
	s.last++
	p := Published{Message: m, Sequence: s.last, At: now}
	s.ids[m.ID], s.log = p, append(s.log, p)
	b.route(p)
	return outbox.Receipt{Stream: name, Sequence: p.Sequence, Session: b.Session.Load(), Err: f.Err}
}

// Put stores a message whatever its id, as a broker that doubles.
func (b *Broker) Put(m outbox.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[streamOf(m.Subject)]
	s.last++
	p := Published{Message: m, Sequence: s.last, At: time.Now()}
	s.log = append(s.log, p)
	b.route(p)
}

// PutPoll stores a poll.
func (b *Broker) PutPoll(gateway, lane string, p message.Poll) {
	b.Put(outbox.Message{Subject: message.PollSubject(gateway, lane), ID: p.Token, Body: message.EncodePoll(p)})
}

// route hands a message to the consumer of its queue. Caller holds the lock.
func (b *Broker) route(p Published) {
	parts := strings.Split(p.Subject, ".")
	var at outbox.Queue
	switch {
	case len(parts) == 4 && parts[1] == "poll":
		at = outbox.Queue{Gateway: parts[2], Lane: parts[3]}
	case len(parts) == 3 && parts[1] == "deferred":
		at = outbox.Queue{Gateway: parts[2], Lane: message.LaneDeferred}
	}
	if q := b.queues[at]; q != nil {
		q.fresh = append(q.fresh, p)
		q.wake()
	}
}

func streamOf(subject string) string {
	switch strings.Split(subject, ".")[1] {
	case "poll":
		return message.StreamPoll
	case "deferred":
		return message.StreamDeferred
	case "dead":
		return message.StreamDead
	}
	return message.StreamEvents
}

// Backlog implements outbox.Broker.
func (b *Broker) Backlog(ctx context.Context, at outbox.Queue) (int, bool, error) {
	f, err := b.begin(ctx, OpBacklog)
	if err = cmp.Or(err, f.Err); err != nil {
		return 0, false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q, ok := b.queues[at]
	if !ok {
		return 0, false, nil
	}
	return len(q.fresh), true, nil
}

// Stream implements outbox.Broker.
func (b *Broker) Stream(ctx context.Context, name string, marks ...outbox.Mark) (outbox.StreamState, error) {
	f, err := b.begin(ctx, OpStream)
	if err = cmp.Or(err, f.Err); err != nil {
		return outbox.StreamState{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[name]
	at := func(sequence uint64) string {
		for _, p := range s.log {
			if p.Sequence == sequence {
				return p.ID
			}
		}
		return ""
	}
	state := outbox.StreamState{Name: name, Created: s.created, LastSequence: s.last, LastID: at(s.last)}
	for _, m := range marks {
		id := at(m.Sequence)
		state.Replaced = state.Replaced || m.Sequence > s.last || id != "" && m.ID != "" && id != m.ID
	}
	return state, nil
}

func (q *queue) wake() {
	close(q.change)
	q.change = make(chan struct{})
}

// Bind creates the consumer of a queue.
func (b *Broker) Bind(gateway, lane string, ackWait time.Duration, maxAckPending int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queues[outbox.Queue{Gateway: gateway, Lane: lane}] = &queue{ackWait: ackWait, limit: maxAckPending,
		pending: map[uint64]*pending{}, change: make(chan struct{})}
}

// Source returns a source of a bound queue's deliveries.
func (b *Broker) Source(gateway, lane string) *Source {
	return &Source{broker: b, at: outbox.Queue{Gateway: gateway, Lane: lane}, closed: make(chan struct{})}
}

// Source is where one consumer fetches. Kill makes it behave as that of a process that was killed.
type Source struct {
	Fault func() error // what goes wrong with the next Fetch; may be nil

	broker *Broker
	at     outbox.Queue
	closed chan struct{}
	dead   sync.Once
	killed bool
	ended  bool
}

var _ consumer.Source = (*Source)(nil)

// Kill cuts the source off: nothing comes from it any more, and nothing that is told to its deliveries reaches the broker.
func (s *Source) Kill() {
	s.dead.Do(func() {
		s.broker.mu.Lock()
		defer s.broker.mu.Unlock()
		s.killed = true
		s.broker.queues[s.at].wake()
	})
}

// Closed reports whether Close was called.
func (s *Source) Closed() bool {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	return s.ended
}

// Fetch implements consumer.Source.
func (s *Source) Fetch(ctx context.Context, n int) ([]consumer.Delivery, error) {
	for {
		if s.Fault != nil {
			if err := s.Fault(); err != nil {
				return nil, err
			}
		}
		deliveries, wait, change := s.deliverable(n)
		if len(deliveries) > 0 {
			return deliveries, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-change:
		case <-time.After(wait):
		}
	}
}

// deliverable takes what can be delivered now, or says how long there is nothing.
func (s *Source) deliverable(n int) (deliveries []consumer.Delivery, wait time.Duration, change chan struct{}) {
	b := s.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	q, now := b.queues[s.at], time.Now()
	wait = time.Hour
	if s.killed {
		return nil, wait, q.change
	}
	var due []*pending
	for _, p := range q.pending {
		if p.again.After(now) {
			wait = min(wait, p.again.Sub(now))
			continue
		}
		due = append(due, p)
	}
	slices.SortFunc(due, func(a, b *pending) int { return cmp.Or(a.again.Compare(b.again), cmp.Compare(a.Sequence, b.Sequence)) })
	if b.Disorder != nil {
		b.Disorder(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
		b.Disorder(len(q.fresh), func(i, j int) { q.fresh[i], q.fresh[j] = q.fresh[j], q.fresh[i] })
	}
	for len(due) < n && len(q.fresh) > 0 && len(q.pending) < q.limit {
		p := &pending{Published: q.fresh[0]}
		q.fresh, q.pending[p.Sequence], due = q.fresh[1:], p, append(due, p)
	}
	for _, p := range due[:min(n, len(due))] {
		p.count++
		q.counts++
		p.again = now.Add(q.ackWait)
		deliveries = append(deliveries, &delivery{source: s, sequence: p.Sequence, body: p.Body, traceParent: p.TraceParent, count: p.count})
	}
	return deliveries, wait, q.change
}

// Held implements consumer.Source.
func (s *Source) Held() int {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	return len(s.broker.queues[s.at].pending)
}

// Close implements consumer.Source.
func (s *Source) Close() error {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	s.ended = true
	return nil
}

type delivery struct {
	source   *Source
	sequence uint64
	body     []byte
	count    int

	traceParent string
}

func (d *delivery) Body() []byte { return d.body }
func (d *delivery) Count() int   { return d.count }

// Waited says that it came at once.
func (d *delivery) Waited() time.Duration { return 0 }

// TraceParent is what the message was sent with.
func (d *delivery) TraceParent() string { return d.traceParent }

// Ack ends the message, whichever delivery of it says so.
func (d *delivery) Ack() error {
	return d.tell(func(q *queue, p *pending) { delete(q.pending, d.sequence) })
}

// Return counts only from the newest delivery.
func (d *delivery) Return(delay time.Duration) error {
	if b := d.source.broker; b.Delay != nil {
		delay = b.Delay(delay)
	}
	return d.tell(func(q *queue, p *pending) {
		if p.count == d.count {
			p.again = time.Now().Add(max(delay, 0))
		}
	})
}

func (d *delivery) tell(what func(*queue, *pending)) error {
	b := d.source.broker
	if b.Lose != nil && b.Lose() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[d.source.at]
	if p := q.pending[d.sequence]; p != nil && !d.source.killed {
		what(q, p)
		q.wake()
	}
	return nil
}

// Shuffle is a Disorder by chance.
func Shuffle(r *rand.Rand) func(int, func(i, j int)) {
	var mu sync.Mutex
	return func(n int, swap func(i, j int)) {
		mu.Lock()
		defer mu.Unlock()
		r.Shuffle(n, swap)
	}
}

// String describes a message for a test's failure.
func (p Published) String() string { return fmt.Sprintf("%d %s %s", p.Sequence, p.Subject, p.ID) }

// Sleep implements consumer.Sleeper: the polls are stored in the deferred stream.
func (b *Broker) Sleep(ctx context.Context, polls []consumer.Sleep) []error {
	messages := make([]outbox.Message, len(polls))
	for i, p := range polls {
		messages[i] = outbox.Message{Subject: message.DeferredSubject(p.Gateway), ID: p.ID, Body: message.EncodePoll(p.Poll), TraceParent: p.TraceParent}
	}
	errs := make([]error, len(polls))
	for i, receipt := range b.Publish(ctx, messages) {
		errs[i] = receipt.Err
	}
	return errs
}
