package postgres

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/consumer"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/pgtest"
	"pollux/internal/redelivery"
)

// The batches of the relay and the consumer, as configured by default.
const (
	claimBatch = 1000
	writeBatch = 500
)

// BenchmarkLife takes payments through the record, b.N of them: tracked, claimed, read, written, published. What is written says its name: each
// payment is resolved at once, or held once before, or parked in batches that resolve others. It reports for each stage
// what a payment takes on the wall, and of the CPU of the server's processes that serve it. Run it with -benchtime=50000x.
func BenchmarkLife(b *testing.B) {
	for _, c := range []struct {
		name  string
		first func(i int) redelivery.Verb
	}{
		{"resolved", func(int) redelivery.Verb { return redelivery.Resolve }},
		{"held once", func(int) redelivery.Verb { return redelivery.Hold }},
		{"half held once", func(i int) redelivery.Verb { return []redelivery.Verb{redelivery.Hold, redelivery.Resolve}[i%2] }},
		{"dead", func(int) redelivery.Verb { return redelivery.DeadLetter }},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRecord(b)
			r.exec(b, `alter table pollux.poll_jobs set (autovacuum_enabled = off)`)
			r.track(b, "warm", 3*claimBatch)
			life(b, r, newStopwatch(b, r.pool), c.first)
			watch := newStopwatch(b, r.pool)
			b.ResetTimer()
			watch.run("track", func() { r.track(b, "p", b.N) })
			life(b, r, watch, c.first)
			b.StopTimer()
			watch.report(b, b.N)
		})
	}
}

// life claims, reads and writes all due jobs and publishes all events.
func life(b *testing.B, r *record, watch *stopwatch, first func(int) redelivery.Verb) {
	for {
		var jobs []outbox.Job
		watch.run("claim", func() { jobs = r.claim(b, claimBatch, time.Minute) })
		if len(jobs) == 0 {
			break
		}
		for part := range slices.Chunk(jobs, writeBatch) {
			var held []outbox.Job
			for i, j := range part {
				if first(i) == redelivery.Hold {
					held = append(held, j)
				}
			}
			writePart(b, r, watch, part, first)
			writePart(b, r, watch, held, func(int) redelivery.Verb { return redelivery.Resolve })
		}
	}
	for n := 1; n > 0; {
		watch.run("events", func() {
			var err error
			if n, err = r.relay.PublishEvents(b.Context(), claimBatch, time.Second, stored); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func writePart(b *testing.B, r *record, watch *stopwatch, part []outbox.Job, verb func(int) redelivery.Verb) {
	if len(part) == 0 {
		return
	}
	var rows []consumer.Job
	watch.run("read", func() { rows = r.read(b, part) })
	results := make([]consumer.Result, len(part))
	for i, j := range part {
		d, a := resolve(payment.Succeeded)
		if v := verb(i); v != redelivery.Resolve {
			d, a = stillPending(v, time.Second)
		}
		results[i] = result(j, rows[i], d, a)
	}
	watch.run("write", func() {
		verdicts, err := r.jobs.Write(b.Context(), results, "worker-1", time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		for _, v := range verdicts {
			if !v.Applied {
				b.Fatalf("a result was not applied: %s", v.Refused)
			}
		}
	})
}

// stored is a broker that stores everything at once.
func stored(_ context.Context, events []outbox.Event) []outbox.Receipt {
	receipts := make([]outbox.Receipt, len(events))
	for i := range receipts {
		receipts[i] = outbox.Receipt{Stream: "PAYMENTS_EVENTS", Sequence: uint64(i + 1)}
	}
	return receipts
}

// BenchmarkIdle is what a relay does a hundred times a second while nothing is due, with a thousand and with a million payments asleep.
func BenchmarkIdle(b *testing.B) {
	for _, sleeping := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("sleeping=%d", sleeping), func(b *testing.B) {
			r := newRecord(b)
			fill(b, r, sleeping)
			r.exec(b, `vacuum analyze pollux.payments, pollux.poll_jobs, pollux.outbox`)
			for _, c := range []struct {
				name string
				look func()
			}{
				{"claim", func() { r.claim(b, claimBatch, time.Minute) }},
				{"sweep", func() { r.relay.jobs.forget(); r.claim(b, claimBatch, time.Minute) }},
				{"events", func() {
					if _, err := r.relay.PublishEvents(b.Context(), claimBatch, time.Second, stored); err != nil {
						b.Fatal(err)
					}
				}},
			} {
				b.Run(c.name, func(b *testing.B) {
					for range 100 {
						c.look()
					}
					watch := newStopwatch(b, r.pool)
					b.ResetTimer()
					watch.run("look", func() {
						for range b.N {
							c.look()
						}
					})
					b.StopTimer()
					watch.report(b, b.N)
				})
			}
		})
	}
}

// BenchmarkClaimWhileATransactionIsOpen works off payments while a transaction is open that may still see all of them, and reports what an idle claim
// takes afterwards: from where the last one was, and from the very front.
func BenchmarkClaimWhileATransactionIsOpen(b *testing.B) {
	r := newRecord(b)
	dump, err := pgx.Connect(b.Context(), r.url)
	if err != nil {
		b.Fatal(err)
	}
	defer dump.Close(context.WithoutCancel(b.Context()))
	if _, err := dump.Exec(b.Context(), `begin isolation level repeatable read; select count(*) from pollux.payments`); err != nil {
		b.Fatal(err)
	}
	const worked = 200_000
	r.track(b, "p", worked)
	life(b, r, newStopwatch(b, r.pool), func(int) redelivery.Verb { return redelivery.Resolve })
	for _, sweep := range []bool{false, true} {
		b.Run(fmt.Sprintf("worked off=%d/sweep=%t", worked, sweep), func(b *testing.B) {
			for range b.N {
				if sweep {
					r.relay.jobs.forget()
				}
				r.claim(b, claimBatch, time.Minute)
			}
		})
	}
}

// BenchmarkIntake tracks payments with 12 clients on a server that syncs its commits, against the insert of the same row into a table of the same columns and
// indexes without triggers, and reports each as a ratio to it. The ways take turns for a second each; the ratios are medians of five rounds.
func BenchmarkIntake(b *testing.B) {
	const clients, rounds = 12, 5
	server := pgtest.Server(b)
	url := server.DSN("postgres")
	if err := migrate(b.Context(), url); err != nil {
		b.Fatal(err)
	}
	pool := open(b, Options{URL: url, MaxConns: clients, Name: "payment service"})
	if _, err := pool.Exec(b.Context(), `
		create table bare (like pollux.payments including all);
		create table orders (id bigint generated always as identity primary key, reference text not null unique)`); err != nil {
		b.Fatal(err)
	}
	const bare = `insert into bare (gateway, reference, amount_minor, currency) values ('sim', $1, 1999, 'EUR')`
	const track = `select pollux.track_payment('sim', $1, 1999, 'EUR')`
	const order = `insert into orders (reference) values ($1)`
	ways := []struct {
		name       string
		statements []string
		single     bool
	}{
		{"bare", []string{bare}, false},
		{"tracked", []string{track}, false},
		{"order+bare", []string{order, bare}, false},
		{"order+tracked", []string{order, track}, false},
		{"bare-single", []string{bare}, true},
		{"tracked-single", []string{track}, true},
	}
	rates := map[string][]float64{}
	n := 0
	for range rounds {
		for _, way := range ways {
			n++
			rate := intake(b, pool, clients, fmt.Sprintf("r%d-", n), way.statements, way.single)
			rates[way.name] = append(rates[way.name], rate)
		}
	}
	for _, way := range ways {
		slices.Sort(rates[way.name])
		b.ReportMetric(rates[way.name][rounds/2], way.name+"/s")
	}
	ratio := func(a, base string) { b.ReportMetric(rates[a][rounds/2]/rates[base][rounds/2], a+":"+base) }
	ratio("tracked", "bare")
	ratio("order+tracked", "order+bare")
	ratio("tracked-single", "bare-single")
	ratio("tracked-single", "bare")
	b.ReportMetric(0, "ns/op")
}

// intake runs transactions for a second and returns how many a second were committed.
func intake(b *testing.B, pool *pgxpool.Pool, clients int, prefix string, statements []string, single bool) float64 {
	const long = time.Second
	counts := make([]int, clients)
	var wg sync.WaitGroup
	began := time.Now()
	for c := range clients {
		wg.Go(func() {
			for i := 0; time.Since(began) < long; i++ {
				reference := fmt.Sprintf("%s%d-%d", prefix, c, i)
				var err error
				if single {
					_, err = pool.Exec(b.Context(), statements[0], reference)
				} else {
					err = pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
						for _, s := range statements {
							if _, err := tx.Exec(b.Context(), s, reference); err != nil {
								return err
							}
						}
						return nil
					})
				}
				if err != nil {
					b.Error(err)
					return
				}
				counts[c]++
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(began).Seconds()
}

// stopwatch adds up the time of stages, on the wall and of the server's processes that serve the pool.
type stopwatch struct {
	pids  []string
	order []string
	wall  map[string]time.Duration
	cpu   map[string]time.Duration
}

func newStopwatch(b *testing.B, pool *pgxpool.Pool) *stopwatch {
	b.Helper()
	w := &stopwatch{wall: map[string]time.Duration{}, cpu: map[string]time.Duration{}}
	if err := pool.Ping(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, c := range pool.AcquireAllIdle(b.Context()) {
		w.pids = append(w.pids, strconv.Itoa(int(c.Conn().PgConn().PID())))
		c.Release()
	}
	return w
}

func (w *stopwatch) run(stage string, fn func()) {
	began, spent := time.Now(), w.spent()
	fn()
	if _, known := w.wall[stage]; !known {
		w.order = append(w.order, stage)
	}
	w.wall[stage] += time.Since(began)
	w.cpu[stage] += w.spent() - spent
}

// spent is the CPU time of the server's processes so far, or 0 where the system does not tell: it is Linux that does.
func (w *stopwatch) spent() (total time.Duration) {
	for _, pid := range w.pids {
		stat, err := os.ReadFile("/proc/" + pid + "/schedstat")
		if err != nil {
			return 0
		}
		ns, err := strconv.ParseInt(strings.Fields(string(stat))[0], 10, 64)
		if err != nil {
			return 0
		}
		total += time.Duration(ns)
	}
	return total
}

func (w *stopwatch) report(b *testing.B, n int) {
	b.Helper()
	var sum time.Duration
	for _, stage := range w.order {
		b.ReportMetric(float64(w.wall[stage].Nanoseconds())/1e3/float64(n), stage+"-wall-µs")
		b.ReportMetric(float64(w.cpu[stage].Nanoseconds())/1e3/float64(n), stage+"-cpu-µs")
		if stage != "track" {
			sum += w.cpu[stage]
		}
	}
	if len(w.order) > 1 {
		b.ReportMetric(float64(sum.Nanoseconds())/1e3/float64(n), "all-but-track-cpu-µs")
	}
}
