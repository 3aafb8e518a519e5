package mercadopago

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
	"pollux/internal/gateway/vendor"
	"pollux/internal/payment"
	"pollux/internal/secret"
)

var _ consumer.Gateway = (*Adapter)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const marked = "APP_USR-marked-5b1c9e0d7f"

func ask(reference, own string) gateway.Query {
	return gateway.Query{Payment: 1, Reference: reference, MerchantRef: own, AmountMinor: 5880, Currency: "BRL"}
}

func config(base string, timeout time.Duration) Config {
	return Config{
		Credentials: Credentials{AccessToken: secret.New(marked)},
		Config:      vendor.Config{Name: "mercadopago", BaseURL: base, Config: httpclient.Config{Timeout: timeout, AllowHTTP: true, AllowLoopback: true}},
	}
}

func adapter(t testing.TB, c Config) *Adapter {
	t.Helper()
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

const approved = `{"id":2798247250,"status":"approved","status_detail":"accredited","transaction_amount":58.8,"currency_id":"BRL","live_mode":true,` +
	`"external_reference":"order-7","date_last_updated":"2026-06-28T19:39:41.000-04:00"}`

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

// said is the payment with another status.
func said(status, detail string) string {
	return replaced(approved, `"approved" -> "`+status+`" ; "accredited" -> "`+detail+`"`)
}

func answer(status int, body string) gatewaytest.Reply {
	return gatewaytest.Reply{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

func failure(code, message string) string {
	return fmt.Sprintf(`{"message":%q,"error":%q,"status":1,"cause":[{"code":2000,"description":"x"}]}`, message, code)
}

func word(class gateway.Class, r gatewaytest.Reply) gatewaytest.Word {
	return gatewaytest.Word{Reply: r, Class: class}
}

func final(s payment.Status, detail, body string) gatewaytest.Word {
	return gatewaytest.Word{Reply: answer(200, body), Class: gateway.Final, Status: s, Detail: detail}
}

func waiting(detail, body string) gatewaytest.Word {
	return gatewaytest.Word{Reply: answer(200, body), Class: gateway.Pending, Detail: detail}
}

func TestConformance(t *testing.T) {
	as := func(change string) gatewaytest.Reply { return answer(200, replaced(approved, change)) }
	gatewaytest.Run(t, gatewaytest.Harness{
		New: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
			return adapter(t, config(base, timeout))
		},
		Accounts: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
			c := config(base, timeout)
			c.Credentials = Credentials{}
			c.Accounts = map[string]Credentials{"eu": {AccessToken: secret.New(marked + "-eu")}, "us": {AccessToken: secret.New(marked + "-us")}}
			return adapter(t, c)
		},
		Query: ask("2798247250", "order-7"), Secret: marked,
		Replies: map[gatewaytest.Scene]gatewaytest.Reply{
			gatewaytest.Pending:       answer(200, said("in_process", "pending_contingency")),
			gatewaytest.Succeeded:     answer(200, approved),
			gatewaytest.Failed:        answer(200, said("rejected", "cc_rejected_insufficient_amount")),
			gatewaytest.Cancelled:     answer(200, said("cancelled", "by_payer")),
			gatewaytest.Expired:       answer(200, said("cancelled", "expired")),
			gatewaytest.UnknownStatus: answer(200, said("settling_v2", "")),
			gatewaytest.OtherID:       as("2798247250 -> 2798247251"),
			gatewaytest.OtherAmount:   as("58.8 -> 5.88"),
			gatewaytest.OtherCurrency: as("BRL -> ARS"),
			gatewaytest.OtherMode:     as(`"live_mode":true -> "live_mode":false`),
			gatewaytest.NotFound:      answer(404, failure("not_found", "Payment not found")),
			gatewaytest.Unauthorized:  answer(401, failure("unauthorized", "Unauthorized use of live credentials")),
			gatewaytest.RateLimited:   answer(429, failure("too_many_requests", "x")),
		},
		Words: map[string]gatewaytest.Word{
			"pending":                        waiting("processing", said("pending", "")),
			"pending_waiting_payment":        waiting("requires_action", said("pending", "pending_waiting_payment")),
			"pending_waiting_transfer":       waiting("requires_action", said("pending", "pending_waiting_transfer")),
			"pending_challenge":              waiting("requires_action", said("pending", "pending_challenge")),
			"in_process":                     waiting("processing", said("in_process", "pending_contingency")),
			"in_process: review":             waiting("in_review", said("in_process", "pending_review_manual")),
			"authorized":                     waiting("authorized", said("authorized", "pending_capture")),
			"approved":                       final(payment.Succeeded, "succeeded", approved),
			"approved: partially_refunded":   final(payment.Succeeded, "partially_refunded", said("approved", "partially_refunded")),
			"in_mediation":                   final(payment.Succeeded, "disputed", said("in_mediation", "pending")),
			"refunded":                       final(payment.Succeeded, "refunded", said("refunded", "refunded")),
			"charged_back":                   final(payment.Succeeded, "charged_back", said("charged_back", "in_process")),
			"rejected":                       final(payment.Failed, "cc_rejected_high_risk", said("rejected", "cc_rejected_high_risk")),
			"cancelled":                      final(payment.Cancelled, "by_collector", said("cancelled", "by_collector")),
			"cancelled: expired":             final(payment.Expired, "expired", said("cancelled", "expired")),
			"amount as text":                 final(payment.Succeeded, "", replaced(approved, `58.8 -> "58.80"`)),
			"amount off by a cent":           word(gateway.Mismatch, as("58.8 -> 58.81")),
			"approved without an amount":     word(gateway.Malformed, as("58.8 -> null")),
			"without a mode":                 word(gateway.Malformed, as(`"live_mode":true, -> `)),
			"403":                            word(gateway.Unauthorized, answer(403, failure("forbidden", "x"))),
			"404 from something before it":   word(gateway.Transport, answer(404, "<html>")),
			"400":                            word(gateway.Transport, answer(400, failure("bad_request", "x"))),
			"500":                            word(gateway.Transport, answer(500, failure("internal_error", "x"))),
			"a failure that looks like paid": word(gateway.Transport, answer(502, approved)),
		},
	})
}

// TestByOurReference: each try of the shopper is a payment of its own.
func TestByOurReference(t *testing.T) {
	list := func(total int, bodies ...string) string {
		return fmt.Sprintf(`{"paging":{"total":%d,"limit":50,"offset":0},"results":[%s]}`, total, strings.Join(bodies, ","))
	}
	rejected, pending := said("rejected", "cc_rejected_other_reason"), said("pending", "pending_waiting_payment")
	other := replaced(approved, "order-7 -> order-71")
	for name, c := range map[string]struct {
		body   string
		class  gateway.Class
		status payment.Status
	}{
		"one that succeeded":              {list(1, approved), gateway.Final, payment.Succeeded},
		"one that failed":                 {list(1, rejected), gateway.Final, payment.Failed},
		"one that failed, one under way":  {list(2, rejected, pending), gateway.Pending, payment.Pending},
		"one under way, one that failed":  {list(2, pending, rejected), gateway.Pending, payment.Pending},
		"failed, succeeded, failed":       {list(3, rejected, approved, rejected), gateway.Final, payment.Succeeded},
		"succeeded and another under way": {list(2, pending, approved), gateway.Final, payment.Succeeded},
		"two that succeeded":              {list(2, approved, approved), gateway.Mismatch, payment.Pending},
		"one of another amount":           {list(2, approved, replaced(approved, "58.8 -> 1")), gateway.Mismatch, payment.Pending},
		"one with an unknown status":      {list(2, said("new", ""), rejected), gateway.UnknownStatus, payment.Pending},
		"none":                            {list(0), gateway.NotFound, payment.Pending},
		"one of something else":           {list(1, other), gateway.NotFound, payment.Pending},
		"more than come at once":          {list(51, rejected), gateway.Mismatch, payment.Pending},
		"no list":                         {approved, gateway.Malformed, payment.Pending},
	} {
		t.Run(name, func(t *testing.T) {
			var asked string
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = r.RequestURI
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, c.body)
			}))
			defer s.Close()
			ans := adapter(t, config(s.URL, 10*time.Second)).Poll(context.Background(), ask("order-7", "order-7"))
			gatewaytest.Check(t, ans, marked)
			if ans.Class != c.class || ans.Status != c.status || !strings.HasSuffix(asked, "/v1/payments/search?sort=date_created&criteria=desc&limit=50&external_reference=order-7") {
				t.Errorf("asked %s, got %+v", asked, ans)
			}
		})
	}
}

func TestWhatCannotBeAsked(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }))
	defer s.Close()
	a := adapter(t, config(s.URL, 10*time.Second))
	for _, reference := range []string{"", "order-7", "12a", "1/../2", "-1", "1 2", "１２"} {
		if ans := a.Poll(context.Background(), ask(reference, "other")); ans.Class != gateway.Mismatch || ans.HTTPStatus != 0 || ans.Message == "" {
			t.Errorf("%q: %+v", reference, ans)
		}
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no token":      {func(c *Config) { c.AccessToken = secret.Secret{} }, "access_token: missing"},
		"a test token":  {func(c *Config) { c.AccessToken = secret.New("TEST-1") }, "access_token: it is one of mode test"},
		"a bad account": {func(c *Config) { c.Accounts = map[string]Credentials{"eu": {}} }, "accounts.eu.access_token: missing"},
	} {
		cfg := config("http://127.0.0.1:1", 10*time.Second)
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
