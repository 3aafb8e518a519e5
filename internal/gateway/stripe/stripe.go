// Package stripe asks Stripe about PaymentIntents. docs/gateways/stripe.md describes how to connect.
package stripe

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/vendor"
	"pollux/internal/secret"
)

// Config attaches an account of Stripe, or several. What each key means to an operator is in docs/gateways/stripe.md.
type Config struct {
	Credentials `koanf:",squash"` // Of the default account, and of all accounts where `accounts` is empty.

	Accounts   map[string]Credentials `koanf:"accounts"`    // The credentials of each account. Where there are some, an account without is refused.
	APIVersion string                 `koanf:"api_version"` // The version of the API that answers are asked in. Default `2025-03-31.basil`.

	vendor.Config `koanf:",squash"`
}

// Credentials are what one account authorises with.
type Credentials struct {
	Key           secret.Secret `koanf:"key"`            // A restricted key that may read PaymentIntents, or a secret key. Required.
	StripeAccount string        `koanf:"stripe_account"` // For Connect: the connected account, `acct_…`, whose payments are asked for. Empty: our own.
}

// The defaults of a Config. The version is pinned, so that what Stripe changes reaches us when we look at it.
const (
	DefaultBaseURL    = "https://api.stripe.com"
	DefaultAPIVersion = "2025-03-31.basil"
)

// WithDefaults returns the configuration with every default written out.
func (c Config) WithDefaults() Config {
	c.Config = c.Config.WithDefaults(DefaultBaseURL, DefaultBaseURL)
	if c.APIVersion == "" {
		c.APIVersion = DefaultAPIVersion
	}
	return c
}

// Complete names the gateway and writes every default out.
func (c *Config) Complete(name string) {
	c.Name = name
	*c = c.WithDefaults()
}

// Validate returns every problem at once, each naming the key and what to write instead.
func (c Config) Validate() error {
	_, err := New(c)
	return err
}

// Capabilities are what can be done with Stripe. It has no look-up by a reference of ours that sees what was written a moment ago: its search
// lags by up to a minute, and by more in an outage (docs.stripe.com/search).
func (c Config) Capabilities() gateway.Capabilities { return gateway.Capabilities{List: true} }

// Adapter asks Stripe. It is safe for concurrent use.
type Adapter struct {
	desk     *vendor.Desk
	accounts vendor.Accounts[account]
	reader   reader
	mode     gateway.Mode
}

// account is what requests for one account have in common.
type account struct {
	header http.Header // shared by all requests
	hide   *httpclient.Redactor
}

// New returns an adapter, or every problem of its configuration at once.
func New(c Config) (*Adapter, error) {
	c = c.WithDefaults()
	desk, errs := vendor.Open(c.Config)
	if !httpclient.ValidHeaderValue(c.APIVersion) {
		errs = append(errs, errors.New("api_version: printable ASCII only"))
	}
	accounts, problems := vendor.Accounting(c.Name, c.Credentials, c.Accounts, func(cred Credentials) (account, []error) {
		return c.account(desk, cred)
	})
	if err := errors.Join(append(errs, problems...)...); err != nil {
		return nil, err
	}
	return &Adapter{desk: desk, accounts: accounts, reader: newReader(c.Live()), mode: gateway.Mode(c.Mode)}, nil
}

func (c Config) account(desk *vendor.Desk, cred Credentials) (account, []error) {
	key := cred.Key.Reveal()
	errs := append(vendor.Secret("key", key), c.keyMode(key)...)
	if s := cred.StripeAccount; s != "" && (!strings.HasPrefix(s, "acct_") || !httpclient.ValidHeaderValue(s)) {
		errs = append(errs, errors.New("stripe_account: not the id of an account, which begins with acct_"))
	}
	if len(errs) > 0 || desk == nil {
		return account{}, errs
	}
	h := http.Header{"Authorization": {"Bearer " + key}, "Stripe-Version": {c.APIVersion}}
	if cred.StripeAccount != "" {
		h.Set("Stripe-Account", cred.StripeAccount)
	}
	return account{header: desk.Header(h, http.MethodGet), hide: httpclient.NewRedactor(append(c.Secrets(), key)...)}, nil
}

// keyMode compares the mode that stands in a key, sk_test_… or rk_live_…, with that of the configuration: a wrong one would make a mismatch of
// every payment.
func (c Config) keyMode(key string) []error {
	for _, kind := range []string{"sk_", "rk_"} {
		if rest, ok := strings.CutPrefix(key, kind); ok {
			if mode, _, found := strings.Cut(rest, "_"); found && (mode == "live" || mode == "test") && mode != c.Mode {
				return []error{errors.New("key: it is one of mode " + mode + ", and mode is " + c.Mode + "; write mode: " + mode + " or take the other key")}
			}
		}
	}
	if strings.HasPrefix(key, "pk_") {
		return []error{errors.New("key: it is a publishable key, which may not read payments; take a restricted one, rk_…")}
	}
	return nil
}

// Capabilities are what can be done with Stripe.
func (a *Adapter) Capabilities() gateway.Capabilities { return Config{}.Capabilities() }

// Mode says whether the money is real.
func (a *Adapter) Mode() gateway.Mode { return a.mode }

// Close closes the connections that are not in use.
func (a *Adapter) Close() { a.desk.Close() }

// Timeout is the longest that Poll takes.
func (a *Adapter) Timeout() time.Duration { return a.desk.Timeout() }

// Poll asks Stripe once about one PaymentIntent. It always answers, within Timeout; what goes wrong is in the answer's class.
func (a *Adapter) Poll(ctx context.Context, q gateway.Query) gateway.Answer {
	acct, none, missing := a.accounts.Of(q.Account)
	if missing {
		return none
	}
	if ans, wrong := unaskable(q.Reference, acct.hide); wrong {
		return ans
	}
	return a.desk.Ask(ctx, q, httpclient.Request{
		Method: http.MethodGet, URL: a.desk.URL("/v1/payment_intents/", q.Reference), Header: acct.header, Hide: acct.hide,
	}, a.reader)
}

// unaskable reports whether a reference cannot be the id of a PaymentIntent. A client secret, which begins with the id, is not repeated: whoever
// has it can pay with it.
func unaskable(reference string, hide *httpclient.Redactor) (gateway.Answer, bool) {
	switch why := httpclient.Unsendable(reference); {
	case why != "":
		return vendor.Unaskable("reference %q %s: Stripe cannot be asked about it", hide.Name(reference, 80), why), true
	case strings.Contains(reference, "_secret_"):
		return vendor.Unaskable("the reference is a client secret; track the payment with its id, pi_…"), true
	case !strings.HasPrefix(reference, "pi_"):
		return vendor.Unaskable("reference %q is not the id of a PaymentIntent, which begins with pi_: Stripe cannot be asked about it", hide.Name(reference, 80)), true
	}
	return gateway.Answer{}, false
}
