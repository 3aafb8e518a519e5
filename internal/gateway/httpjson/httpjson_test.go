package httpjson_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/gateway/gatewaytest"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/httpjson"
	"pollux/internal/payment"
	"pollux/internal/secret"
)

var _ consumer.Gateway = (*httpjson.Adapter)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// marked is the secret of every test: it must not appear in anything that the adapter says.
const marked = "marked-secret-5b1c9e0d7f"

var query = gateway.Query{Payment: 1, Reference: "pay_1", MerchantRef: "order-7", AmountMinor: 1000, Currency: "EUR"}

// config is a gateway that answers like good.
func config(base string) httpjson.Config {
	return httpjson.Config{
		Name:   "acme",
		Config: httpclient.Config{Timeout: 10 * time.Second, AllowHTTP: true, AllowLoopback: true},
		URL:    base + "/v1/payments/{reference}",
		Auth:   httpjson.Auth{Kind: "bearer", Credentials: httpjson.Credentials{Token: secret.New(marked)}},
		Pointers: httpjson.Pointers{
			Status: "/status", Detail: "/reason", ID: "/id", Amount: "/amount", Currency: "/currency", Mode: "/live", UpdatedAt: "/updated",
			ErrorCode: "/error/code", ErrorMessage: "/error/message", RetryAfter: "/error/retry_after",
		},
		Mode: "true",
		Statuses: map[string]string{
			"processing": "pending", "requires_action": "pending/requires_action", "authorized": "pending/authorized", "paid": "succeeded",
			"declined": "failed", "canceled": "cancelled", "canceled/expired": "expired", "lapsed": "expired/too_late",
		},
		ErrorCodes: map[string]string{
			"unknown_payment": "not_found", "400/bad_request": "not_found", "slow_down": "rate_limited", "key_expired": "unauthorized",
			"in_progress": "pending", "other_merchant": "mismatch", "garbled": "malformed",
		},
	}
}

const good = `{"id":"pay_1","status":"paid","amount":1000,"currency":"EUR","live":true,"updated":"2026-09-10T06:00:00Z"}`

func with(change string) string {
	var b strings.Builder
	b.WriteString(good)
	s := b.String()
	for pair := range strings.SplitSeq(change, " ; ") {
		from, to, _ := strings.Cut(pair, " -> ")
		if !strings.Contains(s, from) {
			panic("nothing to change: " + from)
		}
		s = strings.Replace(s, from, to, 1)
	}
	return s
}

func adapter(t testing.TB, cfg httpjson.Config) *httpjson.Adapter {
	t.Helper()
	a, err := httpjson.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func serve(t testing.TB, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.URL
}

func replying(t testing.TB, status int, body string, header ...string) string {
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	})
}

// poll asks and checks what holds of every answer.
func poll(t testing.TB, a *httpjson.Adapter, q gateway.Query) gateway.Answer {
	t.Helper()
	ans := a.Poll(context.Background(), q)
	gatewaytest.Check(t, ans, marked)
	return ans
}

func TestConformance(t *testing.T) {
	json := http.Header{"Content-Type": {"application/json"}}
	reply := func(status int, body string) gatewaytest.Reply {
		return gatewaytest.Reply{Status: status, Header: json, Body: body}
	}
	for name, change := range map[string]func(*httpjson.Config){
		"bearer": func(*httpjson.Config) {},
		"gzip":   func(c *httpjson.Config) { c.Gzip = true },
		"basic": func(c *httpjson.Config) {
			c.Auth = httpjson.Auth{Kind: "basic", Credentials: httpjson.Credentials{User: "shop", Password: secret.New(marked)}}
		},
		"post with a signature": func(c *httpjson.Config) {
			c.Method, c.Body = "POST", `{"id":"{reference}"}`
			c.Auth = httpjson.Auth{
				Kind: "hmac", Credentials: httpjson.Credentials{KeyID: "k1", Key: secret.New(marked)},
				HMAC: httpjson.HMAC{Sign: "{method}{target}{body}{timestamp}", Headers: map[string]string{"X-Signature": "{signature}", "X-Timestamp": "{timestamp}"}},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			gatewaytest.Run(t, gatewaytest.Harness{
				New: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
					cfg := config(base)
					change(&cfg)
					cfg.Timeout, cfg.Success = timeout, httpjson.Success{Pointer: "/result", IsNot: []string{"failure"}}
					return adapter(t, cfg)
				},
				Accounts: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
					cfg := config(base)
					change(&cfg)
					cfg.Timeout, cfg.Accounts = timeout, map[string]httpjson.Credentials{}
					for _, name := range []string{"eu", "us"} {
						cfg.Accounts[name] = marking(cfg.Auth.Credentials, "-"+name)
					}
					cfg.Auth.Credentials = httpjson.Credentials{}
					return adapter(t, cfg)
				},
				Proof: proof(name),
				Words: map[string]gatewaytest.Word{
					"processing": {Reply: reply(200, with("paid -> processing")), Class: gateway.Pending, Detail: "processing"},
					"authorized": {Reply: reply(200, with("paid -> authorized")), Class: gateway.Pending, Detail: "authorized"},
					"lapsed":     {Reply: reply(200, with("paid -> lapsed")), Class: gateway.Final, Status: payment.Expired, Detail: "too_late"},
					"slow down":  {Reply: reply(400, `{"error":{"code":"slow_down"}}`), Class: gateway.RateLimited},
				},
				Query:  query,
				Secret: marked,
				Replies: map[gatewaytest.Scene]gatewaytest.Reply{
					gatewaytest.Pending:       reply(200, with("paid -> processing")),
					gatewaytest.Succeeded:     reply(200, good),
					gatewaytest.Failed:        reply(200, with("paid -> declined")),
					gatewaytest.Cancelled:     reply(200, with("paid -> canceled")),
					gatewaytest.Expired:       reply(200, with("paid -> lapsed")),
					gatewaytest.UnknownStatus: reply(200, with("paid -> settling_v2")),
					gatewaytest.OtherID:       reply(200, with("pay_1 -> pay_2")),
					gatewaytest.OtherAmount:   reply(200, with("1000 -> 100")),
					gatewaytest.OtherCurrency: reply(200, with("EUR -> USD")),
					gatewaytest.OtherMode:     reply(200, with("true -> false")),
					gatewaytest.NotFound:      reply(404, `{"error":{"code":"nope"}}`),
					gatewaytest.Unauthorized:  reply(401, `{}`),
					gatewaytest.RateLimited:   reply(429, `slow down`),
					gatewaytest.BusinessError: reply(200, `{"result":"failure","status":"declined","error":{"code":"1001"}}`),
				},
			})
		})
	}
}

// marking puts something behind each secret.
func marking(c httpjson.Credentials, mark string) httpjson.Credentials {
	for _, s := range []*secret.Secret{&c.Token, &c.Password, &c.Key} {
		if !s.IsZero() {
			*s = secret.New(s.Reveal() + mark)
		}
	}
	return c
}

// proof is how a request shows whose it is; nil where the secret itself is sent.
func proof(name string) func(*http.Request, []byte, string) bool {
	if name != "post with a signature" {
		return nil
	}
	return func(r *http.Request, body []byte, secret string) bool {
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprint(mac, r.Method, r.RequestURI, string(body), r.Header.Get("X-Timestamp"))
		return hex.EncodeToString(mac.Sum(nil)) == r.Header.Get("X-Signature")
	}
}

func TestEveryHTTPStatusHasAClass(t *testing.T) {
	var status atomic.Int64
	base := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Load()))
		io.WriteString(w, good)
	})
	a := adapter(t, config(base))
	final := map[int]bool{200: true, 201: true, 202: true, 203: true}
	special := map[int]gateway.Class{
		401: gateway.Unauthorized, 403: gateway.Unauthorized, 404: gateway.NotFound, 410: gateway.NotFound, 429: gateway.RateLimited,
	}
	for code := 200; code <= 599; code++ {
		status.Store(int64(code))
		want := gateway.Transport
		switch c, ok := special[code]; {
		case ok:
			want = c
		case final[code]:
			want = gateway.Final
		case code < 300:
			want = gateway.Malformed
		}
		if ans := poll(t, a, query); ans.Class != want || ans.HTTPStatus != code {
			t.Errorf("%d is %v, want %v: %+v", code, ans.Class, want, ans)
		}
	}
	for code := 100; code <= 199; code++ {
		l := raw(t, fmt.Sprintf("HTTP/1.1 %d x\r\n\r\n", code))
		if ans := poll(t, adapter(t, config(l)), query); ans.Class != gateway.Transport {
			t.Errorf("%d is %v: %+v", code, ans.Class, ans)
		}
	}
	for _, code := range []int{600, 700, 999} {
		l := raw(t, fmt.Sprintf("HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", code, len(good), good))
		if ans := poll(t, adapter(t, config(l)), query); ans.Class != gateway.Transport || ans.HTTPStatus != code {
			t.Errorf("%d is %v: %+v", code, ans.Class, ans)
		}
	}
}

// raw answers each connection with bytes, after reading what comes until an empty line.
func raw(t testing.TB, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 4096)
			c.Read(b)
			io.WriteString(c, answer)
			c.Close()
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return "http://" + l.Addr().String()
}

// TestGoodAnswers: what a gateway says with HTTP 200, and what that means.
func TestGoodAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		body   string
		class  gateway.Class
		status payment.Status
		detail string
		said   string // part of the message
		word   string // the gateway's status
	}{
		{"success", good, gateway.Final, payment.Succeeded, "succeeded", "", "paid"},
		{"pending", with("paid -> processing"), gateway.Pending, payment.Pending, "processing", "", "processing"},
		{"requires action", with("paid -> requires_action"), gateway.Pending, payment.Pending, "requires_action", "", "requires_action"},
		{"authorized", with("paid -> authorized"), gateway.Pending, payment.Pending, "authorized", "", "authorized"},
		{"failed", with("paid -> declined"), gateway.Final, payment.Failed, "failed", "", "declined"},
		{"failed with a reason", with(`"paid" -> "declined","reason":"Insufficient Funds!"`), gateway.Final, payment.Failed, "insufficient_funds", "", "declined"},
		{"pending with a reason", with(`"paid" -> "processing","reason":"PENDING_REVIEW"`), gateway.Pending, payment.Pending, "pending_review", "", "processing"},
		{"a reason that is the map's", with(`"paid" -> "lapsed","reason":"whatever"`), gateway.Final, payment.Expired, "too_late", "", "lapsed"},
		{"a reason that refines", with(`"paid" -> "canceled","reason":"expired"`), gateway.Final, payment.Expired, "expired", "", "canceled/expired"},
		{"a reason that does not", with(`"paid" -> "canceled","reason":"by_payer"`), gateway.Final, payment.Cancelled, "by_payer", "", "canceled"},
		{"a reason that is no word", with(`"paid" -> "processing","reason":"???"`), gateway.Pending, payment.Pending, "processing", "", "processing"},
		{"a reason that is a card", with(`"paid" -> "processing","reason":"4111111111111111"`), gateway.Pending, payment.Pending, "processing", "", "processing"},
		{"a reason that is a secret", with(`"paid" -> "processing","reason":"` + marked + `"`), gateway.Pending, payment.Pending, "processing", "", "processing"},
		{"a reason that is long", with(`"paid" -> "processing","reason":"` + strings.Repeat("x", 65) + `"`), gateway.Pending, payment.Pending, "processing", "", "processing"},
		{"a reason that is null", with(`"paid" -> "processing","reason":null`), gateway.Pending, payment.Pending, "processing", "", "processing"},

		{"unseen status", with("paid -> settling_v2"), gateway.UnknownStatus, payment.Pending, "", `status "settling_v2" is not in the map`, "settling_v2"},
		{"status in another case", with("paid -> PAID"), gateway.UnknownStatus, payment.Pending, "", `"PAID"`, "PAID"},
		{"status with a blank", with("paid -> paid "), gateway.UnknownStatus, payment.Pending, "", `"paid "`, "paid "},
		{"status that is a number", with(`"paid" -> 7`), gateway.UnknownStatus, payment.Pending, "", `"7"`, "7"},
		{"status that is true", with(`"paid" -> true`), gateway.UnknownStatus, payment.Pending, "", `"true"`, "true"},
		{"status that is empty", with(`"paid" -> ""`), gateway.UnknownStatus, payment.Pending, "", `""`, ""},
		{"status that is a secret", with("paid -> " + marked), gateway.UnknownStatus, payment.Pending, "", `"[secret]"`, "[secret]"},
		{"status that is long", with("paid -> " + strings.Repeat("é", 500)), gateway.UnknownStatus, payment.Pending, "", "é", strings.Repeat("é", 30) + "…"},
		{"a key of another case", with(`"status" -> "Status"`), gateway.Malformed, payment.Pending, "", "no status at /status", ""},
		{"a key that folds to it", with(`"status" -> "ſtatus"`), gateway.Malformed, payment.Pending, "", "no status at /status", ""},
		{"status null", with(`"paid" -> null`), gateway.Malformed, payment.Pending, "", "no status", ""},
		{"status object", with(`"paid" -> {"a":1}`), gateway.Malformed, payment.Pending, "", "no status", ""},

		{"other id", with("pay_1 -> pay_2"), gateway.Mismatch, payment.Pending, "", `id: the gateway says "pay_2", expected "pay_1"; it last changed 2026-09-10T06:00:00Z`, "paid"},
		{"other id, pending", with("pay_1 -> pay_2 ; paid -> processing"), gateway.Mismatch, payment.Pending, "", `"pay_2"`, "processing"},
		{"other id, unknown status", with("pay_1 -> pay_2 ; paid -> x"), gateway.Mismatch, payment.Pending, "", `"pay_2"`, "x"},
		{"id in another case", with("pay_1 -> PAY_1"), gateway.Mismatch, payment.Pending, "", `"PAY_1"`, "paid"},
		{"id absent", with(`"id":"pay_1", -> `), gateway.Malformed, payment.Pending, "", "no id at /id", "paid"},
		{"id null", with(`"pay_1" -> null`), gateway.Malformed, payment.Pending, "", "no id at /id", "paid"},

		{"other amount", with("1000 -> 100"), gateway.Mismatch, payment.Pending, "", "amount: the gateway says 1.00 EUR, expected 10.00 EUR", "paid"},
		{"other amount, failed", with("1000 -> 100 ; paid -> declined"), gateway.Mismatch, payment.Pending, "", "1.00 EUR", "declined"},
		{"other amount, pending", with("1000 -> 100 ; paid -> processing"), gateway.Mismatch, payment.Pending, "", "1.00 EUR", "processing"},
		{"negative amount", with("1000 -> -1000"), gateway.Mismatch, payment.Pending, "", "-10.00 EUR", "paid"},
		{"amount off by little", with("1000 -> 1000.0000000000000001"), gateway.Mismatch, payment.Pending, "", "more decimals", "paid"},
		{"amount out of range", with("1000 -> 1e300"), gateway.Mismatch, payment.Pending, "", "larger than", "paid"},
		{"amount as text", with(`1000 -> "1000"`), gateway.Final, payment.Succeeded, "succeeded", "", "paid"},
		{"amount with zeros", with("1000 -> 1000.00"), gateway.Final, payment.Succeeded, "succeeded", "", "paid"},
		{"amount with an exponent", with("1000 -> 1e3"), gateway.Final, payment.Succeeded, "succeeded", "", "paid"},
		{"amount that is no number", with(`1000 -> "10,00"`), gateway.Malformed, payment.Pending, "", "not a number", "paid"},
		{"amount object", with(`1000 -> {"value":1000}`), gateway.Malformed, payment.Pending, "", "no amount", "paid"},
		{"amount true", with(`1000 -> true`), gateway.Malformed, payment.Pending, "", "no amount", "paid"},
		{"amount absent, succeeded", with(`"amount":1000, -> `), gateway.Malformed, payment.Pending, "", "no amount is at /amount", "paid"},
		{"amount null, succeeded", with(`1000 -> null`), gateway.Malformed, payment.Pending, "", "no amount is at /amount", "paid"},
		{"amount absent, failed", with(`"amount":1000, ->  ; paid -> declined`), gateway.Final, payment.Failed, "failed", "", "declined"},
		{"amount absent, pending", with(`"amount":1000, ->  ; paid -> processing`), gateway.Pending, payment.Pending, "processing", "", "processing"},

		{"other currency", with("EUR -> USD"), gateway.Mismatch, payment.Pending, "", `currency: the gateway says "USD", expected 10.00 EUR`, "paid"},
		{"currency in small letters", with("EUR -> eur"), gateway.Final, payment.Succeeded, "succeeded", "", "paid"},
		{"currency that folds to it", with("EUR -> EUꭆ"), gateway.Mismatch, payment.Pending, "", "currency", "paid"},
		{"currency absent, succeeded", with(`"currency":"EUR", -> `), gateway.Malformed, payment.Pending, "", "no currency is at /currency", "paid"},
		{"currency absent, failed", with(`"currency":"EUR", ->  ; paid -> declined`), gateway.Final, payment.Failed, "failed", "", "declined"},
		{"currency object", with(`"EUR" -> {}`), gateway.Malformed, payment.Pending, "", "no currency at", "paid"},

		{"other mode", with("true -> false"), gateway.Mismatch, payment.Pending, "", `mode: the gateway says "false", expected "true"`, "paid"},
		{"mode absent", with(`"live":true, -> `), gateway.Malformed, payment.Pending, "", "no mode", "paid"},

		{"empty", "", gateway.Malformed, payment.Pending, "", "the body is empty", ""},
		{"empty object", "{}", gateway.Malformed, payment.Pending, "", "no status", ""},
		{"null", "null", gateway.Malformed, payment.Pending, "", "no status", ""},
		{"html", "<html>maintenance</html>", gateway.Malformed, payment.Pending, "", `not JSON (byte 0): "<html>maintenance</html>"`, ""},
		{"a key twice", with(`"live" -> "amount":1000,"live"`), gateway.Malformed, payment.Pending, "", "a key twice", ""},
		{"two documents", good + good, gateway.Malformed, payment.Pending, "", "something comes after", ""},
		{"a payment that broke off", good[:60], gateway.Malformed, payment.Pending, "", "ends too early", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ans := poll(t, adapter(t, config(replying(t, 200, c.body))), query)
			if ans.Class != c.class || ans.Status != c.status || ans.Detail != c.detail || ans.GatewayStatus != c.word {
				t.Errorf("got %v %s %q %q, want %v %s %q %q: %s", ans.Class, ans.Status, ans.Detail, ans.GatewayStatus, c.class, c.status, c.detail, c.word, ans.Message)
			}
			if !strings.Contains(ans.Message, c.said) || (c.said == "") != (ans.Message == "") {
				t.Errorf("the message is %q, want %q", ans.Message, c.said)
			}
			if c.name == "a payment that broke off" && strings.Contains(ans.Message, "pay_1") {
				t.Errorf("the message shows a payment: %s", ans.Message)
			}
		})
	}
}

// TestErrors: what a gateway says with another HTTP status, or with an error in a good one.
func TestErrors(t *testing.T) {
	success := func(c *httpjson.Config) {
		c.Success = httpjson.Success{Pointer: "/result", Is: []string{"success", "true"}}
	}
	html := []string{"Content-Type", "text/html"}
	for _, c := range []struct {
		name   string
		status int
		body   string
		header []string
		change func(*httpjson.Config)
		class  gateway.Class
		said   string
	}{
		{"502 with a page", 502, "<html><h1>Bad Gateway</h1>\n</html>", html, nil, gateway.Transport, `HTTP 502: "<html><h1>Bad Gateway</h1>\n</html>"`},
		{"500 without a body", 500, "", nil, nil, gateway.Transport, "HTTP 500"},
		{"500 that looks like a success", 500, good, nil, nil, gateway.Transport, "HTTP 500"},
		{"503", 503, `{"error":{"code":"down","message":"Maintenance"}}`, nil, nil, gateway.Transport, `HTTP 503 error "down": "Maintenance"`},
		{"400", 400, `{"error":{"code":"invalid"}}`, nil, nil, gateway.Transport, `HTTP 400 error "invalid"`},
		{"404", 404, `{"error":{"message":"No such payment"}}`, nil, nil, gateway.NotFound, `HTTP 404: "No such payment"`},
		{"404 with a page", 404, "<html>", html, nil, gateway.NotFound, `HTTP 404: "<html>"`},
		{"404 with a code that says more", 404, `{"error":{"code":"key_expired"}}`, nil, nil, gateway.Unauthorized, "key_expired"},
		{"403 that means not found", 403, `{"error":{"code":"unknown_payment"}}`, nil, nil, gateway.NotFound, "unknown_payment"},
		{"403", 403, `{"error":{"code":"other"}}`, nil, nil, gateway.Unauthorized, "HTTP 403"},
		{"403 where that means not found", 403, `{}`, nil, func(c *httpjson.Config) {
			c.NotFoundStatuses, c.UnauthorizedStatuses = []int{403, 404}, []int{401}
		}, gateway.NotFound, "HTTP 403"},
		{"400 that means not found", 400, `{"error":{"code":"bad_request"}}`, nil, nil, gateway.NotFound, "bad_request"},
		{"the same code with another status", 422, `{"error":{"code":"bad_request"}}`, nil, nil, gateway.Transport, "bad_request"},
		{"a code that is a number", 400, `{"error":{"code":17}}`, nil, func(c *httpjson.Config) { c.ErrorCodes = map[string]string{"17": "mismatch"} }, gateway.Mismatch, `"17"`},
		{"a code that means wait", 400, `{"error":{"code":"slow_down"}}`, nil, nil, gateway.RateLimited, "slow_down"},
		{"a code that means pending", 409, `{"error":{"code":"in_progress"}}`, nil, nil, gateway.Pending, "in_progress"},
		{"a code that means trouble", 409, `{"error":{"code":"other_merchant"}}`, nil, nil, gateway.Mismatch, "other_merchant"},
		{"a code that means garbage", 409, `{"error":{"code":"garbled"}}`, nil, nil, gateway.Malformed, "garbled"},
		{"an empty code", 404, `{"error":{"code":""}}`, nil, nil, gateway.NotFound, "HTTP 404"},
		{"429", 429, "", nil, nil, gateway.RateLimited, "HTTP 429"},
		{"another status for too many", 509, "", nil, func(c *httpjson.Config) { c.RateLimitedStatuses = []int{509} }, gateway.RateLimited, "HTTP 509"},
		{"429 where it is not", 429, "", nil, func(c *httpjson.Config) { c.RateLimitedStatuses = []int{} }, gateway.Transport, "HTTP 429"},
		{"401", 401, "", nil, nil, gateway.Unauthorized, "HTTP 401"},
		{"302", 302, "", []string{"Location", "https://evil.example/?x=" + marked}, nil, gateway.Transport, "redirects are not followed (status 302 to evil.example)"},

		{"an error in Turkish", 400, "{\"error\":{\"code\":\"unknown_payment\",\"message\":\"\xddi\xfelem bulunamad\xfd\"}}",
			[]string{"Content-Type", "application/json; charset=ISO-8859-9"}, nil, gateway.NotFound, "HTTP 400 error \"unknown_payment\": \"\uFFFDi\uFFFDlem bulunamad\uFFFD\""},
		{"a page in Turkish", 500, "<p>\xddi\xfelem</p>", []string{"Content-Type", "text/html; charset=ISO-8859-9"}, nil, gateway.Transport, `HTTP 500: "<p>\xddi\xfelem</p>"`},
		{"an error with a card", 400, `{"error":{"code":"x","message":"card 4111 1111 1111 1111 of jane@shop.example, key ` + marked + `"}}`, nil, nil, gateway.Transport,
			`HTTP 400 error "x": "card [card] of [email], key [secret]"`},
		{"an error that is long", 500, strings.Repeat("lorem ipsum ", 10_000), []string{"Content-Type", "text/plain"}, nil, gateway.Transport, "lorem ipsum"},
		{"an error above the cap", 500, strings.Repeat("x", 2<<20), nil, nil, gateway.Transport, "HTTP 500"},
		{"an error with a key twice", 404, `{"error":{"code":"key_expired"},"error":{"code":"key_expired"}}`, nil, nil, gateway.NotFound, "HTTP 404"},

		{"error in a 200", 200, `{"result":"failure","error":{"code":"1001","message":"api bilgileri bulunamadı"}}`, nil, success, gateway.Transport, `HTTP 200 error "1001": "api bilgileri bulunamadı"`},
		{"error in a 200 that says failed", 200, `{"result":"failure","status":"declined","error":{"code":"1001"}}`, nil, success, gateway.Transport, "1001"},
		{"known error in a 200", 200, `{"result":"failure","error":{"code":"unknown_payment"}}`, nil, success, gateway.NotFound, "unknown_payment"},
		{"error in a 200 without a code", 200, `{"result":"failure"}`, nil, success, gateway.Transport, "HTTP 200"},
		{"nothing that says how it went", 200, good, nil, success, gateway.Malformed, "nothing at /result"},
		{"success that is said", 200, with(`"live" -> "result":"success","live"`), nil, success, gateway.Final, ""},
		{"success that is true", 200, with(`"live" -> "result":true,"live"`), nil, success, gateway.Final, ""},
		{"no failure is said", 200, good, nil, func(c *httpjson.Config) { c.Success = httpjson.Success{Pointer: "/result", IsNot: []string{"failure"}} }, gateway.Final, ""},
		{"an error code beside a success", 200, with(`"live" -> "error":{"code":"unknown_payment"},"live"`), nil, nil, gateway.Final, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config(replying(t, c.status, c.body, c.header...))
			if c.change != nil {
				c.change(&cfg)
			}
			ans := poll(t, adapter(t, cfg), query)
			if ans.Class != c.class || ans.HTTPStatus != c.status || !strings.Contains(ans.Message, c.said) {
				t.Errorf("got %v, %q; want %v, %q", ans.Class, ans.Message, c.class, c.said)
			}
			if c.class == gateway.Pending && ans.Detail != "processing" {
				t.Errorf("the detail is %q", ans.Detail)
			}
		})
	}
}

func TestContentTypes(t *testing.T) {
	latin := with("2026-09-10T06:00:00Z -> \xdd")
	for _, c := range []struct {
		kind, body string
		accept     []string
		class      gateway.Class
	}{
		{"application/json", good, nil, gateway.Final}, {"application/json; charset=utf-8", good, nil, gateway.Final}, {"Application/JSON;charset=UTF-8", good, nil, gateway.Final},
		{`application/json; charset="utf8"`, with("Z -> é"), nil, gateway.Final}, {"application/json; charset", good, nil, gateway.Final}, {"text/json", good, nil, gateway.Final},
		{"application/vnd.acme.payment+json", good, nil, gateway.Final}, {"application/json; charset=ISO-8859-9", good, nil, gateway.Final},
		{"application/json; charset=ISO-8859-9", with("Z -> é"), nil, gateway.Malformed}, {"application/json; charset=ISO-8859-9", latin, nil, gateway.Malformed},
		{"application/json", latin, nil, gateway.Malformed},
		{"text/html", good, nil, gateway.Malformed}, {"text/plain", good, nil, gateway.Malformed}, {"", good, nil, gateway.Malformed}, {"nonsense", good, nil, gateway.Malformed},
		{"application/jsonp", good, nil, gateway.Malformed}, {"application/json, text/html", good, nil, gateway.Malformed}, {"application/xml", good, nil, gateway.Malformed},
		{"text/plain; charset=utf-8", good, []string{"text/plain"}, gateway.Final}, {"text/html", good, []string{"text/plain"}, gateway.Malformed},
		{"", good, []string{"none"}, gateway.Final}, {"text/plain", good, []string{"none"}, gateway.Malformed}, {"text/plain", "<html>", []string{"text/plain"}, gateway.Malformed},
	} {
		base := raw(t, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", c.kind, len(c.body), c.body))
		if c.kind == "" {
			base = raw(t, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(c.body), c.body))
		}
		cfg := config(base)
		cfg.ContentTypes = c.accept
		if ans := poll(t, adapter(t, cfg), query); ans.Class != c.class {
			t.Errorf("%q with %v accepted: %+v", c.kind, c.accept, ans)
		}
	}
}

func TestAmounts(t *testing.T) {
	body := func(amount, currency string) string {
		return `{"status":"paid","amount":` + amount + `,"currency":` + currency + `}`
	}
	for _, c := range []struct {
		name     string
		amount   httpjson.Amount
		expected int64
		currency string
		body     string
		class    gateway.Class
	}{
		{"major number", httpjson.Amount{Unit: "major"}, 1050, "EUR", body("10.5", `"EUR"`), gateway.Final},
		{"major text", httpjson.Amount{Unit: "major"}, 1050, "EUR", body(`"10.50"`, `"EUR"`), gateway.Final},
		{"major that no float has", httpjson.Amount{Unit: "major"}, 9007199254740993, "EUR", body("90071992547409.93", `"EUR"`), gateway.Final},
		{"major off by a cent", httpjson.Amount{Unit: "major"}, 1050, "EUR", body("10.51", `"EUR"`), gateway.Mismatch},
		{"major with a fraction of a cent", httpjson.Amount{Unit: "major"}, 1050, "EUR", body("10.505", `"EUR"`), gateway.Mismatch},
		{"major in minor units", httpjson.Amount{Unit: "major"}, 1050, "EUR", body("1050", `"EUR"`), gateway.Mismatch},
		{"yen", httpjson.Amount{Unit: "major"}, 1050, "JPY", body("1050", `"JPY"`), gateway.Final},
		{"yen with decimals", httpjson.Amount{Unit: "major"}, 1050, "JPY", body("1050.00", `"JPY"`), gateway.Final},
		{"dinar", httpjson.Amount{Unit: "major"}, 1050, "KWD", body("1.050", `"KWD"`), gateway.Final},
		{"unidad de fomento", httpjson.Amount{Unit: "major"}, 10500, "CLF", body("1.05", `"CLF"`), gateway.Final},
		{"major of what is no currency", httpjson.Amount{Unit: "major"}, 1050, "XTS", body("10.50", `"XTS"`), gateway.Mismatch},
		{"minor of what is no currency", httpjson.Amount{}, 1050, "XTS", body("1050", `"XTS"`), gateway.Final},
		{"minor in major units", httpjson.Amount{}, 1050, "EUR", body("10.50", `"EUR"`), gateway.Mismatch},
		{"zero", httpjson.Amount{}, 0, "EUR", body("0", `"EUR"`), gateway.Final},
		{"minus zero", httpjson.Amount{}, 0, "EUR", body("-0", `"EUR"`), gateway.Final},
		{"padded", httpjson.Amount{}, 1050, "EUR", body(`"000000001050"`, `"EUR"`), gateway.Final},
		{"VND where USD", httpjson.Amount{}, 1050, "USD", body("1050", `"VND"`), gateway.Mismatch},
		{"other decimals", httpjson.Amount{Exponents: map[string]int{"ISK": 2}}, 1050, "ISK", body("105000", `"ISK"`), gateway.Final},
		{"other decimals, with a fraction", httpjson.Amount{Exponents: map[string]int{"ISK": 2}}, 1050, "ISK", body("105001", `"ISK"`), gateway.Mismatch},
		{"fewer decimals", httpjson.Amount{Exponents: map[string]int{"IDR": 0}}, 105000, "IDR", body("1050", `"IDR"`), gateway.Final},
		{"other decimals of another currency", httpjson.Amount{Exponents: map[string]int{"ISK": 2}}, 1050, "EUR", body("1050", `"EUR"`), gateway.Final},
		{"numeric currency", httpjson.Amount{Currencies: map[string]string{"949": "TRY"}}, 1050, "TRY", body("1050", "949"), gateway.Final},
		{"numeric currency as text", httpjson.Amount{Currencies: map[string]string{"949": "TRY"}}, 1050, "TRY", body("1050", `"949"`), gateway.Final},
		{"another numeric currency", httpjson.Amount{Currencies: map[string]string{"949": "TRY"}}, 1050, "TRY", body("1050", "840"), gateway.Mismatch},
		{"only when succeeded: pending", httpjson.Amount{Check: "succeeded"}, 1050, "EUR", `{"status":"processing","amount":0,"currency":"USD"}`, gateway.Pending},
		{"only when succeeded: unknown", httpjson.Amount{Check: "succeeded"}, 1050, "EUR", `{"status":"new","amount":0}`, gateway.UnknownStatus},
		{"only when succeeded: succeeded", httpjson.Amount{Check: "succeeded"}, 1050, "EUR", body("0", `"EUR"`), gateway.Mismatch},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config(replying(t, 200, c.body))
			cfg.Pointers = httpjson.Pointers{Status: "/status", Amount: "/amount", Currency: "/currency"}
			cfg.Mode, cfg.ErrorCodes, cfg.Amount = "", nil, c.amount
			ans := poll(t, adapter(t, cfg), gateway.Query{Reference: "pay_1", AmountMinor: c.expected, Currency: c.currency})
			if ans.Class != c.class {
				t.Errorf("got %v, want %v: %s", ans.Class, c.class, ans.Message)
			}
		})
	}
}

// TestOrderAndCaptureTogether is a gateway whose order is complete before the money is: the status and the detail decide together.
func TestOrderAndCaptureTogether(t *testing.T) {
	for body, want := range map[string]gateway.Answer{
		`{"status":"COMPLETED","captures":[{"status":"COMPLETED"}]}`: {Class: gateway.Final, Status: payment.Succeeded, Detail: "completed", GatewayStatus: "COMPLETED/COMPLETED"},
		`{"status":"COMPLETED","captures":[{"status":"PENDING"}]}`:   {Class: gateway.Pending, Status: payment.Pending, Detail: "in_review", GatewayStatus: "COMPLETED/PENDING"},
		`{"status":"COMPLETED","captures":[{"status":"NEW"}]}`:       {Class: gateway.UnknownStatus, Status: payment.Pending, GatewayStatus: "COMPLETED"},
		`{"status":"COMPLETED","captures":[]}`:                       {Class: gateway.UnknownStatus, Status: payment.Pending, GatewayStatus: "COMPLETED"},
		`{"status":"APPROVED"}`:                                      {Class: gateway.Pending, Status: payment.Pending, Detail: "requires_action", GatewayStatus: "APPROVED"},
	} {
		cfg := config(replying(t, 200, body))
		cfg.Pointers = httpjson.Pointers{Status: "/status", Detail: "/captures/0/status"}
		cfg.Mode, cfg.ErrorCodes = "", nil
		cfg.Statuses = map[string]string{"COMPLETED/COMPLETED": "succeeded", "COMPLETED/PENDING": "pending/in_review", "APPROVED": "pending/requires_action"}
		ans := poll(t, adapter(t, cfg), query)
		if ans.Class != want.Class || ans.Status != want.Status || ans.Detail != want.Detail || ans.GatewayStatus != want.GatewayStatus {
			t.Errorf("%s: %+v", body, ans)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		body   string
		header string
		want   time.Duration
		said   string
	}{
		{"with 429", 429, "", "120", 2 * time.Minute, ""},
		{"with 503", 503, "", "120", 2 * time.Minute, ""},
		{"with a pending payment", 200, with("paid -> processing"), "120", 2 * time.Minute, ""},
		{"with a final payment", 200, good, "120", 0, ""},
		{"absurd", 429, "", "99999999", time.Hour, "longer wait than max_retry_after, 1h0m0s"},
		{"absurd with a pending payment", 200, with("paid -> processing"), "99999999", time.Hour, "longer wait"},
		{"in the body", 429, `{"error":{"retry_after":1.5}}`, "", 1500 * time.Millisecond, ""},
		{"in the body as text", 429, `{"error":{"retry_after":"30"}}`, "", 30 * time.Second, ""},
		{"longer in the body", 429, `{"error":{"retry_after":30}}`, "20", 30 * time.Second, ""},
		{"longer in the header", 429, `{"error":{"retry_after":30}}`, "40", 40 * time.Second, ""},
		{"absurd in the body", 429, `{"error":{"retry_after":1e300}}`, "", time.Hour, "longer wait"},
		{"negative in the body", 429, `{"error":{"retry_after":-1e300}}`, "", 0, ""},
		{"nonsense in the body", 429, `{"error":{"retry_after":"soon"}}`, "", 0, ""},
		{"no number in the body", 429, `{"error":{"retry_after":[1]}}`, "", 0, ""},
		{"with a long message", 429, `{"error":{"code":"x","message":"` + strings.Repeat("é ", 300) + `"}}`, "99999999", time.Hour, "longer wait than max_retry_after, 1h0m0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var header []string
			if c.header != "" {
				header = []string{"Retry-After", c.header}
			}
			ans := poll(t, adapter(t, config(replying(t, c.status, c.body, header...))), query)
			if ans.RetryAfter != c.want || !strings.Contains(ans.Message, c.said) {
				t.Errorf("got %v, %q; want %v, %q", ans.RetryAfter, ans.Message, c.want, c.said)
			}
		})
	}
}

// TestQuestion: what is sent.
func TestQuestion(t *testing.T) {
	type seen struct {
		method, uri, body string
		header            http.Header
	}
	var last seen
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		last = seen{r.Method, r.RequestURI, string(b), r.Header}
		w.WriteHeader(500)
	})
	odd := gateway.Query{Reference: `a/b?c#d%e&f=g+h i"j\k;l..é`, MerchantRef: "ö 1", Account: "tr.1"}
	const oddPath = "a%2Fb%3Fc%23d%25e%26f%3Dg%2Bh%20i%22j%5Ck%3Bl..%C3%A9"
	for name, c := range map[string]struct {
		change func(*httpjson.Config)
		q      gateway.Query
		want   seen
	}{
		"a plain GET": {func(*httpjson.Config) {}, query, seen{"GET", "/v1/payments/pay_1", "", http.Header{
			"Authorization": {"Bearer " + marked}, "Accept": {"application/json"}, "User-Agent": {"pollux"}, "Accept-Encoding": {"identity"},
		}}},
		"ids that want to be more": {func(c *httpjson.Config) {
			c.URL = base + "/v1/{account}/payments/{reference}?order={merchant_reference}&v=2"
		}, odd, seen{"GET", "/v1/tr.1/payments/" + oddPath + "?order=%C3%B6%201&v=2", "", nil}},
		"a JSON body": {func(c *httpjson.Config) {
			c.URL, c.Method, c.Body = base+"/query", "POST", `{"locale":"en","id":"{reference}","x":{"y":["{merchant_reference}"]}}`
		}, odd, seen{"POST", "/query", `{"locale":"en","id":"a/b?c#d%e&f=g+h i\"j\\k;l..é","x":{"y":["ö 1"]}}`, http.Header{"Content-Type": {"application/json"}}}},
		"a form": {func(c *httpjson.Config) {
			c.URL, c.Method, c.BodyType, c.Body = base+"/query", "POST", "form", "id={reference}&order={merchant_reference}"
		}, odd, seen{"POST", "/query", "id=" + oddPath + "&order=%C3%B6%201", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}}},
		"headers": {func(c *httpjson.Config) {
			c.Headers = map[string]string{"acme-version": "2026-01-01", "Acme-Account": "{account}", "Accept": "application/vnd.acme+json"}
			c.SecretHeaders = map[string]secret.Secret{"X-Client-Secret": secret.New("s2")}
			c.UserAgent = "shop/1"
		}, odd, seen{"GET", "/v1/payments/" + oddPath, "", http.Header{
			"Acme-Version": {"2026-01-01"}, "Acme-Account": {"tr.1"}, "Accept": {"application/vnd.acme+json"}, "X-Client-Secret": {"s2"}, "User-Agent": {"shop/1"},
			"Authorization": {"Bearer " + marked},
		}}},
		"a key in a header": {func(c *httpjson.Config) {
			c.Auth = httpjson.Auth{Kind: "header", Header: "X-API-Key", Prefix: "Token ", Credentials: c.Auth.Credentials}
		}, query, seen{"GET", "/v1/payments/pay_1", "", http.Header{"X-Api-Key": {"Token " + marked}, "Authorization": nil}}},
		"user and password": {func(c *httpjson.Config) {
			c.Auth = httpjson.Auth{Kind: "basic", Credentials: httpjson.Credentials{User: "user", Password: secret.New("pass")}}
		}, query, seen{"GET", "/v1/payments/pay_1", "", http.Header{"Authorization": {"Basic dXNlcjpwYXNz"}}}},
		"a token for a user": {func(c *httpjson.Config) {
			c.Auth = httpjson.Auth{Kind: "basic", Credentials: httpjson.Credentials{Token: secret.New("sk_1")}}
		}, query, seen{"GET", "/v1/payments/pay_1", "", http.Header{"Authorization": {"Basic c2tfMTo="}}}},
		"no authorisation": {func(c *httpjson.Config) { c.Auth = httpjson.Auth{} }, query, seen{"GET", "/v1/payments/pay_1", "", http.Header{"Authorization": nil}}},
		"gzip":             {func(c *httpjson.Config) { c.Gzip = true }, query, seen{"GET", "/v1/payments/pay_1", "", http.Header{"Accept-Encoding": {"gzip"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(base)
			c.change(&cfg)
			last = seen{}
			if ans := poll(t, adapter(t, cfg), c.q); ans.HTTPStatus != 500 {
				t.Fatalf("it was not asked: %+v", ans)
			}
			if last.method != c.want.method || last.uri != c.want.uri || last.body != c.want.body {
				t.Errorf("asked %s %s %s\nwant %s %s %s", last.method, last.uri, last.body, c.want.method, c.want.uri, c.want.body)
			}
			for name, want := range c.want.header {
				if got := last.header[name]; fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if len(last.header.Values("Idempotency-Key")) > 0 {
				t.Error("an idempotency key was sent")
			}
		})
	}
}

func TestPaymentsThatCannotBeAskedFor(t *testing.T) {
	base := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("it was asked") })
	cfg := config(base)
	cfg.URL = base + "/v1/{account}/{reference}?o={merchant_reference}"
	cfg.Headers = map[string]string{"X-Order": "{merchant_reference}"}
	a := adapter(t, cfg)
	fine := gateway.Query{Reference: "r", Account: "a", MerchantRef: "m"}
	for _, bad := range []string{
		"", ".", "..", "../x", "x/../y", "x/..", `x\..\y`, "%2e%2e", "%2E.", "x%2f..%2fy", "%252e%252e", "..;a=b/x", "./x", "a\x00b", "a\nb", "a\x7f", "a\u0085b", "a\xff", strings.Repeat("x", 513),
	} {
		for _, q := range []gateway.Query{{Reference: bad, Account: "a", MerchantRef: "m"}, {Reference: "r", Account: bad, MerchantRef: "m"}, {Reference: "r", Account: "a", MerchantRef: bad}} {
			if ans := poll(t, a, q); ans.Class != gateway.Mismatch || ans.HTTPStatus != 0 {
				t.Errorf("%+v: %+v", q, ans)
			}
		}
	}
	fine.MerchantRef = "ö"
	if ans := poll(t, a, fine); ans.Class != gateway.Mismatch || !strings.Contains(ans.Message, "X-Order") {
		t.Errorf("a header that is not ASCII: %+v", ans)
	}
}

func TestAccounts(t *testing.T) {
	var auth string
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		auth = r.Header.Get("Authorization")
		w.WriteHeader(500)
		io.WriteString(w, auth) // echoed
	})
	cfg := config(base)
	cfg.Accounts = map[string]httpjson.Credentials{"tr": {Token: secret.New("key-of-tr")}, "de": {Token: secret.New("key-of-de")}}
	a := adapter(t, cfg)
	ask := func(account string) gateway.Answer {
		auth = ""
		q := query
		q.Account = account
		ans := poll(t, a, q)
		for _, s := range []string{"key-of-tr", "key-of-de"} {
			if strings.Contains(ans.Message, s) {
				t.Errorf("%s: %s", account, ans.Message)
			}
		}
		return ans
	}
	for account, want := range map[string]string{"": marked, "tr": "key-of-tr", "de": "key-of-de"} {
		if ask(account); auth != "Bearer "+want {
			t.Errorf("account %q asked with %q", account, auth)
		}
	}
	if ans := ask("fr"); ans.Class != gateway.Unauthorized || auth != "" || !strings.Contains(ans.Message, `"fr"`) {
		t.Errorf("an account without credentials: %+v, asked with %q", ans, auth)
	}
	cfg.Auth.Token = secret.Secret{}
	a = adapter(t, cfg)
	if ans := ask(""); ans.Class != gateway.Unauthorized || auth != "" {
		t.Errorf("the default account without credentials: %+v, asked with %q", ans, auth)
	}
	a = adapter(t, config(base))
	if ask("any"); auth != "Bearer "+marked {
		t.Errorf("where no account has credentials of its own: %q", auth)
	}
}

func TestSignature(t *testing.T) {
	var got *http.Request
	var body []byte
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(500)
	})
	host := strings.TrimPrefix(base, "http://")
	hexKey := hex.EncodeToString([]byte(marked))
	for name, c := range map[string]struct {
		hmac   httpjson.HMAC
		key    string
		hash   func() hash.Hash
		base64 bool
		signed func() string
	}{
		"everything": {httpjson.HMAC{Sign: "{method}\n{host}\n{path}\n{query}\n{target}\n{body}\n{body_sha256}\n{timestamp}\n{nonce}\n{key_id}\n{account}\n{reference}\n{merchant_reference}"}, marked, sha256.New, false, func() string {
			sum := sha256.Sum256(body)
			return strings.Join([]string{"POST", host, "/q/pay%2F1", "x=order-7", "/q/pay%2F1?x=order-7", `{"id":"pay/1"}`, hex.EncodeToString(sum[:]), got.Header.Get("X-Time"), got.Header.Get("X-Nonce"), "k1", "acc", "pay/1", "order-7"}, "\n")
		}},
		"base64 with another hash": {httpjson.HMAC{Sign: "{timestamp}.{body}", Hash: "sha512", Encoding: "base64", Timestamp: "unix_ms"}, marked, sha512.New, true, func() string {
			return got.Header.Get("X-Time") + "." + string(body)
		}},
		"a key in hex":    {httpjson.HMAC{Sign: "{timestamp}", KeyEncoding: "hex", Timestamp: "rfc3339"}, hexKey, sha256.New, false, func() string { return got.Header.Get("X-Time") }},
		"a key in base64": {httpjson.HMAC{Sign: "{nonce}", KeyEncoding: "base64"}, base64.StdEncoding.EncodeToString([]byte(marked)), sha256.New, false, func() string { return got.Header.Get("X-Nonce") }},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(base)
			cfg.URL, cfg.Method, cfg.Body = base+"/q/{reference}?x={merchant_reference}", "POST", `{"id":"{reference}"}`
			c.hmac.Headers = map[string]string{"x-signature": "v1={signature}", "X-Time": "{timestamp}", "X-Nonce": "{nonce}", "X-Key": "{key_id}", "X-Digest": "SHA-256={body_sha256}"}
			cfg.Auth = httpjson.Auth{Kind: "hmac", HMAC: c.hmac, Credentials: httpjson.Credentials{KeyID: "k1", Key: secret.New(c.key)}}
			a := adapter(t, cfg)
			before := time.Now().Truncate(time.Second)
			nonces := map[string]bool{}
			for range 3 {
				poll(t, a, gateway.Query{Reference: "pay/1", MerchantRef: "order-7", Account: "acc"})
				mac := hmac.New(c.hash, []byte(marked))
				mac.Write([]byte(c.signed()))
				want := hex.EncodeToString(mac.Sum(nil))
				if c.base64 {
					want = base64.StdEncoding.EncodeToString(mac.Sum(nil))
				}
				if sig := got.Header.Get("X-Signature"); sig != "v1="+want {
					t.Errorf("the signature is %s, want %s over %q", sig, want, c.signed())
				}
				nonces[got.Header.Get("X-Nonce")] = true
				at := stamp(t, got.Header.Get("X-Time"))
				if at.Before(before) || at.After(time.Now()) {
					t.Errorf("the time is %v", at)
				}
				if got.Header.Get("X-Key") != "k1" || !strings.HasPrefix(got.Header.Get("X-Digest"), "SHA-256=") {
					t.Errorf("the headers are %v", got.Header)
				}
			}
			if len(nonces) != 3 {
				t.Errorf("nonces came twice: %v", nonces)
			}
		})
	}
}

func stamp(t *testing.T, s string) time.Time {
	t.Helper()
	if at, err := time.Parse(time.RFC3339, s); err == nil {
		return at
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if n > 1e11 {
		return time.UnixMilli(n)
	}
	return time.Unix(n, 0)
}

func TestTraceContextIsSentOn(t *testing.T) {
	var got []string
	base := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header["Traceparent"] })
	const own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	a := adapter(t, config(base))
	for parent, want := range map[string]string{
		own: own, "": "", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": "", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": "",
		"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01": "", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": "",
		own + "-x": "", own[:54]: "", "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": "", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x": "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331\r\nX: y": "",
	} {
		q := query
		q.TraceParent = parent
		poll(t, a, q)
		if strings.Join(got, ",") != want {
			t.Errorf("%q is sent on as %q, want %q", parent, got, want)
		}
	}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	q := query
	q.TraceParent = own
	a.Poll(trace.ContextWithSpanContext(context.Background(), span), q)
	if want := "00-01000000000000000000000000000000-0200000000000000-01"; strings.Join(got, ",") != want {
		t.Errorf("a span is sent on as %q, want %q", got, want)
	}
	cfg := config(base)
	cfg.PropagateTrace = new(false)
	adapter(t, cfg).Poll(trace.ContextWithSpanContext(context.Background(), span), q)
	if got != nil {
		t.Errorf("sent on although it is off: %q", got)
	}
}

func TestGatewayThatIsNotReached(t *testing.T) {
	base := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("it was reached") })
	cfg := config(strings.Replace(base, "127.0.0.1", "localhost", 1))
	cfg.AllowLoopback = false
	if ans := poll(t, adapter(t, cfg), query); ans.Class != gateway.Transport || !strings.Contains(ans.Message, "allow_loopback") {
		t.Errorf("a refused address: %+v", ans)
	}
}

func TestMerchantReference(t *testing.T) {
	cfg := config(replying(t, 200, with(`"live" -> "order":"order-8","live"`)))
	cfg.Pointers.MerchantReference = "/order"
	a := adapter(t, cfg)
	if ans := poll(t, a, query); ans.Class != gateway.Mismatch || !strings.Contains(ans.Message, `merchant reference: the gateway says "order-8", expected "order-7"`) {
		t.Errorf("another order: %+v", ans)
	}
	q := query
	q.MerchantRef = "order-8"
	if ans := poll(t, a, q); ans.Class != gateway.Final {
		t.Errorf("the same order: %+v", ans)
	}
	q.MerchantRef = ""
	if ans := poll(t, a, q); ans.Class != gateway.Final {
		t.Errorf("no order to compare with: %+v", ans)
	}
}

// TestSecretsAreNowhere prints everything that could be printed.
func TestSecretsAreNowhere(t *testing.T) {
	cfg := config("http://127.0.0.1:1")
	cfg.Accounts = map[string]httpjson.Credentials{"a": {User: "u", Token: secret.New(marked), Password: secret.New(marked), Key: secret.New(marked)}}
	cfg.SecretHeaders = map[string]secret.Secret{"X-Secret": secret.New(marked)}
	cfg.ProxyPassword = secret.New(marked)
	a := adapter(t, cfg)
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		fmt.Fprintf(&out, verb, cfg)
		fmt.Fprintf(&out, verb, []any{&cfg, cfg.Auth, cfg.Accounts})
	}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("config", "config", cfg, "auth", cfg.Auth)
	slog.New(slog.NewTextHandler(&out, nil)).Info("config", "config", cfg, "answer", a.Poll(context.Background(), query))
	cfg.URL, cfg.Auth.Kind, cfg.Auth.Token = "::", "nonsense", secret.New(marked+"\n")
	_, err := httpjson.New(cfg)
	fmt.Fprintf(&out, "%v %+v %#v", err, err, err)
	if strings.Contains(out.String(), marked) {
		t.Errorf("a secret is shown: %s", out.String())
	}
}

func BenchmarkPoll(b *testing.B) {
	body := []byte(good)
	base := serve(b, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = []string{"application/json"}
		w.Write(body)
	})
	a := adapter(b, config(base))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if ans := a.Poll(context.Background(), query); ans.Class != gateway.Final {
				b.Fatal(ans)
			}
		}
	})
}
