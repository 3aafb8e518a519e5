package paypal

import (
	"fmt"

	"pollux/internal/gateway"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
)

// unit is how PayPal writes amounts: 10.50, as text.
var unit = reply.Unit{Major: true}

// captures reads a capture.
type captures struct{}

// Payment implements reply.Reader.
func (captures) Payment(r *reply.Reply) gateway.Answer { return one(r, r.Root, captureMeaning) }

// Refusal implements reply.Reader.
func (captures) Refusal(r *reply.Reply) gateway.Answer { return refusal(r) }

// authorizations reads an authorization.
type authorizations struct{}

// Payment implements reply.Reader.
func (authorizations) Payment(r *reply.Reply) gateway.Answer {
	return one(r, r.Root, authorizationMeaning)
}

// Refusal implements reply.Reader.
func (authorizations) Refusal(r *reply.Reply) gateway.Answer { return refusal(r) }

// meant says what a status means, and why it is so.
type meant func(r *reply.Reply, v strictjson.Value, status string) (reply.Meaning, bool)

// captureMeaning is what the status of a capture means (Payments v2, capture_status).
func captureMeaning(r *reply.Reply, v strictjson.Value, status string) (reply.Meaning, bool) {
	switch status {
	case "COMPLETED":
		return reply.Meaning{Status: payment.Succeeded}, true
	case "REFUNDED", "PARTIALLY_REFUNDED":
		return reply.Meaning{Status: payment.Succeeded, Detail: r.Detail(status)}, true
	case "PENDING":
		return reply.Meaning{Status: payment.Pending, Detail: reason(r, v)}, true
	case "DECLINED", "FAILED":
		return reply.Meaning{Status: payment.Failed, Detail: reason(r, v)}, true
	}
	return reply.Meaning{}, false
}

// authorizationMeaning is what the status of an authorization means (Payments v2, authorization_status).
func authorizationMeaning(r *reply.Reply, v strictjson.Value, status string) (reply.Meaning, bool) {
	switch status {
	case "CREATED", "PARTIALLY_CAPTURED":
		return reply.Meaning{Status: payment.Pending, Detail: "authorized"}, true
	case "PENDING":
		return reply.Meaning{Status: payment.Pending, Detail: reason(r, v)}, true
	case "CAPTURED":
		return reply.Meaning{Status: payment.Succeeded}, true
	case "DENIED":
		return reply.Meaning{Status: payment.Failed, Detail: reason(r, v)}, true
	case "VOIDED":
		return reply.Meaning{Status: payment.Cancelled, Detail: "voided"}, true
	case "EXPIRED":
		return reply.Meaning{Status: payment.Expired}, true
	}
	return reply.Meaning{}, false
}

// reason is why a capture is pending or was declined, in our words.
func reason(r *reply.Reply, v strictjson.Value) string {
	said := reply.Text(v.Member("status_details").Member("reason"))
	if said == "PENDING_REVIEW" {
		return "in_review"
	}
	return r.Detail(said)
}

// one reads a capture or an authorization, wherever it stands: in an answer, or in an event that was sent to us.
func one(r *reply.Reply, v strictjson.Value, meaning meant) gateway.Answer {
	r.Changed = reply.Text(v.Member("update_time"))
	status := v.Member("status")
	if status.Kind() != strictjson.String {
		return r.Bad("no status at /status")
	}
	word := r.Word(status.Text())
	m, known := meaning(r, v, status.Text())
	ans, wrong := r.Differs("id", v.Member("id"), "/id", r.Query.Reference)
	if !wrong {
		ans, wrong = owed(r, v, m.Status == payment.Succeeded)
	}
	switch {
	case wrong:
		ans.GatewayStatus = word
		return ans
	case !known:
		return r.Unknown(status.Text(), "ask PayPal what it means")
	}
	return r.Answer(m, word)
}

func owed(r *reply.Reply, v strictjson.Value, succeeded bool) (gateway.Answer, bool) {
	amount := v.Member("amount")
	return r.Owed(unit, reply.Field{Value: amount.Member("value"), Where: "/amount/value"},
		reply.Field{Value: amount.Member("currency_code"), Where: "/amount/currency_code"}, succeeded)
}

// orders reads an order.
type orders struct{}

// Refusal implements reply.Reader.
func (orders) Refusal(r *reply.Reply) gateway.Answer { return refusal(r) }

// Payment implements reply.Reader.
func (orders) Payment(r *reply.Reply) gateway.Answer { return order(r, r.Root) }

// order reads an order, wherever it stands. That one is approved or completed says nothing about the money: an approved one has to be captured, and
// of a completed one the captures say what became of it.
func order(r *reply.Reply, v strictjson.Value) gateway.Answer {
	r.Changed = reply.Text(v.Member("update_time"))
	if ans, wrong := r.Differs("id", v.Member("id"), "/id", r.Query.Reference); wrong {
		return ans
	}
	status := v.Member("status")
	if status.Kind() != strictjson.String {
		return r.Bad("no status at /status")
	}
	word := r.Word(status.Text())
	units := v.Member("purchase_units")
	if status.Text() == "COMPLETED" {
		return completed(r, units)
	}
	if ans, wrong := ordered(r, units); wrong {
		ans.GatewayStatus = word
		return ans
	}
	switch status.Text() {
	case "CREATED", "SAVED", "PAYER_ACTION_REQUIRED", "APPROVED":
		return r.Answer(reply.Meaning{Status: payment.Pending, Detail: "requires_action"}, word)
	case "VOIDED":
		return r.Answer(reply.Meaning{Status: payment.Cancelled, Detail: "voided"}, word)
	}
	return r.Unknown(status.Text(), "ask PayPal what it means")
}

// ordered reports whether what was ordered is not what is owed. An order that does not say what it is about is none to be sure of, but nothing is
// released for it either.
func ordered(r *reply.Reply, units strictjson.Value) (gateway.Answer, bool) {
	total, any := int64(0), false
	for u := range units.Elements() {
		minor, ans, wrong := money(r, u, "/purchase_units/…/amount")
		if wrong {
			return ans, true
		}
		total, any = add(total, minor), true
	}
	if !any {
		return gateway.Answer{}, false
	}
	return r.OtherTotal(total)
}

// money reads the amount of a part of an order.
func money(r *reply.Reply, v strictjson.Value, where string) (int64, gateway.Answer, bool) {
	amount := v.Member("amount")
	if ans, wrong := r.OtherCurrency(unit, reply.Field{Value: amount.Member("currency_code"), Where: where + "/currency_code"}, true); wrong {
		return 0, ans, true
	}
	return r.Minor(unit, reply.Field{Value: amount.Member("value"), Where: where + "/value"})
}

// add adds amounts. A sum beyond what an amount can be becomes one that no payment has.
func add(a, b int64) int64 {
	if sum := a + b; (sum > a) == (b > 0) {
		return sum
	}
	return -1
}

// tally is what the parts of a completed order come to.
type tally struct {
	captured        int64
	successes, more int    // captures with money, and authorizations that may still be captured
	pending, failed string // their words; empty when there are none
	detail, refund  string
	voided          string
	unknown         string
}

// completed reads what became of an order whose payer is done.
func completed(r *reply.Reply, units strictjson.Value) gateway.Answer {
	var t tally
	for u := range units.Elements() {
		payments := u.Member("payments")
		for c := range payments.Member("captures").Elements() {
			if ans, wrong := t.capture(r, c); wrong {
				return ans
			}
		}
		for a := range payments.Member("authorizations").Elements() {
			t.authorization(r, a)
		}
	}
	return t.answer(r)
}

func (t *tally) capture(r *reply.Reply, v strictjson.Value) (gateway.Answer, bool) {
	status := reply.Text(v.Member("status"))
	m, known := captureMeaning(r, v, status)
	minor, ans, wrong := money(r, v, "/purchase_units/…/payments/captures/…/amount")
	switch {
	case wrong:
		ans.GatewayStatus = r.Word("COMPLETED/" + status)
		return ans, true
	case !known:
		t.unknown = status
	case m.Status == payment.Succeeded:
		t.captured, t.successes = add(t.captured, minor), t.successes+1
		if m.Detail != "" {
			t.refund = m.Detail
		}
	case m.Status == payment.Pending:
		t.pending, t.detail = status, m.Detail
	default:
		t.failed, t.detail = status, m.Detail
	}
	return gateway.Answer{}, false
}

func (t *tally) authorization(r *reply.Reply, v strictjson.Value) {
	status := reply.Text(v.Member("status"))
	m, known := authorizationMeaning(r, v, status)
	switch {
	case !known:
		t.unknown = status
	case m.Status == payment.Pending:
		t.more++
		if t.pending == "" {
			t.pending, t.detail = status, m.Detail
		}
	case m.Status == payment.Failed:
		t.failed, t.detail = status, m.Detail
	case m.Status != payment.Succeeded: // of one that was captured the captures say what became of it
		t.voided = status
	}
}

// answer judges the sum. What is still open keeps the payment pending, unless all that is owed has come.
func (t *tally) answer(r *reply.Reply) gateway.Answer {
	full := t.successes > 0 && t.captured == r.Query.AmountMinor
	word := func(status string) string { return r.Word("COMPLETED/" + status) }
	switch {
	case t.unknown != "":
		return r.Unknown("COMPLETED/"+t.unknown, "ask PayPal what it means")
	case t.pending != "" && !full:
		return r.Answer(reply.Meaning{Status: payment.Pending, Detail: t.detail}, word(t.pending))
	case t.successes > 0:
		if ans, wrong := r.OtherTotal(t.captured); wrong {
			ans.GatewayStatus = word("COMPLETED")
			return ans
		}
		return r.Answer(reply.Meaning{Status: payment.Succeeded, Detail: t.refund}, word("COMPLETED"))
	case t.failed != "":
		return r.Answer(reply.Meaning{Status: payment.Failed, Detail: t.detail}, word(t.failed))
	case t.voided != "":
		return r.Answer(reply.Meaning{Status: payment.Cancelled, Detail: r.Detail(t.voided)}, word(t.voided))
	}
	return r.Bad("the order is completed, but has neither a capture nor an authorization")
}

// refusal reads an error (developer.paypal.com, "API responses").
func refusal(r *reply.Reply) gateway.Answer {
	name, text := reply.Text(r.Root.Member("name")), reply.Text(r.Root.Member("message"))
	code := name
	if issue := reply.Text(r.Root.Member("details").Element(0).Member("issue")); issue != "" {
		code = fmt.Sprintf("%s/%s", name, issue)
	}
	class := gateway.Transport
	switch status := r.HTTP.Status; {
	case status == 401, status == 403:
		class = gateway.Unauthorized
	case status == 429:
		class = gateway.RateLimited
	case status == 404 && (name == "RESOURCE_NOT_FOUND" || name == "INVALID_RESOURCE_ID"): // unapproved orders lapse and are gone
		class = gateway.NotFound
	}
	return r.Error(class, code, text)
}
