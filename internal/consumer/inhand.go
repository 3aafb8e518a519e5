package consumer

import (
	"sync"
	"time"

	"pollux/internal/payment"
)

// inHand are the payments that this consumer works on. A second delivery of one of them waits until the first has ended, so that one
// process never asks about a payment twice at once.
type inHand struct {
	mu  sync.Mutex
	ids map[payment.ID]struct{}
}

// take reports whether the payment was free.
func (h *inHand) take(id payment.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, taken := h.ids[id]; taken {
		return false
	}
	if h.ids == nil {
		h.ids = make(map[payment.ID]struct{})
	}
	h.ids[id] = struct{}{}
	return true
}

func (h *inHand) drop(id payment.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ids, id)
}

// pauses are the accounts of the gateway that asked not to be called for a while.
type pauses struct {
	mu  sync.Mutex
	end map[string]time.Time
}

// until pauses an account; a pause is never shortened.
func (p *pauses) until(account string, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		p.end = make(map[string]time.Time)
	}
	if t.After(p.end[account]) {
		p.end[account] = t
	}
}

// left is how long an account is still paused.
func (p *pauses) left(account string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.end[account].Sub(now), 0)
}

// once remembers what was said already, so that a person is called once and not for every payment. It remembers a hundred things, which is more
// than any gateway has statuses; beyond that it repeats itself.
type once struct {
	mu   sync.Mutex
	said map[string]bool
}

// first reports whether s was not said yet.
func (o *once) first(s string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.said[s] {
		return false
	}
	if o.said == nil || len(o.said) >= 100 {
		o.said = make(map[string]bool)
	}
	o.said[s] = true
	return true
}
