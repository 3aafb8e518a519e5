package dialect

import (
	"fmt"
	"net/http"
	"strings"

	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/notify"
	"pollux/internal/payment"
)

// Stripe speaks as Stripe does about PaymentIntents (docs.stripe.com/api/payment_intents), in test mode.
type Stripe struct {
	Key           string // what callers bring
	SigningSecret string // of the endpoint that it notifies
}

// stripeDecimals are those of currencies that Stripe writes otherwise than ISO 4217 (docs.stripe.com/currencies).
var stripeDecimals = map[string]int{"ISK": 2, "MGA": 0, "UGX": 2}

// Fit implements gatewaysim.Dialect: there is a word for everything.
func (Stripe) Fit(s gatewaysim.Script) gatewaysim.Script { return s }

// Reference implements gatewaysim.Dialect.
func (Stripe) Reference(prefix string, n int) string { return fmt.Sprintf("pi_%s_%06d", prefix, n) }

// Read implements gatewaysim.Dialect.
func (v Stripe) Read(r *http.Request) (gatewaysim.Question, bool) {
	id, ok := strings.CutPrefix(r.URL.Path, "/v1/payment_intents/")
	return gatewaysim.Question{Reference: id, Key: same(bearer(r), v.Key), Bad: r.Method != http.MethodGet || strings.Contains(id, "/")}, ok
}

// Write implements gatewaysim.Dialect.
func (Stripe) Write(_ gatewaysim.Question, st gatewaysim.State) []byte { return body(intent(st)) }

// intent is a PaymentIntent.
func intent(st gatewaysim.State) object {
	amount := minor(st, stripeDecimals)
	o := object{
		"id": st.Reference, "object": "payment_intent", "amount": amount, "amount_received": 0, "amount_capturable": 0,
		"currency": strings.ToLower(st.Currency), "livemode": false, "capture_method": "automatic", "created": st.Changed.Unix(),
		"cancellation_reason": nil, "last_payment_error": nil, "metadata": object{},
	}
	switch st.Status {
	case payment.Pending:
		o["status"] = st.Detail
		if st.Detail == "authorized" {
			o["status"], o["amount_capturable"] = "requires_capture", amount
		}
	case payment.Succeeded:
		o["status"], o["amount_received"] = "succeeded", amount
	case payment.Failed:
		o["status"] = "requires_payment_method"
		o["last_payment_error"] = object{"type": "card_error", "code": "card_declined", "decline_code": "insufficient_funds", "message": "Your card has insufficient funds."}
	case payment.Cancelled:
		o["status"], o["cancellation_reason"] = "canceled", "requested_by_customer"
	case payment.Expired:
		o["status"], o["cancellation_reason"] = "canceled", "automatic"
	default:
		o["status"] = gatewaysim.UnknownWord
	}
	return o
}

// Refuse implements gatewaysim.Dialect (docs.stripe.com/error-handling).
func (Stripe) Refuse(q gatewaysim.Question, o gatewaysim.Outcome) gatewaysim.Refusal {
	e := object{"type": "api_error", "message": "Something went wrong on Stripe's end."}
	switch o {
	case gatewaysim.Unauthorized:
		e = object{"type": "invalid_request_error", "message": "Invalid API Key provided."}
	case gatewaysim.NotFound:
		e = object{"type": "invalid_request_error", "code": "resource_missing", "param": "intent", "message": "No such payment_intent: '" + q.Reference + "'"}
	case gatewaysim.RateLimited:
		e = object{"type": "invalid_request_error", "code": "rate_limit", "message": "Too many requests hit the API too quickly."}
	case gatewaysim.BadRequest:
		e = object{"type": "invalid_request_error", "message": "Unrecognized request URL."}
	}
	return refusal(status(o), object{"error": e})
}

// SignsAmounts implements notify.Vendor.
func (Stripe) SignsAmounts() bool { return true }

// Notification implements notify.Vendor (docs.stripe.com/webhooks, "Verify webhook signatures manually").
func (v Stripe) Notification(e notify.Event) notify.Notification {
	stamp := fmt.Sprint(e.At.Unix())
	sum := mac(signer(v.SigningSecret, e), stamp+"."+string(stripeEvent(e.ID, e.Signed)))
	return notify.Notification{Header: jsonHeader("Stripe-Signature", "t="+stamp+",v1="+sum), Body: stripeEvent(e.ID, e.State)}
}

func stripeEvent(id string, st gatewaysim.State) []byte {
	return body(object{
		"id": "evt_" + id, "object": "event", "api_version": "2025-03-31.basil", "created": st.Changed.Unix(), "livemode": false, "pending_webhooks": 1,
		"type": "payment_intent." + stripeKind(st), "data": object{"object": intent(st)},
	})
}

func stripeKind(st gatewaysim.State) string {
	switch {
	case st.Status == payment.Succeeded:
		return "succeeded"
	case st.Status == payment.Failed:
		return "payment_failed"
	case st.Status.Final():
		return "canceled"
	case st.Detail == "authorized":
		return "amount_capturable_updated"
	case st.Detail == "requires_action":
		return "requires_action"
	}
	return "processing"
}
