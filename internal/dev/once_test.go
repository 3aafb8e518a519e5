package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pollux/internal/app"
	"pollux/internal/gatewaysim"
	"pollux/internal/natstest"
	"pollux/internal/pgtest"
	"pollux/internal/postgres"
)

// patience is how long a run may take that takes seconds on an idle machine.
const patience = 2 * time.Minute

// outcome is how a run of the launcher ended.
type outcome struct {
	code   int
	stdout string
	stderr string
}

func launch(ctx context.Context, args ...string) outcome {
	var out, complaints bytes.Buffer
	cmd := Command()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&complaints)
	code := app.Run(ctx, cmd)
	return outcome{code, out.String(), complaints.String()}
}

// summary reads the one JSON object on standard output.
func (o outcome) summary(t *testing.T) map[string]float64 {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(o.stdout))
	var fields map[string]any
	if err := d.Decode(&fields); err != nil {
		t.Fatalf("code %d, no JSON: %v: %q; stderr: %s", o.code, err, o.stdout, o.stderr)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		t.Fatalf("more than one object: %q", o.stdout)
	}
	numbers := map[string]float64{}
	for name, v := range fields {
		if n, ok := v.(float64); ok {
			numbers[name] = n
		}
	}
	return numbers
}

func database(t *testing.T) string {
	return pgtest.New(t, func(ctx context.Context, dsn string) error {
		_, err := postgres.Migrate(ctx, dsn)
		return err
	})
}

func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	withConn(t, dsn, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql)
		return err
	})
}

// ask runs a query that returns one text.
func ask(t *testing.T, dsn, sql string) (answer string) {
	t.Helper()
	withConn(t, dsn, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "select ("+sql+")::text").Scan(&answer)
	})
	return answer
}

func withConn(t *testing.T, dsn string, do func(context.Context, *pgx.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(do(ctx, c), c.Close(ctx)); err != nil {
		t.Fatal(err)
	}
}

// promised are the fields that others read.
var promised = []string{
	"tracked", "succeeded", "failed", "cancelled", "expired", "in_review", "gateway_calls", "lost", "finished_twice", "wrong_status", "seconds",
	"payments_per_second", "time_to_finality_p50_seconds", "time_to_finality_p99_seconds", "retry_lateness_p50_seconds", "retry_lateness_p99_seconds",
}

// TestEveryScenarioEndsAsTheGatewaySays runs all scenarios side by side: they wait for most of their time.
func TestEveryScenarioEndsAsTheGatewaySays(t *testing.T) {
	t.Parallel()
	const payments = 150
	var running sync.WaitGroup
	ended := map[string]chan outcome{}
	for _, s := range gatewaysim.Scenarios() {
		dsn, done := database(t), make(chan outcome, 1)
		ended[s.Name] = done
		args := []string{"--once", "-o", "json", "--payments", fmt.Sprint(payments), "--scenario", s.Name, "--database-url", dsn, "--timeout", patience.String()}
		if s.Name == "wrong" { // those that never answer rightly need not be asked twenty times here
			args = append(args, "--set", "policies."+Class+".max_failures=3", "--set", "policies."+Class+".max_attempts=5")
		}
		running.Go(func() { done <- launch(t.Context(), args...) })
	}
	running.Wait()
	for name, done := range ended {
		o := <-done
		t.Run(name, func(t *testing.T) {
			if o.code != app.ExitOK && !strings.Contains(o.stderr, "while the breaker was open") { // which depends on the machine: make evidence
				t.Fatalf("exit code %d: %s", o.code, o.stderr)
			}
			s := o.summary(t)
			for _, field := range promised {
				if _, ok := s[field]; !ok {
					t.Errorf("no field %s in %s", field, o.stdout)
				}
			}
			settled := s["succeeded"] + s["failed"] + s["cancelled"] + s["expired"] + s["in_review"]
			if s["tracked"] != payments || settled != payments || s["lost"]+s["finished_twice"]+s["wrong_status"] != 0 {
				t.Errorf("summary: %s", o.stdout)
			}
			if over := timeOfTrouble(t, name); s["seconds"] < over {
				t.Errorf("%g seconds, and the trouble is over after %g", s["seconds"], over)
			}
			if s["gateway_calls"] < payments || s["seconds"] <= 0 || s["payments_per_second"] <= 0 || s["succeeded"] < payments/2 {
				t.Errorf("summary: %s", o.stdout)
			}
			if p50, p99 := s["time_to_finality_p50_seconds"], s["time_to_finality_p99_seconds"]; p50 <= 0 || p99 < p50 {
				t.Errorf("time to finality %g and %g", p50, p99)
			}
			if review := s["in_review"]; (review > 0) != (name == "wrong") && name != "brownout" && name != "errors" {
				t.Errorf("%g are with a person", review)
			}
		})
	}
}

// timeOfTrouble is about how long payments have to come in for a scenario to happen to them.
func timeOfTrouble(t *testing.T, name string) float64 {
	s, err := gatewaysim.ScenarioNamed(name)
	if err != nil {
		t.Fatal(err)
	}
	return 0.9 * s.Conditions.Over().Seconds() // the clock of the gateway began before that of the payments
}

func TestPaymentsComeUntilTheTroubleIsOver(t *testing.T) {
	for args, want := range map[string]float64{
		"--once --payments 600 --scenario outage":                100, // 6 s
		"--once --payments 400 --scenario flapping":              100, // 4 s
		"--once --payments 800 --scenario brownout":              100, // 8 s
		"--once --payments 500 --scenario expired-key":           100, // 5 s
		"--once --payments 600 --scenario calm":                  0,
		"--once --payments 600 --scenario outage --rate 0":       0,
		"--once --payments 600 --scenario outage --preload":      0,
		"--once --payments 600 --scenario outage --latency 10ms": 0,
		"--payments 600 --scenario outage":                       defaultRate,
	} {
		cmd := Command()
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		o := Options{Payments: 600, GatewayRate: 0, Consumers: 2, Output: "table", Timeout: patience}
		o.Once, _ = cmd.Flags().GetBool("once")
		o.Preload, _ = cmd.Flags().GetBool("preload")
		o.Payments, _ = cmd.Flags().GetInt("payments")
		o.Scenario, _ = cmd.Flags().GetString("scenario")
		o.Rate, _ = cmd.Flags().GetFloat64("rate")
		if err := o.complete(cmd.Flags()); err != nil || o.Rate != want {
			t.Errorf("%s: %g a second (%v), want %g", args, o.Rate, err, want)
		}
	}
}

// TestWhatIsWrongIsFound lets triggers do what Pollux must never do.
func TestWhatIsWrongIsFound(t *testing.T) {
	t.Parallel()
	const once = `
		create table public.done (one boolean primary key default true);
		create function public.first_time() returns boolean language sql as $$
		  insert into public.done default values on conflict do nothing returning true $$;
		create function public.tamper() returns trigger language plpgsql as $$ begin %s; return new; end $$;
		create trigger aaa %s update on pollux.payments for each row
		when (old.status = 'pending' and new.status = 'succeeded') execute function public.tamper()`
	for _, c := range []struct{ name, does, when, field, says string }{
		{"another status", `if public.first_time() then new.status := 'failed'; end if`, "before", "wrong_status", "has a wrong status"},
		{"a row that is gone", `if public.first_time() then delete from pollux.payments where id = new.id; end if`, "after", "lost", "not in the record"},
		{"an end after the end", `if public.first_time() then
			update pollux.payments set status = 'cancelled', status_source = 'operator' where id = new.id; end if`,
			"after", "finished_twice", "was finished twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dsn := database(t)
			execute(t, dsn, fmt.Sprintf(once, c.does, c.when))
			args := []string{"--once", "-o", "json", "--payments", "20", "--latency", "1ms", "--database-url", dsn, "--timeout", patience.String()}
			o := launch(t.Context(), args...)
			if s := o.summary(t); s[c.field] != 1 || o.code != app.ExitFailed || !strings.Contains(o.stderr, c.says) {
				t.Errorf("exit code %d, %s, stderr: %s", o.code, o.stdout, o.stderr)
			}
		})
	}
}

// TestServersThatExistKeepWhatTheyHave runs on a database and a broker that others use too.
func TestServersThatExistKeepWhatTheyHave(t *testing.T) {
	t.Parallel()
	dsn, nats := database(t), natstest.New(t)
	execute(t, dsn, `
		select pollux.track_payment('acme', 'theirs_1', 100, 'EUR');
		select pollux.track_payment('acme', 'theirs_2', 100, 'EUR');
		select pollux.track_payment('sim', 'ours_before_100_EUR', 100, 'EUR', first_poll_after => '1 hour');
		update pollux.payments set status = 'failed', status_source = 'webhook' where reference = 'theirs_2';`)
	const theirs = `select string_agg(p.reference || ' ' || p.status || ' ' || coalesce(j.state, '-') || ' ' || coalesce(j.attempts, 0), ', ' order by p.id)
		from pollux.payments p left join pollux.poll_jobs j on j.payment_id = p.id where p.id <= 3`
	before := ask(t, dsn, theirs)
	for range 2 {
		o := launch(t.Context(), "--once", "-o", "json", "--payments", "30", "--database-url", dsn, "--nats-url", nats.URL(), "--timeout", patience.String())
		if s := o.summary(t); o.code != app.ExitOK || s["tracked"] != 30 || s["lost"]+s["finished_twice"]+s["wrong_status"] != 0 {
			t.Fatalf("exit code %d, %s, stderr: %s", o.code, o.stdout, o.stderr)
		}
	}
	if after := ask(t, dsn, theirs); after != before {
		t.Errorf("the payments of others were %s and are %s", before, after)
	}
	if n := ask(t, dsn, `select count(*) from pollux.payments where status <> 'pending'`); n != "61" {
		t.Errorf("%s payments are final", n)
	}
}

func TestTheEndOfAServiceIsTheEndOfTheRun(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	execute(t, dsn, `insert into pollux.schema_version (version_id, is_applied) values (99999, true); update pollux.schema_serves set since = 99999`)
	o := launch(t.Context(), "--once", "--payments", "5", "--database-url", dsn, "--timeout", patience.String())
	if o.code != app.ExitFailed || o.stdout != "" || !strings.Contains(o.stderr, "run a newer build") {
		t.Errorf("exit code %d, %q, stderr: %s", o.code, o.stdout, o.stderr)
	}
}

func TestARunThatDoesNotSettleSaysHowManyAreLeft(t *testing.T) {
	t.Parallel()
	o := launch(t.Context(), "--once", "--payments", "7", "--database-url", database(t), "--timeout", "3s", "--set", "policies."+Class+".pending.list=1h",
		"--scenario", "slow")
	if o.code != app.ExitFailed || !strings.Contains(o.stderr, "not settled after 3s: 7 payments are still on their way") {
		t.Errorf("exit code %d, stderr: %s", o.code, o.stderr)
	}
}

func TestTheSummaryIsATableForPeople(t *testing.T) {
	t.Parallel()
	o := launch(t.Context(), "--once", "--payments", "10", "--latency", "1ms", "--database-url", database(t), "--timeout", patience.String())
	if o.code != app.ExitOK || o.stderr != "" {
		t.Fatalf("exit code %d, stderr: %s", o.code, o.stderr)
	}
	for _, line := range []string{"\ntracked  ", "\nwith a person  ", "\ntime to finality p50, p99  "} {
		if !strings.Contains("\n"+o.stdout, line) {
			t.Errorf("no %q in\n%s", line, o.stdout)
		}
	}
}

func TestServersThatAreAwayAreSaidWithTheirFlags(t *testing.T) {
	t.Parallel()
	o := launch(t.Context(), "--once", "--database-url", "postgres://nobody@127.0.0.1:1/none")
	if o.code != app.ExitFailed || !strings.Contains(o.stderr, "hint: does PostgreSQL run where --database-url says") {
		t.Errorf("exit code %d, stderr: %s", o.code, o.stderr)
	}
	o = launch(t.Context(), "--once", "--database-url", database(t), "--nats-url", "nats://127.0.0.1:1")
	if o.code != app.ExitFailed || !strings.Contains(o.stderr, "hint: does NATS run where --nats-url says") {
		t.Errorf("exit code %d, stderr: %s", o.code, o.stderr)
	}
}

func TestWhatCannotBeMeantIsRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--scenario chaos":                       "--scenario: scenario \"chaos\": one of calm, ",
		"-o yaml --once":                         `-o "yaml": table or json`,
		"-o json":                                "-o json: only with --once",
		"--preload":                              "--preload: only with --once",
		"--payments -1":                          "--payments -1: between 0 and 1000000",
		"--payments 1000001":                     "--payments 1000001: between 0 and 1000000",
		"--rate -1":                              "--rate -1: between 0 and 50000 payments a second",
		"--rate NaN":                             "--rate NaN: between",
		"--rate Inf":                             "--rate +Inf: between",
		"--rate 0":                               "--rate 0 is as fast as they can be: say with --payments how many",
		"--consumers 0":                          "--consumers 0: between 1 and 64",
		"--consumers 65":                         "--consumers 65: between 1 and 64",
		"--latency -1s":                          "\"-1s\" is not a duration",
		"--timeout 0s --once":                    "--timeout 0s: more than 0s",
		"--gateway-rate 0.5":                     "--gateway-rate 0.5: 0, or between 1 and 50000",
		"--gateway-rate NaN":                     "--gateway-rate NaN: 0, or between 1 and 50000",
		"--kill-prober":                          "--kill-prober: only with --once --scenario hung-probe",
		"--kill-prober --once --scenario outage": "--kill-prober: only with --once --scenario hung-probe",
		"--kill-prober --once --scenario hung-probe --gateways stripe": "--kill-prober: not with --gateways",
		"--gateways stripe,nope":                 "--gateways: \"nope\" is not played; write some of stripe,paypal,razorpay,mercadopago,iyzico,adyen,httpjson",
		"--gateways stripe,paypal,stripe":        "--gateways: stripe twice",
		"--database-url= --once":                 "--database-url is empty; leave it out for a private one",
		"--nats-url= --once":                     "--nats-url is empty; leave it out for a private one",
		"--nope":                                 "unknown flag: --nope",
		"start":                                  `dev takes no arguments, "start" is one`,
		"--payments many":                        `invalid argument "many" for "--payments" flag`,
		"--database-url http://x --once":         "database.url",
		"--nats-url 127.0.0.1 --once":            "nats.urls",
		"--database-url X --set relay.every=now": "relay.every",
	} {
		if strings.Contains(args, "--nats-url 1") || strings.Contains(args, "X") {
			args = strings.ReplaceAll(args, "X", "postgres://nobody@127.0.0.1:1/nothing")
			if !strings.Contains(args, "--database-url") {
				args += " --database-url postgres://nobody@127.0.0.1:1/nothing"
			}
		}
		o := launch(t.Context(), strings.Fields(args)...)
		if o.code != app.ExitUsage || o.stdout != "" || !strings.Contains(o.stderr, want) {
			t.Errorf("%s: exit code %d, stderr: %s", args, o.code, o.stderr)
		}
	}
}

func TestServersThatAreNotThereAreSaidSo(t *testing.T) {
	t.Parallel()
	o := launch(t.Context(), "--once", "--database-url", "postgres://nobody:hunter2@127.0.0.1:1/nothing")
	if o.code != app.ExitFailed || !strings.Contains(o.stderr, "connection refused") || strings.Contains(o.stderr, "hunter2") {
		t.Errorf("exit code %d, stderr: %s", o.code, o.stderr)
	}
	o = launch(t.Context(), "--once", "--database-url", database(t), "--nats-url", "nats://127.0.0.1:1")
	if o.code != app.ExitFailed || !strings.Contains(o.stderr, "connecting to NATS at nats://127.0.0.1:1") {
		t.Errorf("exit code %d, stderr: %s", o.code, o.stderr)
	}
}
