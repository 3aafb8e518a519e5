package razorpay

import (
	"fmt"
	"strings"

	"pollux/internal/gateway"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
)

// unit is how Razorpay writes amounts: in minor units of ISO 4217.
var unit reply.Unit

// payments reads what Razorpay says about a payment.
type payments struct{}

// Payment implements reply.Reader.
func (payments) Payment(r *reply.Reply) gateway.Answer { return paymentOf(r, r.Root) }

// Refusal implements reply.Reader.
func (payments) Refusal(r *reply.Reply) gateway.Answer { return refusal(r) }

// paymentOf reads a payment, wherever it stands: in an answer, or in an event that was sent to us.
func paymentOf(r *reply.Reply, v strictjson.Value) gateway.Answer {
	return entity(r, v, "payment", "amount", paymentMeaning)
}

// paymentMeaning is what the status of a payment means (razorpay.com/docs/payments/payments). A failed one may still be authorized for three days:
// Razorpay asks the bank again, and a late success counts.
func paymentMeaning(r *reply.Reply, v strictjson.Value, status string) (reply.Meaning, bool) {
	switch status {
	case "created":
		return reply.Meaning{Status: payment.Pending, Detail: "processing"}, true
	case "authorized":
		return reply.Meaning{Status: payment.Pending, Detail: "authorized"}, true
	case "captured":
		return reply.Meaning{Status: payment.Succeeded}, true
	case "refunded":
		return reply.Meaning{Status: payment.Succeeded, Detail: "refunded"}, true
	case "failed":
		return reply.Meaning{Status: payment.Failed, Detail: r.Detail(reply.Text(v.Member("error_reason")))}, true
	}
	return reply.Meaning{}, false
}

// orders reads what Razorpay says about an order.
type orders struct{}

// Payment implements reply.Reader.
func (orders) Payment(r *reply.Reply) gateway.Answer { return orderOf(r, r.Root) }

// Refusal implements reply.Reader.
func (orders) Refusal(r *reply.Reply) gateway.Answer { return refusal(r) }

func orderOf(r *reply.Reply, v strictjson.Value) gateway.Answer {
	return entity(r, v, "order", "amount_paid", orderMeaning)
}

// orderMeaning is what the status of an order means. No order fails: the shopper may always try again.
func orderMeaning(_ *reply.Reply, _ strictjson.Value, status string) (reply.Meaning, bool) {
	switch status {
	case "created":
		return reply.Meaning{Status: payment.Pending, Detail: "requires_action"}, true
	case "attempted":
		return reply.Meaning{Status: payment.Pending, Detail: "processing"}, true
	case "paid":
		return reply.Meaning{Status: payment.Succeeded}, true
	}
	return reply.Meaning{}, false
}

// receipts reads the list of the orders that have our reference.
type receipts struct{}

// Payment implements reply.Reader.
func (receipts) Payment(r *reply.Reply) gateway.Answer {
	items := r.Root.Member("items")
	if items.Kind() != strictjson.Array {
		return r.Bad("no list at /items")
	}
	var found []strictjson.Value
	for item := range items.Elements() {
		if reply.Text(item.Member("receipt")) == r.Query.MerchantRef { // the filter takes receipts that merely contain it
			found = append(found, item)
		}
	}
	switch len(found) {
	case 0:
		return r.Say(gateway.NotFound, "no order has the receipt %s", r.Quoted(r.Query.MerchantRef))
	case 1:
		return orderOf(r, found[0])
	}
	return r.Say(gateway.Mismatch, "%d orders have the receipt %s: a person has to say which one is meant", len(found), r.Quoted(r.Query.MerchantRef))
}

// Refusal implements reply.Reader.
func (receipts) Refusal(r *reply.Reply) gateway.Answer { return refusal(r) }

// entity reads a payment or an order. paid is where the money stands when it succeeded.
func entity(r *reply.Reply, v strictjson.Value, kind, paid string,
	meaning func(*reply.Reply, strictjson.Value, string) (reply.Meaning, bool)) gateway.Answer {
	if reply.Text(v.Member("entity")) != kind {
		return r.Bad("the document is no %s", kind)
	}
	status := v.Member("status")
	if status.Kind() != strictjson.String {
		return r.Bad("no status at /status")
	}
	word := r.Word(status.Text())
	m, known := meaning(r, v, status.Text())
	if ans, wrong := wrong(r, v, m.Status, paid); wrong {
		ans.GatewayStatus = word
		return ans
	}
	if !known {
		return r.Unknown(status.Text(), "ask Razorpay what it means")
	}
	return r.Answer(m, word)
}

func wrong(r *reply.Reply, v strictjson.Value, s payment.Status, paid string) (gateway.Answer, bool) {
	if !r.Query.ByMerchantRef() || named(r.Query.Reference) {
		if ans, wrong := r.Differs("id", v.Member("id"), "/id", r.Query.Reference); wrong {
			return ans, true
		}
	}
	at := "amount"
	if s == payment.Succeeded {
		at = paid
	}
	return r.Owed(unit, reply.Field{Value: v.Member(at), Where: "/" + at}, reply.Field{Value: v.Member("currency"), Where: "/currency"}, s == payment.Succeeded)
}

// named reports whether a reference is an id of Razorpay's.
func named(reference string) bool {
	return strings.HasPrefix(reference, "pay_") || strings.HasPrefix(reference, "order_")
}

// refusal reads an error (razorpay.com/docs/errors). A payment that is unknown is a 400 with the same code as a bad request, and it is unknown that
// a request by id can be wrong in another way.
func refusal(r *reply.Reply) gateway.Answer {
	e := r.Root.Member("error")
	code, text, why := reply.Text(e.Member("code")), reply.Text(e.Member("description")), reply.Text(e.Member("reason"))
	if why != "" && why != "NA" && why != code {
		code = fmt.Sprintf("%s/%s", code, why)
	}
	return r.Error(refusalClass(r.HTTP.Status, reply.Text(e.Member("code"))), code, text)
}

func refusalClass(status int, code string) gateway.Class {
	switch {
	case status == 401, status == 403:
		return gateway.Unauthorized
	case status == 429:
		return gateway.RateLimited
	case status == 400 && code == "BAD_REQUEST_ERROR", status == 404 && code != "":
		return gateway.NotFound
	}
	return gateway.Transport
}
