package consumer_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/consumer"
	"pollux/internal/consumer/consumertest"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
)

// scribe is a tracer that notes where deliveries came from. It traces nothing.
type scribe struct {
	consumertest.Untraced
	mu      sync.Mutex
	origins []consumer.Origin
}

func (s *scribe) Poll(ctx context.Context, from consumer.Origin, subject, gateway string, id payment.ID) (context.Context, func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.origins = append(s.origins, from)
	return s.Untraced.Poll(ctx, from, subject, gateway, id)
}

const (
	callers = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	relays  = "00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-01"
)

func TestADeliverySaysWhetherItIsTheFirstOfItsMessage(t *testing.T) {
	failsOnce := func(_ context.Context, _ gateway.Query, n int) gateway.Answer {
		if n == 1 {
			return gateway.Answer{Class: gateway.Transport}
		}
		return consumertest.Final(payment.Succeeded)
	}
	always := func(context.Context, gateway.Query, int) gateway.Answer { return consumertest.Final(payment.Succeeded) }
	for name, c := range map[string]struct {
		answer   func(context.Context, gateway.Query, int) gateway.Answer
		carried  string
		revision int64
		open     bool // the breaker, for a while
		want     []consumer.Origin
	}{
		"first, of a relay that traces":         {answer: always, carried: relays, want: []consumer.Origin{{TraceParent: relays}}},
		"first, of one that does not":           {answer: always, carried: callers, want: []consumer.Origin{{TraceParent: callers}}},
		"first, with nothing in the message":    {answer: always, want: []consumer.Origin{{TraceParent: callers}}},
		"after a hold":                          {answer: failsOnce, carried: relays, want: []consumer.Origin{{TraceParent: relays}, {TraceParent: relays, Later: true}}},
		"after a sleep, of a relay that traces": {answer: always, carried: relays, revision: 3, want: []consumer.Origin{{TraceParent: relays}}},
		"after a sleep, of one that does not":   {answer: always, carried: callers, revision: 3, want: []consumer.Origin{{TraceParent: callers, Later: true}}},
		"after a deferral":                      {answer: always, carried: relays, open: true, want: []consumer.Origin{{TraceParent: callers, Later: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, c.answer)
				d := &door{open: c.open}
				notes := &scribe{}
				s.gate, s.tracer = d, notes
				id := s.record.Track(payment.Payment{Gateway: acme, Lane: normal, Class: "standard", Reference: "ref", AmountMinor: 100, Currency: "EUR", TraceParent: callers}, 0)
				s.record.Change(id, func(p *consumertest.Payment) { p.Job.Revision = c.revision })
				p := s.record.Lease(id, lease)
				s.broker.Put(outbox.Message{Subject: message.PollSubject(acme, normal), ID: p.Token, Body: message.EncodePoll(p), TraceParent: c.carried})
				sleepers, w := s.sleepers(), s.start()
				pass(time.Second)
				d.set(false, 0)
				pass(time.Minute)
				w.stop()
				sleepers.stop()
				if diff := cmp.Diff(c.want, slices.Compact(notes.origins)); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}
