package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
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
	return steps, describe("migrating the schema up", err)
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
	return step, describe("migrating the schema down", err)
}

// Migrations lists all steps, the oldest first.
func Migrations(ctx context.Context, url string) ([]Migration, error) {
	var all []Migration
	err := migrating(ctx, url, func(p *goose.Provider) error {
		status, err := p.Status(ctx)
		for _, s := range status {
			all = append(all, Migration{Version: s.Source.Version, Name: s.Source.Path, AppliedAt: s.AppliedAt})
		}
		return err
	})
	return all, describe("reading the schema's version", err)
}

// ErrSchema is the error of a schema that this build does not fit.
var ErrSchema = errors.New("the schema of the database does not fit this build")

const versionTable = "pollux.schema_version"

// CheckSchema compares the database's version with this build's. A service that does not fit refuses to start and says what to run.
func CheckSchema(ctx context.Context, db Querier) error {
	want := newest()
	var have int64
	err := db.QueryRow(ctx, `
		select coalesce(max(version_id), 0)
		from pollux.schema_version
		where is_applied`).Scan(&have)
	switch {
	case err != nil && undefined(err):
		return fmt.Errorf("%w: it has no schema pollux; run: pollux migrate up", ErrSchema)
	case err != nil:
		return describe("reading the schema's version", err)
	case have < want:
		return fmt.Errorf("%w: it is at version %d, this build needs %d; run: pollux migrate up", ErrSchema, have, want)
	case have > want:
		return fmt.Errorf("%w: it is at version %d, this build knows %d; run a newer build", ErrSchema, have, want)
	}
	return nil
}

// Querier is what both a pool and a connection offer.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func newest() int64 {
	entries, err := fs.ReadDir(migrations, "migrations")
	if err != nil || len(entries) == 0 {
		panic("no migrations are embedded")
	}
	var version int64
	fmt.Sscanf(entries[len(entries)-1].Name(), "%d_", &version)
	return version
}

func migrating(ctx context.Context, url string, fn func(*goose.Provider) error) error {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return errors.New("the database URL is not of the form postgres://user@host:port/database")
	}
	cfg.RuntimeParams["timezone"] = "UTC"
	cfg.RuntimeParams["application_name"] = "pollux-migrate"
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

// makeSchema makes the schema in which goose keeps its version. Two at once may both find it missing.
func makeSchema(ctx context.Context, db *sql.DB) error {
	const schema = `create schema if not exists pollux`
	if _, err := db.ExecContext(ctx, schema); err == nil {
		return nil
	}
	_, err := db.ExecContext(ctx, schema)
	return err
}
