package paypal

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"sync"
	"time"

	"pollux/internal/gateway/httpclient"
	"pollux/internal/webhook"
)

// source is where a certificate is, and whose it must be.
type source struct{ url, name, mode string }

// certificateOf are the addresses that PayPal names its certificates by. A path cannot lead elsewhere, nor can a host that merely ends so.
var certificateOf = regexp.MustCompile(`^https://(api(?:-m)?(?:\.sandbox)?\.paypal\.com)/v1/notifications/certs/[A-Za-z0-9-]{1,128}$`)

// sourceOf reads the address of a certificate and refuses every one that is not PayPal's, before anybody asks it.
func sourceOf(url string) (source, bool) {
	m := certificateOf.FindStringSubmatch(url)
	switch {
	case m == nil:
		return source{}, false
	case m[1] == "api.sandbox.paypal.com", m[1] == "api-m.sandbox.paypal.com":
		return source{url, "messageverificationcerts.sandbox.paypal.com", "test"}, true
	}
	return source{url, "messageverificationcerts.paypal.com", "live"}, true
}

// The bounds of fetching certificates, for everybody may name any number of addresses: PayPal changes its certificate about once a year.
const (
	maxCertificates = 16          // that are kept
	fetchesAtOnce   = 8           // that may be made one after the other,
	fetchEvery      = time.Minute // and one more each time so long later
	fetchTimeout    = 3 * time.Second
	maxCertificate  = 64 << 10
	refusedFor      = 10 * time.Minute // an address without a good certificate is not asked again
)

// certificates are the verified certificates that notifications were signed with. It is safe for concurrent use.
type certificates struct {
	fetch func(ctx context.Context, url string) (status int, body []byte, err error)
	roots *x509.CertPool // nil: the machine's
	turn  chan struct{}  // one is fetched at a time

	mu     sync.Mutex
	keys   map[string]known
	budget int
	filled time.Time // when the budget was last added to
}

// known is what is known of an address: its key, or that it has none.
type known struct {
	key   *rsa.PublicKey
	until time.Time
}

func newCertificates() (*certificates, error) {
	client, err := httpclient.New(httpclient.Config{Timeout: fetchTimeout, MaxInFlight: 1, MaxBodyBytes: maxCertificate,
		Hosts: []string{"api.paypal.com", "api-m.paypal.com", "api.sandbox.paypal.com", "api-m.sandbox.paypal.com"}})
	if err != nil {
		return nil, fmt.Errorf("asking for certificates: %w", err)
	}
	header := client.Prepare(http.Header{}, http.MethodGet)
	return &certificates{keys: map[string]known{}, turn: make(chan struct{}, 1), budget: fetchesAtOnce,
		fetch: func(ctx context.Context, url string) (int, []byte, error) {
			resp, err := client.Do(ctx, httpclient.Request{Method: http.MethodGet, URL: url, Header: header}, nil)
			return resp.Status, resp.Body, err
		}}, nil
}

// known returns the key of a certificate that was fetched before and still counts.
func (c *certificates) known(s source, now time.Time) (*rsa.PublicKey, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.keys[s.url]
	return k.key, ok && k.key != nil && now.Before(k.until)
}

// of returns the key of a certificate, and fetches it if need be. It returns a Refusal for what is none, and ErrUnavailable when that cannot be said now.
func (c *certificates) of(ctx context.Context, s source, now time.Time) (*rsa.PublicKey, error) {
	if key, err, settled := c.settled(s, now); settled {
		return key, err
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, webhook.ErrUnavailable
	}
	if key, err, settled := c.settled(s, now); settled { // somebody else fetched it meanwhile
		return key, err
	}
	if !c.spend(now) {
		return nil, fmt.Errorf("%w: too many certificates were asked for", webhook.ErrUnavailable)
	}
	status, body, err := c.fetch(ctx, s.url)
	switch {
	case status >= 400 && status < 500 && status != http.StatusTooManyRequests:
		c.keep(s, known{until: now.Add(refusedFor)})
		return nil, webhook.RefusedSender
	case err != nil:
		return nil, fmt.Errorf("%w: fetching its certificate: %w", webhook.ErrUnavailable, err)
	case status != http.StatusOK:
		return nil, fmt.Errorf("%w: fetching its certificate: HTTP %d", webhook.ErrUnavailable, status)
	}
	key, until, err := c.verify(body, s, now)
	if err != nil {
		c.keep(s, known{until: now.Add(refusedFor)})
		return nil, webhook.RefusedSender
	}
	c.keep(s, known{key, until})
	return key, nil
}

// settled returns what is known about an address.
func (c *certificates) settled(s source, now time.Time) (*rsa.PublicKey, error, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.keys[s.url]
	switch {
	case !ok || !now.Before(k.until):
		return nil, nil, false
	case k.key == nil:
		return nil, webhook.RefusedSender, true
	}
	return k.key, nil, true
}

// spend takes one fetch out of the budget.
func (c *certificates) spend(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := int(now.Sub(c.filled) / fetchEvery); n > 0 {
		c.budget, c.filled = min(fetchesAtOnce, c.budget+n), now
	}
	if c.budget == 0 {
		return false
	}
	c.budget--
	return true
}

// keep remembers what is known about an address. When there are too many, one without a key makes place first.
func (c *certificates) keep(s source, k known) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for url, old := range c.keys {
		if len(c.keys) >= maxCertificates && old.key == nil {
			delete(c.keys, url)
		}
	}
	for url := range c.keys {
		if len(c.keys) >= maxCertificates {
			delete(c.keys, url)
		}
	}
	c.keys[s.url] = k
}

// verify checks the chain of a certificate (PEM, its own first) up to an authority that is trusted, and whose it is.
func (c *certificates) verify(chain []byte, s source, now time.Time) (*rsa.PublicKey, time.Time, error) {
	var leaf *x509.Certificate
	between := x509.NewCertPool()
	for range 8 {
		var block *pem.Block
		if block, chain = pem.Decode(chain); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, time.Time{}, err
		}
		if leaf == nil {
			leaf = cert
		} else {
			between.AddCert(cert)
		}
	}
	if leaf == nil {
		return nil, time.Time{}, errors.New("no certificate")
	}
	_, err := leaf.Verify(x509.VerifyOptions{DNSName: s.name, Roots: c.roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return nil, time.Time{}, err
	}
	key, ok := leaf.PublicKey.(*rsa.PublicKey)
	if !ok || key.Size() < 256 {
		return nil, time.Time{}, errors.New("no RSA key of 2048 bits or more")
	}
	return key, leaf.NotAfter, nil
}
