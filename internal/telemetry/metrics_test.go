package telemetry

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"pollux/internal/breaker"
	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
	"pollux/internal/webhook"
)

func metrics(t testing.TB, c Config) (*Metrics, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	m, err := newMetrics(c, registry)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m, registry
}

// scrape returns every value as Prometheus would have it, by name{label="value",…}; of a histogram the count.
func scrape(t testing.TB, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()+labels(m)] = value(m)
		}
	}
	return values
}

func labels(m *dto.Metric) string {
	var pairs []string
	for _, l := range m.GetLabel() {
		pairs = append(pairs, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	if pairs == nil {
		return ""
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	}
	return math.NaN()
}

func TestEveryMeasurementHasItsName(t *testing.T) {
	m, registry := metrics(t, Config{Service: "test"})
	const g, lane = "acme", "high"
	m.RelayClaimed(g, lane, 3, time.Second)
	m.Claim(3, time.Millisecond)
	m.Succeeded("polls")
	m.Succeeded("somebody else's")
	m.Waited(g, lane, time.Millisecond)
	m.Delivered(bg, g, time.Second)
	m.Read(3, time.Millisecond)
	m.WebhookFinal(g, "standard", time.Minute)
	m.RelayEvents(4, time.Second)
	m.Published(message.StreamPoll, 5, time.Millisecond)
	m.Duplicates(message.StreamPoll, 2)
	m.PublishFailed(message.StreamEvents, 6)
	m.SetAside(KindPoll, 7)
	m.StreamLost(message.StreamPoll, 8, 9)
	m.Ready(g, lane, 10)
	m.Backlog(g, lane, 11)
	m.Delivery(g, redelivery.Hold, redelivery.ReasonFailure)
	m.Delivery(g, redelivery.Hold, redelivery.ReasonFailure)
	m.Call(bg, g, gateway.Transport, 20*time.Millisecond)
	m.Lateness(bg, g, lane, -time.Second)
	m.Finality(bg, g, "standard", time.Minute, 3)
	m.Resolved(g, payment.Succeeded)
	m.Batch(500, 5*time.Millisecond)
	m.Refused(12)
	m.Superseded(13)
	m.Held(g, lane, 14)
	m.InFlight(g, 3)
	m.InFlight(g, -1)
	m.Transition(g, breaker.Closed, breaker.Open, breaker.CauseFailures)
	m.NotCalled(g, fleet.WhyOpen)
	m.Probed(g)
	m.Turn(g, time.Millisecond)
	m.WebhookRequest(g, webhook.Accepted, time.Millisecond)
	m.WebhookRequest("", webhook.Refused, time.Millisecond)
	m.WebhookRefused(g, webhook.RefusedSignature)
	m.WebhookNotice(g, webhook.Applied)
	m.WebhookHint(g, webhook.HintNudged)
	m.WebhookBatch(3, time.Millisecond)
	m.WebhookSilence(g, true, 90*time.Second)
	m.WebhookEvicted()

	got := scrape(t, registry)
	queue := `{gateway="acme",lane="high"}`
	poll := `{stream="PAYMENTS_POLL"}`
	for name, want := range map[string]float64{
		`pollux_relay_claimed_total` + queue:                                                             3,
		`pollux_relay_lag_seconds` + queue:                                                               1,
		`pollux_relay_events_total`:                                                                      4,
		`pollux_relay_event_lag_seconds`:                                                                 1,
		`pollux_relay_published_total` + poll:                                                            5,
		`pollux_relay_publish_duration_seconds` + poll:                                                   1,
		`pollux_relay_publish_batch_messages` + poll:                                                     1,
		`pollux_relay_duplicates_total` + poll:                                                           2,
		`pollux_relay_publish_failures_total{stream="PAYMENTS_EVENTS"}`:                                  6,
		`pollux_relay_set_aside_total{kind="poll"}`:                                                      7,
		`pollux_relay_stream_losses_total` + poll:                                                        1,
		`pollux_relay_rearmed_polls_total` + poll:                                                        8,
		`pollux_relay_rearmed_events_total` + poll:                                                       9,
		`pollux_relay_ready_polls` + queue:                                                               10,
		`pollux_relay_backlog_polls` + queue:                                                             11,
		`pollux_relay_work_polls` + queue:                                                                21,
		`pollux_relay_claim_duration_seconds`:                                                            1,
		`pollux_relay_claim_batch_polls`:                                                                 1,
		`pollux_consumer_queue_wait_seconds` + queue:                                                     1,
		`pollux_consumer_delivery_duration_seconds{gateway="acme"}`:                                      1,
		`pollux_consumer_attempts_to_finality{gateway="acme"}`:                                           1,
		`pollux_record_read_duration_seconds`:                                                            1,
		`pollux_record_read_batch_polls`:                                                                 1,
		`pollux_payments_resolved_total{gateway="acme",source="poll"}`:                                   1,
		`pollux_payments_resolved_total{gateway="acme",source="webhook"}`:                                1,
		`pollux_webhook_time_to_finality_seconds{class="standard",gateway="acme"}`:                       1,
		`pollux_consumer_deliveries_total{disposition="hold",gateway="acme",reason="failure"}`:           2,
		`pollux_gateway_call_duration_seconds{class="transport",gateway="acme"}`:                         1,
		`pollux_consumer_poll_lateness_seconds` + queue:                                                  1,
		`pollux_consumer_time_to_finality_seconds{class="standard",gateway="acme"}`:                      1,
		`pollux_consumer_resolved_total{gateway="acme",status="succeeded"}`:                              1,
		`pollux_record_batch_results`:                                                                    1,
		`pollux_record_batch_duration_seconds`:                                                           1,
		`pollux_record_refused_rows_total`:                                                               12,
		`pollux_record_superseded_results_total`:                                                         13,
		`pollux_consumer_held_polls` + queue:                                                             14,
		`pollux_consumer_in_flight_polls{gateway="acme"}`:                                                2,
		`pollux_breaker_transitions_total{cause="failure_ratio",from="closed",gateway="acme",to="open"}`: 1,
		`pollux_gate_refusals_total{gateway="acme",why="open"}`:                                          1,
		`pollux_gate_probes_total{gateway="acme"}`:                                                       1,
		`pollux_gate_wait_seconds{gateway="acme"}`:                                                       1,
		`pollux_webhook_request_duration_seconds{gateway="acme",outcome="accepted"}`:                     1,
		`pollux_webhook_request_duration_seconds{gateway="other",outcome="refused"}`:                     1,
		`pollux_webhook_refused_total{gateway="acme",reason="signature"}`:                                1,
		`pollux_webhook_notices_total{decision="applied",gateway="acme"}`:                                1,
		`pollux_webhook_unverified_hints_total{gateway="acme",outcome="nudged"}`:                         1,
		`pollux_webhook_batch_duration_seconds`:                                                          1,
		`pollux_webhook_batch_notices`:                                                                   1,
		`pollux_webhook_silent{gateway="acme"}`:                                                          1,
		`pollux_webhook_quiet_seconds{gateway="acme"}`:                                                   90,
		`pollux_webhook_evicted_connections_total`:                                                       1,
	} {
		v, ok := got[name]
		if !ok {
			t.Errorf("%s is not exported", name)
		} else if v != want {
			t.Errorf("%s = %v, want %v", name, v, want)
		}
	}
	if t.Failed() {
		for name := range got {
			if strings.HasPrefix(name, "pollux") {
				t.Log(name)
			}
		}
	}
}

func TestAlertedCountersExistBeforeTheirFirstEvent(t *testing.T) {
	_, registry := metrics(t, Config{})
	got := scrape(t, registry)
	for _, name := range []string{
		`pollux_relay_stream_losses_total{stream="PAYMENTS_POLL"}`,
		`pollux_relay_stream_losses_total{stream="PAYMENTS_EVENTS"}`,
		`pollux_relay_publish_failures_total{stream="PAYMENTS_DEAD"}`,
		`pollux_relay_set_aside_total{kind="event"}`,
		`pollux_record_refused_rows_total`,
		`pollux_record_superseded_results_total`,
	} {
		if v, ok := got[name]; !ok || v != 0 {
			t.Errorf("%s = %v, exported %v; want 0 from the start", name, v, ok)
		}
	}
}

func TestProcessNamesItself(t *testing.T) {
	_, registry := metrics(t, Config{Service: "consumer", Version: "1.2.3", Instance: "host-1"})
	for name := range scrape(t, registry) {
		if strings.HasPrefix(name, "target_info{") && strings.Contains(name, `service_name="consumer"`) &&
			strings.Contains(name, `service_version="1.2.3"`) && strings.Contains(name, `service_instance_id="host-1"`) {
			return
		}
	}
	t.Error("no target_info with the service, its version and its instance")
}

func TestGatewaysBeyondTheCapAreCountedAsOther(t *testing.T) {
	const limit = 3
	m, registry := metrics(t, Config{MaxGateways: limit})
	for i := range 50 {
		m.Call(bg, fmt.Sprintf("gateway-%d", i), gateway.Pending, time.Millisecond)
	}
	got := scrape(t, registry)
	call := func(g string) float64 {
		return got[`pollux_gateway_call_duration_seconds{class="pending",gateway="`+g+`"}`]
	}
	for i := range limit {
		if call(fmt.Sprintf("gateway-%d", i)) != 1 {
			t.Errorf("gateway-%d has no series of its own", i)
		}
	}
	if call("other") != 50-limit {
		t.Errorf("other = %v, want %d", call("other"), 50-limit)
	}
	if call("gateway-3") != 0 {
		t.Error("gateway-3 has a series of its own, beyond the cap")
	}
}

func TestConfiguredGatewaysKeepTheirLabelsWhateverComesFirst(t *testing.T) {
	m, registry := metrics(t, Config{MaxGateways: 1, Gateways: []string{"acme", "zenith"}})
	for _, g := range []string{"stranger", "acme", "zenith"} {
		m.Call(bg, g, gateway.Pending, time.Millisecond)
	}
	got := scrape(t, registry)
	for g, want := range map[string]float64{"acme": 1, "zenith": 1, "other": 1, "stranger": 0} {
		if v := got[`pollux_gateway_call_duration_seconds{class="pending",gateway="`+g+`"}`]; v != want {
			t.Errorf("%s = %v, want %v", g, v, want)
		}
	}
}

func TestClassesBeyondTheCapAreCountedAsOther(t *testing.T) {
	m, registry := metrics(t, Config{Classes: []string{"standard"}})
	for i := range 40 {
		m.Finality(bg, "acme", fmt.Sprintf("class_%d", i), time.Minute, 3)
	}
	m.Finality(bg, "acme", "standard", time.Minute, 3)
	got := scrape(t, registry)
	final := func(c string) float64 {
		return got[`pollux_consumer_time_to_finality_seconds{class="`+c+`",gateway="acme"}`]
	}
	if final("standard") != 1 || final("class_0") != 1 {
		t.Error("the first classes have no series of their own")
	}
	if want := float64(40 - (maxClasses - 1)); final("other") != want {
		t.Errorf("other = %v, want %v", final("other"), want)
	}
}

func TestWhatIsNoLabelIsCountedAsOther(t *testing.T) {
	m, registry := metrics(t, Config{})
	m.Call(bg, "a.b\n*", gateway.Final, time.Millisecond)
	m.Held("acme", "express", 1)
	m.Published("NOT_OURS", 1, time.Millisecond)
	m.SetAside("thing", 1)
	m.Resolved("acme", payment.Pending)
	m.Delivery("acme", redelivery.Verb(200), "because")
	m.Call(bg, "acme", gateway.Class(200), time.Millisecond)
	got := scrape(t, registry)
	for _, name := range []string{
		`pollux_gateway_call_duration_seconds{class="final",gateway="other"}`,
		`pollux_consumer_held_polls{gateway="acme",lane="other"}`,
		`pollux_relay_published_total{stream="other"}`,
		`pollux_relay_set_aside_total{kind="other"}`,
		`pollux_consumer_resolved_total{gateway="acme",status="other"}`,
		`pollux_consumer_deliveries_total{disposition="drop",gateway="acme",reason="other"}`,
		`pollux_gateway_call_duration_seconds{class="local",gateway="acme"}`,
	} {
		if got[name] != 1 {
			t.Errorf("%s = %v, want 1", name, got[name])
		}
	}
}

func TestManyWorkersCountEverythingOnce(t *testing.T) {
	const workers, each = 8, 500
	m, registry := metrics(t, Config{MaxGateways: 4})
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := range each {
				g := fmt.Sprintf("gateway-%d", (w+i)%10)
				m.Delivery(g, redelivery.Resolve, redelivery.ReasonResolved)
				m.Finality(bg, g, fmt.Sprintf("class-%d", i%30), time.Second, 3)
			}
		})
	}
	running.Wait()
	var deliveries, finalities float64
	for name, v := range scrape(t, registry) {
		switch {
		case strings.HasPrefix(name, "pollux_consumer_deliveries_total"):
			deliveries += v
		case strings.HasPrefix(name, "pollux_consumer_time_to_finality_seconds"):
			finalities += v
		}
	}
	if deliveries != workers*each || finalities != workers*each {
		t.Errorf("%v deliveries and %v finalities, want %d of each", deliveries, finalities, workers*each)
	}
}

// hot are the records made for each payment.
var hot = map[string]func(*Metrics){
	"Delivery":  func(m *Metrics) { m.Delivery("acme", redelivery.Park, redelivery.ReasonStillPending) },
	"Call":      func(m *Metrics) { m.Call(bg, "acme", gateway.Pending, 100*time.Millisecond) },
	"Lateness":  func(m *Metrics) { m.Lateness(bg, "acme", "high", 10*time.Millisecond) },
	"Finality":  func(m *Metrics) { m.Finality(bg, "acme", "standard", time.Minute, 3) },
	"Resolved":  func(m *Metrics) { m.Resolved("acme", payment.Succeeded) },
	"InFlight":  func(m *Metrics) { m.InFlight("acme", 1) },
	"Batch":     func(m *Metrics) { m.Batch(500, time.Millisecond) },
	"Published": func(m *Metrics) { m.Published(message.StreamPoll, 1000, time.Millisecond) },
}

func TestRecordingAllocatesNothing(t *testing.T) {
	m, _ := metrics(t, Config{Gateways: []string{"acme"}})
	for name, record := range hot {
		if n := testing.AllocsPerRun(1000, func() { record(m) }); n != 0 {
			t.Errorf("%s allocates %v times a record, want 0", name, n)
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	for name, record := range hot {
		b.Run(name, func(b *testing.B) {
			m, _ := metrics(b, Config{Gateways: []string{"acme"}})
			b.ReportAllocs()
			for b.Loop() {
				record(m)
			}
		})
	}
}

// BenchmarkRecordFromAllCores shows what workers pay for sharing the instruments.
func BenchmarkRecordFromAllCores(b *testing.B) {
	m, _ := metrics(b, Config{Gateways: []string{"acme"}})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			m.Call(bg, "acme", gateway.Pending, 100*time.Millisecond)
		}
	})
}

// BenchmarkResolvedPayment is all that is recorded of a payment that one poll resolves.
func BenchmarkResolvedPayment(b *testing.B) {
	for name, c := range map[string]Config{"traces off": {}, "traces on": {OTLPEndpoint: "http://127.0.0.1:1"}} {
		b.Run(name, func(b *testing.B) {
			c.Gateways = []string{"acme"}
			m, _ := metrics(b, c)
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				m.Waited("acme", "high", time.Millisecond)
				m.Lateness(ctx, "acme", "high", 10*time.Millisecond)
				m.InFlight("acme", 1)
				m.InFlight("acme", -1)
				m.Call(ctx, "acme", gateway.Final, 100*time.Millisecond)
				m.Delivery("acme", redelivery.Resolve, redelivery.ReasonResolved)
				m.Delivered(ctx, "acme", 100*time.Millisecond)
				m.Resolved("acme", payment.Succeeded)
				m.Finality(ctx, "acme", "standard", time.Minute, 1)
			}
		})
	}
}
