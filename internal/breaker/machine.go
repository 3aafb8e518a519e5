// Package breaker stops calls to a gateway that is down, or that refuses our key, and lets them back little by little. Machine
// is the pure step function; Breaker is one machine for one process, safe for concurrent use.
package breaker

import (
	"fmt"
	"slices"
	"time"

	"pollux/internal/redelivery"
)

// Machine decides for breakers of one configuration. It has no state of its own and is safe for concurrent use.
type Machine struct {
	cfg   Config
	width int64 // of a bucket, in milliseconds
}

// NewMachine returns the machine of a configuration, or all its problems.
func NewMachine(c Config) (*Machine, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("breaker configuration: %w", err)
	}
	c.Ramp = slices.Clone(c.Ramp)
	return &Machine{cfg: c, width: c.Window.Milliseconds() / buckets}, nil
}

// EventKind is what happened to a breaker.
type EventKind uint8

// The kinds of event. Each first lets pass what time alone changes.
const (
	Tick    EventKind = iota // time went on
	Ask                      // somebody wants to call the gateway
	Finish                   // a call that was admitted came back
	Force                    // an operator forces a state
	Release                  // an operator ends a forced state
	Reset                    // an operator makes it forget the past
	Adopt                    // the fleet agreed on another shared state
	Hear                     // the fleet has counted failures in a row
)

// Event is something that happened. Only the fields of its kind are looked at.
type Event struct {
	Kind    EventKind
	Lease   uint64  // Ask: the id of the lease if the call becomes a probe; random and not 0
	Call    Call    // Finish
	Outcome Outcome // Finish
	Chance  float64 // Ask, Finish: uniform in [0, 1), for the cooldown
	Forced  Forced  // Force; Release and Reset look at Reason and Actor alone
	Shared  Shared  // Adopt
	Run     Run     // Hear
}

// Call is an admitted call: what Finish needs to know of it. The zero value is a call that is not counted.
type Call struct {
	Generation uint64
	Start      Instant
	Slot       int64  // the bucket that it is counted in
	Lease      uint64 // of a probe; 0 for other calls
}

// Why says why a call was refused.
type Why string

// The reasons of a refusal. They are a closed set: they are metric labels.
const (
	WhyAdmitted Why = ""        // it was not
	WhyOpen     Why = "open"    // no call is admitted
	WhyForced   Why = "forced"  // an operator forced it open
	WhyProbing  Why = "probing" // half-open, and no place is free
	WhyRamp     Why = "ramp"    // closed, and this one is not in the ramp's share
)

// Verdict is the answer to Ask.
type Verdict struct {
	Admitted bool
	Call     Call    // to be given back with Finish when admitted
	Why      Why     // when refused
	RetryAt  Instant // when refused: asking earlier is of no use, asking then may be
}

// Transition is a change of a breaker, to be counted, logged and recorded.
type Transition struct {
	At       Instant
	From, To Kind // as seen from outside: a forced state counts as what it forces
	Share    Ratio
	Cause    Cause
	Epoch    uint64  // after the change. Steps of the ramp happen within an epoch, and every instance sees them for itself
	RetryAt  Instant // when it opened
	Actor    string  // of an operator's change
	Reason   string
}

// Step lets an event happen to a state and returns the state after it, the verdict on an Ask, and what changed, in order. It is pure
// and total: whatever the state and the event are, the same ones give the same result. A clock that is set back or
// forward costs at most one cooldown, one window or one ramp, for instants never lie further ahead than the configuration allows.
//
// A Force that is not valid (Forced.Validate) changes nothing.
func (m *Machine) Step(s State, now Instant, e Event) (State, Verdict, []Transition) {
	x := step{m: m, s: &s, now: min(max(now, 0), maxInstant), lease: e.Lease, chance: e.Chance}
	var v Verdict
	switch e.Kind {
	case Ask:
		v = x.ask()
	case Finish:
		x.finish(e.Call, e.Outcome)
	case Force:
		x.force(e.Forced)
	case Release:
		x.release(e.Forced.Actor, e.Forced.Reason)
	case Reset:
		x.reset(e.Forced.Actor, e.Forced.Reason)
	case Adopt:
		x.adopt(e.Shared)
	case Hear:
		x.hear(e.Run)
	default:
		x.settle()
	}
	return s, v, x.changes
}

// step is one application of the machine to a state, in place.
type step struct {
	m       *Machine
	s       *State
	now     Instant
	lease   uint64
	chance  float64
	changes []Transition
	wrote   bool // the shared state changed
}

// settle lets pass what time alone changes.
func (x *step) settle() {
	sh := &x.s.Shared
	x.m.bound(sh, x.now)
	if x.s.Local.Generation == 0 {
		x.renew()
	}
	if sh.Forced.On() && x.now >= sh.Forced.Until {
		x.unforce(CauseExpired, "", "")
	}
	if step := x.m.rampStep(sh, x.now); step != x.s.Local.Step {
		from, share := x.view()
		cause := CauseRampUp
		if step < x.s.Local.Step { // a clock was set back
			cause = CauseRampBack
		}
		x.s.Local.Step = step
		x.changed(from, share, cause, "", "")
	}
}

// bound cuts every instant and count that matters to what the configuration allows. It changes nothing of what this machine
// wrote, unless a clock was set back: then what lay ahead is as near as if it had happened now.
func (m *Machine) bound(s *Shared, now Instant) {
	s.Trips = min(max(s.Trips, 0), maxTrips)
	s.Step = min(max(s.Step, 0), len(m.cfg.Ramp)-1)
	s.StepAt = min(max(s.StepAt, 0), now)
	if s.Forced.On() {
		s.Forced.Until = min(s.Forced.Until, s.Since.Add(MaxForced)) // by its beginning, or it would begin again in each process that reads it
		if s.Since > now.Add(MaxForced) {
			s.Forced = Forced{} // it has not been forced yet
		}
	}
	switch s.Kind {
	case Closed:
	case Open:
		s.RetryAt = min(s.RetryAt, now.Add(m.cooldownOf(s.Cause).Cap))
	default:
		s.Kind = HalfOpen // there is no other; probing finds out
		s.RetryAt = min(s.RetryAt, now.Add(m.cfg.ProbePause))
		s.Successes = min(max(s.Successes, 0), m.cfg.Successes-1)
		for i := range s.Probes {
			s.Probes[i].Deadline = min(s.Probes[i].Deadline, now.Add(m.cfg.ProbeDeadline))
		}
	}
}

// maxTrips is where counting openings ends; the cooldown has long reached its cap.
const maxTrips = 1 << 20

// rampStep is the step of the ramp now; the last one when there is no ramp. It follows from the step that was written last and from
// the time since.
func (m *Machine) rampStep(s *Shared, now Instant) int {
	last := len(m.cfg.Ramp) - 1
	if s.Kind != Closed || s.Forced.On() {
		return last
	}
	passed := int64(now.since(s.StepAt) / m.cfg.RampStep)
	return int(min(int64(s.Step)+passed, int64(last)))
}

// recovered reports whether the ramp is over: its last step has lasted as long as any other.
func (m *Machine) recovered(s *Shared, now Instant) bool {
	steps := len(m.cfg.Ramp) - s.Step
	return now.since(s.StepAt) >= time.Duration(steps)*m.cfg.RampStep
}

func (m *Machine) cooldownOf(c Cause) Cooldown {
	if c == CauseCredentials {
		return m.cfg.CredentialCooldown
	}
	return m.cfg.Cooldown
}

// cooldown is how long it stays open after the n-th opening without a recovery between, n from 1.
func (m *Machine) cooldown(c Cause, n int, chance float64) time.Duration {
	d := m.cooldownOf(c)
	curve := redelivery.Curve{Base: d.Base, Cap: d.Cap, Jitter: redelivery.Jitter{Kind: redelivery.JitterEqual}}
	return curve.Delay(n-1, 0, chance)
}
