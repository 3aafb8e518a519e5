// Package vendor is what the adapters of named gateways have in common: one connection to the vendor, many accounts on it, and one way to ask.
package vendor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
)

// Config is what every named adapter can be told. The zero value of a field is its default.
type Config struct {
	Mode          string        `koanf:"mode"`            // `live` or `test`: whether the money is real. An answer from the other mode is a mismatch. Default `live`.
	BaseURL       string        `koanf:"base_url"`        // Where the vendor's API is. Secrets are sent there. Not written: where the vendor has it, by the mode.
	MaxRetryAfter time.Duration `koanf:"max_retry_after"` // What the gateway asks for beyond this is cut to it. Default 1h.

	httpclient.Config `koanf:",squash"`

	Name string `koanf:"-"` // The gateway's name, for messages.
}

// DefaultMaxRetryAfter is as long as a pause can be that is a wish and no mistake; the policy has a bound of its own.
const DefaultMaxRetryAfter = time.Hour

// WithDefaults returns the configuration with every default written out. live and test are where the vendor has its API.
func (c Config) WithDefaults(live, test string) Config {
	c.Config = c.Config.WithDefaults()
	if c.Mode == "" {
		c.Mode = string(gateway.Live)
	}
	if c.BaseURL == "" {
		c.BaseURL = live
		if c.Mode == string(gateway.Test) {
			c.BaseURL = test
		}
	}
	if c.MaxRetryAfter == 0 {
		c.MaxRetryAfter = DefaultMaxRetryAfter
	}
	return c
}

// Client is how the gateway is reached.
func (c *Config) Client() *httpclient.Config { return &c.Config }

// Live reports whether the money is real.
func (c Config) Live() bool { return c.Mode == string(gateway.Live) }

// Desk asks one vendor. It is safe for concurrent use.
type Desk struct {
	name    string
	base    string
	client  *httpclient.Client
	terms   reply.Terms
	scratch sync.Pool // of *scratch
}

// scratch is memory that polls use one after another.
type scratch struct {
	answer []byte
	doc    strictjson.Document
}

// maxScratch is the largest answer whose memory is kept.
const maxScratch = 64 << 10

// Open returns the desk of a configuration whose defaults are written out, or every problem of it, each naming the key. Besides the host of
// base_url only the hosts that are given may be asked.
func Open(c Config, hosts ...string) (*Desk, []error) {
	var errs []error
	if c.Mode != string(gateway.Live) && c.Mode != string(gateway.Test) {
		errs = append(errs, fmt.Errorf("mode: %.20q is not known; live or test", c.Mode))
	}
	if c.MaxRetryAfter < time.Second || c.MaxRetryAfter > 24*time.Hour {
		errs = append(errs, fmt.Errorf("max_retry_after: %s: between 1s and 24h", c.MaxRetryAfter))
	}
	u, err := url.Parse(c.BaseURL)
	switch {
	case err != nil || u.Hostname() == "" || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http":
		errs = append(errs, errors.New("base_url: not a URL like https://api.example.com"))
		u = &url.URL{Host: "unknown.invalid"}
	case u.Scheme == "http" && !c.AllowHTTP:
		errs = append(errs, errors.New("base_url: without TLS the key could be read and a status changed by anybody on the way; write https, or allow_http: true for a gateway on this machine"))
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		errs = append(errs, errors.New("base_url: no user, query or fragment belongs into it"))
	}
	c.Hosts = append([]string{u.Host}, hosts...)
	client, err := httpclient.New(c.Config)
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return &Desk{
		name: c.Name, base: strings.TrimRight(c.BaseURL, "/"), client: client, terms: reply.Terms{MaxRetryAfter: c.MaxRetryAfter},
	}, nil
}

// Close closes the connections that are not in use.
func (d *Desk) Close() { d.client.Close() }

// Timeout is the longest that one call takes.
func (d *Desk) Timeout() time.Duration { return d.client.Timeout() }

// Header returns a copy of h with the headers that every request of a method has.
func (d *Desk) Header(h http.Header, method string) http.Header {
	h = h.Clone()
	h.Set("Accept", "application/json")
	return d.client.Prepare(h, method)
}

// URL is an address of the API: a path that the vendor has, and behind it a value, which can be nothing but a segment of it, or nothing.
func (d *Desk) URL(path, value string) string {
	return string(httpclient.AppendEscaped([]byte(d.base+path), value))
}

// Ask asks once about a payment and reads the answer. Whatever goes wrong is in the answer's class.
func (d *Desk) Ask(ctx context.Context, q gateway.Query, r httpclient.Request, rd reply.Reader) gateway.Answer {
	s, _ := d.scratch.Get().(*scratch)
	if s == nil {
		s = new(scratch)
	}
	resp, err := d.client.Do(ctx, r, s.answer)
	s.answer = resp.Body
	ans := d.terms.Read(rd, reply.Call{Query: q, Hide: r.Hide, HTTP: resp, Err: err}, &s.doc, time.Now())
	if cap(s.answer) <= maxScratch {
		d.scratch.Put(s)
	}
	return ans
}

// Unaskable is the answer about a payment that cannot be asked for: it will be no different next time, so a person has to look.
func Unaskable(format string, a ...any) gateway.Answer {
	return gateway.Answer{Class: gateway.Mismatch, Message: fmt.Sprintf(format, a...)}
}

// Accounts are what requests for each of our accounts have in common. The zero value has none. It is safe for concurrent use.
type Accounts[A any] struct {
	gateway  string
	named    map[string]A
	fallback *A
}

// Accounting makes the accounts of their credentials, or returns what is wrong with them. The default account is that of payments that name
// none, and where no account is named that of all payments. make returns problems that begin with the key.
func Accounting[C comparable, A any](gateway string, fallback C, named map[string]C, make func(C) (A, []error)) (Accounts[A], []error) {
	all := Accounts[A]{gateway: gateway, named: map[string]A{}}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if name == "" {
			errs = append(errs, errors.New("accounts: the default account has no name; its credentials stand beside accounts"))
		}
		a, problems := make(named[name])
		for _, err := range problems {
			errs = append(errs, fmt.Errorf("accounts.%s.%w", name, err))
		}
		all.named[name] = a
	}
	var none C
	if len(named) > 0 && fallback == none {
		return all, errs
	}
	a, problems := make(fallback)
	all.fallback = &a
	return all, append(errs, problems...)
}

// Of returns the account of a payment. It reports true with an answer when there is none: another account's key is never used for it.
func (all Accounts[A]) Of(name string) (A, gateway.Answer, bool) {
	a, ok := all.named[name]
	switch {
	case ok:
		return a, gateway.Answer{}, false
	case all.fallback != nil && (name == "" || len(all.named) == 0):
		return *all.fallback, gateway.Answer{}, false
	}
	return a, gateway.Answer{
		Class:   gateway.Unauthorized,
		Message: fmt.Sprintf("no credentials for account %.128q of %.64s: add it to accounts", name, all.gateway),
	}, true
}

// Named are the names of the accounts that have one, sorted.
func (all Accounts[A]) Named() []string { return slices.Sorted(maps.Keys(all.named)) }

// Secret checks that a secret is there and can be sent in a header. It returns nil when it can.
func Secret(key, value string) []error {
	switch {
	case value == "":
		return []error{fmt.Errorf("%s: missing; write file:/path or env:NAME", key)}
	case !httpclient.ValidHeaderValue(value):
		return []error{fmt.Errorf("%s: printable ASCII only, without a blank or a line break around it", key)}
	}
	return nil
}
