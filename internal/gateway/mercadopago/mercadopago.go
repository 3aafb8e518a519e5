// Package mercadopago asks Mercado Pago about payments. docs/gateways/mercadopago.md describes how to connect.
package mercadopago

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/vendor"
	"pollux/internal/secret"
)

// Config attaches an account of Mercado Pago, or several. What each key means to an operator is in docs/gateways/mercadopago.md.
type Config struct {
	Credentials `koanf:",squash"` // Of the default account, and of all accounts where `accounts` is empty.

	Accounts map[string]Credentials `koanf:"accounts"` // The credentials of each account. Where there are some, an account without is refused.

	vendor.Config `koanf:",squash"`
}

// Credentials are what one account authorises with.
type Credentials struct {
	AccessToken secret.Secret `koanf:"access_token"` // The private access token of the application, `APP_USR-…`. Required.
}

// DefaultBaseURL is where Mercado Pago has its API, in both modes: the access token says which.
const DefaultBaseURL = "https://api.mercadopago.com"

// WithDefaults returns the configuration with every default written out.
func (c Config) WithDefaults() Config {
	c.Config = c.Config.WithDefaults(DefaultBaseURL, DefaultBaseURL)
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

// Capabilities are what can be done with Mercado Pago: payments are found by their external_reference, which is our reference.
func (c Config) Capabilities() gateway.Capabilities {
	return gateway.Capabilities{ByMerchantRef: true, List: true}
}

// Adapter asks Mercado Pago. It is safe for concurrent use.
type Adapter struct {
	desk     *vendor.Desk
	accounts vendor.Accounts[account]
	live     bool
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
	accounts, problems := vendor.Accounting(c.Name, c.Credentials, c.Accounts, func(cred Credentials) (account, []error) {
		token := cred.AccessToken.Reveal()
		errs := vendor.Secret("access_token", token)
		if strings.HasPrefix(token, "TEST-") && c.Live() {
			errs = append(errs, errors.New("access_token: it is one of mode test, and mode is live; write mode: test or take the other token"))
		}
		if len(errs) > 0 || desk == nil {
			return account{}, errs
		}
		h := http.Header{"Authorization": {"Bearer " + token}}
		return account{header: desk.Header(h, http.MethodGet), hide: httpclient.NewRedactor(append(c.Secrets(), token)...)}, nil
	})
	if err := errors.Join(append(errs, problems...)...); err != nil {
		return nil, err
	}
	return &Adapter{desk: desk, accounts: accounts, live: c.Live(), mode: gateway.Mode(c.Mode)}, nil
}

// Capabilities are what can be done with Mercado Pago.
func (a *Adapter) Capabilities() gateway.Capabilities { return Config{}.Capabilities() }

// Mode says whether the money is real.
func (a *Adapter) Mode() gateway.Mode { return a.mode }

// Close closes the connections that are not in use.
func (a *Adapter) Close() { a.desk.Close() }

// Timeout is the longest that Poll takes.
func (a *Adapter) Timeout() time.Duration { return a.desk.Timeout() }

// Poll asks Mercado Pago once: about a payment, or about all payments with our reference. It always answers, within Timeout; what goes wrong is in
// the answer's class.
func (a *Adapter) Poll(ctx context.Context, q gateway.Query) gateway.Answer {
	acct, none, missing := a.accounts.Of(q.Account)
	if missing {
		return none
	}
	path, rd, why := question(q, a.live)
	if why != "" {
		return vendor.Unaskable("reference %q %s: Mercado Pago cannot be asked about it", acct.hide.Name(q.Reference, 80), why)
	}
	return a.desk.Ask(ctx, q, httpclient.Request{
		Method: http.MethodGet, URL: a.desk.URL(path, q.Reference), Header: acct.header, Hide: acct.hide,
	}, rd)
}

// question is where to ask about a payment and who reads the answer, or why it cannot be asked about.
func question(q gateway.Query, live bool) (path string, rd reply.Reader, why string) {
	why = httpclient.Unsendable(q.Reference)
	switch {
	case why != "":
		return "", nil, why
	case q.ByMerchantRef():
		return "/v1/payments/search?sort=date_created&criteria=desc&limit=50&external_reference=", search{live}, ""
	case strings.Trim(q.Reference, "0123456789") == "":
		return "/v1/payments/", payments{live}, ""
	}
	return "", nil, "is not the id of a payment, which is a number"
}
