package telemetry

import (
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"pollux/internal/breaker"
	"pollux/internal/fleet"
)

// gateInstruments are those of what stands before a gateway.
type gateInstruments struct {
	transitions, refusals, probes metric.Int64Counter
	state                         metric.Int64Gauge
	turn                          metric.Float64Histogram
}

func (g *gateInstruments) make(meter metric.Meter) error {
	var err [5]error
	g.transitions, err[0] = meter.Int64Counter("breaker.transitions", metric.WithDescription("Changes of a gateway's breaker that this process saw, by what caused them."))
	g.state, err[1] = meter.Int64Gauge("breaker.state", metric.WithDescription("The breaker that this process saw change last at a gateway: 0 closed, 1 open, 2 half-open, 3 disabled."))
	g.refusals, err[2] = meter.Int64Counter("gate.refusals", metric.WithDescription("Calls to a gateway that were not made, by why."))
	g.probes, err[3] = meter.Int64Counter("gate.probes", metric.WithDescription("Calls made to find out whether a gateway is back."))
	g.turn, err[4] = meter.Float64Histogram("gate.wait", metric.WithUnit("s"), metric.WithDescription("How long a call waited for its turn under the gateway's limit."),
		metric.WithExplicitBucketBoundaries(latenessBuckets...))
	return errors.Join(err[:]...)
}

// Transition counts a change of a gateway's breaker.
func (m *Metrics) Transition(gateway string, from, to breaker.Kind, cause breaker.Cause) {
	name := attribute.String("gateway", m.gateways.get(gateway).name)
	m.gate.transitions.Add(bg, 1, metric.WithAttributes(name, attribute.String("from", from.String()), attribute.String("to", to.String()),
		attribute.String("cause", string(cause))))
	m.gate.state.Record(bg, int64(to), metric.WithAttributes(name))
}

// NotCalled counts a call to a gateway that was not made.
func (m *Metrics) NotCalled(gateway string, why fleet.Why) {
	m.gate.refusals.Add(bg, 1, metric.WithAttributes(attribute.String("gateway", m.gateways.get(gateway).name), attribute.String("why", string(why))))
}

// Probed counts a call that finds out whether a gateway is back.
func (m *Metrics) Probed(gateway string) {
	m.gate.probes.Add(bg, 1, m.gateways.get(gateway).plain.add...)
}

// Turn records how long a call waited for its turn.
func (m *Metrics) Turn(gateway string, waited time.Duration) {
	m.gate.turn.Record(bg, waited.Seconds(), m.gateways.get(gateway).plain.record...)
}
