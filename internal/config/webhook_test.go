package config

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"pollux/internal/webhook"
)

// hooked is enough with a gateway that sends notifications; DIR is a folder with a secret.
const hooked = enough + `webhooks:
  gateways:
    acme:
      scheme: hmac
      keys: {current: {secret: 'file:DIR/key'}, old: {secret: 'file:DIR/key', from: 2025-01-01T00:00:00Z, until: 2026-03-01T00:00:00Z}}
      accounts: {eu: {keys: {only: {secret: 'file:DIR/key'}}}}
      httpjson: {signature: {header: X-Sig}, pointers: {reference: /id}}
`

func hookedFile(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte("a-secret-of-some-length\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file(t, strings.ReplaceAll(hooked, "DIR", dir))
}

func TestWebhooksMistakesAreRefused(t *testing.T) {
	name := hookedFile(t)
	t.Setenv("SHORT_KEY", "x")
	t.Setenv("BLANK_KEY", "                    ")
	t.Setenv("MARKED_KEY", "\ufeffa-secret-of-some-length")
	t.Setenv("BARE_KEY", "whsec_")
	t.Setenv("SHORT_PREFIXED_KEY", "whsec_0123456789")
	for _, c := range []struct{ set, want string }{
		{"listen=8480", `webhooks.listen: "8480" is not an address`},
		{"max_body_bytes=1", `webhooks.max_body_bytes: 1; write 1024 to 16777216`},
		{"record.patience=10ms", `webhooks.record.patience: 10ms; write 100ms to 1m`},
		{"cert_file=/dev/null", `webhooks.cert_file: a certificate and its key go together`},
		{"gateways.acme.scheme=soap", `webhooks.gateways.acme.scheme: "soap" is not known; write one of stripe, `},
		{"gateways.acme.scheme=standard", `webhooks.gateways.acme.httpjson.signature: Standard Webhooks say how they are signed`},
		{"gateways.acme.scheme=adyen", `webhooks.gateways.acme.keys.current.secret: not hexadecimal`},
		{"gateways.acme.mode=prod", `webhooks.gateways.acme.mode: "prod"; write live or test`},
		{"gateways.acme.tolerance=0s", `webhooks.gateways.acme.tolerance: 0s; write 1s to 24h`},
		{"gateways.acme.accounts.a/b.keys.x.secret=env:HOME", `webhooks.gateways.acme.accounts.a/b: not an account`},
		{"gateways.acme.unverified=believe", `webhooks.gateways.acme.unverified: "believe"; write refuse, or hint`},
		{"gateways.acme.hint_rate=0/s", `webhooks.gateways.acme.hint_rate: 0/s; write more than 0/s and at most 100/s`},
		{"gateways.acme.hint_rate=101/s", `webhooks.gateways.acme.hint_rate: 101/s; write more than 0/s and at most 100/s`},
		{"gateways.acme.user=pollux", `webhooks.gateways.acme.user: a user and its password go together`},
		{"gateways.acme.silence.pending=0", `webhooks.gateways.acme.silence.pending: 0; write 1 to 10000`},
		{"gateways.acme.keys.current.secret=written-out", `webhooks.gateways.acme.keys.current.secret: a secret is named, never written out`},
		{"gateways.acme.keys.current.secret=env:NOT_THERE", `webhooks.gateways.acme.keys.current.secret: secret variable NOT_THERE: not set`},
		{"gateways.acme.keys.old.until=2024-01-01T00:00:00Z", `webhooks.gateways.acme.keys.old.until: it never counts`},
		{"gateways.acme.keys.old.until=tomorrow", `webhooks.gateways.acme.keys.old.until: `},
		{"gateways.acme.httpjson.signature.key_encoding=hex", `webhooks.gateways.acme.accounts.eu.keys.only.secret: not hex`},
		{"gateways.acme.httpjson.pointers.reference=id", `webhooks.gateways.acme.httpjson.pointers.reference: "id" is not a JSON pointer`},
		{"gateways.acme.httpjson.sign=x", `webhooks.gateways.acme.httpjson.sign: unknown key`},
		{"gateways.Acme.scheme=stripe", `webhooks.gateways.Acme: not a name`},
		{"gateways.acme.keys.current.secret=env:SHORT_KEY", `webhooks.gateways.acme.keys.current.secret: 1 characters; anybody could find it`},
		{"gateways.acme.keys.current.secret=env:BLANK_KEY", `webhooks.gateways.acme.keys.current.secret: it begins or ends with a blank`},
		{"gateways.acme.keys.current.secret=env:MARKED_KEY", `webhooks.gateways.acme.keys.current.secret: it begins or ends with a blank or a byte order mark`},
		{"gateways.acme.keys.current.secret=env:BARE_KEY", `webhooks.gateways.acme.keys.current.secret: 0 characters; anybody could find it`},
		{"gateways.acme.keys.current.secret=env:SHORT_PREFIXED_KEY", `webhooks.gateways.acme.keys.current.secret: 10 characters; anybody could find it`},
	} {
		got := problems(t, Options{File: name, Set: []string{"webhooks." + c.set}})
		if !strings.Contains(got, c.want) {
			t.Errorf("%s\ngot  %s\nwant %s", c.set, got, c.want)
		}
	}
}

func TestNoHintsForGatewaysThatAreNeverPolled(t *testing.T) {
	name := hookedFile(t)
	for _, never := range []string{"webhooks.gateways.acme.scheme=adyen", "gateways.acme.webhook_only=true"} {
		got := problems(t, Options{File: name, Set: []string{"webhooks.gateways.acme.unverified=hint", never}})
		if !strings.Contains(got, "webhooks.gateways.acme.unverified: this gateway ") {
			t.Errorf("%s: %s", never, got)
		}
	}
	c := mustLoad(t, Options{File: name, Set: []string{"webhooks.gateways.acme.unverified=hint", "webhooks.gateways.acme.hint_rate=30/m"}})
	if h := c.Webhooks.Gateways["acme"]; h.HintRate != 0.5 {
		t.Errorf("%+v", h)
	}
	if h := mustLoad(t, Options{File: name}).Webhooks.Gateways["acme"]; h.Unverified != UnverifiedRefuse || h.HintRate != 1 {
		t.Errorf("the default: %+v", h)
	}
}

func TestWebhookSecretsAreReadWhereTheyAreUsed(t *testing.T) {
	name := hookedFile(t)
	if err := os.Remove(filepath.Join(filepath.Dir(keyOf(t, name)), "key")); err != nil {
		t.Fatal(err)
	}
	if got := problems(t, Options{File: name}); strings.Count(got, "no such file") != 1 || strings.Contains(got, "missing") {
		t.Errorf("a receiver without its keys: %s", got)
	}
	mustLoad(t, Options{File: name, Skip: SkipWebhooks})
	if err := CheckFile(name, nil, 0); err != nil {
		t.Errorf("a file by itself: %v", err)
	}
}

// keyOf is the file of the key of a configuration.
func keyOf(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(content), "'file:")
	key, _, _ := strings.Cut(rest, "'")
	return key
}

func TestEndpointsAreWhatWasConfigured(t *testing.T) {
	c := mustLoad(t, Options{File: hookedFile(t), Set: []string{"webhooks.gateways.acme.mode=live"}})
	all, errs := c.Webhooks.Gateways["acme"].Endpoints("acme")
	if len(errs) != 0 || len(all) != 2 || all[0].Path() != "/webhooks/acme" || all[1].Path() != "/webhooks/acme/eu" || all[0].Mode != "live" {
		t.Fatalf("%+v %v", all, errs)
	}
	h := c.Webhooks.Gateways["acme"]
	if h.Tolerance != 5*time.Minute || h.Silence.Pending != 10 || h.Keys["old"].Until.Year() != 2026 {
		t.Errorf("%+v", h)
	}
	text := c.String()
	if strings.Contains(text, "a-secret-of-some-length") || !strings.Contains(text, "until: \"2026-03-01T00:00:00Z\"") || !strings.Contains(text, "/key") {
		t.Error(text)
	}
}

func TestALoginIsAskedForBesideTheSignature(t *testing.T) {
	t.Setenv("HOOK_PASSWORD", "pass")
	c := mustLoad(t, Options{File: hookedFile(t), Set: []string{"webhooks.gateways.acme.user=pollux", "webhooks.gateways.acme.password=env:HOOK_PASSWORD"}})
	all, _ := c.Webhooks.Gateways["acme"].Endpoints("acme")
	for password, want := range map[string]error{"pass": webhook.RefusedUnsigned, "other": webhook.RefusedSender, "": webhook.RefusedSender} {
		r := &http.Request{Header: http.Header{}}
		r.SetBasicAuth("pollux", password)
		if err := all[0].Scheme.Glance(&webhook.Request{Header: r.Header}); err != want {
			t.Errorf("with the password %q: %v", password, err)
		}
	}
}

// TestDocumentedWebhooksAreComplete checks every configuration of the documentation.
func TestDocumentedWebhooksAreComplete(t *testing.T) {
	pages, err := filepath.Glob("../../docs/gateways/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, "../../docs/webhooks.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?s)```yaml\n(webhooks:\n.*?)```").FindAllSubmatch(text, -1) {
			found++
			if err := CheckFile(file(t, enough+string(m[1])), nil, 0); err != nil {
				t.Errorf("%s: %v\n%s", page, err, m[1])
			}
		}
	}
	if found < 8 {
		t.Errorf("%d examples", found)
	}
}
