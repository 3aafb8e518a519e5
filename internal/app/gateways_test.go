package app

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pollux/internal/certificate/certificatetest"
	"pollux/internal/config"
	"pollux/internal/gateway"
)

// TestEveryAdapterCanBeBuilt builds each adapter that can be configured, and holds it to what the configuration says of it.
func TestEveryAdapterCanBeBuilt(t *testing.T) {
	t.Setenv("KEY", "rk_live_x")
	file := filepath.Join(t.TempDir(), "pollux.yaml")
	if err := os.WriteFile(file, []byte(`
database: {url: postgres://pollux@127.0.0.1/payments}
nats: {urls: [nats://127.0.0.1:4222]}
gateways:
  httpjson: {adapter: httpjson, httpjson: {url: "https://a.example/{reference}", pointers: {status: /status}, statuses: {paid: succeeded}}}
  stripe: {adapter: stripe, stripe: {key: env:KEY}}
  paypal: {adapter: paypal, paypal: {client_id: a, client_secret: env:KEY}}
  razorpay: {adapter: razorpay, razorpay: {key_id: rzp_live_1, key_secret: env:KEY}}
  mercadopago: {adapter: mercadopago, mercadopago: {access_token: env:KEY}}
  iyzico: {adapter: iyzico, iyzico: {api_key: a, secret_key: env:KEY}}
  adyen: {adapter: adyen}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{File: file, Skip: config.SkipWebhooks})
	if err != nil {
		t.Fatal(err)
	}
	all, err := adapters(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(all)
	for _, name := range config.Adapters {
		a, ok := all[name].(interface{ Capabilities() gateway.Capabilities })
		if !ok {
			t.Errorf("%s is not built, or does not say what it can", name)
			continue
		}
		if got, want := a.Capabilities(), cfg.Gateways[name].Capabilities(); got != want {
			t.Errorf("%s can %+v, the configuration says %+v", name, got, want)
		}
		if p := cfg.Policy(name, config.Standard); p.NeverPoll != (name == "adyen") || (p.MinInterval > 0) != (name == "paypal") {
			t.Errorf("the policy of %s: %+v", name, p)
		}
	}
	if len(all) != len(config.Adapters) {
		t.Errorf("%d adapters, %d are built", len(config.Adapters), len(all))
	}
}

func TestTheFirstCertificateToEndThatGatewaysWantIsTold(t *testing.T) {
	a, dir := certificatetest.New(t), t.TempDir()
	issue := func(name string, life time.Duration) string {
		t.Helper()
		cert, key := a.Issue(name, life)
		certificatetest.Write(t, filepath.Join(dir, name+".crt"), cert)
		certificatetest.Write(t, filepath.Join(dir, name+".key"), key)
		return fmt.Sprintf("client_cert_file: %[1]s/%[2]s.crt, client_key: file:%[1]s/%[2]s.key", dir, name)
	}
	load := func(first, second string) config.Config {
		t.Helper()
		file := filepath.Join(dir, "pollux.yaml")
		text := fmt.Sprintf(`
database: {url: postgres://pollux@127.0.0.1/payments}
nats: {urls: [nats://127.0.0.1:4222]}
gateways:
  one: {adapter: httpjson, httpjson: {url: "https://a.example/{reference}", pointers: {status: /status}, statuses: {paid: succeeded}%s}}
  two: {adapter: httpjson, httpjson: {url: "https://b.example/{reference}", pointers: {status: /status}, statuses: {paid: succeeded}%s}}
  none: {adapter: adyen}
`, first, second)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(config.Options{File: file, Environ: []string{}, Skip: config.SkipWebhooks})
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	without := load("", "")
	if ends := firstShownEnds(&without); !ends.IsZero() {
		t.Errorf("none is shown, and it ends %s", ends)
	}
	cfg := load(", "+issue("long", 48*time.Hour), ", "+issue("short", 24*time.Hour))
	seen := map[string]time.Time{}
	for _, f := range lookAtFiles(cfg.Files()) {
		for _, c := range f.Certs {
			seen[f.Key] = c.NotAfter
		}
	}
	short, long := seen["gateways.two.httpjson.client_cert_file"], seen["gateways.one.httpjson.client_cert_file"]
	if got := firstShownEnds(&cfg); short.IsZero() || !got.Equal(short) || !long.After(short) {
		t.Errorf("the first ends %s, of %v", got, seen)
	}
}
