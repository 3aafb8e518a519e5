package razorpay

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

// FuzzAnswer reads whole answers, as a payment, as an order and as a list. None makes the reader panic, and a payment ends only where encoding/json
// finds in the same body what it must have.
func FuzzAnswer(f *testing.F) {
	for _, body := range []string{
		`{"id":"pay_1","entity":"payment","amount":1050,"currency":"INR","status":"captured"}`, `{"id":"pay_1","entity":"payment","status":"failed","error_reason":"x"}`,
		`{"id":"order_1","entity":"order","amount":1050,"amount_paid":1050,"currency":"INR","status":"paid","receipt":"own"}`,
		`{"entity":"collection","items":[{"id":"order_1","entity":"order","amount_paid":1050,"currency":"INR","status":"paid","receipt":"own"}]}`,
		`{"error":{"code":"BAD_REQUEST_ERROR","description":"x","reason":"y"}}`, `{}`, `null`, ``, `<html>`,
	} {
		for _, status := range []int{200, 302, 400, 429, 500} {
			f.Add(status, []byte(body))
		}
	}
	terms, hide := reply.Terms{MaxRetryAfter: time.Hour}, httpclient.NewRedactor("hunter-two")
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		resp := httpclient.Response{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
		for _, reference := range []string{"pay_1", "order_1", "own"} {
			q := gateway.Query{Reference: reference, MerchantRef: "own", AmountMinor: 1050, Currency: "INR"}
			_, rd, why := question(q)
			if why != "" {
				t.Fatal(why)
			}
			ans := terms.Read(rd, reply.Call{Query: q, Hide: hide, HTTP: resp}, new(strictjson.Document), time.Unix(1789020000, 0))
			gatewaytest.Check(t, ans, "hunter-two")
			if ans.Class != gateway.Final {
				continue
			}
			doc := gatewaytest.Object(body)
			if status < 200 || status > 203 || reference != "own" && doc["id"] != reference {
				t.Fatalf("final, but it is about something else: %+v", ans)
			}
			if ans.Status == payment.Succeeded && reference == "pay_1" && (doc["amount"] == nil || doc["currency"] == nil) {
				t.Fatalf("a success without money: %+v", ans)
			}
		}
	})
}
