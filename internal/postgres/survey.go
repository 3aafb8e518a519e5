package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/audit"
	"pollux/internal/redelivery"
	"pollux/internal/survey"
)

// Survey is the record as somebody sees it who only looks. It is safe for concurrent use, takes no lock, and each look is ended by the server after five seconds.
type Survey struct{ pool *pgxpool.Pool }

var _ survey.Record = (*Survey)(nil)

// NewSurvey returns a look at the record.
func NewSurvey(pool *pgxpool.Pool) *Survey { return &Survey{pool} }

// look runs fn in a transaction that cannot write, nor run or wait for long.
func (s *Survey) look(ctx context.Context, doing string, fn func(pgx.Tx) error) error {
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select set_config('statement_timeout', '5s', true), set_config('lock_timeout', '1s', true)`); err != nil {
			return err
		}
		return fn(tx)
	})
	return describe(doing, err)
}

// frontSQL looks at the front of each queue in its part of the index, no further than is asked for.
const frontSQL = `
	select queue.gateway, queue.lane, waits.n, waits.overdue, coalesce(extract(epoch from now() - waits.oldest), 0)::float8
	from unnest($1::text[], $2::text[]) as queue(gateway, lane)
	cross join lateral (
	  select count(*) as n, count(*) filter (where claimable_at < now() - $4::bigint * interval '1 microsecond') as overdue, min(claimable_at) as oldest
	  from (
	    select claimable_at
	    from pollux.poll_jobs
	    where gateway = queue.gateway
	      and lane = queue.lane
	      and claimable_at <= now()
	    order by claimable_at
	    limit $3
	  ) as front
	) as waits`

// pendingSQL is how many jobs there are, as the statistics have it: a crash takes those of the running server away, and what vacuum counted is left.
const pendingSQL = `
	select coalesce(nullif(pg_stat_get_live_tuples(oid), 0), greatest(reltuples, 0)::bigint)
	from pg_class
	where oid = 'pollux.poll_jobs'::regclass`

// Jobs implements survey.Record.
func (s *Survey) Jobs(ctx context.Context) (survey.Jobs, error) {
	var j survey.Jobs
	err := s.look(ctx, "looking at what is due", func(tx pgx.Tx) error {
		gateways, lanes, err := queueNames(ctx, tx)
		if err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, pendingSQL).Scan(&j.Pending); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, frontSQL, gateways, lanes, survey.Most, survey.LongDue.Microseconds())
		if err != nil {
			return err
		}
		j.Queues, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (q survey.Queue, err error) {
			var oldest float64
			err = row.Scan(&q.Gateway, &q.Lane, &q.Due, &q.Overdue, &oldest)
			q.Oldest = seconds(oldest)
			return q, err
		})
		return err
	})
	return j, err
}

func queueNames(ctx context.Context, tx pgx.Tx) (gateways, lanes []string, err error) {
	rows, err := tx.Query(ctx, queuesSQL)
	if err != nil {
		return nil, nil, err
	}
	var gateway, lane string
	_, err = pgx.ForEachRow(rows, []any{&gateway, &lane}, func() error {
		gateways, lanes = append(gateways, gateway), append(lanes, lane)
		return nil
	})
	return gateways, lanes, err
}

// seconds is a time that the database computed. Its clock may have been set back meanwhile.
func seconds(s float64) time.Duration { return time.Duration(max(s, 0) * float64(time.Second)) }

// lettersSQL counts the letters that are not closed from the index dead_letters_groups alone.
const lettersSQL = `
	select gateway, reason, state, coalesce(currency, ''), count(*), coalesce(sum(amount_minor), 0)::float8, extract(epoch from now() - min(died_at))::float8
	from pollux.dead_letters
	where state = any ($1::text[])
	group by gateway, reason, state, currency`

// final reports whether a letter is about a payment that is final: nobody waits for its money.
func final(reason string) bool {
	switch redelivery.Reason(reason) {
	case redelivery.ReasonConflict, redelivery.ReasonLateSuccess, redelivery.ReasonLateHint:
		return true
	}
	return false
}

// Letters implements survey.Record.
func (s *Survey) Letters(ctx context.Context) (survey.Letters, error) {
	var l survey.Letters
	err := s.look(ctx, "counting dead letters", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, lettersSQL, survey.LetterStates)
		if err != nil {
			return err
		}
		var g survey.Group
		var currency string
		var minor, oldest float64
		_, err = pgx.ForEachRow(rows, []any{&g.Gateway, &g.Reason, &g.State, &currency, &g.N, &minor, &oldest}, func() error {
			g.Oldest = seconds(oldest)
			l.Groups = append(l.Groups, g)
			if final(g.Reason) {
				return nil
			}
			if currency != "" {
				l.AtRisk = append(l.AtRisk, survey.Sum{Gateway: g.Gateway, Currency: currency, Minor: minor})
			}
			if g.State != "replaying" { // those have a job that is due or sleeps
				l.Dead += int64(g.N)
			}
			return nil
		})
		return err
	})
	return l, err
}

// unpublishedSQL looks at the events that wait, in the partial index of those.
const unpublishedSQL = `
	select
	  count(*),
	  coalesce(extract(epoch from now() - min(created_at)), 0)::float8,
	  (
	    select count(*)
	    from (
	      select
	      from pollux.outbox
	      where published_at is null
	        and publish_at = 'infinity'
	      limit $1
	    ) as aside
	  )
	from (
	  select created_at
	  from pollux.outbox
	  where published_at is null
	    and publish_at < 'infinity'
	  order by publish_at, seq
	  limit $1
	) as waits`

// Events implements survey.Record.
func (s *Survey) Events(ctx context.Context) (survey.Events, error) {
	var e survey.Events
	err := s.look(ctx, "counting unpublished events", func(tx pgx.Tx) error {
		var oldest float64
		err := tx.QueryRow(ctx, unpublishedSQL, survey.Most).Scan(&e.Waiting, &oldest, &e.SetAside)
		e.Oldest = seconds(oldest)
		return err
	})
	return e, err
}

// storageSQL asks the statistics about tables and their partitions. What a row needs is its average width, its header and its line pointer (28 bytes), in pages that
// are filled as far as the table says; that of a table that was never analysed is not known.
const storageSQL = `
	select t.name,
	  sum(pg_stat_get_live_tuples(c.oid))::bigint,
	  sum(pg_stat_get_dead_tuples(c.oid))::bigint,
	  sum(pg_relation_size(c.oid))::bigint,
	  sum(case when w.width is null then 0
	    else greatest(pg_relation_size(c.oid) - pg_stat_get_live_tuples(c.oid) * (w.width + 28) * 100 / f.fill, 0) end)::bigint,
	  sum(pg_indexes_size(c.oid))::bigint,
	  max(greatest(pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid)))
	from unnest($1::text[]) with ordinality as t(name, ord)
	join pg_class root on root.oid = ('pollux.' || t.name)::regclass
	cross join lateral (
	  select root.oid, root.relname, root.reloptions
	  where root.relkind = 'r'
	  union all
	  select part.oid, part.relname, part.reloptions
	  from pg_inherits i
	  join pg_class part on part.oid = i.inhrelid
	  where i.inhparent = root.oid
	) as c
	cross join lateral (
	  select coalesce((
	    select substr(o, 12)::integer
	    from unnest(c.reloptions) as o
	    where o like 'fillfactor=%'
	  ), 100) as fill
	) as f
	cross join lateral (
	  select sum(avg_width * (1 - null_frac))::float8 as width
	  from pg_stats
	  where schemaname = 'pollux'
	    and tablename = c.relname
	    and not inherited
	) as w
	group by t.name, t.ord
	order by t.ord`

// Storage implements survey.Record.
func (s *Survey) Storage(ctx context.Context) (survey.Storage, error) {
	var all survey.Storage
	err := s.look(ctx, "looking at the tables", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, storageSQL, survey.Tables)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t survey.Table, err error) {
			var vacuumed *time.Time
			err = row.Scan(&t.Name, &t.Live, &t.Dead, &t.Size, &t.Bloat, &t.Indexes, &vacuumed)
			if vacuumed != nil {
				t.Vacuumed = *vacuumed
			}
			return t, err
		})
		return err
	})
	return all, err
}

// holdingSQL finds the transaction that vacuum has waited for longest: one that has an id or a snapshot. The first column counts those that we may not see into.
const holdingSQL = `
	with open as (
	  select pid, coalesce(application_name, '') as application, coalesce(usename, '') as login, coalesce(state, '') as state, xact_start as since
	  from pg_stat_activity
	  where datname = current_database()
	    and pid <> pg_backend_pid()
	    and (backend_xid is not null or backend_xmin is not null)
	    and coalesce(backend_type, 'client backend') = 'client backend'
	  union all
	  select 0, gid, owner, 'prepared', prepared
	  from pg_prepared_xacts
	  where database = current_database()
	), oldest as (
	  select *
	  from open
	  where since is not null
	  order by since
	  limit 1
	)
	select (select count(*) from open where since is null), coalesce(o.pid, 0), coalesce(o.application, ''), coalesce(o.login, ''), coalesce(o.state, ''),
	  coalesce(extract(epoch from clock_timestamp() - o.since), 0)::float8
	from (values (1)) as always
	left join oldest o on true`

// blockedSQL finds the session of Pollux that has waited for a lock for longest, and whom it waits for.
const blockedSQL = `
	with waiting as (
	  select l.pid, l.waitstart
	  from pg_locks l
	  join pg_stat_activity a on a.pid = l.pid
	  where not l.granted
	    and a.datname = current_database()
	    and starts_with(a.application_name, 'pollux-')
	  order by l.waitstart nulls last
	  limit 1
	)
	select b.pid, coalesce(b.application_name, ''), coalesce(b.usename, ''), coalesce(b.state, ''),
	  coalesce(extract(epoch from clock_timestamp() - w.waitstart), 0)::float8
	from waiting w
	cross join lateral (select (pg_blocking_pids(w.pid))[1] as pid) as by
	join pg_stat_activity b on b.pid = by.pid`

var errHidden = errors.New("this user may not see when others' transactions began; grant pg_read_all_stats to it")

// Sessions implements survey.Record.
func (s *Survey) Sessions(ctx context.Context) (survey.Sessions, error) {
	var found survey.Sessions
	err := s.look(ctx, "looking at the sessions of the database", func(tx pgx.Tx) error {
		var hidden int
		var open, blocked float64
		t, b := &found.Transaction, &found.Blocked
		if err := tx.QueryRow(ctx, holdingSQL).Scan(&hidden, &t.PID, &t.Application, &t.User, &t.State, &open); err != nil {
			return err
		}
		if hidden > 0 {
			return errHidden
		}
		err := tx.QueryRow(ctx, blockedSQL).Scan(&b.PID, &b.Application, &b.User, &b.State, &blocked)
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		t.For, b.For = seconds(open), seconds(blocked)
		return err
	})
	return found, err
}

// orphansSQL look at a slice of rows, by key, and for each at its other half.
var orphansSQL = map[survey.Orphan]string{
	survey.PaymentWithoutJob: `
		select case when count(*) < $2 then 0 else max(id) end, count(*) filter (where status = 'pending' and not exists (select from pollux.poll_jobs j where j.payment_id = slice.id))
		from (
		  select id, status
		  from pollux.payments
		  where id > $1
		  order by id
		  limit $2
		) as slice`,
	survey.JobWithoutPayment: `
		select case when count(*) < $2 then 0 else max(payment_id) end, count(*) filter (where not exists (select from pollux.payments p where p.id = slice.payment_id and p.status = 'pending'))
		from (
		  select payment_id
		  from pollux.poll_jobs
		  where payment_id > $1
		  order by payment_id
		  limit $2
		) as slice`,
}

// Orphans implements survey.Record.
func (s *Survey) Orphans(ctx context.Context, kind survey.Orphan, after int64) (found int, last int64, err error) {
	err = s.look(ctx, "looking for orphans", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, orphansSQL[kind], after, survey.Slice).Scan(&last, &found)
	})
	return found, last, err
}

// Entries implements survey.Record.
func (s *Survey) Entries(ctx context.Context, after int64) (entries []audit.Entry, err error) {
	err = s.look(ctx, "reading the audit log", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			select `+entryColumns+`
			from pollux.audit_log
			where seq > $1
			order by seq
			limit $2`, after, survey.Slice)
		if err != nil {
			return err
		}
		entries, err = pgx.CollectRows(rows, scanEntry)
		return err
	})
	return entries, err
}
