package mercadopago

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"strings"
	"time"

	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/webhook"
)

// Webhook verifies Mercado Pago's notifications: x-signature, HMAC-SHA256 over the id of the payment, the id of the request and the time. The body is not signed
// and has no status, so that a notification says nothing but that a payment changed; everything that is taken from it is signed. It is safe for concurrent use.
type Webhook struct {
	keys      webhook.Keys
	tolerance webhook.Tolerance
}

var _ webhook.Scheme = (*Webhook)(nil)

// NewWebhook returns a verifier. The keys are the secret signatures of the webhook, as Mercado Pago shows them beside it.
func NewWebhook(keys webhook.Keys, tolerance webhook.Tolerance) (*Webhook, error) {
	if len(keys) == 0 {
		return nil, errors.New("keys: missing; write the secret signature of the webhook, as Mercado Pago shows it")
	}
	return &Webhook{keys, tolerance}, nil
}

// claim is what a request says that is signed.
type claim struct {
	id, request, stamp string
	sum                []byte
}

// Glance implements webhook.Scheme.
func (w *Webhook) Glance(r *webhook.Request) error {
	_, err := w.claim(r)
	return err
}

func (w *Webhook) claim(r *webhook.Request) (claim, error) {
	c, at, ok := readClaim(r)
	switch {
	case !ok:
		return c, webhook.RefusedUnsigned
	case !w.tolerance.Holds(at, r.At):
		return c, webhook.RefusedTimestamp
	}
	return c, nil
}

func readClaim(r *webhook.Request) (c claim, at time.Time, ok bool) {
	values := r.Header.Values("X-Signature")
	if len(values) != 1 || len(values[0]) > 512 {
		return c, at, false
	}
	for part := range strings.SplitSeq(values[0], ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case name == "ts" && c.stamp == "":
			c.stamp = value
		case name == "v1" && c.sum == nil:
			c.sum, _ = hex.DecodeString(value)
		default:
			return c, at, false
		}
	}
	query, err := url.ParseQuery(r.RawQuery)
	c.id, c.request = strings.ToLower(query.Get("data.id")), r.Header.Get("X-Request-Id")
	if err != nil || len(query["data.id"]) > 1 || len(c.sum) != sha256.Size || !harmless(c.id) || !harmless(c.request) {
		return c, at, false
	}
	at, ok = webhook.UnixTime(c.stamp)
	if len(c.stamp) > 10 { // their own library has milliseconds, their examples seconds
		at, ok = webhook.UnixMilliTime(c.stamp)
	}
	return c, at, ok
}

// harmless reports whether an id cannot be taken for anything else in what is signed. None is fine.
func harmless(s string) bool {
	return len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' && r != '_'
	})
}

// manifest is what is signed; what is not there is left out.
func (c claim) manifest() []byte {
	var b []byte
	for _, part := range [][2]string{{"id:", c.id}, {"request-id:", c.request}, {"ts:", c.stamp}} {
		if part[1] != "" {
			b = append(append(append(b, part[0]...), part[1]...), ';')
		}
	}
	return b
}

// Verify implements webhook.Scheme.
func (w *Webhook) Verify(_ context.Context, r *webhook.Request) (string, error) {
	c, err := w.claim(r)
	if err != nil {
		return "", err
	}
	name, ok := w.keys.Match(r.At, func(secret []byte) bool { return hmac.Equal(webhook.SHA256(secret, c.manifest()), c.sum) })
	if !ok {
		return "", webhook.RefusedSignature
	}
	return name, nil
}

// Parse implements webhook.Scheme. The body is looked at for the name of the event alone, which is shown to people.
func (w *Webhook) Parse(r *webhook.Request) ([]webhook.Notice, error) {
	c, _, _ := readClaim(r)
	n := webhook.Notice{ID: webhook.IDOf(c.id, c.request, c.stamp), Effect: webhook.Hint, References: webhook.ReferencesOf(c.id)}
	var doc strictjson.Document
	if doc.Parse(r.Body) == nil {
		n.Kind = reply.Text(doc.Root().Member("action"))
	}
	return []webhook.Notice{n}, nil
}
