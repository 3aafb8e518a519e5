// Package iyzico asks iyzico about payments, with signed requests and signed answers. docs/gateways/iyzico.md describes how to connect.
package iyzico

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/vendor"
	"pollux/internal/secret"
)

// Config attaches an account of iyzico, or several. What each key means to an operator is in docs/gateways/iyzico.md.
type Config struct {
	Credentials `koanf:",squash"` // Of the default account, and of all accounts where `accounts` is empty.

	Accounts      map[string]Credentials `koanf:"accounts"`        // The credentials of each account. Where there are some, an account without is refused.
	AllowUnsigned bool                   `koanf:"allow_unsigned"`  // Takes answers that have no signature. One with a wrong signature is refused all the same.
	NotFoundCodes []string               `koanf:"not_found_codes"` // Error codes that say that iyzico does not know the payment. Default `5115`.

	vendor.Config `koanf:",squash"`
}

// Credentials are what one account authorises with.
type Credentials struct {
	APIKey    string        `koanf:"api_key"`    // The merchant's API key. Required.
	SecretKey secret.Secret `koanf:"secret_key"` // Its secret. Required.
}

// Where iyzico has its API.
const (
	LiveBaseURL = "https://api.iyzipay.com"
	TestBaseURL = "https://sandbox-api.iyzipay.com"
)

// WithDefaults returns the configuration with every default written out.
func (c Config) WithDefaults() Config {
	c.Config = c.Config.WithDefaults(LiveBaseURL, TestBaseURL)
	if c.NotFoundCodes == nil {
		c.NotFoundCodes = []string{"5115"}
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

// Capabilities are what can be done with iyzico: a payment is found by its conversation id, which is our reference.
func (c Config) Capabilities() gateway.Capabilities { return gateway.Capabilities{ByMerchantRef: true} }

// Adapter asks iyzico. It is safe for concurrent use.
type Adapter struct {
	desk     *vendor.Desk
	accounts vendor.Accounts[account]
	reader   reader
	mode     gateway.Mode
}

// account is what requests for one account have in common.
type account struct {
	header http.Header // shared by all requests; each has its signature besides
	apiKey string
	key    []byte
	hide   *httpclient.Redactor
}

var code = regexp.MustCompile(`^[0-9]{1,8}$`)

// New returns an adapter, or every problem of its configuration at once.
func New(c Config) (*Adapter, error) {
	c = c.WithDefaults()
	desk, errs := vendor.Open(c.Config)
	unknown := map[string]bool{}
	for _, s := range c.NotFoundCodes {
		if !code.MatchString(s) {
			errs = append(errs, fmt.Errorf("not_found_codes: %.40q is not an error code, which is a number in quotes", s))
		}
		unknown[s] = true
	}
	accounts, problems := vendor.Accounting(c.Name, c.Credentials, c.Accounts, func(cred Credentials) (account, []error) {
		key := cred.SecretKey.Reveal()
		errs := vendor.Secret("secret_key", key)
		if cred.APIKey == "" || !httpclient.ValidHeaderValue(cred.APIKey) {
			errs = append(errs, errors.New("api_key: missing, or not printable ASCII"))
		}
		if len(errs) > 0 || desk == nil {
			return account{}, errs
		}
		h := desk.Header(http.Header{"Content-Type": {"application/json"}}, http.MethodPost)
		return account{header: h, apiKey: cred.APIKey, key: []byte(key), hide: httpclient.NewRedactor(append(c.Secrets(), key)...)}, nil
	})
	if err := errors.Join(append(errs, problems...)...); err != nil {
		return nil, err
	}
	return &Adapter{desk: desk, accounts: accounts, reader: reader{allowUnsigned: c.AllowUnsigned, unknown: unknown}, mode: gateway.Mode(c.Mode)}, nil
}

// Capabilities are what can be done with iyzico.
func (a *Adapter) Capabilities() gateway.Capabilities { return Config{}.Capabilities() }

// Mode says whether the money is real.
func (a *Adapter) Mode() gateway.Mode { return a.mode }

// Close closes the connections that are not in use.
func (a *Adapter) Close() { a.desk.Close() }

// Timeout is the longest that Poll takes.
func (a *Adapter) Timeout() time.Duration { return a.desk.Timeout() }

// detail is where one payment is asked for.
const detail = "/payment/detail"

// Poll asks iyzico once: about a payment, or about the one with our reference as its conversation id. It always answers, within Timeout; what goes
// wrong is in the answer's class.
func (a *Adapter) Poll(ctx context.Context, q gateway.Query) gateway.Answer {
	acct, none, missing := a.accounts.Of(q.Account)
	if missing {
		return none
	}
	if why := httpclient.Unsendable(q.Reference); why != "" {
		return vendor.Unaskable("reference %q %s: iyzico cannot be asked about it", acct.hide.Name(q.Reference, 80), why)
	}
	body := question(q)
	header := maps.Clone(acct.header)
	acct.sign(header, nonce(), detail, body)
	rd := a.reader
	rd.key = acct.key
	return a.desk.Ask(ctx, q, httpclient.Request{
		Method: http.MethodPost, URL: a.desk.URL(detail, ""), Header: header, Body: body, Hide: acct.hide,
	}, rd)
}

// question is the body of a request: a payment by its id, or by the conversation that it was made in. What is sent as the conversation of this
// request comes back in the answer.
func question(q gateway.Query) []byte {
	body := struct {
		Locale       string `json:"locale"`
		Conversation string `json:"conversationId,omitempty"`
		Payment      string `json:"paymentId,omitempty"`
		MadeIn       string `json:"paymentConversationId,omitempty"`
	}{Locale: "en", Conversation: q.MerchantRef, Payment: q.Reference}
	if q.ByMerchantRef() {
		body.Payment, body.MadeIn = "", q.MerchantRef
	}
	b, _ := json.Marshal(body) // text always has a form
	return b
}

// sign authorises a request: scheme IYZWSv2, HMAC-SHA256 over a random key, the path and the body (docs.iyzico.com, "HMACSHA256 Auth").
func (acct account) sign(h http.Header, random, path string, body []byte) {
	mac := hmac.New(sha256.New, acct.key)
	mac.Write([]byte(random + path))
	mac.Write(body)
	pair := "apiKey:" + acct.apiKey + "&randomKey:" + random + "&signature:" + hex.EncodeToString(mac.Sum(nil))
	h["Authorization"] = []string{"IYZWSv2 " + base64.StdEncoding.EncodeToString([]byte(pair))}
	h["X-Iyzi-Rnd"] = []string{random}
}

// nonce is 128 random bits: no two requests have the same.
func nonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, says crypto/rand
	return hex.EncodeToString(b[:])
}
