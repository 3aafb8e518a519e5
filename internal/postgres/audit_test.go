package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pollux/internal/audit"
)

// acted is an act of a test.
func acted(action, reason string, changes ...audit.Change) audit.Act {
	return audit.Act{Actor: audit.Actor{Name: "ada", Origin: "pollux on a"}, Action: action, Outcome: audit.Done, Reason: reason, Changes: changes}
}

func (r *record) audit(tb testing.TB, act audit.Act) {
	tb.Helper()
	if err := NewAudit(r.pool).Record(tb.Context(), act); err != nil {
		tb.Fatal(err)
	}
}

// auditLog is the whole log, the oldest first.
func (r *record) auditLog(tb testing.TB) []audit.Entry {
	tb.Helper()
	var log []audit.Entry
	if err := NewAudit(r.pool).Each(tb.Context(), AuditFilter{}, func(e audit.Entry) error { log = append(log, e); return nil }); err != nil {
		tb.Fatal(err)
	}
	return log
}

// verifyAudit verifies the chain in the database.
func (r *record) verifyAudit(tb testing.TB, expect *audit.Anchor) error {
	tb.Helper()
	chain := audit.Chain{Expect: expect}
	if err := NewAudit(r.pool).Each(tb.Context(), AuditFilter{}, chain.Next); err != nil {
		return err
	}
	return chain.End()
}

// asOwner runs statements as somebody who may do everything, past the triggers.
func (r *record) asOwner(tb testing.TB, statements ...string) {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), r.url)
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(tb.Context()))
	for _, sql := range append(append([]string{`alter table pollux.audit_log disable trigger all`}, statements...), `alter table pollux.audit_log enable always trigger audit_log_stays`) {
		if _, err := conn.Exec(tb.Context(), sql); err != nil {
			tb.Fatalf("%v: %s", err, sql)
		}
	}
}

func TestTheDatabaseHashesAsThePureCoreSays(t *testing.T) {
	r := newRecord(t)
	r.audit(t, acted("payment.force", "„ärgerlich“: \\ \" ' \u2028", audit.Change{Target: audit.Payment(1), Before: map[string]any{"status": "pending", "né": 1.50, "a": []int{1}}, After: map[string]string{"status": "failed"}}))
	r.audit(t, acted("payment.hold", "", audit.Change{Target: audit.Payment(2), After: map[string]string{}}))
	r.audit(t, acted("dlq.discard", "x", audit.Change{Target: audit.Letter(1)}, audit.Change{Target: audit.Letter(2), Before: struct{}{}}))
	refused := acted("payment.force", "why", audit.Change{Target: audit.Payment(3)})
	refused.Outcome, refused.Name = audit.Refused, "ada\nlovelace\x00"
	r.audit(t, refused)
	r.audit(t, acted("payment.force", "nobody")) // to nothing
	if err := r.verifyAudit(t, nil); err != nil {
		t.Fatal(err)
	}
	log := r.auditLog(t)
	if len(log) != 5 {
		t.Fatalf("%d rows", len(log))
	}
	first, last := log[0], log[4]
	if first.Seq != 1 || first.Previous != (audit.Hash{}) || first.Actor != "ada" || first.Application != "test" || first.Login == "" || first.Origin != "pollux on a" ||
		*first.Before != `{"a": [1], "né": 1.5, "status": "pending"}` || *first.After != `{"status": "failed"}` || time.Since(first.At).Abs() > time.Hour {
		t.Errorf("%+v", first)
	}
	if last.Outcome != audit.Refused || last.Actor != "ada lovelace " || last.Before != nil || last.After != nil {
		t.Errorf("%+v", last)
	}
	if log[2].At != log[3].At || log[2].Target != "dead_letter:1" || log[3].Target != "dead_letter:2" {
		t.Errorf("the rows of one act: %+v, %+v", log[2], log[3])
	}
}

func TestTheAuditLogIsOnlyEverAddedTo(t *testing.T) {
	r := newRecord(t)
	r.audit(t, acted("payment.hold", "", audit.Change{Target: audit.Payment(1)}))
	for _, sql := range []string{
		`update pollux.audit_log set reason = 'x'`,
		`update pollux.audit_log set reason = 'x' where false`,
		`delete from pollux.audit_log`,
		`truncate pollux.audit_log`,
		`set session_replication_role = replica; delete from pollux.audit_log`,
		`insert into pollux.audit_log select * from pollux.audit_log on conflict (seq) do update set reason = 'x'`,
	} {
		conn, err := pgx.Connect(t.Context(), r.url)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), sql); !refusedBy(err, "audit_log_append_only") {
			t.Errorf("%v: %s", err, sql)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.verifyAudit(t, nil); err != nil || len(r.auditLog(t)) != 1 {
		t.Error(err)
	}
}

func TestWhatCannotBeAuditedIsRefused(t *testing.T) {
	r := newRecord(t)
	long := strings.Repeat("x", 3000)
	for _, args := range []string{
		`null, 'o', 'a.b', 'done', '', '[{"target": "x:1"}]'`,
		`'', 'o', 'a.b', 'done', '', '[{"target": "x:1"}]'`,
		`'` + long + `', 'o', 'a.b', 'done', '', '[{"target": "x:1"}]'`,
		`'a', null, 'a.b', 'done', '', '[{"target": "x:1"}]'`,
		`'a', 'o', null, 'done', '', '[{"target": "x:1"}]'`,
		`'a', 'o', 'force', 'done', '', '[{"target": "x:1"}]'`,
		`'a', 'o', 'Payment.force', 'done', '', '[{"target": "x:1"}]'`,
		`'a', 'o', 'a.b', 'perhaps', '', '[{"target": "x:1"}]'`,
		`'a', 'o', 'a.b', null, '', '[{"target": "x:1"}]'`,
		`'a', 'o', 'a.b', 'done', '` + long + `', '[{"target": "x:1"}]'`,
		`'a', 'o', 'a.b', 'done', '', null`,
		`'a', 'o', 'a.b', 'done', '', '{}'`,
		`'a', 'o', 'a.b', 'done', '', '[{}]'`,
		`'a', 'o', 'a.b', 'done', '', '["x:1"]'`,
		`'a', 'o', 'a.b', 'done', '', '[{"target": ""}]'`,
		`'a', 'o', 'a.b', 'done', '', '[{"target": "x:1"}, {"target": "` + long + `"}]'`,
	} {
		var pg *pgconn.PgError
		if _, err := r.pool.Exec(t.Context(), `select pollux.audit(`+args+`)`); !errors.As(err, &pg) || pg.Code != "22023" || !strings.HasPrefix(pg.Message, "not audited: ") {
			t.Errorf("%v: %.200s", err, args)
		}
	}
	r.exec(t, `select pollux.audit('a', 'o', 'a.b', 'done', null, '[]')`)
	_, err := r.pool.Exec(t.Context(), `begin isolation level repeatable read; select pollux.audit('a', 'o', 'a.b', 'done', '', '[{"target": "x:1"}]'); commit`)
	if err == nil {
		t.Error("the chain is continued from an old snapshot")
	}
	if n := len(r.auditLog(t)); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestActsAtOnceMakeOneChain(t *testing.T) {
	r := newRecord(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 20 {
				tx, err := r.pool.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				err = writeAct(t.Context(), tx, acted("payment.hold", "", audit.Change{Target: audit.Payment(int64(i))}, audit.Change{Target: audit.Payment(int64(100 + j))}))
				if j%4 == 3 { // what is rolled back leaves no gap
					err = errors.Join(err, tx.Rollback(t.Context()))
				} else {
					err = errors.Join(err, tx.Commit(t.Context()))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := r.verifyAudit(t, nil); err != nil {
		t.Error(err)
	}
	log := r.auditLog(t)
	if len(log) != 8*15*2 {
		t.Errorf("%d rows", len(log))
	}
	for i := 1; i < len(log); i++ {
		if log[i].At.Before(log[i-1].At) {
			t.Errorf("row %d is older than the one before", log[i].Seq)
		}
	}
}

// stranger is a connection of a role that may use the schema, and what is granted to it besides.
func (r *record) stranger(tb testing.TB, grants ...string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), r.url)
	if err != nil {
		tb.Fatal(err)
	}
	role := pgx.Identifier{"stranger_" + strings.ToLower(rand.Text())}.Sanitize()
	run := func(ctx context.Context, sql string) {
		if _, err := conn.Exec(ctx, sql); err != nil {
			tb.Errorf("%v: %s", err, sql)
		}
	}
	run(tb.Context(), "create role "+role)
	tb.Cleanup(func() {
		ctx := context.WithoutCancel(tb.Context())
		run(ctx, "rollback; reset role")
		run(ctx, "drop owned by "+role)
		run(ctx, "drop role "+role)
		_ = conn.Close(ctx)
	})
	for _, grant := range append([]string{"usage on schema pollux"}, grants...) {
		run(tb.Context(), "grant "+grant+" to "+role)
	}
	run(tb.Context(), "set role "+role)
	return conn
}

// denied reports whether a statement failed for want of a right.
func denied(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "42501"
}

func TestNoFunctionIsForEverybody(t *testing.T) {
	r := newRecord(t)
	const public = `select coalesce(string_agg(p.proname, ' ' order by p.proname), '') from pg_proc p join pg_namespace n on n.oid = p.pronamespace
		where n.nspname = 'pollux' and exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0)`
	if got := query[string](t, r, public); got != "" {
		t.Errorf("everybody may call %s", got)
	}
	const loose = `select coalesce(string_agg(p.proname, ' '), '') from pg_proc p join pg_namespace n on n.oid = p.pronamespace
		where n.nspname = 'pollux' and p.prosecdef and not exists (select from unnest(p.proconfig) c where c like 'search_path=%')`
	if got := query[string](t, r, loose); got != "" {
		t.Errorf("%s runs with the rights of its owner, and with the caller's search_path", got)
	}
}

func TestAStrangerForgesNoRowsAndStopsNobody(t *testing.T) {
	r := newRecord(t)
	conn := r.stranger(t, "select on all tables in schema pollux")
	if _, err := conn.Exec(t.Context(), "begin"); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`select pollux.audit('ada', 'o', 'payment.force', 'done', '', '[{"target": "payment:1"}]')`,
		`insert into pollux.audit_log select * from pollux.audit_log`,
		`select from pollux.audit_turn for update`,
		`select from pollux.audit_turn for key share`,
		`lock table pollux.audit_turn in share mode`,
		`lock table pollux.audit_log in row exclusive mode`,
	} {
		if _, err := conn.Exec(t.Context(), "savepoint s"); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), sql); !denied(err) {
			t.Errorf("%v: %s", err, sql)
		}
		if _, err := conn.Exec(t.Context(), "rollback to s"); err != nil {
			t.Fatal(err)
		}
	}
	// What it may do keeps nobody waiting.
	for _, sql := range []string{`select pg_advisory_xact_lock(hashtextextended('pollux.audit', 0))`, `lock table pollux.audit_turn, pollux.audit_log in access share mode`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	r.exec(t, `alter function pollux.audit set lock_timeout = '5s'`)
	r.audit(t, acted("payment.hold", "", audit.Change{Target: audit.Payment(1)}))
}

func TestAnActDoesNotWaitForEverForTheLog(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `alter function pollux.audit set lock_timeout = '50ms'`)
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := writeAct(t.Context(), tx, acted("payment.hold", "", audit.Change{Target: audit.Payment(1)})); err != nil {
		t.Fatal(err)
	}
	err = NewAudit(r.pool).Record(t.Context(), acted("payment.hold", "", audit.Change{Target: audit.Payment(2)}))
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "55P03" || !strings.Contains(pg.Message, "another transaction has held the audit log") || !strings.Contains(pg.Hint, "pg_stat_activity") {
		t.Errorf("%v", err)
	}
	if len(r.auditLog(t)) != 0 { // readers wait for nobody
		t.Error("an act is seen before its transaction ends")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.audit(t, acted("payment.hold", "", audit.Change{Target: audit.Payment(2)}))
	if err := r.verifyAudit(t, nil); err != nil || len(r.auditLog(t)) != 2 {
		t.Error(err)
	}
}

func TestTamperingWithARowIsFound(t *testing.T) {
	const hashAnew = `update pollux.audit_log a set hash = sha256(convert_to(
		pollux.audit_field('seq', seq::text) || pollux.audit_field('previous', encode(previous, 'hex'))
		|| pollux.audit_field('at', to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) || pollux.audit_field('actor', actor) || pollux.audit_field('login', login)
		|| pollux.audit_field('client', client) || pollux.audit_field('application', application) || pollux.audit_field('origin', origin)
		|| pollux.audit_field('action', action) || pollux.audit_field('outcome', outcome) || pollux.audit_field('reason', reason)
		|| pollux.audit_field('target', target) || pollux.audit_field('before', before) || pollux.audit_field('after', after), 'UTF8')) where seq = %d`
	for what, c := range map[string]struct {
		tamper []string
		row    int64
	}{
		"actor":               {[]string{`update pollux.audit_log set actor = 'eve' where seq = 3`}, 3},
		"time":                {[]string{`update pollux.audit_log set at = at + interval '1 microsecond' where seq = 2`}, 2},
		"before":              {[]string{`update pollux.audit_log set before = null where seq = 4`}, 4},
		"deleted":             {[]string{`delete from pollux.audit_log where seq = 3`}, 3},
		"beginning":           {[]string{`delete from pollux.audit_log where seq = 1`}, 1},
		"end":                 {[]string{`delete from pollux.audit_log where seq = 5`}, 5},
		"all":                 {[]string{`delete from pollux.audit_log`}, 1},
		"changed with hash":   {[]string{`update pollux.audit_log set reason = 'x' where seq = 3`, fmt.Sprintf(hashAnew, 3)}, 4},
		"the last, with hash": {[]string{`update pollux.audit_log set reason = 'x' where seq = 5`, fmt.Sprintf(hashAnew, 5)}, 5},
		"cut hash":            {[]string{`update pollux.audit_log set hash = substr(hash, 1, 31) where seq = 2`}, 2},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRecord(t)
			for i := range 5 {
				r.audit(t, acted("payment.hold", "r", audit.Change{Target: audit.Payment(int64(i)), Before: map[string]int{"i": i}}))
			}
			log := r.auditLog(t)
			anchor := audit.Anchor{Seq: 5, Hash: log[4].Hash}
			if err := r.verifyAudit(t, &anchor); err != nil {
				t.Fatal(err)
			}
			r.asOwner(t, c.tamper...)
			var broken *audit.Broken
			if err := r.verifyAudit(t, &anchor); !errors.As(err, &broken) || broken.Seq != c.row {
				t.Errorf("%v, not row %d", err, c.row)
			}
		})
	}
}

func TestTheAuditLogIsListedByFilterAndPage(t *testing.T) {
	r := newRecord(t)
	for i := range 30 {
		act := acted([]string{"payment.hold", "payment.force", "paymentx.y", "breaker.open"}[i%4], "", audit.Change{Target: audit.Payment(int64(i % 3))})
		if i%5 == 0 {
			act.Outcome, act.Name = audit.Refused, "bob"
		}
		r.audit(t, act)
	}
	middle := r.auditLog(t)[14].At
	for _, c := range []struct {
		filter AuditFilter
		where  string
	}{
		{AuditFilter{}, `true`},
		{AuditFilter{Actor: "bob"}, `actor = 'bob'`},
		{AuditFilter{Login: "nobody"}, `false`},
		{AuditFilter{Action: "payment"}, `action like 'payment.%'`},
		{AuditFilter{Action: "payment.force", Target: "payment:1"}, `action = 'payment.force' and target = 'payment:1'`},
		{AuditFilter{Outcome: "refused", Before: 20}, `outcome = 'refused' and seq < 20`},
		{AuditFilter{Since: middle}, `seq >= 15`},
		{AuditFilter{Until: middle}, `seq < 15`},
	} {
		got, err := NewAudit(r.pool).List(t.Context(), c.filter, 100)
		if want := query[int](t, r, `select count(*) from pollux.audit_log where `+c.where); err != nil || len(got) != want {
			t.Errorf("%+v: %d rows, not %d, %v", c.filter, len(got), want, err)
		}
	}
	page, err := NewAudit(r.pool).List(t.Context(), AuditFilter{Before: 11}, 4)
	if err != nil || len(page) != 4 || page[0].Seq != 10 || page[3].Seq != 7 {
		t.Errorf("%+v, %v", page, err)
	}
}

// BenchmarkAudit writes the rows of a page of a replay.
func BenchmarkAudit(b *testing.B) {
	r := newRecord(b)
	changes := make([]audit.Change, 500)
	for i := range changes {
		changes[i] = audit.Change{Target: audit.Letter(int64(i)), Before: map[string]string{"state": "open"}, After: map[string]any{"state": "replaying", "due_at": time.Now()}}
	}
	for b.Loop() {
		r.audit(b, acted("dlq.replay", "the outage is over", changes...))
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(changes)), "µs/row")
}

// jobs_begin and stays only refuse; what the way in calls has the search_path of the way in; the rest is for the owner, or holds nothing.
func TestWhatHoldsDoesNotLookIntoTheCallersSchemas(t *testing.T) {
	r := newRecord(t)
	const loose = `select coalesce(string_agg(p.proname, ' ' order by p.proname), '') from pg_proc p join pg_namespace n on n.oid = p.pronamespace
		where n.nspname = 'pollux' and p.prorettype = 'trigger'::regtype and not exists (select from unnest(p.proconfig) c where c like 'search_path=%')`
	if got := query[string](t, r, loose); got != "jobs_begin payment_is_sound payments_begin stays" {
		t.Errorf("%s look into the schemas of whoever writes", got)
	}
}
