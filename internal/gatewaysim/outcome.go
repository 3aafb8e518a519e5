package gatewaysim

import "fmt"

// Outcome is what the simulator did with a call: it answered rightly, or with one of the faults. The zero value is Answered.
type Outcome uint8

// The outcomes. Those that a share of calls, or a payment of its own, can be given are marked "fault".
const (
	Answered      Outcome = iota // the payment's true status
	ServerError                  // fault: 500 with an error in JSON
	BadGateway                   // fault: 502 with a page of HTML
	Unavailable                  // fault: 503 with an error in JSON
	Reset                        // fault: the connection is reset before a byte of the answer
	Timeout                      // fault: accepted and never answered
	CutHeaders                   // fault: closed after the headers
	CutBody                      // fault: closed in the middle of the body
	Empty                        // fault: 200 without a body
	EmptyObject                  // fault: 200 with {}
	Null                         // fault: 200 with null
	HTML                         // fault: 200 with a page of HTML
	OtherID                      // fault: the answer is about another payment
	OtherAmount                  // fault: the amount is another
	OtherCurrency                // fault: the currency is another
	UnknownStatus                // fault: a status that the dialect does not have
	Drip                         // fault: the body comes at one byte a second
	Redirect                     // fault: 302 to another host
	GzipBomb                     // fault: a megabyte of gzip that becomes a gigabyte
	Unauthorized                 // fault: 401, the key is refused
	NotFound                     // fault: 404, no such payment
	RateLimited                  // 429 with Retry-After
	BadRequest                   // another method than GET
	Abandoned                    // the client left before it was answered
	outcomes      int     = iota
)

var outcomeNames = [outcomes]string{
	Answered: "answered", ServerError: "http_500", BadGateway: "http_502_html", Unavailable: "http_503", Reset: "reset",
	Timeout: "timeout", CutHeaders: "cut_headers", CutBody: "cut_body", Empty: "empty", EmptyObject: "empty_object", Null: "null",
	HTML: "html", OtherID: "other_id", OtherAmount: "other_amount", OtherCurrency: "other_currency",
	UnknownStatus: "unknown_status", Drip: "drip", Redirect: "redirect", GzipBomb: "gzip_bomb", Unauthorized: "unauthorized",
	NotFound: "not_found", RateLimited: "rate_limited", BadRequest: "bad_request", Abandoned: "abandoned",
}

// Faults are all outcomes that a call can be given by chance, in a fixed order.
var Faults = []Outcome{
	ServerError, BadGateway, Unavailable, Reset, Timeout, CutHeaders, CutBody, Empty, EmptyObject, Null, HTML, OtherID,
	OtherAmount, OtherCurrency, UnknownStatus, Drip, Redirect, GzipBomb, Unauthorized, NotFound,
}

// String returns the outcome as it is logged, counted and scripted.
func (o Outcome) String() string {
	if int(o) < outcomes {
		return outcomeNames[o]
	}
	return fmt.Sprintf("outcome_%d", uint8(o))
}

// OutcomeOf is the inverse of String. It reports false for a name that is no outcome.
func OutcomeOf(name string) (Outcome, bool) {
	for o, n := range outcomeNames {
		if n == name {
			return Outcome(o), true
		}
	}
	return Answered, false
}

// MarshalText writes the outcome's name.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads an outcome's name; an empty one is Answered.
func (o *Outcome) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*o = Answered
		return nil
	}
	found, ok := OutcomeOf(string(text))
	if !ok {
		return fmt.Errorf("outcome %.40q is not known", text)
	}
	*o = found
	return nil
}

// fault reports whether calls can be given this outcome by chance.
func (o Outcome) fault() bool { return o >= ServerError && o <= NotFound }

// mismatch reports whether the answer is a good one about something else: a person has to look at it.
func (o Outcome) mismatch() bool { return o >= OtherID && o <= OtherCurrency }
