package dialect

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"net/http"
	"strings"

	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/notify"
	"pollux/internal/payment"
)

// PayPal speaks as PayPal does about orders (developer.paypal.com/docs/api/orders/v2), behind OAuth 2 with client credentials.
type PayPal struct {
	ClientID, ClientSecret string
	WebhookID              string     // what it signs for
	Signing                *Authority // of its notifications; nil when it sends none
}

// Fit implements gatewaysim.Dialect: an order does not expire, it is gone.
func (PayPal) Fit(s gatewaysim.Script) gatewaysim.Script {
	if s.Final == payment.Expired {
		s.Final = payment.Cancelled
	}
	return s
}

// Reference implements gatewaysim.Dialect.
func (PayPal) Reference(prefix string, n int) string {
	return fmt.Sprintf("%s-%06d", capitals(prefix), n)
}

// token is the access token that the credentials are good for.
func (v PayPal) token() string { return "A21AA" + mac(v.ClientSecret, v.ClientID) }

// Read implements gatewaysim.Dialect.
func (v PayPal) Read(r *http.Request) (gatewaysim.Question, bool) {
	if r.URL.Path == "/v1/oauth2/token" {
		g := v.grant(r)
		return gatewaysim.Question{Grant: &g}, true
	}
	id, ok := strings.CutPrefix(r.URL.Path, "/v2/checkout/orders/")
	return gatewaysim.Question{Reference: id, Key: same(bearer(r), v.token()), Bad: r.Method != http.MethodGet || strings.Contains(id, "/")}, ok
}

// grant answers a request for an access token (developer.paypal.com/api/rest/authentication).
func (v PayPal) grant(r *http.Request) gatewaysim.Refusal {
	user, password, _ := r.BasicAuth()
	switch {
	case r.Method != http.MethodPost || r.PostFormValue("grant_type") != "client_credentials":
		return refusal(http.StatusBadRequest, object{"error": "unsupported_grant_type", "error_description": "unsupported grant_type"})
	case !same(user, v.ClientID) || !same(password, v.ClientSecret):
		return refusal(http.StatusUnauthorized, object{"error": "invalid_client", "error_description": "Client Authentication failed"})
	}
	return refusal(http.StatusOK, object{"scope": "https://uri.paypal.com/services/checkout", "access_token": v.token(), "token_type": "Bearer", "app_id": "APP-1", "expires_in": 32400})
}

// Write implements gatewaysim.Dialect.
func (PayPal) Write(_ gatewaysim.Question, st gatewaysim.State) []byte { return body(order(st)) }

// order is an order with one purchase unit.
func order(st gatewaysim.State) object {
	amount := object{"currency_code": st.Currency, "value": major(st)}
	unit := object{"reference_id": "default", "amount": amount}
	o := object{"id": st.Reference, "intent": "CAPTURE", "purchase_units": []object{unit}, "create_time": rfc3339(st.Changed), "update_time": rfc3339(st.Changed)}
	done := func(kind, word, reason string) {
		part := object{"id": partOf(st), "status": word, "amount": amount}
		if reason != "" {
			part["status_details"] = object{"reason": reason}
		}
		o["status"], unit["payments"] = "COMPLETED", object{kind: []object{part}}
	}
	switch {
	case st.Status == payment.Succeeded:
		done("captures", "COMPLETED", "")
	case st.Status == payment.Failed:
		done("captures", "DECLINED", "PAYER_CANNOT_PAY")
	case st.Status.Final():
		o["status"] = "VOIDED"
	case st.Status == "":
		o["status"] = gatewaysim.UnknownWord
	case st.Detail == "authorized":
		done("authorizations", "CREATED", "")
	case st.Detail == "requires_action":
		o["status"] = "PAYER_ACTION_REQUIRED"
	default:
		done("captures", "PENDING", "ECHECK")
	}
	return o
}

// partOf is the id of the capture or authorization of an order.
func partOf(st gatewaysim.State) string { return number(st.Reference, 17) }

// Refuse implements gatewaysim.Dialect (developer.paypal.com/api/rest/responses).
func (PayPal) Refuse(_ gatewaysim.Question, o gatewaysim.Outcome) gatewaysim.Refusal {
	name, text, details := "INTERNAL_SERVER_ERROR", "An internal server error has occurred.", []object{}
	switch o {
	case gatewaysim.Unauthorized:
		name, text = "AUTHENTICATION_FAILURE", "Authentication failed due to missing Authorization header, or invalid authentication credentials."
	case gatewaysim.NotFound:
		name, text, details = "RESOURCE_NOT_FOUND", "The specified resource does not exist.", []object{{"issue": "INVALID_RESOURCE_ID", "description": "Specified resource ID does not exist."}}
	case gatewaysim.RateLimited:
		name, text = "RATE_LIMIT_REACHED", "Too many requests. Blocked due to rate limiting."
	case gatewaysim.BadRequest:
		name, text = "METHOD_NOT_SUPPORTED", "The server does not implement the requested HTTP method."
	case gatewaysim.Unavailable:
		name, text = "SERVICE_UNAVAILABLE", "Service Unavailable."
	}
	return refusal(status(o), object{"name": name, "message": text, "debug_id": "f1a2b3c4d5e6f", "details": details})
}

// SignsAmounts implements notify.Vendor: a checksum of the body is signed.
func (PayPal) SignsAmounts() bool { return true }

// Notification implements notify.Vendor (developer.paypal.com/api/rest/webhooks/rest, "Verify the notification message").
func (v PayPal) Notification(e notify.Event) notify.Notification {
	transmission, stamp := number(e.ID, 12)+"-"+e.ID, rfc3339(e.At)
	signed := fmt.Sprintf("%s|%s|%s|%d", transmission, stamp, v.WebhookID, crc32.ChecksumIEEE(paypalEvent(e.ID, e.Signed)))
	sum := sha256.Sum256([]byte(signed))
	key := v.Signing.key
	if e.Stranger {
		key = v.Signing.stranger
	}
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		panic(err) // the keys are large enough for any checksum
	}
	return notify.Notification{
		Header: jsonHeader("Paypal-Transmission-Id", transmission, "Paypal-Transmission-Time", stamp, "Paypal-Transmission-Sig", base64.StdEncoding.EncodeToString(signature),
			"Paypal-Cert-Url", CertificateURL, "Paypal-Auth-Algo", "SHA256withRSA"),
		Body: paypalEvent(e.ID, e.State),
	}
}

func paypalEvent(id string, st gatewaysim.State) []byte {
	kind, resource, what := "CHECKOUT.ORDER.APPROVED", "checkout-order", order(st)
	switch {
	case st.Status == payment.Succeeded:
		kind, resource = "PAYMENT.CAPTURE.COMPLETED", "capture"
	case st.Status == payment.Failed:
		kind, resource = "PAYMENT.CAPTURE.DENIED", "capture"
	case st.Status == payment.Cancelled:
		kind = "CHECKOUT.PAYMENT-APPROVAL.REVERSED"
	case st.Detail == "authorized":
		kind, resource = "PAYMENT.AUTHORIZATION.CREATED", "authorization"
	case st.Detail == "processing":
		kind, resource = "PAYMENT.CAPTURE.PENDING", "capture"
	}
	if resource != "checkout-order" { // it names the order that it belongs to
		what = object{"id": partOf(st), "amount": object{"currency_code": st.Currency, "value": major(st)}, "supplementary_data": object{"related_ids": object{"order_id": st.Reference}}}
	}
	return body(object{
		"id": "WH-" + strings.ToUpper(id), "event_version": "1.0", "create_time": rfc3339(st.Changed), "resource_type": resource, "event_type": kind,
		"resource_version": "2.0", "summary": "A payment of the simulator", "resource": what,
	})
}
