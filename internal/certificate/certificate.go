// Package certificate keeps certificates, keys and authorities at hand that are in files, and takes them up anew when the files change: what renews them need
// not restart anybody. A file that changes to something that is of no use changes nothing but what State says.
package certificate

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"pollux/internal/secret"
)

// Files say where things are; each is PEM. Mounted secrets whose symlinks are swapped are files like others.
type Files struct {
	Cert string // our certificate, with those between it and its authority; empty: none
	Key  string // its key; both or neither
	CA   string // the authorities that the other side's certificate is checked against; empty: none of our own
}

// Empty reports whether no file is named.
func (f Files) Empty() bool { return f == Files{} }

// Material is what was in the files.
type Material struct {
	Pair      *tls.Certificate // nil without a certificate of ours
	Roots     *x509.CertPool   // nil without authorities of our own
	Expiry    time.Time        // when our certificate ends; zero without one
	CAsExpire time.Time        // when the last of the authorities ends; zero without any
}

// maxBytes is the size of the largest file that is read: a bundle of all public authorities has 230 KB.
const maxBytes = 1 << 20

// Load reads the files once. Its errors begin with the name of the field that is wrong, as the configuration spells it: cert_file, key_file, ca_file.
func Load(f Files, now time.Time) (Material, error) {
	m, _, err := load(f, now)
	return m, err
}

// load also returns a digest of what was in the files, whatever it was.
func load(f Files, now time.Time) (m Material, digest [sha256.Size]byte, err error) {
	hash, errs := sha256.New(), []error(nil)
	read := func(key, name string) []byte {
		if name == "" {
			return nil
		}
		b, err := readFile(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
			b = nil
		}
		fmt.Fprintf(hash, "%s %d %v\n", key, len(b), err)
		hash.Write(b)
		return b
	}
	cert, key, ca := read("cert_file", f.Cert), read("key_file", f.Key), read("ca_file", f.CA)
	digest = [sha256.Size]byte(hash.Sum(nil))
	if err := errors.Join(errs...); err != nil {
		return Material{}, digest, err
	}
	if f.Cert != "" {
		if m.Pair, err = pairOf(cert, key); err != nil {
			return Material{}, digest, err
		}
		if m.Expiry = m.Pair.Leaf.NotAfter; now.After(m.Expiry) {
			return Material{}, digest, fmt.Errorf("cert_file: it ended at %s; renew it", m.Expiry.UTC().Format(time.RFC3339))
		}
	}
	if f.CA != "" {
		m.Roots, m.CAsExpire, err = authorities(ca)
	}
	return m, digest, err
}

func readFile(name string) ([]byte, error) {
	return secret.ReadFile(name, maxBytes)
}

// pairOf reads a certificate and its key. Its errors repeat nothing of either.
func pairOf(cert, key []byte) (*tls.Certificate, error) {
	switch {
	case !hasBlock(cert, "CERTIFICATE"):
		return nil, errors.New("cert_file: no PEM certificate is in it")
	case bytes.Contains(key, []byte("ENCRYPTED")):
		return nil, errors.New("key_file: the key is encrypted, and nobody is here to type its password; write it without one into a file that only this process may read")
	case bytes.Contains(key, []byte("CERTIFICATE-----")) && !bytes.Contains(key, []byte("PRIVATE KEY-----")):
		return nil, errors.New("key_file: a certificate is in it and no key; are the two exchanged?")
	case !bytes.Contains(key, []byte("PRIVATE KEY-----")):
		return nil, errors.New("key_file: no PEM private key is in it")
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, errors.New("key_file: it is not the key of the certificate in cert_file, or one of them is damaged")
	}
	return &pair, nil
}

func hasBlock(content []byte, kind string) bool {
	for {
		var b *pem.Block
		if b, content = pem.Decode(content); b == nil {
			return false
		}
		if b.Type == kind {
			return true
		}
	}
}

func authorities(content []byte) (*x509.CertPool, time.Time, error) {
	pool, last, n := x509.NewCertPool(), time.Time{}, 0
	for {
		var b *pem.Block
		if b, content = pem.Decode(content); b == nil {
			break
		}
		if b.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("ca_file: certificate %d in it is damaged", n+1)
		}
		pool.AddCert(c)
		if n++; c.NotAfter.After(last) {
			last = c.NotAfter
		}
	}
	if n == 0 {
		return nil, time.Time{}, errors.New("ca_file: no PEM certificate is in it")
	}
	return pool, last, nil
}

// lookEvery is how often at the most a handshake looks whether the files have changed.
const lookEvery = time.Second

// Source is what is in files, as it is now. It is safe for concurrent use; handshakes read one pointer.
type Source struct {
	name   string
	files  Files
	now    atomic.Pointer[Material]
	server atomic.Pointer[tls.Config]
	looked atomic.Int64 // when, in Unix nanoseconds

	mu    sync.Mutex // of whoever reads the files
	seen  [sha256.Size]byte
	loads int
	err   error
}

// Open reads the files. name is what the source is called in logs and metrics.
func Open(name string, f Files) (*Source, error) {
	s := &Source{name: name, files: f}
	if err := s.Look(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// State says how far a source is.
type State struct {
	Name  string
	Files Files
	Loads int   // how often something new was taken up, the first time included
	Err   error // why what is in the files now is not taken up; nil when it is
	Material
}

// State returns how far the source is.
func (s *Source) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{Name: s.name, Files: s.files, Loads: s.loads, Err: s.err, Material: *s.now.Load()}
}

// Look reads the files and takes up what is in them if it has changed and is of use. Otherwise the last that was of use stays, and the error says why.
func (s *Source) Look() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked.Store(time.Now().UnixNano())
	m, digest, err := load(s.files, time.Now())
	s.err = err
	if err != nil || s.loads > 0 && digest == s.seen {
		return err
	}
	s.seen = digest
	s.loads++
	s.now.Store(&m)
	s.server.Store(s.serverConfig(m))
	return nil
}

// current is what is in the files, looked at again when that was not just done.
func (s *Source) current() Material {
	if time.Since(time.Unix(0, s.looked.Load())) > lookEvery {
		_ = s.Look() // State has it
	}
	return *s.now.Load()
}

// Server returns the configuration of a listener that shows our certificate and, where there are authorities, asks for one of theirs. Every handshake takes
// what is in the files by then.
func (s *Source) Server() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		s.current()
		return s.server.Load(), nil // the same one for as long as the files are the same, so that sessions are resumed
	}}
}

func (s *Source) serverConfig(m Material) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if m.Pair != nil {
		c.Certificates = []tls.Certificate{*m.Pair}
	}
	if m.Roots != nil {
		c.ClientCAs, c.ClientAuth = m.Roots, tls.RequireAndVerifyClientCert
	}
	return c
}

// Roots are the authorities as they are now, nil for the system's.
func (s *Source) Roots() *x509.CertPool { return s.current().Roots }

// Pair is our certificate as it is now. Without one it is empty, which servers that ask for none do not mind.
func (s *Source) Pair() tls.Certificate {
	if p := s.current().Pair; p != nil {
		return *p
	}
	return tls.Certificate{}
}
