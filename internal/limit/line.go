package limit

// waiter is a call that waits for its turn.
type waiter struct {
	kind       Kind
	turn       chan Refusal // one word: its turn has come, or why it never will
	next, prev *waiter
	queued     bool
}

// line is the calls of a kind that wait, in the order in which they came. The zero value is empty.
type line struct{ first, last *waiter }

func (q *line) push(w *waiter) {
	w.queued, w.prev = true, q.last
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
}

// pop takes out the first, of a line that is not empty.
func (q *line) pop() *waiter {
	w := q.first
	q.remove(w)
	return w
}

// remove reports whether it was still in the line.
func (q *line) remove(w *waiter) bool {
	if !w.queued {
		return false
	}
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.queued, w.next, w.prev = false, nil, nil
	return true
}
