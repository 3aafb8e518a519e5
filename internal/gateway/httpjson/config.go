package httpjson

import (
	"strings"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/secret"
)

// Config attaches a gateway. The zero value of a field is its default, where it has one; URL, Pointers.Status and Statuses have none.
// What each key means to an operator is in docs/gateways/httpjson.md.
type Config struct {
	httpclient.Config `koanf:",squash"`

	Name string `koanf:"-"` // The gateway's name, for messages.

	URL           string                   `koanf:"url"`            // Where one payment is asked for. `{reference}`, `{merchant_reference}` and `{account}` may stand in the path and in the query. Required.
	Method        string                   `koanf:"method"`         // `GET` or `POST`. It must be harmless to ask twice. Default `GET`.
	Body          string                   `koanf:"body"`           // What a POST sends, with the same placeholders as the URL. Empty: nothing.
	BodyType      string                   `koanf:"body_type"`      // `json` or `form`: how the placeholders of the body are escaped, and its Content-Type. Default `json`.
	Headers       map[string]string        `koanf:"headers"`        // Headers of every request, with the same placeholders. Not for secrets.
	SecretHeaders map[string]secret.Secret `koanf:"secret_headers"` // Headers whose values are secrets, the same for all accounts.

	Auth     Auth                   `koanf:"auth"`     // How we show who we are.
	Accounts map[string]Credentials `koanf:"accounts"` // The credentials of each account. Where there are some, an account without is refused; the default account has those in `auth`.

	Pointers   Pointers          `koanf:"pointers"`    // Where things stand in the answer: JSON pointers (RFC 6901).
	Statuses   map[string]string `koanf:"statuses"`    // What the gateway's statuses mean: `pending`, `succeeded`, `failed`, `cancelled` or `expired`, and after a `/` the detail. A key may be `STATUS/DETAIL`. What is not here is unknown. Required.
	Amount     Amount            `koanf:"amount"`      // How amounts are written.
	Mode       string            `koanf:"mode"`        // What stands at `pointers.mode` in our mode: `live`, `true`, … Another one is a mismatch.
	Success    Success           `koanf:"success"`     // How an answer with a good HTTP status says that the call failed all the same.
	ErrorCodes map[string]string `koanf:"error_codes"` // What the gateway's error codes mean: `transport`, `rate_limited`, `unauthorized`, `not_found`, `malformed`, `pending` or `mismatch`. A key may be `HTTPSTATUS/CODE`.

	NotFoundStatuses     []int `koanf:"not_found_statuses"`    // HTTP statuses that say that the gateway does not know the payment. Default 404 and 410.
	UnauthorizedStatuses []int `koanf:"unauthorized_statuses"` // HTTP statuses that say that the key is refused. Default 401 and 403.
	RateLimitedStatuses  []int `koanf:"rate_limited_statuses"` // HTTP statuses that say that we ask too often. Default 429.

	ContentTypes   []string      `koanf:"content_types"`   // Media types that are JSON although they do not say so; `none` for an answer without one. Default: none of them.
	MaxRetryAfter  time.Duration `koanf:"max_retry_after"` // What a gateway asks for beyond this is cut to it. Default 1h.
	PropagateTrace *bool         `koanf:"propagate_trace"` // Sends `traceparent` (W3C). Default true.
}

// Auth is how requests are authorised. The zero value is not at all.
type Auth struct {
	Kind   string `koanf:"kind"`   // `none`, `bearer`, `basic`, `header` or `hmac`. Default `none`.
	Header string `koanf:"header"` // For `header`: the header that carries the token.
	Prefix string `koanf:"prefix"` // For `header`: what stands before the token.
	HMAC   HMAC   `koanf:"hmac"`   // For `hmac`: what is signed, and where the signature goes.

	Credentials `koanf:",squash"` // Of the default account, and of all accounts where `accounts` is empty.
}

// Credentials are what one account authorises with.
type Credentials struct {
	Token    secret.Secret `koanf:"token"`    // For `bearer` and `header`; for `basic` a user that has no password.
	User     string        `koanf:"user"`     // For `basic`.
	Password secret.Secret `koanf:"password"` // For `basic`.
	KeyID    string        `koanf:"key_id"`   // For `hmac`: the name of the key, as `{key_id}`. Empty: it has none.
	Key      secret.Secret `koanf:"key"`      // For `hmac`.
}

// HMAC is a signature over the request.
type HMAC struct {
	Sign        string            `koanf:"sign"`         // What is signed. `{method}`, `{host}`, `{path}`, `{query}`, `{target}` (path and query), `{body}`, `{body_sha256}`, `{timestamp}`, `{nonce}`, `{key_id}`, `{account}`, `{reference}` and `{merchant_reference}`.
	Hash        string            `koanf:"hash"`         // `sha256` or `sha512`. Default `sha256`.
	Encoding    string            `koanf:"encoding"`     // `hex` or `base64`: how the signature is written. Default `hex`.
	KeyEncoding string            `koanf:"key_encoding"` // `text`, `hex` or `base64`: how the key is written. Default `text`.
	Timestamp   string            `koanf:"timestamp"`    // `unix`, `unix_ms` or `rfc3339`. Default `unix`.
	Headers     map[string]string `koanf:"headers"`      // The headers to set. `{signature}`, `{timestamp}`, `{nonce}`, `{key_id}` and `{body_sha256}`.
}

// Pointers say where things stand in the answer. An empty one is not looked for.
type Pointers struct {
	Status            string `koanf:"status"`             // The status of the payment. Required.
	Detail            string `koanf:"detail"`             // Why it is so: refines the status in `statuses`, and is the detail where that names none.
	ID                string `koanf:"id"`                 // The gateway's id. Another one than that asked for is a mismatch.
	MerchantReference string `koanf:"merchant_reference"` // Our reference. Another one is a mismatch.
	Amount            string `koanf:"amount"`             // The amount. Another one is a mismatch.
	Currency          string `koanf:"currency"`           // The currency. Another one is a mismatch.
	Mode              string `koanf:"mode"`               // Live or test; see `mode`.
	UpdatedAt         string `koanf:"updated_at"`         // When the payment last changed, for messages to people.
	ErrorCode         string `koanf:"error_code"`         // The code of an error; see `error_codes`.
	ErrorMessage      string `koanf:"error_message"`      // The text of an error, for messages to people.
	RetryAfter        string `koanf:"retry_after"`        // Seconds to wait, for gateways that say it in the body.
}

// Amount says how amounts are written.
type Amount struct {
	Unit       string            `koanf:"unit"`       // `minor` (1050) or `major` (10.50); text or number. Default `minor`.
	Check      string            `koanf:"check"`      // `always`, or `succeeded`: with other statuses the amount and the currency are not looked at. Default `always`.
	Exponents  map[string]int    `koanf:"exponents"`  // With `minor`: currencies with which the gateway has other decimals than ISO 4217.
	Currencies map[string]string `koanf:"currencies"` // Currencies that the gateway calls otherwise: `"949": TRY`.
}

// Success is what holds of an answer to a call that went well. The zero value holds of every answer.
type Success struct {
	Pointer string   `koanf:"pointer"` // Where to look.
	Is      []string `koanf:"is"`      // It went well when one of these stands there,
	IsNot   []string `koanf:"is_not"`  // or none of these, if anything. One list or the other.
}

// The defaults of a Config, besides those of httpclient. A gateway that asks for more than an hour is asked again after one: a pause that
// long is more often a mistake than a wish, and the policy has a bound of its own.
const (
	DefaultMethod        = "GET"
	DefaultBodyType      = "json"
	DefaultMaxRetryAfter = time.Hour
)

// WithDefaults returns the configuration with every default written out.
func (c Config) WithDefaults() Config {
	c.Config = c.Config.WithDefaults()
	for _, s := range []struct {
		value *string
		to    string
	}{
		{&c.Method, DefaultMethod}, {&c.BodyType, DefaultBodyType}, {&c.Auth.Kind, "none"}, {&c.Auth.HMAC.Hash, "sha256"},
		{&c.Auth.HMAC.Encoding, "hex"}, {&c.Auth.HMAC.KeyEncoding, "text"}, {&c.Auth.HMAC.Timestamp, "unix"},
		{&c.Amount.Unit, "minor"}, {&c.Amount.Check, "always"},
	} {
		if *s.value == "" {
			*s.value = s.to
		}
	}
	for _, s := range []struct {
		value *[]int
		to    []int
	}{{&c.NotFoundStatuses, []int{404, 410}}, {&c.UnauthorizedStatuses, []int{401, 403}}, {&c.RateLimitedStatuses, []int{429}}} {
		if *s.value == nil {
			*s.value = s.to
		}
	}
	if c.MaxRetryAfter == 0 {
		c.MaxRetryAfter = DefaultMaxRetryAfter
	}
	if c.PropagateTrace == nil {
		c.PropagateTrace = new(true)
	}
	return c
}

// Complete names the gateway and writes every default out.
func (c *Config) Complete(name string) {
	c.Name = name
	*c = c.WithDefaults()
}

// Client is how the gateway is reached.
func (c *Config) Client() *httpclient.Config { return &c.Config }

// Capabilities are what the configuration makes of the gateway: payments are found by our reference where the question has it.
func (c Config) Capabilities() gateway.Capabilities {
	const own = "{merchant_reference}"
	asked := strings.Contains(c.URL, own) || strings.Contains(c.Body, own)
	for _, value := range c.Headers {
		asked = asked || strings.Contains(value, own)
	}
	return gateway.Capabilities{ByMerchantRef: asked}
}

// Validate returns every problem at once, each naming the key and what to write instead. Defaults need not be written out.
func (c Config) Validate() error {
	_, err := compile(c)
	return err
}
