package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"pollux/internal/gatewaysim"
	"pollux/internal/postgres"
)

// resolve measures payments resolved a second: all due at the start, every one final at its first poll.
func resolve(ctx context.Context, b *bench) error {
	for _, latency := range []time.Duration{0, 5 * time.Millisecond} {
		ours := figure{name: fmt.Sprintf("Pollux, gateway of %s", latency), unit: "payments/s", of: "the table"}
		table := figure{name: "  a table with SKIP LOCKED, single writes", unit: "payments/s"}
		queue := figure{name: "  River, tuned", unit: "payments/s"}
		for range b.runs {
			s, err := b.dev(ctx, "--preload", "--payments", "60000", "--latency", latency.String(),
				"--set", "relay.backlog=20000", "--set", "gateways.sim.workers=256")
			if err != nil {
				return err
			}
			ours.runs = append(ours.runs, s["resolved_per_second"])
			err = withGateway(gatewaysim.Conditions{Latency: latency}, func(sim *gatewaysim.Simulator) error {
				perSecond, err := b.skipLocked(ctx, sim, 10_000)
				table.runs = append(table.runs, perSecond)
				return err
			})
			if err != nil {
				return err
			}
			err = withGateway(gatewaysim.Conditions{Latency: latency}, func(sim *gatewaysim.Simulator) error {
				perSecond, err := b.river(ctx, sim, 15_000)
				queue.runs = append(queue.runs, perSecond)
				return err
			})
			if err != nil {
				return err
			}
		}
		ours.base = table.median()
		queue.base, queue.of = table.median(), "the table"
		b.print(ours)
		b.print(table)
		b.print(queue)
	}
	return nil
}

// asker polls the simulator as plainly as can be.
type asker struct {
	client *http.Client
	url    string
}

func newAsker(sim *gatewaysim.Simulator, workers int) asker {
	return asker{&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}, sim.URL() + "/v1/payments/"}
}

func (a asker) ask(ctx context.Context, reference string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+reference, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+gatewaysim.DefaultAPIKey)
	resp, err := a.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var body struct{ Status string }
	err = json.NewDecoder(resp.Body).Decode(&body)
	_, _ = io.Copy(io.Discard, resp.Body)
	return body.Status, err
}

// skipLocked is what a team writes first: workers that each lock a due row, ask, and write status, attempt and event in that transaction.
func (b *bench) skipLocked(ctx context.Context, sim *gatewaysim.Simulator, n int) (perSecond float64, err error) {
	const workers = 32
	err = b.withPool(ctx, postgres.Options{MaxConns: workers}, func(pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, `
			create table payment (id bigint generated always as identity primary key, reference text not null, amount bigint not null, currency text not null,
			  status text not null default 'pending', next_poll_at timestamptz not null default now());
			create index on payment (next_poll_at) where status = 'pending';
			create table attempt (payment_id bigint not null, at timestamptz not null default now(), status text not null);
			create table event (id bigint generated always as identity primary key, payment_id bigint not null, body jsonb not null)`)
		if err != nil {
			return err
		}
		var rows [][]any
		for _, p := range sim.Generate(n, "bench") {
			rows = append(rows, []any{p.Reference, p.AmountMinor, p.Currency})
		}
		if _, err := pool.CopyFrom(ctx, pgx.Identifier{"payment"}, []string{"reference", "amount", "currency"}, pgx.CopyFromRows(rows)); err != nil {
			return err
		}
		a := newAsker(sim, workers)
		began := time.Now()
		var wg sync.WaitGroup
		errs := make(chan error, workers)
		for range workers {
			wg.Go(func() {
				for {
					more, err := pollOne(ctx, pool, a)
					if err != nil || !more {
						errs <- err
						return
					}
				}
			})
		}
		wg.Wait()
		perSecond = float64(n) / time.Since(began).Seconds()
		for range workers {
			if err := <-errs; err != nil {
				return err
			}
		}
		return nil
	})
	return perSecond, err
}

func pollOne(ctx context.Context, pool *pgxpool.Pool, a asker) (more bool, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var id int64
		var reference string
		err := tx.QueryRow(ctx, `select id, reference from payment where status = 'pending' and next_poll_at <= now()
			order by next_poll_at limit 1 for update skip locked`).Scan(&id, &reference)
		if err == pgx.ErrNoRows {
			return nil
		}
		if err != nil {
			return err
		}
		more = true
		status, err := a.ask(ctx, reference)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update payment set status = $2 where id = $1`, id, status); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `insert into attempt (payment_id, status) values ($1, $2)`, id, status); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `insert into event (payment_id, body) values ($1, jsonb_build_object('status', $2::text))`, id, status)
		return err
	})
	return more, err
}

// pollArgs is a job of River.
type pollArgs struct {
	Reference string `json:"reference"`
}

// Kind names the job.
func (pollArgs) Kind() string { return "poll" }

type pollWorker struct {
	river.WorkerDefaults[pollArgs]
	a    asker
	pool *pgxpool.Pool
	done *atomic.Int64
	all  int64
	end  chan struct{}
}

// Work asks and writes the payment's status and event in the transaction that completes the job, as River recommends.
func (w *pollWorker) Work(ctx context.Context, job *river.Job[pollArgs]) error {
	status, err := w.a.ask(ctx, job.Args.Reference)
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `update payment set status = $2 where reference = $1`, job.Args.Reference, status); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `insert into event (reference, body) values ($1, jsonb_build_object('status', $2::text))`, job.Args.Reference, status); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil && w.done.Add(1) == w.all {
		close(w.end)
	}
	return err
}

// river is the same with River, its knobs turned for throughput.
func (b *bench) river(ctx context.Context, sim *gatewaysim.Simulator, n int) (perSecond float64, err error) {
	const workers = 100
	err = b.withPool(ctx, postgres.Options{MaxConns: 40}, func(pool *pgxpool.Pool) error {
		migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
		if err != nil {
			return err
		}
		if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
			return err
		}
		_, err = pool.Exec(ctx, `
			create table payment (reference text primary key, status text not null default 'pending');
			create table event (id bigint generated always as identity primary key, reference text not null, body jsonb not null)`)
		if err != nil {
			return err
		}
		w := &pollWorker{a: newAsker(sim, workers), pool: pool, done: new(atomic.Int64), all: int64(n), end: make(chan struct{})}
		all := river.NewWorkers()
		river.AddWorker(all, w)
		client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
			Workers: all, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
			FetchCooldown: time.Millisecond, FetchPollInterval: 10 * time.Millisecond,
		})
		if err != nil {
			return err
		}
		made := sim.Generate(n, "bench")
		jobs, rows := make([]river.InsertManyParams, len(made)), make([][]any, len(made))
		for i, p := range made {
			jobs[i], rows[i] = river.InsertManyParams{Args: pollArgs{p.Reference}}, []any{p.Reference}
		}
		if _, err := pool.CopyFrom(ctx, pgx.Identifier{"payment"}, []string{"reference"}, pgx.CopyFromRows(rows)); err != nil {
			return err
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return err
		}
		began := time.Now()
		if err := client.Start(ctx); err != nil {
			return err
		}
		select {
		case <-w.end:
		case <-ctx.Done():
			return ctx.Err()
		}
		perSecond = float64(n) / time.Since(began).Seconds()
		return client.Stop(ctx)
	})
	return perSecond, err
}
