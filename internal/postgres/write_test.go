package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
	"pollux/internal/webhook"
)

// claimed tracks n payments and claims their jobs, in the order of their ids, with their rows.
func (r *record) claimed(tb testing.TB, prefix string, n int) ([]outbox.Job, []consumer.Job) {
	tb.Helper()
	r.track(tb, prefix, n)
	jobs := r.claim(tb, n, time.Minute)
	if len(jobs) != n {
		tb.Fatalf("%d jobs were claimed of %d", len(jobs), n)
	}
	return jobs, r.read(tb, jobs)
}

func (r *record) write(tb testing.TB, results ...consumer.Result) []consumer.Verdict {
	tb.Helper()
	verdicts, err := r.jobs.Write(tb.Context(), results, "worker-1", time.Minute)
	if err != nil {
		tb.Fatal(err)
	}
	return verdicts
}

// die writes a dead letter for a claimed job.
func (r *record) die(tb testing.TB, j outbox.Job, row consumer.Job, reason redelivery.Reason) {
	tb.Helper()
	d := redelivery.Disposition{Verb: redelivery.DeadLetter, Reason: reason, Counters: row.Counters}
	if v := r.write(tb, result(j, row, d, gateway.Answer{Class: gateway.Transport, Message: "connection refused"})); !v[0].Applied {
		tb.Fatal("a dead letter was not applied")
	}
}

func (r *record) job(tb testing.TB, id payment.ID) string {
	tb.Helper()
	return query[string](tb, r, `
		select coalesce((
		  select concat_ws(' ', state, 'revision', revision, 'due', next_poll_at - updated_at, 'until', locked_until - updated_at, 'by', locked_by,
		    case when lock_token is null then 'free' else 'leased' end, attempts, failures, not_founds, deferrals, replays, 'delay', last_delay_ms, last_class, last_message)
		  from pollux.poll_jobs where payment_id = $1), 'none')`, int64(id))
}

var counted = redelivery.Counters{Attempts: 3, Failures: 4, NotFounds: 5, Deferrals: 6}

func TestEachVerbWritesItsRow(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 5)
	var results []consumer.Result
	for i, verb := range []redelivery.Verb{redelivery.Hold, redelivery.Park, redelivery.Defer, redelivery.Resolve, redelivery.DeadLetter} {
		d := redelivery.Disposition{Verb: verb, Reason: redelivery.ReasonFailure, Counters: counted}
		switch verb {
		case redelivery.Hold:
			d.Delay = 1500 * time.Millisecond
		case redelivery.Park:
			d.Delay = time.Hour
		case redelivery.Resolve:
			d.Status, d.Detail = payment.Expired, "abandoned"
		}
		results = append(results, result(jobs[i], rows[i], d, gateway.Answer{Class: gateway.Transport, Message: "reset by peer"}))
	}
	results[2].Polled, results[2].Answer, results[2].Disposition.Reason = false, gateway.Answer{}, redelivery.ReasonCircuitOpen // before the gateway was asked
	for i, v := range r.write(t, results...) {
		if !v.Applied || v.Refused != "" {
			t.Errorf("result %d: %+v", i, v)
		}
	}
	for i, want := range []string{
		"held revision 1 due 00:00:01.5 until 00:01:01.5 by worker-1 leased 3 4 5 6 0 delay 1500 transport reset by peer",
		"scheduled revision 1 due 01:00:00 until by free 3 4 5 6 0 delay 3600000 transport reset by peer",
		"deferred revision 1 due DUE until 00:01:00 by worker-1 leased 3 4 5 6 0 delay 0 circuit_open ",
		"none",
		"dead revision 1 due DUE until by free 3 4 5 6 0 delay 0 transport reset by peer",
	} {
		got := r.job(t, jobs[i].Payment)
		if i == 2 || i == 4 { // when it was due stays to be seen
			late := query[string](t, r, `select (next_poll_at - updated_at)::text from pollux.poll_jobs where payment_id = $1`, int64(jobs[i].Payment))
			got = strings.Replace(got, late, "DUE", 1)
			if !query[bool](t, r, `select next_poll_at = $2 from pollux.poll_jobs where payment_id = $1`, int64(jobs[i].Payment), jobs[i].DueAt) {
				t.Errorf("the job of %s does not say when it was due", results[i].Disposition.Verb)
			}
		}
		if got != want {
			t.Errorf("%s\nis %q\nnot %q", results[i].Disposition.Verb, got, want)
		}
	}
	if got := query[string](t, r, `select concat_ws(' ', status, status_detail, status_source, revision) from pollux.payments where id = $1`, int64(jobs[3].Payment)); got != "expired abandoned poll 1" {
		t.Errorf("the payment is %s", got)
	}
	if again := r.read(t, jobs); again[0].Counters != counted || !again[0].TokenCurrent || again[0].Revision != 1 || again[1].TokenCurrent || !again[4].Dead {
		t.Errorf("%+v", again)
	}
	requireSound(t, r)
}

func TestAHeldMessageIsNotClaimedBeforeItsLeaseEnds(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 1)
	d, a := stillPending(redelivery.Hold, 20*time.Millisecond)
	r.write(t, result(jobs[0], rows[0], d, a))
	eventually(t, "it is due", func() bool { return r.read(t, jobs)[0].UntilDue <= 0 })
	if claimed := r.claim(t, 10, time.Minute); len(claimed) != 0 {
		t.Error("a message that the broker keeps was claimed")
	}
	d, a = resolve(payment.Succeeded)
	if v := r.write(t, result(jobs[0], r.read(t, jobs)[0], d, a)); !v[0].Applied {
		t.Error("the held message's own result was not applied")
	}
}

func TestAStaleResultChangesNothing(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 6)
	r.exec(t, `update pollux.poll_jobs set lock_token = gen_random_uuid() where payment_id <= 2`)
	r.exec(t, `update pollux.poll_jobs set revision = revision + 1 where payment_id between 3 and 4`)
	r.exec(t, `update pollux.payments set status = 'cancelled', status_source = 'operator' where id = 5`)
	before := query[string](t, r, `select string_agg(j::text, ' ' order by payment_id) from pollux.poll_jobs j where payment_id <= 5`)
	results := mixed(jobs, rows) // resolve, hold, park, defer, dead letter, resolve
	for i, v := range r.write(t, results...) {
		if v.Applied != (i == 5) || v.Refused != "" {
			t.Errorf("result %d: %+v", i, v)
		}
	}
	if after := query[string](t, r, `select string_agg(j::text, ' ' order by payment_id) from pollux.poll_jobs j where payment_id <= 5`); after != before {
		t.Errorf("jobs were\n%s\nand are\n%s", before, after)
	}
	if got := query[string](t, r, `select string_agg(concat(status, status_detail), ' ' order by id) from pollux.payments`); got != "pending pending pending pending cancelled failedprocessing" {
		t.Error(got)
	}
	if got := query[string](t, r, `select string_agg(applied::text, ' ' order by payment_id) from pollux.poll_attempts`); got != "false false false false false true" {
		t.Errorf("the log says applied: %s", got)
	}
	if n := query[int](t, r, `select count(*) from pollux.dead_letters`); n != 0 {
		t.Error("a stale result is with a person")
	}
	requireSound(t, r)
}

func TestAResultIsAppliedOnce(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 2)
	d, a := resolve(payment.Succeeded)
	won := result(jobs[0], rows[0], d, a)
	d.Status = payment.Failed
	lost := result(jobs[0], rows[0], d, a)
	hold, pending := stillPending(redelivery.Hold, time.Second)
	held := result(jobs[1], rows[1], hold, pending)
	applied := 0
	for _, batch := range [][]consumer.Result{{won, lost, held, held}, {won, lost, held}, {lost}} { // the second time its answer was lost
		for _, v := range r.write(t, batch...) {
			if v.Applied && !v.Late {
				applied++
			}
		}
	}
	if applied != 2 {
		t.Errorf("%d results of two jobs were applied", applied)
	}
	// Which of the two is applied is not said; the other one is a late success or a conflict, once.
	if got := r.events(t, jobs[0].Payment); strings.Count(got, "payments.resolved.") != 1 || strings.Count(got, "payments.late_success.")+strings.Count(got, ".conflict") != 1 {
		t.Error(got)
	}
	if got := r.job(t, jobs[1].Payment); !strings.HasPrefix(got, "held revision 1 ") {
		t.Error(got)
	}
	requireSound(t, r)
}

func TestVerdictsComeInTheOrderOfTheResults(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 4)
	d, a := resolve(payment.Succeeded)
	bad := d
	bad.Status = "bogus"
	verdicts := r.write(t, result(jobs[3], rows[3], d, a), result(jobs[1], rows[1], bad, a), result(outbox.Job{Payment: 999, Token: jobs[0].Token}, rows[0], d, a), result(jobs[0], rows[0], d, a))
	if !verdicts[0].Applied || verdicts[1].Applied || verdicts[1].Refused == "" || verdicts[2].Applied || verdicts[2].Refused != "" || !verdicts[3].Applied {
		t.Errorf("%+v", verdicts)
	}
	if verdicts := r.write(t); len(verdicts) != 0 {
		t.Errorf("%v", verdicts)
	}
}

func TestARowThatTheDatabaseRefusesIsFoundAndTheOthersAreWritten(t *testing.T) {
	for _, refused := range [][]int{{0}, {249}, {250}, {499}, {3, 77, 78, 400}} {
		t.Run(fmt.Sprint(refused), func(t *testing.T) {
			r := newRecord(t)
			jobs, rows := r.claimed(t, "p", 500)
			results := mixed(jobs, rows)
			bad := map[int]bool{}
			for _, i := range refused {
				results[i].Disposition.Verb, results[i].Disposition.Status, bad[i] = redelivery.Resolve, "bogus", true
			}
			for i, v := range r.write(t, results...) {
				if bad[i] && (v.Applied || v.Refused != "SQLSTATE 23514, constraint payments_status") || !bad[i] && v != (consumer.Verdict{Applied: true}) {
					t.Errorf("result %d: %+v", i, v)
				}
			}
			got := query[string](t, r, `select concat_ws(' ', count(*), count(distinct payment_id), bool_and(applied)) from pollux.poll_attempts`)
			if want := fmt.Sprint(500-len(refused), 500-len(refused), "t"); strings.Join(strings.Fields(got), "") != strings.ReplaceAll(want, " ", "") {
				t.Errorf("attempts: %s", got)
			}
			if n := query[int](t, r, `select count(*) from pollux.poll_jobs where state = 'in_flight'`); n != len(refused) {
				t.Errorf("%d jobs are as they were", n)
			}
			requireSound(t, r)
		})
	}
}

// onAttempt makes the database raise an error when an attempt of a payment is logged.
func (r *record) onAttempt(tb testing.TB, name, when, code string) {
	tb.Helper()
	r.exec(tb, fmt.Sprintf(`create function fail_%s() returns trigger language plpgsql as $$ begin
		if %s then raise exception 'as the test wants' using errcode = '%s'; end if; return new; end $$`, name, when, code))
	r.exec(tb, fmt.Sprintf(`create trigger fail_%[1]s before insert on pollux.poll_attempts for each row execute function fail_%[1]s()`, name))
}

func TestAfterAnErrorNothingIsWritten(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 8)
	r.onAttempt(t, "refused", `new.payment_id = 2`, "23514")
	r.onAttempt(t, "away", `new.payment_id = 7`, "57P01")
	before := query[string](t, r, `select string_agg(j::text, ' ' order by payment_id) from pollux.poll_jobs j`)
	if _, err := r.jobs.Write(t.Context(), mixed(jobs, rows), "worker", time.Minute); err == nil || Refused(err) || !Transient(err) {
		t.Fatalf("%v", err)
	}
	if after := query[string](t, r, `select string_agg(j::text, ' ' order by payment_id) from pollux.poll_jobs j`); after != before {
		t.Error("half of it was written")
	}
	if n := query[int](t, r, `select count(*) from pollux.poll_attempts`); n != 0 {
		t.Errorf("%d attempts were logged", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.jobs.Write(ctx, mixed(jobs, rows), "worker", time.Minute); err == nil {
		t.Error("a write succeeds although its context has ended")
	}
}

func TestALostRaceIsRunAgain(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 3)
	r.exec(t, `create sequence races`)
	r.onAttempt(t, "race", `nextval('races') <= 2`, "40001")
	for i, v := range r.write(t, mixed(jobs, rows)...) {
		if !v.Applied {
			t.Errorf("result %d: %+v", i, v)
		}
	}
	r.exec(t, `select setval('races', 1, false); create or replace function fail_race() returns trigger language plpgsql as $$ begin
		perform nextval('races'); raise exception 'always' using errcode = '40P01'; end $$`)
	jobs, rows = r.claimed(t, "q", 3)
	if _, err := r.jobs.Write(t.Context(), mixed(jobs, rows), "worker", time.Minute); pgCode(err) != "40P01" {
		t.Errorf("%v", err)
	}
	if tries := query[int](t, r, `select last_value from races`); tries < 2 || tries > 5 {
		t.Errorf("it was tried %d times", tries)
	}
}

func TestWhatTheGatewaySaidIsLogged(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 2)
	answer := gateway.Answer{Class: gateway.RateLimited, HTTPStatus: 429, GatewayStatus: "slow\x00down", RetryAfter: 90 * time.Second,
		Message: "too many\nrequests\xff " + strings.Repeat("é", 400), Took: 1234567 * time.Nanosecond}
	d := redelivery.Disposition{Verb: redelivery.Park, Reason: redelivery.ReasonRateLimited, Delay: 95 * time.Second, Counters: counted}
	polled := result(jobs[0], rows[0], d, answer)
	unpolled := result(jobs[1], rows[1], d, answer)
	unpolled.Polled = false
	r.write(t, polled, unpolled)
	got := query[string](t, r, `
		select concat_ws(' ', payment_id, took_us, class, http_status, gateway_status, retry_after_ms, disposition, reason, delay_ms, applied, attempts, failures, policy, worker, trace_id)
		from pollux.poll_attempts`)
	if want := "1 1234 rate_limited 429 slow down 90000 park rate_limited 95000 t 3 4 standard worker-1 0af7651916cd43dd8448eb211c80319c"; got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	message := query[string](t, r, `select message from pollux.poll_attempts`)
	if !strings.HasPrefix(message, "too many requests  é") || len(message) > maxMessage || len(message) < maxMessage-2 {
		t.Errorf("%d bytes: %q", len(message), message)
	}
	if !query[bool](t, r, `select at = $1 and due_at = $2 from pollux.poll_attempts`, rows[0].ReadAt, rows[0].DueAt) {
		t.Error("the attempt has other times")
	}
}

func TestDetailsAreRecordedWhileThePaymentIsPending(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 5)
	write := func(i int, verb redelivery.Verb, detail string, fresh bool) {
		d := redelivery.Disposition{Verb: verb, Reason: redelivery.ReasonStillPending, Delay: time.Hour, Status: payment.Succeeded, Detail: detail}
		res := result(jobs[i], rows[i], d, gateway.Answer{Class: gateway.Pending})
		res.DetailNew = fresh
		r.write(t, res)
	}
	r.exec(t, `update pollux.payments set status_detail = 'requires_action'`)
	r.exec(t, `update pollux.poll_jobs set revision = 9 where payment_id = 5`)
	write(0, redelivery.Hold, "processing", true)
	write(1, redelivery.Hold, "processing", false)
	write(2, redelivery.Resolve, "captured", true)
	write(3, redelivery.Resolve, "", false)
	write(4, redelivery.Hold, "too late", true)
	if got := query[string](t, r, `select string_agg(status_detail, ',' order by id) from pollux.payments`); got != "processing,requires_action,captured,,requires_action" {
		t.Error(got)
	}
	if n := query[int](t, r, `select count(*) from pollux.outbox`); n != 2 {
		t.Errorf("%d events of two transitions", n)
	}
}

func TestADeadLetterHasAllThatAPersonNeeds(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `select pollux.track_payment('sim', 'r', 4999, 'EUR', class => 'high_value', account => 'de')`)
	var jobs []outbox.Job
	for i := range 12 {
		jobs = r.claim(t, 1, time.Minute)
		row := r.read(t, jobs)[0]
		d, a := stillPending(redelivery.Park, time.Millisecond)
		d.Counters = row.Counters
		d.Counters.Attempts++
		a.GatewayStatus = fmt.Sprintf("status-%d", i)
		r.write(t, result(jobs[0], row, d, a))
		eventually(t, "it is due again", func() bool {
			return query[bool](t, r, `select next_poll_at <= now() from pollux.poll_jobs`)
		})
	}
	jobs = r.claim(t, 1, time.Minute)
	row := r.read(t, jobs)[0]
	last := result(jobs[0], row, redelivery.Disposition{Verb: redelivery.DeadLetter, Reason: redelivery.ReasonAttempts, Counters: redelivery.Counters{Attempts: 13, Failures: 2, Deferrals: 1}},
		gateway.Answer{Class: gateway.Pending, HTTPStatus: 200, GatewayStatus: "status-12", Message: "still processing"})
	last.Body = []byte("poison\x00")
	r.write(t, last)
	got := query[string](t, r, `
		select concat_ws(' ', payment_id, gateway, account, class, amount_minor, currency, reason, state, last_class, http_status, gateway_status, message,
		  attempts, failures, deferrals, replays, policy, worker, trace_id, encode(body, 'escape'), closed_at is null)
		from pollux.dead_letters`)
	if want := `1 sim de high_value 4999 EUR attempts open pending 200 status-12 still processing 13 2 1 0 standard worker-1 0af7651916cd43dd8448eb211c80319c poison\000 t`; got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	var attempts []struct {
		Class, Disposition, Reason string
		Status                     string  `json:"gateway_status"`
		Took                       float64 `json:"took_ms"`
	}
	if err := json.Unmarshal([]byte(query[string](t, r, `select last_attempts from pollux.dead_letters`)), &attempts); err != nil {
		t.Fatal(err)
	}
	if len(attempts) != 10 || attempts[0].Status != "status-12" || attempts[0].Disposition != "dead_letter" || attempts[9].Status != "status-3" || attempts[9].Took != 3 {
		t.Errorf("%+v", attempts)
	}
	events := r.eventsOf(t, 1)
	if len(events) != 1 || events[0].ID != "1-dead-0-attempts" || events[0].Subject != "payments.dead.sim.attempts" {
		t.Fatalf("%+v", events)
	}
	body := events[0].Body
	delete(body, "occurred_at")
	if diff := cmp.Diff(map[string]any{"event_id": "1-dead-0-attempts", "dead_letter_id": 1.0, "payment_id": 1.0, "gateway": "sim", "account": "de", "class": "high_value",
		"amount_minor": 4999.0, "currency": "EUR", "reason": "attempts", "fingerprint": query[string](t, r, `select fingerprint from pollux.dead_letters`), "last_class": "pending", "http_status": 200.0, "message": "still processing", "attempts": 13.0,
		"failures": 2.0, "deferrals": 1.0, "replays": 0.0}, body); diff != "" {
		t.Error(diff)
	}
	requireSound(t, r)
}

func TestTheEndOfAPaymentClosesItsLetter(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 4)
	for i := range jobs {
		r.die(t, jobs[i], rows[i], redelivery.ReasonAttempts)
	}
	requireSound(t, r)
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'webhook' where id = 1`)
	r.exec(t, `update pollux.payments set status = 'failed', status_source = 'operator' where id = 2`)
	r.replay(t, []int64{3})
	again := r.claim(t, 10, time.Minute)
	d, a := resolve(payment.Succeeded)
	r.write(t, result(again[0], r.read(t, again)[0], d, a))
	got := query[string](t, r, `select string_agg(concat_ws(' ', payment_id, state, closed_by, closed_at is not null), ', ' order by id) from pollux.dead_letters`)
	if want := "1 resolved webhook t, 2 resolved operator t, 3 resolved replay t, 4 open f"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	requireSound(t, r)
}

// A webhook locks the job before the payment, as everybody does, and reads whether it is still pending behind that lock.
func TestAWebhookAndAPollThatResolveTheSamePaymentsConverge(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 200)
	done := make(chan int)
	go func() {
		won := 0
		for i := range jobs {
			id := int64(jobs[len(jobs)-1-i].Payment)
			tx, err := r.pool.Begin(t.Context())
			if err != nil {
				t.Error(err)
				break
			}
			if _, err = tx.Exec(t.Context(), `select from pollux.poll_jobs where payment_id = $1 for update`, id); err == nil {
				tag, e := tx.Exec(t.Context(), `update pollux.payments set status = 'failed', status_source = 'webhook' where id = $1 and status = 'pending'`, id)
				won, err = won+int(tag.RowsAffected()), e
			}
			if err != nil {
				t.Error(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Error(err)
			}
		}
		done <- won
	}()
	applied := 0
	d, a := resolve(payment.Succeeded)
	for at := 0; at < len(jobs); at += 20 {
		var results []consumer.Result
		for i := at; i < at+20; i++ {
			results = append(results, result(jobs[i], rows[i], d, a))
		}
		for _, v := range r.write(t, results...) {
			if v.Applied && !v.Late { // a success after the webhook's failure is a late one
				applied++
			}
		}
	}
	won := <-done
	if won+applied != len(jobs) {
		t.Errorf("the webhook finished %d payments, polls finished %d, of %d", won, applied, len(jobs))
	}
	requireSound(t, r)
}

func TestAMessageThatCannotBeReadIsBuriedOnce(t *testing.T) {
	r := newRecord(t)
	poison := consumer.Poison{Subject: "payments.poll.sim.normal", Gateway: "sim", Body: []byte("\x00\xffnonsense"), Why: "not\x00JSON", Count: 1}
	for _, p := range []consumer.Poison{
		poison,
		{Subject: poison.Subject, Gateway: "sim", Body: poison.Body, Why: poison.Why, Count: 3}, // it came again: the broker was not told
		{Subject: poison.Subject, Gateway: "sim", Body: []byte("other"), Why: "x", Count: 1},
		{Subject: "payments.>", Gateway: "no gateway.*", Why: "x", Count: 1},
	} {
		if err := r.jobs.Bury(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	got := query[string](t, r, `select string_agg(concat_ws(' ', id, gateway, reason, message, subject, encode(body, 'escape'), deliveries, state), ', ' order by id) from pollux.dead_letters`)
	if want := `1 sim undecodable not JSON payments.poll.sim.normal \000\377nonsense 3 open, 3 sim undecodable x payments.poll.sim.normal other 1 open, 4 unknown undecodable x payments.>  1 open`; got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	subjects := query[string](t, r, `select string_agg(concat_ws(' ', event_id, subject), ', ' order by seq) from pollux.outbox`)
	if want := `message-1-dead-0-undecodable payments.dead.sim.undecodable, message-3-dead-0-undecodable payments.dead.sim.undecodable, message-4-dead-0-undecodable payments.dead.unknown.undecodable`; subjects != want {
		t.Errorf("%s\nnot\n%s", subjects, want)
	}
	requireSound(t, r)
}

func TestAReadSaysWhatTheRecordKnows(t *testing.T) {
	r := newRecord(t)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r.exec(t, `select pollux.track_payment('sim', 'r1', 100, 'JPY', class => 'c', account => 'a', merchant_reference => 'm', lane => 'high',
		expires_at => now() + interval '1 hour', traceparent => $1)`, trace)
	final := r.insert(t, "final", payment.Cancelled)
	jobs := r.claim(t, 1, time.Minute)
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now() + interval '5 seconds', revision = 8, attempts = 1, failures = 2, not_founds = 3, deferrals = 4, replays = 5,
		last_delay_ms = 1500, window_started_at = now() - interval '10 minutes' where payment_id = $1`, int64(jobs[0].Payment))
	r.exec(t, `update pollux.payments set status_detail = 'processing' where id = $1`, int64(jobs[0].Payment))
	const stale = "00000000-0000-0000-0000-000000000000"
	polls := []message.Poll{{Payment: 999, Token: stale}, {Payment: final, Token: stale}, {Payment: jobs[0].Payment, Token: stale}, {Payment: jobs[0].Payment, Token: jobs[0].Token}}
	got, err := r.jobs.Read(t.Context(), polls)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Tracked || !got[1].Tracked || got[1].TokenCurrent || got[1].Payment.Status != payment.Cancelled || got[2].TokenCurrent {
		t.Errorf("%+v", got[:3])
	}
	j := got[3]
	near := func(name string, d, want time.Duration) {
		t.Helper()
		if d > want || d < want-time.Minute/2 {
			t.Errorf("%s is %s, not a little less than %s", name, d, want)
		}
	}
	near("until due", j.UntilDue, 5*time.Second)
	near("lease left", j.LeaseLeft, time.Minute)
	near("until the deadline", j.UntilEnd, time.Hour)
	near("minus age", -j.Age, -10*time.Minute)
	if !j.DueAt.Equal(j.ReadAt.Add(j.UntilDue)) {
		t.Errorf("due at %s, read at %s", j.DueAt, j.ReadAt)
	}
	j.UntilDue, j.LeaseLeft, j.UntilEnd, j.Age, j.DueAt, j.ReadAt, j.Payment.CreatedAt = 0, 0, 0, 0, time.Time{}, time.Time{}, time.Time{}
	if diff := cmp.Diff(consumer.Job{Tracked: true, TokenCurrent: true, Revision: 8, Detail: "processing", HasDeadline: true, Previous: 1500 * time.Millisecond,
		Counters: redelivery.Counters{Attempts: 1, Failures: 2, NotFounds: 3, Deferrals: 4, Replays: 5},
		Payment: payment.Payment{ID: jobs[0].Payment, Gateway: "sim", Account: "a", Reference: "r1", MerchantReference: "m", Class: "c", Lane: "high", AmountMinor: 100,
			Currency: "JPY", Status: payment.Pending, TraceParent: trace}}, j); diff != "" {
		t.Error(diff)
	}
}

func TestALeaseIsExtendedAndNeverShortened(t *testing.T) {
	r := newRecord(t)
	jobs, _ := r.claimed(t, "p", 3)
	stale := message.Poll{Payment: jobs[1].Payment, Token: jobs[0].Token}
	polls := []message.Poll{pollsOf(jobs)[2], stale, pollsOf(jobs)[0]}
	for _, d := range []time.Duration{time.Hour, time.Second} {
		held, err := r.jobs.Extend(t.Context(), polls, d)
		if err != nil || !held[0] || held[1] || !held[2] {
			t.Fatalf("%v, %v", held, err)
		}
	}
	for i, row := range r.read(t, jobs) {
		if long := row.LeaseLeft > 59*time.Minute; long != (i != 1) || row.Revision != 0 {
			t.Errorf("job %d has a lease of %s, revision %d", i, row.LeaseLeft, row.Revision)
		}
	}
}

func TestAPollOfAPaymentThatBecameFinalMeanwhileIsJudgedAsEverybodysWord(t *testing.T) {
	for _, c := range []struct {
		became, says payment.Status
		applied      bool
		status       string
		letters      string
		event        string
	}{
		{payment.Failed, payment.Succeeded, true, "succeeded it was paid poll 2", "late_success open failed 1 0", "1-2-succeeded payments.late_success.sim"},
		{payment.Cancelled, payment.Succeeded, true, "succeeded it was paid poll 2", "late_success open cancelled 1 0", "1-2-succeeded payments.late_success.sim"},
		{payment.Succeeded, payment.Failed, false, "succeeded said webhook 1", "conflict open failed 1 0", "1-conflict-1 payments.dead.sim.conflict"},
		{payment.Failed, payment.Expired, false, "failed said webhook 1", "conflict open expired 1 0", "1-conflict-1 payments.dead.sim.conflict"},
		{payment.Failed, payment.Failed, false, "failed said webhook 1", "", ""},
	} {
		t.Run(fmt.Sprintf("%s, says %s", c.became, c.says), func(t *testing.T) {
			r := newRecord(t)
			jobs, rows := r.claimed(t, "p", 2)
			r.became(t, []webhook.Arrival{arrival("e1", "p0", c.became)}, webhook.Applied)
			d, a := resolve(c.says)
			d.Detail = "it was paid"
			other, b := resolve(payment.Failed)
			late := result(jobs[0], rows[0], d, a)
			v := r.write(t, late, result(jobs[1], rows[1], other, b), late)
			if v[0].Applied == v[2].Applied && c.applied || v[0].Late != v[0].Applied || (v[0].Late || v[2].Late) != c.applied || !v[1].Applied || v[1].Late {
				t.Errorf("%+v", v)
			}
			if got := r.status(t, jobs[0].Payment); got != c.status {
				t.Error(got)
			}
			if got := r.lettersOf(t, jobs[0].Payment); got != c.letters {
				t.Error(got)
			}
			want := fmt.Sprintf("1-1-%s payments.resolved.sim.%s", c.became, c.became)
			if c.event != "" {
				want += ", " + c.event
			}
			if got := r.events(t, jobs[0].Payment); got != want {
				t.Error(got)
			}
			if n := query[int](t, r, `select count(*) from pollux.poll_attempts where payment_id = 1 and applied`); (n == 1) != c.applied {
				t.Errorf("%d of its attempts are applied", n)
			}
			requireSound(t, r)
		})
	}
}
