package broker

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"pollux/internal/secret"
)

// renewed is a file that is read again at each connection. While what is in it is of no use, or it is not there, the last that was of use counts.
type renewed[T any] struct {
	file  string
	parse func([]byte) (T, error)

	mu   sync.Mutex
	good *T
}

// read returns what is in the file, or was last. It fails only while nothing good ever was.
func (r *renewed[T]) read() (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	content, err := secret.ReadFile(r.file, secret.MaxBytes)
	if err == nil {
		var now T
		if now, err = r.parse(content); err == nil {
			r.good = &now
		}
	}
	if r.good == nil {
		var none T
		return none, err
	}
	return *r.good, nil
}

// credentials are a JWT and the key that goes with it.
type credentials struct {
	jwt string
	key nkeys.KeyPair
}

// The errors repeat nothing of a file: it is a secret.
func parseCredentials(content []byte) (credentials, error) {
	jwt, err := nkeys.ParseDecoratedJWT(content)
	if err != nil || jwt == "" {
		return credentials{}, errors.New("no user JWT is in it; write what nsc generate creds prints")
	}
	key, err := nkeys.ParseDecoratedUserNKey(content)
	if err != nil {
		return credentials{}, errors.New("no seed of a user is in it; write what nsc generate creds prints")
	}
	return credentials{jwt, key}, nil
}

func parseSeed(content []byte) (nkeys.KeyPair, error) {
	key, err := nkeys.ParseDecoratedNKey(content)
	if err != nil {
		return nil, errors.New("no seed is in it; it begins with SU")
	}
	if public, err := key.PublicKey(); err != nil || !nkeys.IsValidPublicUserKey(public) {
		return nil, errors.New("its seed is not that of a user, which begins with SU")
	}
	return key, nil
}

func parsePassword(content []byte) (string, error) {
	if p := strings.TrimRight(string(content), "\r\n"); p != "" {
		return p, nil
	}
	return "", errors.New("it is empty")
}

// byCredentials are the options of a file of credentials.
func byCredentials(file string) ([]nats.Option, error) {
	r := &renewed[credentials]{file: file, parse: parseCredentials}
	if _, err := r.read(); err != nil {
		return nil, fmt.Errorf("credentials_file %s: %w", file, err)
	}
	return []nats.Option{nats.UserJWT(
		func() (string, error) {
			c, err := r.read()
			return c.jwt, err
		},
		func(nonce []byte) ([]byte, error) {
			c, err := r.read()
			if err != nil {
				return nil, err
			}
			return c.key.Sign(nonce)
		})}, nil
}

// seed is an nkey in a file, which may be replaced by another user's. nats.go asks for a signature at each connection, but is told only once whose it is.
type seed struct {
	*renewed[nkeys.KeyPair]
	conn atomic.Pointer[nats.Conn] // nil before the first connection
}

func bySeed(file string) ([]nats.Option, *seed, error) {
	s := &seed{renewed: &renewed[nkeys.KeyPair]{file: file, parse: parseSeed}}
	public, err := s.public()
	if err != nil {
		return nil, nil, fmt.Errorf("nkey_file %s: %w", file, err)
	}
	return []nats.Option{nats.Nkey(public, s.sign), nats.SetCustomDialer(s)}, s, nil
}

func (s *seed) public() (string, error) {
	key, err := s.read()
	if err != nil {
		return "", err
	}
	return key.PublicKey()
}

func (s *seed) sign(nonce []byte) ([]byte, error) {
	key, err := s.read()
	if err != nil {
		return nil, err
	}
	return key.Sign(nonce)
}

// Dial implements nats.CustomDialer. nats.go calls it with the connection's lock held, and reads whose the nkey is under the same lock when the server has
// greeted, so that it is told here.
func (s *seed) Dial(network, address string) (net.Conn, error) {
	if nc := s.conn.Load(); nc != nil {
		if public, err := s.public(); err == nil {
			nc.Opts.Nkey = public
		}
	}
	return (&net.Dialer{Timeout: connectTimeout}).Dial(network, address)
}
