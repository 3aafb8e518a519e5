package telemetry

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"pollux/internal/breaker"
	"pollux/internal/fleet"
)

// gateInstruments are those of what stands before a gateway.
type gateInstruments struct {
	transitions, refusals, probes metric.Int64Counter
	turn                          metric.Float64Histogram
}

func (g *gateInstruments) make(k *maker) {
	g.transitions = k.counter("breaker.transitions")
	g.refusals = k.counter("gate.refusals")
	g.probes = k.counter("gate.probes")
	g.turn = k.seconds("gate.wait")
}

// openings are what opens a breaker by itself.
var openings = []breaker.Cause{breaker.CauseConsecutive, breaker.CauseFailures, breaker.CauseSlow, breaker.CauseCredentials}

// zero makes the counters exist that say that a gateway was in trouble.
func (g *gateInstruments) zero(s *gatewaySeries) {
	g.probes.Add(bg, 0, s.plain.add...)
	for _, cause := range openings {
		g.transitions.Add(bg, 0, transition(s.name, breaker.Closed, breaker.Open, cause))
	}
	for _, why := range fleet.Whys {
		g.refusals.Add(bg, 0, metric.WithAttributes(attribute.String("gateway", s.name), attribute.String("why", string(why))))
	}
}

func transition(gateway string, from, to breaker.Kind, cause breaker.Cause) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("gateway", gateway), attribute.String("from", in(fromLabel, from.String())),
		attribute.String("to", in(toLabel, to.String())), attribute.String("cause", in(causeLabel, string(cause))))
}

// Transition counts a change of a gateway's breaker.
func (m *Metrics) Transition(gateway string, from, to breaker.Kind, cause breaker.Cause) {
	m.gate.transitions.Add(bg, 1, transition(m.gateways.get(gateway).name, from, to, cause))
}

// NotCalled counts a call to a gateway that was not made.
func (m *Metrics) NotCalled(gateway string, why fleet.Why) {
	m.gate.refusals.Add(bg, 1, m.labelled(gateway, whyLabel, string(why)))
}

// Probed counts a call that finds out whether a gateway is back.
func (m *Metrics) Probed(gateway string) {
	m.gate.probes.Add(bg, 1, m.gateways.get(gateway).plain.add...)
}

// Turn records how long a call waited for its turn.
func (m *Metrics) Turn(gateway string, waited time.Duration) {
	m.gate.turn.Record(bg, waited.Seconds(), m.gateways.get(gateway).plain.record...)
}
