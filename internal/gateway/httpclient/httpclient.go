// Package httpclient is the one HTTP client that adapters ask gateways with. It trusts neither the gateway nor the network: every
// call has a deadline for all of it, every size a cap, redirects are refused, addresses are checked when they are dialled, and an
// error never repeats a URL's query, a header's value or a password.
package httpclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"pollux/internal/secret"
)

// Config says how a gateway is reached. The zero value of a field is its default, which WithDefaults writes out. It can be part of
// an adapter's configuration.
type Config struct {
	Timeout        time.Duration `koanf:"timeout"`         // For all of a call, from the wait for a place to the last byte. Default 10s.
	ConnectTimeout time.Duration `koanf:"connect_timeout"` // For name resolution and TCP. Default 3s.
	TLSTimeout     time.Duration `koanf:"tls_timeout"`     // For the TLS handshake. Default 5s.
	HeaderTimeout  time.Duration `koanf:"header_timeout"`  // From the sent request to the headers of the answer. Default: `timeout`.
	IdleTimeout    time.Duration `koanf:"idle_timeout"`    // After which a connection that is not used is closed. Default 90s.
	MaxInFlight    int           `koanf:"max_in_flight"`   // Calls of this process at the same time, and connections. Default 64.

	MaxBodyBytes    int64 `koanf:"max_body_bytes"`    // Of a body as it is sent; a larger one is an error. Default 1 MiB.
	MaxDecodedBytes int64 `koanf:"max_decoded_bytes"` // Of a gzip body when it is unpacked. Default: four times `max_body_bytes`.
	MaxHeaderBytes  int64 `koanf:"max_header_bytes"`  // Of the answer's headers. Default 64 KiB.
	Gzip            bool  `koanf:"gzip"`              // Asks for gzip. Without it a compressed answer is an error.

	Hosts         []string      `koanf:"-"`                // The hosts that may be asked, each with its port where that is not the scheme's.
	AllowHTTP     bool          `koanf:"allow_http"`       // Allows URLs without TLS.
	AllowLoopback bool          `koanf:"allow_loopback"`   // Allows addresses of this machine.
	AllowPrivate  bool          `koanf:"allow_private"`    // Allows private networks, carrier-grade NAT and NAT64. Link-local addresses, where clouds hand out credentials, are never allowed.
	Proxy         string        `koanf:"proxy"`            // An `http`, `https` or `socks5` URL. Empty: none; the variables of the environment are not looked at.
	ProxyUser     string        `koanf:"proxy_user"`       // The user at the proxy. Empty: none.
	ProxyPassword secret.Secret `koanf:"proxy_password"`   // The user's password.
	CAFile        string        `koanf:"ca_file"`          // PEM. The only authorities that are trusted. Empty: the machine's.
	ClientCert    string        `koanf:"client_cert_file"` // PEM, for gateways that want a certificate of ours. Empty: none.
	ClientKey     secret.Secret `koanf:"client_key"`       // PEM, the certificate's key.
	UserAgent     string        `koanf:"user_agent"`       // What we call ourselves. Default `pollux`.

	Watch func(Exchange) `koanf:"-"` // Is told of every call, for a person who looks on. It must be safe for concurrent use. Nil: nobody looks.
}

// The defaults of a Config. Timeout is above the p99.9 of every gateway whose numbers are published (Alipay recommends 5 s for an
// inquiry) and far below an AckWait of 30 s. MaxBodyBytes is several hundred times a payment in JSON.
const (
	DefaultTimeout        = 10 * time.Second
	DefaultConnectTimeout = 3 * time.Second
	DefaultTLSTimeout     = 5 * time.Second
	DefaultIdleTimeout    = 90 * time.Second
	DefaultMaxInFlight    = 64
	DefaultMaxBodyBytes   = 1 << 20
	DefaultMaxHeaderBytes = 64 << 10
	DefaultUserAgent      = "pollux"
)

// Secrets are what calls carry besides what their callers give them: the password at the proxy, which a proxy's page of errors may repeat. A Redactor of
// answers is to know them.
func (c Config) Secrets() []string {
	password := c.ProxyPassword.Reveal()
	if password == "" {
		return nil
	}
	return []string{password, base64.StdEncoding.EncodeToString([]byte(c.ProxyUser + ":" + password))}
}

// WithDefaults returns the configuration with every default written out.
func (c Config) WithDefaults() Config {
	orDefault(&c.Timeout, DefaultTimeout)
	orDefault(&c.ConnectTimeout, min(DefaultConnectTimeout, c.Timeout))
	orDefault(&c.TLSTimeout, min(DefaultTLSTimeout, c.Timeout))
	orDefault(&c.HeaderTimeout, c.Timeout)
	orDefault(&c.IdleTimeout, DefaultIdleTimeout)
	orDefault(&c.MaxInFlight, DefaultMaxInFlight)
	orDefault(&c.MaxBodyBytes, DefaultMaxBodyBytes)
	orDefault(&c.MaxDecodedBytes, 4*min(c.MaxBodyBytes, maxBody))
	orDefault(&c.MaxHeaderBytes, DefaultMaxHeaderBytes)
	orDefault(&c.UserAgent, DefaultUserAgent)
	return c
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

const maxBody = 64 << 20

// Validate returns every problem at once, each naming the key and what to write instead. Defaults need not be written out.
func (c Config) Validate() error {
	_, err := c.transport()
	return err
}

func (c Config) problems() []error {
	var errs []error
	check := func(ok bool, format string, a ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, a...))
		}
	}
	check(c.Timeout >= 10*time.Millisecond && c.Timeout <= 5*time.Minute, "timeout %s: between 10ms and 5m", c.Timeout)
	for _, t := range []struct {
		key string
		d   time.Duration
	}{{"connect_timeout", c.ConnectTimeout}, {"tls_timeout", c.TLSTimeout}, {"header_timeout", c.HeaderTimeout}} {
		check(t.d > 0 && t.d <= c.Timeout, "%s %s: more than 0s and at most timeout, %s", t.key, t.d, c.Timeout)
	}
	check(c.IdleTimeout >= time.Second && c.IdleTimeout <= time.Hour, "idle_timeout %s: between 1s and 1h", c.IdleTimeout)
	check(c.MaxInFlight >= 1 && c.MaxInFlight <= 10_000, "max_in_flight %d: between 1 and 10000", c.MaxInFlight)
	check(c.MaxBodyBytes >= 1<<10 && c.MaxBodyBytes <= maxBody, "max_body_bytes %d: between 1024 and %d", c.MaxBodyBytes, maxBody)
	check(c.MaxDecodedBytes >= 1<<10 && c.MaxDecodedBytes <= maxBody*4, "max_decoded_bytes %d: between 1024 and %d", c.MaxDecodedBytes, maxBody*4)
	check(c.MaxHeaderBytes >= 1<<10 && c.MaxHeaderBytes <= 1<<20, "max_header_bytes %d: between 1024 and %d", c.MaxHeaderBytes, 1<<20)
	check(ValidHeaderValue(c.UserAgent), "user_agent: printable ASCII only")
	check(len(c.Hosts) > 0, "no host may be asked")
	return append(errs, c.undialled()...)
}

// Client asks gateways. It is safe for concurrent use.
type Client struct {
	cfg       Config
	transport *http.Transport
	hosts     []string
	slots     chan struct{}
}

// New returns a client, or every problem of its configuration at once.
func New(cfg Config) (*Client, error) {
	cfg = cfg.WithDefaults()
	t, err := cfg.transport()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, transport: t, slots: make(chan struct{}, cfg.MaxInFlight)}
	for _, h := range cfg.Hosts {
		c.hosts = append(c.hosts, strings.ToLower(h))
	}
	return c, nil
}

// Close closes the connections that are not in use.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Timeout is the longest that Do takes.
func (c *Client) Timeout() time.Duration { return c.cfg.Timeout }

// transport builds the transport from what the configuration says, and returns every problem that it has.
func (c Config) transport() (*http.Transport, error) {
	c = c.WithDefaults()
	errs := c.problems()
	proxy, err := c.proxyURL()
	errs = append(errs, err)
	tlsConfig, err := c.tlsConfig()
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: c.ConnectTimeout, KeepAlive: 30 * time.Second, ControlContext: c.guard}
	t := &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    c.TLSTimeout,
		ResponseHeaderTimeout:  c.HeaderTimeout,
		IdleConnTimeout:        c.IdleTimeout,
		MaxConnsPerHost:        c.MaxInFlight,
		MaxIdleConnsPerHost:    c.MaxInFlight,
		MaxIdleConns:           0, // no bound beyond that per host
		MaxResponseHeaderBytes: c.MaxHeaderBytes,
		DisableCompression:     true, // what is unpacked is unpacked here, under a cap
		// HTTP/2 stays off: one stuck connection would stall every call, and one server setting their number.
	}
	if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
		t.DialContext = c.throughProxy(proxy, dialer)
	}
	return t, nil
}

// throughProxy dials the proxy itself without looking at its address: the operator named it, and proxies live in private networks.
// Where the proxy connects to is its own affair.
func (c Config) throughProxy(proxy *url.URL, guarded *net.Dialer) func(context.Context, string, string) (net.Conn, error) {
	free := *guarded
	free.ControlContext = nil
	address := hostPort(proxy)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == address {
			return free.DialContext(ctx, network, addr)
		}
		return guarded.DialContext(ctx, network, addr)
	}
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func (c Config) proxyURL() (*url.URL, error) {
	if c.Proxy == "" {
		return nil, nil
	}
	u, err := url.Parse(c.Proxy)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme):
		return nil, errors.New("proxy: a URL like http://proxy.internal:3128; http, https or socks5")
	case u.User != nil:
		return nil, errors.New("proxy: the user and password go into proxy_user and proxy_password")
	}
	if c.ProxyUser != "" {
		u.User = url.UserPassword(c.ProxyUser, c.ProxyPassword.Reveal())
	}
	return u, nil
}

// maxPEMBytes bounds the files of certificates: the authorities of a whole system take a quarter of it.
const maxPEMBytes = 1 << 20

func (c Config) tlsConfig() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := secret.ReadFile(c.CAFile, maxPEMBytes)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s: no PEM certificate in it", c.CAFile)
		}
	}
	if c.ClientCert == "" && c.ClientKey.IsZero() {
		return t, nil
	}
	if c.ClientCert == "" || c.ClientKey.IsZero() {
		return nil, errors.New("client_cert_file and client_key: both or neither")
	}
	pem, err := secret.ReadFile(c.ClientCert, maxPEMBytes)
	if err != nil {
		return nil, fmt.Errorf("client_cert_file: %w", err)
	}
	pair, err := tls.X509KeyPair(pem, []byte(c.ClientKey.Reveal()))
	if err != nil {
		return nil, fmt.Errorf("client_cert_file %s and client_key are no pair of PEM certificate and key", c.ClientCert)
	}
	t.Certificates = []tls.Certificate{pair}
	return t, nil
}

// CertificateEnds is when the certificate ends that we show to the gateway; zero without one, and where Validate says what is wrong with it.
func (c Config) CertificateEnds() time.Time {
	t, err := c.tlsConfig()
	if err != nil || len(t.Certificates) == 0 {
		return time.Time{}
	}
	return t.Certificates[0].Leaf.NotAfter
}

// Request is one question to a gateway. Header and Body are not changed and may be used by several requests at once. The call must
// be harmless when it is made twice: one that a closed connection swallowed is made again.
type Request struct {
	Method string
	URL    string
	Header http.Header // in canonical form
	Body   []byte
	Hide   *Redactor // knows the secrets of the request, for Config.Watch; nil knows none
}

// Response is what the gateway said. When Do returns an error together with a Status, the head of the answer is whole and Body is
// what had come of the rest.
type Response struct {
	Status int // 0 when no answer came
	Header http.Header
	Body   []byte
	Took   time.Duration // from sending the request to the last byte
}

// errDeadline is the cause of a call's own deadline; errors that are our own have other causes.
var errDeadline = errors.New("the deadline of the call")

// Do asks once and reads the whole answer, which is appended to buf[:0]. It takes Config.Timeout at most. Its error is an *Error.
func (c *Client) Do(ctx context.Context, r Request, buf []byte) (Response, error) {
	resp, err := c.do(ctx, r, buf)
	c.watched(r, resp, err)
	if err != nil {
		return resp, err
	}
	return resp, nil
}

func (c *Client) do(ctx context.Context, r Request, buf []byte) (Response, *Error) {
	if ctx.Err() != nil {
		return Response{}, classify(ctx, ctx, ctx.Err(), waiting)
	}
	call, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, errDeadline)
	defer cancel()
	req, e := c.request(call, r)
	if e != nil {
		return Response{}, e
	}
	waited, e := c.acquire(ctx)
	if e != nil {
		return Response{}, e
	}
	defer func() { <-c.slots }()

	spanned, ended := spanOf(call, req)
	if spanned != call {
		req = req.WithContext(spanned)
	}
	sent := time.Now()
	resp, e := c.roundTrip(ctx, call, req, buf)
	resp.Took = time.Since(sent)
	ended(resp, e)
	if e == nil {
		return resp, nil
	}
	if e.Kind == Timeout && call.Err() != nil && waited > c.cfg.Timeout/10 {
		e.Kind = Busy // the gateway did not have the time that it is granted: the wait before it took some
	}
	e.host = req.URL.Host
	return resp, e
}

// request builds the request. Anything wrong with it is our own doing.
func (c *Client) request(ctx context.Context, r Request) (*http.Request, *Error) {
	var body io.Reader
	if r.Body != nil {
		body = bytes.NewReader(r.Body)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, body)
	if err != nil {
		return nil, &Error{Kind: Unasked, detail: "the URL or the method is not valid"}
	}
	req.Header = r.Header
	if req.Header == nil {
		req.Header = http.Header{}
	}
	switch {
	case req.URL.User != nil:
		return nil, &Error{Kind: Unasked, detail: "the URL has a user in it"}
	case req.URL.Scheme != "https" && !(req.URL.Scheme == "http" && c.cfg.AllowHTTP):
		return nil, &Error{Kind: Unasked, detail: "the URL is not https"}
	case !slices.Contains(c.hosts, strings.ToLower(req.URL.Host)):
		return nil, &Error{Kind: Unasked, detail: "the host is not one that may be asked", host: req.URL.Host}
	}
	return req, nil
}

// Prepare returns a copy of h with the headers that every request has: User-Agent and Accept-Encoding. A POST is marked as one that
// may be sent again when a connection that was kept alive turns out to be closed; the mark itself is not sent.
func (c *Client) Prepare(h http.Header, method string) http.Header {
	h = h.Clone()
	if h == nil {
		h = http.Header{}
	}
	if h.Get("User-Agent") == "" {
		h.Set("User-Agent", c.cfg.UserAgent)
	}
	h.Set("Accept-Encoding", "identity")
	if c.cfg.Gzip {
		h.Set("Accept-Encoding", "gzip")
	}
	if method != http.MethodGet && h.Values("Idempotency-Key") == nil {
		h["Idempotency-Key"] = []string{}
	}
	return h
}

// acquire waits for one of the places, at most half of the timeout, and returns for how long it did.
func (c *Client) acquire(ctx context.Context) (waited time.Duration, _ *Error) {
	select {
	case c.slots <- struct{}{}:
		return 0, nil
	default:
	}
	began := time.Now()
	t := time.NewTimer(c.cfg.Timeout / 2)
	defer t.Stop()
	select {
	case c.slots <- struct{}{}:
		return time.Since(began), nil
	case <-t.C:
		return 0, &Error{Kind: Busy, detail: fmt.Sprintf("max_in_flight: %d calls were under way for %s", c.cfg.MaxInFlight, c.cfg.Timeout/2)}
	case <-ctx.Done():
		return 0, classify(ctx, ctx, ctx.Err(), waiting)
	}
}

func (c *Client) roundTrip(parent, call context.Context, req *http.Request, buf []byte) (Response, *Error) {
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return Response{}, classify(parent, call, err, asking)
	}
	defer resp.Body.Close()
	out := Response{Status: resp.StatusCode, Header: resp.Header, Body: buf[:0]}
	switch {
	case resp.ProtoMajor != 1:
		return Response{}, &Error{Kind: Protocol, detail: "not HTTP/1"}
	case resp.StatusCode < 200:
		return out, &Error{Kind: Protocol, detail: fmt.Sprintf("status %d is no answer", resp.StatusCode)}
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return out, redirected(resp)
	}
	out.Body, err = c.read(resp, buf[:0])
	if err != nil {
		return out, classify(parent, call, err, reading)
	}
	return out, nil
}

// redirected names the host that the gateway wanted to send us to, and nothing else of that URL.
func redirected(resp *http.Response) *Error {
	e := &Error{Kind: Redirect, detail: fmt.Sprintf("status %d", resp.StatusCode)}
	if u, err := resp.Location(); err == nil && u.Host != "" {
		e.detail += " to " + plain.Text(u.Hostname(), 100)
	}
	return e
}

// read appends the body to buf, under the caps.
func (c *Client) read(resp *http.Response, buf []byte) ([]byte, error) {
	switch strings.ToLower(strings.Join(resp.Header.Values("Content-Encoding"), ",")) {
	case "", "identity":
		return readAll(resp.Body, buf, resp.ContentLength, c.cfg.MaxBodyBytes)
	case "gzip", "x-gzip":
		if c.cfg.Gzip {
			return c.gunzip(resp.Body, buf)
		}
	}
	return buf, errEncoded
}

var (
	errEncoded = errors.New("the answer is compressed in a way that was not asked for")
	errLarge   = errors.New("the answer is larger than its cap")
)

// readAll appends all of r to buf, and fails when that is more than most bytes. The announced length may be a lie.
func readAll(r io.Reader, buf []byte, announced, most int64) ([]byte, error) {
	if announced > most {
		return buf, errLarge
	}
	if announced > 0 {
		buf = slices.Grow(buf, int(min(announced, 64<<10))+1) // one more, so that the end is seen without growing
	}
	start := len(buf)
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, 512)
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)-start) > most:
			return buf[:start+int(most)], errLarge
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return buf, err
		}
	}
}

var unpackers sync.Pool

// gunzip unpacks a body while it comes. Both ends are capped: what is sent and what it becomes.
func (c *Client) gunzip(body io.Reader, buf []byte) ([]byte, error) {
	u, _ := unpackers.Get().(*unpacker)
	if u == nil {
		u = new(unpacker)
	}
	defer unpackers.Put(u)
	u.sent = capped{body, c.cfg.MaxBodyBytes}
	defer func() { u.sent.r = nil }()
	if err := u.zip.Reset(&u.sent); err != nil {
		if err == io.EOF { // an empty body, as a HEAD or a 204 has
			err = nil
		}
		return buf, err
	}
	return readAll(&u.zip, buf, -1, c.cfg.MaxDecodedBytes)
}
