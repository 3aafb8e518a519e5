package outbox

import (
	"context"
	"sync"
	"time"
)

// backlog knows how many polls each queue can take. What is beyond that waits in the database, where it costs nothing: consumers that
// are down for a day neither fill the broker nor are flooded with outdated copies afterwards.
type backlog struct {
	bound   int
	every   time.Duration
	broker  Broker
	metrics Metrics

	mu     sync.Mutex
	turn   int
	order  []Queue
	queues map[Queue]*level
}

// level is what is known of a queue.
type level struct {
	room    int
	fresh   bool // nothing was published since it was asked
	askedAt time.Time
}

func newBacklog(cfg Config, broker Broker, metrics Metrics) *backlog {
	b := &backlog{bound: cfg.Backlog, every: cfg.Watch, broker: broker, metrics: metrics, queues: map[Queue]*level{}}
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

// rooms returns the queues that can take something, and how much. Each time another one comes first, so that a queue with a
// million due jobs does not keep another waiting.
func (b *backlog) rooms(ctx context.Context) ([]Room, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var rooms []Room
	b.turn++
	for i := range b.order {
		q := b.order[(b.turn+i)%len(b.order)]
		l := b.queues[q]
		if b.stale(l) {
			if err := b.ask(ctx, q, l); err != nil {
				return nil, err
			}
		}
		if l.room > 0 {
			rooms = append(rooms, Room{Queue: q, N: l.room})
		}
	}
	return rooms, nil
}

// stale reports whether a queue's level must be asked for again: from time to time, and when what was published since has eaten half of it.
func (b *backlog) stale(l *level) bool {
	return time.Since(l.askedAt) > b.every || !l.fresh && l.room < max(b.bound/2, 1)
}

func (b *backlog) ask(ctx context.Context, q Queue, l *level) error {
	n, exists, err := b.broker.Backlog(ctx, q)
	if err != nil {
		return err
	}
	l.askedAt, l.fresh, l.room = time.Now(), true, 0
	if exists {
		l.room = max(b.bound-n, 0)
		b.metrics.Backlog(q.Gateway, q.Lane, n)
	}
	return nil
}

// took notes what was claimed.
func (b *backlog) took(jobs []Job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range jobs {
		l := b.queues[j.Queue]
		l.room, l.fresh = l.room-1, false
	}
}
