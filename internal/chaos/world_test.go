//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pollux"
	"pollux/internal/gatewaysim"
	"pollux/internal/localpg"
	"pollux/internal/pgtest"
)

// The names in the configuration, and the bounds of the policy that the checks know.
const (
	gatewayName = "sim"
	class       = "chaos"
	maxAttempts = 8
	maxFailures = 10
)

// settings are what differs from the example configuration: times that let a recovery take seconds where in production it takes
// minutes. Holds and parks both occur: half of the delays are longer than hold_limit.
var settings = []string{
	"telemetry.listen=127.0.0.1:0",
	"relay.lease=10s",
	"relay.publish_timeout=2s",
	"relay.watch=500ms",
	"relay.retry=300ms",
	"consumer.ack_wait=3s",
	"consumer.lease=8s",
	"consumer.drain=8s",
	"consumer.record.patience=4s",
	"classes." + class + "=" + class,
	"policies." + class + ".pending.list=100ms,200ms,500ms",
	"policies." + class + ".pending.jitter=20%",
	"policies." + class + ".error.base=100ms",
	"policies." + class + ".error.cap=500ms",
	"policies." + class + ".error.jitter=equal",
	"policies." + class + ".max_attempts=" + strconv.Itoa(maxAttempts),
	"policies." + class + ".max_failures=" + strconv.Itoa(maxFailures),
	"policies." + class + ".window=30m",
	"policies." + class + ".hold_limit=250ms",
	"policies." + class + ".not_found_grace=10m",
	"policies." + class + ".unauthorized_delay=1s",
	"policies." + class + ".max_retry_after=3s",
	"gateways." + gatewayName + ".workers=16",
	"gateways." + gatewayName + ".limits.pause=500ms",
	"gateways." + gatewayName + ".limits.recovery=3s",
	"gateways." + gatewayName + ".breaker.slow_call=0s",
	"gateways." + gatewayName + ".breaker.cooldown.base=500ms",
	"gateways." + gatewayName + ".breaker.cooldown.cap=2s",
	"gateways." + gatewayName + ".breaker.credential_cooldown.base=1s",
	"gateways." + gatewayName + ".breaker.credential_cooldown.cap=2s",
	"gateways." + gatewayName + ".breaker.probe_deadline=3s",
	"gateways." + gatewayName + ".breaker.ramp_step=200ms",
	// The gateway fails a fifth of its calls on its good days. Only when it is down does the breaker open; not for the payments that always fail, which
	// in the end are the only ones left: while it is open a failure costs a payment nothing, and no person would ever be asked about them.
	"gateways." + gatewayName + ".breaker.window=2s",
	"gateways." + gatewayName + ".breaker.min_calls=50",
	"gateways." + gatewayName + ".breaker.failure_ratio=45%",
	"gateways." + gatewayName + ".breaker.consecutive_failures=1000",
	"gateways." + gatewayName + ".breaker.ramp_tolerance=100%",
	"gateways." + gatewayName + ".httpjson.timeout=1s",
	"gateways." + gatewayName + ".httpjson.connect_timeout=1s",
	"gateways." + gatewayName + ".httpjson.tls_timeout=1s",
}

// limited is the rate that the stormy gateway's contract allows, which the fleet shares.
var limited = []string{
	"gateways." + gatewayName + ".limits.rate=300/s",
	"gateways." + gatewayName + ".limits.max_wait=1500ms",
}

// stormy is a gateway of the worse kind: a fifth of its calls fails, one payment in twenty-five never answers rightly, it takes 500 calls a
// second, and every eight seconds it is down for a while, so that its breaker opens. By chance it never answers about something else, so that the truth of a payment is known from the beginning.
func stormy() gatewaysim.Conditions {
	return gatewaysim.Conditions{
		Latency: 5 * time.Millisecond, Jitter: 25 * time.Millisecond, FaultsInRow: 3,
		Flapping: gatewaysim.Flapping{Up: 7 * time.Second, Down: 1500 * time.Millisecond},
		Late:     gatewaysim.Late{For: 300 * time.Millisecond, Share: 0.05},
		Limit:    gatewaysim.Limit{Rate: 500, Burst: 100, RetryAfter: time.Second, Dates: 0.25},
		Mix: gatewaysim.Mix{
			MaxPending: 3, Failed: 0.1, Cancelled: 0.05, Expired: 0.05, Flawed: 0.04,
			Flaws: []gatewaysim.Outcome{gatewaysim.OtherID, gatewaysim.OtherAmount, gatewaysim.OtherCurrency,
				gatewaysim.HTML, gatewaysim.Empty, gatewaysim.UnknownStatus},
		},
		Faults: []gatewaysim.Share{
			{Fault: gatewaysim.ServerError, Rate: 0.03}, {Fault: gatewaysim.BadGateway, Rate: 0.02}, {Fault: gatewaysim.Unavailable, Rate: 0.03},
			{Fault: gatewaysim.Reset, Rate: 0.03}, {Fault: gatewaysim.Timeout, Rate: 0.01}, {Fault: gatewaysim.CutHeaders, Rate: 0.01},
			{Fault: gatewaysim.CutBody, Rate: 0.02}, {Fault: gatewaysim.Empty, Rate: 0.01}, {Fault: gatewaysim.Null, Rate: 0.01},
			{Fault: gatewaysim.UnknownStatus, Rate: 0.005}, {Fault: gatewaysim.Drip, Rate: 0.005}, {Fault: gatewaysim.Redirect, Rate: 0.02},
			{Fault: gatewaysim.GzipBomb, Rate: 0.002}, {Fault: gatewaysim.Unauthorized, Rate: 0.003},
		},
	}
}

// calm ends what the gateway does by chance and its outages. Payments that never answer rightly go on doing so.
func (w *world) calm() { w.must(w.sim.SetConditions(steady(5 * time.Millisecond))) }

// steady is a gateway that answers every call rightly after d, once in between with "still pending" for half of its payments.
func steady(d time.Duration) gatewaysim.Conditions {
	return gatewaysim.Conditions{
		Latency: d, Jitter: d / 2,
		Mix: gatewaysim.Mix{MaxPending: 1, Failed: 0.1, Cancelled: 0.05, Expired: 0.05},
	}
}

// world is everything that runs in a test. What the orchestrator keeps alive is in relays and consumers.
type world struct {
	t         *testing.T
	seed      uint64
	begun     time.Time
	dir       string
	config    []string // the flags that every program is given
	postgres  *localpg.Server
	pool      *pgxpool.Pool // of the payment service
	nats      *natsServer
	sim       *gatewaysim.Simulator
	relays    []*service
	consumers []*service
}

// plan says what a test's world is like.
type plan struct {
	relays, consumers int
	gateway           gatewaysim.Conditions
	set               []string // settings that differ from those above
}

// build starts everything but the services, prepares it as an operator does, and then starts the services.
func build(t *testing.T, p plan) *world {
	t.Helper()
	w := &world{t: t, seed: *seedFlag, begun: time.Now(), dir: t.TempDir()}
	if w.seed == 0 {
		w.seed = rand.Uint64()
	}
	t.Logf("to repeat its choices: go test ./internal/chaos -run '^%s$' -chaos.seed=%d", t.Name(), w.seed)
	if _, err := programs(); err != nil {
		t.Fatal(err)
	}
	w.startGateway(p.gateway)
	w.startPostgres()
	w.nats = w.startNATS()
	w.configure(p.set)
	w.operate("config", "check")
	w.operate("migrate", "up")
	w.operate("streams", "apply")
	w.prepareService()
	for i := range p.relays {
		w.relays = append(w.relays, w.newService("outbox-relay", i+1))
	}
	for i := range p.consumers {
		w.consumers = append(w.consumers, w.newService("consumer", i+1))
	}
	t.Cleanup(w.end)
	w.must(w.startServices())
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) services() []*service { return slices.Concat(w.relays, w.consumers) }

func (w *world) startServices() error {
	for _, s := range w.services() {
		if err := s.start(); err != nil {
			return err
		}
	}
	return nil
}

// end kills the services, and of a test that failed it shows what they said last.
func (w *world) end() {
	for _, s := range w.services() {
		s.kill()
		s.confess()
	}
	if !w.t.Failed() {
		return
	}
	for _, s := range w.services() {
		for _, p := range s.lives[max(len(s.lives)-2, 0):] {
			w.t.Logf("%s:\n%s", filepath.Base(p.said), lastWords(p.said, 25))
		}
	}
}

// log says something with the time since the world began.
func (w *world) log(format string, a ...any) {
	w.t.Helper()
	w.t.Logf("%6.2fs  %s", time.Since(w.begun).Seconds(), fmt.Sprintf(format, a...))
}

// rng is a source of choices of its own for each purpose, so that one does not change those of another.
func (w *world) rng(purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, purpose)) }

func (w *world) startGateway(c gatewaysim.Conditions) {
	w.sim = gatewaysim.New(gatewaysim.Config{Seed: w.seed})
	w.must(w.sim.Start("127.0.0.1:0"))
	w.t.Cleanup(func() { w.sim.Close() })
	w.must(w.sim.SetConditions(c))
}

func (w *world) startPostgres() {
	w.postgres = pgtest.Server(w.t)
	cfg, err := pgxpool.ParseConfig(w.postgres.DSN("postgres"))
	w.must(err)
	cfg.MaxConns = 12
	cfg.ConnConfig.ConnectTimeout = 2 * time.Second
	w.pool, err = pgxpool.NewWithConfig(context.Background(), cfg)
	w.must(err)
	w.t.Cleanup(w.pool.Close)
}

// configure writes the example configuration, as a team would begin with it, and what differs here as flags.
func (w *world) configure(set []string) {
	write := func(name, content string) string {
		file := filepath.Join(w.dir, name)
		w.must(os.WriteFile(file, []byte(content), 0o600))
		return file
	}
	all := slices.Concat(settings, set, []string{
		"database.url=file:" + write("database.url", w.postgres.DSN("postgres")),
		"nats.urls=" + w.nats.url(),
		"gateways." + gatewayName + ".httpjson.url=" + w.sim.URL() + "/v1/payments/{reference}",
		"gateways." + gatewayName + ".httpjson.auth.token=file:" + write("sim.key", gatewaysim.DefaultAPIKey),
	})
	w.config = []string{"--config", write("pollux.yaml", string(pollux.ExampleConfig))}
	for _, s := range all {
		w.config = append(w.config, "--set", s)
	}
}

// prepareService makes the payment service's own table: what it writes in the same transaction as it tracks a payment.
func (w *world) prepareService() {
	_, err := w.pool.Exec(context.Background(), `create table orders (reference text primary key)`)
	w.must(err)
}

func (w *world) newService(program string, n int) *service {
	dir, err := programs()
	w.must(err)
	return &service{t: w.t, name: fmt.Sprintf("%s-%d", program, n), program: filepath.Join(dir, program), args: w.config, dir: w.dir}
}

// operate runs the operator's command, which has to do what it is told.
func (w *world) operate(args ...string) {
	w.t.Helper()
	w.must(w.tryOperate(context.Background(), args...))
}

func (w *world) tryOperate(ctx context.Context, args ...string) error {
	dir, err := programs()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "pollux"), slices.Concat(args, w.config)...)
	cmd.Dir = w.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pollux %s: %w: %s", args, err, out)
	}
	return nil
}

// natsServer is a NATS server in a process of its own.
type natsServer struct {
	dir   string
	port  int
	store string
	lives int
	proc  *process
}

func (w *world) startNATS() *natsServer {
	port, err := freePort()
	w.must(err)
	n := &natsServer{dir: w.dir, port: port, store: filepath.Join(w.dir, "jetstream")}
	w.must(n.start(context.Background()))
	w.t.Cleanup(n.kill)
	return n
}

// freePort returns a port below those that systems give to outgoing connections: a client that redials a server that is down could be
// given the server's own port, connect to itself and keep it.
func freePort() (int, error) {
	for range 200 {
		port := 15000 + rand.IntN(15000)
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no port is free between 15000 and 30000")
}

func (n *natsServer) url() string { return "nats://127.0.0.1:" + strconv.Itoa(n.port) }

func (n *natsServer) kill() { n.proc.kill() }

// snapshot copies what the server has on disk at one instant: it is stopped while that is done.
func (n *natsServer) snapshot(to string) error {
	n.proc.signal(syscall.SIGSTOP)
	defer n.proc.signal(syscall.SIGCONT)
	return os.CopyFS(to, os.DirFS(n.store))
}

// wipe removes everything that a server that is down has stored.
func (n *natsServer) wipe() error { return os.RemoveAll(n.store) }

// start starts the server on what its store has, and returns when JetStream answers.
func (n *natsServer) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("JetStream did not answer within a minute"))
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n.lives++
	n.proc, err = launch(filepath.Join(n.dir, fmt.Sprintf("nats.%03d.log", n.lives)), self,
		"-chaos.role=nats", "-chaos.port="+strconv.Itoa(n.port), "-chaos.store="+n.store)
	if err != nil {
		return err
	}
	for {
		err := n.answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-n.proc.ended:
			return fmt.Errorf("the NATS server ended: %s", lastWords(n.proc.said, 10))
		case <-ctx.Done():
			return fmt.Errorf("%w: %w: %s", context.Cause(ctx), err, lastWords(n.proc.said, 10))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (n *natsServer) answers(ctx context.Context) error {
	nc, js, err := n.connect()
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = js.AccountInfo(ctx)
	return err
}

func (n *natsServer) connect() (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(n.url(), nats.Name("chaos"), nats.Timeout(5*time.Second))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	return nc, js, err
}
