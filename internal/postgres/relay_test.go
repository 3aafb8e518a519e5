package postgres

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pollux/internal/outbox"
	"pollux/internal/payment"
)

// sim is a queue of gateway sim.
func sim(lane string) outbox.Queue { return outbox.Queue{Gateway: "sim", Lane: lane} }

func paymentsOf(jobs []outbox.Job) []payment.ID {
	ids := make([]payment.ID, len(jobs))
	for i, j := range jobs {
		ids[i] = j.Payment
	}
	slices.Sort(ids)
	return ids
}

func TestAClaimCarriesWhatAPollNeeds(t *testing.T) {
	r := newRecord(t)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	id := query[int64](t, r, `select pollux.track_payment('sim', 'r', 1, 'EUR', lane => 'high', traceparent => $1)`, trace)
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now() - interval '1 minute', revision = 7`)
	jobs := r.claim(t, 10, time.Minute)
	if len(jobs) != 1 {
		t.Fatalf("%d jobs", len(jobs))
	}
	j := jobs[0]
	row := query[string](t, r, `select concat_ws(' ', state, lock_token, locked_by, locked_until - updated_at) from pollux.poll_jobs where payment_id = $1`, id)
	if want := "in_flight " + j.Token + " relay-1 00:01:00"; row != want {
		t.Errorf("the row is %s, not %s", row, want)
	}
	if j.Queue != sim("high") || j.Payment != payment.ID(id) || j.Revision != 7 || j.TraceParent != trace || j.Lag < time.Minute || j.Lag > 2*time.Minute {
		t.Errorf("%+v", j)
	}
}

func TestRelaysNeverClaimTheSameJob(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "p", 3000)
	var mu sync.Mutex
	var claimed []payment.ID
	tokens := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 8 {
		relay := NewRelay(r.pool, time.Hour, time.Hour)
		wg.Go(func() {
			for {
				jobs, err := relay.Claim(t.Context(), room(100), 70, fmt.Sprintf("relay-%d", i), time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				claimed = append(claimed, paymentsOf(jobs)...)
				for _, j := range jobs {
					tokens[j.Token] = true
				}
				done := len(claimed) >= len(ids)
				mu.Unlock()
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(claimed)
	slices.Sort(ids)
	if !slices.Equal(claimed, ids) || len(tokens) != len(ids) {
		t.Errorf("%d jobs were claimed with %d tokens, of %d", len(claimed), len(tokens), len(ids))
	}
	if jobs := r.claim(t, 10, time.Minute); len(jobs) != 0 {
		t.Errorf("%d jobs were claimed while they are leased", len(jobs))
	}
}

func TestALeaseThatRanOutIsClaimedAgain(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 1)
	first := r.claim(t, 10, 50*time.Millisecond)
	var second []outbox.Job
	eventually(t, "the lease runs out", func() bool { second = r.claim(t, 10, time.Minute); return len(second) > 0 })
	if first[0].Payment != second[0].Payment || first[0].Token == second[0].Token {
		t.Errorf("%+v, then %+v", first[0], second[0])
	}
	rows, err := r.jobs.Read(t.Context(), append(pollsOf(first), pollsOf(second)...))
	if err != nil || rows[0].TokenCurrent || !rows[1].TokenCurrent {
		t.Errorf("the first token is current: %t, the second: %t, %v", rows[0].TokenCurrent, rows[1].TokenCurrent, err)
	}
}

// A relay that looks from where it was would lose the first payment: its id is lower, its commit later.
func TestAClaimFindsWhatCommitsLate(t *testing.T) {
	r := newRecord(t)
	ctx := t.Context()
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	var late int64
	if err := tx.QueryRow(ctx, `insert into pollux.payments (gateway, reference, amount_minor, currency, poll_after)
		values ('sim', 'late', 1, 'EUR', now() - interval '1 hour') returning id`).Scan(&late); err != nil {
		t.Fatal(err)
	}
	early := r.track(t, "early", 1)
	if jobs := r.claim(t, 10, time.Minute); !slices.Equal(paymentsOf(jobs), early) {
		t.Fatalf("%v", jobs)
	}
	for range 100 { // the relay is far beyond the late payment
		if jobs := r.claim(t, 10, time.Minute); len(jobs) != 0 {
			t.Fatalf("%v was claimed before its commit", jobs)
		}
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the late payment is claimed", func() bool {
		jobs := r.claim(t, 10, time.Minute)
		return len(jobs) == 1 && jobs[0].Payment == payment.ID(late)
	})
}

func TestAClaimKeepsToRoomsLimitAndOrder(t *testing.T) {
	r := newRecord(t)
	for _, lane := range []string{"high", "normal", "low"} {
		r.exec(t, `insert into pollux.payments (gateway, reference, amount_minor, currency, lane, poll_after)
			select 'sim', $1 || g, g, 'EUR', $1, now() - g * interval '1 minute' from generate_series(1, 10) g`, lane)
	}
	claim := func(limit int, rooms ...outbox.Room) (got []string) {
		t.Helper()
		jobs, err := NewRelay(r.pool, 0, 0).Claim(t.Context(), rooms, limit, "me", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			got = append(got, query[string](t, r, `select reference from pollux.payments where id = $1`, int64(j.Payment)))
		}
		return got
	}
	for _, c := range []struct {
		limit int
		rooms []outbox.Room
		want  []string
	}{
		{100, []outbox.Room{{Queue: sim("high"), N: 2}, {Queue: sim("low"), N: 1}}, []string{"high10", "low10", "high9"}}, // each queue's oldest, the oldest first
		{3, []outbox.Room{{Queue: sim("low"), N: 2}, {Queue: sim("high"), N: 9}}, []string{"low9", "high8", "low8"}},      // the first queue's room comes first
		{100, []outbox.Room{{Queue: sim("high"), N: 0}, {Queue: sim("normal"), N: -1}}, nil},
		{0, []outbox.Room{{Queue: sim("high"), N: 5}}, nil},
		{100, []outbox.Room{{Queue: outbox.Queue{Gateway: "other", Lane: "high"}, N: 5}}, nil},
		{100, nil, nil},
	} {
		if got := claim(c.limit, c.rooms...); !slices.Equal(got, c.want) {
			t.Errorf("limit %d, rooms %v: %v, not %v", c.limit, c.rooms, got, c.want)
		}
	}
	if n := query[int](t, r, `select count(*) from pollux.poll_jobs where state = 'in_flight'`); n != 6 {
		t.Errorf("%d jobs are leased, 6 were claimed", n)
	}
}

// A backlog is worked off from its old end although each claim begins where the last one ended.
func TestClaimsWorkOffABacklogInOrder(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `insert into pollux.payments (gateway, reference, amount_minor, currency, lane, poll_after)
		select 'sim', g::text, g, 'EUR', case g % 3 when 0 then 'high' else 'normal' end, now() - (g / 7) * interval '1 second' from generate_series(1, 2000) g`)
	last := map[string]time.Time{}
	total := 0
	for {
		jobs := r.claim(t, 90, time.Minute)
		for _, j := range jobs {
			if j.DueAt.Before(last[j.Lane]) {
				t.Fatalf("a job of %s that was due at %s is claimed after one of %s", j.Lane, j.DueAt, last[j.Lane])
			}
			last[j.Lane] = j.DueAt
		}
		if total += len(jobs); len(jobs) == 0 {
			break
		}
	}
	if total != 2000 {
		t.Errorf("%d of 2000 jobs were claimed before a claim found none", total)
	}
}

func TestWhatIsNotDueIsNotClaimed(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 5)
	for i, set := range []string{
		`next_poll_at = now() + interval '1 hour'`,
		`state = 'held', next_poll_at = now(), lock_token = gen_random_uuid(), locked_until = now() + interval '1 hour'`,
		`state = 'deferred', next_poll_at = now(), lock_token = gen_random_uuid(), locked_until = now() + interval '1 hour'`,
		`state = 'in_flight', next_poll_at = now() + interval '1 hour', lock_token = gen_random_uuid(), locked_until = now() - interval '1 hour'`,
		`state = 'dead', next_poll_at = now() - interval '1 hour'`,
	} {
		r.exec(t, fmt.Sprintf(`update pollux.poll_jobs set %s where payment_id = %d`, set, i+1))
	}
	if jobs := r.claim(t, 10, time.Minute); len(jobs) != 0 {
		t.Errorf("%+v", jobs)
	}
	r.exec(t, `update pollux.poll_jobs set locked_until = case when lock_token is not null then now() - interval '1 second' end, next_poll_at = now() - interval '1 second' where state <> 'dead'`)
	r.relay.jobs.forget()
	if jobs := r.claim(t, 10, time.Minute); !slices.Equal(paymentsOf(jobs), []payment.ID{1, 2, 3, 4}) {
		t.Errorf("%+v", jobs)
	}
}

// While a transaction is open anywhere, the entries of rows that were worked off stay in the indexes. A claim must not walk over all of them.
func TestAnOpenTransactionDoesNotSlowClaims(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `alter table pollux.poll_jobs set (autovacuum_enabled = off)`)
	ctx := t.Context()
	dump, err := pgx.Connect(ctx, r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer dump.Close(context.WithoutCancel(ctx))
	if _, err := dump.Exec(ctx, `begin isolation level repeatable read; select count(*) from pollux.payments`); err != nil {
		t.Fatal(err)
	}
	relay, plans := explain(t, r.url, true)
	work := func() {
		r.exec(t, `insert into pollux.payments (gateway, reference, amount_minor, currency, poll_after)
			select 'sim', concat(g), g, 'EUR', now() - interval '1 hour' * random() from generate_series(1, 4000) g`)
		for len(r.claim(t, 500, time.Minute)) > 0 {
		}
		r.exec(t, `update pollux.payments set status = 'failed', status_source = 'poll' where status = 'pending'`)
		for n := 1; n > 0; {
			var err error
			if n, err = r.relay.PublishEvents(ctx, 500, time.Second, stored); err != nil {
				t.Fatal(err)
			}
		}
	}
	touched := func(what func()) (pages float64) {
		plans.take()
		what()
		for _, p := range plans.take() {
			pages += p.Plan.Hit + p.Plan.Read
		}
		return pages
	}
	claim := func() {
		if jobs := relay.claim(t, 100, time.Minute); len(jobs) != 0 {
			t.Fatalf("%d jobs", len(jobs))
		}
	}
	events := func() {
		if n, err := relay.relay.PublishEvents(ctx, 100, time.Second, stored); err != nil || n != 0 {
			t.Fatalf("%d events, %v", n, err)
		}
	}
	claim()
	events()
	relay.relay.jobs.end(time.Hour) // no sweep for now
	relay.relay.events.end(time.Hour)
	work()
	eventually(t, "the front is behind what was worked off", func() bool {
		claim()
		events()
		return touched(events) < 50
	})
	if pages := touched(claim); pages > 50 {
		t.Errorf("a claim of nothing touches %.0f pages", pages)
	}
	relay.relay.jobs.forget()
	if pages := touched(claim); pages < 1000 {
		t.Errorf("a sweep touches %.0f pages: the test does not show what it is about", pages)
	}
}

func TestWhatIsReleasedIsDueAtOnce(t *testing.T) {
	r := newRecord(t)
	ctx := t.Context()
	r.track(t, "p", 20)
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now() - interval '1 hour'`)
	jobs := r.claim(t, 20, time.Minute)
	if more := r.claim(t, 20, time.Minute); len(more) != 0 { // by now the relay looks for jobs that are due since then
		t.Fatalf("%d jobs are left", len(more))
	}
	r.exec(t, `update pollux.poll_jobs set lock_token = gen_random_uuid() where payment_id <= 5`) // somebody else has them by now
	r.exec(t, `update pollux.poll_jobs set state = 'held' where payment_id between 6 and 8`)      // their message arrived and was recorded
	slices.Reverse(jobs)
	if err := r.relay.Release(ctx, jobs); err != nil {
		t.Fatal(err)
	}
	if err := r.relay.Release(ctx, nil); err != nil {
		t.Fatal(err)
	}
	again := r.claim(t, 20, time.Minute)
	if len(again) != 12 || paymentsOf(again)[0] != 9 {
		t.Errorf("claimed again: %v", paymentsOf(again))
	}
	for _, j := range again {
		if slices.ContainsFunc(jobs, func(old outbox.Job) bool { return old.Token == j.Token }) {
			t.Errorf("payment %d has its old token", j.Payment)
		}
	}
}

func TestReleasesAndWritesOfTheSameJobsDoNotFail(t *testing.T) {
	r := newRecord(t)
	for round := range 20 {
		r.exec(t, `update pollux.payments set status = 'failed', status_source = 'operator' where status = 'pending'`)
		r.track(t, fmt.Sprintf("p%d-", round), 100)
		jobs := r.claim(t, 100, time.Minute)
		rows := r.read(t, jobs)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				var err error
				switch mine := slices.Clone(jobs); i % 3 {
				case 0:
					slices.Reverse(mine)
					err = r.relay.Release(t.Context(), mine)
				case 1:
					_, err = r.jobs.Extend(t.Context(), pollsOf(mine), time.Minute)
				default:
					_, err = r.jobs.Write(t.Context(), mixed(mine, rows), "worker", time.Minute)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

func TestWhatCannotBePublishedGoesToAPerson(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 3)
	jobs := r.claim(t, 3, time.Minute)
	r.exec(t, `update pollux.poll_jobs set lock_token = gen_random_uuid() where payment_id = $1`, int64(jobs[2].Payment))
	aside := []outbox.SetAside{{Job: jobs[0], Reason: "subject\x00 refused\xff"}, {Job: jobs[1], Reason: "too large"}, {Job: jobs[2], Reason: "not ours any more"}}
	if err := r.relay.SetAside(t.Context(), aside); err != nil {
		t.Fatal(err)
	}
	if err := r.relay.SetAside(t.Context(), aside); err != nil { // the answer of the first was lost
		t.Fatal(err)
	}
	got := query[string](t, r, `select string_agg(concat_ws(' ', payment_id, reason, message, state), '; ' order by payment_id) from pollux.dead_letters`)
	if want := "1 unpublishable subject  refused  open; 2 unpublishable too large open"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	if events := r.eventsOf(t, 1); len(events) != 1 || events[0].Subject != "payments.dead.sim.unpublishable" {
		t.Errorf("%v", events)
	}
	requireSound(t, r)
}

func TestDuePollsAreCountedByQueueUpToABound(t *testing.T) {
	r := newRecord(t)
	r.track(t, "p", 5)
	r.exec(t, `insert into pollux.payments (gateway, reference, amount_minor, currency, lane, poll_after)
		select 'sim', 'later' || n, 1, 'EUR', 'low', now() + interval '1 day' from generate_series(1, 3) n`)
	queues := []outbox.Queue{sim("low"), sim("normal"), {Gateway: "nobody", Lane: "high"}}
	for most, want := range map[int][]int{100: {0, 5, 0}, 4: {0, 4, 0}} {
		if due, err := r.relay.Due(t.Context(), queues, most); err != nil || !slices.Equal(due, want) {
			t.Errorf("up to %d: %v, %v, want %v", most, due, err, want)
		}
	}
	r.claim(t, 3, time.Minute)
	if due, err := r.relay.Due(t.Context(), queues, 100); err != nil || !slices.Equal(due, []int{0, 2, 0}) {
		t.Errorf("after a claim of three: %v, %v", due, err)
	}
}

func TestQueuesAreThoseThatHaveJobs(t *testing.T) {
	r := newRecord(t)
	if queues, err := r.relay.Queues(t.Context()); err != nil || len(queues) != 0 {
		t.Fatalf("%v, %v", queues, err)
	}
	r.exec(t, `insert into pollux.payments (gateway, reference, amount_minor, currency, lane, poll_after)
		select g, l || n, 1, 'EUR', l, now() + interval '1 day' from unnest(array['sim', 'acme', 'zz']) g, unnest(array['low', 'high']) l, generate_series(1, 3) n
		where g <> 'acme' or l = 'low'`)
	queues, err := r.relay.Queues(t.Context())
	if want := []outbox.Queue{{Gateway: "acme", Lane: "low"}, sim("high"), sim("low"), {Gateway: "zz", Lane: "high"}, {Gateway: "zz", Lane: "low"}}; err != nil || !slices.Equal(queues, want) {
		t.Errorf("%v, %v", queues, err)
	}
}
