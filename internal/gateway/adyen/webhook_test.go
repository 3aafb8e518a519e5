package adyen

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/payment"
	"pollux/internal/webhook"
)

var hookNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// The key of Adyen's own example (docs.adyen.com, "Verify HMAC signatures").
const hookKey = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"

func newHook(tb testing.TB, c WebhookConfig) *Webhook {
	tb.Helper()
	w, err := NewWebhook(c, webhook.Keys{{Name: "old", Secret: []byte("00")}, {Name: "current", Secret: []byte(hookKey)}})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// one is an item, signed unless a signature is given.
func one(code, success, original string, more ...string) string {
	secret, _ := hex.DecodeString(hookKey)
	signed := strings.Join([]string{"psp_1", original, "Acme", "order:1", "1999", "EUR", code, success}, ":")
	signature := base64.StdEncoding.EncodeToString(webhook.SHA256(secret, []byte(signed)))
	if len(more) > 0 {
		signature = more[0]
	}
	return fmt.Sprintf(`{"NotificationRequestItem":{"additionalData":{"hmacSignature":%q},"amount":{"currency":"EUR","value":1999},"eventCode":%q,"eventDate":"2026-03-01T13:00:00+01:00",`+
		`"merchantAccountCode":"Acme","merchantReference":"order:1","originalReference":%q,"pspReference":"psp_1","reason":"Insufficient funds","success":%q}}`,
		signature, code, original, success)
}

func hookRequest(items ...string) *webhook.Request {
	return &webhook.Request{Method: "POST", Body: []byte(`{"live":"true","notificationItems":[` + strings.Join(items, ",") + `]}`), At: hookNow}
}

// The fields, the key and the signature are those of Adyen's own example.
func TestAdyensOwnExample(t *testing.T) {
	r := &webhook.Request{At: hookNow, Body: []byte(`{"live":"false","notificationItems":[{"NotificationRequestItem":{"additionalData":{"hmacSignature":"coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="},
		"amount":{"value":1130,"currency":"EUR"},"pspReference":"7914073381342284","eventCode":"AUTHORISATION","eventDate":"2019-05-06T17:15:34.121+02:00",
		"merchantAccountCode":"TestMerchant","operations":["CANCEL","CAPTURE","REFUND"],"merchantReference":"TestPayment-1407325143704","paymentMethod":"visa","success":"true"}}]}`)}
	if name, err := newHook(t, WebhookConfig{}).Verify(context.Background(), r); name != "current" || err != nil {
		t.Errorf("%q %v", name, err)
	}
}

func TestWebhookSignatures(t *testing.T) {
	good := one("CAPTURE", "true", "orig_1")
	for name, c := range map[string]struct {
		r    *webhook.Request
		want error
	}{
		"good":                  {hookRequest(good), nil},
		"one of three":          {hookRequest(one("CAPTURE", "true", "o", "AAAA"), good, one("CAPTURE", "true", "o", "")), nil},
		"another success":       {hookRequest(strings.Replace(good, `"success":"true"`, `"success":"false"`, 1)), webhook.RefusedSignature},
		"another amount":        {hookRequest(strings.Replace(good, "1999", "199", 1)), webhook.RefusedSignature},
		"another event":         {hookRequest(strings.Replace(good, "CAPTURE", "AUTHORISATION", 1)), webhook.RefusedSignature},
		"fields moved":          {hookRequest(strings.Replace(strings.Replace(good, `"Acme"`, `"Acme:order"`, 1), `"order:1"`, `"1"`, 1)), webhook.RefusedSignature},
		"present, not computed": {hookRequest(one("CAPTURE", "true", "o", base64.StdEncoding.EncodeToString(make([]byte, 32)))), webhook.RefusedSignature},
		"without items":         {hookRequest(), webhook.RefusedUnsigned},
		"too many items":        {hookRequest(strings.Split(strings.Repeat(good+"|", 101), "|")[:101]...), webhook.RefusedUnsigned},
		"no JSON":               {&webhook.Request{Body: []byte("{")}, webhook.RefusedUnsigned},
	} {
		if _, err := newHook(t, WebhookConfig{}).Verify(context.Background(), c.r); err != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestEachItemIsReadForItself(t *testing.T) {
	got, err := newHook(t, WebhookConfig{}).Parse(hookRequest(one("CAPTURE", "true", "orig_1"), one("CAPTURE", "true", "orig_2", "AAAA"), one("REFUND", "true", "orig_3")))
	if err != nil || len(got) != 3 || got[0].Status != payment.Succeeded || got[1].Refused != webhook.RefusedSignature || got[2].Effect != webhook.Nothing || got[2].Refused != "" {
		t.Errorf("%+v %v", got, err)
	}
}

func TestWebhookEvents(t *testing.T) {
	money := &webhook.Money{Minor: 1999, Currency: "EUR"}
	note := func(code, success string, s payment.Status, detail string, m *webhook.Money, references ...string) webhook.Notice {
		return webhook.Notice{ID: "Acme:psp_1:" + code + ":" + success, Kind: code, Mode: "live", OccurredAt: hookNow, Effect: webhook.Report, Status: s, Detail: detail,
			Money: m, References: append(references, "psp_1", "order:1")}
	}
	nothing := func(code, success string) webhook.Notice {
		return webhook.Notice{ID: "Acme:psp_1:" + code + ":" + success, Kind: code, Mode: "live", OccurredAt: hookNow}
	}
	for _, c := range []struct {
		cfg  WebhookConfig
		item string
		want webhook.Notice
	}{
		{WebhookConfig{}, one("AUTHORISATION", "true", ""), note("AUTHORISATION", "true", payment.Pending, "authorized", money)},
		{WebhookConfig{Capture: "automatic"}, one("AUTHORISATION", "true", ""), note("AUTHORISATION", "true", payment.Succeeded, "succeeded", money)},
		{WebhookConfig{}, one("AUTHORISATION", "false", ""), note("AUTHORISATION", "false", payment.Failed, "insufficient_funds", nil)},
		{WebhookConfig{}, one("CAPTURE", "true", "orig"), note("CAPTURE", "true", payment.Succeeded, "succeeded", money, "orig")},
		{WebhookConfig{}, one("CAPTURE", "false", "orig"), nothing("CAPTURE", "false")},
		{WebhookConfig{}, one("CAPTURE_FAILED", "true", "orig"), note("CAPTURE_FAILED", "true", payment.Failed, "capture_failed", nil, "orig")},
		{WebhookConfig{}, one("CANCELLATION", "true", "orig"), note("CANCELLATION", "true", payment.Cancelled, "cancelled", nil, "orig")},
		{WebhookConfig{}, one("CANCELLATION", "false", "orig"), nothing("CANCELLATION", "false")},
		{WebhookConfig{}, one("EXPIRE", "true", "orig"), note("EXPIRE", "true", payment.Expired, "expired", nil, "orig")},
		{WebhookConfig{}, one("OFFER_CLOSED", "true", ""), note("OFFER_CLOSED", "true", payment.Expired, "expired", nil)},
		{WebhookConfig{}, one("CHARGEBACK", "true", "orig"), nothing("CHARGEBACK", "true")},
		{WebhookConfig{}, one("REPORT_AVAILABLE", "true", ""), nothing("REPORT_AVAILABLE", "true")},
	} {
		got, err := newHook(t, c.cfg).Parse(hookRequest(c.item))
		if d := cmp.Diff([]webhook.Notice{c.want}, got); err != nil || d != "" {
			t.Errorf("%s\n%v\n%s", c.want.ID, err, d)
		}
	}
	for fault, c := range map[string]struct {
		cfg  WebhookConfig
		item string
	}{
		"it is of another merchant account than Other": {WebhookConfig{MerchantAccount: "Other"}, one("CAPTURE", "true", "")},
		"it does not say whether it went well":         {WebhookConfig{}, one("CAPTURE", "yes", "")},
	} {
		if got, err := newHook(t, c.cfg).Parse(hookRequest(c.item)); err != nil || got[0].Fault != fault {
			t.Errorf("%+v %v, want %s", got, err, fault)
		}
	}
}

func TestWebhookConfigurationsThatAreRefused(t *testing.T) {
	for want, make := range map[string]func() (*Webhook, error){
		"adyen.capture: \"later\" is not known": func() (*Webhook, error) {
			return NewWebhook(WebhookConfig{Capture: "later"}, webhook.Keys{{Secret: []byte("00")}})
		},
		"keys: missing": func() (*Webhook, error) { return NewWebhook(WebhookConfig{}, nil) },
		"keys.current.secret: not hexadecimal": func() (*Webhook, error) {
			return NewWebhook(WebhookConfig{}, webhook.Keys{{Name: "current", Secret: []byte("x")}})
		},
	} {
		if _, err := make(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func FuzzWebhook(f *testing.F) {
	f.Add(string(hookRequest(one("CAPTURE", "true", "orig_1")).Body))
	f.Add(`{"notificationItems":[{"NotificationRequestItem":{"additionalData":{"hmacSignature":"AAAA"}}}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		w, r := newHook(t, WebhookConfig{}), &webhook.Request{Body: []byte(body), At: hookNow}
		_, err := w.Verify(context.Background(), r)
		got, _ := w.Parse(r)
		for _, n := range got {
			if n.Refused == "" && (n.ID != "Acme:psp_1:CAPTURE:true" || err != nil) {
				t.Fatalf("something else than what was signed is taken: %+v %v", n, err)
			}
		}
	})
}
