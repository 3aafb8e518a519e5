package telemetry

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"pollux/internal/gateway"
	"pollux/internal/payment"
)

// Tracing starts the spans of a process. A payment carries the W3C trace context (traceparent) of the request that created it in its row;
// a poll continues it and passes it on to the gateway. With no collector configured every method returns at once and allocates nothing.
//
// Whoever created the payment decides whether its trace is recorded. Where nobody did, a share of TraceRatio is.
type Tracing struct {
	tracer   trace.Tracer
	provider *sdk.TracerProvider // nil when off
}

func newTracing(ctx context.Context, c Config) (*Tracing, error) {
	if c.OTLPEndpoint == "" {
		return &Tracing{}, nil
	}
	if c.TraceRatio < 0 || c.TraceRatio > 1 {
		return nil, fmt.Errorf("trace ratio %g: between 0 and 1", c.TraceRatio)
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(c.OTLPEndpoint))
	if err != nil {
		return nil, fmt.Errorf("exporting traces to %s: %w", c.OTLPEndpoint, err)
	}
	return traceTo(c, sdk.NewBatchSpanProcessor(exporter)), nil
}

func traceTo(c Config, p sdk.SpanProcessor) *Tracing {
	provider := sdk.NewTracerProvider(
		sdk.WithSpanProcessor(p),
		sdk.WithResource(processResource(c)),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(c.TraceRatio))),
	)
	return &Tracing{tracer: provider.Tracer("pollux"), provider: provider}
}

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

// Poll starts the span of one delivery: a poll of a payment that came on a subject. traceParent is the payment's; when it is empty or invalid
// the span begins a trace. The returned function ends the span and must be called once; nil is a delivery that went well.
func (t *Tracing) Poll(ctx context.Context, traceParent, subject, gateway string, id payment.ID) (context.Context, func(error)) {
	if t.provider == nil {
		return ctx, untraced
	}
	ctx, span := t.tracer.Start(Continue(ctx, traceParent), "process "+subject, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		semconv.MessagingSystemKey.String("nats"),
		semconv.MessagingOperationTypeProcess,
		semconv.MessagingOperationName("process"),
		semconv.MessagingDestinationName(subject),
		attribute.String("pollux.gateway", gateway),
		attribute.Int64("pollux.payment_id", int64(id)),
	))
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

// Publish starts the span of publishing n messages together. They belong to n traces of their own, which go on at the consumer.
// The returned function ends the span and must be called once.
func (t *Tracing) Publish(ctx context.Context, stream string, n int) (context.Context, func(error)) {
	if t.provider == nil {
		return ctx, untraced
	}
	ctx, span := t.tracer.Start(ctx, "send "+stream, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		semconv.MessagingSystemKey.String("nats"),
		semconv.MessagingOperationTypeSend,
		semconv.MessagingOperationName("publish"),
		semconv.MessagingDestinationName(stream),
		semconv.MessagingBatchMessageCount(n),
	))
	return ctx, func(err error) { end(span, err) }
}

// Record starts the span of writing n results in one transaction. The returned function ends the span and must be called once.
func (t *Tracing) Record(ctx context.Context, n int) (context.Context, func(error)) {
	if t.provider == nil {
		return ctx, untraced
	}
	ctx, span := t.tracer.Start(ctx, "record results", trace.WithAttributes(semconv.DBSystemNamePostgreSQL, semconv.DBOperationBatchSize(n)))
	return ctx, func(err error) { end(span, err) }
}

func untraced(error) {}

func unanswered(gateway.Answer) {}

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

// Continue returns ctx inside the trace that a traceparent names, and ctx itself when that is empty or invalid.
func Continue(ctx context.Context, traceParent string) context.Context {
	sc, ok := parseTraceParent(traceParent)
	if !ok {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, sc)
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
