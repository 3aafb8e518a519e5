package httpjson

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
	"pollux/internal/payment/currency"
)

// reader says what the words of the configured gateway mean. It is safe for concurrent use.
type reader struct {
	status, detail, id, merchantRef, amountAt, currencyAt, modeAt, updatedAt pointer
	errorCode, errorText, retryAfterAt, success                              pointer

	statuses  map[string]meaning
	is, isNot []string
	codes     map[string]gateway.Class
	byStatus  map[int]gateway.Class
	mode      string

	unit          reply.Unit
	onlySucceeded bool
	terms         reply.Terms
}

// pointer is a JSON pointer that may not be set.
type pointer struct {
	strictjson.Pointer
	set bool
}

// in is what stands at the pointer; nothing for one that is not set.
func (p pointer) in(root strictjson.Value) strictjson.Value {
	if !p.set {
		return strictjson.Value{}
	}
	return root.Lookup(p.Pointer)
}

func (p pointer) field(root strictjson.Value) reply.Field {
	return reply.Field{Value: p.in(root), Where: p.String()}
}

// meaning is what a status of the gateway means.
type meaning struct {
	name string // the key in the map: the gateway's word
	reply.Meaning
}

// read says what a response means.
func (x *reader) read(c reply.Call, doc *strictjson.Document, now time.Time) gateway.Answer {
	return x.terms.Read(x, c, doc, now)
}

// Payment implements reply.Reader.
func (x *reader) Payment(r *reply.Reply) gateway.Answer {
	r.Changed = reply.Text(x.updatedAt.in(r.Root))
	r.Wait = wait(x.retryAfterAt.in(r.Root))
	if ans, bad := x.businessError(r); bad {
		return ans
	}
	v := x.status.in(r.Root)
	if !v.Scalar() {
		return r.Bad("no status at %s", x.status)
	}
	m, known := x.meaningOf(r.Root, v)
	word := m.name
	if word == "" {
		word = r.Word(v.Text())
	}
	if ans, wrong := x.wrong(r, m.Status); wrong {
		ans.GatewayStatus = word
		return ans
	}
	if !known {
		return r.Unknown(v.Text(), "add it to statuses")
	}
	if m.Detail == "" {
		m.Detail = r.Detail(reply.Text(x.detail.in(r.Root)))
	}
	return r.Answer(m.Meaning, word)
}

// Refusal implements reply.Reader.
func (x *reader) Refusal(r *reply.Reply) gateway.Answer {
	r.Wait = wait(x.retryAfterAt.in(r.Root))
	class, known := x.byStatus[r.HTTP.Status]
	if !known {
		class = gateway.Transport
	}
	return x.gatewayError(r, class)
}

// businessError reports whether a good HTTP status hides an error, and what that is.
func (x *reader) businessError(r *reply.Reply) (gateway.Answer, bool) {
	if !x.success.set {
		return gateway.Answer{}, false
	}
	v := x.success.in(r.Root)
	switch {
	case len(x.is) > 0 && !v.Scalar():
		return r.Bad("nothing at %s says whether the call went well", x.success), true
	case len(x.is) > 0 && slices.Contains(x.is, v.Text()), len(x.isNot) > 0 && !slices.Contains(x.isNot, v.Text()):
		return gateway.Answer{}, false
	}
	return x.gatewayError(r, gateway.Transport), true
}

// gatewayError is what the gateway says about a call that failed: the class of its code, or else the one given.
func (x *reader) gatewayError(r *reply.Reply, class gateway.Class) gateway.Answer {
	code := reply.Text(x.errorCode.in(r.Root))
	if c, ok := x.codes[fmt.Sprintf("%d/%s", r.HTTP.Status, code)]; ok && code != "" {
		class = c
	} else if c, ok := x.codes[code]; ok && code != "" {
		class = c
	}
	ans := r.Error(class, code, reply.Text(x.errorText.in(r.Root)))
	if class == gateway.Pending {
		said := r.Detail(reply.Text(x.detail.in(r.Root)))
		ans.Detail = r.Answer(reply.Meaning{Status: payment.Pending, Detail: said}, "").Detail
	}
	return ans
}

// meaningOf finds a status in the map: together with its detail, or else alone.
func (x *reader) meaningOf(root, status strictjson.Value) (meaning, bool) {
	if d := x.detail.in(root); d.Scalar() {
		var both [2*reply.MaxStatus + 1]byte
		key := append(append(append(both[:0], status.Bytes()...), '/'), d.Bytes()...)
		if m, ok := x.statuses[string(key)]; ok {
			return m, true
		}
	}
	m, ok := x.statuses[string(status.Bytes())]
	return m, ok
}

// wrong reports whether the answer is not about the payment that was asked for. The status is that of the map, empty when it is
// unknown.
func (x *reader) wrong(r *reply.Reply, s payment.Status) (gateway.Answer, bool) {
	for _, c := range []struct {
		what     string
		at       pointer
		expected string
	}{{"id", x.id, r.Query.Reference}, {"merchant reference", x.merchantRef, r.Query.MerchantRef}, {"mode", x.modeAt, x.mode}} {
		if !c.at.set || c.what == "merchant reference" && c.expected == "" {
			continue
		}
		if ans, wrong := r.Differs(c.what, c.at.in(r.Root), c.at.String(), c.expected); wrong {
			return ans, true
		}
	}
	succeeded := s == payment.Succeeded
	if x.onlySucceeded && !succeeded {
		return gateway.Answer{}, false
	}
	if x.currencyAt.set {
		if ans, wrong := r.OtherCurrency(x.unit, x.currencyAt.field(r.Root), succeeded); wrong {
			return ans, true
		}
	}
	if !x.amountAt.set {
		return gateway.Answer{}, false
	}
	return r.OtherAmount(x.unit, x.amountAt.field(r.Root), succeeded)
}

// wait is the wait that a document asks for, in seconds; nonsense and what is negative is none.
func wait(v strictjson.Value) time.Duration {
	if k := v.Kind(); k != strictjson.Number && k != strictjson.String {
		return 0
	}
	n, err := currency.Minor(v.Text(), 9)
	if errors.Is(err, currency.ErrRange) && v.Bytes()[0] != '-' {
		return math.MaxInt64
	}
	return max(time.Duration(n), 0)
}
