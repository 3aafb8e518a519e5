package dev

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pollux/internal/app"
	"pollux/internal/gateway/paypal"
	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/dialect"
	"pollux/internal/gatewaysim/notify"
	"pollux/internal/webhook"
)

// station is a gateway of a run: a simulator and what it tells of its own accord.
type station struct {
	part
	sim    *gatewaysim.Simulator
	sender *notify.Sender // nil: it tells nothing
}

// title is what the station is called where there are others; the one gateway is just that.
func (s *station) title() string {
	if s.vendor == nil {
		return "gateway"
	}
	return s.name
}

// part is a gateway that can be played, and what Pollux has to be told about it.
type part struct {
	name    string
	adapter string             // also its section in the configuration
	dialect gatewaysim.Dialect // nil is the simulator's own
	vendor  notify.Vendor      // nil: it tells nothing
	secrets map[string]string  // each in a file of its own; "key" is what callers bring
	gateway []string           // the gateway's settings; URL is where the simulator is, @name the file with the secret of that name
	hook    []string           // those of its notifications
	insists bool               // it tells until it hears that it was heard: it cannot be asked
	calls   int                // most calls of one poll
}

// own is the one gateway that is played unless others are chosen. The rest of its settings is in the example configuration.
var own = part{name: Gateway, adapter: "httpjson", calls: 1,
	secrets: map[string]string{"key": gatewaysim.DefaultAPIKey},
	gateway: []string{"httpjson.url=URL/v1/payments/{reference}", "httpjson.auth.token=@key"},
}

// secretOf is a secret that opens nothing but a simulator.
func secretOf(what string) string { return "pollux_simulator_" + what }

// cast are the vendors that can be played.
func cast() []part {
	return []part{stripePart(), paypalPart(), razorpayPart(), mercadopagoPart(), iyzicoPart(), adyenPart(), httpjsonPart()}
}

func stripePart() part {
	v := dialect.Stripe{Key: "sk_test_" + secretOf("key"), SigningSecret: "whsec_" + secretOf("webhook")}
	return part{name: "stripe", dialect: v, vendor: v,
		secrets: map[string]string{"key": v.Key, "webhook": v.SigningSecret},
		gateway: []string{"limits.rate=0/s", "stripe.mode=test", "stripe.base_url=URL", "stripe.key=@key"},
	}
}

func paypalPart() part {
	v := dialect.PayPal{ClientID: "simulator", ClientSecret: secretOf("key"), WebhookID: "8PT597110X687430LKGECATA"}
	return part{name: "paypal", dialect: v, vendor: v, calls: 2, // a refused token is fetched again
		secrets: map[string]string{"key": v.ClientSecret, "webhook": v.WebhookID},
		gateway: []string{"min_interval=500ms", "paypal.mode=test", "paypal.base_url=URL", "paypal.client_id=" + v.ClientID, "paypal.client_secret=@key"},
	}
}

func razorpayPart() part {
	v := dialect.Razorpay{KeyID: "rzp_test_simulator", KeySecret: secretOf("key"), WebhookSecret: secretOf("webhook")}
	return part{name: "razorpay", dialect: v, vendor: v,
		secrets: map[string]string{"key": v.KeySecret, "webhook": v.WebhookSecret},
		gateway: []string{"razorpay.mode=test", "razorpay.base_url=URL", "razorpay.key_id=" + v.KeyID, "razorpay.key_secret=@key"},
	}
}

func mercadopagoPart() part {
	v := dialect.MercadoPago{AccessToken: "TEST-" + secretOf("key"), WebhookSecret: secretOf("webhook")}
	return part{name: "mercadopago", dialect: v, vendor: v,
		secrets: map[string]string{"key": v.AccessToken, "webhook": v.WebhookSecret},
		gateway: []string{"mercadopago.mode=test", "mercadopago.base_url=URL", "mercadopago.access_token=@key"},
	}
}

func iyzicoPart() part {
	v := dialect.Iyzico{APIKey: "simulator", SecretKey: secretOf("key")}
	return part{name: "iyzico", dialect: v, vendor: v,
		secrets: map[string]string{"key": v.SecretKey, "webhook": v.SecretKey},
		gateway: []string{"iyzico.mode=test", "iyzico.base_url=URL", "iyzico.api_key=" + v.APIKey, "iyzico.secret_key=@key"},
	}
}

func adyenPart() part {
	v := dialect.Adyen{HMACKey: fmt.Sprintf("%x", secretOf("webhook")), MerchantAccount: "SimulatorEUR"}
	return part{name: "adyen", dialect: v, vendor: v, insists: true,
		secrets: map[string]string{"webhook": v.HMACKey},
		hook:    []string{"adyen.merchant_account=" + v.MerchantAccount},
	}
}

func httpjsonPart() part {
	v := dialect.Own{Secret: "whsec_" + base64.StdEncoding.EncodeToString([]byte(secretOf("webhook")))}
	words := []string{"processing=pending/processing", "requires_action=pending/requires_action", "authorized=pending/authorized",
		"succeeded=succeeded", "failed=failed", "canceled=cancelled", "expired=expired"}
	p := part{name: "httpjson", vendor: v,
		secrets: map[string]string{"key": gatewaysim.DefaultAPIKey, "webhook": v.Secret},
		gateway: []string{"httpjson.url=URL/v1/payments/{reference}", "httpjson.auth.kind=bearer", "httpjson.auth.token=@key",
			"httpjson.pointers.status=/status", "httpjson.pointers.id=/id", "httpjson.pointers.amount=/amount", "httpjson.pointers.currency=/currency",
			"httpjson.pointers.updated_at=/updated_at", "httpjson.pointers.error_code=/error/code", "httpjson.pointers.error_message=/error/message"},
		hook: []string{"scheme=standard", "httpjson.pointers.kind=/type", "httpjson.pointers.reference=/data/id", "httpjson.pointers.status=/data/status",
			"httpjson.pointers.amount=/data/amount", "httpjson.pointers.currency=/data/currency", "httpjson.pointers.occurred_at=/timestamp",
			"httpjson.pointers.mode=/data/livemode", "httpjson.modes.false=test", "httpjson.modes.true=live"},
	}
	for _, w := range words {
		p.gateway, p.hook = append(p.gateway, "httpjson.statuses."+w), append(p.hook, "httpjson.statuses."+w)
	}
	return p
}

// partNames are the names of all vendors that can be played.
func partNames() (names []string) {
	for _, p := range cast() {
		names = append(names, p.name)
	}
	return names
}

// parts are those of names; without any, the one gateway.
func parts(names []string) (chosen []part, err error) {
	if len(names) == 0 {
		return []part{own}, nil
	}
	all := cast()
	for i, name := range names {
		at := slices.IndexFunc(all, func(p part) bool { return p.name == name })
		switch {
		case at < 0:
			return nil, fmt.Errorf("%.40q is not played; write some of %s", name, strings.Join(partNames(), ","))
		case slices.Contains(names[:i], name):
			return nil, fmt.Errorf("%s twice", name)
		}
		p := all[at]
		p.adapter, p.calls = name, max(p.calls, 1)
		chosen = append(chosen, p)
	}
	return chosen, nil
}

// certified is a part with what it signs notifications with, where it needs a certificate.
func (w *world) certified(p part) (part, error) {
	v, needs := p.vendor.(dialect.PayPal)
	if !needs {
		return p, nil
	}
	var err error
	w.authority, err = dialect.NewAuthority()
	v.Signing = w.authority
	p.vendor = v
	return p, err
}

// settings is what the configuration says about the gateway. Everything that takes minutes in reality takes seconds here.
func (s *station) settings(dir string, rate float64) []string {
	fill := strings.NewReplacer("URL", s.sim.URL(), "@", "file:"+filepath.Join(dir, s.name+"."))
	gateway, hook := "gateways."+s.name+".", "webhooks.gateways."+s.name+"."
	var all []string
	for _, set := range s.gateway {
		all = append(all, gateway+fill.Replace(set))
	}
	if s.vendor != nil {
		all = append(all, gateway+"adapter="+s.adapter, hook+"scheme="+s.name, hook+"mode=test", hook+fill.Replace("keys.current.secret=@webhook"))
	}
	for _, set := range s.hook {
		all = append(all, hook+fill.Replace(set))
	}
	if _, silent := s.dialect.(dialect.Adyen); silent { // it is never called
		return all
	}
	for _, set := range []string{"slow_call=1s", "cooldown.base=500ms", "cooldown.cap=2s", "credential_cooldown.base=1s", "credential_cooldown.cap=2s",
		"probe_deadline=3s", "ramp_step=200ms"} {
		all = append(all, gateway+"breaker."+set)
	}
	for _, set := range []string{"timeout=2s", "connect_timeout=1s", "tls_timeout=1s", "allow_http=true", "allow_loopback=true"} {
		all = append(all, gateway+s.adapter+"."+set)
	}
	if rate > 0 {
		all = append(all, fmt.Sprintf("%slimits.rate=%g/s", gateway, rate))
	}
	return all
}

// writeSecrets writes each secret into a file of its own.
func (w *world) writeSecrets() error {
	var errs []error
	for _, s := range w.stations {
		for name, secret := range s.secrets {
			errs = append(errs, os.WriteFile(filepath.Join(w.dir, s.name+"."+name), []byte(secret), 0o600))
		}
	}
	return errors.Join(errs...)
}

// mishaps are the shares of payments whose notifications something is wrong with: more than any real gateway has.
var mishaps = notify.Faults{Lost: 0.15, Doubled: 0.15, Late: 0.15, Reordered: 0.15, Forged: 0.3}

// startSenders starts the receiver of notifications, and behind it the gateways' senders, where there are some. running ends when the run does.
func (w *world) startSenders(running, ctx context.Context, process *app.Process) error {
	if len(w.cfg.Webhooks.Gateways) == 0 {
		return nil
	}
	listening := make(chan net.Addr, 1)
	process.Listening = func(a net.Addr) { listening <- a }
	endpoints, err := app.Endpoints(w.cfg)
	if err != nil {
		return err
	}
	for i, e := range endpoints {
		if scheme, ok := e.Scheme.(*paypal.Webhook); ok {
			endpoints[i].Scheme = scheme.Trusting(w.authority.Fetch, w.authority.Roots)
		}
	}
	w.start(ctx, "the receiver of notifications", func(ctx context.Context) error { return app.Receive(ctx, w.cfg, process, endpoints) })
	select {
	case address := <-listening:
		for _, s := range w.stations {
			url := "http://" + address.String() + webhook.Endpoint{Gateway: s.name}.Path()
			w.start(ctx, "the notifications of "+s.name, func(ctx context.Context) error { return s.sender.Run(ctx, url) })
		}
		return nil
	case <-running.Done():
		return context.Cause(running)
	}
}
