package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pollux/internal/certificate/certificatetest"
	"pollux/internal/config"
	"pollux/internal/pgtest"
	"pollux/internal/telemetry"
)

// editable is a site whose configuration is edited while services run.
type editable struct {
	*site
	name string
}

func (s *site) editable() *editable { return &editable{s, s.file()} }

// edit writes the configuration with something more, as an editor does.
func (e *editable) edit(base, more string) {
	e.t.Helper()
	certificatetest.Write(e.t, e.name, []byte(base+more))
}

func (e *editable) base() string {
	e.t.Helper()
	b, err := os.ReadFile(e.name)
	if err != nil {
		e.t.Fatal(err)
	}
	return string(b)
}

// reads waits until the process has read its configuration n times with a result.
func (e *editable) reads(result telemetry.ReloadResult, n int) {
	e.t.Helper()
	eventually(e.t, fmt.Sprintf("reload %d is %s", n, result), func() bool {
		_, page := e.page("/metrics")
		return strings.Contains(page, fmt.Sprintf("pollux_config_reloads_total{result=%q} %d\n", result, n))
	})
}

func TestAReloadTakesAllOrNothing(t *testing.T) {
	s := newSite(t)
	s.dsn = pgtest.New(t, migrated)
	s.broker()
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"status": "processing", "id": %q, "amount": 1999, "currency": "EUR"}`, filepath.Base(r.URL.Path))
	}
	relay := s.serve("outbox-relay", Relay)
	eventually(t, "the relay is ready", s.ready)
	s.listen = freeAddress(t)
	e := s.editable()
	base := e.base()
	e.edit(base, "policies: {standard: {pending: {list: [1h], jitter: none}}}\n")
	p := start(t, "consumer", "--config", e.name)
	eventually(t, "the consumer is ready", s.ready)
	attempts := func(reference string) string {
		return `count(*) from pollux.poll_attempts a join pollux.payments p on p.id = a.payment_id where p.reference = '` + reference + `'`
	}
	s.exec(`select pollux.track_payment('acme', 'slow', 1999, 'EUR')`)
	eventually(t, "it is polled once", func() bool { return s.is("1 = " + attempts("slow")) })

	// A policy, twice: the first reload must not be the last.
	for i, list := range []string{"1s", "1001ms"} {
		e.edit(base, "policies: {standard: {pending: {list: ["+list+"], jitter: none}}}\n")
		p.signal(syscall.SIGHUP)
		e.reads(telemetry.ReloadApplied, i+1)
	}
	s.exec(`select pollux.track_payment('acme', 'quick', 1999, 'EUR')`)
	eventually(t, "it is polled again and again", func() bool { return s.is("3 <= " + attempts("quick")) })
	if !s.is("1 = " + attempts("slow")) {
		t.Error("the payment of the old policy is polled as well")
	}

	// Something broken changes nothing.
	e.edit(base, "policies: {standard: {pending: {list: [soon]}}}\n")
	p.signal(syscall.SIGHUP)
	e.reads(telemetry.ReloadInvalid, 1)
	// Neither does a live key beside one that takes a restart.
	live := "policies: {standard: {pending: {list: [1h], jitter: none}}}\n"
	e.edit(strings.Replace(base, "  acme:\n", "  acme:\n    workers: 7\n", 1), live)
	p.signal(syscall.SIGHUP)
	e.reads(telemetry.ReloadRefused, 1)
	s.exec(`select pollux.track_payment('acme', 'quick_too', 1999, 'EUR')`)
	eventually(t, "the policy is as it was", func() bool { return s.is("3 <= " + attempts("quick_too")) })

	// A limit for a gateway that had none.
	e.edit(strings.Replace(base, "  acme:\n", "  acme:\n    limits: {rate: 60/m, max_wait: 100ms}\n", 1), live)
	p.signal(syscall.SIGHUP)
	e.reads(telemetry.ReloadApplied, 3)
	s.exec(`select pollux.track_payment('acme', 'many_' || i, 1999, 'EUR') from generate_series(1, 20) as i`)
	eventually(t, "calls are kept away by the limit", func() bool {
		_, page := s.page("/metrics")
		return strings.Contains(page, `pollux_gate_refusals_total{gateway="acme",why="busy"}`)
	})
	if s.is(`count(distinct payment_id) > 10 from pollux.poll_attempts a join pollux.payments p on p.id = a.payment_id where p.reference like 'many_%'`) {
		t.Error("the limit lets everything in")
	}
	// And none again.
	e.edit(strings.Replace(base, "log: {format: json}", "log: {format: json, level: warn}", 1), live)
	p.signal(syscall.SIGHUP)
	e.reads(telemetry.ReloadApplied, 4)
	eventually(t, "all are polled", func() bool {
		return s.is(`count(distinct payment_id) = 20 from pollux.poll_attempts a join pollux.payments p on p.id = a.payment_id where p.reference like 'many_%'`)
	})
	p.signal(syscall.SIGHUP)
	e.reads(telemetry.ReloadUnchanged, 1)

	p.signal(syscall.SIGTERM)
	log := p.endsWith(ExitOK)
	for _, want := range []string{
		`"msg":"the configuration changed"`, `"key":"policies.standard.pending.list","before":"[1h]","after":"[1s]"`, `"before":"[1s]","after":"[1.001s]"`,
		`"where":"` + e.name, `"key":"policies.standard.pending.list[0]"`,
		`a change of gateways.acme.workers takes a restart of the consumer`, `"key":"gateways.acme.limits.rate","before":"0/s","after":"1/s"`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %s", want)
		}
	}
	if strings.Contains(log, "no key has changed") {
		t.Error("the level of the log did not change")
	}
	for _, condition := range []string{
		`count(*) = 2 from pollux.audit_log where action = 'config.reload' and outcome = 'done' and target = 'config:policies.standard.pending.list' and actor like 'consumer@%' and seq <= 2`,
		`count(*) = 1 from pollux.audit_log where action = 'config.reload' and outcome = 'refused' and target = 'config'`,
		`after = '{"value": "7"}' from pollux.audit_log where outcome = 'refused' and target = 'config:gateways.acme.workers'`,
		`count(*) = 2 from pollux.audit_log where target = 'config:gateways.acme.limits.rate' and outcome = 'done'`,
		`count(*) = 1 from pollux.audit_log where target = 'config:log.level' and before = '{"value": "info"}' and after = '{"value": "warn"}'`,
		`count(distinct who) = 1 from (select actor as who from pollux.audit_log union all select worker from pollux.poll_attempts) names`,
		`strpos('` + strings.ReplaceAll(log, "'", "''") + `', '"instance":"' || (select max(worker) from pollux.poll_attempts) || '"') > 0`,
	} {
		if !s.is(condition) {
			t.Errorf("not in the audit log: %.200s", condition)
		}
	}
	if err := relay.ends(); err != nil {
		t.Error(err)
	}
}

// TestSecretsAreTakenUpWithoutARestart changes a gateway's key in its file, and what signs notifications, and lets nobody but the files say so.
func TestSecretsAreTakenUpWithoutARestart(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	s.dsn = pgtest.New(t, migrated)
	s.broker()
	var key atomic.Pointer[string]
	dir := t.TempDir()
	renew := func(k string) {
		key.Store(&k)
		certificatetest.Write(t, filepath.Join(dir, "key"), []byte(k))
	}
	renew("key-of-the-first-day")
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+*key.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		succeeded(w, r)
	}
	relay := s.serve("outbox-relay", Relay)
	eventually(t, "the relay is ready", s.ready)
	s.listen = freeAddress(t)
	e := s.editable()
	e.edit(strings.Replace(e.base(), "auth: {kind: none}", "auth: {kind: bearer, token: 'file:"+dir+"/key'}", 1), "")
	cfg, err := config.Load(config.Options{File: e.name, Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	stop, ended := tended(t, cfg, "consumer", &log, NewProcess, Consumer)
	eventually(t, "the consumer is ready", s.ready)
	track := func(reference string) {
		t.Helper()
		s.exec(`select pollux.track_payment('acme', $1, 1999, 'EUR')`, reference)
		eventually(t, reference+" is final", func() bool {
			return s.is(`status = 'succeeded' from pollux.payments where reference = '` + reference + `'`)
		})
	}
	track("first")
	for i, k := range []string{"key-of-the-second-day", "key-of-the-third-day"} {
		renew(k)
		eventually(t, "the new key is in force", func() bool { return strings.Count(log.String(), `"msg":"new secrets are in force"`) == i+1 })
		track(k)
	}
	if _, page := s.page("/metrics"); !strings.Contains(page, `pollux_secret_reloads_total{result="taken",secret="gateways"} 2`) {
		t.Error("the metrics do not say so")
	}
	certificatetest.Write(t, filepath.Join(dir, "key"), []byte("\n"))
	eventually(t, "that it is empty is said", func() bool {
		_, page := s.page("/metrics")
		return strings.Contains(page, `pollux_secret_stale{secret="gateways"} 1`)
	})
	track("with_the_last_good_one")
	stop()
	for range 2 {
		<-ended
	}
	if n := strings.Count(log.String(), "the last good one stays in force"); n != 1 {
		t.Errorf("said %d times", n)
	}
	if strings.Contains(log.String(), "key-of-the") {
		t.Error("a secret is in the log")
	}
	if err := relay.ends(); err != nil {
		t.Error(err)
	}
}

// TestASecretIsStaleUntilItIsMended mends secrets in each way: at a tick or at SIGHUP, with a new content, the old one or another mode, and while a key waits for a restart.
func TestASecretIsStaleUntilItIsMended(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	s.dsn = "postgres://nobody@127.0.0.1:1/nothing"
	dir, ctx := t.TempDir(), t.Context()
	write := func(name, content string) { certificatetest.Write(t, filepath.Join(dir, name), []byte(content)) }
	write("acme", "key-1")
	write("other", "key-2")
	e := s.editable()
	auth := func(name string) string { return "auth: {kind: bearer, token: 'file:" + dir + "/" + name + "'}" }
	base := strings.Replace(e.base(), "auth: {kind: none}", auth("acme"), 1)
	base = strings.Replace(base, "gateways:\n", "gateways:\n  other:\n    httpjson: {url: 'https://other.example/{reference}', "+auth("other")+", pointers: {status: /status}, statuses: {paid: succeeded}}\n", 1)
	e.edit(base, "")
	cfg, err := config.Load(config.Options{File: e.name, Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	tel, err := telemetry.New(ctx, TelemetryConfig(cfg, "consumer"), &log)
	if err != nil {
		t.Fatal(err)
	}
	pages, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- tel.Run(pages) }()
	t.Cleanup(func() { stop(); <-ended; closeTelemetry(context.Background(), tel) })
	p := NewProcess(tel)
	p.live.begin(&cfg, func(*config.Config) (func(), error) { return nil, nil })
	tick, hangup := func() { p.tick(ctx) }, func() { p.hangup(ctx, config.ServiceConsumer) }
	mode := func(m os.FileMode) {
		if err := os.Chmod(filepath.Join(dir, "acme"), m); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		what  string
		do    func()
		then  func()
		stale int
		taken int // how often the log says so by then
	}{
		{"two are emptied", func() { write("acme", ""); write("other", "") }, tick, 1, 0},
		{"one is mended", func() { write("other", "key-3") }, tick, 1, 1},
		{"the other one too, at SIGHUP", func() { write("acme", "key-4") }, hangup, 0, 2},
		{"it is emptied again", func() { write("acme", "") }, tick, 1, 2},
		{"what was in it is there again, at SIGHUP", func() { write("acme", "key-4") }, hangup, 0, 3},
		{"everybody may write it", func() { mode(0o666) }, tick, 1, 3},
		{"nobody may", func() { mode(0o600) }, tick, 0, 4},
		{"a new key while another change waits for a restart", func() {
			write("acme", "key-5")
			e.edit(strings.Replace(base, "  acme:\n", "  acme:\n    workers: 7\n", 1), "")
		}, hangup, 0, 5},
	} {
		step.do()
		step.then()
		_, page := s.page("/metrics")
		if !strings.Contains(page, fmt.Sprintf("pollux_secret_stale{secret=\"gateways\"} %d\n", step.stale)) {
			t.Errorf("%s: the metric is not %d", step.what, step.stale)
		}
		if n := strings.Count(log.String(), `"msg":"new secrets are in force"`); n != step.taken {
			t.Errorf("%s: said %d times, not %d\n%s", step.what, n, step.taken, log.String())
		}
	}
	if _, page := s.page("/metrics"); !strings.Contains(page, `pollux_config_reloads_total{result="refused"} 1`) {
		t.Error("the change that takes a restart is taken")
	}
}

// tended runs a service whose files are looked at often, until stop; then two words come.
func tended(t *testing.T, cfg config.Config, name string, log *lockedBuffer, process func(*telemetry.Telemetry) *Process, run Service) (stop func(), ended chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	tel, err := telemetry.New(ctx, TelemetryConfig(cfg, name), log)
	if err != nil {
		t.Fatal(err)
	}
	p := process(tel)
	ended = make(chan error, 3)
	go func() { ended <- tel.Run(ctx) }()
	go func() { p.tend(ctx, cfg, services[name], 20*time.Millisecond, nil); ended <- nil }()
	served := make(chan error, 1)
	go func() { served <- run(ctx, cfg, p) }()
	t.Cleanup(func() { cancel(); closeTelemetry(context.Background(), tel) })
	return func() {
		cancel()
		if err := <-served; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}, ended
}

func TestAReplacedSigningKeyAndItsSuccessorAreBothTaken(t *testing.T) {
	noLeaks(t)
	d := newWebhookDoor(t)
	d.dsn = pgtest.New(t, migrated)
	cfg, err := config.Load(config.Options{File: d.file(), Environ: []string{}, Skip: config.SkipBroker | config.SkipGateways})
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	stop, ended := tended(t, cfg, "webhook", &log, newRecordProcess, Webhook)
	eventually(t, "it is ready", d.ready)
	certificatetest.Write(t, filepath.Join(d.dir, "stripe"), []byte("whsec_next_signing_key_of_stripe"))
	eventually(t, "the new key is in force", func() bool { return strings.Contains(log.String(), "webhooks.gateways.stripe") })
	intent := `{"id":"evt_%s","object":"event","type":"payment_intent.succeeded","created":1772366400,"livemode":true,"data":{"object":` +
		`{"object":"payment_intent","id":"pi_1","status":"succeeded","amount":1999,"amount_received":1999,"currency":"eur"}}}`
	for key, want := range map[string]int{"whsec_next_signing_key_of_stripe": 200, "whsec_stripe_signing_key": 200, "whsec_somebody_elses_key_here": 401} {
		if got := d.stripe(key, fmt.Sprintf(intent, key)); got != want {
			t.Errorf("signed with %s: %d", key, got)
		}
	}
	stop()
	for range 2 {
		<-ended
	}
}

func TestPagesAreServedWithTLSToWhoMayReadThem(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	s.dsn = "postgres://nobody@127.0.0.1:1/nothing"
	a, dir := certificatetest.New(t), t.TempDir()
	cert, key := a.Issue("pages", time.Hour)
	for name, content := range map[string][]byte{"cert": cert, "key": key, "ca": a.PEM} {
		certificatetest.Write(t, filepath.Join(dir, name), content)
	}
	e := s.editable()
	e.edit(strings.Replace(e.base(), "telemetry: {listen: "+s.listen+"}",
		fmt.Sprintf("telemetry: {listen: %s, cert_file: %s/cert, key_file: %s/key, client_ca_file: %s/ca}", s.listen, dir, dir, dir), 1), "")
	cfg, err := config.Load(config.Options{File: e.name, Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	v := s.serveIn("outbox-relay", cfg, NewProcess, Relay)
	get := func(client *http.Client) error {
		defer client.CloseIdleConnections()
		r, err := client.Get("https://" + s.listen + "/metrics")
		if err != nil {
			return err
		}
		return r.Body.Close()
	}
	eventually(t, "who shows a certificate is served", func() bool { return get(a.Client(t, "prometheus")) == nil })
	if err := get(a.Client(t, "")); err == nil {
		t.Error("a stranger is served")
	}
	if err := v.ends(); err != nil {
		t.Error(err)
	}
}
