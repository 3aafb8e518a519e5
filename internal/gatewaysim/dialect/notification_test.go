package dialect_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pollux/internal/gateway/adyen"
	"pollux/internal/gateway/httpjson"
	"pollux/internal/gateway/iyzico"
	"pollux/internal/gateway/mercadopago"
	"pollux/internal/gateway/paypal"
	"pollux/internal/gateway/razorpay"
	"pollux/internal/gateway/stripe"
	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/dialect"
	"pollux/internal/gatewaysim/notify"
	"pollux/internal/payment"
	"pollux/internal/webhook"
)

const key = "a key for notifications"

// teller is a vendor that notifies, and the verifier of its notifications.
type teller struct {
	name    string
	hints   bool // its notifications say only that something changed
	vendor  notify.Vendor
	fit     func(gatewaysim.Script) gatewaysim.Script
	tells   func(prefix string, n int) string
	scheme  func(webhook.Keys, webhook.Tolerance) (webhook.Scheme, error)
	secret  string
	undated bool // it does not say when a payment came to stand so
	ageless bool // nothing signed says when it was signed, so that what is old is as good as new
}

// authority takes some tenths of a second to make.
var authority = sync.OnceValues(dialect.NewAuthority)

func tellers(t *testing.T) []teller {
	t.Helper()
	signs, err := authority()
	if err != nil {
		t.Fatal(err)
	}
	whsec := "whsec_" + base64.StdEncoding.EncodeToString([]byte(key))
	own := httpjson.WebhookConfig{
		Pointers: httpjson.WebhookPointers{Kind: "/type", Reference: "/data/id", Status: "/data/status", Amount: "/data/amount", Currency: "/data/currency", OccurredAt: "/timestamp"},
		Statuses: map[string]string{"processing": "pending/processing", "requires_action": "pending/requires_action", "authorized": "pending/authorized",
			"succeeded": "succeeded", "failed": "failed", "canceled": "cancelled", "expired": "expired"},
	}
	all := []teller{
		{name: "stripe", vendor: dialect.Stripe{SigningSecret: key}, scheme: func(k webhook.Keys, tol webhook.Tolerance) (webhook.Scheme, error) { return stripe.NewWebhook(k, tol) }},
		{name: "paypal", hints: true, secret: "WEBHOOK-ID", vendor: dialect.PayPal{WebhookID: "WEBHOOK-ID", Signing: signs},
			scheme: func(k webhook.Keys, tol webhook.Tolerance) (webhook.Scheme, error) {
				w, err := paypal.NewWebhook(k, tol)
				if err != nil {
					return nil, err
				}
				return w.Trusting(signs.Fetch, signs.Roots), nil
			}},
		{name: "razorpay", vendor: dialect.Razorpay{WebhookSecret: key}, ageless: true, scheme: func(k webhook.Keys, _ webhook.Tolerance) (webhook.Scheme, error) { return razorpay.NewWebhook(k) }},
		{name: "mercadopago", hints: true, vendor: dialect.MercadoPago{WebhookSecret: key}, undated: true,
			scheme: func(k webhook.Keys, tol webhook.Tolerance) (webhook.Scheme, error) {
				return mercadopago.NewWebhook(k, tol)
			}},
		{name: "iyzico", hints: true, vendor: dialect.Iyzico{SecretKey: key}, undated: true, ageless: true,
			scheme: func(k webhook.Keys, _ webhook.Tolerance) (webhook.Scheme, error) { return iyzico.NewWebhook(k) }},
		{name: "adyen", secret: hex.EncodeToString([]byte(key)), vendor: dialect.Adyen{HMACKey: hex.EncodeToString([]byte(key)), MerchantAccount: "Ours"}, ageless: true,
			scheme: func(k webhook.Keys, _ webhook.Tolerance) (webhook.Scheme, error) {
				return adyen.NewWebhook(adyen.WebhookConfig{MerchantAccount: "Ours"}, k)
			}},
		{name: "httpjson", secret: whsec, vendor: dialect.Own{Secret: whsec}, scheme: func(k webhook.Keys, tol webhook.Tolerance) (webhook.Scheme, error) {
			return httpjson.NewWebhook(httpjson.SchemeStandard, own, k, tol)
		}},
	}
	for i := range all {
		d, speaks := all[i].vendor.(gatewaysim.Dialect)
		all[i].fit = func(s gatewaysim.Script) gatewaysim.Script { return s }
		all[i].tells = func(prefix string, n int) string { return prefix + string(rune('a'+n)) }
		if speaks {
			all[i].fit, all[i].tells = d.Fit, d.Reference
		}
		if all[i].secret == "" {
			all[i].secret = key
		}
	}
	return all
}

func (v teller) endpoint(t *testing.T) webhook.Endpoint {
	t.Helper()
	s, err := v.scheme(webhook.Keys{{Name: "current", Secret: []byte(v.secret)}}, webhook.Tolerance{Past: 5 * time.Minute, Future: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return webhook.Endpoint{Gateway: v.name, Scheme: s, Mode: "test"}
}

// check hands a notification to the verifier as a receiver does.
func (v teller) check(t *testing.T, e notify.Event, at time.Time) ([]webhook.Arrival, error) {
	t.Helper()
	n := v.vendor.Notification(e)
	arrivals, _, err := webhook.Check(context.Background(), &webhook.Request{
		Method: http.MethodPost, Path: "/webhooks/" + v.name, RawQuery: n.Query, Header: n.Header, Body: n.Body, At: at,
	}, v.endpoint(t))
	return arrivals, err
}

var told = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// now is when notifications are signed: certificates are made for today.
var now = time.Now()

func (v teller) state(n int, status payment.Status, detail string) gatewaysim.State {
	s := v.fit(gatewaysim.Script{Final: status, Detail: detail})
	st := gatewaysim.State{Reference: v.tells("test", n), AmountMinor: 1990, Currency: "EUR", Status: s.Final, Changed: told}
	if s.Final == payment.Pending {
		st.Detail = s.Detail
	}
	return st
}

// TestGenuineNotificationsSayWhatIsTrue checks them with the real verifiers.
func TestGenuineNotificationsSayWhatIsTrue(t *testing.T) {
	for _, v := range tellers(t) {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			ids := map[string]bool{}
			for n, s := range []struct {
				status payment.Status
				detail string
			}{
				{payment.Pending, "processing"}, {payment.Pending, "requires_action"}, {payment.Pending, "authorized"},
				{payment.Succeeded, ""}, {payment.Failed, ""}, {payment.Cancelled, ""}, {payment.Expired, ""},
			} {
				st := v.state(n, s.status, s.detail)
				e := notify.Event{ID: strings.Repeat("a", 15) + string(rune('0'+n)), State: st, Signed: st, At: now}
				arrivals, err := v.check(t, e, now)
				if err != nil || len(arrivals) != 1 {
					t.Fatalf("%+v: %d arrivals, %v", st, len(arrivals), err)
				}
				a := arrivals[0]
				if a.Fault != "" || len(a.References) == 0 || !named(a.References, st.Reference) || a.Key != "current" {
					t.Errorf("%+v: %+v", st, a.Notice)
				}
				if want := map[bool]webhook.Effect{true: webhook.Hint, false: webhook.Report}[v.hints]; a.Effect != want {
					t.Errorf("%+v: effect %v", st, a.Effect)
				}
				if !v.hints && (a.Status != st.Status || a.Money != nil && *a.Money != webhook.Money{Minor: 1990, Currency: "EUR"}) {
					t.Errorf("%+v: %+v of %+v", st, a.Notice, a.Money)
				}
				if !v.undated && !a.OccurredAt.Equal(told) {
					t.Errorf("%+v: occurred at %s", st, a.OccurredAt)
				}
				again, err := v.check(t, notify.Event{ID: e.ID, State: st, Signed: st, At: now.Add(time.Second)}, now)
				if err != nil || len(again) != 1 {
					t.Fatalf("told again: %d arrivals, %v", len(again), err)
				}
				if same := again[0].ID == a.ID; same == (v.name == "mercadopago") { // there the time makes it an event
					t.Errorf("told again it is %q, first it was %q", again[0].ID, a.ID)
				}
				ids[a.ID] = true
			}
			if len(ids) != 7 {
				t.Errorf("seven events have %d ids", len(ids))
			}
		})
	}
}

func named(references []string, reference string) bool {
	for _, r := range references {
		if r == reference {
			return true
		}
	}
	return false
}

// TestForgedNotificationsAreRefused lets somebody change them, or sign them with a key of his own.
func TestForgedNotificationsAreRefused(t *testing.T) {
	for _, v := range tellers(t) {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			truth := v.state(1, payment.Failed, "")
			for name, change := range map[string]func(*notify.Event){
				"another key":       func(e *notify.Event) { e.Stranger = true },
				"another reference": func(e *notify.Event) { e.State.Reference = v.tells("test", 2) },
				"another amount":    func(e *notify.Event) { e.State.AmountMinor = 1 },
				"another currency":  func(e *notify.Event) { e.State.Currency = "USD" },
				"another status":    func(e *notify.Event) { e.State.Status = payment.Succeeded },
			} {
				e := notify.Event{ID: "0123456789abcdef", State: truth, Signed: truth, At: now}
				change(&e)
				money := strings.HasSuffix(name, "amount") || strings.HasSuffix(name, "currency")
				if money && !v.vendor.SignsAmounts() || name == "another status" && v.name == "mercadopago" {
					continue // not in it
				}
				arrivals, err := v.check(t, e, now)
				var refusal webhook.Refusal
				if !errors.As(err, &refusal) || len(arrivals) != 0 {
					t.Errorf("%s: %d arrivals, %v", name, len(arrivals), err)
				}
			}
			if _, err := v.check(t, notify.Event{ID: "0123456789abcdef", State: truth, Signed: truth, At: now.Add(-time.Hour)}, now); (err == nil) != v.ageless {
				t.Errorf("an hour old: %v", err)
			}
		})
	}
}
