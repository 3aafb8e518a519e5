package consumer

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"pollux/internal/redelivery"
)

// RecorderConfig says how results are gathered.
type RecorderConfig struct {
	Worker   string        // who wrote them: for a person who looks at the rows
	Lease    time.Duration // how long beyond its delay a held message is left to the broker
	Batch    int           // at most so many results in one transaction
	Linger   time.Duration // how long a result waits for others, while others are on their way
	Writers  int           // transactions at once
	Patience time.Duration // how long writing is tried again while the database is away
}

// Recorder writes results, many in one transaction. It writes at once when no other result is on its way.
type Recorder struct {
	cfg      RecorderConfig
	record   Record
	metrics  Metrics
	log      *slog.Logger
	in       chan entry
	expected atomic.Int64
	writers  sync.WaitGroup
}

type entry struct {
	result Result
	done   func(Verdict, error)
}

// NewRecorder returns a running recorder. Close ends it.
func NewRecorder(cfg RecorderConfig, record Record, metrics Metrics, log *slog.Logger) *Recorder {
	r := &Recorder{cfg: cfg, record: record, metrics: metrics, log: log, in: make(chan entry, cfg.Batch)}
	for range cfg.Writers {
		r.writers.Go(r.run)
	}
	return r
}

// Expect announces a result, so that those that are there wait for it a little. Each is followed by Add or Forget.
func (r *Recorder) Expect() { r.expected.Add(1) }

// Forget takes an announcement back.
func (r *Recorder) Forget() { r.expected.Add(-1) }

// Add hands in an announced result. done is called once it is written or could not be.
func (r *Recorder) Add(result Result, done func(Verdict, error)) { r.in <- entry{result, done} }

// Close writes what was added and returns. Nothing may be added afterwards.
func (r *Recorder) Close() {
	close(r.in)
	r.writers.Wait()
}

func (r *Recorder) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	batch := make([]entry, 0, r.cfg.Batch)
	for first := range r.in {
		batch = r.gather(append(batch[:0], first), timer)
		r.write(batch)
	}
}

// gather fills a batch: with what is there, and for Linger with what is on its way.
func (r *Recorder) gather(batch []entry, timer *time.Timer) []entry {
	r.expected.Add(-1)
	timer.Reset(r.cfg.Linger)
	for len(batch) < r.cfg.Batch {
		select {
		case e, open := <-r.in:
			if !open {
				return batch
			}
			r.expected.Add(-1)
			batch = append(batch, e)
			continue
		default:
		}
		if r.expected.Load() == 0 {
			return batch
		}
		select {
		case e, open := <-r.in:
			if !open {
				return batch
			}
			r.expected.Add(-1)
			batch = append(batch, e)
		case <-timer.C:
			return batch
		}
	}
	return batch
}

func (r *Recorder) write(batch []entry) {
	results := make([]Result, len(batch))
	for i, e := range batch {
		results[i] = e.result
	}
	began := time.Now()
	verdicts, err := r.patiently(results)
	r.metrics.Batch(len(batch), time.Since(began))
	for i, e := range batch {
		switch {
		case err != nil:
			e.done(Verdict{}, err)
		case verdicts[i].Refused != "":
			e.done(r.setAside(e.result, verdicts[i].Refused))
		default:
			e.done(verdicts[i], nil)
		}
	}
}

// patiently writes results and tries again while the database is away, for Patience: asking the gateway once more would cost more. Trying again is
// harmless, because what was written moved the revisions on.
func (r *Recorder) patiently(results []Result) ([]Verdict, error) {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Patience)
	defer cancel()
	b := backoff.WithContext(backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(time.Second), backoff.WithMaxElapsedTime(r.cfg.Patience)), ctx)
	verdicts, err := backoff.RetryWithData(func() ([]Verdict, error) {
		return r.record.Write(ctx, results, r.cfg.Worker, r.cfg.Lease)
	}, b)
	if err != nil {
		r.log.WarnContext(ctx, "recording results; their deliveries go back to the broker", "error", err, "results", len(results))
	}
	return verdicts, err
}

// setAside hands a payment whose result the database refuses to a person, with nothing of the answer but its class.
func (r *Recorder) setAside(refused Result, why string) (Verdict, error) {
	r.metrics.Refused(1)
	r.log.Error("the database refuses a result; the payment is with a person", "payment_id", refused.Payment, "reason", why)
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Patience)
	defer cancel()
	plain := refused
	plain.Polled, plain.DetailNew = false, false
	plain.Answer.Message, plain.Answer.GatewayStatus = why, ""
	plain.Disposition = redelivery.Disposition{Verb: redelivery.DeadLetter, Reason: redelivery.ReasonRefused, Counters: refused.Disposition.Counters}
	verdicts, err := r.record.Write(ctx, []Result{plain}, r.cfg.Worker, r.cfg.Lease)
	if err != nil {
		return Verdict{}, err
	}
	return verdicts[0], nil
}
