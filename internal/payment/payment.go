// Package payment is the vocabulary of what Pollux keeps: a payment, its status and the transitions
// between statuses. It is pure: values in, values out.
package payment

import "time"

// ID is the identity of a payment in the record (payments.id). Zero is no payment.
type ID int64

// Status is where a payment stands. The zero value is not a status.
type Status string

// The statuses of a payment. Everything else that a gateway says lives in the status detail.
const (
	Pending   Status = "pending"
	Succeeded Status = "succeeded"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
	Expired   Status = "expired"
)

// Statuses are all statuses, pending first.
var Statuses = []Status{Pending, Succeeded, Failed, Cancelled, Expired}

// Valid reports whether s is one of Statuses.
func (s Status) Valid() bool {
	switch s {
	case Pending, Succeeded, Failed, Cancelled, Expired:
		return true
	}
	return false
}

// Final reports whether s ends the polling of a payment.
func (s Status) Final() bool { return s.Valid() && s != Pending }

// Transition says what moving from one status to another means.
type Transition uint8

// The kinds of transition. A conflict is recorded and shown to a person; it changes nothing.
const (
	Conflict    Transition = iota // contradicts a final status
	Same                          // nothing changes
	Resolution                    // pending to a final status
	LateSuccess                   // failed, cancelled or expired turned out to have succeeded
)

// String returns the transition's name as it is stored and shown.
func (t Transition) String() string {
	switch t {
	case Same:
		return "same"
	case Resolution:
		return "resolution"
	case LateSuccess:
		return "late_success"
	default:
		return "conflict"
	}
}

// Between classifies the change from one status to another. Succeeded never changes; failed, cancelled and
// expired may still become succeeded, because real gateways report that for days.
func Between(from, to Status) Transition {
	switch {
	case !from.Valid() || !to.Valid():
		return Conflict
	case from == to:
		return Same
	case from == Pending:
		return Resolution
	case to == Succeeded:
		return LateSuccess
	default:
		return Conflict
	}
}

// Source says who moved a payment to its status.
type Source string

// The sources of a status.
const (
	ByPoll           Source = "poll"
	ByWebhook        Source = "webhook"
	ByOperator       Source = "operator"
	ByReconciliation Source = "reconciliation"
)

// Payment is a payment as the consumer needs it to ask the gateway. AmountMinor is in the minor unit of Currency
// (ISO 4217: cents for EUR, yen for JPY, fils for KWD).
type Payment struct {
	ID                ID
	Gateway           string
	Account           string
	Reference         string
	MerchantReference string
	Class             string
	Lane              string
	AmountMinor       int64
	Currency          string
	Status            Status
	TraceParent       string
	CreatedAt         time.Time
}
