package certificate_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pollux/internal/certificate"
	"pollux/internal/certificate/certificatetest"
)

const year = 365 * 24 * time.Hour

// files writes a certificate of an authority and the authority itself.
func files(t *testing.T, a *certificatetest.Authority, name string) certificate.Files {
	dir := t.TempDir()
	cert, key := a.Issue(name, year)
	return certificate.Files{
		Cert: certificatetest.Write(t, filepath.Join(dir, "cert.pem"), cert),
		Key:  certificatetest.Write(t, filepath.Join(dir, "key.pem"), key),
		CA:   certificatetest.Write(t, filepath.Join(dir, "ca.pem"), a.PEM),
	}
}

func open(t *testing.T, f certificate.Files) *certificate.Source {
	t.Helper()
	s, err := certificate.Open("test", f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shake lets a client and a server shake hands over memory, and returns what each thinks of it.
func shake(client, server *tls.Config) (seen tls.ConnectionState, clientErr, serverErr error) {
	a, b := net.Pipe()
	defer a.Close()
	done := make(chan error, 1)
	go func() {
		s := tls.Server(b, server)
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x")) // with TLS 1.3 a client learns of its refusal when it reads
		}
		_ = b.Close()
		done <- err
	}()
	c := tls.Client(a, client)
	clientErr = c.Handshake()
	if clientErr == nil {
		_, clientErr = io.ReadFull(c, make([]byte, 1))
	}
	seen = c.ConnectionState()
	_ = a.Close()
	return seen, clientErr, <-done
}

func TestASourceTakesUpWhatItsFilesBecome(t *testing.T) {
	a := certificatetest.New(t)
	f := files(t, a, "first")
	s := open(t, f)
	client := &tls.Config{RootCAs: a.Pool(), ServerName: "localhost"}
	client.Certificates = []tls.Certificate{s.Pair()}
	name := func() string {
		t.Helper()
		seen, err, refused := shake(client, s.Server())
		if err != nil || refused != nil {
			t.Fatal(err, refused)
		}
		return seen.PeerCertificates[0].Subject.CommonName
	}
	if got := name(); got != "first" {
		t.Errorf("shows %s", got)
	}
	for i, next := range []string{"second", "third"} {
		cert, key := a.Issue(next, year)
		certificatetest.Write(t, f.Cert, cert)
		if err := s.Look(); err == nil || !strings.Contains(err.Error(), "key_file: it is not the key") {
			t.Errorf("a certificate without its key: %v", err)
		}
		if got := name(); got == next {
			t.Errorf("half of it is in force")
		}
		certificatetest.Write(t, f.Key, key)
		if err := s.Look(); err != nil {
			t.Fatal(err)
		}
		if got := name(); got != next || s.State().Loads != i+2 {
			t.Errorf("shows %s, wanted %s; %d loads", got, next, s.State().Loads)
		}
	}
}

func TestAMountedSecretWhoseSymlinkIsSwappedIsTakenUp(t *testing.T) {
	a, dir := certificatetest.New(t), t.TempDir()
	mount := func(version, name string) {
		t.Helper()
		at := filepath.Join(dir, version)
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		cert, key := a.Issue(name, year)
		certificatetest.Write(t, filepath.Join(at, "tls.crt"), cert)
		certificatetest.Write(t, filepath.Join(at, "tls.key"), key)
		link := filepath.Join(dir, "..data.new")
		if err := errors.Join(os.Symlink(at, link), os.Rename(link, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	mount("v1", "first")
	s := open(t, certificate.Files{Cert: filepath.Join(dir, "..data", "tls.crt"), Key: filepath.Join(dir, "..data", "tls.key")})
	mount("v2", "second")
	if err := s.Look(); err != nil {
		t.Fatal(err)
	}
	if got := s.Pair().Leaf.Subject.CommonName; got != "second" {
		t.Errorf("shows %s", got)
	}
}

func TestWhatIsOfNoUseLeavesTheLastGoodOne(t *testing.T) {
	a := certificatetest.New(t)
	old, oldKey := a.Issue("old", -time.Minute)
	for name, broken := range map[string]struct{ cert, key, ca, says string }{
		"nothing in it":   {cert: "", says: "cert_file: no PEM certificate"},
		"no certificate":  {cert: "hello", says: "cert_file: no PEM certificate"},
		"cut":             {cert: "-----BEGIN CERTIFICATE-----\nMIIB", says: "cert_file: no PEM certificate"},
		"exchanged":       {key: "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", says: "key_file: a certificate is in it"},
		"no key":          {key: "hello", says: "key_file: no PEM private key"},
		"encrypted":       {key: "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n", says: "key_file: the key is encrypted"},
		"over":            {cert: string(old), key: string(oldKey), says: "cert_file: it ended at"},
		"no authorities":  {ca: "hello", says: "ca_file: no PEM certificate"},
		"a bad authority": {ca: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", says: "ca_file: certificate 1 in it is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			f := files(t, a, "good")
			s := open(t, f)
			for file, content := range map[string]string{f.Cert: broken.cert, f.Key: broken.key, f.CA: broken.ca} {
				if content != "" || name == "nothing in it" && file == f.Cert {
					certificatetest.Write(t, file, []byte(content))
				}
			}
			err := s.Look()
			if err == nil || !strings.Contains(err.Error(), broken.says) || s.State().Err == nil {
				t.Errorf("got %v, want %s", err, broken.says)
			}
			if s.Pair().Leaf.Subject.CommonName != "good" || s.Roots() == nil || s.State().Loads != 1 {
				t.Error("the last good one is not in force")
			}
			if _, err := certificate.Open("again", f); err == nil || !strings.HasPrefix(err.Error(), "again: ") {
				t.Errorf("it is opened: %v", err)
			}
		})
	}
	t.Run("gone", func(t *testing.T) {
		f := files(t, a, "good")
		s := open(t, f)
		if err := os.Remove(f.Cert); err != nil {
			t.Fatal(err)
		}
		if err := s.Look(); err == nil || !strings.Contains(err.Error(), "cert_file") || s.Pair().Leaf == nil {
			t.Error(err)
		}
	})
}

func TestAListenerAsksForACertificateOfItsAuthorities(t *testing.T) {
	a, stranger := certificatetest.New(t), certificatetest.New(t)
	s := open(t, files(t, a, "server"))
	pair := func(of *certificatetest.Authority) []tls.Certificate {
		cert, key := of.Issue("client", year)
		p, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{p}
	}
	for name, c := range map[string]struct {
		certificates []tls.Certificate
		taken        bool
	}{"of ours": {pair(a), true}, "of another": {pair(stranger), false}, "none": {nil, false}} {
		_, err, refused := shake(&tls.Config{RootCAs: a.Pool(), ServerName: "localhost", Certificates: c.certificates}, s.Server())
		if (err == nil && refused == nil) != c.taken {
			t.Errorf("%s: %v, %v", name, err, refused)
		}
	}
	_, err, _ := shake(&tls.Config{RootCAs: a.Pool(), ServerName: "localhost", Certificates: pair(a), MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}, s.Server())
	if err == nil {
		t.Error("TLS 1.1 is spoken")
	}
}
