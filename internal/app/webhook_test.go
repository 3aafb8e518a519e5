package app

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/config"
	"pollux/internal/pgtest"
)

const webhookPages = `
database: {url: 'file:DIR/dsn'}
telemetry: {listen: LISTEN}
log: {format: json}
webhooks:
  listen: DOOR
  record: {patience: 1s}
  gateways:
    acme:
      scheme: standard
      mode: live
      keys: {current: {secret: 'file:DIR/standard'}}
      accounts: {eu: {keys: {current: {secret: 'file:DIR/eu'}}}}
      httpjson:
        pointers: {kind: /type, reference: /data/id, status: /data/status, amount: /data/amount, currency: /data/currency, occurred_at: /at, mode: /mode}
        kinds: [payment.updated]
        statuses: {processing: pending, succeeded: succeeded, failed: failed}
        modes: {production: live, sandbox: test}
    stripe:
      scheme: stripe
      keys:
        old: {secret: 'file:DIR/old', until: 2020-01-01T00:00:00Z}
        current: {secret: 'file:DIR/stripe'}
    ping:
      scheme: hmac
      keys: {only: {secret: 'file:DIR/ping'}}
      httpjson:
        signature: {header: X-Signature, prefix: sha256=}
        pointers: {reference: /payment}
    rumour:
      scheme: hmac
      unverified: hint
      keys: {only: {secret: 'file:DIR/ping'}}
      httpjson:
        signature: {header: X-Signature}
        pointers: {reference: /payment}
`

// door is where notifications are taken.
type door struct {
	*site
	address string
	dir     string
	more    string // of the configuration
}

func newWebhookDoor(t testing.TB) *door {
	d := &door{site: newSite(t), address: freeAddress(t), dir: t.TempDir()}
	for name, secret := range map[string]string{"standard": "whsec_" + base64.StdEncoding.EncodeToString([]byte("signing key of acme")),
		"eu": base64.StdEncoding.EncodeToString([]byte("key of acme's eu")), "old": "whsec_old_signing_key_of_stripe", "stripe": "whsec_stripe_signing_key", "ping": "signing key of ping"} {
		if err := os.WriteFile(filepath.Join(d.dir, name), []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func (d *door) file() string {
	d.t.Helper()
	text := strings.NewReplacer("LISTEN", d.listen, "DOOR", d.address, "DIR", d.dir).Replace(webhookPages) + d.more
	file := filepath.Join(d.dir, "pollux.yaml")
	if err := errors.Join(os.WriteFile(filepath.Join(d.dir, "dsn"), []byte(d.dsn), 0o600), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		d.t.Fatal(err)
	}
	return file
}

func (d *door) open() *service {
	d.t.Helper()
	cfg, err := config.Load(config.Options{File: d.file(), Environ: []string{}, Skip: config.SkipBroker | config.SkipGateways})
	if err != nil {
		d.t.Fatal(err)
	}
	return d.serveIn("webhook", cfg, newRecordProcess, Webhook)
}

func mac(key, text string) []byte {
	h := hmac.New(sha256.New, []byte(key))
	_, _ = io.WriteString(h, text)
	return h.Sum(nil)
}

// send posts a notification and returns the status of the answer.
func (d *door) send(path, body string, header ...string) int {
	d.t.Helper()
	r, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, "http://"+d.address+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func (d *door) standard(path, key, id, body string) int {
	d.t.Helper()
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	return d.send(path, body, "webhook-id", id, "webhook-timestamp", stamp,
		"webhook-signature", "v1a,other v1,"+base64.StdEncoding.EncodeToString(mac(key, id+"."+stamp+"."+body)))
}

func (d *door) stripe(key, body string) int {
	d.t.Helper()
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	return d.send("/webhooks/stripe", body, "Stripe-Signature", "t="+stamp+",v1="+hex.EncodeToString(mac(key, stamp+"."+body)))
}

func updated(reference, status string) string {
	return fmt.Sprintf(`{"type":"payment.updated","at":"2026-03-01T12:00:00Z","mode":"production","data":{"id":%q,"status":%q,"amount":1999,"currency":"EUR"}}`, reference, status)
}

func TestNotificationsFinishPayments(t *testing.T) {
	noLeaks(t)
	d := newWebhookDoor(t)
	d.dsn = pgtest.New(t, migrated)
	v := d.open()
	eventually(t, "it is ready", d.ready)
	d.exec(`select pollux.track_payment('acme', 'pay_' || i, 1999, 'EUR') from generate_series(1, 4) as i`)
	d.exec(`select pollux.track_payment('acme', 'pay_1', 1999, 'EUR', account => 'eu'), pollux.track_payment('stripe', 'pi_1', 1999, 'EUR'),
		pollux.track_payment('ping', 'p1', 1999, 'EUR', first_poll_after => '1 day')`)

	intent := `{"id":"evt_1","object":"event","type":"payment_intent.succeeded","created":1772366400,"livemode":true,"data":{"object":` +
		`{"object":"payment_intent","id":"pi_1","status":"succeeded","amount":1999,"amount_received":1999,"currency":"eur"}}}`
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"standard", d.standard("/webhooks/acme", "signing key of acme", "e1", updated("pay_1", "succeeded")), 200},
		{"the same again", d.standard("/webhooks/acme", "signing key of acme", "e1", updated("pay_1", "succeeded")), 200},
		{"another status", d.standard("/webhooks/acme", "signing key of acme", "e2", updated("pay_2", "failed")), 200},
		{"an unknown status", d.standard("/webhooks/acme", "signing key of acme", "e3", updated("pay_3", "settling_v2")), 200},
		{"before its payment", d.standard("/webhooks/acme", "signing key of acme", "e4", updated("pay_5", "succeeded")), 200},
		{"a test payment", d.standard("/webhooks/acme", "signing key of acme", "e5", strings.Replace(updated("pay_3", "succeeded"), "production", "sandbox", 1)), 200},
		{"forged", d.standard("/webhooks/acme", "guessed", "e6", updated("pay_3", "succeeded")), 401},
		{"another account's key", d.standard("/webhooks/acme/eu", "signing key of acme", "e7", updated("pay_1", "succeeded")), 401},
		{"another account", d.standard("/webhooks/acme/eu", "key of acme's eu", "e1", updated("pay_1", "failed")), 200},
		{"stripe", d.stripe("whsec_stripe_signing_key", intent), 200},
		{"stripe, with a key whose time is over", d.stripe("whsec_old_signing_key_of_stripe", intent), 401},
		{"a ping", d.send("/webhooks/ping", `{"payment":"p1"}`, "X-Signature", "sha256="+hex.EncodeToString(mac("signing key of ping", `{"payment":"p1"}`))), 200},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.name, c.got, c.want)
		}
	}
	for _, condition := range []string{
		`string_agg(status, ' ' order by account, reference) = 'succeeded failed pending pending failed' from pollux.payments where gateway = 'acme'`,
		`status = 'succeeded' and status_source = 'webhook' from pollux.payments where reference = 'pi_1'`,
		`next_poll_at <= now() + interval '3 seconds' from pollux.poll_jobs where gateway = 'ping'`,
		`string_agg(decision, ' ' order by account, event_id) = 'applied applied quarantined waiting quarantined applied' from pollux.webhook_events where gateway = 'acme'`,
		`count(*) = 4 from pollux.outbox where subject like 'payments.resolved.%'`,
	} {
		if !d.is(condition) {
			t.Errorf("it does not hold: %s", condition)
		}
	}
	d.exec(`update pollux.webhook_events set look_at = now() + interval '30 minutes' where decision = 'waiting'`)
	d.exec(`select pollux.track_payment('acme', 'pay_5', 1999, 'EUR')`)
	eventually(t, "the notice that waited is applied", func() bool {
		return d.is(`status = 'succeeded' from pollux.payments where reference = 'pay_5'`)
	})
	if _, metrics := d.page("/metrics"); !strings.Contains(metrics, `pollux_webhook_notices_total{decision="quarantined",gateway="acme"} 2`) {
		t.Error(metrics)
	}
	d.exec(`select pollux.track_payment('rumour', 'r1', 1999, 'EUR', first_poll_after => '1 day')`)
	if got := d.send("/webhooks/rumour", `{"payment":"r1"}`); got != 401 {
		t.Errorf("unsigned: %d", got)
	}
	eventually(t, "what is not believed has the payment polled a minute after it was tracked", func() bool {
		return d.is(`next_poll_at = updated_at + interval '1 minute' from pollux.poll_jobs where gateway = 'rumour'`)
	})
	if !d.is(`count(*) = 0 from pollux.webhook_events where gateway = 'rumour'`) {
		t.Error("what is not believed is kept")
	}
	if err := v.ends(); err != nil {
		t.Error(err)
	}
}

func TestWithoutADatabaseTheSenderComesAgain(t *testing.T) {
	noLeaks(t)
	d := newWebhookDoor(t)
	database := pgtest.Server(t)
	d.dsn = database.DSN("postgres")
	if err := migrated(t.Context(), d.dsn); err != nil {
		t.Fatal(err)
	}
	v := d.open()
	eventually(t, "it is ready", d.ready)
	d.exec(`select pollux.track_payment('acme', 'pay_1', 1999, 'EUR')`)
	database.Kill()
	if got := d.standard("/webhooks/acme", "signing key of acme", "e1", updated("pay_1", "succeeded")); got != http.StatusServiceUnavailable {
		t.Errorf("without a database: %d", got)
	}
	eventually(t, "it is not ready", func() bool { return !d.ready() })
	if err := database.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the sender's next try is taken", func() bool {
		return d.standard("/webhooks/acme", "signing key of acme", "e1", updated("pay_1", "succeeded")) == http.StatusOK
	})
	if !d.is(`status = 'succeeded' from pollux.payments`) {
		t.Error("it was taken and did nothing")
	}
	if err := v.ends(); err != nil {
		t.Error(err)
	}
}

// newCertificate writes a certificate for loopback with a serial number, and its key.
func (d *door) newCertificate(serial int64) {
	d.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		d.t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		d.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		d.t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.key": {Type: "PRIVATE KEY", Bytes: private}, "tls.crt": {Type: "CERTIFICATE", Bytes: cert}} {
		if err := os.WriteFile(filepath.Join(d.dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			d.t.Fatal(err)
		}
	}
}

func TestACertificateIsReadAgainWhenItChanges(t *testing.T) {
	noLeaks(t)
	d := newWebhookDoor(t)
	d.dsn = pgtest.New(t, migrated)
	d.newCertificate(1)
	d.more = fmt.Sprintf("  cert_file: %s/tls.crt\n  key_file: %s/tls.key\n", d.dir, d.dir)
	v := d.open()
	eventually(t, "it is ready", d.ready)
	serial := func() int64 {
		c, err := tls.Dial("tcp", d.address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // which certificate it is, is what is tested
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 1 {
		t.Errorf("certificate %d", got)
	}
	d.newCertificate(2)
	eventually(t, "the new one is shown", func() bool { return serial() == 2 })
	if err := os.WriteFile(filepath.Join(d.dir, "tls.crt"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serial(); got != 2 {
		t.Errorf("while it is written: certificate %d", got)
	}
	if err := v.ends(); err != nil {
		t.Error(err)
	}
}

// The receiver as it is started: it needs no broker, keeps what it answered through a restart, and says nothing of keys and bodies.
func TestTheReceiverAsAProcess(t *testing.T) {
	d := newWebhookDoor(t)
	d.dsn = pgtest.New(t, migrated)
	d.exec(`select pollux.track_payment('acme', 'pay_1', 1999, 'EUR')`)
	file := d.file()
	for _, want := range []string{"applied", "duplicate"} {
		p := start(t, "webhook", "--config", file, "--log-level", "debug")
		eventually(t, "ready", d.ready)
		if got := d.standard("/webhooks/acme", "signing key of acme", "e1", updated("pay_1", "succeeded")); got != http.StatusOK {
			t.Errorf("%d", got)
		}
		p.signal(syscall.SIGTERM)
		said := p.endsWith(ExitOK)
		if !strings.Contains(said, `"decision":"`+want+`"`) || strings.Contains(said, "whsec_") || strings.Contains(said, "1999") {
			t.Error(said)
		}
	}
}

func TestTheReceiverIsToldWhatItHasToReceive(t *testing.T) {
	s := newSite(t)
	file := filepath.Join(t.TempDir(), "pollux.yaml")
	if err := os.WriteFile(file, []byte("database: {url: 'postgres://nobody@127.0.0.1:1/nothing'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var complaints bytes.Buffer
	cmd := WebhookCommand()
	cmd.SetArgs([]string{"--config", file, "--listen", s.listen})
	cmd.SetErr(&complaints)
	if code := Run(t.Context(), cmd); code != ExitUsage || !strings.Contains(complaints.String(), "webhooks.gateways is empty") {
		t.Errorf("%d %s", code, complaints.String())
	}
}
