package app

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/certificate/certificatetest"
	"pollux/internal/config"
	"pollux/internal/doctor"
	"pollux/internal/outage"
	"pollux/internal/pgtest"
)

func TestEachServiceChecksItselfAndSaysWhatToDo(t *testing.T) {
	d := newWebhookDoor(t)
	d.dsn = pgtest.New(t, migrated)
	d.exec(`do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$`)
	d.broker()
	for name, file := range map[string]string{"consumer": d.site.file(), "outbox-relay": d.site.file(), "webhook": d.file()} {
		p := start(t, name, "--config", file)
		eventually(t, name+" is ready: it works all the same", d.ready)
		p.signal(syscall.SIGTERM)
		said := false
		for _, line := range logLines(t, p.endsWith(ExitOK)) {
			if line["check"] == "record.synchronous_commit" {
				said = line["level"] == "ERROR" && strings.Contains(line["found"].(string), "synchronous_commit is off") && strings.Contains(line["hint"].(string), "synchronous_commit = on")
			}
		}
		if !said {
			t.Errorf("%s says nothing of synchronous_commit: %s", name, &p.stderr)
		}
	}
}

func TestAServiceAsksItself(t *testing.T) {
	s := newSite(t)
	s.dsn = pgtest.New(t, migrated)
	s.broker()
	file := s.file()
	asks := func(code int, says string, args ...string) {
		t.Helper()
		p := start(t, "consumer", append([]string{"--config", file}, args...)...)
		if said := p.endsWith(code); !strings.Contains(said, says) {
			t.Errorf("%v: %s", args, said)
		}
	}
	asks(ExitFailed, "consumer: asking http://"+s.listen+"/healthz: dial tcp "+s.listen+": connect: connection refused\n", "--healthcheck")
	asks(ExitFailed, "--listen and telemetry.listen must be here as the service has them", "--healthcheck")
	asks(ExitFailed, s.listen+"/readyz", "--healthcheck=ready")
	p := start(t, "consumer", "--config", file)
	eventually(t, "ready", s.ready)
	asks(ExitOK, "", "--healthcheck")
	asks(ExitOK, "", "--healthcheck=ready")
	asks(ExitUsage, "live or ready", "--healthcheck=well")
	if err := os.WriteFile(file, []byte("telemetry: {listen: "+s.listen+"}\nrelay: {evry: 1s}\ndatabase: {url: 'file:/gone'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	asks(ExitOK, "", "--healthcheck") // what is wrong with a file says nothing about the process that runs
	p.signal(syscall.SIGTERM)
	p.endsWith(ExitOK)

	cert, key := certificatetest.New(t).Issue("consumer.example", time.Hour)
	file = s.file()
	dir := filepath.Dir(file)
	secure := []string{"--config", file, "--set", "telemetry.cert_file=" + certificatetest.Write(t, filepath.Join(dir, "tls.crt"), cert), "--set", "telemetry.key_file=" + certificatetest.Write(t, filepath.Join(dir, "tls.key"), key)}
	p = start(t, "consumer", secure...)
	eventually(t, "it answers with TLS too", func() bool {
		q := start(t, "consumer", append(secure, "--healthcheck=ready")...)
		<-q.ended
		return q.code == ExitOK
	})
	asks(ExitFailed, "if it speaks TLS, telemetry.cert_file too", "--healthcheck")
	p.signal(syscall.SIGTERM)
	p.endsWith(ExitOK)

	s.dsn, s.nats = "postgres://nobody@127.0.0.1:1/nothing", "nats://127.0.0.1:1"
	file = s.file()
	p = start(t, "consumer", "--config", file)
	eventually(t, "it waits", s.unready("connection refused"))
	asks(ExitOK, "", "--healthcheck")
	asks(ExitFailed, "not ready: database: ", "--healthcheck=ready")
	p.signal(syscall.SIGTERM)
	p.endsWith(ExitOK)
}

func TestHealthcheckOfAPageThatIsNotOurs(t *testing.T) {
	if err := CheckPage(t.Context(), "readyz", time.Second); ExitCode(err) != ExitUsage {
		t.Errorf("%v", err)
	}
	for _, c := range []struct {
		status int
		body   string
		want   string
		hint   string
	}{
		{http.StatusServiceUnavailable, `{"ready":false,"checks":[{"name":"database","error":"away"}]}`, "not ready: database: away", "pollux doctor what mends it"},
		{http.StatusServiceUnavailable, `{"ready":false,"checks":[{"name":"database","error":"away","hint":"start it"}]}`, "not ready: database: away", "start it"},
		{http.StatusServiceUnavailable, `{"ready":false,"draining":true}`, "not ready: it is stopping", "the log of the service"},
		{http.StatusBadRequest, `Client sent an HTTP request to an HTTPS server.`, "the status is 400, wanted 200", "telemetry.cert_file too"},
		{http.StatusBadGateway, `<html>`, "the status is 502, wanted 200", "something else listens there"},
		{http.StatusNotFound, `{}`, "the status is 404, wanted 200", "something else listens there"},
	} {
		if got, hint := wants(c.status, []byte(c.body)); got != c.want || !strings.Contains(hint, c.hint) {
			t.Errorf("%d %s: %q, %q", c.status, c.body, got, hint)
		}
	}
}

func TestAPageThatDoesNotAnswerIsHintedAt(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	strict := httptest.NewUnstartedServer(http.NotFoundHandler())
	strict.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
	strict.Config.ErrorLog = log.New(io.Discard, "", 0)
	strict.StartTLS()
	defer strict.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	for url, want := range map[string]string{
		strings.Replace(plain.URL, "http:", "https:", 1): "speaks no TLS: telemetry.cert_file",
		strict.URL: "who shows a certificate",
		closed.URL: "does the process run",
	} {
		err := ask(t.Context(), url, time.Minute, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // of a test
		if hint := outage.Hint(err); !strings.Contains(hint, want) || strings.Count(err.Error(), url) != 1 {
			t.Errorf("%v\nhint: %s; want one that has %q", err, hint, want)
		}
	}
}

func TestPageURLIsOnThisMachine(t *testing.T) {
	for listen, want := range map[string]string{
		":9464": "http://127.0.0.1:9464/readyz", "0.0.0.0:9464": "http://127.0.0.1:9464/readyz", "[::]:9464": "http://[::1]:9464/readyz", "10.0.0.7:80": "http://10.0.0.7:80/readyz",
	} {
		pages, err := config.Listening(config.Options{Environ: []string{"POLLUX_TELEMETRY__LISTEN=" + listen}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := pageURL(pages, "/readyz")
		if err != nil || got != want {
			t.Errorf("%s: %s %v", listen, got, err)
		}
	}
}

func TestFilesThatTheConfigurationNames(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(file, []byte(content), 0o600), os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ends := time.Now().Add(time.Hour).Truncate(time.Second)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ours"}, NotAfter: ends}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(dir, "shared")
	if err := errors.Join(os.Mkdir(shared, 0o700), os.Chmod(shared, 0o777)); err != nil {
		t.Fatal(err)
	}
	certs := write("tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), 0o644)
	looked := lookAtFiles([]config.NamedFile{
		{Key: "a", Path: write("open", "x", 0o604), Kind: config.SecretFile},
		{Key: "b", Path: write("grouped", "x", 0o440), Kind: config.SecretFile},
		{Key: "c", Path: filepath.Join(dir, "none"), Kind: config.SecretFile},
		{Key: "d", Path: certs, Kind: config.CertificateFile},
		{Key: "e", Path: write("empty.crt", "nothing", 0o644), Kind: config.CertificateFile},
		{Key: "f", Path: write("bad.creds", "nothing", 0o600), Kind: config.CredentialsFile},
		{Key: "g", Path: write("empty.key", "\n", 0o600), Kind: config.SecretFile},
		{Key: "h", Path: write("everybody's", "x", 0o666), Kind: config.SecretFile},
		{Key: "i", Path: write("shared/key", "x", 0o600), Kind: config.SecretFile},
		{Key: "j", Path: filepath.Join(certs, "beyond"), Kind: config.SecretFile, Unused: true},
		{Key: "k", Path: filepath.Join(certs, "beyond"), Kind: config.CertificateFile, Unused: true},
		{Key: "l", Path: filepath.Join(certs, "beyond"), Kind: config.SecretFile},
	})
	for _, other := range looked[9:11] { // what another program alone may read is as if it were elsewhere
		if !other.Missing || other.Err != "" || len(other.Certs) > 0 {
			t.Errorf("%+v", other)
		}
	}
	if looked[11].Missing || looked[11].Err == "" {
		t.Errorf("%+v", looked[11])
	}
	if looked[0].Folder != "" || looked[8].Folder != shared {
		t.Errorf("%+v, %+v", looked[0], looked[8])
	}
	for i, want := range []string{"", "", "", "", "", "", "empty", "may write", ""} {
		if got := looked[i].Useless; (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q", looked[i].Key, got)
		}
	}
	if !looked[0].Others || looked[0].Mode != 0o604 || looked[1].Others || !looked[2].Missing {
		t.Errorf("%+v", looked[:3])
	}
	if c := looked[3].Certs; len(c) != 1 || c[0].Subject != "CN=ours" || !c[0].NotAfter.Equal(ends) {
		t.Errorf("%+v", c)
	}
	if c := looked[4].Certs; len(c) != 1 || !strings.Contains(c[0].Err, "no certificate") {
		t.Errorf("%+v", c)
	}
	if looked[5].Err == "" {
		t.Errorf("%+v", looked[5])
	}
}

func TestTheMemoryLimitOfAContainer(t *testing.T) {
	root := t.TempDir()
	write := func(path, content string) string {
		file := filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	membership := write("cgroup", "0::/pod/consumer\n")
	if got := memoryLimit(membership, root); got != 0 {
		t.Errorf("no limit: %d", got)
	}
	write("memory/memory.limit_in_bytes", "9223372036854771712\n")
	if got := memoryLimit(membership, root); got != 0 {
		t.Errorf("no limit, as it was written once: %d", got)
	}
	write("memory.max", "1073741824\n")
	if got := memoryLimit(membership, root); got != 1<<30 {
		t.Errorf("of the root: %d", got)
	}
	write("pod/consumer/memory.max", "max\n")
	if got := memoryLimit(membership, root); got != 0 {
		t.Errorf("of its own: %d", got)
	}
	before := debug.SetMemoryLimit(900 << 20)
	defer debug.SetMemoryLimit(before)
	if m := thisMachine(); m.GoLimit != 900<<20 || m.OpenFiles == 0 {
		t.Errorf("%+v", m)
	}
}

func TestThePatientIsWhatTheConfigurationSays(t *testing.T) {
	d := newWebhookDoor(t)
	d.dsn = "postgres://nobody@127.0.0.1:1/nothing"
	text := d.file()
	cfg, err := config.Load(config.Options{File: text, Environ: []string{}, Skip: config.SkipBroker | config.SkipGateways})
	if err != nil {
		t.Fatal(err)
	}
	var secrets int
	for _, f := range cfg.Files() {
		if f.Kind == config.SecretFile && strings.HasPrefix(f.Path, d.dir) {
			secrets++
		}
		if strings.ContainsAny(f.Key, "\x00 ") {
			t.Errorf("%+v", f)
		}
	}
	if secrets != 7 { // the database's, and six of notifications
		t.Errorf("%d secrets: %+v", secrets, cfg.Files())
	}
	set := doctorSettings(cfg)
	ends := 0
	for _, k := range set.Keys {
		if !k.Until.IsZero() {
			ends++
		}
	}
	if len(set.Keys) != 6 || ends != 1 || len(set.Lanes) != 6 || set.MaxConns != 8 {
		t.Errorf("%+v", set)
	}
	patient, err := NewPatient(cfg, "webhook")
	if err != nil {
		t.Fatal(err)
	}
	defer patient.Close()
	r := doctor.Examine(t.Context(), &patient.Sources, &patient.Settings, doctor.Configuration)
	if len(r.Findings) == 0 || r.Counts.Unknown > 0 {
		t.Errorf("%+v", r)
	}
}
