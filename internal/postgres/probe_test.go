package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/pgtest"
)

func TestAProbeTakesNoConnectionOfThePool(t *testing.T) {
	pool := open(t, Options{URL: pgtest.New(t, migrate), MaxConns: 2, Name: "test"})
	var busy []*pgxpool.Conn
	for range 2 {
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		busy = append(busy, c)
	}
	probe := NewProbe(pool)
	defer probe.Close()
	for range 2 {
		if err := probe.Check(t.Context()); err != nil {
			t.Errorf("with all connections of the pool busy: %v", err)
		}
	}
	if n := pool.Stat().AcquireCount(); n != 2 {
		t.Errorf("%d connections were taken from the pool", n)
	}
	for _, c := range busy {
		c.Release()
	}
}

func TestAProbeSaysWhatTheDatabaseLacks(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare string // of a database that is as it should be
		migrate bool
		want    error
		says    string
	}{
		{name: "as it should be", migrate: true},
		{name: "without a schema", want: ErrSchema, says: "run: pollux migrate up"},
		{name: "of an older build", migrate: true, prepare: `delete from pollux.schema_version where version_id > 1`, want: ErrSchema, says: "it is at version 1"},
		{name: "of a newer build that serves this one", migrate: true, prepare: `insert into pollux.schema_version (version_id, is_applied) values (99999, true)`},
		{name: "read-only, as a standby is", migrate: true, prepare: `do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$`, want: ErrReadOnly},
	} {
		t.Run(c.name, func(t *testing.T) {
			fn := migrate
			if !c.migrate {
				fn = nil
			}
			r := openRecord(t, pgtest.New(t, fn))
			if c.prepare != "" {
				r.exec(t, c.prepare)
			}
			probe := NewProbe(r.pool)
			defer probe.Close()
			err := probe.Check(t.Context())
			if !errors.Is(err, c.want) || c.want == nil && err != nil || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestAProbeComesBackWithItsDatabase(t *testing.T) {
	r := newRecord(t)
	probe := NewProbe(r.pool)
	defer probe.Close()
	if err := probe.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.exec(t, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`)
	eventually(t, "it is found again", func() bool { return probe.Check(t.Context()) == nil })
	probe.Close()
	if err := probe.Check(t.Context()); err == nil {
		t.Error("a closed probe finds the database")
	}
}
