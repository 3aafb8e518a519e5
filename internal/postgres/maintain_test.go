package postgres

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/payment"
)

func (r *record) maintain(tb testing.TB) {
	tb.Helper()
	if err := r.relay.Maintain(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// partitions are the partitions of a table by their day from today on: 0 is today, -1 yesterday.
func (r *record) partitions(tb testing.TB, parent string) []string {
	tb.Helper()
	return strings.Fields(query[string](tb, r, `
		select string_agg((to_date(right(c.relname, 8), 'YYYYMMDD') - (now() at time zone 'UTC')::date)::text, ' ' order by c.relname)
		from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = ('pollux.' || $1)::regclass and c.relname !~ 'default'`, parent))
}

// day makes the partition of a day from today on.
func (r *record) day(tb testing.TB, parent string, d int) {
	tb.Helper()
	r.exec(tb, `select pollux.make_partition($1, (now() at time zone 'UTC')::date + $2::int)`, parent, d)
}

func (r *record) oldEvent(tb testing.TB, age, rest string) {
	tb.Helper()
	r.exec(tb, `insert into pollux.outbox (event_id, subject, body, created_at, published_at, publish_at, set_aside)
		select 'e' || random(), 'payments.x', '{}', now() - interval '`+age+`', `+rest)
}

const (
	isPublished   = `now(), now(), null`
	isUnpublished = `null, now() + interval '1 hour', null`
	isAside       = `null, 'infinity', 'too large'`
)

// A database whose clock is forty days ahead would take all attempts and all published events for old.
func TestNothingIsDroppedThatIsOldByTheDatabasesClockAlone(t *testing.T) {
	r := newRecord(t)
	for _, parent := range []string{"outbox", "poll_attempts"} {
		r.day(t, parent, -39)
	}
	r.oldEvent(t, "39 days", isPublished)
	ours := func() time.Time { return time.Now().Add(-40 * 24 * time.Hour) }
	if err := r.relay.maintainAt(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	for _, parent := range []string{"outbox", "poll_attempts"} {
		if got := r.partitions(t, parent); !slices.Equal(got, []string{"-39", "0", "1", "2", "3"}) {
			t.Errorf("%s: the partitions %v are left", parent, got)
		}
	}
	r.maintain(t) // the clocks agree
	for _, parent := range []string{"outbox", "poll_attempts"} {
		if got := r.partitions(t, parent); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
			t.Errorf("%s: the partitions %v are left, and all agree that the first is old", parent, got)
		}
	}
}

func TestPartitionsAreMadeBeforeTheyAreNeededAndDroppedAfterwards(t *testing.T) {
	r := newRecord(t)
	if got := r.partitions(t, "outbox"); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Fatalf("after the migration: %v", got)
	}
	for _, parent := range []string{"outbox", "poll_attempts"} {
		for d := -40; d < 0; d++ {
			r.day(t, parent, d)
		}
		r.exec(t, `drop table pollux.`+parent+query[string](t, r, `select to_char((now() at time zone 'UTC')::date + 2, '_YYYYMMDD')`))
	}
	r.oldEvent(t, "5 days", isPublished)
	r.oldEvent(t, "6 days", isUnpublished)
	r.oldEvent(t, "7 days", isAside)
	r.maintain(t)
	if got := r.partitions(t, "outbox"); !slices.Equal(got, []string{"-7", "-6", "-1", "0", "1", "2", "3"}) {
		t.Errorf("events, kept for a day: %v", got) // yesterday's last event is less than a day old
	}
	if got := r.partitions(t, "poll_attempts"); len(got) != 34 || got[0] != "-30" {
		t.Errorf("attempts, kept for thirty days: %v", got)
	}
	if got := query[int](t, r, `select count(*) from pollux.outbox where published_at is null`); got != 2 {
		t.Errorf("%d unpublished events are left", got)
	}
	r.exec(t, `update pollux.outbox set published_at = now() where set_aside is null`)
	r.maintain(t)
	if got := r.partitions(t, "outbox"); got[0] != "-7" || got[1] != "-1" {
		t.Errorf("after the rest was published: %v", got)
	}
	requireSound(t, r)
}

// Nobody made partitions for days, and meanwhile everything came into the default ones.
func TestRowsWithoutAPartitionArePublishedAndDeletedInTheirTime(t *testing.T) {
	r := newRecord(t)
	for d := range 2 {
		day := query[string](t, r, `select to_char((now() at time zone 'UTC')::date + $1::int, '_YYYYMMDD')`, d)
		r.exec(t, `drop table pollux.outbox`+day)
		r.exec(t, `drop table pollux.poll_attempts`+day)
	}
	jobs, rows := r.claimed(t, "p", 20)
	r.write(t, mixed(jobs, rows)...)
	r.oldEvent(t, "9 days", isPublished)
	r.oldEvent(t, "9 days", isUnpublished)
	r.oldEvent(t, "9 days", isAside)
	r.exec(t, `insert into pollux.poll_attempts select payment_id, at - interval '50 days', due_at, took_us, class, http_status, gateway_status, retry_after_ms, message, disposition, reason,
		delay_ms, applied, attempts, failures, policy, worker, trace_id from pollux.poll_attempts limit 1`)
	r.maintain(t)
	if outbox, attempts := r.partitions(t, "outbox"), r.partitions(t, "poll_attempts"); !slices.Equal(outbox, []string{"1", "2", "3"}) || !slices.Equal(attempts, outbox) {
		t.Errorf("%v, %v: today's rows are where they are, tomorrow's will have their own", outbox, attempts)
	}
	if got := query[string](t, r, `select concat_ws(' ', count(*), count(*) filter (where created_at < now() - interval '8 days'), count(published_at)) from pollux.outbox_default`); got != "10 2 0" {
		t.Errorf("what was not published for nine days is kept, and today's events: %s", got)
	}
	if n := query[int](t, r, `select count(*) from pollux.poll_attempts_default`); n != 20 {
		t.Errorf("%d attempts are left, of 20 that are not past their time", n)
	}
	var b broker
	if n := r.publish(t, 100, time.Second, &b); n != 8 {
		t.Errorf("%d events are published out of the default partition", n)
	}
	if n := r.unpublished(t); n != 2 {
		t.Errorf("%d events are unpublished", n)
	}
	requireSound(t, r)
}

func TestAPartitionIsNotMadeForADayThatHasRows(t *testing.T) {
	r := newRecord(t)
	tomorrow := query[string](t, r, `select to_char((now() at time zone 'UTC')::date + 1, '_YYYYMMDD')`)
	r.exec(t, `drop table pollux.outbox`+tomorrow)
	r.oldEvent(t, "-1 day", isPublished)
	r.maintain(t)
	if got := r.partitions(t, "outbox"); !slices.Equal(got, []string{"0", "2", "3"}) {
		t.Errorf("%v", got)
	}
}

func TestMaintenanceUnderTrafficLosesNothing(t *testing.T) {
	r := newRecord(t)
	for d := range 4 {
		day := query[string](t, r, `select to_char((now() at time zone 'UTC')::date + $1::int, '_YYYYMMDD')`, d)
		r.exec(t, `drop table pollux.outbox`+day)
		r.exec(t, `drop table pollux.poll_attempts`+day)
	}
	for d := -40; d < -30; d++ {
		r.day(t, "outbox", d)
	}
	var wg sync.WaitGroup
	var b broker
	for i := range 3 {
		prefix := string(rune('a' + i))
		wg.Go(func() {
			for range 10 {
				r.track(t, prefix+query[string](t, r, `select gen_random_uuid()::text`), 20)
				jobs := r.claim(t, 20, time.Minute)
				r.write(t, mixed(jobs, r.read(t, jobs))...)
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			r.publish(t, 50, time.Second, &b)
		}
	})
	for range 2 {
		wg.Go(func() { r.maintain(t) })
	}
	wg.Wait()
	r.maintain(t)
	if got := r.partitions(t, "outbox"); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("%v", got)
	}
	for r.publish(t, 1000, time.Second, &b) > 0 {
	}
	if events := query[int](t, r, `select count(*) from pollux.outbox`); events == 0 || len(b.stored) != events {
		t.Errorf("%d of %d events were published", len(b.stored), events)
	}
	requireSound(t, r)
}

// What waits for the default partition while its own is made has to be written anew.
func TestAResultThatIsOvertakenByItsPartitionIsWritten(t *testing.T) {
	r := newRecord(t)
	ctx := t.Context()
	r.exec(t, `drop table pollux.outbox`+query[string](t, r, `select to_char(now() at time zone 'UTC', '_YYYYMMDD')`))
	jobs, rows := r.claimed(t, "p", 1)
	maintainer, err := r.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer maintainer.Rollback(context.WithoutCancel(ctx))
	if _, err := maintainer.Exec(ctx, `select pollux.make_partition('outbox', (now() at time zone 'UTC')::date)`); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d, a := resolve(payment.Succeeded)
		if verdicts, err := r.jobs.Write(ctx, []consumer.Result{result(jobs[0], rows[0], d, a)}, "worker", time.Minute); err != nil || !verdicts[0].Applied {
			t.Errorf("%v, %v", verdicts, err)
		}
	}()
	eventually(t, "it waits for the default partition", func() bool {
		return query[bool](t, r, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
	})
	if err := maintainer.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	<-done
	if n := query[int](t, r, `select count(*) from pollux.outbox_default`); n != 0 {
		t.Error("its event is in the default partition, where it does not belong")
	}
	requireSound(t, r)
}

// A dump holds its locks for an hour. The payments must not wait for it behind a partition that wants to be made or dropped.
func TestMaintenanceGivesWayToALock(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `drop table pollux.outbox`+query[string](t, r, `select to_char((now() at time zone 'UTC')::date + 3, '_YYYYMMDD')`))
	r.day(t, "outbox", -9)
	ctx := t.Context()
	dump, err := r.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer dump.Rollback(context.WithoutCancel(ctx))
	if _, err := dump.Exec(ctx, `lock table pollux.outbox in access share mode`); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.maintain(t)
	}()
	eventually(t, "it waits for the lock", func() bool {
		return query[bool](t, r, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
	})
	r.finish(t, "p", 10) // and this waits a moment, and succeeds
	<-done
	if got := r.partitions(t, "outbox"); !slices.Equal(got, []string{"-9", "0", "1", "2"}) {
		t.Errorf("%v", got)
	}
	if err := dump.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	r.maintain(t)
	if got := r.partitions(t, "outbox"); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Errorf("after the dump: %v", got)
	}
}
