package breaker

// Snapshot is a breaker as it stands at an instant.
type Snapshot struct {
	Kind            Kind // a forced state counts as what it forces
	Cause           Cause
	Epoch           uint64
	Since           Instant
	RetryAt         Instant // while open: when the first probe may go; it may lie in the past, for only a call moves it on
	Trips           int     // openings without a full recovery between
	Share           Ratio   // of the calls that are admitted; 0 % while open or half-open
	Ramping         bool    // closed, and not yet fully recovered
	Probes          int     // under way, in the whole fleet
	ProbePlaces     int
	Successes       int // of probes, of SuccessesNeeded
	SuccessesNeeded int
	Forced          Forced
	Calls           int // in this instance's window, started
	Failed          int // of Calls
	Slow            int // of Calls, finished or not
	Consecutive     int // failures in a row
	Refused         int // refused credentials in a row
}

// Snapshot shows a state at an instant without changing it.
func (m *Machine) Snapshot(s State, now Instant) Snapshot {
	x := step{m: m, s: &s, now: min(max(now, 0), maxInstant)}
	x.settle()
	x.roll()
	now = x.now
	sh, l := &s.Shared, &s.Local
	kind, share := x.view()
	snap := Snapshot{
		Kind: kind, Cause: sh.Cause, Epoch: sh.Epoch, Since: sh.Since, RetryAt: sh.RetryAt, Trips: sh.Trips, Share: share,
		ProbePlaces: m.cfg.Probes, Successes: sh.Successes, SuccessesNeeded: m.cfg.Successes, Forced: sh.Forced,
		Calls: l.Calls, Failed: l.Failed, Slow: l.Slow, Consecutive: l.Consecutive, Refused: l.Refused,
	}
	if m.cfg.SlowCall > 0 {
		snap.Slow += x.overdue()
	}
	if kind == Closed && !sh.Forced.On() {
		if snap.Ramping = !m.recovered(sh, now); !snap.Ramping {
			snap.Trips = 0
		}
	}
	if sh.Forced.On() && kind == Open {
		snap.RetryAt = sh.Forced.Until
	}
	for _, p := range sh.Probes {
		if p.ID != 0 && now < p.Deadline {
			snap.Probes++
		}
	}
	return snap
}
