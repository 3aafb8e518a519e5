package webhook_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pollux/internal/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a door that is served.
type served struct {
	*door
	address string
	stop    context.CancelFunc
	ended   chan error
}

func serve(t *testing.T, cfg webhook.ServerConfig, rc webhook.ReceiverConfig) *served {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &served{door: newDoor(t, rc, &memory{}), address: l.Addr().String(), stop: stop, ended: make(chan error, 1)}
	go func() { s.ended <- webhook.Serve(ctx, cfg, l, nil, s.receiver, s.meter, quiet) }()
	t.Cleanup(func() {
		stop()
		if err := <-s.ended; err != nil {
			t.Errorf("the end: %v", err)
		}
	})
	return s
}

var patient = webhook.ServerConfig{HeaderTimeout: 20 * time.Second, IdleTimeout: 20 * time.Second, WriteTimeout: 40 * time.Second, MaxHeader: 4 << 10,
	MaxConns: 64, Drain: 20 * time.Second}

func (s *served) request(body string) string {
	return fmt.Sprintf("POST /webhooks/acme HTTP/1.1\r\nHost: test\r\nSum: %s\r\nContent-Length: %d\r\n\r\n%s", sum(body), len(body), body)
}

func (s *served) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// send sends a genuine notification on a connection of its own and returns the status of its answer.
func (s *served) send(id string) (int, error) {
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := io.WriteString(c, s.request(id+" pay_1 succeeded")); err != nil {
		return 0, err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	return r.StatusCode, r.Body.Close()
}

// Slow heads, slow bodies, idle connections and forged notifications pour in, many more than there are places; what is genuine is answered.
func TestGenuineNotificationsAreAnsweredWhileStrangersPourIn(t *testing.T) {
	s := serve(t, patient, roomy)
	ctx, calm := context.WithCancel(t.Context())
	var strangers sync.WaitGroup
	for i := range 12 {
		strangers.Go(func() {
			for ctx.Err() == nil {
				c, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.address)
				if err != nil {
					continue
				}
				switch i % 4 {
				case 0: // a head that never ends
					_, _ = io.WriteString(c, "POST /webhooks/acme HTTP/1.1\r\nHost: test\r\nX-Slow: ")
				case 1: // a body that never ends
					_, _ = io.WriteString(c, "POST /webhooks/acme HTTP/1.1\r\nHost: test\r\nSum: 00\r\nContent-Length: 1000\r\n\r\nx")
				case 2: // nothing at all
				case 3: // forged, and well formed
					body := "forged_1 pay_1 succeeded"
					_, _ = io.WriteString(c, strings.Replace(s.request(body), sum(body), sum("x"), 1))
					_, _ = io.Copy(io.Discard, c)
					_ = c.Close()
					continue
				}
				strangers.Go(func() { // it holds on for as long as it may
					stop := context.AfterFunc(ctx, func() { _ = c.Close() })
					defer stop()
					_, _ = io.Copy(io.Discard, c)
					_ = c.Close()
				})
			}
		})
	}
	defer strangers.Wait()
	defer calm()
	deadline := time.Now().Add(5 * time.Minute)
	for i := 0; i < 40 || s.meter.of("evicted") < 50 || s.meter.of("refused acme signature") < 20; i++ {
		id := fmt.Sprint("e", i)
		for { // a sender whose connection was put out comes again, as all do
			status, err := s.send(id)
			if err == nil && status == 200 {
				break
			}
			if err == nil || time.Now().After(deadline) {
				t.Fatalf("notification %s: %d %v", id, status, err)
			}
		}
		if _, ok := s.record.get(id); !ok {
			t.Fatalf("%s was answered and is not kept", id)
		}
	}
	if _, ok := s.record.get("forged_1"); ok {
		t.Error("a forged one is kept")
	}
}

func TestAHeadThatIsTooLargeOrTooSlowIsNotWaitedFor(t *testing.T) {
	cfg, rc := patient, roomy
	cfg.HeaderTimeout, rc.BodyTimeout = 50*time.Millisecond, 50*time.Millisecond
	s := serve(t, cfg, rc)
	for name, c := range map[string]struct{ sent, want string }{
		"a large head":    {"POST /webhooks/acme HTTP/1.1\r\nHost: test\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "431"},
		"a slow head":     {"POST /webhooks/acme HTTP/1.1\r\nHost: te", ""},
		"a slow body":     {"POST /webhooks/acme HTTP/1.1\r\nHost: test\r\nSum: 00\r\nContent-Length: 10\r\n\r\nx", "401"},
		"a large body":    {"POST /webhooks/acme HTTP/1.1\r\nHost: test\r\nSum: 00\r\nContent-Length: 100000\r\n\r\nx", "401"},
		"an endless body": {"POST /webhooks/acme HTTP/1.1\r\nHost: test\r\nSum: 00\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" + strings.Repeat("x", 0x800) + "\r\n", "401"},
	} {
		conn := s.dial(t)
		_, _ = io.WriteString(conn, c.sent)
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		b, err := io.ReadAll(conn)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("%s: it is waited for", name)
		}
		if status, _, _ := strings.Cut(strings.TrimPrefix(string(b), "HTTP/1.1 "), " "); status != c.want {
			t.Errorf("%s: %q %v", name, b, err)
		}
		_ = conn.Close()
	}
}

func TestWhatWasBegunIsAnsweredAfterTheEnd(t *testing.T) {
	s := serve(t, patient, roomy)
	s.record.gate, s.record.waits = make(chan struct{}), make(chan struct{}, 1)
	c := s.dial(t)
	defer c.Close()
	_, _ = io.WriteString(c, s.request("e1 pay_1 succeeded"))
	<-s.record.waits
	s.stop()
	for deadline := time.Now().Add(time.Minute); ; { // it takes no more
		probe, err := net.Dial("tcp", s.address)
		if err != nil {
			break
		}
		_ = probe.Close()
		if time.Now().After(deadline) {
			t.Fatal("it goes on taking connections")
		}
	}
	close(s.record.gate)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || r.StatusCode != 200 {
		t.Errorf("%v %v", r, err)
	}
}
