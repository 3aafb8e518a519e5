package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"pollux/internal/consumer"
	"pollux/internal/consumer/consumertest"
	"pollux/internal/message"
	"pollux/internal/payment"
)

// ledger is a record that takes every result, after a while.
type ledger struct {
	takes   time.Duration
	mu      sync.Mutex
	batches []int
	at      []time.Time
	busy    int
	most    int
}

func (l *ledger) Write(ctx context.Context, results []consumer.Result, _ string, _ time.Duration) ([]consumer.Verdict, error) {
	l.mu.Lock()
	l.batches, l.at = append(l.batches, len(results)), append(l.at, time.Now())
	l.busy++
	l.most = max(l.most, l.busy)
	l.mu.Unlock()
	if l.takes > 0 {
		consumertest.Wait(ctx, l.takes)
	}
	l.mu.Lock()
	l.busy--
	l.mu.Unlock()
	verdicts := make([]consumer.Verdict, len(results))
	for i := range verdicts {
		verdicts[i].Applied = true
	}
	return verdicts, nil
}

func (l *ledger) Read(context.Context, []message.Poll) ([]consumer.Job, error) { return nil, nil }
func (l *ledger) Extend(context.Context, []message.Poll, time.Duration) ([]bool, error) {
	return nil, nil
}
func (l *ledger) Bury(context.Context, consumer.Poison) error { return nil }
func (l *ledger) Ping(context.Context) error                  { return nil }

func newRecorder(l *ledger, c consumer.RecorderConfig) *consumer.Recorder {
	if c.Patience == 0 {
		c.Patience = 20 * time.Second
	}
	return consumer.NewRecorder(c, l, &consumertest.Meter{}, slog.New(slog.DiscardHandler))
}

func TestResultsWaitForThoseOnTheirWayButNotForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{}
		r := newRecorder(l, consumer.RecorderConfig{Batch: 10, Linger: 2 * time.Millisecond, Writers: 2})
		began := time.Now()
		for range 4 {
			r.Expect()
		}
		r.Add(consumer.Result{}, func(consumer.Verdict, error) {})
		pass(time.Millisecond)
		r.Add(consumer.Result{}, func(consumer.Verdict, error) {})
		r.Forget() // the third had nothing to record; the fourth is late
		pass(time.Second)
		if len(l.batches) != 1 || l.batches[0] != 2 || l.at[0].Sub(began) != 2*time.Millisecond {
			t.Errorf("batches %v at %v", l.batches, l.at)
		}
		r.Add(consumer.Result{}, func(consumer.Verdict, error) {})
		synctest.Wait()
		if len(l.batches) != 2 || r.Expected() != 0 {
			t.Errorf("batches %v, %d expected", l.batches, r.Expected())
		}
		r.Close()
	})
}

func TestFullBatchDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{}
		r := newRecorder(l, consumer.RecorderConfig{Batch: 3, Linger: time.Hour, Writers: 1})
		for range 4 {
			r.Expect()
		}
		for range 3 {
			r.Add(consumer.Result{}, func(consumer.Verdict, error) {})
		}
		synctest.Wait()
		if len(l.batches) != 1 || l.batches[0] != 3 {
			t.Errorf("batches %v", l.batches)
		}
		r.Forget()
		r.Close()
	})
}

func TestBatchesGrowWhileWritersAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{takes: 10 * time.Millisecond}
		r := newRecorder(l, consumer.RecorderConfig{Batch: 500, Linger: 2 * time.Millisecond, Writers: 2})
		var done sync.WaitGroup
		for range 200 { // two thousand results a second
			for range 10 {
				r.Expect()
				done.Add(1)
				r.Add(consumer.Result{}, func(consumer.Verdict, error) { done.Done() })
			}
			pass(5 * time.Millisecond)
		}
		done.Wait()
		if l.most > 2 || len(l.batches) > 210 {
			t.Errorf("%d batches, %d at once", len(l.batches), l.most)
		}
		r.Close()
	})
}

func TestEveryResultIsDoneOnceWhileTheRecorderCloses(t *testing.T) {
	defer goleak.VerifyNone(t)
	for range 200 {
		l := &ledger{}
		r := newRecorder(l, consumer.RecorderConfig{Batch: 4, Linger: time.Millisecond, Writers: 3})
		var written, turnedAway, other atomic.Int64
		var adders sync.WaitGroup
		for range 8 {
			adders.Go(func() {
				for i := range 20 {
					r.Expect()
					r.Add(consumer.Result{Payment: payment.ID(i)}, func(v consumer.Verdict, err error) {
						switch {
						case err == nil && v.Applied:
							written.Add(1)
						case errors.Is(err, consumer.ErrClosed):
							turnedAway.Add(1)
						default:
							other.Add(1)
						}
					})
				}
			})
		}
		r.Close()
		r.Close()
		adders.Wait()
		if written.Load()+turnedAway.Load() != 160 || other.Load() != 0 || r.Expected() != 0 {
			t.Fatalf("%d written, %d turned away, %d otherwise, %d expected", written.Load(), turnedAway.Load(), other.Load(), r.Expected())
		}
	}
}

func TestCloseWritesWhatWasAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{takes: time.Second}
		r := newRecorder(l, consumer.RecorderConfig{Batch: 2, Linger: time.Minute, Writers: 1})
		n := 0
		for range 5 {
			r.Expect()
		}
		for range 4 {
			r.Add(consumer.Result{}, func(v consumer.Verdict, err error) {
				if err == nil && v.Applied {
					n++
				}
			})
		}
		r.Close()
		if n != 4 {
			t.Errorf("%d of 4 are written", n)
		}
		r.Forget()
	})
}
