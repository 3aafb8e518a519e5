package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pollux"
	"pollux/internal/breaker"
	"pollux/internal/broker"
	"pollux/internal/fleet"
	"pollux/internal/gatewaysim"
	"pollux/internal/payment"
	"pollux/internal/postgres"
)

const (
	asleep      = 100_000
	drainRate   = 500 // calls a second that the gateway allows
	freshRate   = 100 // new payments a second meanwhile
	freshFor    = 30 * time.Second
	settleAfter = 3 * time.Second // the breaker's ramp takes half of it
)

// deferral measures 100,000 due payments of a gateway whose breaker is open: how fast they are put to sleep, how fast they are done after the gateway is
// back, and how long a new payment waits while they are being done at a limited rate.
func deferral(ctx context.Context, b *bench) error {
	sleep := figure{name: "due payments put to sleep while the breaker is open", unit: "payments/s"}
	drain := figure{name: "100,000 that sleep, resolved after the breaker was reset, the ramp of 1.4 s included", unit: "payments/s"}
	fresh50 := figure{name: fmt.Sprintf("commit to first poll of new ones, 100,000 draining at %d/s, p50", drainRate), unit: "ms"}
	fresh99 := figure{name: fmt.Sprintf("commit to first poll of new ones, 100,000 draining at %d/s, p99", drainRate), unit: "ms"}
	for range b.runs {
		err := b.outage(ctx, "0/s", func(o *outage) error {
			sleep.runs = append(sleep.runs, o.sleeping)
			began := time.Now()
			if err := o.reset(ctx); err != nil {
				return err
			}
			if err := o.await(ctx, time.Millisecond*50, func() (bool, error) {
				n, err := postgres.Waiting(ctx, o.pool, 0)
				return n == 0, err
			}); err != nil {
				return err
			}
			drain.runs = append(drain.runs, asleep/time.Since(began).Seconds())
			return nil
		})
		if err != nil {
			return err
		}
		err = b.outage(ctx, fmt.Sprintf("%d/s", drainRate), func(o *outage) error {
			q, err := o.fresh(ctx)
			fresh50.runs = append(fresh50.runs, 1000*q.First50.Seconds())
			fresh99.runs = append(fresh99.runs, 1000*q.First99.Seconds())
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, f := range []figure{sleep, drain, fresh50, fresh99} {
		b.print(f)
	}
	return nil
}

// outage is a gateway whose breaker is forced open, with all payments asleep behind it.
type outage struct {
	pool     *pgxpool.Pool
	conn     *broker.Conn
	sleeping float64 // payments put to sleep a second
}

// target is the breaker of the gateway's one account.
var target = fleet.Target{Gateway: "sim"}

func (b *bench) outage(ctx context.Context, rate string, do func(*outage) error) error {
	return withGateway(gatewaysim.Conditions{Latency: 2 * time.Millisecond}, func(sim *gatewaysim.Simulator) error {
		return b.withBroker(ctx, func(conn *broker.Conn) error {
			dsn, err := b.database(ctx)
			if err != nil {
				return err
			}
			pool, err := postgres.Open(postgres.Options{URL: dsn, MaxConns: 4})
			if err != nil {
				return err
			}
			defer pool.Close()
			o := &outage{pool: pool, conn: conn}
			if err := o.begin(ctx); err != nil {
				return err
			}
			stop, err := b.services(dsn, sim, rate)
			if err != nil {
				return err
			}
			err = o.putToSleep(ctx)
			if err == nil {
				err = do(o)
			}
			return errors.Join(err, stop())
		})
	})
}

// begin forces the breaker open and tracks the payments, all due.
func (o *outage) begin(ctx context.Context) error {
	if err := o.conn.EnsureKV(ctx, 0); err != nil {
		return err
	}
	forced := breaker.Forced{Mode: breaker.Open, Reason: "to measure", Actor: "bench", Until: breaker.At(time.Now().Add(time.Hour))}
	if _, err := fleet.Force(ctx, o.conn.KV(), target, breaker.Defaults(), forced); err != nil {
		return err
	}
	return o.track(ctx, "asleep", 0, asleep)
}

// track tracks payments that the simulator knows by their references.
func (o *outage) track(ctx context.Context, prefix string, from, n int) error {
	_, err := o.pool.Exec(ctx, `
		insert into pollux.payments (gateway, reference, amount_minor, currency)
		select 'sim', $1 || g || '_1999_EUR', 1999, 'EUR'
		from generate_series($2::int, $3::int) g`, prefix, from, from+n-1)
	return err
}

// services starts the relay and two consumers.
func (b *bench) services(dsn string, sim *gatewaysim.Simulator, rate string) (stop func() error, err error) {
	file := filepath.Join(b.dir, "pollux.yaml")
	if err := os.WriteFile(file, pollux.ExampleConfig, 0o600); err != nil {
		return nil, err
	}
	args := []string{"--config", file, "--listen", "127.0.0.1:0", "--log-level", "error"}
	for _, s := range []string{
		"database.url=" + dsn, "nats.urls=" + b.nats.URL(), "relay.backlog=20000", "gateways.sim.workers=128",
		"gateways.sim.httpjson.url=" + sim.URL() + "/v1/payments/{reference}",
		"gateways.sim.limits.rate=" + rate, "gateways.sim.breaker.ramp_step=200ms",
	} {
		args = append(args, "--set", s)
	}
	var running []*exec.Cmd
	stop = func() error {
		var errs []error
		for _, cmd := range running {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if err := cmd.Wait(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, cmd.Stderr))
			}
		}
		return errors.Join(errs...)
	}
	for _, name := range []string{"outbox-relay", "consumer", "consumer"} {
		cmd := exec.Command(filepath.Join(b.dir, name), args...)
		cmd.Stderr, cmd.Env = new(bytes.Buffer), append(os.Environ(), "SIM_API_KEY="+gatewaysim.DefaultAPIKey)
		if err := cmd.Start(); err != nil {
			return nil, errors.Join(err, stop())
		}
		running = append(running, cmd)
	}
	return stop, nil
}

// putToSleep waits until all payments sleep, and measures from the first one on.
func (o *outage) putToSleep(ctx context.Context) error {
	var began time.Time
	var first int
	return o.await(ctx, 20*time.Millisecond, func() (bool, error) {
		c, err := postgres.Count(ctx, o.pool, 0)
		if began.IsZero() && c.Deferred > 0 {
			began, first = time.Now(), c.Deferred
		}
		if c.Deferred < asleep {
			return false, err
		}
		o.sleeping = float64(asleep-first) / time.Since(began).Seconds()
		return true, err
	})
}

// reset lets the breaker probe.
func (o *outage) reset(ctx context.Context) error {
	_, err := fleet.Reset(ctx, o.conn.KV(), target, breaker.Defaults(), "bench", "to measure")
	return err
}

// fresh tracks new payments while the old ones are being done, and measures how long they waited.
func (o *outage) fresh(ctx context.Context) (q postgres.Quantiles, err error) {
	if err := o.reset(ctx); err != nil {
		return q, err
	}
	time.Sleep(settleAfter)
	var first payment.ID
	if err := o.pool.QueryRow(ctx, `select max(id) + 1 from pollux.payments`).Scan(&first); err != nil {
		return q, err
	}
	began := time.Now()
	for done := 0; time.Since(began) < freshFor; time.Sleep(10 * time.Millisecond) {
		if due := int(time.Since(began).Seconds()*freshRate) - done; due > 0 {
			if err := o.track(ctx, "fresh", done, due); err != nil {
				return q, err
			}
			done += due
		}
	}
	if left, err := postgres.Count(ctx, o.pool, 0); err != nil || left.Deferred < asleep/2 {
		return q, errors.Join(err, fmt.Errorf("only %d payments are left asleep: nothing was measured", left.Deferred))
	}
	if err := o.await(ctx, 50*time.Millisecond, func() (bool, error) {
		n, err := postgres.Waiting(ctx, o.pool, first)
		return n == 0, err
	}); err != nil {
		return q, err
	}
	return postgres.Measure(ctx, o.pool, first, 0)
}

// await looks until something is so, for some minutes at the most.
func (o *outage) await(ctx context.Context, pace time.Duration, look func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("not within five minutes"))
	defer cancel()
	for {
		done, err := look()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pace):
		}
	}
}
