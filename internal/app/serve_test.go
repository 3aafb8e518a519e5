package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/natstest"
	"pollux/internal/pgtest"
	"pollux/internal/postgres"
	"pollux/internal/telemetry"
)

func migrated(ctx context.Context, dsn string) error {
	_, err := postgres.Migrate(ctx, dsn)
	return err
}

// site is what services need: where everything is, and a gateway that answers as the test says.
type site struct {
	t       testing.TB
	dsn     string
	nats    string
	listen  string // where the telemetry is served
	gateway *httptest.Server
	answer  func(w http.ResponseWriter, r *http.Request)
}

func newSite(t testing.TB) *site {
	s := &site{t: t, nats: "nats://127.0.0.1:1", listen: freeAddress(t), answer: succeeded}
	s.gateway = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.answer(w, r) }))
	t.Cleanup(s.gateway.Close)
	return s
}

// broker starts a NATS as `pollux streams apply` leaves it.
func (s *site) broker() {
	s.t.Helper()
	s.nats = natstest.Start(s.t, natstest.Options{NoStreams: true}).URL()
	s.apply()
}

// apply does what `pollux streams apply` does.
func (s *site) apply() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cfg := s.config()
	conn, err := Dial(ctx, cfg, "test")
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Apply(ctx, broker.Options{Consumers: Subscriptions(cfg)}); err != nil {
		s.t.Fatal(err)
	}
	if err := conn.EnsureKV(ctx, 0); err != nil {
		s.t.Fatal(err)
	}
}

// freeAddress is a loopback address that nobody listens on.
func freeAddress(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func succeeded(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"status": "succeeded", "id": %q, "amount": 1999, "currency": "EUR"}`, filepath.Base(r.URL.Path))
}

const pages = `
telemetry: {listen: LISTEN}
log: {format: json}
relay: {watch: 100ms}
gateways:
  acme:
    adapter: httpjson
    httpjson:
      url: GATEWAY/payments/{reference}
      allow_http: true
      allow_loopback: true
      auth: {kind: none}
      pointers: {status: /status, id: /id, amount: /amount, currency: /currency}
      statuses: {processing: pending, succeeded: succeeded}
`

// file writes the configuration and returns its name.
func (s *site) file() string {
	s.t.Helper()
	dir := s.t.TempDir()
	dsn := filepath.Join(dir, "dsn")
	text := strings.NewReplacer("LISTEN", s.listen, "GATEWAY", s.gateway.URL).Replace(pages)
	text += fmt.Sprintf("database: {url: 'file:%s'}\nnats: {urls: [%s]}\n", dsn, s.nats)
	file := filepath.Join(dir, "pollux.yaml")
	if err := errors.Join(os.WriteFile(dsn, []byte(s.dsn), 0o600), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		s.t.Fatal(err)
	}
	return file
}

func (s *site) config() config.Config {
	s.t.Helper()
	cfg, err := config.Load(config.Options{File: s.file(), Environ: []string{}})
	if err != nil {
		s.t.Fatal(err)
	}
	return cfg
}

func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	if err := withConn(s.dsn, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql, args...)
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
}

// is reports whether a condition holds in the database.
func (s *site) is(condition string) bool {
	s.t.Helper()
	var yes bool
	if err := withConn(s.dsn, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "select coalesce((select "+condition+"), false)").Scan(&yes)
	}); err != nil {
		s.t.Fatal(err)
	}
	return yes
}

func withConn(dsn string, do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, c), c.Close(ctx))
}

// eventually polls until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		<-tick.C
	}
}

// page fetches a page of the telemetry; code 0 means that nobody serves it.
func (s *site) page(path string) (code int, body string) {
	s.t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + s.listen + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err.Error()
	}
	return r.StatusCode, string(b)
}

func (s *site) ready() bool { code, _ := s.page("/readyz"); return code == http.StatusOK }

// unready reports whether the process is not ready for this reason.
func (s *site) unready(why string) func() bool {
	return func() bool {
		code, body := s.page("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, why)
	}
}

// service is a service that runs inside the test as its process would.
type service struct {
	t    testing.TB
	stop context.CancelCauseFunc
	done chan struct{}
	err  error
}

func (s *site) serve(name string, run Service) *service {
	s.t.Helper()
	return s.serveIn(name, s.config(), NewProcess, run)
}

func (s *site) serveIn(name string, cfg config.Config, process func(*telemetry.Telemetry) *Process, run Service) *service {
	s.t.Helper()
	ctx, stop := context.WithCancelCause(context.Background())
	v := &service{t: s.t, stop: stop, done: make(chan struct{})}
	go func() { defer close(v.done); v.err = serveIn(ctx, cfg, name, process, run) }()
	s.t.Cleanup(func() { stop(nil); <-v.done })
	return v
}

// ends stops the service and waits for it.
func (v *service) ends() error {
	v.t.Helper()
	v.stop(errors.New("told to stop: terminated"))
	select {
	case <-v.done:
	case <-time.After(patience):
		v.t.Fatal("the service does not stop")
	}
	return v.err
}

// noLeaks fails when goroutines are left that were not there. It comes first in a test, so that the servers of the test end before.
func noLeaks(t *testing.T) {
	t.Helper()
	pgtest.New(t, nil) // the server that all tests share stays
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

func TestServicesWaitForWhatTheyNeedAndSayWhatFor(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	database := pgtest.Server(t)
	s.dsn = database.DSN("postgres")
	if err := migrated(t.Context(), s.dsn); err != nil {
		t.Fatal(err)
	}
	nats := natstest.Start(t, natstest.Options{NoStreams: true})
	s.nats = nats.URL()
	nats.Pause()
	database.Kill()

	for name, run := range map[string]Service{"consumer": Consumer, "outbox-relay": Relay} {
		v := s.serve(name, run)
		eventually(t, name+" is not ready for want of a database", s.unready("connection refused"))
		if code, body := s.page("/healthz"); code != http.StatusOK {
			t.Errorf("not alive while it waits: %d %s", code, body)
		}
		if code, body := s.page("/metrics"); code != http.StatusOK || !strings.Contains(body, "target_info") {
			t.Errorf("no metrics while it waits: %d %s", code, body)
		}
		if err := database.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+" waits for the broker", func() bool {
			_, body := s.page("/readyz")
			return strings.Contains(body, errNotFoundYet.Error()) && !strings.Contains(body, "failed to connect")
		})
		nats.MustResume()
		eventually(t, name+" says that streams are missing", s.unready("run: pollux streams"))
		s.apply()
		eventually(t, name+" is ready", s.ready)
		nats.MustWipe()
		eventually(t, name+" says that its stream is gone", s.unready("the stream PAYMENTS_POLL does not exist; run: pollux streams apply"))
		s.apply()
		eventually(t, name+" is ready again", s.ready)
		if err := v.ends(); err != nil {
			t.Errorf("%s ends with %v", name, err)
		}
		if code, _ := s.page("/healthz"); code != 0 {
			t.Errorf("somebody still listens")
		}
		nats.MustWipe()
		nats.Pause()
		database.Kill()
	}
}

func TestAServiceThatWaitsStopsAtOnce(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	s.dsn = "postgres://nobody@127.0.0.1:1/nothing"
	for _, run := range []Service{Consumer, Relay} {
		v := s.serve("service", run)
		eventually(t, "it waits", s.unready("connection refused"))
		if err := v.ends(); err != nil {
			t.Errorf("a stop while it waits is no error: %v", err)
		}
	}
}

func TestAnotherSchemaIsAnErrorAtOnce(t *testing.T) {
	s := newSite(t)
	s.dsn = pgtest.New(t, migrated)
	s.exec(`insert into pollux.schema_version (version_id, is_applied) values (99999, true)`)
	s.exec(`update pollux.schema_serves set since = 99999`)
	empty := newSite(t)
	empty.dsn = pgtest.New(t, nil)
	for _, where := range []*site{s, empty} {
		for _, run := range []Service{Consumer, Relay} {
			v := where.serve("service", run)
			select {
			case <-v.done:
			case <-time.After(patience):
				t.Fatal("it waits for a schema that does not come")
			}
			if !errors.Is(v.err, postgres.ErrSchema) || ExitCode(v.err) != ExitFailed {
				t.Errorf("%v", v.err)
			}
		}
	}
}

func TestPaymentsAreFinishedByRelayAndConsumer(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	s.dsn = pgtest.New(t, migrated)
	s.broker()
	relay := s.serve("outbox-relay", Relay)
	eventually(t, "the relay is ready", s.ready)
	s.listen = freeAddress(t)
	consumer := s.serve("consumer", Consumer)
	eventually(t, "the consumer is ready", s.ready)
	s.exec(`select pollux.track_payment('acme', 'pay_' || i, 1999, 'EUR', lane => (array['high', 'normal', 'low'])[1 + i % 3]) from generate_series(1, 30) as i`)
	eventually(t, "all are final and their events published", func() bool {
		return s.is(`count(*) = 30 from pollux.payments where status = 'succeeded'`) &&
			s.is(`count(*) = 30 from pollux.outbox where published_at is not null`)
	})
	_, metrics := s.page("/metrics")
	if !strings.Contains(metrics, `gateway="acme"`) {
		t.Errorf("the metrics do not mention the gateway:\n%s", metrics)
	}
	for _, v := range []*service{consumer, relay} {
		if err := v.ends(); err != nil {
			t.Error(err)
		}
	}
	if !s.is(`count(*) = 0 from pollux.poll_jobs`) {
		t.Error("jobs are left")
	}
}

func TestADrainCanBeWatchedAndFinishesWhatWasBegun(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	s.dsn = pgtest.New(t, migrated)
	s.broker()
	asked, release := make(chan struct{}, 1), make(chan struct{})
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-release
		succeeded(w, r)
	}
	relay := s.serve("outbox-relay", Relay)
	eventually(t, "the relay is ready", s.ready)
	s.exec(`select pollux.track_payment('acme', 'pay_1', 1999, 'EUR')`)
	s.listen = freeAddress(t)
	consumer := s.serve("consumer", Consumer)
	eventually(t, "the consumer is ready", s.ready)
	<-asked
	consumer.stop(errors.New("told to stop: terminated"))
	eventually(t, "the drain is seen", s.unready(`"draining": true`))
	if code, _ := s.page("/metrics"); code != http.StatusOK {
		t.Errorf("metrics during the drain: %d", code)
	}
	select {
	case <-consumer.done:
		t.Fatal("it ended with a call under way")
	default:
	}
	close(release)
	if err := consumer.ends(); err != nil {
		t.Error(err)
	}
	if !s.is(`count(*) = 1 from pollux.payments where status = 'succeeded'`) {
		t.Error("the answer was not recorded")
	}
	if !s.is(`count(*) = 1 from pollux.poll_attempts where applied and attempts = 1`) {
		t.Error("the attempt was not recorded")
	}
	if err := relay.ends(); err != nil {
		t.Error(err)
	}
}

func TestATakenAddressIsAnErrorOfTheStart(t *testing.T) {
	s := newSite(t)
	s.dsn = "postgres://nobody@127.0.0.1:1/nothing"
	l, err := net.Listen("tcp", s.listen)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	v := s.serve("consumer", Consumer)
	<-v.done
	if v.err == nil || !strings.Contains(v.err.Error(), "address already in use") || !strings.Contains(v.err.Error(), s.listen) {
		t.Error(v.err)
	}
	if hint, ok := errors.AsType[*hinted](v.err); !ok || !strings.Contains(hint.hint, "--listen or telemetry.listen") {
		t.Errorf("no hint which flag and key say where: %v", v.err)
	}
}

// ofTheTests are the checks that are not green where tests run: their server trades durability for speed, and they may run as root.
var ofTheTests = []string{"record.fsync", "record.full_page_writes", "record.synchronous_commit", "security.rights", "security.access", "host.root", "host.memory", "host.files"}

// TestProcesses are the services as they are started: by their commands, with what they write and how they end.
func TestProcesses(t *testing.T) {
	s := newSite(t)
	s.dsn = pgtest.New(t, migrated)
	s.broker()

	t.Run("a service ends well", func(t *testing.T) {
		p := start(t, "consumer", "--config", s.file())
		eventually(t, "ready", s.ready)
		p.signal(15)
		for _, line := range logLines(t, p.endsWith(ExitOK)) {
			if check := fmt.Sprint(line["check"]); check != "<nil>" && slices.Contains(ofTheTests, check) {
				continue
			}
			if line["level"] == "ERROR" || line["level"] == "WARN" {
				t.Errorf("%v", line)
			}
		}
		if !strings.Contains(p.stderr.String(), "told to stop: terminated") {
			t.Errorf("no word about the end: %s", &p.stderr)
		}
	})
	t.Run("a flag is stronger than the file", func(t *testing.T) {
		other := *s
		other.t, other.listen = t, freeAddress(t)
		p := start(t, "outbox-relay", "--config", s.file(), "--listen", other.listen, "--log-format", "text")
		eventually(t, "ready", other.ready)
		p.signal(2)
		if log := p.endsWith(ExitOK); !strings.Contains(log, `msg="relay starts"`) {
			t.Errorf("log: %s", log)
		}
	})
	t.Run("an error is written once", func(t *testing.T) {
		empty := newSite(t)
		empty.dsn = pgtest.New(t, nil)
		p := start(t, "consumer", "--config", empty.file())
		lines := logLines(t, p.endsWith(ExitFailed))
		if len(lines) != 1 || lines[0]["level"] != "ERROR" || !strings.Contains(fmt.Sprint(lines[0]["error"]), "run: pollux migrate up") {
			t.Errorf("%v", lines)
		}
	})
	t.Run("a wrong configuration is not tried", func(t *testing.T) {
		p := start(t, "consumer", "--config", s.file(), "--set", "relay.every=soon")
		if said := p.endsWith(ExitUsage); !strings.Contains(said, "consumer: flag --set: relay.every: ") {
			t.Errorf("%s", said)
		}
		p = start(t, "outbox-relay", "now")
		if said := p.endsWith(ExitUsage); !strings.HasPrefix(said, `outbox-relay: outbox-relay takes no arguments, "now" is one`) {
			t.Errorf("%s", said)
		}
		p = start(t, "consumer", "--nope")
		if said := p.endsWith(ExitUsage); said != "consumer: unknown flag: --nope\nhint: consumer --help says how it is used\n" {
			t.Errorf("%s", said)
		}
	})
	t.Run("once, for cron", func(t *testing.T) {
		s.exec(`select pollux.track_payment('acme', 'once_' || i, 1999, 'EUR') from generate_series(1, 3) as i`)
		p := start(t, "outbox-relay", "--config", s.file(), "--once")
		p.says("published 3 polls and 0 events")
		p.endsWith(ExitOK)
		p = start(t, "outbox-relay", "--config", s.file(), "--once")
		p.says("published 0 polls and 0 events")
		p.endsWith(ExitOK)
	})
}

// logLines are the lines of a log in JSON. What is no JSON fails.
func logLines(t *testing.T, log string) (lines []map[string]any) {
	t.Helper()
	for _, text := range strings.Split(strings.TrimSpace(log), "\n") {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("a line that is no JSON: %q", text)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestOnceGivesUp(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	s.dsn = "postgres://nobody:hunter2@127.0.0.1:1/nothing"
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var out, log bytes.Buffer
	cmd := RelayCommand()
	cmd.SetArgs([]string{"--config", s.file(), "--once"})
	cmd.SetOut(&out)
	cmd.SetErr(&log)
	code := Run(ctx, cmd)
	_, last, found := strings.Cut(log.String(), "\noutbox-relay: waiting for the database: context deadline exceeded (")
	if code != ExitFailed || out.Len() > 0 || !found || !strings.Contains(last, "connection refused") || strings.Contains(log.String(), "hunter2") {
		t.Errorf("%d, %q, %s", code, &out, &log)
	}
}

// lockedBuffer is a buffer that is written by a service and read by its test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestAQueueThatIsNotAsConfiguredIsWaitedFor(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	s.dsn = pgtest.New(t, migrated)
	s.broker()
	first := s.serve("consumer", Consumer)
	eventually(t, "the first consumer is ready", s.ready)
	if err := first.ends(); err != nil {
		t.Fatal(err)
	}
	cfg := s.config()
	cfg.Consumer.AckWait = 45 * time.Second
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log lockedBuffer
	tel, err := telemetry.New(ctx, TelemetryConfig(cfg, "consumer"), &log)
	if err != nil {
		t.Fatal(err)
	}
	defer closeTelemetry(ctx, tel)
	p, ended := NewProcess(tel), make(chan error, 1)
	go func() { ended <- tel.Run(ctx) }()
	go func() { ended <- Consumer(ctx, cfg, p) }()
	eventually(t, "it says what differs", func() bool {
		return strings.Contains(log.String(), "ack_wait is 1m0s, wanted 45s") && strings.Contains(log.String(), "run: pollux streams diff")
	})
	eventually(t, "it is not ready", s.unready("ack_wait"))
	conn, err := Dial(ctx, cfg, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Apply(ctx, broker.Options{Consumers: Subscriptions(cfg)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready", s.ready)
	stop()
	for range 2 {
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestSecretsOfTheURLAreNotLogged(t *testing.T) {
	s := newSite(t)
	u := url.URL{Scheme: "postgres", User: url.UserPassword("nobody", "hunter2"), Host: "127.0.0.1:1", Path: "/nothing"}
	s.dsn = u.String()
	p := start(t, "consumer", "--config", s.file(), "--log-level", "debug")
	eventually(t, "it waits", s.unready("connection refused"))
	if _, body := s.page("/readyz"); strings.Contains(body, "hunter2") {
		t.Error(body)
	}
	p.signal(15)
	if log := p.endsWith(ExitOK); strings.Contains(log, "hunter2") || !strings.Contains(log, "waiting for a dependency") {
		t.Error(log)
	}
}
