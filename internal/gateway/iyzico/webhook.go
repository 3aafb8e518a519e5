package iyzico

import (
	"context"
	"crypto/hmac"
	"errors"

	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/webhook"
)

const webhookSignature = "X-Iyz-Signature-V3"

// Webhook verifies iyzico's notifications: X-IYZ-SIGNATURE-V3, HMAC-SHA256 over the event's type, the ids of the payment and its status. The amount is not signed, nor
// whether the fraud check is done, so that a notification says nothing but that a payment changed: it is asked for before anything is believed. It is safe for
// concurrent use.
type Webhook struct{ keys webhook.Keys }

var _ webhook.Scheme = (*Webhook)(nil)

// NewWebhook returns a verifier. The keys are the secret keys of the merchant, those of the API.
func NewWebhook(keys webhook.Keys) (*Webhook, error) {
	if len(keys) == 0 {
		return nil, errors.New("keys: missing; write the secret key of the merchant, the one of the API")
	}
	return &Webhook{keys}, nil
}

// Glance implements webhook.Scheme.
func (w *Webhook) Glance(r *webhook.Request) error {
	_, err := r.HexSHA256(webhookSignature)
	return err
}

// notice is what is signed of a notification: of a direct payment, or, with a token, of one of the hosted page.
type notice struct{ kind, id, token, conversation, status string }

// read takes a body apart; what is signed are values in it. A value that is no scalar is not there.
func read(body []byte) (n notice, ok bool) {
	var doc strictjson.Document
	if doc.Parse(body) != nil || doc.Root().Kind() != strictjson.Object {
		return n, false
	}
	text := func(key string) string { return reply.Text(doc.Root().Member(key)) }
	n = notice{kind: text("iyziEventType"), id: text("paymentId"), token: text("token"), conversation: text("paymentConversationId"), status: text("status")}
	if n.token != "" {
		n.id = text("iyziPaymentId")
	}
	return n, n.kind != "" && n.id+n.conversation != ""
}

// Verify implements webhook.Scheme.
func (w *Webhook) Verify(_ context.Context, r *webhook.Request) (string, error) {
	sum, err := r.HexSHA256(webhookSignature)
	if err != nil {
		return "", err
	}
	n, ok := read(r.Body)
	if !ok {
		return "", webhook.RefusedUnsigned
	}
	message := []byte(n.kind + n.id + n.token + n.conversation + n.status)
	name, ok := w.keys.Match(r.At, func(secret []byte) bool { return hmac.Equal(webhook.SHA256(secret, secret, message), sum) })
	if !ok {
		return "", webhook.RefusedSignature
	}
	return name, nil
}

// Parse implements webhook.Scheme. The id of an event is made of what is signed; the one that iyzico gives is not.
func (w *Webhook) Parse(r *webhook.Request) ([]webhook.Notice, error) {
	n, ok := read(r.Body)
	if !ok {
		return nil, errors.New("not a notification of iyzico")
	}
	return []webhook.Notice{{ID: webhook.IDOf(n.kind, n.id, n.token, n.conversation, n.status), Kind: n.kind, Effect: webhook.Hint,
		References: webhook.ReferencesOf(n.id, n.conversation)}}, nil
}
