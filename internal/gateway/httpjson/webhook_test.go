package httpjson

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/payment"
	"pollux/internal/webhook"
)

var hookNow = time.Unix(1_772_366_400, 0).UTC()

var hookTolerance = webhook.Tolerance{Past: 5 * time.Minute, Future: time.Minute}

// hookConfig is a gateway of tests that signs the time, the id and the body.
func hookConfig() WebhookConfig {
	return WebhookConfig{
		Signature: WebhookSignature{Header: "X-Sig", Prefix: "sha256=", Sign: "{timestamp}|{id}|{method} {target}|{body}", TimestampHeader: "X-Time", IDHeader: "X-Id"},
		Pointers: WebhookPointers{Kind: "/type", Reference: "/data/id", Status: "/data/status", Detail: "/data/why", Amount: "/data/amount", Currency: "/data/currency",
			OccurredAt: "/at", Mode: "/live"},
		Kinds:    []string{"payment"},
		Statuses: map[string]string{"open": "pending", "open/3ds": "pending/requires_action", "paid": "succeeded", "no": "failed/declined"},
		Modes:    map[string]string{"true": "live", "false": "test"},
	}
}

func hookKeys(secrets ...string) webhook.Keys {
	var keys webhook.Keys
	for _, s := range secrets {
		keys = append(keys, webhook.Key{Name: "key_" + strconv.Itoa(len(keys)), Secret: []byte(s)})
	}
	return keys
}

func newHook(tb testing.TB, scheme string, c WebhookConfig, secrets ...string) *Webhook {
	tb.Helper()
	w, err := NewWebhook(scheme, c, hookKeys(secrets...), hookTolerance)
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

func hookRequest(body string, header ...string) *webhook.Request {
	r := &webhook.Request{Method: "POST", Host: "pay.example", Path: "/webhooks/acme", RawQuery: "a=1", Header: http.Header{}, Body: []byte(body), At: hookNow}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func hookSum(key, text string) []byte {
	mac := hmac.New(sha256.New, []byte(key))
	_, _ = io.WriteString(mac, text)
	return mac.Sum(nil)
}

func TestWebhookSignatureAsConfigured(t *testing.T) {
	const stamp, body = "1772366400", `{"type":"payment"}`
	good := "sha256=" + hex.EncodeToString(hookSum("k", stamp+"|e1|POST /webhooks/acme?a=1|"+body))
	w := newHook(t, SchemeHMAC, hookConfig(), "old", "k")
	for name, c := range map[string]struct {
		header []string
		change func(*webhook.Request)
		want   error
	}{
		"good":                  {[]string{"X-Sig", good, "X-Time", stamp, "X-Id", "e1"}, nil, nil},
		"one of several":        {[]string{"X-Sig", "sha256=" + strings.Repeat("00", 32) + ", " + good, "X-Time", stamp, "X-Id", "e1"}, nil, nil},
		"another scheme's too":  {[]string{"X-Sig", "sha1=abc," + good, "X-Time", stamp, "X-Id", "e1"}, nil, nil},
		"another id":            {[]string{"X-Sig", good, "X-Time", stamp, "X-Id", "e2"}, nil, webhook.RefusedSignature},
		"another time":          {[]string{"X-Sig", good, "X-Time", "1772366401", "X-Id", "e1"}, nil, webhook.RefusedSignature},
		"too old":               {[]string{"X-Sig", good, "X-Time", "1772366099", "X-Id", "e1"}, nil, webhook.RefusedTimestamp},
		"not a time":            {[]string{"X-Sig", good, "X-Time", "noon", "X-Id", "e1"}, nil, webhook.RefusedTimestamp},
		"without a time":        {[]string{"X-Sig", good, "X-Id", "e1"}, nil, webhook.RefusedUnsigned},
		"two times":             {[]string{"X-Sig", good, "X-Time", stamp, "X-Time", stamp, "X-Id", "e1"}, nil, webhook.RefusedUnsigned},
		"without an id":         {[]string{"X-Sig", good, "X-Time", stamp}, nil, webhook.RefusedUnsigned},
		"without a signature":   {[]string{"X-Time", stamp, "X-Id", "e1"}, nil, webhook.RefusedUnsigned},
		"without the prefix":    {[]string{"X-Sig", good[7:], "X-Time", stamp, "X-Id", "e1"}, nil, webhook.RefusedUnsigned},
		"cut":                   {[]string{"X-Sig", good[:20], "X-Time", stamp, "X-Id", "e1"}, nil, webhook.RefusedUnsigned},
		"another body":          {[]string{"X-Sig", good, "X-Time", stamp, "X-Id", "e1"}, func(r *webhook.Request) { r.Body = append(r.Body, '\n') }, webhook.RefusedSignature},
		"another path":          {[]string{"X-Sig", good, "X-Time", stamp, "X-Id", "e1"}, func(r *webhook.Request) { r.Path = "/webhooks/acme/eu" }, webhook.RefusedSignature},
		"another query":         {[]string{"X-Sig", good, "X-Time", stamp, "X-Id", "e1"}, func(r *webhook.Request) { r.RawQuery = "" }, webhook.RefusedSignature},
		"too many to be honest": {[]string{"X-Sig", strings.Repeat("sha256="+strings.Repeat("00", 32)+",", 9) + good, "X-Time", stamp, "X-Id", "e1"}, nil, webhook.RefusedUnsigned},
	} {
		r := hookRequest(body, c.header...)
		if c.change != nil {
			c.change(r)
		}
		key, err := w.Verify(context.Background(), r)
		if err != c.want || err == nil && key != "key_1" {
			t.Errorf("%s: %q %v, want %v", name, key, err, c.want)
		}
	}
}

func TestOtherWaysToSign(t *testing.T) {
	big := hmac.New(sha512.New, []byte{1, 2})
	sum := sha256.Sum256([]byte("{}"))
	_, _ = io.WriteString(big, hex.EncodeToString(sum[:])+"2026-03-01T12:00:00Z")
	c := WebhookConfig{Signature: WebhookSignature{Header: "Sig", Sign: "{body_sha256}{timestamp}", Hash: "sha512", Encoding: "base64", KeyEncoding: "hex",
		TimestampHeader: "Time", Timestamp: "rfc3339"}, Pointers: WebhookPointers{Reference: "/id"}}
	r := hookRequest("{}", "Sig", base64.StdEncoding.EncodeToString(big.Sum(nil)), "Time", "2026-03-01T12:00:00Z")
	if _, err := newHook(t, SchemeHMAC, c, "0102").Verify(context.Background(), r); err != nil {
		t.Error(err)
	}
	plain := WebhookConfig{Signature: WebhookSignature{Header: "Sig"}, Pointers: WebhookPointers{Reference: "/id"}}
	if _, err := newHook(t, SchemeHMAC, plain, "k").Verify(context.Background(), hookRequest("{}", "Sig", hex.EncodeToString(hookSum("k", "{}")))); err != nil {
		t.Error(err)
	}
}

// The secret, the message and the signature are those of the specification's own example.
func TestStandardWebhooks(t *testing.T) {
	const secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", `{"test": 2432232314}`
	w := newHook(t, SchemeStandard, WebhookConfig{Pointers: WebhookPointers{Reference: "/id"}}, secret)
	r := hookRequest(body, "webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp", "1614265330",
		"webhook-signature", "v2,abc v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	r.At = time.Unix(1614265330, 0)
	if _, err := w.Verify(context.Background(), r); err != nil {
		t.Error(err)
	}
	if n, err := w.Parse(r); err != nil || n[0].ID != "msg_p5jXN8AQM9LWM0D4loKWxJek" || n[0].Effect != webhook.Hint {
		t.Errorf("%+v %v", n, err)
	}
	r.Body = append(r.Body, ' ')
	if _, err := w.Verify(context.Background(), r); err != webhook.RefusedSignature {
		t.Error(err)
	}
}

func TestWebhookBodies(t *testing.T) {
	w := newHook(t, SchemeHMAC, hookConfig(), "k")
	base := webhook.Notice{ID: "e1", Kind: "payment", References: []string{"p1"}, Effect: webhook.Report, OccurredAt: hookNow, Mode: "live",
		Money: &webhook.Money{Minor: 1999, Currency: "EUR"}}
	with := func(change func(*webhook.Notice)) webhook.Notice {
		n := base
		change(&n)
		return n
	}
	const head = `{"type":"payment","live":true,"at":1772366400,"data":{"id":"p1","amount":1999,"currency":"eur",`
	for body, want := range map[string]webhook.Notice{
		head + `"status":"paid"}}`:               with(func(n *webhook.Notice) { n.Status, n.Detail = payment.Succeeded, "succeeded" }),
		head + `"status":"paid","why":"On us"}}`: with(func(n *webhook.Notice) { n.Status, n.Detail = payment.Succeeded, "on_us" }),
		head + `"status":"no","why":"51"}}`:      with(func(n *webhook.Notice) { n.Status, n.Detail = payment.Failed, "declined" }),
		head + `"status":"open"}}`:               with(func(n *webhook.Notice) { n.Status, n.Detail = payment.Pending, "processing" }),
		head + `"status":"open","why":"3ds"}}`:   with(func(n *webhook.Notice) { n.Status, n.Detail = payment.Pending, "requires_action" }),
		`{"type":"refund","live":false}`:         {ID: "e1", Kind: "refund", Mode: "test"},
		`{"type":"payment","live":true,"at":"x","data":{"id":"p1","status":"no"}}`: with(func(n *webhook.Notice) {
			n.Status, n.Detail, n.Money, n.OccurredAt = payment.Failed, "declined", nil, time.Time{}
		}),
		`{"type":"payment","live":true,"at":"2026-03-01T12:00:00Z","data":{"id":"p1","amount":"1999","currency":"EUR","status":"paid"}}`: with(func(n *webhook.Notice) { n.Status, n.Detail = payment.Succeeded, "succeeded" }),
		`{"type":"payment","live":true,"at":1772366400000,"data":{"id":"p1","amount":1999,"currency":"EUR","status":"paid"}}`:            with(func(n *webhook.Notice) { n.Status, n.Detail = payment.Succeeded, "succeeded" }),
	} {
		got, err := w.Parse(hookRequest(body, "X-Id", "e1"))
		if d := cmp.Diff([]webhook.Notice{want}, got); err != nil || d != "" {
			t.Errorf("%s\n%v\n%s", body, err, d)
		}
	}
	for body, fault := range map[string]string{
		head + `"status":"settling"}}`:                                  `status "settling" is not in the map; add it to statuses`,
		head + `"Status":"paid"}}`:                                      `status "" is not in the map; add it to statuses`,
		strings.Replace(head, "true", "null", 1) + `"status":"paid"}}`:  "the mode at /live is neither live nor test",
		strings.Replace(head, "1999", "19.99", 1) + `"status":"paid"}}`: "an amount that is more decimals than the currency has at /data/amount and /data/currency",
		strings.Replace(head, "1999", "null", 1) + `"status":"paid"}}`:  "no amount at /data/amount and /data/currency",
		strings.Replace(head, "eur", "euro", 1) + `"status":"no"}}`:     "a currency that is none of ISO 4217 at /data/amount and /data/currency",
	} {
		got, err := w.Parse(hookRequest(body, "X-Id", "e1"))
		if err != nil || got[0].Fault != fault {
			t.Errorf("%s\n%v\n%+v", body, err, got)
		}
	}
	if _, err := w.Parse(hookRequest(`{"id":1,"id":2}`)); err == nil {
		t.Error("a key twice is taken")
	}
}

func TestWebhookAmounts(t *testing.T) {
	for _, c := range []struct {
		amount WebhookAmount
		said   string
		want   webhook.Money
	}{
		{WebhookAmount{}, `1050,"currency":"EUR"`, webhook.Money{Minor: 1050, Currency: "EUR"}},
		{WebhookAmount{Unit: "major"}, `"10.50","currency":"EUR"`, webhook.Money{Minor: 1050, Currency: "EUR"}},
		{WebhookAmount{Unit: "major"}, `1.5,"currency":"KWD"`, webhook.Money{Minor: 1500, Currency: "KWD"}},
		{WebhookAmount{Unit: "major"}, `1000,"currency":"JPY"`, webhook.Money{Minor: 1000, Currency: "JPY"}},
		{WebhookAmount{Exponents: map[string]int{"ISK": 2}}, `500,"currency":"ISK"`, webhook.Money{Minor: 5, Currency: "ISK"}},
		{WebhookAmount{Currencies: map[string]string{"949": "TRY"}}, `100,"currency":949`, webhook.Money{Minor: 100, Currency: "TRY"}},
	} {
		cfg := hookConfig()
		cfg.Amount = c.amount
		got, err := newHook(t, SchemeHMAC, cfg, "k").Parse(hookRequest(`{"type":"payment","live":true,"data":{"id":"p","status":"paid","amount":` + c.said + `}}`))
		if err != nil || got[0].Money == nil || *got[0].Money != c.want {
			t.Errorf("%s: %+v %v", c.said, got, err)
		}
	}
}

func TestWebhookConfigurationsThatAreRefused(t *testing.T) {
	for want, change := range map[string]func(*WebhookConfig){
		"signature.header: missing":            func(c *WebhookConfig) { c.Signature.Header = "" },
		"signature.header: not the name":       func(c *WebhookConfig) { c.Signature.Header = "a b" },
		"signature.sign: without {body}":       func(c *WebhookConfig) { c.Signature.Sign = "{timestamp}{id}" },
		"signature.sign: {timestamp} and time": func(c *WebhookConfig) { c.Signature.Sign = "{id}{body}" },
		"signature.sign: {id} and id_header":   func(c *WebhookConfig) { c.Signature.Sign = "{timestamp}{body}" },
		"signature.sign: no placeholder {key}": func(c *WebhookConfig) { c.Signature.Sign = "{key}{body}" },
		"signature.hash: \"md5\" is not known": func(c *WebhookConfig) { c.Signature.Hash = "md5" },
		"keys.key_0.secret: not hex":           func(c *WebhookConfig) { c.Signature.KeyEncoding = "hex" },
		"pointers.reference: missing":          func(c *WebhookConfig) { c.Pointers.Reference = "" },
		"pointers.reference: \"x\" is not":     func(c *WebhookConfig) { c.Pointers.Reference = "x" },
		"pointers.currency: amount and":        func(c *WebhookConfig) { c.Pointers.Currency = "" },
		"pointers.status: it goes together":    func(c *WebhookConfig) { c.Pointers.Status = "" },
		"pointers.kind: missing":               func(c *WebhookConfig) { c.Pointers.Kind = "" },
		"pointers.mode: it goes together":      func(c *WebhookConfig) { c.Modes = nil },
		"modes.true: \"real\" is not known":    func(c *WebhookConfig) { c.Modes["true"] = "real" },
		"statuses: none means succeeded":       func(c *WebhookConfig) { c.Statuses = map[string]string{"no": "failed"} },
		"amount.unit: \"cents\" is not known":  func(c *WebhookConfig) { c.Amount.Unit = "cents" },
	} {
		c := hookConfig()
		change(&c)
		if _, err := NewWebhook(SchemeHMAC, c, hookKeys("k"), hookTolerance); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := NewWebhook(SchemeHMAC, hookConfig(), nil, hookTolerance); err == nil || !strings.HasPrefix(err.Error(), "keys: missing") {
		t.Errorf("without keys: %v", err)
	}
	if _, err := NewWebhook(SchemeStandard, hookConfig(), hookKeys("azE="), hookTolerance); err == nil || !strings.HasPrefix(err.Error(), "signature: Standard Webhooks") {
		t.Errorf("a standard that is signed otherwise: %v", err)
	}
}

func FuzzWebhook(f *testing.F) {
	good := `{"type":"payment","live":true,"at":1772366400,"data":{"id":"p1","amount":1999,"currency":"eur","status":"paid"}}`
	f.Add(good, "sha256="+hex.EncodeToString(hookSum("k", "1772366400|e1|POST /webhooks/acme?a=1|"+good)), "1772366400", "e1")
	f.Add("{}", "sha256=00", "", "")
	f.Fuzz(func(t *testing.T, body, signature, stamp, id string) {
		w := newHook(t, SchemeHMAC, hookConfig(), "k")
		r := hookRequest(body, "X-Sig", signature, "X-Time", stamp, "X-Id", id)
		if _, err := w.Verify(context.Background(), r); err == nil && (body != good || stamp != "1772366400" || id != "e1") {
			t.Fatal("something else than what was signed is taken")
		}
		for _, n := range parsed(w, r) {
			if n.Fault == "" && n.Effect == webhook.Report && !n.Status.Valid() {
				t.Fatalf("a report without a status: %+v", n)
			}
		}
	})
}

func parsed(w *Webhook, r *webhook.Request) []webhook.Notice {
	n, err := w.Parse(r)
	if err != nil {
		return nil
	}
	return n
}
