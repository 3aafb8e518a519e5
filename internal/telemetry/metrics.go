package telemetry

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/attribute"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
	"pollux/internal/webhook"
)

// The buckets of the histograms. A quantile is only as good as the buckets beside it, so that each has bounds at the numbers that
// are promised or configured.
var (
	// Gateways answer in 50 to 500 ms; the usual timeout is 10 s, and a dead one sits at its timeout.
	callBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	// A held retry is at most 100 ms late in 99 of 100, a first poll 30 ms. Minutes mean a backlog, hours an outage.
	latenessBuckets = []float64{.001, .0025, .005, .01, .02, .03, .05, .1, .25, .5, 1, 5, 30, 300, 3600}
	// The bounds are the polls of the standard schedule (1m 5m 15m 30m 1h 3h, summed 1, 6, 21, 51, 111 and 291 minutes), the five minutes of a
	// high-value payment, and a few seconds below for gateways that are quick.
	finalityBuckets = []float64{.1, .5, 1, 5, 15, 30, 60, 120, 300, 360, 1260, 3060, 6660, 17460, 86400}
	// Batches end by size at 500 results or 1000 messages, or by time at whatever there is.
	sizeBuckets = []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000}
	// A batch is one transaction or one synced publish: milliseconds when all is well.
	batchBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	// The standard schedule ends with its sixth poll, a high-value one with its tenth.
	attemptBuckets = []float64{1, 2, 3, 4, 5, 6, 8, 10, 15, 25}
)

// Metrics are the instruments of a process. All methods are safe for concurrent use and, once a combination of labels was seen, those that are called for each
// payment allocate nothing. A gateway or class beyond the cap is counted as "other", and so is a value that is not in its closed set.
type Metrics struct {
	provider *sdk.MeterProvider
	binary   Binary
	stale    time.Duration

	gateways *capped[gatewaySeries]
	classes  *capped[classLabel]
	streams  []*series // of streams, and one for others
	kinds    []*series // of kinds, and one for others

	claimed, events, published, duplicates, publishFailures, setAside, losses, rearmedJobs, rearmedEvents metric.Int64Counter
	deliveries, resolved, refused, superseded, finals, exportFailures                                     metric.Int64Counter
	claimTook, relayLag, eventLag, publishTook, callTook, queueWait, lateness, deliveryTook, finality     metric.Float64Histogram
	readTook, recordTook, lookTook                                                                        metric.Float64Histogram
	claimSize, publishSize, readSize, recordSize, attempts                                                metric.Int64Histogram
	inFlight                                                                                              metric.Int64UpDownCounter
	gate                                                                                                  gateInstruments
	webhook                                                                                               webhookInstruments
	reload                                                                                                reloadInstruments
	watched                                                                                               watched
}

// gatewaySeries are the series of one gateway, in the order of the closed sets.
type gatewaySeries struct {
	name          string
	plain         *series
	lanes         []*series // of lanes, and one for others
	calls         []cell
	deliveries    []cell // verb · reasons + reason
	statuses      []cell
	finality      []cell // by the index of the class
	sources       []cell
	queues        []queueLevels // by the index of the lane
	silent, quiet level
}

// classLabel is a class of payment that has a label of its own.
type classLabel struct {
	index int
	name  string
}

var reasons = reasonIndex()

// The kinds of row that a relay can set aside.
const (
	KindPoll  = "poll"
	KindEvent = "event"
)

// maxClasses is how many classes of payment have labels of their own unless configured.
const maxClasses = 16

func newMetrics(c Config, registry *prometheus.Registry, more ...sdk.Option) (*Metrics, error) {
	limit := c.MaxGateways
	if limit <= 0 {
		limit = DefaultMaxGateways
	}
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo())
	if err != nil {
		return nil, err
	}
	err = errors.Join(registry.Register(collectors.NewGoCollector()),
		registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
	if err != nil {
		return nil, err
	}
	filter := exemplar.AlwaysOffFilter // an exemplar looks into the context of each record
	if c.OTLPEndpoint != "" {
		filter = exemplar.TraceBasedFilter
	}
	m := &Metrics{binary: BinaryOf(c.Service), stale: c.Stale, provider: sdk.NewMeterProvider(append(more,
		sdk.WithReader(reader),
		sdk.WithResource(processResource(c)),
		sdk.WithCardinalityLimit(0), // the labels are closed or capped here, where what is beyond has a name
		sdk.WithExemplarFilter(filter),
	)...)}
	if m.stale <= 0 {
		m.stale = defaultStale
	}
	m.classes = newCapped(maxClasses, c.Classes, func(i int, name string) *classLabel { return &classLabel{i, name} })
	m.gateways = newCapped(limit, c.Gateways, m.newGatewaySeries)
	m.streams, m.kinds = seriesOf("stream", streams), seriesOf("kind", kinds)
	if err := m.instruments(m.provider.Meter(namespace)); err != nil {
		return nil, err
	}
	m.zero(c.Gateways)
	return m, nil
}

func (m *Metrics) newGatewaySeries(_ int, name string) *gatewaySeries {
	label := attribute.String("gateway", name)
	return &gatewaySeries{
		name:       name,
		plain:      newSeries(label),
		lanes:      seriesOf("lane", lanes, label),
		calls:      make([]cell, len(gateway.Classes)),
		deliveries: make([]cell, len(redelivery.Verbs)*(len(redelivery.Reasons)+1)),
		statuses:   make([]cell, len(statuses)+1),
		finality:   make([]cell, m.classes.max+1),
		sources:    make([]cell, len(sources)+1),
		queues:     make([]queueLevels, len(lanes)+1),
	}
}

// instruments makes an instrument of each entry of the catalogue.
func (m *Metrics) instruments(meter metric.Meter) error {
	k := maker{meter: meter, made: map[string]bool{}}
	m.claimed = k.counter("relay.claimed")
	m.claimTook = k.seconds("relay.claim_duration")
	m.claimSize = k.sizes("relay.claim_batch_polls")
	m.relayLag = k.seconds("relay.lag")
	m.events = k.counter("relay.events")
	m.eventLag = k.seconds("relay.event_lag")
	m.published = k.counter("relay.published")
	m.duplicates = k.counter("relay.duplicates")
	m.publishFailures = k.counter("relay.publish_failures")
	m.publishTook = k.seconds("relay.publish_duration")
	m.publishSize = k.sizes("relay.publish_batch_messages")
	m.setAside = k.counter("relay.set_aside")
	m.losses = k.counter("relay.stream_losses")
	m.rearmedJobs = k.counter("relay.rearmed_polls")
	m.rearmedEvents = k.counter("relay.rearmed_events")
	m.lookTook = k.seconds("record.observation_duration")

	m.deliveries = k.counter("consumer.deliveries")
	m.queueWait = k.seconds("consumer.queue_wait")
	m.lateness = k.seconds("consumer.poll_lateness")
	m.deliveryTook = k.seconds("consumer.delivery_duration")
	m.inFlight = k.upDown("consumer.in_flight_polls")
	m.resolved = k.counter("consumer.resolved")
	m.finality = k.seconds("consumer.time_to_finality")
	m.attempts = k.sizes("consumer.attempts_to_finality")
	m.callTook = k.seconds("gateway.call_duration")
	m.readTook = k.seconds("record.read_duration")
	m.readSize = k.sizes("record.read_batch_polls")
	m.recordTook = k.seconds("record.batch_duration")
	m.recordSize = k.sizes("record.batch_results")
	m.refused = k.counter("record.refused_rows")
	m.superseded = k.counter("record.superseded_results")
	m.finals = k.counter("payments.resolved")
	m.exportFailures = k.counter("telemetry.export_failures")
	m.gate.make(&k)
	m.webhook.make(&k)
	m.reload.make(&k)
	m.watched.make(&k)
	if err := k.finish(); err != nil {
		return err
	}
	_, err := meter.RegisterCallback(m.look, m.watched.all...)
	return err
}

// zero makes the counters that alerts watch exist from the start: a counter that appears with its first loss has no increase.
func (m *Metrics) zero(gateways []string) {
	for _, signal := range signalLabel.Values {
		m.exportFailures.Add(bg, 0, newSeries(attribute.String("signal", signal)).add...)
	}
	if m.binary&InRelay != 0 {
		m.events.Add(bg, 0)
		for _, s := range m.streams[:len(streams)] {
			for _, c := range []metric.Int64Counter{m.losses, m.publishFailures, m.published, m.duplicates} {
				c.Add(bg, 0, s.add...)
			}
		}
		for _, s := range m.kinds[:len(kinds)] {
			m.setAside.Add(bg, 0, s.add...)
		}
	}
	if m.binary&InConsumer != 0 {
		m.refused.Add(bg, 0)
		m.superseded.Add(bg, 0)
	}
	if m.binary&InWebhook != 0 {
		m.webhook.evicted.Add(bg, 0)
	}
	for _, name := range gateways {
		m.zeroGateway(m.gateways.get(name))
	}
}

func (m *Metrics) zeroGateway(g *gatewaySeries) {
	if m.binary&InConsumer != 0 {
		m.gate.zero(g)
		m.inFlight.Add(bg, 0, g.plain.add...)
		m.finals.Add(bg, 0, g.source(0).add...)
		m.webhook.notices.Add(bg, 0, m.labelled(g.name, decisionLabel, string(webhook.Applied))) // of what is fetched
		for i := range statuses {
			m.resolved.Add(bg, 0, g.status(i).add...)
		}
	}
	if m.binary&InWebhook != 0 {
		m.webhook.zero(g)
		m.finals.Add(bg, 0, g.source(1).add...)
	}
}

func (m *Metrics) close(ctx context.Context) error {
	if err := m.provider.Shutdown(ctx); err != nil && !errors.Is(err, sdk.ErrReaderShutdown) {
		return err
	}
	return nil
}

// RelayClaimed counts n polls that a relay leased for a queue, the oldest of them lag late.
func (m *Metrics) RelayClaimed(gateway, lane string, n int, lag time.Duration) {
	s := m.lane(gateway, lane)
	m.claimed.Add(bg, int64(n), s.add...)
	m.relayLag.Record(bg, lag.Seconds(), s.record...)
}

// Claim records a claim that leased n polls in took.
func (m *Metrics) Claim(n int, took time.Duration) {
	m.claimSize.Record(bg, int64(n))
	m.claimTook.Record(bg, took.Seconds())
}

// RelayEvents counts n events that a relay took, the oldest of them lag old.
func (m *Metrics) RelayEvents(n int, lag time.Duration) {
	m.events.Add(bg, int64(n))
	m.eventLag.Record(bg, lag.Seconds())
}

// Published counts n messages that a stream stored, published together in took.
func (m *Metrics) Published(stream string, n int, took time.Duration) {
	s := m.stream(stream)
	m.published.Add(bg, int64(n), s.add...)
	m.publishSize.Record(bg, int64(n), s.record...)
	m.publishTook.Record(bg, took.Seconds(), s.record...)
}

// Duplicates counts n messages of Published that the stream had stored before.
func (m *Metrics) Duplicates(stream string, n int) {
	m.duplicates.Add(bg, int64(n), m.stream(stream).add...)
}

// PublishFailed counts n messages that the broker did not acknowledge in time or refused for now.
func (m *Metrics) PublishFailed(stream string, n int) {
	m.publishFailures.Add(bg, int64(n), m.stream(stream).add...)
}

// SetAside counts n rows of a kind (KindPoll, KindEvent) that can never be published.
func (m *Metrics) SetAside(kind string, n int) {
	m.setAside.Add(bg, int64(n), m.kinds[index(kinds, kind)].add...)
}

// StreamLost counts one loss of a stream's messages and what was made publishable again.
func (m *Metrics) StreamLost(stream string, jobs, events int) {
	s := m.stream(stream)
	m.losses.Add(bg, 1, s.add...)
	m.rearmedJobs.Add(bg, int64(jobs), s.add...)
	m.rearmedEvents.Add(bg, int64(events), s.add...)
}

// Delivery counts a delivery by how it ended and why.
func (m *Metrics) Delivery(gateway string, v redelivery.Verb, r redelivery.Reason) {
	if int(v) >= len(redelivery.Verbs) {
		v = redelivery.Drop
	}
	at, known := reasons[r]
	if !known {
		at, r = len(redelivery.Reasons), other
	}
	g := m.gateways.get(gateway)
	s := g.deliveries[int(v)*(len(redelivery.Reasons)+1)+at].made.Load()
	if s == nil {
		s = g.delivery(v, at, r)
	}
	m.deliveries.Add(bg, 1, s.add...)
}

func (g *gatewaySeries) delivery(v redelivery.Verb, at int, r redelivery.Reason) *series {
	return g.deliveries[int(v)*(len(redelivery.Reasons)+1)+at].get(func() *series {
		return newSeries(attribute.String("gateway", g.name), attribute.String("disposition", v.String()), attribute.String("reason", string(r)))
	})
}

// Call records a call to a gateway: the class of its answer and how long it took. The histogram's count is the number of calls. ctx says which trace it
// belongs to, here and below.
func (m *Metrics) Call(ctx context.Context, gateway string, c gateway.Class, took time.Duration) {
	g := m.gateways.get(gateway)
	if int(c) >= len(g.calls) {
		c = 0
	}
	s := g.calls[c].made.Load()
	if s == nil {
		s = g.call(c)
	}
	m.callTook.Record(ctx, took.Seconds(), s.record...)
}

func (g *gatewaySeries) call(c gateway.Class) *series {
	return g.calls[c].get(func() *series {
		return newSeries(attribute.String("gateway", g.name), attribute.String("class", c.String()))
	})
}

// Waited records how long a poll waited at the broker for its first delivery.
func (m *Metrics) Waited(gateway, lane string, waited time.Duration) {
	m.queueWait.Record(bg, max(waited, 0).Seconds(), m.lane(gateway, lane).record...)
}

// Lateness records how long after it was due a poll began.
func (m *Metrics) Lateness(ctx context.Context, gateway, lane string, late time.Duration) {
	m.lateness.Record(ctx, max(late, 0).Seconds(), m.lane(gateway, lane).record...)
}

// Delivered records how long a delivery took whose payment was polled.
func (m *Metrics) Delivered(ctx context.Context, gateway string, took time.Duration) {
	m.deliveryTook.Record(ctx, took.Seconds(), m.gateways.get(gateway).plain.record...)
}

// Finality records how long a payment of a class took from being tracked to its final status, and how many calls the gateway answered for that.
func (m *Metrics) Finality(ctx context.Context, gateway, class string, took time.Duration, attempts int) {
	g, c := m.gateways.get(gateway), m.classes.get(class)
	s := g.finality[c.index].made.Load()
	if s == nil {
		s = g.final(c)
	}
	m.finality.Record(ctx, took.Seconds(), s.record...)
	m.attempts.Record(ctx, int64(attempts), g.plain.record...)
}

func (g *gatewaySeries) final(c *classLabel) *series {
	return g.finality[c.index].get(func() *series {
		return newSeries(attribute.String("gateway", g.name), attribute.String("class", c.name))
	})
}

// Resolved counts a payment that a poll brought to a final status.
func (m *Metrics) Resolved(gateway string, status payment.Status) {
	g := m.gateways.get(gateway)
	m.resolved.Add(bg, 1, g.status(index(statuses, string(status))).add...)
	m.finals.Add(bg, 1, g.source(0).add...)
}

func (g *gatewaySeries) status(at int) *series {
	if s := g.statuses[at].made.Load(); s != nil {
		return s
	}
	return g.statuses[at].get(func() *series {
		return newSeries(attribute.String("gateway", g.name), attribute.String("status", nameAt(statuses, at)))
	})
}

func (g *gatewaySeries) source(at int) *series {
	if s := g.sources[at].made.Load(); s != nil {
		return s
	}
	return g.sources[at].get(func() *series {
		return newSeries(attribute.String("gateway", g.name), attribute.String("source", nameAt(sources, at)))
	})
}

// Read records that the rows of n deliveries were read together in took.
func (m *Metrics) Read(n int, took time.Duration) {
	m.readSize.Record(bg, int64(n))
	m.readTook.Record(bg, took.Seconds())
}

// Batch records a transaction that wrote n results in took.
func (m *Metrics) Batch(n int, took time.Duration) {
	m.recordSize.Record(bg, int64(n))
	m.recordTook.Record(bg, took.Seconds())
}

// Refused counts n results that the database refuses for good.
func (m *Metrics) Refused(n int) { m.refused.Add(bg, int64(n)) }

// Superseded counts n results that changed nothing because another delivery had taken the lease.
func (m *Metrics) Superseded(n int) { m.superseded.Add(bg, int64(n)) }

// InFlight adds delta, which may be negative, to the polls of a gateway that this process works on.
func (m *Metrics) InFlight(gateway string, delta int) {
	m.inFlight.Add(bg, int64(delta), m.gateways.get(gateway).plain.add...)
}

// exportFailed counts what could not be pushed.
func (m *Metrics) exportFailed(signal string) {
	m.exportFailures.Add(bg, 1, metric.WithAttributes(attribute.String("signal", signal)))
}

// bg is the context of a record that belongs to no trace.
var bg = context.Background()

func (m *Metrics) stream(name string) *series { return m.streams[index(streams, name)] }

func (m *Metrics) lane(gateway, lane string) *series {
	return m.gateways.get(gateway).lanes[index(lanes, lane)]
}

func reasonIndex() map[redelivery.Reason]int {
	index := make(map[redelivery.Reason]int, len(redelivery.Reasons))
	for i, r := range redelivery.Reasons {
		index[r] = i
	}
	return index
}

// processResource is what target_info and every trace say about the process.
func processResource(c Config) *resource.Resource {
	return resource.NewSchemaless(
		semconv.ServiceNamespace(namespace),
		semconv.ServiceName(c.Service),
		semconv.ServiceVersion(c.Version),
		semconv.ServiceInstanceID(c.Instance),
		semconv.ProcessRuntimeVersion(runtime.Version()),
	)
}
