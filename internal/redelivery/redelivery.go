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
	Previous      time.Duration // the delay before this poll; 0 when there was none
	Unrecorded    int           // deliveries of this message, this one not counted, that ended without a record, as when a worker died over it

	// What the consumer says.
	HoldsLeft int           // how many more messages may be held at the broker
	Open      bool          // the gateway's breaker is open: before the poll, or by now when it was polled
	Paused    time.Duration // how long the gateway is paused (it said 429, or the limit is used up); 0 when it is not

	// What the gateway said; nil before it was asked.
	Answer *gateway.Answer

	// Chance is a uniform random number in [0, 1) for the jitter. What is outside is clamped.
	Chance float64
}

// Counters are the counters of a job. They are never mixed. A bound of a policy is about one of them.
type Counters struct {
	Attempts  int // calls that the gateway answered; "not found" inside its grace is not counted
	Failures  int // consecutive calls that failed
	NotFounds int // consecutive answers, failed calls between them aside, that the gateway does not know the payment
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
	ReasonWatched       Reason = "watched"        // the gateway is never asked: it reports by webhook
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
	ReasonConflict      Reason = "conflict"       // somebody contradicts a final status
	ReasonLateSuccess   Reason = "late_success"   // it had failed, been cancelled or expired, and has succeeded
	ReasonLateHint      Reason = "late_hint"      // it had ended without success, and its gateway says that something changed
)

// Reasons are all reasons in a fixed order.
var Reasons = []Reason{
	ReasonDue, ReasonUntracked, ReasonStale, ReasonAlreadyFinal, ReasonWithPerson, ReasonWatched, ReasonEarly, ReasonCircuitOpen, ReasonPaused,
	ReasonLocal, ReasonResolved, ReasonStillPending, ReasonFailure, ReasonRateLimited, ReasonUnauthorized, ReasonNotFound,
	ReasonUnknownStatus, ReasonMismatch, ReasonAttempts, ReasonFailures, ReasonWindow, ReasonDeadline, ReasonPoison, ReasonRefused, ReasonUndecodable, ReasonUnpublishable,
	ReasonConflict, ReasonLateSuccess, ReasonLateHint,
}

// Disposition is how a delivery ends.
type Disposition struct {
	Verb     Verb
	Reason   Reason
	Delay    time.Duration  // for Return, Hold, Park and Defer; always > 0 there
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
// same. Before the gateway was asked (Answer is nil) it says Poll unless something stands in the way. Delays of Return,
// Hold and Park are between MinDelay and MaxDelay; that of Defer is when it is looked at again at the latest, between MinDelay and LookAgain; those of all
// other verbs are 0.
//
// Rows of the table in docs/dispositions.md are tried from the top; the first that applies wins.
func (p Policy) Decide(o Observation) Disposition {
	o.Chance = inUnit(o.Chance)
	d := p.decide(o)
	switch d.Verb {
	case Return, Hold, Park, Defer:
		d.Delay = min(max(d.Delay, MinDelay), MaxDelay)
	}
	return d
}

func (p Policy) decide(o Observation) Disposition {
	d := Disposition{Counters: o.Counters}
	switch {
	case !o.Tracked:
		return d.end(Drop, ReasonUntracked)
	case o.Status != payment.Pending:
		return d.end(Drop, ReasonAlreadyFinal)
	case o.Dead:
		return d.end(Drop, ReasonWithPerson)
	case !o.TokenCurrent:
		return d.end(Drop, ReasonStale)
	case o.Answer != nil:
		return p.answered(o, d, *o.Answer)
	case p.PoisonDeliveries > 0 && o.Unrecorded >= p.PoisonDeliveries:
		return d.end(DeadLetter, ReasonPoison)
	case o.UntilDue > Early:
		return p.giveBack(o, d, ReasonEarly, o.UntilDue)
	case p.NeverPoll:
		return p.watch(o, d)
	case o.Open:
		return p.outage(o, d)
	case o.Paused > 0:
		d.Reason = ReasonPaused
		return p.wait(o, d, later(o.Paused, o.Chance))
	}
	return d.end(Poll, ReasonDue)
}

// watch lets a payment sleep that only a webhook can finish, until its deadline or its window ends, whichever is first: then a person is asked.
func (p Policy) watch(o Observation, d Disposition) Disposition {
	left := MaxDelay
	switch {
	case o.HasDeadline && o.UntilDeadline <= 0:
		return d.end(DeadLetter, ReasonDeadline)
	case p.Window > 0 && o.Age >= p.Window:
		return d.end(DeadLetter, ReasonWindow)
	case p.Window > 0:
		left = min(left, p.Window-max(o.Age, 0))
	}
	if o.HasDeadline {
		left = min(left, o.UntilDeadline)
	}
	d.Delay = max(left, MinDelay)
	return d.end(Park, ReasonWatched)
}

// answered decides after a poll.
func (p Policy) answered(o Observation, d Disposition, a gateway.Answer) Disposition {
	retryAfter := min(max(a.RetryAfter, 0), p.MaxRetryAfter)
	switch a.Class {
	case gateway.Final:
		if !a.Status.Final() { // an adapter that says Final without a final status said nothing
			return p.failed(o, d, retryAfter)
		}
		d.Status, d.Detail = a.Status, a.Detail
		return d.counted().end(Resolve, ReasonResolved)
	case gateway.Pending:
		d.Detail = a.Detail
		return p.again(o, d, ReasonStillPending, retryAfter)
	case gateway.UnknownStatus:
		d.Detail = a.Detail
		return p.again(o, d, ReasonUnknownStatus, retryAfter)
	case gateway.NotFound:
		d.Detail = a.Detail
		return p.notFound(o, d, retryAfter)
	case gateway.Mismatch: // its detail is about something else
		return d.counted().end(DeadLetter, ReasonMismatch)
	case gateway.Transport, gateway.Malformed:
		return p.failed(o, d, retryAfter)
	case gateway.RateLimited:
		return p.free(o, d, ReasonRateLimited, retryAfter)
	case gateway.Unauthorized:
		if o.Open {
			return p.asleep(o, d)
		}
		return p.free(o, d, ReasonUnauthorized, max(retryAfter, p.UnauthorizedDelay))
	default: // gateway.Local and whatever is not a class
		return p.giveBack(o, d, ReasonLocal, LocalDelay)
	}
}

// again schedules the next poll after an answer that was not final: the pending curve, attempts counted.
func (p Policy) again(o Observation, d Disposition, r Reason, retryAfter time.Duration) Disposition {
	n := d.Counters.Attempts
	d = d.counted()
	if why := p.exhausted(o, d.Counters); why != "" {
		return d.end(DeadLetter, why)
	}
	d.Reason = r
	return p.wait(o, d, p.notBefore(o, p.Pending.Delay(n, o.Previous, o.Chance), retryAfter))
}

// failed schedules the next poll after a call that failed: the error curve, failures counted. When the breaker is open by
// now, it says for all payments what the failure says for this one: the payment sleeps with the others and pays nothing,
// so that an outage costs none of them its bounds, not even those that serve as probes.
func (p Policy) failed(o Observation, d Disposition, retryAfter time.Duration) Disposition {
	if o.Open {
		return p.outage(o, d)
	}
	n := d.Counters.Failures
	d.Counters.Failures = bump(n)
	if why := p.exhausted(o, d.Counters); why != "" {
		return d.end(DeadLetter, why)
	}
	d.Reason = ReasonFailure
	return p.wait(o, d, p.notBefore(o, p.Error.Delay(n, o.Previous, o.Chance), retryAfter))
}

// notFound schedules the next poll after an answer that the gateway does not know the payment: the error curve, by such
// answers in a row. Inside the grace that is normal and spends nothing; only the payment's own deadline ends it there.
func (p Policy) notFound(o Observation, d Disposition, retryAfter time.Duration) Disposition {
	n := d.Counters.NotFounds
	normal := o.Age <= p.NotFoundGrace
	if !normal {
		d = d.counted()
	}
	d.Counters.NotFounds, d.Counters.Failures = bump(n), 0
	why := p.exhausted(o, d.Counters)
	switch {
	case !normal && d.Counters.NotFounds >= NotFoundConfirmations:
		return d.end(DeadLetter, ReasonNotFound)
	case why == ReasonDeadline, !normal && why != "":
		return d.end(DeadLetter, why)
	}
	d.Reason = ReasonNotFound
	return p.wait(o, d, p.notBefore(o, p.Error.Delay(n, o.Previous, o.Chance), retryAfter))
}

// free schedules the next poll after an answer that must cost the payment nothing. There is no counter to grow the
// delay by, so it grows from the delay before: by one to two times, up to what the error curve gives.
func (p Policy) free(o Observation, d Disposition, r Reason, atLeast time.Duration) Disposition {
	delay := p.Error.Delay(o.Counters.Failures, o.Previous, o.Chance)
	grown := min(scale(max(o.Previous, 0), 1+o.Chance), p.Error.Max())
	d.Reason = r
	return p.wait(o, d, p.notBefore(o, max(delay, grown), atLeast))
}

// notBefore moves a delay behind the instant that the gateway named and behind its least interval, and before the payment's own deadline: its
// last poll is then. What the gateway asked for is kept all the same.
func (p Policy) notBefore(o Observation, delay, retryAfter time.Duration) time.Duration {
	var least time.Duration
	if retryAfter = max(retryAfter, p.MinInterval); retryAfter > 0 {
		least = later(retryAfter, 0)
		delay = max(delay, later(retryAfter, o.Chance))
	}
	if o.HasDeadline && o.UntilDeadline > 0 && delay > o.UntilDeadline {
		return max(o.UntilDeadline, least)
	}
	return delay
}

// later is an instant that many payments were told, and a little later by chance, so that they do not all come at once. It
// is later by Early at least, for a delivery that comes early by so much is polled.
func later(d time.Duration, chance float64) time.Duration {
	d = min(d, MaxDelay)
	return d + Early + scale(min(d/10, 5*time.Second), chance)
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

// giveBack returns a delivery that costs nothing to the broker. It is parked instead when the broker would have to keep it for
// longer than a message may be held, and when one more delivery without a record would make it look like poison.
func (p Policy) giveBack(o Observation, d Disposition, r Reason, delay time.Duration) Disposition {
	d.Verb, d.Reason, d.Delay = Return, r, delay
	if delay > max(p.HoldLimit, LocalDelay) || p.PoisonDeliveries > 0 && o.Unrecorded >= p.PoisonDeliveries-1 {
		d.Verb = Park
	}
	return d
}

// exhausted returns the bound that is reached after a poll, or no reason.
func (p Policy) exhausted(o Observation, c Counters) Reason {
	switch {
	case o.HasDeadline && o.UntilDeadline <= 0:
		return ReasonDeadline
	case p.MaxAttempts > 0 && c.Attempts >= p.MaxAttempts:
		return ReasonAttempts
	case p.MaxFailures > 0 && c.Failures >= p.MaxFailures:
		return ReasonFailures
	case p.Window > 0 && o.Age >= p.Window:
		return ReasonWindow
	}
	return ""
}

func (d Disposition) end(v Verb, r Reason) Disposition {
	d.Verb, d.Reason = v, r
	return d
}

// counted counts an answer: an attempt, and the end of whatever was in a row.
func (d Disposition) counted() Disposition {
	d.Counters.Attempts = bump(d.Counters.Attempts)
	d.Counters.Failures, d.Counters.NotFounds = 0, 0
	return d
}

// outage puts the payment to sleep behind an open breaker, unless it has waited for as long as it may: a gateway that never comes back
// must not keep a payment from a person.
func (p Policy) outage(o Observation, d Disposition) Disposition {
	switch {
	case o.HasDeadline && o.UntilDeadline <= 0:
		return d.end(DeadLetter, ReasonDeadline)
	case p.Window > 0 && p.patience(o) <= 0:
		return d.end(DeadLetter, ReasonWindow)
	}
	return p.asleep(o, d)
}

// asleep puts the payment to sleep until the breaker half-opens. It is looked at again when it may not wait any longer.
func (p Policy) asleep(o Observation, d Disposition) Disposition {
	d.Counters.Deferrals = bump(d.Counters.Deferrals)
	d.Delay = LookAgain
	if o.HasDeadline {
		d.Delay = min(d.Delay, o.UntilDeadline)
	}
	if p.Window > 0 {
		d.Delay = min(d.Delay, p.patience(o))
	}
	return d.end(Defer, ReasonCircuitOpen)
}

// patience is how much longer a payment with a window may sleep behind an open breaker, cut where it is longer than matters.
func (p Policy) patience(o Observation) time.Duration {
	return min(p.Window-max(o.Age, 0), LookAgain) + min(max(p.OutageGrace, 0), maxOutageGrace)
}

func bump(n int) int {
	if n < maxCounter {
		return n + 1
	}
	return n
}

// maxCounter is the largest value of an integer column.
const maxCounter = 1<<31 - 1
