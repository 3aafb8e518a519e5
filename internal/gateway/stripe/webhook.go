package stripe

import (
	"context"
	"crypto/hmac"
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

// WebhookTolerance is how far a notification's time may be from ours: five minutes, as Stripe's own libraries have it, and one for a clock ahead of
// ours, which they do not look at.
var WebhookTolerance = webhook.Tolerance{Past: 5 * time.Minute, Future: time.Minute}

// webhookHeader carries the signature: t=UNIX,v1=HEX, several v1 while a secret is changed at Stripe's side.
const webhookHeader = "Stripe-Signature"

// Webhook verifies and reads the events of one Stripe endpoint: Stripe-Signature, scheme v1, HMAC-SHA256 over the time and the raw body. It is safe for
// concurrent use.
type Webhook struct {
	keys      webhook.Keys
	tolerance webhook.Tolerance
}

var _ webhook.Scheme = (*Webhook)(nil)

// NewWebhook returns a verifier. The keys are the endpoint's signing secrets as Stripe shows them, whsec_ and all.
func NewWebhook(keys webhook.Keys, tolerance webhook.Tolerance) (*Webhook, error) {
	if len(keys) == 0 {
		return nil, errors.New("keys: missing; write at least one, the signing secret of the endpoint (whsec_…)")
	}
	return &Webhook{keys, tolerance}, nil
}

// webhookSignature is what the header says.
type webhookSignature struct {
	stamp string
	at    time.Time
	v1    [][]byte
}

// maxSignatures bounds the signatures that are compared for one request: Stripe sends one, two while a secret is changed.
const maxSignatures = 8

// readSignature reads the header. Schemes that are not known are passed over, as Stripe asks for.
func readSignature(values []string) (s webhookSignature, ok bool) {
	if len(values) != 1 || len(values[0]) > 2048 {
		return s, false
	}
	for part := range strings.SplitSeq(values[0], ",") {
		name, value, found := strings.Cut(part, "=")
		switch {
		case !found:
			return s, false
		case name == "t":
			at, good := webhook.UnixTime(value)
			if !good || s.stamp != "" {
				return s, false
			}
			s.stamp, s.at = value, at
		case name == "v1":
			sum, err := hex.DecodeString(value)
			if err != nil || len(sum) != 32 || len(s.v1) == maxSignatures {
				return s, false
			}
			s.v1 = append(s.v1, sum)
		}
	}
	return s, s.stamp != "" && len(s.v1) > 0
}

// Glance implements webhook.Scheme.
func (w *Webhook) Glance(r *webhook.Request) error {
	_, err := w.glance(r)
	return err
}

func (w *Webhook) glance(r *webhook.Request) (webhookSignature, error) {
	s, ok := readSignature(r.Header.Values(webhookHeader))
	switch {
	case !ok:
		return s, webhook.RefusedUnsigned
	case !w.tolerance.Holds(s.at, r.At):
		return s, webhook.RefusedTimestamp
	}
	return s, nil
}

// Verify implements webhook.Scheme.
func (w *Webhook) Verify(_ context.Context, r *webhook.Request) (string, error) {
	s, err := w.glance(r)
	if err != nil {
		return "", err
	}
	name, ok := w.keys.Match(r.At, func(secret []byte) bool {
		sum := webhook.SHA256(secret, []byte(s.stamp), []byte("."), r.Body)
		good := false
		for _, v1 := range s.v1 {
			good = hmac.Equal(sum, v1) || good
		}
		return good
	})
	if !ok {
		return "", webhook.RefusedSignature
	}
	return name, nil
}

// Parse implements webhook.Scheme. Events about anything but a PaymentIntent do nothing.
func (w *Webhook) Parse(r *webhook.Request) ([]webhook.Notice, error) {
	var doc strictjson.Document
	if err := doc.Parse(r.Body); err != nil {
		return nil, fmt.Errorf("the body is refused: %w", err)
	}
	n := WebhookNotice(doc.Root())
	return []webhook.Notice{n}, nil
}

// WebhookNotice reads an event as Stripe sends and lists it.
func WebhookNotice(event strictjson.Value) webhook.Notice {
	object := event.Member("data").Member("object")
	n := webhook.Notice{ID: event.Member("id").Text(), Kind: event.Member("type").Text(), Mode: webhookMode(event.Member("livemode"))}
	if at, ok := webhook.UnixTime(event.Member("created").Text()); ok {
		n.OccurredAt = at
	}
	switch {
	case event.Member("object").Text() != "event" || n.ID == "":
		n.Fault = "not an event of Stripe"
	case !strings.HasPrefix(n.Kind, "payment_intent.") || object.Member("object").Text() != "payment_intent":
	default:
		readIntent(&n, object)
	}
	return n
}

func webhookMode(live strictjson.Value) string {
	switch live.Kind() {
	case strictjson.True:
		return "live"
	case strictjson.False:
		return "test"
	}
	return ""
}

// readIntent reads what an event says about a PaymentIntent. Its status counts, not the name of the event: they are two words for one thing, and only the first
// is what a query would say.
func readIntent(n *webhook.Notice, intent strictjson.Value) {
	n.Effect, n.References = webhook.Report, []string{reply.Text(intent.Member("id"))}
	r := &reply.Reply{Hide: &httpclient.Redactor{}}
	status := reply.Text(intent.Member("status"))
	m, known := meaning(r, intent, status)
	if !known {
		n.Fault = "status " + r.Quoted(status) + " of a PaymentIntent is not known"
		return
	}
	n.Status, n.Detail = m.Status, r.Answer(m, "").Detail
	amount := intent.Member("amount")
	if m.Status == payment.Succeeded {
		amount = intent.Member("amount_received") // what was taken, not what was asked for
	}
	minor, iso, err := unit.Said(amount, intent.Member("currency"))
	if err != nil {
		n.Fault = "the PaymentIntent has " + err.Error()
		return
	}
	n.Money = &webhook.Money{Minor: minor, Currency: iso}
}
