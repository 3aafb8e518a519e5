package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"pollux/internal/audit"
	"pollux/internal/survey"
)

func TestASurveySeesWhatWaits(t *testing.T) {
	r := newRecord(t)
	s := NewSurvey(r.pool)
	ids := r.track(t, "due", 5)
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now() - interval '1 hour' where payment_id = any ($1::bigint[])`, ids[:2])
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now() + interval '1 hour' where payment_id = $1`, ids[4])
	jobs, err := s.Jobs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(jobs.Queues) != 1 || jobs.Queues[0].Due != 4 || jobs.Queues[0].Overdue != 2 || jobs.Queues[0].Oldest < time.Hour {
		t.Errorf("queues %+v", jobs.Queues)
	}
	eventually(t, "the statistics have the jobs", func() bool {
		jobs, err := s.Jobs(t.Context())
		return err == nil && jobs.Pending == 5
	})
	events, err := s.Events(t.Context())
	if err != nil || events != (survey.Events{}) {
		t.Errorf("events %+v, %v", events, err)
	}
	r.exec(t, `insert into pollux.outbox (event_id, payment_id, subject, body, created_at) values ('late', $1, 'payments.resolved.sim.failed', '{}', now() - interval '1 minute')`, ids[0])
	r.exec(t, `insert into pollux.outbox (event_id, payment_id, subject, body, publish_at, set_aside) values ('aside', $1, 'payments.resolved.sim.failed', '{}', 'infinity', 'too large')`, ids[0])
	events, err = s.Events(t.Context())
	if err != nil || events.Waiting != 1 || events.SetAside != 1 || events.Oldest < time.Minute {
		t.Errorf("events %+v, %v", events, err)
	}
}

func TestASurveyCountsLettersAndTheirMoney(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "dead", 4)
	for i, letter := range []struct{ reason, state, currency string }{{"window", "open", "EUR"}, {"window", "parked", "EUR"}, {"failures", "replaying", "USD"}, {"conflict", "open", "EUR"}} {
		r.exec(t, `insert into pollux.dead_letters (payment_id, gateway, reason, state, amount_minor, currency, died_at, review)
			values ($1, 'sim', $2, $3, 1000, $4, now() - interval '1 hour', $2 = 'conflict')`, int64(ids[i]), letter.reason, letter.state, letter.currency)
	}
	r.exec(t, `insert into pollux.dead_letters (payment_id, gateway, reason, state, amount_minor, currency, closed_at) values ($1, 'sim', 'window', 'resolved', 1000, 'EUR', now())`, int64(ids[0]))
	got, err := NewSurvey(r.pool).Letters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sorted := cmpopts.SortSlices(func(a, b survey.Group) bool { return a.Reason+a.State < b.Reason+b.State })
	want := []survey.Group{{Gateway: "sim", Reason: "window", State: "open", N: 1}, {Gateway: "sim", Reason: "window", State: "parked", N: 1},
		{Gateway: "sim", Reason: "failures", State: "replaying", N: 1}, {Gateway: "sim", Reason: "conflict", State: "open", N: 1}}
	if d := cmp.Diff(want, got.Groups, sorted, cmpopts.IgnoreFields(survey.Group{}, "Oldest")); d != "" {
		t.Error(d)
	}
	risk := map[string]float64{}
	for _, sum := range got.AtRisk {
		risk[sum.Currency] += sum.Minor
	}
	if risk["EUR"] != 2000 || risk["USD"] != 1000 || got.Dead != 2 {
		t.Errorf("at risk %v, dead %d", risk, got.Dead)
	}
	if got.Groups[0].Oldest < time.Hour {
		t.Errorf("the oldest died %s ago", got.Groups[0].Oldest)
	}
}

func TestASurveyNamesWhoHoldsTheTablesBack(t *testing.T) {
	r := newRecord(t)
	s := NewSurvey(r.pool)
	ctx := t.Context()
	forgotten, err := pgx.Connect(ctx, r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer forgotten.Close(ctx)
	for _, sql := range []string{`set application_name = 'report'`, `begin isolation level repeatable read`, `lock table pollux.payments in access exclusive mode`} {
		if _, err := forgotten.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	pid := int(forgotten.PgConn().PID())
	service := open(t, Options{URL: r.url, MaxConns: 1, Name: "pollux-relay"})
	waited := make(chan error, 1)
	go func() {
		_, err := service.Exec(ctx, `select from pollux.payments limit 1`)
		waited <- err
	}()
	var found survey.Sessions
	eventually(t, "the session that waits is seen", func() bool {
		found, err = s.Sessions(ctx)
		return err == nil && found.Blocked.PID != 0
	})
	if found.Transaction.PID != pid || found.Transaction.Application != "report" || found.Blocked.PID != pid {
		t.Errorf("found %+v, want pid %d", found, pid)
	}
	if _, err := forgotten.Exec(ctx, `rollback`); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody waits any more", func() bool {
		found, err = s.Sessions(ctx)
		return err == nil && found.Blocked.PID == 0 && found.Transaction.PID != pid
	})
}

func TestASurveyThatMayNotSeeOthersSaysSo(t *testing.T) {
	r := newRecord(t)
	ctx := t.Context()
	const watcher = "pollux_test_watcher" // of the whole server: another run may have made it
	r.exec(t, `do $$ begin create role `+watcher+`; exception when duplicate_object then null; end $$`)
	other, err := pgx.Connect(ctx, r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(ctx)
	for _, sql := range []string{`begin isolation level repeatable read`, `select 1`} {
		if _, err := other.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	pool := open(t, Options{URL: r.url, MaxConns: 1, Name: "watcher"})
	if _, err := pool.Exec(ctx, `set role `+watcher); err != nil {
		t.Fatal(err)
	}
	if _, err := NewSurvey(pool).Sessions(ctx); err == nil || !strings.Contains(err.Error(), "pg_read_all_stats") {
		t.Errorf("it says %v", err)
	}
	pool.Close()
}

func TestASurveyFindsOrphans(t *testing.T) {
	r := newRecord(t)
	s := NewSurvey(r.pool)
	ids := r.track(t, "orphan", 4)
	for _, kind := range survey.OrphanKinds {
		if found, last, err := s.Orphans(t.Context(), kind, 0); found != 0 || last != 0 || err != nil {
			t.Errorf("%s: %d, %d, %v before there are any", kind, found, last, err)
		}
	}
	conn, err := pgx.Connect(t.Context(), r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, sql := range []string{`set session_replication_role = replica`,
		`delete from pollux.poll_jobs where payment_id = $1`,
		`update pollux.payments set status = 'failed', status_source = 'operator' where id = $1`} {
		var args []any
		if strings.Contains(sql, "poll_jobs") {
			args = []any{int64(ids[0])}
		} else if strings.Contains(sql, "payments") {
			args = []any{int64(ids[1])}
		}
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range survey.OrphanKinds {
		if found, _, err := s.Orphans(t.Context(), kind, 0); found != 1 || err != nil {
			t.Errorf("%s: %d, %v", kind, found, err)
		}
	}
}

func TestASurveyMeasuresTheTables(t *testing.T) {
	r := newRecord(t)
	r.track(t, "stored", 200)
	r.exec(t, `vacuum analyze pollux.payments`)
	var all survey.Storage
	eventually(t, "the statistics have the payments", func() (ok bool) {
		var err error
		all, err = NewSurvey(r.pool).Storage(t.Context())
		return err == nil && len(all) == len(survey.Tables) && all[0].Live == 200
	})
	for i, table := range all {
		if table.Name != survey.Tables[i] || table.Indexes == 0 {
			t.Errorf("%+v", table)
		}
	}
	if p := all[0]; p.Size == 0 || p.Bloat > p.Size || time.Since(p.Vacuumed) > time.Hour {
		t.Errorf("payments: %+v", p)
	}
}

func TestASurveyReadsTheAuditLogOn(t *testing.T) {
	r := newRecord(t)
	log := NewAudit(r.pool)
	for range 3 {
		act := audit.Act{Actor: audit.Actor{Name: "ada", Origin: "test"}, Action: "payment.hold", Outcome: audit.Done, Reason: "a test",
			Changes: []audit.Change{{Target: "payment:1"}}}
		if err := log.Record(t.Context(), act); err != nil {
			t.Fatal(err)
		}
	}
	var chain audit.Chain
	entries, err := NewSurvey(r.pool).Entries(t.Context(), 0)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for _, e := range entries {
		if err := chain.Next(e); err != nil {
			t.Error(err)
		}
	}
	if entries, err := NewSurvey(r.pool).Entries(t.Context(), 2); err != nil || len(entries) != 1 {
		t.Errorf("%d entries behind the second, %v", len(entries), err)
	}
}
