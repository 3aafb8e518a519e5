package canary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/rogpeppe/go-internal/testscript"
	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"pollux/internal/app"
	"pollux/internal/certificate/certificatetest"
	"pollux/internal/cli"
	"pollux/internal/natsembed"
	"pollux/internal/natstest"
	"pollux/internal/pgtest"
	"pollux/internal/postgres"
)

// TestMain also is the processes that the tests start.
func TestMain(m *testing.M) {
	testscript.Main(pgtest.With(m), map[string]func(){
		"consumer":     func() { os.Exit(app.Main(app.ConsumerCommand())) },
		"outbox-relay": func() { os.Exit(app.Main(app.RelayCommand())) },
		"webhook":      func() { os.Exit(app.Main(app.WebhookCommand())) },
	})
}

// patience is how long a test waits for something that takes a moment on an idle machine.
const patience = 2 * time.Minute

func migrated(ctx context.Context, dsn string) error {
	_, err := postgres.Migrate(ctx, dsn)
	return err
}

// site is where the test happens.
type site struct {
	t      *testing.T
	marks  *marks
	dir    string
	dsn    string // of the administrator
	parrot *parrot
	traces *traces
	store  string
	broker *natstest.Server
	nats   string

	password, access string            // of the database: what the services log in with, and the URL
	said, token      string            // what notifications have in them
	shown            map[string][]byte // what was written by processes and commands
}

// traces is a collector that keeps all that it is sent, spans and metrics.
type traces struct {
	collector.UnimplementedTraceServiceServer
	address string
	mu      sync.Mutex
	text    bytes.Buffer
	spans   int
	pushes  int // of metrics
}

// Export implements the collector.
func (c *traces) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans += len(scope.GetSpans())
		}
	}
	fmt.Fprintln(&c.text, r)
	return &collector.ExportTraceServiceResponse{}, nil
}

// pushed takes metrics for the same text.
type pushed struct {
	metrics.UnimplementedMetricsServiceServer
	*traces
}

// Export implements the collector.
func (c pushed) Export(_ context.Context, r *metrics.ExportMetricsServiceRequest) (*metrics.ExportMetricsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pushes++
	fmt.Fprintln(&c.text, r)
	return &metrics.ExportMetricsServiceResponse{}, nil
}

func newTraces(t *testing.T) *traces {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, srv := &traces{address: l.Addr().String()}, grpc.NewServer()
	collector.RegisterTraceServiceServer(srv, c)
	metrics.RegisterMetricsServiceServer(srv, pushed{traces: c})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() { srv.Stop(); <-served })
	return c
}

func newSite(t *testing.T) *site {
	m := newMarks()
	s := &site{t: t, marks: m, dir: t.TempDir(), parrot: newParrot(t, m), traces: newTraces(t), store: t.TempDir(), shown: map[string][]byte{}}
	s.dsn = pgtest.New(t, migrated)

	s.password = m.secret("the database's password", "")
	s.exec(`create role canary superuser login password '` + s.password + `'`)
	t.Cleanup(func() { s.exec(`drop role canary`) })
	u, err := url.Parse(s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("canary", s.password)
	s.access = u.String()
	s.write("dsn", s.access)

	broker := m.secret("the broker's password", "")
	s.write("nats", broker)
	s.broker = natstest.On(t, natsembed.Options{StoreDir: s.store, Configure: func(o *server.Options) {
		o.Users = []*server.User{{Username: "pollux", Password: broker}}
	}})
	s.nats = s.broker.URL()
	return s
}

// write writes a file of the test's folder and returns its name.
func (s *site) write(name, content string) string {
	s.t.Helper()
	return certificatetest.Write(s.t, filepath.Join(s.dir, name), []byte(content))
}

func (s *site) withConn(do func(context.Context, *pgx.Conn) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := errors.Join(do(ctx, c), c.Close(ctx)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	s.withConn(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql, args...)
		return err
	})
}

// number is the single number that a query has for its result.
func (s *site) number(sql string) (n int) {
	s.t.Helper()
	s.withConn(func(ctx context.Context, c *pgx.Conn) error { return c.QueryRow(ctx, sql).Scan(&n) })
	return n
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		<-tick.C
	}
}

// process is a service that runs.
type process struct {
	site   *site
	name   string
	listen string
	cmd    *exec.Cmd
	log    string
	ended  chan struct{}
}

func (s *site) start(name string, args ...string) *process {
	s.t.Helper()
	p := &process{site: s, name: name, listen: freeAddress(s.t), log: filepath.Join(s.dir, name+".log"), ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		s.t.Fatal(err)
	}
	defer out.Close()
	p.cmd = exec.Command(name, append([]string{"--config", filepath.Join(s.dir, "pollux.yaml"), "--listen", p.listen, "--log-level", "debug"}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	s.t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.ended })
	eventually(s.t, name+" is ready", func() bool {
		select {
		case <-p.ended:
			b, _ := os.ReadFile(p.log)
			s.t.Fatalf("%s ended: %s", name, b)
		default:
		}
		code, _ := p.page("/readyz")
		return code == http.StatusOK
	})
	return p
}

func (p *process) page(path string) (int, []byte) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + p.listen + path)
	if err != nil {
		return 0, nil
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, b
}

func (p *process) signal(x syscall.Signal) {
	p.site.t.Helper()
	if err := p.cmd.Process.Signal(x); err != nil {
		p.site.t.Fatal(err)
	}
}

// stop keeps the pages and the log of the process, and ends it.
func (p *process) stop() {
	p.site.t.Helper()
	for _, page := range []string{"/metrics", "/readyz"} {
		code, body := p.page(page)
		if code != http.StatusOK {
			p.site.t.Errorf("%s of %s: %d", page, p.name, code)
		}
		p.site.shown[p.name+page] = body
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.site.t.Fatalf("%s does not end", p.name)
	}
	b, err := os.ReadFile(p.log)
	if err != nil {
		p.site.t.Fatal(err)
	}
	p.site.shown["the log of "+p.name] = b
}

// freeAddress is a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// run runs an operator's command, here, since a process each would take most of the test's time, and keeps what it says. Its environment is that of the test and what is given.
func (s *site) run(env []string, args ...string) (string, int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			s.t.Fatal(err)
		}
		defer os.Unsetenv(name)
	}
	if !slices.Contains(args, "--config") {
		args = append([]string{"--config", filepath.Join(s.dir, "pollux.yaml")}, args...)
	}
	var out bytes.Buffer
	cmd := cli.Command()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	code := app.Run(ctx, cmd)
	s.shown[fmt.Sprintf("%d pollux %s %s", len(s.shown), strings.Join(env, " "), strings.Join(args, " "))] = out.Bytes()
	return out.String(), code
}

// rows are all rows of all tables, by table and column.
func (s *site) rows() map[string][]byte {
	s.t.Helper()
	all := map[string][]byte{}
	s.withConn(func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `
			select c.relname, a.attname, format_type(a.atttypid, null)
			from pg_class c
			join pg_namespace n on n.oid = c.relnamespace
			join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
			where n.nspname = 'pollux' and c.relkind in ('r', 'p') and not c.relispartition`)
		if err != nil {
			return err
		}
		type column struct{ table, name, kind string }
		columns, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (x column, err error) {
			return x, r.Scan(&x.table, &x.name, &x.kind)
		})
		if err != nil {
			return err
		}
		for _, x := range columns {
			text := pgx.Identifier{x.name}.Sanitize() + "::text"
			if x.kind == "bytea" {
				text = "encode(" + pgx.Identifier{x.name}.Sanitize() + ", 'escape')"
			}
			var content *string
			if err := c.QueryRow(ctx, `select string_agg(`+text+`, E'\n') from pollux.`+pgx.Identifier{x.table}.Sanitize()).Scan(&content); err != nil {
				return fmt.Errorf("%s.%s: %w", x.table, x.name, err)
			}
			if content != nil {
				all[x.table+"."+x.name] = []byte(*content)
			}
		}
		return nil
	})
	return all
}

// files are the contents of all files below a folder.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all[path] = b
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
