package app

import (
	"context"
	"errors"
	"log"
	"os"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"golang.org/x/sync/errgroup"

	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/postgres"
	"pollux/internal/telemetry"
)

// Service runs until its context ends, then finishes what it has begun and returns.
type Service func(ctx context.Context, cfg config.Config, tel *telemetry.Telemetry) error

// serve runs a service with its telemetry, which lives longer than it: the drain can be watched.
func serve(ctx context.Context, cfg config.Config, name string, service Service) error {
	tel, err := telemetry.New(ctx, TelemetryConfig(cfg, name), os.Stderr)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := tel.Close(ctx); err != nil {
			tel.Log.Warn("closing telemetry", "error", err)
		}
	}()
	log.SetFlags(0)
	log.SetOutput(strayLines{tel})
	pages, done := context.WithCancel(context.WithoutCancel(ctx))
	defer done()
	var g errgroup.Group
	g.Go(func() error { return tel.Run(pages) })
	stop := context.AfterFunc(ctx, tel.Health.Drain)
	defer stop()
	err = service(ctx, cfg, tel)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	tel.Log.Info("stopped", "reason", context.Cause(ctx), "error", err)
	done()
	return errors.Join(err, g.Wait())
}

// strayLines takes what libraries write to the standard log. net/http writes there up to 4 KiB of what a gateway sent unasked: the beginning says what
// happened, the rest may be anything.
type strayLines struct{ tel *telemetry.Telemetry }

// Write logs the beginning of a line.
func (s strayLines) Write(line []byte) (int, error) {
	s.tel.Log.Warn("a library says", "line", strings.TrimSpace(string(line[:min(len(line), 60)])))
	return len(line), nil
}

// await asks until a dependency is there and as it must be, since an orchestrator starts everything at the same time. Each failure says what to
// run. A schema that this build does not fit is an error at once: no waiting mends it.
func await(ctx context.Context, tel *telemetry.Telemetry, what string, ask func(context.Context) error) error {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond), backoff.WithMaxInterval(5*time.Second),
		backoff.WithMaxElapsedTime(0))
	return backoff.RetryNotify(func() error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		err := ask(ctx)
		if errors.Is(err, postgres.ErrSchema) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(b, ctx), func(err error, d time.Duration) {
		tel.Log.WarnContext(ctx, "waiting for a dependency", "dependency", what, "error", err, "retry_in", d)
	})
}

// ready asks whether the broker is connected.
func ready(conn *broker.Conn) func(context.Context) error {
	return func(context.Context) error {
		if !conn.Connected() {
			return broker.ErrNotConnected
		}
		return nil
	}
}
