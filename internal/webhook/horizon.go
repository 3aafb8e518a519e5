package webhook

// Sighting is what a look at the newest payments saw.
type Sighting struct {
	Last   int64 // the highest id of a payment
	Oldest int64 // the oldest transaction that was not over
	Next   int64 // the transaction that begins next
}

// horizon is up to which id all payments have been seen. Ids are given out in order, and payments are committed in any: one with a lower id may appear behind one with a
// higher id for as long as a transaction is open that was open when the higher one was seen.
type horizon struct {
	settled int64 // no payment will appear any more with an id up to this one
	waits   int64 // nor up to this one,
	until   int64 // when all transactions before this one are over
	last    int64 // the highest id that the last look saw
}

// saw takes a look into account that saw all payments above settled. An id that was given out before the look before belongs to a transaction that has begun by now.
func (h *horizon) saw(s Sighting) {
	if s.Oldest >= h.until {
		h.settled, h.waits, h.until = h.waits, h.last, s.Next
	}
	h.last = s.Last
}
