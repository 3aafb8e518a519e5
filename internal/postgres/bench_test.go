package postgres

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// The batches of the relay and the consumer, as configured by default.
const (
	claimBatch = 1000
	writeBatch = 500
)

// BenchmarkLife takes payments through the record: tracked, claimed, read, written (held as often as hold says, then resolved), published.
// It reports for each stage what a payment takes on the wall and of PostgreSQL's CPU. Run it with -benchtime=50000x on a quiet machine.
func BenchmarkLife(b *testing.B) {
	for _, hold := range []int{0, 1} {
		b.Run(fmt.Sprintf("holds=%d", hold), func(b *testing.B) { benchmarkLife(b, hold) })
	}
}

func benchmarkLife(b *testing.B, holds int) {
	r := newRecord(b)
	r.exec(b, `alter table pollux.poll_jobs set (autovacuum_enabled = off)`)
	watch := newStopwatch(b, r)
	r.track(b, "warm", 2000)
	life(b, r, newStopwatch(b, r), holds)
	b.ResetTimer()
	watch.run("track", func() { r.track(b, "p", b.N) })
	life(b, r, watch, holds)
	b.StopTimer()
	watch.report(b, b.N)
}

// life claims, reads and writes all due jobs and publishes all events.
func life(b *testing.B, r *record, watch *stopwatch, holds int) {
	for {
		var jobs []outbox.Job
		watch.run("claim", func() { jobs = r.claim(b, claimBatch, time.Minute) })
		if len(jobs) == 0 {
			break
		}
		for at := 0; at < len(jobs); at += writeBatch {
			part := jobs[at:min(at+writeBatch, len(jobs))]
			for range holds {
				writePart(b, r, watch, "hold", part, redelivery.Hold)
			}
			writePart(b, r, watch, "resolve", part, redelivery.Resolve)
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

func writePart(b *testing.B, r *record, watch *stopwatch, stage string, part []outbox.Job, verb redelivery.Verb) {
	var rows []consumer.Job
	watch.run("read", func() { rows = r.read(b, part) })
	results := make([]consumer.Result, len(part))
	for i, j := range part {
		var d redelivery.Disposition
		var a gateway.Answer
		if verb == redelivery.Resolve {
			d, a = resolve(payment.Succeeded)
		} else {
			d, a = stillPending(verb, time.Second)
		}
		results[i] = result(j, rows[i], d, a)
	}
	watch.run(stage, func() {
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

// stopwatch adds up the time of stages, on the wall and of the server's processes that serve the pool.
type stopwatch struct {
	pids  []string
	order []string
	wall  map[string]time.Duration
	cpu   map[string]time.Duration
}

func newStopwatch(b *testing.B, r *record) *stopwatch {
	b.Helper()
	w := &stopwatch{wall: map[string]time.Duration{}, cpu: map[string]time.Duration{}}
	conns := r.pool.AcquireAllIdle(b.Context())
	for len(conns) < 1 {
		r.exec(b, `select 1`)
		conns = r.pool.AcquireAllIdle(b.Context())
	}
	for _, c := range conns {
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

// spent is the CPU time of the server's processes so far. It is 0 where the system does not tell (it is Linux's /proc).
func (w *stopwatch) spent() (total time.Duration) {
	for _, pid := range w.pids {
		stat, err := os.ReadFile("/proc/" + pid + "/schedstat")
		if err != nil {
			return 0
		}
		ns, _ := strconv.ParseInt(strings.Fields(string(stat))[0], 10, 64)
		total += time.Duration(ns)
	}
	return total
}

func (w *stopwatch) report(b *testing.B, n int) {
	var sum time.Duration
	for _, stage := range w.order {
		b.ReportMetric(float64(w.wall[stage].Nanoseconds())/1e3/float64(n), stage+"-wall-µs")
		b.ReportMetric(float64(w.cpu[stage].Nanoseconds())/1e3/float64(n), stage+"-cpu-µs")
		if stage != "track" {
			sum += w.cpu[stage]
		}
	}
	b.ReportMetric(float64(sum.Nanoseconds())/1e3/float64(n), "all-cpu-µs")
}
