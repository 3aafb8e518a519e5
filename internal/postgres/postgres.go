// Package postgres is the record: all of Pollux's SQL, and nothing that is not about it. Each statement stands beside
// the method that runs it.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options says how to connect.
type Options struct {
	URL      string // postgres://…; may carry a password, so it never reaches an error or a log
	MaxConns int    // at most so many connections; 0 means 4
	Name     string // application_name, for pg_stat_activity
	// Indexed pins every plan to indexes and nested loops, and makes it once. It is for the processes whose every statement
	// finds rows by key: a plan made while the tables were small must not scan them when they have grown. It sets
	// parameters of the session, so a pooler between must pass them on and keep a session for a client.
	Indexed bool
	// Fresh, unless it is nil, is asked before each connection for the URL as it is now: with another user, password or certificate it is taken, and so are the
	// contents of the files that it names. When it fails, or leads to another database, the last good one is used on. It must be safe for concurrent use.
	Fresh func() (string, error)
	// Traced makes a span of each statement that belongs to a trace which is recorded.
	Traced bool
}

// Open makes a pool. It does not connect: the first statement does, and says what is wrong.
func Open(o Options) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, errors.New("reading the database URL: it is not of the form postgres://user@host:port/database")
	}
	cfg.MaxConns = int32(max(o.MaxConns, 0))
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 4
	}
	cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	p := cfg.ConnConfig.RuntimeParams
	p["application_name"] = o.Name
	p["timezone"] = "UTC"
	p["idle_in_transaction_session_timeout"] = "60s"
	if o.Indexed {
		p["enable_seqscan"], p["enable_hashjoin"], p["enable_mergejoin"] = "off", "off", "off"
		p["jit"], p["plan_cache_mode"] = "off", "force_generic_plan"
	}
	if o.Fresh != nil {
		cfg.BeforeConnect = renewed(o.Fresh, cfg.ConnConfig)
	}
	if o.Traced {
		cfg.ConnConfig.Tracer = spans{}
	}
	return pgxpool.NewWithConfig(context.Background(), cfg)
}

// renewed lets a new connection have what a URL says now of who we are and of TLS. Connections that are there stay as they are: a server that changes a password
// does not end them.
func renewed(fresh func() (string, error), first *pgx.ConnConfig) func(context.Context, *pgx.ConnConfig) error {
	var good atomic.Pointer[pgx.ConnConfig]
	good.Store(first)
	return func(_ context.Context, c *pgx.ConnConfig) error {
		if url, err := fresh(); err == nil {
			if now, err := pgx.ParseConfig(url); err == nil && now.Host == first.Host && now.Port == first.Port && now.Database == first.Database {
				good.Store(now)
			}
		}
		now := good.Load()
		c.User, c.Password, c.TLSConfig = now.User, now.Password, now.TLSConfig.Clone()
		c.Fallbacks = slices.Clone(now.Fallbacks)
		return nil
	}
}

// Refused reports whether the database will refuse the same statement with the same values again: data exceptions (class 22)
// and constraint violations (class 23), and what our own functions raise.
func Refused(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || overtaken(pg) {
		return false
	}
	return strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23") || pg.Code == "P0001"
}

// Transient reports whether the same statement may succeed a moment later on the same database.
func Transient(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "57P01", "57P02", "57P03", tooManyConnections:
			return true
		}
		return conflict(err) || strings.HasPrefix(pg.Code, "08")
	}
	var network net.Error
	return errors.As(err, &network) || pgconn.SafeToRetry(err)
}

// describe says what was being done. What was in the rows stays out of the string: the server puts it into the DETAIL of its
// errors, which they do not print.
func describe(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, full(refusedRight(unreached(err))))
}

// Why is the reason of a refusal for a person, without row contents.
func Why(err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return "the database refused the row"
	}
	if pg.ConstraintName != "" {
		return fmt.Sprintf("SQLSTATE %s, constraint %s", pg.Code, pg.ConstraintName)
	}
	return "SQLSTATE " + pg.Code
}

// sqlState is the code of an error of the database, or what else it was.
func sqlState(err error) string {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return pg.Code
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return "connection"
}

// again runs fn in a transaction, up to five times while what went wrong is a matter of chance (a deadlock, a serialisation failure).
func again(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) error {
	b := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(10*time.Millisecond),
		backoff.WithMaxInterval(200*time.Millisecond),
		backoff.WithMaxElapsedTime(15*time.Second)) // the server takes a second to see a deadlock
	return backoff.Retry(func() error {
		err := pgx.BeginFunc(ctx, pool, fn)
		if err != nil && !conflict(err) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(backoff.WithMaxRetries(b, 4), ctx))
}

// conflict reports whether a transaction lost against another and changed nothing.
func conflict(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01" || pg.Code == "55P03" || overtaken(pg))
}

// overtaken reports whether a row waited for the default partition while its own was made, and fits there no more. It is the one check without a name.
func overtaken(pg *pgconn.PgError) bool { return pg.Code == "23514" && pg.ConstraintName == "" }

// undefined reports whether a schema, table or function does not exist.
func undefined(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000" || pg.Code == "42883")
}
