// Package pgtest gives tests a real PostgreSQL: one server for the tests of a package, and a database of its own for each test.
//
// A package that uses it has a TestMain of one line, os.Exit(pgtest.Main(m)). The server is started when the first test asks for a
// database. Where PostgreSQL is missing and cannot be installed the tests fail; they never skip.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pollux/internal/localpg"
)

// timeout bounds one step of a test's preparation. The steps take a second at most on an idle machine.
const timeout = 2 * time.Minute

// installTimeout bounds the installation of PostgreSQL: 45 MB of packages over a slow line.
const installTimeout = 15 * time.Minute

// Tests is what Main runs: a *testing.M.
type Tests interface{ Run() int }

// Main runs the tests of a package, stops the server that they shared, and returns the code to exit with. It is for TestMain.
func Main(m Tests) int { return With(m).Run() }

// With returns m with the end of the shared server behind its last test, for a package whose TestMain belongs to another tool:
//
//	goleak.VerifyTestMain(pgtest.With(m))
func With(m Tests) Tests { return withServer{m, &shared} }

// withServer runs tests and stops a server.
type withServer struct {
	tests  Tests
	server *cluster
}

func (w withServer) Run() int {
	w.server.stopped.Store(true)
	code := w.tests.Run()
	ctx, cancel := within(timeout, "stopping the server")
	defer cancel()
	if err := w.server.stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return max(code, 1)
	}
	return code
}

var shared cluster

// cluster is the server that the tests of a process share.
type cluster struct {
	stopped atomic.Bool // somebody stops it in the end

	mu        sync.Mutex
	server    *localpg.Server
	err       error // of a start: the next test would wait as long for the same answer
	templates map[uintptr]*template
	databases int
}

// template is a database on which a migration has run.
type template struct {
	once sync.Once
	name string
	err  error
}

// New returns the DSN of a fresh database on which migrate has run, and which is dropped when the test ends. A nil migrate leaves
// it empty. It may be used by parallel tests.
//
// migrate runs once for all tests that pass the same function, on a database from which theirs are copied, so it must be
// a named function, or a closure over nothing: two closures of the same code count as the same. It must leave no
// connection open.
//
// The shared server trades durability for speed (localpg.Options.Fast). A test that kills or restarts one asks Server.
func New(t testing.TB, migrate func(ctx context.Context, dsn string) error) (dsn string) {
	t.Helper()
	return shared.database(t, migrate)
}

func (c *cluster) database(t testing.TB, migrate func(ctx context.Context, dsn string) error) (dsn string) {
	t.Helper()
	if !c.stopped.Load() {
		t.Fatal("pgtest: the package needs a TestMain that calls pgtest.Main(m), which stops the server in the end")
	}
	server, err := c.start()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	from, err := c.template(migrate)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	name := c.newName("test")
	ctx, cancel := within(timeout, "creating a database")
	defer cancel()
	if err := createDatabase(ctx, server, name, from); err != nil {
		t.Fatalf("pgtest: creating the database of %s: %v", t.Name(), err)
	}
	t.Cleanup(func() {
		ctx, cancel := within(timeout, "dropping a database")
		defer cancel()
		// With force: what the test left connected must not keep the others waiting.
		if err := run(ctx, server.DSN("postgres"), "drop database "+quote(name)+" with (force)"); err != nil {
			t.Errorf("pgtest: dropping the database of %s: %v", t.Name(), err)
		}
	})
	return server.DSN(name)
}

// Server starts a durable server for one test, which may kill and restart it. It is stopped, and its folder removed, when the test
// ends. Its databases are made with SQL; the one that is always there is called postgres.
func Server(t testing.TB) *localpg.Server {
	t.Helper()
	server, err := startServer(localpg.Options{})
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := within(timeout, "stopping the server")
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return server
}

// startServer starts a server, on a PostgreSQL that it installs if need be.
func startServer(opts localpg.Options) (*localpg.Server, error) {
	ctx, cancel := within(installTimeout, "installing PostgreSQL")
	defer cancel()
	// Past the test's own log, which is shown when it is over: an installation takes minutes.
	bin, err := localpg.Ensure(ctx, func(s string) { fmt.Fprintln(os.Stderr, s) })
	if err != nil {
		return nil, err
	}
	opts.Bin = bin
	return localpg.Start(ctx, opts)
}

// start starts the shared server unless it runs.
func (c *cluster) start() (*localpg.Server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil && c.err == nil {
		c.server, c.err = startServer(localpg.Options{Fast: true, MaxConnections: 300})
	}
	return c.server, c.err
}

func (c *cluster) stop(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil
	}
	return c.server.Stop(ctx)
}

func (c *cluster) newName(prefix string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.databases++
	return prefix + "_" + strconv.Itoa(c.databases)
}

// template returns the name of the database on which migrate has run, and runs it the first time.
func (c *cluster) template(migrate func(context.Context, string) error) (string, error) {
	if migrate == nil {
		return "template0", nil
	}
	key := reflect.ValueOf(migrate).Pointer()
	c.mu.Lock()
	if c.templates == nil {
		c.templates = map[uintptr]*template{}
	}
	tmpl := c.templates[key]
	if tmpl == nil {
		tmpl = &template{}
		c.templates[key] = tmpl
	}
	c.mu.Unlock()
	tmpl.once.Do(func() {
		tmpl.name = c.newName("template")
		tmpl.err = makeTemplate(c.server, tmpl.name, migrate)
	})
	return tmpl.name, tmpl.err
}

func makeTemplate(server *localpg.Server, name string, migrate func(context.Context, string) error) error {
	ctx, cancel := within(timeout, "migrating the template of the databases")
	defer cancel()
	if err := createDatabase(ctx, server, name, "template0"); err != nil {
		return fmt.Errorf("creating the template of the databases: %w", err)
	}
	if err := migrate(ctx, server.DSN(name)); err != nil {
		return fmt.Errorf("migrating the template of the databases: %w", err)
	}
	return unused(ctx, server, name)
}

// unused waits until nobody is connected to a database. A connection that was closed is gone after a moment; one that was
// left open would make each copy of the database fail with a message about something else.
func unused(ctx context.Context, server *localpg.Server, database string) error {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("migrate left a connection open, and a database in use cannot be copied"))
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	return withConn(ctx, server.DSN("postgres"), func(c *pgx.Conn) error {
		for {
			var used bool
			err := c.QueryRow(ctx, "select exists (select from pg_stat_activity where datname = $1)", database).Scan(&used)
			if err == nil && !used {
				return nil
			}
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("looking for connections to the template: %w", err)
			}
			select {
			case <-look.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
}

// createDatabase copies a database. It copies the files, where PostgreSQL by default would write all pages to its log: on a
// server that does not sync this takes half the time (90 ms against 160 to 240).
func createDatabase(ctx context.Context, server *localpg.Server, name, from string) error {
	return run(ctx, server.DSN("postgres"), "create database "+quote(name)+" template "+quote(from)+" strategy file_copy")
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func run(ctx context.Context, dsn, sql string) error {
	return withConn(ctx, dsn, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql)
		return err
	})
}

func withConn(ctx context.Context, dsn string, do func(*pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return errors.Join(do(c), c.Close(context.WithoutCancel(ctx)))
}

func within(d time.Duration, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.Background(), d, fmt.Errorf("%s took longer than %v", what, d))
}
