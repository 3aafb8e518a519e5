package paypal

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

// FuzzAnswer reads whole answers as an order, a capture, an authorization and a token. None makes the reader panic, and a payment ends only where
// encoding/json finds in the same body what it must have.
func FuzzAnswer(f *testing.F) {
	for _, body := range []string{
		complete, capture, authorization, failure("RESOURCE_NOT_FOUND", "INVALID_RESOURCE_ID"), `{"access_token":"a","token_type":"Bearer","expires_in":32400}`, `{}`, `null`, ``, `<html>`,
		replaced(complete, `"2GG27","status":"COMPLETED" -> "2GG27","status":"DECLINED"`),
	} {
		for _, status := range []int{200, 302, 401, 404, 429, 500} {
			f.Add(status, []byte(body))
		}
	}
	terms, hide := reply.Terms{MaxRetryAfter: time.Hour}, httpclient.NewRedactor("hunter-two")
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		resp := httpclient.Response{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
		read := func(rd reply.Reader, reference string) gateway.Answer {
			q := gateway.Query{Reference: reference, AmountMinor: 1000, Currency: "EUR"}
			ans := terms.Read(rd, reply.Call{Query: q, Hide: hide, HTTP: resp}, new(strictjson.Document), time.Unix(1789020000, 0))
			gatewaytest.Check(t, ans, "hunter-two")
			return ans
		}
		doc := gatewaytest.Object(body)
		good := status >= 200 && status <= 203
		for reference, rd := range map[string]reply.Reader{"5O190": orders{}, "2GG27": captures{}, "0VF52": authorizations{}} {
			ans := read(rd, reference)
			if ans.Class == gateway.Final && (!good || doc["id"] != reference) {
				t.Fatalf("final, but it is about something else: %+v", ans)
			}
			if ans.Status == payment.Succeeded && reference == "5O190" && (doc["status"] != "COMPLETED" || doc["purchase_units"] == nil) {
				t.Fatalf("a success without captures: %+v", ans)
			}
		}
		g := &grant{}
		read(g, "")
		if g.text != "" && (!good || doc["access_token"] != g.text || g.lasts <= 0 || g.lasts > longLife) {
			t.Fatalf("a token out of nothing: %q for %s", g.text, g.lasts)
		}
	})
}
