package outbox

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// soon is how often a queue with little room is asked for its level: often enough that a bound of a few thousand messages does not
// bound the throughput, seldom enough that asking costs nothing.
const soon = 100 * time.Millisecond

// longestPenalty is the longest time that a queue is left alone whose messages are not stored.
const longestPenalty = 30 * time.Second

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

	mu     sync.Mutex
	order  []Queue // those that were served last come last
	queues map[Queue]*level
}

// level is what is known of a queue.
type level struct {
	room    int
	flying  int       // claimed and perhaps not at the broker yet
	spent   bool      // something was claimed or published since it was asked
	askAt   time.Time // when it is to be asked again
	missing bool      // it has no consumer
	penalty time.Duration
}

func newBacklog(cfg Config, broker Broker, metrics Metrics, log *slog.Logger) *backlog {
	b := &backlog{bound: cfg.Backlog, every: cfg.Watch, retry: min(cfg.Retry, cfg.Watch), timeout: cfg.PublishTimeout,
		broker: broker, metrics: metrics, log: log, queues: map[Queue]*level{}}
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

// rooms returns the queues that can take something, and how much. Those that were served last come last, so that a queue with a million
// due jobs does not keep another waiting. Queues whose level must be asked for and cannot be are left out; it is an error when there is no other.
func (b *backlog) rooms(ctx context.Context) ([]Room, error) {
	failure := b.refresh(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	var rooms []Room
	now := time.Now()
	for _, q := range b.order {
		if l := b.queues[q]; l.room > 0 && !b.stale(l, now) {
			rooms = append(rooms, Room{Queue: q, N: l.room})
		}
	}
	if rooms == nil {
		return nil, failure
	}
	return rooms, nil
}

// stale reports whether a queue's level must be asked for: from time to time, and when what was claimed since has eaten half of it.
func (b *backlog) stale(l *level, now time.Time) bool {
	return !now.Before(l.askAt) || l.spent && l.room < b.half()
}

// refresh asks for the levels that are stale. After an answer that does not come it asks no further: a broker that is away would be waited
// for once for each queue.
func (b *backlog) refresh(ctx context.Context) error {
	for _, q := range b.staleQueues() {
		if err := b.ask(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

func (b *backlog) staleQueues() (stale []Queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for _, q := range b.order {
		if b.stale(b.queues[q], now) {
			stale = append(stale, q)
		}
	}
	return stale
}

func (b *backlog) half() int { return max(b.bound/2, 1) }

func (b *backlog) ask(ctx context.Context, q Queue) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.timeout, errBroker)
	defer cancel()
	n, exists, err := b.broker.Backlog(ctx, q)
	b.mu.Lock()
	defer b.mu.Unlock()
	l, now := b.queues[q], time.Now()
	was := l.missing
	l.spent, l.room, l.missing = false, 0, err == nil && !exists
	switch {
	case err != nil:
		l.missing, l.askAt = was, now.Add(b.retry)
	case !exists:
		l.askAt = now.Add(b.every)
	default:
		l.room, l.askAt = max(b.bound-n-l.flying, 0), now.Add(b.every)
		if l.room < b.half() {
			l.askAt = now.Add(min(b.every, soon))
		}
		b.metrics.Backlog(q.Gateway, q.Lane, n)
	}
	if l.missing && !was {
		b.log.WarnContext(ctx, "a queue has no consumer; its due polls wait in the database until one runs", "gateway", q.Gateway, "lane", q.Lane)
	}
	return err
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
			l.penalty = 0
			continue
		}
		l.penalty = min(max(2*l.penalty, b.retry), longestPenalty)
		l.room, l.spent, l.askAt = 0, false, time.Now().Add(l.penalty)
	}
}
