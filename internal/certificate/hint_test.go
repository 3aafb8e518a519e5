package certificate_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"pollux/internal/certificate"
	"pollux/internal/certificate/certificatetest"
)

// TestTheHintIsThatOfTheCertificate shakes hands with a server for each thing that may be wrong.
func TestTheHintIsThatOfTheCertificate(t *testing.T) {
	ours, theirs := certificatetest.New(t), certificatetest.New(t)
	cases := []struct {
		name   string
		cert   func() (cert, key []byte)
		roots  *x509.CertPool
		client bool // the server wants a certificate of ours
		want   string
	}{
		{"ended", func() ([]byte, []byte) { return ours.Issue("server", -time.Minute) }, ours.Pool(), false, "has ended"},
		{"of a stranger", func() ([]byte, []byte) { return ours.Issue("server", time.Hour) }, theirs.Pool(), false, "nats.ca_file"},
		{"for another name", func() ([]byte, []byte) { return ours.Issue("elsewhere.example", time.Hour) }, ours.Pool(), false, "nats.server_name"},
		{"ours is missing", func() ([]byte, []byte) { return ours.Issue("server", time.Hour) }, ours.Pool(), true, "nats.cert_file"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cert, key := c.cert()
			pair, err := tls.X509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			server := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
			if c.client {
				server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, ours.Pool()
			}
			err = fails(t, server, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.roots, ServerName: "localhost"})
			if got := certificate.Hint(fmt.Errorf("connecting: %w", err), "nats"); !strings.Contains(got, c.want) {
				t.Errorf("%v: %q, want something about %s", err, got, c.want)
			}
		})
	}
	if got := certificate.Hint(errors.New("connection refused"), "nats"); got != "" {
		t.Errorf("of something else: %q", got)
	}
	if got := certificate.Hint(x509.HostnameError{}, "database"); !strings.Contains(got, "database.url") {
		t.Error(got)
	}
}

// fails is the error of a handshake, or of reading what the server says after it.
func fails(t *testing.T, server, client *tls.Config) error {
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1))
	}()
	defer func() { l.Close(); <-over }()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, client)
	defer conn.Close()
	if err := conn.Handshake(); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}
