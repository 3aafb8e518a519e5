package paypal

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/crc32"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/webhook"
)

var hookNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// authority signs certificates as the one does that PayPal has its own from.
type authority struct {
	key  *rsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(tb testing.TB) *authority {
	tb.Helper()
	key := newKey(tb)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: hookNow.Add(-time.Hour), NotAfter: hookNow.Add(1000 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return &authority{key, cert}
}

func newKey(tb testing.TB) *rsa.PrivateKey {
	tb.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// issue makes a certificate, as PEM.
func (a *authority) issue(tb testing.TB, name string, key *rsa.PrivateKey, until time.Time) []byte {
	tb.Helper()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: hookNow.Add(-time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// vault is where certificates are fetched from.
type vault struct {
	mu    sync.Mutex
	pages map[string][]byte
	asked []string
	fail  error
}

func (v *vault) fetch(_ context.Context, url string) (int, []byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked = append(v.asked, url)
	switch page, ok := v.pages[url]; {
	case v.fail != nil:
		return 0, nil, v.fail
	case !ok:
		return http.StatusNotFound, nil, nil
	default:
		return http.StatusOK, page, nil
	}
}

const (
	certs = "https://api.paypal.com/v1/notifications/certs/"
	live  = "messageverificationcerts.paypal.com"
)

// hook is a webhook whose certificates come from a vault.
type hook struct {
	*Webhook
	vault     *vault
	key       *rsa.PrivateKey
	authority *authority
}

func newHook(tb testing.TB) *hook {
	tb.Helper()
	w, err := NewWebhook(webhook.Keys{{Name: "current", Secret: []byte("WH-1")}}, webhook.Tolerance{Past: 5 * time.Minute, Future: time.Minute})
	if err != nil {
		tb.Fatal(err)
	}
	h := &hook{Webhook: w, key: newKey(tb), authority: newAuthority(tb), vault: &vault{pages: map[string][]byte{}}}
	h.vault.pages[certs+"CERT-1"] = h.authority.issue(tb, live, h.key, hookNow.Add(time.Hour))
	w.certificates.fetch = h.vault.fetch
	w.certificates.roots = x509.NewCertPool()
	w.certificates.roots.AddCert(h.authority.cert)
	return h
}

// request is a notification as PayPal sends it, signed for a webhook.
func (h *hook) request(tb testing.TB, id, url, body string) *webhook.Request {
	tb.Helper()
	stamp := hookNow.Format(time.RFC3339)
	sum := sha256.Sum256(fmt.Appendf(nil, "t-1|%s|%s|%d", stamp, id, crc32.ChecksumIEEE([]byte(body))))
	signature, err := rsa.SignPKCS1v15(rand.Reader, h.key, crypto.SHA256, sum[:])
	if err != nil {
		tb.Fatal(err)
	}
	return &webhook.Request{Method: "POST", Body: []byte(body), At: hookNow, Header: http.Header{transmissionID: {"t-1"}, transmissionTime: {stamp},
		transmissionSig: {base64.StdEncoding.EncodeToString(signature)}, certificateURL: {url}, authAlgorithm: {"SHA256withRSA"}}}
}

// check prepares and verifies.
func (h *hook) check(r *webhook.Request) error {
	if err := h.Prepare(context.Background(), r); err != nil {
		return err
	}
	_, err := h.Verify(context.Background(), r)
	return err
}

func TestWebhookSignatures(t *testing.T) {
	h := newHook(t)
	const body = `{"id":"WH-E"}`
	change := func(with func(*webhook.Request)) *webhook.Request {
		r := h.request(t, "WH-1", certs+"CERT-1", body)
		with(r)
		return r
	}
	for name, c := range map[string]struct {
		r    *webhook.Request
		want error
	}{
		"good":                    {change(func(*webhook.Request) {}), nil},
		"for another webhook":     {h.request(t, "WH-2", certs+"CERT-1", body), webhook.RefusedSignature},
		"another body":            {change(func(r *webhook.Request) { r.Body[2]++ }), webhook.RefusedSignature},
		"another transmission":    {change(func(r *webhook.Request) { r.Header.Set(transmissionID, "t-2") }), webhook.RefusedSignature},
		"another time":            {change(func(r *webhook.Request) { r.Header.Set(transmissionTime, "2026-03-01T12:00:01Z") }), webhook.RefusedSignature},
		"too old":                 {change(func(r *webhook.Request) { r.At = hookNow.Add(6 * time.Minute) }), webhook.RefusedTimestamp},
		"another algorithm":       {change(func(r *webhook.Request) { r.Header.Set(authAlgorithm, "SHA1withRSA") }), webhook.RefusedUnsigned},
		"without a signature":     {change(func(r *webhook.Request) { r.Header.Del(transmissionSig) }), webhook.RefusedUnsigned},
		"no signature at all":     {change(func(r *webhook.Request) { r.Header.Set(transmissionSig, "AAAA") }), webhook.RefusedUnsigned},
		"without a certificate":   {change(func(r *webhook.Request) { r.Header.Del(certificateURL) }), webhook.RefusedSender},
		"a certificate not there": {change(func(r *webhook.Request) { r.Header.Set(certificateURL, certs+"CERT-2") }), webhook.RefusedSender},
	} {
		if err := h.check(c.r); err != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := newHook(t).Verify(context.Background(), change(func(*webhook.Request) {})); !errors.Is(err, webhook.ErrUnavailable) {
		t.Errorf("unprepared: %v", err)
	}
}

func TestOnlyPayPalIsAskedForCertificates(t *testing.T) {
	h := newHook(t)
	for _, url := range []string{
		"https://evil.example/cert", "https://api.paypal.com.evil.io/v1/notifications/certs/CERT-1", "http://api.paypal.com/v1/notifications/certs/CERT-1",
		"https://api.paypal.com:8443/v1/notifications/certs/CERT-1", "https://user@api.paypal.com/v1/notifications/certs/CERT-1",
		"https://evil.example/https://api.paypal.com/v1/notifications/certs/CERT-1", "https://api.paypal.com@evil.example/v1/notifications/certs/CERT-1",
		"https://api.paypal.com/v1/notifications/certs/../../oauth", "https://api.paypal.com/v1/notifications/certs/CERT-1?x=1",
		"https://api.paypal.com/v1/notifications/certs/CERT-1#x", "https://API.paypal.com/v1/notifications/certs/CERT-1", "https://apixpaypal.com/v1/notifications/certs/C",
		"https://api.paypal.com/v1/notifications/certs/CERT-1\n", "//api.paypal.com/v1/notifications/certs/CERT-1", "file:///etc/passwd",
	} {
		if err := h.check(h.request(t, "WH-1", url, "{}")); err != webhook.RefusedSender {
			t.Errorf("%s: %v", url, err)
		}
	}
	if h.vault.asked != nil {
		t.Errorf("asked: %v", h.vault.asked)
	}
}

func TestACertificateIsCheckedBeforeItIsUsedAndKept(t *testing.T) {
	h := newHook(t)
	stranger := newAuthority(t)
	sandbox := "messageverificationcerts.sandbox.paypal.com"
	pages := map[string][]byte{
		"NAME":    h.authority.issue(t, "evil.example", h.key, hookNow.Add(time.Hour)),
		"SANDBOX": h.authority.issue(t, sandbox, h.key, hookNow.Add(time.Hour)), // of the other mode
		"STRANGE": stranger.issue(t, live, h.key, hookNow.Add(time.Hour)),
		"OLD":     h.authority.issue(t, live, h.key, hookNow.Add(-time.Minute)),
		"EMPTY":   {},
		"TEXT":    []byte("<html>"),
	}
	for name, page := range pages {
		h.vault.pages[certs+name] = page
		h.certificates.budget = fetchesAtOnce
		for range 2 { // the second time nobody is asked
			if err := h.check(h.request(t, "WH-1", certs+name, "{}")); err != webhook.RefusedSender {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if len(h.vault.asked) != len(pages) {
		t.Errorf("asked: %v", h.vault.asked)
	}
	h.certificates.budget = 1
	for range 3 {
		if err := h.check(h.request(t, "WH-1", certs+"CERT-1", "{}")); err != nil {
			t.Error(err)
		}
	}
	if n := len(h.vault.asked); n != len(pages)+1 {
		t.Errorf("a certificate was fetched %d times", n-len(pages))
	}
	url := "https://api-m.sandbox.paypal.com/v1/notifications/certs/CERT-S"
	h.vault.pages[url] = h.authority.issue(t, sandbox, h.key, hookNow.Add(time.Hour))
	h.certificates.budget = 1
	if err := h.check(h.request(t, "WH-1", url, "{}")); err != nil {
		t.Errorf("of the sandbox: %v", err)
	}
}

func TestStrangersCannotMakeUsFetchForEver(t *testing.T) {
	h := newHook(t)
	h.certificates.spend(hookNow)
	h.certificates.budget = fetchesAtOnce
	refused, unavailable := 0, 0
	for i := range 50 {
		switch err := h.check(h.request(t, "WH-1", fmt.Sprintf("%sNONE-%d", certs, i), "{}")); {
		case err == webhook.RefusedSender:
			refused++
		case errors.Is(err, webhook.ErrUnavailable):
			unavailable++
		}
	}
	if refused != fetchesAtOnce || unavailable != 50-fetchesAtOnce || len(h.vault.asked) != fetchesAtOnce || len(h.certificates.keys) > maxCertificates {
		t.Errorf("%d refused, %d unavailable, %d asked, %d kept", refused, unavailable, len(h.vault.asked), len(h.certificates.keys))
	}
	r := h.request(t, "WH-1", certs+"CERT-1", "{}")
	r.At = hookNow.Add(time.Minute)
	if err := h.check(r); err != nil {
		t.Errorf("a minute later: %v", err)
	}
	h.vault.fail = errors.New("no route to host")
	r = h.request(t, "WH-1", certs+"CERT-9", "{}")
	r.At = hookNow.Add(2 * time.Minute)
	if err := h.check(r); !errors.Is(err, webhook.ErrUnavailable) {
		t.Errorf("PayPal cannot be reached: %v", err)
	}
}

func TestAWebhookOnlyAsksForAPoll(t *testing.T) {
	h := newHook(t)
	for body, want := range map[string]webhook.Notice{
		`{"id":"WH-E","event_type":"PAYMENT.CAPTURE.COMPLETED","resource_type":"capture","create_time":"2026-03-01T12:00:00.000Z","resource":{"id":"CAP1","status":"COMPLETED",` +
			`"supplementary_data":{"related_ids":{"order_id":"ORD1"}}}}`: {ID: "WH-E", Kind: "PAYMENT.CAPTURE.COMPLETED", Mode: "live", Effect: webhook.Hint, References: []string{"CAP1", "ORD1"}, OccurredAt: hookNow},
		`{"id":"WH-O","event_type":"CHECKOUT.ORDER.APPROVED","resource_type":"checkout-order","resource":{"id":"ORD1"}}`: {ID: "WH-O", Kind: "CHECKOUT.ORDER.APPROVED", Mode: "live",
			Effect: webhook.Hint, References: []string{"ORD1"}},
		`{"id":"WH-R","event_type":"PAYMENT.CAPTURE.REFUNDED","resource_type":"refund","resource":{"id":"REF1","status":"COMPLETED"}}`: {ID: "WH-R", Kind: "PAYMENT.CAPTURE.REFUNDED", Mode: "live"},
	} {
		got, err := h.Parse(h.request(t, "WH-1", certs+"CERT-1", body))
		if d := cmp.Diff([]webhook.Notice{want}, got); err != nil || d != "" {
			t.Errorf("%s\n%v\n%s", body, err, d)
		}
	}
	if _, err := h.Parse(h.request(t, "WH-1", certs+"CERT-1", strings.Repeat("[", 100))); err == nil {
		t.Error("a body that is too deep is read")
	}
}

func FuzzWebhook(f *testing.F) {
	h := newHook(f)
	const good = `{"id":"WH-E","event_type":"PAYMENT.CAPTURE.COMPLETED","resource_type":"capture","resource":{"id":"CAP1"}}`
	r := h.request(f, "WH-1", certs+"CERT-1", good)
	f.Add(good, r.Header.Get(transmissionSig), r.Header.Get(transmissionTime), certs+"CERT-1")
	f.Add("{}", "AAAA", "", "https://api.paypal.com.evil.io/v1/notifications/certs/CERT-1")
	f.Fuzz(func(t *testing.T, body, signature, stamp, url string) {
		r := &webhook.Request{Body: []byte(body), At: hookNow, Header: http.Header{transmissionID: {"t-1"}, transmissionTime: {stamp}, transmissionSig: {signature},
			certificateURL: {url}, authAlgorithm: {"SHA256withRSA"}}}
		err := h.check(r)
		got, _ := h.Parse(r)
		if err == nil && crc32.ChecksumIEEE([]byte(body)) != crc32.ChecksumIEEE([]byte(good)) {
			t.Fatal("another body is taken")
		}
		for _, n := range got {
			if n.Effect == webhook.Report {
				t.Fatalf("a body is believed: %+v", n)
			}
		}
		for _, asked := range h.vault.asked {
			if !strings.HasPrefix(asked, "https://api.paypal.com/v1/notifications/certs/") && !strings.Contains(asked, ".paypal.com/v1/notifications/certs/") {
				t.Fatalf("asked: %s", asked)
			}
		}
	})
}
