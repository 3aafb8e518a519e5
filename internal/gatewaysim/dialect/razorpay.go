package dialect

import (
	"fmt"
	"net/http"
	"strings"

	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/notify"
	"pollux/internal/payment"
)

// Razorpay speaks as Razorpay does about payments (razorpay.com/docs/api/payments).
type Razorpay struct {
	KeyID, KeySecret string // what callers bring
	WebhookSecret    string
}

// Fit implements gatewaysim.Dialect: a payment that nobody makes is only ever failed.
func (Razorpay) Fit(s gatewaysim.Script) gatewaysim.Script {
	return without(s, payment.Cancelled, payment.Expired)
}

// Reference implements gatewaysim.Dialect.
func (Razorpay) Reference(prefix string, n int) string { return fmt.Sprintf("pay_%s_%06d", prefix, n) }

// Read implements gatewaysim.Dialect.
func (v Razorpay) Read(r *http.Request) (gatewaysim.Question, bool) {
	id, ok := strings.CutPrefix(r.URL.Path, "/v1/payments/")
	user, password, _ := r.BasicAuth()
	return gatewaysim.Question{
		Reference: id, Key: same(user, v.KeyID) && same(password, v.KeySecret), Bad: r.Method != http.MethodGet || strings.Contains(id, "/"),
	}, ok
}

// Write implements gatewaysim.Dialect.
func (Razorpay) Write(_ gatewaysim.Question, st gatewaysim.State) []byte {
	return body(razorpayPayment(st))
}

func razorpayPayment(st gatewaysim.State) object {
	o := object{
		"id": st.Reference, "entity": "payment", "amount": st.AmountMinor, "currency": st.Currency, "captured": st.Status == payment.Succeeded, "method": "upi",
		"amount_refunded": 0, "order_id": nil, "error_code": nil, "error_reason": nil, "created_at": st.Changed.Unix(),
	}
	switch {
	case st.Status == payment.Succeeded:
		o["status"] = "captured"
	case st.Status == payment.Failed:
		o["status"], o["error_code"], o["error_reason"] = "failed", "BAD_REQUEST_ERROR", "payment_timed_out"
	case st.Status == "":
		o["status"] = gatewaysim.UnknownWord
	case st.Detail == "authorized":
		o["status"] = "authorized"
	default:
		o["status"] = "created"
	}
	return o
}

// Refuse implements gatewaysim.Dialect (razorpay.com/docs/errors). A payment that it does not know is a bad request.
func (Razorpay) Refuse(_ gatewaysim.Question, o gatewaysim.Outcome) gatewaysim.Refusal {
	code, text, http := "SERVER_ERROR", "We are facing some trouble completing your request at the moment.", status(o)
	switch o {
	case gatewaysim.Unauthorized:
		code, text = "BAD_REQUEST_ERROR", "Authentication failed"
	case gatewaysim.NotFound:
		code, text, http = "BAD_REQUEST_ERROR", "The id provided does not exist", 400
	case gatewaysim.RateLimited:
		code, text = "BAD_REQUEST_ERROR", "Request failed. Please try after sometime."
	case gatewaysim.BadRequest:
		code, text = "BAD_REQUEST_ERROR", "The requested URL was not found on the server."
	}
	return refusal(http, object{"error": object{"code": code, "description": text, "source": "NA", "step": "NA", "reason": "NA", "metadata": object{}}})
}

// SignsAmounts implements notify.Vendor.
func (Razorpay) SignsAmounts() bool { return true }

// Notification implements notify.Vendor (razorpay.com/docs/webhooks/validate-test).
func (v Razorpay) Notification(e notify.Event) notify.Notification {
	sum := mac(signer(v.WebhookSecret, e), string(razorpayEvent(e.Signed)))
	return notify.Notification{
		Header: jsonHeader("X-Razorpay-Signature", sum, "X-Razorpay-Event-Id", e.ID), Body: razorpayEvent(e.State),
	}
}

func razorpayEvent(st gatewaysim.State) []byte {
	p := razorpayPayment(st)
	return body(object{
		"entity": "event", "account_id": "acc_Simulator00001", "event": fmt.Sprintf("payment.%s", p["status"]), "contains": []string{"payment"},
		"payload": object{"payment": object{"entity": p}}, "created_at": st.Changed.Unix(),
	})
}
