package mercadopago

import (
	"fmt"
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

// FuzzAnswer reads whole answers as a payment and as a list. None makes the reader panic, and a payment ends only where encoding/json finds in the same
// body what it must have.
func FuzzAnswer(f *testing.F) {
	for _, body := range []string{
		approved, said("rejected", "x"), said("cancelled", "expired"), `{"paging":{"total":1},"results":[` + approved + `]}`, failure("not_found", "x"), `{}`, `null`, ``, `<html>`,
	} {
		for _, status := range []int{200, 302, 401, 404, 429, 500} {
			f.Add(status, []byte(body))
		}
	}
	terms, hide := reply.Terms{MaxRetryAfter: time.Hour}, httpclient.NewRedactor("hunter-two")
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		resp := httpclient.Response{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
		doc := gatewaytest.Object(body)
		for _, reference := range []string{"2798247250", "order-7"} {
			q := ask(reference, "order-7")
			_, rd, why := question(q, true)
			if why != "" {
				t.Fatal(why)
			}
			ans := terms.Read(rd, reply.Call{Query: q, Hide: hide, HTTP: resp}, new(strictjson.Document), time.Unix(1789020000, 0))
			gatewaytest.Check(t, ans, "hunter-two")
			switch {
			case ans.Class != gateway.Final:
			case status < 200 || status > 203:
				t.Fatalf("final after HTTP %d: %+v", status, ans)
			case reference != "order-7" && (fmt.Sprint(doc["id"]) != reference || doc["live_mode"] != true):
				t.Fatalf("final, but it is about something else: %+v", ans)
			case reference != "order-7" && ans.Status == payment.Succeeded && (doc["transaction_amount"] == nil || doc["currency_id"] == nil):
				t.Fatalf("a success without money: %+v", ans)
			}
		}
	})
}
