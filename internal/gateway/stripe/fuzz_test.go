package stripe

import (
	"net/http"
	"testing"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/gatewaytest"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
)

// FuzzAnswer reads whole answers. None makes the reader panic, and a success is one only where encoding/json finds in the same body exactly what a
// success must have.
func FuzzAnswer(f *testing.F) {
	for _, body := range []string{
		`{"id":"pi_1","object":"payment_intent","status":"succeeded","amount":1050,"amount_received":1050,"currency":"eur","livemode":true}`,
		`{"id":"pi_1","object":"payment_intent","status":"requires_payment_method","amount":1050,"currency":"eur","livemode":true,"last_payment_error":{"code":"x"}}`,
		`{"id":"pi_1","object":"payment_intent","status":"canceled","cancellation_reason":"automatic","livemode":true}`,
		`{"error":{"code":"resource_missing","type":"invalid_request_error","message":"No such payment_intent"}}`, `{}`, `null`, ``, `<html>`,
	} {
		for _, status := range []int{200, 302, 401, 404, 429, 500} {
			f.Add(status, []byte(body))
		}
	}
	q := gateway.Query{Reference: "pi_1", AmountMinor: 1050, Currency: "EUR"}
	terms, hide := reply.Terms{MaxRetryAfter: time.Hour}, httpclient.NewRedactor("hunter-two")
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		resp := httpclient.Response{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
		ans := terms.Read(newReader(true), reply.Call{Query: q, Hide: hide, HTTP: resp}, new(strictjson.Document), time.Unix(1789020000, 0))
		gatewaytest.Check(t, ans, "hunter-two")
		if ans.Class != gateway.Final {
			return
		}
		doc := gatewaytest.Object(body)
		if status < 200 || status > 203 || doc["id"] != "pi_1" || doc["object"] != "payment_intent" || doc["livemode"] != true {
			t.Fatalf("final, but it is about something else: %+v", ans)
		}
		if ans.Status == payment.Succeeded && (doc["status"] != "succeeded" || doc["amount_received"] == nil || doc["currency"] == nil) {
			t.Fatalf("a success without money: %+v", ans)
		}
	})
}
