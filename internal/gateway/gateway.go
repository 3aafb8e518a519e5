// Package gateway says how asking a payment gateway (PSP) can go: what is asked, and the classes an answer
// falls into. It is pure; the adapters that really ask live below it, one folder per gateway.
package gateway

import (
	"time"

	"pollux/internal/payment"
)

// Mode says whether the money of a gateway is real. The zero value is none.
type Mode string

// The modes.
const (
	Live Mode = "live"
	Test Mode = "test"
)

// Polling says how often a gateway may be asked about a payment. The zero value is Freely.
type Polling uint8

// The ways of polling.
const (
	Freely    Polling = iota // as often as the policy says
	Sparingly                // not sooner than MinInterval after the last time
	Never                    // it cannot be asked: it reports by webhook alone, and its payments are watched by their deadline and their window
)

// Capabilities are what can be done with a gateway. The zero value is a gateway that is asked by its own ids, as often as the policy says.
type Capabilities struct {
	Polling       Polling
	MinInterval   time.Duration // between two polls of one payment; more than 0 when Polling is Sparingly
	ByMerchantRef bool          // a payment can be found by our own reference: see Query.ByMerchantRef
	List          bool          // the payments of a period can be listed, for comparing them with the record
}

// Query is what a poll asks: the state of one payment.
type Query struct {
	Payment     payment.ID
	Account     string // which of the gateway's accounts; empty is the default one
	Reference   string // the gateway's id of the payment
	MerchantRef string // our own reference, for gateways that can look it up
	AmountMinor int64  // expected, in the minor unit of Currency
	Currency    string // expected, ISO 4217
	TraceParent string // W3C trace context to pass on; may be empty
}

// ByMerchantRef reports whether the payment has no id of the gateway's: it was tracked with our own reference in both places, as a payment is
// whose creation was never answered. Adapters with the capability then ask for our reference.
func (q Query) ByMerchantRef() bool { return q.MerchantRef != "" && q.Reference == q.MerchantRef }

// Class is the class of an answer. It alone decides what becomes of a delivery. The zero value is Local, so that a
// forgotten class costs nothing.
type Class uint8

// The classes of an answer.
const (
	Local         Class = iota // our own pool, DNS configuration, shutdown: costs nothing, counts nowhere
	Pending                    // a real status that is not final yet
	Final                      // a real status that ends the payment
	Transport                  // DNS, refused, reset, timeout, cut body, 5xx, an HTML error page
	RateLimited                // 429, or whatever the gateway says instead
	Unauthorized               // 401, 403, expired key
	NotFound                   // the gateway does not know the payment (yet)
	Malformed                  // a 200 whose body is empty, undecodable or wrong in shape
	UnknownStatus              // a status that the map does not have
	Mismatch                   // the answer is about another payment, amount, currency or mode
)

var classNames = [...]string{
	Local: "local", Pending: "pending", Final: "final", Transport: "transport", RateLimited: "rate_limited",
	Unauthorized: "unauthorized", NotFound: "not_found", Malformed: "malformed", UnknownStatus: "unknown_status",
	Mismatch: "mismatch",
}

// Classes are all classes of answer, in a fixed order.
var Classes = []Class{Local, Pending, Final, Transport, RateLimited, Unauthorized, NotFound, Malformed, UnknownStatus, Mismatch}

// String returns the class as it is stored, logged and used as a metric label.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "local"
}

// ClassOf is the inverse of String. It reports false for a name that is no class.
func ClassOf(name string) (Class, bool) {
	for c, n := range classNames {
		if n == name {
			return Class(c), true
		}
	}
	return Local, false
}

// Failed reports whether the call counts as a failed one: nobody learned anything about the payment.
func (c Class) Failed() bool { return c == Transport || c == Malformed || c == NotFound }

// Answer is how one poll went. It never carries a secret, a card number or a whole body.
type Answer struct {
	Class         Class
	Status        payment.Status // the final status when Class is Final; Pending otherwise
	Detail        string         // why it is pending or how it ended, in our words: processing, requires_action, …
	HTTPStatus    int            // 0 when no response came
	GatewayStatus string         // the gateway's own word, cut to 64 bytes of printable UTF-8
	RetryAfter    time.Duration  // how long the gateway asked us to wait; 0 when it did not say
	Message       string         // for a person: what went wrong, redacted, at most 512 bytes
	Took          time.Duration  // from sending the request to the last byte of the answer
}

// Period asks for a list: the payments that were made from From on and before To.
type Period struct {
	Account  string // which of the gateway's accounts; empty is the default one
	From, To time.Time
	Next     string // Page.Next of the page before; empty for the first
}

// Listed is one payment of a gateway's list. Its answer is judged as if the payment had been asked for by its own id and its own money: it says what
// the gateway thinks of the payment, and nothing about what we expected.
type Listed struct {
	Answer      Answer
	Reference   string // the gateway's id
	Parent      string // what it is a try of: an order; empty when the gateway has none
	MerchantRef string // our own reference; empty when the list does not have it
	AmountMinor int64
	Currency    string
	CreatedAt   time.Time
}

// Page is a part of a gateway's list. Next leads to the following one; it is empty on the last.
type Page struct {
	Payments []Listed
	Next     string
}
