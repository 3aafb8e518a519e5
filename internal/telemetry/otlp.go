package telemetry

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	metric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"pollux/internal/outage"
	"pollux/internal/secret"
)

const (
	// defaultTimeout bounds one push with all of its tries. It is made in the background: what is recorded meanwhile waits in a queue of the SDK's, and what that has no
	// place for is dropped.
	defaultTimeout = 10 * time.Second
	// defaultPushEvery is how often metrics are pushed unless configured.
	defaultPushEvery = 15 * time.Second
)

// OTLP says how telemetry is pushed to a collector, by OTLP over gRPC.
type OTLP struct {
	Every    time.Duration            // how often metrics are pushed; 0 means 15s, below 0 never
	Timeout  time.Duration            // for one push; 0 means 10s
	Headers  map[string]secret.Secret // sent with each push: a token
	CAFile   string                   // PEM: who signed the collector's certificate; empty means the system's authorities
	CertFile string                   // PEM: our own certificate, with KeyFile
	KeyFile  string

	sent *pushHeaders // Headers as they are now; nil: none
}

func (o OTLP) timeout() time.Duration { return cmp.Or(o.Timeout, defaultTimeout) }

// pushHeaders are the headers of pushes, which may change while pushes are made. A nil one has none.
type pushHeaders struct{ pairs atomic.Pointer[[]string] }

func newPushHeaders(headers map[string]secret.Secret) *pushHeaders {
	h := new(pushHeaders)
	h.set(headers)
	return h
}

func (h *pushHeaders) set(headers map[string]secret.Secret) {
	pairs := make([]string, 0, 2*len(headers))
	for name, value := range headers {
		pairs = append(pairs, name, value.Reveal())
	}
	h.pairs.Store(&pairs)
}

// with adds the headers to what is sent in a context.
func (h *pushHeaders) with(ctx context.Context) context.Context {
	if h == nil {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, *h.pairs.Load()...)
}

// credentials are what TLS is spoken with, where the endpoint asks for it. The files are read once, so that a missing one is an error of the start.
func (o OTLP) credentials() (credentials.TransportCredentials, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := secret.ReadFile(o.CAFile, 1<<20)
		if err != nil {
			return nil, fmt.Errorf("the collector's authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the collector's authorities: %s has no certificate in it", o.CAFile)
		}
	}
	if o.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile); err != nil {
			return nil, fmt.Errorf("our certificate for the collector: %w", err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // as it is now: it is renewed
			pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
			return &pair, err
		}
	}
	return credentials.NewTLS(config), nil
}

func spanExporter(ctx context.Context, c Config) (sdk.SpanExporter, error) {
	options := []otlptracegrpc.Option{otlptracegrpc.WithEndpointURL(c.OTLPEndpoint), otlptracegrpc.WithTimeout(c.OTLP.timeout())}
	if c.OTLP.secured() {
		creds, err := c.OTLP.credentials()
		if err != nil {
			return nil, err
		}
		options = append(options, otlptracegrpc.WithTLSCredentials(creds))
	}
	exporter, err := otlptracegrpc.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("exporting traces to %s: %w", c.OTLPEndpoint, err)
	}
	return exporter, nil
}

// secured reports whether TLS is configured beyond what the system has.
func (o OTLP) secured() bool { return o.CAFile != "" || o.CertFile != "" }

// metricReader pushes metrics from time to time; nil where they are not.
func metricReader(ctx context.Context, c Config, failed func(error)) (metric.Reader, error) {
	if c.OTLPEndpoint == "" || c.OTLP.Every < 0 {
		return nil, nil
	}
	options := []otlpmetricgrpc.Option{otlpmetricgrpc.WithEndpointURL(c.OTLPEndpoint), otlpmetricgrpc.WithTimeout(c.OTLP.timeout())}
	if c.OTLP.secured() {
		creds, err := c.OTLP.credentials()
		if err != nil {
			return nil, err
		}
		options = append(options, otlpmetricgrpc.WithTLSCredentials(creds))
	}
	exporter, err := otlpmetricgrpc.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("exporting metrics to %s: %w", c.OTLPEndpoint, err)
	}
	return metric.NewPeriodicReader(watchedMetrics{exporter, failed, c.OTLP.sent}, metric.WithInterval(cmp.Or(c.OTLP.Every, defaultPushEvery)), metric.WithTimeout(c.OTLP.timeout())), nil
}

// watchedSpans says how each push went. It returns no error: the SDK would say the same once more.
type watchedSpans struct {
	sdk.SpanExporter
	told    func(error)
	headers *pushHeaders
}

// ExportSpans implements sdk.SpanExporter.
func (w watchedSpans) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	w.told(w.SpanExporter.ExportSpans(w.headers.with(ctx), spans))
	return nil
}

// watchedMetrics is watchedSpans for metrics.
type watchedMetrics struct {
	metric.Exporter
	told    func(error)
	headers *pushHeaders
}

// Export implements metric.Exporter.
func (w watchedMetrics) Export(ctx context.Context, rm *metricdata.ResourceMetrics) error {
	w.told(w.Exporter.Export(w.headers.with(ctx), rm))
	return nil
}

// pushes tells in the log of a collector that is away, and counts what is lost for it.
type pushes struct {
	trouble *outage.Log
	metrics atomic.Pointer[Metrics] // nil until there are some
}

func newPushes(log *slog.Logger) *pushes {
	return &pushes{trouble: outage.New(log, outage.Words{
		Begins: "telemetry is not delivered; payments do not wait for it", Over: "telemetry is delivered again",
		Hint: "does a collector take OTLP over gRPC where telemetry.otlp_endpoint says?"})}
}

// told is for the pushes of a signal.
func (p *pushes) told(signal string) func(error) {
	return func(err error) {
		switch {
		case err == nil:
			p.trouble.Well(context.Background(), signal)
		case !errors.Is(err, context.Canceled):
			if m := p.metrics.Load(); m != nil {
				m.exportFailed(signal)
			}
			p.trouble.Failed(context.Background(), signal, err)
		}
	}
}
