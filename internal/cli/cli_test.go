package cli_test

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"pollux"
	"pollux/internal/app"
	"pollux/internal/cli"
	"pollux/internal/natstest"
	"pollux/internal/pgtest"
	"pollux/internal/postgres"
)

func TestMain(m *testing.M) {
	testscript.Main(pgtest.With(m), map[string]func(){
		"pollux":          func() { os.Exit(app.Main(cli.Command())) },
		"pollux-consumer": func() { os.Exit(app.Main(app.ConsumerCommand())) },
		"outbox-relay":    func() { os.Exit(app.Main(app.RelayCommand())) },
		"webhook":         func() { os.Exit(app.Main(app.WebhookCommand())) },
	})
}

// escape is what a terminal would obey: a colour, a change of direction, a command of the upper half.
const escape = "\x1b[31mred\u202eevil\u009b2J"

// TestScripts runs testdata/script: the command line as an operator has it, in processes, on a real PostgreSQL and a real NATS.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Values["tb"] = env.T()
			env.Setenv("ESCAPE", escape)
			accounts, err := os.ReadFile("../../deploy/nats/accounts.conf")
			return errors.Join(err, os.WriteFile(filepath.Join(env.WorkDir, "example.yaml"), pollux.ExampleConfig, 0o600),
				os.WriteFile(filepath.Join(env.WorkDir, "example-accounts.conf"), accounts, 0o600))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":     exits,
			"database":  database,
			"login":     login,
			"sql":       runSQL,
			"lock":      lock,
			"blocked":   blocked,
			"replaying": replaying,
			"await":     awaitQuery,
			"holds":     holds,
			"broker":    startBroker,
			"consumer":  makeConsumer,
			"stream":    makeStream,
			"silent":    silentServer,
			"relay":     relaySession,
			"page":      startPage,
			"psp":       startPSP,
			"logins":    makeLogins,
			"guarded":   guardedBroker,
			"free":      freeAddress,
			"notify":    notify,
			"isjson":    isJSON,
			"plain":     plain,
		},
	})
}

// exits CODE PROGRAM ARGS...: the program ends with this code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code program args...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	var exit *exec.ExitError
	switch err := ts.Exec(args[1], args[2:]...); {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	default:
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("%s exits with %d, wanted %d", strings.Join(args[1:], " "), code, want)
	}
}

func within(ts *testscript.TestScript, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ts.Check(do(ctx))
}

func tb(ts *testscript.TestScript) testing.TB { return ts.Value("tb").(testing.TB) }

// database [empty | durable]: a database with the schema, without it, or with it on a server of its own that forgets nothing, whose URL is in DATABASE_URL.
func database(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv("POLLUX_DATABASE__URL", "env:DATABASE_URL")
	switch strings.Join(args, " ") {
	case "empty":
		ts.Setenv("DATABASE_URL", pgtest.New(tb(ts), nil))
	case "durable":
		url := pgtest.Server(tb(ts)).DSN("postgres")
		within(ts, func(ctx context.Context) error { return migrated(ctx, url) })
		ts.Setenv("DATABASE_URL", url)
	default:
		ts.Setenv("DATABASE_URL", pgtest.New(tb(ts), migrated))
	}
}

// relay: a session of the database that calls itself what a relay does, until the script ends.
func relaySession(ts *testscript.TestScript, _ bool, _ []string) {
	within(ts, func(ctx context.Context) error {
		cfg, err := pgx.ParseConfig(ts.Getenv("DATABASE_URL"))
		if err != nil {
			return err
		}
		cfg.RuntimeParams["application_name"] = "pollux-relay"
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err == nil {
			ts.Defer(func() { _ = conn.Close(context.Background()) })
		}
		return err
	})
}

// page NAME STATUS FILE: a page with this status and content, whose URL is in NAME, in capitals.
func startPage(ts *testscript.TestScript, _ bool, args []string) {
	status, err := strconv.Atoi(args[1])
	ts.Check(err)
	body := ts.ReadFile(args[2])
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	ts.Defer(s.Close)
	ts.Setenv(strings.ToUpper(args[0]), s.URL+"/")
}

// login PASSWORD DATABASE: changes them in DATABASE_URL; a dash leaves one as it is.
func login(ts *testscript.TestScript, _ bool, args []string) {
	u, err := url.Parse(ts.Getenv("DATABASE_URL"))
	ts.Check(err)
	if args[0] != "-" {
		u.User = url.UserPassword(u.User.Username(), args[0])
	}
	if args[1] != "-" {
		u.Path = args[1]
	}
	ts.Setenv("DATABASE_URL", u.String())
}

// migrated makes the schema, and a function that hands a payment to a person as the consumer does.
func migrated(ctx context.Context, dsn string) error {
	if _, err := postgres.Migrate(ctx, dsn); err != nil {
		return err
	}
	return execute(ctx, dsn, `
		create function bury(reference text, reason text default 'window', gateway text default 'acme', account text default '',
		  class text default 'standard', last_class text default 'pending', http int default 200, said text default 'processing',
		  message text default '', ago interval default '1 minute', polls int default 1) returns bigint language plpgsql as $$
		declare
		  payment bigint := pollux.track_payment(gateway, reference, 1999, 'EUR', class, account);
		  letter bigint;
		begin
		  insert into pollux.poll_attempts (payment_id, at, due_at, took_us, class, http_status, gateway_status, retry_after_ms, message,
		    disposition, reason, delay_ms, applied, attempts, failures, policy, worker, trace_id)
		  select payment, now() - ago - (i - 1) * interval '5 s', now() - ago, 12000, last_class, http, said, 0, message,
		    case i when 1 then 'dead_letter' else 'hold' end, case i when 1 then reason else 'still_pending' end, 0, true, i, 0, 'standard', 'consumer@a#1', ''
		  from generate_series(1, polls) as i;
		  update pollux.poll_jobs set state = 'dead', attempts = polls where payment_id = payment;
		  perform pollux.bury(payment, reason, last_class, http::smallint, said, message, 'standard', 'consumer@a#1', '', null);
		  update pollux.dead_letters d set created_at = now() - ago, died_at = now() - ago where d.payment_id = payment returning id into letter;
		  return letter;
		end $$`)
}

func execute(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// sql FILE, or sql 'statement': runs it in the database.
func runSQL(ts *testscript.TestScript, _ bool, args []string) {
	statement := args[0]
	if strings.HasSuffix(statement, ".sql") {
		statement = ts.ReadFile(statement)
	}
	within(ts, func(ctx context.Context) error { return execute(ctx, ts.Getenv("DATABASE_URL"), statement) })
}

// lock 'statement': runs it in a transaction that stays open until the script ends.
func lock(ts *testscript.TestScript, _ bool, args []string) {
	within(ts, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, ts.Getenv("DATABASE_URL"))
		if err != nil {
			return err
		}
		ts.Defer(func() { _ = conn.Close(context.Background()) })
		_, err = conn.Exec(ctx, "begin; "+args[0])
		return err
	})
}

// blocked: waits until a command waits for a lock.
func blocked(ts *testscript.TestScript, _ bool, _ []string) {
	await(ts, `
		select exists (select from pg_stat_activity
		where datname = current_database() and application_name = 'pollux-cli' and wait_event_type = 'Lock')`)
}

// await 'query': waits until it says true.
func awaitQuery(ts *testscript.TestScript, _ bool, args []string) { await(ts, args[0]) }

// holds 'query': it says true.
func holds(ts *testscript.TestScript, _ bool, args []string) {
	within(ts, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, ts.Getenv("DATABASE_URL"))
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		var yes bool
		if err := conn.QueryRow(ctx, args[0]).Scan(&yes); err != nil {
			return err
		}
		if !yes {
			return fmt.Errorf("it does not hold: %s", args[0])
		}
		return nil
	})
}

// await waits until a query says true.
func await(ts *testscript.TestScript, sql string, args ...any) {
	within(ts, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, ts.Getenv("DATABASE_URL"))
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		look := time.NewTicker(10 * time.Millisecond)
		defer look.Stop()
		for {
			var yes bool
			if err := conn.QueryRow(ctx, sql, args...).Scan(&yes); err != nil || yes {
				return err
			}
			<-look.C
		}
	})
}

// replaying REFERENCE: waits until a payment is polled again.
func replaying(ts *testscript.TestScript, _ bool, args []string) {
	await(ts, `select exists (select from pollux.dead_letters d join pollux.payments p on p.id = d.payment_id where p.reference = $1 and d.state = 'replaying')`, args[0])
}

// broker [empty | plain]: a NATS server with the streams, without them, or without JetStream at all, whose URL is in NATS_URL.
func startBroker(ts *testscript.TestScript, _ bool, args []string) {
	o := natstest.Options{NoStreams: len(args) > 0}
	if len(args) > 0 && args[0] == "plain" {
		o.Configure = func(o *server.Options) { o.JetStream = false }
	}
	s := natstest.Start(tb(ts), o)
	ts.Setenv("NATS_URL", s.URL())
	ts.Setenv("POLLUX_NATS__URLS", s.URL())
}

// logins: a login for each role, whose URL is in RELAY_DB, CONSUMER_DB and so on. They may not make roles.
func makeLogins(ts *testscript.TestScript, _ bool, _ []string) {
	admin := ts.Getenv("DATABASE_URL")
	for _, role := range postgres.Roles {
		name := "login_" + strings.ToLower(rand.Text())
		within(ts, func(ctx context.Context) error {
			return execute(ctx, admin, fmt.Sprintf("create role %s login password 'of a test' in role %s", name, role))
		})
		ts.Defer(func() {
			within(ts, func(ctx context.Context) error { return execute(ctx, admin, "drop role "+name) })
		})
		u, err := url.Parse(admin)
		ts.Check(err)
		u.User = url.UserPassword(name, "of a test")
		ts.Setenv(strings.ToUpper(strings.TrimPrefix(string(role), "pollux_"))+"_DB", u.String())
	}
}

// guarded ACCOUNTS ENVIRONMENT: a NATS server with these accounts, whose variables are lines of the environment, and its URL in NATS_URL.
func guardedBroker(ts *testscript.TestScript, _ bool, args []string) {
	accounts := ts.ReadFile(args[0])
	for line := range strings.Lines(ts.ReadFile(args[1])) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		accounts = strings.ReplaceAll(accounts, "$"+name, value)
	}
	s := natstest.Start(tb(ts), natstest.Options{Accounts: accounts})
	ts.Setenv("NATS_URL", s.URL())
	ts.Setenv("POLLUX_NATS__URLS", s.URL())
}

// free NAME: a loopback address that nobody listens on.
func freeAddress(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	defer l.Close()
	ts.Setenv(args[0], l.Addr().String())
}

// notify ADDRESS KEY BODY: sends a signed notification of the gateway acme until it is taken.
func notify(ts *testscript.TestScript, _ bool, args []string) {
	h := hmac.New(sha256.New, []byte(args[1]))
	_, _ = io.WriteString(h, args[2])
	within(ts, func(ctx context.Context) error {
		look := time.NewTicker(50 * time.Millisecond)
		defer look.Stop()
		for {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+args[0]+"/webhooks/acme", strings.NewReader(args[2]))
			if err != nil {
				return err
			}
			r.Header.Set("X-Signature", hex.EncodeToString(h.Sum(nil)))
			a, err := http.DefaultClient.Do(r)
			if err == nil {
				a.Body.Close()
				if a.StatusCode == http.StatusOK {
					return nil
				}
				return fmt.Errorf("the notification is answered %d", a.StatusCode)
			}
			select {
			case <-look.C:
			case <-ctx.Done():
				return err
			}
		}
	})
}

func withJetStream(ts *testscript.TestScript, do func(context.Context, jetstream.JetStream) error) {
	nc, err := nats.Connect(ts.Getenv("NATS_URL"))
	ts.Check(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	ts.Check(err)
	within(ts, func(ctx context.Context) error { return do(ctx, js) })
}

// consumer NAME ACK_WAIT: makes a consumer of polls as a service with another configuration would.
func makeConsumer(ts *testscript.TestScript, _ bool, args []string) {
	wait, err := time.ParseDuration(args[1])
	ts.Check(err)
	withJetStream(ts, func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.CreateConsumer(ctx, "PAYMENTS_POLL", jetstream.ConsumerConfig{
			Durable: args[0], FilterSubject: "payments.poll.acme.normal", AckPolicy: jetstream.AckExplicitPolicy, AckWait: wait,
			MaxDeliver: -1, MaxAckPending: 30000,
		})
		return err
	})
}

// stream NAME SUBJECT: makes a stream as somebody else would have it, a work queue.
func makeStream(ts *testscript.TestScript, _ bool, args []string) {
	withJetStream(ts, func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: args[0], Subjects: args[1:], Retention: jetstream.WorkQueuePolicy})
		return err
	})
}

// psp FILE [STATUS]: a gateway that answers everything with a file, and repeats the Authorization that it got; its URL is in PSP_URL.
func startPSP(ts *testscript.TestScript, _ bool, args []string) {
	body, status := ts.ReadFile(args[0]), 200
	if len(args) > 1 {
		var err error
		status, err = strconv.Atoi(args[1])
		ts.Check(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Seen", r.Header.Get("Authorization"))
		w.WriteHeader(status)
		fmt.Fprint(w, strings.ReplaceAll(body, "SEEN", r.Header.Get("Authorization")))
	}))
	ts.Defer(s.Close)
	ts.Setenv("PSP_URL", s.URL)
}

// silent: a server that takes connections and says nothing, whose address is in SILENT.
func silentServer(ts *testscript.TestScript, _ bool, _ []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	ts.Setenv("SILENT", l.Addr().String())
}

// isjson: the last command wrote one JSON value, nothing in it is null that is an array, and every key is in snake case.
func isJSON(ts *testscript.TestScript, _ bool, _ []string) {
	d := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	var v any
	ts.Check(d.Decode(&v))
	if d.More() {
		ts.Fatalf("more than one JSON value")
	}
	ts.Check(check(v))
}

// arrays are the keys whose values are arrays.
var arrays = map[string]bool{"polls": true, "transitions": true, "calls": true, "headers": true, "answer_headers": true, "changed": true, "problems": true,
	"first": true, "findings": true, "notes": true, "in_replays": true, "gateways": true, "reasons": true}

func check(v any) error {
	switch x := v.(type) {
	case nil:
		return errors.New("null where a list or an object belongs")
	case []any:
		for _, e := range x {
			if err := check(e); err != nil {
				return err
			}
		}
	case map[string]any:
		for k, e := range x {
			if currency := len(k) == 3 && strings.ToUpper(k) == k; strings.ToLower(k) != k && !currency || strings.ContainsAny(k, "- ") {
				return fmt.Errorf("the key %q", k)
			}
			if _, list := e.([]any); arrays[k] && !list {
				return fmt.Errorf("%s is no array", k)
			}
			if at, text := e.(string); strings.HasSuffix(k, "_at") && text {
				if _, err := time.Parse(time.RFC3339, at); err != nil || !strings.HasSuffix(at, "Z") {
					return fmt.Errorf("%s is %q", k, at)
				}
			}
			if e == nil {
				continue
			}
			if err := check(e); err != nil {
				return fmt.Errorf("%s: %w", k, err)
			}
		}
	}
	return nil
}

// plain: nothing that the last command wrote would be obeyed by a terminal.
func plain(ts *testscript.TestScript, _ bool, _ []string) {
	for _, stream := range []string{"stdout", "stderr"} {
		text := ts.ReadFile(stream)
		for i, r := range text {
			if r != '\n' && r != '\t' && (r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069) {
				ts.Fatalf("%s has %U at %d: %q", stream, r, i, text)
			}
		}
	}
}
