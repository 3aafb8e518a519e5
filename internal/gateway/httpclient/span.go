package httpclient

import (
	"context"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// spanOf begins the span of a request inside the one that the context has, if that is recorded, and nothing otherwise. It says the method and the host: a path may hold a
// reference, and a query a key. The returned function ends it.
func spanOf(ctx context.Context, req *http.Request) (context.Context, func(Response, *Error)) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, unspanned
	}
	attributes := []attribute.KeyValue{semconv.HTTPRequestMethodKey.String(req.Method), semconv.URLScheme(req.URL.Scheme), semconv.ServerAddress(req.URL.Hostname())}
	if port, err := strconv.Atoi(req.URL.Port()); err == nil {
		attributes = append(attributes, semconv.ServerPort(port))
	}
	ctx, span := parent.TracerProvider().Tracer("pollux").Start(ctx, req.Method, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	return ctx, func(r Response, e *Error) { endSpan(span, r, e) }
}

func unspanned(Response, *Error) {}

// endSpan ends a span. What went wrong is said by its kind alone.
func endSpan(span trace.Span, r Response, e *Error) {
	if r.Status != 0 {
		span.SetAttributes(semconv.HTTPResponseStatusCode(r.Status), semconv.HTTPResponseBodySize(len(r.Body)))
	}
	switch {
	case e != nil:
		span.SetAttributes(semconv.ErrorTypeKey.String(e.Kind.String()))
		span.SetStatus(codes.Error, e.Kind.String())
	case r.Status >= 400:
		span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(r.Status)))
		span.SetStatus(codes.Error, "")
	}
	span.End()
}
