package stripe

import (
	"strconv"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
)

// reader says what Stripe's words mean. It is safe for concurrent use.
type reader struct {
	live string // what stands at livemode
}

func newReader(live bool) reader { return reader{strconv.FormatBool(live)} }

// unit is how Stripe writes amounts: in minor units, with other decimals than ISO 4217 for these (docs.stripe.com/currencies).
var unit = reply.Unit{Decimals: map[string]int{"ISK": 2, "MGA": 0, "UGX": 2}}

// Payment implements reply.Reader: the document is a PaymentIntent.
func (x reader) Payment(r *reply.Reply) gateway.Answer { return x.intent(r, r.Root) }

// intent reads a PaymentIntent, wherever it stands: in an answer, or in an event that was sent to us.
func (x reader) intent(r *reply.Reply, v strictjson.Value) gateway.Answer {
	if reply.Text(v.Member("object")) != "payment_intent" {
		return r.Bad("the document is no payment_intent")
	}
	status := v.Member("status")
	if status.Kind() != strictjson.String {
		return r.Bad("no status at /status")
	}
	word := r.Word(status.Text())
	m, known := meaning(r, v, status.Text())
	if ans, wrong := x.wrong(r, v, m.Status); wrong {
		ans.GatewayStatus = word
		return ans
	}
	if !known {
		return r.Unknown(status.Text(), "ask Stripe what it means")
	}
	return r.Answer(m, word)
}

// meaning is what a status means (docs.stripe.com/payments/paymentintents/lifecycle). That a card was refused is no end: the shopper may try
// another one, and a late success counts.
func meaning(r *reply.Reply, v strictjson.Value, status string) (reply.Meaning, bool) {
	switch status {
	case "processing":
		return reply.Meaning{Status: payment.Pending, Detail: "processing"}, true
	case "requires_action", "requires_confirmation":
		return reply.Meaning{Status: payment.Pending, Detail: "requires_action"}, true
	case "requires_capture":
		return reply.Meaning{Status: payment.Pending, Detail: "authorized"}, true
	case "requires_payment_method":
		return attempted(r, v.Member("last_payment_error")), true
	case "succeeded":
		return reply.Meaning{Status: payment.Succeeded}, true
	case "canceled":
		return cancelled(r, reply.Text(v.Member("cancellation_reason"))), true
	}
	return reply.Meaning{}, false
}

// attempted tells a payment that nobody has tried to make yet from one whose last try failed: Stripe has one status for both.
func attempted(r *reply.Reply, last strictjson.Value) reply.Meaning {
	if !last.Exists() {
		return reply.Meaning{Status: payment.Pending, Detail: "requires_action"}
	}
	why := reply.Text(last.Member("decline_code"))
	if why == "" {
		why = reply.Text(last.Member("code"))
	}
	return reply.Meaning{Status: payment.Failed, Detail: r.Detail(why)}
}

func cancelled(r *reply.Reply, why string) reply.Meaning {
	if why == "automatic" || why == "expired" { // Stripe did it, because nobody captured in time
		return reply.Meaning{Status: payment.Expired, Detail: r.Detail(why)}
	}
	return reply.Meaning{Status: payment.Cancelled, Detail: r.Detail(why)}
}

// wrong reports whether a PaymentIntent is not the one that was asked for. Of one that succeeded it is the money received that counts.
func (x reader) wrong(r *reply.Reply, v strictjson.Value, s payment.Status) (gateway.Answer, bool) {
	if ans, wrong := r.Differs("id", v.Member("id"), "/id", r.Query.Reference); wrong {
		return ans, true
	}
	if ans, wrong := r.Differs("livemode", v.Member("livemode"), "/livemode", x.live); wrong {
		return ans, true
	}
	succeeded := s == payment.Succeeded
	amount := reply.Field{Value: v.Member("amount"), Where: "/amount"}
	if succeeded {
		amount = reply.Field{Value: v.Member("amount_received"), Where: "/amount_received"}
	}
	return r.Owed(unit, amount, reply.Field{Value: v.Member("currency"), Where: "/currency"}, succeeded)
}

// noHurry is how long we stay away at least when Stripe says that a retry is of no use: what comes then is a poll, not a retry.
const noHurry = time.Minute

// Refusal implements reply.Reader (docs.stripe.com/error-handling, docs.stripe.com/error-low-level).
func (x reader) Refusal(r *reply.Reply) gateway.Answer {
	e := r.Root.Member("error")
	code := reply.Text(e.Member("code"))
	said := code
	if said == "" {
		said = reply.Text(e.Member("type"))
	}
	if r.HTTP.Header.Get("Stripe-Should-Retry") == "false" {
		r.Wait = noHurry
	}
	return r.Error(refusal(r.HTTP.Status, code), said, reply.Text(e.Member("message")))
}

func refusal(status int, code string) gateway.Class {
	switch {
	case status == 401, status == 403:
		return gateway.Unauthorized
	case status == 404 && code == "resource_missing": // never created, of another account or of the other mode: it does not say which
		return gateway.NotFound
	case status == 429 && code == "lock_timeout": // somebody else has this payment in hand: no reason to leave all others alone
		return gateway.Transport
	case status == 429:
		return gateway.RateLimited
	}
	return gateway.Transport
}
