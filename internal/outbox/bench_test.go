package outbox_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"pollux/internal/consumer/consumertest"
	"pollux/internal/outbox"
	"pollux/internal/payment"
)

// well is a record that always has due polls, until it has given so many.
type well struct {
	*consumertest.Record
	left   atomic.Int64
	claims atomic.Int64
}

func (w *well) Claim(_ context.Context, rooms []outbox.Room, n int, _ string, _ time.Duration) ([]outbox.Job, error) {
	n = min(n, int(w.left.Load()))
	w.left.Add(int64(-n))
	w.claims.Add(1)
	jobs := make([]outbox.Job, n)
	for i := range jobs {
		jobs[i] = outbox.Job{Queue: rooms[0].Queue, Payment: payment.ID(i + 1), Token: "00000000-0000-4000-8000-000000000000"}
	}
	return jobs, nil
}

// sink is a broker that stores at once.
type sink struct{ *consumertest.Broker }

func (sink) Publish(_ context.Context, messages []outbox.Message) []outbox.Receipt {
	receipts := make([]outbox.Receipt, len(messages))
	for i := range receipts {
		receipts[i] = outbox.Receipt{Stream: "PAYMENTS_POLL", Sequence: uint64(i + 1)}
	}
	return receipts
}

func (sink) Backlog(context.Context, outbox.Queue) (int, bool, error) { return 0, true, nil }

// What our own code costs for each poll when everything around it answers at once.
func BenchmarkRelay(b *testing.B) {
	b.ReportAllocs()
	record := &well{Record: consumertest.NewRecord()}
	record.left.Store(int64(b.N))
	relay := outbox.New(outbox.Config{Owner: "bench", Queues: []outbox.Queue{{Gateway: acme, Lane: normal}}, Every: time.Millisecond, Batch: 1000, InFlight: 2,
		Lease: time.Minute, Backlog: 1_000_000, PublishTimeout: 5 * time.Second, Retry: time.Second, Watch: time.Second},
		record, sink{consumertest.NewBroker()}, &consumertest.Meter{}, slog.New(slog.DiscardHandler))
	polls, _, err := relay.Once(b.Context())
	if err != nil || polls != b.N {
		b.Fatalf("%d of %d polls, %v", polls, b.N, err)
	}
	b.ReportMetric(float64(b.N)/float64(record.claims.Load()), "polls/claim")
}
