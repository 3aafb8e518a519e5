package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/deadletter"
	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
	"pollux/internal/webhook"
)

func (r *record) webhooks() *Webhooks { return NewWebhooks(r.pool, "webhook-1") }

var happened = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// arrival is a notice about a payment of gateway sim with the amount that tests track.
func arrival(id, reference string, s payment.Status) webhook.Arrival {
	return webhook.Arrival{Gateway: "sim", Key: "current", Digest: sha256.Sum256([]byte(id)), Notice: webhook.Notice{
		ID: id, Kind: "payment.updated", References: []string{reference}, Effect: webhook.Report, Status: s, Detail: "said",
		Money: &webhook.Money{Minor: 1999, Currency: "EUR"}, OccurredAt: happened}}
}

func hint(id, reference string) webhook.Arrival {
	a := arrival(id, reference, "")
	a.Effect, a.Money = webhook.Hint, nil
	return a
}

func (r *record) take(tb testing.TB, arrivals ...webhook.Arrival) []webhook.Verdict {
	tb.Helper()
	verdicts, err := r.webhooks().Take(tb.Context(), arrivals)
	if err != nil {
		tb.Fatal(err)
	}
	return verdicts
}

// became checks what became of notices.
func (r *record) became(tb testing.TB, arrivals []webhook.Arrival, want ...webhook.Decision) []webhook.Verdict {
	tb.Helper()
	verdicts := r.take(tb, arrivals...)
	for i, v := range verdicts {
		if v.Decision != want[i] {
			tb.Errorf("notice %s became %s (%s), want %s", arrivals[i].ID, v.Decision, v.Why, want[i])
		}
	}
	return verdicts
}

func (r *record) status(tb testing.TB, id payment.ID) string {
	tb.Helper()
	return query[string](tb, r, `select concat_ws(' ', status, status_detail, status_source, revision) from pollux.payments where id = $1`, int64(id))
}

func (r *record) events(tb testing.TB, id payment.ID) string {
	tb.Helper()
	return query[string](tb, r, `select coalesce(string_agg(event_id || ' ' || subject, ', ' order by seq), '') from pollux.outbox where payment_id = $1`, int64(id))
}

func TestAWebhookFinishesItsPaymentWithItsEventAndItsJob(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 2)
	v := r.became(t, []webhook.Arrival{arrival("e1", "p0", payment.Succeeded)}, webhook.Applied)
	if v[0].Payment != ids[0] || v[0].Gateway != "sim" {
		t.Errorf("%+v", v[0])
	}
	if got := r.status(t, ids[0]); got != "succeeded said webhook 1" {
		t.Error(got)
	}
	if got := r.events(t, ids[0]); got != "1-1-succeeded payments.resolved.sim.succeeded" {
		t.Error(got)
	}
	if got := r.job(t, ids[0]); got != "none" {
		t.Errorf("its job is %s", got)
	}
	if jobs := r.claim(t, 10, time.Minute); len(jobs) != 1 || jobs[0].Payment != ids[1] {
		t.Errorf("claimed are %v", jobs)
	}
	requireSound(t, r)
}

func TestANoticeIsTakenOnce(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 1)
	first := arrival("e1", "p0", payment.Failed)
	r.became(t, []webhook.Arrival{first, first}, webhook.Applied, webhook.Duplicate)
	if v := r.became(t, []webhook.Arrival{first}, webhook.Duplicate); v[0].Payment != ids[0] || v[0].Altered {
		t.Errorf("%+v", v[0])
	}
	altered := arrival("e1", "p0", payment.Succeeded)
	altered.Digest[0]++
	if v := r.became(t, []webhook.Arrival{altered}, webhook.Duplicate); !v[0].Altered {
		t.Error("the same id with another body is nothing to look at")
	}
	if got := r.status(t, ids[0]); got != "failed said webhook 1" {
		t.Error(got)
	}
	if n := query[int](t, r, `select count(*) from pollux.webhook_events`); n != 1 {
		t.Errorf("%d notices are kept", n)
	}
	other := first
	other.Account = "eu" // the same id at another account is another event
	r.became(t, []webhook.Arrival{other}, webhook.Waiting)
}

func TestSeveralNoticesAboutOnePaymentAtOnceAreJudgedOneAfterTheOther(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 2)
	late := arrival("e3", "p0", payment.Succeeded)
	late.OccurredAt = happened.Add(time.Second)
	r.became(t, []webhook.Arrival{arrival("e1", "p0", payment.Pending), arrival("e2", "p0", payment.Failed), late, arrival("e4", "p1", payment.Expired)},
		webhook.Noted, webhook.Applied, webhook.LateSuccess, webhook.Applied)
	if got := r.status(t, ids[0]); got != "succeeded said webhook 2" {
		t.Error(got)
	}
	if got := r.events(t, ids[0]); got != "1-1-failed payments.resolved.sim.failed, 1-2-succeeded payments.late_success.sim" {
		t.Error(got)
	}
	requireSound(t, r)
}

func TestWhatContradictsAFinalStatusIsForAPerson(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 1)
	r.became(t, []webhook.Arrival{arrival("e1", "p0", payment.Succeeded)}, webhook.Applied)
	older, newer := arrival("e2", "p0", payment.Failed), arrival("e3", "p0", payment.Failed)
	older.OccurredAt, newer.OccurredAt = happened.Add(-time.Second), happened.Add(time.Second)
	r.became(t, []webhook.Arrival{older}, webhook.Stale)
	r.became(t, []webhook.Arrival{newer}, webhook.Conflicting)
	if got := r.status(t, ids[0]); got != "succeeded said webhook 1" {
		t.Error(got)
	}
	if got := r.events(t, ids[0]); !strings.HasSuffix(got, "-conflict-1 payments.dead.sim.conflict") {
		t.Error(got)
	}
	rows, err := r.webhooks().ListWebhooks(t.Context(), WebhookFilter{Decision: "people", Limit: 10})
	if err != nil || len(rows) != 1 || rows[0].EventID != "e3" || rows[0].PaymentID == nil || *rows[0].PaymentID != int64(ids[0]) {
		t.Errorf("%+v %v", rows, err)
	}
}

func TestAnotherAmountGoesToAPersonAndChangesNoStatus(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 2)
	wrong := func(id, reference string) webhook.Arrival {
		a := arrival(id, reference, payment.Succeeded)
		a.Money = &webhook.Money{Minor: 100, Currency: "EUR"}
		return a
	}
	r.claim(t, 1, time.Minute) // with a consumer, whose result will be refused
	r.became(t, []webhook.Arrival{wrong("e1", "p0"), wrong("e2", "p1")}, webhook.Mismatched, webhook.Mismatched)
	for i, id := range ids {
		if got := r.status(t, id); got != "pending  0" {
			t.Errorf("payment %d is %s", i, got)
		}
		if got := r.job(t, id); !strings.HasPrefix(got, "dead") {
			t.Errorf("its job is %s", got)
		}
		if got := r.events(t, id); got != fmt.Sprintf("%d-dead-0-mismatch payments.dead.sim.mismatch", id) {
			t.Error(got)
		}
	}
	if got := query[string](t, r, `select message from pollux.dead_letters where payment_id = $1`, int64(ids[0])); got != "notification: the gateway says 1.00 EUR, tracked is 19.99 EUR" {
		t.Error(got)
	}
	r.became(t, []webhook.Arrival{arrival("e3", "p0", payment.Succeeded)}, webhook.Applied)
	if got := query[string](t, r, `select state from pollux.dead_letters where payment_id = $1`, int64(ids[0])); got != "resolved" {
		t.Errorf("the letter is %s", got)
	}
	requireSound(t, r)
}

func TestANoticeWaitsForItsPayment(t *testing.T) {
	r := newRecord(t)
	waits := []webhook.Arrival{arrival("e1", "p0", payment.Succeeded), arrival("e2", "never", payment.Succeeded)}
	r.became(t, waits, webhook.Waiting, webhook.Waiting)
	r.became(t, waits[1:], webhook.Waiting) // it comes again
	ids := r.track(t, "p", 1)
	r.exec(t, `update pollux.webhook_events set look_at = now()`)
	look := func(patience time.Duration, want string) {
		t.Helper()
		verdicts, err := r.webhooks().LookAgain(t.Context(), 10, patience)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range verdicts {
			got = append(got, string(v.Decision))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("looking again: %v, want %s", got, want)
		}
	}
	look(time.Hour, "applied waiting")
	if got := r.status(t, ids[0]); got != "succeeded said webhook 1" {
		t.Error(got)
	}
	look(time.Hour, "") // the other one is not due
	r.exec(t, `update pollux.webhook_events set received_at = now() - interval '2 hours', look_at = now() where decision = 'waiting'`)
	look(3*time.Hour, "waiting")
	if wait := query[float64](t, r, `select extract(epoch from look_at - now()) from pollux.webhook_events where decision = 'waiting'`); wait > 1800 || wait < 1700 {
		t.Errorf("it is looked at again in %.0f s", wait)
	}
	r.exec(t, `update pollux.webhook_events set look_at = now() where decision = 'waiting'`)
	look(time.Hour, "lapsed")
	if got := query[string](t, r, `select string_agg(concat_ws(' ', event_id, decision, payment_id, look_at is null), ', ' order by event_id) from pollux.webhook_events`); got != "e1 applied 1 t, e2 lapsed t" {
		t.Error(got)
	}
}

// Neither sees the other: the notice because the payment is not committed, the payment because the notice is not. Who looks again finds both.
func TestANoticeAndItsPaymentThatCommitTogetherMeet(t *testing.T) {
	r := newRecord(t)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select pollux.track_payment('sim', 'p0', 1999, 'EUR')`); err != nil {
		t.Fatal(err)
	}
	r.became(t, []webhook.Arrival{arrival("e1", "p0", payment.Succeeded)}, webhook.Waiting)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the notice meets its payment", func() bool {
		verdicts, err := r.webhooks().LookAgain(t.Context(), 10, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return len(verdicts) == 1 && verdicts[0].Decision == webhook.Applied
	})
}

func TestAHintMakesThePollDue(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 6)
	due := func(i int) float64 {
		return query[float64](t, r, `select extract(epoch from next_poll_at - now()) from pollux.poll_jobs where payment_id = $1`, int64(jobs[i].Payment))
	}
	d, a := stillPending(redelivery.Park, time.Hour)
	limited, later := a, a
	limited.Class, later.RetryAfter = gateway.RateLimited, time.Hour
	held, _ := stillPending(redelivery.Hold, 20*time.Second)
	r.write(t, result(jobs[0], rows[0], d, a), result(jobs[1], rows[1], d, limited), result(jobs[2], rows[2], held, a), result(jobs[5], rows[5], d, later))
	r.die(t, jobs[3], rows[3], redelivery.ReasonAttempts)
	r.exec(t, `update pollux.poll_jobs set updated_at = now() - interval '1 minute'`)
	r.became(t, []webhook.Arrival{hint("e0", "p0"), hint("e1", "p1"), hint("e2", "p2"), hint("e3", "p3"), hint("e4", "p4"), hint("e5", "p5")},
		webhook.Hastened, webhook.Hastened, webhook.Hastened, webhook.Hastened, webhook.Waiting, webhook.Hastened)
	if due(0) > 0 {
		t.Errorf("it is due in %.1f s", due(0))
	}
	for _, i := range []int{1, 5} {
		if due(i) < 3000 {
			t.Errorf("the gateway asked to wait, and payment %d is due in %.1f s", i, due(i))
		}
	}
	if got := r.job(t, jobs[2].Payment); !strings.HasPrefix(got, "held") {
		t.Errorf("the broker has it: %s", got)
	}
	if got := query[string](t, r, `select concat_ws(' ', j.state, j.lane, j.replays, d.state) from pollux.poll_jobs j join pollux.dead_letters d using (payment_id) where payment_id = $1`,
		int64(jobs[3].Payment)); got != "scheduled replay 1 replaying" || due(3) > 0 {
		t.Errorf("what was with a person is %s, due in %.1f s", got, due(3))
	}
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now() + interval '1 hour', updated_at = now() where payment_id = $1`, int64(jobs[0].Payment))
	r.became(t, []webhook.Arrival{hint("e6", "p0")}, webhook.Hastened)
	if d := due(0); d < 1 || d > 2 {
		t.Errorf("polled a moment ago, and due in %.1f s", d)
	}
	requireSound(t, r)
}

func TestANoticeAboutAPartIsAHintWithOtherMoney(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 2)
	d, a := stillPending(redelivery.Park, time.Hour)
	r.write(t, result(jobs[0], rows[0], d, a), result(jobs[1], rows[1], d, a))
	part := func(id, reference string, amount int64) webhook.Arrival {
		a := arrival(id, reference, payment.Succeeded)
		a.Part, a.Money = true, &webhook.Money{Minor: amount, Currency: "EUR"}
		return a
	}
	r.became(t, []webhook.Arrival{part("e0", "p0", 1999), part("e1", "p1", 999), part("e2", "p2", 999)}, webhook.Applied, webhook.Hastened, webhook.Waiting)
	r.track(t, "p", 3)
	r.exec(t, `update pollux.webhook_events set look_at = now() where decision = 'waiting'`)
	if v, err := r.webhooks().LookAgain(t.Context(), 10, time.Hour); err != nil || len(v) != 1 || v[0].Decision != webhook.Hastened {
		t.Errorf("one that waited: %v %v", v, err)
	}
}

func TestTheFirstReferenceThatIsTrackedCounts(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 2)
	a := arrival("e1", "capture_1", payment.Succeeded)
	a.References = []string{"capture_1", "p1", "p0"}
	if v := r.became(t, []webhook.Arrival{a}, webhook.Applied); v[0].Payment != ids[1] {
		t.Errorf("it is about %d", v[0].Payment)
	}
}

func TestWhatIsOfNoUseIsKeptWithItsBytes(t *testing.T) {
	r := newRecord(t)
	bad := webhook.Arrival{Gateway: "sim", Digest: sha256.Sum256([]byte("{")), Body: []byte("{\x00"), Notice: webhook.Notice{ID: "sha256:1", Fault: "not JSON"}}
	nothing := webhook.Arrival{Gateway: "sim", Digest: sha256.Sum256([]byte("x")), Notice: webhook.Notice{ID: "e2", Kind: "customer\x1b.created"}}
	r.became(t, []webhook.Arrival{bad, nothing}, webhook.Quarantined, webhook.Ignored)
	if got := query[string](t, r, `select string_agg(concat_ws(' ', event_id, kind, decision, why, body is not null), ', ' order by id) from pollux.webhook_events`); got != "e2 customer .created ignored  f, sha256:1  quarantined not JSON t" {
		t.Error(got)
	}
}

func TestWhatIsQuarantinedSaysWhichPaymentItWasAbout(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 1)
	unknown := arrival("e1", "p0", "")
	unknown.Effect, unknown.Fault, unknown.Money = webhook.Nothing, "status settling_v2 is not known", nil
	if v := r.became(t, []webhook.Arrival{unknown}, webhook.Quarantined); v[0].Payment != ids[0] {
		t.Errorf("%+v", v)
	}
	if got := r.status(t, ids[0]); got != "pending  0" {
		t.Error(got)
	}
}

func TestARefusedNoticeIsSaidToBe(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 1)
	bad := arrival("e\x001", "p0", payment.Succeeded)
	if _, err := r.webhooks().Take(t.Context(), []webhook.Arrival{bad}); !errors.Is(err, webhook.ErrRefused) || !strings.Contains(err.Error(), "SQLSTATE 22021") {
		t.Errorf("%v", err)
	}
	if n := query[int](t, r, `select count(*) from pollux.webhook_events`); n != 0 {
		t.Errorf("%d notices are kept", n)
	}
}

// A poll and a webhook finish a payment at once, a thousand times, with the webhook twice on two nodes: one transition, one event, one notice.
func TestAPollAndAWebhookRaceToOneTransition(t *testing.T) {
	const n = 1000
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", n)
	work := make(chan int)
	var tasks sync.WaitGroup
	for range 4 {
		tasks.Go(func() {
			for i := range work {
				race(t, r,
					func(ctx context.Context) error {
						d, a := resolve(payment.Succeeded)
						_, err := r.jobs.Write(ctx, []consumer.Result{result(jobs[i], rows[i], d, a)}, "worker-1", time.Minute)
						return err
					},
					func(ctx context.Context) error {
						_, err := r.webhooks().Take(ctx, []webhook.Arrival{arrival(fmt.Sprint("e", i), fmt.Sprint("p", i), payment.Succeeded)})
						return err
					},
					func(ctx context.Context) error {
						_, err := r.webhooks().Take(ctx, []webhook.Arrival{arrival(fmt.Sprint("e", i), fmt.Sprint("p", i), payment.Succeeded)})
						return err
					})
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	tasks.Wait()
	if got := query[string](t, r, `
		select concat_ws(' ', count(*), count(*) filter (where status = 'succeeded' and revision = 1),
		  (select count(*) from pollux.outbox), (select count(distinct event_id) from pollux.outbox), (select count(*) from pollux.poll_jobs),
		  (select count(*) from pollux.webhook_events where decision in ('applied', 'same')))
		from pollux.payments`); got != "1000 1000 1000 1000 0 1000" {
		t.Errorf("payments, finished once, events, different ones, jobs, notices: %s", got)
	}
	if query[int](t, r, `select count(*) from pollux.payments where status_source = 'webhook'`) == 0 {
		t.Error("no webhook ever won: there was no race")
	}
}

// race runs functions at the same moment.
func race(t *testing.T, _ *record, fns ...func(context.Context) error) {
	var tasks sync.WaitGroup
	start := make(chan struct{})
	for _, fn := range fns {
		tasks.Go(func() {
			<-start
			if err := fn(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	tasks.Wait()
}

func TestOldNoticesAreForgotten(t *testing.T) {
	r := newRecord(t)
	for i := range 5 {
		r.take(t, arrival(fmt.Sprint("e", i), "p", payment.Succeeded))
	}
	r.exec(t, `update pollux.webhook_events set received_at = now() - interval '3 days' where event_id <> 'e4'`)
	for _, want := range []int{3, 1, 0} {
		if n, err := r.webhooks().Forget(t.Context(), 48*time.Hour, 3); n != want || err != nil {
			t.Errorf("%d %v, want %d", n, err, want)
		}
	}
	if got := query[string](t, r, `select string_agg(event_id, ' ') from pollux.webhook_events`); got != "e4" {
		t.Error(got)
	}
}

func TestSilenceIsHeard(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 4)
	quiet := func() webhook.Quiet {
		t.Helper()
		all, err := r.webhooks().Quiet(t.Context(), []string{"sim"}, 10*time.Minute, 3)
		if err != nil || len(all) != 1 || all[0].Gateway != "sim" {
			t.Fatalf("%v %v", all, err)
		}
		return all[0]
	}
	if q := quiet(); q.Heard || q.Waiting {
		t.Errorf("%+v", q)
	}
	r.exec(t, `update pollux.poll_jobs set window_started_at = now() - interval '11 minutes' where payment_id <= 3`)
	if q := quiet(); q.Heard || !q.Waiting {
		t.Errorf("%+v", q)
	}
	r.die(t, jobs[0], rows[0], redelivery.ReasonWindow)
	if q := quiet(); q.Waiting {
		t.Errorf("what is with a person waits for no gateway: %+v", q)
	}
	r.take(t, arrival("e1", "other", payment.Succeeded))
	r.exec(t, `update pollux.webhook_events set received_at = now() - interval '1 hour'`)
	if q := quiet(); !q.Heard || q.For < 59*time.Minute || q.For > 61*time.Minute {
		t.Errorf("%+v", q)
	}
}

func TestPollsOfASilentGatewayAreSpreadOverATime(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 6)
	d, a := stillPending(redelivery.Park, time.Hour)
	limited := a
	limited.Class = gateway.RateLimited
	soon, _ := stillPending(redelivery.Park, time.Minute)
	r.write(t, result(jobs[0], rows[0], d, a), result(jobs[1], rows[1], d, a), result(jobs[2], rows[2], d, a), result(jobs[3], rows[3], d, limited), result(jobs[4], rows[4], soon, a))
	before := r.job(t, jobs[5].Payment)
	for _, want := range []int{2, 1, 0} {
		if n, err := r.webhooks().Densen(t.Context(), "sim", 5*time.Minute, 2); n != want || err != nil {
			t.Errorf("%d %v, want %d", n, err, want)
		}
	}
	if got := query[string](t, r, `select string_agg((next_poll_at <= now() + interval '5 minutes')::text, ' ' order by payment_id) from pollux.poll_jobs`); got != "true true true false true true" {
		t.Error(got)
	}
	if after := r.job(t, jobs[5].Payment); after != before {
		t.Errorf("a poll under way was %s and is %s", before, after)
	}
	requireSound(t, r)
}

// TestWebhookStatementsReadOnlyWhatTheyNeed runs all that a receiver runs, on plans that were made while the tables were empty and when they had grown.
func TestWebhookStatementsReadOnlyWhatTheyNeed(t *testing.T) {
	r := newRecord(t)
	receiver, plans := explain(t, r.url, true)
	round := 0
	look := func(t *testing.T) {
		round++
		prefix := fmt.Sprintf("round%d-", round)
		r.track(t, prefix, hotBatch)
		var arrivals []webhook.Arrival
		for i := range hotBatch {
			a := arrival(fmt.Sprint(prefix, "e", i), fmt.Sprint(prefix, i), []payment.Status{payment.Succeeded, payment.Pending}[i%2])
			switch i % 4 {
			case 0:
				a = hint(a.ID, a.References[0])
			case 3:
				a.References = []string{"not-" + a.ID}
			}
			arrivals = append(arrivals, a)
		}
		w := NewWebhooks(receiver.pool, "webhook-1")
		for range 2 { // they come twice
			if _, err := w.Take(t.Context(), arrivals); err != nil {
				t.Fatal(err)
			}
		}
		r.exec(t, `update pollux.webhook_events set look_at = now() where decision = 'waiting' and event_id like $1`, prefix+"%")
		if v, err := w.LookAgain(t.Context(), hotBatch, time.Hour); err != nil || len(v) < hotBatch/4 {
			t.Fatalf("%d waited, %v", len(v), err)
		}
		if _, err := w.Forget(t.Context(), 48*time.Hour, hotBatch); err != nil {
			t.Fatal(err)
		}
		if n, err := w.Densen(t.Context(), "sim", time.Hour, hotBatch); err != nil || round > 7 && n == 0 {
			t.Fatal(n, err)
		}
		if n := checkPlans(t, plans, true); n < 15 {
			t.Fatalf("only %d plans were seen", n)
		}
	}
	t.Run("empty", func(t *testing.T) {
		for range 7 {
			look(t)
		}
	})
	fill(t, r, 100_000)
	r.exec(t, `insert into pollux.webhook_events (gateway, event_id, effect, digest, decision, payment_id, look_at, occurred_at)
		select 'sim', 'old' || i, 'report', sha256(i::text::bytea), case i % 2 when 0 then 'waiting' else 'applied' end, i, case i % 2 when 0 then now() + interval '1 hour' end, now()
		from generate_series(1, 100000) i`)
	t.Run("plans made while empty", look)
	receiver, plans = explain(t, r.url, true)
	t.Run("never analyzed", look)
	r.exec(t, `analyze pollux.payments, pollux.poll_jobs, pollux.outbox, pollux.webhook_events, pollux.poll_attempts`)
	t.Run("analyzed", look)
}

// BenchmarkWebhooks finishes payments by notifications, one a transaction and many, with several receivers at once.
func BenchmarkWebhooks(b *testing.B) {
	for _, batch := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("in batches of %d", batch), func(b *testing.B) {
			r := newRecord(b)
			r.track(b, "p", b.N)
			next := make(chan int)
			go func() {
				defer close(next)
				for at := 0; at < b.N; at += batch {
					next <- at
				}
			}()
			b.ResetTimer()
			var tasks sync.WaitGroup
			for range 4 {
				tasks.Go(func() {
					for at := range next {
						var arrivals []webhook.Arrival
						for i := at; i < min(at+batch, b.N); i++ {
							arrivals = append(arrivals, arrival(fmt.Sprint("e", i), fmt.Sprint("p", i), payment.Succeeded))
						}
						if _, err := r.webhooks().Take(b.Context(), arrivals); err != nil {
							b.Error(err)
						}
					}
				})
			}
			tasks.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "notices/s")
		})
	}
}

func TestWhatWasListedIsNoSignOfLifeAndNoAlteredNotice(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 1)
	list := arrival("e1", "p0", payment.Succeeded)
	list.Key, list.Digest = webhook.KeyListed, sha256.Sum256(nil)
	r.became(t, []webhook.Arrival{list}, webhook.Applied)
	all, err := r.webhooks().Quiet(t.Context(), []string{"sim"}, time.Minute, 1)
	if err != nil || all[0].Heard {
		t.Errorf("%v %v", all, err)
	}
	sent := arrival("e1", "p0", payment.Succeeded)
	if v := r.became(t, []webhook.Arrival{sent}, webhook.Duplicate); v[0].Altered {
		t.Error("what was listed before it came is taken for altered")
	}
	r.became(t, []webhook.Arrival{arrival("e2", "p0", payment.Succeeded)}, webhook.Same)
	list.ID = "e2"
	if v := r.became(t, []webhook.Arrival{list}, webhook.Duplicate); v[0].Altered {
		t.Error("what came before it was listed is taken for altered")
	}
	if all, err = r.webhooks().Quiet(t.Context(), []string{"sim"}, time.Minute, 1); err != nil || !all[0].Heard {
		t.Errorf("%v %v", all, err)
	}
}

func TestOneFetchesAtATime(t *testing.T) {
	r := newRecord(t)
	did := ""
	err := r.webhooks().Alone(t.Context(), "sim", func(ctx context.Context) error {
		did += "first"
		return errors.Join(
			r.webhooks().Alone(ctx, "sim", func(context.Context) error { did += " second"; return nil }),
			r.webhooks().Alone(ctx, "other", func(context.Context) error { did += " other"; return nil }))
	})
	if err != nil || did != "first other" {
		t.Errorf("%q %v", did, err)
	}
	if err := r.webhooks().Alone(t.Context(), "sim", func(context.Context) error { return errors.New("no answer") }); err == nil || err.Error() != "no answer" {
		t.Error(err)
	}
}

func (r *record) lettersOf(tb testing.TB, id payment.ID) string {
	tb.Helper()
	return query[string](tb, r, `
		select coalesce(string_agg(concat_ws(' ', d.reason, d.state, d.gateway_status, d.deliveries, (select count(*) from pollux.dead_letter_notes n where n.letter_id = d.id)), ', ' order by d.id), '')
		from pollux.dead_letters d
		where d.payment_id = $1`, int64(id))
}

func TestAnOlderFailureDoesNotEndAPaymentThatIsKnownToBePendingLater(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 1)
	d, a := stillPending(redelivery.Park, time.Hour)
	r.write(t, result(jobs[0], rows[0], d, a))
	r.exec(t, `update pollux.poll_jobs set updated_at = now() - interval '1 minute'`)
	newer := arrival("e2", "p0", payment.Pending)
	newer.OccurredAt = happened.Add(time.Minute)
	r.became(t, []webhook.Arrival{newer}, webhook.Noted)
	if due := query[bool](t, r, `select next_poll_at <= now() from pollux.poll_jobs`); due {
		t.Fatal("it is due already")
	}
	r.became(t, []webhook.Arrival{arrival("e1", "p0", payment.Failed)}, webhook.Stale)
	if got := r.status(t, jobs[0].Payment); got != "pending said 0" {
		t.Error(got)
	}
	if due := query[bool](t, r, `select next_poll_at <= now() from pollux.poll_jobs`); !due {
		t.Error("nobody asks what is true")
	}
	r.became(t, []webhook.Arrival{arrival("e3", "p0", payment.Succeeded)}, webhook.Applied) // a success counts whenever it comes
	requireSound(t, r)
}

func TestAHintAfterAnEndWithoutSuccessIsForAPerson(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 2)
	failed, a := resolve(payment.Failed)
	succeeded, b := resolve(payment.Succeeded)
	r.write(t, result(jobs[0], rows[0], failed, a), result(jobs[1], rows[1], succeeded, b))
	asked := rows[0].ReadAt
	at := func(id, reference string, when time.Time) webhook.Arrival {
		h := hint(id, reference)
		h.OccurredAt = when
		return h
	}
	later := asked.Add(time.Second)
	r.became(t, []webhook.Arrival{at("e1", "p0", asked.Add(-time.Second)), at("e2", "p0", time.Time{}), at("e3", "p1", later)}, webhook.Same, webhook.Same, webhook.Same)
	if got := r.lettersOf(t, jobs[0].Payment); got != "" {
		t.Errorf("nothing happened, and there is %s", got)
	}
	r.became(t, []webhook.Arrival{at("e4", "p0", later), at("e5", "p0", later)}, webhook.LateHint, webhook.LateHint)
	if got := r.lettersOf(t, jobs[0].Payment); got != "late_hint open  2 0" {
		t.Error(got)
	}
	if got := r.events(t, jobs[0].Payment); got != "1-1-failed payments.resolved.sim.failed, 1-late_hint-1 payments.dead.sim.late_hint" {
		t.Error(got)
	}
	if list, err := r.webhooks().ListWebhooks(t.Context(), WebhookFilter{Decision: ForPeople, Limit: 10}); err != nil || len(list) != 2 {
		t.Errorf("%+v %v", list, err)
	}
	r.change(t, deadletter.Change{Verb: deadletter.Settle}, 1)
	r.became(t, []webhook.Arrival{at("e6", "p0", later)}, webhook.LateHint)
	if got := r.lettersOf(t, jobs[0].Payment); got != "late_hint resolved  2 0, late_hint open  1 0" {
		t.Errorf("a person has looked, and then something changed: %s", got)
	}
	requireSound(t, r)
}

func TestEachDifferentThingThatIsSaidIsKeptAndAnnouncedOnce(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 1)
	id := jobs[0].Payment
	r.exec(t, `update pollux.payments set status = 'failed', status_source = 'operator'`)
	r.became(t, []webhook.Arrival{arrival("e1", "p0", payment.Cancelled), arrival("e2", "p0", payment.Cancelled)}, webhook.Conflicting, webhook.Conflicting)
	if got := r.lettersOf(t, id); got != "conflict open cancelled 1 0" {
		t.Error(got)
	}
	r.change(t, deadletter.Change{Verb: deadletter.Park, Note: "x"}, 1)
	d, a := resolve(payment.Succeeded)
	r.write(t, result(jobs[0], rows[0], d, a))
	if got := r.lettersOf(t, id); got != "conflict open succeeded 2 2" { // the note of whoever parked it too
		t.Errorf("something new was said: %s", got)
	}
	r.change(t, deadletter.Change{Verb: deadletter.Park, Note: "y"}, 1)
	r.became(t, []webhook.Arrival{arrival("e3", "p0", payment.Cancelled), arrival("e4", "p0", payment.Succeeded)}, webhook.Conflicting, webhook.Conflicting)
	if got := r.lettersOf(t, id); got != "conflict parked succeeded 2 3" {
		t.Errorf("nothing new was said: %s", got)
	}
	money := func(id string, minor int64) webhook.Arrival {
		a := arrival(id, "p0", payment.Expired)
		a.Money = &webhook.Money{Minor: minor, Currency: "EUR"}
		return a
	}
	r.became(t, []webhook.Arrival{money("e5", 5), money("e6", 5)}, webhook.Mismatched, webhook.Mismatched)
	if got := r.lettersOf(t, id); got != "conflict open expired 4 4" {
		t.Error(got)
	}
	r.became(t, []webhook.Arrival{arrival("e7", "p0", payment.Expired)}, webhook.Conflicting) // its money is another thing than its status
	if got := r.lettersOf(t, id); got != "conflict open expired 5 5" {
		t.Error(got)
	}
	if got := query[string](t, r, `select string_agg(actor || ': ' || regexp_replace(text, '\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ', '?', 'g'), E'\n' order by id) from pollux.dead_letter_notes where text like 'said%'`); got !=
		"webhook: said before, at ?: cancelled: said by webhook: said, but it is failed by operator since ?\n"+
			"poll: said before, at ?: succeeded: said by poll, but it is failed by operator since ?\n"+
			"notification: said before, at ?: expired: the gateway says 0.05 EUR, tracked is 19.99 EUR" {
		t.Error(got)
	}
	if got := r.events(t, id); got != "1-1-failed payments.resolved.sim.failed, 1-conflict-1 payments.dead.sim.conflict, 1-conflict-1-2 payments.dead.sim.conflict, "+
		"webhook-5-mismatch payments.review.sim.mismatch, webhook-6-mismatch payments.review.sim.mismatch, 1-conflict-1-5 payments.dead.sim.conflict" {
		t.Error(got)
	}
	requireSound(t, r)
}

func TestAnotherNoticeUnderTheIDOfOneThatWaitsIsSetAside(t *testing.T) {
	r := newRecord(t)
	r.became(t, []webhook.Arrival{arrival("e1", "p0", payment.Succeeded)}, webhook.Waiting)
	ids := r.track(t, "p", 1)
	altered := arrival("e1", "p0", payment.Failed)
	altered.Digest[0]++
	for range 2 {
		if v := r.became(t, []webhook.Arrival{altered}, webhook.Quarantined); v[0].Payment != ids[0] || !v[0].Altered && v[0].Why == "" {
			t.Errorf("%+v", v[0])
		}
	}
	if altered.ID != "e1" {
		t.Error("the caller's notice is another one now")
	}
	if got := r.status(t, ids[0]); got != "pending  0" {
		t.Error(got)
	}
	if n := query[int](t, r, `select count(*) from pollux.webhook_events where decision = 'quarantined' and event_id = $1 and digest = $2 and why like '%under its id e1'`,
		fmt.Sprintf("sha256:%x", altered.Digest), altered.Digest[:]); n != 1 {
		t.Errorf("%d are set aside", n)
	}
	r.exec(t, `update pollux.webhook_events set look_at = now() where decision = 'waiting'`)
	if v, err := r.webhooks().LookAgain(t.Context(), 10, time.Hour); err != nil || len(v) != 1 || v[0].Decision != webhook.Applied {
		t.Errorf("%v %v", v, err)
	}
	if got := r.status(t, ids[0]); got != "succeeded said webhook 1" {
		t.Error(got)
	}
	requireSound(t, r)
}

func TestAVerdictHasTheTraceOfItsPayment(t *testing.T) {
	r := newRecord(t)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	query[int64](t, r, `select pollux.track_payment('sim', 'traced', 1999, 'EUR', traceparent => $1)`, trace)
	query[int64](t, r, `select pollux.track_payment('sim', 'plain', 1999, 'EUR')`)
	verdicts := r.take(t, arrival("e1", "traced", payment.Succeeded), arrival("e2", "plain", payment.Succeeded), arrival("e3", "unknown", payment.Succeeded))
	for i, want := range []string{trace, "", ""} {
		if got := verdicts[i].TraceParent; got != want {
			t.Errorf("notice %d: %q, want %q", i, got, want)
		}
	}
}
