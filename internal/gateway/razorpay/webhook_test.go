package razorpay

import (
	"context"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/payment"
	"pollux/internal/webhook"
)

var hookNow = time.Unix(1_772_366_400, 0).UTC()

func newHook(tb testing.TB) *Webhook {
	tb.Helper()
	w, err := NewWebhook(webhook.Keys{{Name: "old", Secret: []byte("old"), Until: hookNow.Add(time.Hour)}, {Name: "new", Secret: []byte("new")}})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

func hookRequest(body string, header ...string) *webhook.Request {
	r := &webhook.Request{Method: "POST", Path: "/webhooks/razorpay", Header: http.Header{}, Body: []byte(body), At: hookNow}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func hookSum(secret, body string) string {
	return hex.EncodeToString(webhook.SHA256([]byte(secret), []byte(body)))
}

func TestWebhookSignatures(t *testing.T) {
	const body = `{"entity":"event"}`
	for name, c := range map[string]struct {
		r    *webhook.Request
		key  string
		want error
	}{
		"good":             {hookRequest(body, webhookSignature, hookSum("new", body)), "new", nil},
		"a try of before":  {hookRequest(body, webhookSignature, hookSum("old", body)), "old", nil},
		"not computed":     {hookRequest(body, webhookSignature, strings.Repeat("0", 64)), "", webhook.RefusedSignature},
		"of the API's key": {hookRequest(body, webhookSignature, hookSum("api", body)), "", webhook.RefusedSignature},
		"written anew":     {hookRequest(`{"entity": "event"}`, webhookSignature, hookSum("new", body)), "", webhook.RefusedSignature},
		"none":             {hookRequest(body), "", webhook.RefusedUnsigned},
		"in base64":        {hookRequest(body, webhookSignature, "q83v"), "", webhook.RefusedUnsigned},
		"two":              {hookRequest(body, webhookSignature, hookSum("new", body), webhookSignature, hookSum("new", body)), "", webhook.RefusedUnsigned},
	} {
		if key, err := newHook(t).Verify(context.Background(), c.r); key != c.key || err != c.want {
			t.Errorf("%s: %q %v, want %v", name, key, err, c.want)
		}
		if err := newHook(t).Glance(c.r); err != nil && err != c.want {
			t.Errorf("%s: a glance says %v", name, err)
		}
	}
	late := hookRequest(body, webhookSignature, hookSum("old", body))
	late.At = hookNow.Add(time.Hour)
	if _, err := newHook(t).Verify(context.Background(), late); err != webhook.RefusedSignature {
		t.Errorf("an old key after its end: %v", err)
	}
}

func TestWebhookEvents(t *testing.T) {
	money := &webhook.Money{Minor: 1999, Currency: "INR"}
	note := func(kind string, s payment.Status, detail string, references ...string) webhook.Notice {
		return webhook.Notice{ID: "evt_1", Kind: kind, Effect: webhook.Report, Status: s, Detail: detail, References: references, Money: money, OccurredAt: hookNow}
	}
	order := func(kind string) webhook.Notice {
		return webhook.Notice{ID: "evt_1/order", Kind: kind, Effect: webhook.Hint, References: []string{"order_1"}, OccurredAt: hookNow}
	}
	captured := note("payment.captured", payment.Succeeded, "succeeded", "pay_1", "order_1")
	captured.Part = true
	event := func(kind, entity string) string {
		return `{"entity":"event","event":"` + kind + `","created_at":1772366400,"payload":` + entity + `}`
	}
	pay := func(status, more string) string {
		return `{"payment":{"entity":{"entity":"payment","id":"pay_1","amount":1999,"currency":"INR","status":"` + status + `"` + more + `}}}`
	}
	for body, want := range map[string][]webhook.Notice{
		event("payment.captured", pay("captured", `,"order_id":"order_1"`)):                                {captured},
		event("payment.authorized", pay("authorized", `,"order_id":null`)):                                 {note("payment.authorized", payment.Pending, "authorized", "pay_1")},
		event("payment.failed", pay("failed", `,"order_id":"order_1","error_reason":"payment_timed_out"`)): {note("payment.failed", payment.Failed, "payment_timed_out", "pay_1"), order("payment.failed")},
		event("order.paid", `{"order":{"entity":{"entity":"order","id":"order_1","receipt":"r 1","amount":1999,"amount_paid":1999,"currency":"INR","status":"paid"}}}`): {
			note("order.paid", payment.Succeeded, "succeeded", "order_1")},
		event("payment.downtime.started", `{"payment.downtime":{"entity":{}}}`): {{ID: "evt_1", Kind: "payment.downtime.started", OccurredAt: hookNow}},
		event("refund.processed", `{"refund":{"entity":{"entity":"refund"}}}`):  {{ID: "evt_1", Kind: "refund.processed", OccurredAt: hookNow}},
		`{"entity":"payment"}`: {{ID: "evt_1", Fault: "not an event of Razorpay"}},
	} {
		got, err := newHook(t).Parse(hookRequest(body, webhookEventID, "evt_1"))
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s\n%v\n%s", body, err, d)
		}
	}
	for entity, fault := range map[string]string{
		pay("settled", ""): `status "settled" of a payment is not known`,
		strings.Replace(pay("captured", ""), "1999", "null", 1):                       "the payment has no amount",
		strings.Replace(pay("captured", ""), `"entity":"payment"`, `"entity":"x"`, 1): "it has no payment",
	} {
		if got, err := newHook(t).Parse(hookRequest(event("payment.captured", entity))); err != nil || got[0].Fault != fault || !strings.HasPrefix(got[0].ID, "sha256:") {
			t.Errorf("%s\n%v\n%+v", entity, err, got)
		}
	}
	if _, err := newHook(t).Parse(hookRequest(`{`)); err == nil {
		t.Error("half a body is read")
	}
}

func FuzzWebhook(f *testing.F) {
	const good = `{"entity":"event","event":"payment.captured","payload":{"payment":{"entity":{"entity":"payment","id":"pay_1","status":"captured","amount":1,"currency":"INR"}}}}`
	f.Add(good, hookSum("new", good))
	f.Add(`{"entity":"event","event":"order.paid","payload":{"order":{"entity":{"entity":"order"}}}}`, "00")
	f.Fuzz(func(t *testing.T, body, signature string) {
		w, r := newHook(t), hookRequest(body, webhookSignature, signature)
		if _, err := w.Verify(context.Background(), r); err == nil && body != good {
			t.Fatal("another body is taken")
		}
		_, _ = w.Parse(r)
	})
}
