package gatewaysim

import (
	"regexp"
	"strconv"

	"pollux/internal/payment"
)

// MaxReference is the length of the longest reference, in bytes.
const MaxReference = 128

// MaxAmountMinor is the largest amount, in minor units. It stays exact in a client that reads numbers as floats.
const MaxAmountMinor = 1e15

var (
	spoken   = regexp.MustCompile(`^[A-Za-z0-9._-]+_([0-9]{1,16})_([A-Z]{3})(?:_([a-z0-9_]+))?$`)
	currency = regexp.MustCompile(`^[A-Z]{3}$`)
)

// validReference reports whether a payment may have this reference: a letter or digit, then letters, digits, dots, dashes and
// underscores. So a reference stands in a URL, in JSON and in a log as it is.
func validReference(s string) bool {
	if s == "" || len(s) > MaxReference || !alphanumeric(s[0]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; !alphanumeric(c) && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// speaking reads a reference that says itself what its payment is: <anything>_<amount>_<CUR>, and optionally _<ending>, which is
// a final status, "pending" for a payment that never ends, or the name of a fault that it always shows.
func speaking(reference string) (Payment, bool) {
	m := spoken.FindStringSubmatch(reference)
	if m == nil {
		return Payment{}, false
	}
	amount, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return Payment{}, false
	}
	p := Payment{Reference: reference, AmountMinor: amount, Currency: m[2]}
	switch ending := m[3]; ending {
	case "":
	case "canceled":
		p.Script.Final = payment.Cancelled
	default:
		if s := payment.Status(ending); s.Valid() {
			p.Script.Final = s
		} else if f, ok := OutcomeOf(ending); ok {
			p.Script.Flaw = f
		} else {
			return Payment{}, false
		}
	}
	return p, p.validate() == nil
}
