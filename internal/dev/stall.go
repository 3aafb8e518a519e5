package dev

import (
	"context"
	"sync/atomic"
	"time"
)

// stalls measures how long the machine has kept this process from running: calls that were let out before a stall reach the gateway after it, together
// with those of that time. The zero value is ready. It is safe for concurrent use.
type stalls struct{ longest atomic.Int64 }

// pulse is how often it is looked.
const pulse = 2 * time.Millisecond

// run measures until ctx ends.
func (s *stalls) run(ctx context.Context) error {
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		s.longest.Store(max(s.longest.Load(), int64(now.Sub(last)-pulse)))
		last = now
	}
}
