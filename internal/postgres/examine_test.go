package postgres

import (
	"context"
	"crypto/rand"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pollux/internal/audit"
	"pollux/internal/doctor"
	"pollux/internal/pgtest"
)

// examined is what the doctor says of a database, by check; of several findings the worst.
func examined(t *testing.T, url string) map[string]doctor.Finding {
	t.Helper()
	e := examiner(t, url)
	s := &doctor.Sources{
		Server: doctor.Ask(e.Server), Clock: doctor.Ask(e.Clock), Schema: doctor.Ask(e.Schema), Sessions: doctor.Ask(e.Sessions), Connections: doctor.Ask(e.Connections),
		Tables: doctor.Ask(e.Tables), Structure: doctor.Ask(e.Structure), Partitions: doctor.Ask(e.Partitions), Strays: doctor.Ask(e.Strays), Ahead: doctor.Ask(e.Ahead), Queues: doctor.Ask(e.Queues),
		Outbox: doctor.Ask(e.Outbox), Letters: doctor.Ask(e.Letters), Silence: doctor.Ask(e.Silence), Chain: doctor.Ask(e.Chain),
	}
	set := &doctor.Settings{Gateways: []doctor.Gateway{{Name: "sim", Rate: 10}}, MaxConns: 8, Now: time.Now()}
	found := map[string]doctor.Finding{}
	for _, f := range doctor.Examine(t.Context(), s, set, doctor.Record, doctor.Gateways, doctor.Security, doctor.Host).Findings {
		if _, ok := found[f.ID]; !ok { // the worst comes first
			found[f.ID] = f
		}
	}
	return found
}

func examiner(t *testing.T, url string) *Examiner {
	t.Helper()
	return NewExaminer(open(t, Options{URL: url, MaxConns: 4, Name: "pollux-doctor"}), ExamineOptions{
		KeepEvents: 24 * time.Hour, KeepAttempts: 30 * 24 * time.Hour, Retry: time.Second, Watched: []Watched{{Gateway: "sim", After: time.Hour, Pending: 1}}})
}

func run(t *testing.T, url, sql string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if _, err := c.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}

func TestTheDoctorFindsWhatIsWrongInTheRecord(t *testing.T) {
	well := pgtest.New(t, migrate)
	run(t, well, `select pollux.track_payment('sim', 'p' || i, 1999, 'EUR') from generate_series(1, 5) as i;
		select pollux.audit('ada', 'test', 'payment.force', 'done', 'why', '[{"target": "payment:1", "before": null, "after": null}]'::jsonb)`)
	for id, f := range examined(t, well) {
		switch id {
		case "record.fsync", "record.full_page_writes", "record.synchronous_commit", "record.relay", "security.superuser": // the tests' server trades them for speed, and is looked at by its superuser
		default:
			if f.Level != doctor.Green {
				t.Errorf("of a database that is well: %+v", f)
			}
		}
	}

	// Several faults at once, as far as one does not hide another.
	for name, faults := range map[string][]fault{
		"of its structure": {
			{"record.writable", doctor.Red, "read_only", `do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$`},
			{"record.synchronous_commit", doctor.Red, "lost in a crash", `do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$`},
			{"record.indexes", doctor.Red, "poll_jobs_claim", `update pg_index set indisvalid = false where indexrelid = 'pollux.poll_jobs_claim'::regclass`},
			{"record.storage", doctor.Red, "autovacuum_enabled", `alter table pollux.payments set (autovacuum_enabled = off)`},
			{"record.triggers", doctor.Red, "payments.payments_turned", `alter table pollux.payments disable trigger payments_turned`},
			{"record.partitions", doctor.Yellow, "there is no partition", `do $$ begin execute format('drop table pollux.outbox_%s', to_char((now() at time zone 'UTC')::date + 1, 'YYYYMMDD')); end $$`},
			{"record.schema", doctor.Red, "it is at version 3", `delete from pollux.schema_version where version_id > 3`},
		},
		"of what is in it": {
			{"record.indexes", doctor.Red, "missing", `drop index pollux.poll_jobs_claim`},
			{"record.storage", doctor.Yellow, "fillfactor is not set", `alter table pollux.poll_jobs reset (fillfactor)`},
			{"record.partitions", doctor.Yellow, "rows are in the default partition", `insert into pollux.outbox (event_id, subject, body, created_at, published_at) values ('e0', 's', '{}', now() - interval '90 days', now()); select pg_stat_force_next_flush()`},
			{"record.due", doctor.Red, "sim/normal", `select pollux.track_payment('sim', 'p', 1, 'EUR'); update pollux.poll_jobs set next_poll_at = now() - interval '2 hours', window_started_at = now() - interval '3 hours'`},
			{"gateways.notifications", doctor.Yellow, "sim", ``},
			{"record.queues", doctor.Red, "other", `select pollux.track_payment('other', 'p', 1, 'EUR')`},
			{"record.outbox", doctor.Red, "tried 9 times", `insert into pollux.outbox (event_id, subject, body, created_at, tries) values ('e1', 's', '{}', now() - interval '1 hour', 9)`},
			{"record.set_aside", doctor.Yellow, "too large", `insert into pollux.outbox (event_id, subject, body, publish_at, set_aside) values ('e2', 's', '{}', 'infinity', 'too large')`},
			{"record.letters", doctor.Yellow, "19.99 EUR", `insert into pollux.dead_letters (gateway, reason, subject, body, amount_minor, currency, died_at) values ('sim', 'undecodable', 's', 'b', 1999, 'EUR', now() - interval '3 days')`},
			{"record.audit", doctor.Red, "row 1", `select pollux.audit('ada', 'test', 'payment.force', 'done', 'why', '[{"target": "payment:1", "before": null, "after": null}]'::jsonb);
				alter table pollux.audit_log disable trigger all; update pollux.audit_log set actor = 'eve'`},
			{"record.orphans", doctor.Red, "1 payment is pending without a job", `select pollux.track_payment('sim', 'orphan', 1, 'EUR'); alter table pollux.poll_jobs disable trigger all;
				delete from pollux.poll_jobs j using pollux.payments p where p.id = j.payment_id and p.reference = 'orphan'`},
		},
		"of ends": {
			{"record.orphans", doctor.Red, "1 job is", `select pollux.track_payment('sim', 'p', 1, 'EUR'); alter table pollux.payments disable trigger all; update pollux.payments set status = 'failed'`},
			{"record.letters", doctor.Yellow, "nobody drives", `insert into pollux.replays (request_id, selection, reason, created_by, created_at) values ('r', 's', 'w', 'ada', now() - interval '1 hour'); update pollux.replays set state = 'running'`},
		},
	} {
		url := pgtest.New(t, migrate)
		for _, f := range slices.Backward(faults) { // read-only comes last
			run(t, url, f.sql)
		}
		found := examined(t, url)
		for _, f := range faults {
			if got := found[f.id]; got.Level != f.want || !strings.Contains(got.Subject+" "+got.Found, f.says) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

var inQuotes = regexp.MustCompile(`-c "([^"]*)"`)

// mend runs what psql is told to in the mend of a finding.
func mend(t *testing.T, url string, f doctor.Finding) {
	t.Helper()
	statements := inQuotes.FindAllStringSubmatch(f.Mend, -1)
	if len(statements) == 0 {
		t.Fatalf("psql is told nothing: %+v", f)
	}
	for _, m := range statements {
		run(t, url, m[1])
	}
}

func TestWhatTheDoctorSaysMends(t *testing.T) {
	url := pgtest.New(t, migrate)
	run(t, url, `select pollux.track_payment('sim', 'p' || i, 1, 'EUR') from generate_series(1, 3) as i; alter table pollux.poll_jobs disable trigger all; delete from pollux.poll_jobs;
		alter table pollux.poll_jobs enable trigger all; drop index pollux.poll_jobs_claim`)
	found := examined(t, url)
	mend(t, url, found["record.orphans"])
	mend(t, url, found["record.indexes"])
	run(t, url, `alter table pollux.payments disable trigger all; update pollux.payments set status = 'failed' where reference = 'p1'; alter table pollux.payments enable trigger all`)
	after := examined(t, url)
	if f := after["record.indexes"]; f.Level != doctor.Green {
		t.Errorf("%+v", f)
	}
	if f := after["record.orphans"]; !strings.Contains(f.Found, "1 job is") {
		t.Errorf("%+v", f)
	}
	mend(t, url, after["record.orphans"])
	for _, id := range []string{"record.orphans", "record.triggers"} {
		if f := examined(t, url)[id]; f.Level != doctor.Green {
			t.Errorf("%+v", f)
		}
	}
}

// A clock that was an hour ahead leaves jobs and events that wait for it to be there again. What it wrote is brought back by so much, and nothing else is moved.
func TestWhatAClockThatWasAheadWroteIsBroughtBack(t *testing.T) {
	url := pgtest.New(t, migrate)
	run(t, url, `select pollux.track_payment('sim', 'p' || i, 1, 'EUR') from generate_series(1, 4) as i;
		update pollux.poll_jobs set next_poll_at = now() + interval '5 hours' where payment_id = 1;
		update pollux.poll_jobs set next_poll_at = now() + interval '70 minutes', window_started_at = now() + interval '1 hour', updated_at = now() + interval '1 hour' where payment_id = 2;
		update pollux.poll_jobs set state = 'in_flight', lock_token = gen_random_uuid(), locked_by = 'relay', locked_until = now() + interval '65 minutes', updated_at = now() + interval '1 hour' where payment_id = 3;
		insert into pollux.outbox (event_id, subject, body, created_at, publish_at, set_aside) values
		  ('ahead', 's', '{}', now() + interval '1 hour', now() + interval '1 hour', null),
		  ('tried ahead', 's', '{}', now() - interval '1 minute', now() + interval '1 hour', null),
		  ('tried now', 's', '{}', now() - interval '1 minute', now() + interval '1 second', null),
		  ('set aside', 's', '{}', now(), 'infinity', 'too large')`)
	found := examined(t, url)["record.ahead"]
	if found.Level != doctor.Red || !strings.Contains(found.Found, "2 jobs and 2 events are ahead, by up to 1h") {
		t.Errorf("%+v", found)
	}
	mend(t, url, found)
	if f := examined(t, url)["record.ahead"]; f.Level != doctor.Green {
		t.Errorf("%+v", f)
	}
	c := open(t, Options{URL: url, MaxConns: 1})
	var jobs, events string
	err := c.QueryRow(t.Context(), `
		select
		  (select string_agg(payment_id || ' ' || case
		    when claimable_at < now() - interval '30 minutes' then 'due before'
		    when claimable_at <= now() then 'due'
		    when claimable_at < now() + interval '6 minutes' then 'lease'
		    when claimable_at < now() + interval '11 minutes' then 'ten minutes'
		    else 'as it was' end || case when window_started_at > now() then ' window ahead' else '' end, ', ' order by payment_id) from pollux.poll_jobs),
		  (select string_agg(event_id, ', ' order by event_id) from pollux.outbox where publish_at <= now() + interval '2 seconds')`).Scan(&jobs, &events)
	if err != nil {
		t.Fatal(err)
	}
	if want := "1 as it was, 2 ten minutes, 3 lease, 4 due"; jobs != want {
		t.Errorf("jobs are %s, want %s", jobs, want)
	}
	if want := "ahead, tried ahead, tried now"; events != want {
		t.Errorf("the events %s are to be published, want %s", events, want)
	}
}

// The statements that make the indexes are written beside the migrations: they make the same.
func TestMissingIndexesAreMadeAsTheyWere(t *testing.T) {
	url := pgtest.New(t, migrate)
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	definition := func(name string) (sql string) {
		t.Helper()
		if err := c.QueryRow(t.Context(), `select pg_get_indexdef(to_regclass('pollux.' || $1))`, name).Scan(&sql); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return sql
	}
	for _, index := range hotIndexes {
		before := definition(index.Name)
		drop := "drop index pollux." + index.Name
		if table, isConstraint := strings.CutPrefix(index.Make, "alter table "); isConstraint {
			table, _, _ = strings.Cut(table, " ")
			drop = "alter table " + table + " drop constraint " + index.Name + " cascade"
		}
		for _, sql := range []string{drop, index.Make} {
			if _, err := c.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		if after := definition(index.Name); after != before {
			t.Errorf("it was\n%s, and is\n%s", before, after)
		}
	}
}

func TestWhatARoleIsNotMeantToReadIsNoFault(t *testing.T) {
	denied := func(table string) error {
		return describe("looking", &pgconn.PgError{Code: "42501", Message: "permission denied for table " + table})
	}
	for _, c := range []struct {
		role   Role
		err    error
		beyond bool
	}{
		{RoleConsumer, denied("outbox"), true}, // of which it may read one column
		{RoleConsumer, denied("audit_log"), true},
		{RoleConsumer, denied("payments"), false},
		{RoleRelay, denied("audit_log"), false},
		{RoleMigrator, denied("payments"), false},
		{RoleConsumer, describe("looking", &pgconn.PgError{Code: "42501", Message: "permission denied for schema pollux"}), false},
		{RoleConsumer, context.DeadlineExceeded, false},
	} {
		if got := c.role.Beyond(c.err); got != c.beyond {
			t.Errorf("%s, %v: %t", c.role, c.err, got)
		}
	}
}

func TestTheMigratorOwnsTheSchemaAndThatIsRight(t *testing.T) {
	url := pgtest.New(t, migrate)
	name := "owner_" + strings.ToLower(rand.Text())
	run(t, url, "create role "+name+"; alter schema pollux owner to "+name)
	defer run(t, url, "alter schema pollux owner to current_user; drop role "+name)
	pool := open(t, Options{URL: url, MaxConns: 1})
	if _, err := pool.Exec(t.Context(), "set session authorization "+name); err != nil {
		t.Fatal(err)
	}
	for role, everything := range map[Role]string{RoleMigrator: "", RoleRelay: ownsSchema} {
		r, err := NewExaminer(pool, ExamineOptions{Role: role}).Rights(t.Context())
		if err != nil || r.Everything != everything || len(r.Missing)+len(r.Excessive) > 0 {
			t.Errorf("%s: %+v %v", role, r, err)
		}
	}
	for role, private := range map[Role]bool{RoleMigrator: true, RoleConsumer: true, RoleRelay: false} {
		s, err := NewExaminer(pool, ExamineOptions{Role: role}).Sessions(t.Context())
		if err != nil || s.Private != private || s.Hidden == private {
			t.Errorf("%s: %+v %v", role, s, err)
		}
	}
}

func TestTheDoctorNamesLoginsThatMayDoMoreThanTheirRoles(t *testing.T) {
	r := newGranted(t)
	suffix := strings.ToLower(rand.Text())
	made := []string{}
	role := func(name, how string) string {
		t.Helper()
		made = append(made, name+"_"+suffix)
		r.exec(t, "create role "+made[len(made)-1]+" login "+how)
		return made[len(made)-1]
	}
	database := r.pool.Config().ConnConfig.Database
	t.Cleanup(func() {
		// Of a test whose context is over.
		for _, sql := range []string{"drop schema hers", "revoke create on database " + database + " from " + strings.Join(made, ", "), "drop role " + strings.Join(made, ", ")} {
			if _, err := r.pool.Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
		}
	})
	plain := role("plain", "in role pollux_operator")
	owner := role("migrates", "superuser in role pollux_migrator, pollux_operator")
	super := role("super", "superuser in role pollux_relay")
	maker := role("maker", "createrole in role pollux_consumer")
	indirect := role("indirect", "in role "+maker)
	shop := role("shop", "in role pollux_tracker")
	author := role("author", "in role pollux_readonly")
	builder := role("builder", "in role pollux_webhook")
	r.exec(t, "create schema hers; grant create on schema hers to "+author+", "+shop+"; grant create on database "+database+" to "+builder)
	found := func(l doctor.Logins, err error) map[string]doctor.Login {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]doctor.Login{}
		for _, who := range l.Logins {
			all[who.Name] = who
		}
		return all
	}
	e := NewExaminer(r.pool, ExamineOptions{})
	all := found(e.Logins(t.Context()))
	for _, want := range []doctor.Login{
		{Name: plain, Role: "pollux_operator"}, {Name: maker, Role: "pollux_consumer", CreateRole: true}, {Name: indirect, Role: "pollux_consumer", CreateRole: true},
		{Name: shop, Role: "pollux_tracker"}, {Name: author, Role: "pollux_readonly", Creates: []string{"hers"}}, {Name: builder, Role: "pollux_webhook", Schemas: true},
		{Name: "pollux_relay", Role: "pollux_relay"},
	} {
		got := all[want.Name]
		if len(got.Creates) == 0 {
			got.Creates = nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if got := all[super]; !got.Superuser {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{owner, "pollux_migrator"} {
		if got, there := all[name]; there {
			t.Errorf("who may migrate owns everything: %+v", got)
		}
	}
	r.exec(t, "alter schema pollux owner to "+plain+"; grant create on schema public to public")
	l, err := e.Logins(t.Context())
	if all = found(l, err); !all[plain].Owner || !slices.Contains(l.Open, "public") {
		t.Errorf("%+v, %v", all[plain], l.Open)
	}
	r.exec(t, "alter schema pollux owner to current_user; alter role "+plain+" password 'of a test'")
	self := found(NewExaminer(openRecord(t, withLogin(t, r.url, plain)).pool, ExamineOptions{}).Self(t.Context()))
	if _, there := self[plain]; !there || len(self) != 1 {
		t.Errorf("%+v", self)
	}
}

// fault is something that is wrong with a record, and what the doctor says of it.
type fault struct {
	id   string
	want doctor.Level
	says string
	sql  string
}

func TestTheDoctorNamesWhoHoldsTheTablesBack(t *testing.T) {
	url := pgtest.New(t, migrate)
	run(t, url, `select pollux.track_payment('sim', 'p', 1, 'EUR')`)
	open := func(name string) *pgx.Conn {
		t.Helper()
		cfg, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		cfg.RuntimeParams["application_name"] = name
		c, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		return c
	}
	forgotten, blocked := open("forgotten"), open("pollux-relay")
	if _, err := forgotten.Exec(t.Context(), `begin; select from pollux.payments for update`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = blocked.Exec(ctx, `select from pollux.payments for update`)
	}()
	t.Cleanup(func() { cancel(); <-done })
	e := examiner(t, url)
	eventually(t, "it is seen who waits for whom", func() bool {
		s, err := e.Sessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		holder := forgotten.PgConn().PID()
		return s.Relays == 1 && !s.Hidden && len(s.Oldest) > 0 && s.Oldest[0].Application == "forgotten" && s.Oldest[0].PID == int(holder) &&
			s.Oldest[0].State == "idle in transaction" && s.Oldest[0].Kind == "client backend" && s.Oldest[0].Age > 0 &&
			len(s.Waiting) == 1 && s.Waiting[0].Application == "pollux-relay" && s.Waiting[0].Blocker == int(holder) && s.Waiting[0].BlockedBy == "forgotten"
	})
}

// The settings of a whole server: one of this test's own.
func TestTheDoctorFindsAServerThatForgets(t *testing.T) {
	server := pgtest.Server(t)
	url := server.DSN("postgres")
	if err := migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"record.fsync", "record.full_page_writes", "record.synchronous_commit", "record.autovacuum", "record.prepared", "record.slots", "record.version", "host.clock"} {
		if f := examined(t, url)[id]; f.Level != doctor.Green {
			t.Errorf("of a server that is well: %+v", f)
		}
	}
	for _, sql := range []string{"alter system set fsync = off", "alter system set full_page_writes = off", "alter system set synchronous_commit = off", "alter system set autovacuum = off",
		"alter system set max_prepared_transactions = 2"} {
		run(t, url, sql)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, url, `begin; create table t (); prepare transaction 'left behind'`)
	run(t, url, `select pg_create_physical_replication_slot('nobody', true)`)
	found := examined(t, url)
	for id, want := range map[string]doctor.Level{"record.fsync": doctor.Red, "record.full_page_writes": doctor.Yellow, "record.synchronous_commit": doctor.Red, "record.autovacuum": doctor.Red} {
		if f := found[id]; f.Level != want || !strings.Contains(f.Found, "off") {
			t.Errorf("%+v", f)
		}
	}
	for _, id := range []string{"record.fsync", "record.full_page_writes", "record.synchronous_commit", "record.autovacuum"} {
		mend(t, url, found[id])
		eventually(t, id+" is mended", func() bool { return examined(t, url)[id].Level == doctor.Green })
	}
	s, err := examiner(t, url).Sessions(t.Context())
	if err != nil || len(s.Prepared) != 1 || s.Prepared[0].GID != "left behind" || len(s.Slots) != 1 || s.Slots[0].Name != "nobody" || s.Slots[0].Active {
		t.Errorf("%+v %v", s, err)
	}
	server.Kill()
	for id, f := range examined(t, url) {
		if f.Area == doctor.Record && f.Level != doctor.Unknown && f.Level != doctor.Red {
			t.Errorf("of a server that is away: %s %+v", id, f)
		}
	}
}

func TestTheDoctorAddsUpMoreThanThereIs(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `insert into pollux.dead_letters (gateway, reason, subject, body, amount_minor, currency) select 'sim', 'undecodable', 's' || g, 'b', 9223372036854775807, 'EUR' from generate_series(1, 2) g`)
	letters, err := NewExaminer(r.pool, ExamineOptions{}).Letters(t.Context())
	if err != nil || letters.Money["EUR"] != math.MaxInt64 {
		t.Errorf("%v, %+v", err, letters)
	}
}

func TestTheDoctorReadsALongAuditLog(t *testing.T) {
	r := newRecord(t)
	log := NewAudit(r.pool)
	for range 3 {
		act := audit.Act{Actor: audit.Actor{Name: "ada", Origin: "test"}, Action: "payment.force", Outcome: audit.Done, Reason: "why"}
		for i := range 400 {
			act.Changes = append(act.Changes, audit.Change{Target: audit.Payment(int64(i))})
		}
		if err := log.Record(t.Context(), act); err != nil {
			t.Fatal(err)
		}
	}
	c, err := examiner(t, r.url).Chain(t.Context())
	if err != nil || c.Rows != chainLooked || c.Broken != 0 || !strings.HasSuffix(c.Head, "@1200") {
		t.Errorf("%+v %v", c, err)
	}
}
