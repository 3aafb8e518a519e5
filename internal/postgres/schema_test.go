package postgres

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// brokenSQL counts what must never be, in one snapshot. Each line is one invariant; the sum of each is 0.
const brokenSQL = `
	select
	  (select count(*) from pollux.payments p where p.status = 'pending' and not exists (select from pollux.poll_jobs j where j.payment_id = p.id))
	    as "pending payments without a job",
	  (select count(*) from pollux.poll_jobs j where not exists (select from pollux.payments p where p.id = j.payment_id and p.status = 'pending'))
	    as "jobs without a pending payment",
	  (select count(*) from pollux.dead_letters d join pollux.payments p on p.id = d.payment_id where d.state in ('open', 'replaying', 'parked') and not d.review and p.status <> 'pending')
	    as "letters open for a final payment",
	  (select count(*) from pollux.poll_jobs j where j.state = 'dead' and not exists
	    (select from pollux.dead_letters d where d.payment_id = j.payment_id and d.state in ('open', 'parked', 'discarded')))
	    as "dead jobs without an open letter",
	  (select count(*) from pollux.dead_letters d where d.payment_id is not null and d.state in ('open', 'parked') and not d.review and not exists
	    (select from pollux.poll_jobs j where j.payment_id = d.payment_id and j.state = 'dead'))
	    as "open letters whose job lives",
	  (select count(*) from pollux.payments p where p.revision <>
	    (select count(*) from pollux.outbox o where o.payment_id = p.id and o.subject !~ '^payments\.(dead|review)\.'))
	    as "payments with more or fewer events than transitions",
	  (select count(*) from pollux.payments p where (p.status <> 'pending' and p.revision > 0)::int <>
	    (select count(*) from pollux.outbox o where o.payment_id = p.id and o.body::json ->> 'previous_status' = 'pending'))
	    as "payments that did not become final exactly once",
	  (select count(*) - count(distinct event_id) from pollux.outbox)
	    as "events with the same id",
	  (select count(*) from pollux.dead_letters d where d.payment_id is not null and case when d.review then cardinality(d.said) else d.replays + 1 end <
	    (select count(*) from pollux.outbox o where o.payment_id = d.payment_id and o.subject ~ '^payments\.dead\.' and o.body::json ->> 'dead_letter_id' = d.id::text))
	    as "letters with more announcements than deaths",
	  (select count(*) from pollux.dead_letters d join pollux.poll_jobs j on j.payment_id = d.payment_id where d.state = 'replaying' and j.state = 'dead')
	    as "replayed letters whose job is dead",
	  (select count(*) from pollux.replay_items i where i.state = 'queued' and not exists
	    (select from pollux.dead_letters d where d.id = i.letter_id and d.state = 'replaying'))
	    as "queued letters that are not replayed",
	  (select abs((select count(*) from pollux.replay_items where released_at is not null) -
	    (select count(*) from pollux.audit_log where action = 'dlq.replay' and outcome = 'done')))
	    as "releases that are not in the audit log, or the other way round"`

// broken says which invariants do not hold.
func broken(tb testing.TB, r *record) string {
	tb.Helper()
	rows, err := r.pool.Query(tb.Context(), brokenSQL)
	if err != nil {
		tb.Fatal(err)
	}
	defer rows.Close()
	var what []string
	for rows.Next() {
		counts, err := rows.Values()
		if err != nil {
			tb.Fatal(err)
		}
		for i, n := range counts {
			if n != int64(0) {
				what = append(what, fmt.Sprintf("%d %s", n, rows.FieldDescriptions()[i].Name))
			}
		}
	}
	if rows.Err() != nil {
		tb.Fatal(rows.Err())
	}
	return strings.Join(what, ", ")
}

func requireSound(tb testing.TB, r *record) {
	tb.Helper()
	if what := broken(tb, r); what != "" {
		tb.Fatalf("the record has %s", what)
	}
}

// event is a row of the outbox.
type event struct {
	ID, Subject, Trace string
	Body               map[string]any
}

// events returns the events of a payment, the oldest first.
func (r *record) eventsOf(tb testing.TB, id payment.ID) []event {
	tb.Helper()
	rows, err := r.pool.Query(tb.Context(), `
		select event_id, subject, coalesce(traceparent, ''), body
		from pollux.outbox
		where payment_id = $1
		order by seq`, int64(id))
	if err != nil {
		tb.Fatal(err)
	}
	defer rows.Close()
	var events []event
	for rows.Next() {
		var e event
		var body string
		if err := rows.Scan(&e.ID, &e.Subject, &e.Trace, &body); err != nil {
			tb.Fatal(err)
		}
		if err := json.Unmarshal([]byte(body), &e.Body); err != nil {
			tb.Fatal(err)
		}
		events = append(events, e)
	}
	if rows.Err() != nil {
		tb.Fatal(rows.Err())
	}
	return events
}

// insert inserts a payment with a status, as a payment service that does not use the functions would.
func (r *record) insert(tb testing.TB, reference string, s payment.Status) payment.ID {
	tb.Helper()
	return payment.ID(query[int64](tb, r, `
		insert into pollux.payments (gateway, reference, amount_minor, currency, status, status_source)
		values ('sim', $1, 1999, 'EUR', $2, case when $2 <> 'pending' then 'poll' end)
		returning id`, reference, string(s)))
}

func refusedBy(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23514" && pg.ConstraintName == constraint
}

func TestStatusesChangeAsThePureCoreSays(t *testing.T) {
	r := newRecord(t)
	sources := []payment.Source{payment.ByPoll, payment.ByWebhook, payment.ByReconciliation, payment.ByOperator, ""}
	for _, from := range payment.Statuses {
		for _, to := range payment.Statuses {
			for _, by := range sources {
				name := fmt.Sprintf("%s-%s-%s", from, to, by)
				id := r.insert(t, name, from)
				var source any
				if by != "" {
					source = string(by)
				}
				_, err := r.pool.Exec(t.Context(), `update pollux.payments set status = $2, status_source = coalesce($3, case when $2 = status then status_source end) where id = $1`,
					int64(id), string(to), source)
				kind := payment.Between(from, to)
				conflict := kind == payment.Conflict && to != payment.Pending && by != "" && by != payment.ByOperator
				allowed := kind == payment.Same ||
					by != "" && (kind == payment.Resolution || kind == payment.LateSuccess || by == payment.ByOperator && to != payment.Pending)
				if (err == nil) != (allowed || conflict) {
					t.Errorf("%s (%s): allowed %t, the schema says %v", name, kind, allowed, err)
				}
				if err != nil && !refusedBy(err, "payments_machine") {
					t.Errorf("%s: refused by something else: %v", name, err)
				}
				want, changed := from, 0
				if allowed && from != to {
					want, changed = to, 1
				}
				if got, err := r.jobs.ByID(t.Context(), id); err != nil || got != want {
					t.Errorf("%s: it is %s, not %s, %v", name, got, want, err)
				}
				letters := query[int](t, r, `select count(*) from pollux.dead_letters where payment_id = $1 and reason = 'conflict' and state = 'open' and gateway_status = $2`, int64(id), string(to))
				if (letters == 1) != conflict {
					t.Errorf("%s: %d conflicts", name, letters)
				}
				if events := r.eventsOf(t, id); len(events) != changed+letters {
					t.Errorf("%s: %d events", name, len(events))
				}
				if jobs := query[int](t, r, `select count(*) from pollux.poll_jobs where payment_id = $1`, int64(id)); (jobs == 1) != (want == payment.Pending) {
					t.Errorf("%s: %d jobs", name, jobs)
				}
			}
		}
	}
}

func TestAJobExistsExactlyWhileItsPaymentIsPending(t *testing.T) {
	r := newRecord(t)
	pending, other, final := r.insert(t, "pending", payment.Pending), r.insert(t, "other", payment.Pending), r.insert(t, "final", payment.Failed)
	r.exec(t, `create table app_payments (id bigint)`)
	r.exec(t, `create function app_job() returns trigger language plpgsql as $$ begin delete from pollux.poll_jobs where payment_id = new.id; return null; end $$`)
	r.exec(t, `create trigger app_job after insert on app_payments for each row execute function app_job()`)
	requireSound(t, r)
	for _, sql := range []string{
		`delete from pollux.poll_jobs where payment_id = $1`,
		`delete from pollux.poll_jobs where payment_id in ($1, $3)`,
		`with gone as (delete from pollux.poll_jobs where payment_id = $1 returning payment_id) update pollux.payments set status_detail = 'x' where id = $1`,
		`with gone as (delete from pollux.poll_jobs where payment_id in ($1, $3) returning payment_id) update pollux.payments set status = 'failed', status_source = 'poll' where id = $1`,
		`insert into app_payments (id) values ($1)`,
		`insert into pollux.poll_jobs (payment_id, gateway, lane) values ($2, 'sim', 'normal')`,
		`insert into pollux.poll_jobs (payment_id, gateway, lane) values ($1, 'sim', 'normal')`,
		`insert into pollux.poll_jobs (payment_id, gateway, lane) values ($1, 'sim', 'normal') on conflict do nothing`,
		`insert into pollux.poll_jobs (payment_id, gateway, lane) values (-1, 'sim', 'normal')`,
		`update pollux.poll_jobs set payment_id = $2 where payment_id = $1`,
		`update pollux.poll_jobs set payment_id = -payment_id where payment_id = $1`,
		`update pollux.payments set status = 'pending' where id = $2`,
		`delete from pollux.payments where id = $1`,
		`delete from pollux.payments`,
		`truncate pollux.poll_jobs`,
		`truncate pollux.payments cascade`,
	} {
		sql = strings.NewReplacer("$1", fmt.Sprint(pending), "$2", fmt.Sprint(final), "$3", fmt.Sprint(other)).Replace(sql)
		if _, err := r.pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("allowed: %s", sql)
		} else if !refusedBy(err, "poll_jobs_while_pending") && !refusedBy(err, "payments_machine") {
			t.Errorf("refused by something else: %v: %s", err, sql)
		}
		requireSound(t, r)
	}
	for _, sql := range []string{
		`delete from pollux.payments where status = 'failed'`,
		`update pollux.poll_jobs set payment_id = payment_id`,
		`insert into pollux.payments (gateway, reference, amount_minor, currency) select 'sim', g::text, 1, 'EUR' from generate_series(1, 500) g`,
		`update pollux.payments set status = 'expired', status_source = 'reconciliation' where id % 2 = 0`,
		`truncate pollux.payments, pollux.poll_jobs, pollux.dead_letters, pollux.outbox`,
	} {
		r.exec(t, sql)
		requireSound(t, r)
	}
}

func TestAPaymentKeepsWhatItIs(t *testing.T) {
	r := newRecord(t)
	pending, final := r.insert(t, "pending", payment.Pending), r.insert(t, "final", payment.Failed)
	for _, id := range []payment.ID{pending, final} {
		for _, set := range []string{"id = default", "gateway = 'other'", "account = 'other'", "reference = 'other'", "amount_minor = amount_minor + 1", "currency = 'USD'",
			"status = 'succeeded', status_source = 'operator', amount_minor = 1"} {
			if _, err := r.pool.Exec(t.Context(), `update pollux.payments set `+set+` where id = $1`, int64(id)); !refusedBy(err, "payments_keep") {
				t.Errorf("%v: %s", err, set)
			}
		}
	}
	r.exec(t, `update pollux.payments set amount_minor = amount_minor, reference = reference, merchant_reference = 'm', class = 'slow'`)
	r.exec(t, `insert into pollux.dead_letter_notes (letter_id, actor, text) values (1, 'ada', 'x')`)
	for _, sql := range []string{`truncate pollux.dead_letter_notes`, `delete from pollux.dead_letter_notes`, `update pollux.dead_letter_notes set text = 'y'`} {
		if _, err := r.pool.Exec(t.Context(), sql); !refusedBy(err, "dead_letter_notes_append_only") {
			t.Errorf("%v: %s", err, sql)
		}
	}
	requireSound(t, r)
}

func TestAJobHasALeaseExactlyWhileItIsOut(t *testing.T) {
	r := newRecord(t)
	r.insert(t, "one", payment.Pending)
	for _, set := range []string{
		`state = 'in_flight'`,
		`state = 'held', lock_token = gen_random_uuid()`,
		`state = 'held', locked_until = now()`,
		`state = 'deferred'`,
		`locked_until = now()`,
		`lock_token = gen_random_uuid(), locked_until = now()`,
		`state = 'dead', lock_token = gen_random_uuid(), locked_until = now()`,
		`state = 'asleep'`,
		`next_poll_at = 'infinity'`,
		`locked_until = '-infinity'`,
	} {
		if _, err := r.pool.Exec(t.Context(), `update pollux.poll_jobs set `+set); err == nil {
			t.Errorf("allowed: %s", set)
		}
	}
	r.exec(t, `update pollux.poll_jobs set state = 'in_flight', lock_token = gen_random_uuid(), locked_until = now()`)
}

func TestATriggerOfThePaymentServiceMayTrack(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `create table app_payments (reference text)`)
	r.exec(t, `create function app_track() returns trigger language plpgsql as $$
		begin perform pollux.track_payment('sim', new.reference, 100, 'EUR'); return null; end $$`)
	r.exec(t, `create trigger app_track after insert on app_payments for each row execute function app_track()`)
	r.exec(t, `insert into app_payments select g::text from generate_series(1, 10) g`)
	if n := query[int](t, r, `select count(*) from pollux.poll_jobs`); n != 10 {
		t.Fatalf("%d jobs", n)
	}
	requireSound(t, r)
}

func TestEachTransitionIsOneEvent(t *testing.T) {
	r := newRecord(t)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	id := payment.ID(query[int64](t, r, `select pollux.track_payment('sim', 'pay"1"', 9007199254740993, 'EUR', class => 'high_value', account => 'de',
		merchant_reference => 'Bestellung „7“', metadata => '{"order": {"id": 7}}', traceparent => $1)`, trace))
	turn := func(set string) { // in a session with another time zone
		r.exec(t, fmt.Sprintf(`set time zone 'Asia/Kolkata'; update pollux.payments set %s where id = %d; reset time zone`, set, id))
	}
	turn(`status_detail = 'processing'`)
	turn(`status = 'failed', status_detail = 'declined', status_source = 'poll'`)
	turn(`status = 'failed', status_detail = 'declined again'`)
	turn(`status = 'succeeded', status_detail = '', status_source = 'webhook'`)
	turn(`status = 'cancelled', status_source = 'operator'`)
	events := r.eventsOf(t, id)
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprintf("%s %s: %s to %s by %s: %s %s", e.ID, e.Subject, e.Body["previous_status"], e.Body["status"], e.Body["source"], e.Body["status_detail"], e.Trace))
	}
	want := []string{
		fmt.Sprintf("%d-1-failed payments.resolved.sim.failed: pending to failed by poll: declined %s", id, trace),
		fmt.Sprintf("%d-2-succeeded payments.late_success.sim: failed to succeeded by webhook:  %s", id, trace),
		fmt.Sprintf("%d-3-cancelled payments.resolved.sim.cancelled: succeeded to cancelled by operator:  %s", id, trace),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	raw := query[string](t, r, `select body from pollux.outbox where event_id = $1`, events[0].ID)
	occurred := query[string](t, r, `select to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS') from pollux.outbox where event_id = $1`, events[0].ID)
	if at, _ := events[0].Body["occurred_at"].(string); !strings.HasPrefix(at, occurred) || !strings.HasSuffix(at, "+00:00") {
		t.Errorf("it occurred at %s, not at %s UTC", at, occurred)
	}
	delete(events[0].Body, "occurred_at")
	if diff := cmp.Diff(map[string]any{
		"event_id": events[0].ID, "payment_id": float64(id), "gateway": "sim", "account": "de", "reference": `pay"1"`, "merchant_reference": "Bestellung „7“",
		"class": "high_value", "amount_minor": float64(9007199254740993), "currency": "EUR", "status": "failed", "previous_status": "pending",
		"status_detail": "declined", "source": "poll", "metadata": map[string]any{"order": map[string]any{"id": float64(7)}},
	}, events[0].Body); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(raw, "9007199254740993") {
		t.Errorf("the amount is rounded: %s", raw)
	}
	requireSound(t, r)
}

func TestOneStatementFinishesAThousandPayments(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 1000)
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'reconciliation' where status = 'pending'`)
	if n := query[int](t, r, `select count(*) from pollux.outbox where subject = 'payments.resolved.sim.succeeded'`); n != 1000 {
		t.Fatalf("%d events", n)
	}
	requireSound(t, r)
}

func TestEverySubjectOfTheSchemaCanBePublished(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 4)
	jobs := r.claim(t, 3, 0)
	if err := r.relay.SetAside(t.Context(), []outbox.SetAside{{Job: jobs[0], Reason: string(redelivery.ReasonUnpublishable)}}); err != nil {
		t.Fatal(err)
	}
	r.exec(t, `update pollux.payments set status = 'failed', status_source = 'poll'`)
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'poll'`)
	rows, err := r.pool.Query(t.Context(), `select distinct subject from pollux.outbox`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		var subject string
		if err := rows.Scan(&subject); err != nil {
			t.Fatal(err)
		}
		if n++; !message.ValidSubject(subject) {
			t.Errorf("%s cannot be published", subject)
		}
	}
	if n != 3 {
		t.Errorf("%d subjects", n)
	}
}
