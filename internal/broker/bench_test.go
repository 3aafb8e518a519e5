package broker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pollux/internal/broker"
	"pollux/internal/natstest"
)

// BenchmarkPublish compares single asynchronous messages with atomic batches, by the number of messages of a call, on a server that
// acknowledges before it syncs and on one that syncs always. docs/decisions/0003-atomic-batches.md has the figures.
func BenchmarkPublish(b *testing.B) {
	for _, sync := range []bool{false, true} {
		for _, way := range []struct {
			name, batches string
		}{{"single", broker.BatchesNever}, {"batch", broker.BatchesAlways}, {"auto", broker.BatchesAuto}} {
			for _, n := range []int{1, 16, 64, 128, 256, 1000, 4000} {
				b.Run(fmt.Sprintf("sync=%v/%s/n=%d", sync, way.name, n), func(b *testing.B) {
					s := natstest.Start(b, natstest.Options{SyncAlways: sync})
					c := connect(b, s, func(c *broker.Config) {
						if c.Batches = way.batches; way.batches == broker.BatchesAlways {
							c.BatchThreshold = 2
						}
					})
					mustPublish(b, c, polls("warm", n))
					round := 0
					for b.Loop() {
						round++
						mustPublish(b, c, polls(fmt.Sprint(round), n))
					}
					b.ReportMetric(float64(n*round)/b.Elapsed().Seconds(), "msgs/s")
				})
			}
		}
	}
}

// BenchmarkFetch is how many messages a second a source hands out and has acknowledged.
func BenchmarkFetch(b *testing.B) {
	for _, prefetch := range []int{16, 64, 256, 1024} {
		b.Run(fmt.Sprintf("prefetch=%d", prefetch), func(b *testing.B) {
			s := natstest.New(b)
			c := connect(b, s)
			const lot = 20_000
			src := subscribe(b, c, broker.SubscribeConfig{Queue: queue, AckWait: 30 * time.Second, MaxAckPending: 50_000, Prefetch: prefetch})
			total, round := 0, 0
			for b.Loop() {
				b.StopTimer()
				round++
				mustPublish(b, c, polls(fmt.Sprint(round), lot))
				b.StartTimer()
				for got := 0; got < lot; {
					ds, err := src.Fetch(context.Background(), prefetch)
					if err != nil {
						b.Fatal(err)
					}
					for _, d := range ds {
						if err := d.Ack(); err != nil {
							b.Fatal(err)
						}
					}
					got += len(ds)
				}
				total += lot
			}
			b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "msgs/s")
		})
	}
}

// subscribe opens a source that ends with the test.
func subscribe(t testing.TB, c *broker.Conn, cfg broker.SubscribeConfig) *broker.Source {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	src, err := c.Subscribe(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = src.Close() })
	return src
}
