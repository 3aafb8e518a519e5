package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// newLogger writes one line for each record to w: text for people, JSON for machines. Every line names the service and the
// instance; a line that is written inside a recorded trace carries its ids.
func newLogger(w io.Writer, c Config, level slog.Leveler) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: legible}
	var h slog.Handler
	switch c.LogFormat {
	case "", "text":
		h = slog.NewTextHandler(w, options)
	case "json":
		h = slog.NewJSONHandler(w, options)
	default:
		return nil, fmt.Errorf("log format %q: text or json", c.LogFormat)
	}
	log := slog.New(traceHandler{h})
	for _, a := range []struct{ key, value string }{{"service", c.Service}, {"instance", c.Instance}} {
		if a.value != "" {
			log = log.With(a.key, a.value)
		}
	}
	return log, nil
}

// traceHandler adds the ids of the trace that a line belongs to.
type traceHandler struct{ slog.Handler }

func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsSampled() {
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h traceHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return traceHandler{h.Handler.WithAttrs(a)}
}

func (h traceHandler) WithGroup(name string) slog.Handler {
	return traceHandler{h.Handler.WithGroup(name)}
}

// legible rounds a duration to what a person reads: three digits or so.
func legible(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindDuration {
		return a
	}
	d := a.Value.Duration()
	unit := time.Duration(1)
	for limit := d.Abs(); limit/unit >= 1000 && unit < time.Second; {
		unit *= 10
	}
	return slog.Duration(a.Key, d.Round(unit))
}
