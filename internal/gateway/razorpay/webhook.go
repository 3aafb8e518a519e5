package razorpay

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"strings"

	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
	"pollux/internal/webhook"
)

// The headers of a notification. The id of the event is in a header, which is not signed: it tells tries of one event from another event, and nothing more.
const (
	webhookSignature = "X-Razorpay-Signature"
	webhookEventID   = "X-Razorpay-Event-Id"
)

// Webhook verifies and reads Razorpay's notifications: X-Razorpay-Signature, HMAC-SHA256 over the raw body. It is safe for concurrent use.
type Webhook struct{ keys webhook.Keys }

var _ webhook.Scheme = (*Webhook)(nil)

// NewWebhook returns a verifier. The keys are the secrets that were given to the webhook in Razorpay's dashboard; they are not those of its API.
func NewWebhook(keys webhook.Keys) (*Webhook, error) {
	if len(keys) == 0 {
		return nil, errors.New("keys: missing; write the secret of the webhook, as it was given in the dashboard")
	}
	return &Webhook{keys}, nil
}

// Glance implements webhook.Scheme.
func (w *Webhook) Glance(r *webhook.Request) error {
	_, err := r.HexSHA256(webhookSignature)
	return err
}

// Verify implements webhook.Scheme.
func (w *Webhook) Verify(_ context.Context, r *webhook.Request) (string, error) {
	sum, err := r.HexSHA256(webhookSignature)
	if err != nil {
		return "", err
	}
	name, ok := w.keys.Match(r.At, func(secret []byte) bool { return hmac.Equal(webhook.SHA256(secret, r.Body), sum) })
	if !ok {
		return "", webhook.RefusedSignature
	}
	return name, nil
}

// Parse implements webhook.Scheme. Events about anything but payments and orders do nothing.
func (w *Webhook) Parse(r *webhook.Request) ([]webhook.Notice, error) {
	var doc strictjson.Document
	if err := doc.Parse(r.Body); err != nil {
		return nil, fmt.Errorf("the body is refused: %w", err)
	}
	event := doc.Root()
	n := webhook.Notice{ID: r.Header.Get(webhookEventID), Kind: reply.Text(event.Member("event"))}
	if n.ID == "" {
		n.ID = webhook.DigestID(r.Body)
	}
	n.OccurredAt, _ = webhook.UnixTime(reply.Text(event.Member("created_at")))
	paid, order := event.Member("payload").Member("payment").Member("entity"), event.Member("payload").Member("order").Member("entity")
	switch {
	case reply.Text(event.Member("entity")) != "event":
		n.Fault = "not an event of Razorpay"
	case strings.HasPrefix(n.Kind, "payment.") && paid.Exists():
		return paymentNotices(n, paid), nil
	case strings.HasPrefix(n.Kind, "order.") && order.Exists():
		n.References = webhook.ReferencesOf(reply.Text(order.Member("id")), reply.Text(order.Member("receipt")))
		said(&n, order, "order", "amount_paid", orderMeaning)
	}
	return []webhook.Notice{n}, nil
}

// paymentNotices is what an event about a payment says about it, and about its order: a payment that was captured may have paid the order, or a part of it;
// one that failed says nothing about the next try.
func paymentNotices(n webhook.Notice, entity strictjson.Value) []webhook.Notice {
	n.References = webhook.ReferencesOf(reply.Text(entity.Member("id")))
	said(&n, entity, "payment", "amount", paymentMeaning)
	order := webhook.ReferencesOf(reply.Text(entity.Member("order_id")))
	switch {
	case order == nil || n.Fault != "":
		return []webhook.Notice{n}
	case n.Status == payment.Succeeded:
		n.References, n.Part = append(n.References, order...), true
		return []webhook.Notice{n}
	}
	hint := webhook.Notice{ID: n.ID + "/order", Kind: n.Kind, References: order, Effect: webhook.Hint, OccurredAt: n.OccurredAt}
	return []webhook.Notice{n, hint}
}

// said reads what an event says about a payment or an order. money is where the amount stands.
func said(n *webhook.Notice, v strictjson.Value, kind, money string, meaning func(*reply.Reply, strictjson.Value, string) (reply.Meaning, bool)) {
	r := &reply.Reply{Hide: &httpclient.Redactor{}}
	status := reply.Text(v.Member("status"))
	m, known := meaning(r, v, status)
	switch {
	case reply.Text(v.Member("entity")) != kind:
		n.Fault = "it has no " + kind
		return
	case !known:
		n.Fault = "status " + r.Quoted(status) + " of a " + kind + " is not known"
		return
	}
	n.Effect, n.Status, n.Detail = webhook.Report, m.Status, r.Answer(m, "").Detail
	if m.Status != payment.Succeeded {
		money = "amount"
	}
	minor, iso, err := unit.Said(v.Member(money), v.Member("currency"))
	if err != nil {
		n.Fault = "the " + kind + " has " + err.Error()
		return
	}
	n.Money = &webhook.Money{Minor: minor, Currency: iso}
}
