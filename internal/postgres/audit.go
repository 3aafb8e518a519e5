package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/audit"
)

// Audit is the audit log. It is safe for concurrent use.
type Audit struct{ pool *pgxpool.Pool }

// NewAudit returns the audit log.
func NewAudit(pool *pgxpool.Pool) *Audit { return &Audit{pool} }

// Record writes an act in a transaction of its own: a refusal, or an act whose effect is not in the database.
func (a *Audit) Record(ctx context.Context, act audit.Act) error {
	return writeAct(ctx, a.pool, act)
}

// Reloads are what a service writes into the audit log: that its configuration was reloaded, and nothing else. It is safe for concurrent use.
type Reloads struct {
	pool     *pgxpool.Pool
	instance string
}

// NewReloads returns what an instance of a service writes.
func NewReloads(pool *pgxpool.Pool, instance string) *Reloads { return &Reloads{pool, instance} }

// Record writes a reload, by this instance. Of the act only the outcome, the reason and the changes are looked at.
func (r *Reloads) Record(ctx context.Context, act audit.Act) error {
	entries, err := json.Marshal(act.Changes)
	if err != nil {
		return fmt.Errorf("writing the audit log: %w", err)
	}
	_, err = r.pool.Exec(ctx, `select pollux.audit_reload($1, $2, $3, $4::jsonb)`, audit.Text(r.instance, 255), string(act.Outcome), audit.Text(act.Reason, 2000), string(entries))
	return describe("writing the audit log", err)
}

// executor is what a pool and a transaction have in common.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// writeAct writes an act. In a transaction it comes last: until that ends nobody else adds to the log.
func writeAct(ctx context.Context, db executor, act audit.Act) error {
	if len(act.Changes) == 0 {
		return nil
	}
	entries, err := json.Marshal(act.Changes)
	if err != nil {
		return fmt.Errorf("writing the audit log: %w", err)
	}
	_, err = db.Exec(ctx, `select pollux.audit($1, $2, $3, $4, $5, $6::jsonb)`,
		audit.Text(act.Name, 255), audit.Text(act.Origin, 255), act.Action, string(act.Outcome), audit.Text(act.Reason, 2000), string(entries))
	return describe("writing the audit log", err)
}

// AuditFilter chooses rows of the audit log. Empty fields choose all.
type AuditFilter struct {
	Actor, Login, Action, Target, Outcome string
	Since, Until                          time.Time
	Before                                int64 // below this row
}

// entryColumns are the columns of a row, in the order of scanEntry.
const entryColumns = `seq, at, actor, login, client, application, origin, action, outcome, reason, target, before, after, previous, hash`

func scanEntry(row pgx.CollectableRow) (e audit.Entry, err error) {
	var previous, hash []byte
	err = row.Scan(&e.Seq, &e.At, &e.Actor, &e.Login, &e.Client, &e.Application, &e.Origin, &e.Action, &e.Outcome, &e.Reason, &e.Target, &e.Before,
		&e.After, &previous, &hash)
	if len(previous) == len(e.Previous) && len(hash) == len(e.Hash) { // others were not written by us: they stay zero, which is the hash of nothing
		copy(e.Previous[:], previous)
		copy(e.Hash[:], hash)
	}
	e.At = e.At.UTC()
	return e, err
}

// auditWhere holds the conditions of a filter, whose arguments are $1 to $8.
const auditWhere = `
	    ($1 = '' or actor = $1)
	and ($2 = '' or login = $2)
	and ($3 = '' or action = $3 or starts_with(action, $3 || '.'))
	and ($4 = '' or target = $4)
	and ($5 = '' or outcome = $5)
	and ($6::timestamptz is null or at >= $6)
	and ($7::timestamptz is null or at < $7)
	and ($8::bigint = 0 or seq < $8)`

func (f AuditFilter) args() []any {
	return []any{f.Actor, f.Login, f.Action, f.Target, f.Outcome, orNull(f.Since), orNull(f.Until), f.Before}
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// List returns the newest n rows that the filter chooses, the newest first.
func (a *Audit) List(ctx context.Context, f AuditFilter, n int) ([]audit.Entry, error) {
	rows, err := a.pool.Query(ctx, `
		select `+entryColumns+`
		from pollux.audit_log
		where `+auditWhere+`
		order by seq desc
		limit $9`, append(f.args(), n)...)
	if err != nil {
		return nil, describe("reading the audit log", err)
	}
	entries, err := pgx.CollectRows(rows, scanEntry)
	return entries, describe("reading the audit log", err)
}

// Each gives all rows that the filter chooses to fn, the oldest first, from one snapshot, and stops at the first error. They are read as they
// are asked for: a log of any size takes no more memory than a row.
func (a *Audit) Each(ctx context.Context, f AuditFilter, fn func(audit.Entry) error) error {
	rows, err := a.pool.Query(ctx, `
		select `+entryColumns+`
		from pollux.audit_log
		where `+auditWhere+`
		order by seq`, f.args()...)
	if err != nil {
		return describe("reading the audit log", err)
	}
	defer rows.Close()
	for rows.Next() {
		e, err := scanEntry(rows)
		if err != nil {
			return describe("reading the audit log", err)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return describe("reading the audit log", rows.Err())
}
