package reply

import (
	"errors"
	"strings"

	"pollux/internal/gateway"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment/currency"
)

// Unit says how a gateway writes amounts. The zero value is in minor units with the decimals of ISO 4217. It is safe for concurrent use.
type Unit struct {
	Major      bool              // 10.50 and not 1050
	Decimals   map[string]int    // in minor units: currencies with which the gateway has other decimals than ISO 4217
	Currencies map[string]string // currencies that the gateway calls otherwise, to their codes of ISO 4217
}

// shift is the power of ten between the gateway's amounts and minor units.
func (u Unit) shift(code string) (int, bool) {
	own, other := u.Decimals[code]
	if !u.Major && !other {
		return 0, true
	}
	iso, ok := currency.Exponent(code)
	return iso - own, ok
}

// Field is a value of an answer and where it stands there, for messages.
type Field struct {
	Value strictjson.Value
	Where string
}

// Owed reports whether the money of an answer is not that of the payment. Another amount or currency is a mismatch. That one is missing is no
// problem unless the payment succeeded: nothing is released for the other statuses, and gateways leave it out.
func (r *Reply) Owed(u Unit, amount, code Field, succeeded bool) (gateway.Answer, bool) {
	if ans, wrong := r.OtherCurrency(u, code, succeeded); wrong {
		return ans, true
	}
	return r.OtherAmount(u, amount, succeeded)
}

func (r *Reply) missing(what string, f Field, succeeded bool) (gateway.Answer, bool) {
	if !succeeded {
		return gateway.Answer{}, false
	}
	return r.Bad("the payment succeeded, but no %s is at %s", what, f.Where), true
}

// OtherCurrency is the part of Owed that is about the currency.
func (r *Reply) OtherCurrency(u Unit, f Field, succeeded bool) (gateway.Answer, bool) {
	if !f.Value.Exists() {
		return r.missing("currency", f, succeeded)
	}
	if k := f.Value.Kind(); k != strictjson.String && k != strictjson.Number {
		return r.Bad("no currency at %s", f.Where), true
	}
	code, ok := u.Currencies[string(f.Value.Bytes())]
	if !ok {
		code = f.Value.Text()
	}
	if code == r.Query.Currency || equalASCII(code, r.Query.Currency) {
		return gateway.Answer{}, false
	}
	return r.Say(gateway.Mismatch, "currency: the gateway says %s, expected %s%s", r.Quoted(code), r.expected(), r.changed()), true
}

// equalASCII compares without case. Other letters than ASCII are never equal to one: ſ is no S.
func equalASCII(a, b string) bool { return ascii([]byte(a)) && strings.EqualFold(a, b) }

func (r *Reply) expected() string { return currency.Format(r.Query.AmountMinor, r.Query.Currency) }

// OtherAmount is the part of Owed that is about the amount.
func (r *Reply) OtherAmount(u Unit, f Field, succeeded bool) (gateway.Answer, bool) {
	if !f.Value.Exists() {
		return r.missing("amount", f, succeeded)
	}
	minor, ans, wrong := r.Minor(u, f)
	if wrong {
		return ans, true
	}
	return r.OtherTotal(minor)
}

// OtherTotal reports whether an amount in minor units is not that of the payment.
func (r *Reply) OtherTotal(minor int64) (gateway.Answer, bool) {
	if minor == r.Query.AmountMinor {
		return gateway.Answer{}, false
	}
	return r.Say(gateway.Mismatch, "amount: the gateway says %s, expected %s%s", currency.Format(minor, r.Query.Currency), r.expected(), r.changed()), true
}

// Minor reads an amount in the payment's currency as minor units, exactly. It reports true with an answer when the field has none that can be.
func (r *Reply) Minor(u Unit, f Field) (int64, gateway.Answer, bool) {
	if k := f.Value.Kind(); k != strictjson.String && k != strictjson.Number {
		return 0, r.Bad("no amount at %s", f.Where), true
	}
	shift, ok := u.shift(r.Query.Currency)
	if !ok {
		return 0, r.Say(gateway.Mismatch, "amount: %s is no currency of ISO 4217, so its decimals are not known", r.Quoted(r.Query.Currency)), true
	}
	said := f.Value.Text()
	switch minor, err := currency.Minor(said, shift); {
	case errors.Is(err, currency.ErrSyntax):
		return 0, r.Bad("the amount at %s is not a number; expected %s", f.Where, r.expected()), true
	case err != nil:
		return 0, r.Say(gateway.Mismatch, "amount: the gateway says %s, which is %v; expected %s%s", r.Quoted(said), err, r.expected(), r.changed()), true
	default:
		return minor, gateway.Answer{}, false
	}
}
