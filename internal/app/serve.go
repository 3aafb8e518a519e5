package app

import (
	"context"
	"errors"
	"io"
	"log"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"pollux/internal/broker"
	"pollux/internal/certificate"
	"pollux/internal/config"
	"pollux/internal/message"
	"pollux/internal/outage"
	"pollux/internal/telemetry"
)

// Service runs until its context ends, then finishes what it has begun and returns.
type Service func(ctx context.Context, cfg config.Config, p *Process) error

// serve runs a service with its telemetry, which lives longer than it: the drain can be watched. What ended it is in the log.
func serve(ctx context.Context, cfg config.Config, name string, service Service) error {
	return serveIn(ctx, cfg, name, NewProcess, service)
}

// serveIn is serve with a process of the service's own kind.
func serveIn(ctx context.Context, cfg config.Config, name string, process func(*telemetry.Telemetry) *Process, service Service) error {
	wishes, unheard := hangups()
	defer unheard()
	tel, pagesTLS, err := openTelemetry(ctx, cfg, name, os.Stderr)
	if err != nil {
		return err
	}
	defer closeTelemetry(ctx, tel)
	p := process(tel)
	p.lookAfter(pagesTLS)
	pages, done := context.WithCancel(context.WithoutCancel(ctx))
	defer done()
	var g errgroup.Group
	g.Go(func() error { return tel.Run(pages) })
	g.Go(func() error { p.tend(pages, cfg, services[name], renewEvery, wishes); return nil })
	stop := context.AfterFunc(ctx, tel.Health.Drain)
	defer stop()
	err = service(ctx, cfg, p)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	done()
	if err = errors.Join(err, g.Wait()); err != nil {
		attrs := []any{"error", err}
		if hint := outage.Hint(err); hint != "" {
			attrs = append(attrs, "hint", hint)
		}
		tel.Log.Error("ended by an error", attrs...)
		return Said(err)
	}
	tel.Log.Info("stopped", "reason", context.Cause(ctx))
	return nil
}

// services are how the configuration calls them.
var services = map[string]string{"consumer": config.ServiceConsumer, "outbox-relay": config.ServiceRelay, "webhook": config.ServiceWebhook}

// openTelemetry opens the telemetry of a process, and what its pages are served with where that is TLS.
func openTelemetry(ctx context.Context, cfg config.Config, name string, w io.Writer) (*telemetry.Telemetry, *certificate.Source, error) {
	c := TelemetryConfig(cfg, name)
	var source *certificate.Source
	if f := cfg.Telemetry.TLSFiles(); !f.Empty() {
		var err error
		if source, err = certificate.Open("telemetry", f); err != nil {
			return nil, nil, NotTried(err)
		}
		c.TLS = source.Server()
	}
	tel, err := telemetry.New(ctx, c, w)
	if err != nil {
		return nil, nil, taken(err, "--listen or telemetry.listen (telemetry.pprof_listen for profiles) says where; each process on a machine needs a port of its own")
	}
	log.SetFlags(0)
	log.SetOutput(strayLines{tel})
	return tel, source, nil
}

// taken adds a hint to the error of an address that another process listens on.
func taken(err error, hint string) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return Hint(err, "another process listens there: %s", hint)
}

// closeTelemetry sends what is left of the traces, also when ctx has ended.
func closeTelemetry(ctx context.Context, tel *telemetry.Telemetry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := tel.Close(ctx); err != nil {
		tel.Log.Warn("closing telemetry", "error", err)
	}
}

// strayLines takes what libraries write to the standard log. net/http writes there up to 4 KiB of what a gateway sent unasked: the beginning says what
// happened, the rest may be anything.
type strayLines struct{ tel *telemetry.Telemetry }

// Write logs the beginning of a line.
func (s strayLines) Write(line []byte) (int, error) {
	s.tel.Log.Warn("a library says", "line", strings.TrimSpace(string(line[:min(len(line), 60)])))
	return len(line), nil
}

// ready asks whether the broker is connected and has the stream of the polls.
func ready(conn *broker.Conn) func(context.Context) error {
	return func(ctx context.Context) error { return conn.CheckStream(ctx, message.StreamPoll) }
}
