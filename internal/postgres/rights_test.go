package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"pollux/internal/audit"
	"pollux/internal/casework"
	"pollux/internal/consumer"
	"pollux/internal/deadletter"
	"pollux/internal/fleet"
	"pollux/internal/localpg"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/pgtest"
	"pollux/internal/redelivery"
	"pollux/internal/webhook"
)

// newGranted is a record whose roles are granted.
func newGranted(tb testing.TB) *record {
	tb.Helper()
	r := newRecord(tb)
	r.grant(tb)
	return r
}

func (r *record) grant(tb testing.TB) Granted {
	tb.Helper()
	g, err := Grant(tb.Context(), r.url)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

// login is the record as a login of its own sees it, which is a member of a role.
func (r *record) login(tb testing.TB, role Role) *record {
	tb.Helper()
	name := "login_" + strings.ToLower(rand.Text())
	r.exec(tb, fmt.Sprintf("create role %s login password 'of a test' in role %s", name, role))
	tb.Cleanup(func() {
		ctx := context.WithoutCancel(tb.Context())
		if _, err := r.pool.Exec(ctx, "drop role "+name); err != nil {
			tb.Error(err)
		}
	})
	return openRecord(tb, withLogin(tb, r.url, name))
}

func withLogin(tb testing.TB, dsn, name string) string {
	tb.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	u.User = url.UserPassword(name, "of a test")
	return u.String()
}

// logins are all roles that have logins which work.
var logins = []Role{RoleRelay, RoleConsumer, RoleWebhook, RoleOperator, RoleReadOnly, RoleTracker}

// A later migration that makes a table, a sequence or a function must say in rights.go who needs it.
func TestWhoMayDoWhatIsDecidedForEveryTableAndFunction(t *testing.T) {
	r := newRecord(t)
	decided := map[string]bool{}
	for _, role := range Roles {
		for _, right := range role.rights() {
			decided[right.object] = true
		}
	}
	others := slices.Clone(nobodys)
	for _, line := range public {
		for _, right := range parse(line) {
			others = append(others, right.object)
		}
	}
	for _, name := range others {
		if decided[name] {
			t.Errorf("%s is both for a role and for everybody, or nobody", name)
		}
		decided[name] = true
	}
	const objects = `
		select coalesce(array_agg(c.relname::text), '{}') from pg_class c
		where c.relnamespace = 'pollux'::regnamespace and not c.relispartition and c.relkind in ('r', 'p', 'v', 'm', 'S')
		  and not exists (select from pg_depend d where c.relkind = 'S' and d.objid = c.oid and d.deptype = 'i')` // sequences of identities go with their columns
	const functions = `
		select coalesce(array_agg(p.proname::text), '{}') from pg_proc p
		where p.pronamespace = 'pollux'::regnamespace and p.prorettype <> 'trigger'::regtype`
	there := append(query[[]string](t, r, objects), query[[]string](t, r, functions)...)
	for _, name := range there {
		if !decided[name] {
			t.Errorf("nobody has decided who needs %s: give it to roles in rights.go, or to nobody", name)
		}
	}
	for name := range decided {
		if !slices.Contains(there, name) {
			t.Errorf("there is no %s that rights.go speaks of", name)
		}
	}
}

func TestGrantGivesEachRoleExactlyWhatItNeeds(t *testing.T) {
	r := newRecord(t)
	if g := r.grant(t); len(g.Changed) != len(Roles)-1 || g.Owner != "" || g.Missing != nil {
		t.Errorf("%+v", g)
	}
	if g := r.grant(t); g.Changed != nil || g.Made != nil {
		t.Errorf("again: %+v", g)
	}
	for _, sql := range []string{
		`grant delete on pollux.payments to pollux_readonly`,
		`grant update (amount_minor, status) on pollux.payments to pollux_readonly`,
		`grant execute on function pollux.bury to pollux_readonly`,
		`grant create on schema pollux to pollux_readonly`,
		`revoke select on pollux.outbox from pollux_readonly`,
		`revoke update (status) on pollux.payments from pollux_consumer`,
	} {
		r.exec(t, sql)
	}
	r.exec(t, `insert into pollux.schema_version (version_id, is_applied) values (99999, true)`)
	if g := r.grant(t); g.Changed != nil {
		t.Errorf("an older build takes the rights of a newer one away: %+v", g)
	}
	r.exec(t, `delete from pollux.schema_version where version_id = 99999`)
	got, err := Rights(t.Context(), r.login(t, RoleReadOnly).pool, RoleReadOnly)
	got.Login = ""
	want := Holding{
		Missing: []string{"select on outbox"},
		Excess:  []string{"create on schema pollux", "delete on payments", "execute on bury", "update (amount_minor, status) on payments"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil || got.Exact() {
		t.Errorf("%v\n%s", err, diff)
	}
	if got, err := Rights(t.Context(), r.login(t, RoleConsumer).pool, RoleConsumer); err != nil || !slices.Equal(got.Missing, []string{"update (status) on payments"}) {
		t.Errorf("%v, %+v", err, got)
	}
	if g := r.grant(t); !slices.Equal(g.Changed, []Role{RoleConsumer, RoleReadOnly}) {
		t.Errorf("%+v", g)
	}
	for _, role := range logins {
		if got, err := Rights(t.Context(), r.login(t, role).pool, role); err != nil || !got.Exact() {
			t.Errorf("%s: %v, %+v", role, err, got)
		}
	}
	// One login for everything, as it is without roles.
	for _, role := range Roles {
		if got, err := Rights(t.Context(), r.pool, role); err != nil || got.Everything != "it is a superuser" || got.Missing != nil {
			t.Errorf("%s: %v, %+v", role, err, got)
		}
	}
}

func TestGrantTakesFromEverybodyWhatNobodyNeeds(t *testing.T) {
	r := newGranted(t)
	if g := r.grant(t); !cmp.Equal(g, Granted{}) {
		t.Errorf("all was as it must be: %+v", g)
	}
	for _, sql := range []string{
		`grant execute on function pollux.audit to public`,
		`grant select on pollux.payments to public`,
		`grant update (lane) on pollux.poll_jobs to public`,
		`grant update, usage on pollux.outbox_seq to public`,
		`grant create on schema pollux to public`,
		`revoke select on pollux.schema_serves from public`,
	} {
		r.exec(t, sql)
	}
	tracker := r.login(t, RoleTracker).pool
	got, err := Rights(t.Context(), tracker, RoleTracker)
	got.Login = ""
	want := Holding{
		Excess: []string{"create on schema pollux", "execute on audit", "select on payments", "update (lane) on poll_jobs", "update on outbox_seq", "usage on outbox_seq"},
		Revoke: []string{
			"revoke create on schema pollux from public",
			"revoke execute on function pollux.audit from public",
			"revoke select on pollux.payments from public",
			"revoke update (lane) on pollux.poll_jobs from public",
			"revoke update on pollux.outbox_seq from public",
			"revoke usage on sequence pollux.outbox_seq from public",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range want.Revoke {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if h, err := publicHolding(t.Context(), tx); err != nil || h.Excess != nil {
		t.Errorf("what is said to be revoked is not enough: %v, %+v", err, h)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	g := r.grant(t)
	if diff := cmp.Diff(Granted{Public: Holding{Excess: want.Excess, Missing: []string{"select on schema_serves"}}}, g); diff != "" {
		t.Error(diff)
	}
	if got, err := Rights(t.Context(), tracker, RoleTracker); err != nil || !got.Exact() {
		t.Errorf("%v, %+v", err, got)
	}
}

// A right on a partition is a right on its rows, whatever its parent allows.
func TestARightOnAPartitionAloneIsSeenAndTakenAway(t *testing.T) {
	r := newGranted(t)
	day := query[string](t, r, `select min(relname::text) from pg_class where relispartition and relname like 'outbox\_2%'`)
	tracker := r.login(t, RoleTracker).pool
	for grant, want := range map[string]Holding{
		"select on pollux." + day + " to public":                           {Excess: []string{"select on " + day}, Revoke: []string{"revoke select on pollux." + day + " from public"}},
		"update (body) on pollux.outbox_default to public":                 {Excess: []string{"update (body) on outbox_default"}, Revoke: []string{"revoke update (body) on pollux.outbox_default from public"}},
		"insert on pollux.poll_attempts_default to " + string(RoleTracker): {Excess: []string{"insert on poll_attempts_default"}},
	} {
		r.exec(t, "grant "+grant)
		got, err := Rights(t.Context(), tracker, RoleTracker)
		got.Login = ""
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("grant %s: %v\n%s", grant, err, diff)
		}
		g := r.grant(t)
		if public := slices.Equal(g.Public.Excess, want.Excess); public == slices.Equal(g.Changed, []Role{RoleTracker}) || g.Left != nil {
			t.Errorf("grant %s: %+v", grant, g)
		}
		if got, err := Rights(t.Context(), tracker, RoleTracker); err != nil || !got.Exact() {
			t.Errorf("grant %s: afterwards %v, %+v", grant, err, got)
		}
	}
}

// A dump that is restored without its privileges has those that PostgreSQL gives by itself: everybody may call each function.
func TestGrantMendsWhatWasRestoredWithoutPrivileges(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `do $$
		declare thing record;
		begin
		  for thing in select oid::regprocedure as name from pg_proc where pronamespace = 'pollux'::regnamespace loop
		    execute format('grant execute on function %s to public', thing.name);
		  end loop;
		  revoke select on pollux.schema_serves from public;
		end $$`)
	g := r.grant(t)
	if !slices.Contains(g.Public.Excess, "execute on audit") || len(g.Changed) != len(Roles)-1 || g.Left != nil {
		t.Errorf("%+v", g)
	}
	for _, role := range logins {
		if got, err := Rights(t.Context(), r.login(t, role).pool, role); err != nil || !got.Exact() {
			t.Errorf("%s: %v, %+v", role, err, got)
		}
	}
}

// What the owner of the schema cannot take away is said, and nothing is said to have been granted.
func TestGrantSaysWhoHasOtherRightsAllTheSame(t *testing.T) {
	r := newGranted(t)
	r.exec(t, `create role of_the_test; grant usage on schema pollux to of_the_test; grant delete on pollux.payments to of_the_test; grant of_the_test to pollux_readonly`)
	t.Cleanup(func() {
		if _, err := r.pool.Exec(context.WithoutCancel(t.Context()), `drop owned by of_the_test; drop role of_the_test`); err != nil {
			t.Error(err)
		}
	})
	want := Granted{Left: []Holding{{Login: "pollux_readonly", Excess: []string{"delete on payments"}}}}
	if diff := cmp.Diff(want, r.grant(t)); diff != "" {
		t.Error(diff)
	}
}

func TestRightsOfOneRoleAreNotThoseOfAnother(t *testing.T) {
	r := newGranted(t)
	for _, role := range logins {
		pool := r.login(t, role).pool
		for _, other := range logins {
			if got, err := Rights(t.Context(), pool, other); err != nil || got.Exact() != (role == other) {
				t.Errorf("a login of %s for %s: %v, %+v", role, other, err, got)
			}
		}
		if got, err := Rights(t.Context(), pool, RoleMigrator); err != nil || len(got.Missing) != 1 {
			t.Errorf("a login of %s owns the schema: %v, %+v", role, err, got)
		}
	}
}

// An administrator makes the roles; who migrates may not. One cluster has two databases.
func TestALoginThatMayNotMakeRolesMigratesAndGrants(t *testing.T) {
	server, ctx := pgtest.Server(t), t.Context()
	admin := func(database string, sql ...string) {
		t.Helper()
		c, err := pgx.Connect(ctx, server.DSN(database))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(ctx)
		for _, s := range sql {
			if _, err := c.Exec(ctx, s); err != nil {
				t.Fatalf("%v: %s", err, s)
			}
		}
	}
	admin("postgres", "create role deploy login password 'of a test'", "create database one owner deploy", "create database two")
	one, two := withLogin(t, server.DSN("one"), "deploy"), server.DSN("two")
	if _, err := Migrate(ctx, one); err != nil {
		t.Fatal(err)
	}
	g, err := Grant(ctx, one)
	if err != nil || !slices.Equal(g.Missing, Roles) || g.Made != nil || g.Changed != nil {
		t.Fatalf("%v, %+v", err, g)
	}
	r := openRecord(t, one) // one login does everything
	r.track(t, "p", 1)
	if got := r.claim(t, 1, time.Minute); len(got) != 1 {
		t.Error("the one login does not relay")
	}
	if err := r.relay.Maintain(ctx); err != nil {
		t.Error(err)
	}
	if got, err := Rights(ctx, r.pool, RoleRelay); err != nil || got.Everything != "it owns the schema" {
		t.Errorf("%v, %+v", err, got)
	}

	admin("postgres", RolesSQL(), RolesSQL())
	if g, err = Grant(ctx, one); err != nil || g.Missing != nil || len(g.Changed) != len(Roles)-1 {
		t.Fatalf("%v, %+v", err, g)
	}
	admin("postgres", "create role watcher login password 'of a test' in role pollux_readonly")
	watcher := openRecord(t, withLogin(t, server.DSN("one"), "watcher")).pool
	exact := func(when string) {
		t.Helper()
		if got, err := Rights(ctx, watcher, RoleReadOnly); err != nil || !got.Exact() {
			t.Errorf("%s: %v, %+v", when, err, got)
		}
	}
	exact("granted")

	// Another database comes and goes, and one whose schema belongs to somebody else.
	if _, err := Migrate(ctx, two); err != nil {
		t.Fatal(err)
	}
	if g, err = Grant(ctx, two); err != nil || g.Made != nil || len(g.Changed) != len(Roles)-1 {
		t.Fatalf("%v, %+v", err, g)
	}
	if g, err = Grant(ctx, withLogin(t, two, "deploy")); err != nil || g.Owner == "" || g.Changed != nil {
		t.Fatalf("%v, %+v", err, g)
	}
	for range embedded() {
		if _, err := MigrateDown(ctx, two); err != nil {
			t.Fatal(err)
		}
	}
	exact("another database is gone")

	// The schema is made by an administrator, for an owner who may make none.
	admin("postgres", "create database three", "create role owner login password 'of a test' in role pollux_migrator", "alter role owner set role pollux_migrator")
	admin("three", "create schema pollux authorization pollux_migrator")
	three := withLogin(t, server.DSN("three"), "owner")
	if _, err := Migrate(ctx, three); err != nil {
		t.Fatal(err)
	}
	if g, err = Grant(ctx, three); err != nil || len(g.Changed) != len(Roles)-1 {
		t.Fatalf("%v, %+v", err, g)
	}
	if got, err := Rights(ctx, openRecord(t, three).pool, RoleMigrator); err != nil || got.Missing != nil || got.Everything != "it owns the schema" {
		t.Errorf("%v, %+v", err, got)
	}
}

func TestAPaymentServiceTracksAlsoOnTheStepBeforeTheWayInHadItsOwnersRights(t *testing.T) {
	r := newGranted(t)
	shop := r.login(t, RoleTracker)
	for step := (Migration{}); step.Version != 10; {
		var err error
		if step, err = MigrateDown(t.Context(), r.url); err != nil {
			t.Fatal(err)
		}
	}
	const track = `select pollux.track_payment('sim', 'p', 1, 'EUR')`
	if id, again := query[int64](t, shop, track), query[int64](t, shop, track); id != again {
		t.Errorf("%d, %d", id, again)
	}
}

// forbidden are acts, and who may do them. The rest is refused.
var forbidden = []struct {
	sql string
	may []Role
}{
	{`select count(*) from pollux.payments where status = 'pending'`, []Role{RoleRelay, RoleConsumer, RoleWebhook, RoleOperator, RoleReadOnly}},
	{`select metadata from pollux.payments`, []Role{RoleRelay, RoleConsumer, RoleWebhook, RoleOperator, RoleReadOnly}},
	{`select reference from pollux.payments`, []Role{RoleRelay, RoleConsumer, RoleWebhook, RoleOperator, RoleReadOnly}},
	{`select pollux.track_payment('sim', 'mine', 1, 'EUR')`, []Role{RoleTracker}},
	{`select id from pollux.track_payments('[]')`, []Role{RoleOperator, RoleTracker}},
	{`update pollux.payments set status = 'failed', status_source = 'poll'`, []Role{RoleConsumer, RoleWebhook, RoleOperator}},
	{`update pollux.payments set status = 'succeeded', status_source = 'operator'`, []Role{RoleOperator}},
	{`update pollux.payments set amount_minor = 1`, nil},
	{`update pollux.payments set revision = 9`, nil},
	{`update pollux.payments set status_updated_at = now()`, nil},
	{`insert into pollux.payments (gateway, reference, amount_minor, currency) values ('sim', 'mine', 1, 'EUR')`, nil},
	{`insert into pollux.poll_jobs (payment_id, gateway, lane) values (1, 'sim', 'normal')`, nil},
	{`insert into pollux.payments (gateway, reference, amount_minor, currency, status, status_source) values ('sim', 'mine', 1, 'EUR', 'succeeded', 'poll')`, nil},
	{`delete from pollux.payments`, nil},
	{`truncate pollux.payments cascade`, nil},
	{`select from pollux.poll_jobs`, []Role{RoleRelay, RoleConsumer, RoleWebhook, RoleOperator, RoleReadOnly}},
	{`update pollux.poll_jobs set locked_until = null, locked_by = null`, []Role{RoleRelay, RoleConsumer, RoleWebhook, RoleOperator}},
	{`update pollux.poll_jobs set next_poll_at = now()`, []Role{RoleConsumer, RoleWebhook, RoleOperator}},
	{`update pollux.poll_jobs set held_until = now() + interval '1 hour'`, []Role{RoleOperator}},
	{`update pollux.poll_jobs set payment_id = 5`, nil},
	{`delete from pollux.poll_jobs`, []Role{RoleConsumer, RoleWebhook, RoleOperator}},
	{`update pollux.poll_attempts set message = ''`, nil},
	{`delete from pollux.poll_attempts`, nil},
	{`insert into pollux.outbox (event_id, payment_id, subject, body) values ('x', 1, 'payments.resolved.sim.failed', '{}')`, []Role{RoleRelay, RoleConsumer, RoleWebhook, RoleOperator}},
	{`insert into pollux.outbox (event_id, subject, body, published_at) values ('x', 'payments.resolved.sim.failed', '{}', now())`, nil},
	{`update pollux.outbox set published_at = now()`, []Role{RoleRelay}},
	{`update pollux.outbox set body = '{}'`, nil},
	{`select body from pollux.outbox`, []Role{RoleRelay, RoleOperator, RoleReadOnly}},
	{`delete from pollux.outbox`, nil},
	{`select nextval('pollux.outbox_seq')`, []Role{RoleRelay, RoleConsumer, RoleWebhook, RoleOperator}},
	{`select setval('pollux.outbox_seq', 1)`, nil},
	{`select from pollux.dead_letters`, []Role{RoleRelay, RoleConsumer, RoleWebhook, RoleOperator, RoleReadOnly}},
	{`update pollux.dead_letters set owner = 'eve'`, []Role{RoleOperator}},
	{`update pollux.dead_letters set amount_minor = 1`, nil},
	{`delete from pollux.dead_letters`, nil},
	{`select from pollux.dead_letter_notes`, []Role{RoleOperator, RoleReadOnly}},
	{`update pollux.dead_letter_notes set text = 'x'`, nil},
	{`delete from pollux.dead_letter_notes`, nil},
	{`insert into pollux.dead_letter_notes (letter_id, actor, login, text) values (1, 'ada', 'ada', 'x')`, nil},
	{`insert into pollux.replays (request_id, selection, reason, created_by) values ('x', 'x', 'x', 'eve')`, []Role{RoleOperator}},
	{`insert into pollux.replays (request_id, selection, reason, created_by, login) values ('x', 'x', 'x', 'eve', 'ada')`, nil},
	{`update pollux.replays set approved_login = 'ada'`, nil},
	{`select from pollux.replays`, []Role{RoleOperator, RoleReadOnly}},
	{`insert into pollux.webhook_events (gateway, event_id, effect, digest, decision) values ('sim', 'x', 'nothing', sha256(''), 'ignored')`, []Role{RoleConsumer, RoleWebhook}},
	{`update pollux.webhook_events set digest = ''`, nil},
	{`delete from pollux.webhook_events`, []Role{RoleWebhook}},
	{`update pollux.streams set lost_at = now()`, []Role{RoleRelay}},
	{`delete from pollux.streams`, nil},
	{`insert into pollux.breaker_transitions (at, gateway, from_state, to_state, cause) values (now(), 'sim', 'closed', 'open', 'x')`, []Role{RoleConsumer, RoleOperator}},
	{`delete from pollux.breaker_transitions`, nil},
	{`select from pollux.audit_log`, []Role{RoleRelay, RoleOperator, RoleReadOnly}},
	{`insert into pollux.audit_log select * from pollux.audit_log`, nil},
	{`update pollux.audit_log set actor = 'eve'`, nil},
	{`delete from pollux.audit_log`, nil},
	{`truncate pollux.audit_log`, nil},
	{`alter table pollux.audit_log disable trigger all`, nil},
	{`select from pollux.audit_turn for update`, nil},
	{`select pollux.audit('ada', 'o', 'payment.force', 'done', '', '[{"target": "payment:1"}]')`, []Role{RoleOperator}},
	{`select pollux.audit_reload('x', 'done', '', '[{"target": "config:log"}]')`, []Role{RoleRelay, RoleConsumer, RoleWebhook}},
	{`select pollux.maintain('1 day', '1 day')`, []Role{RoleRelay}},
	{`select pollux.drop_partition('outbox', 'outbox_default')`, nil},
	{`select pollux.make_partition('outbox', current_date + 30)`, nil},
	{`select from pollux.maintain_turn for update`, nil},
	{`select from pollux.replay_turn for update`, []Role{RoleOperator}},
	{`insert into pollux.fetch_turns values ('sim')`, []Role{RoleConsumer}},
	{`select pollux.bury(1, 'window', '', 0::smallint, '', '', '', '', '', null)`, []Role{RoleRelay, RoleConsumer, RoleWebhook}},
	{`select pollux.review(1, 'conflict', 'x')`, []Role{RoleConsumer, RoleWebhook}},
	{`select pollux.end_jobs(array[1])`, []Role{RoleConsumer, RoleWebhook, RoleOperator}},
	{`insert into pollux.schema_version (version_id, is_applied) values (99999, true)`, nil},
	{`create table pollux.mine ()`, nil},
	{`create function pollux.mine() returns int language sql as 'select 1'`, nil},
	{`drop table pollux.payments cascade`, nil},
	{`alter table pollux.payments disable trigger all`, nil},
}

func TestWhatARoleMayNotDoIsRefusedAndNamed(t *testing.T) {
	r := newGranted(t)
	r.dead(t, "d", 2)
	r.track(t, "p", 2)
	r.audit(t, acted("payment.hold", "", audit.Change{Target: audit.Payment(1)}))
	for _, role := range logins {
		conn, err := r.login(t, role).pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for _, act := range forbidden {
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, err = tx.Exec(t.Context(), act.sql)
			_ = tx.Rollback(t.Context())
			var no *Denied
			named := errors.As(describe("acting", err), &no)
			if may := slices.Contains(act.may, role); may == named {
				t.Errorf("%s may: %t, but: %v\n%s", role, may, err, act.sql)
			}
			if named {
				refused++
			}
		}
		if refused < 12 {
			t.Errorf("only %d acts are forbidden to %s", refused, role)
		}
		conn.Release()
	}
	requireSound(t, r)
	if err := r.verifyAudit(t, nil); err != nil {
		t.Error(err)
	}
}

// An administrator makes the schema for its owner before the first `pollux migrate up`; till then the programs' logins may not look into it.
func TestBeforeTheFirstStepEachLoginSaysWhatToRun(t *testing.T) {
	r := openRecord(t, pgtest.New(t, nil))
	r.exec(t, RolesSQL()+`create schema pollux authorization pollux_migrator`)
	for _, role := range []Role{RoleRelay, RoleConsumer, RoleWebhook, RoleOperator, RoleReadOnly} {
		l := r.login(t, role)
		if err := CheckSchema(t.Context(), l.pool); !errors.Is(err, ErrSchema) || !strings.HasSuffix(err.Error(), "nothing is in the schema pollux yet; run: pollux migrate up") {
			t.Errorf("%s: %v", role, err)
		}
		steps, err := Migrations(t.Context(), l.url)
		if err != nil || len(steps) == 0 || !steps[0].AppliedAt.IsZero() {
			t.Errorf("%s: %+v, %v", role, steps, err)
		}
		if s, err := NewExaminer(l.pool, ExamineOptions{}).Schema(t.Context()); err != nil || s.Have != 0 {
			t.Errorf("%s: the doctor sees %+v, %v", role, s, err)
		}
	}
}

func TestARightThatIsMissingSaysWhichRolesHaveIt(t *testing.T) {
	r := newGranted(t)
	webhooks := r.login(t, RoleWebhook)
	_, err := NewLetters(webhooks.pool).notes(t.Context(), 1)
	var no *Denied
	if !errors.As(err, &no) || no.Object != "table dead_letter_notes" || !strings.HasSuffix(err.Error(), "some on this have: pollux_consumer, pollux_webhook, pollux_operator, pollux_readonly") {
		t.Errorf("%v", err)
	}
	err = NewAudit(webhooks.pool).Record(t.Context(), acted("payment.force", "", audit.Change{Target: audit.Payment(1)}))
	if !errors.As(err, &no) || no.Object != "function audit" || !slices.Equal(no.Roles, []Role{RoleOperator}) {
		t.Errorf("%v", err)
	}
	stranger := openRecord(t, r.login(t, RoleWebhook).url)
	r.exec(t, `revoke usage on schema pollux from pollux_webhook`)
	if err := CheckSchema(t.Context(), stranger.pool); !errors.As(err, &no) || no.Object != "schema pollux" || len(no.Roles) != 6 {
		t.Errorf("%v", err)
	}
}

// Each role does all that its program does, with a login of its own.
func TestEachRoleDoesItsWorkWithALoginOfItsOwn(t *testing.T) { everybodyWorks(t, newGranted(t)) }

func everybodyWorks(t testing.TB, r *record) {
	t.Helper()
	relay, services, receiver, ada, grace, watcher, shop := r.login(t, RoleRelay), r.login(t, RoleConsumer), r.login(t, RoleWebhook), r.login(t, RoleOperator),
		r.login(t, RoleOperator), r.login(t, RoleReadOnly), r.login(t, RoleTracker)
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	shop.track(t, "p", 20)
	shop.exec(t, `select pollux.track_payment('sim', 'p0', 1999, 'EUR')`)

	// The relay: claims, gives back, sets aside, publishes, finds losses, makes and drops partitions.
	r.exec(t, `select pollux.make_partition('outbox', current_date - 5)`)
	r.exec(t, `drop table pollux.outbox_`+time.Now().UTC().AddDate(0, 0, 2).Format("20060102"))
	must("maintain", relay.relay.Maintain(t.Context()))
	if got := r.partitions(t, "outbox"); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Errorf("partitions: %v", got)
	}
	must("check", relay.relay.Check(t.Context()))
	jobs := relay.claim(t, 14, time.Minute)
	must("release", relay.relay.Release(t.Context(), jobs[12:13]))
	must("set aside", relay.relay.SetAside(t.Context(), []outbox.SetAside{{Job: jobs[13], Reason: "too large"}}))
	_, err := relay.relay.Queues(t.Context())
	must("queues", err)
	_, err = relay.relay.Due(t.Context(), []outbox.Queue{{Gateway: "sim", Lane: "normal"}}, 10)
	must("due", err)

	// It looks at the record, for its metrics, and says what became of a reload, as all services do.
	look := NewSurvey(relay.pool)
	_, err = look.Jobs(t.Context())
	must("jobs", err)
	_, err = look.Letters(t.Context())
	must("letters", err)
	_, err = look.Events(t.Context())
	must("events", err)
	_, err = look.Storage(t.Context())
	must("storage", err)
	_, err = look.Sessions(t.Context())
	must("sessions", err)
	for kind := range orphansSQL {
		_, _, err = look.Orphans(t.Context(), kind, 0)
		must("orphans", err)
	}
	_, err = look.Entries(t.Context(), 0)
	must("entries", err)
	for _, service := range []*record{relay, services, receiver} {
		must("reload", NewReloads(service.pool, "a").Record(t.Context(), audit.Act{Outcome: audit.Done, Changes: []audit.Change{{Target: "config:log.level"}}}))
	}

	// The consumers: read, record all that can be said, know late answers and messages that nobody can read.
	rows := services.read(t, jobs)
	services.write(t, mixed(jobs[:10], rows[:10])...)
	receiver.became(t, []webhook.Arrival{arrival("e1", refOf(r, jobs[10].Payment), payment.Failed)}, webhook.Applied)
	late, said := resolve(payment.Cancelled)
	services.write(t, result(jobs[10], rows[10], late, said)) // a conflict
	other, saysOther := resolve(payment.Expired)
	services.write(t, result(jobs[10], rows[10], other, saysOther)) // and another: what was said before becomes a note
	success, yes := resolve(payment.Succeeded)
	services.write(t, result(jobs[10], rows[10], success, yes)) // a late success
	_, err = services.jobs.Extend(t.Context(), pollsOf(jobs[11:12]), time.Hour)
	must("extend", err)
	must("poison", services.jobs.Bury(t.Context(), consumer.Poison{Subject: "payments.poll.sim.normal", Gateway: "sim", Body: []byte("x"), Why: "no JSON", Count: 1}))
	must("check", services.jobs.Check(t.Context()))
	must("breaker", NewBreakers(services.pool).Transition(t.Context(), fleet.Transition{Gateway: "sim"}, "a"))
	must("fetch", services.webhooks().Alone(t.Context(), "sim", func(ctx context.Context) error {
		_, err := services.webhooks().Take(ctx, []webhook.Arrival{arrival("e2", refOf(r, jobs[11].Payment), payment.Succeeded)})
		return err
	}))

	waits := arrival("e8", "soon0", payment.Succeeded)
	services.became(t, []webhook.Arrival{waits}, webhook.Waiting)
	shop.track(t, "soon", 1)
	services.became(t, []webhook.Arrival{waits}, webhook.Applied)
	sleeps := query[string](t, r, `select p.reference from pollux.payments p join pollux.poll_jobs j on j.payment_id = p.id where j.state = 'scheduled' order by p.id desc limit 1`)
	services.became(t, []webhook.Arrival{hint("e10", sleeps)}, webhook.Hastened)

	// The receiver: takes, sets aside, waits, looks again, hastens, forgets.
	pending := query[[]string](t, r, `select array_agg(reference order by id) from pollux.payments where reference like 'p%' and id > 14 and status = 'pending'`)
	mismatch := arrival("e3", pending[0], payment.Succeeded)
	mismatch.Money.Minor++
	receiver.take(t, mismatch, hint("e4", pending[1]), arrival("e5", "later", payment.Succeeded), arrival("e6", refOf(r, jobs[10].Payment), payment.Cancelled))
	for i, status := range []payment.Status{payment.Cancelled, payment.Failed} { // the second says something else
		against := arrival(fmt.Sprintf("against%d", i), refOf(r, jobs[10].Payment), status)
		against.OccurredAt = time.Now()
		receiver.became(t, []webhook.Arrival{against}, webhook.Conflicting)
	}
	shop.track(t, "later", 1)
	r.exec(t, `update pollux.webhook_events set refs = '{later0}' where event_id = 'e5'`)
	r.exec(t, `update pollux.webhook_waiting set reference = 'later0'`)
	keeper := receiver.webhooks()
	_, err = keeper.Meet(t.Context(), 0, 100)
	must("meet", err)
	r.exec(t, `update pollux.webhook_events set look_at = now() where decision = 'waiting'`)
	_, err = keeper.LookAgain(t.Context(), 10, time.Hour)
	must("look again", err)
	_, err = keeper.Nudge(t.Context(), webhook.Rumour{Gateway: "sim", References: pending[2:3], Rest: time.Minute})
	must("nudge", err)
	_, err = keeper.Quiet(t.Context(), []string{"sim"}, time.Minute, 1)
	must("quiet", err)
	_, err = keeper.Densen(t.Context(), "sim", time.Second, 100)
	must("densen", err)
	must("check", keeper.Check(t.Context()))
	if got := query[string](t, r, `select status from pollux.payments where reference = 'later0'`); got != "succeeded" {
		t.Errorf("what waited for its payment is %s", got)
	}

	// The relay publishes what became of it, and finds that its stream lost messages.
	var b broker
	relay.publish(t, 100, time.Second, &b)
	for _, last := range []uint64{900, 3} {
		for _, name := range []string{message.StreamEvents, message.StreamPoll, message.StreamDeferred} {
			_, err := relay.relay.Observe(t.Context(), name, looks(longAgo, last))
			must("observe", err)
		}
	}
	relay.publish(t, 100, time.Second, &b)
	_, err = keeper.Forget(t.Context(), 0, 2)
	must("forget", err)

	// Operators: two of them, each with a login.
	letters := ada.openLetters(t, "")
	if len(letters) < 4 {
		t.Fatalf("%d letters", len(letters))
	}
	by := letters[0]
	ada.change(t, deadletter.Change{Verb: deadletter.Assign, Owner: "ada"}, by)
	ada.change(t, deadletter.Change{Verb: deadletter.Remark, Note: "x", Link: "https://example.com/1"}, by)
	ada.change(t, deadletter.Change{Verb: deadletter.Park, Note: "x"}, by)
	ada.change(t, deadletter.Change{Verb: deadletter.Reopen}, by)
	dead := query[[]int64](t, r, `select array_agg(id order by id) from pollux.dead_letters where payment_id is not null and not review and state = 'open'`)
	o := order(dead...)
	o.Approval.Letters = 1
	replay := ada.create(t, o)
	second := By{Actor: audit.Actor{Name: "grace", Origin: "test"}, Reason: "looked at"}
	if _, err := ada.replays.Approve(t.Context(), replay.ID, second); !errors.Is(err, deadletter.ErrSameLogin) {
		t.Errorf("one login is two people: %v", err)
	}
	if _, err := ada.pool.Exec(t.Context(), `update pollux.replays set state = 'running', approved_by = 'grace' where id = $1`, replay.ID); !refusedBy(err, "replays_second_login") {
		t.Errorf("one login is two people past the command: %v", err)
	}
	if _, err := grace.pool.Exec(t.Context(), `update pollux.replays set state = 'running' where id = $1`, replay.ID); !refusedBy(err, "replays_approved") {
		t.Errorf("a replay begins without a second person: %v", err)
	}
	if replay, err = grace.replays.Approve(t.Context(), replay.ID, second); err != nil || replay.ApprovedLogin == "" || replay.ApprovedLogin == replay.Login {
		t.Fatalf("%v, %+v", err, replay)
	}
	ada.step(t, replay.ID)
	_, err = ada.replays.Undo(t.Context(), replay.ID, operator)
	must("undo", err)
	if _, err := ada.pool.Exec(t.Context(), `update pollux.replays set state = 'running', approved_by = 'grace' where id = $1`, replay.ID); !refusedBy(err, "replays_ended") {
		t.Errorf("a replay that has ended begins again, past the second person: %v", err)
	}
	o = order(dead...)
	replay = ada.create(t, o)
	ada.step(t, replay.ID)
	// What is replayed leaves its replay by everybody's hand.
	relay.relay.jobs.forget()
	again := relay.claim(t, 100, time.Minute)
	again = slices.DeleteFunc(again, func(j outbox.Job) bool { return j.Lane != message.LaneReplay })
	if len(again) < 3 {
		t.Fatalf("%d jobs are replayed", len(again))
	}
	must("set aside", relay.relay.SetAside(t.Context(), []outbox.SetAside{{Job: again[0], Reason: "too large"}}))
	dies, pends := stillPending(redelivery.DeadLetter, 0)
	services.write(t, result(again[1], services.read(t, again[1:2])[0], dies, pends))
	receiver.take(t, arrival("e7", refOf(r, again[2].Payment), payment.Failed))
	r.exec(t, `update pollux.replays set state = 'stopped' where id = $1`, replay.ID)
	_, err = ada.replays.Resume(t.Context(), replay.ID, operator)
	must("resume", err)
	_, err = ada.replays.Cancel(t.Context(), replay.ID, operator)
	must("cancel", err)
	o = order(dead...)
	o.NoCanary = false
	careful := ada.create(t, o) // tries one first, and looks how its call ended
	ada.step(t, careful.ID)
	ada.step(t, careful.ID)
	live := payment.ID(query[int64](t, r, `select min(payment_id) from pollux.poll_jobs where state = 'scheduled' and next_poll_at > now()`))
	ada.mustAct(t, live, casework.Act{Verb: casework.PollNow})
	ada.mustAct(t, live, casework.Act{Verb: casework.Hold, For: time.Hour, Reason: "x"})
	ada.mustAct(t, live, casework.Act{Verb: casework.Release, Reason: "x"})
	ada.mustAct(t, live, casework.Act{Verb: casework.Force, Status: payment.Failed, Reason: "x"})
	_, err = ada.adopt(t, csvOf("sim,,adopted,100,EUR,"), false)
	must("import", err)
	must("breaker", NewBreakers(ada.pool).Transition(t.Context(), fleet.Transition{Gateway: "sim"}, "pollux"))
	ada.audit(t, acted("breaker.open", "", audit.Change{Target: audit.Breaker("sim", "")}))

	watcher.looksAround(t, replay.ID, live)
	ada.looksAround(t, replay.ID, live)
	requireSound(t, r)
}

func refOf(r *record, id payment.ID) (reference string) {
	_ = r.pool.QueryRow(context.Background(), `select reference from pollux.payments where id = $1`, int64(id)).Scan(&reference)
	return reference
}

// looksAround runs all that operators look with.
func (r *record) looksAround(t testing.TB, replay int64, id payment.ID) {
	t.Helper()
	ctx := t.Context()
	for table := range strings.SplitSeq(shownTables, ", ") { // with psql
		r.exec(t, `select from pollux.`+table)
	}
	for what, look := range map[string]func() error{
		"letters": func() error {
			_, err := r.letters.List(ctx, filter(t, "state=any"), deadletter.Page{Limit: 10})
			return err
		},
		"groups":      func() error { _, _, err := r.letters.Groups(ctx, filter(t, ""), 10); return err },
		"letter":      func() error { _, err := r.letters.Show(ctx, 1); return err },
		"replays":     func() error { _, err := r.replays.List(ctx, 10); return err },
		"replay":      func() error { _, err := r.replays.Replay(ctx, replay); return err },
		"items":       func() error { return r.replays.Items(ctx, replay, func(deadletter.Item) error { return nil }) },
		"left":        func() error { _, err := r.replays.Left(ctx, replay, 10); return err },
		"unknown":     func() error { _, err := r.replays.Unknown(ctx, filter(t, "gateway=x")); return err },
		"dry run":     func() error { _, err := r.replays.Preview(ctx, order(1), 10); return err },
		"count":       func() error { _, err := r.casework().Count(ctx); return err },
		"payments":    func() error { _, err := r.casework().List(ctx, casework.Filter{}, 0, 10); return err },
		"totals":      func() error { _, err := r.casework().Totals(ctx, casework.Filter{}); return err },
		"dossier":     func() error { _, err := r.casework().Dossier(ctx, int64(id)); return err },
		"find":        func() error { _, err := r.casework().Find(ctx, casework.Key{ID: int64(id)}); return err },
		"audit":       func() error { return r.verifyAudit(t, nil) },
		"notices":     func() error { _, err := r.webhooks().ListWebhooks(ctx, WebhookFilter{Limit: 10}); return err },
		"notice":      func() error { _, err := r.webhooks().ShowWebhook(ctx, 1); return err },
		"transitions": func() error { _, err := NewBreakers(r.pool).Changes(ctx, "sim", "", 10); return err },
		"asleep":      func() error { _, err := NewBreakers(r.pool).Asleep(ctx); return err },
		"account":     func() error { _, err := NewBreakers(r.pool).Account(ctx, "sim", ""); return err },
		"compare":     func() error { _, err := r.jobs.Compare(ctx, "sim", "", []string{"p1"}); return err },
		"job":         func() error { _, _, err := r.jobs.Find(ctx, "sim", "", "p1"); return err },
		"census":      func() error { _, err := Count(ctx, r.pool, 0); return err },
		"measure":     func() error { _, err := Measure(ctx, r.pool, 0, 0); return err },
		"schema":      func() error { return CheckSchema(ctx, r.pool) },
		"migrations":  func() error { _, err := Migrations(ctx, r.url); return err },
	} {
		if err := look(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestMaintenanceKeepsAHistoryWhateverItIsAsked(t *testing.T) {
	r := newGranted(t)
	for _, parent := range []string{"outbox", "poll_attempts"} {
		r.day(t, parent, -1)
	}
	relay := r.login(t, RoleRelay)
	relay.exec(t, `select pollux.maintain('-3 days', '-3 days')`)
	if got := r.partitions(t, "poll_attempts"); !slices.Equal(got, []string{"-1", "0", "1", "2", "3"}) {
		t.Errorf("partitions that are left: %v", got)
	}
}

// A login that may only look keeps nobody from working: what takes turns are rows that it may not lock.
func TestALoginThatLooksStopsNobody(t *testing.T) {
	r := newGranted(t)
	r.dead(t, "d", 1)
	watcher, err := r.login(t, RoleReadOnly).pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // the test is over
	for _, lock := range []string{`hashtext('pollux.maintain')`, `hashtextextended('pollux.replays', 0)`, `hashtext('pollux.webhook_events'), hashtext('sim')`} {
		if _, err := watcher.Exec(t.Context(), `select pg_advisory_xact_lock(`+lock+`)`); err != nil {
			t.Fatal(err)
		}
	}
	r.exec(t, `drop table pollux.outbox_`+time.Now().UTC().AddDate(0, 0, 2).Format("20060102"))
	r.login(t, RoleRelay).maintain(t)
	if got := r.partitions(t, "outbox"); len(got) != 4 {
		t.Errorf("partitions: %v", got)
	}
	r.login(t, RoleOperator).create(t, order(1))
	did := false
	if err := r.login(t, RoleConsumer).webhooks().Alone(t.Context(), "sim", func(context.Context) error { did = true; return nil }); err != nil || !did {
		t.Errorf("%v, fetched: %t", err, did)
	}
}

// deploy/postgres has what an administrator runs: the roles, and logins whose passwords are variables.
func TestTheFilesForAdministratorsAreThoseOfTheBuild(t *testing.T) {
	roles, err := os.ReadFile("../../deploy/postgres/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(roles), RolesSQL()) {
		t.Errorf("deploy/postgres/roles.sql does not have what pollux perms print postgres begins with:\n%s", RolesSQL())
	}
	logins, err := os.ReadFile("../../deploy/postgres/logins.sql")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(logins), "password '") {
		t.Error("a password is written out")
	}
	bin, _, err := localpg.Find()
	if err != nil {
		t.Fatal(err)
	}
	r := newGranted(t)
	psql := func(script string, env ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--dbname="+r.url)
		cmd.Stdin, cmd.Env = strings.NewReader(script), append([]string{"PATH=/usr/bin:/bin"}, env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	var env, want []string
	for _, role := range Roles {
		program := strings.TrimPrefix(string(role), "pollux_")
		env = append(env, strings.ToUpper(program)+"_PASSWORD=of a test")
		want = append(want, fmt.Sprintf("%s %s_login", role, role))
	}
	slices.Sort(want)
	// Twice, and logins are of the whole cluster: none is left.
	out, err := psql(`begin;
		\i ../../deploy/postgres/logins.sql
		\i ../../deploy/postgres/logins.sql
		select r.rolname || ' ' || l.rolname from pg_auth_members m join pg_roles r on r.oid = m.roleid join pg_authid l on l.oid = m.member
		where l.rolcanlogin and l.rolname like 'pollux\_%\_login' and l.rolpassword like 'SCRAM%' order by 1;
		rollback;`, env...)
	if got := strings.Split(strings.TrimSpace(out), "\n"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if out, err := psql("begin;\n\\i ../../deploy/postgres/logins.sql\nrollback;", env[1:]...); !strings.Contains(out, "a password is missing: set MIGRATOR_PASSWORD") {
		t.Errorf("without a password: %v\n%s", err, out)
	}
}

// A login that may make things in some schema cannot have the trigger of the operator's word take its operator for the one that is meant.
func TestAnOperatorOfOnesOwnMakesNobodyAnOperator(t *testing.T) {
	r := newGranted(t)
	id := query[int64](t, r, `select pollux.track_payment('sim', 'p', 1, 'EUR')`)
	consumer := r.login(t, RoleConsumer)
	r.exec(t, "create schema hers; grant all on schema hers to "+consumer.pool.Config().ConnConfig.User)
	t.Cleanup(func() {
		if _, err := r.pool.Exec(context.WithoutCancel(t.Context()), "drop schema hers cascade"); err != nil {
			t.Error(err)
		}
	})
	consumer.exec(t, `create function hers.never(text, text) returns boolean language sql as 'select $1 operator(pg_catalog.=) $2 and $2 operator(pg_catalog.<>) ''operator'''`)
	consumer.exec(t, `create operator hers.= (function = hers.never, leftarg = text, rightarg = text)`)
	conn, err := consumer.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `set search_path = hers, pg_catalog`); err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), `update pollux.payments set status = 'succeeded', status_source = 'operator' where id operator(pg_catalog.=) $1`, id)
	if err == nil || !strings.Contains(err.Error(), "only an operator has the last word") {
		t.Errorf("a consumer speaks as an operator: %v", err)
	}
}

// Who administers a managed database is no superuser: a login that may create roles and owns the database.
func TestTheFilesForAdministratorsNeedNoSuperuser(t *testing.T) {
	bin, _, err := localpg.Find()
	if err != nil {
		t.Fatal(err)
	}
	server := pgtest.Server(t) // its own, for roles are of a whole cluster
	run(t, server.DSN("postgres"), `create role admin login createrole password 'of a test'`)
	as := func(name, database string) string { return withLogin(t, server.DSN(database), name) }
	for _, database := range []string{"payments", "direct"} {
		run(t, server.DSN("postgres"), "create database "+database+" owner admin")
	}
	var env []string
	for _, role := range Roles {
		env = append(env, strings.ToUpper(strings.TrimPrefix(string(role), "pollux_"))+"_PASSWORD=of a test")
	}
	for _, file := range []string{"roles.sql", "roles.sql", "logins.sql", "logins.sql"} { // again, they change nothing
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction",
			"--dbname="+as("admin", "payments"), "--file=../../deploy/postgres/"+file)
		cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", file, err, out)
		}
	}
	up := func(login, database string) Granted {
		t.Helper()
		url := as(login, database)
		if _, err := Migrate(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		g, err := Grant(t.Context(), url)
		if err != nil || len(g.Missing) > 0 || g.Owner != "" || len(g.Changed) != len(logins) {
			t.Fatalf("%s in %s: %v, %+v", login, database, err, g)
		}
		return g
	}
	up("pollux_migrator_login", "payments")
	payments := openRecord(t, as("admin", "payments"))
	if owner := query[string](t, payments, `select string_agg(distinct relowner::regrole::text, ' ') from pg_class where relnamespace = 'pollux'::regnamespace`); owner != string(RoleMigrator) {
		t.Errorf("what the migrator makes belongs to %s", owner)
	}
	run(t, as("pollux_tracker_login", "payments"), `select pollux.track_payment('sim', 'p', 1, 'EUR')`)
	for _, role := range logins {
		h, err := Rights(t.Context(), openRecord(t, as(string(role)+"_login", "payments")).pool, role)
		if err != nil || !h.Exact() {
			t.Errorf("%s: %v, %+v", role, err, h)
		}
	}
	// Without the files, with the administrator's own login.
	up("admin", "direct")
}
