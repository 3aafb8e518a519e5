package broker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"pollux/internal/certificate"
	"pollux/internal/secret"
)

// Config says which NATS to connect to and how. Its zero value connects to nats://127.0.0.1:4222 without credentials. At most one
// of CredentialsFile, NKeyFile and User may be set; files are read again at each reconnect, so that rotated ones are taken up.
type Config struct {
	// URLs of the servers of one cluster, as nats://host:port or tls://host:port.
	URLs []string `koanf:"urls"`
	// Name is how the connection is called in the server's own monitoring.
	Name string `koanf:"name"`

	CredentialsFile string        `koanf:"credentials_file"` // a JWT with its seed, as nsc writes it
	NKeyFile        string        `koanf:"nkey_file"`        // an nkey's seed
	User            string        `koanf:"user"`
	Password        secret.Secret `koanf:"password"`
	PasswordFile    string        `koanf:"password_file"` // instead of Password; a line break at its end is dropped

	// TLS, when set, has the authorities that the servers' certificates are checked against and our own certificate, as they are at each connection; servers without TLS
	// are refused then.
	TLS        *certificate.Source `koanf:"-"`
	ServerName string              `koanf:"server_name"` // in the servers' certificates, where it is not the host of their URL

	// InboxPrefix is what the subjects of answers to us begin with, for servers that let a user read its own inboxes only. Empty means _INBOX.
	InboxPrefix string `koanf:"inbox_prefix"`

	// PublishTimeout is how long a publish waits for the stream's acknowledgement before its outcome counts as unknown. 0 means 10s.
	PublishTimeout time.Duration `koanf:"publish_timeout"`
	// MaxOutstanding is how many messages may be published and not acknowledged yet. 0 means 4096; it is at least one full batch, 1000. A
	// stream refuses what exceeds 100,000 messages waiting in it from all publishers together.
	MaxOutstanding int `koanf:"max_outstanding"`
	// Batches is when many messages are published as atomic batches: auto (or nothing), always or never. Auto measures each stream and uses
	// them where its server syncs the disk for every message; docs/decisions/0003-atomic-batches.md says why.
	Batches string `koanf:"batches"`
	// BatchThreshold is from how many messages of one stream on a publish considers batches. 0 means 64.
	BatchThreshold int `koanf:"batch_threshold"`

	// InProcess, when set, is the server itself: no socket is opened and URLs are not looked at. For a laptop and for tests.
	InProcess nats.InProcessConnProvider `koanf:"-"`
}

// The values of Config.Batches.
const (
	BatchesAuto   = "auto"
	BatchesAlways = "always"
	BatchesNever  = "never"
)

const (
	defaultURL            = "nats://127.0.0.1:4222"
	defaultPublishTimeout = 10 * time.Second
	defaultOutstanding    = 4096
	defaultThreshold      = 64

	pingInterval    = 10 * time.Second // a dead peer is noticed after two of them
	connectTimeout  = 2 * time.Second  // for one server to greet us
	reconnectWait   = 250 * time.Millisecond
	reconnectJitter = 500 * time.Millisecond // a fleet that lost its server does not come back as one
)

// Validate returns every problem of the configuration at once, each saying what to write instead. It reads no file.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	for i, raw := range c.URLs {
		u, err := url.Parse(raw)
		switch {
		case err != nil || u.Host == "": // the text may hold a password: it is not repeated
			bad("urls[%d]: not a URL; write nats://host:4222", i)
		case u.User != nil:
			bad("urls[%d]: carries credentials, which would show in logs; use user and password_file", i)
		}
	}
	ways := 0
	for _, set := range []bool{c.CredentialsFile != "", c.NKeyFile != "", c.User != ""} {
		if set {
			ways++
		}
	}
	if ways > 1 {
		bad("credentials_file, nkey_file and user: set only one of them")
	}
	if !c.Password.IsZero() && c.PasswordFile != "" {
		bad("password and password_file: set only one of them")
	}
	if c.User == "" && (!c.Password.IsZero() || c.PasswordFile != "") {
		bad("password without user: set user too")
	}
	if strings.ContainsAny(c.InboxPrefix, "*> \t\r\n") || strings.HasSuffix(c.InboxPrefix, ".") {
		bad("inbox_prefix %q: a subject without wildcards and blanks, not ending in a dot", c.InboxPrefix)
	}
	if c.PublishTimeout < 0 {
		bad("publish_timeout %s: not below 0s", c.PublishTimeout)
	}
	if c.MaxOutstanding < 0 || c.MaxOutstanding > 50_000 {
		bad("max_outstanding %d: between 0 (the default, %d) and 50000", c.MaxOutstanding, defaultOutstanding)
	}
	switch c.Batches {
	case "", BatchesAuto, BatchesAlways, BatchesNever:
	default:
		bad("batches %q: auto, always or never", c.Batches)
	}
	if c.BatchThreshold < 0 || c.BatchThreshold == 1 || c.BatchThreshold > maxBatch {
		bad("batch_threshold %d: 0 (the default, %d) or between 2 and %d", c.BatchThreshold, defaultThreshold, maxBatch)
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if len(c.URLs) == 0 {
		c.URLs = []string{defaultURL}
	}
	if c.PublishTimeout == 0 {
		c.PublishTimeout = defaultPublishTimeout
	}
	if c.MaxOutstanding == 0 {
		c.MaxOutstanding = defaultOutstanding
	}
	c.MaxOutstanding = max(c.MaxOutstanding, maxBatch)
	if c.Batches == "" {
		c.Batches = BatchesAuto
	}
	if c.BatchThreshold == 0 {
		c.BatchThreshold = defaultThreshold
	}
	return c
}

// options returns what nats.go is to be told, and the nkey that it has to be told of again, if that is who we are. The files are read once here, so that a
// missing one is an error now and not a connection that never comes.
func (c Config) options() ([]nats.Option, *seed, error) {
	opts := []nats.Option{
		nats.Name(c.Name),
		nats.Timeout(connectTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxReconnects(-1),      // the default gives up for ever after 60 attempts, about two minutes
		nats.IgnoreAuthErrorAbort(), // credentials that are being rotated are wrong for a moment, not for ever
		nats.DrainTimeout(closeTimeout),
	}
	if c.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	if c.InProcess != nil {
		opts = append(opts, nats.InProcessServer(c.InProcess))
	}
	auth, seed, err := c.authOptions()
	if err != nil {
		return nil, nil, err
	}
	return append(append(opts, auth...), c.tlsOptions()...), seed, nil
}

func (c Config) authOptions() ([]nats.Option, *seed, error) {
	switch {
	case c.CredentialsFile != "":
		opts, err := byCredentials(c.CredentialsFile)
		return opts, nil, err
	case c.NKeyFile != "":
		return bySeed(c.NKeyFile)
	case c.User != "":
		password, err := c.password()
		if err != nil {
			return nil, nil, fmt.Errorf("password_file: %w", err)
		}
		return []nats.Option{nats.UserInfoHandler(func() (string, string) { return c.User, password() })}, nil, nil
	}
	return nil, nil, nil
}

// password is how the password is asked for at each connection.
func (c Config) password() (func() string, error) {
	if c.PasswordFile == "" {
		return c.Password.Reveal, nil
	}
	r := &renewed[string]{file: c.PasswordFile, parse: parsePassword}
	if _, err := r.read(); err != nil {
		return nil, err
	}
	return func() string {
		p, _ := r.read() // it was of use once
		return p
	}, nil
}

// tlsOptions are asked for what they say at each connection.
func (c Config) tlsOptions() []nats.Option {
	var opts []nats.Option
	if c.ServerName != "" {
		opts = append(opts, nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}))
	}
	if c.TLS != nil {
		opts = append(opts, nats.ClientTLSConfig(
			func() (tls.Certificate, error) { return c.TLS.Pair(), nil },
			func() (*x509.CertPool, error) { return c.TLS.Roots(), nil }))
	}
	return opts
}
