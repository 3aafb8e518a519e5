package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/adoption"
	"pollux/internal/audit"
)

// Stage is a temporary table of one connection. It implements adoption.Stage and must be closed.
type Stage struct {
	conn  *pgxpool.Conn
	lines int64
}

var _ adoption.Stage = (*Stage)(nil)

// NewStage returns an empty stage.
func NewStage(ctx context.Context, pool *pgxpool.Pool) (*Stage, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, describe("making a place for the payments", err)
	}
	_, err = conn.Exec(ctx, `
		create temporary table adopted (
		  line               bigint primary key,
		  gateway            text not null,
		  account            text not null,
		  reference          text not null,
		  merchant_reference text not null,
		  class              text not null,
		  lane               text not null,
		  amount_minor       bigint not null,
		  currency           text not null,
		  expires_at         timestamptz,
		  metadata           jsonb,
		  traceparent        text,
		  state              text not null default 'new',
		  why                text,
		  delay              bigint
		)`)
	if err != nil {
		conn.Release()
		return nil, describe("making a place for the payments", err)
	}
	return &Stage{conn: conn}, nil
}

// Close gives the connection and all that was staged back.
func (s *Stage) Close() {
	// The connection is ended rather than cleaned: nothing else must find the table.
	_ = s.conn.Conn().Close(context.Background())
	s.conn.Release()
}

// Add implements adoption.Stage.
func (s *Stage) Add(ctx context.Context, rows []adoption.Row) error {
	if len(rows) == 0 {
		return nil
	}
	columns := []string{"line", "gateway", "account", "reference", "merchant_reference", "class", "lane", "amount_minor", "currency", "expires_at", "metadata", "traceparent"}
	_, err := s.conn.CopyFrom(ctx, pgx.Identifier{"adopted"}, columns, pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
		r := rows[i]
		return []any{r.Line, r.Gateway, r.Account, r.Reference, r.MerchantReference, orDefault(r.Class, "standard"), orDefault(r.Lane, "normal"), r.AmountMinor, r.Currency,
			r.ExpiresAt, orNothing(r.Metadata), orNothing(r.TraceParent)}, nil
	}))
	s.lines += int64(len(rows))
	return describe(fmt.Sprintf("reading lines %d to %d", rows[0].Line, rows[len(rows)-1].Line), err)
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func orNothing(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// The statements of a check, in their order. Lines that name a payment again are found first, so that what is known is counted once.
const (
	adoptFaultSQL = `
		update adopted a
		set state = 'wrong', why = f.why
		from (
		  select line, pollux.payment_fault(gateway, account, reference, merchant_reference, class, lane, amount_minor, currency, now(), expires_at, metadata, traceparent) as why
		  from adopted
		  offset 0
		) f
		where f.line = a.line
		  and f.why is not null`
	adoptTwiceSQL = `
		update adopted a
		set state = case when same then 'twice' else 'wrong' end,
		    why = case when not same then 'reference: the same payment as in line ' || first || ', with another amount' end
		from (
		  select line, first_value(line) over w as first, amount_minor = first_value(amount_minor) over w and currency = first_value(currency) over w as same
		  from adopted
		  where state = 'new'
		  window w as (partition by gateway, account, reference order by line)
		) f
		where f.line = a.line
		  and f.first <> a.line`
	adoptKnownSQL = `
		update adopted a
		set state = case when p.amount_minor = a.amount_minor and p.currency = a.currency then 'known' else 'refused' end,
		    why = 'it is tracked already, with ' || p.amount_minor || ' ' || p.currency || ' in minor units'
		from pollux.payments p
		where a.state = 'new'
		  and p.gateway = a.gateway
		  and p.account = a.account
		  and p.reference = a.reference`
	// An earlier run may have planned polls that are still to come: these come after.
	adoptPlanSQL = `
		with planned as (
		  select a.gateway, a.account, max(extract(epoch from p.poll_after - now())) * 1000000 as until
		  from adopted a
		  join pollux.payments p on p.gateway = a.gateway and p.account = a.account and p.reference = a.reference
		  where a.state = 'known'
		    and p.status = 'pending'
		    and p.poll_after > now()
		  group by a.gateway, a.account
		), turn as (
		  select a.line, a.gateway, a.account, row_number() over (partition by a.gateway, a.account order by a.line) as n
		  from adopted a
		  where a.state = 'new'
		)
		update adopted a
		set delay = case when l.until is null then (t.n - 1) * $1::float8 else l.until + t.n * $1::float8 end
		from turn t
		left join planned l on l.gateway = t.gateway and l.account = t.account
		where t.line = a.line`
)

// Check implements adoption.Stage.
func (s *Stage) Check(ctx context.Context, rate float64) (adoption.Check, error) {
	c, err := s.check(ctx, rate)
	return c, describe("checking the payments", err)
}

func (s *Stage) check(ctx context.Context, rate float64) (adoption.Check, error) {
	var c adoption.Check
	for _, sql := range []string{adoptFaultSQL, adoptTwiceSQL, `analyze adopted`, adoptKnownSQL} {
		if _, err := s.conn.Exec(ctx, sql); err != nil {
			return c, err
		}
	}
	if _, err := s.conn.Exec(ctx, adoptPlanSQL, 1e6/rate); err != nil {
		return c, err
	}
	var span *int64
	err := s.conn.QueryRow(ctx, `
		select count(*) filter (where state = 'new'), count(*) filter (where state = 'known'), count(*) filter (where state = 'twice'),
		  count(*) filter (where state = 'refused'), count(*) filter (where state = 'wrong'), max(delay), coalesce(array_agg(distinct gateway), '{}')
		from adopted`).Scan(&c.New, &c.Known, &c.Twice, &c.Refusals, &c.Wrong, &span, &c.Gateways)
	if err != nil {
		return c, err
	}
	if span != nil {
		c.Span = time.Duration(*span) * time.Microsecond
	}
	if c.Problems, err = s.problems(ctx, "wrong"); err != nil {
		return c, err
	}
	if c.Refused, err = s.problems(ctx, "refused"); err != nil {
		return c, err
	}
	rows, err := s.conn.Query(ctx, `
		select currency, count(*), least(sum(amount_minor), 9223372036854775807)::bigint
		from adopted
		where state = 'new'
		group by currency
		order by currency`)
	if err != nil {
		return c, err
	}
	c.Money, err = pgx.CollectRows(rows, pgx.RowToStructByPos[adoption.Money])
	return c, err
}

// problems are the first lines in a state. A reason that begins with the name of a column is about that.
func (s *Stage) problems(ctx context.Context, state string) ([]adoption.Problem, error) {
	rows, err := s.conn.Query(ctx, `
		select line, why
		from adopted
		where state = $1
		order by line
		limit $2`, state, adoption.MaxProblems)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p adoption.Problem, err error) {
		err = row.Scan(&p.Line, &p.Why)
		if column, why, ok := strings.Cut(p.Why, ": "); ok && !strings.Contains(column, " ") {
			p.Column, p.Why = column, why
		}
		return p, err
	})
}

// adoptSQL tracks a page of what is new, as any payment service would.
const adoptSQL = `
	with page as materialized (
	  select *
	  from adopted
	  where line > $1
	    and state = 'new'
	  order by line
	  limit $2
	), done as (
	  select tracked
	  from pollux.track_payments((
	    select coalesce(jsonb_agg(jsonb_build_object('gateway', gateway, 'account', account, 'reference', reference, 'merchant_reference', merchant_reference, 'class', class,
	      'lane', lane, 'amount_minor', amount_minor, 'currency', currency, 'first_poll_after', delay * interval '1 microsecond', 'expires_at', expires_at,
	      'metadata', metadata, 'traceparent', traceparent) order by line), '[]')
	    from page
	  ))
	)
	select coalesce((select min(line) from page), 0), coalesce((select max(line) from page), 0), (select count(*) from done where tracked), (select count(*) from done where not tracked)`

// Track implements adoption.Stage.
func (s *Stage) Track(ctx context.Context, after int64, limit int, by audit.Act) (last, fresh int64, err error) {
	err = pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		var first, known int64
		if err := tx.QueryRow(ctx, adoptSQL, after, limit).Scan(&first, &last, &fresh, &known); err != nil || fresh == 0 {
			return err
		}
		act := by
		act.Outcome = audit.Done
		act.Changes = []audit.Change{{Target: by.Changes[0].Target, After: map[string]any{"first_line": first, "last_line": last, "new": fresh, "known": known}}}
		return writeAct(ctx, tx, act)
	})
	return last, fresh, describe(fmt.Sprintf("tracking the payments after line %d", after), err)
}

// QuerySource gives the rows of a query of somebody else's database, in one transaction that can change nothing. It implements adoption.Source and must be closed.
type QuerySource struct {
	conn *pgx.Conn
	tx   pgx.Tx
	rows pgx.Rows
	n    int64
}

// NewQuerySource begins the query.
func NewQuerySource(ctx context.Context, url, sql string) (*QuerySource, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errors.New("reading the URL of the source: it is not of the form postgres://user@host:port/database")
	}
	cfg.ConnectTimeout = 5 * time.Second
	cfg.RuntimeParams["application_name"] = "pollux-import"
	cfg.RuntimeParams["timezone"], cfg.RuntimeParams["datestyle"] = "UTC", "ISO"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, &sourceError{"reaching the database of the source", unreached(err)}
	}
	s := &QuerySource{conn: conn}
	if s.tx, err = conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly}); err == nil {
		// All values come as texts, whatever their types. A prepared statement is one statement: none that ends the transaction.
		s.rows, err = s.tx.Query(ctx, sql, pgx.QueryResultFormats{pgx.TextFormatCode})
	}
	if err != nil {
		s.Close()
		return nil, querying(err)
	}
	return s, nil
}

// querying says what the source says about the query: that is the operator's own text.
func querying(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Hint != "" {
		return fmt.Errorf("querying the source: %w (%s)", err, pg.Hint)
	}
	return &sourceError{"querying the source", err}
}

// sourceError is what went wrong at the database that payments are imported from. What mends it is there, or in the URL that --from names: neither in the configuration nor in the
// rights of our roles.
type sourceError struct {
	doing string
	err   error
}

// Error implements error.
func (e *sourceError) Error() string { return e.doing + ": " + e.err.Error() }

// Unwrap returns what the source said.
func (e *sourceError) Unwrap() error { return e.err }

// Hint says what to do about it.
func (e *sourceError) Hint() string {
	var pg *pgconn.PgError
	errors.As(e.err, &pg)
	var connect *Unreached
	switch {
	case pg != nil && pg.Code == tooManyConnections:
		return "the database of --from has no connection left; its max_connections says how many there are"
	case errors.As(e.err, &connect):
		return sourceWords.Replace(connect.Hint())
	case pg != nil && pg.Code == insufficientPrivilege:
		return "the user in the URL of --from needs usage on the schema and select on what the query reads"
	}
	return ""
}

// sourceWords are where the URL of --from has what the configuration has under database.
var sourceWords = strings.NewReplacer(
	"database.url", "the URL of --from", "database.ca_file", "sslrootcert in the URL of --from", "database.cert_file", "sslcert in the URL of --from",
	"database.tls", "sslmode in the URL of --from", "where database asks", "where the URL of --from asks")

// Close ends the query.
func (s *QuerySource) Close() {
	if s.rows != nil {
		s.rows.Close()
	}
	_ = s.conn.Close(context.Background())
}

// Header implements adoption.Source.
func (s *QuerySource) Header() ([]string, error) {
	var names []string
	for _, f := range s.rows.FieldDescriptions() {
		names = append(names, f.Name)
	}
	if names == nil { // a statement that fails says so when it is read
		s.rows.Close()
		if err := s.rows.Err(); err != nil {
			return nil, querying(err)
		}
		return nil, errors.New("the query returns no columns")
	}
	return names, nil
}

// Next implements adoption.Source.
func (s *QuerySource) Next() (int64, []string, error) {
	if !s.rows.Next() {
		if err := s.rows.Err(); err != nil {
			return 0, nil, querying(err)
		}
		return 0, nil, io.EOF
	}
	s.n++
	values := s.rows.RawValues()
	fields := make([]string, len(values))
	for i, v := range values {
		fields[i] = string(v)
	}
	return s.n, fields, nil
}
