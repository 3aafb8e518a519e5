package app

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracespb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"pollux/internal/config"
	"pollux/internal/pgtest"
	"pollux/internal/telemetry"
)

// collector takes OTLP and keeps it.
type collector struct {
	tracespb.UnimplementedTraceServiceServer
	metricspb.UnimplementedMetricsServiceServer
	url string

	mu      sync.Mutex
	spans   []*tracepb.Span
	metrics map[string]bool
}

// pushed is the part of a collector that takes metrics: both services have a method of the same name.
type pushed struct {
	metricspb.UnimplementedMetricsServiceServer
	*collector
}

func (c *collector) Export(_ context.Context, r *tracespb.ExportTraceServiceRequest) (*tracespb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	return &tracespb.ExportTraceServiceResponse{}, nil
}

func (p pushed) Export(_ context.Context, r *metricspb.ExportMetricsServiceRequest) (*metricspb.ExportMetricsServiceResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, resource := range r.GetResourceMetrics() {
		for _, scope := range resource.GetScopeMetrics() {
			for _, m := range scope.GetMetrics() {
				p.metrics[m.GetName()] = true
			}
		}
	}
	return &metricspb.ExportMetricsServiceResponse{}, nil
}

// pushedNames are the names of the metrics that came.
func (c *collector) pushedNames() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.metrics)
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, server := &collector{url: "http://" + l.Addr().String(), metrics: map[string]bool{}}, grpc.NewServer()
	tracespb.RegisterTraceServiceServer(server, c)
	metricspb.RegisterMetricsServiceServer(server, pushed{collector: c})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

// of are the spans of a trace, or, with links, those of others that are linked into it.
func (c *collector) of(traceID string, linked bool) []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*tracepb.Span
	for _, s := range c.spans {
		links := slices.ContainsFunc(s.GetLinks(), func(l *tracepb.Span_Link) bool { return hex.EncodeToString(l.GetTraceId()) == traceID })
		if own := hex.EncodeToString(s.GetTraceId()) == traceID; own && !linked || links && linked {
			found = append(found, s)
		}
	}
	return found
}

// shape writes spans below a parent, each level in order of their names: "a(b c(d))".
func shape(spans []*tracepb.Span, parent string) string {
	var level []string
	for _, s := range spans {
		if hex.EncodeToString(s.GetParentSpanId()) == parent {
			name := s.GetName()
			if below := shape(spans, hex.EncodeToString(s.GetSpanId())); below != "" {
				name += "(" + below + ")"
			}
			level = append(level, name)
		}
	}
	slices.Sort(level)
	return strings.Join(level, ", ")
}

// traced is a payment of the test.
type traced struct{ reference, class, traceID string }

const callersSpan = "00f067aa0ba902b7"

func (p traced) parent(flags string) string {
	return "00-" + p.traceID + "-" + callersSpan + "-" + flags
}

// TestATraceGoesFromTheCallerToTheEvent runs a relay and a consumer, and looks at the shape of the traces that a collector has of them: of a payment that is final at once, of one that
// the broker holds, of one that sleeps in the database, and of one whose caller does not trace.
func TestATraceGoesFromTheCallerToTheEvent(t *testing.T) {
	noLeaks(t)
	sink := newCollector(t)
	s := newSite(t)
	s.dsn = pgtest.New(t, migrated)
	s.broker()
	once := traced{"once", "standard", "4bf92f3577b34da6a3ce929d0e0e4701"}
	held := traced{"held", "held", "4bf92f3577b34da6a3ce929d0e0e4702"}
	slept := traced{"slept", "slept", "4bf92f3577b34da6a3ce929d0e0e4703"}
	quiet := traced{"quiet", "standard", "4bf92f3577b34da6a3ce929d0e0e4704"}
	var mu sync.Mutex
	asked := map[string][]string{} // by reference: the traceparents that came
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		reference := filepath.Base(r.URL.Path)
		mu.Lock()
		asked[reference] = append(asked[reference], r.Header.Get("traceparent"))
		first := len(asked[reference]) == 1
		mu.Unlock()
		status := "succeeded"
		if first && (reference == held.reference || reference == slept.reference) {
			status = "processing"
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"status": %q, "id": %q, "amount": 1999, "currency": "EUR"}`, status, reference)
	}
	file := s.file()
	load := func(service string) config.Config {
		cfg, err := config.Load(config.Options{File: file, Environ: []string{}, Set: []string{
			"telemetry.otlp_endpoint=" + sink.url, "telemetry.otlp_every=1s", "telemetry.trace_ratio=0%", "telemetry.listen=" + s.listen, "relay.observe=1s",
			"policies.held.pending.list=200ms", "policies.held.hold_limit=10s", "classes.held=held",
			"policies.slept.pending.list=200ms", "policies.slept.hold_limit=0s", "classes.slept=slept",
		}})
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	relay := s.serveIn("outbox-relay", load("outbox-relay"), NewProcess, Relay)
	eventually(t, "the relay is ready", s.ready)
	relayPage := s.listen
	s.listen = freeAddress(t)
	consumer := s.serveIn("consumer", load("consumer"), NewProcess, Consumer)
	eventually(t, "the consumer is ready", s.ready)
	for _, p := range []traced{once, held, slept, quiet} {
		flags := "01"
		if p == quiet {
			flags = "00"
		}
		s.exec(`select pollux.track_payment('acme', $1, 1999, 'EUR', class => $2, traceparent => $3)`, p.reference, p.class, p.parent(flags))
	}
	s.exec(`select pollux.track_payment('acme', 'undecided', 1999, 'EUR')`)
	eventually(t, "all are final and told of", func() bool {
		return s.is(`count(*) = 5 from pollux.payments where status = 'succeeded'`) && s.is(`count(*) = 5 from pollux.outbox where published_at is not null`)
	})
	awaitPage(t, s, telemetry.InConsumer)
	if t.Failed() {
		return
	}
	exemplars := openMetrics(t, s)
	if !strings.Contains(exemplars, `trace_id="`+once.traceID+`"`) {
		t.Errorf("no measurement names the trace:\n%s", exemplars)
	}
	s.listen = relayPage
	awaitPage(t, s, telemetry.InRelay)
	eventually(t, "metrics of both are pushed", func() bool {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		return sink.metrics["pollux.relay.claimed"] && sink.metrics["pollux.consumer.deliveries"]
	})
	for name := range sink.pushedNames() {
		if !slices.ContainsFunc(telemetry.Catalogue(), func(e telemetry.Metric) bool { return name == "pollux."+e.Name }) {
			t.Errorf("%s is pushed and not in the catalogue", name)
		}
	}
	for _, v := range []*service{consumer, relay} {
		if err := v.ends(); err != nil {
			t.Error(err)
		}
	}

	const poll, event = "create payments.poll.acme.normal", "create payments.resolved.acme.succeeded"
	first := poll + "(process payments.poll.acme.normal(poll acme(GET)))"
	for _, p := range []traced{once, held, slept} {
		if got, want := shape(sink.of(p.traceID, false), callersSpan), first+", "+event; got != want {
			t.Errorf("the trace of %s is\n%s\nwant\n%s", p.reference, got, want)
		}
	}
	for p, want := range map[traced]string{
		held:  "process payments.poll.acme.normal(poll acme(GET))",
		slept: "create payments.poll.acme.retry(process payments.poll.acme.retry(poll acme(GET)))",
	} {
		if got := later(sink, p); got != want {
			t.Errorf("what came later of %s is\n%s\nwant\n%s", p.reference, got, want)
		}
	}
	var linked []string
	for _, span := range sink.of(once.traceID, true) {
		linked = append(linked, span.GetName())
	}
	slices.Sort(linked)
	if want := "record results, send PAYMENTS_EVENTS, send PAYMENTS_POLL"; strings.Join(linked, ", ") != want {
		t.Errorf("linked are %s, want %s", linked, want)
	}
	if spans := append(sink.of(quiet.traceID, false), sink.of(quiet.traceID, true)...); len(spans) != 0 {
		t.Errorf("whose caller does not trace has %d spans", len(spans))
	}
	mu.Lock()
	defer mu.Unlock()
	if got := asked[quiet.reference]; len(got) != 1 || !strings.HasPrefix(got[0], "00-"+quiet.traceID+"-") || !strings.HasSuffix(got[0], "-00") {
		t.Errorf("the gateway got %q, want the caller's trace, not recorded", got)
	}
	if got := asked[once.reference]; len(got) != 1 || !strings.HasPrefix(got[0], "00-"+once.traceID+"-") || strings.Contains(got[0], callersSpan) {
		t.Errorf("the gateway got %q, want the span of the call", got)
	}
	checkAttributes(t, sink)
}

// later is the shape of the trace that is linked to one and belongs to no batch.
func later(sink *collector, p traced) string {
	for _, s := range sink.of(p.traceID, true) {
		if strings.HasPrefix(s.GetName(), "process") || strings.HasPrefix(s.GetName(), "create") {
			return shape(sink.of(hex.EncodeToString(s.GetTraceId()), false), "")
		}
	}
	return ""
}

// checkAttributes looks for what must not be in a span, and for what must.
func checkAttributes(t *testing.T, sink *collector) {
	t.Helper()
	sink.mu.Lock()
	defer sink.mu.Unlock()
	statements := 0
	for _, s := range sink.spans {
		attributes := map[string]string{}
		for _, a := range s.GetAttributes() {
			attributes[a.GetKey()] = text(a.GetValue())
		}
		messaging := slices.ContainsFunc([]string{"create ", "process ", "send "}, func(p string) bool { return strings.HasPrefix(s.GetName(), p) })
		if messaging && (attributes["messaging.system"] != "nats" || attributes["messaging.operation.type"] == "" || attributes["messaging.destination.name"] == "") {
			t.Errorf("%s has the attributes %v", s.GetName(), attributes)
		}
		if s.GetName() == "GET" && (attributes["server.address"] != "127.0.0.1" || attributes["http.response.status_code"] != "200" || attributes["http.request.method"] != "GET") {
			t.Errorf("%s has the attributes %v", s.GetName(), attributes)
		}
		if attributes["db.system.name"] == "postgresql" && s.GetName() != "record results" {
			statements++
		}
		for key, value := range attributes {
			if strings.Contains(value, "/payments/") || strings.Contains(value, "once") || strings.HasPrefix(key, "url.full") || strings.HasPrefix(key, "url.query") {
				t.Errorf("%s says %s=%s", s.GetName(), key, value)
			}
		}
	}
	if statements == 0 {
		t.Error("no statement of a transaction that recorded a result is a span")
	}
}

func text(v *commonpb.AnyValue) string {
	switch x := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return x.StringValue
	case *commonpb.AnyValue_IntValue:
		return fmt.Sprint(x.IntValue)
	}
	return v.String()
}

// awaitPage waits until everything that a binary always has is on its page.
func awaitPage(t *testing.T, s *site, in telemetry.Binary) {
	t.Helper()
	var missing []string
	defer func() {
		if t.Failed() {
			t.Logf("not on the page of %s: %v", in, missing)
		}
	}()
	eventually(t, "everything is on the page of "+in.String(), func() bool {
		missing = missingOn(t, s, in)
		return len(missing) == 0
	})
}

// missingOn lists what a binary always has and is not on its page, and fails when something is there that the catalogue does not give it.
func missingOn(t *testing.T, s *site, in telemetry.Binary) (missing []string) {
	t.Helper()
	_, page := s.page("/metrics")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatalf("the page cannot be read: %v\n%s", err, page)
	}
	entries := map[string]telemetry.Metric{}
	for _, e := range telemetry.Catalogue() {
		entries[e.Prometheus()] = e
		if _, there := families[e.Prometheus()]; e.In&in != 0 && !e.Rare && !there {
			missing = append(missing, e.Prometheus())
		}
	}
	for name := range families {
		if e, ok := entries[name]; strings.HasPrefix(name, "pollux_") && (!ok || e.In&in == 0) {
			t.Fatalf("%s is on the page of %s", name, in)
		}
	}
	return missing
}

// openMetrics fetches the page in the format that has exemplars.
func openMetrics(t *testing.T, s *site) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.listen+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestEverythingOfAReceiverIsOnItsPage takes a notification and looks at the page.
func TestEverythingOfAReceiverIsOnItsPage(t *testing.T) {
	noLeaks(t)
	d := newWebhookDoor(t)
	d.dsn = pgtest.New(t, migrated)
	v := d.open()
	eventually(t, "it is ready", d.ready)
	d.exec(`select pollux.track_payment('acme', 'pay_1', 1999, 'EUR')`)
	body := fmt.Sprintf(`{"type":"payment.updated","at":%q,"mode":"production","data":{"id":"pay_1","status":"succeeded","amount":1999,"currency":"EUR"}}`, time.Now().UTC().Format(time.RFC3339))
	if code := d.standard("/webhooks/acme", "signing key of acme", "evt_1", body); code != http.StatusOK {
		t.Fatalf("the notification is answered with %d", code)
	}
	awaitPage(t, d.site, telemetry.InWebhook)
	_, page := d.page("/metrics")
	for _, want := range []string{`pollux_payments_resolved_total{gateway="acme",source="webhook"} 1`, `pollux_webhook_time_to_finality_seconds_count{class="standard",gateway="acme"} 1`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %s", want)
		}
	}
	if err := v.ends(); err != nil {
		t.Error(err)
	}
}
