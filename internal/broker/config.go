package broker

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

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

	CAFile   string `koanf:"ca_file"`   // who signed the servers' certificate; empty means the system's authorities
	CertFile string `koanf:"cert_file"` // our own certificate, with KeyFile
	KeyFile  string `koanf:"key_file"`

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
	if (c.CertFile == "") != (c.KeyFile == "") {
		bad("cert_file and key_file: set both or none")
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

// options returns what nats.go is to be told. It reads the files once, so that a missing one is an error now and not a
// connection that never comes.
func (c Config) options() ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name(c.Name),
		nats.Timeout(connectTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxReconnects(-1), // the default gives up for ever after 60 attempts, about two minutes
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.IgnoreAuthErrorAbort(), // credentials that are being rotated are wrong for a moment, not for ever
		nats.DrainTimeout(closeTimeout),
	}
	if c.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	if c.InProcess != nil {
		opts = append(opts, nats.InProcessServer(c.InProcess))
	}
	auth, err := c.authOptions()
	if err != nil {
		return nil, err
	}
	secure, err := c.tlsOptions()
	if err != nil {
		return nil, err
	}
	return append(append(opts, auth...), secure...), nil
}

func (c Config) authOptions() ([]nats.Option, error) {
	switch {
	case c.CredentialsFile != "":
		if err := readable(c.CredentialsFile); err != nil {
			return nil, fmt.Errorf("credentials_file: %w", err)
		}
		return []nats.Option{nats.UserCredentials(c.CredentialsFile)}, nil
	case c.NKeyFile != "":
		o, err := nats.NkeyOptionFromSeed(c.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("nkey_file %s: %w", c.NKeyFile, err)
		}
		return []nats.Option{o}, nil
	case c.User != "":
		if _, err := c.password(); err != nil {
			return nil, err
		}
		return []nats.Option{nats.UserInfoHandler(func() (string, string) {
			p, err := c.password()
			if err != nil {
				return c.User, "" // refused by the server, and tried again
			}
			return c.User, p
		})}, nil
	}
	return nil, nil
}

func (c Config) password() (string, error) {
	if c.PasswordFile == "" {
		return c.Password.Reveal(), nil
	}
	b, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("password_file: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

func (c Config) tlsOptions() ([]nats.Option, error) {
	var opts []nats.Option
	if c.CAFile != "" {
		if err := readable(c.CAFile); err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		opts = append(opts, nats.RootCAs(c.CAFile))
	}
	if c.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile); err != nil {
			return nil, fmt.Errorf("cert_file and key_file: %w", err)
		}
		opts = append(opts, nats.ClientCert(c.CertFile, c.KeyFile))
	}
	return opts, nil
}

func readable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}
