package postgres

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// insufficientPrivilege is the SQLSTATE of a statement that the login may not run.
const insufficientPrivilege = "42501"

// Denied is the error of a statement that the login may not run (SQLSTATE 42501).
type Denied struct {
	Object string // what it may not use, as PostgreSQL names it: "table payments"; empty when that is not said
	Roles  []Role // the roles that have a right on it: of a table perhaps another right, or one on other columns
	err    error
}

// Error says which roles have rights there. Which of them was missing PostgreSQL does not say.
func (d *Denied) Error() string {
	if len(d.Roles) == 0 {
		return d.err.Error()
	}
	names := make([]string, len(d.Roles))
	for i, r := range d.Roles {
		names[i] = string(r)
	}
	return d.err.Error() + ": the login lacks a right; the role of its program has those that it needs; some on this have: " + strings.Join(names, ", ")
}

// Hint says what to do about it, to whoever reads a log.
func (d *Denied) Hint() string {
	return "is the login a member of its program's role, and was pollux migrate up run with this build? docs/permissions.md"
}

// Unwrap returns the error of the database.
func (d *Denied) Unwrap() error { return d.err }

var deniedObject = regexp.MustCompile(`permission denied for ((?:table|view|function|sequence|schema|relation) (\S+))`)

// refusedRight is err, or a *Denied where the login lacked a right.
func refusedRight(err error) error {
	var pg *pgconn.PgError
	var known *Denied
	if !errors.As(err, &pg) || pg.Code != insufficientPrivilege || errors.As(err, &known) {
		return err
	}
	d := &Denied{err: err}
	if m := deniedObject.FindStringSubmatch(pg.Message); m != nil {
		d.Object, d.Roles = m[1], rolesWith(m[2])
	}
	return d
}

// rolesWith are the roles that have any right on an object of the schema; of the schema itself all.
func rolesWith(object string) []Role {
	var all []Role
	for _, r := range Roles {
		used := func(right right) bool { return right.object == object }
		if r != RoleMigrator && (object == "pollux" || slices.ContainsFunc(r.rights(), used)) {
			all = append(all, r)
		}
	}
	return all
}
