// Package gatewaytest is what every adapter must do, whichever gateway it asks: one suite, run over real connections.
package gatewaytest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/payment"
)

// Gateway is what is tested.
type Gateway interface {
	Poll(ctx context.Context, q gateway.Query) gateway.Answer
	Capabilities() gateway.Capabilities
}

// Scene is something that a gateway can say about the payment that it is asked for.
type Scene string

// The scenes. A gateway that cannot say one leaves it out of its harness; Pending, Succeeded and UnknownStatus it must have.
const (
	Pending       Scene = "pending"
	Succeeded     Scene = "succeeded"
	Failed        Scene = "failed"
	Cancelled     Scene = "cancelled"
	Expired       Scene = "expired"
	UnknownStatus Scene = "unknown_status" // a status that nobody has heard of
	OtherID       Scene = "other_id"       // a success, but of another payment
	OtherAmount   Scene = "other_amount"   // a success, but with another amount
	OtherCurrency Scene = "other_currency" // a success, but in another currency
	OtherMode     Scene = "other_mode"     // a success, but in test mode
	NotFound      Scene = "not_found"
	Unauthorized  Scene = "unauthorized"
	RateLimited   Scene = "rate_limited"
	BusinessError Scene = "business_error" // HTTP 200 with an error in it
)

// Reply is an answer of the gateway.
type Reply struct {
	Status int // 200 when it is 0
	Header http.Header
	Body   string
}

// Harness says how to test one adapter.
type Harness struct {
	// New returns the adapter, which asks a gateway at base, an http:// URL on loopback, authorises with Secret, and has timeout for all of
	// a call. Where the gateway's answers have a limit of their size, that is at most 4 MiB.
	New func(t testing.TB, base string, timeout time.Duration) Gateway
	// Query is the question. Its gateway answers with Replies.
	Query gateway.Query
	// Secret is what requests are authorised with. It must appear in nothing that the adapter says.
	Secret string
	// Replies are the vendor's words for each scene.
	Replies map[Scene]Reply
	// Words are all statuses and errors that the vendor documents, by a name for the reader, and what each means.
	Words map[string]Word
	// Accounts returns the adapter like New, with the accounts "eu" and "us", whose secrets are Secret with -eu and -us behind it, and no default one.
	Accounts func(t testing.TB, base string, timeout time.Duration) Gateway
	// Proof reports whether a request, whose body is given, was authorised with a secret. Nil looks for it in the headers, as it is and in base64.
	Proof func(r *http.Request, body []byte, secret string) bool
}

// Word is something that the vendor can say, and what it means.
type Word struct {
	Reply
	Class  gateway.Class
	Status payment.Status // when Class is Final; empty is Pending
	Detail string         // empty is any
}

// patience is the timeout of adapters in tests that do not wait for it.
const patience = 20 * time.Second

// Run tests an adapter.
func Run(t *testing.T, h Harness) {
	for _, s := range []Scene{Pending, Succeeded, UnknownStatus} {
		if _, ok := h.Replies[s]; !ok {
			t.Fatalf("the harness has no reply for %s", s)
		}
	}
	if h.Accounts == nil || len(h.Words) == 0 {
		t.Fatal("the harness has no accounts or no words")
	}
	t.Run("scenes", h.scenes)
	t.Run("words", h.words)
	t.Run("statuses", h.statuses)
	t.Run("bad_bodies", h.badBodies)
	t.Run("keys", h.keys)
	t.Run("cut_bodies", h.cutBodies)
	t.Run("broken_connections", h.brokenConnections)
	t.Run("compressed", h.compressed)
	t.Run("redirects", h.redirects)
	t.Run("slow", h.slow)
	t.Run("cancelled", h.cancelled)
	t.Run("retry_after", h.retryAfter)
	t.Run("echoed_secret", h.echoedSecret)
	t.Run("accounts", h.accounts)
	t.Run("capabilities", h.capabilities)
	t.Run("concurrent", h.concurrent)
}

// classes are what a scene must be read as. For the others any class that ends nothing is right.
var classes = map[Scene]gateway.Answer{
	Pending:       {Class: gateway.Pending, Status: payment.Pending},
	Succeeded:     {Class: gateway.Final, Status: payment.Succeeded},
	Failed:        {Class: gateway.Final, Status: payment.Failed},
	Cancelled:     {Class: gateway.Final, Status: payment.Cancelled},
	Expired:       {Class: gateway.Final, Status: payment.Expired},
	UnknownStatus: {Class: gateway.UnknownStatus, Status: payment.Pending},
	OtherID:       {Class: gateway.Mismatch, Status: payment.Pending},
	OtherAmount:   {Class: gateway.Mismatch, Status: payment.Pending},
	OtherCurrency: {Class: gateway.Mismatch, Status: payment.Pending},
	OtherMode:     {Class: gateway.Mismatch, Status: payment.Pending},
	NotFound:      {Class: gateway.NotFound, Status: payment.Pending},
	Unauthorized:  {Class: gateway.Unauthorized, Status: payment.Pending},
	RateLimited:   {Class: gateway.RateLimited, Status: payment.Pending},
}

func (h Harness) scenes(t *testing.T) {
	for s, r := range h.Replies {
		t.Run(string(s), func(t *testing.T) {
			ans := h.poll(t, h.serve(t, r.write))
			want, ok := classes[s]
			switch {
			case !ok && ans.Class == gateway.Final:
				t.Errorf("it ended the payment: %+v", ans)
			case ok && (ans.Class != want.Class || ans.Status != want.Status):
				t.Errorf("got %v, %s; want %v, %s: %+v", ans.Class, ans.Status, want.Class, want.Status, ans)
			}
			if ans.Took <= 0 {
				t.Error("it does not say how long it took")
			}
			if ans.Class == gateway.UnknownStatus && ans.GatewayStatus == "" {
				t.Error("the unknown status is not kept")
			}
		})
	}
}

// words are what the vendor documents.
func (h Harness) words(t *testing.T) {
	for name, w := range h.Words {
		t.Run(name, func(t *testing.T) {
			ans := h.poll(t, h.serve(t, w.write))
			want := w.Status
			if want == "" {
				want = payment.Pending
			}
			if ans.Class != w.Class || ans.Status != want || w.Detail != "" && ans.Detail != w.Detail {
				t.Errorf("got %v, %s, %q; want %v, %s, %q: %+v", ans.Class, ans.Status, ans.Detail, w.Class, want, w.Detail, ans)
			}
		})
	}
}

// keys takes each key of a success away, writes it in capital letters, and writes it twice. Another case is another key: it must mean what a missing
// one does. A key that is there twice makes the document ambiguous.
func (h Harness) keys(t *testing.T) {
	good := h.Replies[Succeeded]
	var doc map[string]json.RawMessage
	if err := json.Unmarshal([]byte(good.Body), &doc); err != nil {
		t.Fatalf("the success of the harness is no object: %v", err)
	}
	ask := func(body string) gateway.Answer {
		return h.poll(t, h.serve(t, Reply{Header: good.Header, Body: body}.write))
	}
	without := func(key, instead string) string {
		var b strings.Builder
		for name, value := range doc {
			if name != key {
				fmt.Fprintf(&b, "%q:%s,", name, value)
			}
		}
		return "{" + strings.TrimSuffix(b.String()+instead, ",") + "}"
	}
	for key, value := range doc {
		missing, capital := ask(without(key, "")), ask(without(key, fmt.Sprintf("%q:%s", strings.ToUpper(key), value)))
		if missing.Class != capital.Class || missing.Status != capital.Status {
			t.Errorf("%s in capital letters is %v, %s; without it, it is %v, %s", key, capital.Class, capital.Status, missing.Class, missing.Status)
		}
		if twice := ask(without("", fmt.Sprintf("%q:%s", key, value))); twice.Class != gateway.Malformed {
			t.Errorf("%s twice: %+v", key, twice)
		}
	}
}

// accounts asks for two accounts at once, and for one that is not configured.
func (h Harness) accounts(t *testing.T) {
	proof := h.Proof
	if proof == nil {
		proof = carries
	}
	var asked atomic.Int64
	g := h.Accounts(t, h.serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body, _ := io.ReadAll(r.Body)
		eu, us := proof(r, body, h.Secret+"-eu"), proof(r, body, h.Secret+"-us")
		if eu == us {
			t.Errorf("a request is authorised for both accounts, or for none: %s", r.Header)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, `{"eu":%t}`, eu) // what is shown of an error says whose key it was
	}), patience)
	ask := func(account string) gateway.Answer {
		q := h.Query
		q.Account = account
		ans := g.Poll(context.Background(), q)
		Check(t, ans, h.Secret+"-eu", h.Secret+"-us")
		return ans
	}
	var wg sync.WaitGroup
	for i := range 40 {
		account, mark := "eu", `{"eu":true}`
		if i%2 == 1 {
			account, mark = "us", `{"eu":false}`
		}
		wg.Go(func() {
			if ans := ask(account); ans.HTTPStatus != http.StatusServiceUnavailable || !strings.Contains(ans.Message, mark) {
				t.Errorf("for %s: %+v", account, ans)
			}
		})
	}
	wg.Wait()
	before := asked.Load()
	for _, account := range []string{"", "EU", "eu ", "de"} {
		if ans := ask(account); ans.Class != gateway.Unauthorized || ans.HTTPStatus != 0 {
			t.Errorf("for %q, which has no key: %+v", account, ans)
		}
	}
	if asked.Load() != before {
		t.Error("an account without a key was asked for")
	}
}

// carries reports whether a secret stands in the headers.
func carries(r *http.Request, _ []byte, secret string) bool {
	for _, values := range r.Header {
		for _, v := range values {
			_, coded, _ := strings.Cut(v, " ")
			plain, _ := base64.StdEncoding.DecodeString(coded)
			if strings.Contains(v, secret) || strings.Contains(string(plain), secret) {
				return true
			}
		}
	}
	return false
}

// capabilities hold together.
func (h Harness) capabilities(t *testing.T) {
	c := h.New(t, "http://127.0.0.1:1", patience).Capabilities()
	if c.Polling == gateway.Never || (c.Polling == gateway.Sparingly) != (c.MinInterval > 0) || c.MinInterval > 24*time.Hour {
		t.Errorf("got %+v", c)
	}
}

// statuses sends the body of a success with every HTTP status.
func (h Harness) statuses(t *testing.T) {
	var status atomic.Int64
	g := h.New(t, h.serve(t, func(w http.ResponseWriter, r *http.Request) {
		reply := h.Replies[Succeeded]
		reply.Status = int(status.Load())
		reply.write(w, r)
	}), patience)
	for code := 200; code <= 599; code++ {
		status.Store(int64(code))
		ans := h.ask(t, context.Background(), g)
		if ans.HTTPStatus != code {
			t.Errorf("%d is reported as %d", code, ans.HTTPStatus)
		}
		if ans.Class == gateway.Local || code >= 300 && (ans.Class == gateway.Final || ans.Class == gateway.Pending) {
			t.Errorf("%d is read as %v: %+v", code, ans.Class, ans)
		}
		want := map[int]gateway.Class{200: gateway.Final, 429: gateway.RateLimited, 401: gateway.Unauthorized}[code]
		if code >= 500 || code >= 300 && code < 400 {
			want = gateway.Transport
		}
		if want != gateway.Local && ans.Class != want {
			t.Errorf("%d is read as %v, want %v", code, ans.Class, want)
		}
	}
	for code := 100; code <= 199; code++ { // no answers: another one has to follow, and none does
		ans := h.poll(t, listen(t, answering(fmt.Sprintf("HTTP/1.1 %d Interim\r\n\r\n", code))))
		if ans.Class != gateway.Transport {
			t.Errorf("%d is read as %v", code, ans.Class)
		}
	}
}

// badBodies are good HTTP statuses with a body that is no payment.
func (h Harness) badBodies(t *testing.T) {
	good := h.Replies[Succeeded]
	like := func(body string) Reply { return Reply{Header: good.Header, Body: body} }
	html := Reply{Header: http.Header{"Content-Type": {"text/html; charset=utf-8"}}, Body: "<html><title>We will be back soon</title></html>"}
	for name, r := range map[string]Reply{
		"empty": like(""), "blank": like(" \r\n"), "empty object": like("{}"), "null": like("null"), "true": like("true"), "number": like("1"),
		"text": like(`"succeeded"`), "array": like("[]"), "nested array": like(strings.Repeat("[", 100_000)), "html": html,
		"html with a type of JSON":   like(html.Body),
		"json with a type of html":   {Header: html.Header, Body: good.Body},
		"twice":                      like(good.Body + good.Body),
		"trailing garbage":           like(good.Body + "x"),
		"trailing NUL":               like(good.Body + "\x00"),
		"byte order mark":            like("\xef\xbb\xbf" + good.Body),
		"UTF-16":                     like("\xff\xfe" + strings.Join(strings.Split(good.Body, ""), "\x00") + "\x00"),
		"not UTF-8":                  like(strings.Replace(good.Body, "{", "{\"\xff\":1,", 1)),
		"a key twice":                like(strings.Replace(good.Body, "{", `{"twice":1,"twice":2,`, 1)),
		"a key twice in two ways":    like(strings.Replace(good.Body, "{", `{"twice":1,"\u0074wice":2,`, 1)),
		"a lone surrogate":           like(strings.Replace(good.Body, "{", `{"x":"\ud800",`, 1)),
		"a NUL":                      like(strings.Replace(good.Body, "{", `{"x":"\u0000",`, 1)),
		"a number that is too large": like(strings.Replace(good.Body, "{", `{"x":1e999,`, 1)),
		"too large":                  like(strings.Repeat(" ", 5<<20) + good.Body),
	} {
		t.Run(name, func(t *testing.T) {
			if ans := h.poll(t, h.serve(t, r.write)); ans.Class != gateway.Malformed || ans.Message == "" {
				t.Errorf("got %+v", ans)
			}
		})
	}
}

// cutBodies breaks a success off behind every byte.
func (h Harness) cutBodies(t *testing.T) {
	r := h.Replies[Succeeded]
	for n := range len(r.Body) {
		head := fmt.Sprintf("HTTP/1.1 200 OK\r\n%s", headerText(r.Header))
		announced := h.poll(t, listen(t, answering(fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(r.Body), r.Body[:n]))))
		if announced.Class != gateway.Transport || announced.HTTPStatus != 200 {
			t.Errorf("cut after %d bytes: %+v", n, announced)
		}
		// Without a length nobody can tell but the parser.
		closed := h.poll(t, listen(t, answering(head+"Connection: close\r\n\r\n"+r.Body[:n])))
		if closed.Class != gateway.Malformed {
			t.Errorf("ended after %d bytes: %+v", n, closed)
		}
	}
}

// brokenConnections are answers that do not come, or not as HTTP.
func (h Harness) brokenConnections(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"closed at once":        func(net.Conn) {},
		"closed after question": answering(""),
		"closed in the headers": answering("HTTP/1.1 200 OK\r\nContent-Ty"),
		"reset": func(c net.Conn) {
			readRequest(c)
			_ = c.(*net.TCPConn).SetLinger(0)
		},
		"not HTTP": answering("220 mail.example ESMTP\r\n"),
		"headers without end": func(c net.Conn) {
			readRequest(c)
			_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for err == nil {
				_, err = io.WriteString(c, "X-More: "+strings.Repeat("x", 1000)+"\r\n")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if ans := h.poll(t, listen(t, serve)); ans.Class != gateway.Transport || ans.HTTPStatus != 0 || ans.Message == "" {
				t.Errorf("got %+v", ans)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		base := "http://" + l.Addr().String()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if ans := h.poll(t, base); ans.Class != gateway.Transport || ans.HTTPStatus != 0 {
			t.Errorf("got %+v", ans)
		}
	})
}

// compressed is a success that was packed and becomes far larger than any answer.
func (h Harness) compressed(t *testing.T) {
	r := h.Replies[Succeeded]
	bomb := packed(t, strings.Repeat(" ", 64<<20)+r.Body)
	for _, encoding := range []string{"gzip", "deflate", "br", "gzip, gzip", "nonsense"} {
		ans := h.poll(t, h.serve(t, func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Encoding", encoding)
			Reply{Header: r.Header, Body: bomb}.write(w, q)
		}))
		if ans.Class != gateway.Malformed {
			t.Errorf("%s: %+v", encoding, ans)
		}
	}
}

func packed(t testing.TB, text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// redirects must not be followed: a request carries the key.
func (h Harness) redirects(t *testing.T) {
	var hits atomic.Int32
	target := h.serve(t, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		h.Replies[Succeeded].write(w, r)
	})
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, location := range []string{target + "/elsewhere", "/here"} {
			var asked atomic.Int32
			ans := h.poll(t, h.serve(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				w.Header().Set("Location", location)
				w.WriteHeader(status)
			}))
			if ans.Class != gateway.Transport || ans.HTTPStatus != status || asked.Load() != 1 {
				t.Errorf("%d to %s: asked %d times, %+v", status, location, asked.Load(), ans)
			}
		}
	}
	if n := hits.Load(); n > 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// slow are gateways that take longer than the timeout, one of them by sending all the time.
func (h Harness) slow(t *testing.T) {
	r := h.Replies[Succeeded]
	for name, serve := range map[string]func(net.Conn){
		"before an answer":     stuck(""),
		"in the status line":   stuck("HTTP/1.1 2"),
		"in the headers":       stuck("HTTP/1.1 200 OK\r\nContent-Type: appl"),
		"before the body":      stuck("HTTP/1.1 200 OK\r\n" + headerText(r.Header) + "Content-Length: 1000\r\n\r\n"),
		"in the body":          stuck("HTTP/1.1 200 OK\r\n" + headerText(r.Header) + "Content-Length: 1000\r\n\r\n{"),
		"between chunks":       stuck("HTTP/1.1 200 OK\r\n" + headerText(r.Header) + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"),
		"in the body of a 404": stuck("HTTP/1.1 404 Not Found\r\n" + headerText(r.Header) + "Content-Length: 1000\r\n\r\n{"),
		"drop by drop": func(c net.Conn) {
			readRequest(c)
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			_, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n%sContent-Length: 100000\r\n\r\n", headerText(r.Header))
			for err == nil {
				<-tick.C
				_, err = io.WriteString(c, " ")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := h.New(t, listen(t, serve), 200*time.Millisecond)
			ans := h.ask(t, context.Background(), g)
			if ans.HTTPStatus == 0 || ans.HTTPStatus == 200 {
				if ans.Class != gateway.Transport {
					t.Errorf("got %+v", ans)
				}
			} else if !ans.Class.Failed() {
				t.Errorf("got %+v", ans)
			}
		})
	}
}

// stuck reads one request, sends the beginning of an answer, and waits until the other side gives up.
func stuck(raw string) func(net.Conn) {
	return func(c net.Conn) {
		answering(raw)(c)
		_, _ = io.Copy(io.Discard, c)
	}
}

// cancelled calls are our own doing.
func (h Harness) cancelled(t *testing.T) {
	arrived := make(chan struct{}, 1)
	g := h.New(t, listen(t, func(c net.Conn) {
		arrived <- struct{}{}
		_, _ = io.Copy(io.Discard, c)
	}), patience)
	ctx, cancel := context.WithCancel(context.Background())
	answers := make(chan gateway.Answer)
	go func() { answers <- g.Poll(ctx, h.Query) }()
	<-arrived
	cancel()
	for _, ans := range []gateway.Answer{<-answers, g.Poll(ctx, h.Query)} {
		Check(t, ans, h.Secret)
		if ans.Class != gateway.Local {
			t.Errorf("got %+v", ans)
		}
	}
}

func (h Harness) retryAfter(t *testing.T) {
	date := time.Now().UTC().Add(-time.Hour) // a gateway's clock is not ours
	for _, status := range []int{429, 503} {
		for value, want := range map[string]time.Duration{
			"7": 7 * time.Second, "0": 0, "-7": 0, "soon": 0, "": 0, "7.5": 0, "1e3": 0, "7s": 0, "7, 9": 0, "\u0667": 0, "007": 7 * time.Second,
			"Thu, 32 Sep 2026 06:02:00 GMT": 0, date.Format(time.RFC3339): 0, date.Add(7 * time.Second).Format(http.TimeFormat): 7 * time.Second,
			date.Add(-7 * time.Second).Format(http.TimeFormat): 0,
		} {
			ans := h.poll(t, h.serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", date.Format(http.TimeFormat))
				w.Header().Set("Retry-After", value)
				w.WriteHeader(status)
			}))
			if ans.RetryAfter != want {
				t.Errorf("%d with Retry-After: %s is %v, want %v", status, value, ans.RetryAfter, want)
			}
		}
	}
	ans := h.poll(t, h.serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "99999999999999999999")
		w.WriteHeader(429)
	}))
	if ans.RetryAfter <= 0 || ans.RetryAfter > 24*time.Hour || ans.Message == "" {
		t.Errorf("an absurd Retry-After: %+v", ans)
	}
}

// echoedSecret is a gateway that sends back whatever it got, wherever it can.
func (h Harness) echoedSecret(t *testing.T) {
	good := h.Replies[Succeeded].Header
	for _, status := range []int{200, 302, 400, 401, 403, 404, 429, 500, 502} {
		for _, kind := range []string{"text/html", "application/json", "nonsense"} {
			base := h.serve(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				seen := fmt.Sprint(r.URL, r.Header, string(body))
				if _, pair, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok {
					plain, _ := base64.StdEncoding.DecodeString(pair)
					seen += string(plain)
				}
				if !strings.Contains(seen, h.Secret) && h.Secret != "" {
					w.Header().Set("X-Unsent", "1") // signed requests do not carry it
				}
				w.Header().Set("Location", "https://evil.example/?"+url.Values{"k": {h.Secret}}.Encode())
				w.Header().Set("Content-Type", kind)
				if kind == "application/json" && good.Get("Content-Type") != "" {
					w.Header().Set("Content-Type", good.Get("Content-Type"))
				}
				w.WriteHeader(status)
				quoted, _ := json.Marshal(h.Secret + " " + seen)
				fmt.Fprintf(w, `{"status":%s,"id":%s,"amount":%s,"error":{"code":%s,"message":%s},"code":%s,"message":%s}`,
					quoted, quoted, quoted, quoted, quoted, quoted, quoted)
			})
			h.poll(t, base)
		}
	}
}

func (h Harness) concurrent(t *testing.T) {
	g := h.New(t, h.serve(t, h.Replies[Succeeded].write), patience)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				if ans := h.ask(t, context.Background(), g); ans.Class != gateway.Final {
					t.Errorf("got %+v", ans)
				}
			}
		})
	}
	wg.Wait()
}

// poll asks a new adapter once.
func (h Harness) poll(t testing.TB, base string) gateway.Answer {
	t.Helper()
	return h.ask(t, context.Background(), h.New(t, base, patience))
}

func (h Harness) ask(t testing.TB, ctx context.Context, g Gateway) gateway.Answer {
	t.Helper()
	ans := g.Poll(ctx, h.Query)
	Check(t, ans, h.Secret)
	return ans
}

// Check checks what holds of every answer: its fields fit together and are within their limits, its text is valid, and it shows no
// secret, however it is printed.
func Check(t testing.TB, ans gateway.Answer, secrets ...string) {
	t.Helper()
	if err := problem(ans); err != nil {
		t.Errorf("%v: %+v", err, ans)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%v %+v %#v %q", ans, ans, ans, ans.Message)
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("answer", "answer", ans, "message", ans.Message, "gateway_status", ans.GatewayStatus)
	}
	for _, s := range secrets {
		for _, form := range []string{s, url.QueryEscape(s), base64.StdEncoding.EncodeToString([]byte(s))} {
			if s != "" && strings.Contains(out.String(), form) {
				t.Errorf("the answer shows a secret: %s", out.String())
			}
		}
	}
}

// Object is what encoding/json finds in a body, by its keys as they are written: an oracle for fuzz tests. It is nil when the body is no object.
func Object(body []byte) map[string]any {
	var doc map[string]any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if d.Decode(&doc) != nil {
		return nil
	}
	return doc
}

func problem(ans gateway.Answer) error {
	final := ans.Class == gateway.Final
	switch {
	case final != ans.Status.Final():
		return errors.New("it is final, or its status is, but not both")
	case !final && ans.Status != payment.Pending && ans.Status != "":
		return errors.New("its status is none")
	case len(ans.Message) > httpclient.MaxSnippet || len(ans.GatewayStatus) > 64 || len(ans.Detail) > 64:
		return errors.New("its text is too long")
	case !utf8.ValidString(ans.Message + ans.GatewayStatus + ans.Detail):
		return errors.New("its text is not UTF-8")
	case strings.ContainsFunc(ans.Message+ans.GatewayStatus+ans.Detail, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }):
		return errors.New("its text has control characters")
	case ans.RetryAfter < 0 || final && ans.RetryAfter != 0:
		return errors.New("it asks to wait for nothing")
	case !final && ans.Class != gateway.Pending && ans.Message == "":
		return errors.New("it does not say what went wrong")
	}
	return nil
}

// write sends the reply.
func (r Reply) write(w http.ResponseWriter, _ *http.Request) {
	for name, values := range r.Header {
		w.Header()[name] = values
	}
	status := r.Status
	if status == 0 {
		status = http.StatusOK
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, r.Body)
}

func headerText(h http.Header) string {
	var b strings.Builder
	_ = h.Write(&b)
	return b.String()
}

// serve is a gateway that speaks HTTP.
func (h Harness) serve(t testing.TB, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.URL
}

// listen is a gateway that does with connections what it likes.
func listen(t testing.TB, serve func(net.Conn)) string {
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
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return "http://" + l.Addr().String()
}

// answering reads one request and sends raw bytes.
func answering(raw string) func(net.Conn) {
	return func(c net.Conn) {
		if readRequest(c) {
			_, _ = io.WriteString(c, raw)
		}
	}
}

func readRequest(c net.Conn) bool {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err == nil
}
