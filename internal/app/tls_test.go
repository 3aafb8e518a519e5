//go:build unix

package app

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"pollux/internal/broker"
	"pollux/internal/certificate/certificatetest"
	"pollux/internal/config"
	"pollux/internal/natstest"
	"pollux/internal/pgtest"
)

// TestAServiceShowsItsCertificates lets a relay speak to a database and a broker that ask for certificates, and has its files renewed while it runs.
func TestAServiceShowsItsCertificates(t *testing.T) {
	noLeaks(t)
	a, dir := certificatetest.New(t), t.TempDir()
	database := pgtest.Server(t)
	pgtest.Secure(t, database, a)
	s := newSite(t)
	u, err := url.Parse(database.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Del("sslmode") // the configuration says it
	u.RawQuery = q.Encode()
	s.dsn = u.String()
	if err := migrated(t.Context(), s.dsn); err != nil {
		t.Fatal(err)
	}
	cert, key := a.Issue("server", time.Hour)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	var shown atomic.Value
	nats := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) {
		o.TLS, o.TLSVerify, o.TLSTimeout = true, true, 10
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
			VerifyConnection: func(c tls.ConnectionState) error {
				shown.Store(c.PeerCertificates[0].Subject.CommonName)
				return nil
			}}
	}})
	s.nats = nats.URL()
	write := func(name string) {
		cert, key := a.Issue(name, time.Hour)
		certificatetest.Write(t, filepath.Join(dir, "cert"), cert)
		certificatetest.Write(t, filepath.Join(dir, "key"), key)
	}
	certificatetest.Write(t, filepath.Join(dir, "ca"), a.PEM)
	write("first")
	files := fmt.Sprintf("ca_file: %[1]s/ca, cert_file: %[1]s/cert, key_file: %[1]s/key", dir)
	e := s.editable()
	e.edit(strings.NewReplacer("database: {", "database: {"+files+", ", "nats: {", "nats: {"+files+", ").Replace(e.base()), "")
	cfg, err := config.Load(config.Options{File: e.name, Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := Dial(t.Context(), cfg, "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Apply(t.Context(), broker.Options{Consumers: Subscriptions(cfg)}); err != nil {
		t.Fatal(err)
	}
	conn.Close()

	var log lockedBuffer
	stop, ended := tended(t, cfg, "outbox-relay", &log, NewProcess, Relay)
	eventually(t, "the relay is ready", s.ready)
	seen := func(name string) func() bool {
		return func() bool {
			return s.is(`count(*) > 0 and every(client_dn = '/CN=` + name + `') from pg_stat_ssl join pg_stat_activity using (pid) where application_name = 'pollux-relay'`)
		}
	}
	if !seen("first")() || shown.Load() != "first" {
		t.Errorf("the database or the broker (%v) sees another certificate", shown.Load())
	}
	write("second")
	eventually(t, "the new one is in force", func() bool {
		return strings.Count(log.String(), `"msg":"the certificate in the files is in force"`) == 2
	})
	nats.MustRestart()
	s.exec(`select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pollux-relay'`)
	eventually(t, "the database sees the new one", seen("second"))
	eventually(t, "the broker sees the new one", func() bool { return shown.Load() == "second" && s.ready() })
	_, page := s.page("/metrics")
	for _, certificate := range []string{"database", "database_ca", "nats", "nats_ca"} {
		if !strings.Contains(page, `pollux_certificate_expiry_seconds{certificate="`+certificate+`"}`) {
			t.Errorf("when the certificate of %s ends is not told", certificate)
		}
	}
	stop()
	for range 2 {
		<-ended
	}
}
