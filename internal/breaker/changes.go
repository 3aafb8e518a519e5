package breaker

// trip opens the breaker.
func (x *step) trip(cause Cause) {
	from, share := x.view()
	sh := &x.s.Shared
	if sh.Kind == Closed && x.m.recovered(sh, x.now) {
		sh.Trips = 0
	}
	sh.Trips = min(sh.Trips+1, maxTrips)
	sh.Cause = cause
	x.turn(Open)
	sh.RetryAt = x.now.Add(x.m.cooldown(cause, sh.Trips, x.chance))
	x.changed(from, share, cause, "", "")
}

// halfOpen lets probes in.
func (x *step) halfOpen() {
	from, share := x.view()
	x.turn(HalfOpen)
	x.changed(from, share, CauseCooldown, "", "")
}

// close lets calls in again, at the first step of the ramp.
func (x *step) close() {
	from, share := x.view()
	x.s.Shared.Cause = CauseNone
	x.turn(Closed)
	x.changed(from, share, CauseRecovered, "", "")
}

// stepBack takes the ramp a step back, if there is one and the failed call was admitted in its present step. Nothing else is reset.
func (x *step) stepBack(c Call) {
	sh, l := &x.s.Shared, &x.s.Local
	if sh.Forced.On() || x.m.recovered(sh, x.now) || c.Start < sh.StepAt || x.m.tolerable(l) {
		return
	}
	from, share := x.view()
	sh.Step, sh.StepAt = max(l.Step-1, 0), x.now
	l.Step = sh.Step
	l.Backs++
	x.wrote = true
	x.changed(from, share, CauseRampBack, "", "")
}

// tolerable reports whether the ramp may go on with the failures in the window. Each step back makes it more tolerant: a gateway that still fails
// as much does not fail for being called too much, and would never get its full share again. What is too much for any gateway
// opens the breaker.
func (m *Machine) tolerable(l *Local) bool {
	backs := int64(min(max(l.Backs, 0), maxTrips))
	return int64(l.Failed)*whole <= int64(m.cfg.RampTolerance.hundredths)*(1+backs)*int64(l.Calls)
}

func (x *step) force(f Forced) {
	x.settle()
	if f.Validate(x.now) != nil {
		return
	}
	from, share := x.view()
	x.s.Shared.Cause = CauseForced
	x.turn(Closed)
	x.s.Shared.Forced = f
	x.renew()
	x.changed(from, share, CauseForced, f.Actor, f.Reason)
}

func (x *step) release(actor, reason string) {
	x.settle()
	if x.s.Shared.Forced.On() {
		x.unforce(CauseReleased, actor, reason)
	}
}

// unforce ends a forced state. What was kept open is probed first: a herd waits behind it. What was kept closed or disabled goes on
// as it was, without a ramp.
func (x *step) unforce(cause Cause, actor, reason string) {
	from, share := x.view()
	kind := Closed
	if x.s.Shared.Forced.Mode == Open {
		kind = HalfOpen
	}
	x.s.Shared.Forced = Forced{}
	x.s.Shared.Cause = CauseNone
	x.turn(kind)
	x.s.Shared.StepAt = 0
	x.renew()
	x.changed(from, share, cause, actor, reason)
}

// reset forgets the past: an open or half-open breaker probes at once, and its next cooldown is the first again; a closed one is
// at full share with an empty window. A forced state ends.
func (x *step) reset(actor, reason string) {
	x.settle()
	from, share := x.view()
	sh := &x.s.Shared
	kind := HalfOpen
	if from == Closed || from == Disabled {
		kind = Closed
	}
	sh.Forced, sh.Cause, sh.Trips = Forced{}, CauseNone, 0
	x.turn(kind)
	sh.StepAt = 0
	x.renew()
	x.changed(from, share, CauseReset, actor, reason)
}

// adopt takes over what the fleet agreed on. Only a change of what it means begins a new generation; leases that come and go do not.
func (x *step) adopt(shared Shared) {
	x.settle()
	from, share := x.view()
	old := x.s.Shared
	x.s.Shared = shared
	sh := &x.s.Shared
	x.m.bound(sh, x.now)
	if sh.Kind != old.Kind || sh.Epoch != old.Epoch || sh.Since != old.Since || sh.Forced != old.Forced {
		x.renew()
	}
	x.s.Local.Step = x.m.rampStep(sh, x.now)
	if to, present := x.view(); to != from || present != share {
		x.changed(from, share, CauseAdopted, sh.Forced.Actor, sh.Forced.Reason)
	}
}

// turn gives the breaker another kind: another epoch, nobody probing, the ramp at its first step.
func (x *step) turn(k Kind) {
	sh := &x.s.Shared
	sh.Kind, sh.Since = k, x.now
	sh.Epoch++
	sh.RetryAt, sh.Successes, sh.Probes = 0, 0, [MaxProbes]Lease{}
	sh.Step, sh.StepAt = 0, x.now
	x.wrote = true
	x.renew()
}

// renew begins another generation: nothing that was admitted before counts in it. The first call on a ramp is admitted at once.
func (x *step) renew() {
	l := &x.s.Local
	*l = Local{
		Generation: l.Generation + 1,
		Slot:       int64(x.now) / x.m.width,
		Credit:     whole,
		Step:       x.m.rampStep(&x.s.Shared, x.now),
	}
}

// view is the breaker as seen from outside.
func (x *step) view() (Kind, Ratio) {
	k := x.s.Shared.kind()
	switch k {
	case Open, HalfOpen:
		return k, Ratio{}
	}
	return k, x.m.cfg.Ramp[min(max(x.s.Local.Step, 0), len(x.m.cfg.Ramp)-1)] // a state from anywhere may hold any step
}

func (s *Shared) kind() Kind {
	if s.Forced.On() {
		return s.Forced.Mode
	}
	return s.Kind
}

// changed notes a transition from a former view to the present one. A ramp that is at its first step cannot step back: that
// is no transition.
func (x *step) changed(from Kind, share Ratio, cause Cause, actor, reason string) {
	to, now := x.view()
	if cause == CauseRampBack && now == share {
		return
	}
	t := Transition{At: x.now, From: from, To: to, Share: now, Cause: cause, Epoch: x.s.Shared.Epoch, Actor: actor, Reason: reason}
	if to == Open {
		t.RetryAt = x.s.Shared.RetryAt
		if x.s.Shared.Forced.On() {
			t.RetryAt = x.s.Shared.Forced.Until
		}
	}
	x.changes = append(x.changes, t)
}
