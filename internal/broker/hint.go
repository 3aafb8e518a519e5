package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"pollux/internal/certificate"
)

const natsHint = "does NATS run where nats.urls says?"

// hinted is the error of a connection, with what to do about it.
type hinted struct {
	error
	hint string
}

func (e *hinted) Unwrap() error { return e.error }

// Hint says what to do about it, to whoever reads a log; it is empty where that is not known.
func (e *hinted) Hint() string { return e.hint }

// hinted adds to the error of a connection what to do about it.
func (c *Conn) hinted(err error) error { return &hinted{err, c.hint(err)} }

// hint is empty where all that is known is that there is no connection.
func (c *Conn) hint(err error) string {
	if hint := certificate.Hint(err, "nats"); hint != "" {
		return hint
	}
	switch {
	case refused(err) && c.cfg.CredentialsFile != "":
		return "the server does not let in " + c.who() + ": was its JWT revoked, has it ended, or is it of an account that this server does not have? nsc generate creds"
	case refused(err) && c.cfg.NKeyFile != "":
		return "the server knows no user with the key of " + c.who() + ": is it what pollux perms keys made for this program, and has the server the accounts that pollux perms print nats printed with it? docs/permissions.md"
	case refused(err) && c.cfg.User != "":
		return "the server refuses " + c.who() + ", or its password"
	case refused(err):
		return "the server wants to know who we are: nats.nkey_file, with what pollux perms keys made for this program. docs/permissions.md"
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "the server speaks no TLS, which nats.urls or the certificates of nats ask for"
	case errors.Is(err, nats.ErrMaxConnectionsExceeded), errors.Is(err, nats.ErrMaxAccountConnectionsExceeded):
		return "the server takes no more connections: max_connections, or that of the account"
	}
	return ""
}

// refused reports whether the server does not let in who we say that we are.
func refused(err error) bool {
	for _, no := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrNkeysNotSupported} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// who is who we say that we are, where the configuration says it.
func (c *Conn) who() string {
	switch {
	case c.cfg.CredentialsFile != "":
		return "nats.credentials_file " + c.cfg.CredentialsFile
	case c.cfg.NKeyFile != "" && c.seed != nil:
		if public, err := c.seed.public(); err == nil {
			return fmt.Sprintf("nats.nkey_file %s (%s)", c.cfg.NKeyFile, public)
		}
		return "nats.nkey_file " + c.cfg.NKeyFile
	case c.cfg.User != "":
		return "nats.user " + c.cfg.User
	}
	return ""
}

// lost keeps why there is no connection, and tells of it.
func (c *Conn) lost(err error) {
	c.mu.Lock()
	c.last = err
	closing := c.closing
	c.mu.Unlock()
	if !closing {
		c.away.Failed(context.Background(), "connection", c.hinted(err))
	}
}

// why is the error of the last attempt to connect; nil while there is a connection.
func (c *Conn) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// found forgets why there was no connection.
func (c *Conn) found() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = nil
}

// notConnected is why nothing was sent: an ErrNotConnected, with the error of the last attempt to connect.
func (c *Conn) notConnected() error {
	last := c.why()
	if last == nil {
		return ErrNotConnected
	}
	return &hinted{fmt.Errorf("%w: %w", ErrNotConnected, last), c.hint(last)}
}
