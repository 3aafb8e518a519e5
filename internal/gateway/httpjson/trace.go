package httpjson

import (
	"context"
	"encoding/hex"

	"go.opentelemetry.io/otel/trace"
)

// traceParent is the trace context to send on: that of the span in ctx, or else the payment's own; empty when there is no valid one.
func traceParent(ctx context.Context, own string) string {
	if s := trace.SpanContextFromContext(ctx); s.IsValid() {
		id, span := s.TraceID(), s.SpanID()
		b := make([]byte, 0, 55)
		b = append(b, "00-"...)
		b = hex.AppendEncode(b, id[:])
		b = append(b, '-')
		b = hex.AppendEncode(b, span[:])
		b = append(b, '-')
		b = hex.AppendEncode(b, []byte{byte(s.TraceFlags())})
		return string(b)
	}
	if validTraceParent(own) {
		return own
	}
	return ""
}

// validTraceParent reports whether s is a traceparent of version 00 (W3C Trace Context, section 3.2).
func validTraceParent(s string) bool {
	return len(s) == 55 && s[:3] == "00-" && s[35] == '-' && s[52] == '-' && id(s[3:35]) && id(s[36:52]) && hexadecimal(s[53:])
}

// id reports whether s is an id: hexadecimal and not all zeros.
func id(s string) bool {
	zero := true
	for i := range len(s) {
		zero = zero && s[i] == '0'
	}
	return !zero && hexadecimal(s)
}

func hexadecimal(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
