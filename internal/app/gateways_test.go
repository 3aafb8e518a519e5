package app

import (
	"os"
	"path/filepath"
	"testing"

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
