package mercadopago

import (
	"strconv"

	"pollux/internal/gateway"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
	"pollux/internal/payment/currency"
)

// unit is how Mercado Pago writes amounts: 10.50, as a number.
var unit = reply.Unit{Major: true}

// payments reads a payment.
type payments struct{ live bool }

// Payment implements reply.Reader.
func (x payments) Payment(r *reply.Reply) gateway.Answer {
	if ans, wrong := r.Differs("id", r.Root.Member("id"), "/id", r.Query.Reference); wrong {
		return ans
	}
	return paymentOf(r, r.Root, x.live)
}

// Refusal implements reply.Reader.
func (x payments) Refusal(r *reply.Reply) gateway.Answer { return refusal(r) }

// paymentOf reads a payment whose id is the right one.
func paymentOf(r *reply.Reply, v strictjson.Value, live bool) gateway.Answer {
	r.Changed = reply.Text(v.Member("date_last_updated"))
	status, detail := v.Member("status"), reply.Text(v.Member("status_detail"))
	if status.Kind() != strictjson.String {
		return r.Bad("no status at /status")
	}
	m, known := meaning(r, status.Text(), detail)
	word := r.Word(status.Text())
	ans, wrong := r.Differs("live_mode", v.Member("live_mode"), "/live_mode", strconv.FormatBool(live))
	if !wrong {
		ans, wrong = r.Owed(unit, reply.Field{Value: v.Member("transaction_amount"), Where: "/transaction_amount"},
			reply.Field{Value: v.Member("currency_id"), Where: "/currency_id"}, m.Status == payment.Succeeded)
	}
	switch {
	case wrong:
		ans.GatewayStatus = word
		return ans
	case !known:
		return r.Unknown(status.Text(), "ask Mercado Pago what it means")
	}
	return r.Answer(m, word)
}

// meaning is what a status means (mercadopago.com/developers, "Payment status"). A payment that was rejected stays so; another try is another
// payment.
func meaning(r *reply.Reply, status, detail string) (reply.Meaning, bool) {
	switch status {
	case "pending":
		return reply.Meaning{Status: payment.Pending, Detail: awaited(detail)}, true
	case "in_process":
		return reply.Meaning{Status: payment.Pending, Detail: reviewed(detail)}, true
	case "authorized":
		return reply.Meaning{Status: payment.Pending, Detail: "authorized"}, true
	case "approved":
		if detail == "partially_refunded" {
			return reply.Meaning{Status: payment.Succeeded, Detail: detail}, true
		}
		return reply.Meaning{Status: payment.Succeeded}, true
	case "in_mediation":
		return reply.Meaning{Status: payment.Succeeded, Detail: "disputed"}, true
	case "refunded", "charged_back":
		return reply.Meaning{Status: payment.Succeeded, Detail: status}, true
	case "rejected":
		return reply.Meaning{Status: payment.Failed, Detail: r.Detail(detail)}, true
	case "cancelled":
		if detail == "expired" {
			return reply.Meaning{Status: payment.Expired}, true
		}
		return reply.Meaning{Status: payment.Cancelled, Detail: r.Detail(detail)}, true
	}
	return reply.Meaning{}, false
}

// awaited is what a pending payment waits for: the shopper, or the bank.
func awaited(detail string) string {
	switch detail {
	case "pending_waiting_payment", "pending_waiting_transfer", "pending_challenge":
		return "requires_action"
	}
	return "processing"
}

// reviewed is what happens to a payment in process, which takes two business days at the most.
func reviewed(detail string) string {
	if detail == "pending_review_manual" {
		return "in_review"
	}
	return "processing"
}

// search reads the list of the payments with our reference.
type search struct{ live bool }

// Refusal implements reply.Reader.
func (x search) Refusal(r *reply.Reply) gateway.Answer { return refusal(r) }

// Payment implements reply.Reader. Each try of the shopper is a payment of its own, the newest first. One that succeeded decides, one that is under
// way comes before all that failed, and what is not clear is for a person.
func (x search) Payment(r *reply.Reply) gateway.Answer {
	results := r.Root.Member("results")
	if results.Kind() != strictjson.Array {
		return r.Bad("no list at /results")
	}
	var all []gateway.Answer
	for v := range results.Elements() {
		if reply.Text(v.Member("external_reference")) == r.Query.MerchantRef {
			all = append(all, paymentOf(r, v, x.live))
		}
	}
	if total, err := currency.Minor(reply.Text(r.Root.Member("paging").Member("total")), 0); err == nil && total > 50 {
		return r.Say(gateway.Mismatch, "%d payments have the reference %s, and only 50 come at once: a person has to look", total, r.Quoted(r.Query.MerchantRef))
	}
	return judged(r, all)
}

// judged is what the tries of one payment come to.
func judged(r *reply.Reply, all []gateway.Answer) gateway.Answer {
	if len(all) == 0 {
		return r.Say(gateway.NotFound, "no payment has the external_reference %s", r.Quoted(r.Query.MerchantRef))
	}
	best, successes := all[0], 0
	for _, ans := range all {
		if ans.Status == payment.Succeeded {
			successes++
		}
		if rank(ans) > rank(best) {
			best = ans
		}
	}
	if successes > 1 {
		return r.Say(gateway.Mismatch, "%d payments with the reference %s succeeded: the shopper may have paid twice", successes, r.Quoted(r.Query.MerchantRef))
	}
	return best
}

// rank orders answers about several tries: what is unclear, what succeeded, what is under way, what is over.
func rank(ans gateway.Answer) int {
	switch {
	case ans.Class == gateway.Mismatch, ans.Class == gateway.Malformed, ans.Class == gateway.UnknownStatus:
		return 3
	case ans.Status == payment.Succeeded:
		return 2
	case ans.Class == gateway.Pending:
		return 1
	}
	return 0
}

// refusal reads an error. A payment is unknown for a moment after it was made, and for ever to another account's token.
func refusal(r *reply.Reply) gateway.Answer {
	code, text := reply.Text(r.Root.Member("error")), reply.Text(r.Root.Member("message"))
	if cause := reply.Text(r.Root.Member("cause").Element(0).Member("code")); cause != "" && code != "" {
		code += "/" + cause
	}
	class := gateway.Transport
	switch status := r.HTTP.Status; {
	case status == 401, status == 403:
		class = gateway.Unauthorized
	case status == 429:
		class = gateway.RateLimited
	case status == 404 && (code != "" || text != ""):
		class = gateway.NotFound
	}
	return r.Error(class, code, text)
}
