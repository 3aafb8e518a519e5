package telemetry

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"pollux/internal/breaker"
	"pollux/internal/fleet"
	"pollux/internal/outbox"
	"pollux/internal/survey"
)

// watched are the instruments whose values are looked at when somebody asks for them, and where they are looked up.
type watched struct {
	gauges map[string]metric.Float64ObservableGauge
	totals map[string]metric.Float64ObservableCounter
	all    []metric.Observable

	loops  sync.Map                 // when each last did its work, a time.Time
	parts  map[survey.Part]*finding // of the last survey
	gates  atomic.Pointer[[]*fleet.Gate]
	apart  atomic.Pointer[func() bool]
	pool   atomic.Pointer[func() Pool]
	broker atomic.Pointer[func() Link]
}

// finding is what was seen of a part of the record, and until when it may be shown.
type finding struct{ seen atomic.Pointer[seen] }

type seen struct {
	what      survey.Finding
	at, until time.Time
}

// totalNames are the counters that somebody else counts.
var totalNames = []string{"database.waits", "database.wait", "broker.reconnects"}

func (w *watched) make(k *maker) {
	w.gauges, w.totals, w.parts = map[string]metric.Float64ObservableGauge{}, map[string]metric.Float64ObservableCounter{}, map[survey.Part]*finding{}
	for _, e := range catalogue {
		if e.Kind == Gauge && !k.made[e.Name] { // the others are told when they change
			w.gauges[e.Name] = k.gauge(e.Name)
			w.all = append(w.all, w.gauges[e.Name])
		}
	}
	for _, name := range totalNames {
		w.totals[name] = k.total(name)
		w.all = append(w.all, w.totals[name])
	}
	for _, part := range survey.Parts {
		w.parts[part] = &finding{}
	}
}

// look is called when somebody asks for the metrics. It asks nobody: it shows what was seen last, and what this process knows of itself.
func (m *Metrics) look(_ context.Context, o metric.Observer) error {
	l := looking{m: m, o: o, now: time.Now()}
	l.queues()
	l.loops()
	l.survey()
	l.gates()
	l.process()
	return nil
}

// looking is one look.
type looking struct {
	m   *Metrics
	o   metric.Observer
	now time.Time
}

func (l looking) gauge(name string, value float64, labels ...attribute.KeyValue) {
	l.o.ObserveFloat64(l.m.watched.gauges[name], value, metric.WithAttributes(labels...))
}

func (l looking) total(name string, value float64) {
	l.o.ObserveFloat64(l.m.watched.totals[name], value)
}

// stamp is an instant as Prometheus has it; the zero time is 0.
func stamp(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func (l looking) queues() {
	l.m.gateways.each(func(g *gatewaySeries) {
		name := attribute.String("gateway", g.name)
		for i := range g.queues {
			l.queue(&g.queues[i], name, attribute.String("lane", nameAt(lanes, i)))
		}
		if v, ok := g.silent.fresh(l.m.stale); ok {
			l.gauge("webhook.silent", v, name)
		}
		if v, ok := g.quiet.fresh(l.m.stale); ok {
			l.gauge("webhook.quiet", v, name)
		}
	})
}

func (l looking) queue(q *queueLevels, labels ...attribute.KeyValue) {
	ready, counted := q.ready.fresh(l.m.stale)
	backlog, asked := q.backlog.fresh(l.m.stale)
	if counted {
		l.gauge("relay.ready_polls", ready, labels...)
		l.gauge("relay.work_polls", ready+backlog, labels...) // without a consumer at the broker nothing waits there
	}
	if asked {
		l.gauge("relay.backlog_polls", backlog, labels...)
	}
	if held, ok := q.held.fresh(l.m.stale); ok {
		l.gauge("consumer.held_polls", held, labels...)
	}
}

// Succeeded says that a loop of the relay did its work.
func (m *Metrics) Succeeded(loop string) {
	if slices.Contains(outbox.Loops, loop) {
		m.watched.loops.Store(loop, time.Now())
	}
}

func (l looking) loops() {
	l.m.watched.loops.Range(func(loop, at any) bool {
		l.gauge("relay.success_timestamp", stamp(at.(time.Time)), attribute.String("loop", loop.(string)))
		return true
	})
}

// WatchGates shows how the gates of gateways stand, and whether the instance is apart from its fleet, as ask says, which answers at once. It is called once.
func (m *Metrics) WatchGates(gates []*fleet.Gate, apart func() bool) {
	m.watched.gates.Store(&gates)
	m.watched.apart.Store(&apart)
}

func (l looking) gates() {
	if apart := l.m.watched.apart.Load(); apart != nil {
		l.gauge("fleet.apart", float64(one((*apart)())))
	}
	gates := l.m.watched.gates.Load()
	if gates == nil {
		return
	}
	for _, g := range *gates {
		l.gate(g)
	}
}

// gate shows a gateway by all of its accounts. One that nobody has called yet is closed.
func (l looking) gate(g *fleet.Gate) {
	kinds, admitted := map[breaker.Kind]int{}, 1.0
	var refused, forced, waiting, paused int
	for _, account := range g.Accounts() {
		s := g.Snapshot(account)
		kinds[s.Breaker.Kind]++
		admitted = min(admitted, s.Breaker.Share.Float())
		refused += one(s.Breaker.Kind != breaker.Closed && s.Breaker.Cause == breaker.CauseCredentials)
		forced += one(s.Breaker.Forced.On())
		paused += one(s.Limit.PausedUntil.After(l.now))
		for _, n := range s.Limit.Waiting {
			waiting += n
		}
	}
	state := breaker.Closed
	for _, kind := range []breaker.Kind{breaker.Disabled, breaker.HalfOpen, breaker.Open} {
		if kinds[kind] > 0 {
			state = kind
		}
	}
	share, _ := g.Share()
	name := attribute.String("gateway", l.m.gateways.get(g.Name()).name)
	l.gauge("breaker.state", float64(state), name)
	l.gauge("breaker.open_accounts", float64(kinds[breaker.Open]+kinds[breaker.HalfOpen]), name)
	l.gauge("breaker.credentials_refused", float64(refused), name)
	l.gauge("breaker.forced", float64(forced), name)
	l.gauge("breaker.admitted", admitted, name)
	l.gauge("limit.waiting_calls", float64(waiting), name)
	l.gauge("limit.paused_accounts", float64(paused), name)
	l.gauge("limit.share", share, name)
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Pool is how a process's connections to the database stand.
type Pool struct {
	InUse, Idle, Max int
	Waits            int64         // statements that found all connections in use
	Waited           time.Duration // for a connection, added up
}

// WatchPool shows the connections to the database as ask says they stand, which answers at once. It is called once.
func (m *Metrics) WatchPool(ask func() Pool) { m.watched.pool.Store(&ask) }

// Link is how a process's connection to the broker stands.
type Link struct {
	Connected  bool
	Reconnects uint64
}

// WatchBroker shows the connection to the broker as ask says it stands, which answers at once. It is called once.
func (m *Metrics) WatchBroker(ask func() Link) { m.watched.broker.Store(&ask) }

func (l looking) process() {
	if ask := l.m.watched.pool.Load(); ask != nil {
		p := (*ask)()
		l.gauge("database.connections", float64(p.InUse), attribute.String("state", "in_use"))
		l.gauge("database.connections", float64(p.Idle), attribute.String("state", "idle"))
		l.gauge("database.max_connections", float64(p.Max))
		l.total("database.waits", float64(p.Waits))
		l.total("database.wait", p.Waited.Seconds())
	}
	if ask := l.m.watched.broker.Load(); ask != nil {
		link := (*ask)()
		l.gauge("broker.connected", float64(one(link.Connected)))
		l.total("broker.reconnects", float64(link.Reconnects))
	}
}
