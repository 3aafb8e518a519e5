package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"pollux/internal/gateway/adyen"
	"pollux/internal/gateway/httpjson"
	"pollux/internal/gateway/iyzico"
	"pollux/internal/gateway/mercadopago"
	"pollux/internal/gateway/paypal"
	"pollux/internal/gateway/razorpay"
	"pollux/internal/gateway/stripe"
	"pollux/internal/limit"
	"pollux/internal/secret"
	"pollux/internal/webhook"
)

// Webhooks says how gateways' notifications are received.
type Webhooks struct {
	Listen         string          `koanf:"listen"`                              // Where notifications are taken: `POST /webhooks/GATEWAY` or `/webhooks/GATEWAY/ACCOUNT`. Loopback: what stands before it, an ingress, speaks TLS. In a container write `:8480`.
	CertFile       string          `koanf:"cert_file"`                           // A certificate (PEM), where it speaks TLS itself; read again when it changes. Empty: without TLS.
	KeyFile        string          `koanf:"key_file"`                            // The key of the certificate.
	ClientCAFile   string          `koanf:"client_ca_file"`                      // Whoever sends must show a certificate of one of these authorities, read again when they change: for an ingress that shows one. Empty: nobody must.
	MaxBodyBytes   int             `koanf:"max_body_bytes"`                      // Of one notification. The largest honest ones have some ten thousand.
	MaxHeaderBytes int             `koanf:"max_header_bytes"`                    // Of the head of a request.
	HeaderTimeout  time.Duration   `koanf:"header_timeout"`                      // For the head of a request to come.
	BodyTimeout    time.Duration   `koanf:"body_timeout"`                        // For all of a request to come.
	IdleTimeout    time.Duration   `koanf:"idle_timeout"`                        // Between two requests of a connection.
	MaxConnections int             `koanf:"max_connections"`                     // Open at once; beyond it the one is closed that has dawdled longest without sending a whole request. With `max_body_bytes` it bounds the memory that strangers can take.
	Keeping        int             `koanf:"keeping"`                             // Verified notifications that wait for their commit at once; what is not verified never takes their place. Beyond it the sender is asked to come again.
	Drain          time.Duration   `koanf:"drain"`                               // How long requests that were begun may go on after SIGTERM.
	Record         WebhookRecord   `koanf:"record"`                              // How notifications are written.
	KeepEvents     time.Duration   `koanf:"keep_events"`                         // How long notifications are kept: for people, and to know what came before. Longer than vendors repeat them; Adyen does for 30 days.
	WaitForPayment time.Duration   `koanf:"wait_for_payment"`                    // How long a notification waits for its payment to be tracked. Longer than your service's transactions take.
	Gateways       map[string]Hook `koanf:"gateways" restart:"webhook consumer"` // The gateways that send notifications, by the name that payments carry.
}

// WebhookRecord says how notifications are gathered into transactions.
type WebhookRecord struct {
	Batch    int           `koanf:"batch"`    // Most requests in one transaction. They gather while the one before commits; a single one never waits.
	Writers  int           `koanf:"writers"`  // Transactions at once.
	Patience time.Duration `koanf:"patience"` // For the database; afterwards the sender is asked to come again. Below the 5 s that the most impatient vendor waits.
}

// Hook says how one gateway signs its notifications and what they mean.
type Hook struct {
	Scheme     string                 `koanf:"scheme" restart:""`                   // `stripe`, `paypal`, `razorpay`, `mercadopago`, `iyzico`, `adyen`, `standard` (Standard Webhooks) or `hmac` (as the section `httpjson` says). See [webhooks.md](webhooks.md).
	Keys       map[string]HookKey     `koanf:"keys" restart:""`                     // What it signs with, by names of your own. Two while one is changed: what was sent before is sent again with the old one.
	Overlap    time.Duration          `koanf:"overlap" restart:""`                  // How long a key counts still that was replaced in its file: what was signed with it is sent again. In memory only: where a restart may come meanwhile, name both in `keys`. `0s`: not at all.
	Accounts   map[string]HookAccount `koanf:"accounts" restart:"webhook consumer"` // Accounts with keys of their own, by the name that payments carry: `/webhooks/GATEWAY/ACCOUNT`.
	User       string                 `koanf:"user" restart:""`                     // A user that requests must carry too, with the password below (basic authentication), where the gateway can be told to send one. Empty: none.
	Password   secret.Secret          `koanf:"password" restart:""`                 // The user's password.
	Mode       string                 `koanf:"mode" restart:"consumer"`             // `live` or `test`: a notification about the other is set aside. Empty: both are taken.
	Tolerance  time.Duration          `koanf:"tolerance" restart:""`                // How long ago a notification may have been signed, where that is signed.
	Unverified string                 `koanf:"unverified" restart:"webhook"`        // What a notification may do whose signature is missing, old or wrong. `refuse`: nothing. `hint`: it may have the known pending payment that it names polled sooner, once a minute at the most and never before the gateway wishes; it is refused all the same. See [webhooks.md](webhooks.md#unverified-hints).
	HintRate   limit.Rate             `koanf:"hint_rate" restart:"webhook"`         // With `unverified: hint`: so many of them are looked at, of all that strangers send, by each receiver.
	Silence    HookSilence            `koanf:"silence" restart:"webhook consumer"`  // When it says too little.
	Adyen      adyen.WebhookConfig    `koanf:"adyen" restart:""`                    // For `adyen`.
	HTTPJSON   httpjson.WebhookConfig `koanf:"httpjson" restart:""`                 // For `hmac` and `standard`: where things stand and what they mean.
}

// HookAccount is an account of a gateway.
type HookAccount struct {
	Keys map[string]HookKey `koanf:"keys" restart:""` // As above.
}

// HookKey is a key and when it counts.
type HookKey struct {
	Secret secret.Secret `koanf:"secret"` // `file:/path` or `env:NAME`, as the vendor shows it. Required.
	From   time.Time     `koanf:"from"`   // It counts from then on: `2026-01-31T00:00:00Z`. Not written: always.
	Until  time.Time     `koanf:"until"`  // And until then. Not written: until further notice.

	replaced []replacedKey // what was in its file before, and counts still
}

// HookSilence says when a gateway that sends nothing is silent.
type HookSilence struct {
	After      time.Duration `koanf:"after"`       // Nothing came for so long, while payments have been pending for as long: an alarm. `0s`: never.
	Pending    int           `koanf:"pending"`     // So many payments.
	PollWithin time.Duration `koanf:"poll_within"` // Then each pending payment is polled within this time, whatever its policy says, and within the limits. `0s`: not; for gateways that cannot be polled.
	Fetch      bool          `koanf:"fetch"`       // Then the events that were missed are fetched, by a consumer, where the gateway lists them: `stripe` and `paypal`. The key of `gateways` must be allowed to read events.
}

// AccountNames are the accounts that notifications are received for, the default one by an empty name.
func (h Hook) AccountNames() []string {
	var names []string
	if len(h.Keys) > 0 || len(h.Accounts) == 0 {
		names = append(names, "")
	}
	return append(names, sorted(h.Accounts)...)
}

func defaultWebhooks() Webhooks {
	return Webhooks{
		Listen:         "127.0.0.1:8480",
		MaxBodyBytes:   256 << 10,
		MaxHeaderBytes: 16 << 10,
		HeaderTimeout:  5 * time.Second,
		BodyTimeout:    10 * time.Second,
		IdleTimeout:    time.Minute,
		MaxConnections: 1024,
		Keeping:        512,
		Drain:          10 * time.Second,
		Record:         WebhookRecord{Batch: 100, Writers: 2, Patience: 4 * time.Second},
		KeepEvents:     35 * day,
		WaitForPayment: day,
	}
}

func defaultHook() Hook {
	return Hook{
		Overlap:    day,
		Tolerance:  5 * time.Minute,
		Unverified: UnverifiedRefuse,
		HintRate:   1,
		Silence:    HookSilence{After: 30 * time.Minute, Pending: 10, PollWithin: 5 * time.Minute, Fetch: true},
		Adyen:      adyen.WebhookConfig{}.WithDefaults(),
		HTTPJSON:   httpjson.WebhookConfig{}.WithDefaults(),
	}
}

// What a notification may do that is not believed.
const (
	UnverifiedRefuse = "refuse"
	UnverifiedHint   = "hint"
)

// maxHintRate bounds the work that strangers can make.
const maxHintRate limit.Rate = 100

// hookSchemes are the schemes that can be configured.
var hookSchemes = []string{"stripe", "paypal", "razorpay", "mercadopago", "iyzico", "adyen", httpjson.SchemeStandard, httpjson.SchemeHMAC}

// futureTolerance is how far a vendor's clock may be ahead of ours.
const futureTolerance = time.Minute

// Endpoints are where the gateway of that name sends its notifications, one for each account, or everything that is wrong with them.
func (h Hook) Endpoints(gateway string) ([]webhook.Endpoint, []error) {
	var all []webhook.Endpoint
	var errs []error
	for _, account := range h.AccountNames() {
		keys, section := h.Keys, ""
		if account != "" {
			keys, section = h.Accounts[account].Keys, "accounts."+account+"."
		}
		scheme, err := h.scheme(keys)
		for _, message := range messages(err) {
			if section != "" && strings.HasPrefix(message, "keys") {
				message = section + message
			}
			errs = append(errs, fmt.Errorf("%s", message))
		}
		if h.User != "" && err == nil {
			scheme = webhook.WithLogin(scheme, h.User, h.Password.Reveal())
		}
		all = append(all, webhook.Endpoint{Gateway: gateway, Account: account, Scheme: scheme, Mode: h.Mode})
	}
	return all, errs
}

// scheme is how an account with these keys signs.
func (h Hook) scheme(configured map[string]HookKey) (webhook.Scheme, error) {
	var keys webhook.Keys
	for _, name := range sorted(configured) {
		k := configured[name]
		if k.Secret.IsZero() {
			return nil, fmt.Errorf("keys.%s.secret: missing; write file:/path/of/the/file or env:NAME", name)
		}
		keys = append(keys, webhook.Key{Name: name, Secret: []byte(k.Secret.Reveal()), From: k.From, Until: k.Until})
		for _, old := range k.replaced {
			keys = append(keys, webhook.Key{Name: name, Secret: []byte(old.secret.Reveal()), From: k.From, Until: old.until})
		}
	}
	tolerance := webhook.Tolerance{Past: h.Tolerance, Future: futureTolerance}
	switch h.Scheme {
	case "stripe":
		return stripe.NewWebhook(keys, tolerance)
	case "paypal":
		return paypal.NewWebhook(keys, tolerance)
	case "razorpay":
		return razorpay.NewWebhook(keys)
	case "mercadopago":
		return mercadopago.NewWebhook(keys, tolerance)
	case "iyzico":
		return iyzico.NewWebhook(keys)
	case "adyen":
		return adyen.NewWebhook(h.Adyen, keys)
	case httpjson.SchemeStandard, httpjson.SchemeHMAC:
		return httpjson.NewWebhook(h.Scheme, h.HTTPJSON, keys, tolerance)
	}
	return nil, fmt.Errorf("scheme: %.40q is not known; write one of %s", h.Scheme, strings.Join(hookSchemes, ", "))
}

// inheritHooks completes the gateways that send notifications from the default one.
func inheritHooks(values map[string]any, complete func() map[string]any) {
	hooks := section(section(values, "webhooks"), "gateways")
	for name := range hooks {
		h := complete()
		overlay(h, section(hooks, name))
		hooks[name] = h
	}
}

// webhooks checks the section webhooks.
func (v *verifier) webhooks(w *Webhooks) {
	v.address("webhooks.listen", w.Listen)
	if w.Listen == "" {
		v.refuse(keys("webhooks.listen"), "missing; write host:port such as 127.0.0.1:8480")
	}
	v.between("webhooks.max_body_bytes", w.MaxBodyBytes, 1<<10, 16<<20)
	v.between("webhooks.max_header_bytes", w.MaxHeaderBytes, 4<<10, 1<<20)
	v.within("webhooks.header_timeout", w.HeaderTimeout, 100*time.Millisecond, time.Minute)
	v.within("webhooks.body_timeout", w.BodyTimeout, 100*time.Millisecond, time.Minute)
	v.within("webhooks.idle_timeout", w.IdleTimeout, time.Second, time.Hour)
	v.between("webhooks.max_connections", w.MaxConnections, 16, 100_000)
	v.between("webhooks.keeping", w.Keeping, 1, 100_000)
	v.within("webhooks.drain", w.Drain, time.Second, time.Hour)
	v.between("webhooks.record.batch", w.Record.Batch, 1, 1000)
	v.between("webhooks.record.writers", w.Record.Writers, 1, 64)
	v.within("webhooks.record.patience", w.Record.Patience, 100*time.Millisecond, time.Minute)
	v.within("webhooks.keep_events", w.KeepEvents, day, 10*366*day)
	v.within("webhooks.wait_for_payment", w.WaitForPayment, time.Second, 30*day)
	if v.skips(SkipWebhooks) {
		return
	}
	v.listener("webhooks", w.TLSFiles())
	for _, name := range sorted(w.Gateways) {
		h := w.Gateways[name]
		h.HTTPJSON = h.HTTPJSON.WithDefaults()
		v.hook(path{"webhooks", "gateways", name}, name, h)
	}
}

// accountName is what a payment's account can be, and what can stand in a path.
var accountName = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,128}$`)

func (v *verifier) hook(at path, name string, h Hook) {
	v.token(at)
	if !slices.Contains([]string{"", "live", "test"}, h.Mode) {
		v.refuse([]path{at.child("mode")}, "%.40q; write live or test, or take it away to take both", h.Mode)
	}
	if !slices.Contains([]string{UnverifiedRefuse, UnverifiedHint}, h.Unverified) {
		v.refuse([]path{at.child("unverified")}, "%.40q; write refuse, or hint to have the payment polled sooner that such a notification names", h.Unverified)
	}
	if h.Unverified == UnverifiedHint && h.Scheme == "adyen" {
		v.refuse([]path{at.child("unverified")}, "this gateway cannot be polled; write refuse")
	}
	if h.HintRate <= 0 || h.HintRate > maxHintRate {
		v.refuse([]path{at.child("hint_rate")}, "%s; write more than 0/s and at most %s", h.HintRate, maxHintRate)
	}
	if (h.User == "") != h.Password.IsZero() {
		v.refuse([]path{at.child("user"), at.child("password")}, "a user and its password go together; write both user and password, or neither")
	}
	for _, d := range []struct {
		key       string
		value     time.Duration
		low, high time.Duration
	}{{"overlap", h.Overlap, 0, 30 * day}, {"tolerance", h.Tolerance, time.Second, day}, {"silence.after", h.Silence.After, 0, 7 * day}, {"silence.poll_within", h.Silence.PollWithin, 0, day}} {
		if d.value < d.low || d.value > d.high {
			v.refuse([]path{at.child(strings.Split(d.key, ".")...)}, "%s; write %s to %s", FormatDuration(d.value), FormatDuration(d.low), FormatDuration(d.high))
		}
	}
	v.betweenAt(at.child("silence", "pending"), h.Silence.Pending, 1, 10_000)
	v.hookKeys(at.child("keys"), h.Scheme, h.Keys)
	for _, account := range sorted(h.Accounts) {
		if !accountName.MatchString(account) {
			v.refuse([]path{at.child("accounts", account)}, "not an account; write 1 to 128 letters, digits and _ . : -, as payments name it")
		}
		v.hookKeys(at.child("accounts", account, "keys"), h.Scheme, h.Accounts[account].Keys)
	}
	for wrong := range v.bad { // of the whole nothing can be said while a part of it is wrong
		if strings.HasPrefix(wrong, at.String()+".") {
			return
		}
	}
	_, errs := h.Endpoints(name)
	for _, err := range errs {
		section := at.child("httpjson")
		if where, _ := blame(at, err.Error()); len(where) > len(at) {
			section = at
		}
		where, what := blame(section, err.Error())
		if v.skips(skipSecrets) && readsFile(where) {
			continue
		}
		if readsFile(where) {
			v.unusable([]path{where}, "%s", what)
			continue
		}
		v.refuse([]path{where}, "%s", what)
	}
}

// hints refuses what would have gateways polled that are never asked.
func (v *verifier) hints(c *Config) {
	if v.skips(SkipWebhooks) {
		return
	}
	for _, name := range sorted(c.Webhooks.Gateways) {
		if c.Webhooks.Gateways[name].Unverified == UnverifiedHint && c.Gateways[name].WebhookOnly {
			v.refuse([]path{{"webhooks", "gateways", name, "unverified"}, {"gateways", name, "webhook_only"}}, "this gateway is never polled; write refuse")
		}
	}
}

// shortestKey is the length of the shortest secret that is taken, in characters: what is shorter was typed by hand, and can be found by trying. The secrets
// that vendors make have 20 and more.
const shortestKey = 16

func (v *verifier) hookKeys(at path, scheme string, keys map[string]HookKey) {
	for _, name := range sorted(keys) {
		k := keys[name]
		v.token(at.child(name))
		// PayPal's is the webhook's id, which is no secret.
		where, text := []path{at.child(name, "secret")}, k.Secret.Reveal()
		n := len(strings.TrimPrefix(text, "whsec_"))
		switch bare := strings.TrimSpace(strings.Trim(text, "\ufeff")); {
		case text == "" || v.skips(skipSecrets):
		case bare != text:
			v.unusable(where, "it begins or ends with a blank or a byte order mark, which is in no vendor's secret; write the secret alone")
		case n < shortestKey && scheme != "paypal":
			v.unusable(where, "%d characters; anybody could find it by trying: let the vendor make one, or choose %d characters or more at random", n, shortestKey)
		}
		if !k.Until.IsZero() && !k.Until.After(k.From) {
			v.refuse([]path{at.child(name, "until"), at.child(name, "from")}, "it never counts: until is not after from")
		}
	}
}
