package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version   int64
	Name      string
	AppliedAt time.Time // zero when it is not applied
}

// Migrate brings the schema to the newest version and returns the steps that it took. Several at once take turns
// (an advisory lock); one that is up to date changes nothing.
func Migrate(ctx context.Context, url string) ([]Migration, error) {
	var steps []Migration
	err := migrating(ctx, url, func(p *goose.Provider) error {
		done, err := p.Up(ctx)
		for _, r := range done {
			steps = append(steps, Migration{Version: r.Source.Version, Name: r.Source.Path, AppliedAt: time.Now()})
		}
		return err
	})
	return steps, describe("migrating the schema up", lockedOut(err))
}

// MigrateDown takes the newest step back, with all that the step's tables hold.
func MigrateDown(ctx context.Context, url string) (Migration, error) {
	var step Migration
	err := migrating(ctx, url, func(p *goose.Provider) error {
		r, err := p.Down(ctx)
		if r != nil {
			step = Migration{Version: r.Source.Version, Name: r.Source.Path}
		}
		return err
	})
	return step, describe("migrating the schema down", lockedOut(err))
}

// lockedOut says what to do about a step that did not get its locks.
func lockedOut(err error) error {
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) && refusal.Code == "55P03" {
		return fmt.Errorf("somebody uses a table that the step changes, for longer than %s; nothing was changed; look for a long transaction in pg_stat_activity, and run it again: %w", lockTimeout, err)
	}
	return err
}

// Migrations lists all steps, the oldest first: those of this build, and those that a newer one has applied, whose names it does not know. It
// changes nothing, so that a user who may only read can ask.
func Migrations(ctx context.Context, url string) ([]Migration, error) {
	applied, err := appliedSteps(ctx, url)
	if err != nil {
		return nil, describe("reading the schema's version", err)
	}
	var all []Migration
	for _, m := range embedded() {
		m.AppliedAt = applied[m.Version]
		delete(applied, m.Version)
		all = append(all, m)
	}
	for version, at := range applied {
		all = append(all, Migration{Version: version, Name: "of a newer build", AppliedAt: at})
	}
	slices.SortFunc(all, func(a, b Migration) int { return cmp.Compare(a.Version, b.Version) })
	return all, nil
}

// appliedSteps are the versions that are applied, and when.
func appliedSteps(ctx context.Context, url string) (map[int64]time.Time, error) {
	cfg, err := migrator(url)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	applied := map[int64]time.Time{}
	rows, err := conn.Query(ctx, `
		select version_id, max(tstamp) at time zone 'UTC'
		from pollux.schema_version
		where is_applied
		  and version_id > 0
		group by version_id`)
	if undefined(err) || unmigrated(ctx, conn, err) {
		return applied, nil
	}
	if err != nil {
		return nil, err
	}
	var version int64
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&version, &at}, func() error {
		applied[version] = at
		return nil
	})
	return applied, err
}

// ErrSchema is the error of a schema that this build does not fit.
var ErrSchema = errors.New("the schema of the database does not fit this build")

const versionTable = "pollux.schema_version"

// lockTimeout bounds how long a step may hold up payments before it has begun.
const lockTimeout = "5s"

// CheckSchema compares the database's version with this build's. A service that does not fit refuses to start and says what to run. A newer schema fits as long as it
// serves this build, so that an upgrade needs no moment at which everything changes at once.
func CheckSchema(ctx context.Context, db Querier) error {
	want := newest()
	have, err := schemaVersion(ctx, db)
	switch {
	case err != nil:
		return err
	case have < want:
		return fmt.Errorf("%w: it is at version %d, this build needs %d; run: pollux migrate up", ErrSchema, have, want)
	case have > want:
		return serves(ctx, db, have, want)
	}
	return nil
}

// serves checks that a schema that is newer than this build still serves it.
func serves(ctx context.Context, db Querier, have, want int64) error {
	var since int64
	if err := db.QueryRow(ctx, `select since from pollux.schema_serves`).Scan(&since); err != nil {
		return describe("reading which builds the schema serves", err)
	}
	if want < since {
		return fmt.Errorf("%w: it is at version %d and serves builds that know %d; this one knows %d; run a newer build", ErrSchema, have, since, want)
	}
	return nil
}

// schemaVersion is the version of the database's schema.
func schemaVersion(ctx context.Context, db Querier) (have int64, err error) {
	err = db.QueryRow(ctx, `
		select coalesce(max(version_id), 0)
		from pollux.schema_version
		where is_applied`).Scan(&have)
	switch {
	case undefined(err):
		return 0, fmt.Errorf("%w: it has no schema pollux; run: pollux migrate up", ErrSchema)
	case unmigrated(ctx, db, err):
		return 0, fmt.Errorf("%w: nothing is in the schema pollux yet; run: pollux migrate up", ErrSchema)
	}
	return have, describe("reading the schema's version", err)
}

// unmigrated reports whether a statement was refused because no step was taken yet: an administrator has made the schema for its owner (deploy/postgres/roles.sql), and
// nobody else may look into it before the first `pollux migrate up`. Everybody may read the catalogue.
func unmigrated(ctx context.Context, db Querier, err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != insufficientPrivilege {
		return false
	}
	var there bool
	err = db.QueryRow(ctx, `
		select exists (
		  select from pg_class c
		  join pg_namespace n on n.oid = c.relnamespace
		  where n.nspname = 'pollux'
		    and c.relname = 'schema_version')`).Scan(&there)
	return err == nil && !there
}

// Querier is what both a pool and a connection offer.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func newest() int64 {
	all := embedded()
	return all[len(all)-1].Version
}

// embedded are the steps of this build, the oldest first.
func embedded() []Migration {
	entries, err := fs.ReadDir(migrations, "migrations")
	if err != nil || len(entries) == 0 {
		panic("no migrations are embedded")
	}
	all := make([]Migration, len(entries))
	for i, e := range entries {
		all[i].Name = e.Name()
		fmt.Sscanf(e.Name(), "%d_", &all[i].Version)
	}
	return all
}

// migrator is how steps are taken and read: goose writes their times without a zone.
func migrator(url string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errors.New("the database URL is not of the form postgres://user@host:port/database")
	}
	cfg.RuntimeParams["timezone"] = "UTC"
	cfg.RuntimeParams["application_name"] = "pollux-migrate"
	// A step that waits for a table has everybody wait who comes after it: it gives up soon, and is run again.
	cfg.RuntimeParams["lock_timeout"] = lockTimeout
	return cfg, nil
}

func migrating(ctx context.Context, url string, fn func(*goose.Provider) error) error {
	cfg, err := migrator(url)
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*cfg)
	defer db.Close()
	if err := makeSchema(ctx, db); err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
	if err != nil {
		return err
	}
	store, err := database.NewStore(goose.DialectPostgres, versionTable)
	if err != nil {
		return err
	}
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectCustom, db, dir, goose.WithStore(store), goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	return fn(p)
}

// makeSchema makes the schema in which goose keeps its version, unless an administrator has: to ask for it again would need the right to make schemas. Two at once may both find it
// missing.
func makeSchema(ctx context.Context, db *sql.DB) error {
	var there bool
	if err := db.QueryRowContext(ctx, `select to_regnamespace('pollux') is not null`).Scan(&there); err != nil || there {
		return err
	}
	const schema = `create schema if not exists pollux`
	if _, err := db.ExecContext(ctx, schema); err == nil {
		return nil
	}
	_, err := db.ExecContext(ctx, schema)
	return err
}
