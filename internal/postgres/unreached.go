package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/certificate"
)

// tooManyConnections is the SQLSTATE of a server that has no connection left.
const tooManyConnections = "53300"

// Unreached is the error of a connection that was not made.
type Unreached struct{ err error }

// Error leaves out the lines that it repeats: pgx reports each try, the one with TLS and the one without.
func (e *Unreached) Error() string {
	return strings.Join(slices.Compact(strings.Split(e.err.Error(), "\n")), "\n")
}

// Unwrap returns the error of the connection.
func (e *Unreached) Unwrap() error { return e.err }

// Hint says what to do about it, to whoever reads a log.
func (e *Unreached) Hint() string {
	if hint := certificate.Hint(e.err, "database"); hint != "" {
		return hint
	}
	var refusal *pgconn.PgError
	if !errors.As(e.err, &refusal) {
		if strings.Contains(e.err.Error(), "server refused TLS connection") {
			return "PostgreSQL has no TLS there: ssl = on in its configuration, or another database.tls"
		}
		return "does PostgreSQL run there? database.url says where"
	}
	switch refusal.Code {
	case "28P01":
		return "PostgreSQL refuses the user or the password of database.url"
	case "28000":
		return "PostgreSQL refuses the user of database.url: may it log in, from here (pg_hba.conf), with the certificate of database.cert_file if there is one?"
	case "3D000":
		return "there is no database of that name: create it, or mend database.url"
	case tooManyConnections:
		return "PostgreSQL has no connection left: max_connections, and database.max_conns of each process; pollux doctor counts them"
	case "57P03":
		return "PostgreSQL starts or stops at the moment; its own log says how far it is"
	case insufficientPrivilege:
		return "the user of database.url may not connect to this database: grant connect on database … to its role"
	}
	return "PostgreSQL is there and lets us in no further; its own log says why"
}

// unreached is err, or an *Unreached where no connection was made.
func unreached(err error) error {
	var connect *pgconn.ConnectError
	var known *Unreached
	if !errors.As(err, &connect) || errors.As(err, &known) {
		return err
	}
	return &Unreached{err}
}

// Reach returns an error unless the database of a pool answers.
func Reach(ctx context.Context, pool *pgxpool.Pool) error {
	return describe("reaching the database", pool.Ping(ctx))
}
