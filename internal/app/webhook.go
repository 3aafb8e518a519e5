package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"pollux/internal/config"
	"pollux/internal/gateway"
	"pollux/internal/postgres"
	"pollux/internal/telemetry"
	"pollux/internal/webhook"
)

// WebhookCommand is the command of the receiver of notifications.
func WebhookCommand() *cobra.Command {
	cmd := reloading(&cobra.Command{
		Use:   "webhook",
		Short: "Receives gateways' notifications, verifies them and applies what they say",
		Args:  NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := Load(config.Options{Flags: cmd.Flags(), Skip: Unused(programWebhook)})
			if err != nil {
				return err
			}
			if len(cfg.Webhooks.Gateways) == 0 {
				return NotTried(Hint(errors.New("no gateway sends notifications: webhooks.gateways is empty"), "write one; docs/webhooks.md says how"))
			}
			return serveIn(cmd.Context(), cfg, "webhook", newRecordProcess, Webhook)
		},
	})
	config.AddFlags(cmd.Flags())
	config.AddFlag(cmd.Flags(), "listen", "telemetry.listen", "where /metrics, /healthz and /readyz are served")
	config.AddFlag(cmd.Flags(), "address", "webhooks.listen", "where notifications are taken")
	addProbe(cmd)
	return cmd
}

// Webhook receives the notifications of the configured gateways until ctx ends. It needs the database only: what it changes is published by the relay.
func Webhook(ctx context.Context, cfg config.Config, p *Process) error {
	endpoints, err := Endpoints(cfg)
	if err != nil {
		return err
	}
	return Receive(ctx, cfg, p, endpoints)
}

// Receive is Webhook for endpoints that were made already.
func Receive(ctx context.Context, cfg config.Config, p *Process, endpoints []webhook.Endpoint) error {
	source, err := p.secured("webhooks", cfg.Webhooks.TLSFiles())
	if err != nil {
		return err
	}
	var secured *tls.Config
	if source != nil {
		secured = source.Server()
	}
	name := p.name("webhook")
	pool, err := p.pool(cfg, "pollux-webhook", name)
	if err != nil {
		return err
	}
	defer pool.Close()
	record := postgres.NewWebhooks(pool, name)
	if err := p.await(ctx, p.database, record.Check); err != nil {
		return err
	}
	if err := p.selfCheck(ctx, cfg, programWebhook, pool, nil); err != nil {
		return err
	}
	p.seePool(pool)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Webhooks.Listen)
	if err != nil {
		return taken(fmt.Errorf("taking notifications at %s: %w", cfg.Webhooks.Listen, err), "--address or webhooks.listen says where")
	}
	recorder := webhook.NewRecorder(webhookRecorderConfig(cfg), record, p.Metrics, p.Log)
	defer recorder.Close()
	hints := webhook.NewHints(hintsConfig(cfg), record, p.Metrics, p.Log)
	receiver := webhook.NewReceiver(receiverConfig(cfg, hints), endpoints, recorder, p.Metrics, p.Log)
	if p.Tracing.On() {
		receiver = receiver.WithTracer(p.Tracing)
	}
	err = p.follow(func(next *config.Config) (func(), error) {
		endpoints, err := Endpoints(*next)
		return func() { receiver.Replace(endpoints) }, err
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	watch := webhook.NewWatch(watchConfig(cfg), record, p.Metrics, p.Log)

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return watch.Run(ctx) })
	g.Go(func() error { return hints.Run(ctx) })
	g.Go(func() error {
		return webhook.Serve(ctx, serverConfig(cfg), listener, secured, receiver, p.Metrics, p.Log)
	})
	probe := postgres.NewProbe(pool)
	defer probe.Close()
	p.found(p.database, probe.Check)
	if p.Listening != nil {
		p.Listening(listener.Addr())
	}
	p.Log.InfoContext(ctx, "receiver of notifications starts", "address", listener.Addr().String(), "endpoints", len(endpoints), "tls", secured != nil)
	return g.Wait()
}

// Endpoints are all endpoints of the configuration.
func Endpoints(c config.Config) ([]webhook.Endpoint, error) {
	var all []webhook.Endpoint
	var errs []error
	for _, name := range hookNames(c) {
		some, wrong := c.Webhooks.Gateways[name].Endpoints(name)
		for _, err := range wrong {
			errs = append(errs, fmt.Errorf("webhooks.gateways.%s.%w", name, err))
		}
		all = append(all, some...)
	}
	return all, errors.Join(errs...)
}

func hookNames(c config.Config) []string {
	names := make([]string, 0, len(c.Webhooks.Gateways))
	for name := range c.Webhooks.Gateways {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func webhookRecorderConfig(c config.Config) webhook.RecorderConfig {
	r := c.Webhooks.Record
	return webhook.RecorderConfig{Batch: r.Batch, Writers: r.Writers, Patience: r.Patience}
}

func receiverConfig(c config.Config, hints *webhook.Hints) webhook.ReceiverConfig {
	w := c.Webhooks
	return webhook.ReceiverConfig{MaxBody: int64(w.MaxBodyBytes), BodyTimeout: w.BodyTimeout, Checking: 4 * runtime.GOMAXPROCS(0), Keeping: w.Keeping, Hints: hints}
}

// hintsConfig are the gateways whose unverified notifications may make a poll due: a minute after what was done last for the payment, or later where the gateway wishes to be
// asked seldom.
func hintsConfig(c config.Config) map[string]webhook.Unverified {
	all := map[string]webhook.Unverified{}
	for name, h := range c.Webhooks.Gateways {
		can := c.Gateways[name].Capabilities()
		if h.Unverified == config.UnverifiedHint && can.Polling != gateway.Never {
			all[name] = webhook.Unverified{Rate: float64(h.HintRate), Rest: max(hintRest, can.MinInterval)}
		}
	}
	return all
}

func serverConfig(c config.Config) webhook.ServerConfig {
	w := c.Webhooks
	return webhook.ServerConfig{
		HeaderTimeout: w.HeaderTimeout, IdleTimeout: w.IdleTimeout, WriteTimeout: w.BodyTimeout + 3*w.Record.Patience + 5*time.Second,
		MaxHeader: w.MaxHeaderBytes, MaxConns: w.MaxConnections, Drain: w.Drain,
	}
}

const (
	// lookEvery is how often it is looked for notices that are due: a look that finds none costs the database 0.03 ms.
	lookEvery = 250 * time.Millisecond
	// meetEvery is how often it is looked whether a payment was tracked that a notice waits for.
	meetEvery = 500 * time.Millisecond
	// meetReach bounds the payments that such a look reads: those of the last seconds, at thousands a second. What is older is found by how long its notice has waited.
	meetReach = 10_000
	// hintRest is how long no poll is due by a notification that is not believed, after what was done last for the payment.
	hintRest = time.Minute
	// listenEvery is how often it is looked whether a gateway is silent: silence is a matter of minutes.
	listenEvery = 30 * time.Second
	// watchBatch bounds the rows of one step.
	watchBatch = 500
)

func watchConfig(c config.Config) webhook.WatchConfig {
	w := webhook.WatchConfig{Look: lookEvery, Meet: meetEvery, Reach: meetReach, Patience: c.Webhooks.WaitForPayment, Keep: c.Webhooks.KeepEvents, Batch: watchBatch, Every: listenEvery,
		Gateways: map[string]webhook.Silence{}}
	for name, h := range c.Webhooks.Gateways {
		s := webhook.Silence{After: h.Silence.After, Pending: h.Silence.Pending, Within: h.Silence.PollWithin}
		if c.Gateways[name].WebhookOnly {
			s.Within = 0
		}
		w.Gateways[name] = s
	}
	return w
}

var (
	_ webhook.Metrics = (*telemetry.Metrics)(nil)
	_ webhook.Tracer  = (*telemetry.Tracing)(nil)
)
