package broker_test

import (
	"crypto/tls"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"pollux/internal/broker"
	"pollux/internal/certificate"
	"pollux/internal/certificate/certificatetest"
	"pollux/internal/natstest"
)

// TestCertificatesAreThoseOfTheFilesAtEachConnection lets a server ask for a certificate, and looks at the one that it is shown, before and after the files change; what is
// broken in the files then changes nothing.
func TestCertificatesAreThoseOfTheFilesAtEachConnection(t *testing.T) {
	a, dir := certificatetest.New(t), t.TempDir()
	cert, key := a.Issue("server", time.Hour)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	var shown atomic.Value
	srv := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) {
		o.TLS, o.TLSVerify, o.TLSTimeout = true, true, 10
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
			VerifyConnection: func(s tls.ConnectionState) error {
				shown.Store(s.PeerCertificates[0].Subject.CommonName)
				return nil
			}}
	}})
	files := certificate.Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), CA: certificatetest.Write(t, filepath.Join(dir, "ca"), a.PEM)}
	write := func(name string) {
		cert, key := a.Issue(name, time.Hour)
		certificatetest.Write(t, files.Cert, cert)
		certificatetest.Write(t, files.Key, key)
	}
	write("first")
	source, err := certificate.Open("nats", files)
	if err != nil {
		t.Fatal(err)
	}
	c, err := broker.Connect(t.Context(), broker.Config{URLs: []string{srv.URL()}, TLS: source}, discard())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if shown.Load() != "first" {
		t.Errorf("shown: %v", shown.Load())
	}
	again := func(want string) {
		t.Helper()
		_ = source.Look() // as a service does every few seconds; of what is broken its state tells
		shown.Store("")
		srv.MustRestart()
		eventually(t, "it is connected with the certificate "+want, func() bool { return c.Connected() && shown.Load() == want })
	}
	write("second")
	again("second")
	certificatetest.Write(t, files.Key, []byte("broken"))
	certificatetest.Write(t, files.CA, []byte("broken"))
	again("second")
}

func seedOf(t *testing.T) (seed []byte, public string) {
	t.Helper()
	k, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	if seed, err = k.Seed(); err != nil {
		t.Fatal(err)
	}
	if public, err = k.PublicKey(); err != nil {
		t.Fatal(err)
	}
	return seed, public
}

// TestAnotherNKeyIsTakenAtTheNextConnection: the server knows one user at a time, and the file changes with it.
func TestAnotherNKeyIsTakenAtTheNextConnection(t *testing.T) {
	file := filepath.Join(t.TempDir(), "seed")
	var user atomic.Pointer[string]
	renew := func() {
		seed, public := seedOf(t)
		certificatetest.Write(t, file, append(seed, '\n'))
		user.Store(&public)
	}
	renew()
	srv := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) {
		o.Nkeys = []*server.NkeyUser{{Nkey: *user.Load()}}
	}})
	c, err := broker.Connect(t.Context(), broker.Config{URLs: []string{srv.URL()}, NKeyFile: file}, discard())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		renew()
		srv.Pause()
		eventually(t, "the loss is noticed", func() bool { return !c.Connected() })
		srv.MustResume()
		eventually(t, "it is connected as the other user", c.Connected)
	}
	certificatetest.Write(t, file, []byte("no seed"))
	srv.Pause()
	eventually(t, "the loss is noticed", func() bool { return !c.Connected() })
	srv.MustResume()
	eventually(t, "the last good one is used on", c.Connected)
}

func TestAnotherPasswordIsTakenAtTheNextConnection(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	var password atomic.Pointer[string]
	renew := func(s string) {
		certificatetest.Write(t, file, []byte(s+"\n"))
		password.Store(&s)
	}
	renew("first")
	srv := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: *password.Load()}}
	}})
	c, err := broker.Connect(t.Context(), broker.Config{URLs: []string{srv.URL()}, User: "u", PasswordFile: file}, discard())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	renew("second")
	srv.Pause()
	eventually(t, "the loss is noticed", func() bool { return !c.Connected() })
	srv.MustResume()
	eventually(t, "it is connected with the other password", c.Connected)
}
