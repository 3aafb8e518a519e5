// Package razorpay asks Razorpay about payments and orders. docs/gateways/razorpay.md describes how to connect.
package razorpay

import (
	"context"
	"encoding/base64"
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

// Config attaches an account of Razorpay, or several. What each key means to an operator is in docs/gateways/razorpay.md.
type Config struct {
	Credentials `koanf:",squash"` // Of the default account, and of all accounts where `accounts` is empty.

	Accounts map[string]Credentials `koanf:"accounts"` // The credentials of each account. Where there are some, an account without is refused.

	vendor.Config `koanf:",squash"`
}

// Credentials are what one account authorises with.
type Credentials struct {
	KeyID     string        `koanf:"key_id"`     // The id of an API key, `rzp_live_…` or `rzp_test_…`. Required.
	KeySecret secret.Secret `koanf:"key_secret"` // Its secret. Required.
}

// DefaultBaseURL is where Razorpay has its API, in both modes: the key says which.
const DefaultBaseURL = "https://api.razorpay.com"

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

// Capabilities are what can be done with Razorpay: an order is found by its receipt, which is our reference.
func (c Config) Capabilities() gateway.Capabilities {
	return gateway.Capabilities{ByMerchantRef: true, List: true}
}

// Adapter asks Razorpay. It is safe for concurrent use.
type Adapter struct {
	desk     *vendor.Desk
	accounts vendor.Accounts[account]
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
		return c.account(desk, cred)
	})
	if err := errors.Join(append(errs, problems...)...); err != nil {
		return nil, err
	}
	return &Adapter{desk: desk, accounts: accounts, mode: gateway.Mode(c.Mode)}, nil
}

func (c Config) account(desk *vendor.Desk, cred Credentials) (account, []error) {
	key := cred.KeySecret.Reveal()
	errs := vendor.Secret("key_secret", key)
	switch mode, _, _ := strings.Cut(strings.TrimPrefix(cred.KeyID, "rzp_"), "_"); {
	case cred.KeyID == "" || strings.Contains(cred.KeyID, ":") || !httpclient.ValidHeaderValue(cred.KeyID):
		errs = append(errs, errors.New("key_id: missing, or not the id of a key; write for instance rzp_live_AbCd"))
	case (mode == "live" || mode == "test") && mode != c.Mode: // answers do not say their mode, so this is the only place that can
		errs = append(errs, errors.New("key_id: it is one of mode "+mode+", and mode is "+c.Mode+"; write mode: "+mode+" or take the other key"))
	}
	if len(errs) > 0 || desk == nil {
		return account{}, errs
	}
	pair := base64.StdEncoding.EncodeToString([]byte(cred.KeyID + ":" + key))
	h := http.Header{"Authorization": {"Basic " + pair}}
	return account{header: desk.Header(h, http.MethodGet), hide: httpclient.NewRedactor(append(c.Secrets(), key, pair)...)}, nil
}

// Capabilities are what can be done with Razorpay.
func (a *Adapter) Capabilities() gateway.Capabilities { return Config{}.Capabilities() }

// Mode says whether the money is real.
func (a *Adapter) Mode() gateway.Mode { return a.mode }

// Close closes the connections that are not in use.
func (a *Adapter) Close() { a.desk.Close() }

// Timeout is the longest that Poll takes.
func (a *Adapter) Timeout() time.Duration { return a.desk.Timeout() }

// Poll asks Razorpay once: about a payment, pay_…, about an order, order_…, or about the order with our reference as its receipt. It always
// answers, within Timeout; what goes wrong is in the answer's class.
func (a *Adapter) Poll(ctx context.Context, q gateway.Query) gateway.Answer {
	acct, none, missing := a.accounts.Of(q.Account)
	if missing {
		return none
	}
	path, rd, why := question(q)
	if why != "" {
		return vendor.Unaskable("reference %q %s: Razorpay cannot be asked about it", acct.hide.Name(q.Reference, 80), why)
	}
	return a.desk.Ask(ctx, q, httpclient.Request{
		Method: http.MethodGet, URL: a.desk.URL(path, q.Reference), Header: acct.header, Hide: acct.hide,
	}, rd)
}

// question is where to ask about a payment and who reads the answer, or why it cannot be asked about.
func question(q gateway.Query) (path string, rd reply.Reader, why string) {
	why = httpclient.Unsendable(q.Reference)
	switch {
	case why != "":
		return "", nil, why
	case strings.HasPrefix(q.Reference, "pay_"):
		return "/v1/payments/", payments{}, ""
	case strings.HasPrefix(q.Reference, "order_"):
		return "/v1/orders/", orders{}, ""
	case q.ByMerchantRef():
		return "/v1/orders?count=10&receipt=", receipts{}, ""
	}
	return "", nil, "is not the id of a payment (pay_…) or of an order (order_…)"
}
