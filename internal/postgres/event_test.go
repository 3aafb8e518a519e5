package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pollux/internal/outbox"
)

// finish makes n payments final and returns their event ids in the order of their events.
func (r *record) finish(tb testing.TB, prefix string, n int) []string {
	tb.Helper()
	r.track(tb, prefix, n)
	r.exec(tb, `update pollux.payments set status = 'succeeded', status_source = 'poll' where status = 'pending'`)
	return r.eventIDs(tb, `reference like '`+prefix+`%'`)
}

func (r *record) eventIDs(tb testing.TB, where string) []string {
	tb.Helper()
	joined := query[string](tb, r, `select coalesce(string_agg(event_id, ' ' order by seq), '') from pollux.outbox o left join pollux.payments p on p.id = o.payment_id where `+where)
	return strings.Fields(joined)
}

func (r *record) unpublished(tb testing.TB) int {
	tb.Helper()
	return query[int](tb, r, `select count(*) from pollux.outbox where published_at is null`)
}

// broker stores events, or answers as it is told to.
type broker struct {
	mu     sync.Mutex
	stored []string
	last   uint64 // the sequence that it gave last
	answer func(e outbox.Event) error
}

func (b *broker) publish(_ context.Context, events []outbox.Event) []outbox.Receipt {
	b.mu.Lock()
	defer b.mu.Unlock()
	receipts := make([]outbox.Receipt, len(events))
	for i, e := range events {
		if b.answer != nil {
			receipts[i].Err = b.answer(e)
		}
		if receipts[i].Err == nil {
			b.stored = append(b.stored, e.ID)
			b.last++
			receipts[i].Stream, receipts[i].Sequence = "PAYMENTS_EVENTS", b.last
		}
	}
	return receipts
}

func (r *record) publish(tb testing.TB, n int, retry time.Duration, b *broker) int {
	tb.Helper()
	took, err := r.relay.PublishEvents(tb.Context(), n, retry, b.publish)
	if err != nil {
		tb.Fatal(err)
	}
	return took
}

func TestEventsArePublishedOnceAndInOrder(t *testing.T) {
	r := newRecord(t)
	var b broker
	if n := r.publish(t, 10, time.Second, &b); n != 0 {
		t.Fatalf("%d events of nothing", n)
	}
	ids := r.finish(t, "p", 25)
	for _, want := range []int{10, 10, 5, 0} {
		if n := r.publish(t, 10, time.Second, &b); n != want {
			t.Fatalf("%d events, not %d", n, want)
		}
	}
	if !slices.Equal(b.stored, ids) {
		t.Errorf("published %v, not %v", b.stored, ids)
	}
	if got := query[string](t, r, `select concat_ws(' ', count(*), min(stream_seq), max(stream_seq), min(stream), min(tries)) from pollux.outbox where published_at is not null`); got != "25 1 25 PAYMENTS_EVENTS 1" {
		t.Error(got)
	}
}

func TestAnEventCarriesItsRow(t *testing.T) {
	r := newRecord(t)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	query[int64](t, r, `select pollux.track_payment('sim', 'r', 1, 'EUR', traceparent => $1)`, trace)
	r.exec(t, `update pollux.payments set status = 'failed', status_source = 'poll'`)
	r.exec(t, `update pollux.outbox set created_at = created_at - interval '1 minute'`)
	_, err := r.relay.PublishEvents(t.Context(), 10, time.Second, func(ctx context.Context, events []outbox.Event) []outbox.Receipt {
		e := events[0]
		body := query[string](t, r, `select body from pollux.outbox`)
		if e.ID != "1-1-failed" || e.Subject != "payments.resolved.sim.failed" || e.TraceParent != trace || string(e.Body) != body || e.Lag < time.Minute || e.Lag > 2*time.Minute {
			t.Errorf("%+v", e)
		}
		return stored(ctx, events)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRelaysNeverPublishTheSameEvent(t *testing.T) {
	r := newRecord(t)
	ids := r.finish(t, "p", 2000)
	var b broker
	var wg sync.WaitGroup
	for range 4 {
		relay := NewRelay(r.pool, time.Hour, time.Hour)
		wg.Go(func() {
			for range 200 {
				if _, err := relay.PublishEvents(t.Context(), 50, time.Second, b.publish); err != nil {
					t.Error(err)
				}
				b.mu.Lock()
				done := len(b.stored) >= len(ids)
				b.mu.Unlock()
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(b.stored)
	slices.Sort(ids)
	if !slices.Equal(b.stored, ids) {
		t.Errorf("%d events were published of %d", len(b.stored), len(ids))
	}
}

func TestARelayThatDiesLeavesItsEventsUnpublished(t *testing.T) {
	r := newRecord(t)
	ids := r.finish(t, "p", 5)
	dying := openRecord(t, r.url)
	dying.relay.events.reached(struct{}{}, time.Now().Add(time.Hour)) // so that it finds the events with a sweep
	_, err := dying.relay.PublishEvents(t.Context(), 10, time.Second, func(ctx context.Context, events []outbox.Event) []outbox.Receipt {
		if n := r.publish(t, 10, time.Second, &broker{}); n != 0 {
			t.Errorf("another relay takes %d of the same events", n)
		}
		n := query[int](t, r, `
			select count(pg_terminate_backend(pid)) from pg_stat_activity
			where datname = current_database() and state = 'idle in transaction'`)
		if n != 1 {
			t.Errorf("%d connections were killed", n)
		}
		return stored(ctx, events)
	})
	if err == nil {
		t.Fatal("publishing succeeded on a connection that was killed")
	}
	if n := r.unpublished(t); n != 5 {
		t.Fatalf("%d events are unpublished", n)
	}
	var b broker
	if n := dying.publish(t, 10, time.Second, &b); n != 5 || !slices.Equal(b.stored, ids) {
		t.Errorf("the same relay publishes %v", b.stored)
	}
	r.exec(t, `update pollux.outbox set published_at = null, stream = null, stream_seq = null`)
	b.stored = nil
	eventually(t, "another relay publishes them, with its next sweep at the latest", func() bool { return r.publish(t, 10, time.Second, &b) > 0 })
	if !slices.Equal(b.stored, ids) {
		t.Errorf("another relay publishes %v", b.stored)
	}
}

func TestAnEventThatIsRefusedIsSetAsideAndTheRestFlows(t *testing.T) {
	r := newRecord(t)
	ids := r.finish(t, "p", 5)
	b := broker{answer: func(e outbox.Event) error {
		if e.ID == ids[1] {
			return fmt.Errorf("publishing: %w", &outbox.Refusal{Reason: "the body is \x00 too large"})
		}
		return nil
	}}
	r.publish(t, 10, 0, &b)
	r.relay.events.forget()
	if n := r.publish(t, 10, 0, &b); n != 0 {
		t.Errorf("%d events are tried again", n)
	}
	if want := slices.Delete(slices.Clone(ids), 1, 2); !slices.Equal(b.stored, want) {
		t.Errorf("published %v, not %v", b.stored, want)
	}
	if got := query[string](t, r, `select concat_ws(' ', event_id, set_aside, published_at) from pollux.outbox where set_aside is not null`); got != ids[1]+" the body is   too large" {
		t.Error(got)
	}
}

func TestAnEventThatFailsIsTriedLaterAndHoldsNothingUp(t *testing.T) {
	r := newRecord(t)
	ids := r.finish(t, "first", 3)
	failing := ids[0]
	b := broker{answer: func(e outbox.Event) error {
		if e.ID == failing {
			return errors.New("no answer")
		}
		return nil
	}}
	r.publish(t, 10, time.Hour, &b)
	later := r.finish(t, "second", 3)
	r.publish(t, 1, time.Hour, &b)
	r.publish(t, 10, time.Hour, &b)
	if want := append(slices.Clone(ids[1:]), later...); !slices.Equal(b.stored, want) {
		t.Errorf("published %v, not %v", b.stored, want)
	}
	if got := query[string](t, r, `select concat_ws(' ', event_id, tries, publish_at - now() > interval '59 minutes') from pollux.outbox where published_at is null`); got != failing+" 1 t" {
		t.Error(got)
	}
	r.exec(t, `update pollux.outbox set publish_at = now() + interval '20 milliseconds' where published_at is null`)
	b.answer = nil
	eventually(t, "its time comes", func() bool { return r.publish(t, 10, time.Hour, &b) == 1 })
	if got := b.stored[len(b.stored)-1]; got != failing {
		t.Errorf("published %s", got)
	}
}

// Failing events lie behind their time in the index: what is fresh does not have to be looked for among them.
func TestAFreshEventIsFoundBehindManyThatFailed(t *testing.T) {
	r := newRecord(t)
	r.finish(t, "failed", 5000)
	b := broker{answer: func(outbox.Event) error { return errors.New("no answer") }}
	for r.publish(t, 1000, time.Hour, &b) > 0 {
	}
	fresh := r.finish(t, "fresh", 1)
	relay, plans := explain(t, r.url, true)
	b.answer = nil
	if n := relay.publish(t, 10, time.Hour, &b); n != 1 || !slices.Equal(b.stored, fresh) {
		t.Fatalf("published %v", b.stored)
	}
	checkPlans(t, plans, true)
}
