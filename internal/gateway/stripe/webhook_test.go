package stripe

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/payment"
	"pollux/internal/webhook"
)

var webhookNow = time.Unix(1_772_366_400, 0).UTC()

const webhookSecret = "whsec_test_one"

func webhookSum(secret, stamp, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%s.%s", stamp, body)
	return hex.EncodeToString(mac.Sum(nil))
}

func webhookRequest(body string, signature ...string) *webhook.Request {
	return &webhook.Request{Method: "POST", Path: "/webhooks/stripe", Header: http.Header{webhookHeader: signature}, Body: []byte(body), At: webhookNow}
}

func newWebhook(tb testing.TB, keys ...webhook.Key) *Webhook {
	tb.Helper()
	if keys == nil {
		keys = []webhook.Key{{Name: "current", Secret: []byte(webhookSecret)}}
	}
	w, err := NewWebhook(keys, WebhookTolerance)
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

func TestWebhookSignatures(t *testing.T) {
	const body = `{"id":"evt_1","object":"event"}`
	stamp := strconv.FormatInt(webhookNow.Unix(), 10)
	good := webhookSum(webhookSecret, stamp, body)
	at := func(d time.Duration) string {
		s := strconv.FormatInt(webhookNow.Add(d).Unix(), 10)
		return "t=" + s + ",v1=" + webhookSum(webhookSecret, s, body)
	}
	for _, c := range []struct {
		name   string
		header []string
		want   error
	}{
		{"good", []string{"t=" + stamp + ",v1=" + good}, nil},
		{"with another scheme beside it", []string{"t=" + stamp + ",v1=" + good + ",v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"}, nil},
		{"one of two", []string{"t=" + stamp + ",v1=" + strings.Repeat("0", 64) + ",v1=" + good}, nil},
		{"in capital letters", []string{"t=" + stamp + ",v1=" + strings.ToUpper(good)}, nil},
		{"five minutes old", []string{at(-5 * time.Minute)}, nil},
		{"a second older", []string{at(-5*time.Minute - time.Second)}, webhook.RefusedTimestamp},
		{"a minute ahead", []string{at(time.Minute)}, nil},
		{"in the future", []string{at(time.Minute + time.Second)}, webhook.RefusedTimestamp},
		{"none", nil, webhook.RefusedUnsigned},
		{"twice", []string{"t=" + stamp + ",v1=" + good, "t=" + stamp + ",v1=" + good}, webhook.RefusedUnsigned},
		{"present and not computed", []string{"t=" + stamp + ",v1=" + strings.Repeat("a", 64)}, webhook.RefusedSignature},
		{"of another secret", []string{"t=" + stamp + ",v1=" + webhookSum("whsec_other", stamp, body)}, webhook.RefusedSignature},
		{"of another time", []string{"t=" + strconv.FormatInt(webhookNow.Unix()-1, 10) + ",v1=" + good}, webhook.RefusedSignature},
		{"of another body", []string{"t=" + stamp + ",v1=" + webhookSum(webhookSecret, stamp, body+" ")}, webhook.RefusedSignature},
		{"only of another scheme", []string{"t=" + stamp + ",v0=" + good}, webhook.RefusedUnsigned},
		{"cut", []string{"t=" + stamp + ",v1=" + good[:62]}, webhook.RefusedUnsigned},
		{"without a time", []string{"v1=" + good}, webhook.RefusedUnsigned},
		{"with two times", []string{"t=" + stamp + ",t=" + stamp + ",v1=" + good}, webhook.RefusedUnsigned},
		{"with a signed time", []string{"t=+" + stamp + ",v1=" + good}, webhook.RefusedUnsigned},
		{"with a time of eleven digits", []string{"t=17723664000,v1=" + good}, webhook.RefusedUnsigned},
		{"with a blank", []string{"t=" + stamp + ", v1=" + good}, webhook.RefusedUnsigned},
		{"long", []string{"t=" + stamp + strings.Repeat(",v1="+good, 40)}, webhook.RefusedUnsigned},
	} {
		key, err := newWebhook(t).Verify(context.Background(), webhookRequest(body, c.header...))
		if err != c.want || err == nil && key != "current" {
			t.Errorf("%s: %q %v, want %v", c.name, key, err, c.want)
		}
		if glance := newWebhook(t).Glance(webhookRequest("", c.header...)); glance != nil && glance != c.want {
			t.Errorf("%s: the head is refused with %v, all of it with %v", c.name, glance, c.want)
		}
	}
}

func TestAnOldWebhookSecretCountsUntilItsEnd(t *testing.T) {
	const body = `{}`
	stamp := strconv.FormatInt(webhookNow.Unix(), 10)
	r := webhookRequest(body, "t="+stamp+",v1="+webhookSum("old", stamp, body))
	keys := func(until time.Time) []webhook.Key {
		return []webhook.Key{{Name: "new", Secret: []byte("new")}, {Name: "old", Secret: []byte("old"), Until: until}}
	}
	if key, err := newWebhook(t, keys(webhookNow.Add(time.Second))...).Verify(context.Background(), r); key != "old" || err != nil {
		t.Errorf("in time: %q %v", key, err)
	}
	if _, err := newWebhook(t, keys(webhookNow)...).Verify(context.Background(), r); err != webhook.RefusedSignature {
		t.Errorf("at its end: %v", err)
	}
	if _, err := newWebhook(t, webhook.Key{Name: "old", Secret: []byte("old"), From: webhookNow.Add(time.Second)}).Verify(context.Background(), r); err != webhook.RefusedSignature {
		t.Errorf("before its beginning: %v", err)
	}
}

func intentEvent(intent string) string {
	return `{"id":"evt_1","object":"event","type":"payment_intent.x","created":1772366400,"livemode":true,"data":{"object":` + intent + `}}`
}

func TestWebhookEvents(t *testing.T) {
	money := &webhook.Money{Minor: 1999, Currency: "EUR"}
	base := webhook.Notice{ID: "evt_1", Kind: "payment_intent.x", Mode: "live", OccurredAt: webhookNow, Effect: webhook.Report, References: []string{"pi_1"}, Money: money}
	with := func(s payment.Status, detail string) webhook.Notice {
		n := base
		n.Status, n.Detail = s, detail
		return n
	}
	const head = `{"object":"payment_intent","id":"pi_1","amount":1999,"currency":"eur","status":`
	short := with(payment.Succeeded, "succeeded")
	short.Money = &webhook.Money{Minor: 100, Currency: "EUR"}
	for intent, want := range map[string]webhook.Notice{
		head + `"succeeded","amount_received":1999}`: with(payment.Succeeded, "succeeded"),
		head + `"succeeded","amount_received":100}`:  short,
		head + `"processing"}`:                       with(payment.Pending, "processing"),
		head + `"requires_action"}`:                  with(payment.Pending, "requires_action"),
		head + `"requires_capture"}`:                 with(payment.Pending, "authorized"),
		head + `"requires_payment_method","last_payment_error":{"code":"card_declined"}}`: with(payment.Failed, "card_declined"),
		head + `"requires_payment_method","last_payment_error":null}`:                     with(payment.Pending, "requires_action"),
		head + `"canceled","cancellation_reason":"requested_by_customer"}`:                with(payment.Cancelled, "requested_by_customer"),
		head + `"canceled","cancellation_reason":"automatic"}`:                            with(payment.Expired, "automatic"),
	} {
		got, err := newWebhook(t).Parse(webhookRequest(intentEvent(intent)))
		if d := cmp.Diff([]webhook.Notice{want}, got); err != nil || d != "" {
			t.Errorf("%s\n%v\n%s", intent, err, d)
		}
	}
	for intent, fault := range map[string]string{
		head + `"settling_v2"}`:                      `status "settling_v2" of a PaymentIntent is not known`,
		head + `"succeeded"}`:                        "the PaymentIntent has no amount",
		head + `"succeeded","amount_received":true}`: "the PaymentIntent has no amount",
		strings.Replace(head, "eur", "euro", 1) + `"succeeded","amount_received":1999}`: "the PaymentIntent has a currency that is none of ISO 4217",
	} {
		got, err := newWebhook(t).Parse(webhookRequest(intentEvent(intent)))
		if err != nil || len(got) != 1 || got[0].Fault != fault {
			t.Errorf("%s\n%v\n%+v", intent, err, got)
		}
	}
	for body, want := range map[string]webhook.Notice{
		`{"id":"evt_2","object":"event","type":"customer.created","livemode":false,"data":{"object":{"object":"customer","id":"cus_1"}}}`: {ID: "evt_2", Kind: "customer.created", Mode: "test"},
		`{"object":"charge"}`: {Fault: "not an event of Stripe"},
	} {
		if got, err := newWebhook(t).Parse(webhookRequest(body)); err != nil || !cmp.Equal([]webhook.Notice{want}, got) {
			t.Errorf("%s: %+v %v", body, got, err)
		}
	}
	for _, body := range []string{"", "null{", `{"id":"a","id":"b"}`, "\xff"} {
		if got, err := newWebhook(t).Parse(webhookRequest(body)); err == nil {
			t.Errorf("%q is read as %+v", body, got)
		}
	}
}

func TestWebhookAmountsAreMinorUnitsOfISO4217(t *testing.T) {
	for _, c := range []struct {
		amount, currency string
		want             int64
	}{{"1050", "eur", 1050}, {"500", "jpy", 500}, {"5124", "kwd", 5124}, {"500", "isk", 5}, {"1000", "ugx", 10}, {"5", "mga", 500}} {
		n, err := newWebhook(t).Parse(webhookRequest(intentEvent(fmt.Sprintf(
			`{"object":"payment_intent","id":"pi_1","status":"processing","amount":%s,"currency":%q}`, c.amount, c.currency))))
		if err != nil || n[0].Money == nil || n[0].Money.Minor != c.want {
			t.Errorf("%s %s: %+v %v", c.amount, c.currency, n, err)
		}
	}
	n, _ := newWebhook(t).Parse(webhookRequest(intentEvent(`{"object":"payment_intent","id":"pi_1","status":"processing","amount":501,"currency":"isk"}`)))
	if n[0].Fault == "" {
		t.Errorf("5.01 ISK is taken: %+v", n)
	}
}

func FuzzWebhook(f *testing.F) {
	good := intentEvent(`{"object":"payment_intent","id":"pi_1","amount":1999,"amount_received":1999,"currency":"eur","status":"succeeded"}`)
	stamp := strconv.FormatInt(webhookNow.Unix(), 10)
	f.Add(good, "t="+stamp+",v1="+webhookSum(webhookSecret, stamp, good))
	f.Add("{}", "t=1,v1=00,v0=")
	f.Fuzz(func(t *testing.T, body, signature string) {
		w, r := newWebhook(t), webhookRequest(body, signature)
		if _, err := w.Verify(context.Background(), r); err == nil && body != good {
			t.Fatal("another body is taken")
		}
		_, _ = w.Parse(r)
	})
}
