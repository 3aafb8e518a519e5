package breaker

import "pollux/internal/gateway"

// Outcome is how a call that the breaker admitted ended. The zero value is Inconclusive, so that a forgotten outcome trips nothing.
type Outcome uint8

// The outcomes of a call.
const (
	Inconclusive Outcome = iota // says nothing about the gateway: our own trouble, cancelled, a rate limit; gives a probe's place back
	Success                     // the gateway answered, whatever about
	Failure                     // the gateway is not available
	Refused                     // the gateway refused our credentials
)

var outcomeNames = [...]string{"inconclusive", "success", "failure", "refused"}

// Outcomes are all outcomes in a fixed order.
var Outcomes = []Outcome{Inconclusive, Success, Failure, Refused}

// String returns the outcome as it is logged and used as a metric label.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "inconclusive"
}

// OutcomeOf says what a class of answer tells about the gateway. An answer about a payment, even "not found" or a decline, is a
// success: the gateway works. A rate limit is neither, it is the limiter's business; and it often comes from a
// place that knows nothing of the health behind it, nor of the key.
func OutcomeOf(c gateway.Class) Outcome {
	switch c {
	case gateway.Pending, gateway.Final, gateway.NotFound, gateway.UnknownStatus, gateway.Mismatch:
		return Success
	case gateway.Transport, gateway.Malformed:
		return Failure
	case gateway.Unauthorized:
		return Refused
	}
	return Inconclusive
}
