// Package dialect has the gateway simulator speak as vendors do: their paths, their ways to prove who asks, their bodies, their errors, and what they tell of their
// own accord, signed as they sign it. It is the other side of the adapters, written by the vendors' documentation and not by the adapters, and it decides nothing:
// payments, their scripts and what goes wrong are the simulator's.
package dialect

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
	"time"

	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/notify"
	"pollux/internal/payment"
	"pollux/internal/payment/currency"
)

// Vendor is a vendor: what it is asked, and what it tells.
type Vendor interface {
	gatewaysim.Dialect
	notify.Vendor
}

var (
	_ Vendor        = Stripe{}
	_ Vendor        = PayPal{}
	_ Vendor        = Razorpay{}
	_ Vendor        = MercadoPago{}
	_ Vendor        = Iyzico{}
	_ Vendor        = Adyen{}
	_ notify.Vendor = Own{}
)

// object is a JSON object. Its keys are written in the order of the alphabet, so that the same content is the same bytes.
type object map[string]any

// body is a value in JSON.
func body(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // what is written here always has a form
	}
	return b
}

// same compares what a caller brought with a secret.
func same(brought, secret string) bool {
	return subtle.ConstantTimeCompare([]byte(brought), []byte(secret)) == 1
}

// mac is the HMAC-SHA256 of a text, in hexadecimal.
func mac(secret, text string) string { return hex.EncodeToString(rawMAC([]byte(secret), text)) }

func rawMAC(secret []byte, text string) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// stranger is what somebody signs with who does not have the secret.
func stranger(secret string) string {
	sum := sha256.Sum256([]byte("not " + secret))
	return hex.EncodeToString(sum[:])
}

// signer is what an event is signed with.
func signer(secret string, e notify.Event) string {
	if e.Stranger {
		return stranger(secret)
	}
	return secret
}

// number is a number of so many digits that is made of a text; it does not begin with 0.
func number(text string, digits int) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // it never fails
	s := fmt.Sprintf("%020d", h.Sum64())
	return "1" + s[len(s)-digits+1:]
}

// capitals is a prefix in capital letters, digits and dashes.
func capitals(prefix string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToUpper(prefix))
}

// major is an amount with its decimals: 10.50.
func major(st gatewaysim.State) string {
	text, _, _ := strings.Cut(currency.Format(st.AmountMinor, st.Currency), " ")
	return text
}

// minor is an amount in minor units, with the decimals that the vendor has for some currencies where ISO 4217 has others.
func minor(st gatewaysim.State, own map[string]int) int64 {
	amount := st.AmountMinor
	decimals, other := own[st.Currency]
	if !other {
		return amount
	}
	iso, _ := currency.Exponent(st.Currency)
	for ; iso < decimals; iso++ {
		amount *= 10
	}
	for ; iso > decimals; iso-- {
		amount /= 10
	}
	return amount
}

// without is a script whose end is failed where it was one that the vendor does not have.
func without(s gatewaysim.Script, missing ...payment.Status) gatewaysim.Script {
	for _, m := range missing {
		if s.Final == m {
			s.Final = payment.Failed
		}
	}
	return s
}

// refusal is an answer in JSON that is about no payment.
func refusal(status int, v any) gatewaysim.Refusal {
	return gatewaysim.Refusal{Status: status, Body: body(v)}
}

// status is what HTTP says about an outcome, where a vendor uses it as it is meant.
func status(o gatewaysim.Outcome) int {
	switch o {
	case gatewaysim.Unauthorized:
		return http.StatusUnauthorized
	case gatewaysim.NotFound:
		return http.StatusNotFound
	case gatewaysim.RateLimited:
		return http.StatusTooManyRequests
	case gatewaysim.BadRequest:
		return http.StatusMethodNotAllowed
	case gatewaysim.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// bearer is the token that a request brought.
func bearer(r *http.Request) string {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return token
}

// jsonHeader is the head of a notification: pairs of a name and a value.
func jsonHeader(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// rfc3339 is how most vendors write an instant.
func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339) }
