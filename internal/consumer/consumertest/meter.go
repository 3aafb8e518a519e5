package consumertest

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// Meter counts what consumers and relays count. The zero value is ready. It is safe for concurrent use.
type Meter struct {
	mu     sync.Mutex
	counts map[string]int
}

var (
	_ consumer.Metrics = (*Meter)(nil)
	_ outbox.Metrics   = (*Meter)(nil)
)

func (m *Meter) add(n int, format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts = map[string]int{}
	}
	m.counts[fmt.Sprintf(format, args...)] += n
}

// Count returns a count by its name: that of the method and its labels, separated by blanks.
func (m *Meter) Count(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[name]
}

// Counts returns all counts.
func (m *Meter) Counts() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.counts)
}

// Delivery implements consumer.Metrics.
func (m *Meter) Delivery(_ string, v redelivery.Verb, r redelivery.Reason) {
	m.add(1, "delivery %s %s", v, r)
}

// Call implements consumer.Metrics.
func (m *Meter) Call(_ context.Context, _ string, c gateway.Class, _ time.Duration) {
	m.add(1, "call %s", c)
}

// Lateness implements consumer.Metrics.
func (m *Meter) Lateness(_ context.Context, _, _ string, _ time.Duration) { m.add(1, "lateness") }

// Finality implements consumer.Metrics.
func (m *Meter) Finality(_ context.Context, _, class string, _ time.Duration, _ int) {
	m.add(1, "finality %s", class)
}

// Delivered implements consumer.Metrics.
func (m *Meter) Delivered(context.Context, string, time.Duration) { m.add(1, "delivered") }

// Waited implements consumer.Metrics.
func (m *Meter) Waited(_, _ string, _ time.Duration) { m.add(1, "waited") }

// Read implements consumer.Metrics.
func (m *Meter) Read(n int, _ time.Duration) { m.add(n, "read") }

// Resolved implements consumer.Metrics.
func (m *Meter) Resolved(_ string, s payment.Status) { m.add(1, "resolved %s", s) }

// Batch implements consumer.Metrics.
func (m *Meter) Batch(int, time.Duration) { m.add(1, "batch") }

// Refused implements consumer.Metrics.
func (m *Meter) Refused(n int) { m.add(n, "refused") }

// Superseded implements consumer.Metrics.
func (m *Meter) Superseded(n int) { m.add(n, "superseded") }

// Held implements consumer.Metrics.
func (m *Meter) Held(_, _ string, _ int) {}

// InFlight implements consumer.Metrics.
func (m *Meter) InFlight(_ string, delta int) { m.add(delta, "in_flight") }

// RelayClaimed implements outbox.Metrics.
func (m *Meter) RelayClaimed(gateway, lane string, n int, _ time.Duration) {
	m.add(n, "claimed %s %s", gateway, lane)
}

// Claim implements outbox.Metrics.
func (m *Meter) Claim(n int, _ time.Duration) { m.add(n, "claim") }

// Succeeded implements outbox.Metrics.
func (m *Meter) Succeeded(loop string) { m.add(1, "succeeded %s", loop) }

// RelayEvents implements outbox.Metrics.
func (m *Meter) RelayEvents(n int, _ time.Duration) { m.add(n, "events") }

// Published implements outbox.Metrics.
func (m *Meter) Published(stream string, n int, _ time.Duration) { m.add(n, "published %s", stream) }

// Duplicates implements outbox.Metrics.
func (m *Meter) Duplicates(stream string, n int) { m.add(n, "duplicates %s", stream) }

// PublishFailed implements outbox.Metrics.
func (m *Meter) PublishFailed(_ string, n int) { m.add(n, "publish_failed") }

// SetAside implements outbox.Metrics.
func (m *Meter) SetAside(kind string, n int) { m.add(n, "set_aside %s", kind) }

// StreamLost implements outbox.Metrics.
func (m *Meter) StreamLost(stream string, jobs, events int) {
	m.add(1, "lost %s", stream)
	m.add(jobs, "rearmed jobs")
	m.add(events, "rearmed events")
}

// Backlog implements outbox.Metrics.
func (m *Meter) Backlog(_, _ string, _ int) {}

// Ready implements outbox.Metrics. The last number is the count.
func (m *Meter) Ready(gateway, lane string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts = map[string]int{}
	}
	m.counts["ready "+gateway+" "+lane] = n
}

// Untraced is a Tracer that traces nothing.
type Untraced struct{}

var _ consumer.Tracer = Untraced{}

// Poll implements consumer.Tracer.
func (Untraced) Poll(ctx context.Context, _ consumer.Origin, _, _ string, _ payment.ID) (context.Context, func(error)) {
	return ctx, func(error) {}
}

// Call implements consumer.Tracer.
func (Untraced) Call(ctx context.Context, _ string) (context.Context, func(gateway.Answer)) {
	return ctx, func(gateway.Answer) {}
}

// TraceParent implements consumer.Tracer.
func (Untraced) TraceParent(_ context.Context, fallback string) string { return fallback }
