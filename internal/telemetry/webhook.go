package telemetry

import (
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"pollux/internal/webhook"
)

// answerBuckets have bounds at the times that vendors wait for an answer: 5, 10 and 22 s.
var answerBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 22}

// webhookInstruments are those of the receiver of notifications.
type webhookInstruments struct {
	refused, notices, evicted, hints metric.Int64Counter
	requestTook, recordTook          metric.Float64Histogram
	recordSize                       metric.Int64Histogram
	silent                           metric.Int64Gauge
	quiet                            metric.Float64Gauge
}

func (w *webhookInstruments) make(meter metric.Meter) error {
	var err [9]error
	w.requestTook, err[0] = meter.Float64Histogram("webhook.request_duration", metric.WithUnit("s"),
		metric.WithDescription("Time to answer a notification, by how it ended."), metric.WithExplicitBucketBoundaries(answerBuckets...))
	w.refused, err[1] = meter.Int64Counter("webhook.refused", metric.WithDescription("Notifications, or parts of them, that were not believed, by why."))
	w.notices, err[2] = meter.Int64Counter("webhook.notices", metric.WithDescription("Verified notices, by what became of them."))
	w.evicted, err[3] = meter.Int64Counter("webhook.evicted_connections", metric.WithDescription("Connections closed for dawdling while too many were open."))
	w.recordTook, err[4] = meter.Float64Histogram("webhook.batch_duration", metric.WithUnit("s"),
		metric.WithDescription("Time to write notices in one transaction."), metric.WithExplicitBucketBoundaries(batchBuckets...))
	w.recordSize, err[5] = meter.Int64Histogram("webhook.batch_notices", metric.WithDescription("Notices written in one transaction."),
		metric.WithExplicitBucketBoundaries(sizeBuckets...))
	w.silent, err[6] = meter.Int64Gauge("webhook.silent", metric.WithDescription("1 while a gateway sends no notifications although payments wait for it, otherwise 0."))
	w.quiet, err[7] = meter.Float64Gauge("webhook.quiet", metric.WithUnit("s"), metric.WithDescription("How long ago a gateway's last notification came."))
	w.hints, err[8] = meter.Int64Counter("webhook.unverified_hints", metric.WithDescription("Notifications that were not believed, at gateways where they may make a poll due, by what became of them."))
	return errors.Join(err[:]...)
}

// WebhookRequest records a request to the receiver and how it ended.
func (m *Metrics) WebhookRequest(gateway string, o webhook.Outcome, took time.Duration) {
	m.webhook.requestTook.Record(bg, took.Seconds(), m.labelled(gateway, "outcome", string(o)))
}

// WebhookRefused counts a notification that was not believed.
func (m *Metrics) WebhookRefused(gateway string, r webhook.Refusal) {
	m.webhook.refused.Add(bg, 1, m.labelled(gateway, "reason", string(r)))
}

// WebhookNotice counts a verified notice by what became of it.
func (m *Metrics) WebhookNotice(gateway string, d webhook.Decision) {
	m.webhook.notices.Add(bg, 1, m.labelled(gateway, "decision", string(d)))
}

// WebhookHint counts a notification that was not believed by what became of it.
func (m *Metrics) WebhookHint(gateway string, o webhook.HintOutcome) {
	m.webhook.hints.Add(bg, 1, m.labelled(gateway, "outcome", string(o)))
}

// labelled are the labels of a gateway and of one more value out of a closed set.
func (m *Metrics) labelled(gateway, key, value string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("gateway", m.gateways.get(gateway).name), attribute.String(key, value)))
}

// WebhookBatch records a transaction that wrote n notices in took.
func (m *Metrics) WebhookBatch(n int, took time.Duration) {
	m.webhook.recordSize.Record(bg, int64(n))
	m.webhook.recordTook.Record(bg, took.Seconds())
}

// WebhookSilence says whether a gateway is silent, and how long ago it was heard.
func (m *Metrics) WebhookSilence(gateway string, silent bool, quiet time.Duration) {
	label := m.gateways.get(gateway).plain
	value := int64(0)
	if silent {
		value = 1
	}
	m.webhook.silent.Record(bg, value, label.record...)
	m.webhook.quiet.Record(bg, quiet.Seconds(), label.record...)
}

// WebhookEvicted counts a connection that was closed for dawdling.
func (m *Metrics) WebhookEvicted() { m.webhook.evicted.Add(bg, 1) }
