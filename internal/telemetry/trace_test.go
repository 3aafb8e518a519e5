package telemetry

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/outbox"
	"pollux/internal/webhook"
)

const (
	traceID  = "4bf92f3577b34da6a3ce929d0e0e4736"
	spanID   = "00f067aa0ba902b7"
	sampled  = "00-" + traceID + "-" + spanID + "-01"
	declined = "00-" + traceID + "-" + spanID + "-00"
)

// recorded returns a tracing that records the given share of what nobody decided, and what it recorded.
func recorded(t *testing.T, ratio float64) (*Tracing, *tracetest.SpanRecorder) {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	tracing := traceTo(Config{Service: "test", TraceRatio: ratio}, r)
	t.Cleanup(func() {
		if err := tracing.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return tracing, r
}

func TestTraceGoesFromTheRowToTheGateway(t *testing.T) {
	tracing, r := recorded(t, 0)
	ctx, polled := tracing.Poll(t.Context(), consumer.Origin{TraceParent: sampled}, "payments.poll.acme.high", "acme", 42)
	ctx, called := tracing.Call(ctx, "acme")
	onTheWire := tracing.TraceParent(ctx, sampled)
	called(gateway.Answer{Class: gateway.Transport, HTTPStatus: 502})
	polled(nil)

	spans := r.Ended()
	if len(spans) != 2 {
		t.Fatalf("%d spans, want 2", len(spans))
	}
	call, poll := spans[0], spans[1]
	if poll.Parent().SpanID().String() != spanID || poll.SpanContext().TraceID().String() != traceID || !poll.Parent().IsRemote() {
		t.Errorf("the poll does not continue the row's trace: parent %v", poll.Parent())
	}
	if call.Parent().SpanID() != poll.SpanContext().SpanID() {
		t.Error("the call is not inside the poll")
	}
	if want := "00-" + traceID + "-" + call.SpanContext().SpanID().String() + "-01"; onTheWire != want {
		t.Errorf("the gateway gets %s, want %s", onTheWire, want)
	}
	if poll.SpanKind() != trace.SpanKindConsumer || call.SpanKind() != trace.SpanKindClient {
		t.Errorf("kinds %v and %v", poll.SpanKind(), call.SpanKind())
	}
	if poll.Status().Code != codes.Unset || call.Status().Code != codes.Error || call.Status().Description != "transport" {
		t.Errorf("statuses %+v and %+v", poll.Status(), call.Status())
	}
	attributes := map[string]string{}
	for _, a := range append(poll.Attributes(), call.Attributes()...) {
		attributes[string(a.Key)] = a.Value.String()
	}
	for k, want := range map[string]string{
		"messaging.system":           "nats",
		"messaging.operation.type":   "process",
		"messaging.destination.name": "payments.poll.acme.high",
		"pollux.payment_id":          "42",
		"pollux.answer_class":        "transport",
		"http.response.status_code":  "502",
	} {
		if attributes[k] != want {
			t.Errorf("%s = %q, want %q", k, attributes[k], want)
		}
	}
}

func TestWhoCreatedThePaymentDecidesWhetherItIsTraced(t *testing.T) {
	for _, c := range []struct {
		name, parent string
		ratio        float64
		want         int
	}{
		{"sampled upstream, ratio 0", sampled, 0, 1},
		{"declined upstream, ratio 1", declined, 1, 0},
		{"nobody decided, ratio 0", "", 0, 0},
		{"nobody decided, ratio 1", "", 1, 1},
		{"nonsense, ratio 1", "00-nonsense", 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			tracing, r := recorded(t, c.ratio)
			ctx, polled := tracing.Poll(t.Context(), consumer.Origin{TraceParent: c.parent}, "payments.poll.acme.high", "acme", 1)
			onTheWire := tracing.TraceParent(ctx, "")
			polled(nil)
			if got := len(r.Ended()); got != c.want {
				t.Errorf("%d spans recorded, want %d", got, c.want)
			}
			if TraceID(onTheWire) == "" {
				t.Errorf("the gateway gets %q, no trace", onTheWire)
			}
		})
	}
}

func TestAnErrorsTextStaysOutOfTheTrace(t *testing.T) {
	tracing, r := recorded(t, 1)
	_, sent := tracing.Send(t.Context(), []outbox.Message{{Subject: "payments.poll.acme.high", ID: "1", TraceParent: sampled}})
	sent([]outbox.Receipt{{Err: errors.New("row of 4111111111111111")}})
	_, wrote := tracing.Record(t.Context(), 1, func(int) string { return sampled })
	wrote(context.DeadlineExceeded)
	spans := r.Ended()
	if len(spans) != 3 || spans[0].Status().Description != "error" || spans[1].Status().Description != "error" || spans[2].Status().Description != "deadline exceeded" {
		t.Fatalf("spans %v", spans)
	}
	for _, s := range spans {
		if len(s.Events()) != 0 || s.Status().Code != codes.Error {
			t.Errorf("%s: status %v, events %v", s.Name(), s.Status(), s.Events())
		}
	}
}

func TestWithoutACollectorTracingCostsNothing(t *testing.T) {
	off, err := newTracing(t.Context(), Config{TraceRatio: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if off.On() {
		t.Fatal("tracing is on without a collector")
	}
	ctx := t.Context()
	n := testing.AllocsPerRun(1000, func() {
		ctx, polled := off.Poll(ctx, consumer.Origin{TraceParent: sampled}, "payments.poll.acme.high", "acme", 42)
		ctx, called := off.Call(ctx, "acme")
		if off.TraceParent(ctx, sampled) != sampled {
			t.Error("the row's traceparent does not go on to the gateway")
		}
		called(gateway.Answer{})
		polled(nil)
		_, wrote := off.Record(ctx, 500, nil)
		wrote(nil)
		_, published := off.Send(ctx, nil)
		published(nil)
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func TestTraceParentIsReadAsTheStandardSays(t *testing.T) {
	for _, c := range []struct {
		in    string
		valid bool
	}{
		{sampled, true},
		{declined, true},
		{"cc-" + traceID + "-" + spanID + "-01-what-the-future-will-be-like", true},
		{"cc-" + traceID + "-" + spanID + "-01.what", false},
		{"ff-" + traceID + "-" + spanID + "-01", false},
		{sampled + "-01", false},
		{strings.ToUpper(sampled), false},
		{"00-00000000000000000000000000000000-" + spanID + "-01", false},
		{"00-" + traceID + "-0000000000000000-01", false},
		{"00_" + traceID + "-" + spanID + "-01", false},
		{"", false},
		{sampled[:54], false},
	} {
		if got := TraceID(c.in) == traceID; got != c.valid {
			t.Errorf("%q: valid %v, want %v", c.in, got, c.valid)
		}
	}
}

func FuzzTraceParentAgreesWithOpenTelemetry(f *testing.F) {
	for _, s := range []string{sampled, declined, "cc-" + traceID + "-" + spanID + "-01-more", sampled + "-", "00-" + traceID + "-" + spanID + "-ff", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sc, ok := parseTraceParent(s)
		theirs := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": s}))
		// OpenTelemetry takes a version 00 with a dash at its end and refuses one with a flag that it does not know; the standard asks for neither.
		if theirs.IsValid() && len(s) == traceParentBytes && !ok {
			t.Fatalf("%q: OpenTelemetry reads %+v, we read nothing", s, theirs)
		}
		if ok && s[53] == '0' && s[54] <= '3' && !theirs.Equal(sc) {
			t.Fatalf("%q: OpenTelemetry reads %+v, we read %+v", s, theirs, sc)
		}
		if ok && formatTraceParent(sc) != "00-"+s[3:35]+"-"+s[36:52]+"-"+formatTraceParent(sc)[53:] {
			t.Fatalf("%q became %q", s, formatTraceParent(sc))
		}
	})
}

// fakeCollector keeps the names of the spans that it is sent.
type fakeCollector struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []string
	about map[string]string // what the process says of itself
}

func (f *fakeCollector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		f.about = map[string]string{}
		for _, a := range resource.GetResource().GetAttributes() {
			f.about[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				f.spans = append(f.spans, span.GetName())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestSpansReachTheCollectorBeforeTheEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fake, server := &fakeCollector{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, fake)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})

	tracing, err := newTracing(t.Context(), Config{OTLPEndpoint: "http://" + l.Addr().String(), TraceRatio: 1}, func(err error) {
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	_, polled := tracing.Poll(t.Context(), consumer.Origin{}, "payments.poll.acme.high", "acme", 1)
	polled(nil)
	if err := tracing.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if len(fake.spans) != 1 || fake.spans[0] != "process payments.poll.acme.high" {
		t.Errorf("the collector has %v", fake.spans)
	}
}

func BenchmarkTracingOff(b *testing.B) {
	off := &Tracing{}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		ctx, polled := off.Poll(ctx, consumer.Origin{TraceParent: sampled}, "payments.poll.acme.high", "acme", 42)
		_, called := off.Call(ctx, "acme")
		called(gateway.Answer{})
		polled(nil)
	}
}

func BenchmarkTracingDeclinedUpstream(b *testing.B) {
	on := traceTo(Config{TraceRatio: 1}, tracetest.NewSpanRecorder())
	b.Cleanup(func() { _ = on.close(context.Background()) })
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		ctx, polled := on.Poll(ctx, consumer.Origin{TraceParent: declined}, "payments.poll.acme.high", "acme", 42)
		_, called := on.Call(ctx, "acme")
		called(gateway.Answer{})
		polled(nil)
	}
}

func TestWhatComesLaterHasATraceOfItsOwnThatIsLinked(t *testing.T) {
	tracing, r := recorded(t, 0)
	messages := []outbox.Message{
		{Subject: "payments.poll.acme.high", ID: "first", TraceParent: sampled},
		{Subject: "payments.poll.acme.retry", ID: "later", TraceParent: sampled, Later: true},
		{Subject: "payments.poll.acme.retry", ID: "declined", TraceParent: declined, Later: true},
		{Subject: "payments.poll.acme.high", ID: "undecided"},
	}
	_, sent := tracing.Send(t.Context(), messages)
	sent(make([]outbox.Receipt, len(messages)))
	_, polled := tracing.Poll(t.Context(), consumer.Origin{TraceParent: messages[1].TraceParent, Later: true}, "payments.poll.acme.retry", "acme", 1)
	polled(nil)
	spans := r.Ended()
	if len(spans) != 4 {
		t.Fatalf("%d spans, want two messages, the batch and a delivery", len(spans))
	}
	first, later, batch, delivery := spans[0], spans[1], spans[2], spans[3]
	if first.Parent().SpanID().String() != spanID || len(first.Links()) != 0 {
		t.Errorf("the first publish is not in the caller's trace: %v", first.Parent())
	}
	if later.Parent().IsValid() || later.SpanContext().TraceID().String() == traceID || len(later.Links()) != 1 || later.Links()[0].SpanContext.SpanID().String() != spanID {
		t.Errorf("the later publish has the parent %v and the links %v", later.Parent(), later.Links())
	}
	if delivery.Parent().IsValid() || len(delivery.Links()) != 1 || delivery.Links()[0].SpanContext.SpanID() != later.SpanContext().SpanID() {
		t.Errorf("the later delivery has the parent %v and the links %v", delivery.Parent(), delivery.Links())
	}
	if len(batch.Links()) != 2 || batch.SpanKind() != trace.SpanKindClient {
		t.Errorf("the batch has the links %v", batch.Links())
	}
	if messages[0].TraceParent != formatTraceParent(first.SpanContext()) || messages[1].TraceParent != formatTraceParent(later.SpanContext()) {
		t.Error("the messages do not carry their spans")
	}
	if messages[2].TraceParent != declined {
		t.Errorf("what was decided against is carried on as %s", messages[2].TraceParent)
	}
	if sc, ok := parseTraceParent(messages[3].TraceParent); !ok || sc.IsSampled() {
		t.Errorf("what the relay decided against is carried on as %q", messages[3].TraceParent)
	}
}

func TestALargeBatchIsLinkedAsFarAsLinksAreKept(t *testing.T) {
	tracing, r := recorded(t, 0)
	_, wrote := tracing.Record(t.Context(), 500, func(i int) string {
		if i%2 == 0 {
			return declined
		}
		return sampled
	})
	wrote(nil)
	_, nothing := tracing.Record(t.Context(), 500, func(int) string { return declined })
	nothing(nil)
	if spans := r.Ended(); len(spans) != 1 || len(spans[0].Links()) != maxLinks {
		t.Errorf("%d spans, want one with %d links", len(spans), maxLinks)
	}
}

// BenchmarkSend is what a batch of a thousand messages costs a relay, by who decided about their traces.
func BenchmarkSend(b *testing.B) {
	for name, parent := range map[string]string{"declined": declined, "undecided, of which 1% are recorded": ""} {
		b.Run(name, func(b *testing.B) {
			on := traceTo(Config{TraceRatio: .01}, tracetest.NewSpanRecorder())
			b.Cleanup(func() { _ = on.close(context.Background()) })
			messages, receipts := make([]outbox.Message, 1000), make([]outbox.Receipt, 1000)
			b.ReportAllocs()
			for b.Loop() {
				for i := range messages {
					messages[i] = outbox.Message{Subject: "payments.poll.acme.high", ID: "1", TraceParent: parent}
				}
				_, sent := on.Send(b.Context(), messages)
				sent(receipts)
			}
		})
	}
}

// A notice is in a trace of its own, which began when it came and is linked to its payment's; what the payment decided counts for it.
func TestANoticeIsLinkedToItsPayment(t *testing.T) {
	for name, c := range map[string]struct {
		ratio    float64
		verdicts []webhook.Verdict
		links    int // -1: nothing is recorded
	}{
		"recorded":    {0, []webhook.Verdict{{Decision: webhook.Applied, Payment: 42, TraceParent: sampled}}, 1},
		"declined":    {1, []webhook.Verdict{{Decision: webhook.Applied, Payment: 42, TraceParent: declined}}, -1},
		"undecided":   {1, []webhook.Verdict{{Decision: webhook.Waiting}}, 0},
		"not a share": {0, []webhook.Verdict{{Decision: webhook.Waiting}}, -1},
		"several":     {0, []webhook.Verdict{{TraceParent: declined}, {TraceParent: sampled}, {}}, 2},
		"many":        {0, slices.Repeat([]webhook.Verdict{{TraceParent: sampled}}, 1000), maxLinks},
	} {
		tracing, r := recorded(t, c.ratio)
		came := time.Now().Add(-time.Minute)
		tracing.Took("acme", came, c.verdicts)
		spans := r.Ended()
		if len(spans) == 0 != (c.links < 0) {
			t.Errorf("%s: %d spans", name, len(spans))
		}
		if len(spans) == 0 {
			continue
		}
		s := spans[0]
		if s.Name() != "receive acme" || s.SpanKind() != trace.SpanKindServer || !s.StartTime().Equal(came) || s.Parent().IsValid() || s.SpanContext().TraceID().String() == traceID ||
			len(s.Links()) != c.links || s.DroppedLinks() != 0 {
			t.Errorf("%s: %s, %v, %d links, parent %v", name, s.Name(), s.SpanKind(), len(s.Links()), s.Parent())
		}
		attributes := map[string]string{}
		for _, a := range s.Attributes() {
			attributes[string(a.Key)] = a.Value.String()
		}
		if name == "recorded" && (attributes["pollux.payment_id"] != "42" || attributes["pollux.decision"] != "applied" || attributes["http.response.status_code"] != "200") {
			t.Errorf("%v", attributes)
		}
	}
	(&Tracing{}).Took("acme", time.Now(), []webhook.Verdict{{TraceParent: sampled}}) // with no collector
}
