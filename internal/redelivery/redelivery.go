// Package redelivery decides what becomes of a delivery. It is pure: no clock, no chance, no I/O. What it is told is
// an Observation, what it says is a Disposition, and everything else in Pollux carries that value out.
package redelivery

import (
	"time"

	"pollux/internal/gateway"
	"pollux/internal/payment"
)

// Observation is all that a decision may depend on. Durations were computed by the database with its own clock.
type Observation struct {
	// What the record says.
	Tracked       bool           // the payment exists
	Status        payment.Status // its status
	TokenCurrent  bool           // the job exists and still carries the token of the delivery
	Dead          bool           // the job is with a person (dead)
	UntilDue      time.Duration  // how long until the poll is due; ≤ 0 when it is
	Age           time.Duration  // since the payment was tracked, or since its last replay
	HasDeadline   bool           // the payment has a deadline of its own
	UntilDeadline time.Duration  // how long until that deadline; ≤ 0 when it has passed
	Counters      Counters
	Previous      time.Duration // the delay before this poll, for decorrelated jitter; 0 when there was none
	Unrecorded    int           // deliveries of this message, this one not counted, that ended without a record

	// What the consumer says.
	HoldsLeft int           // how many more messages may be held at the broker
	Open      bool          // the gateway's breaker is open
	Paused    time.Duration // how long the gateway is paused (it said 429, or the limit is used up); 0 when it is not

	// What the gateway said; nil before it was asked.
	Answer *gateway.Answer

	// Chance is a uniform random number in [0, 1) for the jitter.
	Chance float64
}

// Counters are the four counters of a job. They are never mixed.
type Counters struct {
	Attempts  int // calls that the gateway answered
	Failures  int // consecutive calls that failed
	Deferrals int // times put to sleep because the breaker was open
	Replays   int // times an operator replayed it
}

// Verb is how a delivery ends, or Poll while it has not been polled yet.
type Verb uint8

// The verbs. The zero value is Drop, which is harmless: the lease makes the job due again.
const (
	Drop       Verb = iota // acknowledge and forget: stale, superseded or already final
	Poll                   // ask the gateway, then decide again
	Return                 // back to the broker for Delay; nothing is counted, nothing is written
	Resolve                // the payment takes Status; acknowledge
	Hold                   // the broker keeps the message for Delay
	Park                   // the row sleeps for Delay; acknowledge
	Defer                  // sleep in the deferred stream until the breaker half-opens; acknowledge
	DeadLetter             // hand the payment to a person; acknowledge
)

var verbNames = [...]string{"drop", "poll", "return", "resolve", "hold", "park", "defer", "dead_letter"}

// Verbs are all verbs in a fixed order.
var Verbs = []Verb{Drop, Poll, Return, Resolve, Hold, Park, Defer, DeadLetter}

// String returns the verb as it is stored, logged and used as a metric label.
func (v Verb) String() string {
	if int(v) < len(verbNames) {
		return verbNames[v]
	}
	return "drop"
}

// Reason says why. Reasons are a closed set: they are metric labels and, for dead letters, subjects.
type Reason string

// The reasons.
const (
	ReasonDue           Reason = "due"            // nothing stands in the way of a poll
	ReasonUntracked     Reason = "untracked"      // no such payment
	ReasonStale         Reason = "stale"          // another delivery has the lease
	ReasonAlreadyFinal  Reason = "already_final"  // resolved by somebody else meanwhile
	ReasonWithPerson    Reason = "with_person"    // the job is dead
	ReasonEarly         Reason = "early"          // came before it was due
	ReasonCircuitOpen   Reason = "circuit_open"   // the breaker is open
	ReasonPaused        Reason = "paused"         // the gateway or the limit asked to wait
	ReasonLocal         Reason = "local"          // our own trouble
	ReasonResolved      Reason = "resolved"       // a final status
	ReasonStillPending  Reason = "still_pending"  // the gateway said so
	ReasonFailure       Reason = "failure"        // the call failed
	ReasonRateLimited   Reason = "rate_limited"   // the gateway said 429
	ReasonUnauthorized  Reason = "unauthorized"   // the gateway refused our key
	ReasonNotFound      Reason = "not_found"      // unknown to the gateway, past the grace when it is a dead letter
	ReasonUnknownStatus Reason = "unknown_status" // a status that is not in the map
	ReasonMismatch      Reason = "mismatch"       // the answer is about something else
	ReasonAttempts      Reason = "attempts"       // as many attempts as the policy allows
	ReasonFailures      Reason = "failures"       // as many consecutive failures as the policy allows
	ReasonWindow        Reason = "window"         // as old as the policy allows
	ReasonDeadline      Reason = "deadline"       // the payment's own deadline passed
	ReasonPoison        Reason = "poison"         // delivered again and again and never recorded
	ReasonRefused       Reason = "refused"        // the database refuses to record it
	ReasonUndecodable   Reason = "undecodable"    // the message cannot be read
	ReasonUnpublishable Reason = "unpublishable"  // the broker refuses to take it
)

// Reasons are all reasons in a fixed order.
var Reasons = []Reason{
	ReasonDue, ReasonUntracked, ReasonStale, ReasonAlreadyFinal, ReasonWithPerson, ReasonEarly, ReasonCircuitOpen, ReasonPaused,
	ReasonLocal, ReasonResolved, ReasonStillPending, ReasonFailure, ReasonRateLimited, ReasonUnauthorized, ReasonNotFound,
	ReasonUnknownStatus, ReasonMismatch, ReasonAttempts, ReasonFailures, ReasonWindow, ReasonDeadline, ReasonPoison, ReasonRefused, ReasonUndecodable, ReasonUnpublishable,
}

// Disposition is how a delivery ends.
type Disposition struct {
	Verb     Verb
	Reason   Reason
	Delay    time.Duration  // for Return, Hold and Park; always > 0 there
	Status   payment.Status // for Resolve: the final status
	Detail   string         // the status detail to record; empty leaves it as it is
	Counters Counters       // the counters after this delivery
}

// Recorded reports whether the disposition is written to the record.
func (d Disposition) Recorded() bool {
	switch d.Verb {
	case Resolve, Hold, Park, Defer, DeadLetter:
		return true
	}
	return false
}

// Decide says what becomes of a delivery. It is total: every observation has a disposition, and the same one has always the
// same. Before the gateway was asked (Answer is nil) it says Poll unless something stands in the way.
//
// Rows of the table in docs/dispositions.md are tried from the top; the first that applies wins.
func (p Policy) Decide(o Observation) Disposition {
	d := p.decide(o)
	if d.Verb == Return || d.Verb == Hold || d.Verb == Park {
		d.Delay = max(d.Delay, MinDelay)
	}
	return d
}

func (p Policy) decide(o Observation) Disposition {
	end := func(v Verb, r Reason) Disposition { return Disposition{Verb: v, Reason: r, Counters: o.Counters} }
	switch {
	case !o.Tracked:
		return end(Drop, ReasonUntracked)
	case o.Status != payment.Pending:
		return end(Drop, ReasonAlreadyFinal)
	case o.Dead:
		return end(Drop, ReasonWithPerson)
	case !o.TokenCurrent:
		return end(Drop, ReasonStale)
	case o.Answer != nil:
		return p.answered(o, *o.Answer)
	case p.PoisonDeliveries > 0 && o.Unrecorded >= p.PoisonDeliveries:
		return end(DeadLetter, ReasonPoison)
	case o.UntilDue > Early:
		d := end(Return, ReasonEarly)
		d.Delay = o.UntilDue
		return d
	case o.Open:
		d := end(Defer, ReasonCircuitOpen)
		d.Counters.Deferrals = bump(d.Counters.Deferrals)
		return d
	case o.Paused > 0:
		return p.wait(o, end(Hold, ReasonPaused), o.Paused)
	}
	return end(Poll, ReasonDue)
}

// answered decides after a poll.
func (p Policy) answered(o Observation, a gateway.Answer) Disposition {
	d := Disposition{Counters: o.Counters, Detail: a.Detail}
	retryAfter := min(max(a.RetryAfter, 0), p.MaxRetryAfter)
	switch a.Class {
	case gateway.Final:
		if !a.Status.Final() { // an adapter that says Final without a final status said nothing
			return p.failed(o, d, ReasonFailure, retryAfter)
		}
		d.Verb, d.Reason, d.Status = Resolve, ReasonResolved, a.Status
		d.Counters.Attempts, d.Counters.Failures = bump(d.Counters.Attempts), 0
		return d
	case gateway.Pending:
		return p.again(o, d, ReasonStillPending, retryAfter)
	case gateway.UnknownStatus:
		return p.again(o, d, ReasonUnknownStatus, retryAfter)
	case gateway.Transport, gateway.Malformed:
		return p.failed(o, d, ReasonFailure, retryAfter)
	case gateway.NotFound:
		if o.Age > p.NotFoundGrace && d.Counters.Failures+1 >= NotFoundConfirmations {
			d.Verb, d.Reason = DeadLetter, ReasonNotFound
			d.Counters.Attempts, d.Counters.Failures = bump(d.Counters.Attempts), bump(d.Counters.Failures)
			return d
		}
		d.Counters.Attempts = bump(d.Counters.Attempts)
		return p.failed(o, d, ReasonNotFound, retryAfter)
	case gateway.RateLimited:
		d.Reason = ReasonRateLimited
		return p.free(o, d, retryAfter, o.Counters.Failures)
	case gateway.Unauthorized:
		d.Reason = ReasonUnauthorized
		return p.free(o, d, max(retryAfter, p.UnauthorizedDelay), o.Counters.Failures)
	case gateway.Mismatch:
		d.Verb, d.Reason = DeadLetter, ReasonMismatch
		d.Counters.Attempts = bump(d.Counters.Attempts)
		return d
	default: // gateway.Local and whatever is not a class
		d.Verb, d.Reason, d.Delay = Return, ReasonLocal, LocalDelay
		return d
	}
}

// again schedules the next poll after an answer that was not final: the pending curve, attempts counted.
func (p Policy) again(o Observation, d Disposition, r Reason, retryAfter time.Duration) Disposition {
	n := d.Counters.Attempts
	d.Reason = r
	d.Counters.Attempts, d.Counters.Failures = bump(n), 0
	if dead, why := p.exhausted(o, d.Counters); dead {
		d.Verb, d.Reason = DeadLetter, why
		return d
	}
	return p.wait(o, d, p.spread(o, p.Pending, n, retryAfter))
}

// failed schedules the next poll after a call that failed: the error curve, failures counted.
func (p Policy) failed(o Observation, d Disposition, r Reason, retryAfter time.Duration) Disposition {
	n := d.Counters.Failures
	d.Reason = r
	d.Counters.Failures = bump(n)
	if dead, why := p.exhausted(o, d.Counters); dead {
		d.Verb, d.Reason = DeadLetter, why
		return d
	}
	return p.wait(o, d, p.spread(o, p.Error, n, retryAfter))
}

// free schedules the next poll after an answer that must cost the payment nothing.
func (p Policy) free(o Observation, d Disposition, atLeast time.Duration, n int) Disposition {
	return p.wait(o, d, p.spread(o, p.Error, n, atLeast))
}

// spread is the curve's delay n, and where the gateway named an instant, that instant and a little later: many payments
// were told the same one.
func (p Policy) spread(o Observation, c Curve, n int, retryAfter time.Duration) time.Duration {
	delay := c.Delay(n, o.Previous, o.Chance)
	if retryAfter > delay {
		extra := min(retryAfter/10, 5*time.Second)
		delay = retryAfter + time.Duration(o.Chance*float64(extra))
	}
	return p.beforeDeadline(o, delay, retryAfter)
}

// beforeDeadline moves a poll that would come after the payment's own deadline to the deadline: its last poll. A wait
// that the gateway asked for is kept all the same.
func (p Policy) beforeDeadline(o Observation, delay, atLeast time.Duration) time.Duration {
	if o.HasDeadline && o.UntilDeadline > 0 && delay > o.UntilDeadline {
		return max(o.UntilDeadline, atLeast)
	}
	return delay
}

// wait holds what is short while the hold budget lasts, and parks the rest.
func (p Policy) wait(o Observation, d Disposition, delay time.Duration) Disposition {
	d.Delay = max(delay, MinDelay)
	d.Verb = Park
	if d.Delay <= p.HoldLimit && o.HoldsLeft > 0 {
		d.Verb = Hold
	}
	return d
}

// exhausted reports whether a bound is reached after a poll, and which.
func (p Policy) exhausted(o Observation, c Counters) (bool, Reason) {
	switch {
	case o.HasDeadline && o.UntilDeadline <= 0:
		return true, ReasonDeadline
	case p.MaxAttempts > 0 && c.Attempts >= p.MaxAttempts:
		return true, ReasonAttempts
	case p.MaxFailures > 0 && c.Failures >= p.MaxFailures:
		return true, ReasonFailures
	case p.Window > 0 && o.Age >= p.Window:
		return true, ReasonWindow
	}
	return false, ""
}

func bump(n int) int {
	if n < maxCounter {
		return n + 1
	}
	return n
}

// maxCounter is the largest value of an integer column.
const maxCounter = 1<<31 - 1
