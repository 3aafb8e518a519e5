package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The limits of the pages. A scrape of all gateways takes milliseconds; a reader that is slower than these is not a scraper.
const (
	readTimeout    = 5 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
	scrapeTimeout  = 10 * time.Second
	maxScrapes     = 4
	closeTimeout   = 2 * time.Second
)

// server is a listener and what is served on it. A nil server serves nothing.
type server struct {
	http     *http.Server
	listener net.Listener
}

func listen(address string, h http.Handler, errorLog *log.Logger) (*server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return &server{listener: l, http: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          errorLog,
	}}, nil
}

func (s *server) addr() string {
	if s == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// run serves until ctx ends, then lets requests finish for closeTimeout.
func (s *server) run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving on %s: %w", s.addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := s.http.Shutdown(stop); err != nil {
		err = s.http.Close()
		<-served
		return err
	}
	<-served
	return nil
}

func (s *server) close() error {
	if s == nil {
		return nil
	}
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// pageHandler serves /metrics, /healthz and /readyz. /healthz says only that the process runs: a process that is restarted because
// its database is away is a process that is away when the database comes back.
func pageHandler(g prometheus.Gatherer, ready http.Handler, errorLog *log.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorLog:            errorLog,
		MaxRequestsInFlight: maxScrapes,
		Timeout:             scrapeTimeout,
		EnableOpenMetrics:   true, // exemplars are told in no other format
	}))
	mux.Handle("GET /readyz", ready)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	})
	return mux
}

// profileHandler serves /debug/pprof/. net/http/pprof registers itself on the default mux when imported; that mux is served nowhere.
func profileHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
