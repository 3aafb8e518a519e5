package dialect_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/iyzico"
	"pollux/internal/gateway/mercadopago"
	"pollux/internal/gateway/paypal"
	"pollux/internal/gateway/razorpay"
	"pollux/internal/gateway/stripe"
	"pollux/internal/gateway/vendor"
	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/dialect"
	"pollux/internal/payment"
	"pollux/internal/secret"
)

// poller is what every adapter is.
type poller interface {
	Poll(ctx context.Context, q gateway.Query) gateway.Answer
	Close()
}

// speaker is a vendor that can be asked, and its adapter with a key. The right one is "right".
type speaker struct {
	name    string
	dialect func(key string) gatewaysim.Dialect
	adapter func(url, key string) (poller, error)
}

func reached(url string) vendor.Config {
	return vendor.Config{Mode: "test", BaseURL: url, Config: httpclient.Config{AllowHTTP: true, AllowLoopback: true, Timeout: 20 * time.Second}}
}

var speakers = []speaker{
	{"stripe", func(key string) gatewaysim.Dialect { return dialect.Stripe{Key: "sk_test_" + key} }, func(url, key string) (poller, error) {
		return stripe.New(stripe.Config{Credentials: stripe.Credentials{Key: secret.New("sk_test_" + key)}, Config: reached(url)})
	}},
	{"paypal", func(key string) gatewaysim.Dialect { return dialect.PayPal{ClientID: "app", ClientSecret: key} }, func(url, key string) (poller, error) {
		return paypal.New(paypal.Config{Credentials: paypal.Credentials{ClientID: "app", ClientSecret: secret.New(key)}, Config: reached(url)})
	}},
	{"razorpay", func(key string) gatewaysim.Dialect { return dialect.Razorpay{KeyID: "rzp_test_1", KeySecret: key} }, func(url, key string) (poller, error) {
		return razorpay.New(razorpay.Config{Credentials: razorpay.Credentials{KeyID: "rzp_test_1", KeySecret: secret.New(key)}, Config: reached(url)})
	}},
	{"mercadopago", func(key string) gatewaysim.Dialect { return dialect.MercadoPago{AccessToken: "TEST-" + key} }, func(url, key string) (poller, error) {
		return mercadopago.New(mercadopago.Config{Credentials: mercadopago.Credentials{AccessToken: secret.New("TEST-" + key)}, Config: reached(url)})
	}},
	{"iyzico", func(key string) gatewaysim.Dialect { return dialect.Iyzico{APIKey: "ours", SecretKey: key} }, func(url, key string) (poller, error) {
		return iyzico.New(iyzico.Config{Credentials: iyzico.Credentials{APIKey: "ours", SecretKey: secret.New(key)}, Config: reached(url)})
	}},
}

// bench is a simulator that speaks as a vendor does, and the vendor's adapter.
type bench struct {
	t       *testing.T
	sim     *gatewaysim.Simulator
	dialect gatewaysim.Dialect
	adapter poller
}

func (s speaker) bench(t *testing.T, key string, cfg gatewaysim.Config) *bench {
	t.Helper()
	cfg.Dialect = s.dialect("right")
	sim := gatewaysim.New(cfg)
	if err := sim.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sim.Close() })
	adapter, err := s.adapter(sim.URL(), key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(adapter.Close)
	return &bench{t, sim, cfg.Dialect, adapter}
}

// register makes a payment with what the vendor has of a script.
func (b *bench) register(n int, amount int64, currency string, s gatewaysim.Script) gatewaysim.Payment {
	b.t.Helper()
	p := gatewaysim.Payment{Reference: b.dialect.Reference("test", n), AmountMinor: amount, Currency: currency, Script: b.dialect.Fit(s)}
	if err := b.sim.Register([]gatewaysim.Payment{p}); err != nil {
		b.t.Fatal(err)
	}
	return p
}

func (b *bench) poll(p gatewaysim.Payment) gateway.Answer {
	return b.adapter.Poll(b.t.Context(), gateway.Query{Payment: 1, Reference: p.Reference, AmountMinor: p.AmountMinor, Currency: p.Currency})
}

// TestEveryStatusMapsToTheTruth asks for a payment of every script, in currencies of no, two and three decimals.
func TestEveryStatusMapsToTheTruth(t *testing.T) {
	for _, s := range speakers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			b, n := s.bench(t, "right", gatewaysim.Config{}), 0
			for _, money := range []struct {
				minor    int64
				currency string
			}{{1990, "EUR"}, {5, "TRY"}, {1000, "JPY"}, {1250, "KWD"}, {0, "USD"}, {100, "ISK"}} {
				for _, final := range []payment.Status{payment.Succeeded, payment.Failed, payment.Cancelled, payment.Expired} {
					for _, detail := range []string{"processing", "requires_action", "authorized"} {
						n++
						p := b.register(n, money.minor, money.currency, gatewaysim.Script{Pending: 1, Detail: detail, Final: final})
						first, second := b.poll(p), b.poll(p)
						if first.Class != gateway.Pending {
							t.Errorf("%+v: first %+v", p, first)
						}
						truth, _ := b.sim.Truth(p.Reference)
						if second.Class != gateway.Final || string(second.Status) != truth {
							t.Errorf("%+v: second %+v, the truth is %s", p, second, truth)
						}
					}
				}
			}
		})
	}
}

// TestFitsAreNoMoreThanNeeded counts the ends that each vendor has.
func TestFitsAreNoMoreThanNeeded(t *testing.T) {
	ends := map[string]int{"stripe": 4, "paypal": 3, "razorpay": 2, "mercadopago": 4, "iyzico": 2}
	for _, s := range speakers {
		had := map[payment.Status]bool{}
		for _, final := range []payment.Status{payment.Succeeded, payment.Failed, payment.Cancelled, payment.Expired} {
			fit := s.dialect("right").Fit(gatewaysim.Script{Final: final})
			if again := s.dialect("right").Fit(fit); again != fit {
				t.Errorf("%s: %+v does not fit itself", s.name, fit)
			}
			had[fit.Final] = true
		}
		if len(had) != ends[s.name] {
			t.Errorf("%s has %v", s.name, had)
		}
	}
	b := speakers[2].bench(t, "right", gatewaysim.Config{})
	err := b.sim.Register([]gatewaysim.Payment{{Reference: "pay_1", Currency: "INR", Script: gatewaysim.Script{Final: payment.Expired}}})
	if err == nil || !strings.Contains(err.Error(), "no words for it") {
		t.Errorf("an expired payment of Razorpay: %v", err)
	}
}

// TestEveryFaultHasItsClass lets each payment show a fault.
func TestEveryFaultHasItsClass(t *testing.T) {
	classes := map[gatewaysim.Outcome]gateway.Class{
		gatewaysim.OtherID: gateway.Mismatch, gatewaysim.OtherAmount: gateway.Mismatch, gatewaysim.OtherCurrency: gateway.Mismatch,
		gatewaysim.UnknownStatus: gateway.UnknownStatus, gatewaysim.NotFound: gateway.NotFound,
		gatewaysim.ServerError: gateway.Transport, gatewaysim.Unavailable: gateway.Transport, gatewaysim.BadGateway: gateway.Transport,
		gatewaysim.Reset: gateway.Transport, gatewaysim.CutBody: gateway.Transport, gatewaysim.CutHeaders: gateway.Transport,
		gatewaysim.Empty: gateway.Malformed, gatewaysim.EmptyObject: gateway.Malformed, gatewaysim.Null: gateway.Malformed,
	}
	for _, s := range speakers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			b := s.bench(t, "right", gatewaysim.Config{})
			for flaw, want := range classes {
				p := b.register(int(flaw), 1990, "EUR", gatewaysim.Script{Flaw: flaw})
				if got := b.poll(p); got.Class != want {
					t.Errorf("%s: %s, want %s: %s", flaw, got.Class, want, got.Message)
				}
			}
			unknown := gatewaysim.Payment{Reference: b.dialect.Reference("nobody", 1), AmountMinor: 1, Currency: "EUR"}
			if got := b.poll(unknown); got.Class != gateway.NotFound {
				t.Errorf("a payment that was never made: %+v", got)
			}
		})
	}
}

func TestTheKeyIsChecked(t *testing.T) {
	for _, s := range speakers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			b := s.bench(t, "wrong", gatewaysim.Config{})
			if got := b.poll(b.register(1, 1990, "EUR", gatewaysim.Script{})); got.Class != gateway.Unauthorized {
				t.Errorf("%+v", got)
			}
			if truth, _ := b.sim.Truth(b.dialect.Reference("test", 1)); truth != "succeeded" {
				t.Errorf("the truth is %s", truth)
			}
		})
	}
}

// TestTooManyCallsAreSaidSo also is the only one that has windows: what is down is down in every dialect.
func TestTooManyCallsAreSaidSo(t *testing.T) {
	for _, s := range speakers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			b := s.bench(t, "right", gatewaysim.Config{})
			p := b.register(1, 1990, "EUR", gatewaysim.Script{})
			if err := b.sim.SetConditions(gatewaysim.Conditions{Limit: gatewaysim.Limit{Rate: 1e-6, Burst: 1, RetryAfter: 7 * time.Second}}); err != nil {
				t.Fatal(err)
			}
			if got := b.poll(p); got.Class != gateway.Final {
				t.Errorf("first %+v", got)
			}
			if got := b.poll(p); got.Class != gateway.RateLimited || got.RetryAfter != 7*time.Second {
				t.Errorf("second %+v", got)
			}
			if err := b.sim.Down(time.Hour, gatewaysim.Unavailable); err != nil {
				t.Fatal(err)
			}
			if got := b.poll(p); got.Class != gateway.Transport {
				t.Errorf("down: %+v", got)
			}
		})
	}
}

// TestByOurReference asks the vendors that can look one up.
func TestByOurReference(t *testing.T) {
	for _, s := range speakers {
		if s.name != "mercadopago" && s.name != "iyzico" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			b := s.bench(t, "right", gatewaysim.Config{})
			for n, known := range []bool{true, false} {
				ours := fmt.Sprintf("order-%d", n)
				if known {
					if err := b.sim.Register([]gatewaysim.Payment{{Reference: ours, AmountMinor: 1990, Currency: "EUR"}}); err != nil {
						t.Fatal(err)
					}
				}
				got := b.adapter.Poll(t.Context(), gateway.Query{Reference: ours, MerchantRef: ours, AmountMinor: 1990, Currency: "EUR"})
				if want := map[bool]gateway.Class{true: gateway.Final, false: gateway.NotFound}[known]; got.Class != want {
					t.Errorf("%s: %+v", ours, got)
				}
			}
		})
	}
}

// TestGeneratedPaymentsAreSpoken makes payments as scenarios do.
func TestGeneratedPaymentsAreSpoken(t *testing.T) {
	for _, s := range speakers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			b := s.bench(t, "right", gatewaysim.Config{})
			seen := map[string]bool{}
			for _, p := range append(b.sim.Generate(20, "one1"), b.sim.Generate(20, "two2")...) {
				var got gateway.Answer
				for range p.Script.Pending + 1 {
					got = b.poll(p)
				}
				if truth, _ := b.sim.Truth(p.Reference); string(got.Status) != truth {
					t.Errorf("%+v: %+v", p, got)
				}
				seen[p.Reference] = true
			}
			if len(seen) != 40 {
				t.Errorf("%d references", len(seen))
			}
			if calls := b.sim.Stats().Calls; int(calls) != len(b.sim.Log()) || calls < 40 {
				t.Errorf("%d calls, %d in the log", calls, len(b.sim.Log()))
			}
		})
	}
}
