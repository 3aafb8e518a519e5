package paypal

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
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

const marked = "marked-secret-5b1c9e0d7f"

func ask(reference string) gateway.Query {
	return gateway.Query{Payment: 1, Reference: reference, MerchantRef: "order-7", AmountMinor: 1000, Currency: "EUR"}
}

func config(base, resource string, timeout time.Duration) Config {
	return Config{
		Credentials: Credentials{ClientID: "app", ClientSecret: secret.New(marked)}, Resource: resource,
		Config: vendor.Config{Name: "paypal", BaseURL: base, Config: httpclient.Config{Timeout: timeout, AllowHTTP: true, AllowLoopback: true}},
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

// granted gives an account a token, so that the next thing it asks is about a payment.
func granted(t testing.TB, a *Adapter, account, text string) {
	t.Helper()
	acct, _, missing := a.accounts.Of(account)
	if missing {
		t.Fatalf("no account %q", account)
	}
	acct.tokens.keep(acct.token(&grant{text: text, lasts: time.Hour}), gateway.Answer{})
}

const (
	capture  = `{"id":"2GG27","status":"COMPLETED","status_details":null,"amount":{"currency_code":"EUR","value":"10.00"},"final_capture":true}`
	complete = `{"id":"5O190","status":"COMPLETED","intent":"CAPTURE","purchase_units":[{"reference_id":"default","amount":{"currency_code":"EUR","value":"10.00"},` +
		`"payments":{"captures":[` + capture + `]}}]}`
	authorization = `{"id":"0VF52","status":"CREATED","status_details":null,"amount":{"currency_code":"EUR","value":"10.00"}}`
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

func answer(status int, body string) gatewaytest.Reply {
	return gatewaytest.Reply{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

func failure(name, issue string) string {
	return fmt.Sprintf(`{"name":%q,"message":"It did not work.","debug_id":"d1","details":[{"issue":%q,"description":"x"}]}`, name, issue)
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

// harness is what holds of all resources.
func harness(resource, reference string) gatewaytest.Harness {
	return gatewaytest.Harness{
		New: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
			a := adapter(t, config(base, resource, timeout))
			granted(t, a, "", marked)
			return a
		},
		Accounts: func(t testing.TB, base string, timeout time.Duration) gatewaytest.Gateway {
			c := config(base, resource, timeout)
			c.Credentials = Credentials{}
			c.Accounts = map[string]Credentials{
				"eu": {ClientID: "app-eu", ClientSecret: secret.New(marked + "-eu")}, "us": {ClientID: "app-us", ClientSecret: secret.New(marked + "-us")},
			}
			a := adapter(t, c)
			granted(t, a, "eu", marked+"-eu")
			granted(t, a, "us", marked+"-us")
			return a
		},
		Query: ask(reference), Secret: marked,
	}
}

func TestOrders(t *testing.T) {
	as := func(change string) gatewaytest.Reply { return answer(200, replaced(complete, change)) }
	of := func(status string) gatewaytest.Reply {
		return answer(200, replaced(complete, `"COMPLETED","intent" -> "`+status+`","intent" ; ,"payments":{"captures":[`+capture+`]} -> `))
	}
	captured := func(status, details string) gatewaytest.Reply {
		return as(`"id":"2GG27","status":"COMPLETED","status_details":null -> "id":"2GG27","status":"` + status + `","status_details":` + details)
	}
	with := func(captures, authorizations string) gatewaytest.Reply {
		return as(`"captures":[` + capture + `] -> "captures":[` + captures + `],"authorizations":[` + authorizations + `]`)
	}
	half := replaced(capture, "10.00 -> 5.00")
	h := harness("order", "5O190")
	h.Replies = map[gatewaytest.Scene]gatewaytest.Reply{
		gatewaytest.Pending:       of("APPROVED"),
		gatewaytest.Succeeded:     answer(200, complete),
		gatewaytest.Failed:        captured("DECLINED", "null"),
		gatewaytest.Cancelled:     of("VOIDED"),
		gatewaytest.UnknownStatus: of("SETTLING_V2"),
		gatewaytest.OtherID:       as("5O190 -> 5O191"),
		gatewaytest.OtherAmount:   as(`"captures":[` + capture + ` -> "captures":[` + replaced(capture, "10.00 -> 1.00")),
		gatewaytest.OtherCurrency: as(`"captures":[` + capture + ` -> "captures":[` + replaced(capture, "EUR -> USD")),
		gatewaytest.NotFound:      answer(404, failure("RESOURCE_NOT_FOUND", "INVALID_RESOURCE_ID")),
		gatewaytest.Unauthorized:  answer(401, failure("AUTHENTICATION_FAILURE", "")),
		gatewaytest.RateLimited:   answer(429, failure("RATE_LIMIT_REACHED", "")),
	}
	h.Words = map[string]gatewaytest.Word{
		"CREATED":                         waiting("requires_action", of("CREATED")),
		"SAVED":                           waiting("requires_action", of("SAVED")),
		"PAYER_ACTION_REQUIRED":           waiting("requires_action", of("PAYER_ACTION_REQUIRED")),
		"APPROVED is not paid":            waiting("requires_action", of("APPROVED")),
		"VOIDED":                          final(payment.Cancelled, "voided", of("VOIDED")),
		"completed and captured":          final(payment.Succeeded, "succeeded", answer(200, complete)),
		"completed, an e-check under way": waiting("echeck", captured("PENDING", `{"reason":"ECHECK"}`)),
		"completed, in review":            waiting("in_review", captured("PENDING", `{"reason":"PENDING_REVIEW"}`)),
		"completed, and nobody says why":  waiting("processing", captured("PENDING", `null`)),
		"completed, declined":             final(payment.Failed, "failed", captured("DECLINED", "null")),
		"completed, failed":               final(payment.Failed, "failed", captured("FAILED", "null")),
		"completed, refunded":             final(payment.Succeeded, "refunded", captured("REFUNDED", "null")),
		"completed, refunded in part":     final(payment.Succeeded, "partially_refunded", captured("PARTIALLY_REFUNDED", "null")),
		"completed, capture unknown":      word(gateway.UnknownStatus, captured("SETTLING_V2", "null")),
		"completed without a capture":     word(gateway.Malformed, with("", "")),
		"completed without units":         word(gateway.Malformed, answer(200, `{"id":"5O190","status":"COMPLETED"}`)),
		"two captures that make it":       final(payment.Succeeded, "succeeded", with(half+","+half, "")),
		"two captures of all of it":       word(gateway.Mismatch, with(capture+","+capture, "")),
		"one capture of a half":           word(gateway.Mismatch, with(half, "")),
		"a half, and more may come":       waiting("authorized", with(half, replaced(authorization, "CREATED -> PARTIALLY_CAPTURED"))),
		"a half, and one under way":       waiting("processing", with(half+","+replaced(half, "COMPLETED -> PENDING"), "")),
		"declined, then captured":         final(payment.Succeeded, "succeeded", with(replaced(capture, "COMPLETED -> DECLINED")+","+capture, replaced(authorization, "CREATED -> CAPTURED"))),
		"authorized":                      waiting("authorized", with("", authorization)),
		"authorization voided":            final(payment.Cancelled, "voided", with("", replaced(authorization, "CREATED -> VOIDED"))),
		"authorization denied":            final(payment.Failed, "failed", with("", replaced(authorization, "CREATED -> DENIED"))),
		"authorization unknown":           word(gateway.UnknownStatus, with("", replaced(authorization, "CREATED -> NEW"))),
		"capture without an amount":       word(gateway.Malformed, with(replaced(capture, `"value":"10.00" -> "value":null`), "")),
		"order of another amount":         word(gateway.Mismatch, answer(200, replaced(of("CREATED").Body, "10.00 -> 9.00"))),
		"403":                             word(gateway.Unauthorized, answer(403, failure("NOT_AUTHORIZED", "PERMISSION_DENIED"))),
		"404 from something before it":    word(gateway.Transport, answer(404, "<html>")),
		"422":                             word(gateway.Transport, answer(422, failure("UNPROCESSABLE_ENTITY", "ORDER_NOT_APPROVED"))),
		"500":                             word(gateway.Transport, answer(500, failure("INTERNAL_SERVER_ERROR", ""))),
	}
	gatewaytest.Run(t, h)
}

// table polls once for each body.
func table(t *testing.T, resource, reference string, words map[string]gatewaytest.Word) {
	for name, w := range words {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "application/json")
				rw.WriteHeader(w.Reply.Status)
				fmt.Fprint(rw, w.Body)
			}))
			defer s.Close()
			a := adapter(t, config(s.URL, resource, 10*time.Second))
			granted(t, a, "", marked)
			ans := a.Poll(context.Background(), ask(reference))
			gatewaytest.Check(t, ans, marked)
			want := w.Status
			if want == "" {
				want = payment.Pending
			}
			if ans.Class != w.Class || ans.Status != want || w.Detail != "" && ans.Detail != w.Detail {
				t.Errorf("got %+v, want %v %s %q", ans, w.Class, want, w.Detail)
			}
		})
	}
}

func TestCaptures(t *testing.T) {
	as := func(change string) gatewaytest.Reply { return answer(200, replaced(capture, change)) }
	table(t, "capture", "2GG27", map[string]gatewaytest.Word{
		"COMPLETED":          final(payment.Succeeded, "succeeded", answer(200, capture)),
		"PENDING":            waiting("in_review", as(`COMPLETED","status_details":null -> PENDING","status_details":{"reason":"PENDING_REVIEW"}`)),
		"DECLINED":           final(payment.Failed, "failed", as("COMPLETED -> DECLINED")),
		"FAILED":             final(payment.Failed, "failed", as("COMPLETED -> FAILED")),
		"REFUNDED":           final(payment.Succeeded, "refunded", as("COMPLETED -> REFUNDED")),
		"PARTIALLY_REFUNDED": final(payment.Succeeded, "partially_refunded", as("COMPLETED -> PARTIALLY_REFUNDED")),
		"unknown":            word(gateway.UnknownStatus, as("COMPLETED -> NEW")),
		"other id":           word(gateway.Mismatch, as("2GG27 -> 2GG28")),
		"other amount":       word(gateway.Mismatch, as("10.00 -> 10.01")),
		"other currency":     word(gateway.Mismatch, as("EUR -> USD")),
		"amount in cents":    word(gateway.Mismatch, as("10.00 -> 1000")),
		"no status":          word(gateway.Malformed, as(`"COMPLETED" -> 7`)),
	})
}

func TestAuthorizations(t *testing.T) {
	as := func(change string) gatewaytest.Reply { return answer(200, replaced(authorization, change)) }
	table(t, "authorization", "0VF52", map[string]gatewaytest.Word{
		"CREATED":            waiting("authorized", answer(200, authorization)),
		"PENDING":            waiting("processing", as("CREATED -> PENDING")),
		"PARTIALLY_CAPTURED": waiting("authorized", as("CREATED -> PARTIALLY_CAPTURED")),
		"CAPTURED":           final(payment.Succeeded, "succeeded", as("CREATED -> CAPTURED")),
		"DENIED":             final(payment.Failed, "failed", as("CREATED -> DENIED")),
		"VOIDED":             final(payment.Cancelled, "voided", as("CREATED -> VOIDED")),
		"EXPIRED":            final(payment.Expired, "expired", as("CREATED -> EXPIRED")),
		"unknown":            word(gateway.UnknownStatus, as("CREATED -> NEW")),
		"other amount":       word(gateway.Mismatch, as("10.00 -> 1.00 ; CREATED -> CAPTURED")),
	})
}

// paypal is a PayPal that gives out tokens and takes only the last one.
type paypal struct {
	*httptest.Server
	grants, polls atomic.Int64
	mu            sync.Mutex
	valid         string
	answer        func(w http.ResponseWriter, r *http.Request) // to a request for a token; nil gives one
}

func newPayPal(t *testing.T) *paypal {
	p := &paypal{}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *paypal) revoke() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.valid = ""
}

func (p *paypal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.URL.Path == "/v1/oauth2/token" {
		p.grants.Add(1)
		user, password, _ := r.BasicAuth()
		if p.answer != nil {
			p.answer(w, r)
			return
		}
		if r.Method != "POST" || user != "app" || password != marked || r.FormValue("grant_type") != "client_credentials" {
			w.WriteHeader(401)
			return
		}
		p.valid = fmt.Sprintf("token-%d", p.grants.Load())
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":32400,"scope":"x"}`, p.valid)
		return
	}
	p.polls.Add(1)
	if p.valid == "" || r.Header.Get("Authorization") != "Bearer "+p.valid {
		w.WriteHeader(401)
		fmt.Fprint(w, failure("AUTHENTICATION_FAILURE", ""))
		return
	}
	fmt.Fprint(w, complete)
}

func pollMany(t *testing.T, a *Adapter, n int, want gateway.Class) {
	t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			ans := a.Poll(context.Background(), ask("5O190"))
			gatewaytest.Check(t, ans, marked)
			if ans.Class != want {
				t.Errorf("got %+v", ans)
			}
		})
	}
	wg.Wait()
}

func TestATokenIsFetchedOnceForManyPolls(t *testing.T) {
	p := newPayPal(t)
	a := adapter(t, config(p.URL, "order", 20*time.Second))
	pollMany(t, a, 50, gateway.Final)
	if p.grants.Load() != 1 || p.polls.Load() != 50 {
		t.Fatalf("%d tokens for %d polls", p.grants.Load(), p.polls.Load())
	}
	p.revoke() // every poll under way is refused, and one of them fetches another
	pollMany(t, a, 50, gateway.Final)
	if p.grants.Load() != 2 {
		t.Errorf("%d tokens, one more was needed", p.grants.Load()-1)
	}
}

func TestATokenThatIsRefusedAtOnceIsNotFetchedForEver(t *testing.T) {
	p := newPayPal(t)
	p.answer = func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"access_token":"no-good","token_type":"Bearer","expires_in":32400}`)
	}
	ans := adapter(t, config(p.URL, "order", 20*time.Second)).Poll(context.Background(), ask("5O190"))
	if ans.Class != gateway.Unauthorized || p.grants.Load() != 2 || p.polls.Load() != 2 {
		t.Errorf("%d tokens, %d polls: %+v", p.grants.Load(), p.polls.Load(), ans)
	}
}

// TestATokenThatDoesNotCome takes no poll longer than its timeout, and the polls that waited for it pay nothing.
func TestATokenThatDoesNotCome(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer s.Close()
	a := adapter(t, config(s.URL, "order", 200*time.Millisecond))
	var transport, local atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			ans := a.Poll(context.Background(), ask("5O190"))
			gatewaytest.Check(t, ans, marked)
			switch ans.Class {
			case gateway.Transport:
				transport.Add(1)
			case gateway.Local:
				local.Add(1)
			default:
				t.Errorf("got %+v", ans)
			}
		})
	}
	wg.Wait()
	if transport.Load() == 0 || transport.Load()+local.Load() != 8 {
		t.Errorf("%d calls failed, %d gave up", transport.Load(), local.Load())
	}
}

// TestNoToken: what PayPal may say instead of a token, and what a poll makes of it.
func TestNoToken(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   gateway.Class
		said   string
	}{
		"a wrong secret":          {401, `{"error":"invalid_client","error_description":"Client Authentication failed"}`, gateway.Unauthorized, `the access token: HTTP 401 error "invalid_client"`},
		"an unknown app":          {400, `{"error":"invalid_client"}`, gateway.Unauthorized, "invalid_client"},
		"another mistake":         {400, `{"error":"unsupported_grant_type"}`, gateway.Transport, "unsupported_grant_type"},
		"too many":                {429, `{"name":"RATE_LIMIT_REACHED","message":"Too many requests"}`, gateway.RateLimited, "RATE_LIMIT_REACHED"},
		"down":                    {503, `<html>`, gateway.Transport, "the access token: HTTP 503"},
		"a page":                  {200, `<html>`, gateway.Malformed, "the body is refused"},
		"nothing":                 {200, `{}`, gateway.Malformed, "no access token"},
		"an empty one":            {200, `{"access_token":"","token_type":"Bearer"}`, gateway.Malformed, "no access token"},
		"one of two lines":        {200, `{"access_token":"a\nX: y","token_type":"Bearer"}`, gateway.Malformed, "no access token"},
		"one of another kind":     {200, `{"access_token":"a","token_type":"MAC"}`, gateway.Malformed, "not a bearer"},
		"one that is over":        {200, `{"access_token":"a","token_type":"Bearer","expires_in":0}`, gateway.Malformed, "over already"},
		"one that lasts nonsense": {200, `{"access_token":"a","token_type":"Bearer","expires_in":"soon"}`, gateway.Malformed, "no number"},
		"twice":                   {200, `{"access_token":"a","access_token":"b","token_type":"Bearer"}`, gateway.Malformed, "a key twice"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPayPal(t)
			p.answer = func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
			}
			ans := adapter(t, config(p.URL, "order", 20*time.Second)).Poll(context.Background(), ask("5O190"))
			gatewaytest.Check(t, ans, marked)
			if ans.Class != c.want || !strings.Contains(ans.Message, c.said) || ans.HTTPStatus != c.status || p.polls.Load() != 0 {
				t.Errorf("got %+v", ans)
			}
		})
	}
}

func TestWhatCannotBeAsked(t *testing.T) {
	p := newPayPal(t)
	a := adapter(t, config(p.URL, "order", 10*time.Second))
	for _, reference := range []string{"", "order-7", "5o190", "..", "5O190/capture", "5O190?x", strings.Repeat("A", 600), "\x00"} {
		if ans := a.Poll(context.Background(), ask(reference)); ans.Class != gateway.Mismatch || ans.HTTPStatus != 0 || ans.Message == "" {
			t.Errorf("%q: %+v", reference, ans)
		}
	}
	if p.grants.Load()+p.polls.Load() != 0 {
		t.Error("it was asked")
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no secret":        {func(c *Config) { c.ClientSecret = secret.Secret{} }, "client_secret: missing"},
		"no id":            {func(c *Config) { c.ClientID = "" }, "client_id: missing"},
		"another resource": {func(c *Config) { c.Resource = "invoice" }, `resource: "invoice" is not known; order, capture or authorization`},
		"a bad account":    {func(c *Config) { c.Accounts = map[string]Credentials{"eu": {ClientID: "a"}} }, "accounts.eu.client_secret: missing"},
	} {
		cfg := config("http://127.0.0.1:1", "order", 10*time.Second)
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if c := (Config{Config: vendor.Config{Mode: "test"}}).WithDefaults(); c.BaseURL != TestBaseURL {
		t.Errorf("in test mode it asks %s", c.BaseURL)
	}
	if c := (Config{}).Capabilities(); c.Polling != gateway.Sparingly || c.MinInterval != time.Minute {
		t.Errorf("capabilities %+v", c)
	}
}
