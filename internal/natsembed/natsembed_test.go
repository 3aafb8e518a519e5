package natsembed_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/natsembed"
)

func start(t *testing.T, o natsembed.Options) *natsembed.Server {
	t.Helper()
	s, err := natsembed.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// messages is how many messages the stream S has; it is made if it is missing.
func messages(t *testing.T, s *natsembed.Server, publish bool) uint64 {
	t.Helper()
	nc, err := nats.Connect(s.URL())
	must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(t, err)
	st, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	must(t, err)
	if publish {
		_, err = js.Publish(t.Context(), "s", nil)
		must(t, err)
	}
	info, err := st.Info(t.Context())
	must(t, err)
	return info.State.Msgs
}

func TestTemporaryStoreIsGoneAfterStopAndAGivenOneIsKept(t *testing.T) {
	for _, own := range []string{"", t.TempDir()} {
		s := start(t, natsembed.Options{StoreDir: own})
		if n := messages(t, s, true); n != 1 {
			t.Fatalf("%d messages, want 1", n)
		}
		must(t, s.Stop())
		must(t, s.Stop())
		_, err := os.Stat(s.StoreDir())
		if gone := errors.Is(err, fs.ErrNotExist); gone != (own == "") {
			t.Errorf("store %q: gone %v (%v)", own, gone, err)
		}
	}
}

func TestRestartsKeepThePortAndAllButWipeTheStore(t *testing.T) {
	s := start(t, natsembed.Options{})
	url := s.URL()
	messages(t, s, true)
	for _, again := range []struct {
		name string
		do   func() error
		want uint64
	}{{"Restart", s.Restart, 1}, {"Crash", s.Crash, 1}, {"Wipe", s.Wipe, 0}} {
		must(t, again.do())
		if s.URL() != url {
			t.Errorf("%s: at %s, was at %s", again.name, s.URL(), url)
		}
		if n := messages(t, s, false); n != again.want {
			t.Errorf("%s: %d messages, want %d", again.name, n, again.want)
		}
	}
}

func TestPortInUseIsNamedAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	addr := l.Addr().(*net.TCPAddr)
	if _, err := natsembed.Start(natsembed.Options{Port: addr.Port}); err == nil || !strings.Contains(err.Error(), addr.String()) {
		t.Errorf("got %v, want an error that names %s", err, addr)
	}
}

func TestInProcessServerHasNoPort(t *testing.T) {
	s := start(t, natsembed.Options{InProcess: true})
	if s.URL() != "" {
		t.Errorf("URL %s", s.URL())
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	must(t, err)
	nc.Close()
	s.Pause()
	if _, err := s.InProcessConn(); err == nil {
		t.Error("a stopped server takes connections")
	}
	must(t, s.Resume())
	must(t, s.Resume())
}

func TestServerSaysWhatIsWrongToItsLog(t *testing.T) {
	var log bytes.Buffer
	s := start(t, natsembed.Options{
		Log:       slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Configure: func(o *server.Options) { o.ServerName = "for-the-log" },
	})
	must(t, s.Stop())
	if !strings.Contains(log.String(), "for-the-log") || strings.Contains(log.String(), "level=INFO") {
		t.Errorf("the log: %s", log.String())
	}
}
