package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"pollux/internal/localpg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(With(m)) }

var migrations atomic.Int32

func migrate(ctx context.Context, dsn string) error {
	migrations.Add(1)
	return run(ctx, dsn, "create table things (id int primary key)")
}

func query(t *testing.T, dsn, sql string) (answer string) {
	t.Helper()
	err := withConn(t.Context(), dsn, func(c *pgx.Conn) error { return c.QueryRow(t.Context(), sql).Scan(&answer) })
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

func TestEachTestHasAFreshMigratedDatabase(t *testing.T) {
	before := migrations.Load()
	t.Run("tests", func(t *testing.T) {
		for i := range 4 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				dsn := New(t, migrate)
				if err := run(t.Context(), dsn, "insert into things values (1)"); err != nil {
					t.Errorf("inserting the row that each test inserts: %v", err)
				}
				if got := query(t, dsn, "select count(*)::text from things"); got != "1" {
					t.Errorf("there are %s rows; want the one of this test", got)
				}
			})
		}
	})
	if got := migrations.Load() - before; got > 1 {
		t.Errorf("migrate ran %d times; want once for all tests", got)
	}
}

func TestDifferentMigrationsHaveDifferentTemplates(t *testing.T) {
	other := func(ctx context.Context, dsn string) error { return run(ctx, dsn, "create table others ()") }
	for name, c := range map[string]struct {
		migrate func(context.Context, string) error
		tables  string
	}{
		"one":     {migrate, "things"},
		"another": {other, "others"},
		"none":    {nil, ""},
	} {
		got := query(t, New(t, c.migrate), "select coalesce(string_agg(tablename, ' '), '') from pg_tables where schemaname = 'public'")
		if got != c.tables {
			t.Errorf("%s: the tables are %q; want %q", name, got, c.tables)
		}
	}
}

func TestTheDatabaseIsDroppedAlsoWhenTheTestLeftAConnection(t *testing.T) {
	var name string
	t.Run("a test", func(t *testing.T) {
		dsn := New(t, migrate)
		left, err := pgx.Connect(context.Background(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		name = left.Config().Database
	})
	server, err := shared.start()
	if err != nil {
		t.Fatal(err)
	}
	if got := query(t, server.DSN("postgres"), "select count(*)::text from pg_database where datname = '"+name+"'"); got != "0" {
		t.Errorf("the database %s is still there", name)
	}
}

// failure is what a test that fails says, or an empty string for one that goes on.
func failure(t *testing.T, do func(testing.TB)) string {
	t.Helper()
	tb := &fatalTB{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(tb)
	}()
	<-done
	return tb.said
}

// fatalTB is a test whose end the real one survives. To skip it is to end it without a word.
type fatalTB struct {
	testing.TB
	said string
}

func (f *fatalTB) Fatal(args ...any)            { f.said = fmt.Sprint(args...); runtime.Goexit() }
func (f *fatalTB) Fatalf(s string, args ...any) { f.Fatal(fmt.Sprintf(s, args...)) }
func (f *fatalTB) SkipNow()                     { runtime.Goexit() }
func (f *fatalTB) Skip(...any)                  { runtime.Goexit() }
func (f *fatalTB) Skipf(string, ...any)         { runtime.Goexit() }

func TestAMigrationThatFailsFailsEachTest(t *testing.T) {
	ran := 0
	broken := func(context.Context, string) error { ran++; return errors.New("line 7: no such column") }
	for range 2 {
		if said := failure(t, func(tb testing.TB) { New(tb, broken) }); !strings.Contains(said, "line 7: no such column") {
			t.Errorf("the test said %q", said)
		}
	}
	if ran != 1 {
		t.Errorf("migrate ran %d times", ran)
	}
}

func TestAMigrationThatStaysConnectedIsReported(t *testing.T) {
	var left *pgx.Conn
	careless := func(ctx context.Context, dsn string) (err error) {
		left, err = pgx.Connect(ctx, dsn)
		return err
	}
	if said := failure(t, func(tb testing.TB) { New(tb, careless) }); !strings.Contains(said, "migrate left a connection open") {
		t.Errorf("the test said %q", said)
	}
	if left != nil { // with -count the second run finds what the first one left behind
		left.Close(context.Background())
	}
}

func TestAMissingPostgreSQLFailsTheTest(t *testing.T) {
	t.Setenv(localpg.EnvBin, filepath.Join(t.TempDir(), "nowhere"))
	var c cluster
	c.stopped.Store(true)
	for range 2 {
		if said := failure(t, func(tb testing.TB) { c.database(tb, migrate) }); !strings.Contains(said, localpg.EnvBin) {
			t.Errorf("a test with the shared server said %q", said)
		}
	}
	if said := failure(t, func(tb testing.TB) { Server(tb) }); !strings.Contains(said, localpg.EnvBin) {
		t.Errorf("a test with a server of its own said %q", said)
	}
}

func TestAPackageWithoutMainIsTold(t *testing.T) {
	var c cluster
	if said := failure(t, func(tb testing.TB) { c.database(tb, nil) }); !strings.Contains(said, "pgtest.Main(m)") {
		t.Errorf("the test said %q", said)
	}
}

// testsFunc is the tests of a package.
type testsFunc func() int

func (f testsFunc) Run() int { return f() }

func TestTheSharedServerIsStoppedAfterTheLastTest(t *testing.T) {
	var c cluster
	var server *localpg.Server
	tests := testsFunc(func() int {
		var err error
		if server, err = c.start(); err != nil {
			t.Error(err)
			return 9
		}
		query(t, server.DSN("postgres"), "select 'it runs'")
		return 3
	})
	if code := (withServer{tests, &c}).Run(); code != 3 {
		t.Errorf("the code is %d; want that of the tests, 3", code)
	}
	if _, err := os.Stat(server.Dir()); server.PID() != 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server is still there: process %d, folder %v", server.PID(), err)
	}
	var unused cluster
	if code := (withServer{testsFunc(func() int { return 0 }), &unused}).Run(); code != 0 || unused.server != nil {
		t.Errorf("tests without a database: code %d, server %v; want neither", code, unused.server)
	}
}

func TestAServerOfItsOwnIsDurableAndSurvivesAKill(t *testing.T) {
	var server *localpg.Server
	t.Run("a test", func(t *testing.T) {
		server = Server(t)
		for setting, want := range map[string]string{"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"} {
			if got := query(t, server.DSN("postgres"), "select current_setting('"+setting+"')"); got != want {
				t.Errorf("%s is %q; want %q", setting, got, want)
			}
		}
		if err := run(t.Context(), server.DSN("postgres"), "create table kept ()"); err != nil {
			t.Fatal(err)
		}
		server.Kill()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		query(t, server.DSN("postgres"), "select count(*)::text from kept")
	})
	if server.PID() != 0 {
		t.Error("the server runs after its test")
	}
}
