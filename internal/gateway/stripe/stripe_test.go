package stripe_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/gateway/gatewaytest"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/stripe"
	"pollux/internal/gateway/vendor"
	"pollux/internal/payment"
	"pollux/internal/secret"
)

var _ consumer.Gateway = (*stripe.Adapter)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const marked = "sk_live_marked5b1c9e0d7f"

var query = gateway.Query{Payment: 1, Reference: "pi_3Nk1", MerchantRef: "order-7", AmountMinor: 1000, Currency: "EUR"}

func config(base string, timeout time.Duration) stripe.Config {
	return stripe.Config{
		Credentials: stripe.Credentials{Key: secret.New(marked)},
		Config: vendor.Config{
			Name: "cards", BaseURL: base, Config: httpclient.Config{Timeout: timeout, AllowHTTP: true, AllowLoopback: true},
		},
	}
}

func adapter(t testing.TB, c stripe.Config) *stripe.Adapter {
	t.Helper()
	a, err := stripe.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

const good = `{"id":"pi_3Nk1","object":"payment_intent","amount":1000,"amount_received":1000,"cancellation_reason":null,"currency":"eur","last_payment_error":null,` +
	`"latest_charge":"ch_1","livemode":true,"status":"succeeded"}`

// with changes the PaymentIntent that succeeded: "from -> to", several with " ; " between.
func with(change string) string { return replaced(good, change) }

func replaced(s, change string) string {
	for pair := range strings.SplitSeq(change, " ; ") {
		from, to, _ := strings.Cut(pair, " -> ")
		if !strings.Contains(s, from) {
			panic("nothing to change: " + from)
		}
		s = strings.Replace(s, from, to, 1)
	}
	return s
}

func reply(status int, body string, header ...string) gatewaytest.Reply {
	h := http.Header{"Content-Type": {"application/json"}}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return gatewaytest.Reply{Status: status, Header: h, Body: body}
}

func failure(kind, code string) string {
	return fmt.Sprintf(`{"error":{"type":%q,"code":%q,"message":"It did not work.","doc_url":"https://docs.stripe.com/error-codes"}}`, kind, code)
}

// pending is the PaymentIntent before any money came.
func pending(status, more string) gatewaytest.Reply {
	return reply(200, with(`"amount_received":1000 -> "amount_received":0 ; "succeeded" -> "`+status+`" ; "latest_charge":"ch_1" -> "latest_charge":null`+more))
}

func word(class gateway.Class, r gatewaytest.Reply) gatewaytest.Word {
	return gatewaytest.Word{Reply: r, Class: class}
}

func final(s payment.Status, detail string, r gatewaytest.Reply) gatewaytest.Word {
	return gatewaytest.Word{Reply: r, Class: gateway.Final, Status: s, Detail: detail}
}

func waiting(detail string, r gatewaytest.Reply) gatewaytest.Word {
	return gatewaytest.Word{Reply: r, Class: gateway.Pending, Detail: detail}
}

const refused = ` ; "last_payment_error":null -> "last_payment_error":{"code":"card_declined","decline_code":"insufficient_funds","message":"x"}`

func cancelled(reason string) gatewaytest.Reply {
	return pending("canceled", ` ; "cancellation_reason":null -> "cancellation_reason":`+reason)
}

func TestConformance(t *testing.T) {
	gatewaytest.Run(t, gatewaytest.Harness{
		New: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
			return adapter(t, config(base, timeout))
		},
		Accounts: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
			c := config(base, timeout)
			c.Credentials = stripe.Credentials{}
			c.Accounts = map[string]stripe.Credentials{
				"eu": {Key: secret.New(marked + "-eu"), StripeAccount: "acct_1"}, "us": {Key: secret.New(marked + "-us")},
			}
			return adapter(t, c)
		},
		Query:  query,
		Secret: marked,
		Replies: map[gatewaytest.Scene]gatewaytest.Reply{
			gatewaytest.Pending:       pending("processing", ""),
			gatewaytest.Succeeded:     reply(200, good),
			gatewaytest.Failed:        pending("requires_payment_method", refused),
			gatewaytest.Cancelled:     cancelled(`"requested_by_customer"`),
			gatewaytest.Expired:       cancelled(`"automatic"`),
			gatewaytest.UnknownStatus: reply(200, with("succeeded -> settling_v2")),
			gatewaytest.OtherID:       reply(200, with("pi_3Nk1 -> pi_3Nk2")),
			gatewaytest.OtherAmount:   reply(200, with(`"amount_received":1000 -> "amount_received":100`)),
			gatewaytest.OtherCurrency: reply(200, with(`"eur" -> "usd"`)),
			gatewaytest.OtherMode:     reply(200, with("true -> false")),
			gatewaytest.NotFound:      reply(404, failure("invalid_request_error", "resource_missing")),
			gatewaytest.Unauthorized:  reply(401, failure("invalid_request_error", "")),
			gatewaytest.RateLimited:   reply(429, failure("invalid_request_error", "rate_limit")),
		},
		Words: map[string]gatewaytest.Word{
			"processing":                     waiting("processing", pending("processing", "")),
			"requires_action":                waiting("requires_action", pending("requires_action", "")),
			"requires_action after a try":    waiting("requires_action", pending("requires_action", refused)),
			"requires_confirmation":          waiting("requires_action", pending("requires_confirmation", "")),
			"requires_capture":               waiting("authorized", pending("requires_capture", "")),
			"nobody has tried yet":           waiting("requires_action", pending("requires_payment_method", "")),
			"the last try failed":            final(payment.Failed, "insufficient_funds", pending("requires_payment_method", refused)),
			"it failed without a decline":    final(payment.Failed, "payment_intent_authentication_failure", pending("requires_payment_method", ` ; "last_payment_error":null -> "last_payment_error":{"code":"payment_intent_authentication_failure"}`)),
			"it failed without a reason":     final(payment.Failed, "failed", pending("requires_payment_method", ` ; "last_payment_error":null -> "last_payment_error":{}`)),
			"succeeded":                      final(payment.Succeeded, "succeeded", reply(200, good)),
			"canceled without a reason":      final(payment.Cancelled, "cancelled", cancelled("null")),
			"canceled: abandoned":            final(payment.Cancelled, "abandoned", cancelled(`"abandoned"`)),
			"canceled: duplicate":            final(payment.Cancelled, "duplicate", cancelled(`"duplicate"`)),
			"canceled: fraudulent":           final(payment.Cancelled, "fraudulent", cancelled(`"fraudulent"`)),
			"canceled: failed_invoice":       final(payment.Cancelled, "failed_invoice", cancelled(`"failed_invoice"`)),
			"canceled: void_invoice":         final(payment.Cancelled, "void_invoice", cancelled(`"void_invoice"`)),
			"canceled: automatic":            final(payment.Expired, "automatic", cancelled(`"automatic"`)),
			"canceled: expired":              final(payment.Expired, "expired", cancelled(`"expired"`)),
			"captured in part":               word(gateway.Mismatch, reply(200, with(`"amount_received":1000 -> "amount_received":400`))),
			"another amount, nothing paid":   word(gateway.Mismatch, pending("processing", ` ; "amount":1000 -> "amount":900`)),
			"succeeded without money":        word(gateway.Malformed, reply(200, with(`"amount_received":1000, -> `))),
			"a charge where an intent":       word(gateway.Malformed, reply(200, with(`payment_intent -> charge`))),
			"a list":                         word(gateway.Malformed, reply(200, `{"object":"list","data":[`+good+`]}`)),
			"status that is no text":         word(gateway.Malformed, reply(200, with(`"succeeded" -> true`))),
			"no mode":                        word(gateway.Malformed, reply(200, with(`"livemode":true, -> `))),
			"404 without a code":             word(gateway.Transport, reply(404, failure("invalid_request_error", ""))),
			"404 from something before it":   word(gateway.Transport, reply(404, "<html>")),
			"403":                            word(gateway.Unauthorized, reply(403, failure("invalid_request_error", "account_invalid"))),
			"400":                            word(gateway.Transport, reply(400, failure("invalid_request_error", "parameter_unknown"))),
			"402":                            word(gateway.Transport, reply(402, failure("card_error", "card_declined"))),
			"409":                            word(gateway.Transport, reply(409, failure("idempotency_error", "idempotency_key_in_use"))),
			"424":                            word(gateway.Transport, reply(424, failure("api_error", ""))),
			"somebody else has it":           word(gateway.Transport, reply(429, failure("invalid_request_error", "lock_timeout"))),
			"500":                            word(gateway.Transport, reply(500, failure("api_error", ""))),
			"500 that must not be retried":   word(gateway.Transport, reply(500, failure("api_error", ""), "Stripe-Should-Retry", "false")),
			"a failure that looks succeeded": word(gateway.Transport, reply(502, good)),
		},
	})
}

func serve(t testing.TB, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.URL
}

func poll(t testing.TB, a *stripe.Adapter, q gateway.Query) gateway.Answer {
	t.Helper()
	ans := a.Poll(context.Background(), q)
	gatewaytest.Check(t, ans, marked)
	return ans
}

func TestQuestion(t *testing.T) {
	var got *http.Request
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.WriteHeader(500)
	})
	c := config(base+"/", 10*time.Second)
	c.StripeAccount = "acct_42"
	poll(t, adapter(t, c), query)
	if got.Method != "GET" || got.RequestURI != "/v1/payment_intents/pi_3Nk1" {
		t.Errorf("asked %s %s", got.Method, got.RequestURI)
	}
	for name, want := range map[string]string{
		"Authorization": "Bearer " + marked, "Stripe-Version": stripe.DefaultAPIVersion, "Stripe-Account": "acct_42", "Traceparent": "", "Accept-Encoding": "identity",
	} {
		if got.Header.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, got.Header.Get(name), want)
		}
	}
}

func TestShouldRetryIsHeeded(t *testing.T) {
	for value, want := range map[string]time.Duration{"false": time.Minute, "true": 0, "": 0, "no": 0} {
		base := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Stripe-Should-Retry", value)
			w.WriteHeader(500)
		})
		if ans := poll(t, adapter(t, config(base, 10*time.Second)), query); ans.RetryAfter != want || ans.Class != gateway.Transport {
			t.Errorf("%q: %+v", value, ans)
		}
	}
}

func TestWhatCannotBeAsked(t *testing.T) {
	a := adapter(t, config(serve(t, func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }), 10*time.Second))
	for _, reference := range []string{"", "ch_1", "order-7", "pi_1/../../v1/balance", "pi_%2e%2e/x/..", "pi_1_secret_HvQ9", "pi_\x00", "pi_" + strings.Repeat("x", 600), "PI_1"} {
		q := query
		q.Reference = reference
		ans := poll(t, a, q)
		if ans.Class != gateway.Mismatch || ans.HTTPStatus != 0 || ans.Message == "" || strings.Contains(ans.Message, "HvQ9") {
			t.Errorf("%q: %+v", reference, ans)
		}
	}
}

// TestAmounts: Stripe counts in minor units, with other decimals than ISO 4217 for a few currencies.
func TestAmounts(t *testing.T) {
	for _, c := range []struct {
		minor    int64
		currency string
		said     string
		class    gateway.Class
	}{
		{1050, "EUR", "1050", gateway.Final}, {1050, "EUR", "1051", gateway.Mismatch}, {1050, "EUR", "1050.5", gateway.Mismatch}, {1050, "EUR", `"1050"`, gateway.Final},
		{500, "JPY", "500", gateway.Final}, {500, "JPY", "50000", gateway.Mismatch}, {5120, "KWD", "5120", gateway.Final}, {500, "ISK", "50000", gateway.Final},
		{500, "ISK", "500", gateway.Mismatch}, {500, "ISK", "50050", gateway.Mismatch}, {500, "UGX", "50000", gateway.Final}, {50000, "MGA", "500", gateway.Final},
		{9007199254740993, "EUR", "9007199254740993", gateway.Final}, {9007199254740993, "EUR", "9007199254740992", gateway.Mismatch}, {1000, "EUR", "1e3", gateway.Final},
		{1000, "EUR", "-1000", gateway.Mismatch}, {1000, "EUR", "1e99", gateway.Mismatch}, {1000, "EUR", `"1000 EUR"`, gateway.Malformed}, {1000, "EUR", "null", gateway.Malformed},
	} {
		body := with(`"amount_received":1000 -> "amount_received":` + c.said + ` ; "eur" -> "` + strings.ToLower(c.currency) + `"`)
		base := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, body)
		})
		ans := poll(t, adapter(t, config(base, 10*time.Second)), gateway.Query{Reference: "pi_3Nk1", AmountMinor: c.minor, Currency: c.currency})
		if ans.Class != c.class {
			t.Errorf("%s where %d %s is expected: %+v", c.said, c.minor, c.currency, ans)
		}
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*stripe.Config)
		want   string
	}{
		"no key":               {func(c *stripe.Config) { c.Key = secret.Secret{} }, "key: missing"},
		"a test key":           {func(c *stripe.Config) { c.Key = secret.New("rk_test_1234") }, "key: it is one of mode test, and mode is live; write mode: test"},
		"a live key in test":   {func(c *stripe.Config) { c.Mode = "test" }, "key: it is one of mode live, and mode is test"},
		"a publishable key":    {func(c *stripe.Config) { c.Key = secret.New("pk_live_1") }, "key: it is a publishable key"},
		"a key of two lines":   {func(c *stripe.Config) { c.Key = secret.New("sk_live_1\nX: y") }, "key: printable ASCII only"},
		"a connected customer": {func(c *stripe.Config) { c.StripeAccount = "cus_1" }, "stripe_account: not the id of an account"},
		"no mode":              {func(c *stripe.Config) { c.Mode = "sandbox" }, `mode: "sandbox" is not known; live or test`},
		"a bad address":        {func(c *stripe.Config) { c.BaseURL = "api.stripe.com" }, "base_url: not a URL"},
		"without TLS":          {func(c *stripe.Config) { c.AllowHTTP = false; c.BaseURL = "http://127.0.0.1:1" }, "base_url: without TLS"},
		"with a user":          {func(c *stripe.Config) { c.BaseURL = "https://a:b@api.stripe.com" }, "base_url: no user, query or fragment"},
		"a bad version":        {func(c *stripe.Config) { c.APIVersion = "2025\n" }, "api_version: printable ASCII only"},
		"a bad account":        {func(c *stripe.Config) { c.Accounts = map[string]stripe.Credentials{"eu": {}} }, "accounts.eu.key: missing"},
		"an unnamed account":   {func(c *stripe.Config) { c.Accounts = map[string]stripe.Credentials{"": c.Credentials} }, "accounts: the default account has no name"},
		"an absurd wait":       {func(c *stripe.Config) { c.MaxRetryAfter = time.Hour * 48 }, "max_retry_after: 48h0m0s: between 1s and 24h"},
		"an absurd timeout":    {func(c *stripe.Config) { c.Timeout = time.Hour }, "timeout 1h0m0s: between 10ms and 5m"},
	} {
		cfg := config("http://127.0.0.1:1", 10*time.Second)
		c.change(&cfg)
		err := cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), marked) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	d := stripe.Config{Credentials: stripe.Credentials{Key: secret.New(marked)}}.WithDefaults()
	if err := d.Validate(); err != nil || d.BaseURL != "https://api.stripe.com" || d.Mode != "live" {
		t.Errorf("the defaults are %+v: %v", d, err)
	}
}
