package check

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"pollux/internal/localpg"
	"pollux/internal/natsembed"
	"pollux/internal/pgtest"
)

// patience bounds each wait of the stack. On an idle machine all of them together take seconds.
const patience = 2 * time.Minute

// stack is the services of compose.yaml as processes on this machine: with their command lines, their environment, their configuration and their secrets, and with other
// addresses, since there are no networks of an engine.
type stack struct {
	compose
	t         *testing.T
	dir       string
	database  *url.URL          // as its superuser
	addresses *strings.Replacer // from those of the containers to those of this machine
	gateway   string            // where the simulator listens
	spans     *spans
}

// spans is a collector that counts what comes, by service.
type spans struct {
	collectortrace.UnimplementedTraceServiceServer
	count atomic.Int64
}

func (s *spans) Export(_ context.Context, r *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	for _, of := range r.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			s.count.Add(int64(len(scope.Spans)))
		}
	}
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

func newStack(t *testing.T) *stack {
	t.Helper()
	s := &stack{compose: loadCompose(t, read(t, composeFile)), t: t, dir: t.TempDir(), gateway: freeAddress(t), spans: &spans{}}
	var err error
	if s.database, err = url.Parse(pgtest.Server(t).DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	s.addresses = strings.NewReplacer(
		"postgres:5432/payments", s.database.Host+s.database.Path,
		"nats://nats:4222", s.broker(),
		"http://gateway:8089", "http://"+s.gateway,
		"http://otel-collector:4317", "http://"+s.collector(),
		"0.0.0.0:8089", s.gateway,
		"allow_private: true", "allow_loopback: true",
	)
	return s
}

// broker starts a server with the configuration that compose.yaml mounts, on another port and in another folder.
func (s *stack) broker() string {
	s.t.Helper()
	o, err := natsOptions(s.t, s.compose, read(s.t, "deploy/compose/nats.conf"))
	if err != nil {
		s.t.Fatal(err)
	}
	srv, err := natsembed.Start(natsembed.Options{StoreDir: filepath.Join(s.dir, "streams"), Configure: func(own *server.Options) {
		port, store := own.Port, own.StoreDir
		*own = *o
		own.Host, own.Port, own.StoreDir, own.HTTPPort = "127.0.0.1", port, store, server.RANDOM_PORT
		own.NoSigs, own.NoLog = true, true
	}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := srv.Stop(); err != nil {
			s.t.Error(err)
		}
	})
	return srv.URL()
}

func (s *stack) collector() string {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	g := grpc.NewServer()
	collectortrace.RegisterTraceServiceServer(g, s.spans)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	s.t.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil {
			s.t.Error(err)
		}
	})
	return l.Addr().String()
}

// freeAddress is a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// container is a replica of a service.
type container struct {
	*stack
	service types.ServiceConfig
	name    string
	dir     string // its secrets and its configuration
	listen  string // where its pages are
	address string // where it takes notifications
}

// container lays out what a replica of a service sees.
func (s *stack) container(service string, n int) *container {
	s.t.Helper()
	k := &container{stack: s, service: s.Services[service], name: fmt.Sprintf("%s-%d", service, n), listen: freeAddress(s.t), address: freeAddress(s.t)}
	k.dir = filepath.Join(s.dir, k.name)
	if err := os.Mkdir(k.dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	for name, secret := range s.secretsOf(k.service) {
		if name == "pgpass" { // the administrator's password is that of this machine's server
			password, _ := s.database.User.Password()
			secret = "*:*:*:postgres:" + password + "\n"
		}
		write(s.t, filepath.Join(k.dir, name), s.addresses.Replace(secret))
	}
	for _, f := range k.service.Configs {
		content, err := os.ReadFile(s.Configs[f.Source].File)
		if err != nil {
			s.t.Fatal(err)
		}
		write(s.t, filepath.Join(k.dir, filepath.Base(f.Target)), s.addresses.Replace(strings.ReplaceAll(string(content), secretsDir, k.dir)))
	}
	return k
}

// argv is the container's own command line.
func (k *container) argv() []string {
	return slices.Concat([]string(k.service.Entrypoint), []string(k.service.Command))
}

// command is a command line of the container as a process of this machine.
func (k *container) command(ctx context.Context, argv []string) *exec.Cmd {
	var mapped []string
	for _, word := range argv {
		word = k.addresses.Replace(strings.ReplaceAll(word, secretsDir, k.dir))
		for _, f := range k.service.Configs {
			word = strings.ReplaceAll(word, f.Target, filepath.Join(k.dir, filepath.Base(f.Target)))
		}
		mapped = append(mapped, word)
	}
	if mapped[0] == "psql" {
		bin, _, err := localpg.Find()
		if err != nil {
			k.t.Fatal(err)
		}
		mapped[0] = filepath.Join(bin, "psql")
	}
	cmd := exec.CommandContext(ctx, mapped[0], mapped[1:]...)
	for _, e := range environ(k.service) {
		cmd.Env = append(cmd.Env, strings.ReplaceAll(e, secretsDir, k.dir))
	}
	cmd.Env = append(cmd.Env,
		"PATH=/usr/bin:/bin", // for the shell of psql
		"PGHOST="+k.database.Hostname(), "PGPORT="+k.database.Port(), "PGDATABASE="+strings.TrimPrefix(k.database.Path, "/"),
		"POLLUX_CONFIG="+filepath.Join(k.dir, filepath.Base(configPath)),
		"POLLUX_TELEMETRY__LISTEN="+k.listen, "POLLUX_WEBHOOKS__LISTEN="+k.address) // replicas have a port each in their own networks
	return cmd
}

// finishes runs a command line to its end, which must be a good one, and returns what it printed.
func (k *container) finishes(argv ...string) string {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), patience)
	defer cancel()
	out, err := k.command(ctx, argv).CombinedOutput()
	if err != nil {
		k.t.Fatalf("%s: %q: %v\n%s", k.name, argv, err, out)
	}
	return string(out)
}

// starts runs the container's own command until the test ends, which must be a good end too: in time, and with exit code 0.
func (k *container) starts() {
	k.t.Helper()
	cmd := k.command(context.WithoutCancel(k.t.Context()), k.argv())
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		k.t.Fatalf("%s: %v", k.name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	k.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // an end before this is seen below
		select {
		case err := <-ended:
			if err != nil {
				k.t.Errorf("%s: told to stop, it ended with %v\n%s", k.name, err, log.String())
			}
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			k.t.Errorf("%s: it did not stop\n%s", k.name, log.String())
			<-ended
		}
	})
}

// healthy waits until the container's own health check is content.
func (k *container) healthy() {
	k.t.Helper()
	argv := k.service.HealthCheck.Test[1:]
	if k.service.Name == "gateway" {
		argv = slices.Clone(argv)
		argv[len(argv)-1] = strings.Replace(argv[len(argv)-1], "127.0.0.1:8089", k.gateway, 1)
	}
	var last string
	await(k.t, func() error {
		ctx, cancel := context.WithTimeout(k.t.Context(), patience)
		defer cancel()
		out, err := k.command(ctx, argv).CombinedOutput()
		last = string(out)
		return err
	}, func() string { return k.name + " is not healthy: " + last })
}

// await asks until there is no error.
func await(t *testing.T, ask func() error, what func() string) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what(), err)
		}
	}
}

// TestTheStackResolvesAPayment starts the services of compose.yaml in the order that it says, tracks a payment as the README does, and stops them.
func TestTheStackResolvesAPayment(t *testing.T) {
	s := newStack(t)
	for _, name := range s.setup() {
		k := s.container(name, 1)
		k.finishes(k.argv()...)
	}
	running := map[string][]*container{}
	for _, name := range []string{"gateway", "relay", "consumer", "webhook"} {
		replicas := 1
		if r := s.Services[name].Deploy.Replicas; r != nil {
			replicas = *r
		}
		for n := range replicas {
			k := s.container(name, n+1)
			k.starts()
			running[name] = append(running[name], k)
		}
	}
	if len(running["consumer"]) != 2 {
		t.Errorf("%d consumers; want two", len(running["consumer"]))
	}
	for _, name := range slices.Sorted(maps.Keys(running)) {
		for _, k := range running[name] {
			k.healthy()
		}
	}

	s.track("mine_1999_EUR")
	await(t, func() error { return s.final("mine_1999_EUR") }, func() string { return "the payment is not final" })
	for name, replicas := range running {
		for _, k := range replicas {
			if name != "gateway" {
				k.staysReady()
			}
		}
	}
	operator := s.container("pollux", 1)
	if out := operator.finishes("pollux", "payment", "show", "sim/mine_1999_EUR"); !strings.Contains(out, "succeeded") {
		t.Errorf("an operator is told:\n%s", out)
	}
	operator.finishes("pollux", "verify")
	operator.finishes("pollux", "streams", "diff")
	operator.finishes("pollux", "doctor") // what is yellow is a laptop's; nothing is red
	s.notify(running["webhook"][0])
	for name, replicas := range running {
		for _, k := range replicas {
			if name != "gateway" {
				k.measured()
			}
		}
	}
	await(t, func() error {
		if s.spans.count.Load() == 0 {
			return errors.New("no spans")
		}
		return nil
	}, func() string { return "nothing came to the collector" })
}

// setup are the services that run to their end, in an order in which nothing is waited for.
func (s *stack) setup() []string {
	var all []string
	for name, service := range s.Services {
		if s.once(service) && len(service.Profiles) == 0 {
			all = append(all, name)
		}
	}
	slices.SortFunc(all, func(a, b string) int {
		switch {
		case s.Services[a].DependsOn[b].Condition != "":
			return 1
		case s.Services[b].DependsOn[a].Condition != "":
			return -1
		}
		return strings.Compare(a, b)
	})
	return all
}

// query asks the database as somebody.
func (s *stack) query(who *url.Userinfo, sql string, args ...any) pgx.Row {
	s.t.Helper()
	as := *s.database
	as.User = who
	c, err := pgx.Connect(s.t.Context(), as.String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close(context.WithoutCancel(s.t.Context())) })
	return c.QueryRow(s.t.Context(), sql, args...)
}

// track tracks a payment as the payment service does, which can do little else.
func (s *stack) track(reference string) {
	s.t.Helper()
	service := url.UserPassword("pollux_tracker_login", s.made["tracker_password"])
	var id int64
	if err := s.query(service, `select pollux.track_payment('sim', $1, 1999, 'EUR', class => 'demo')`, reference).Scan(&id); err != nil {
		s.t.Fatalf("tracking a payment: %v", err)
	}
	if err := s.query(service, `select status from pollux.payments where id = $1`, id).Scan(new(string)); err == nil || !strings.Contains(err.Error(), "permission denied") {
		s.t.Errorf("the payment service reads what is not its own: %v", err)
	}
}

// final is nil when a payment has succeeded.
func (s *stack) final(reference string) error {
	var status string
	if err := s.query(s.database.User, `select status from pollux.payments where reference = $1`, reference).Scan(&status); err != nil {
		return err
	}
	if status != "succeeded" {
		return fmt.Errorf("the payment is %s", status)
	}
	return nil
}

// notify sends a signed notification to the receiver, as the README's gateway would, and one that is not signed.
func (s *stack) notify(k *container) {
	s.t.Helper()
	const body = `{"id": "mine_1999_EUR", "status": "succeeded", "amount": 1999, "currency": "EUR"}`
	id, at := "msg_1", strconv.FormatInt(time.Now().Unix(), 10)
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s.made["sim_webhook"], "whsec_"))
	if err != nil {
		s.t.Fatal(err)
	}
	mac := hmac.New(sha256.New, key)
	io.WriteString(mac, id+"."+at+"."+body)
	for signature, accepted := range map[string]bool{"v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)): true, "v1,c2lnbmF0dXJl": false} {
		r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://"+k.address+"/webhooks/sim", strings.NewReader(body))
		if err != nil {
			s.t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("webhook-id", id)
		r.Header.Set("webhook-timestamp", at)
		r.Header.Set("webhook-signature", signature)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			s.t.Fatal(err)
		}
		resp.Body.Close()
		if (resp.StatusCode/100 == 2) != accepted {
			s.t.Errorf("a notification with the signature %q is answered %d", signature, resp.StatusCode)
		}
	}
}

// staysReady waits until each check of the container was made once more, and fails unless all are content: what a check may ask can depend on what there is to see.
func (k *container) staysReady() {
	k.t.Helper()
	begin := time.Now()
	await(k.t, func() error {
		since := time.Since(begin).Seconds()
		resp, err := http.Get("http://" + k.listen + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var r struct {
			Checks []struct {
				Name  string  `json:"name"`
				Error string  `json:"error"`
				Age   float64 `json:"age_seconds"`
			} `json:"checks"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
			return err
		}
		for _, c := range r.Checks {
			if c.Error != "" {
				return fmt.Errorf("%s: %s", c.Name, c.Error)
			}
			if c.Age >= since {
				return fmt.Errorf("%s was not asked again", c.Name)
			}
		}
		if len(r.Checks) == 0 {
			return errors.New("nothing is checked")
		}
		return nil
	}, func() string { return k.name + " is not ready after its first payment" })
}

// measured asks the container for its metrics as Prometheus does.
func (k *container) measured() {
	k.t.Helper()
	resp, err := http.Get("http://" + k.listen + "/metrics")
	if err != nil {
		k.t.Error(err)
		return
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(page, []byte("target_info")) {
		k.t.Errorf("%s: /metrics is answered %d, %d bytes: %v", k.name, resp.StatusCode, len(page), err)
	}
}
