package paypal

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/webhook"
)

// The headers of a notification.
const (
	transmissionID   = "Paypal-Transmission-Id"
	transmissionTime = "Paypal-Transmission-Time"
	transmissionSig  = "Paypal-Transmission-Sig"
	certificateURL   = "Paypal-Cert-Url"
	authAlgorithm    = "Paypal-Auth-Algo"
)

// Webhook verifies and reads PayPal's notifications: RSA with SHA-256 over the transmission's id and time, the webhook's id and the checksum of the raw body, by a
// certificate that the request names. Where that may come from is checked before it is fetched, and whose it is before it is used. It is safe for concurrent use.
type Webhook struct {
	ids          webhook.Keys
	tolerance    webhook.Tolerance
	certificates *certificates
}

var (
	_ webhook.Scheme   = (*Webhook)(nil)
	_ webhook.Preparer = (*Webhook)(nil)
)

// NewWebhook returns a verifier. The keys are the ids of the webhook as PayPal shows them: what keeps a notification for somebody else's webhook from being taken for
// one of ours. They are no secrets.
func NewWebhook(ids webhook.Keys, tolerance webhook.Tolerance) (*Webhook, error) {
	if len(ids) == 0 {
		return nil, errors.New("keys: missing; write the id of the webhook, as PayPal shows it")
	}
	certificates, err := newCertificates()
	if err != nil {
		return nil, err
	}
	return &Webhook{ids, tolerance, certificates}, nil
}

// Trusting returns a verifier that is told by fetch what is at the address of a certificate, and believes the authorities in roots, instead of asking PayPal and believing
// those of the machine: for a simulator, whose certificates are nobody's.
func (w *Webhook) Trusting(fetch func(ctx context.Context, url string) (status int, body []byte, err error), roots *x509.CertPool) *Webhook {
	return &Webhook{w.ids, w.tolerance, &certificates{fetch: fetch, roots: roots, keys: map[string]known{}, turn: make(chan struct{}, 1), budget: fetchesAtOnce}}
}

// claim is what the head of a request says.
type claim struct {
	id, stamp string
	sum       []byte
	source    source
}

// Glance implements webhook.Scheme.
func (w *Webhook) Glance(r *webhook.Request) error {
	_, err := w.claim(r)
	return err
}

func (w *Webhook) claim(r *webhook.Request) (c claim, err error) {
	single := func(name string) string {
		if values := r.Header.Values(name); len(values) == 1 && len(values[0]) <= 2048 {
			return values[0]
		}
		return ""
	}
	c.id, c.stamp = single(transmissionID), single(transmissionTime)
	c.sum, err = base64.StdEncoding.Strict().DecodeString(single(transmissionSig))
	if err != nil || len(c.sum) < 128 || c.id == "" || strings.Contains(c.id, "|") || single(authAlgorithm) != "SHA256withRSA" {
		return c, webhook.RefusedUnsigned
	}
	at, err := time.Parse(time.RFC3339, c.stamp)
	if err != nil || !w.tolerance.Holds(at, r.At) {
		return c, webhook.RefusedTimestamp
	}
	source, ok := sourceOf(single(certificateURL))
	if !ok {
		return c, webhook.RefusedSender
	}
	c.source = source
	return c, nil
}

// Prepare implements webhook.Preparer: it fetches the certificate that the request names, unless it is known.
func (w *Webhook) Prepare(ctx context.Context, r *webhook.Request) error {
	c, err := w.claim(r)
	if err != nil {
		return err
	}
	_, err = w.certificates.of(ctx, c.source, r.At)
	return err
}

// Verify implements webhook.Scheme. It uses only certificates that are known.
func (w *Webhook) Verify(_ context.Context, r *webhook.Request) (string, error) {
	c, err := w.claim(r)
	if err != nil {
		return "", err
	}
	cert, ok := w.certificates.known(c.source, r.At)
	if !ok {
		return "", fmt.Errorf("%w: its certificate is not known", webhook.ErrUnavailable)
	}
	checksum := crc32.ChecksumIEEE(r.Body)
	name, ok := w.ids.Match(r.At, func(id []byte) bool {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s|%s|%s|%d", c.id, c.stamp, id, checksum))
		return rsa.VerifyPKCS1v15(cert, crypto.SHA256, sum[:], c.sum) == nil
	})
	if !ok {
		return "", webhook.RefusedSignature
	}
	return name, nil
}

// Parse implements webhook.Scheme. What is signed of the body is a checksum that anybody can make another body for who has seen one genuine notification. So
// no body is believed: what it is about is polled. Events about anything but orders, authorizations and captures do nothing.
func (w *Webhook) Parse(r *webhook.Request) ([]webhook.Notice, error) {
	var doc strictjson.Document
	if err := doc.Parse(r.Body); err != nil {
		return nil, fmt.Errorf("the body is refused: %w", err)
	}
	n := webhookNotice(doc.Root())
	if source, ok := sourceOf(r.Header.Get(certificateURL)); ok {
		n.Mode = source.mode
	}
	return []webhook.Notice{n}, nil
}

// webhookNotice reads an event as PayPal sends and lists it.
func webhookNotice(event strictjson.Value) webhook.Notice {
	resource := event.Member("resource")
	n := webhook.Notice{ID: reply.Text(event.Member("id")), Kind: reply.Text(event.Member("event_type"))}
	if at, err := time.Parse(time.RFC3339, reply.Text(event.Member("create_time"))); err == nil {
		n.OccurredAt = at.UTC()
	}
	switch reply.Text(event.Member("resource_type")) {
	case "checkout-order", "authorization", "capture":
		related := resource.Member("supplementary_data").Member("related_ids")
		n.Effect, n.References = webhook.Hint, webhook.ReferencesOf(reply.Text(resource.Member("id")), reply.Text(related.Member("order_id")),
			reply.Text(related.Member("authorization_id")))
	}
	return n
}
