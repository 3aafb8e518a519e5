package webhook

import (
	"context"
	"errors"
	"time"

	"pollux/internal/payment"
)

// Arrival is a notice that was verified.
type Arrival struct {
	Notice
	Gateway string
	Account string
	Key     string   // the name of the key that signed it
	Digest  [32]byte // SHA-256 of the request's body
	Body    []byte   // of what is set aside; nil otherwise
}

// Reused is what is set aside of an arrival whose event id belongs to another one that waits: it is kept by its digest, for a person, and the other is judged.
func (a Arrival) Reused() Arrival {
	a.Fault = "another notification waits under its id " + a.ID
	a.ID, a.Effect = digestID(a.Digest), Nothing
	return a
}

// Verdict is what became of an arrival.
type Verdict struct {
	Gateway     string
	Decision    Decision
	Why         string
	Payment     payment.ID    // 0 when it is not tracked
	Class       string        // of the payment
	Age         time.Duration // of the payment: since it was tracked
	TraceParent string        // of the payment; empty: none
	Altered     bool          // it came before under the same id, and was not the same
}

// count counts a verdict.
func (v Verdict) count(m Metrics) {
	m.WebhookNotice(v.Gateway, v.Decision)
	if v.Decision == Applied {
		m.WebhookFinal(v.Gateway, v.Class, v.Age)
	}
}

// Record is where notices are kept and applied.
type Record interface {
	// Take keeps arrivals that did not come before, judges and applies them, all in one transaction, and returns a verdict for each in their order.
	// An error means that nothing was kept: ErrRefused when the database would refuse one of them again tomorrow.
	Take(ctx context.Context, arrivals []Arrival) ([]Verdict, error)
	// Ping reports whether the record can be reached.
	Ping(ctx context.Context) error
}

// ErrRefused is the error of arrivals that the database refuses, today and tomorrow.
var ErrRefused = errors.New("the database refuses a notification")

// Keeper looks after what was kept.
type Keeper interface {
	// LookAgain judges up to n notices again that wait and are due, and gives up on those that came longer ago than patience. It returns fewer than n
	// verdicts when no more are due.
	LookAgain(ctx context.Context, n int, patience time.Duration) ([]Verdict, error)
	// Meet looks for payments that were tracked newly, those with an id above after and among the n newest, and has notices that wait for one of them looked at
	// now. While nothing waits it reads none.
	Meet(ctx context.Context, after int64, n int) (Sighting, error)
	// Forget takes away up to n notices that came longer ago than keep, and returns how many.
	Forget(ctx context.Context, keep time.Duration, n int) (int, error)
	// Quiet says of each gateway how long ago it was heard, and whether at least n payments have been pending for longer than after.
	Quiet(ctx context.Context, gateways []string, after time.Duration, n int) ([]Quiet, error)
	// Densen makes the polls of a gateway due within a time, up to n of those that sleep longer, and returns how many.
	Densen(ctx context.Context, gateway string, within time.Duration, n int) (int, error)
}

// Quiet is how long a gateway has not been heard of.
type Quiet struct {
	Gateway string
	Heard   bool          // it was heard at all
	For     time.Duration // since it was heard last
	Waiting bool          // enough payments wait for it
}

// silent reports whether a gateway says nothing although payments wait for it.
func (q Quiet) silent(s Silence) bool { return q.Waiting && (!q.Heard || q.For > s.After) }

// Outcome is how a request ended.
type Outcome string

// The outcomes.
const (
	Accepted    Outcome = "accepted"    // kept; 200
	Refused     Outcome = "refused"     // not believed; the same answer whatever was wrong
	Unavailable Outcome = "unavailable" // cannot be checked or kept now; 503, so that the sender comes again
	Full        Outcome = "full"        // genuine, and there is no place for it now; 503
)

// Outcomes are all outcomes, in a fixed order.
var Outcomes = []Outcome{Accepted, Refused, Unavailable, Full}

// Tracer makes the spans of what was taken.
type Tracer interface {
	// Took makes the span of a request of a gateway that came at an instant and was kept just now, with a verdict for each of its notices.
	Took(gateway string, came time.Time, verdicts []Verdict)
}

// Metrics is what a receiver counts. Gateways that are not configured are counted as one.
type Metrics interface {
	WebhookRequest(gateway string, o Outcome, took time.Duration)
	WebhookRefused(gateway string, r Refusal)
	WebhookNotice(gateway string, d Decision)
	// WebhookFinal says that a notice made a payment final, so long after it was tracked.
	WebhookFinal(gateway, class string, age time.Duration)
	WebhookHint(gateway string, o HintOutcome)
	WebhookBatch(n int, took time.Duration)
	WebhookSilence(gateway string, silent bool, quiet time.Duration)
	WebhookEvicted()
}
