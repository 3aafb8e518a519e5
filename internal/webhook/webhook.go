// Package webhook takes gateways' notifications: it verifies them over their raw bytes, keeps each once, and applies what they say
// about a payment in the transaction that keeps them.
//
// It knows no vendor. How a vendor signs and what its words mean is a Scheme, which lives with the vendor's adapter.
package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"time"

	"pollux/internal/card"
	"pollux/internal/payment"
)

// Request is a notification as it came. Nothing of it is to be believed before its Scheme has verified it.
type Request struct {
	Method string
	Host   string
	Path   string // escaped, as it came
	Header http.Header
	Body   []byte    // the raw bytes; nil while only the head was read
	At     time.Time // when it came, by this machine's clock

	RawQuery string // escaped, as it came, without the question mark
}

// HexSHA256 returns the sum that a header has in hex, or RefusedUnsigned when it is not there once and of that form.
func (r *Request) HexSHA256(header string) ([]byte, error) {
	values := r.Header.Values(header)
	if len(values) != 1 {
		return nil, RefusedUnsigned
	}
	sum, err := hex.DecodeString(values[0])
	if err != nil || len(sum) != sha256.Size {
		return nil, RefusedUnsigned
	}
	return sum, nil
}

// Scheme is how one account of a gateway signs its notifications and what they mean. Its methods are safe for concurrent use, do not change
// the request and never panic, whatever it holds.
type Scheme interface {
	// Glance refuses what cannot be genuine by its head alone, so that nothing is read or computed for it. Its error is a Refusal.
	Glance(r *Request) error
	// Verify tells who knows a key from who does not, by the raw bytes and in a time that does not depend on where they differ. It returns the
	// name of the key. Its error is a Refusal, or ErrUnavailable when nobody can tell now.
	Verify(ctx context.Context, r *Request) (key string, err error)
	// Parse reads a verified request. An error says for a person why it can never be read; what is wrong with a single notice of several
	// stands in that notice.
	Parse(r *Request) ([]Notice, error)
}

// Preparer is a Scheme that must have something of the vendor's before it can verify. Prepare is called behind Glance and may take seconds: it holds no place
// that others wait for. Its error is like that of Verify.
type Preparer interface {
	Prepare(ctx context.Context, r *Request) error
}

// Refusal is why a request is not believed. It is the same answer for whoever sent it, and a label for us.
type Refusal string

// The refusals.
const (
	RefusedUnknown   Refusal = "unknown"   // no such gateway or account receives notifications
	RefusedUnsigned  Refusal = "unsigned"  // the signature is not there, or not of its form
	RefusedTimestamp Refusal = "timestamp" // signed too long ago, or in the future
	RefusedSignature Refusal = "signature" // no key of ours made it
	RefusedSender    Refusal = "sender"    // what it names as its proof is not the vendor's
	RefusedSize      Refusal = "size"      // larger than a notification is
	RefusedSlow      Refusal = "slow"      // it did not come whole, or not in time
)

// Refusals are all refusals, in a fixed order.
var Refusals = []Refusal{RefusedUnknown, RefusedUnsigned, RefusedTimestamp, RefusedSignature, RefusedSender, RefusedSize, RefusedSlow}

// Error returns the refusal for a log.
func (r Refusal) Error() string { return "refused: " + string(r) }

// ErrUnavailable is the error of a check that cannot be made now: the sender is asked to come again.
var ErrUnavailable = errors.New("the notification cannot be checked now")

// Effect is what a notice may do.
type Effect uint8

// The effects. The zero value does nothing.
const (
	Nothing Effect = iota // it is about no payment's status
	Hint                  // something changed, and what is not signed: poll now
	Report                // it says where a payment stands
)

// Money is an amount in the minor unit of its currency (ISO 4217).
type Money struct {
	Minor    int64
	Currency string
}

// Notice is one thing that a gateway tells.
type Notice struct {
	ID         string         // the vendor's id of the event, or a key of all that makes it one
	Kind       string         // the vendor's name for what happened
	References []string       // the gateway's ids of the payment, the likeliest first; for an effect at least one
	Effect     Effect         //
	Status     payment.Status // of a Report
	Detail     string         // why it is pending or how it ended, in our words
	Money      *Money         // what it is about, to be compared with what is tracked; nil: it does not say, or need not be compared
	Part       bool           // it may be about a part of the payment only: with other money than tracked it is a Hint
	OccurredAt time.Time      // when it happened at the gateway; zero when that is not said
	Mode       string         // "live" or "test"; empty when that is not said
	Fault      string         // not empty: genuine and of no use, and why, for a person; it is set aside
	Refused    Refusal        // not empty: this one of several is not genuine
}

// The longest texts of a notice, in bytes. A reference and an event id are printable ASCII without blanks: that is what a payment's reference
// is, and what every vendor's ids are.
const (
	MaxID         = 255
	MaxReferences = 4
)

// sound returns the notice, or one that is set aside where a part of it cannot be kept or found again.
func (n Notice) sound(mode string) Notice {
	fault := n.Fault
	switch {
	case fault != "":
	case !token(n.ID):
		fault = "its id is not 1 to 255 printable characters"
	case n.Effect != Nothing && len(n.References) == 0:
		fault = "it names no payment"
	case n.Effect == Report && !n.Status.Valid():
		fault = "it says nothing about a status"
	case mode != "" && n.Mode != "" && n.Mode != mode:
		fault = "it is about " + n.Mode + " payments, and this endpoint is for " + mode + " ones"
	}
	named := ReferencesOf(n.References...)
	if len(named) < len(n.References) && fault == "" {
		fault = "its reference is not 1 to 255 printable characters"
	}
	if n.References = named; len(named) > MaxReferences {
		n.References = named[:MaxReferences]
	}
	n.Kind = card.Mask(n.Kind)
	if fault != "" {
		n.Fault, n.Effect = card.Mask(fault), Nothing // its references tell a person which payment it was about
	}
	return n
}

// ReferencesOf are those of ids that can be references: a vendor's notification has several, and some are empty or whatever a merchant wrote.
func ReferencesOf(ids ...string) []string {
	var all []string
	for _, id := range ids {
		if token(id) {
			all = append(all, id)
		}
	}
	return all
}

// IDOf is the id of an event that has none of its own: what makes it one, or the digest of that where it is no id.
func IDOf(parts ...string) string {
	id := strings.Join(parts, ":")
	if !token(id) {
		return DigestID([]byte(id))
	}
	return id
}

// token reports whether s is 1 to MaxID printable ASCII characters without blanks.
func token(s string) bool {
	return s != "" && len(s) <= MaxID && !strings.ContainsFunc(s, func(r rune) bool { return r < '!' || r > '~' })
}
