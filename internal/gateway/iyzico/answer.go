package iyzico

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"pollux/internal/gateway"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
)

// unit is how iyzico writes amounts: 10.50, as a number or as text.
var unit = reply.Unit{Major: true}

// reader says what iyzico's words mean. It is safe for concurrent use.
type reader struct {
	key           []byte // of the account that was asked for
	allowUnsigned bool
	unknown       map[string]bool // error codes of payments that iyzico does not know
}

// Payment implements reply.Reader. The outer status is about the call, never about the payment: "success" says that a payment was found.
func (x reader) Payment(r *reply.Reply) gateway.Answer {
	switch reply.Text(r.Root.Member("status")) {
	case "success":
	case "failure":
		return x.refused(r)
	default:
		return r.Bad("nothing at /status says whether the call went well")
	}
	if why := x.unsigned(r.Root); why != "" {
		return r.Bad("%s", why)
	}
	return x.payment(r)
}

// Refusal implements reply.Reader.
func (x reader) Refusal(r *reply.Reply) gateway.Answer { return x.refused(r) }

// refused reads an error (docs.iyzico.com, "Error codes"), which mostly comes with HTTP 200.
func (x reader) refused(r *reply.Reply) gateway.Answer {
	code := reply.Text(r.Root.Member("errorCode"))
	class := gateway.Transport
	switch status := r.HTTP.Status; {
	case code == "1000", code == "1001", status == 401, status == 403: // a wrong signature, an unknown API key
		class = gateway.Unauthorized
	case status == 429:
		class = gateway.RateLimited
	case x.unknown[code]:
		class = gateway.NotFound
	}
	return r.Error(class, code, reply.Text(r.Root.Member("errorMessage")))
}

// unsigned says why an answer is not known to be iyzico's own, or is empty.
func (x reader) unsigned(v strictjson.Value) string {
	said := v.Member("signature")
	if !said.Exists() {
		if x.allowUnsigned {
			return ""
		}
		return "no signature at /signature; if this account never has one, write allow_unsigned: true"
	}
	got, err := hex.DecodeString(reply.Text(said))
	if err != nil || len(got) != sha256.Size {
		return "the signature is none"
	}
	for _, spell := range spellings {
		if hmac.Equal(got, x.signature(v, spell)) {
			return ""
		}
	}
	return "the signature is wrong: the answer is not iyzico's, was changed on its way, or secret_key is another account's"
}

// signature is what an answer about a payment is signed with (docs.iyzico.com, "Response signature validation").
func (x reader) signature(v strictjson.Value, spell func(string) string) []byte {
	text := func(key string) string { return reply.Text(v.Member(key)) }
	signed := []string{text("paymentId"), text("currency"), text("basketId"), text("conversationId"), spell(text("paidPrice")), spell(text("price"))}
	mac := hmac.New(sha256.New, x.key)
	mac.Write([]byte(strings.Join(signed, ":")))
	return mac.Sum(nil)
}

// spellings are the ways to write one and the same price. iyzico signs another one than it sends: without trailing zeros, say its samples, and its
// libraries keep one decimal.
var spellings = []func(string) string{
	func(s string) string { return s }, trimmed,
	func(s string) string {
		if s = trimmed(s); !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	},
}

// trimmed is a decimal number without trailing zeros.
func trimmed(s string) string {
	if strings.Contains(s, ".") && !strings.ContainsAny(s, "eE") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

func (x reader) payment(r *reply.Reply) gateway.Answer {
	v := r.Root
	status := v.Member("paymentStatus")
	if status.Kind() != strictjson.String {
		return r.Bad("no status at /paymentStatus")
	}
	said := status.Text()
	if said == "SUCCESS" {
		said += "/" + reply.Text(v.Member("fraudStatus"))
	}
	m, known := meaning(said)
	if ans, wrong := wrong(r, v, m.Status); wrong {
		ans.GatewayStatus = r.Word(said)
		return ans
	}
	if !known {
		return r.Unknown(said, "ask iyzico what it means")
	}
	return r.Answer(m, r.Word(said))
}

// meaning is what a status means, for a success together with what the fraud check says: 1 is fine, 0 is still being looked at, -1 is refused.
func meaning(status string) (reply.Meaning, bool) {
	switch status {
	case "SUCCESS/1":
		return reply.Meaning{Status: payment.Succeeded}, true
	case "SUCCESS/0":
		return reply.Meaning{Status: payment.Pending, Detail: "in_review"}, true
	case "SUCCESS/-1":
		return reply.Meaning{Status: payment.Failed, Detail: "fraud"}, true
	case "FAILURE":
		return reply.Meaning{Status: payment.Failed}, true
	case "INIT_THREEDS", "CALLBACK_THREEDS":
		return reply.Meaning{Status: payment.Pending, Detail: "requires_action"}, true
	case "BKM_POS_SELECTED", "INIT_APM", "INIT_BANK_TRANSFER", "INIT_CREDIT", "PENDING_CREDIT", "INIT_CONTACTLESS":
		return reply.Meaning{Status: payment.Pending, Detail: "processing"}, true
	}
	return reply.Meaning{}, false
}

// wrong reports whether an answer is not about the payment that was asked for. By our reference it was asked for with the conversation id, which an
// answer repeats; it is paidPrice, with what instalments cost, that the shopper was charged.
func wrong(r *reply.Reply, v strictjson.Value, s payment.Status) (gateway.Answer, bool) {
	what, expected := "paymentId", r.Query.Reference
	if r.Query.ByMerchantRef() {
		what, expected = "conversationId", r.Query.MerchantRef
	}
	if ans, wrong := r.Differs(what, v.Member(what), "/"+what, expected); wrong {
		return ans, true
	}
	succeeded := s == payment.Succeeded
	if !succeeded && !v.Member("paidPrice").Exists() {
		return gateway.Answer{}, false
	}
	return r.Owed(unit, reply.Field{Value: v.Member("paidPrice"), Where: "/paidPrice"}, reply.Field{Value: v.Member("currency"), Where: "/currency"}, succeeded)
}
