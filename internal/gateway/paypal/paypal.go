// Package paypal asks PayPal about orders, captures and authorizations. docs/gateways/paypal.md describes how to connect.
package paypal

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/vendor"
	"pollux/internal/secret"
)

// Config attaches an account of PayPal, or several. What each key means to an operator is in docs/gateways/paypal.md.
type Config struct {
	Credentials `koanf:",squash"` // Of the default account, and of all accounts where `accounts` is empty.

	Accounts map[string]Credentials `koanf:"accounts"` // The credentials of each account. Where there are some, an account without is refused.
	Resource string                 `koanf:"resource"` // What payments are tracked with the id of: `order`, `capture` or `authorization`. Default `order`.

	vendor.Config `koanf:",squash"`
}

// Credentials are what one account authorises with.
type Credentials struct {
	ClientID     string        `koanf:"client_id"`     // The client id of a REST app. Required.
	ClientSecret secret.Secret `koanf:"client_secret"` // Its secret. Required.
}

// The defaults of a Config. PayPal asks not to be polled and names no number; a minute is what a shopper waits whose webhook was lost.
const (
	LiveBaseURL     = "https://api-m.paypal.com"
	TestBaseURL     = "https://api-m.sandbox.paypal.com"
	DefaultResource = "order"
	MinInterval     = time.Minute
)

// WithDefaults returns the configuration with every default written out.
func (c Config) WithDefaults() Config {
	c.Config = c.Config.WithDefaults(LiveBaseURL, TestBaseURL)
	if c.Resource == "" {
		c.Resource = DefaultResource
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

// Capabilities are what can be done with PayPal. It asks integrators to take webhooks and not to poll (developer.paypal.com, "Rate limiting").
func (c Config) Capabilities() gateway.Capabilities {
	return gateway.Capabilities{Polling: gateway.Sparingly, MinInterval: MinInterval}
}

// resources are where each kind of thing is asked for, and who reads it.
var resources = map[string]struct {
	path   string
	reader reply.Reader
}{
	"order":         {"/v2/checkout/orders/", orders{}},
	"capture":       {"/v2/payments/captures/", captures{}},
	"authorization": {"/v2/payments/authorizations/", authorizations{}},
}

// Adapter asks PayPal. It is safe for concurrent use.
type Adapter struct {
	desk     *vendor.Desk
	accounts vendor.Accounts[*account]
	path     string
	reader   reply.Reader
	mode     gateway.Mode
}

// account is one of ours at PayPal, with the token that it has at the moment.
type account struct {
	header  http.Header // of a request for a token; shared
	base    http.Header // of every other request, without its token; shared
	secrets []string
	tokens  *tokens
}

// New returns an adapter, or every problem of its configuration at once.
func New(c Config) (*Adapter, error) {
	c = c.WithDefaults()
	desk, errs := vendor.Open(c.Config)
	resource, known := resources[c.Resource]
	if !known {
		errs = append(errs, fmt.Errorf("resource: %.40q is not known; order, capture or authorization", c.Resource))
	}
	accounts, problems := vendor.Accounting(c.Name, c.Credentials, c.Accounts, func(cred Credentials) (*account, []error) {
		return newAccount(desk, cred, c.Secrets())
	})
	if err := errors.Join(append(errs, problems...)...); err != nil {
		return nil, err
	}
	return &Adapter{desk: desk, accounts: accounts, path: resource.path, reader: resource.reader, mode: gateway.Mode(c.Mode)}, nil
}

func newAccount(desk *vendor.Desk, cred Credentials, also []string) (*account, []error) {
	key := cred.ClientSecret.Reveal()
	errs := vendor.Secret("client_secret", key)
	if cred.ClientID == "" || strings.Contains(cred.ClientID, ":") || !httpclient.ValidHeaderValue(cred.ClientID) {
		errs = append(errs, errors.New("client_id: missing, or not the id of an app"))
	}
	if len(errs) > 0 || desk == nil {
		return nil, errs
	}
	pair := base64.StdEncoding.EncodeToString([]byte(cred.ClientID + ":" + key))
	form := http.Header{"Authorization": {"Basic " + pair}, "Content-Type": {"application/x-www-form-urlencoded"}}
	return &account{
		header: desk.Header(form, http.MethodPost), base: desk.Header(http.Header{}, http.MethodGet), secrets: append(also, key, pair), tokens: newTokens(),
	}, nil
}

// Capabilities are what can be done with PayPal.
func (a *Adapter) Capabilities() gateway.Capabilities { return Config{}.Capabilities() }

// Mode says whether the money is real.
func (a *Adapter) Mode() gateway.Mode { return a.mode }

// Close closes the connections that are not in use.
func (a *Adapter) Close() { a.desk.Close() }

// Timeout is the longest that Poll takes, the fetch of a token included.
func (a *Adapter) Timeout() time.Duration { return a.desk.Timeout() }

// Poll asks PayPal once about one payment. It always answers, within Timeout; what goes wrong is in the answer's class. Where the token is refused
// that it had, it fetches another and asks once more.
func (a *Adapter) Poll(ctx context.Context, q gateway.Query) gateway.Answer {
	acct, none, missing := a.accounts.Of(q.Account)
	if missing {
		return none
	}
	if why := unaskable(q.Reference); why != "" {
		return vendor.Unaskable("reference %q %s: PayPal cannot be asked about it", httpclient.NewRedactor(acct.secrets...).Name(q.Reference, 80), why)
	}
	return a.ask(ctx, acct, q, a.desk.URL(a.path, q.Reference), a.reader)
}

// ask asks with the account's token and, where that is refused, once more with another.
func (a *Adapter) ask(ctx context.Context, acct *account, q gateway.Query, url string, rd reply.Reader) gateway.Answer {
	ctx, cancel := context.WithTimeout(ctx, a.desk.Timeout())
	defer cancel()
	began := time.Now()
	refused := 0
	for {
		t, ans, failed := acct.tokens.take(ctx, refused, func() (token, gateway.Answer) { return a.fetch(ctx, acct, q) })
		if failed {
			return ans
		}
		ans = a.desk.Ask(ctx, q, httpclient.Request{
			Method: http.MethodGet, URL: url, Header: t.header, Hide: t.hide,
		}, rd)
		if ans.HTTPStatus != http.StatusUnauthorized || refused != 0 {
			ans.Took = max(ans.Took, time.Since(began)) // what the fleet's breaker takes for slow includes the token
			return ans
		}
		refused = t.serial
	}
}

// unaskable says why a reference cannot be an id of PayPal's, or is empty.
func unaskable(reference string) string {
	why := httpclient.Unsendable(reference)
	if why == "" && strings.ContainsFunc(reference, func(c rune) bool { return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && c != '-' }) {
		return "is not an id, which has capital letters, digits and dashes"
	}
	return why
}
