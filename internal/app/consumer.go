package app

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/consumer"
	"pollux/internal/fleet"
	"pollux/internal/message"
	"pollux/internal/postgres"
	"pollux/internal/redelivery"
	"pollux/internal/telemetry"
	"pollux/internal/webhook"
)

// ConsumerCommand is the command of the consumer.
func ConsumerCommand() *cobra.Command {
	cmd := reloading(&cobra.Command{
		Use:   "consumer",
		Short: "Polls gateways about pending payments and records what they say",
		Args:  NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := Load(config.Options{Flags: cmd.Flags(), Skip: Unused(message.UserConsumer)})
			if err != nil {
				return err
			}
			return serve(cmd.Context(), cfg, "consumer", Consumer)
		},
	})
	config.AddFlags(cmd.Flags())
	config.AddFlag(cmd.Flags(), "listen", "telemetry.listen", "where /metrics, /healthz and /readyz are served")
	addProbe(cmd)
	return cmd
}

// Consumer works off the queues of all configured gateways until ctx ends.
func Consumer(ctx context.Context, cfg config.Config, p *Process) error {
	gateways, err := p.renewable(cfg)
	if err != nil {
		return err
	}
	defer closeAll(gateways)
	for _, q := range consumed(cfg) {
		if err := consumerConfig(cfg, q).Validate(); err != nil {
			return err
		}
	}
	name := p.name("consumer")
	recording := recorderConfig(cfg, name)
	pool, err := p.pool(cfg, "pollux-consumer", name)
	if err != nil {
		return err
	}
	defer pool.Close()
	record := postgres.NewJobs(pool)
	if err := p.await(ctx, p.database, record.Check); err != nil {
		return err
	}
	probe := postgres.NewProbe(pool)
	defer probe.Close()
	p.found(p.database, probe.Check)
	conn, err := p.connect(ctx, cfg, "pollux-consumer")
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := p.selfCheck(ctx, cfg, message.UserConsumer, pool, conn); err != nil {
		return err
	}

	members := fleet.New(fleet.Options{ID: memberOf(name), KV: conn.KV(), Log: p.Log})
	entrances, err := gates(cfg, members)
	if err != nil {
		return err
	}
	if err := p.follow(func(next *config.Config) (func(), error) { return regate(entrances, next) }); err != nil {
		return err
	}
	now := p.hold(cfg)
	defer p.join(ctx, members, name, postgres.NewBreakers(pool))()

	p.seePool(pool)
	p.seeBroker(conn)
	p.Metrics.WatchGates(slices.Collect(maps.Values(entrances)), members.Apart)
	recorder := consumer.NewRecorder(recording, record, p.Metrics, p.Log).WithSleeper(bed{conn})
	if p.Tracing.On() {
		recorder = recorder.WithTracer(p.Tracing)
	}
	defer recorder.Close()
	g, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, q := range consumed(cfg) {
		gate := entrances[q.Gateway]
		wanted := func() consumer.Bounds { return bounds(now.Load(), q) }
		subscribed := subscription(cfg, q)
		subscribed.Wanted = func() int { return wanted().Workers }
		source, err := p.source(ctx, conn, subscribed, gate)
		if err != nil {
			stop()
			return errors.Join(err, g.Wait())
		}
		worker := consumer.New(consumerConfig(cfg, q), seated{source, gate}, gateways[q.Gateway], record, recorder,
			func(class string) redelivery.Policy { return now.Load().Policy(q.Gateway, class) }, p.Metrics, p.Tracing, p.Log).
			WithGate(entrance{gate, kinds[q.Lane], q.Gateway, p.Metrics}).WithBounds(wanted)
		g.Go(func() error { return worker.Run(ctx) })
	}
	notices := postgres.NewWebhooks(pool, name)
	fetcher := webhook.NewFetcher(p.fetchConfig(cfg, gateways, entrances), notices, notices, p.Metrics, p.Log)
	g.Go(func() error { return fetcher.Run(ctx) })
	p.found(p.broker, ready(conn))
	p.Log.InfoContext(ctx, "consumer starts", "gateways", len(gateways), "lanes", len(cfg.Consumer.Lanes))
	p.begins()
	return g.Wait()
}

// join takes part in the fleet until the returned function is called, and writes down under its name what it changes there. It waits a moment for what the fleet knows, and goes on without it.
func (p *Process) join(ctx context.Context, f *fleet.Fleet, name string, rows *postgres.Breakers) (leave func()) {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	tasks.Go(func() {
		if err := f.Run(run); err != nil && run.Err() == nil {
			p.Log.Error("the fleet goes on without this instance; its breakers and limits are its own now", "error", err)
		}
	})
	tasks.Go(func() { chronicle(run, f, name, p.Telemetry, rows) })
	known, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := f.Ready(known); err != nil && ctx.Err() == nil {
		p.Log.Warn("what the fleet knows of its breakers is not known yet", "error", err, "hint", "pollux streams apply")
	}
	return func() { stop(); tasks.Wait() }
}

// source is where the deliveries of a queue come from: from the broker, or, for what sleeps, from the broker while its breaker lets it.
func (p *Process) source(ctx context.Context, conn *broker.Conn, c broker.SubscribeConfig, gate *fleet.Gate) (consumer.Source, error) {
	if c.Queue.Lane == message.LaneDeferred {
		return &sleepers{conn: conn, cfg: c, gate: gate}, nil
	}
	return p.subscribe(ctx, conn, c)
}

// subscribe waits until a queue's deliveries can be taken: a broker that went away again comes back, and a consumer that is not as the
// configuration says is put right by an operator.
func (p *Process) subscribe(ctx context.Context, conn *broker.Conn, c broker.SubscribeConfig) (source *broker.Source, err error) {
	err = p.await(ctx, p.broker, func(ctx context.Context) (err error) {
		source, err = conn.Subscribe(ctx, c)
		return err
	})
	return source, err
}

var (
	_ consumer.Tracer      = (*telemetry.Tracing)(nil)
	_ consumer.BatchTracer = (*telemetry.Tracing)(nil)
	_ consumer.Metrics     = (*telemetry.Metrics)(nil)
)
