package outbox

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"pollux/internal/outage"
)

const (
	// soon is how often a queue with little room is asked for its level: often enough that a bound of a few thousand messages does not
	// bound the throughput, seldom enough that asking costs nothing.
	soon = 100 * time.Millisecond
	// promptly is how long a claim waits for levels that were asked for. A broker answers within a few milliseconds; the consumer of one
	// queue may be without a leader for seconds, and no other queue is to wait for that.
	promptly = 20 * time.Millisecond
	// longestPenalty is the longest time that a queue is left alone whose messages are not stored.
	longestPenalty = 30 * time.Second
)

// backlog knows how many polls each queue can take. What is beyond that waits in the database, where it costs nothing: consumers that
// are down for a day neither fill the broker nor are flooded with outdated copies afterwards.
type backlog struct {
	bound   int
	every   time.Duration
	retry   time.Duration
	timeout time.Duration
	broker  Broker
	metrics Metrics
	log     *slog.Logger
	unknown *outage.Log // by queue
	asking  sync.WaitGroup

	mu     sync.Mutex
	order  []Queue // those that were served last come last
	queues map[Queue]*level
}

// level is what is known of a queue.
type level struct {
	room    int
	flying  int           // claimed and perhaps not at the broker yet
	spent   bool          // something was claimed or published since it was asked
	askAt   time.Time     // when it is to be asked again
	asked   bool          // an answer is awaited; until it comes or cannot come the last one holds
	absent  time.Duration // it has no consumer, and is asked again after so long; 0 when it has one
	err     error         // why it is not known
	penalty time.Duration // how long it was left alone when its messages were not stored last
	until   time.Time     // it is left alone, whatever an answer says that was on its way
}

func newBacklog(cfg Config, broker Broker, metrics Metrics, log *slog.Logger) *backlog {
	b := &backlog{bound: cfg.Backlog, every: cfg.Watch, retry: min(cfg.Retry, cfg.Watch), timeout: cfg.PublishTimeout,
		broker: broker, metrics: metrics, log: log,
		unknown: outage.New(log, outage.Words{Begins: "the backlog of queues is not known; their due polls wait in the database", Over: "the backlog of all queues is known again",
			Hint: "can NATS be reached where nats.urls says, with JetStream and the streams? pollux streams diff"}),
		queues: map[Queue]*level{}}
	b.learn(cfg.Queues)
	return b
}

// learn adds queues and returns those that are new.
func (b *backlog) learn(queues []Queue) (added []Queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range queues {
		if _, known := b.queues[q]; !known {
			b.queues[q] = &level{}
			b.order, added = append(b.order, q), append(added, q)
		}
	}
	return added
}

// known are all queues.
func (b *backlog) known() []Queue {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.order)
}

// rooms returns the queues that can take something, and how much. Those that were served last come last, so that a queue with a million
// due jobs does not keep another waiting. Queues whose level is not known are left out; it is an error when it is known of none.
func (b *backlog) rooms(ctx context.Context) ([]Room, error) {
	b.refresh(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	var rooms []Room
	var failure error
	failed := 0
	for _, q := range b.order {
		l := b.queues[q]
		if l.err != nil {
			failed, failure = failed+1, l.err
		}
		if l.room > 0 {
			rooms = append(rooms, Room{Queue: q, N: l.room})
		}
	}
	if failed < len(b.order) {
		failure = nil
	}
	return rooms, failure
}

// refresh asks for the levels that are stale, all at once, and waits a little for the answers.
func (b *backlog) refresh(ctx context.Context) {
	stale := b.staleQueues()
	if len(stale) == 0 {
		return
	}
	answers := make(chan struct{}, len(stale))
	for _, q := range stale {
		b.asking.Go(func() {
			b.ask(ctx, q)
			answers <- struct{}{}
		})
	}
	enough := time.After(promptly)
	for range stale {
		select {
		case <-answers:
		case <-enough:
			return
		}
	}
}

// staleQueues returns the queues whose level must be asked for, from time to time, and when what was claimed since has eaten half of it. Their
// answers are awaited from now on.
func (b *backlog) staleQueues() (stale []Queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for _, q := range b.order {
		l := b.queues[q]
		if !l.asked && (!now.Before(l.askAt) || l.spent && l.room < b.half()) {
			l.asked, l.spent = true, false
			stale = append(stale, q)
		}
	}
	return stale
}

func (b *backlog) half() int { return max(b.bound/2, 1) }

func (b *backlog) ask(ctx context.Context, q Queue) {
	asking, cancel := context.WithTimeoutCause(ctx, b.timeout, errBroker)
	defer cancel()
	n, exists, err := b.broker.Backlog(asking, q)
	was, is := b.learned(q, n, exists, err)
	part := q.Gateway + "/" + q.Lane
	switch {
	case err != nil && ctx.Err() == nil:
		b.unknown.Failed(ctx, part, err)
	case err == nil:
		b.unknown.Well(ctx, part)
	}
	switch {
	case is.absent > 0 && was.absent == 0:
		b.log.WarnContext(ctx, "a queue has no consumer; its due polls wait in the database until one runs", "gateway", q.Gateway, "lane", q.Lane)
	case exists && err == nil:
		b.metrics.Backlog(q.Gateway, q.Lane, n)
	}
}

// learned notes an answer and returns what was known before and what is known now.
func (b *backlog) learned(q Queue, n int, exists bool, err error) (was, is level) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, now := b.queues[q], time.Now()
	was = *l
	l.room, l.err, l.asked = 0, err, false
	switch {
	case err != nil:
		l.askAt = now.Add(b.retry)
	case !exists: // services start together: it may be there in a moment, or for days not
		l.absent = min(max(2*l.absent, soon), b.every)
		l.askAt = now.Add(l.absent)
	default:
		// what was claimed since the question may not be in the answer: it is all in flying
		l.absent, l.room, l.askAt = 0, max(b.bound-n-l.flying, 0), now.Add(b.every)
		if l.room < b.half() {
			l.askAt = now.Add(min(b.every, soon))
		}
	}
	if now.Before(l.until) {
		l.room, l.askAt = 0, l.until
	}
	return was, *l
}

// took notes what was claimed, and lets the queues that had nothing go first next time.
func (b *backlog) took(jobs []Job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	served := make(map[Queue]bool, 1)
	for _, j := range jobs {
		l := b.queues[j.Queue]
		l.room, l.flying, l.spent = l.room-1, l.flying+1, true
		served[j.Queue] = true
	}
	order := make([]Queue, 0, len(b.order))
	for _, last := range []bool{false, true} {
		for _, q := range b.order {
			if served[q] == last {
				order = append(order, q)
			}
		}
	}
	b.order = order
}

// landed notes what became of jobs that were claimed, and whether messages of their queues were stored. Those of a queue of which none was are
// left in the database for a while, longer each time: its subject may be forbidden, and it must not hold up the others by its timeouts. Then the
// broker is asked before anything is claimed.
func (b *backlog) landed(jobs []Job, stored map[Queue]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range jobs {
		l := b.queues[j.Queue]
		l.flying, l.spent = l.flying-1, true
	}
	for q, ok := range stored {
		l := b.queues[q]
		if ok {
			l.penalty, l.until = 0, time.Time{}
			continue
		}
		l.penalty = min(max(2*l.penalty, b.retry), longestPenalty)
		l.until = time.Now().Add(l.penalty)
		l.room, l.spent, l.askAt = 0, false, l.until
	}
}
