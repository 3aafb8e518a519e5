package consumertest

import (
	"context"
	"slices"
	"sync"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/payment"
)

// Call is one call to a gateway.
type Call struct {
	gateway.Query
	Began time.Time
	Ended time.Time // zero while it goes on
}

// Gateway is a gateway whose answers are told. It is safe for concurrent use.
type Gateway struct {
	// Answer answers the n-th call about a payment, n from 1. It may wait, with Wait.
	Answer func(ctx context.Context, q gateway.Query, n int) gateway.Answer

	mu      sync.Mutex
	calls   []*Call
	times   map[payment.ID]int
	now     int
	most    int
	current map[payment.ID]int
	twice   int
}

var _ consumer.Gateway = (*Gateway)(nil)

// NewGateway returns a gateway.
func NewGateway(answer func(ctx context.Context, q gateway.Query, n int) gateway.Answer) *Gateway {
	return &Gateway{Answer: answer, times: map[payment.ID]int{}, current: map[payment.ID]int{}}
}

// Poll implements consumer.Gateway.
func (g *Gateway) Poll(ctx context.Context, q gateway.Query) gateway.Answer {
	c, n := g.begin(q)
	defer g.end(c)
	a := g.Answer(ctx, q, n)
	a.Took = time.Since(c.Began)
	return a
}

func (g *Gateway) begin(q gateway.Query) (*Call, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &Call{Query: q, Began: time.Now()}
	g.calls = append(g.calls, c)
	g.times[q.Payment]++
	g.now++
	g.most = max(g.most, g.now)
	g.current[q.Payment]++
	if g.current[q.Payment] > 1 {
		g.twice++
	}
	return c, g.times[q.Payment]
}

func (g *Gateway) end(c *Call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.Ended = time.Now()
	g.now--
	g.current[c.Payment]--
}

// Calls returns all calls, in the order in which they began.
func (g *Gateway) Calls() []Call {
	g.mu.Lock()
	defer g.mu.Unlock()
	calls := make([]Call, len(g.calls))
	for i, c := range g.calls {
		calls[i] = *c
	}
	return calls
}

// Times returns how often a payment was asked about.
func (g *Gateway) Times(id payment.ID) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.times[id]
}

// Most returns how many calls there were at once, at the most.
func (g *Gateway) Most() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.most
}

// Overlaps returns how many calls began while another about the same payment went on.
func (g *Gateway) Overlaps() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.twice
}

// Wait lets d pass. It returns false when ctx ended before, as a call that is cut off.
func Wait(ctx context.Context, d time.Duration) bool { return pass(ctx, d) == nil }

// Final is the answer that ends a payment.
func Final(s payment.Status) gateway.Answer {
	return gateway.Answer{Class: gateway.Final, Status: s, HTTPStatus: 200, GatewayStatus: string(s)}
}

// Pending is the answer that a payment is not final yet.
func Pending() gateway.Answer {
	return gateway.Answer{Class: gateway.Pending, Status: payment.Pending, Detail: "processing", HTTPStatus: 200, GatewayStatus: "processing"}
}

// Script answers with each answer in turn and then with the last one.
func Script(answers ...gateway.Answer) func(context.Context, gateway.Query, int) gateway.Answer {
	answers = slices.Clone(answers)
	return func(_ context.Context, _ gateway.Query, n int) gateway.Answer { return answers[min(n, len(answers))-1] }
}
