package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pollux/internal/message"
	"pollux/internal/outbox"
)

var longAgo = time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.UTC)

// looks returns a stream as it is.
func looks(created time.Time, last uint64) outbox.Look {
	return func(_ context.Context, name string, _ outbox.Mark) (outbox.StreamState, error) {
		return outbox.StreamState{Name: name, Created: created, LastSequence: last}, nil
	}
}

func (r *record) observe(tb testing.TB, name string, created time.Time, last uint64) outbox.Recovery {
	tb.Helper()
	found, err := r.relay.Observe(tb.Context(), name, looks(created, last))
	if err != nil {
		tb.Fatal(err)
	}
	return found
}

func (r *record) states(tb testing.TB) string {
	tb.Helper()
	return query[string](tb, r, `select string_agg(state, ' ' order by payment_id) from pollux.poll_jobs`)
}

// out tracks five payments whose jobs are in each of the states, in this order: scheduled, in_flight, held, deferred, dead.
func (r *record) out(tb testing.TB) {
	tb.Helper()
	r.track(tb, "p", 5)
	r.exec(tb, `update pollux.poll_jobs set lock_token = gen_random_uuid(), locked_until = now() + interval '1 hour', locked_by = 'me',
		state = (array['in_flight', 'held', 'deferred'])[payment_id - 1] where payment_id between 2 and 4`)
	r.exec(tb, `update pollux.poll_jobs set state = 'dead' where payment_id = 5`)
	r.exec(tb, `select pollux.bury(5, 'attempts', '', 0::smallint, '', '', '', '', '', null)`)
	r.exec(tb, `update pollux.poll_jobs set next_poll_at = now() + interval '1 hour' where payment_id in (1, 3)`)
}

func TestAStreamThatGrowsHasLostNothing(t *testing.T) {
	r := newRecord(t)
	r.out(t)
	for _, last := range []uint64{0, 0, 5, 5, 1_000_000} {
		if found := r.observe(t, message.StreamPoll, longAgo, last); found != (outbox.Recovery{}) {
			t.Errorf("last %d: %+v", last, found)
		}
	}
	if got := r.states(t); got != "scheduled in_flight held deferred dead" {
		t.Error(got)
	}
}

func TestALostStreamMakesItsJobsDueAtTheirTime(t *testing.T) {
	for name, last := range map[string]struct {
		created time.Time
		last    uint64
	}{
		"recreated":          {longAgo.Add(time.Hour), 0},
		"recreated and full": {longAgo.Add(time.Microsecond), 500},
		"truncated":          {longAgo, 99},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecord(t)
			r.out(t)
			r.observe(t, message.StreamPoll, longAgo, 100)
			r.observe(t, message.StreamDeferred, longAgo, 100)
			if found := r.observe(t, message.StreamPoll, last.created, last.last); found != (outbox.Recovery{Lost: true, Jobs: 2}) {
				t.Errorf("polls: %+v", found)
			}
			if got := r.states(t); got != "scheduled scheduled scheduled deferred dead" {
				t.Error(got)
			}
			if found := r.observe(t, message.StreamDeferred, last.created, last.last); found != (outbox.Recovery{Lost: true, Jobs: 1}) {
				t.Errorf("deferred: %+v", found)
			}
			if got := r.states(t); got != "scheduled scheduled scheduled scheduled dead" {
				t.Error(got)
			}
			jobs := r.claim(t, 10, time.Minute)
			if ids := paymentsOf(jobs); len(ids) != 2 || ids[0] != 2 || ids[1] != 4 { // 3 was held for an hour, and still is not due
				t.Errorf("claimed %v", ids)
			}
			if found := r.observe(t, message.StreamPoll, last.created, last.last+1); found.Lost {
				t.Error("the loss is seen twice")
			}
			if at := query[bool](t, r, `select bool_and(lost_at is not null) from pollux.streams`); !at {
				t.Error("nobody can see when it was lost")
			}
			requireSound(t, r)
		})
	}
}

func TestALostStreamMakesItsEventsPublishable(t *testing.T) {
	for name, c := range map[string]struct {
		created time.Time
		last    uint64
		lost    int
	}{
		"recreated":                        {longAgo.Add(time.Hour), 0, 10},
		"recreated, with others' messages": {longAgo.Add(time.Hour), 20, 10},
		"truncated":                        {longAgo, 7*reserve + 1, 4}, // the last of them may have been given anew by others
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecord(t)
			ids := r.finish(t, "p", 10)
			var b broker
			r.publish(t, 100, time.Second, &b)
			r.exec(t, `update pollux.outbox set stream_seq = stream_seq * $1`, reserve)
			r.observe(t, message.StreamEvents, longAgo, 10*reserve)
			r.observe(t, message.StreamDead, longAgo, 10*reserve)
			if found := r.observe(t, message.StreamDead, c.created, c.last); found.Events != 0 {
				t.Errorf("%d events of another stream are published again", found.Events)
			}
			if found := r.observe(t, message.StreamEvents, c.created, c.last); found != (outbox.Recovery{Lost: true, Events: c.lost}) {
				t.Errorf("%+v", found)
			}
			b.stored, b.last = nil, c.last
			if n := r.publish(t, 100, time.Second, &b); n != c.lost {
				t.Errorf("%d events are published again", n)
			}
			for i, id := range ids[10-c.lost:] {
				if b.stored[i] != id {
					t.Errorf("%s is published as %s", id, b.stored[i])
				}
			}
		})
	}
}

// disk is what a broker has of the stream of events. It knows what it has, and can lose the end of it.
type disk struct {
	mu   sync.Mutex
	made time.Time
	ids  []string
}

func (d *disk) publish(_ context.Context, events []outbox.Event) []outbox.Receipt {
	d.mu.Lock()
	defer d.mu.Unlock()
	receipts := make([]outbox.Receipt, len(events))
	for i, e := range events {
		at := slices.Index(d.ids, e.ID)
		receipts[i] = outbox.Receipt{Stream: message.StreamEvents, Duplicate: at >= 0}
		if at < 0 {
			at, d.ids = len(d.ids), append(d.ids, e.ID)
		}
		receipts[i].Sequence = uint64(at + 1)
	}
	return receipts
}

func (d *disk) lose(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ids = d.ids[:max(len(d.ids)-n, 0)]
}

func (d *disk) look(_ context.Context, name string, _ outbox.Mark) (outbox.StreamState, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return outbox.StreamState{Name: name, Created: d.made, LastSequence: uint64(len(d.ids))}, nil
}

// relayAll publishes until there is nothing left, and returns how many losses were seen.
func (d *disk) relayAll(tb testing.TB, relay *Relay, batch int) (losses int) {
	tb.Helper()
	for {
		n, err := relay.PublishEvents(tb.Context(), batch, 0, d.publish)
		if _, lost := errors.AsType[*outbox.LostError](err); lost {
			losses++
		} else if err != nil {
			tb.Fatal(err)
		}
		if n == 0 {
			return losses
		}
	}
}

func (r *record) look(tb testing.TB, d *disk) outbox.Recovery {
	tb.Helper()
	found, err := r.relay.Observe(tb.Context(), message.StreamEvents, d.look)
	if err != nil {
		tb.Fatal(err)
	}
	return found
}

// A broker that was without power publishes on at once, and has given more sequences than it lost before anybody looks.
func TestWhatAStreamLostIsPublishedAgainHoweverSoonItGrows(t *testing.T) {
	for name, c := range map[string]struct{ lost, more int }{
		"by less than it lost": {20, 5}, "by as much": {20, 20}, "by more": {20, 60}, "and has lost all": {40, 100}, "and has lost one": {1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecord(t)
			d := &disk{made: longAgo}
			r.look(t, d)
			ids := r.finish(t, "p", 40) // and nobody looks any more
			d.relayAll(t, r.relay, 7)
			d.lose(c.lost)
			ids = append(ids, r.finish(t, "more", c.more)...)
			if losses := d.relayAll(t, r.relay, 1000); losses != 1 {
				t.Errorf("the loss was seen %d times", losses)
			}
			slices.Sort(d.ids)
			slices.Sort(ids)
			if !slices.Equal(d.ids, ids) {
				t.Errorf("the stream has %d of %d events", len(d.ids), len(ids))
			}
			if found := r.look(t, d); found.Lost {
				t.Error("the loss is seen again")
			}
			if at := query[bool](t, r, `select bool_and(lost_at is not null) from pollux.streams`); !at {
				t.Error("nobody can see when it was lost")
			}
		})
	}
}

// The loss is seen although all that is left is what the last look saw.
func TestALossSinceTheLastLookIsSeenByTheRelayThatWasGivenMore(t *testing.T) {
	r := newRecord(t)
	d := &disk{made: longAgo}
	ids := r.finish(t, "p", 10)
	d.relayAll(t, r.relay, 10)
	r.look(t, d)
	ids = append(ids, r.finish(t, "more", 5)...)
	d.relayAll(t, r.relay, 10)
	d.lose(5)
	if found := r.look(t, d); !found.Lost {
		t.Error("the loss is not seen")
	}
	d.relayAll(t, r.relay, 10)
	if !slices.Equal(d.ids, ids) {
		t.Errorf("the stream has %d of %d events", len(d.ids), len(ids))
	}
}

// A version of a row for each batch would make every batch slow as soon as some transaction anywhere is left open.
func TestPublishingLeavesNoDeadVersionsOfStreams(t *testing.T) {
	r := newRecord(t)
	d := &disk{made: longAgo}
	r.look(t, d)
	version := func() string {
		return query[string](t, r, `select string_agg(ctid || ' ' || xmin, ',' order by name) from pollux.streams`)
	}
	before := version()
	r.finish(t, "p", 20)
	d.relayAll(t, r.relay, 2)
	if after := version(); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

// What the broker acknowledged and lost before it was marked is as lost as all else.
func TestReceiptsOfBeforeALossAreWorthNothing(t *testing.T) {
	for name, lose := range map[string]func(*disk){
		"everything": func(d *disk) { d.ids, d.made = nil, longAgo.Add(time.Hour) },
		"its end":    func(d *disk) { d.lose(7) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecord(t)
			other := openRecord(t, r.url)
			d := &disk{made: longAgo}
			ids := r.finish(t, "before", 5)
			d.relayAll(t, r.relay, 10)
			r.look(t, d)
			ids = append(ids, r.finish(t, "p", 5)...)
			_, err := r.relay.PublishEvents(t.Context(), 10, time.Second, func(ctx context.Context, events []outbox.Event) []outbox.Receipt {
				receipts := d.publish(ctx, events)
				lose(d)
				if found := other.look(t, d); !found.Lost {
					t.Error("the other relay sees no loss")
				}
				return receipts
			})
			if err == nil {
				t.Error("the receipts count")
			}
			d.relayAll(t, r.relay, 10)
			slices.Sort(d.ids)
			slices.Sort(ids)
			if !slices.Equal(d.ids, ids) {
				t.Errorf("the stream has %v of %v", d.ids, ids)
			}
		})
	}
}

func TestRelaysSideBySideSeeNoLossWhereThereIsNone(t *testing.T) {
	r := newRecord(t)
	d := &disk{made: longAgo}
	r.look(t, d)
	ids := r.finish(t, "p", 3000)
	var wg sync.WaitGroup
	for range 4 {
		relay := openRecord(t, r.url).relay
		wg.Go(func() {
			for {
				n, err := relay.PublishEvents(t.Context(), 20, time.Second, d.publish)
				if err != nil {
					t.Error(err)
				}
				if n == 0 || err != nil {
					return
				}
				if _, err := relay.Observe(t.Context(), message.StreamEvents, d.look); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(d.ids) != len(ids) || query[bool](t, r, `select bool_or(lost_at is not null) from pollux.streams`) {
		t.Errorf("%d of %d events are published, and a loss was seen", len(d.ids), len(ids))
	}
}

func TestRelaysThatSeeTheSameLossPutItRightOnce(t *testing.T) {
	r := newRecord(t)
	r.out(t)
	r.observe(t, message.StreamPoll, longAgo, 100)
	var mu sync.Mutex
	var lost, looking int
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			found, err := r.relay.Observe(t.Context(), message.StreamPoll, func(context.Context, string, outbox.Mark) (outbox.StreamState, error) {
				mu.Lock()
				looking++
				if looking != 1 {
					t.Error("two look at once: one could compare an old look with a newer memory")
				}
				mu.Unlock()
				query[int](t, r, `select 1`)
				mu.Lock()
				looking--
				mu.Unlock()
				return outbox.StreamState{Name: message.StreamPoll, Created: longAgo.Add(time.Hour), LastSequence: 1}, nil
			})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if found.Lost {
				lost++
			}
		})
	}
	wg.Wait()
	if lost != 1 {
		t.Errorf("%d relays put it right", lost)
	}
}

func TestALookThatFailsIsNotRemembered(t *testing.T) {
	r := newRecord(t)
	away := errors.New("no answer")
	fails := func(context.Context, string, outbox.Mark) (outbox.StreamState, error) {
		return outbox.StreamState{}, away
	}
	for _, last := range []uint64{10, 20} {
		if _, err := r.relay.Observe(t.Context(), message.StreamEvents, fails); !errors.Is(err, away) {
			t.Fatal(err)
		}
		if found := r.observe(t, message.StreamEvents, longAgo, last); found.Lost {
			t.Error("a look that failed counts as a loss")
		}
	}
}

// Consumers write while a million leases are ended: neither side may fail for the other.
func TestALossIsPutRightWhileConsumersWrite(t *testing.T) {
	r := newRecord(t)
	for round := range 10 {
		r.track(t, fmt.Sprintf("p%d-", round), 300)
		jobs := r.claim(t, 1000, time.Minute)
		rows := r.read(t, jobs)
		r.observe(t, message.StreamPoll, longAgo.Add(time.Duration(round)*time.Hour), 100)
		var wg sync.WaitGroup
		wg.Go(func() { r.observe(t, message.StreamPoll, longAgo, uint64(round)) })
		for at := 0; at < len(jobs); at += 100 {
			wg.Go(func() {
				end := min(at+100, len(jobs))
				if _, err := r.jobs.Write(t.Context(), mixed(jobs[at:end], rows[at:end]), "worker", time.Minute); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		requireSound(t, r)
	}
}
