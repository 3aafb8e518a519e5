package postgres

import (
	"sync"
	"time"
)

// The times of a horizon.
const (
	// slack is how long before now a walk begins. Payments are tracked by transactions that take less.
	slack = time.Second
	// sweepEvery is how often a walk begins at the very front, and how late what the horizon hides may be.
	sweepEvery = time.Second
	// sweepShare bounds the share of the time that sweeps take: one in so many.
	sweepShare = 20
)

// horizon remembers, for each queue, from where on there may be something to take.
//
// The entries of rows that were worked off stay at the front of an index for as long as any transaction anywhere in the
// server may still see those rows. While a dump runs, or a forgotten session is open, a walk from the very front steps
// over everything that was worked off since, and takes longer with every row. So a walk begins where the one before
// ended. What becomes visible behind that, because a transaction committed late, a lease was given back or a relay died
// over it, is found by a sweep: a walk from the very front, once a second, and more seldom while it takes long.
//
// The zero value begins with a sweep. It is safe for concurrent use.
type horizon[K comparable] struct {
	mu      sync.Mutex
	fronts  map[K]time.Time
	sweepAt time.Time
}

// begin returns from where on each queue is to be walked, by the database's clock; the zero time is the very front.
// After a sweep end must be called.
func (h *horizon[K]) begin(queues []K) (from []time.Time, sweep bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	from = make([]time.Time, len(queues))
	if sweep = !time.Now().Before(h.sweepAt); sweep {
		return from, true
	}
	for i, q := range queues {
		from[i] = h.fronts[q]
	}
	return from, false
}

// end notes that a sweep took so long.
func (h *horizon[K]) end(took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sweepAt = time.Now().Add(max(sweepEvery, sweepShare*took))
}

// reached notes that a queue was walked up to an instant.
func (h *horizon[K]) reached(q K, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fronts == nil {
		h.fronts = map[K]time.Time{}
	}
	h.fronts[q] = at
}

// forget makes the next walk a sweep.
func (h *horizon[K]) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sweepAt = time.Time{}
}
