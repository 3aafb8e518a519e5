package consumer

import (
	"sync"

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
