package dialect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/notify"
	"pollux/internal/payment"
)

// MercadoPago speaks as Mercado Pago does about payments (mercadopago.com/developers, "Payments").
type MercadoPago struct {
	AccessToken   string // what callers bring
	WebhookSecret string
}

// Fit implements gatewaysim.Dialect: there is a word for everything.
func (MercadoPago) Fit(s gatewaysim.Script) gatewaysim.Script { return s }

// Reference implements gatewaysim.Dialect: ids are numbers.
func (MercadoPago) Reference(prefix string, n int) string {
	return fmt.Sprintf("%s%07d", number(prefix, 9), n)
}

const mercadopagoPayments = "/v1/payments/"

// Read implements gatewaysim.Dialect: a payment by its id, or those with our reference.
func (v MercadoPago) Read(r *http.Request) (gatewaysim.Question, bool) {
	id, ok := strings.CutPrefix(r.URL.Path, mercadopagoPayments)
	q := gatewaysim.Question{Reference: id, Key: same(bearer(r), v.AccessToken), Bad: r.Method != http.MethodGet || strings.Contains(id, "/")}
	if id == "search" {
		q.Reference, q.Ours = r.URL.Query().Get("external_reference"), true
	}
	return q, ok
}

// Write implements gatewaysim.Dialect. Of a payment that is asked for by our reference the id is made of it.
func (MercadoPago) Write(q gatewaysim.Question, st gatewaysim.State) []byte {
	if !q.Ours {
		return body(mercadopagoPayment(st, st.Reference))
	}
	return body(object{"paging": object{"total": 1, "limit": 50, "offset": 0}, "results": []object{mercadopagoPayment(st, number(st.Reference, 11))}})
}

func mercadopagoPayment(st gatewaysim.State, id string) object {
	word, detail := mercadopagoWords(st)
	return object{
		"id": json.Number(id), "external_reference": st.Reference, "status": word, "status_detail": detail, "transaction_amount": json.Number(major(st)),
		"currency_id": st.Currency, "live_mode": false, "date_last_updated": st.Changed.UTC().Format("2006-01-02T15:04:05.000-07:00"),
	}
}

func mercadopagoWords(st gatewaysim.State) (word, detail string) {
	switch st.Status {
	case payment.Succeeded:
		return "approved", "accredited"
	case payment.Failed:
		return "rejected", "cc_rejected_insufficient_amount"
	case payment.Cancelled:
		return "cancelled", "by_payer"
	case payment.Expired:
		return "cancelled", "expired"
	case payment.Pending:
	default:
		return gatewaysim.UnknownWord, ""
	}
	switch st.Detail {
	case "authorized":
		return "authorized", "pending_capture"
	case "requires_action":
		return "pending", "pending_waiting_transfer"
	}
	return "in_process", "pending_contingency"
}

// Refuse implements gatewaysim.Dialect. That nothing has our reference is no error.
func (MercadoPago) Refuse(q gatewaysim.Question, o gatewaysim.Outcome) gatewaysim.Refusal {
	word, text, cause := "internal_error", "internal_error", []object{}
	switch o {
	case gatewaysim.Unauthorized:
		word, text = "unauthorized", "invalid access token"
	case gatewaysim.NotFound:
		if q.Ours {
			return refusal(http.StatusOK, object{"paging": object{"total": 0, "limit": 50, "offset": 0}, "results": []object{}})
		}
		word, text, cause = "not_found", "Payment not found", []object{{"code": 2000, "description": "Payment not found"}}
	case gatewaysim.RateLimited:
		word, text = "local_rate_limited", "too many requests"
	case gatewaysim.BadRequest:
		word, text = "method_not_allowed", "Method not allowed"
	}
	return refusal(status(o), object{"message": text, "error": word, "status": status(o), "cause": cause})
}

// SignsAmounts implements notify.Vendor: nothing of the body is signed, and no amount is in it.
func (MercadoPago) SignsAmounts() bool { return false }

// Notification implements notify.Vendor (mercadopago.com/developers, "Webhooks"). It does not say what became of the payment.
func (v MercadoPago) Notification(e notify.Event) notify.Notification {
	stamp, request := fmt.Sprint(e.At.UnixMilli()), e.ID+number(e.State.Reference, 8)
	signed := "id:" + strings.ToLower(e.Signed.Reference) + ";request-id:" + request + ";ts:" + stamp + ";"
	return notify.Notification{
		Query:  "data.id=" + e.State.Reference + "&type=payment",
		Header: jsonHeader("X-Signature", "ts="+stamp+",v1="+mac(signer(v.WebhookSecret, e), signed), "X-Request-Id", request),
		Body: body(object{
			"action": "payment.updated", "api_version": "v1", "data": object{"id": e.State.Reference}, "date_created": rfc3339(e.State.Changed),
			"id": json.Number(number(e.ID, 12)), "live_mode": false, "type": "payment", "user_id": "44444",
		}),
	}
}
