package localpg

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options say how a server is started. The zero value is a durable server of the installed PostgreSQL in a temporary folder.
type Options struct {
	// Bin is the folder of PostgreSQL's programs; empty means the one that Find returns.
	Bin string

	// Dir is the folder of the server. Empty means a new temporary one, which Stop removes. A folder that is named is
	// created if need be and kept by Stop; it must be empty or one that a server of this package left, whose data
	// then are there again.
	Dir string

	// Fast trades the last commits for speed: fsync, full_page_writes and synchronous_commit are off. A server that is
	// killed then loses what it committed last, so a test that kills one leaves Fast unset.
	Fast bool

	// MaxConnections is PostgreSQL's max_connections; 0 means DefaultMaxConnections.
	MaxConnections int

	// SharedBuffers is PostgreSQL's shared_buffers, such as "512MB"; empty means PostgreSQL's own default, 128MB.
	SharedBuffers string

	// Settings are further settings by name, such as "log_min_duration_statement": "100ms". They win over the fields above;
	// those that say where the server lives and listens (reservedSettings) are refused.
	Settings map[string]string
}

// DefaultMaxConnections is what a development machine needs: a few pools of ten to fifty connections. Each connection that is not
// used costs PostgreSQL a few kilobytes.
const DefaultMaxConnections = 200

// startTimeout bounds a start besides the caller's context. initdb takes 1 s and a start 0.3 s on two idle cores; replaying the
// log of a killed server under load takes longer.
const startTimeout = 2 * time.Minute

// User is the superuser of the servers of this package, and the name that their DSNs carry.
const User = "postgres"

// reservedSettings are the server's own: with another value it could be reached from elsewhere, or not be found again.
var reservedSettings = []string{
	"config_file", "data_directory", "dynamic_shared_memory_type", "external_pid_file", "hba_file", "ident_file",
	"listen_addresses", "logging_collector", "port", "unix_socket_directories", "unix_socket_group", "unix_socket_permissions",
}

var settingName = regexp.MustCompile(`^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?$`)

func (o Options) check() error {
	var errs []error
	for name, value := range o.Settings {
		switch {
		case !settingName.MatchString(name):
			errs = append(errs, fmt.Errorf("setting %q: this is not the name of a setting", name))
		case slices.Contains(reservedSettings, name):
			errs = append(errs, fmt.Errorf("setting %s: the private server sets it itself", name))
		case strings.ContainsRune(value, 0):
			errs = append(errs, fmt.Errorf("setting %s: its value holds a NUL", name))
		}
	}
	if o.MaxConnections < 0 {
		errs = append(errs, fmt.Errorf("MaxConnections is %d, and must not be negative", o.MaxConnections))
	}
	return errors.Join(errs...)
}

// Server is a private PostgreSQL. It is made by Start and must be ended by Stop. Its methods may be called from several
// goroutines at once; one that changes its state waits for the one before.
type Server struct {
	opts     Options
	bin      string
	dir      string
	ownsDir  bool // Stop removes dir
	port     int
	password string
	as       account
	guard    *guard

	mu      sync.Mutex
	proc    *process // the postmaster; nil while the server is down
	stopped bool     // Stop was called; nothing starts again
}

// Start creates a server, unless Options.Dir holds one, starts it and returns once it takes connections. It listens on a free
// port of 127.0.0.1 and on a Unix socket in its folder (unless the folder's path is too long for one), and asks for a
// generated password on both. The encoding is UTF-8, the locale C, the time zone UTC.
//
// PostgreSQL refuses to run as root. For root it therefore runs as the user postgres if there is one, and otherwise as nobody.
//
// The context bounds the start only; the server runs until Stop. If this process dies without Stop, by SIGKILL too, the
// server is shut down and a temporary folder is removed. Ctrl-C in a terminal does not reach the server, only this
// process. The error of a start carries the end of PostgreSQL's own log.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if err := opts.check(); err != nil {
		return nil, fmt.Errorf("options of a private PostgreSQL: %w", err)
	}
	if opts.Bin == "" {
		bin, _, err := Find()
		if err != nil {
			return nil, err
		}
		opts.Bin = bin
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it was not ready after %v", startTimeout))
	defer cancel()
	s := &Server{opts: opts, bin: opts.Bin}
	if err := s.create(ctx); err != nil {
		s.stopped = true
		return nil, errors.Join(fmt.Errorf("starting a private PostgreSQL: %w", err), s.cleanUp())
	}
	return s, nil
}

func (s *Server) create(ctx context.Context) error {
	var err error
	if s.as, err = serverAccount(); err != nil {
		return err
	}
	if err := s.makeDir(); err != nil {
		return err
	}
	// Before anything else is started, since this process may die at any moment.
	if s.guard, err = startGuard(s.ownsDir, s.dir); err != nil {
		return err
	}
	if err := s.initDB(ctx); err != nil {
		return err
	}
	return s.launchOnFreePort(ctx)
}

// makeDir makes the folder of the server and gives it to the account that the server runs as.
func (s *Server) makeDir() error {
	if s.opts.Dir == "" {
		return s.makeTempDir()
	}
	dir, err := filepath.Abs(s.opts.Dir)
	if err != nil {
		return fmt.Errorf("making the folder's path absolute: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the folder of the server: %w", err)
	}
	if blocked := s.as.blockedBy(dir); blocked != "" {
		return fmt.Errorf("the server runs as the user %s, who may not enter %s: choose a folder elsewhere", s.as.name, blocked)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading the folder of the server: %w", err)
	}
	s.dir = dir
	for _, e := range entries {
		if !isOurs(e.Name()) {
			return fmt.Errorf("the folder %s holds %s, which is no file of a private server: choose an empty folder", dir, e.Name())
		}
	}
	return s.as.own(dir)
}

func (s *Server) makeTempDir() error {
	parent := os.TempDir()
	if s.as.blockedBy(filepath.Join(parent, "x")) != "" {
		parent = "/tmp" // root's TMPDIR is often a folder that only root may enter
	}
	dir, err := os.MkdirTemp(parent, "pollux-postgresql-")
	if err != nil {
		return fmt.Errorf("making a temporary folder: %w", err)
	}
	s.dir, s.ownsDir = dir, true
	return s.as.own(dir)
}

// What is in the folder of a server, besides its sockets.
const (
	dataName     = "data"
	newDataName  = "data.new" // while initdb works
	logName      = "postgresql.log"
	passwordName = "password"
	socketPrefix = ".s.PGSQL."
)

func isOurs(name string) bool {
	return slices.Contains([]string{dataName, newDataName, logName, passwordName}, name) || strings.HasPrefix(name, socketPrefix)
}

func (s *Server) data() string         { return filepath.Join(s.dir, dataName) }
func (s *Server) logFile() string      { return filepath.Join(s.dir, logName) }
func (s *Server) passwordFile() string { return filepath.Join(s.dir, passwordName) }
func (s *Server) pidFile() string      { return filepath.Join(s.data(), "postmaster.pid") }
func (s *Server) socket() string       { return filepath.Join(s.dir, socketPrefix+strconv.Itoa(s.port)) }

// initDB creates the database cluster, or reads the password of the one that is there.
func (s *Server) initDB(ctx context.Context) error {
	if _, err := os.Stat(s.data()); err == nil {
		password, err := os.ReadFile(s.passwordFile())
		if err != nil {
			return fmt.Errorf("reading the password of the server in %s: %w", s.dir, err)
		}
		s.password = strings.TrimSpace(string(password))
		return nil
	}
	s.password = newPassword()
	if err := os.WriteFile(s.passwordFile(), []byte(s.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("writing the server's password: %w", err)
	}
	if err := s.as.own(s.passwordFile()); err != nil {
		return err
	}
	// In a folder of another name until it is complete: an initdb that was interrupted leaves what looks like a database.
	unfinished := filepath.Join(s.dir, newDataName)
	if err := os.RemoveAll(unfinished); err != nil {
		return fmt.Errorf("removing what an interrupted initdb left: %w", err)
	}
	args := []string{
		"-D", unfinished, "-U", User, "--pwfile", s.passwordFile(), "--auth-host=scram-sha-256", "--auth-local=scram-sha-256",
		"-E", "UTF8", "--locale=C", "--no-instructions",
	}
	if s.ownsDir {
		args = append(args, "--no-sync") // a folder that is about to be removed need not survive a power cut
	}
	if err := s.runInitDB(ctx, args); err != nil {
		return err
	}
	if err := os.Rename(unfinished, s.data()); err != nil {
		return fmt.Errorf("naming the folder of the data: %w", err)
	}
	return nil
}

func (s *Server) runInitDB(ctx context.Context, args []string) error {
	p, logged, err := s.spawn("initdb", args)
	if err != nil {
		return err
	}
	select {
	case <-p.ended:
		err = p.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.kill()
	s.guard.watch(0)
	if err != nil {
		return fmt.Errorf("initdb: %w: %s", err, tail(s.logFile(), logged))
	}
	return nil
}

// newPassword returns 128 random bits in a form that needs no escaping anywhere.
func newPassword() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// errPortTaken is a start that found its port in use.
var errPortTaken = errors.New("its port is taken")

// launchOnFreePort looks for a port and starts the server on it. Between the look and the start another process may take the
// port, so it tries again with another one.
func (s *Server) launchOnFreePort(ctx context.Context) error {
	const tries = 20
	var err error
	for range tries {
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.launch(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return fmt.Errorf("no port was free in %d tries: %w", tries, err)
}

// launchOnSamePort starts the server on the port that it had. A client that went on dialing may occupy it for a moment.
func (s *Server) launchOnSamePort(ctx context.Context) error {
	const patience = 10 * time.Second
	deadline := time.Now().Add(patience)
	for {
		err := s.launch(ctx)
		if !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// freePort returns a port of 127.0.0.1 that nobody listens on. It keeps below the ranges from which systems take the ports of
// outgoing connections (Linux from 32768, macOS from 49152): a client that redials a server that is down could
// otherwise be given the server's own port, and keep the server from starting again.
func freePort() (int, error) {
	const low, high, tries = 15000, 30000, 200
	var err error
	for range tries {
		port := low + mrand.IntN(high-low)
		var l net.Listener
		if l, err = net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("looking for a free port between %d and %d: %w", low, high, err)
}

// maxSocketPath is what the address of a Unix socket holds on macOS; Linux has 107.
const maxSocketPath = 103

// settings returns the settings of the server, those of the caller last.
func (s *Server) settings() []string {
	sockets := s.dir
	if len(s.socket()) > maxSocketPath {
		sockets = ""
	}
	connections := s.opts.MaxConnections
	if connections == 0 {
		connections = DefaultMaxConnections
	}
	set := []string{
		"listen_addresses=127.0.0.1",
		"port=" + strconv.Itoa(s.port),
		"unix_socket_directories=" + sockets,
		"unix_socket_permissions=0700",
		// In files of the data folder, so that a server that was killed leaves no shared memory of the machine behind.
		"dynamic_shared_memory_type=mmap",
		"max_connections=" + strconv.Itoa(connections),
		"timezone=UTC",
		"log_timezone=UTC",
		"cluster_name=pollux",
	}
	if s.opts.SharedBuffers != "" {
		set = append(set, "shared_buffers="+s.opts.SharedBuffers)
	}
	if s.opts.Fast {
		set = append(set, "fsync=off", "full_page_writes=off", "synchronous_commit=off")
	}
	for name, value := range s.opts.Settings {
		set = append(set, name+"="+value)
	}
	return set
}

// spawn starts one of PostgreSQL's programs in the server's folder, writing to the server's log. It returns where in
// the log its output begins.
func (s *Server) spawn(program string, args []string) (*process, int64, error) {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("opening the server's log: %w", err)
	}
	defer log.Close()
	offset, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, fmt.Errorf("finding the end of the server's log: %w", err)
	}
	p, err := spawn(s.as, s.dir, log, filepath.Join(s.bin, program), args)
	if err != nil {
		return nil, 0, fmt.Errorf("starting %s: %w", program, err)
	}
	s.guard.watch(p.pid())
	return p, offset, nil
}

// launch starts the postmaster and waits until it takes connections.
func (s *Server) launch(ctx context.Context) error {
	args := []string{"-D", s.data()}
	for _, set := range s.settings() {
		args = append(args, "-c", set)
	}
	p, logged, err := s.spawn("postgres", args)
	if err != nil {
		return err
	}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-p.ended:
			s.end(p)
			said := tail(s.logFile(), logged)
			if strings.Contains(said, "could not create any TCP/IP sockets") {
				return errPortTaken
			}
			return fmt.Errorf("PostgreSQL ended while it started (%v): %s", p.err, said)
		case <-ctx.Done():
			s.end(p)
			return fmt.Errorf("%w: %s", context.Cause(ctx), tail(s.logFile(), logged))
		case <-look.C:
			if s.ready(p.pid()) {
				s.proc = p
				return nil
			}
		}
	}
}

// ready reports whether the postmaster takes connections. It writes so into postmaster.pid, whose first line is its process
// id (another one is that of a server that was killed) and whose last line is its state.
func (s *Server) ready(pid int) bool {
	lines := s.pidLines()
	return len(lines) >= 8 && lines[0] == strconv.Itoa(pid) && lines[7] == "ready"
}

// pidLines returns the lines of postmaster.pid without blanks around them; none if there is no such file.
func (s *Server) pidLines() []string {
	b, err := os.ReadFile(s.pidFile())
	if err != nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines
}

// end kills what is left of the server, waits for it, and removes what a killed server leaves behind besides its data: its
// segment of shared memory, and its lock files, which would keep it from starting again if another process got its process
// id meanwhile.
func (s *Server) end(p *process) {
	p.kill()
	s.guard.watch(0)
	lines := s.pidLines()
	if len(lines) == 0 || lines[0] != strconv.Itoa(p.pid()) {
		return // it ended in order, or the folder is in use by another server
	}
	if len(lines) >= 7 {
		// The seventh line holds the key and the id of the segment.
		if f := strings.Fields(lines[6]); len(f) == 2 {
			if id, err := strconv.Atoi(f[1]); err == nil {
				removeSharedMemory(id)
			}
		}
	}
	for _, path := range []string{s.pidFile(), s.socket(), s.socket() + ".lock"} {
		os.Remove(path) // an error shows when PostgreSQL starts the next time, and says more there
	}
}

// DSN returns the URL of a database of this server. It holds the password and needs no environment variables.
func (s *Server) DSN(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(User, s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port returns the port on 127.0.0.1. It stays the same over Restart.
func (s *Server) Port() int { return s.port }

// Dir returns the folder of the server: its data, its log postgresql.log, its password and its Unix socket.
func (s *Server) Dir() string { return s.dir }

// PID returns the process id of the postmaster, or 0 while the server is down by Kill, Shutdown or Stop.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.pid()
}

// Kill ends the server as a power cut of PostgreSQL would: SIGKILL to the postmaster and to each of its processes, none of
// which can finish anything. It returns when the last one is gone. The data stay for Restart; what was committed is there
// again unless Options.Fast was set. It does nothing to a server that is down.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
}

func (s *Server) kill() {
	if s.proc == nil {
		return
	}
	s.end(s.proc)
	s.proc = nil
}

// Shutdown ends the server in order (PostgreSQL's fast shutdown: transactions are rolled back, connections closed) and keeps
// its data for Restart. If it does not end before ctx does, it is killed, and the error says so. It does nothing to a
// server that is down.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shutdown(ctx)
}

func (s *Server) shutdown(ctx context.Context) error {
	if s.proc == nil {
		return nil
	}
	s.proc.interrupt()
	select {
	case <-s.proc.ended:
		s.kill() // the postmaster ends last; if it was killed by somebody else its children may still run
		return nil
	case <-ctx.Done():
		s.kill()
		return fmt.Errorf("PostgreSQL was killed, since it had not shut down when the time for it ended: %w", context.Cause(ctx))
	}
}

// Restart starts the server again with the same data on the same port, after Kill, Shutdown, or a death that nobody here
// asked for. A server that runs is shut down first. After Stop it is an error.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("restarting the private PostgreSQL: it was stopped for good")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it was not ready after %v", startTimeout))
	defer cancel()
	err := s.shutdown(ctx)
	if err == nil {
		err = s.launchOnSamePort(ctx)
	}
	if err != nil {
		return fmt.Errorf("restarting the private PostgreSQL: %w", err)
	}
	return nil
}

// Stop shuts the server down for good, as Shutdown does, and removes its folder if Start made a temporary one. A second call
// does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	return errors.Join(s.shutdown(ctx), s.cleanUp())
}

// cleanUp removes the folder, if it is ours, and ends the guard, which is of no use from then on.
func (s *Server) cleanUp() error {
	var err error
	if s.ownsDir {
		if err = os.RemoveAll(s.dir); err != nil {
			err = fmt.Errorf("removing the folder of the private PostgreSQL: %w", err)
		}
	}
	s.guard.end()
	return err
}

// tail returns the last lines of a file from an offset on.
func tail(path string, offset int64) string {
	const lines, bytes = 12, 8 << 10
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		offset = max(offset, end-bytes)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, offset, bytes))
	if err != nil {
		return ""
	}
	return lastLines(string(b), lines)
}
