package razorpay_test

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
	"pollux/internal/gateway/razorpay"
	"pollux/internal/gateway/vendor"
	"pollux/internal/payment"
	"pollux/internal/secret"
)

var _ consumer.Gateway = (*razorpay.Adapter)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const marked = "marked-secret-5b1c9e0d7f"

func ask(reference, own string) gateway.Query {
	return gateway.Query{Payment: 1, Reference: reference, MerchantRef: own, AmountMinor: 1000, Currency: "INR"}
}

func config(base string, timeout time.Duration) razorpay.Config {
	return razorpay.Config{
		Credentials: razorpay.Credentials{KeyID: "rzp_live_1", KeySecret: secret.New(marked)},
		Config: vendor.Config{
			Name: "upi", BaseURL: base, Config: httpclient.Config{Timeout: timeout, AllowHTTP: true, AllowLoopback: true},
		},
	}
}

func adapter(t testing.TB, c razorpay.Config) *razorpay.Adapter {
	t.Helper()
	a, err := razorpay.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

const (
	captured = `{"id":"pay_G8","entity":"payment","amount":1000,"currency":"INR","status":"captured","order_id":"order_DB","captured":true,"error_reason":null}`
	paid     = `{"id":"order_DB","entity":"order","amount":1000,"amount_paid":1000,"amount_due":0,"currency":"INR","receipt":"order-7","status":"paid"}`
)

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

func reply(status int, body string) gatewaytest.Reply {
	return gatewaytest.Reply{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

func failure(code, description, reason string) string {
	return fmt.Sprintf(`{"error":{"code":%q,"description":%q,"source":"business","step":"payment_initiation","reason":%q,"metadata":{}}}`, code, description, reason)
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

// harness is what holds of both: payments and orders.
func harness(q gateway.Query) gatewaytest.Harness {
	return gatewaytest.Harness{
		New: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
			return adapter(t, config(base, timeout))
		},
		Accounts: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
			c := config(base, timeout)
			c.Credentials = razorpay.Credentials{}
			c.Accounts = map[string]razorpay.Credentials{
				"eu": {KeyID: "rzp_live_2", KeySecret: secret.New(marked + "-eu")}, "us": {KeyID: "rzp_live_3", KeySecret: secret.New(marked + "-us")},
			}
			return adapter(t, c)
		},
		Query:  q,
		Secret: marked,
	}
}

func TestPayments(t *testing.T) {
	as := func(change string) gatewaytest.Reply { return reply(200, replaced(captured, change)) }
	failed := as(`"captured", -> "failed", ; "error_reason":null -> "error_reason":"payment_timed_out"`)
	h := harness(ask("pay_G8", "order-7"))
	h.Replies = map[gatewaytest.Scene]gatewaytest.Reply{
		gatewaytest.Pending:       as(`"captured", -> "created",`),
		gatewaytest.Succeeded:     reply(200, captured),
		gatewaytest.Failed:        failed,
		gatewaytest.UnknownStatus: as(`"captured", -> "settling_v2",`),
		gatewaytest.OtherID:       as(`pay_G8 -> pay_G9`),
		gatewaytest.OtherAmount:   as(`1000 -> 100`),
		gatewaytest.OtherCurrency: as(`INR -> USD`),
		gatewaytest.NotFound:      reply(400, failure("BAD_REQUEST_ERROR", "The id provided does not exist", "input_validation_failed")),
		gatewaytest.Unauthorized:  reply(401, failure("BAD_REQUEST_ERROR", "Authentication failed", "NA")),
		gatewaytest.RateLimited:   reply(429, failure("BAD_REQUEST_ERROR", "Request throttled", "NA")),
	}
	h.Words = map[string]gatewaytest.Word{
		"created":                       waiting("processing", as(`"captured", -> "created",`)),
		"authorized":                    waiting("authorized", as(`"captured", -> "authorized",`)),
		"captured":                      final(payment.Succeeded, "succeeded", reply(200, captured)),
		"refunded":                      final(payment.Succeeded, "refunded", as(`"captured", -> "refunded",`)),
		"failed":                        final(payment.Failed, "payment_timed_out", failed),
		"failed without a reason":       final(payment.Failed, "failed", as(`"captured", -> "failed",`)),
		"an order where a payment":      word(gateway.Malformed, reply(200, paid)),
		"status that is no text":        word(gateway.Malformed, as(`"captured", -> 7,`)),
		"403":                           word(gateway.Unauthorized, reply(403, failure("BAD_REQUEST_ERROR", "Access denied", "NA"))),
		"404 that says why":             word(gateway.NotFound, reply(404, failure("BAD_REQUEST_ERROR", "The requested URL was not found on the server.", "NA"))),
		"404 from something before it":  word(gateway.Transport, reply(404, "<html>")),
		"400 from something before it":  word(gateway.Transport, reply(400, "<html>")),
		"400 of another kind":           word(gateway.Transport, reply(400, failure("GATEWAY_ERROR", "The gateway did not answer", "gateway_technical_error"))),
		"500":                           word(gateway.Transport, reply(500, failure("SERVER_ERROR", "We are facing some trouble", "server_error"))),
		"503":                           word(gateway.Transport, reply(503, failure("SERVICE_UNAVAILABLE", "x", "NA"))),
		"a failure that looks captured": word(gateway.Transport, reply(502, captured)),
	}
	gatewaytest.Run(t, h)
}

func TestOrders(t *testing.T) {
	as := func(change string) gatewaytest.Reply { return reply(200, replaced(paid, change)) }
	const unpaid = ` ; "amount_paid":1000 -> "amount_paid":0`
	failed := reply(200, replaced(captured, `"captured", -> "failed",`))
	h := harness(ask("order_DB", "order-7"))
	h.Replies = map[gatewaytest.Scene]gatewaytest.Reply{
		gatewaytest.Pending:       as(`"paid"} -> "attempted"}` + unpaid),
		gatewaytest.Succeeded:     reply(200, paid),
		gatewaytest.UnknownStatus: as(`"paid"} -> "partially_paid"}` + unpaid),
		gatewaytest.OtherID:       as(`order_DB -> order_DC`),
		gatewaytest.OtherAmount:   as(`"amount_paid":1000 -> "amount_paid":900`),
		gatewaytest.OtherCurrency: as(`INR -> USD`),
		gatewaytest.NotFound:      reply(400, failure("BAD_REQUEST_ERROR", "The id provided does not exist", "input_validation_failed")),
	}
	h.Words = map[string]gatewaytest.Word{
		"created":                  waiting("requires_action", as(`"paid"} -> "created"}`+unpaid)),
		"attempted":                waiting("processing", as(`"paid"} -> "attempted"}`+unpaid)),
		"paid":                     final(payment.Succeeded, "succeeded", reply(200, paid)),
		"paid in part":             word(gateway.Mismatch, as(`"amount_paid":1000 -> "amount_paid":400`)),
		"paid without an amount":   word(gateway.Malformed, as(`"amount_paid":1000, -> `)),
		"a payment where an order": word(gateway.Malformed, failed),
	}
	gatewaytest.Run(t, h)
}

func TestReceipts(t *testing.T) {
	list := func(items ...string) gatewaytest.Reply {
		return reply(200, fmt.Sprintf(`{"entity":"collection","count":%d,"items":[%s]}`, len(items), strings.Join(items, ",")))
	}
	near := replaced(paid, `order-7 -> order-71`)
	for name, c := range map[string]struct {
		reply gatewaytest.Reply
		want  gateway.Class
	}{
		"one order":                         {list(paid), gateway.Final},
		"one that has it and one near it":   {list(near, paid), gateway.Final},
		"none":                              {list(), gateway.NotFound},
		"one near it":                       {list(near), gateway.NotFound},
		"two":                               {list(paid, replaced(paid, "order_DB -> order_DC")), gateway.Mismatch},
		"one of another amount":             {list(replaced(paid, `"amount_paid":1000 -> "amount_paid":1`)), gateway.Mismatch},
		"something else":                    {reply(200, paid), gateway.Malformed},
		"a list of something else":          {list(`1`, `null`, `{}`), gateway.NotFound},
		"an error":                          {reply(401, failure("BAD_REQUEST_ERROR", "x", "NA")), gateway.Unauthorized},
		"an order that nobody has paid yet": {list(replaced(paid, `"paid"} -> "created"} ; "amount_paid":1000 -> "amount_paid":0`)), gateway.Pending},
	} {
		t.Run(name, func(t *testing.T) {
			var asked string
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = r.RequestURI
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.reply.Status)
				fmt.Fprint(w, c.reply.Body)
			}))
			defer s.Close()
			ans := adapter(t, config(s.URL, 10*time.Second)).Poll(context.Background(), ask("order-7", "order-7"))
			gatewaytest.Check(t, ans, marked)
			if ans.Class != c.want || asked != "/v1/orders?count=10&receipt=order-7" {
				t.Errorf("asked %s, got %+v", asked, ans)
			}
		})
	}
}

func TestWhatCannotBeAsked(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }))
	defer s.Close()
	a := adapter(t, config(s.URL, 10*time.Second))
	for _, reference := range []string{"", "order-7", "inv_1", "pay_1/../..", "order_%2e%2e/..", "pay_\n"} {
		if ans := a.Poll(context.Background(), ask(reference, "")); ans.Class != gateway.Mismatch || ans.HTTPStatus != 0 || ans.Message == "" {
			t.Errorf("%q: %+v", reference, ans)
		}
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*razorpay.Config)
		want   string
	}{
		"no secret":          {func(c *razorpay.Config) { c.KeySecret = secret.Secret{} }, "key_secret: missing"},
		"no key":             {func(c *razorpay.Config) { c.KeyID = "" }, "key_id: missing"},
		"a key with a colon": {func(c *razorpay.Config) { c.KeyID = "a:b" }, "key_id: missing, or not the id"},
		"a test key":         {func(c *razorpay.Config) { c.KeyID = "rzp_test_1" }, "key_id: it is one of mode test, and mode is live"},
		"a bad account": {func(c *razorpay.Config) {
			c.Accounts = map[string]razorpay.Credentials{"eu": {KeyID: "rzp_test_2", KeySecret: secret.New("x")}}
		}, "accounts.eu.key_id: it is one of mode test"},
	} {
		cfg := config("http://127.0.0.1:1", 10*time.Second)
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
