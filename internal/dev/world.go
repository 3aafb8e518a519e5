package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"pollux"
	"pollux/internal/app"
	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/gatewaysim"
	"pollux/internal/localpg"
	"pollux/internal/natsembed"
	"pollux/internal/payment"
	"pollux/internal/postgres"
	"pollux/internal/telemetry"
)

// Gateway is the name of the simulator in the configuration, Class the class of the payments that are tracked: its policy waits
// seconds where a real one waits minutes.
const (
	Gateway = "sim"
	Class   = "demo"
)

// world is everything that runs.
type world struct {
	options Options
	dir     string
	sim     *gatewaysim.Simulator
	psql    string // how to call psql
	dsn     string
	natsURL string
	cfg     config.Config
	pool    *pgxpool.Pool
	conn    *broker.Conn
	tel     *telemetry.Telemetry
	first   payment.ID // the first payment of this run; those before are not ours

	stopServices context.CancelFunc
	services     errgroup.Group
	closers      []closer // in the order in which they were opened
}

type closer struct {
	what  string
	close func(context.Context) error
}

// open starts everything. What it started it stops again when a later part does not start.
func open(ctx context.Context, o Options, say func(string, ...any)) (_ *world, err error) {
	w := &world{options: o, psql: "psql", stopServices: func() {}}
	defer func() {
		if err != nil {
			w.close(func(string, ...any) {})
		}
	}()
	if w.dir, err = os.MkdirTemp("", "pollux-dev-"); err != nil {
		return nil, fmt.Errorf("making a temporary folder: %w", err)
	}
	w.onClose("folder", func(context.Context) error { return os.RemoveAll(w.dir) })
	for _, start := range []func(context.Context, func(string, ...any)) error{w.startDatabase, w.startBroker, w.startGateway, w.configure, w.prepare} {
		if err := start(ctx, say); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *world) onClose(what string, close func(context.Context) error) {
	w.closers = append(w.closers, closer{what, close})
}

func (w *world) startDatabase(ctx context.Context, say func(string, ...any)) error {
	if w.dsn = w.options.DatabaseURL; w.dsn != "" {
		return nil
	}
	bin, err := localpg.Ensure(ctx, func(s string) { say("%s", s) })
	if err != nil {
		return err
	}
	server, err := localpg.Start(ctx, localpg.Options{Bin: bin, Settings: map[string]string{"shared_buffers": "256MB", "max_wal_size": "2GB"}})
	if err != nil {
		return err
	}
	w.onClose("PostgreSQL", server.Stop)
	if beside := filepath.Join(bin, "psql"); exists(beside) && !onPath("psql") {
		w.psql = beside
	}
	w.dsn = server.DSN("postgres")
	return nil
}

func (w *world) startBroker(context.Context, func(string, ...any)) error {
	if w.natsURL = w.options.NATSURL; w.natsURL != "" {
		return nil
	}
	server, err := natsembed.Start(natsembed.Options{StoreDir: filepath.Join(w.dir, "jetstream")})
	if err != nil {
		return err
	}
	w.onClose("NATS", func(context.Context) error { return server.Stop() })
	w.natsURL = server.URL()
	return nil
}

func (w *world) startGateway(context.Context, func(string, ...any)) error {
	w.sim = gatewaysim.New(gatewaysim.Config{Seed: w.options.Seed, Scenario: w.options.Scenario, Adjust: w.adjust})
	if err := w.sim.Start("127.0.0.1:0"); err != nil {
		return err
	}
	w.onClose("gateway", func(context.Context) error { return w.sim.Close() })
	return nil
}

// adjust gives the gateway the latency that was asked for. One that is asked for at all is for measuring: payments are then final at the
// first poll, so that polls and payments are the same number.
func (w *world) adjust(c gatewaysim.Conditions) gatewaysim.Conditions {
	if w.options.Latency >= 0 {
		c.Latency, c.Jitter = w.options.Latency, 0
		c.Mix.MinPending, c.Mix.MaxPending = 0, 0
	}
	return c
}

// configure reads the example configuration and changes in it what is different here.
func (w *world) configure(context.Context, func(string, ...any)) error {
	file, key := filepath.Join(w.dir, "pollux.yaml"), filepath.Join(w.dir, "sim.key")
	if err := errors.Join(os.WriteFile(file, pollux.ExampleConfig, 0o600), os.WriteFile(key, []byte(gatewaysim.DefaultAPIKey), 0o600)); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	dsn := filepath.Join(w.dir, "database.url")
	if err := os.WriteFile(dsn, []byte(w.dsn), 0o600); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	set := append(demoPolicy(),
		"database.url=file:"+dsn,
		"nats.urls="+w.natsURL,
		"telemetry.listen=127.0.0.1:0",
		"relay.watch=1s",
		"gateways."+Gateway+".httpjson.url="+w.sim.URL()+"/v1/payments/{reference}",
		"gateways."+Gateway+".httpjson.auth.token=file:"+key,
		"gateways."+Gateway+".breaker.slow_call=1s",
		"gateways."+Gateway+".breaker.cooldown.base=500ms",
		"gateways."+Gateway+".breaker.cooldown.cap=2s",
		"gateways."+Gateway+".breaker.credential_cooldown.base=1s",
		"gateways."+Gateway+".breaker.credential_cooldown.cap=2s",
		"gateways."+Gateway+".breaker.probe_deadline=3s",
		"gateways."+Gateway+".breaker.ramp_step=200ms",
		"gateways."+Gateway+".httpjson.timeout=2s",
		"gateways."+Gateway+".httpjson.connect_timeout=1s",
		"gateways."+Gateway+".httpjson.tls_timeout=1s",
	)
	if !w.options.Verbose {
		set = append(set, "log.level=error")
	}
	var err error
	w.cfg, err = config.Load(config.Options{File: file, Environ: []string{}, Set: slices.Concat(set, w.options.Set)})
	return err
}

// demoPolicy is a policy that waits seconds where a real one waits minutes, for people who look on.
func demoPolicy() []string {
	policy, class := "policies."+Class+".", "classes."+Class+"="
	return []string{
		class + Class,
		policy + "pending.list=500ms,1s,2s",
		policy + "pending.jitter=20%",
		policy + "error.base=250ms",
		policy + "error.cap=3s",
		policy + "error.jitter=equal",
		policy + "max_attempts=20",
		policy + "max_failures=20",
		policy + "window=90s",
		policy + "not_found_grace=5s",
		policy + "unauthorized_delay=1s",
		policy + "max_retry_after=10s",
	}
}

// prepare migrates the schema, applies the streams and opens what the launcher itself looks at them with.
func (w *world) prepare(ctx context.Context, _ func(string, ...any)) error {
	if _, err := postgres.Migrate(ctx, w.dsn); err != nil {
		return err
	}
	pool, err := postgres.Open(postgres.Options{URL: w.dsn, MaxConns: 4, Name: "pollux-dev"})
	if err != nil {
		return err
	}
	w.pool = pool
	w.onClose("connections", func(context.Context) error { pool.Close(); return nil })
	if err := pool.QueryRow(ctx, `select coalesce(max(id), 0) + 1 from pollux.payments`).Scan(&w.first); err != nil {
		return fmt.Errorf("reading the payments that were there before: %w", err)
	}
	if w.conn, err = app.Dial(ctx, w.cfg, "pollux-dev"); err != nil {
		return err
	}
	w.onClose("broker connection", func(context.Context) error { w.conn.Close(); return nil })
	if _, err = w.conn.Apply(ctx, broker.Options{}); err != nil {
		return err
	}
	return w.conn.EnsureKV(ctx, 0)
}

// startServices starts the relay and the consumers, in this process but as they run in production: each with its own connections.
func (w *world) startServices() {
	ctx, stop := context.WithCancel(context.Background())
	w.stopServices = stop
	out := io.Writer(os.Stderr)
	var err error
	if w.tel, err = telemetry.New(ctx, app.TelemetryConfig(w.cfg, "dev"), out); err != nil {
		w.services.Go(func() error { return err })
		return
	}
	process := app.NewProcess(w.tel)
	w.services.Go(func() error { return w.tel.Run(ctx) })
	w.services.Go(func() error { return app.Relay(ctx, w.cfg, process) })
	for range w.options.Consumers {
		w.services.Go(func() error { return app.Consumer(ctx, w.cfg, process) })
	}
}

// introduce says where everything is.
func (w *world) introduce(say func(string, ...any)) {
	say("database  %s '%s'", w.psql, w.dsn)
	say("NATS      nats --server %s stream ls", w.natsURL)
	say("gateway   curl %s/sim/stats   (scenario %s)", w.sim.URL(), w.options.Scenario)
	say("metrics   curl http://%s/metrics", w.tel.Addr())
	say("")
	say("Track a payment of your own, in psql; the simulator knows any reference of the form name_amount_CURRENCY:")
	say("  select pollux.track_payment('%s', 'mine_1999_EUR', 1999, 'EUR', class => '%s');", Gateway, Class)
	say("  select status, status_detail, status_updated_at - created_at as took from pollux.payments where reference = 'mine_1999_EUR';")
	say("")
}

// close stops everything in the reverse order: first the services, which finish what they have begun.
func (w *world) close(say func(string, ...any)) {
	w.stopServices()
	if err := w.services.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		say("the services ended with: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if w.tel != nil {
		w.onClose("telemetry", w.tel.Close)
	}
	for _, c := range slices.Backward(w.closers) {
		if err := c.close(ctx); err != nil {
			slog.Warn("closing", "what", c.what, "error", err)
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func onPath(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}
