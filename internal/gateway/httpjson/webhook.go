package httpjson

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
	"pollux/internal/webhook"
)

// WebhookConfig attaches the notifications of a gateway by configuration alone. The zero value of a field is its default, where it has one.
// What each key means to an operator is in docs/webhooks.md.
type WebhookConfig struct {
	Signature WebhookSignature  `koanf:"signature"` // How notifications are signed. With `scheme: standard` there is nothing to say.
	Pointers  WebhookPointers   `koanf:"pointers"`  // Where things stand in the body: JSON pointers (RFC 6901).
	Kinds     []string          `koanf:"kinds"`     // The kinds of event that are about a payment's status; others do nothing. Empty: all are.
	Statuses  map[string]string `koanf:"statuses"`  // What the gateway's statuses mean, as in the section `httpjson` of a gateway. What is not here is set aside for a person. Empty: a notification says nothing but that something changed, and the payment is polled.
	Amount    WebhookAmount     `koanf:"amount"`    // How amounts are written.
	Modes     map[string]string `koanf:"modes"`     // What stands at `pointers.mode`, and whether it means `live` or `test`.
}

// WebhookSignature is an HMAC over the request.
type WebhookSignature struct {
	Header          string `koanf:"header"`           // The header that carries the signature, or several with commas or blanks between. Required with `scheme: hmac`.
	Prefix          string `koanf:"prefix"`           // What stands before a signature, such as `sha256=`.
	Sign            string `koanf:"sign"`             // What is signed: `{body}` or `{body_sha256}`, and around it `{timestamp}`, `{id}`, `{method}`, `{host}`, `{path}`, `{query}` and `{target}`. Default `{body}`.
	Hash            string `koanf:"hash"`             // `sha256` or `sha512`. Default `sha256`.
	Encoding        string `koanf:"encoding"`         // `hex` or `base64`: how the signature is written. Default `hex`.
	KeyEncoding     string `koanf:"key_encoding"`     // `text`, `hex` or `base64`: how the key is written. Default `text`.
	TimestampHeader string `koanf:"timestamp_header"` // The header with the time of signing, which `sign` must have. Without one a notification that somebody copied can come again; it is then a duplicate.
	Timestamp       string `koanf:"timestamp"`        // `unix`, `unix_ms` or `rfc3339`. Default `unix`.
	IDHeader        string `koanf:"id_header"`        // The header with the id of the event, which `sign` must have.
}

// WebhookPointers say where things stand in a notification. An empty one is not looked for.
type WebhookPointers struct {
	EventID    string `koanf:"event_id"`    // The id of the event. Without it and without a header the digest of the body is its id.
	Kind       string `koanf:"kind"`        // What happened; see `kinds`.
	Reference  string `koanf:"reference"`   // The gateway's id of the payment. Required.
	Status     string `koanf:"status"`      // The status of the payment; see `statuses`.
	Detail     string `koanf:"detail"`      // Why it is so: refines the status in `statuses`, and is the detail where that names none.
	Amount     string `koanf:"amount"`      // The amount. Another one than tracked goes to a person.
	Currency   string `koanf:"currency"`    // The currency of the amount. They go together.
	OccurredAt string `koanf:"occurred_at"` // When it happened: seconds or milliseconds since 1970, or RFC 3339. Without it an older notification that comes late cannot be told from a contradiction.
	Mode       string `koanf:"mode"`        // Live or test; see `modes`.
}

// WebhookAmount says how amounts are written.
type WebhookAmount struct {
	Unit       string            `koanf:"unit"`       // `minor` (1050) or `major` (10.50); text or number. Default `minor`.
	Exponents  map[string]int    `koanf:"exponents"`  // With `minor`: currencies with which the gateway has other decimals than ISO 4217.
	Currencies map[string]string `koanf:"currencies"` // Currencies that the gateway calls otherwise: `"949": TRY`.
}

// WithDefaults returns the configuration with every default written out.
func (c WebhookConfig) WithDefaults() WebhookConfig {
	s := &c.Signature
	s.Sign, s.Hash, s.Encoding = cmp.Or(s.Sign, "{body}"), cmp.Or(s.Hash, "sha256"), cmp.Or(s.Encoding, "hex")
	s.KeyEncoding, s.Timestamp = cmp.Or(s.KeyEncoding, "text"), cmp.Or(s.Timestamp, "unix")
	c.Amount.Unit = cmp.Or(c.Amount.Unit, "minor")
	return c
}

// The schemes of a Webhook.
const (
	SchemeHMAC     = "hmac"     // as WebhookSignature says
	SchemeStandard = "standard" // Standard Webhooks (https://www.standardwebhooks.com), version 1 with a symmetric key
)

// The headers of Standard Webhooks.
const (
	standardID        = "Webhook-Id"
	standardTimestamp = "Webhook-Timestamp"
	standardSignature = "Webhook-Signature"
	standardKeyPrefix = "whsec_"
)

// standard is how Standard Webhooks would be configured.
var standard = WebhookSignature{Header: standardSignature, Prefix: "v1,", Sign: "{id}.{timestamp}.{body}", Hash: "sha256", Encoding: "base64",
	KeyEncoding: "base64", TimestampHeader: standardTimestamp, Timestamp: "unix", IDHeader: standardID}

// Webhook verifies and reads notifications as a configuration says. It is safe for concurrent use.
type Webhook struct {
	sig       WebhookSignature
	sign      template
	hash      func() hash.Hash
	size      int
	keys      webhook.Keys
	tolerance webhook.Tolerance

	eventID, kind, reference, status, detail, amount, currency, occurredAt, mode pointer

	kinds    []string
	statuses map[string]meaning
	modes    map[string]string
	unit     reply.Unit
}

var _ webhook.Scheme = (*Webhook)(nil)

// NewWebhook returns a verifier for SchemeHMAC or SchemeStandard, or every problem of its configuration at once, each naming the key.
func NewWebhook(scheme string, c WebhookConfig, keys webhook.Keys, tolerance webhook.Tolerance) (*Webhook, error) {
	k := &webhookCompiler{scheme: scheme, c: c.WithDefaults(), w: &Webhook{tolerance: tolerance, hash: sha256.New, size: sha256.Size}}
	if scheme == SchemeStandard {
		if k.c.Signature != (WebhookConfig{}).WithDefaults().Signature {
			k.bad("signature", "Standard Webhooks say how they are signed; take it away, or write scheme: hmac")
		}
		k.c.Signature = standard
	}
	k.signature()
	k.keysOf(keys)
	k.pointers()
	k.meanings()
	if err := errors.Join(k.errs...); err != nil {
		return nil, err
	}
	return k.w, nil
}

// webhookCompiler makes a Webhook of a configuration and collects what is wrong with it.
type webhookCompiler struct {
	scheme string
	c      WebhookConfig
	w      *Webhook
	errs   []error
}

func (k *webhookCompiler) bad(key, format string, a ...any) {
	k.errs = append(k.errs, fmt.Errorf(key+": "+format, a...))
}

func (k *webhookCompiler) signature() {
	s, w := k.c.Signature, k.w
	w.sig = s
	oneOf(k.bad, "signature.hash", s.Hash, "sha256", "sha512")
	oneOf(k.bad, "signature.encoding", s.Encoding, "hex", "base64")
	oneOf(k.bad, "signature.key_encoding", s.KeyEncoding, "text", "hex", "base64")
	oneOf(k.bad, "signature.timestamp", s.Timestamp, "unix", "unix_ms", "rfc3339")
	if s.Hash == "sha512" {
		w.hash, w.size = sha512.New, sha512.Size
	}
	for _, h := range []struct{ key, name string }{
		{"signature.header", s.Header}, {"signature.timestamp_header", s.TimestampHeader}, {"signature.id_header", s.IDHeader},
	} {
		if h.name != "" && !httpclient.ValidHeaderName(h.name) {
			k.bad(h.key, "not the name of a header")
		}
	}
	if s.Header == "" {
		k.bad("signature.header", "missing; write the header that carries the signature, for instance X-Signature")
	}
	t, err := parseTemplate(s.Sign, "body", "body_sha256", "timestamp", "id", "method", "host", "path", "query", "target")
	if err != nil {
		k.bad("signature.sign", "%v", err)
	}
	w.sign = t
	switch {
	case err != nil:
	case !t.has("body") && !t.has("body_sha256"):
		k.bad("signature.sign", "without {body} or {body_sha256} the body is not signed, and anybody could change it")
	case t.has("timestamp") != (s.TimestampHeader != ""):
		k.bad("signature.sign", "{timestamp} and timestamp_header go together: what is not signed can be changed")
	case t.has("id") != (s.IDHeader != ""):
		k.bad("signature.sign", "{id} and id_header go together: what is not signed can be changed")
	}
}

func (k *webhookCompiler) keysOf(keys webhook.Keys) {
	if len(keys) == 0 {
		k.bad("keys", "missing; write at least one")
	}
	for _, key := range keys {
		text := string(key.Secret)
		if k.scheme == SchemeStandard {
			text = strings.TrimPrefix(text, standardKeyPrefix)
		}
		secret, err := decodeKey(text, k.c.Signature.KeyEncoding)
		if err != nil || len(secret) == 0 {
			k.bad("keys."+key.Name+".secret", "not %s", k.c.Signature.KeyEncoding)
		}
		key.Secret = secret
		k.w.keys = append(k.w.keys, key)
	}
}

func (k *webhookCompiler) pointers() {
	p, w := k.c.Pointers, k.w
	for _, x := range []struct {
		key, text string
		to        *pointer
	}{
		{"event_id", p.EventID, &w.eventID}, {"kind", p.Kind, &w.kind}, {"reference", p.Reference, &w.reference}, {"status", p.Status, &w.status},
		{"detail", p.Detail, &w.detail}, {"amount", p.Amount, &w.amount}, {"currency", p.Currency, &w.currency},
		{"occurred_at", p.OccurredAt, &w.occurredAt}, {"mode", p.Mode, &w.mode},
	} {
		parsed, err := strictjson.ParsePointer(x.text)
		if err != nil {
			k.bad("pointers."+x.key, "%.60q is not a JSON pointer: %v; write for instance /data/%s", x.text, err, x.key)
		}
		*x.to = pointer{parsed, x.text != ""}
	}
	if p.Reference == "" {
		k.bad("pointers.reference", "missing; write where the gateway's id of the payment stands, for instance /data/id")
	}
	if (p.Amount == "") != (p.Currency == "") {
		k.bad("pointers.currency", "amount and currency go together; write both, or neither")
	}
	if (p.Status == "") != (len(k.c.Statuses) == 0) {
		k.bad("pointers.status", "it goes together with statuses: where the status stands, and what each means")
	}
	if len(k.c.Kinds) > 0 && p.Kind == "" {
		k.bad("pointers.kind", "missing; kinds needs it")
	}
	if (p.Mode == "") != (len(k.c.Modes) == 0) {
		k.bad("pointers.mode", "it goes together with modes: where the mode stands, and which is live")
	}
}

func (k *webhookCompiler) meanings() {
	c, w := k.c, k.w
	if len(c.Statuses) > 0 {
		w.statuses = compileStatuses(k.bad, c.Statuses)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Modes)) {
		oneOf(k.bad, "modes."+name, c.Modes[name], "live", "test")
	}
	oneOf(k.bad, "amount.unit", c.Amount.Unit, "minor", "major")
	w.unit = reply.Unit{Major: c.Amount.Unit == "major", Decimals: c.Amount.Exponents, Currencies: c.Amount.Currencies}
	compileCurrencies(k.bad, w.unit)
	w.kinds, w.modes = c.Kinds, c.Modes
}

// claim is what the head of a request says about its signature.
type claim struct {
	stamp, id string
	sums      [][]byte
}

// maxSignatures bounds the signatures that are compared for one request.
const maxSignatures = 8

// Glance implements webhook.Scheme.
func (w *Webhook) Glance(r *webhook.Request) error {
	_, err := w.glance(r)
	return err
}

func (w *Webhook) glance(r *webhook.Request) (claim, error) {
	var c claim
	ok := false
	if c.sums, ok = w.signatures(r.Header.Values(w.sig.Header)); !ok {
		return c, webhook.RefusedUnsigned
	}
	if w.sig.IDHeader != "" {
		if c.id, ok = single(r.Header, w.sig.IDHeader); !ok {
			return c, webhook.RefusedUnsigned
		}
	}
	if w.sig.TimestampHeader == "" {
		return c, nil
	}
	if c.stamp, ok = single(r.Header, w.sig.TimestampHeader); !ok {
		return c, webhook.RefusedUnsigned
	}
	if at, ok := readStamp(c.stamp, w.sig.Timestamp); !ok || !w.tolerance.Holds(at, r.At) {
		return c, webhook.RefusedTimestamp
	}
	return c, nil
}

// single is the value of a header that comes once.
func single(h http.Header, name string) (string, bool) {
	values := h.Values(name)
	if len(values) != 1 || values[0] == "" || len(values[0]) > webhook.MaxID {
		return "", false
	}
	return values[0], true
}

// signatures reads the signatures of a header. Those with another prefix are of another scheme and are passed over.
func (w *Webhook) signatures(values []string) (sums [][]byte, ok bool) {
	if len(values) != 1 || len(values[0]) > 2048 {
		return nil, false
	}
	text := values[0]
	if !strings.Contains(w.sig.Prefix, ",") {
		text = strings.ReplaceAll(text, ",", " ")
	}
	for part := range strings.FieldsSeq(text) {
		written, mine := strings.CutPrefix(part, w.sig.Prefix)
		if !mine {
			continue
		}
		sum, err := decodeSum(written, w.sig.Encoding)
		if err != nil || len(sum) != w.size || len(sums) == maxSignatures {
			return nil, false
		}
		sums = append(sums, sum)
	}
	return sums, len(sums) > 0
}

func decodeSum(text, encoding string) ([]byte, error) {
	if encoding == "hex" {
		return hex.DecodeString(text)
	}
	return base64.StdEncoding.Strict().DecodeString(text)
}

func readStamp(text, form string) (time.Time, bool) {
	switch form {
	case "unix_ms":
		return webhook.UnixMilliTime(text)
	case "rfc3339":
		at, err := time.Parse(time.RFC3339, text)
		return at, err == nil
	}
	return webhook.UnixTime(text)
}

// Verify implements webhook.Scheme.
func (w *Webhook) Verify(_ context.Context, r *webhook.Request) (string, error) {
	c, err := w.glance(r)
	if err != nil {
		return "", err
	}
	message := w.sign.append(nil, func(field string) string { return signedPart(field, r, c) }, raw)
	name, ok := w.keys.Match(r.At, func(secret []byte) bool {
		sum, good := webhook.MAC(w.hash, secret, message), false
		for _, s := range c.sums {
			good = hmac.Equal(sum, s) || good
		}
		return good
	})
	if !ok {
		return "", webhook.RefusedSignature
	}
	return name, nil
}

// signedPart is a field of what is signed.
func signedPart(field string, r *webhook.Request, c claim) string {
	switch field {
	case "body":
		return string(r.Body)
	case "body_sha256":
		sum := sha256.Sum256(r.Body)
		return hex.EncodeToString(sum[:])
	case "timestamp":
		return c.stamp
	case "id":
		return c.id
	case "method":
		return r.Method
	case "host":
		return r.Host
	case "path":
		return r.Path
	case "query":
		return r.RawQuery
	case "target":
		if r.RawQuery != "" {
			return r.Path + "?" + r.RawQuery
		}
		return r.Path
	}
	return ""
}

// Parse implements webhook.Scheme.
func (w *Webhook) Parse(r *webhook.Request) ([]webhook.Notice, error) {
	var doc strictjson.Document
	if err := doc.Parse(r.Body); err != nil {
		return nil, fmt.Errorf("the body is refused: %w", err)
	}
	x := webhookReading{Webhook: w, root: doc.Root()}
	n := webhook.Notice{Kind: x.text(w.kind), ID: x.text(w.eventID), Mode: w.modes[x.text(w.mode)]}
	if n.ID == "" && w.sig.IDHeader != "" {
		n.ID = r.Header.Get(w.sig.IDHeader)
	}
	if n.ID == "" {
		n.ID = webhook.DigestID(r.Body)
	}
	x.read(&n)
	return []webhook.Notice{n}, nil
}

// webhookReading is one notification being read.
type webhookReading struct {
	*Webhook
	root strictjson.Value
}

func (x *webhookReading) lookup(p pointer) strictjson.Value {
	if !p.set {
		return strictjson.Value{}
	}
	return x.root.Lookup(p.Pointer)
}

// text is the scalar at a pointer, as text.
func (x *webhookReading) text(p pointer) string {
	if v := x.lookup(p); v.Scalar() {
		return v.Text()
	}
	return ""
}

// read fills a notice. What is wrong with it is its fault.
func (x *webhookReading) read(n *webhook.Notice) {
	if len(x.kinds) > 0 && !slices.Contains(x.kinds, n.Kind) {
		return
	}
	if x.mode.set && n.Mode == "" {
		n.Fault = fmt.Sprintf("the mode at %s is neither live nor test", x.mode)
		return
	}
	n.Effect, n.References = webhook.Hint, []string{x.text(x.reference)}
	n.OccurredAt = instant(x.text(x.occurredAt))
	if !x.status.set {
		return
	}
	n.Effect = webhook.Report
	m, ok := x.meaning()
	if !ok {
		n.Fault = fmt.Sprintf("status %.60q is not in the map; add it to statuses", x.text(x.status))
		return
	}
	said := reply.Reply{Hide: &httpclient.Redactor{}}
	m.Detail = cmp.Or(m.Detail, said.Detail(x.text(x.detail)))
	n.Status, n.Detail = m.Status, said.Answer(m.Meaning, "").Detail
	n.Money, n.Fault = x.money(m.Status)
}

// meaning finds the status in the map: together with its detail, or else alone.
func (x *webhookReading) meaning() (meaning, bool) {
	status := x.text(x.status)
	if d := x.text(x.detail); d != "" {
		if m, ok := x.statuses[status+"/"+d]; ok {
			return m, true
		}
	}
	m, ok := x.statuses[status]
	return m, ok
}

// instant reads a time in any of the forms that gateways write; zero when it is none.
func instant(text string) time.Time {
	if len(text) > 10 {
		if at, ok := webhook.UnixMilliTime(text); ok {
			return at
		}
	}
	if at, ok := webhook.UnixTime(text); ok {
		return at
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return at.UTC()
}

// money is what the notification is about. Only a success must say it.
func (x *webhookReading) money(s payment.Status) (*webhook.Money, string) {
	if !x.amount.set {
		return nil, ""
	}
	amount, code := x.lookup(x.amount), x.lookup(x.currency)
	if !amount.Exists() && !code.Exists() && s != payment.Succeeded {
		return nil, ""
	}
	minor, iso, err := x.unit.Said(amount, code)
	if err != nil {
		return nil, fmt.Sprintf("%v at %s and %s", err, x.amount, x.currency)
	}
	return &webhook.Money{Minor: minor, Currency: iso}, ""
}
