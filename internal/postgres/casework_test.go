package postgres

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/audit"
	"pollux/internal/casework"
	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

func (r *record) casework() *Casework { return NewCasework(r.pool) }

// act is an act of ada's.
func (r *record) act(tb testing.TB, id payment.ID, a casework.Act) (casework.Outcome, error) {
	tb.Helper()
	a.By = audit.Actor{Name: "ada", Origin: "pollux on a"}
	return casework.NewDesk(r.casework()).Act(tb.Context(), casework.Key{ID: int64(id)}, a)
}

func (r *record) mustAct(tb testing.TB, id payment.ID, a casework.Act) casework.Outcome {
	tb.Helper()
	o, err := r.act(tb, id, a)
	if err != nil {
		tb.Fatalf("%s: %v", a.Verb, err)
	}
	return o
}

func requireRefusal(tb testing.TB, err error) {
	tb.Helper()
	var refusal *casework.Refusal
	if !errors.As(err, &refusal) {
		tb.Fatalf("it is not refused: %v", err)
	}
}

func (r *record) count(tb testing.TB) casework.Count {
	tb.Helper()
	n, err := r.casework().Count(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func TestAPollThatAnOperatorWantsIsDueAtOnce(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 1)
	jobs := r.claim(t, 1, time.Minute)
	d, a := stillPending(redelivery.Hold, 20*time.Second)
	r.write(t, result(jobs[0], r.read(t, jobs)[0], d, a))
	if more := r.claim(t, 1, time.Minute); len(more) != 0 {
		t.Fatal("it was due anyhow")
	}
	o := r.mustAct(t, ids[0], casework.Act{Verb: casework.PollNow})
	if o.Before.Place != casework.Held || o.After.Place != casework.Scheduled {
		t.Errorf("%+v", o)
	}
	again := r.claim(t, 1, time.Minute)
	if len(again) != 1 || again[0].Token == jobs[0].Token || again[0].Lane != "normal" {
		t.Fatalf("%+v", again)
	}
	if row := r.read(t, jobs)[0]; row.TokenCurrent {
		t.Error("the delivery that the broker holds would be polled too")
	}
	_, err := r.act(t, ids[0], casework.Act{Verb: casework.PollNow})
	requireRefusal(t, err)
	if row := r.read(t, again)[0]; !row.TokenCurrent || row.Counters.Attempts != 1 {
		t.Errorf("%+v", row)
	}
	requireSound(t, r)
}

func TestAHeldPaymentIsNotPolledWhateverMakesItDue(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 1)
	jobs := r.claim(t, 1, time.Minute)
	rows := r.read(t, jobs)
	o := r.mustAct(t, ids[0], casework.Act{Verb: casework.Hold, For: time.Hour, Reason: "the bank looks"})
	if o.Before.Place != casework.InFlight || o.After.Place != casework.Held || o.After.HeldUntil == nil {
		t.Errorf("%+v", o)
	}
	d, a := resolve(payment.Failed)
	if v := r.write(t, result(jobs[0], rows[0], d, a)); v[0].Applied {
		t.Error("a poll that was on its way had an effect")
	}
	if n := r.count(t); n.In[casework.Held] != 1 || n.ByHand != 1 || !n.Sound() {
		t.Errorf("%+v", n)
	}
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now() - interval '1 hour'`) // a notification makes it due
	r.relay.jobs.forget()
	if jobs := r.claim(t, 1, time.Minute); len(jobs) != 0 {
		t.Fatal("a held payment is polled")
	}
	o = r.mustAct(t, ids[0], casework.Act{Verb: casework.Release})
	if o.After.Place != casework.Scheduled || o.After.HeldUntil != nil {
		t.Errorf("%+v", o)
	}
	if jobs := r.claim(t, 1, time.Minute); len(jobs) != 1 {
		t.Fatal("a released payment is not polled")
	}
	r.mustAct(t, ids[0], casework.Act{Verb: casework.Hold, Until: query[time.Time](t, r, `select now() + interval '1 hour'`)})
	r.exec(t, `update pollux.poll_jobs set held_until = now()`)
	r.relay.jobs.forget()
	if jobs := r.claim(t, 1, time.Minute); len(jobs) != 1 {
		t.Fatal("a payment whose hold is over is not polled")
	}
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'webhook'`) // a webhook ends a held one too
	requireSound(t, r)
}

func TestWhatAnOperatorForcedIsContradictedByAConflictOnly(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 2)
	jobs := r.claim(t, 2, time.Minute)
	rows := r.read(t, jobs)
	for _, id := range ids {
		r.mustAct(t, id, casework.Act{Verb: casework.Force, Status: payment.Failed, Reason: "the bank says so"})
	}
	d, a := resolve(payment.Succeeded)
	agreed, b := resolve(payment.Failed)
	for _, v := range r.write(t, result(jobs[0], rows[0], d, a), result(jobs[1], rows[1], agreed, b)) {
		if v.Applied || v.Refused != "" {
			t.Errorf("%+v", v)
		}
	}
	for range 2 { // a webhook that comes twice
		if n := r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'webhook' where status = 'failed' and id = $1`, int64(jobs[0].Payment)); n != 0 {
			t.Error("a late success overruled an operator")
		}
	}
	got := query[string](t, r, `
		select string_agg(concat_ws(' ', d.payment_id = $1, d.state, d.reason, d.gateway_status, p.status, p.status_source, d.message ~ '^said by poll, but it is failed by operator since 2'), ', ')
		from pollux.dead_letters d join pollux.payments p on p.id = d.payment_id`, int64(jobs[0].Payment))
	if want := "t open conflict succeeded failed operator t"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	requireSound(t, r)
	if n := r.count(t); n.In[casework.Final] != 2 || !n.Sound() {
		t.Errorf("%+v", n)
	}
	// A person forces what is right, which closes it; only an operator may, and against the gateway only if it is meant.
	r.mustAct(t, jobs[0].Payment, casework.Act{Verb: casework.Force, Status: payment.Succeeded})
	if open := r.openLetters(t, ""); len(open) != 0 {
		t.Errorf("open: %v", open)
	}
	// The gateway says another thing: that is news.
	r.exec(t, `update pollux.payments set status = 'cancelled', status_source = 'reconciliation' where id = $1`, int64(jobs[0].Payment))
	if open := r.openLetters(t, ""); len(open) != 1 {
		t.Errorf("open: %v", open)
	}
	requireSound(t, r)
}

func TestRefusedActsChangeNothingButTheAuditLog(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 1)
	r.mustAct(t, ids[0], casework.Act{Verb: casework.Force, Status: payment.Expired, Reason: "why"})
	before := query[string](t, r, `select p::text from pollux.payments p`)
	for _, a := range []casework.Act{
		{Verb: casework.PollNow}, {Verb: casework.Hold, For: time.Hour}, {Verb: casework.Release}, {Verb: casework.Force, Status: payment.Expired, Reason: "again"},
	} {
		_, err := r.act(t, ids[0], a)
		requireRefusal(t, err)
	}
	if _, err := r.act(t, 999, casework.Act{Verb: casework.PollNow}); !errors.Is(err, casework.ErrNotFound) {
		t.Errorf("%v", err)
	}
	nobody := casework.Key{Gateway: "sim", Names: [][2]string{{"", "a/b"}, {"a", "b"}}}
	if _, err := casework.NewDesk(r.casework()).Act(t.Context(), nobody, casework.Act{Verb: casework.Hold, For: time.Hour, By: audit.Actor{Name: "ada", Origin: "o"}, Reason: "why"}); !errors.Is(err, casework.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if after := query[string](t, r, `select p::text from pollux.payments p`); after != before {
		t.Errorf("%s became %s", before, after)
	}
	var got []string
	for _, e := range r.auditLog(t) {
		got = append(got, fmt.Sprintf("%s %s %s: %s", e.Action, e.Outcome, e.Target, e.Reason))
	}
	want := []string{
		"payment.force done payment:1: why",
		"payment.poll-now refused payment:1: refused: it is expired since ",
		"payment.hold refused payment:1: refused: it is expired since ",
		"payment.release refused payment:1: refused: it is expired since ",
		"payment.force refused payment:1: again; refused: it is expired already, since ",
		"payment.poll-now refused payment:999: refused: no such payment",
		"payment.hold refused payment:sim/a/b: why; refused: no such payment",
	}
	if len(got) != len(want) {
		t.Fatalf("%d rows: %v", len(got), got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("%s, not %s", got[i], want[i])
		}
	}
	if err := r.verifyAudit(t, nil); err != nil {
		t.Error(err)
	}
}

// TestActsAndTheirRowsAreABijection lets operators do what they like to the same payments at once, while polls end and webhooks come, and looks whether the log tells
// exactly what happened: each effect has its row, each row its effect, and each begins where the one before ended.
func TestActsAndTheirRowsAreABijection(t *testing.T) {
	r := newRecord(t)
	const payments, operators, acts = 20, 6, 60
	ids := r.track(t, "p", payments)
	var mu sync.Mutex
	outcomes := map[payment.ID]map[string]int{}
	refused := 0
	var wg sync.WaitGroup
	for i := range operators {
		chance := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for range acts {
				id := ids[chance.IntN(payments)]
				a := []casework.Act{
					{Verb: casework.PollNow}, {Verb: casework.Hold, For: time.Hour}, {Verb: casework.Release}, {Verb: casework.Hold, For: time.Minute},
					{Verb: casework.Force, Status: payment.Statuses[1+chance.IntN(4)], Reason: "x", Overrule: chance.IntN(2) == 0},
				}[chance.IntN(5)]
				if a.Verb == casework.Force && chance.IntN(4) != 0 {
					continue
				}
				o, err := r.act(t, id, a)
				var refusal *casework.Refusal
				if err != nil && !errors.As(err, &refusal) {
					t.Error(err)
					return
				}
				mu.Lock()
				if err != nil {
					refused++
				} else {
					if outcomes[id] == nil {
						outcomes[id] = map[string]int{}
					}
					outcomes[id][string(o.Verb)]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Go(func() {
		for range 30 {
			jobs := r.claim(t, 3, time.Minute)
			rows := r.read(t, jobs)
			var results []consumer.Result
			for i := range jobs {
				d, a := stillPending(redelivery.Park, time.Millisecond)
				results = append(results, result(jobs[i], rows[i], d, a))
			}
			r.write(t, results...)
		}
	})
	wg.Wait()
	if err := r.verifyAudit(t, nil); err != nil {
		t.Fatal(err)
	}
	requireSound(t, r)
	logged, loggedRefusals := map[payment.ID]map[string]int{}, 0
	status := map[string]string{}
	for _, e := range r.auditLog(t) {
		if e.Outcome == audit.Refused {
			loggedRefusals++
			continue
		}
		var id payment.ID
		if _, err := fmt.Sscanf(e.Target, "payment:%d", &id); err != nil {
			t.Fatal(err)
		}
		if logged[id] == nil {
			logged[id] = map[string]int{}
		}
		logged[id][strings.TrimPrefix(e.Action, "payment.")]++
		before, after := between(*e.Before, `"status": "`, `"`), between(*e.After, `"status": "`, `"`)
		if was, ok := status[e.Target]; ok && was != before {
			t.Errorf("row %d begins with %s, the one before ended with %s", e.Seq, before, was)
		}
		status[e.Target] = after
	}
	if diff := cmp.Diff(outcomes, logged); diff != "" {
		t.Error(diff)
	}
	if refused != loggedRefusals {
		t.Errorf("%d refusals, %d in the log", refused, loggedRefusals)
	}
	for target, want := range status {
		if got := query[string](t, r, `select status from pollux.payments where 'payment:' || id = $1`, target); got != want {
			t.Errorf("%s is %s, its log ends with %s", target, got, want)
		}
	}
}

func between(s, begin, end string) string {
	_, rest, _ := strings.Cut(s, begin)
	within, _, _ := strings.Cut(rest, end)
	return within
}

func TestOfTwoForcesAtOnceOneIsRefused(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 30)
	for _, id := range ids {
		var wg sync.WaitGroup
		var mu sync.Mutex
		done := 0
		for range 2 {
			wg.Go(func() {
				_, err := r.act(t, id, casework.Act{Verb: casework.Force, Status: payment.Failed, Reason: "x"})
				mu.Lock()
				defer mu.Unlock()
				var refusal *casework.Refusal
				if err == nil {
					done++
				} else if !errors.As(err, &refusal) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if done != 1 {
			t.Errorf("payment %d was forced %d times", id, done)
		}
	}
	if n := query[int](t, r, `select count(*) from pollux.audit_log where outcome = 'refused'`); n != len(ids) {
		t.Errorf("%d refusals", n)
	}
	requireSound(t, r)
}

func TestAForceAndAPollAtOnceLeaveOneStatusAndAConflict(t *testing.T) {
	r := newRecord(t)
	const n = 60
	ids := r.track(t, "p", n)
	jobs := r.claim(t, n, time.Minute)
	rows := r.read(t, jobs)
	var wg sync.WaitGroup
	forced := make([]bool, n)
	polled := make([]bool, n)
	wg.Go(func() {
		for i := range jobs {
			d, a := resolve(payment.Succeeded)
			polled[i] = r.write(t, result(jobs[i], rows[i], d, a))[0].Applied
		}
	})
	wg.Go(func() {
		for i := range jobs {
			_, err := r.act(t, jobs[i].Payment, casework.Act{Verb: casework.Force, Status: payment.Failed, Reason: "x"})
			var refusal *casework.Refusal
			if err != nil && !errors.As(err, &refusal) {
				t.Error(err)
			}
			forced[i] = err == nil
		}
	})
	wg.Wait()
	requireSound(t, r)
	for i, j := range jobs {
		got := query[string](t, r, `select concat_ws(' ', p.status, p.status_source, (select count(*) from pollux.dead_letters d where d.payment_id = p.id and d.reason = 'conflict'))
			from pollux.payments p where p.id = $1`, int64(j.Payment))
		want := map[[2]bool]string{{true, false}: "failed operator 1", {false, true}: "succeeded poll 0"}[[2]bool{forced[i], polled[i]}]
		if got != want {
			t.Errorf("payment %d, forced %t, polled %t: %s", j.Payment, forced[i], polled[i], got)
		}
	}
	if len(ids) != n || query[int](t, r, `select count(*) from pollux.audit_log`) != n {
		t.Error("not each force is in the log")
	}
}

func TestEveryPaymentIsInOnePlaceAndWhatIsInNoneIsNamed(t *testing.T) {
	r := newRecord(t)
	if n := r.count(t); n.Tracked != 0 || !n.Sound() {
		t.Errorf("an empty record: %+v", n)
	}
	jobs, rows := r.claimed(t, "p", 12)
	results := mixed(jobs[:10], rows)
	r.write(t, results...) // two of each: resolved, held, parked, deferred, dead
	for i, res := range results {
		if res.Disposition.Verb == redelivery.DeadLetter {
			r.exec(t, `update pollux.dead_letters set state = 'discarded', closed_at = now() where payment_id = $1 and $2`, int64(jobs[i].Payment), i < 5)
		}
	}
	r.track(t, "q", 3)
	r.mustAct(t, 14, casework.Act{Verb: casework.Hold, For: time.Hour})
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now() - interval '1 hour' where payment_id in (14, 15)`)
	n := r.count(t)
	if diff := cmp.Diff(map[casework.Place]int64{casework.Final: 2, casework.Held: 3, casework.Scheduled: 4, casework.Deferred: 2, casework.WithPerson: 2, casework.InFlight: 2}, n.In); diff != "" {
		t.Error(diff)
	}
	if n.Tracked != 15 || n.ByHand != 1 || n.Overdue != 1 || n.Oldest == nil || !n.Sound() {
		t.Errorf("%+v", n)
	}
	for _, f := range []casework.Place{casework.Final, casework.Held, casework.Scheduled, casework.Deferred, casework.WithPerson, casework.InFlight} {
		list, err := r.casework().List(t.Context(), casework.Filter{Place: f}, 0, 100)
		if err != nil || int64(len(list)) != n.In[f] {
			t.Errorf("%s: %d payments are listed, %d counted, %v", f, len(list), n.In[f], err)
		}
	}
	conn := open(t, Options{URL: r.url, MaxConns: 1, Name: "breaks"})
	for _, sql := range []string{
		`set session_replication_role = replica`,
		`delete from pollux.poll_jobs where payment_id = 13`,
		`insert into pollux.poll_jobs (payment_id, gateway, lane) values (99, 'sim', 'normal')`,
		`update pollux.poll_jobs set state = 'dead', lock_token = null, locked_until = null where payment_id = 15`,
		`update pollux.payments set status = 'failed' where id = 14`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	n = r.count(t)
	want := []casework.Stray{{ID: 13, Why: "it is pending and has no poll job"}, {ID: 14, Why: "its status is failed and it still has a poll job"},
		{ID: 15, Why: "its poll job is dead and it has no dead letter"}, {ID: 99, Why: "a poll job without a payment"}}
	if diff := cmp.Diff(want, n.Strays); diff != "" || n.Sound() || n.Lost != 4 || n.Tracked != 15 {
		t.Errorf("%s\n%+v", diff, n)
	}
}

func TestEachFinalPaymentHasItsEventOnceWhileItIsKept(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 12) // the ids 1 to 12
	finish := func(id int, status string) {
		t.Helper()
		r.exec(t, `update pollux.payments set status = $2, status_source = 'webhook' where id = $1`, id, status)
	}
	for id := range 9 {
		finish(id+1, "failed")
	}
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'operator' where id = 2`)
	if n := r.count(t); n.Events.Judged != 9 || n.Events.Wrong != 0 || !n.Sound() {
		t.Fatalf("as the triggers wrote it: %+v", n)
	}
	event := `insert into pollux.outbox (event_id, payment_id, subject, body) values `
	for _, sql := range []string{
		`delete from pollux.outbox where payment_id = 1`,
		`delete from pollux.outbox where event_id = '2-2-succeeded'`,
		event + `('3-1-failed', 3, 'payments.resolved.sim.failed', '{}')`,
		event + `('4-1-succeeded', 4, 'payments.resolved.sim.succeeded', '{}')`,
		event + `('5-2-succeeded', 5, 'payments.late_success.sim', '{}')`,
		event + `('6-1-dead', 6, 'payments.resolved.sim.dead', '{}')`,
		event + `('10-1-succeeded', 10, 'payments.resolved.sim.succeeded', '{}')`,
		event + `('99-1-succeeded', 99, 'payments.resolved.sim.succeeded', '{}')`,
		event + `('x', null, 'payments.resolved.sim.succeeded', '{}')`,
		event + `('11-dead-0-x', 11, 'payments.dead.sim.x', '{}')`, // says no status
	} {
		r.exec(t, sql)
	}
	want := []casework.Stray{
		{ID: 0, Why: "event x says how it ended, and it is not tracked"},
		{ID: 1, Why: "its status is failed, and its event 1-1-failed is not in the outbox"},
		{ID: 2, Why: "its status is succeeded, and its event 2-2-succeeded is not in the outbox"},
		{ID: 3, Why: "its event 3-1-failed is in the outbox 2 times"},
		{ID: 4, Why: "event 4-1-succeeded says what its status never was"},
		{ID: 5, Why: "event 5-2-succeeded says what its status never was"},
		{ID: 6, Why: "event 6-1-dead says what its status never was"},
		{ID: 10, Why: "event 10-1-succeeded says what its status never was"},
		{ID: 99, Why: "event 99-1-succeeded says how it ended, and it is not tracked"},
	}
	n := r.count(t)
	if diff := cmp.Diff(want, n.Events.Named); diff != "" || n.Events.Wrong != 9 || n.Sound() || n.Lost != 0 {
		t.Errorf("%s\n%+v", diff, n)
	}
}

// What retention took is not missed: the events of a day whose partition was dropped, and those of the default partition.
func TestAnEventThatIsNotKeptAnyMoreIsNotMissed(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 3)
	r.exec(t, `update pollux.payments set status = 'failed', status_source = 'webhook'`)
	conn := open(t, Options{URL: r.url, MaxConns: 1, Name: "ages"})
	for _, sql := range []string{
		`set session_replication_role = replica`,
		`update pollux.payments set status_updated_at = date_trunc('day', now(), 'UTC') - interval '9 days'`,
		`delete from pollux.outbox`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.count(t); n.Events.Judged != 0 || !n.Sound() {
		t.Errorf("no partition of that day is there: %+v", n)
	}
	r.exec(t, `select pollux.make_partition('outbox', ((now() at time zone 'UTC')::date - 9))`)
	if n := r.count(t); n.Events.Judged != 3 || n.Events.Wrong != 3 || n.Sound() {
		t.Errorf("the partition of that day is there, and no event in it: %+v", n)
	}
}

func TestPaymentsAreListedByFilterWithTheirMoney(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `insert into pollux.payments (gateway, account, class, reference, merchant_reference, amount_minor, currency, created_at, status, status_source)
		select (array['sim', 'acme'])[1 + g % 2], (array['', 'de'])[1 + g % 3 / 2], (array['standard', 'high'])[1 + g % 5 / 4], 'r%_' || g, 'order ' || g % 4, g * 100,
		  (array['EUR', 'JPY'])[1 + g % 7 / 6], now() - g * interval '1 hour', case when g % 10 = 0 then 'failed' else 'pending' end, case when g % 10 = 0 then 'poll' end
		from generate_series(1, 60) g`)
	least, most := int64(1000), int64(3000)
	for _, c := range []struct {
		filter casework.Filter
		where  string
	}{
		{casework.Filter{}, `status = 'pending'`},
		{casework.Filter{Status: casework.Any}, `true`},
		{casework.Filter{Status: payment.Failed}, `status = 'failed'`},
		{casework.Filter{Place: casework.Final}, `status <> 'pending'`},
		{casework.Filter{Gateway: "acme", Account: "de"}, `status = 'pending' and gateway = 'acme' and account = 'de'`},
		{casework.Filter{Class: "high", Place: casework.Scheduled}, `status = 'pending' and class = 'high'`},
		{casework.Filter{Older: 10*time.Hour + 30*time.Minute, Newer: 20*time.Hour + 30*time.Minute}, `status = 'pending' and created_at between now() - interval '20.5 hours' and now() - interval '10.5 hours'`},
		{casework.Filter{Currency: "EUR", Least: &least, Most: &most}, `status = 'pending' and currency = 'EUR' and amount_minor between 1000 and 3000`},
		{casework.Filter{Text: "order 3"}, `status = 'pending' and merchant_reference = 'order 3'`},
		{casework.Filter{Text: "r%_1"}, `status = 'pending' and starts_with(reference, 'r%_1')`},
		{casework.Filter{Text: "r1"}, `false`},
	} {
		want := query[[]int64](t, r, `select coalesce(array_agg(id order by id desc), '{}') from pollux.payments where `+c.where)
		var got []int64
		for before := int64(0); ; {
			page, err := r.casework().List(t.Context(), c.filter, before, 7)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range page {
				got, before = append(got, p.ID), p.ID
			}
			if len(page) < 7 {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %v, not %v", c.filter, got, want)
		}
		totals, err := r.casework().Totals(t.Context(), c.filter)
		if err != nil {
			t.Fatal(err)
		}
		var count, sum int64
		for _, total := range totals {
			count, sum = count+total.Count, sum+total.AmountMinor
		}
		if count != int64(len(want)) || sum != query[int64](t, r, `select coalesce(sum(amount_minor), 0) from pollux.payments where `+c.where) {
			t.Errorf("%+v: %+v", c.filter, totals)
		}
	}
	r.exec(t, `insert into pollux.payments (gateway, reference, amount_minor, currency) select 'big', g::text, 9223372036854775807, 'EUR' from generate_series(1, 3) g`)
	totals, err := r.casework().Totals(t.Context(), casework.Filter{Gateway: "big"})
	if err != nil || len(totals) != 1 || totals[0] != (casework.Total{Currency: "EUR", Count: 3, AmountMinor: 9223372036854775807}) {
		t.Errorf("%+v, %v", totals, err)
	}
}

func TestADossierHasAllThatIsKnown(t *testing.T) {
	r := newRecord(t)
	change := func(from, to, cause string) {
		t.Helper()
		r.exec(t, `insert into pollux.breaker_transitions (at, gateway, from_state, to_state, cause) values (clock_timestamp(), 'sim', $1, $2, $3)`, from, to, cause)
	}
	change("closed", "open", "long ago")
	change("open", "closed", "before it was tracked")
	jobs, rows := r.claimed(t, "p", 2)
	change("closed", "open", "ratio")
	r.die(t, jobs[0], rows[0], redelivery.ReasonAttempts)
	r.mustAct(t, jobs[0].Payment, casework.Act{Verb: casework.Force, Status: payment.Cancelled, Reason: "the shop says so"})
	if _, err := r.relay.PublishEvents(t.Context(), 10, time.Second, stored); err != nil {
		t.Fatal(err)
	}
	r.audit(t, acted("dlq.note", "called the bank", audit.Change{Target: audit.Letter(1)}))
	change("open", "half_open", "after its end")
	r.exec(t, `insert into pollux.webhook_events (gateway, event_id, kind, effect, status, digest, decision, why, payment_id)
		values ('sim', 'evt_1', 'payment.failed', 'report', 'failed', sha256('x'), 'conflict', 'an operator forced cancelled', 1)`)

	d, err := casework.NewDesk(r.casework()).Show(t.Context(), casework.Key{ID: int64(jobs[0].Payment)})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, m := range d.Timeline() {
		kinds = append(kinds, m.Kind)
	}
	slices.Sort(kinds)
	if want := []string{"breaker", "dead letter", "dead letter", "dead letter", "event", "event", "event", "operator", "operator", "polled", "status", "tracked", "webhook"}; !slices.Equal(kinds, want) {
		t.Errorf("%v", kinds)
	}
	if d.Job != nil || d.Payment.Place != casework.Final || d.Breaker[0].Cause != "before it was tracked" || d.Breaker[1].Cause != "ratio" || d.Acts[0].Action != "payment.force" ||
		d.Events[0].PublishedAt == nil || d.Letters[0].ClosedBy != "operator" || d.Attempts[0].Class != gateway.Transport.String() {
		t.Errorf("%+v", d)
	}
	d, err = casework.NewDesk(r.casework()).Show(t.Context(), casework.Key{Gateway: "sim", Names: [][2]string{{"", "p1"}}})
	if err != nil || d.Job == nil || d.Payment.Place != casework.InFlight || d.Job.LockedUntil == nil || d.Payment.Reference != "p1" || len(d.Letters)+len(d.Acts)+len(d.Events) != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := r.casework().Dossier(t.Context(), 999); !errors.Is(err, casework.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestADossierHasTheEventsOfAllTurns(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 2)
	other := int64(ids[1])
	id := int64(ids[0])
	r.exec(t, `update pollux.payments set status = 'failed', status_source = 'poll' where id = any ($1)`, []int64{id, other})
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'webhook' where id = $1`, id)
	r.mustAct(t, ids[0], casework.Act{Verb: casework.Force, Status: payment.Cancelled, Overrule: true, Reason: "the shop says so"})
	r.exec(t, `insert into pollux.breaker_transitions (at, gateway, from_state, to_state, cause) values (clock_timestamp(), 'sim', 'closed', 'open', 'after its end')`)
	r.mustAct(t, ids[0], casework.Act{Verb: casework.Force, Status: payment.Failed, Reason: "no, the bank"})
	d, err := r.casework().Dossier(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for _, e := range d.Events {
		events = append(events, e.ID)
	}
	var want []string
	for i, status := range []string{"failed", "succeeded", "cancelled", "failed"} {
		want = append(want, fmt.Sprintf("%d-%d-%s", id, i+1, status))
	}
	if !slices.Equal(events, want) {
		t.Errorf("%v, not %v", events, want)
	}
	if len(d.Breaker) != 0 {
		t.Errorf("the breaker after its end: %+v", d.Breaker)
	}
}

// The events of a payment are looked for in a day's millions.
func TestTheEventsOfAPaymentAreFoundInAFewPages(t *testing.T) {
	r := newRecord(t)
	id := int64(r.track(t, "p", 1)[0])
	r.exec(t, `insert into pollux.outbox (event_id, payment_id, subject, body, published_at) select g, g, 's', repeat('x', 500), now() from generate_series(1000, 200000) g`)
	r.exec(t, `update pollux.payments set status = 'failed', status_source = 'poll' where id = $1`, id)
	r.exec(t, `vacuum analyze pollux.outbox`)
	operator, plans := explain(t, r.url, false)
	plans.take()
	if d, err := operator.casework().Dossier(t.Context(), id); err != nil || len(d.Events) != 1 {
		t.Fatalf("%+v, %v", d.Events, err)
	}
	seen := 0
	for _, p := range plans.take() {
		if !strings.Contains(p.Query, "from pollux.outbox") {
			continue
		}
		seen++
		p.Plan.walk(func(n node) {
			if n.rows() > 40_000 {
				t.Errorf("%s of %s reads %.0f rows", n.Type, n.Relation, n.rows())
			}
		})
	}
	if seen != 1 {
		t.Errorf("%d plans", seen)
	}
}

// The processes that change a breaker write that down when they come to it, and their clocks differ.
func TestTransitionsAreInTheOrderInWhichTheyHappened(t *testing.T) {
	r := newRecord(t)
	id := int64(r.track(t, "p", 1)[0])
	write := func(after time.Duration, epoch int, to string) {
		t.Helper()
		r.exec(t, `insert into pollux.breaker_transitions (at, gateway, from_state, to_state, cause, epoch)
			select created_at + $1::bigint * interval '1 microsecond', 'sim', 'x', $2, '', $3 from pollux.payments`, after.Microseconds(), to, epoch)
	}
	r.exec(t, `update pollux.payments set created_at = created_at - interval '1 hour'`)
	write(time.Second, 7, "open")                     // of a store that was lost
	write(10*time.Minute, 1, "open")                  // that begins to count anew
	write(10*time.Minute+32*time.Second, 3, "closed") // written before what came before it
	write(10*time.Minute+30*time.Second, 2, "forced")
	write(10*time.Minute+33*time.Second, 4, "open")
	write(10*time.Minute+32*time.Second, 5, "half_open") // by a clock that is behind
	want := []string{"open", "open", "forced", "closed", "open", "half_open"}
	d, err := r.casework().Dossier(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range d.Breaker {
		got = append(got, b.To)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	changes, err := NewBreakers(r.pool).Changes(t.Context(), "sim", "", 4)
	got = nil
	for _, c := range changes {
		got = append(got, c.To)
	}
	if want := []string{"half_open", "open", "closed", "forced"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, not %v, %v", got, want, err)
	}
}

func TestAPaymentIsFoundByWhateverItIsCalled(t *testing.T) {
	r := newRecord(t)
	one := query[int64](t, r, `select pollux.track_payment('sim', 'eu/p', 1, 'EUR')`)
	two := query[int64](t, r, `select pollux.track_payment('sim', 'p', 1, 'EUR', account => 'us')`)
	for name, want := range map[string]int64{fmt.Sprint(one): one, "sim/eu/p": one, "sim/us/p": two} {
		k, err := casework.ParseKey(name)
		if err != nil {
			t.Fatal(err)
		}
		if id, err := r.casework().Find(t.Context(), k); err != nil || id != want {
			t.Errorf("%s: %d, %v", name, id, err)
		}
	}
	query[int64](t, r, `select pollux.track_payment('sim', 'p', 1, 'EUR', account => 'eu')`)
	k, err := casework.ParseKey("sim/eu/p")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.casework().Find(t.Context(), k); !errors.Is(err, casework.ErrAmbiguous) {
		t.Errorf("%v", err)
	}
	if _, err := r.casework().Find(t.Context(), casework.Key{Gateway: "sim", Names: [][2]string{{"", "p"}}}); !errors.Is(err, casework.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// BenchmarkMillion is what operators wait for when most of a million payments are pending, and a fifth became final today.
func BenchmarkMillion(b *testing.B) {
	r := newRecord(b)
	fill(b, r, 1_000_000)
	r.exec(b, `delete from pollux.dead_letters`)
	r.exec(b, `delete from pollux.outbox`)
	r.exec(b, `update pollux.payments set status = 'failed', status_source = 'webhook' where id <= 200000`)
	r.exec(b, `vacuum analyze pollux.payments, pollux.poll_jobs, pollux.dead_letters, pollux.outbox`)
	cases := NewCasework(open(b, Options{URL: r.url, MaxConns: 2, Name: "operator"})) // without pinned plans, as the command line
	b.Run("verify", func(b *testing.B) {
		for b.Loop() {
			if n, err := cases.Count(b.Context()); err != nil || !n.Sound() || n.Tracked != 1_000_000 || n.Events.Judged != 200_000 {
				b.Fatalf("%+v, %v", n, err)
			}
		}
	})
	for name, f := range map[string]casework.Filter{"list": {}, "list one": {Text: "sleeping999"}, "list deferred": {Place: casework.Deferred}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := cases.List(b.Context(), f, 0, 50); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("totals", func(b *testing.B) {
		for b.Loop() {
			if _, err := cases.Totals(b.Context(), casework.Filter{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("dossier", func(b *testing.B) {
		for b.Loop() {
			if _, err := cases.Dossier(b.Context(), 500_000); err != nil {
				b.Fatal(err)
			}
		}
	})
}
