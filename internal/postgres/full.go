package postgres

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// Full is the error of a statement for which the server's disk had no room (SQLSTATE 53100).
type Full struct{ err error }

// Error is that of the server, which names the file.
func (e *Full) Error() string { return e.err.Error() }

// Unwrap returns the error of the server.
func (e *Full) Unwrap() error { return e.err }

// Hint says what to do about it, to whoever reads a log.
func (e *Full) Hint() string {
	return "the disk of PostgreSQL is full: make room there; what waits then goes on by itself. Does a replication slot or the archive keep the log? pollux doctor"
}

// full is err, or a *Full where the server had no room.
func full(err error) error {
	var pg *pgconn.PgError
	var known *Full
	if !errors.As(err, &pg) || pg.Code != "53100" || errors.As(err, &known) {
		return err
	}
	return &Full{err}
}
