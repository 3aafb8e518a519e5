// Package telemetry is how a running Pollux is seen from outside: log lines, metrics, traces, and the page that says whether
// it is alive and ready.
//
// Use cases do not import it. They declare the few methods they need as an interface of their own, and *Metrics and
// *Tracing have them.
package telemetry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"golang.org/x/sync/errgroup"

	"pollux/internal/secret"
)

// Config says what a process tells about itself. The zero value writes text at Info to nowhere else than the given writer, serves
// no pages and traces nothing.
type Config struct {
	Service  string // the process: consumer, outbox-relay, …; the word in every log line and in target_info
	Version  string // of the build
	Instance string // which of several alike; a host name or the lease owner

	LogFormat string     // "text" (also when empty) or "json"
	LogLevel  slog.Level // what is less important is not written

	Listen       string      // address of /metrics, /healthz and /readyz; empty serves none of them
	TLS          *tls.Config // what the pages are served with; nil: without TLS
	PprofListen  string      // address of /debug/pprof/; loopback only; empty serves none
	OTLPEndpoint string      // URL of an OTLP/gRPC collector, http:// without and https:// with TLS; empty pushes and traces nothing
	OTLP         OTLP        // how it is pushed there
	TraceRatio   float64     // share of traces to record where nobody upstream decided, 0 to 1

	Gateways    []string      // configured gateways: they always have labels of their own
	Classes     []string      // configured classes of payment: they always have labels of their own
	Stale       time.Duration // how long a gauge is shown after its value was seen last; 0 means two minutes
	MaxGateways int           // distinct gateway labels; more gateways are counted as "other". 0 means DefaultMaxGateways
}

// DefaultMaxGateways is how many gateways have labels of their own unless configured. A gateway has at most a few hundred series, so
// that this many are some ten thousand: what one Prometheus carries for one job without notice.
const DefaultMaxGateways = 64

// Telemetry is what New built. Its fields are never nil and safe for concurrent use.
type Telemetry struct {
	Log     *slog.Logger
	Metrics *Metrics
	Tracing *Tracing
	Health  *Health
	// Instance is that of the Config: what everything that this process writes is signed with.
	Instance string

	level    *slog.LevelVar
	headers  *pushHeaders
	pages    *server // nil when nothing listens
	profiles *server
}

// New builds the parts and opens the listeners, so that a port that is taken is an error of the start. Nothing is served
// before Run. Log lines go to w.
//
// The OpenTelemetry SDK reports its own trouble to a process-wide handler; New points it at the log. A collector that is away is told of by outage.Log.
func New(ctx context.Context, c Config, w io.Writer) (*Telemetry, error) {
	level := new(slog.LevelVar)
	level.Set(c.LogLevel)
	log, err := newLogger(w, c, level)
	if err != nil {
		return nil, err
	}
	pushed := newPushes(log)
	c.OTLP.sent = newPushHeaders(c.OTLP.Headers)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("OpenTelemetry reports an error", "error", err) }))
	registry := prometheus.NewRegistry()
	metrics, err := pushedMetrics(ctx, c, registry, pushed)
	if err != nil {
		return nil, err
	}
	tracing, err := newTracing(ctx, c, pushed.told(signalTraces))
	if err != nil {
		return nil, errors.Join(err, metrics.close(ctx))
	}
	t := &Telemetry{Log: log, Metrics: metrics, Tracing: tracing, Health: newHealth(), Instance: c.Instance, level: level, headers: c.OTLP.sent}
	if err := t.listen(c, registry); err != nil {
		return nil, errors.Join(err, tracing.close(ctx), metrics.close(ctx))
	}
	return t, nil
}

// pushedMetrics are metrics that are scraped, and pushed where there is a collector.
func pushedMetrics(ctx context.Context, c Config, registry *prometheus.Registry, pushed *pushes) (*Metrics, error) {
	reader, err := metricReader(ctx, c, pushed.told(signalMetrics))
	if err != nil {
		return nil, err
	}
	var options []sdk.Option
	if reader != nil {
		options = append(options, sdk.WithReader(reader))
	}
	metrics, err := newMetrics(c, registry, options...)
	if err == nil {
		pushed.metrics.Store(metrics)
	}
	return metrics, err
}

func (t *Telemetry) listen(c Config, g prometheus.Gatherer) error {
	errorLog := slog.NewLogLogger(t.Log.Handler(), slog.LevelWarn)
	if c.PprofListen != "" {
		if !Loopback(c.PprofListen) {
			return fmt.Errorf("pprof on %s: profiles show memory; they are served on loopback only, such as 127.0.0.1:6060", c.PprofListen)
		}
		s, err := listen(c.PprofListen, profileHandler(), errorLog)
		if err != nil {
			return err
		}
		s.http.WriteTimeout = 0 // a profile takes as long as it was asked to
		t.profiles = s
	}
	if c.Listen == "" {
		return nil
	}
	strangers := errorLog
	if c.TLS != nil { // who fails at the handshake is no news
		strangers = slog.NewLogLogger(t.Log.Handler(), slog.LevelDebug)
	}
	s, err := listen(c.Listen, pageHandler(g, t.Health, errorLog), strangers)
	if err != nil {
		return errors.Join(err, t.profiles.close())
	}
	if c.TLS != nil {
		s.listener = tls.NewListener(s.listener, c.TLS)
	}
	t.pages = s
	return nil
}

// SetPushHeaders changes what is sent with each push from now on: a token that was renewed.
func (t *Telemetry) SetPushHeaders(headers map[string]secret.Secret) { t.headers.set(headers) }

// SetLevel changes which log lines are written from now on.
func (t *Telemetry) SetLevel(l slog.Level) { t.level.Set(l) }

// Addr is the address that /metrics is served on, with the port that was really taken; empty when nothing listens.
func (t *Telemetry) Addr() string { return t.pages.addr() }

// PprofAddr is the address that /debug/pprof/ is served on; empty when it is off.
func (t *Telemetry) PprofAddr() string { return t.profiles.addr() }

// Run serves the pages and runs the readiness checks until ctx ends, and waits for what it started. It serves to the last: give it a
// context that ends after the drain, so that the drain can be watched. Call it once.
func (t *Telemetry) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { t.Health.run(ctx); return nil })
	for _, s := range []*server{t.pages, t.profiles} {
		if s != nil {
			g.Go(func() error { return s.run(ctx) })
		}
	}
	return g.Wait()
}

// Close sends what is left of the traces, waiting no longer than ctx, and frees the listeners if Run was never called. Call it last.
func (t *Telemetry) Close(ctx context.Context) error {
	return errors.Join(t.Tracing.close(ctx), t.Metrics.close(ctx), t.pages.close(), t.profiles.close())
}

// Loopback reports whether a host:port names this machine only.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
