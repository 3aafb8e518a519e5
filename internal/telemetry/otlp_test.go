package telemetry

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"pollux/internal/certificate/certificatetest"
	"pollux/internal/consumer"
	"pollux/internal/secret"
)

// guardedCollector takes what comes with the right token.
type guardedCollector struct {
	metricspb.UnimplementedMetricsServiceServer
	mu     sync.Mutex
	tokens []string
}

func (g *guardedCollector) Export(ctx context.Context, _ *metricspb.ExportMetricsServiceRequest) (*metricspb.ExportMetricsServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tokens = append(g.tokens, md.Get("authorization")...)
	return &metricspb.ExportMetricsServiceResponse{}, nil
}

// serveOTLP serves a collector on loopback, over TLS that asks for a certificate where there is an authority.
func serveOTLP(t *testing.T, traces collector.TraceServiceServer, metrics metricspb.MetricsServiceServer, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	collector.RegisterTraceServiceServer(server, traces)
	metricspb.RegisterMetricsServiceServer(server, metrics)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestMetricsAndTracesArePushedOverTLSWithAToken(t *testing.T) {
	authority := certificatetest.New(t)
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		return certificatetest.Write(t, filepath.Join(dir, name), content)
	}
	serverCert, serverKey := authority.Issue("collector", time.Hour)
	pair, err := tls.X509KeyPair(serverCert, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := authority.Issue("relay", time.Hour)
	spans, guard := &fakeCollector{}, &guardedCollector{}
	address := serveOTLP(t, spans, guard, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: authority.Pool(), ClientAuth: tls.RequireAndVerifyClientCert})))
	tel, err := New(t.Context(), Config{OTLPEndpoint: "https://" + address, TraceRatio: 1, OTLP: OTLP{
		Headers: map[string]secret.Secret{"authorization": secret.New("Bearer of a test")},
		CAFile:  file("ca", authority.PEM), CertFile: file("cert", cert), KeyFile: file("key", key),
	}}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	_, polled := tel.Tracing.Poll(t.Context(), consumer.Origin{}, "payments.poll.acme.high", "acme", 1)
	polled(nil)
	if err := tel.Metrics.provider.ForceFlush(t.Context()); err != nil {
		t.Error(err)
	}
	tel.SetPushHeaders(map[string]secret.Secret{"authorization": secret.New("Bearer of the next day")})
	if err := tel.Close(t.Context()); err != nil { // it sends what is left
		t.Error(err)
	}
	if len(spans.spans) != 1 {
		t.Errorf("the collector has the spans %v", spans.spans)
	}
	if !slices.Equal(guard.tokens, []string{"Bearer of a test", "Bearer of the next day"}) {
		t.Errorf("metrics came with %q", guard.tokens)
	}
}

// A platform adds what it knows of a process; who the process is we know better.
func TestAProcessSaysWhoItIsAndWhatThePlatformAdds(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging,service.namespace=theirs")
	t.Setenv("OTEL_SERVICE_NAME", "theirs")
	spans := &fakeCollector{}
	address := serveOTLP(t, spans, &guardedCollector{})
	tel, err := New(t.Context(), Config{Service: "consumer", Version: "1.2.3", Instance: "consumer@a#1", OTLPEndpoint: "http://" + address, TraceRatio: 1}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	_, polled := tel.Tracing.Poll(t.Context(), consumer.Origin{}, "payments.poll.acme.high", "acme", 1)
	polled(nil)
	if err := tel.Close(t.Context()); err != nil {
		t.Error(err)
	}
	want := map[string]string{"service.namespace": "pollux", "service.name": "consumer", "service.version": "1.2.3", "service.instance.id": "consumer@a#1",
		"process.runtime.version": runtime.Version(), "deployment.environment.name": "staging"}
	if diff := cmp.Diff(want, spans.about); diff != "" {
		t.Error(diff)
	}
}

func TestFilesOfTheCollectorThatAreOfNoUseAreAnErrorOfTheStart(t *testing.T) {
	empty := certificatetest.Write(t, filepath.Join(t.TempDir(), "empty"), nil)
	for want, o := range map[string]OTLP{
		"no certificate in it":              {CAFile: empty},
		"the collector's authorities":       {CAFile: empty + "-missing"},
		"our certificate for the collector": {CertFile: empty, KeyFile: empty},
	} {
		_, err := New(t.Context(), Config{OTLPEndpoint: "https://127.0.0.1:1", OTLP: o}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New says %v, want %q", err, want)
		}
	}
}

// TestACollectorThatIsAwayDelaysNothing records more than any queue takes while nobody answers: it comes to an end, and is told of once.
func TestACollectorThatIsAwayDelaysNothing(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var log syncBuffer
	tel, err := New(t.Context(), Config{Listen: "127.0.0.1:0", OTLPEndpoint: "http://" + silent.Addr().String(), TraceRatio: 1,
		OTLP: OTLP{Every: 10 * time.Millisecond, Timeout: 50 * time.Millisecond}}, &log)
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		ctx, polled := tel.Tracing.Poll(t.Context(), consumer.Origin{}, "payments.poll.acme.high", "acme", 1)
		tel.Metrics.Lateness(ctx, "acme", "high", time.Millisecond)
		polled(nil)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- tel.Run(ctx) }()
	failed := func(signal string) bool {
		_, page := get(t, "http://"+tel.Addr()+"/metrics")
		return !strings.Contains(page, `pollux_telemetry_export_failures_total{signal="`+signal+`"} 0`)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !failed(signalMetrics) || !failed(signalTraces); {
		if time.Now().After(deadline) {
			t.Fatal("no push has failed")
		}
		<-tick.C
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	last, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_ = tel.Close(last) // what is left cannot be sent
	if n := strings.Count(log.String(), "telemetry is not delivered"); n != 1 {
		t.Errorf("it is told %d times:\n%s", n, log.String())
	}
}

// syncBuffer is a buffer that several write to.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
