package consumer

import (
	"sync"
	"time"

	"pollux/internal/payment"
)

// inHand are the payments that this consumer works on, each with the further deliveries of it that wait until the first has ended, so that
// one process never asks about a payment twice at once. They wait here and not at the broker: going back and forth would count as
// deliveries without a record and make a healthy message look like poison.
type inHand struct {
	mu      sync.Mutex
	waiting map[payment.ID][]Delivery
}

// take reports whether the payment was free. If not, d waits.
func (h *inHand) take(id payment.ID, d Delivery) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting == nil {
		h.waiting = make(map[payment.ID][]Delivery)
	}
	others, taken := h.waiting[id]
	if taken {
		others = append(others, d)
	}
	h.waiting[id] = others
	return !taken
}

// drop makes the payment free and returns the deliveries that waited for it.
func (h *inHand) drop(id payment.ID) []Delivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	waited := h.waiting[id]
	delete(h.waiting, id)
	return waited
}

// idle takes out all that wait.
func (h *inHand) idle() (all []Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, ds := range h.waiting {
		all = append(all, ds...)
		h.waiting[id] = nil
	}
	return all
}

// pauses are the accounts of the gateway that are not to be called for a while. A pause is the account's and not its payments': how long each of
// those waits for itself must not add up to how long all do.
type pauses struct {
	mu sync.Mutex
	of map[string]pause
}

type pause struct {
	end    time.Time
	length time.Duration // of one that we chose ourselves; 0 when the gateway said how long
}

// Pauses of our own choice, for gateways that do not say how long: from a second, doubled each time that the first call afterwards is refused
// too, to a minute.
const (
	shortestPause = time.Second
	longestPause  = time.Minute
)

// refused pauses an account after it was told that there were too many calls, and for how long to stop (0: not told). Calls that were under way
// when the pause began are told so too, and change nothing unless they are told to wait for longer.
func (p *pauses) refused(account string, told time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = make(map[string]pause)
	}
	last := p.of[account]
	switch {
	case told > 0:
		if end := now.Add(told); end.After(last.end) {
			p.of[account] = pause{end: end}
		}
	case !last.end.After(now):
		length := min(max(2*last.length, shortestPause), longestPause)
		p.of[account] = pause{end: now.Add(length), length: length}
	}
}

// left is how long an account is still paused. A pause is forgotten when nothing was refused for as long again.
func (p *pauses) left(account string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.of[account]
	if known && !last.end.Add(last.length).After(now) {
		delete(p.of, account)
	}
	return max(last.end.Sub(now), 0)
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
