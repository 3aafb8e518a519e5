package adyen

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
	"pollux/internal/webhook"
)

// maxItems bounds the items of one notification. Adyen sends one in JSON, and a few in its older formats.
const maxItems = 100

// WebhookConfig says how an account is set up at Adyen.
type WebhookConfig struct {
	Capture         string `koanf:"capture"`          // `manual`: an authorised payment has succeeded when it is captured. `automatic`: Adyen captures at once and sends nothing about it, so that an authorised payment has succeeded. Default `manual`.
	MerchantAccount string `koanf:"merchant_account"` // The merchant account; items of another one are set aside. Empty: all are taken.
}

// WithDefaults returns the configuration with every default written out.
func (c WebhookConfig) WithDefaults() WebhookConfig {
	if c.Capture == "" {
		c.Capture = "manual"
	}
	return c
}

// Webhook verifies and reads Adyen's standard webhooks. Each item of a notification is signed for itself: additionalData.hmacSignature, HMAC-SHA256 over eight of its
// fields. It is safe for concurrent use.
type Webhook struct {
	cfg  WebhookConfig
	keys webhook.Keys
}

var _ webhook.Scheme = (*Webhook)(nil)

// NewWebhook returns a verifier, or every problem at once. The keys are the HMAC keys of the webhook, in hexadecimal as the customer area shows them.
func NewWebhook(c WebhookConfig, keys webhook.Keys) (*Webhook, error) {
	w := &Webhook{cfg: c.WithDefaults()}
	var errs []error
	if w.cfg.Capture != "manual" && w.cfg.Capture != "automatic" {
		errs = append(errs, fmt.Errorf("adyen.capture: %.20q is not known; manual or automatic", c.Capture))
	}
	if len(keys) == 0 {
		errs = append(errs, errors.New("keys: missing; write the HMAC key of the webhook, as the customer area shows it"))
	}
	for _, key := range keys {
		secret, err := hex.DecodeString(string(key.Secret))
		if err != nil || len(secret) == 0 {
			errs = append(errs, fmt.Errorf("keys.%s.secret: not hexadecimal, as an HMAC key of Adyen is", key.Name))
		}
		key.Secret = secret
		w.keys = append(w.keys, key)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return w, nil
}

// Glance implements webhook.Scheme: the signatures are in the body.
func (w *Webhook) Glance(*webhook.Request) error { return nil }

// item is one item: what is signed of it, and the rest.
type item struct {
	psp, original, account, merchant, value, currency, code, success string
	signature                                                        []byte
	root                                                             strictjson.Value
}

// items takes a notification apart.
func items(doc *strictjson.Document, body []byte) (all []item, live string, ok bool) {
	if doc.Parse(body) != nil {
		return nil, "", false
	}
	list := doc.Root().Member("notificationItems")
	for e := range list.Elements() {
		if len(all) == maxItems {
			return nil, "", false
		}
		all = append(all, itemOf(e.Member("NotificationRequestItem")))
	}
	return all, reply.Text(doc.Root().Member("live")), len(all) > 0
}

func itemOf(v strictjson.Value) item {
	text := func(key string) string { return reply.Text(v.Member(key)) }
	amount := v.Member("amount")
	i := item{psp: text("pspReference"), original: text("originalReference"), account: text("merchantAccountCode"), merchant: text("merchantReference"),
		value: reply.Text(amount.Member("value")), currency: reply.Text(amount.Member("currency")), code: text("eventCode"), success: text("success"), root: v}
	i.signature, _ = base64.StdEncoding.Strict().DecodeString(reply.Text(v.Member("additionalData").Member("hmacSignature")))
	return i
}

// key returns the name of the key that signed the item. Only the merchant's own reference may have a colon in it: with one elsewhere the same signature would do for
// other fields.
func (w *Webhook) key(i item, at time.Time) (string, bool) {
	for _, field := range []string{i.psp, i.original, i.account, i.value, i.currency, i.code, i.success} {
		if strings.Contains(field, ":") {
			return "", false
		}
	}
	if len(i.signature) != sha256.Size {
		return "", false
	}
	message := []byte(strings.Join([]string{i.psp, i.original, i.account, i.merchant, i.value, i.currency, i.code, i.success}, ":"))
	return w.keys.Match(at, func(secret []byte) bool { return hmac.Equal(webhook.SHA256(secret, message), i.signature) })
}

// Verify implements webhook.Scheme: at least one item is genuine.
func (w *Webhook) Verify(_ context.Context, r *webhook.Request) (string, error) {
	var doc strictjson.Document
	all, _, ok := items(&doc, r.Body)
	if !ok {
		return "", webhook.RefusedUnsigned
	}
	for _, i := range all {
		if name, ok := w.key(i, r.At); ok {
			return name, nil
		}
	}
	return "", webhook.RefusedSignature
}

// Parse implements webhook.Scheme: each item for itself.
func (w *Webhook) Parse(r *webhook.Request) ([]webhook.Notice, error) {
	var doc strictjson.Document
	all, live, ok := items(&doc, r.Body)
	if !ok {
		return nil, errors.New("not a notification of Adyen")
	}
	mode := map[string]string{"true": "live", "false": "test"}[live]
	notices := make([]webhook.Notice, len(all))
	for at, i := range all {
		if _, ok := w.key(i, r.At); !ok {
			notices[at].Refused = webhook.RefusedSignature
			continue
		}
		notices[at] = w.notice(i)
		notices[at].Mode = mode
	}
	return notices, nil
}

// notice reads a genuine item. Adyen gives no ids to events: one is the same when these four are.
func (w *Webhook) notice(i item) webhook.Notice {
	n := webhook.Notice{ID: webhook.IDOf(i.account, i.psp, i.code, i.success), Kind: i.code}
	if at, err := time.Parse(time.RFC3339, reply.Text(i.root.Member("eventDate"))); err == nil {
		n.OccurredAt = at.UTC()
	}
	switch {
	case w.cfg.MerchantAccount != "" && w.cfg.MerchantAccount != i.account:
		n.Fault = "it is of another merchant account than " + w.cfg.MerchantAccount
		return n
	case i.success != "true" && i.success != "false":
		n.Fault = "it does not say whether it went well"
		return n
	}
	m, compared := w.meaning(i)
	if m.Status == "" {
		return n
	}
	n.Effect, n.Status = webhook.Report, m.Status
	n.Detail = (&reply.Reply{}).Answer(m, "").Detail
	n.References = webhook.ReferencesOf(i.original, i.psp, i.merchant) // what is done to a payment names it as its original
	if compared {
		n.Money, n.Fault = money(i)
	}
	return n
}

// meaning is what an event says about its payment, and whether its money is the payment's. What is refunded or disputed afterwards changes no status.
func (w *Webhook) meaning(i item) (m reply.Meaning, compared bool) {
	good := i.success == "true"
	switch i.code {
	case "AUTHORISATION":
		switch {
		case !good: // the shopper may try again
			return reply.Meaning{Status: payment.Failed, Detail: (&reply.Reply{Hide: &httpclient.Redactor{}}).Detail(reply.Text(i.root.Member("reason")))}, false
		case w.cfg.Capture == "automatic":
			return reply.Meaning{Status: payment.Succeeded}, true
		}
		return reply.Meaning{Status: payment.Pending, Detail: "authorized"}, true
	case "CAPTURE":
		if good {
			return reply.Meaning{Status: payment.Succeeded}, true
		}
	case "CAPTURE_FAILED":
		if good { // a capture was taken back: a contradiction, unless nobody told us of the capture
			return reply.Meaning{Status: payment.Failed, Detail: "capture_failed"}, false
		}
	case "CANCELLATION", "TECHNICAL_CANCEL":
		if good {
			return reply.Meaning{Status: payment.Cancelled}, false
		}
	case "OFFER_CLOSED", "EXPIRE":
		if good {
			return reply.Meaning{Status: payment.Expired}, false
		}
	}
	return reply.Meaning{}, false
}

// unit is how Adyen writes amounts: in minor units, with other decimals than ISO 4217 for these (docs.adyen.com/development-resources/currency-codes).
var unit = reply.Unit{Decimals: map[string]int{"CLP": 2, "CVE": 0, "IDR": 0, "ISK": 2}}

func money(i item) (*webhook.Money, string) {
	amount := i.root.Member("amount")
	minor, iso, err := unit.Said(amount.Member("value"), amount.Member("currency"))
	if err != nil {
		return nil, "it has " + err.Error()
	}
	return &webhook.Money{Minor: minor, Currency: iso}, ""
}
