package iyzico

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

func newHook(tb testing.TB) *Webhook {
	tb.Helper()
	w, err := NewWebhook(webhook.Keys{{Name: "current", Secret: []byte("secret")}})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

func hookRequest(body, signed string) *webhook.Request {
	return &webhook.Request{Method: "POST", Header: http.Header{webhookSignature: {hex.EncodeToString(webhook.SHA256([]byte("secret"), []byte("secret"+signed)))}},
		Body: []byte(body), At: time.Unix(1_772_366_400, 0)}
}

const (
	direct = `{"iyziEventType":"API_AUTH","paymentId":"12","paymentConversationId":"c-1","status":"SUCCESS","iyziReferenceCode":"x","merchantId":7}`
	hosted = `{"iyziEventType":"CHECKOUT_FORM_AUTH","iyziPaymentId":12,"token":"t-1","paymentConversationId":"c-1","status":"SUCCESS"}`
)

func TestWebhookSignatures(t *testing.T) {
	for name, c := range map[string]struct {
		r    *webhook.Request
		want error
	}{
		"a payment":            {hookRequest(direct, "API_AUTH12c-1SUCCESS"), nil},
		"the hosted page":      {hookRequest(hosted, "CHECKOUT_FORM_AUTH12t-1c-1SUCCESS"), nil},
		"another status":       {hookRequest(strings.Replace(direct, "SUCCESS", "FAILURE", 1), "API_AUTH12c-1SUCCESS"), webhook.RefusedSignature},
		"another payment":      {hookRequest(strings.Replace(direct, "12", "13", 1), "API_AUTH12c-1SUCCESS"), webhook.RefusedSignature},
		"another key":          {hookRequest(direct, "x"), webhook.RefusedSignature},
		"no JSON":              {hookRequest("x", "x"), webhook.RefusedUnsigned},
		"nothing of a payment": {hookRequest(`{"iyziEventType":"API_AUTH"}`, "API_AUTH"), webhook.RefusedUnsigned},
		"a key twice":          {hookRequest(strings.Replace(direct, `{`, `{"status":"SUCCESS",`, 1), "API_AUTH12c-1SUCCESS"), webhook.RefusedUnsigned},
	} {
		if _, err := newHook(t).Verify(context.Background(), c.r); err != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	unsigned := hookRequest(direct, "")
	unsigned.Header.Del(webhookSignature)
	if err := newHook(t).Glance(unsigned); err != webhook.RefusedUnsigned {
		t.Errorf("unsigned: %v", err)
	}
}

func TestAWebhookOnlyAsksForAPoll(t *testing.T) {
	for body, want := range map[string]webhook.Notice{
		direct: {ID: "API_AUTH:12::c-1:SUCCESS", Kind: "API_AUTH", Effect: webhook.Hint, References: []string{"12", "c-1"}},
		hosted: {ID: "CHECKOUT_FORM_AUTH:12:t-1:c-1:SUCCESS", Kind: "CHECKOUT_FORM_AUTH", Effect: webhook.Hint, References: []string{"12", "c-1"}},
	} {
		got, err := newHook(t).Parse(hookRequest(body, ""))
		if d := cmp.Diff([]webhook.Notice{want}, got); err != nil || d != "" {
			t.Errorf("%v\n%s", err, d)
		}
	}
	if _, err := newHook(t).Parse(hookRequest("[]", "")); err == nil {
		t.Error("a list is read")
	}
}

func FuzzWebhook(f *testing.F) {
	good := hookRequest(direct, "API_AUTH12c-1SUCCESS")
	f.Add(direct, good.Header.Get(webhookSignature))
	f.Add(hosted, "00")
	f.Fuzz(func(t *testing.T, body, signature string) {
		w := newHook(t)
		r := &webhook.Request{Header: http.Header{webhookSignature: {signature}}, Body: []byte(body), At: good.At}
		_, err := w.Verify(context.Background(), r)
		got, _ := w.Parse(r)
		if err == nil && got[0].Effect != webhook.Hint {
			t.Fatalf("it is taken, and says %+v", got)
		}
		if n, ok := read(r.Body); err == nil && (!ok || n.kind+n.id+n.token+n.conversation+n.status != "API_AUTH12c-1SUCCESS") {
			t.Fatalf("something else than what was signed is taken: %+v", n)
		}
	})
}
