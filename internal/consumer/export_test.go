package consumer

// Balance is what a consumer and its recorder have in hand. All is 0 when nothing is.
type Balance struct {
	Slots, Payments int
	Expected        int64
}

// Balance returns it.
func (c *Consumer) Balance() Balance {
	c.inHand.mu.Lock()
	defer c.inHand.mu.Unlock()
	return Balance{Slots: len(c.slots), Payments: len(c.inHand.waiting), Expected: c.recorder.expected.Load()}
}

// Pauses is how many accounts are remembered as paused.
func (c *Consumer) Pauses() int {
	p := c.gate.(*pauses)
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.of)
}

// Expected is how many results are announced and not gathered.
func (r *Recorder) Expected() int64 { return r.expected.Load() }
