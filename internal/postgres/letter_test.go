package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/audit"
	"pollux/internal/consumer"
	"pollux/internal/deadletter"
	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// operator is who acts in these tests.
var operator = By{Actor: audit.Actor{Name: "ada", Origin: "test"}, Reason: "a test"}

// dead tracks n payments and hands them to a person. The letters have the ids of the payments in a fresh record.
func (r *record) dead(tb testing.TB, prefix string, n int) []int64 {
	tb.Helper()
	jobs, rows := r.claimed(tb, prefix, n)
	for i := range jobs {
		r.die(tb, jobs[i], rows[i], redelivery.ReasonAttempts)
	}
	return r.openLetters(tb, "")
}

func filter(tb testing.TB, s string) deadletter.Filter {
	tb.Helper()
	f, err := deadletter.Parse(s)
	if err != nil {
		tb.Fatalf("%s: %v", s, err)
	}
	return f
}

func (r *record) openLetters(tb testing.TB, s string) []int64 {
	tb.Helper()
	letters, err := r.letters.List(tb.Context(), filter(tb, s), deadletter.Page{Limit: 1000})
	if err != nil {
		tb.Fatalf("%s: %v", s, err)
	}
	var ids []int64
	for _, l := range letters {
		ids = append(ids, l.ID)
	}
	slices.Sort(ids)
	return ids
}

func (r *record) change(tb testing.TB, c deadletter.Change, ids ...int64) deadletter.Outcome {
	tb.Helper()
	o, err := r.letters.Change(tb.Context(), deadletter.Selection{IDs: ids}, c, operator)
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// reopen takes back whatever was put aside or discarded.
func (r *record) reopen(tb testing.TB) {
	tb.Helper()
	if _, err := r.letters.Change(tb.Context(), deadletter.Selection{Filter: filter(tb, "state=parked,discarded")}, deadletter.Change{Verb: deadletter.Reopen}, operator); err != nil {
		tb.Fatal(err)
	}
}

func why(refused []deadletter.Refusal) string {
	var lines []string
	for _, r := range refused {
		lines = append(lines, fmt.Sprintf("%d: %s", r.ID, r.Why))
	}
	return strings.Join(lines, "\n")
}

func TestAFingerprintIsThatOfTheFault(t *testing.T) {
	r := newRecord(t)
	of := func(class string, http int, status, message string) string {
		return query[string](t, r, `select pollux.fingerprint($1, $2, $3, $4)`, class, http, status, message)
	}
	same := func(a, b string) {
		t.Helper()
		if of("transport", 502, "", a) != of("transport", 502, "", b) {
			t.Errorf("%q and %q are not the same fault", a, b)
		}
	}
	same("amount: the gateway says 5.704 KWD, expected 570.450 KWD", "amount: the gateway says 1 KWD, expected 2.00 KWD")
	same("dial tcp 10.0.0.1:443: connection refused", "dial tcp 192.168.1.20:8443:  connection refused")
	same("no payment 0af76519-16cd-43dd-8448-eb211c80319c", "no payment b7ad6b71-6920-3331-9448-eb211c80319d")
	same(`id: the gateway says "other", expected "mine"`, `id: the gateway says "x y", expected ""`)
	same("amount: the gateway says 5.704 KWD, expected 570.450 KWD", "amount: the gateway says 704 JPY, expected 1,000 JPY; it last changed 2026-01-02T03:04:05Z")
	same(`currency: the gateway says "USD", expected 19.99 EUR`, `currency: the gateway says "GBP", expected -1.00 USD; it last changed yesterday`)
	if of("mismatch", 200, "paid", "id: another") != of("mismatch", 200, "pending", "id: another") {
		t.Error("two payments with the same mismatch have two fingerprints")
	}
	if of("mismatch", 200, "", "amount: the gateway says 1.00 EUR, expected 2.00 EUR") == of("mismatch", 200, "", `currency: the gateway says "USD", expected 2.00 EUR`) {
		t.Error("two mismatches have one fingerprint")
	}
	if of("transport", 0, "", "HTTP 503 Busy") == of("transport", 0, "", "HTTP 503 Gone") {
		t.Error("what follows a number is no currency")
	}
	same("no such thing: 'abc'", "no such thing: 'x'")
	same("order_000013 is Locked", "order_7 is locked")
	same("", "")
	if got := of("transport", 502, "", "it doesn't answer and won't"); got == of("transport", 502, "", "it doesn't know and won't") {
		t.Error("an apostrophe is no quote")
	}
	base := of("transport", 502, "", "connection refused")
	for _, other := range []string{of("malformed", 502, "", "connection refused"), of("transport", 503, "", "connection refused"), of("transport", 502, "busy", "connection refused"),
		of("transport", 502, "", "connection reset")} {
		if other == base {
			t.Error("two faults have one fingerprint")
		}
	}
	if len(base) != 12 || strings.Trim(base, "0123456789abcdef") != "" {
		t.Errorf("%q", base)
	}
}

func TestAPaymentThatDiesAgainKeepsItsLetter(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 1)
	first := query[time.Time](t, r, `select died_at from pollux.dead_letters`)
	for replays := 1; replays <= 2; replays++ {
		r.replay(t, []int64{1})
		jobs := r.claim(t, 1, time.Minute)
		r.die(t, jobs[0], r.read(t, jobs)[0], redelivery.ReasonFailures)
		requireSound(t, r)
	}
	got := query[string](t, r, `select string_agg(concat_ws(' ', id, state, reason, replays, created_at = $1, died_at > $1), ', ') from pollux.dead_letters`, first)
	if want := "1 open failures 2 t t"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	var ids []string
	for _, e := range r.eventsOf(t, 1) {
		ids = append(ids, e.ID+" "+e.Subject)
	}
	if want := []string{"1-dead-0-attempts payments.dead.sim.attempts", "1-dead-1-failures payments.dead.sim.failures", "1-dead-2-failures payments.dead.sim.failures"}; !slices.Equal(ids, want) {
		t.Errorf("%v, not %v", ids, want)
	}
}

func TestAPaymentThatIsPolledIsNotBuried(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 1)
	r.exec(t, `select pollux.bury(1, 'attempts', '', 0::smallint, '', '', '', '', '', null)`)
	if n := query[int](t, r, `select count(*) from pollux.dead_letters`); n != 0 {
		t.Error("a payment whose job lives is with a person")
	}
	requireSound(t, r)
}

// TestFiltersChooseWhatTheySay compares each term with a condition of the test's own.
func TestFiltersChooseWhatTheySay(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `insert into pollux.dead_letters (gateway, account, class, reason, body, subject, died_at, created_at, last_class, http_status, gateway_status, message, amount_minor, currency,
		  attempts, failures, deferrals, replays, owner)
		select (array['sim', 'acme'])[1 + g % 2], (array['', 'de'])[1 + g % 3 / 2], (array['standard', 'high'])[1 + g % 5 / 4], (array['attempts', 'window'])[1 + g % 7 / 6],
		  'x', g::text, now() - g * interval '1 minute', now() - g * interval '1 hour', (array['transport', 'pending'])[1 + g % 2], (array[0, 502])[1 + g % 2], (array['', 'BUSY'])[1 + g % 4 / 3],
		  (array['connection refused', '100% "broken", it says', 'timeout'])[1 + g % 3], g * 1000, (array['EUR', 'JPY'])[1 + g % 2], g % 10, g % 11, g % 12, g % 3, (array['', 'ada'])[1 + g % 2]
		from generate_series(1, 40) g`)
	r.exec(t, `update pollux.dead_letters set state = 'discarded', closed_at = now() where id = 40`)
	r.exec(t, `update pollux.dead_letters set state = 'parked' where id in (38, 39)`)
	fingerprint := query[string](t, r, `select fingerprint from pollux.dead_letters where id = 1`)
	for s, where := range map[string]string{
		"":                                    `state = 'open'`,
		"state=any":                           `true`,
		"state=discarded,parked":              `state <> 'open'`,
		"state!=discarded":                    `state <> 'discarded'`,
		"gateway=acme":                        `state = 'open' and gateway = 'acme'`,
		"gateway!=acme":                       `state = 'open' and gateway <> 'acme'`,
		"gateway=acme,sim id<=3":              `id <= 3`,
		"account=de class=high":               `state = 'open' and account = 'de' and class = 'high'`,
		"account~D":                           `state = 'open' and account = 'de'`,
		"reason=window":                       `state = 'open' and reason = 'window'`,
		"reason!=window,failures":             `state = 'open' and reason <> 'window'`,
		"age>=10m":                            `state = 'open' and died_at < now() - interval '10 minutes'`,
		"age<10m30s age>5m":                   `died_at between now() - interval '10.5 minutes' and now() - interval '5 minutes'`,
		"first>1d":                            `state = 'open' and created_at < now() - interval '1 day'`,
		"answer=transport http=0":             `state = 'open' and last_class = 'transport'`,
		"http>=500":                           `state = 'open' and http_status = 502`,
		"amount>=200EUR":                      `state = 'open' and currency = 'EUR' and amount_minor >= 20000`,
		"amount<200.00 currency=EUR":          `state = 'open' and currency = 'EUR' and amount_minor < 20000`,
		"amount=3000JPY":                      `amount_minor = 3000 and currency = 'JPY'`,
		"currency=JPY":                        `state = 'open' and currency = 'JPY'`,
		"currency!=JPY":                       `state = 'open' and currency <> 'JPY'`,
		"fingerprint=" + fingerprint:          `state = 'open' and fingerprint = '` + fingerprint + `'`,
		"fingerprint=" + fingerprint[:5]:      `state = 'open' and fingerprint like '` + fingerprint[:5] + `%'`,
		"fingerprint!=" + fingerprint:         `state = 'open' and fingerprint <> '` + fingerprint + `'`,
		`text~"100% \"Broken\", it"`:          `state = 'open' and message like '100%'`,
		"text!~timeout":                       `state = 'open' and message <> 'timeout'`,
		"text~busy":                           `state = 'open' and gateway_status = 'BUSY'`,
		"text=timeout":                        `state = 'open' and message = 'timeout'`,
		"owner=none":                          `state = 'open' and owner = ''`,
		"owner=none,ada":                      `state = 'open'`,
		"owner~A":                             `state = 'open' and owner = 'ada'`,
		"attempts=3,4 failures>2":             `state = 'open' and attempts in (3, 4) and failures > 2`,
		"deferrals<=5 replays!=0":             `state = 'open' and deferrals <= 5 and replays <> 0`,
		"id=1,2,3":                            `id in (1, 2, 3)`,
		"id!=1 id<3":                          `id = 2`,
		"state=any gateway=sim reason=window": `gateway = 'sim' and reason = 'window'`,
	} {
		got := r.openLetters(t, s)
		want := query[[]int64](t, r, `select coalesce(array_agg(id order by id), '{}') from pollux.dead_letters where `+where)
		if !slices.Equal(got, want) || len(got) == 0 {
			t.Errorf("%s: %v, not %v", s, got, want)
		}
	}
}

func TestLettersAreListedPageByPage(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `insert into pollux.dead_letters (gateway, reason, body, subject) select 'sim', 'undecodable', 'x', g::text from generate_series(1, 40) g`)
	var paged, each []int64
	for page := (deadletter.Page{Limit: 7}); ; {
		letters, err := r.letters.List(t.Context(), deadletter.Filter{}, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range letters {
			paged, page.Before = append(paged, l.ID), l.ID
		}
		if len(letters) < page.Limit {
			break
		}
	}
	if err := r.letters.Each(t.Context(), deadletter.Filter{}, func(l deadletter.Letter) error { each = append(each, l.ID); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(paged) != 40 || !slices.IsSortedFunc(paged, func(a, b int64) int { return int(b - a) }) || !slices.Equal(paged, each) {
		t.Errorf("%d letters: %v\n%v", len(paged), paged, each)
	}
}

func TestLettersAreGroupedByTheirFault(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `insert into pollux.dead_letters (gateway, reason, body, subject, message, last_class, amount_minor, currency, died_at, created_at, replays)
		select (array['sim', 'acme'])[1 + g % 2], 'failures', 'x', g::text, 'no answer from 10.0.0.' || g, 'transport', g, (array['EUR', 'JPY'])[1 + g % 2],
		  now() - g * interval '10 minutes', now() - g * interval '20 minutes', g % 2
		from generate_series(1, 12) g`)
	r.exec(t, `insert into pollux.dead_letters (gateway, reason, body, subject, message) values ('sim', 'undecodable', 'x', 'other', 'no JSON')`)
	groups, total, err := r.letters.Groups(t.Context(), deadletter.Filter{}, 1)
	if err != nil || total.Groups != 2 || total.Letters != 13 || total.Money["EUR"] != 42 || len(groups) != 1 {
		t.Fatalf("%d of %+v, %v", len(groups), total, err)
	}
	g := groups[0]
	if g.Letters != 12 || g.Money["EUR"] != 2+4+6+8+10+12 || g.Money["JPY"] != 1+3+5+7+9+11 || !slices.Equal(g.Gateways, []string{"acme", "sim"}) || !slices.Equal(g.Reasons, []string{"failures"}) ||
		g.LastHour != 5 || g.HourBefore != 6 || g.CameBack != 6 || g.Sample.ID != 12 || g.Sample.Message != "no answer from 10.0.0.12" || g.Last.Sub(g.First) != 230*time.Minute {
		t.Errorf("%+v", g)
	}
	groups, total, err = r.letters.Groups(t.Context(), filter(t, "text~json"), 10)
	if err != nil || total.Groups != 1 || groups[0].Letters != 1 || len(groups[0].Money) != 0 {
		t.Errorf("%+v, %v", groups, err)
	}
}

func TestALetterIsShownWithItsPolls(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 2)
	r.change(t, deadletter.Change{Verb: deadletter.Remark, Note: "the key had expired", Link: "https://tickets.example/7"}, 2)
	r.replay(t, []int64{2})
	d, err := r.letters.Show(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	if d.ID != 2 || *d.PaymentID != 2 || d.Reference != "p1" || *d.AmountMinor != 1999 || d.Currency != "EUR" || d.PaymentStatus != string(payment.Pending) ||
		d.Message != "connection refused" || d.Policy != "standard" || d.Worker != "worker-1" || len(d.Polls) != 1 || d.Polls[0].Class != "transport" || d.Polls[0].Disposition != "dead_letter" {
		t.Errorf("%+v", d)
	}
	if len(d.Notes) != 1 || d.Notes[0].Text != "the key had expired" || d.Notes[0].Actor != "ada" || d.Notes[0].Login == "" || d.Link != "https://tickets.example/7" {
		t.Errorf("%+v", d.Notes)
	}
	if len(d.InReplays) != 1 || d.InReplays[0].Replay != 1 || d.InReplays[0].State != deadletter.Queued || d.Replay != 1 || d.State != deadletter.Replaying {
		t.Errorf("%+v", d.InReplays)
	}
	if diff := cmp.Diff(map[string]int{"transport": 1}, d.Classes); diff != "" || d.FirstClass != "transport" || d.FirstMessage != "connection refused" || d.FirstAt == nil {
		t.Errorf("%s %+v", diff, d)
	}
	if err := r.jobs.Bury(t.Context(), consumer.Poison{Subject: "s", Gateway: "sim", Body: []byte("\x00"), Why: "why", Count: 2}); err != nil {
		t.Fatal(err)
	}
	d, err = r.letters.Show(t.Context(), 3)
	if err != nil || d.PaymentID != nil || d.AmountMinor != nil || string(d.Body) != "\x00" || d.Message != "why" || d.Polls != nil || d.Deliveries != 2 {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := r.letters.Show(t.Context(), 999); !errors.Is(err, deadletter.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestTheFirstErrorOfALetterStays(t *testing.T) {
	r := newRecord(t)
	jobs, rows := r.claimed(t, "p", 1)
	held := result(jobs[0], rows[0], redelivery.Disposition{Verb: redelivery.Park, Reason: redelivery.ReasonFailure, Counters: redelivery.Counters{Failures: 1}},
		gateway.Answer{Class: gateway.Malformed, Message: "no JSON"})
	r.write(t, held)
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now()`)
	jobs = r.claim(t, 1, time.Minute)
	last := result(jobs[0], r.read(t, jobs)[0], redelivery.Disposition{Verb: redelivery.DeadLetter, Reason: redelivery.ReasonFailures}, gateway.Answer{Class: gateway.Transport, Message: "refused"})
	last.PolicyHash, last.Build = "0badcafe", "v1.2.3"
	r.write(t, last)
	for range 2 {
		d, err := r.letters.Show(t.Context(), 1)
		if err != nil || d.FirstClass != "malformed" || d.FirstMessage != "no JSON" || d.LastClass != "transport" || d.Message != "refused" {
			t.Errorf("%+v, %v", d, err)
		}
		if d.State == deadletter.Open && d.Replays == 0 && (d.PolicyHash != "0badcafe" || d.Build != "v1.2.3" || d.Classes["malformed"] != 1 || d.Classes["transport"] != 1) {
			t.Errorf("%+v", d)
		}
		r.replay(t, []int64{1})
		jobs = r.claim(t, 1, time.Minute)
		if len(jobs) == 1 {
			r.write(t, result(jobs[0], r.read(t, jobs)[0], redelivery.Disposition{Verb: redelivery.DeadLetter, Reason: redelivery.ReasonFailures}, gateway.Answer{Class: gateway.Transport, Message: "refused"}))
		}
	}
}

func TestLettersChangeAsTheirStateAllows(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 6)
	if err := r.jobs.Bury(t.Context(), consumer.Poison{Subject: "s", Gateway: "sim", Body: []byte("x"), Why: "x"}); err != nil {
		t.Fatal(err)
	}
	r.replay(t, []int64{6})
	states := func() string {
		return query[string](t, r, `select string_agg(concat_ws(' ', id, state, closed_by), ', ' order by id) from pollux.dead_letters`)
	}
	o := r.change(t, deadletter.Change{Verb: deadletter.Discard, Note: "a test payment"}, 1, 2, 6, 99)
	if !slices.Equal(o.Changed, []int64{1, 2}) || why(o.Refused) != "6: it is replaying\n99: there is no such dead letter" {
		t.Errorf("%+v", o)
	}
	o = r.change(t, deadletter.Change{Verb: deadletter.Park}, 2, 3, 4)
	if !slices.Equal(o.Changed, []int64{3, 4}) || why(o.Refused) != "2: it is discarded" {
		t.Errorf("%+v", o)
	}
	o = r.change(t, deadletter.Change{Verb: deadletter.Settle}, 5, 7)
	if !slices.Equal(o.Changed, []int64{7}) || !strings.HasPrefix(why(o.Refused), "5: its payment is pending") {
		t.Errorf("%+v", o)
	}
	if got, want := states(), "1 discarded ada, 2 discarded ada, 3 parked, 4 parked, 5 open, 6 replaying, 7 resolved ada"; got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	requireSound(t, r)
	// a late webhook: what is put aside closes, what was discarded stays so and cannot be taken back
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'webhook' where id in (1, 3)`)
	o = r.change(t, deadletter.Change{Verb: deadletter.Reopen}, 1, 2, 3, 4, 5)
	if !slices.Equal(o.Changed, []int64{2, 4}) || why(o.Refused) != "1: its payment is succeeded\n3: its payment is succeeded\n5: it is open" {
		t.Errorf("%+v", o)
	}
	if got, want := states(), "1 discarded ada, 2 open, 3 resolved webhook, 4 open, 5 open, 6 replaying, 7 resolved ada"; got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	o = r.change(t, deadletter.Change{Verb: deadletter.Assign, Owner: "grace"}, 1, 4)
	if !slices.Equal(o.Changed, []int64{1, 4}) || query[int](t, r, `select count(*) from pollux.dead_letters where owner = 'grace'`) != 2 {
		t.Errorf("%+v", o)
	}
	requireSound(t, r)
}

func TestWhatPeopleDoWithLettersIsInTheAuditLogOnce(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 3)
	r.change(t, deadletter.Change{Verb: deadletter.Park, Note: "later"}, 1, 2)
	r.change(t, deadletter.Change{Verb: deadletter.Park, Note: "again"}, 2)
	r.change(t, deadletter.Change{Verb: deadletter.Assign, Owner: "grace"}, 3)
	r.change(t, deadletter.Change{Verb: deadletter.Remark, Note: "seen"}, 3)
	got := query[string](t, r, `select string_agg(concat_ws(' ', actor, action, outcome, target, before, after), E'\n' order by seq) from pollux.audit_log`)
	want := strings.Join([]string{
		`ada dlq.park done dead_letter:1 {"state": "open"} {"state": "parked"}`,
		`ada dlq.park done dead_letter:2 {"state": "open"} {"state": "parked"}`,
		`ada dlq.park refused dead_letter:2 {"state": "parked"} {"refused": "it is parked"}`,
		`ada dlq.assign done dead_letter:3 {"owner": "none"} {"owner": "grace"}`,
		`ada dlq.note done dead_letter:3 {} {"note": "seen"}`,
	}, "\n")
	if got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	_, err := r.pool.Exec(t.Context(), `update pollux.dead_letter_notes set text = 'x'`)
	if !refusedBy(err, "dead_letter_notes_append_only") {
		t.Errorf("a note can be changed: %v", err)
	}
	_, err = r.pool.Exec(t.Context(), `delete from pollux.dead_letter_notes`)
	if !refusedBy(err, "dead_letter_notes_append_only") {
		t.Errorf("a note can be deleted: %v", err)
	}
}

func TestAFinalPaymentIsReviewedOnceForEachReason(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 2)
	if n := query[*int64](t, r, `select pollux.review(1, 'conflict', 'webhook')`); n != nil {
		t.Error("a pending payment is reviewed")
	}
	r.exec(t, `update pollux.payments set status = 'failed', status_source = 'poll'`)
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'webhook' where id = 1`) // late
	first := query[int64](t, r, `select pollux.review(1, 'conflict', 'webhook', 'refunded', 'it says that it was refunded')`)
	if again := query[int64](t, r, `select pollux.review(1, 'conflict', 'poll', 'failed', 'it says that it failed')`); again != first {
		t.Errorf("letters %d and %d", first, again)
	}
	got := query[string](t, r, `select string_agg(concat_ws(' ', payment_id, reason, state, review, gateway_status, message, deliveries), E'\n' order by id) from pollux.dead_letters`)
	if want := "1 late_success open t failed it was failed and succeeded, says the webhook 1\n1 conflict open t failed it says that it failed 2"; got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	requireSound(t, r)
	if o := r.replay(t, []int64{1}); len(o.Released) != 0 || o.Refused[0].Why != "its payment is succeeded" {
		t.Errorf("%+v", o)
	}
	if o := r.change(t, deadletter.Change{Verb: deadletter.Settle}, 1, 2); len(o.Changed) != 2 {
		t.Errorf("%+v", o)
	}
	if third := query[int64](t, r, `select pollux.review(1, 'conflict', 'poll', 'failed', 'again')`); third == first {
		t.Error("what is said after a letter was closed is not seen")
	}
	if o := r.change(t, deadletter.Change{Verb: deadletter.Reopen}, 2); len(o.Changed) != 0 {
		t.Errorf("%+v", o)
	}
	requireSound(t, r)
}
