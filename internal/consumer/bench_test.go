package consumer_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/consumer/consumertest"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// tap is a source that always has deliveries, until it has given so many.
type tap struct {
	ended atomic.Int64
	done  chan struct{}
	size  int64
	next  int64
}

const benchToken = "00000000-0000-4000-8000-000000000000"

func (s *tap) Fetch(ctx context.Context, n int) ([]consumer.Delivery, error) {
	n = int(min(int64(n), s.size-s.next))
	if n == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	deliveries := make([]consumer.Delivery, n)
	drops := make([]drop, n)
	for i := range drops {
		s.next++
		drops[i] = drop{tap: s, body: message.EncodePoll(message.Poll{Payment: payment.ID(s.next), Token: benchToken})}
		deliveries[i] = &drops[i]
	}
	return deliveries, nil
}

func (s *tap) Held() int    { return 0 }
func (s *tap) Close() error { return nil }

type drop struct {
	tap  *tap
	body []byte
}

func (d *drop) Body() []byte { return d.body }
func (d *drop) Count() int   { return 1 }

func (d *drop) Waited() time.Duration { return 0 }
func (d *drop) TraceParent() string   { return "" }

func (d *drop) Ack() error {
	if d.tap.ended.Add(1) == d.tap.size {
		close(d.tap.done)
	}
	return nil
}
func (d *drop) Return(time.Duration) error { return d.Ack() }

// book is a record that answers at once.
type book struct{ batches atomic.Int64 }

func (b *book) Read(_ context.Context, polls []message.Poll) ([]consumer.Job, error) {
	jobs := make([]consumer.Job, len(polls))
	now := time.Now()
	for i, p := range polls {
		jobs[i] = consumer.Job{Tracked: true, TokenCurrent: true, LeaseLeft: time.Hour, DueAt: now, ReadAt: now, Payment: payment.Payment{
			ID: p.Payment, Gateway: acme, Lane: normal, Class: "standard", Status: payment.Pending, Reference: "ref", CreatedAt: now}}
	}
	return jobs, nil
}

func (b *book) Extend(context.Context, []message.Poll, time.Duration) ([]bool, error) {
	return nil, nil
}
func (b *book) Bury(context.Context, consumer.Poison) error { return nil }
func (b *book) Ping(context.Context) error                  { return nil }

func (b *book) Write(_ context.Context, results []consumer.Result, _ string, _ time.Duration) ([]consumer.Verdict, error) {
	b.batches.Add(1)
	verdicts := make([]consumer.Verdict, len(results))
	for i := range verdicts {
		verdicts[i].Applied = true
	}
	return verdicts, nil
}

// silent counts nothing.
type silent struct{}

func (silent) Delivery(string, redelivery.Verb, redelivery.Reason)          {}
func (silent) Call(context.Context, string, gateway.Class, time.Duration)   {}
func (silent) Lateness(context.Context, string, string, time.Duration)      {}
func (silent) Delivered(context.Context, string, time.Duration)             {}
func (silent) Finality(context.Context, string, string, time.Duration, int) {}
func (silent) Waited(string, string, time.Duration)                         {}
func (silent) Read(int, time.Duration)                                      {}
func (silent) Resolved(string, payment.Status)                              {}
func (silent) Batch(int, time.Duration)                                     {}
func (silent) Refused(int)                                                  {}
func (silent) Superseded(int)                                               {}
func (silent) Held(string, string, int)                                     {}
func (silent) InFlight(string, int)                                         {}

type quick struct{ answer gateway.Answer }

func (q quick) Poll(context.Context, gateway.Query) gateway.Answer { return q.answer }

// What our own code costs for each message when everything around it answers at once: decoding, deciding, a goroutine for the call, gathering
// results, acknowledging.
func BenchmarkConsumer(b *testing.B) {
	for name, answer := range map[string]gateway.Answer{"resolved": consumertest.Final(payment.Succeeded), "held": {Class: gateway.Transport}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			source := &tap{done: make(chan struct{}), size: int64(b.N)}
			record := &book{}
			log := slog.New(slog.DiscardHandler)
			recorder := consumer.NewRecorder(consumer.RecorderConfig{Worker: "bench", Lease: lease, Batch: 500, Linger: 2 * time.Millisecond, Writers: 2,
				Patience: time.Second}, record, silent{}, log)
			c := consumer.New(consumer.Config{Gateway: acme, Lane: normal, Workers: 256, AckWait: ackWait, Lease: lease, HoldBudget: 1000, Drain: time.Second},
				source, quick{answer}, record, recorder, func(string) redelivery.Policy { return policy }, silent{}, consumertest.Untraced{}, log)
			ctx, cancel := context.WithCancel(b.Context())
			ended := make(chan error, 1)
			b.ResetTimer()
			go func() { ended <- c.Run(ctx) }()
			<-source.done
			b.StopTimer()
			cancel()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
			recorder.Close()
			b.ReportMetric(float64(b.N)/float64(record.batches.Load()), "results/batch")
		})
	}
}
