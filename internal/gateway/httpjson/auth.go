package httpjson

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
)

// account is what requests for one account have in common.
type account struct {
	header   http.Header // shared by all requests
	key      []byte      // for HMAC
	keyID    string
	redactor *httpclient.Redactor // knows every secret that is sent
}

// compileAccount checks credentials and makes the account's header of them.
func (c Config) compileAccount(base http.Header, known []string, cred Credentials) (*account, error) {
	a := &account{header: base.Clone(), keyID: cred.KeyID}
	var errs []error
	need := func(ok bool, key, why string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: %s", key, why))
		}
	}
	token, password := cred.Token.Reveal(), cred.Password.Reveal()
	need(httpclient.ValidHeaderValue(token), "token", "printable ASCII only, without a blank or a line break around it")
	need(httpclient.ValidHeaderValue(cred.KeyID), "key_id", "printable ASCII only")
	need(!strings.Contains(cred.User, ":"), "user", "no colon, which ends the user's name in basic authorisation")
	known = append(slices.Clone(known), token, password, cred.Key.Reveal())
	switch c.Auth.Kind {
	case "bearer":
		need(token != "", "token", "missing; auth.kind bearer needs it: file:/path or env:NAME")
		a.header.Set("Authorization", "Bearer "+token)
	case "header":
		need(token != "", "token", "missing; auth.kind header needs it: file:/path or env:NAME")
		a.header.Set(c.Auth.Header, c.Auth.Prefix+token)
	case "basic":
		need(token != "" && cred.User == "" && password == "" || token == "" && cred.User != "" && password != "", "user",
			"auth.kind basic needs user and password, or token alone")
		pair := base64.StdEncoding.EncodeToString([]byte(cred.User + token + ":" + password))
		known = append(known, pair)
		a.header.Set("Authorization", "Basic "+pair)
	case "hmac":
		key, err := decodeKey(cred.Key.Reveal(), c.Auth.HMAC.KeyEncoding)
		need(err == nil, "key", "not "+c.Auth.HMAC.KeyEncoding+", as auth.hmac.key_encoding says")
		need(err != nil || len(key) > 0, "key", "missing; auth.kind hmac needs it: file:/path or env:NAME")
		a.key = key
		known = append(known, string(key))
	}
	a.redactor = httpclient.NewRedactor(known...)
	return a, errors.Join(errs...)
}

func decodeKey(text, encoding string) ([]byte, error) {
	switch encoding {
	case "hex":
		return hex.DecodeString(text)
	case "base64":
		return base64.StdEncoding.DecodeString(text)
	}
	return []byte(text), nil
}

// signer signs requests. It is safe for concurrent use.
type signer struct {
	sign    template
	headers map[string]template
	hash    func() hash.Hash
	base64  bool
	stamp   string
}

func (c Config) compileSigner() (*signer, []error) {
	h := c.Auth.HMAC
	s := &signer{headers: map[string]template{}, hash: sha256.New, base64: h.Encoding == "base64", stamp: h.Timestamp}
	if h.Hash == "sha512" {
		s.hash = sha512.New
	}
	var errs []error
	bad := func(key, format string, a ...any) {
		errs = append(errs, fmt.Errorf("auth.hmac."+key+": "+format, a...))
	}
	oneOf(bad, "hash", h.Hash, "sha256", "sha512")
	oneOf(bad, "encoding", h.Encoding, "hex", "base64")
	oneOf(bad, "key_encoding", h.KeyEncoding, "text", "hex", "base64")
	oneOf(bad, "timestamp", h.Timestamp, "unix", "unix_ms", "rfc3339")
	var err error
	if s.sign, err = parseTemplate(h.Sign, "method", "host", "path", "query", "target", "body", "body_sha256", "timestamp", "nonce", "key_id",
		"account", "reference", "merchant_reference"); err != nil {
		bad("sign", "%v", err)
	} else if _, fixed := s.sign.fixed(); fixed {
		bad("sign", "a signature over something that never changes proves nothing; write for instance {method}{target}{body}{timestamp}")
	}
	signed := false
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		value := h.Headers[name]
		t, err := parseTemplate(value, "signature", "timestamp", "nonce", "key_id", "body_sha256")
		switch {
		case err != nil:
			bad("headers."+name, "%v", err)
		case !httpclient.ValidHeaderName(name) || reserved[http.CanonicalHeaderKey(name)]:
			bad("headers."+name, "not a header that can be set")
		case !httpclient.ValidHeaderValue(value):
			bad("headers."+name, "printable ASCII only")
		}
		signed = signed || t.has("signature")
		s.headers[http.CanonicalHeaderKey(name)] = t
	}
	if !signed {
		bad("headers", "none has {signature}; write for instance X-Signature: \"{signature}\"")
	}
	return s, errs
}

func oneOf(bad func(key, format string, a ...any), key, value string, values ...string) {
	if !slices.Contains(values, value) {
		bad(key, "%.40q is not known; one of %s", value, strings.Join(values, ", "))
	}
}

// apply signs a request and writes the signature's headers.
func (s *signer) apply(h http.Header, q gateway.Query, acct *account, method string, u *url.URL, body []byte, now time.Time) {
	nonce, digest := nonce(), ""
	value := func(field string) string {
		switch field {
		case "method":
			return method
		case "host":
			return u.Host
		case "path":
			return u.EscapedPath()
		case "query":
			return u.RawQuery
		case "target":
			return u.RequestURI()
		case "body":
			return string(body)
		case "body_sha256":
			sum := sha256.Sum256(body)
			return hex.EncodeToString(sum[:])
		case "timestamp":
			return timestamp(now, s.stamp)
		case "nonce":
			return nonce
		case "key_id":
			return acct.keyID
		case "signature":
			return digest
		}
		return queryValue(q, field)
	}
	mac := hmac.New(s.hash, acct.key)
	mac.Write(s.sign.append(nil, value, raw))
	if sum := mac.Sum(nil); s.base64 {
		digest = base64.StdEncoding.EncodeToString(sum)
	} else {
		digest = hex.EncodeToString(sum)
	}
	for name, t := range s.headers {
		h[name] = []string{string(t.append(nil, value, raw))}
	}
}

// nonce is 128 random bits: no two requests have the same.
func nonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, says crypto/rand
	return hex.EncodeToString(b[:])
}

func timestamp(now time.Time, form string) string {
	switch form {
	case "unix_ms":
		return strconv.FormatInt(now.UnixMilli(), 10)
	case "rfc3339":
		return now.UTC().Format(time.RFC3339)
	}
	return strconv.FormatInt(now.Unix(), 10)
}
