package mercadopago

import (
	"context"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/webhook"
)

var hookNow = time.Unix(1_772_366_400, 0).UTC()

func newHook(tb testing.TB) *Webhook {
	tb.Helper()
	w, err := NewWebhook(webhook.Keys{{Name: "current", Secret: []byte("secret")}}, webhook.Tolerance{Past: 5 * time.Minute, Future: time.Minute})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// hookRequest is a notification about a payment, with what is signed of it.
func hookRequest(query, requestID, stamp, manifest string) *webhook.Request {
	h := http.Header{"X-Signature": {"ts=" + stamp + ",v1=" + hex.EncodeToString(webhook.SHA256([]byte("secret"), []byte(manifest)))}}
	if requestID != "" {
		h.Set("X-Request-Id", requestID)
	}
	return &webhook.Request{Method: "POST", Path: "/webhooks/mercadopago", RawQuery: query, Header: h, At: hookNow,
		Body: []byte(`{"id":99,"action":"payment.updated","type":"payment","data":{"id":"666"}}`)}
}

func TestWebhookSignatures(t *testing.T) {
	change := func(r *webhook.Request, with func(*webhook.Request)) *webhook.Request { with(r); return r }
	const all = "id:123;request-id:r-1;ts:1772366400;"
	good := func() *webhook.Request { return hookRequest("data.id=123&type=payment", "r-1", "1772366400", all) }
	for name, c := range map[string]struct {
		r    *webhook.Request
		want error
	}{
		"good":                      {good(), nil},
		"an id in capital letters":  {hookRequest("data.id=AB1", "r-1", "1772366400", "id:ab1;request-id:r-1;ts:1772366400;"), nil},
		"without a request's id":    {hookRequest("data.id=123", "", "1772366400", "id:123;ts:1772366400;"), nil},
		"in milliseconds":           {hookRequest("data.id=123", "r-1", "1772366400123", "id:123;request-id:r-1;ts:1772366400123;"), nil},
		"another body":              {change(good(), func(r *webhook.Request) { r.Body = []byte("{}") }), nil}, // it is not signed, and nothing is taken from it
		"another payment":           {change(good(), func(r *webhook.Request) { r.RawQuery = "data.id=124" }), webhook.RefusedSignature},
		"another request":           {change(good(), func(r *webhook.Request) { r.Header.Set("X-Request-Id", "r-2") }), webhook.RefusedSignature},
		"parts moved":               {change(good(), func(r *webhook.Request) { r.RawQuery = "data.id=123%3Brequest-id%3Ar-1"; r.Header.Del("X-Request-Id") }), webhook.RefusedUnsigned},
		"two payments":              {change(good(), func(r *webhook.Request) { r.RawQuery = "data.id=123&data.id=124" }), webhook.RefusedUnsigned},
		"too old":                   {hookRequest("data.id=123", "", "1772366099", "id:123;ts:1772366099;"), webhook.RefusedTimestamp},
		"of the future":             {hookRequest("data.id=123", "", "1772366461", "id:123;ts:1772366461;"), webhook.RefusedTimestamp},
		"not computed":              {change(good(), func(r *webhook.Request) { r.Header.Set("X-Signature", "ts=1772366400,v1="+strings.Repeat("0", 64)) }), webhook.RefusedSignature},
		"without a signature":       {change(good(), func(r *webhook.Request) { r.Header.Del("X-Signature") }), webhook.RefusedUnsigned},
		"with half a signature":     {change(good(), func(r *webhook.Request) { r.Header.Set("X-Signature", "ts=1772366400") }), webhook.RefusedUnsigned},
		"with something else in it": {change(good(), func(r *webhook.Request) { r.Header.Set("X-Signature", r.Header.Get("X-Signature")+",v2=00") }), webhook.RefusedUnsigned},
	} {
		if _, err := newHook(t).Verify(context.Background(), c.r); err != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestAWebhookOnlyAsksForAPoll(t *testing.T) {
	got, err := newHook(t).Parse(hookRequest("data.id=123&type=payment", "r-1", "1772366400", ""))
	want := []webhook.Notice{{ID: "123:r-1:1772366400", Kind: "payment.updated", Effect: webhook.Hint, References: []string{"123"}}}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
}

func FuzzWebhook(f *testing.F) {
	f.Add("data.id=123&type=payment", "r-1", "ts=1772366400,v1="+hex.EncodeToString(webhook.SHA256([]byte("secret"), []byte("id:123;request-id:r-1;ts:1772366400;"))), "{}")
	f.Add("data.id=%", ";", "ts=,v1=,", "{")
	f.Fuzz(func(t *testing.T, query, request, signature, body string) {
		r := &webhook.Request{RawQuery: query, Header: http.Header{"X-Signature": {signature}, "X-Request-Id": {request}}, Body: []byte(body), At: hookNow}
		w := newHook(t)
		_, err := w.Verify(context.Background(), r)
		got, _ := w.Parse(r)
		if err == nil && (got[0].Effect != webhook.Hint || len(got[0].References) != 1 || got[0].References[0] != "123") {
			t.Fatalf("it is taken, and says %+v", got)
		}
	})
}
