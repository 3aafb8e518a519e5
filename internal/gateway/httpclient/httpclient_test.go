package httpclient_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet takes what net/http says about handshakes that are meant to fail.
var quiet = log.New(io.Discard, "", 0)

// marked is what must not appear in any error: it is sent as a header, in the query, in redirects and in bodies.
const marked = "marked-secret-5b1c9e0d7f"

// server answers every connection with serve.
func server(t testing.TB, serve func(net.Conn)) string {
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
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return "http://" + l.Addr().String()
}

// replies reads one request of each connection and answers it with raw bytes.
func replies(t testing.TB, answer string) string {
	return server(t, func(c net.Conn) {
		if readRequest(c) {
			io.WriteString(c, answer)
		}
	})
}

func readRequest(c net.Conn) bool {
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// untilClosed waits for the other side to close.
func untilClosed(c net.Conn) { io.Copy(io.Discard, c) }

func handler(t testing.TB, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func host(t testing.TB, raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// client may ask the server of a test.
func client(t testing.TB, base string, change func(*httpclient.Config)) *httpclient.Client {
	t.Helper()
	cfg := httpclient.Config{Timeout: 5 * time.Second, Hosts: []string{host(t, base)}, AllowHTTP: true, AllowLoopback: true}
	if change != nil {
		change(&cfg)
	}
	c, err := httpclient.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func get(c *httpclient.Client, base string) (httpclient.Response, error) {
	h := c.Prepare(http.Header{"Authorization": {"Bearer " + marked}}, http.MethodGet)
	return c.Do(context.Background(), httpclient.Request{Method: http.MethodGet, URL: base + "/path?key=" + marked, Header: h}, nil)
}

// fails checks the kind of an error and that it tells no secret.
func fails(t testing.TB, err error, want httpclient.Kind) {
	t.Helper()
	var e *httpclient.Error
	if !errors.As(err, &e) {
		t.Fatalf("the error is %#v, want %v", err, want)
	}
	if e.Kind != want {
		t.Errorf("%v: %v, want %v", e, e.Kind, want)
	}
	if text := fmt.Sprintf("%v %+v %#v %q", err, err, err, errors.Unwrap(err)); strings.Contains(text, marked) || len(err.Error()) > httpclient.MaxSnippet {
		t.Errorf("the error tells too much: %s", text)
	}
}

func TestWholeAnswerIsRead(t *testing.T) {
	body := strings.Repeat("x", 100_000)
	base := handler(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Seen", r.Header.Get("Authorization")+"|"+r.Header.Get("User-Agent")+"|"+r.Header.Get("Accept-Encoding"))
		w.WriteHeader(http.StatusAccepted)
		io.WriteString(w, body)
	})
	buf := make([]byte, 10, 20)
	c := client(t, base, nil)
	h := c.Prepare(http.Header{"Authorization": {"Bearer x"}}, http.MethodGet)
	resp, err := c.Do(context.Background(), httpclient.Request{Method: "GET", URL: base, Header: h}, buf)
	if err != nil || resp.Status != 202 || string(resp.Body) != body || resp.Header.Get("X-Seen") != "Bearer x|pollux|identity" || resp.Took <= 0 {
		t.Errorf("got %d, %d bytes, %v, %v, %v", resp.Status, len(resp.Body), resp.Header, resp.Took, err)
	}
}

func TestRequestsShareTheirHeader(t *testing.T) {
	base := handler(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	c := client(t, base, nil)
	h := c.Prepare(nil, http.MethodPost)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				resp, err := c.Do(context.Background(), httpclient.Request{Method: "POST", URL: base, Header: h, Body: []byte("same")}, nil)
				if err != nil || string(resp.Body) != "same" {
					t.Errorf("got %q, %v", resp.Body, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestStatusComesWithItsBody(t *testing.T) {
	for _, status := range []int{200, 201, 204, 400, 401, 404, 418, 429, 500, 503, 599} {
		base := handler(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			if status != 204 {
				io.WriteString(w, "body")
			}
		})
		resp, err := get(client(t, base, nil), base)
		if want := "body"; err != nil || resp.Status != status || string(resp.Body) != want && status != 204 {
			t.Errorf("%d: got %d %q, %v", status, resp.Status, resp.Body, err)
		}
	}
}

// TestBrokenAnswers: what a gateway can do to a connection, and what it is called.
func TestBrokenAnswers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	for name, c := range map[string]struct {
		answer string
		status int // that is known all the same
		kind   httpclient.Kind
	}{
		"closed without an answer":       {"", 0, httpclient.Reset},
		"closed in the status line":      {"HTTP/1.1 2", 0, httpclient.Protocol},
		"closed in the headers":          {"HTTP/1.1 200 OK\r\nContent-Ty", 0, httpclient.Protocol},
		"closed after the headers":       {ok + "Content-Length: 20\r\n\r\n", 200, httpclient.CutBody},
		"closed in the body":             {ok + "Content-Length: 20\r\n\r\n{\"status\":", 200, httpclient.CutBody},
		"closed in an error's body":      {"HTTP/1.1 429 Slow\r\nContent-Length: 20\r\n\r\n{", 429, httpclient.CutBody},
		"closed in a chunk":              {ok + "Transfer-Encoding: chunked\r\n\r\n14\r\n{\"status\":", 200, httpclient.CutBody},
		"closed before the last chunk":   {ok + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", 200, httpclient.CutBody},
		"chunk without a size":           {ok + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 200, httpclient.Protocol},
		"not HTTP":                       {"SSH-2.0-OpenSSH_9.6\r\n", 0, httpclient.Protocol},
		"another protocol":               {"HTTP/9.9 200 OK\r\n\r\n", 0, httpclient.Protocol},
		"a status that is none":          {"HTTP/1.1 abc OK\r\n\r\n", 0, httpclient.Protocol},
		"two lengths":                    {ok + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 0, httpclient.Protocol},
		"a length that is none":          {ok + "Content-Length: -1\r\n\r\n{}", 0, httpclient.Protocol},
		"an odd transfer encoding":       {ok + "Transfer-Encoding: zip\r\n\r\n{}", 0, httpclient.Protocol},
		"a header without a colon":       {"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n{}", 0, httpclient.Protocol},
		"interim answers without end":    {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 5000), 0, httpclient.TooLarge},
		"an interim answer and no other": {"HTTP/1.1 100 Continue\r\n\r\n", 0, httpclient.Reset},
		"another protocol is offered":    {"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", 101, httpclient.Protocol},
		"headers above their cap":        {ok + "X-Long: " + strings.Repeat("x", 80_000) + "\r\n\r\n", 0, httpclient.TooLarge},
		"a length above the cap":         {ok + "Content-Length: 9999999\r\n\r\n{}", 200, httpclient.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			base := replies(t, c.answer)
			resp, err := get(client(t, base, nil), base)
			fails(t, err, c.kind)
			if resp.Status != c.status {
				t.Errorf("status %d, want %d", resp.Status, c.status)
			}
			if c.kind.Class() != gateway.Transport {
				t.Errorf("class %v", c.kind.Class())
			}
		})
	}
}

func TestResetConnection(t *testing.T) {
	for name, c := range map[string]struct {
		sent string
		kind httpclient.Kind
	}{
		"before an answer": {"", httpclient.Reset},
		"in the body":      {"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{\"st", httpclient.CutBody},
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{})
			base := server(t, func(c2 net.Conn) {
				readRequest(c2)
				io.WriteString(c2, c.sent)
				if c.sent != "" {
					<-seen
				}
				c2.(*net.TCPConn).SetLinger(0)
			})
			cl := client(t, base, nil)
			if c.sent != "" { // the client has the head before the connection is reset
				close(seen)
			}
			_, err := get(cl, base)
			var e *httpclient.Error
			if errors.As(err, &e) && c.kind == httpclient.CutBody && e.Kind == httpclient.Reset {
				return // the reset overtook the bytes that were sent before it, which TCP allows
			}
			fails(t, err, c.kind)
		})
	}
}

func TestRefusedConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + l.Addr().String()
	l.Close()
	_, err = get(client(t, base, nil), base)
	fails(t, err, httpclient.Refused)
	if !strings.Contains(err.Error(), host(t, base)) {
		t.Errorf("%v does not say where", err)
	}
}

func TestDeadlineIsForTheWholeCall(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"nothing comes": func(c net.Conn) { untilClosed(c) },
		"headers come drop wise": func(c net.Conn) {
			readRequest(c)
			drip(c, "HTTP/1.1 200 OK\r\nX-Slow: ")
		},
		"the body comes drop wise": func(c net.Conn) {
			readRequest(c)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
			drip(c, "")
		},
		"the body stops": func(c net.Conn) {
			readRequest(c)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{")
			untilClosed(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := server(t, serve)
			_, err := get(client(t, base, func(c *httpclient.Config) { c.Timeout = 150 * time.Millisecond }), base)
			fails(t, err, httpclient.Timeout)
		})
	}
}

// drip sends one byte at a time, so that no pause is long, until the other side closes.
func drip(c net.Conn, first string) {
	io.WriteString(c, first)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if _, err := io.WriteString(c, "x"); err != nil {
			return
		}
	}
}

func TestHeaderTimeout(t *testing.T) {
	base := server(t, untilClosed)
	_, err := get(client(t, base, func(c *httpclient.Config) { c.HeaderTimeout = 50 * time.Millisecond }), base)
	fails(t, err, httpclient.Timeout)
}

func TestEndedContext(t *testing.T) {
	base := server(t, untilClosed)
	c := client(t, base, nil)
	ask := func(ctx context.Context) error {
		_, err := c.Do(ctx, httpclient.Request{Method: "GET", URL: base}, nil)
		return err
	}
	t.Run("cancelled before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		fails(t, ask(ctx), httpclient.Cancelled)
	})
	t.Run("cancelled meanwhile", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		timer := time.AfterFunc(20*time.Millisecond, cancel)
		defer timer.Stop()
		fails(t, ask(ctx), httpclient.Cancelled)
	})
	t.Run("a deadline with a cause of the caller's", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 20*time.Millisecond, errors.New("the process stops"))
		defer cancel()
		fails(t, ask(ctx), httpclient.Cancelled)
	})
	t.Run("a plain deadline", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		fails(t, ask(ctx), httpclient.Timeout)
	})
	t.Run("a plain deadline that is over", func(t *testing.T) {
		ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
		defer cancel()
		fails(t, ask(ctx), httpclient.Cancelled)
	})
}

func TestCallsWaitForAPlace(t *testing.T) {
	arrived, release := make(chan struct{}, 10), make(chan struct{})
	base := handler(t, func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	})
	c := client(t, base, func(c *httpclient.Config) { c.MaxInFlight, c.Timeout = 1, 400*time.Millisecond })
	patient := client(t, base, func(c *httpclient.Config) { c.MaxInFlight, c.Timeout = 1, time.Minute })
	var wg sync.WaitGroup
	wg.Go(func() { get(c, base) })
	wg.Go(func() { get(patient, base) })
	<-arrived
	<-arrived
	_, err := get(c, base)
	fails(t, err, httpclient.Busy)
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(20*time.Millisecond, cancel)
	defer timer.Stop()
	_, err = patient.Do(ctx, httpclient.Request{Method: "GET", URL: base}, nil)
	fails(t, err, httpclient.Cancelled)
	wg.Go(func() {
		if resp, err := get(patient, base); err != nil || resp.Status != 200 {
			t.Errorf("the call that waited: %d, %v", resp.Status, err)
		}
	})
	close(release)
	wg.Wait()
}

func TestBodyCap(t *testing.T) {
	const most = 2048
	for size, kind := range map[int]httpclient.Kind{0: httpclient.Other, most: httpclient.Other, most + 1: httpclient.TooLarge, 10 * most: httpclient.TooLarge} {
		for _, chunked := range []bool{false, true} {
			base := handler(t, func(w http.ResponseWriter, _ *http.Request) {
				if chunked {
					w.(http.Flusher).Flush()
				}
				w.Write(bytes.Repeat([]byte("x"), size))
			})
			resp, err := get(client(t, base, func(c *httpclient.Config) { c.MaxBodyBytes = most }), base)
			if kind == httpclient.Other {
				if err != nil || len(resp.Body) != size {
					t.Errorf("%d bytes: got %d, %v", size, len(resp.Body), err)
				}
				continue
			}
			fails(t, err, kind)
			if len(resp.Body) > most {
				t.Errorf("%d bytes were kept", len(resp.Body))
			}
		}
	}
}

func pack(t testing.TB, plain []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCompressedAnswers(t *testing.T) {
	doc := []byte(`{"status":"succeeded"}`)
	packed := pack(t, doc)
	broken := bytes.Clone(packed)
	broken[len(broken)-5] ^= 1 // in the checksum
	for name, c := range map[string]struct {
		on       bool
		encoding string
		body     []byte
		kind     httpclient.Kind // Other: it is read
	}{
		"not asked for":        {false, "gzip", packed, httpclient.Encoding},
		"identity":             {false, "identity", doc, httpclient.Other},
		"asked for, not used":  {true, "", doc, httpclient.Other},
		"gzip":                 {true, "gzip", packed, httpclient.Other},
		"x-gzip":               {true, "X-GZIP", packed, httpclient.Other},
		"two members":          {true, "gzip", append(pack(t, doc[:5]), pack(t, doc[5:])...), httpclient.Other},
		"twice":                {true, "gzip, gzip", pack(t, packed), httpclient.Encoding},
		"deflate":              {true, "deflate", packed, httpclient.Encoding},
		"br":                   {true, "br", packed, httpclient.Encoding},
		"not gzip at all":      {true, "gzip", doc, httpclient.Encoding},
		"a wrong checksum":     {true, "gzip", broken, httpclient.Encoding},
		"garbage after it":     {true, "gzip", append(bytes.Clone(packed), "garbage that is long enough"...), httpclient.Encoding},
		"broken off":           {true, "gzip", packed[:len(packed)-9], httpclient.CutBody},
		"broken off in header": {true, "gzip", packed[:5], httpclient.CutBody},
	} {
		t.Run(name, func(t *testing.T) {
			var asked string
			base := handler(t, func(w http.ResponseWriter, r *http.Request) {
				asked = r.Header.Get("Accept-Encoding")
				if c.encoding != "" {
					w.Header().Set("Content-Encoding", c.encoding)
				}
				w.Write(c.body)
			})
			cl := client(t, base, func(cfg *httpclient.Config) { cfg.Gzip = c.on })
			for range 2 { // the second uses the reader of the first
				resp, err := get(cl, base)
				if want := map[bool]string{false: "identity", true: "gzip"}[c.on]; asked != want {
					t.Errorf("asked for %q, want %q", asked, want)
				}
				if c.kind == httpclient.Other {
					if err != nil || !bytes.Equal(resp.Body, doc) {
						t.Fatalf("got %q, %v", resp.Body, err)
					}
					continue
				}
				fails(t, err, c.kind)
			}
		})
	}
}

func TestEmptyGzipBodyIsEmpty(t *testing.T) {
	base := replies(t, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n")
	resp, err := get(client(t, base, func(c *httpclient.Config) { c.Gzip = true }), base)
	if err != nil || len(resp.Body) != 0 {
		t.Errorf("got %q, %v", resp.Body, err)
	}
}

// TestGzipBombIsAborted: a megabyte that becomes a gigabyte.
func TestGzipBombIsAborted(t *testing.T) {
	bomb := pack(t, make([]byte, 256<<20))
	var b bytes.Buffer
	for range 4 {
		b.Write(bomb)
	}
	base := handler(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(b.Bytes())
	})
	c := client(t, base, func(c *httpclient.Config) { c.Gzip, c.MaxBodyBytes, c.MaxDecodedBytes = true, 8<<20, 4<<20 })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	resp, err := get(c, base)
	runtime.ReadMemStats(&after)
	fails(t, err, httpclient.TooLarge)
	if len(resp.Body) > 4<<20 {
		t.Errorf("%d bytes were unpacked", len(resp.Body))
	}
	if grew := after.TotalAlloc - before.TotalAlloc; grew > 64<<20 {
		t.Errorf("%d MB were allocated", grew>>20)
	}
	small := client(t, base, func(c *httpclient.Config) { c.Gzip, c.MaxBodyBytes, c.MaxDecodedBytes = true, 1<<10, 64<<20 })
	_, err = get(small, base)
	fails(t, err, httpclient.TooLarge)
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var hits atomic.Int32
	target := handler(t, func(_ http.ResponseWriter, r *http.Request) { hits.Add(1) })
	for _, status := range []int{300, 301, 302, 303, 304, 305, 307, 308, 399} {
		for _, location := range []string{target + "/elsewhere?key=" + marked, "/same-host", "//evil.example/" + marked, "https://user:" + marked + "@evil.example", "::", ""} {
			base := handler(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", location)
				w.WriteHeader(status)
			})
			resp, err := get(client(t, base, func(c *httpclient.Config) { c.Hosts = append(c.Hosts, host(t, target)) }), base)
			fails(t, err, httpclient.Redirect)
			if resp.Status != status {
				t.Errorf("status %d, want %d", resp.Status, status)
			}
		}
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func TestRequestsThatAreNotSent(t *testing.T) {
	var hits atomic.Int32
	base := handler(t, func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	c := client(t, base, nil)
	strict := client(t, base, func(c *httpclient.Config) { c.AllowHTTP = false })
	for name, ask := range map[string]func() error{
		"another host": func() error { _, err := get(c, "http://other.example"); return err },
		"another port": func() error { _, err := get(c, "http://127.0.0.1:1"); return err },
		"another name of the host": func() error {
			_, err := get(c, strings.Replace(base, "127.0.0.1", "localhost", 1))
			return err
		},
		"a user": func() error {
			_, err := get(c, strings.Replace(base, "http://", "http://user:"+marked+"@", 1))
			return err
		},
		"no TLS":         func() error { _, err := get(strict, base); return err },
		"another scheme": func() error { _, err := get(c, strings.Replace(base, "http", "ftp", 1)); return err },
		"a bad URL":      func() error { _, err := get(c, base+"/%zz"); return err },
		"a bad method": func() error {
			_, err := c.Do(context.Background(), httpclient.Request{Method: "G ET", URL: base}, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := ask()
			fails(t, err, httpclient.Unasked)
			if httpclient.Unasked.Class() != gateway.Local {
				t.Error("our own doing is counted against the gateway")
			}
		})
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestLoopbackIsRefusedUnlessAllowed(t *testing.T) {
	accepted := make(chan struct{}, 8)
	base := server(t, func(net.Conn) { accepted <- struct{}{} })
	port := base[strings.LastIndexByte(base, ':'):]
	for _, name := range []string{"localhost", "127.1"} {
		u := "http://" + name + port
		c := client(t, u, func(c *httpclient.Config) { c.AllowLoopback, c.AllowPrivate = false, true })
		_, err := get(c, u)
		if name == "127.1" { // no address for Go, and then no name that resolves; never a connection
			if err == nil {
				t.Error("127.1 was answered")
			}
			continue
		}
		fails(t, err, httpclient.Blocked)
	}
	select {
	case <-accepted:
		t.Error("a connection was made")
	default:
	}
}

func TestAddressesThatNoCallWouldDialAreRefusedAtOnce(t *testing.T) {
	for host, want := range map[string]string{
		"127.0.0.1:8443":     "allow_loopback: false, and 127.0.0.1 is this machine",
		"[::ffff:127.0.0.1]": "allow_loopback: false, and [::ffff:127.0.0.1] is this machine",
		"10.1.1.1":           "allow_private: false, and 10.1.1.1 is private; write true",
		"[fd00::1]:443":      "allow_private: false, and fd00::1 is private; write true",
		"100.64.0.1":         "allow_private: false, and 100.64.0.1 is carrier-grade NAT; write true",
		"169.254.169.254":    "169.254.169.254 is never dialled: it is link-local",
		"8.8.8.8":            "",
		"gateway.example":    "",
	} {
		err := httpclient.Config{Hosts: []string{host}}.WithDefaults().Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", host, err, want)
		}
		if err := (httpclient.Config{Hosts: []string{host}, Proxy: "http://proxy.example:3128"}).WithDefaults().Validate(); err != nil {
			t.Errorf("%s behind a proxy: %v", host, err)
		}
	}
	if err := (httpclient.Config{Hosts: []string{"10.1.1.1", "127.0.0.1"}, AllowLoopback: true, AllowPrivate: true}).WithDefaults().Validate(); err != nil {
		t.Error(err)
	}
}

func TestConnectionsAreKeptAlive(t *testing.T) {
	const workers = 8
	var opened atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{}") }))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	c := client(t, s.URL, func(c *httpclient.Config) { c.MaxInFlight = workers })
	var wg sync.WaitGroup
	for range 4 * workers {
		wg.Go(func() {
			for range 50 {
				if _, err := get(c, s.URL); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := opened.Load(); n > workers {
		t.Errorf("%d connections were opened for %d places", n, workers)
	}
}

// TestQuestionIsAskedAgainOnAFreshConnection: a kept connection that the gateway closes just as we write to it is no failure.
func TestQuestionIsAskedAgainOnAFreshConnection(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		var connections atomic.Int32
		base := server(t, func(c net.Conn) {
			first := connections.Add(1) == 1
			r := bufio.NewReader(c)
			for n := 0; ; n++ {
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				body, _ := io.ReadAll(req.Body)
				if first && n == 1 {
					return // without an answer
				}
				if _, marked := req.Header["Idempotency-Key"]; marked {
					t.Error("the mark was sent")
				}
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
		})
		c := client(t, base, nil)
		r := httpclient.Request{Method: method, URL: base, Header: c.Prepare(nil, method)}
		if method == http.MethodPost {
			r.Body = []byte("question")
		}
		for i := range 2 {
			resp, err := c.Do(context.Background(), r, nil)
			if err != nil || string(resp.Body) != string(r.Body) {
				t.Errorf("%s %d: %q, %v", method, i, resp.Body, err)
			}
		}
		if connections.Load() != 2 {
			t.Errorf("%s: %d connections", method, connections.Load())
		}
	}
}

func TestProxy(t *testing.T) {
	var seen, auth string
	proxy := handler(t, func(w http.ResponseWriter, r *http.Request) {
		seen, auth = r.URL.String(), r.Header.Get("Proxy-Authorization")
		io.WriteString(w, "through")
	})
	c := client(t, "http://gateway.example", func(c *httpclient.Config) {
		c.Proxy, c.AllowLoopback = proxy, false
		c.ProxyUser, c.ProxyPassword = "us", secret.New("pw")
	})
	resp, err := c.Do(context.Background(), httpclient.Request{Method: "GET", URL: "http://gateway.example/x"}, nil)
	if err != nil || string(resp.Body) != "through" || seen != "http://gateway.example/x" || auth != "Basic dXM6cHc=" {
		t.Errorf("got %q, %v; the proxy saw %q with %q", resp.Body, err, seen, auth)
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%d", len(r.TLS.PeerCertificates))
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.Config.ErrorLog = quiet
	s.StartTLS()
	defer s.Close()
	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	old.Config.ErrorLog = quiet
	old.StartTLS()
	defer old.Close()
	bare := handler(t, func(http.ResponseWriter, *http.Request) {})

	dir := t.TempDir()
	certFile := filepath.Join(dir, "ca.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(certFile, certPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	trusting := func(c *httpclient.Config) { c.CAFile = certFile }

	resp, err := get(client(t, s.URL, trusting), s.URL)
	if err != nil || string(resp.Body) != "0" {
		t.Errorf("a trusted certificate: %q, %v", resp.Body, err)
	}
	_, err = get(client(t, s.URL, nil), s.URL)
	fails(t, err, httpclient.TLS)
	_, err = get(client(t, old.URL, trusting), old.URL)
	fails(t, err, httpclient.TLS)
	wrong := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	_, err = get(client(t, wrong, trusting), wrong)
	fails(t, err, httpclient.TLS)
	plainTLS := strings.Replace(bare, "http", "https", 1)
	_, err = get(client(t, plainTLS, nil), plainTLS)
	fails(t, err, httpclient.TLS)
	stuck := strings.Replace(server(t, untilClosed), "http", "https", 1)
	_, err = get(client(t, stuck, func(c *httpclient.Config) { c.TLSTimeout = 50 * time.Millisecond }), stuck)
	fails(t, err, httpclient.Timeout)
}

func TestConfigReportsEveryProblem(t *testing.T) {
	garbage := filepath.Join(t.TempDir(), "garbage.pem")
	if err := os.WriteFile(garbage, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := httpclient.New(httpclient.Config{
		Timeout: time.Hour, ConnectTimeout: 2 * time.Hour, TLSTimeout: -1, HeaderTimeout: 2 * time.Hour, IdleTimeout: 1, MaxInFlight: -1, MaxBodyBytes: 1,
		MaxDecodedBytes: 1, MaxHeaderBytes: 1, Proxy: "http://user:" + marked + "@proxy", CAFile: garbage, UserAgent: "a\nb",
	})
	if err == nil {
		t.Fatal("it was taken")
	}
	for _, key := range []string{"timeout 1h", "connect_timeout", "tls_timeout", "header_timeout", "idle_timeout", "max_in_flight", "max_body_bytes", "max_decoded_bytes",
		"max_header_bytes", "proxy", "ca_file", "user_agent", "no host"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("nothing about %s in: %v", key, err)
		}
	}
	if strings.Contains(err.Error(), marked) {
		t.Error("the proxy's password is in it")
	}
	for name, change := range map[string]func(*httpclient.Config){
		"proxy":           func(c *httpclient.Config) { c.Proxy = "ftp://proxy" },
		"proxy: a URL":    func(c *httpclient.Config) { c.Proxy = "://" },
		"ca_file":         func(c *httpclient.Config) { c.CAFile = "/nowhere/ca.pem" },
		"both or neither": func(c *httpclient.Config) { c.ClientKey = secret.New(marked) },
		"client_cert_file": func(c *httpclient.Config) {
			c.ClientCert, c.ClientKey = garbage, secret.New(marked)
		},
		"client_cert_file: stat": func(c *httpclient.Config) {
			c.ClientCert, c.ClientKey = "/nowhere/cert.pem", secret.New(marked)
		},
	} {
		cfg := httpclient.Config{Hosts: []string{"a.example"}}
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), marked) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (httpclient.Config{Hosts: []string{"a.example"}}).Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}

func BenchmarkDo(b *testing.B) {
	body := []byte(`{"id":"pay_1","status":"succeeded","amount":1000,"currency":"EUR"}`)
	base := handler(b, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(body)
	})
	c := client(b, base, nil)
	h := c.Prepare(http.Header{"Authorization": {"Bearer x"}}, http.MethodGet)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		buf := make([]byte, 0, 1024)
		for pb.Next() {
			if _, err := c.Do(context.Background(), httpclient.Request{Method: "GET", URL: base + "/v1/payments/pay_1", Header: h}, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
