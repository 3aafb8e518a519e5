package natsfacts_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/natstest"
)

func TestBackoffLibraryStopsAfterAQuarterOfAnHourAndItsJitterExceedsItsMaximum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backoff.NewExponentialBackOff(backoff.WithMaxInterval(time.Minute))
		longest := time.Duration(0)
		for range 200 {
			if d := b.NextBackOff(); d != backoff.Stop {
				longest = max(longest, d)
			}
		}
		if longest <= time.Minute {
			t.Errorf("longest delay %s with a maximum of 1m, it used to be up to 90s", longest)
		}
		time.Sleep(16 * time.Minute)
		if d := b.NextBackOff(); d != -1 {
			t.Errorf("after 16 minutes %s, it used to be Stop, -1", d)
		}
	})
}

func TestClientGivesUpForGoodByDefault(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Start(t, natstest.Options{InProcess: true, NoStreams: true})
		closed := make(chan struct{})
		start := time.Now()
		nc, err := nats.Connect("", nats.InProcessServer(s), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		s.Pause()
		select {
		case <-closed:
			if took := time.Since(start); took > 10*time.Minute {
				t.Errorf("gave up after %s, it used to be about two minutes", took)
			}
		case <-time.After(24 * time.Hour):
			t.Error("still trying after a day: MaxReconnects need not be set any more")
		}
	})
}

// deafConn stops hearing its server when told to, while what it says still arrives.
type deafConn struct {
	net.Conn
	deaf *gate
}

type gate struct {
	mu   sync.Mutex
	shut bool
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
}

func (g *gate) isShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut
}

func (c deafConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.deaf.isShut() {
			return n, err
		}
	}
}

type deafProvider struct {
	srv  *natstest.Server
	deaf *gate
}

func (d deafProvider) InProcessConn() (net.Conn, error) {
	c, err := d.srv.InProcessConn()
	return deafConn{c, d.deaf}, err
}

func TestPublishThatTimedOutIsStored(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		deaf := &gate{}
		nc := w.srv.Connect(nats.InProcessServer(deafProvider{w.srv, deaf}))
		js, err := jetstream.New(nc)
		w.must(err)
		deaf.set(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := js.Publish(ctx, subject, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a timeout", err)
		}
		if n := w.state().Msgs; n != 1 {
			t.Errorf("%d messages stored, want 1", n)
		}
		nc.Close()
	})
}

func TestForbiddenPublishLooksLikeATimeoutAndTheReasonComesBesideIt(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Start(t, natstest.Options{InProcess: true, NoStreams: true, Configure: func(o *server.Options) {
			p := &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{subject}}}
			o.Users = []*server.User{{Username: "admin", Password: "a"}, {Username: "u", Password: "p", Permissions: p}}
			o.NoAuthUser = "admin"
		}})
		newWorld(t, s)
		reasons := make(chan error, 10)
		nc := s.Connect(nats.UserInfo("u", "p"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { reasons <- err }))
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := js.Publish(ctx, subject, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a timeout", err)
		}
		why := <-reasons
		if !errors.Is(why, nats.ErrPermissionViolation) || !strings.Contains(why.Error(), `"`+subject+`"`) {
			t.Errorf("the error handler was told %v, want a permissions violation that names the subject", why)
		}
	})
}

func TestOneFlippedBitLosesMessagesAndTheServerIsHealthy(t *testing.T) {
	s := natstest.Start(t, natstest.Options{NoStreams: true})
	w := newWorld(t, s)
	const n = 500
	for range n {
		_, err := w.js.Publish(t.Context(), subject, make([]byte, 200))
		w.must(err)
	}
	s.Pause()
	flip(t, filepath.Join(s.StoreDir(), "jetstream", "$G", "streams", "FACTS", "msgs", "1.blk"))
	// The index would hide it until the message is read.
	w.must(os.Remove(filepath.Join(s.StoreDir(), "jetstream", "$G", "streams", "FACTS", "msgs", "index.db")))
	s.MustResume() // which waits until the server says that it is ready
	w = world{t, s, s.Connect(), nil}
	js, err := jetstream.New(w.nc)
	w.must(err)
	w.js = js
	if left := w.state().Msgs; left >= n-1 {
		t.Errorf("%d of %d messages left after one flipped bit, it used to lose hundreds", left, n)
	}
}

func flip(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1 << rand.IntN(8)
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Who may make a consumer says where its messages are delivered, to any subject that somebody reads by exactly that name, and the server asks nobody whether the maker may send there. So
// users who need not make consumers may not (broker.Users).
func TestWhoMayMakeAConsumerMaySendWhatIsInItsStreamToWhoeverListens(t *testing.T) {
	s := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"}, {Username: "maker", Password: "m", Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"$JS.API.CONSUMER.CREATE.FROM.c"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
		}}}
		o.NoAuthUser = "admin"
	}})
	admin, err := jetstream.New(s.Connect())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FROM", Subjects: []string{"from.>"}}); err != nil {
		t.Fatal(err)
	}
	listener := s.Connect()
	heard, err := listener.SubscribeSync("_INBOX_another.x")
	if err := errors.Join(err, listener.Flush()); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Publish(t.Context(), "from.x", []byte("forged")); err != nil {
		t.Fatal(err)
	}
	maker := s.Connect(nats.UserInfo("maker", "m"))
	body := []byte(`{"stream_name": "FROM", "config": {"durable_name": "c", "name": "c", "deliver_subject": "_INBOX_another.x", "deliver_policy": "all", "ack_policy": "none"}}`)
	answer, err := maker.RequestWithContext(t.Context(), "$JS.API.CONSUMER.CREATE.FROM.c", body)
	if err != nil || strings.Contains(string(answer.Data), `"error"`) {
		t.Fatalf("%v, %s", err, answer.Data)
	}
	m, err := heard.NextMsg(30 * time.Second)
	if err != nil || string(m.Data) != "forged" {
		t.Errorf("%v, %v; users may make consumers, then", m, err)
	}
}
