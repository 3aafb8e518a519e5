package telemetry

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/webhook"
	definitions "pollux/streams"
)

// Tracing starts the spans of a process. A payment carries the W3C trace context (traceparent) of the request that created it in its row; the
// first publish of its poll, its first delivery, the call to the gateway and the event that tells of it are in that trace. What comes later, after a hold, a sleep, a
// deferral or a replay, is in traces of its own, linked to what it came from: a trace of hours is of no use to anybody. With no collector configured every method returns
// at once and allocates nothing.
//
// Whoever created the payment decides whether it is recorded. Where nobody did, a share of TraceRatio is.
type Tracing struct {
	tracer   trace.Tracer
	provider *sdk.TracerProvider // nil when off
}

func newTracing(ctx context.Context, c Config, failed func(error)) (*Tracing, error) {
	if c.OTLPEndpoint == "" {
		return &Tracing{}, nil
	}
	if c.TraceRatio < 0 || c.TraceRatio > 1 {
		return nil, fmt.Errorf("trace ratio %g: between 0 and 1", c.TraceRatio)
	}
	exporter, err := spanExporter(ctx, c)
	if err != nil {
		return nil, err
	}
	return traceTo(c, sdk.NewBatchSpanProcessor(watchedSpans{exporter, failed, c.OTLP.sent}, sdk.WithExportTimeout(c.OTLP.timeout()))), nil
}

func traceTo(c Config, p sdk.SpanProcessor) *Tracing {
	provider := sdk.NewTracerProvider(
		sdk.WithSpanProcessor(p),
		sdk.WithResource(processResource(c)),
		sdk.WithSampler(sdk.ParentBased(linked{sdk.TraceIDRatioBased(c.TraceRatio)})),
	)
	return &Tracing{tracer: provider.Tracer(namespace), provider: provider}
}

// linked samples what begins a trace: as that was decided which it is linked to, and as rest says where it is linked to nothing.
type linked struct{ rest sdk.Sampler }

// ShouldSample implements sdk.Sampler.
func (s linked) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	if len(p.Links) == 0 {
		return s.rest.ShouldSample(p)
	}
	for _, l := range p.Links {
		if l.SpanContext.IsSampled() {
			return sdk.SamplingResult{Decision: sdk.RecordAndSample}
		}
	}
	return sdk.SamplingResult{Decision: sdk.Drop}
}

// Description implements sdk.Sampler.
func (s linked) Description() string { return "linked{" + s.rest.Description() + "}" }

func (t *Tracing) close(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("sending the last traces: %w", err)
	}
	return nil
}

// On reports whether spans are recorded at all.
func (t *Tracing) On() bool { return t.provider != nil }

// start starts a span in the trace of a traceparent, or, where it is later, in one of its own that is linked to it. What was not recorded then is not recorded
// later; what comes of it is passed on as it is.
func (t *Tracing) start(ctx context.Context, traceParent string, later bool, name func() string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	from, ok := parseTraceParent(traceParent)
	switch {
	case ok && !from.IsSampled():
		ctx = trace.ContextWithRemoteSpanContext(ctx, from)
		return ctx, trace.SpanFromContext(ctx)
	case ok && later:
		options = append(options, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: from}))
	case ok:
		ctx = trace.ContextWithRemoteSpanContext(ctx, from)
	default:
		options = append(options, trace.WithNewRoot())
	}
	return t.tracer.Start(ctx, name(), options...)
}

// operation are the attributes of what is done with a message, by the semantic conventions of messaging.
func operation(kind attribute.KeyValue, name, destination string, more ...attribute.KeyValue) []attribute.KeyValue {
	return append(more, semconv.MessagingSystemKey.String("nats"), kind, semconv.MessagingOperationName(name), semconv.MessagingDestinationName(destination))
}

// Poll starts the span of one delivery: a poll of a payment that came on a subject. Without a valid traceparent the span begins a trace. The returned function ends the
// span and must be called once; nil is a delivery that went well.
func (t *Tracing) Poll(ctx context.Context, from consumer.Origin, subject, gateway string, id payment.ID) (context.Context, func(error)) {
	if t.provider == nil {
		return ctx, untraced
	}
	ctx, span := t.start(ctx, from.TraceParent, from.Later, func() string { return "process " + subject }, trace.WithSpanKind(trace.SpanKindConsumer))
	if span.IsRecording() {
		span.SetAttributes(operation(semconv.MessagingOperationTypeProcess, "process", subject,
			attribute.String("pollux.gateway", gateway), attribute.Int64("pollux.payment_id", int64(id)))...)
	}
	return ctx, func(err error) { end(span, err) }
}

// Call starts the span of one call to a gateway, inside that of its poll. What TraceParent says of the returned context goes to the
// gateway. The returned function ends the span and must be called once.
func (t *Tracing) Call(ctx context.Context, gatewayName string) (context.Context, func(gateway.Answer)) {
	if t.provider == nil {
		return ctx, unanswered
	}
	ctx, span := t.tracer.Start(ctx, "poll "+gatewayName, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("pollux.gateway", gatewayName)))
	return ctx, func(a gateway.Answer) { endCall(span, a) }
}

// maxLinks is how many links a span has at the most: as many as the SDK keeps.
const maxLinks = 128

// Send implements outbox.Tracer. Each message that is recorded has a span of its own, whose context it carries to whoever takes it; the span of all is linked to them, and
// there is none when no message is recorded.
func (t *Tracing) Send(ctx context.Context, messages []outbox.Message) (context.Context, func([]outbox.Receipt)) {
	if t.provider == nil {
		return ctx, unsent
	}
	spans := make([]trace.Span, len(messages))
	var links []trace.Link
	for i := range messages {
		m := &messages[i]
		spans[i] = t.create(ctx, m)
		if sc := spans[i].SpanContext(); sc.IsSampled() && len(links) < maxLinks {
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	if links == nil {
		return ctx, unsent
	}
	stream, _ := definitions.Of(messages[0].Subject)
	ctx, all := t.tracer.Start(ctx, "send "+stream, trace.WithNewRoot(), trace.WithLinks(links...), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(operation(semconv.MessagingOperationTypeSend, "publish", stream, semconv.MessagingBatchMessageCount(len(messages)))...))
	return ctx, func(receipts []outbox.Receipt) { endSend(all, spans, receipts) }
}

// create starts the span of one message and puts its context into the message.
func (t *Tracing) create(ctx context.Context, m *outbox.Message) trace.Span {
	ctx, span := t.start(ctx, m.TraceParent, m.Later, func() string { return "create " + m.Subject }, trace.WithSpanKind(trace.SpanKindProducer))
	if span.IsRecording() {
		span.SetAttributes(operation(semconv.MessagingOperationTypeCreate, "create", m.Subject,
			semconv.MessagingMessageID(m.ID), semconv.MessagingMessageBodySize(len(m.Body)))...)
	}
	if m.TraceParent == "" || span.SpanContext().IsSampled() { // what was decided against goes on as it is
		m.TraceParent = t.TraceParent(ctx, m.TraceParent)
	}
	return span
}

// endSend ends the spans of messages by what became of each. The span of all went wrong when none was stored.
func endSend(all trace.Span, spans []trace.Span, receipts []outbox.Receipt) {
	var failed error
	stored := 0
	for i, span := range spans {
		var err error
		if i < len(receipts) {
			err = receipts[i].Err
		}
		if err == nil {
			stored++
		} else {
			failed = err
		}
		end(span, err)
	}
	if stored > 0 {
		failed = nil
	}
	end(all, failed)
}

// Record implements consumer.BatchTracer.
func (t *Tracing) Record(ctx context.Context, n int, traceParent func(i int) string) (context.Context, func(error)) {
	if t.provider == nil {
		return ctx, untraced
	}
	var links []trace.Link
	for i := 0; i < n && len(links) < maxLinks; i++ {
		if sc, ok := parseTraceParent(traceParent(i)); ok && sc.IsSampled() {
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	if links == nil {
		return ctx, untraced
	}
	ctx, span := t.tracer.Start(ctx, "record results", trace.WithNewRoot(), trace.WithLinks(links...),
		trace.WithAttributes(semconv.DBSystemNamePostgreSQL, semconv.DBOperationBatchSize(n)))
	return ctx, func(err error) { end(span, err) }
}

// Took implements webhook.Tracer. The span begins when the request came, and is made only now that it was believed. It begins a trace, linked to those of its payments: a gateway's own
// trace context is a stranger's word, and is not looked at.
func (t *Tracing) Took(gateway string, came time.Time, verdicts []webhook.Verdict) {
	if t.provider == nil {
		return
	}
	options := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithTimestamp(came), trace.WithSpanKind(trace.SpanKindServer)}
	for _, v := range verdicts[:min(len(verdicts), maxLinks)] {
		if sc, ok := parseTraceParent(v.TraceParent); ok {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: sc}))
		}
	}
	_, span := t.tracer.Start(bg, "receive "+gateway, options...)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("pollux.gateway", gateway), attribute.Int("pollux.notices", len(verdicts)), semconv.HTTPRequestMethodPost, semconv.HTTPResponseStatusCode(http.StatusOK))
		if len(verdicts) == 1 {
			span.SetAttributes(attribute.String("pollux.decision", string(verdicts[0].Decision)))
			if id := verdicts[0].Payment; id != 0 {
				span.SetAttributes(attribute.Int64("pollux.payment_id", int64(id)))
			}
		}
	}
	span.End()
}

func untraced(error) {}

func unanswered(gateway.Answer) {}

func unsent([]outbox.Receipt) {}

// end ends a span. The text of an error stays in the log, where it is redacted and short-lived; the trace says only that there was one.
func end(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, errorKind(err))
	}
	span.End()
}

func errorKind(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline exceeded"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return "error"
}

func endCall(span trace.Span, a gateway.Answer) {
	span.SetAttributes(attribute.String("pollux.answer_class", a.Class.String()))
	if a.HTTPStatus != 0 {
		span.SetAttributes(semconv.HTTPResponseStatusCode(a.HTTPStatus))
	}
	if a.Class != gateway.Final && a.Class != gateway.Pending {
		span.SetStatus(codes.Error, a.Class.String())
	}
	span.End()
}

// TraceParent is the traceparent of the span in ctx, and fallback when there is none: with tracing off, the payment's own goes on to the
// gateway untouched.
func (t *Tracing) TraceParent(ctx context.Context, fallback string) string {
	if t.provider == nil {
		return fallback
	}
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return fallback
	}
	return formatTraceParent(sc)
}

// TraceID is the id of the trace that a traceparent names: 32 hexadecimal digits, or empty when it names none.
func TraceID(traceParent string) string {
	if _, ok := parseTraceParent(traceParent); !ok {
		return ""
	}
	return traceParent[3:35]
}

// A traceparent, https://www.w3.org/TR/trace-context/#traceparent-header: version, trace id, parent id and flags in lower-case
// hexadecimal with dashes between. Versions above 00 may have more after a further dash.
const traceParentBytes = 2 + 1 + 32 + 1 + 16 + 1 + 2

func parseTraceParent(s string) (trace.SpanContext, bool) {
	if len(s) < traceParentBytes || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return trace.SpanContext{}, false
	}
	var version, flags [1]byte
	var c trace.SpanContextConfig
	if !unhex(version[:], s[:2]) || !unhex(c.TraceID[:], s[3:35]) || !unhex(c.SpanID[:], s[36:52]) || !unhex(flags[:], s[53:55]) {
		return trace.SpanContext{}, false
	}
	switch more := s[traceParentBytes:]; {
	case version[0] == 0xff:
		return trace.SpanContext{}, false
	case version[0] == 0 && more != "":
		return trace.SpanContext{}, false
	case more != "" && more[0] != '-':
		return trace.SpanContext{}, false
	}
	c.TraceFlags = trace.TraceFlags(flags[0]) & (trace.FlagsSampled | trace.FlagsRandom)
	c.Remote = true
	sc := trace.NewSpanContext(c)
	return sc, sc.IsValid()
}

// unhex decodes lower-case hexadecimal digits only, as the standard asks.
func unhex(to []byte, s string) bool {
	for i := range to {
		high, low := digit(s[2*i]), digit(s[2*i+1])
		if high > 15 || low > 15 {
			return false
		}
		to[i] = high<<4 | low
	}
	return true
}

func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

func formatTraceParent(sc trace.SpanContext) string {
	id, span := sc.TraceID(), sc.SpanID()
	flags := [1]byte{byte(sc.TraceFlags() & (trace.FlagsSampled | trace.FlagsRandom))}
	b := make([]byte, 0, traceParentBytes)
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, id[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, span[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, flags[:])
	return string(b)
}
