package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// set are overrides of the gateway of enough.
func set(overrides ...string) []string {
	for i, s := range overrides {
		overrides[i] = "gateways.acme." + s
	}
	return overrides
}

func TestGatewaysMistakesAreRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		set  []string
		want string
	}{
		{"unknown adapter", set("adapter=soap"), `gateways.acme.adapter: "soap" is not an adapter; write one of httpjson, `},
		{"no workers", set("workers=0"), `gateways.acme.workers: 0; write 1 to 10000`},
		{"timeout above drain", set("httpjson.timeout=26s"), `gateways.acme.httpjson.timeout: the timeout of acme (26s) is above consumer.drain (25s)`},
		{"fewer connections than workers", set("httpjson.max_in_flight=8"), `gateways.acme.httpjson.max_in_flight: max_in_flight (8) is below workers (64)`},
		{"what the adapter refuses", set("httpjson.url=ftp://acme.example/{reference}"), `gateways.acme.httpjson.url: `},
		{"an address that no call would dial", set("httpjson.allow_private=false", "httpjson.url=https://10.1.1.1/{reference}"), `gateways.acme.httpjson.allow_private: false, and 10.1.1.1 is private; write true`},
		{"deep inside the adapter", set("httpjson.auth.kind=hmac", "httpjson.auth.hmac.hash=md5"), `gateways.acme.httpjson.auth.`},
		{"neither true nor false", set("httpjson.gzip=yes"), `gateways.acme.httpjson.gzip: write true or false`},
		{"list with a wrong item", set("httpjson.not_found_statuses=404,gone"), `gateways.acme.httpjson.not_found_statuses[1]: write a whole number, such as 500`},
		{"section in the place of a value", set("httpjson.url.scheme=https"), `gateways.acme.httpjson.url: a single value; this is a list or a section`},
		{"unknown key of the adapter", set("httpjson.time_out=1s"), `gateways.acme.httpjson.time_out: unknown key; did you mean timeout?`},
		{"a section of another adapter", set("stripe.key=env:X"), `gateways.acme.stripe: the adapter of acme is httpjson; write adapter: stripe, or take this section away`},
		{"an interval of days", set("min_interval=48h"), `gateways.acme.min_interval: 2d; write 0s to 24h`},
		{"an interval for nothing", set("webhook_only=true", "min_interval=1m"), `gateways.acme.min_interval: acme is never asked`},
		{"never asked and no window", append(set("webhook_only=true"), "policies.standard.window=0s", "policies.standard.max_attempts=5", "policies.standard.max_failures=5"),
			`policies.standard.window: no bound, and acme is never asked`},
		{"unknown key in its depth", set("httpjson.auth.tokn=env:X"), `gateways.acme.httpjson.auth.tokn: unknown key; did you mean token?`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := problems(t, Options{File: file(t, enough), Set: c.set}); !strings.Contains(got, "the program: "+c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	got := problems(t, Options{File: file(t, enough+"consumer: {ack_wait: 9s}\n")})
	if want := "pollux.yaml:9: consumer.ack_wait: the timeout of acme (10s) is not below consumer.ack_wait (9s)"; !strings.HasPrefix(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestGatewayHasAConnectionForEachWorkerOfEachLane(t *testing.T) {
	c := mustLoad(t, Options{File: file(t, enough), Set: append(set("workers=10"), "consumer.lanes=high,low")})
	if got := c.Gateways["acme"].HTTPJSON.MaxInFlight; got != 50 {
		t.Errorf("%d connections, want 50: for high, low, retries, replays and deferred polls", got)
	}
	c = mustLoad(t, Options{File: file(t, enough), Set: set("workers=10", "httpjson.max_in_flight=10")})
	if got := c.Gateways["acme"].HTTPJSON.MaxInFlight; got != 10 {
		t.Errorf("%d connections, 10 were asked for", got)
	}
}

func TestGatewayHasItsDefaultsWrittenOut(t *testing.T) {
	c := mustLoad(t, Options{File: file(t, enough), Set: set("httpjson.timeout=2s")})
	g := c.Gateways["acme"]
	if g.Adapter != "httpjson" || g.Workers != 64 || g.HTTPJSON.Name != "acme" || g.HTTPJSON.Method != "GET" || g.Timeout() != 2*time.Second ||
		g.HTTPJSON.ConnectTimeout != 2*time.Second {
		t.Errorf("gateway %+v", g)
	}
}

func TestAGatewayOfANamedVendor(t *testing.T) {
	t.Setenv("STRIPE_KEY", "rk_live_swordfish")
	t.Setenv("STRIPE_EU", "rk_test_marlin")
	stripe := func(section string) Options {
		return Options{File: file(t, enough[:strings.Index(enough, "    httpjson:")]+"    adapter: stripe\n"+section)}
	}
	o := stripe("    stripe: {key: env:STRIPE_KEY, timeout: 3s}\n")
	c := mustLoad(t, o)
	g := c.Gateways["acme"]
	if g.Stripe == nil || g.Stripe.Name != "acme" || g.Stripe.Key.Reveal() != "rk_live_swordfish" || g.Timeout() != 3*time.Second || g.Stripe.MaxInFlight != 64*6 {
		t.Errorf("gateway %+v", g.Stripe)
	}
	if g.Limits.Rate != 20 {
		t.Errorf("%v calls a second, Stripe allows 25", g.Limits.Rate)
	}
	if strings.Contains(c.String(), "swordfish") || !strings.Contains(c.String(), "key: env:STRIPE_KEY") {
		t.Errorf("shown as %s", c)
	}
	o.Set = set("limits.rate=5/s")
	if got := mustLoad(t, o).Gateways["acme"].Limits.Rate; got != 5 {
		t.Errorf("%v calls a second, 5 were asked for", got)
	}
	for section, want := range map[string]string{
		"    stripe: {}\n": "gateways.acme.stripe.key: missing; write file:/path or env:NAME",
		"    stripe: {key: env:STRIPE_KEY, accounts: {eu: {key: env:STRIPE_EU}}}\n": "gateways.acme.stripe.accounts.eu.key: it is one of mode test",
		"    stripe: {key: env:STRIPE_KEY, base_url: http://x.example}\n":           "gateways.acme.stripe.base_url: without TLS",
		"    stripe: {key: env:STRIPE_KEY, time_out: 3s}\n":                         "gateways.acme.stripe.time_out: unknown key; did you mean timeout?",
		"    stripe: {key: env:STRIPE_KEY, timeout: 26s}\n":                         "gateways.acme.stripe.timeout: the timeout of acme (26s) is above consumer.drain",
	} {
		if got := problems(t, stripe(section)); !strings.Contains(got, want) {
			t.Errorf("%s: got  %s\nwant %s", section, got, want)
		}
	}
}

func TestACommandThatUsesOneGatewayReadsItsSecretsAlone(t *testing.T) {
	t.Setenv("KEY_OF_TWO", "rk_live_swordfish")
	content := enough + "  cards: {adapter: stripe, stripe: {key: env:KEY_OF_TWO}}\n  more: {adapter: stripe, stripe: {key: env:KEY_OF_TWO}}\n" +
		"  other: {adapter: stripe, stripe: {key: file:/nowhere/key}}\n"
	for _, name := range []string{"cards", "more"} {
		c := mustLoad(t, Options{File: file(t, content), Gateway: name})
		if got := c.Gateways[name].Stripe.Key.Reveal(); got != "rk_live_swordfish" {
			t.Errorf("the key of %s is %q", name, got)
		}
	}
	if got := problems(t, Options{File: file(t, content), Gateway: "other"}); !strings.Contains(got, "gateways.other.stripe.key: ") || !strings.Contains(got, "/nowhere/key") {
		t.Errorf("got %s", got)
	}
}

func TestPoliciesKnowHowOftenAGatewayMayBeAsked(t *testing.T) {
	c := mustLoad(t, Options{File: file(t, enough), Set: set("min_interval=90s")})
	if p := c.Policy("acme", Standard); p.MinInterval != 90*time.Second || p.NeverPoll {
		t.Errorf("policy %+v", p)
	}
	if p := c.Policy("other", Standard); p.MinInterval != 0 || p.NeverPoll {
		t.Errorf("another gateway's policy %+v", p)
	}
	c = mustLoad(t, Options{File: file(t, enough), Set: set("webhook_only=true")})
	if p := c.Policy("acme", Background); !p.NeverPoll || p.MinInterval != 0 {
		t.Errorf("policy %+v", p)
	}
}

func TestSecretsOfGatewaysAreReadAndShownByTheirNames(t *testing.T) {
	const token, header = "swordfish", "marlin"
	name := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(name, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ACME_HEADER", header)
	c := mustLoad(t, Options{File: file(t, strings.Replace(enough, "httpjson: {",
		`httpjson: {auth: {kind: bearer, token: "file:`+name+`"}, secret_headers: {X-Api-Key: "env:ACME_HEADER"}, `, 1))})
	h := c.Gateways["acme"].HTTPJSON
	if h.Auth.Token.Reveal() != token || h.SecretHeaders["X-Api-Key"].Reveal() != header {
		t.Errorf("token %q, header %q", h.Auth.Token.Reveal(), h.SecretHeaders["X-Api-Key"].Reveal())
	}
	shown := fmt.Sprintf("%v %+v %#v %#v", c, c.Gateways, c.Gateways, *h) + c.String()
	if strings.Contains(shown, token) || strings.Contains(shown, header) {
		t.Error("a secret is shown")
	}
	printed, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"token: file:" + name, "X-Api-Key: env:ACME_HEADER"} {
		if !strings.Contains(string(printed), want) {
			t.Errorf("%s is not in\n%s", want, printed)
		}
	}
	again := mustLoad(t, Options{File: file(t, string(printed))})
	if got := again.Gateways["acme"].HTTPJSON.Auth.Token.Reveal(); got != token {
		t.Errorf("token %q when loaded again", got)
	}
}

func TestSecretsOfGatewaysAreNamedAndThere(t *testing.T) {
	for _, c := range []struct{ token, want string }{
		{inlineSecret, "a secret is named, never written out"},
		{"file:/nowhere/token", "/nowhere/token"},
		{"env:POLLUX_TEST_NOT_SET", "POLLUX_TEST_NOT_SET: not set"},
	} {
		o := Options{File: file(t, enough), Set: set("httpjson.auth.kind=bearer", "httpjson.auth.token="+c.token)}
		got := problems(t, o)
		if !strings.HasPrefix(got, "the program: gateways.acme.httpjson.auth.token: ") || !strings.Contains(got, c.want) || strings.Contains(got, inlineSecret) {
			t.Errorf("%s: %s", c.token, got)
		}
		if strings.Contains(got, "\n") {
			t.Errorf("said twice: %s", got)
		}
	}
}

func TestSecretsOfGatewaysAreNotReadByWhoeverDoesNotAskThem(t *testing.T) {
	content := strings.Replace(enough, "httpjson: {", "httpjson: {auth: {kind: hmac, key: file:/nowhere/key, "+
		`hmac: {sign: "{method}{timestamp}", key_encoding: hex, headers: {X-Signature: "{signature}"}}}, client_cert_file: /nowhere/cert, client_key: file:/nowhere/client, `, 1)
	if got := problems(t, Options{File: file(t, content), Skip: SkipGateways}); got != "" {
		t.Errorf("a relay is told: %s", got)
	}
	if err := CheckFile(file(t, content), nil, 0); err != nil {
		t.Errorf("the file alone: %v", err)
	}
	if got := problems(t, Options{File: file(t, content)}); !strings.Contains(got, "/nowhere/key") || !strings.Contains(got, "/nowhere/client") {
		t.Errorf("a consumer is told: %s", got)
	}
}
