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
	"pollux/internal/message"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
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
)

// Metrics are the instruments of a process. All methods are safe for concurrent use and, once a combination of labels was seen, allocate nothing.
// A gateway or class beyond the cap is counted as "other", and so is a value that is not in its closed set.
type Metrics struct {
	provider *sdk.MeterProvider

	gateways *capped[gatewaySeries]
	classes  *capped[classLabel]
	streams  [5]*series // of streams, and one for others
	kinds    [3]*series // of kinds, and one for others

	claimed, events, published, duplicates, publishFailures, setAside, losses, rearmedJobs, rearmedEvents metric.Int64Counter
	deliveries, resolved, refused, superseded                                                             metric.Int64Counter
	relayLag, eventLag, publishTook, callTook, lateness, finality, recordTook                             metric.Float64Histogram
	publishSize, recordSize                                                                               metric.Int64Histogram
	held, ready, backlog                                                                                  metric.Int64Gauge
	inFlight                                                                                              metric.Int64UpDownCounter
	gate                                                                                                  gateInstruments
	webhook                                                                                               webhookInstruments
	reload                                                                                                reloadInstruments
}

// gatewaySeries are the series of one gateway, in the order of the closed sets.
type gatewaySeries struct {
	name       string
	plain      *series
	lanes      [4]*series // of message.Lanes, and one for others
	calls      []cell
	deliveries []cell // verb · reasons + reason
	statuses   []cell
	finality   []cell // by the index of the class
}

// classLabel is a class of payment that has a label of its own.
type classLabel struct {
	index int
	name  string
}

var (
	streams  = []string{message.StreamPoll, message.StreamDeferred, message.StreamEvents, message.StreamDead}
	kinds    = []string{KindPoll, KindEvent}
	statuses = statusNames()
	reasons  = reasonIndex()
)

// The kinds of row that a relay can set aside.
const (
	KindPoll  = "poll"
	KindEvent = "event"
)

// maxClasses is how many classes of payment have labels of their own unless configured.
const maxClasses = 16

func newMetrics(c Config, registry *prometheus.Registry) (*Metrics, error) {
	limit := c.MaxGateways
	if limit <= 0 {
		limit = DefaultMaxGateways
	}
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(), exporter.WithNamespace("pollux"))
	if err != nil {
		return nil, err
	}
	err = errors.Join(registry.Register(collectors.NewGoCollector()),
		registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
	if err != nil {
		return nil, err
	}
	m := &Metrics{provider: sdk.NewMeterProvider(
		sdk.WithReader(reader),
		sdk.WithResource(processResource(c)),
		sdk.WithCardinalityLimit(0),                      // the labels are closed or capped here, where what is beyond has a name
		sdk.WithExemplarFilter(exemplar.AlwaysOffFilter), // an exemplar would look into the context of each record
	)}
	m.classes = newCapped(maxClasses, c.Classes, func(i int, name string) *classLabel { return &classLabel{i, name} })
	m.gateways = newCapped(limit, c.Gateways, m.newGatewaySeries)
	for i := range m.streams {
		m.streams[i] = newSeries(attribute.String("stream", nameAt(streams, i)))
	}
	for i := range m.kinds {
		m.kinds[i] = newSeries(attribute.String("kind", nameAt(kinds, i)))
	}
	if err := m.instruments(m.provider.Meter("pollux")); err != nil {
		return nil, err
	}
	m.zero()
	return m, nil
}

func (m *Metrics) newGatewaySeries(_ int, name string) *gatewaySeries {
	label := attribute.String("gateway", name)
	s := &gatewaySeries{
		name:       name,
		plain:      newSeries(label),
		calls:      make([]cell, len(gateway.Classes)),
		deliveries: make([]cell, len(redelivery.Verbs)*(len(redelivery.Reasons)+1)),
		statuses:   make([]cell, len(statuses)+1),
		finality:   make([]cell, m.classes.max+1),
	}
	for i := range s.lanes {
		s.lanes[i] = newSeries(label, attribute.String("lane", nameAt(message.Lanes, i)))
	}
	return s
}

// instruments makes all instruments. Names get the prefix pollux_, the unit and _total by themselves.
func (m *Metrics) instruments(meter metric.Meter) error {
	var errs []error
	counter := func(c *metric.Int64Counter, name, what string) {
		made, err := meter.Int64Counter(name, metric.WithDescription(what))
		*c, errs = made, append(errs, err)
	}
	seconds := func(h *metric.Float64Histogram, name, what string, buckets []float64) {
		made, err := meter.Float64Histogram(name, metric.WithDescription(what), metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(buckets...))
		*h, errs = made, append(errs, err)
	}
	size := func(h *metric.Int64Histogram, name, what string) {
		made, err := meter.Int64Histogram(name, metric.WithDescription(what), metric.WithExplicitBucketBoundaries(sizeBuckets...))
		*h, errs = made, append(errs, err)
	}
	gauge := func(g *metric.Int64Gauge, name, what string) {
		made, err := meter.Int64Gauge(name, metric.WithDescription(what))
		*g, errs = made, append(errs, err)
	}

	counter(&m.claimed, "relay.claimed", "Due polls leased by the relay.")
	counter(&m.events, "relay.events", "Events taken by the relay to be published.")
	counter(&m.published, "relay.published", "Messages that the broker stored.")
	counter(&m.duplicates, "relay.duplicates", "Messages that the broker had stored before.")
	counter(&m.publishFailures, "relay.publish_failures", "Messages that the broker did not acknowledge; they are published again.")
	counter(&m.setAside, "relay.set_aside", "Rows that can never be published and were handed to a person.")
	counter(&m.losses, "relay.stream_losses", "Times a stream was found recreated or shortened.")
	counter(&m.rearmedJobs, "relay.rearmed_polls", "Polls made due again because their stream lost them.")
	counter(&m.rearmedEvents, "relay.rearmed_events", "Events made publishable again because their stream lost them.")
	seconds(&m.relayLag, "relay.lag", "How late the oldest poll of a claim was.", latenessBuckets)
	seconds(&m.eventLag, "relay.event_lag", "How old the oldest event of a batch was.", latenessBuckets)
	seconds(&m.publishTook, "relay.publish_duration", "Time to publish a batch and hear from the broker.", batchBuckets)
	size(&m.publishSize, "relay.publish_batch_messages", "Messages published together.")
	gauge(&m.ready, "relay.ready_polls", "Polls that are due and wait in the database, by queue, counted up to 10000 at each relay.watch: the number to scale consumers by.")
	gauge(&m.backlog, "relay.backlog_polls", "Polls that wait at the broker, undelivered.")

	counter(&m.deliveries, "consumer.deliveries", "Deliveries by how they ended and why.")
	counter(&m.resolved, "consumer.resolved", "Payments that a poll brought to a final status.")
	counter(&m.refused, "record.refused_rows", "Results that the database refuses today and tomorrow.")
	counter(&m.superseded, "record.superseded_results", "Results that changed nothing because the lease had moved on.")
	seconds(&m.callTook, "gateway.call_duration", "Time of a call to a gateway, by the class of its answer.", callBuckets)
	seconds(&m.lateness, "consumer.poll_lateness", "How long after it was due a poll began.", latenessBuckets)
	seconds(&m.finality, "consumer.time_to_finality", "Time from tracking a payment to its final status, by class of payment.", finalityBuckets)
	seconds(&m.recordTook, "record.batch_duration", "Time to write a batch of results in one transaction.", batchBuckets)
	size(&m.recordSize, "record.batch_results", "Results written in one transaction.")
	gauge(&m.held, "consumer.held_polls", "Polls that the broker holds for a delay, fleet-wide.")
	up, err := meter.Int64UpDownCounter("consumer.in_flight_polls", metric.WithDescription("Polls that this process is working on."))
	m.inFlight = up
	return errors.Join(append(errs, err, m.gate.make(meter), m.webhook.make(meter), m.reload.make(meter))...)
}

// zero makes the counters that alerts watch exist from the start: a counter that appears with its first loss has no increase.
func (m *Metrics) zero() {
	ctx := context.Background()
	for i := range m.streams {
		m.losses.Add(ctx, 0, m.streams[i].add...)
		m.publishFailures.Add(ctx, 0, m.streams[i].add...)
	}
	for i := range m.kinds {
		m.setAside.Add(ctx, 0, m.kinds[i].add...)
	}
	m.refused.Add(ctx, 0)
	m.superseded.Add(ctx, 0)
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

// Ready says how many polls of a queue are due and wait in the database, as far as they are counted (outbox.MostReady).
func (m *Metrics) Ready(gateway, lane string, n int) {
	m.ready.Record(bg, int64(n), m.lane(gateway, lane).record...)
}

// Backlog says how many polls of a queue wait at the broker.
func (m *Metrics) Backlog(gateway, lane string, n int) {
	m.backlog.Record(bg, int64(n), m.lane(gateway, lane).record...)
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

// Call records a call to a gateway: the class of its answer and how long it took. The histogram's count is the number of calls.
func (m *Metrics) Call(gateway string, c gateway.Class, took time.Duration) {
	g := m.gateways.get(gateway)
	if int(c) >= len(g.calls) {
		c = 0
	}
	s := g.calls[c].made.Load()
	if s == nil {
		s = g.call(c)
	}
	m.callTook.Record(bg, took.Seconds(), s.record...)
}

func (g *gatewaySeries) call(c gateway.Class) *series {
	return g.calls[c].get(func() *series {
		return newSeries(attribute.String("gateway", g.name), attribute.String("class", c.String()))
	})
}

// Lateness records how long after it was due a poll began.
func (m *Metrics) Lateness(gateway, lane string, late time.Duration) {
	m.lateness.Record(bg, max(late, 0).Seconds(), m.lane(gateway, lane).record...)
}

// Finality records how long a payment of a class took from being tracked to its final status.
func (m *Metrics) Finality(gateway, class string, took time.Duration) {
	g, c := m.gateways.get(gateway), m.classes.get(class)
	s := g.finality[c.index].made.Load()
	if s == nil {
		s = g.final(c)
	}
	m.finality.Record(bg, took.Seconds(), s.record...)
}

func (g *gatewaySeries) final(c *classLabel) *series {
	return g.finality[c.index].get(func() *series {
		return newSeries(attribute.String("gateway", g.name), attribute.String("class", c.name))
	})
}

// Resolved counts a payment that a poll brought to a final status.
func (m *Metrics) Resolved(gateway string, status payment.Status) {
	g := m.gateways.get(gateway)
	at := index(statuses, string(status))
	s := g.statuses[at].made.Load()
	if s == nil {
		s = g.status(at)
	}
	m.resolved.Add(bg, 1, s.add...)
}

func (g *gatewaySeries) status(at int) *series {
	return g.statuses[at].get(func() *series {
		return newSeries(attribute.String("gateway", g.name), attribute.String("status", nameAt(statuses, at)))
	})
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

// Held says how many polls of a queue the broker holds.
func (m *Metrics) Held(gateway, lane string, n int) {
	m.held.Record(bg, int64(n), m.lane(gateway, lane).record...)
}

// InFlight adds delta, which may be negative, to the polls of a gateway that this process works on.
func (m *Metrics) InFlight(gateway string, delta int) {
	m.inFlight.Add(bg, int64(delta), m.gateways.get(gateway).plain.add...)
}

// bg is the context of every record: no instrument looks into it.
var bg = context.Background()

func (m *Metrics) stream(name string) *series { return m.streams[index(streams, name)] }

func (m *Metrics) lane(gateway, lane string) *series {
	return m.gateways.get(gateway).lanes[index(message.Lanes, lane)]
}

func statusNames() []string {
	var names []string
	for _, s := range payment.Statuses {
		if s.Final() {
			names = append(names, string(s))
		}
	}
	return names
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
		semconv.ServiceNamespace("pollux"),
		semconv.ServiceName(c.Service),
		semconv.ServiceVersion(c.Version),
		semconv.ServiceInstanceID(c.Instance),
		semconv.ProcessRuntimeVersion(runtime.Version()),
	)
}
