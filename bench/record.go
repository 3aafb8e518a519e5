package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/broker"
	"pollux/internal/outbox"
	"pollux/internal/postgres"
	"pollux/internal/telemetry"
)

var queue = outbox.Queue{Gateway: "sim", Lane: "normal"}

// fill tracks n payments quickly, the first poll after a while.
func fill(ctx context.Context, pool *pgxpool.Pool, n int, after time.Duration) error {
	_, err := pool.Exec(ctx, `
		insert into pollux.payments (gateway, reference, amount_minor, currency, poll_after)
		select 'sim', 'bench-' || pg_backend_pid() || '-' || extract(epoch from clock_timestamp()) || '-' || g, 1999, 'EUR', now() + $2::bigint * interval '1 microsecond'
		from generate_series(1, $1::int) g`, n, after.Microseconds())
	return err
}

// relay measures the relay by itself: claim, publish, await the acknowledgements.
func relay(ctx context.Context, b *bench) error {
	const n = 100_000
	polls := figure{name: "polls claimed and published", unit: "messages/s"}
	for range b.runs {
		err := b.withBroker(ctx, func(conn *broker.Conn) error {
			source, err := conn.Subscribe(ctx, broker.SubscribeConfig{Queue: queue, AckWait: time.Minute, MaxAckPending: 1000, Prefetch: 1})
			if err != nil {
				return err
			}
			defer source.Close()
			return b.withPool(ctx, postgres.Options{MaxConns: 8, Indexed: true}, func(pool *pgxpool.Pool) error {
				if err := fill(ctx, pool, n, 0); err != nil {
					return err
				}
				tel, err := telemetry.New(ctx, telemetry.Config{Service: "bench"}, nil)
				if err != nil {
					return err
				}
				defer tel.Close(ctx)
				r := outbox.New(outbox.Config{Owner: "bench", Queues: []outbox.Queue{queue}, Every: 10 * time.Millisecond, Batch: 1000, InFlight: 2,
					Lease: time.Minute, Backlog: 10 * n, PublishTimeout: 10 * time.Second, Retry: time.Second, Watch: time.Second},
					postgres.NewRelay(pool, 24*time.Hour, 24*time.Hour), conn, tel.Metrics, slog.New(slog.DiscardHandler))
				began := time.Now()
				published, _, err := r.Once(ctx)
				if err == nil && published != n {
					err = fmt.Errorf("published %d of %d", published, n)
				}
				polls.runs = append(polls.runs, float64(n)/time.Since(began).Seconds())
				return err
			})
		})
		if err != nil {
			return err
		}
	}
	b.print(polls)
	return nil
}

// intake measures what tracking costs the payment service: its own insert in its own transaction, without and with track_payment.
func intake(ctx context.Context, b *bench) error {
	bare := figure{name: "bare insert of the payment, in a transaction", unit: "transactions/s"}
	tracked := figure{name: "track_payment, in a transaction", unit: "transactions/s", of: "bare"}
	single := figure{name: "track_payment, as a single statement", unit: "transactions/s", of: "bare"}
	for range b.runs {
		err := b.withPool(ctx, postgres.Options{MaxConns: 16}, func(pool *pgxpool.Pool) error {
			if _, err := pool.Exec(ctx, `create table bare (like pollux.payments including all)`); err != nil {
				return err
			}
			const insert = `insert into bare (gateway, reference, amount_minor, currency) values ('sim', $1, 1999, 'EUR')`
			const track = `select pollux.track_payment('sim', $1, 1999, 'EUR')`
			for _, m := range []struct {
				f   *figure
				one func(context.Context, string) error
			}{
				{&bare, inTransaction(pool, insert)},
				{&tracked, inTransaction(pool, track)},
				{&single, func(ctx context.Context, ref string) error { _, err := pool.Exec(ctx, track, ref); return err }},
			} {
				perSecond, err := clients(ctx, 16, 5*time.Second, m.one)
				if err != nil {
					return err
				}
				m.f.runs = append(m.f.runs, perSecond)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	tracked.base, single.base = bare.median(), bare.median()
	b.print(bare)
	b.print(tracked)
	b.print(single)
	return nil
}

func inTransaction(pool *pgxpool.Pool, sql string) func(context.Context, string) error {
	return func(ctx context.Context, reference string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql, reference)
			return err
		})
	}
}

// clients calls one from n clients for a while and returns the calls a second.
func clients(ctx context.Context, n int, d time.Duration, one func(context.Context, string) error) (float64, error) {
	var calls atomic.Int64
	errs := make(chan error, n)
	began := time.Now()
	var wg sync.WaitGroup
	for c := range n {
		wg.Go(func() {
			for i := 0; time.Since(began) < d; i++ {
				if err := one(ctx, fmt.Sprintf("%d-%d-%d", began.UnixNano(), c, i)); err != nil {
					errs <- err
					return
				}
				calls.Add(1)
			}
		})
	}
	wg.Wait()
	close(errs)
	return float64(calls.Load()) / time.Since(began).Seconds(), <-errs
}

// claim measures what sleeping jobs cost a look that finds nothing, and one that finds a hundred.
func claim(ctx context.Context, b *bench) error {
	var base float64
	for _, sleeping := range []int{1000, 1_000_000} {
		f := figure{name: fmt.Sprintf("a look that finds nothing, %d jobs asleep", sleeping), unit: "µs", of: "with 1000"}
		g := figure{name: fmt.Sprintf("a claim of 100, %d jobs asleep", sleeping), unit: "µs"}
		err := b.withPool(ctx, postgres.Options{MaxConns: 2, Indexed: true}, func(pool *pgxpool.Pool) error {
			if err := fill(ctx, pool, sleeping, 24*time.Hour); err != nil {
				return err
			}
			r := postgres.NewRelay(pool, 24*time.Hour, 24*time.Hour)
			look := func(n int) (time.Duration, error) {
				began := time.Now()
				jobs, err := r.Claim(ctx, []outbox.Room{{Queue: queue, N: n}}, n, "bench", time.Minute)
				if err == nil && len(jobs) != 0 && len(jobs) != n {
					err = fmt.Errorf("claimed %d of %d", len(jobs), n)
				}
				return time.Since(began), err
			}
			for range max(b.runs, 5) {
				var total time.Duration
				for range 2000 {
					d, err := look(1000)
					if err != nil {
						return err
					}
					total += d
				}
				f.runs = append(f.runs, float64(total.Microseconds())/2000)
				if err := fill(ctx, pool, 1000, 0); err != nil {
					return err
				}
				total = 0
				for range 10 {
					d, err := look(100)
					if err != nil {
						return err
					}
					total += d
				}
				g.runs = append(g.runs, float64(total.Microseconds())/10)
			}
			return nil
		})
		if err != nil {
			return err
		}
		f.base, base = base, f.median()
		b.print(f)
		b.print(g)
	}
	runtime.GC()
	return nil
}
