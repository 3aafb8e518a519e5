package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/audit"
	"pollux/internal/doctor"
	"pollux/internal/outbox"
)

// Watched is a gateway that is expected to send notifications.
type Watched struct {
	Gateway string
	After   time.Duration // that is silence
	Pending int           // while so many payments wait
}

// ExamineOptions say what the configuration expects of the record.
type ExamineOptions struct {
	KeepEvents   time.Duration
	KeepAttempts time.Duration
	Retry        time.Duration // of events that were not stored
	Watched      []Watched
	Role         Role // whose rights the login should have; empty: nobody's
}

// Examiner gathers facts about the database and the record for the doctor. It changes nothing, reads no more than some hundred thousand rows for any fact, and is safe for
// concurrent use.
type Examiner struct {
	pool *pgxpool.Pool
	opts ExamineOptions
}

// NewExaminer returns an examiner. Its pool should not be pinned to indexes: it joins many rows.
func NewExaminer(pool *pgxpool.Pool, o ExamineOptions) *Examiner { return &Examiner{pool, o} }

// mostCounted bounds what is counted for people.
const mostCounted = 10_000

// settingsLooked are the settings that checks are about.
var settingsLooked = []string{"fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "autovacuum", "track_counts"}

// Server tells which server it is and who we are there.
func (e *Examiner) Server(ctx context.Context) (s doctor.Server, err error) {
	c, err := e.pool.Acquire(ctx)
	if err != nil {
		return s, describe("reaching the database", err)
	}
	defer c.Release()
	var names, values []string
	err = c.QueryRow(ctx, `
		select current_setting('server_version_num')::int, current_setting('server_version'), current_user,
		  coalesce((select rolsuper from pg_roles where rolname = current_user), false),
		  pg_is_in_recovery(), current_setting('transaction_read_only')::boolean,
		  array_agg(name), array_agg(setting)
		from pg_settings
		where name = any ($1)`, settingsLooked).Scan(&s.Version, &s.Name, &s.Login, &s.Superuser, &s.Standby, &s.ReadOnly, &names, &values)
	if err != nil {
		return s, describe("asking the database who it is", err)
	}
	s.Settings = map[string]string{}
	for i, name := range names {
		s.Settings[name] = values[i]
	}
	s.Peer = peerOf(c.Conn().PgConn())
	return s, nil
}

// peerOf is who is at the other end of a connection.
func peerOf(c *pgconn.PgConn) doctor.Peer {
	var p doctor.Peer
	switch a := c.Conn().RemoteAddr().(type) {
	case *net.UnixAddr:
		p.Local = true
	case *net.TCPAddr:
		p.Local = a.IP.IsLoopback()
	}
	if secure, ok := c.Conn().(*tls.Conn); ok {
		p.Secure = true
		for _, cert := range secure.ConnectionState().PeerCertificates {
			p.Certificates = append(p.Certificates, doctor.Certificate{Where: "database", Subject: cert.Subject.String(), NotAfter: cert.NotAfter})
		}
	}
	return p
}

// clockReadings is how often a clock is read: the quickest answer says most.
const clockReadings = 5

// Clock tells how far the database's clock is from ours.
func (e *Examiner) Clock(ctx context.Context) (doctor.Clock, error) {
	c, err := e.pool.Acquire(ctx)
	if err != nil {
		return doctor.Clock{}, describe("reaching the database", err)
	}
	defer c.Release()
	return doctor.ReadClock(clockReadings, func() (at time.Time, err error) {
		err = c.QueryRow(ctx, `select clock_timestamp()`).Scan(&at)
		return at, describe("reading the database's clock", err)
	})
}

// Schema tells the version of the schema.
func (e *Examiner) Schema(ctx context.Context) (doctor.Schema, error) {
	s := doctor.Schema{Want: newest()}
	var err error
	if s.Have, err = schemaVersion(ctx, e.pool); errors.Is(err, ErrSchema) {
		return s, nil
	}
	if err == nil && s.Have > s.Want {
		err = serves(ctx, e.pool, s.Have, s.Want)
		s.Serves = err == nil
		if errors.Is(err, ErrSchema) {
			err = nil
		}
	}
	return s, err
}

// hidden reports whether the sessions of other logins are not shown to this one. The error is doctor.ErrNotOurs where that is as it should be.
func (e *Examiner) hidden(ctx context.Context) (bool, error) {
	var hidden bool
	err := e.pool.QueryRow(ctx, `select not pg_has_role(current_user, 'pg_read_all_stats', 'usage')`).Scan(&hidden)
	if role := e.opts.Role; err == nil && hidden && role != "" && !role.watches() {
		return false, fmt.Errorf("%w: %s does not see the sessions of others", doctor.ErrNotOurs, role)
	}
	return hidden, err
}

// Sessions tells what holds vacuum back, and who waits for whom.
func (e *Examiner) Sessions(ctx context.Context) (s doctor.Sessions, err error) {
	if s.Hidden, err = e.hidden(ctx); errors.Is(err, doctor.ErrNotOurs) {
		s.Private, err = true, nil
	}
	if err == nil {
		err = e.pool.QueryRow(ctx, `select count(*) from pg_stat_activity where datname = current_database() and application_name = 'pollux-relay'`).Scan(&s.Relays)
	}
	if err != nil {
		return s, describe("looking at sessions", err)
	}
	if s.Oldest, err = collect(ctx, e.pool, `
		select pid, coalesce(usename, ''), coalesce(application_name, ''), coalesce(state, ''), backend_type, extract(epoch from clock_timestamp() - xact_start)::float8
		from pg_stat_activity
		where xact_start is not null
		  and pid <> pg_backend_pid()
		  and (datname = current_database() or backend_type = 'walsender')
		  and backend_type <> 'autovacuum worker'
		order by xact_start
		limit 5`, func(row pgx.CollectableRow) (o doctor.Session, err error) {
		var age float64
		err = row.Scan(&o.PID, &o.Login, &o.Application, &o.State, &o.Kind, &age)
		o.Age = seconds(age)
		return o, err
	}); err != nil {
		return s, describe("looking at transactions", err)
	}
	if s.Prepared, err = collect(ctx, e.pool, `
		select gid, owner, extract(epoch from clock_timestamp() - prepared)::float8
		from pg_prepared_xacts
		where database = current_database()
		order by prepared
		limit 5`, func(row pgx.CollectableRow) (p doctor.Prepared, err error) {
		var age float64
		err = row.Scan(&p.GID, &p.Owner, &age)
		p.Age = seconds(age)
		return p, err
	}); err != nil {
		return s, describe("looking at prepared transactions", err)
	}
	if s.Slots, err = collect(ctx, e.pool, `
		select slot_name, active,
		  coalesce(pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end, restart_lsn), 0)::bigint,
		  coalesce(wal_status, ''), coalesce(greatest(age(xmin), age(catalog_xmin)), 0)
		from pg_replication_slots`, func(row pgx.CollectableRow) (o doctor.Slot, err error) {
		err = row.Scan(&o.Name, &o.Active, &o.Retained, &o.Status, &o.XIDs)
		return o, err
	}); err != nil {
		return s, describe("looking at replication slots", err)
	}
	s.Waiting, err = collect(ctx, e.pool, `
		select a.pid, coalesce(a.application_name, ''), extract(epoch from clock_timestamp() - l.waitstart)::float8, coalesce(b.pid, 0), coalesce(b.application_name, '')
		from pg_locks l
		join pg_stat_activity a on a.pid = l.pid
		left join pg_stat_activity b on b.pid = (pg_blocking_pids(l.pid))[1]
		where not l.granted
		  and l.waitstart is not null
		  and a.datname = current_database()
		order by l.waitstart
		limit 5`, func(row pgx.CollectableRow) (w doctor.Waiting, err error) {
		var waited float64
		err = row.Scan(&w.PID, &w.Application, &waited, &w.Blocker, &w.BlockedBy)
		w.For = seconds(waited)
		return w, err
	})
	return s, describe("looking at locks", err)
}

func collect[T any](ctx context.Context, pool *pgxpool.Pool, sql string, scan pgx.RowToFunc[T], args ...any) ([]T, error) {
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// Connections tells how many connections there are and may be.
func (e *Examiner) Connections(ctx context.Context) (c doctor.Connections, err error) {
	if c.Hidden, err = e.hidden(ctx); err != nil || c.Hidden {
		return c, describe("counting connections", err)
	}
	err = e.pool.QueryRow(ctx, `
		select current_setting('max_connections')::int,
		  current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0),
		  (select count(*) from pg_stat_activity where backend_type = 'client backend')`).Scan(&c.Max, &c.Reserved, &c.Used)
	if err != nil {
		return c, describe("counting connections", err)
	}
	type app struct {
		Name string
		N    int
	}
	apps, err := collect(ctx, e.pool, `
		select application_name, count(*)
		from pg_stat_activity
		where starts_with(application_name, 'pollux-')
		group by application_name`, pgx.RowToStructByPos[app])
	c.Ours = map[string]int{}
	for _, a := range apps {
		c.Ours[a.Name] = a.N
	}
	return c, describe("counting connections", err)
}

// Tables tells about the tables of the record, those with the most dead rows first. What it reads is what the server keeps about them: no table is read, and none is waited for.
func (e *Examiner) Tables(ctx context.Context) ([]doctor.Table, error) {
	all, err := collect(ctx, e.pool, `
		select c.relname, s.n_live_tup, s.n_dead_tup, c.relpages::bigint * current_setting('block_size')::bigint,
		  greatest(s.last_vacuum, s.last_autovacuum), age(c.relfrozenxid)
		from pg_stat_user_tables s
		join pg_class c on c.oid = s.relid
		where s.schemaname = 'pollux'
		  and c.relkind = 'r'
		order by s.n_dead_tup desc, age(c.relfrozenxid) desc
		limit 100`, func(row pgx.CollectableRow) (t doctor.Table, err error) {
		var vacuumed *time.Time
		err = row.Scan(&t.Name, &t.Live, &t.Dead, &t.Bytes, &vacuumed, &t.XIDs)
		if vacuumed != nil {
			t.Vacuumed = *vacuumed
		}
		return t, err
	})
	return all, describe("looking at the tables", err)
}

// hotIndexes are the indexes that the statements of the services walk. Those of partitioned tables cannot be made concurrently.
var hotIndexes = []doctor.Index{
	{Name: "payments_pkey", Make: "alter table pollux.payments add primary key (id)"},
	{Name: "payments_identity", Make: "alter table pollux.payments add constraint payments_identity unique (gateway, account, reference)"},
	{Name: "poll_jobs_pkey", Make: "alter table pollux.poll_jobs add primary key (payment_id)"},
	{Name: "poll_jobs_claim", Make: "create index concurrently poll_jobs_claim on pollux.poll_jobs (gateway, lane, claimable_at)"},
	{Name: "poll_attempts_payment", Make: "create index poll_attempts_payment on pollux.poll_attempts (payment_id)"},
	{Name: "outbox_pkey", Make: "alter table pollux.outbox add primary key (seq, created_at)"},
	{Name: "outbox_unpublished", Make: "create index outbox_unpublished on pollux.outbox (publish_at, seq) where published_at is null"},
	{Name: "outbox_payment", Make: "create index outbox_payment on pollux.outbox using brin (payment_id int8_bloom_ops) with (autosummarize = on)"},
	{Name: "dead_letters_pkey", Make: "alter table pollux.dead_letters add primary key (id)"},
	{Name: "dead_letters_one_open", Make: "create unique index concurrently dead_letters_one_open on pollux.dead_letters (payment_id) where state in ('open', 'replaying', 'parked') and not review"},
	{Name: "dead_letters_one_review", Make: "create unique index concurrently dead_letters_one_review on pollux.dead_letters (payment_id, reason) where state in ('open', 'parked') and review"},
	{Name: "dead_letters_groups", Make: "create index concurrently dead_letters_groups on pollux.dead_letters (state, fingerprint, gateway, reason, currency) " +
		"include (amount_minor, created_at, died_at, replays, id)"},
	{Name: "dead_letters_payment", Make: "create index concurrently dead_letters_payment on pollux.dead_letters (payment_id)"},
	{Name: "dead_letters_age", Make: "create index concurrently dead_letters_age on pollux.dead_letters (state, died_at)"},
	{Name: "replay_items_active", Make: "create unique index concurrently replay_items_active on pollux.replay_items (letter_id) where state in ('chosen', 'queued')"},
	{Name: "replay_items_progress", Make: "create index concurrently replay_items_progress on pollux.replay_items (replay_id, state, ord)"},
	{Name: "webhook_events_once", Make: "alter table pollux.webhook_events add constraint webhook_events_once unique (gateway, account, event_id)"},
	{Name: "webhook_events_waiting", Make: "create index concurrently webhook_events_waiting on pollux.webhook_events (look_at) where decision = 'waiting'"},
	{Name: "webhook_events_payment", Make: "create index concurrently webhook_events_payment on pollux.webhook_events (payment_id, occurred_at) where payment_id is not null"},
	{Name: "webhook_waiting_reference", Make: "create index concurrently webhook_waiting_reference on pollux.webhook_waiting (gateway, account, reference, event_id)"},
	{Name: "audit_log_pkey", Make: "alter table pollux.audit_log add primary key (seq)"},
}

// hotOptions are the storage parameters that the migrations give to tables that are updated all day.
var hotOptions = []doctor.Option{
	{Table: "payments", Name: "fillfactor", Want: "85"},
	{Table: "poll_jobs", Name: "fillfactor", Want: "70"},
	{Table: "poll_jobs", Name: "autovacuum_vacuum_scale_factor", Want: "0.02"},
	{Table: "poll_jobs", Name: "autovacuum_vacuum_cost_delay", Want: "0"},
}

// Structure tells how the schema differs from what the migrations made.
func (e *Examiner) Structure(ctx context.Context) (s doctor.Structure, err error) {
	text := pgx.RowTo[string]
	names := make([]string, len(hotIndexes))
	for i, index := range hotIndexes {
		names[i] = index.Name
	}
	missing, err := collect(ctx, e.pool, `
		select name
		from unnest($1::text[]) as name
		where not exists (
		  select from pg_class c
		  join pg_namespace n on n.oid = c.relnamespace
		  where n.nspname = 'pollux' and c.relname = name and c.relkind in ('i', 'I')
		)`, text, names)
	if err != nil {
		return s, describe("looking at the indexes", err)
	}
	for _, index := range hotIndexes {
		if slices.Contains(missing, index.Name) {
			s.MissingIndexes = append(s.MissingIndexes, index)
		}
	}
	if s.InvalidIndexes, err = collect(ctx, e.pool, `
		select c.relname
		from pg_index i
		join pg_class c on c.oid = i.indexrelid
		join pg_namespace n on n.oid = c.relnamespace
		where n.nspname = 'pollux'
		  and not (i.indisvalid and i.indisready)
		order by 1`, text); err != nil {
		return s, describe("looking at the indexes", err)
	}
	if s.DisabledTriggers, err = collect(ctx, e.pool, `
		select c.relname || '.' || t.tgname
		from pg_trigger t
		join pg_class c on c.oid = t.tgrelid
		join pg_namespace n on n.oid = c.relnamespace
		where n.nspname = 'pollux'
		  and t.tgenabled = 'D'
		  and not t.tgisinternal
		order by 1`, text); err != nil {
		return s, describe("looking at the triggers", err)
	}
	have, err := collect(ctx, e.pool, `
		select c.relname, o.option_name, o.option_value
		from pg_class c
		join pg_namespace n on n.oid = c.relnamespace
		cross join pg_options_to_table(c.reloptions) o
		where n.nspname = 'pollux'
		  and c.relkind in ('r', 'p')`, func(row pgx.CollectableRow) (o doctor.Option, err error) {
		err = row.Scan(&o.Table, &o.Name, &o.Have)
		return o, err
	})
	s.Options = differingOptions(have)
	return s, describe("looking at the tables' parameters", err)
}

// differingOptions are the parameters that matter and are not as the migrations made them, and tables that are never vacuumed.
func differingOptions(have []doctor.Option) []doctor.Option {
	var found []doctor.Option
	for _, want := range hotOptions {
		i := slices.IndexFunc(have, func(o doctor.Option) bool { return o.Table == want.Table && o.Name == want.Name })
		if i >= 0 {
			want.Have = have[i].Have
		}
		if want.Have != want.Want {
			found = append(found, want)
		}
	}
	for _, o := range have {
		if o.Name == "autovacuum_enabled" && !slices.Contains([]string{"true", "on", "yes", "1"}, o.Have) {
			found = append(found, o)
		}
	}
	return found
}

// Partitions tells which days have their partitions. The rows of the default ones are those that the server's statistics know of: nobody has a right on a partition.
func (e *Examiner) Partitions(ctx context.Context) ([]doctor.Partitioned, error) {
	keep := map[string]time.Duration{"outbox": e.opts.KeepEvents, "poll_attempts": e.opts.KeepAttempts}
	all, err := collect(ctx, e.pool, `
		with part as (
		  select p.relname as parent, to_date(right(c.relname, 8), 'YYYYMMDD') as day
		  from pg_inherits i
		  join pg_class c on c.oid = i.inhrelid
		  join pg_class p on p.oid = i.inhparent
		  where i.inhparent in ('pollux.outbox'::regclass, 'pollux.poll_attempts'::regclass)
		    and c.relname ~ '_[0-9]{8}$'
		)
		select parent.name, current_date,
		  array(select (current_date + d)::date from generate_series(0, 2) as d where not exists (select from part where part.parent = parent.name and part.day = current_date + d) order by d),
		  (select min(day) from part where part.parent = parent.name),
		  pg_stat_get_live_tuples(to_regclass('pollux.' || parent.name || '_default'))
		from unnest(array['outbox', 'poll_attempts']) as parent(name)`, func(row pgx.CollectableRow) (p doctor.Partitioned, err error) {
		var oldest *time.Time
		err = row.Scan(&p.Table, &p.Today, &p.Missing, &oldest, &p.Default)
		if oldest != nil {
			p.Oldest = *oldest
		}
		p.Keep = keep[p.Table]
		return p, err
	})
	return all, describe("looking at the partitions", err)
}

// straysLooked bounds the payments and the jobs that are looked at for strays: pollux verify reads all.
const straysLooked = 100_000

// Strays tells of payments that nothing will finish, among the newest payments and the oldest jobs.
func (e *Examiner) Strays(ctx context.Context) (s doctor.Strays, err error) {
	err = pgx.BeginTxFunc(ctx, e.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `
			select count(*), count(*) filter (where stray), coalesce(min(id) filter (where stray), 0)
			from (
			  select p.id, p.status = 'pending' and not exists (select from pollux.poll_jobs j where j.payment_id = p.id) as stray
			  from pollux.payments p
			  order by p.id desc
			  limit $1
			) newest`, straysLooked).Scan(&s.Looked, &s.NoJob, &s.Example); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			select count(*), count(*) filter (where stray), coalesce(min(payment_id) filter (where stray), 0)
			from (
			  select j.payment_id, not exists (select from pollux.payments p where p.id = j.payment_id and p.status = 'pending') as stray
			  from pollux.poll_jobs j
			  order by j.payment_id
			  limit $1
			) oldest`, straysLooked).Scan(&s.Jobs, &s.Final, &s.FinalOf)
	})
	return s, describe("looking for strays", err)
}

// aside is how far rows may be ahead of the transaction that looks at them: others began later and have committed.
const aside = time.Second

// Ahead tells of jobs and events that were written by a clock that was ahead. It looks at as many jobs as Strays, and at all events that wait.
func (e *Examiner) Ahead(ctx context.Context) (a doctor.Ahead, err error) {
	var by float64
	err = e.pool.QueryRow(ctx, `
		with jobs as (
		  select count(*) as looked, count(*) filter (where ahead > $2::bigint) as ahead, max(ahead) as by
		  from (
		    select extract(epoch from updated_at - now()) * 1000000 as ahead
		    from pollux.poll_jobs
		    where state <> 'dead'
		    limit $1
		  ) j
		), events as (
		  select count(*) as ahead, max(extract(epoch from publish_at - now()) * 1000000) as by
		  from pollux.outbox
		  where published_at is null
		    and publish_at < 'infinity'
		    and publish_at > now() + $2::bigint * interval '1 microsecond'
		    and (created_at > now() + $2::bigint * interval '1 microsecond' or publish_at > now() + $3::bigint * interval '1 microsecond')
		)
		select j.looked, j.ahead, e.ahead, coalesce(greatest(case when j.ahead > 0 then j.by end, e.by), 0) / 1000000::float8
		from jobs j, events e`, straysLooked, aside.Microseconds(), (e.opts.Retry+aside).Microseconds()).Scan(&a.Looked, &a.Jobs, &a.Events, &by)
	a.By = seconds(by)
	return a, describe("looking for what was written by a clock that was ahead", err)
}

// Queues tells of all queues that have jobs, and what is due in them.
func (e *Examiner) Queues(ctx context.Context) ([]doctor.Queue, error) {
	all, err := collect(ctx, e.pool, queuesSQL, pgx.RowToStructByPos[outbox.Queue])
	if err != nil {
		return nil, describe("listing the queues", err)
	}
	gateways, lanes := make([]string, len(all)), make([]string, len(all))
	for i, q := range all {
		gateways[i], lanes[i] = q.Gateway, q.Lane
	}
	queues, err := collect(ctx, e.pool, `
		select q.gateway, q.lane,
		  (select count(*) from (select from pollux.poll_jobs j where j.gateway = q.gateway and j.lane = q.lane and j.claimable_at <= now() limit $3) as due),
		  coalesce((
		    select extract(epoch from now() - j.claimable_at)::float8
		    from pollux.poll_jobs j
		    where j.gateway = q.gateway and j.lane = q.lane and j.claimable_at <= now()
		    order by j.claimable_at
		    limit 1
		  ), 0)
		from unnest($1::text[], $2::text[]) as q(gateway, lane)`, func(row pgx.CollectableRow) (q doctor.Queue, err error) {
		var oldest float64
		err = row.Scan(&q.Gateway, &q.Lane, &q.Due, &oldest)
		q.Oldest = seconds(oldest)
		return q, err
	}, gateways, lanes, mostCounted)
	return queues, describe("counting due polls", err)
}

// Outbox tells of the events that wait to be published, and how long the last ones took.
func (e *Examiner) Outbox(ctx context.Context) (o doctor.Outbox, err error) {
	var oldest, delay float64
	err = e.pool.QueryRow(ctx, `
		with waiting as (
		  select created_at, tries
		  from pollux.outbox
		  where published_at is null
		    and publish_at < 'infinity'
		  order by publish_at, seq
		  limit $1
		), aside as (
		  select set_aside
		  from pollux.outbox
		  where published_at is null
		    and publish_at = 'infinity'
		  limit $1
		), newest as (
		  select published_at - created_at as took
		  from pollux.outbox
		  where published_at is not null
		  order by seq desc
		  limit 1000
		)
		select
		  (select count(*) from waiting), coalesce((select extract(epoch from now() - min(created_at))::float8 from waiting), 0), coalesce((select max(tries) from waiting), 0),
		  (select count(*) from aside), coalesce((select min(set_aside) from aside), ''),
		  coalesce((select extract(epoch from max(took))::float8 from newest), 0)`, mostCounted).Scan(&o.Waiting, &oldest, &o.Tries, &o.SetAside, &o.Why, &delay)
	o.Oldest, o.Delay = seconds(oldest), seconds(delay)
	return o, describe("looking at the events", err)
}

// Letters tells of the dead letters that wait for a person.
func (e *Examiner) Letters(ctx context.Context) (l doctor.Letters, err error) {
	var oldest float64
	err = e.pool.QueryRow(ctx, `
		select count(*) filter (where state = 'open'), count(*) filter (where state = 'parked'),
		  coalesce(extract(epoch from now() - min(died_at) filter (where state = 'open'))::float8, 0),
		  (select count(*) from pollux.replays where state = 'running' and coalesce(driven_at, created_at) < now() - interval '5 minutes')
		from pollux.dead_letters
		where state in ('open', 'parked')`).Scan(&l.Open, &l.Parked, &oldest, &l.Stuck)
	if err != nil {
		return l, describe("counting dead letters", err)
	}
	l.Oldest, l.Money = seconds(oldest), map[string]int64{}
	type sum struct {
		Currency string
		Minor    int64
	}
	sums, err := collect(ctx, e.pool, `
		select currency, least(sum(amount_minor), 9223372036854775807)::bigint
		from pollux.dead_letters
		where state = 'open'
		  and amount_minor is not null
		group by currency`, pgx.RowToStructByPos[sum])
	for _, s := range sums {
		l.Money[s.Currency] = s.Minor
	}
	return l, describe("adding up dead letters", err)
}

// Silence tells for how long gateways have sent no notification.
func (e *Examiner) Silence(ctx context.Context) ([]doctor.Silent, error) {
	var all []doctor.Silent
	w := NewWebhooks(e.pool, "")
	for _, g := range e.opts.Watched {
		quiet, err := w.Quiet(ctx, []string{g.Gateway}, g.After, g.Pending)
		if err != nil {
			return nil, err
		}
		for _, q := range quiet {
			all = append(all, doctor.Silent{Gateway: q.Gateway, After: g.After, Heard: q.Heard, For: q.For, Waiting: q.Waiting})
		}
	}
	return all, nil
}

// chainLooked is how many of the newest rows of the audit log are verified.
const chainLooked = 1000

// Chain tells whether the newest rows of the audit log are as they were written.
func (e *Examiner) Chain(ctx context.Context) (doctor.Chain, error) {
	entries, err := NewAudit(e.pool).List(ctx, AuditFilter{}, chainLooked)
	if err != nil {
		return doctor.Chain{}, err
	}
	chain := audit.Chain{Part: len(entries) == chainLooked}
	for _, entry := range slices.Backward(entries) {
		if err = chain.Next(entry); err != nil {
			break
		}
	}
	if err == nil {
		err = chain.End()
	}
	c := doctor.Chain{Rows: chain.Rows()}
	if c.Rows > 0 {
		c.Head = chain.Head().String()
		if head, seq, ok := strings.Cut(c.Head, "@"); ok {
			c.Head = fmt.Sprintf("%.12s…@%s", head, seq)
		}
	}
	var broken *audit.Broken
	if errors.As(err, &broken) {
		c.Broken, c.Why, err = broken.Seq, broken.Why, nil
	}
	return c, err
}

// Rights tells what the login lacks of the rights of the role that it should have, and what it has beyond.
func (e *Examiner) Rights(ctx context.Context) (doctor.Rights, error) {
	h, err := Rights(ctx, e.pool, e.opts.Role)
	if e.opts.Role == RoleMigrator && h.Everything == ownsSchema {
		h.Everything = "" // it is what this role is for
	}
	return doctor.Rights{Login: h.Login, Role: string(e.opts.Role), Everything: h.Everything, Missing: h.Missing, Excessive: h.Excess, Revoke: h.Revoke}, err
}
