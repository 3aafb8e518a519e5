package webhook

import (
	"time"

	"pollux/internal/payment"
	"pollux/internal/payment/currency"
)

// Decision is what became of a notice.
type Decision string

// The decisions.
const (
	Applied     Decision = "applied"      // the payment became final
	LateSuccess Decision = "late_success" // a payment that had ended otherwise has succeeded
	Noted       Decision = "noted"        // it is still pending, and we know better why
	Hastened    Decision = "hastened"     // it is polled now
	Same        Decision = "same"         // the record says so already
	Stale       Decision = "stale"        // the record knows something newer
	Ignored     Decision = "ignored"      // it is about no payment's status
	Waiting     Decision = "waiting"      // kept until its payment is tracked
	Lapsed      Decision = "lapsed"       // its payment was never tracked
	LateHint    Decision = "late_hint"    // something changed after a payment had ended without success; for a person
	Conflicting Decision = "conflict"     // it contradicts a final status; for a person
	Mismatched  Decision = "mismatch"     // another amount or currency than tracked; for a person
	Quarantined Decision = "quarantined"  // genuine and of no use; for a person
	Duplicate   Decision = "duplicate"    // it came before
)

// Decisions are all decisions, in a fixed order.
var Decisions = []Decision{Applied, LateSuccess, Noted, Hastened, Same, Stale, Ignored, Waiting, Lapsed, LateHint, Conflicting, Mismatched, Quarantined, Duplicate}

// ForPerson reports whether somebody must look at what came.
func (d Decision) ForPerson() bool {
	return d == LateHint || d == Conflicting || d == Mismatched || d == Quarantined
}

// Standing is what the record says about the payment of a notice. The zero value is a payment that is not tracked.
type Standing struct {
	Tracked     bool
	Payment     payment.ID
	Status      payment.Status
	Detail      string
	AmountMinor int64
	Currency    string
	Since       time.Time // of what the record knows: when it happened at the gateway, or when the gateway was asked; zero when nothing is known
	Now         time.Time // when the record was read
	Polling     bool      // a poll is with the broker or under way
	Class       string    // of the payment
	TrackedAt   time.Time // when the payment was tracked
	TraceParent string    // of the payment; empty: none
	Forced      bool      // an operator gave it its status: whatever the gateway says against it, and whenever that was, is for a person
}

// Judge decides what becomes of a notice, and says why where that is not plain. It depends on its arguments alone.
func Judge(n Notice, s Standing) (Decision, string) {
	switch {
	case n.Fault != "":
		return Quarantined, n.Fault
	case n.Effect == Nothing:
		return Ignored, ""
	case !s.Tracked:
		return Waiting, "no such payment is tracked yet"
	case n.Effect == Hint:
		return judgeHint(n, s)
	}
	why := differs(n.Money, s)
	switch {
	case why != "" && n.Part:
		return judgeHint(n, s)
	case why != "":
		return Mismatched, why
	}
	return judgeReport(n, s)
}

// settling is how long after the record came to know a final status hints without a time of their own are taken to be about it: vendors tell of one
// change several times.
const settling = time.Minute

func judgeHint(n Notice, s Standing) (Decision, string) {
	switch {
	case s.Status == payment.Succeeded, s.Status.Final() && !news(n, s):
		return Same, "the payment is " + string(s.Status)
	case s.Status.Final(): // it is polled no more
		return LateHint, "something changed after the payment was " + string(s.Status) + ": ask its gateway with pollux gateway test"
	case s.Polling: // it may have asked before this happened
		return Waiting, "a poll is under way; another one follows it"
	}
	return Hastened, ""
}

// news reports whether a hint may be about something that the record does not know.
func news(n Notice, s Standing) bool {
	at := n.OccurredAt
	if at.IsZero() {
		at = s.Now.Add(-settling)
	}
	return s.Since.IsZero() || at.After(s.Since)
}

// differs says how the money of a notice is not that of the payment.
func differs(m *Money, s Standing) string {
	if m == nil || m.Minor == s.AmountMinor && m.Currency == s.Currency {
		return ""
	}
	return "the gateway says " + currency.Format(m.Minor, m.Currency) + ", tracked is " + currency.Format(s.AmountMinor, s.Currency)
}

func judgeReport(n Notice, s Standing) (Decision, string) {
	if s.Forced && n.Status.Final() && n.Status != s.Status {
		return Conflicting, "the gateway says " + string(n.Status) + ", an operator forced " + string(s.Status)
	}
	switch payment.Between(s.Status, n.Status) {
	case payment.Resolution:
		if n.Status != payment.Succeeded && older(n, s) { // a shopper has tried once more since
			return Stale, "it was pending after that"
		}
		return Applied, ""
	case payment.LateSuccess:
		return LateSuccess, "it was " + string(s.Status)
	case payment.Same:
		switch {
		case s.Status.Final() || n.Detail == s.Detail:
			return Same, ""
		case older(n, s):
			return Stale, ""
		}
		return Noted, ""
	}
	switch {
	case older(n, s), n.Status == payment.Pending && s.Status != payment.Succeeded: // a shopper tries once more; only a success would count
		return Stale, "the payment is " + string(s.Status)
	}
	return Conflicting, "the gateway says " + string(n.Status) + ", the payment is " + string(s.Status)
}

// older reports whether a notice is about something that happened before what the record knows. Vendors count in seconds: of a pending and
// a final status in the same one, the final one is the newer.
func older(n Notice, s Standing) bool {
	if n.OccurredAt.IsZero() || s.Since.IsZero() {
		return false
	}
	return n.OccurredAt.Before(s.Since) || n.Status == payment.Pending && n.OccurredAt.Equal(s.Since)
}
