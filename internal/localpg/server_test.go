//go:build linux || darwin

package localpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"
)

// envRole makes the test binary play another process. It is set for that process alone.
const envRole = "LOCALPG_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		if err := play(role, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if _, err := Ensure(context.Background(), func(s string) { fmt.Fprintln(os.Stderr, s) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func play(role string, args []string) error {
	switch role {
	case "install":
		return installInHelper(args[0])
	case "start": // and wait for the end, whichever comes
		s, err := Start(context.Background(), Options{Fast: true})
		if err != nil {
			return err
		}
		fmt.Println(s.PID(), s.Dir())
		_, err = io.Copy(io.Discard, os.Stdin)
		return errors.Join(err, s.Stop(context.Background()))
	}
	return fmt.Errorf("no role is called %s", role)
}

// startHelper starts the test binary in a role. A test that does not wait for it may kill it.
func startHelper(t *testing.T, change func(*exec.Cmd), role string, args ...string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), envRole+"="+role)
	cmd.Stderr = os.Stderr
	if change != nil {
		change(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// poll waits until a condition holds, and reports whether it ever did.
func poll(condition func() bool) bool {
	const patience = time.Minute // far beyond what it takes, for a machine that is busy with something else
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
	return true
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if !poll(condition) {
		t.Fatalf("it never came that %s", what)
	}
}

func start(t *testing.T, opts Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Errorf("Stop() = %v", err)
		}
	})
	return s
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// query returns the first column of the only row of a query on the database postgres.
func query(t *testing.T, s *Server, sql string) string {
	t.Helper()
	c := connect(t, s.DSN("postgres"))
	defer c.Close(context.Background())
	var v string
	if err := c.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func exec1(t *testing.T, s *Server, sql string) {
	t.Helper()
	c := connect(t, s.DSN("postgres"))
	defer c.Close(context.Background())
	if _, err := c.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// alive reports whether a process runs. One that has ended and waits for its parent to notice does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !exists("/proc/self/stat") // gone meanwhile, or a system without /proc
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

// openTempDir makes a temporary folder that other users may enter, as they may /tmp. Into t.TempDir they may not.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "localpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

func listens(port int) bool {
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// sharedMemory returns the ids of all segments of System V shared memory, or none on a system that does not tell.
func sharedMemory() []string {
	b, _ := os.ReadFile("/proc/sysvipc/shm")
	var ids []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 {
			ids = append(ids, f[1])
		}
	}
	return ids
}

func segmentOf(t *testing.T, s *Server) string {
	t.Helper()
	f := strings.Fields(s.pidLines()[6])
	if len(f) != 2 {
		t.Fatalf("postmaster.pid names no segment: %q", s.pidLines())
	}
	return f[1]
}

// leavesNothing fails if anything of a server is left.
func leavesNothing(t *testing.T, pid, port int, dir, segment string) {
	t.Helper()
	if exists(dir) {
		t.Errorf("the folder %s is still there", dir)
	}
	if alive(pid) {
		t.Errorf("the process %d still runs", pid)
	}
	if listens(port) {
		t.Errorf("somebody still listens on %d", port)
	}
	if slices.Contains(sharedMemory(), segment) {
		t.Errorf("the shared memory %s is still there", segment)
	}
}

func TestAServerIsPrivateAndDurable(t *testing.T) {
	s := start(t, Options{})
	for setting, want := range map[string]string{
		"fsync":              "on",
		"full_page_writes":   "on",
		"synchronous_commit": "on",
		"listen_addresses":   "127.0.0.1",
		"max_connections":    strconv.Itoa(DefaultMaxConnections),
		"server_encoding":    "UTF8",
		"lc_messages":        "C",
		"timezone":           "UTC",
		"port":               strconv.Itoa(s.Port()),
	} {
		if got := query(t, s, "select current_setting('"+setting+"')"); got != want {
			t.Errorf("%s is %q; want %q", setting, got, want)
		}
	}
	if got := query(t, s, "select datcollate from pg_database where datname = 'postgres'"); got != "C" {
		t.Errorf("the collation is %q; want C", got)
	}
	for _, host := range []string{"127.0.0.1", s.Dir()} {
		dsn := fmt.Sprintf("host=%s port=%d user=%s password=wrong dbname=postgres sslmode=disable", host, s.Port(), User)
		var refused *pgconn.PgError
		if _, err := pgx.Connect(t.Context(), dsn); !errors.As(err, &refused) || refused.Code != "28P01" {
			t.Errorf("a wrong password at %s: %v; want it refused", host, err)
		}
		dsn = fmt.Sprintf("host=%s port=%d user=%s password=%s dbname=postgres sslmode=disable", host, s.Port(), User, s.password)
		connect(t, dsn)
	}
	st, err := os.Stat(s.Dir())
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v; want it closed to others", st.Mode(), err)
	}
	if owner := st.Sys().(*syscall.Stat_t).Uid; owner == 0 {
		t.Error("the folder belongs to root, as whom PostgreSQL does not run")
	}
	ours, _ := syscall.Getpgid(0)
	if group, err := syscall.Getpgid(s.PID()); err != nil || group == ours {
		t.Errorf("the server is in the process group %d (%v), which Ctrl-C reaches", group, err)
	}
}

func TestOptionsReachTheServer(t *testing.T) {
	s := start(t, Options{
		Fast: true, MaxConnections: 17, SharedBuffers: "24MB",
		Settings: map[string]string{"statement_timeout": "1234ms", "application_name": "it's \\ a name", "pollux.answer": "42"},
	})
	for setting, want := range map[string]string{
		"fsync":              "off",
		"full_page_writes":   "off",
		"synchronous_commit": "off",
		"max_connections":    "17",
		"shared_buffers":     "24MB",
		"statement_timeout":  "1234ms",
		"pollux.answer":      "42",
	} {
		if got := query(t, s, "select current_setting('"+setting+"')"); got != want {
			t.Errorf("%s is %q; want %q", setting, got, want)
		}
	}
}

func TestWrongOptionsAreRefusedTogether(t *testing.T) {
	_, err := Start(t.Context(), Options{
		MaxConnections: -1,
		Settings:       map[string]string{"port": "5432", "Fsync = off; x": "1", "work_mem": "1\x00"},
	})
	if err == nil {
		t.Fatal("Start() took them")
	}
	for _, part := range []string{"port", "Fsync", "work_mem", "MaxConnections"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q says nothing of %s", err, part)
		}
	}
}

func TestStopLeavesNothingAndIsIdempotent(t *testing.T) {
	s := start(t, Options{Fast: true})
	pid, segment := s.PID(), segmentOf(t, s)
	connect(t, s.DSN("postgres")) // a client that stays does not keep it
	for range 2 {
		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	leavesNothing(t, pid, s.Port(), s.Dir(), segment)
	s.Kill()
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown() = %v after Stop", err)
	}
	if err := s.Restart(t.Context()); err == nil {
		t.Error("Restart() started it after Stop")
	}
	if s.PID() != 0 {
		t.Errorf("PID() = %d after Stop", s.PID())
	}
}

func TestAKilledServerComesBackWithWhatWasCommitted(t *testing.T) {
	s := start(t, Options{})
	exec1(t, s, "create table kept (n int)")
	port := s.Port()
	for round := range 3 {
		exec1(t, s, fmt.Sprintf("insert into kept values (%d)", round))
		pid, segment := s.PID(), segmentOf(t, s)
		s.Kill()
		if alive(pid) || listens(port) || slices.Contains(sharedMemory(), segment) || s.PID() != 0 {
			t.Fatalf("something of the killed server is left")
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := query(t, s, "select count(*)::text from kept"); got != strconv.Itoa(round+1) || s.Port() != port {
			t.Fatalf("after round %d there are %s rows on port %d; want %d on %d", round, got, s.Port(), round+1, port)
		}
	}
}

// A query that computes does not notice that the postmaster is gone.
func TestKillEndsBusyProcessesToo(t *testing.T) {
	for _, c := range []struct {
		name string
		kill func(*Server)
	}{
		{"by Kill", (*Server).Kill},
		{"by somebody else", func(s *Server) { syscall.Kill(s.PID(), syscall.SIGKILL) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, Options{Fast: true})
			busy := connect(t, s.DSN("postgres"))
			var backend int
			if err := busy.QueryRow(t.Context(), "select pg_backend_pid()").Scan(&backend); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := busy.Exec(t.Context(), "do $$ declare i bigint := 0; begin loop i := i + 1; end loop; end $$")
				done <- err
			}()
			eventually(t, "the query runs", func() bool {
				return query(t, s, fmt.Sprintf("select count(*)::text from pg_stat_activity where pid = %d and state = 'active'", backend)) == "1"
			})
			c.kill(s)
			if err := s.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err == nil {
				t.Error("the query came to an end")
			}
			if alive(backend) {
				t.Errorf("the process %d still runs", backend)
			}
		})
	}
}

func TestShutdownKeepsTheData(t *testing.T) {
	s := start(t, Options{Fast: true})
	exec1(t, s, "create table kept as select 1 as n")
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if listens(s.Port()) || s.PID() != 0 {
		t.Fatal("it still runs")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, s, "select n::text from kept"); got != "1" {
		t.Errorf("the row is %q", got)
	}
	first := s.PID()
	if err := s.Restart(t.Context()); err != nil || s.PID() == first {
		t.Errorf("Restart() of a running server = %v, process %d before and %d after", err, first, s.PID())
	}
}

func TestAServerThatDoesNotShutDownInTimeIsKilled(t *testing.T) {
	s := start(t, Options{Fast: true})
	pid, segment := s.PID(), segmentOf(t, s)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("patience ended"))
	defer cancel()
	if err := s.Stop(ctx); err == nil || !strings.Contains(err.Error(), "patience ended") {
		t.Errorf("Stop() = %v", err)
	}
	leavesNothing(t, pid, s.Port(), s.Dir(), segment)
}

func TestStopAfterKillLeavesNothing(t *testing.T) {
	s := start(t, Options{Fast: true})
	pid, segment := s.PID(), segmentOf(t, s)
	s.Kill()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	leavesNothing(t, pid, s.Port(), s.Dir(), segment)
}

func TestAStartThatFailsShowsTheLogAndLeavesNothing(t *testing.T) {
	tmp := openTempDir(t)
	t.Setenv("TMPDIR", tmp)
	for _, c := range []struct {
		name string
		opts Options
		want string
	}{
		{"a wrong value", Options{SharedBuffers: "lots"}, `invalid value for parameter "shared_buffers": "lots"`},
		{"an unknown setting", Options{Settings: map[string]string{"no_such_setting": "1"}}, "no_such_setting"},
		{"no programs", Options{Bin: tmp}, "initdb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Start(t.Context(), c.opts); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Start() = %v; want the words %q", err, c.want)
			}
			if left, _ := os.ReadDir(tmp); len(left) != 0 {
				t.Errorf("it left %v", left)
			}
		})
	}
}

func TestAStartEndsWithItsContext(t *testing.T) {
	tmp := openTempDir(t)
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		poll(func() bool { m, _ := filepath.Glob(filepath.Join(tmp, "*", newDataName)); return len(m) == 1 })
		cancel(errors.New("changed my mind"))
	}()
	if _, err := Start(ctx, Options{}); err == nil || !strings.Contains(err.Error(), "changed my mind") {
		t.Errorf("Start() = %v", err)
	}
	if left, _ := os.ReadDir(tmp); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
}

func TestANamedFolderKeepsItsDataAndNothingElseIsTouched(t *testing.T) {
	dir := filepath.Join(openTempDir(t), "mine")
	first := start(t, Options{Dir: dir, Fast: true})
	exec1(t, first, "create table kept as select 1 as n")
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := start(t, Options{Dir: dir, Fast: true})
	if got := query(t, second, "select n::text from kept"); got != "1" {
		t.Errorf("the row is %q", got)
	}

	// A second server on the same data is PostgreSQL's to refuse, and must not harm the first.
	if _, err := Start(t.Context(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "postmaster.pid") {
		t.Errorf("a second server in the same folder: %v", err)
	}
	if got := query(t, second, "select n::text from kept"); got != "1" || !exists(second.pidFile()) {
		t.Errorf("the first server was harmed")
	}

	other := openTempDir(t)
	precious := filepath.Join(other, "precious")
	if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Options{Dir: other}); err == nil || !strings.Contains(err.Error(), "precious") {
		t.Errorf("a folder of somebody else: %v; want it refused", err)
	}
	if entries, _ := os.ReadDir(other); len(entries) != 1 {
		t.Errorf("the folder of somebody else holds %v", entries)
	}
}

func TestAFolderTooDeepForASocketStillHasAServer(t *testing.T) {
	s := start(t, Options{Fast: true, Dir: filepath.Join(openTempDir(t), strings.Repeat("deep", 25))})
	if got := query(t, s, "select current_setting('unix_socket_directories')"); got != "" {
		t.Errorf("the sockets are in %q", got)
	}
}

func TestAFolderThatTheServersUserCannotEnterIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		return // the server runs as this user
	}
	closed := filepath.Join(openTempDir(t), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Options{Dir: filepath.Join(closed, "pg")}); err == nil || !strings.Contains(err.Error(), "may not enter "+closed) {
		t.Errorf("Start() = %v; want it to name %s", err, closed)
	}
	t.Setenv("TMPDIR", closed)
	s := start(t, Options{Fast: true})
	if filepath.Dir(s.Dir()) != "/tmp" {
		t.Errorf("the folder is %s; want one that the server may enter", s.Dir())
	}
}

func TestATakenPortIsNoticed(t *testing.T) {
	s := start(t, Options{Fast: true})
	other := start(t, Options{Fast: true})
	if err := other.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	mine := other.port
	other.port = s.port
	if err := other.launch(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("launch() on a port in use = %v; want errPortTaken", err)
	}
	other.port = mine
}

func TestRestartWaitsForItsPort(t *testing.T) {
	s := start(t, Options{Fast: true})
	s.Kill()
	squatter, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port())))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer squatter.Close()
		poll(func() bool { return strings.Contains(tail(s.logFile(), 0), "could not bind") })
	}()
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	query(t, s, "select 'it runs'")
}

func TestServersStartSideBySide(t *testing.T) {
	ports := make(chan int, 3)
	t.Run("all", func(t *testing.T) {
		for range cap(ports) {
			t.Run("one", func(t *testing.T) {
				t.Parallel()
				s := start(t, Options{Fast: true})
				query(t, s, "select 'it runs'")
				ports <- s.Port()
			})
		}
	})
	close(ports)
	seen := map[int]bool{}
	for p := range ports {
		seen[p] = true
	}
	if len(seen) != cap(ports) {
		t.Errorf("the ports are %v; want %d different ones", seen, cap(ports))
	}
}

func TestTheServerEndsWithAProcessThatIsKilled(t *testing.T) {
	tmp := openTempDir(t)
	var out io.ReadCloser
	helper := startHelper(t, func(c *exec.Cmd) {
		c.Env = append(c.Env, "TMPDIR="+tmp)
		out, _ = c.StdoutPipe()
	}, "start")
	var pid int
	var dir string
	if _, err := fmt.Fscan(bufio.NewReader(out), &pid, &dir); err != nil {
		t.Fatalf("the process did not say where its server is: %v", err)
	}
	if !alive(pid) || filepath.Dir(dir) != tmp {
		t.Fatalf("no server runs as %d in %s", pid, dir)
	}
	helper.Process.Kill()
	helper.Wait()
	eventually(t, "the server is gone", func() bool { return !alive(pid) && !exists(dir) })
}

func TestAnInitDBEndsWithAProcessThatIsKilled(t *testing.T) {
	tmp := openTempDir(t)
	helper := startHelper(t, func(c *exec.Cmd) { c.Env = append(c.Env, "TMPDIR="+tmp) }, "start")
	eventually(t, "initdb works", func() bool {
		m, _ := filepath.Glob(filepath.Join(tmp, "*", newDataName, "PG_VERSION"))
		return len(m) == 1
	})
	helper.Process.Kill()
	helper.Wait()
	eventually(t, "the folder is gone", func() bool { left, err := os.ReadDir(tmp); return err == nil && len(left) == 0 })
}

// PostgreSQL is started by an ordinary user, too. Run as root, this test becomes one.
func TestAnOrdinaryUserNeedsNoOther(t *testing.T) {
	dir := openTempDir(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(dir, "test-binary") // the original is in a folder that only its builder may enter
	if err := os.WriteFile(mine, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	var in io.WriteCloser
	var out io.ReadCloser
	helper := startHelper(t, func(c *exec.Cmd) {
		c.Path, c.Dir = mine, dir
		c.Env = append(c.Env, "TMPDIR="+dir)
		if as, err := serverAccount(); err != nil {
			t.Fatal(err)
		} else if as.cred != nil {
			c.SysProcAttr = &syscall.SysProcAttr{Credential: as.cred}
		}
		in, _ = c.StdinPipe()
		out, _ = c.StdoutPipe()
	}, "start")
	var pid int
	var server string
	if _, err := fmt.Fscan(bufio.NewReader(out), &pid, &server); err != nil {
		t.Fatalf("the process did not say where its server is: %v", err)
	}
	if !exists(filepath.Join(server, dataName)) {
		t.Errorf("no data are in %s", server)
	}
	in.Close()
	if err := helper.Wait(); err != nil {
		t.Errorf("the process: %v", err)
	}
	if alive(pid) || exists(server) {
		t.Errorf("the server %d in %s is still there", pid, server)
	}
}

func TestADSNEscapesTheNameOfTheDatabase(t *testing.T) {
	s := &Server{port: 1234, password: "secret"}
	for name, want := range map[string]string{
		"postgres": "postgres://postgres:secret@127.0.0.1:1234/postgres?sslmode=disable",
		"a b?c":    "postgres://postgres:secret@127.0.0.1:1234/a%20b%3Fc?sslmode=disable",
	} {
		c, err := pgx.ParseConfig(s.DSN(name))
		if got := s.DSN(name); got != want || err != nil || c.Database != name {
			t.Errorf("DSN(%q) = %s, parsed as %v (%v); want %s", name, got, c, err, want)
		}
	}
}
