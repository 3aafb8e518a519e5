package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pollux/internal/consumer"
	"pollux/internal/outbox"
)

// What the use cases ask for is what there is.
var (
	_ outbox.Metrics   = (*Metrics)(nil)
	_ consumer.Metrics = (*Metrics)(nil)
	_ consumer.Tracer  = (*Tracing)(nil)
	_ outbox.Tracer    = (*Tracing)(nil)
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a telemetry on free ports and ends it with the test.
func start(t *testing.T, c Config) *Telemetry {
	t.Helper()
	tel, err := New(t.Context(), c, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tel.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := tel.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return tel
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

func TestAliveButNotReadyWhileADependencyIsAway(t *testing.T) {
	tel, err := New(t.Context(), Config{Listen: "127.0.0.1:0"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	tel.Health.Register("database", time.Second, func(context.Context) error { return errors.New("away") })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tel.Run(ctx) }()

	if code, body := get(t, "http://"+tel.Addr()+"/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz says %d: %s", code, body)
	}
	if code, body := get(t, "http://"+tel.Addr()+"/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz says %d: %s", code, body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := tel.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestMetricsPageShowsWhatWasRecorded(t *testing.T) {
	tel := start(t, Config{Listen: "127.0.0.1:0"})
	tel.Metrics.Refused(7)
	code, body := get(t, "http://"+tel.Addr()+"/metrics")
	for _, want := range []string{"pollux_record_refused_rows_total 7", "go_goroutines", "target_info"} {
		if code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("/metrics says %d without %s", code, want)
		}
	}
	if strings.Contains(body, "otel_scope") {
		t.Error("every series carries the scope")
	}
}

func TestProfilesAreOnAListenerOfTheirOwn(t *testing.T) {
	tel := start(t, Config{Listen: "127.0.0.1:0", PprofListen: "127.0.0.1:0"})
	if code, _ := get(t, "http://"+tel.PprofAddr()+"/debug/pprof/goroutine?debug=1"); code != http.StatusOK {
		t.Errorf("pprof says %d on its own listener", code)
	}
	if code, _ := get(t, "http://"+tel.Addr()+"/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("pprof says %d beside /metrics, want 404", code)
	}
}

func TestProfilesAreRefusedBeyondLoopback(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":6060", "[::]:0", "192.0.2.1:6060", "db.internal:6060", "nonsense"} {
		if _, err := New(t.Context(), Config{PprofListen: address}, io.Discard); err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{"127.0.0.1:1", "[::1]:1", "localhost:1"} {
		if !Loopback(address) {
			t.Errorf("%s is loopback", address)
		}
	}
}

func TestTakenPortIsAnErrorOfTheStart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = New(t.Context(), Config{Listen: l.Addr().String(), PprofListen: "127.0.0.1:0"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("New says %v", err)
	}
}

func TestWithoutAddressesNothingListens(t *testing.T) {
	tel := start(t, Config{})
	if tel.Addr() != "" || tel.PprofAddr() != "" {
		t.Errorf("listening on %q and %q", tel.Addr(), tel.PprofAddr())
	}
}

func TestCloseWithoutRunFreesThePorts(t *testing.T) {
	tel, err := New(t.Context(), Config{Listen: "127.0.0.1:0"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := tel.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", tel.Addr())
	if err != nil {
		t.Fatalf("the port is still taken: %v", err)
	}
	_ = l.Close()
}

func TestLogLinesNameTheirProcess(t *testing.T) {
	var out bytes.Buffer
	log, err := newLogger(&out, Config{Service: "consumer", Instance: "host-1", LogFormat: "json"}, slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("not written")
	log.Info("drained", "polls", 3)
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if line["service"] != "consumer" || line["instance"] != "host-1" || line["msg"] != "drained" || line["polls"] != 3.0 {
		t.Errorf("line %v", line)
	}
}

func TestLogLinesInsideARecordedTraceCarryItsIDs(t *testing.T) {
	tracing, _ := recorded(t, 0)
	for parent, want := range map[string]bool{sampled: true, declined: false} {
		var out bytes.Buffer
		log, err := newLogger(&out, Config{}, slog.LevelInfo)
		if err != nil {
			t.Fatal(err)
		}
		ctx, polled := tracing.Poll(t.Context(), consumer.Origin{TraceParent: parent}, "payments.poll.acme.high", "acme", 1)
		log.With("gateway", "acme").WithGroup("poll").InfoContext(ctx, "polled", "attempt", 1)
		polled(nil)
		if got := strings.Contains(out.String(), "trace_id="+traceID); got != want {
			t.Errorf("%s: %s", parent, out.String())
		}
	}
}

func TestLogLevelAndFormatAreObeyed(t *testing.T) {
	var out bytes.Buffer
	log, err := newLogger(&out, Config{LogFormat: "text"}, slog.LevelWarn)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("loud")
	if s := out.String(); strings.Contains(s, "quiet") || !strings.Contains(s, "msg=loud") {
		t.Errorf("wrote %q", s)
	}
	if _, err := newLogger(&out, Config{LogFormat: "xml"}, slog.LevelInfo); err == nil {
		t.Error("format xml was taken")
	}
}
