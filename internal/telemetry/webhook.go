package telemetry

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"pollux/internal/webhook"
)

// answerBuckets have bounds at the times that vendors wait for an answer: 5, 10 and 22 s.
var answerBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 22}

// webhookInstruments are those of the receiver of notifications.
type webhookInstruments struct {
	refused, notices, evicted, hints  metric.Int64Counter
	requestTook, recordTook, finality metric.Float64Histogram
	recordSize                        metric.Int64Histogram
}

func (w *webhookInstruments) make(k *maker) {
	w.requestTook = k.seconds("webhook.request_duration")
	w.refused = k.counter("webhook.refused")
	w.notices = k.counter("webhook.notices")
	w.finality = k.seconds("webhook.time_to_finality")
	w.hints = k.counter("webhook.unverified_hints")
	w.recordTook = k.seconds("webhook.batch_duration")
	w.recordSize = k.sizes("webhook.batch_notices")
	w.evicted = k.counter("webhook.evicted_connections")
}

// zero makes the counters exist that say that something is refused, or needs a person.
func (w *webhookInstruments) zero(g *gatewaySeries) {
	name := attribute.String("gateway", g.name)
	for _, r := range webhook.Refusals {
		w.refused.Add(bg, 0, metric.WithAttributes(name, attribute.String("reason", string(r))))
	}
	for _, d := range webhook.Decisions {
		w.notices.Add(bg, 0, metric.WithAttributes(name, attribute.String("decision", string(d))))
	}
}

// WebhookRequest records a request to the receiver and how it ended.
func (m *Metrics) WebhookRequest(gateway string, o webhook.Outcome, took time.Duration) {
	m.webhook.requestTook.Record(bg, took.Seconds(), m.labelled(gateway, outcomeLabel, string(o)))
}

// WebhookRefused counts a notification that was not believed.
func (m *Metrics) WebhookRefused(gateway string, r webhook.Refusal) {
	m.webhook.refused.Add(bg, 1, m.labelled(gateway, refusalLabel, string(r)))
}

// WebhookNotice counts a verified notice by what became of it.
func (m *Metrics) WebhookNotice(gateway string, d webhook.Decision) {
	m.webhook.notices.Add(bg, 1, m.labelled(gateway, decisionLabel, string(d)))
}

// WebhookHint counts a notification that was not believed by what became of it.
func (m *Metrics) WebhookHint(gateway string, o webhook.HintOutcome) {
	m.webhook.hints.Add(bg, 1, m.labelled(gateway, hintLabel, string(o)))
}

// labelled are the labels of a gateway and of one more value out of a closed set.
func (m *Metrics) labelled(gateway string, set Label, value string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("gateway", m.gateways.get(gateway).name), attribute.String(set.Name, in(set, value))))
}

// WebhookFinal counts a payment of a class that a notification brought to its final status, so long after it was tracked.
func (m *Metrics) WebhookFinal(gateway, class string, took time.Duration) {
	g, c := m.gateways.get(gateway), m.classes.get(class)
	m.webhook.finality.Record(bg, took.Seconds(), g.final(c).record...)
	m.finals.Add(bg, 1, g.source(1).add...)
}

// WebhookBatch records a transaction that wrote n notices in took.
func (m *Metrics) WebhookBatch(n int, took time.Duration) {
	m.webhook.recordSize.Record(bg, int64(n))
	m.webhook.recordTook.Record(bg, took.Seconds())
}

// WebhookSilence says whether a gateway is silent, and how long ago it was heard.
func (m *Metrics) WebhookSilence(gateway string, silent bool, quiet time.Duration) {
	g := m.gateways.get(gateway)
	g.silent.see(float64(one(silent)))
	g.quiet.see(quiet.Seconds())
}

// WebhookEvicted counts a connection that was closed for dawdling.
func (m *Metrics) WebhookEvicted() { m.webhook.evicted.Add(bg, 1) }
