package app

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"pollux/internal/broker"
	"pollux/internal/certificate"
	"pollux/internal/config"
	"pollux/internal/consumer"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/secret"
	"pollux/internal/telemetry"
)

// TelemetryConfig is how a service with this configuration is seen.
func TelemetryConfig(c config.Config, service string) telemetry.Config {
	return telemetry.Config{
		Service: service, Version: Version(), Instance: instance(service),
		LogFormat: c.Log.Format, LogLevel: slog.Level(c.Log.Level),
		Listen: c.Telemetry.Listen, PprofListen: c.Telemetry.PprofListen,
		OTLPEndpoint: c.Telemetry.OTLPEndpoint, OTLP: otlpConfig(c.Telemetry), TraceRatio: c.Telemetry.TraceRatio.Ratio(),
		Stale:    max(2*time.Minute, 3*c.Relay.Watch),
		Gateways: append(gatewayNames(c), hookNames(c)...), Classes: classNames(c), MaxGateways: c.Telemetry.MaxGateways,
	}
}

// otlpConfig says how telemetry is pushed.
func otlpConfig(t config.Telemetry) telemetry.OTLP {
	every := t.OTLPEvery
	if every == 0 {
		every = -1
	}
	return telemetry.OTLP{Every: every, Headers: t.OTLPHeaders, CAFile: t.OTLPCAFile, CertFile: t.OTLPCertFile, KeyFile: t.OTLPKeyFile}
}

// Dial opens the broker without looking at its streams. The name is how the server shows us; behind "pollux-" it is the user whose inbox prefix we have.
func Dial(ctx context.Context, c config.Config, name string) (*broker.Conn, error) {
	var certificates *certificate.Source
	if f := c.NATS.TLSFiles(); !f.Empty() {
		var err error
		if certificates, err = certificate.Open("nats", f); err != nil {
			return nil, NotTried(err)
		}
	}
	return broker.Connect(ctx, brokerConfig(c, name, certificates), slog.New(slog.DiscardHandler))
}

func brokerConfig(c config.Config, name string, certificates *certificate.Source) broker.Config {
	n := c.NATS
	password := n.Password.Value()
	if n.Password.File() != "" { // it is read again at each connection
		password = secret.Secret{}
	}
	return broker.Config{
		URLs: n.URLs, Name: name,
		CredentialsFile: n.CredentialsFile, NKeyFile: n.NKeyFile, User: n.User, Password: password, PasswordFile: n.Password.File(),
		TLS: certificates, ServerName: n.ServerName, InboxPrefix: cmp.Or(n.InboxPrefix, message.InboxPrefix(strings.TrimPrefix(name, "pollux-"))),
		PublishTimeout: c.Relay.PublishTimeout, MaxOutstanding: n.MaxOutstanding, Batches: n.Batches, BatchThreshold: n.BatchThreshold,
	}
}

func relayConfig(c config.Config, owner string) outbox.Config {
	r := c.Relay
	return outbox.Config{
		Owner: owner, Queues: queues(c),
		Every: r.Every, Batch: r.Batch, InFlight: r.InFlight, Lease: r.Lease, Backlog: r.Backlog,
		PublishTimeout: r.PublishTimeout, Retry: r.Retry, Watch: r.Watch,
	}
}

func recorderConfig(c config.Config, worker string) consumer.RecorderConfig {
	r := c.Consumer.Record
	return consumer.RecorderConfig{
		Worker: worker, Lease: c.Consumer.Lease,
		Batch: r.Batch, Linger: r.Linger, Writers: r.Writers, Patience: r.Patience,
	}
}

// consumerConfig is that of one queue.
func consumerConfig(c config.Config, q outbox.Queue) consumer.Config {
	return consumer.Config{
		Gateway: q.Gateway, Lane: q.Lane, Deferred: q.Lane == message.LaneDeferred, Workers: c.Gateways[q.Gateway].Workers,
		AckWait: c.Consumer.AckWait, Lease: c.Consumer.Lease, HoldBudget: bounds(&c, q).HoldBudget, Drain: c.Consumer.Drain, Build: Version(),
	}
}

// bounds are those of one queue. At a gateway with a rate no more is in hand than has its turn within two seconds, and no more is held than a second's
// calls, so that what is held never stands long before fresh payments.
func bounds(c *config.Config, q outbox.Queue) consumer.Bounds {
	g := c.Gateways[q.Gateway]
	b := consumer.Bounds{Workers: g.Workers, HoldBudget: c.Consumer.HoldBudget}
	if rate := float64(g.Limits.Rate); rate > 0 {
		b.Workers, b.HoldBudget = min(b.Workers, int(2*rate)+1), min(b.HoldBudget, int(rate))
	}
	if q.Lane == message.LaneDeferred {
		b.HoldBudget = 0
	}
	return b
}

// consumed are the queues that a consumer works on: what the relay publishes to, and what sleeps.
func consumed(c config.Config) []outbox.Queue {
	all := queues(c)
	for _, name := range gatewayNames(c) {
		all = append(all, outbox.Queue{Gateway: name, Lane: message.LaneDeferred})
	}
	return all
}

func subscription(c config.Config, q outbox.Queue) broker.SubscribeConfig {
	return broker.SubscribeConfig{
		Queue: q, AckWait: c.Consumer.AckWait, MaxAckPending: c.Consumer.MaxAckPending, Prefetch: c.Gateways[q.Gateway].Workers,
	}
}

// Access is what the permissions of NATS depend on.
func Access(c config.Config) broker.Access {
	return broker.Access{Queues: queues(c), Readers: c.NATS.Readers, Admins: c.NATS.Admins}
}

// Subscriptions are how the consumers of all configured gateways take deliveries.
func Subscriptions(c config.Config) []broker.SubscribeConfig {
	var all []broker.SubscribeConfig
	for _, q := range queues(c) {
		all = append(all, subscription(c, q))
	}
	return all
}

// queues are the queues of the configured gateways that the relay publishes to, in a fixed order: the lanes of fresh payments, and those of retries and
// replays.
func queues(c config.Config) []outbox.Queue {
	var all []outbox.Queue
	for _, name := range gatewayNames(c) {
		for _, lane := range append(slices.Clone(c.Consumer.Lanes), message.LaneRetry, message.LaneReplay) {
			all = append(all, outbox.Queue{Gateway: name, Lane: lane})
		}
	}
	return all
}

func gatewayNames(c config.Config) []string {
	names := make([]string, 0, len(c.Gateways))
	for name := range c.Gateways {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func classNames(c config.Config) []string {
	names := make([]string, 0, len(c.Classes))
	for name := range c.Classes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
