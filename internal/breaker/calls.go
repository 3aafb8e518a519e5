package breaker

import (
	"slices"
	"time"
)

// ask decides whether somebody may call the gateway.
func (x *step) ask() Verdict {
	x.settle()
	sh := &x.s.Shared
	if sh.Forced.On() {
		return x.askForced()
	}
	if sh.Kind == Closed {
		return x.askClosed()
	}
	if sh.Kind == Open {
		if x.now < sh.RetryAt {
			return refused(WhyOpen, sh.RetryAt)
		}
		x.halfOpen()
	}
	return x.probe()
}

func refused(why Why, retryAt Instant) Verdict { return Verdict{Why: why, RetryAt: retryAt} }

func (x *step) askForced() Verdict {
	f := &x.s.Shared.Forced
	switch f.Mode {
	case Open:
		return refused(WhyForced, f.Until)
	case Disabled:
		return Verdict{Admitted: true}
	}
	x.roll()
	return x.count()
}

func (x *step) askClosed() Verdict {
	sh, l := &x.s.Shared, &x.s.Local
	if x.roll() {
		x.judge()
		if sh.Kind == Open {
			return refused(WhyOpen, sh.RetryAt)
		}
	}
	if l.Step == len(x.m.cfg.Ramp)-1 {
		return x.count()
	}
	l.Credit = min(max(l.Credit, 0), whole) + int(x.m.cfg.Ramp[l.Step].hundredths)
	if l.Credit < whole {
		begun := l.Step - sh.Step + 1 // steps since the ramp was written, this one included
		return refused(WhyRamp, sh.StepAt.Add(time.Duration(begun)*x.m.cfg.RampStep))
	}
	l.Credit -= whole
	return x.count()
}

// count admits a call and counts it in the window, now that it starts: one that hangs counts too.
func (x *step) count() Verdict {
	l := &x.s.Local
	l.Buckets[l.Slot%buckets].Started++
	l.Calls++
	return Verdict{Admitted: true, Call: Call{Generation: l.Generation, Start: x.now, Slot: l.Slot}}
}

// probe admits a call while half-open if one of the places is free. Places whose deadline has passed are.
func (x *step) probe() Verdict {
	sh := &x.s.Shared
	if x.now < sh.RetryAt {
		return refused(WhyProbing, sh.RetryAt)
	}
	taken := x.living()
	if taken >= x.m.cfg.Probes {
		soonest := maxInstant
		for _, l := range sh.Probes[:taken] {
			soonest = min(soonest, l.Deadline)
		}
		return refused(WhyProbing, soonest)
	}
	id := max(x.lease, 1)
	sh.Probes[taken] = Lease{ID: id, Deadline: x.now.Add(x.m.cfg.ProbeDeadline)}
	x.wrote = true
	return Verdict{Admitted: true, Call: Call{Generation: x.s.Local.Generation, Start: x.now, Lease: id}}
}

// living drops the leases whose deadline has passed and returns how many there are, all at the front.
func (x *step) living() int {
	probes, n := &x.s.Shared.Probes, 0
	for _, l := range probes {
		if l.ID != 0 && x.now < l.Deadline {
			probes[n] = l
			n++
		}
	}
	clear(probes[n:])
	return n
}

// finish takes the outcome of a call.
func (x *step) finish(c Call, o Outcome) {
	x.settle()
	slow := x.m.cfg.SlowCall > 0 && x.now.since(c.Start) >= x.m.cfg.SlowCall
	switch sh := &x.s.Shared; {
	case c.Lease != 0:
		if sh.Kind == HalfOpen && !sh.Forced.On() {
			x.finishProbe(c, o, slow)
		}
	case c.Generation != x.s.Local.Generation || sh.Kind != Closed:
		// Admitted in another life of the breaker: it says nothing about this one.
	default:
		x.finishCall(c, o, slow)
	}
}

// finishProbe takes the outcome of a probe. One that comes back after its deadline has lost its place: its success says nothing
// any more, its failure still does.
func (x *step) finishProbe(c Call, o Outcome, slow bool) {
	held := x.giveBack(c.Lease)
	late := !held && c.Generation == x.s.Local.Generation && (o == Failure || o == Refused)
	if !held && !late {
		return
	}
	sh := &x.s.Shared
	switch {
	case o == Refused:
		x.trip(CauseCredentials)
	case o == Failure:
		x.trip(CauseProbe)
	case o == Success && slow:
		x.trip(CauseSlow)
	case o == Success:
		if sh.Successes++; sh.Successes >= x.m.cfg.Successes {
			x.close()
		}
	default: // our own trouble would come back at once: a moment's rest before the next probe
		sh.RetryAt = x.now.Add(x.m.cfg.ProbePause)
	}
}

// giveBack frees the place of a probe and reports whether it still had it.
func (x *step) giveBack(id uint64) bool {
	n := x.living()
	probes := x.s.Shared.Probes[:n]
	i := slices.IndexFunc(probes, func(l Lease) bool { return l.ID == id })
	if i < 0 {
		return false
	}
	copy(probes[i:], probes[i+1:])
	probes[n-1] = Lease{}
	x.wrote = true
	return true
}

// finishCall takes the outcome of a call that was admitted while closed, in this generation.
func (x *step) finishCall(c Call, o Outcome, slow bool) {
	if x.roll() {
		if x.judge(); x.s.Shared.Kind != Closed {
			return
		}
	}
	if o == Inconclusive || int(o) >= len(outcomeNames) {
		x.uncount(c)
		return
	}
	x.tally(c, o == Failure, slow)
	l := &x.s.Local
	switch o {
	case Success:
		l.Consecutive, l.Refused = 0, 0
		l.Word = Word{Worked: true, Granted: true}
	case Failure:
		l.Consecutive++
		l.Word.Failures++
	case Refused: // it is there, after all
		l.Consecutive = 0
		l.Refused++
		l.Word.Failures, l.Word.Worked = 0, true
		l.Word.Refused++
	}
	if slow || o != Success {
		x.judge()
	}
	if o == Failure && x.s.Shared.Kind == Closed {
		x.stepBack(c)
	}
}
