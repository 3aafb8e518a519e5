package breaker

// tally counts how a call in the window ended. A bad one that left the window before it came back is counted now, or a gateway
// that lets calls hang for longer than the window would never be seen to fail.
func (x *step) tally(c Call, failed, slow bool) {
	l := &x.s.Local
	b := x.bucketOf(c)
	switch {
	case b != nil:
	case failed || slow:
		b = &l.Buckets[l.Slot%buckets]
		b.Started++
		l.Calls++
	default:
		return
	}
	b.Done++
	if failed {
		b.Failed++
		l.Failed++
	}
	if slow {
		b.Slow++
		l.Slow++
	}
}

// uncount takes a call out of the window as if it had never started.
func (x *step) uncount(c Call) {
	if b := x.bucketOf(c); b != nil {
		b.Started--
		x.s.Local.Calls--
	}
}

// bucketOf is the bucket in which a call waits to come back, or nil when it has left the window.
func (x *step) bucketOf(c Call) *Bucket {
	l := &x.s.Local
	if c.Slot > l.Slot || c.Slot <= l.Slot-buckets || c.Slot < 0 {
		return nil
	}
	if b := &l.Buckets[c.Slot%buckets]; b.Started > b.Done {
		return b
	}
	return nil
}

// roll drops from the window what is too old and reports whether it moved.
func (x *step) roll() bool {
	l := &x.s.Local
	slot := int64(x.now) / x.m.width
	ahead := slot - l.Slot
	switch {
	case l.Slot >= 0 && ahead <= 0 && ahead > -buckets: // also a clock set back a little: count on where we are
		return false
	case l.Slot < 0 || ahead < 0 || ahead >= buckets:
		l.Buckets = [buckets]Bucket{}
		l.Calls, l.Failed, l.Slow = 0, 0, 0
	default:
		for s := l.Slot + 1; s <= slot; s++ {
			b := &l.Buckets[s%buckets]
			l.Calls -= b.Started
			l.Failed -= b.Failed
			l.Slow -= b.Slow
			*b = Bucket{}
		}
	}
	l.Slot = slot
	return true
}

// overdue counts the calls in the window that have not come back and are slow already.
func (x *step) overdue() int {
	l := &x.s.Local
	n := 0
	for s := max(l.Slot-buckets+1, 0); s <= l.Slot; s++ {
		end := Instant((s + 1) * x.m.width)
		if x.now < end.Add(x.m.cfg.SlowCall) {
			break
		}
		b := &l.Buckets[s%buckets]
		n += b.Started - b.Done
	}
	return n
}

// judge opens the breaker when a trigger is reached. It looks whenever a bucket begins, for calls that hang, and after every
// call that failed, was refused or was slow.
func (x *step) judge() {
	if x.s.Shared.Forced.On() {
		return
	}
	l, c := &x.s.Local, &x.m.cfg
	switch {
	case l.Refused >= c.CredentialFailures:
		x.trip(CauseCredentials)
	case l.Consecutive >= c.ConsecutiveFailures:
		x.trip(CauseConsecutive)
	case l.Calls < c.MinCalls:
	case c.FailureRatio.reached(l.Failed, l.Calls):
		x.trip(CauseFailures)
	case c.SlowCall > 0 && c.SlowRatio.reached(l.Slow+x.overdue(), l.Calls):
		x.trip(CauseSlow)
	}
}
