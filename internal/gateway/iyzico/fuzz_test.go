package iyzico

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/gatewaytest"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
)

// FuzzAnswer reads whole answers. None makes the reader panic; and since nobody but iyzico can sign, no answer ends a payment but those whose signed
// fields are as iyzico signed them.
func FuzzAnswer(f *testing.F) {
	for _, body := range []string{signed(""), signed(`"SUCCESS" -> "FAILURE"`), signed(`"fraudStatus":1 -> "fraudStatus":-1`), unsigned, failure("5115"), `{}`, `null`, ``, `<html>`} {
		for _, status := range []int{200, 302, 401, 404, 429, 500} {
			f.Add(status, []byte(body))
		}
	}
	terms, hide := reply.Terms{MaxRetryAfter: time.Hour}, httpclient.NewRedactor(marked)
	rd := reader{key: []byte(marked), unknown: map[string]bool{"5115": true}}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		resp := httpclient.Response{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
		for _, reference := range []string{"12345678", "order-7"} {
			ans := terms.Read(rd, reply.Call{Query: ask(reference, "order-7"), Hide: hide, HTTP: resp}, new(strictjson.Document), time.Unix(1789020000, 0))
			gatewaytest.Check(t, ans)
			if ans.Class != gateway.Final {
				continue
			}
			doc := gatewaytest.Object(body)
			if status < 200 || status > 203 || doc["status"] != "success" || fmt.Sprint(doc["paymentId"]) != "12345678" || fmt.Sprint(doc["conversationId"]) != "order-7" ||
				doc["currency"] != "TRY" || !bytes.Contains(body, []byte("10.5")) {
				t.Fatalf("final, and iyzico never signed it: %s: %+v", body, ans)
			}
		}
	})
}
