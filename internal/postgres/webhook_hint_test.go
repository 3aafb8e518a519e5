package postgres

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
	"pollux/internal/webhook"
)

func (r *record) nudge(tb testing.TB, references ...string) bool {
	tb.Helper()
	ok, err := r.webhooks().Nudge(tb.Context(), webhook.Rumour{Gateway: "sim", References: references, Rest: time.Minute})
	if err != nil {
		tb.Fatal(err)
	}
	return ok
}

// A rumour moves the time of a sleeping poll, and nothing else that there is.
func TestARumourChangesNothingButWhenAPollIsDue(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 6)
	d, a := stillPending(redelivery.Park, time.Hour)
	limited, later := a, a
	limited.Class, later.RetryAfter = gateway.RateLimited, time.Hour
	held, _ := stillPending(redelivery.Hold, 20*time.Second)
	r.write(t, result(jobs[0], rows[0], d, a), result(jobs[1], rows[1], d, limited), result(jobs[2], rows[2], held, a), result(jobs[5], rows[5], d, later))
	r.die(t, jobs[3], rows[3], redelivery.ReasonAttempts) // and the poll of the fifth is under way
	r.track(t, "final", 1)
	r.exec(t, `update pollux.payments set status = 'failed', status_source = 'poll' where reference = 'final0'`)
	all := func() string {
		return query[string](t, r, `
			select concat_ws(' ',
			  (select md5(string_agg(p::text, ' ' order by id)) from pollux.payments p),
			  (select md5(string_agg((to_jsonb(j) - '{next_poll_at,claimable_at,revision}'::text[])::text, ' ' order by payment_id)) from pollux.poll_jobs j),
			  (select md5(string_agg((next_poll_at, revision)::text, ' ' order by payment_id)) from pollux.poll_jobs j where payment_id <> $1),
			  (select count(*) from pollux.outbox), (select count(*) from pollux.dead_letters where state = 'open'), (select count(*) from pollux.webhook_events),
			  (select count(*) from pollux.poll_attempts))`, int64(jobs[0].Payment))
	}
	due := func() float64 {
		return query[float64](t, r, `select extract(epoch from next_poll_at - updated_at) from pollux.poll_jobs where payment_id = $1`, int64(jobs[0].Payment))
	}
	before := all()
	for _, reference := range []string{"p1", "p2", "p3", "p4", "p5", "final0", "unheard_of"} {
		if r.nudge(t, reference) {
			t.Errorf("%s is polled sooner", reference)
		}
	}
	if !r.nudge(t, "unheard_of", "p0", "p1") {
		t.Error("a sleeping poll is not due sooner")
	}
	if got := due(); got < 59.9 || got > 60.1 {
		t.Errorf("it is due %.1f s after the poll before", got)
	}
	for range 3 {
		if r.nudge(t, "p0") {
			t.Error("the next rumour makes it due sooner still")
		}
	}
	if after := all(); after != before {
		t.Errorf("before %s\nafter  %s", before, after)
	}
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now() + interval '1 hour', updated_at = now() - interval '2 minutes' where payment_id = $1`, int64(jobs[0].Payment))
	if !r.nudge(t, "p0") || r.nudge(t, "p0") {
		t.Error("a poll that rested is not due now, once")
	}
	if ok, err := r.webhooks().Nudge(t.Context(), webhook.Rumour{Gateway: "sim", Account: "eu", References: []string{"p0"}}); ok || err != nil {
		t.Errorf("another account's: %t %v", ok, err)
	}
	requireSound(t, r)
}

// meet looks at the newest payments as a receiver does, and then at what is due.
func (r *record) meet(tb testing.TB, after int64) (webhook.Sighting, []webhook.Verdict) {
	tb.Helper()
	seen, err := r.webhooks().Meet(tb.Context(), after, 10_000)
	if err != nil {
		tb.Fatal(err)
	}
	verdicts, err := r.webhooks().LookAgain(tb.Context(), 100, time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	return seen, verdicts
}

func (r *record) postpone(tb testing.TB) {
	tb.Helper()
	r.exec(tb, `update pollux.webhook_events set look_at = now() + interval '30 minutes' where decision = 'waiting'`)
}

func TestANoticeThatHasWaitedLongMeetsItsPaymentAtOnce(t *testing.T) {
	r := newRecord(t)
	several := arrival("e2", "capture_1", payment.Failed)
	several.References = []string{"capture_1", "p1", "p1"}
	r.became(t, []webhook.Arrival{arrival("e1", "p0", payment.Succeeded), several, arrival("e3", "never", payment.Succeeded)}, webhook.Waiting, webhook.Waiting, webhook.Waiting)
	r.postpone(t)
	seen, verdicts := r.meet(t, 0)
	if seen.Last != 0 || seen.Oldest <= 0 || seen.Next < seen.Oldest || len(verdicts) != 0 {
		t.Errorf("before there is a payment: %+v %v", seen, verdicts)
	}
	r.exec(t, `select pollux.track_payment('other', 'p0', 1999, 'EUR'), pollux.track_payment('sim', 'p0', 1999, 'EUR', account => 'eu')`)
	if _, verdicts := r.meet(t, 0); len(verdicts) != 0 {
		t.Errorf("others' payments: %v", verdicts)
	}
	ids := r.track(t, "p", 2)
	if seen, verdicts := r.meet(t, int64(ids[1])); len(verdicts) != 0 || seen.Last != int64(ids[1]) {
		t.Errorf("payments that were seen before: %+v %v", seen, verdicts)
	}
	if _, verdicts := r.meet(t, int64(ids[0])-1); len(verdicts) != 2 || verdicts[0].Decision != webhook.Applied || verdicts[1].Decision != webhook.Applied {
		t.Errorf("%v", verdicts)
	}
	if got := query[string](t, r, `select string_agg(reference, ' ') from pollux.webhook_waiting`); got != "never" {
		t.Errorf("still waited for: %s", got)
	}
	r.exec(t, `update pollux.webhook_events set received_at = now() - interval '3 days'`)
	if _, err := r.webhooks().Forget(t.Context(), 48*time.Hour, 10); err != nil || query[int](t, r, `select count(*) from pollux.webhook_waiting`) != 0 {
		t.Errorf("what is forgotten is waited for: %v", err)
	}
	requireSound(t, r)
}

// A payment whose transaction was long open appears behind newer ones; its notice finds it all the same when it does.
func TestAPaymentThatIsCommittedBehindNewerOnesIsMet(t *testing.T) {
	r := newRecord(t)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var old int64
	if err := tx.QueryRow(t.Context(), `select pollux.track_payment('sim', 'old', 1999, 'EUR')`).Scan(&old); err != nil {
		t.Fatal(err)
	}
	r.became(t, []webhook.Arrival{arrival("e1", "old", payment.Succeeded)}, webhook.Waiting)
	r.postpone(t)
	w := webhook.NewWatch(webhook.WatchConfig{Reach: 10_000}, r.webhooks(), nil, nil)
	for i := range 6 { // newer ones are seen, again and again
		r.track(t, fmt.Sprint("new", i), 3)
		if err := w.Meet(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if due := query[bool](t, r, `select look_at <= now() from pollux.webhook_events where event_id = 'e1'`); due {
		t.Fatal("it met a payment that is not committed")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Meet(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, verdicts := r.meet(t, 1<<40); len(verdicts) != 1 || verdicts[0].Decision != webhook.Applied || verdicts[0].Payment != payment.ID(old) {
		t.Errorf("%v", verdicts)
	}
}

// A notice that somebody judges at this moment is not waited for.
func TestMeetingWaitsForNobody(t *testing.T) {
	r := newRecord(t)
	r.became(t, []webhook.Arrival{arrival("e1", "p0", payment.Succeeded)}, webhook.Waiting)
	r.postpone(t)
	r.track(t, "p", 1)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(t.Context()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
	}()
	if _, err := tx.Exec(t.Context(), `select from pollux.webhook_events for update`); err != nil {
		t.Fatal(err)
	}
	if _, verdicts := r.meet(t, 0); len(verdicts) != 0 {
		t.Errorf("%v", verdicts)
	}
}

// With 100,000 notices that wait and a million payments, a look reads the new payments and what waits for them.
func TestMeetingReadsNewPaymentsOnly(t *testing.T) {
	r := newRecord(t)
	for _, table := range []string{"payments", "poll_jobs", "webhook_events", "webhook_waiting"} {
		r.exec(t, `alter table pollux.`+table+` set (autovacuum_enabled = off)`)
	}
	receiver, plans := explain(t, r.url, true)
	w := NewWebhooks(receiver.pool, "webhook-1")
	round, reached := 0, int64(0)
	look := func(t *testing.T) {
		round++
		prefix := fmt.Sprintf("round%d-", round)
		r.take(t, arrival(prefix+"e", prefix+"7", payment.Succeeded))
		r.postpone(t)
		ids := r.track(t, prefix, hotBatch)
		seen, err := w.Meet(t.Context(), max(reached, int64(slices.Min(ids))-1), 10_000)
		if err != nil || seen.Last != int64(slices.Max(ids)) {
			t.Fatalf("%+v %v", seen, err)
		}
		reached = seen.Last
		if n := query[int](t, r, `select count(*) from pollux.webhook_events where look_at <= now()`); n != 1 {
			t.Fatalf("%d notices met their payment", n)
		}
		if _, err := w.Nudge(t.Context(), webhook.Rumour{Gateway: "sim", References: []string{"nobody", prefix + "3"}}); err != nil {
			t.Fatal(err)
		}
		pages := 0.0
		for _, p := range plans.take() {
			checkPlan(t, p, true)
			pages += p.Plan.Hit + p.Plan.Read
		}
		if pages == 0 || pages > 20*hotBatch {
			t.Errorf("%.0f pages were read for %d payments", pages, hotBatch)
		}
	}
	t.Run("empty", func(t *testing.T) {
		for range 7 {
			look(t)
		}
	})
	r.exec(t, `insert into pollux.webhook_events (gateway, event_id, refs, effect, digest, decision, look_at)
		select 'sim', 'kept' || i, array['stranger' || i], 'hint', sha256('x'), 'waiting', now() + interval '30 minutes' from generate_series(1, 100000) i`)
	conn, err := pgx.Connect(t.Context(), r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, sql := range []string{`set session_replication_role = replica`, // without the triggers
		`insert into pollux.payments (gateway, reference, amount_minor, currency) select 'sim', 'sleeping' || i, 100, 'EUR' from generate_series(1, 1000000) i`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("plans made while empty", look)
	receiver, plans = explain(t, r.url, true)
	w = NewWebhooks(receiver.pool, "webhook-1")
	t.Run("never analyzed", look)
	r.exec(t, `analyze pollux.payments, pollux.webhook_events, pollux.webhook_waiting`)
	t.Run("analyzed", look)
}

// BenchmarkMeeting looks at the newest payments while 100,000 notices wait for others.
func BenchmarkMeeting(b *testing.B) {
	for _, fresh := range []int{0, 100, 1000, 10_000} {
		b.Run(fmt.Sprintf("%d new payments", fresh), func(b *testing.B) {
			r := newRecord(b)
			ids := r.track(b, "p", 10_001)
			r.exec(b, `insert into pollux.webhook_events (gateway, event_id, refs, effect, digest, decision, look_at)
				select 'sim', 'kept' || i, array['stranger' || i], 'hint', sha256('x'), 'waiting', now() + interval '30 minutes' from generate_series(1, 100000) i`)
			w := NewWebhooks(open(b, Options{URL: r.url, MaxConns: 1, Name: "meeting", Indexed: true}), "webhook-1")
			b.ResetTimer()
			for range b.N {
				if _, err := w.Meet(b.Context(), int64(slices.Max(ids))-int64(fresh), 10_000); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
