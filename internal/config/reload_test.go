package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/certificate/certificatetest"
)

// TestEveryKeySaysWhatItsChangeTakes looks at the declarations themselves: each names services that there are, and a section says it before what is in it does.
func TestEveryKeySaysWhatItsChangeTakes(t *testing.T) {
	known := []string{ServiceRelay, ServiceConsumer, ServiceWebhook}
	for _, f := range keysOf(reflect.TypeFor[Config]()) {
		if _, declared := f.Tag.Lookup(restartTag); !declared {
			t.Errorf("%s says nothing of what a change of it takes", f.key)
		}
	}
	var walk func(*schema, path)
	walk = func(s *schema, p path) {
		for _, service := range s.restart {
			if !slices.Contains(known, service) {
				t.Errorf("%s takes a restart of %q, which is no service", p, service)
			}
		}
		if s.elem != nil {
			walk(s.elem, p.child("*"))
		}
		for _, name := range s.names {
			walk(s.fields[name], p.child(name))
		}
	}
	walk(root, nil)
	for name, want := range map[string]string{
		"policies.standard.window": "", "classes.gold": "", "gateways.acme.limits.rate": "", "gateways.acme.breaker.ramp": "", "gateways.acme.httpjson.statuses.x": "",
		"gateways.acme.stripe.timeout": "", "telemetry.otlp_headers.authorization": "", "log.level": "", "operators.max_replays": "", "webhooks.gateways.acme.keys.a.secret": "",
		"log.format": "relay consumer webhook", "database.url": "relay consumer webhook", "nats.urls": "relay consumer", "telemetry.listen": "relay consumer webhook",
		"gateways.acme": "relay consumer webhook", "gateways.acme.workers": "consumer", "consumer.ack_wait": "consumer", "consumer.lanes": "relay consumer",
		"relay.every": "relay", "webhooks.listen": "webhook", "webhooks.gateways.acme": "webhook consumer", "webhooks.gateways.acme.accounts.eu": "webhook consumer",
	} {
		if got := strings.Join(root.at(key(name)).restart, " "); got != want {
			t.Errorf("%s takes a restart of %q, want %q", name, got, want)
		}
	}
}

// site is a configuration in a folder, with its secrets.
type folder struct {
	t   *testing.T
	dir string
}

func newFolder(t *testing.T) folder {
	f := folder{t, t.TempDir()}
	f.write("dsn", "postgres://pollux:first@127.0.0.1:5432/payments")
	f.write("token", "token-of-acme-1")
	f.write("push", "token-of-the-collector-1")
	f.write("hook", "signing-secret-number-1")
	return f
}

func (f folder) write(name, content string) string {
	f.t.Helper()
	return certificatetest.Write(f.t, filepath.Join(f.dir, name), []byte(content))
}

const reloadable = `
database: {url: 'file:DIR/dsn'}
telemetry: {otlp_endpoint: 'http://127.0.0.1:4317', otlp_headers: {authorization: 'file:DIR/push'}}
nats: {urls: ['nats://127.0.0.1:4222']}
gateways:
  acme:
    httpjson:
      url: https://api.acme.example/payments/{reference}
      auth: {kind: bearer, token: 'file:DIR/token'}
      headers: {X-Tenant: one}
      pointers: {status: /status}
      statuses: {paid: succeeded}
  beta:
    httpjson:
      url: https://api.beta.example/payments/{reference}
      pointers: {status: /status}
      statuses: {paid: succeeded}
webhooks:
  gateways:
    acme:
      scheme: hmac
      keys: {current: {secret: 'file:DIR/hook'}}
      httpjson: {signature: {header: X-Signature}, pointers: {reference: /id}}
`

func (f folder) load(edits ...string) Config {
	f.t.Helper()
	c, err := f.try(edits...)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f folder) try(edits ...string) (Config, error) {
	f.t.Helper()
	text := strings.ReplaceAll(strings.NewReplacer(edits...).Replace(reloadable), "DIR", f.dir)
	return Load(Options{File: f.write("pollux.yaml", text), Environ: []string{}})
}

func keysIn(changes []Change) []string {
	all := make([]string, len(changes))
	for i, c := range changes {
		all[i] = c.Key
	}
	return all
}

func TestChangesAreNamedByTheirKeys(t *testing.T) {
	f := newFolder(t)
	before := f.load()
	if changes := before.Changes(f.load()); len(changes) > 0 {
		t.Errorf("nothing changed, and it says %v", changes)
	}
	for _, c := range []struct {
		name  string
		edits []string
		want  []Change
	}{
		{"a limit", []string{"    httpjson:\n      url: https://api.acme", "    limits: {rate: 5/s}\n    httpjson:\n      url: https://api.acme"},
			[]Change{{Key: "gateways.acme.limits.rate", Before: "0/s", After: "5/s"}}},
		{"a policy of one's own", []string{"gateways:\n  acme:\n    httpjson", "policies: {gold: {window: 1h}}\ngateways:\n  acme:\n    httpjson"},
			[]Change{{Key: "policies.gold", After: "[section]"}}},
		{"a class", []string{"gateways:\n  acme:\n    httpjson", "classes: {gift: high_value}\ngateways:\n  acme:\n    httpjson"},
			[]Change{{Key: "classes.gift", After: "high_value"}}},
		{"a status", []string{"statuses: {paid: succeeded}\n  beta", "statuses: {paid: succeeded, void: cancelled}\n  beta"},
			[]Change{{Key: "gateways.acme.httpjson.statuses.void", After: "[changed]"}}},
		{"a header, which may hide a secret", []string{"X-Tenant: one", "X-Tenant: two"},
			[]Change{{Key: "gateways.acme.httpjson.headers.X-Tenant", Before: "[changed]", After: "[changed]"}}},
		{"another name of a secret", []string{"file:DIR/token", "file:DIR/hook"},
			[]Change{{Key: "gateways.acme.httpjson.auth.token", Before: "[changed]", After: "[changed]"}}},
		{"a gateway less", []string{reloadable[strings.Index(reloadable, "  beta"):strings.Index(reloadable, "webhooks")], ""},
			[]Change{{Key: "gateways.beta", Before: "[section]", Restart: []string{"relay", "consumer", "webhook"}}}},
		{"another database", []string{"database: {url: 'file:DIR/dsn'}", "database: {url: 'postgres://me@other/payments', max_conns: 9}"},
			[]Change{{Key: "database.max_conns", Before: "8", After: "9", Restart: []string{"relay", "consumer", "webhook"}},
				{Key: "database.url", Before: "[changed]", After: "[changed]", Restart: []string{"relay", "consumer", "webhook"}}}},
	} {
		if d := cmp.Diff(c.want, before.Changes(f.load(c.edits...)), cmp.Transformer("none", func(s []string) []string { return append([]string{}, s...) })); d != "" {
			t.Errorf("%s: (-want +got)\n%s", c.name, d)
		}
	}
}

func TestSecretsThatChangeInTheirFilesAreSeen(t *testing.T) {
	f := newFolder(t)
	c := f.load()
	now := time.Now()
	if next, r := c.Renew(now); len(r.Taken)+len(r.Kept) > 0 || !next.SameAdapter(&c, "acme") {
		t.Errorf("nothing changed: %+v", r)
	}
	f.write("dsn", "postgres://pollux:second@127.0.0.1:5432/payments")
	f.write("token", "token-of-acme-2")
	f.write("push", "token-of-the-collector-2")
	next, r := c.Renew(now)
	if d := cmp.Diff([]string{"database", "gateways.acme", "telemetry"}, r.Taken); d != "" || len(r.Kept) > 0 {
		t.Errorf("%s %+v", d, r.Kept)
	}
	if next.Gateways["acme"].HTTPJSON.Auth.Token.Reveal() != "token-of-acme-2" || !strings.Contains(next.Database.Access(), "second") {
		t.Error("the new ones are not there")
	}
	if c.Gateways["acme"].HTTPJSON.Auth.Token.Reveal() != "token-of-acme-1" {
		t.Error("the configuration before was changed")
	}
	if c.SameAdapter(&next, "acme") || !c.SameAdapter(&next, "beta") {
		t.Error("which adapter is another one is not known")
	}
	if d := cmp.Diff([]string{"database.url", "gateways.acme.httpjson.auth.token", "telemetry.otlp_headers.authorization"}, keysIn(c.Changes(next))); d != "" {
		t.Error(d)
	}
	for _, change := range c.Changes(next) {
		if len(change.Restart) > 0 || change.Before != changedSecret || change.After != changedSecret {
			t.Errorf("%+v", change)
		}
	}
	if _, r := next.Renew(now); len(r.Taken)+len(r.Kept) > 0 {
		t.Errorf("the same twice: %+v", r)
	}
}

func TestASecretOfNoUseKeepsTheLastGoodOneAndHindersNoOther(t *testing.T) {
	f := newFolder(t)
	c := f.load()
	for name, broken := range map[string]string{"token": "", "hook": "short", "dsn": "postgres://pollux:second@elsewhere:5432/payments"} {
		f.write(name, broken)
	}
	next, r := c.Renew(time.Now())
	var kept []string
	for _, p := range r.Kept {
		kept = append(kept, p.Key)
		if strings.Contains(p.String(), "short\"") || strings.Contains(p.String(), "second") {
			t.Errorf("it repeats a secret: %s", p)
		}
	}
	slices.Sort(kept)
	want := []string{"database.url", "gateways.acme.httpjson.auth.token", "webhooks.gateways.acme.keys.current.secret"}
	if d := cmp.Diff(want, kept); d != "" || len(r.Taken) > 0 {
		t.Errorf("%s %v", d, r.Taken)
	}
	if next.Gateways["acme"].HTTPJSON.Auth.Token.Reveal() != "token-of-acme-1" || next.Webhooks.Gateways["acme"].Keys["current"].Secret.Reveal() != "signing-secret-number-1" ||
		next.Database.Access() != c.Database.Access() {
		t.Error("the last good ones are not in force")
	}
	if _, r := next.Renew(time.Now()); len(r.Taken)+len(r.Kept) > 0 {
		t.Errorf("it is said twice: %+v", r)
	}
	f.write("token", "token-of-acme-3")
	var invalid *Invalid
	if _, err := next.Reload(time.Now()); !errors.As(err, &invalid) {
		t.Fatalf("what is still of no use is taken: %v", err)
	}
	f.write("hook", "signing-secret-number-1") // what was in it before
	f.write("dsn", c.Database.URL.Reveal())
	reloaded, err := next.Reload(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"database", "gateways.acme", "webhooks.gateways.acme"}, next.Renewed(reloaded)); d != "" {
		t.Error(d)
	}
	if again, err := reloaded.Reload(time.Now()); err != nil || len(reloaded.Renewed(again)) > 0 {
		t.Errorf("it is said twice: %v", err)
	}
	f.write("hook", "short")
	if next, r = next.Renew(time.Now()); !slices.Equal(r.Taken, []string{"database", "gateways.acme"}) || next.Gateways["acme"].HTTPJSON.Auth.Token.Reveal() != "token-of-acme-3" {
		t.Errorf("the good one is not taken: %+v", r)
	}
}

// Nobody writes into the pipe: whoever opened it would wait for ever, also for the end of the process.
func TestASecretThatBecomesAPipeIsNotOpened(t *testing.T) {
	f := newFolder(t)
	c := f.load()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(pipe, filepath.Join(f.dir, "token")); err != nil {
		t.Fatal(err)
	}
	_, r := c.Renew(time.Now())
	if len(r.Kept) != 1 || r.Kept[0].Key != "gateways.acme.httpjson.auth.token" || !strings.Contains(r.Kept[0].String(), "not a regular file") {
		t.Fatalf("%+v", r)
	}
}

// TestAReplacedKeyCountsForItsOverlap looks at what the endpoints are made of.
func TestAReplacedKeyCountsForItsOverlap(t *testing.T) {
	f := newFolder(t)
	c := f.load()
	now := time.Now()
	counting := func(c Config, at time.Time) (all []string) {
		for _, r := range c.Webhooks.Gateways["acme"].Keys["current"].replaced {
			if at.Before(r.until) {
				all = append(all, r.secret.Reveal())
			}
		}
		return all
	}
	f.write("hook", "signing-secret-number-2")
	second, _ := c.Renew(now)
	if got := counting(second, now.Add(23*time.Hour)); !slices.Equal(got, []string{"signing-secret-number-1"}) {
		t.Errorf("counting: %v", got)
	}
	if got := counting(second, now.Add(25*time.Hour)); len(got) > 0 {
		t.Errorf("after its overlap: %v", got)
	}
	again, err := second.Reload(now.Add(time.Hour)) // a reload forgets nothing, and prolongs nothing
	if err != nil {
		t.Fatal(err)
	}
	if got := counting(again, now.Add(23*time.Hour)); !slices.Equal(got, []string{"signing-secret-number-1"}) || len(counting(again, now.Add(25*time.Hour))) > 0 {
		t.Errorf("after a reload: %v", got)
	}
	f.write("hook", "signing-secret-number-3")
	third, _ := again.Renew(now.Add(2 * time.Hour))
	if got := counting(third, now.Add(3*time.Hour)); !slices.Equal(got, []string{"signing-secret-number-2", "signing-secret-number-1"}) {
		t.Errorf("of two changes: %v", got)
	}
	f.load("scheme: hmac", "scheme: hmac\n      overlap: 0s") // it was compromised
	none, err := third.Reload(now.Add(3 * time.Hour))
	if err != nil || len(counting(none, now.Add(3*time.Hour))) > 0 {
		t.Errorf("without an overlap: %v, %v", err, counting(none, now.Add(3*time.Hour)))
	}
}

func TestAReloadIsRefusedAsAWhole(t *testing.T) {
	f := newFolder(t)
	c := f.load()
	var invalid *Invalid
	if _, err := f.try("url: https://api.acme", "timeout: soon\n      url: https://api.acme"); !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	if _, err := c.Reload(time.Now()); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "pollux.yaml:8: gateways.acme.httpjson.timeout") {
		t.Errorf("it is taken, or does not say where: %v", err)
	}
	if err := os.Remove(filepath.Join(f.dir, "pollux.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Reload(time.Now()); err == nil {
		t.Error("a file that is gone is taken")
	}
}
