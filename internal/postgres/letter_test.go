package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/deadletter"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// dead tracks n payments and hands them to a person. The letters have the ids of the payments in a fresh record.
func (r *record) dead(tb testing.TB, prefix string, n int) []int64 {
	tb.Helper()
	jobs, rows := r.claimed(tb, prefix, n)
	for i := range jobs {
		r.die(tb, jobs[i], rows[i], redelivery.ReasonAttempts)
	}
	return r.openLetters(tb, deadletter.Filter{})
}

func (r *record) openLetters(tb testing.TB, f deadletter.Filter) []int64 {
	tb.Helper()
	letters, err := r.letters.List(tb.Context(), f, deadletter.Page{Limit: 1000})
	if err != nil {
		tb.Fatal(err)
	}
	var ids []int64
	for _, l := range letters {
		ids = append(ids, l.ID)
	}
	slices.Sort(ids)
	return ids
}

func (r *record) replay(tb testing.TB, ids []int64, first, gap time.Duration) deadletter.Outcome {
	tb.Helper()
	o, err := r.letters.Replay(tb.Context(), ids, first, gap)
	if err != nil {
		tb.Fatal(err)
	}
	slices.Sort(o.Replayed)
	return o
}

func TestReplayedPaymentsAreDueOneAfterTheOther(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 4)
	r.exec(t, `update pollux.poll_jobs set attempts = 9, failures = 8, not_founds = 7, deferrals = 6, window_started_at = now() - interval '1 day', last_delay_ms = 5`)
	o := r.replay(t, []int64{3, 1, 3, 4}, time.Minute, 10*time.Second)
	if !slices.Equal(o.Replayed, []int64{1, 3, 4}) || len(o.Refused) != 0 {
		t.Fatalf("%+v", o)
	}
	got := query[string](t, r, `
		select string_agg(concat_ws(' ', payment_id, state, next_poll_at - updated_at, window_started_at = next_poll_at, attempts, failures, not_founds, deferrals, replays,
		  last_delay_ms, revision), ', ' order by next_poll_at)
		from pollux.poll_jobs where state <> 'dead'`)
	if want := "3 scheduled 00:01:00 t 0 0 0 6 1 0 2, 1 scheduled 00:01:10 t 0 0 0 6 1 0 2, 4 scheduled 00:01:20 t 0 0 0 6 1 0 2"; got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	if jobs := r.claim(t, 10, time.Minute); len(jobs) != 0 {
		t.Error("a replayed payment is claimed before its turn")
	}
	if open, replaying := r.openLetters(t, deadletter.Filter{}), r.openLetters(t, deadletter.Filter{State: deadletter.Replaying}); !slices.Equal(open, []int64{2}) || !slices.Equal(replaying, []int64{1, 3, 4}) {
		t.Errorf("open %v, replaying %v", open, replaying)
	}
	requireSound(t, r)
}

func TestAReplayRefusesWithAReason(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 4)
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'webhook' where id = 2`)
	r.replay(t, []int64{3}, time.Hour, 0)
	if err := r.jobs.Bury(t.Context(), consumer.Poison{Subject: "s", Gateway: "sim", Body: []byte("x"), Why: "x"}); err != nil {
		t.Fatal(err)
	}
	o := r.replay(t, []int64{1, 2, 3, 5, 999}, 0, 0)
	var why []string
	for _, refused := range o.Refused {
		why = append(why, fmt.Sprintf("%d: %s", refused.ID, refused.Why))
	}
	slices.Sort(why)
	want := []string{
		"2: its payment is succeeded",
		"3: it is being replayed",
		"5: its message belongs to no payment: there is nothing to poll",
		"999: there is no such dead letter",
	}
	if !slices.Equal(o.Replayed, []int64{1}) || !slices.Equal(why, want) {
		t.Errorf("replayed %v, refused\n%s", o.Replayed, strings.Join(why, "\n"))
	}
	if o := r.replay(t, nil, 0, 0); len(o.Replayed)+len(o.Refused) != 0 {
		t.Errorf("%+v", o)
	}
	requireSound(t, r)
}

func TestOperatorsWhoReplayTheSameLettersAtOnceReplayThemOnce(t *testing.T) {
	r := newRecord(t)
	ids := r.dead(t, "p", 100)
	var mu sync.Mutex
	replayed := map[int64]int{}
	var wg sync.WaitGroup
	for i := range 4 {
		mine := slices.Clone(ids[i*10 : len(ids)-(3-i)*10])
		if i%2 == 1 {
			slices.Reverse(mine)
		}
		wg.Go(func() {
			o, err := r.letters.Replay(t.Context(), mine, 0, time.Millisecond)
			if err != nil {
				t.Error(err)
			}
			if len(o.Replayed)+len(o.Refused) != len(mine) {
				t.Errorf("%d replayed and %d refused of %d", len(o.Replayed), len(o.Refused), len(mine))
			}
			mu.Lock()
			defer mu.Unlock()
			for _, id := range o.Replayed {
				replayed[id]++
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if replayed[id] != 1 {
			t.Errorf("letter %d was replayed %d times", id, replayed[id])
		}
	}
	if n := query[int](t, r, `select count(*) from pollux.poll_jobs where replays <> 1`); n != 0 {
		t.Errorf("%d jobs do not count one replay", n)
	}
	requireSound(t, r)
}

func TestAPaymentThatDiesAgainKeepsItsLetter(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 1)
	first := query[time.Time](t, r, `select died_at from pollux.dead_letters`)
	for replays := 1; replays <= 2; replays++ {
		r.replay(t, []int64{1}, 0, 0)
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

func TestLettersAreListedByPageAndFilter(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `insert into pollux.dead_letters (gateway, account, class, reason, body, subject, died_at)
		select (array['sim', 'acme'])[1 + g % 2], (array['', 'de'])[1 + g % 3 / 2], (array['standard', 'high'])[1 + g % 5 / 4], (array['attempts', 'window'])[1 + g % 7 / 6],
		  'x', g::text, now() - g * interval '1 minute'
		from generate_series(1, 40) g`)
	r.exec(t, `update pollux.dead_letters set state = 'discarded', closed_at = now() where id = 40`)
	count := func(f deadletter.Filter) int { t.Helper(); return len(r.openLetters(t, f)) }
	for _, c := range []struct {
		filter deadletter.Filter
		where  string
	}{
		{deadletter.Filter{}, `state = 'open'`},
		{deadletter.Filter{State: "any"}, `true`},
		{deadletter.Filter{State: deadletter.Discarded}, `state = 'discarded'`},
		{deadletter.Filter{Gateway: "acme"}, `state = 'open' and gateway = 'acme'`},
		{deadletter.Filter{Account: "de", Class: "high"}, `state = 'open' and account = 'de' and class = 'high'`},
		{deadletter.Filter{Reason: "window"}, `state = 'open' and reason = 'window'`},
		{deadletter.Filter{Older: 10 * time.Minute}, `state = 'open' and died_at < now() - interval '10 minutes'`},
		{deadletter.Filter{Newer: 10*time.Minute + 30*time.Second, Older: 5 * time.Minute}, `state = 'open' and died_at between now() - interval '10.5 minutes' and now() - interval '5 minutes'`},
	} {
		if got, want := count(c.filter), query[int](t, r, `select count(*) from pollux.dead_letters where `+c.where); got != want || got == 0 {
			t.Errorf("%+v: %d letters, not %d", c.filter, got, want)
		}
	}
	var paged []int64
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
	if len(paged) != 39 || !slices.IsSortedFunc(paged, func(a, b int64) int { return int(b - a) }) {
		t.Errorf("%d letters: %v", len(paged), paged)
	}
}

func TestALetterIsShownWithItsPolls(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 2)
	d, err := r.letters.Show(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	if d.ID != 2 || *d.PaymentID != 2 || d.Reference != "p1" || *d.AmountMinor != 1999 || d.Currency != "EUR" || d.PaymentStatus != string(payment.Pending) ||
		d.Message != "connection refused" || d.Policy != "standard" || d.Worker != "worker-1" || len(d.Polls) != 1 || d.Polls[0].Class != "transport" || d.Polls[0].Disposition != "dead_letter" {
		t.Errorf("%+v", d)
	}
	if err := r.jobs.Bury(t.Context(), consumer.Poison{Subject: "s", Gateway: "sim", Body: []byte("\x00"), Why: "why", Count: 2}); err != nil {
		t.Fatal(err)
	}
	d, err = r.letters.Show(t.Context(), 3)
	if err != nil || d.PaymentID != nil || d.AmountMinor != nil || string(d.Body) != "\x00" || d.Message != "why" || d.Polls != nil {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := r.letters.Show(t.Context(), 999); !errors.Is(err, deadletter.ErrNotFound) {
		t.Errorf("%v", err)
	}
}
