package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"pollux"
	"pollux/internal/app"
	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/dialect"
	"pollux/internal/gatewaysim/notify"
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
	fail    context.CancelCauseFunc
	screen  *screen

	dir       string
	stations  []*station         // the gateways; at least one
	authority *dialect.Authority // for the notifications of PayPal; nil without any
	psql      string             // how to call psql
	dsn       string
	natsURL   string
	cfg       config.Config
	pool      *pgxpool.Pool
	conn      *broker.Conn
	tel       *telemetry.Telemetry
	first     payment.ID   // the first payment of this run; those before are not ours
	made      atomic.Int64 // payments that were tracked
	began     time.Time    // when the services were started
	stalls    stalls
	mended    atomic.Int64 // when the launcher itself made the gateway well again, in Unix nanoseconds
	file      string       // the configuration, and what is different from it
	set       []string

	stopServices context.CancelFunc
	services     errgroup.Group
	closers      []closer // in the order in which they were opened
}

type closer struct {
	what  string
	close func(context.Context) error
}

// open starts everything but the services. What it started it stops again when a later part does not start. fail is called when a service fails.
func open(ctx context.Context, o Options, s *screen, fail context.CancelCauseFunc) (_ *world, err error) {
	w := &world{options: o, fail: fail, screen: s, psql: "psql", stopServices: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.dir, err = os.MkdirTemp("", "pollux-dev-"); err != nil {
		return nil, fmt.Errorf("making a temporary folder: %w", err)
	}
	w.onClose("the folder", func(context.Context) error { return os.RemoveAll(w.dir) })
	for _, start := range []func(context.Context) error{w.startDatabase, w.startBroker, w.startGateways, w.configure, w.prepare} {
		if err := start(ctx); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *world) say(format string, a ...any) { w.screen.say(format, a...) }

func (w *world) onClose(what string, close func(context.Context) error) {
	w.closers = append(w.closers, closer{what, close})
}

// logFile is where the services' log goes unless it is shown.
func (w *world) logFile() string { return filepath.Join(w.dir, "pollux.log") }

func (w *world) startDatabase(ctx context.Context) error {
	if w.dsn = w.options.DatabaseURL; w.dsn != "" {
		return nil
	}
	bin, err := localpg.Ensure(ctx, func(s string) { w.say("%s", s) })
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

func (w *world) startBroker(context.Context) error {
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

func (w *world) startGateways(context.Context) error {
	chosen, err := parts(w.options.Gateways)
	if err != nil {
		return err
	}
	for _, p := range chosen {
		p, err := w.certified(p)
		if err != nil {
			return err
		}
		s := &station{part: p, sim: gatewaysim.New(gatewaysim.Config{
			Dialect: p.dialect, APIKey: p.secrets["key"], Seed: w.options.Seed, Scenario: w.options.Scenario, Adjust: w.adjust,
		})}
		if err := s.sim.Start("127.0.0.1:0"); err != nil {
			return err
		}
		w.onClose("the gateway "+p.name, func(context.Context) error { return s.sim.Close() })
		if p.vendor != nil {
			s.sender = notify.New(notify.Config{
				Simulator: s.sim, Vendor: p.vendor, Faults: mishaps, Insist: p.insists, Seed: w.options.Seed,
			})
		}
		w.stations = append(w.stations, s)
	}
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

// configure reads the example configuration and changes in it what is different here. Gateways that were chosen stand in an empty one.
func (w *world) configure(context.Context) error {
	file, content := filepath.Join(w.dir, "pollux.yaml"), pollux.ExampleConfig
	if len(w.options.Gateways) > 0 {
		content = nil
	}
	if err := errors.Join(os.WriteFile(file, content, 0o600), w.writeSecrets()); err != nil {
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
		"webhooks.listen=127.0.0.1:0",
	)
	for _, s := range w.stations {
		set = append(set, s.settings(w.dir, w.options.GatewayRate)...)
	}
	if w.options.KillProber {
		set = append(set, killedProber()...)
	}
	var err error
	w.file, w.set = file, slices.Concat(set, w.options.Set)
	w.cfg, err = app.Load(config.Options{File: w.file, Environ: []string{}, Set: w.set})
	if err != nil && (w.options.DatabaseURL != "" || w.options.NATSURL != "") {
		err = app.Hint(err, "here database.url is --database-url, and nats.urls is --nats-url")
	}
	if err != nil {
		return err
	}
	return w.leaveConfig()
}

// leaveConfig writes the configuration as it is in force, for the operators' command.
func (w *world) leaveConfig() error {
	text, err := w.cfg.YAML()
	if err == nil {
		err = os.WriteFile(w.file, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	return nil
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
func (w *world) prepare(ctx context.Context) error {
	if _, err := postgres.Migrate(ctx, w.dsn); err != nil {
		if w.options.DatabaseURL != "" && unconnected(err) {
			err = app.Hint(err, "does PostgreSQL run where --database-url says, and let this user in? without the flag dev starts one of its own")
		}
		return err
	}
	pool, err := postgres.Open(postgres.Options{URL: w.dsn, MaxConns: 4, Name: "pollux-dev"})
	if err != nil {
		return err
	}
	w.pool = pool
	w.onClose("the connections to PostgreSQL", func(context.Context) error { pool.Close(); return nil })
	if err := pool.QueryRow(ctx, `select coalesce(max(id), 0) + 1 from pollux.payments`).Scan(&w.first); err != nil {
		return fmt.Errorf("reading the payments that were there before: %w", err)
	}
	dial, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if w.conn, err = app.Dial(dial, w.cfg, "pollux-dev"); err != nil {
		if w.options.NATSURL != "" {
			err = app.Hint(err, "does NATS run where --nats-url says, with JetStream? without the flag dev has one of its own")
		}
		return err
	}
	w.onClose("the connection to NATS", func(context.Context) error { w.conn.Close(); return nil })
	if _, err = w.conn.Apply(ctx, broker.Options{}); err != nil {
		return err
	}
	return w.conn.EnsureKV(ctx, 0)
}

// unconnected reports whether an error is of a database that cannot be reached.
func unconnected(err error) bool {
	var connect *pgconn.ConnectError
	return errors.As(err, &connect)
}

// dialTimeout bounds the first connection to a NATS that exists.
const dialTimeout = 10 * time.Second

// startServices starts the relay and the consumers, in this process but as they run in production: each with its own connections. The windows of the
// gateway's scenario count from here. It returns when all of them work, or when running ends.
func (w *world) startServices(running context.Context) error {
	for _, s := range w.stations {
		if err := s.sim.SetScenario(w.options.Scenario); err != nil {
			return err
		}
	}
	w.began = time.Now()
	ctx, stop := context.WithCancel(context.Background())
	w.stopServices = stop
	log, err := w.log()
	if err != nil {
		return err
	}
	if w.tel, err = telemetry.New(ctx, app.TelemetryConfig(w.cfg, "dev"), log); err != nil {
		return err
	}
	w.onClose("the telemetry", w.tel.Close)
	process := app.NewProcess(w.tel)
	started := make(chan struct{}, 1+w.options.Consumers)
	process.Started = func() { started <- struct{}{} }
	w.start(ctx, "the telemetry", w.tel.Run)
	w.start(ctx, "the watch over stalls", w.stalls.run)
	w.start(ctx, "the relay", func(ctx context.Context) error { return app.Relay(ctx, w.cfg, process) })
	if w.options.KillProber {
		return w.startChildren(ctx)
	}
	for range w.options.Consumers {
		w.start(ctx, "a consumer", func(ctx context.Context) error { return app.Consumer(ctx, w.cfg, process) })
	}
	for range cap(started) {
		select {
		case <-started:
		case <-running.Done():
			return context.Cause(running)
		}
	}
	return w.startSenders(running, ctx, process)
}

// start starts a service whose failure is the end of the run.
func (w *world) start(ctx context.Context, what string, service func(context.Context) error) {
	w.services.Go(func() error {
		err := service(ctx)
		if err == nil || errors.Is(err, context.Canceled) {
			return nil
		}
		err = fmt.Errorf("%s: %w", what, err)
		w.fail(err)
		return err
	})
}

// log is where the services' log goes.
func (w *world) log() (io.Writer, error) {
	if w.options.Verbose {
		return w.screen, nil
	}
	f, err := os.OpenFile(w.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the services' log: %w", err)
	}
	w.onClose("the services' log", func(context.Context) error { return f.Close() })
	return f, nil
}

// closeTimeout bounds the end of what the services used. PostgreSQL takes the longest, a second.
const closeTimeout = 20 * time.Second

// close stops everything in the reverse order: first the services, which finish what they have begun.
func (w *world) close() error {
	w.stopServices()
	errs := []error{w.services.Wait()}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, c := range slices.Backward(w.closers) {
		if err := c.close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("closing %s: %w", c.what, err))
		}
	}
	return errors.Join(errs...)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func onPath(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}
