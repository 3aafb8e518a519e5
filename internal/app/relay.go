package app

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/postgres"
	"pollux/internal/survey"
)

// RelayCommand is the command of the outbox relay.
func RelayCommand() *cobra.Command {
	var once bool
	cmd := reloading(&cobra.Command{
		Use:   "outbox-relay",
		Short: "Publishes due polls and events from PostgreSQL to JetStream",
		Args:  NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := Load(config.Options{Flags: cmd.Flags(), Skip: Unused(message.UserRelay)})
			if err != nil {
				return err
			}
			if once {
				return relayOnce(cmd, cfg)
			}
			return serve(cmd.Context(), cfg, "outbox-relay", Relay)
		},
	})
	config.AddFlags(cmd.Flags())
	config.AddFlag(cmd.Flags(), "listen", "telemetry.listen", "where /metrics, /healthz and /readyz are served")
	addProbe(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "publish what is due and end, for cron")
	return cmd
}

// Relay runs an outbox relay until ctx ends.
func Relay(ctx context.Context, cfg config.Config, p *Process) error {
	r, err := openRelay(ctx, cfg, p)
	if err != nil {
		return err
	}
	defer r.close()
	p.Log.InfoContext(ctx, "relay starts", "queues", len(queues(cfg)), "every", cfg.Relay.Every)
	p.begins()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.relay.Run(ctx) })
	if cfg.Relay.Observe > 0 {
		surveyor := survey.New(cfg.Relay.Observe, postgres.NewSurvey(r.pool), r.conn, p.Metrics, p.Log).WithQueues(surveyed(cfg))
		g.Go(func() error { return surveyor.Run(ctx) })
	}
	return g.Wait()
}

// patienceOnce is how long a relay that is started by cron waits for the database and the broker: the next one comes soon.
const patienceOnce = 30 * time.Second

func relayOnce(cmd *cobra.Command, cfg config.Config) error {
	ctx := cmd.Context()
	cfg.Telemetry.Listen, cfg.Telemetry.PprofListen = "", ""
	cfg.Telemetry.CertFile, cfg.Telemetry.KeyFile, cfg.Telemetry.ClientCAFile = "", "", ""
	tel, _, err := openTelemetry(ctx, cfg, "outbox-relay", cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer closeTelemetry(ctx, tel)
	wait, cancel := context.WithTimeout(ctx, patienceOnce)
	defer cancel()
	r, err := openRelay(wait, cfg, NewProcess(tel))
	if err != nil {
		return err
	}
	defer r.close()
	polls, events, err := r.relay.Once(ctx)
	fmt.Fprintf(cmd.OutOrStdout(), "published %d polls and %d events\n", polls, events)
	return err
}

// surveyed are the queues of the configuration.
func surveyed(cfg config.Config) []survey.Queue {
	var all []survey.Queue
	for _, q := range queues(cfg) {
		all = append(all, survey.Queue{Gateway: q.Gateway, Lane: q.Lane})
	}
	return all
}

// openedRelay is a relay and what it needs.
type openedRelay struct {
	relay *outbox.Relay
	pool  *pgxpool.Pool
	probe *postgres.Probe
	conn  *broker.Conn // nil until it is there
}

func (r *openedRelay) close() {
	if r.conn != nil {
		r.conn.Close()
	}
	r.probe.Close()
	r.pool.Close()
}

func openRelay(ctx context.Context, cfg config.Config, p *Process) (r openedRelay, err error) {
	settings := relayConfig(cfg, p.name("outbox-relay"))
	if r.pool, err = p.pool(cfg, "pollux-relay", settings.Owner); err != nil {
		return r, err
	}
	r.probe = postgres.NewProbe(r.pool)
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	record := postgres.NewRelay(r.pool, cfg.Relay.KeepEvents, cfg.Relay.KeepAttempts)
	if err := p.await(ctx, p.database, record.Check); err != nil {
		return r, err
	}
	p.found(p.database, r.probe.Check)
	if r.conn, err = p.connect(ctx, cfg, "pollux-relay"); err != nil {
		return r, err
	}
	if err := p.selfCheck(ctx, cfg, message.UserRelay, r.pool, r.conn); err != nil {
		return r, err
	}
	p.found(p.broker, ready(r.conn))
	p.seePool(r.pool)
	p.seeBroker(r.conn)
	r.relay = outbox.New(settings, record, r.conn, p.Metrics, p.Log)
	if p.Tracing.On() {
		r.relay = r.relay.WithTracer(p.Tracing)
	}
	return r, nil
}

// pool opens the database for a service, which writes down there that its configuration was reloaded.
func (p *Process) pool(cfg config.Config, name, instance string) (*pgxpool.Pool, error) {
	if _, err := p.secured("database", cfg.Database.TLSFiles()); err != nil {
		return nil, err
	}
	pool, err := postgres.Open(postgres.Options{
		URL: cfg.Database.Access(), Fresh: cfg.Database.Fresh, MaxConns: cfg.Database.MaxConns, Name: name, Indexed: true, Traced: p.Tracing.On(),
	})
	if err != nil {
		return nil, err
	}
	p.chronicled(postgres.NewReloads(pool, instance).Record)
	return pool, nil
}

// connect opens the broker and waits until its streams are as they were declared.
func (p *Process) connect(ctx context.Context, cfg config.Config, name string) (*broker.Conn, error) {
	certificates, err := p.secured("nats", cfg.NATS.TLSFiles())
	if err != nil {
		return nil, err
	}
	conn, err := broker.Connect(ctx, brokerConfig(cfg, name, certificates), p.Log)
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, p.broker, conn.Check); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
