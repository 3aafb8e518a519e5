package httpjson

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/reply"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
	"pollux/internal/payment/currency"
)

// compiler makes an adapter of a configuration and collects what is wrong with it.
type compiler struct {
	c    Config
	a    *Adapter
	errs []error
}

func compile(c Config) (*Adapter, error) {
	k := &compiler{c: c.WithDefaults(), a: &Adapter{name: cmp.Or(c.Name, "this gateway")}}
	base := k.headers()
	k.question()
	k.client()
	k.authorisation(k.a.prepare(base, k.c.Method))
	k.pointers()
	k.statuses()
	k.errorCodes()
	k.amount()
	k.rest()
	k.needs()
	if err := errors.Join(k.errs...); err != nil {
		return nil, err
	}
	return k.a, nil
}

// prepare adds the headers of the client, if there is one.
func (a *Adapter) prepare(h http.Header, method string) http.Header {
	if a.client == nil {
		return h
	}
	return a.client.Prepare(h, method)
}

func (k *compiler) bad(key, format string, a ...any) {
	k.errs = append(k.errs, fmt.Errorf(key+": "+format, a...))
}

// reserved are headers that belong to HTTP, to the client or to tracing.
var reserved = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Upgrade": true, "Expect": true, "Accept-Encoding": true, "Traceparent": true, "Proxy-Authorization": true, "Proxy-Connection": true,
}

// secretive are the names of headers whose values do not belong into a file that everybody reads.
var secretive = regexp.MustCompile(`(?i)^(authorization|cookie)$|secret|token|password|api-?key`)

// headers returns the headers that never change, and keeps the templates of the others.
func (k *compiler) headers() http.Header {
	base := http.Header{"Accept": {"application/json"}}
	if k.c.Body != "" {
		base.Set("Content-Type", map[string]string{"json": "application/json", "form": "application/x-www-form-urlencoded"}[k.c.BodyType])
	}
	k.a.headers = map[string]template{}
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(k.c.Headers)) {
		key := "headers." + name
		k.headerName(key, name, seen)
		if secretive.MatchString(name) {
			k.bad(key, "a secret is not written into a file: use auth, or secret_headers")
		}
		t, err := parseTemplate(k.c.Headers[name], queryFields...)
		if err != nil {
			k.bad(key, "%v", err)
		}
		if !httpclient.ValidHeaderValue(k.c.Headers[name]) {
			k.bad(key, "printable ASCII only, without a blank around it")
		}
		if text, fixed := t.fixed(); fixed {
			base.Set(name, text)
		} else {
			k.a.headers[http.CanonicalHeaderKey(name)] = t
		}
	}
	for _, name := range slices.Sorted(maps.Keys(k.c.SecretHeaders)) {
		key, value := "secret_headers."+name, k.c.SecretHeaders[name].Reveal()
		k.headerName(key, name, seen)
		if value == "" || !httpclient.ValidHeaderValue(value) {
			k.bad(key, "the secret is missing, or is not printable ASCII without a blank or a line break around it")
		}
		base.Set(name, value)
	}
	return base
}

func (k *compiler) headerName(key, name string, seen map[string]bool) {
	canonical := http.CanonicalHeaderKey(name)
	switch {
	case !httpclient.ValidHeaderName(name):
		k.bad(key, "not the name of a header")
	case reserved[canonical]:
		k.bad(key, "this header is not set by hand")
	case seen[canonical]:
		k.bad(key, "there is this header already")
	}
	seen[canonical] = true
}

// question compiles the method, the URL and the body.
func (k *compiler) question() {
	k.a.method = k.c.Method
	if k.c.Method != http.MethodGet && k.c.Method != http.MethodPost {
		k.bad("method", "%.20q is not known; GET or POST", k.c.Method)
	}
	var err error
	if k.a.url, err = parseTemplate(k.c.URL, queryFields...); err != nil {
		k.bad("url", "%v", err)
	}
	k.url()
	if k.a.body, err = parseTemplate(k.c.Body, queryFields...); err != nil {
		k.bad("body", "%v", err)
	}
	k.body()
	if !k.a.url.has("reference") && !k.a.url.has("merchant_reference") && !k.a.body.has("reference") && !k.a.body.has("merchant_reference") {
		k.bad("url", "neither it nor body has {reference} or {merchant_reference}: every payment would get the same answer")
	}
}

// needs notes which fields of a payment are put into the question.
func (k *compiler) needs() {
	all := []template{k.a.url, k.a.body}
	if k.a.signer != nil {
		all = append(all, k.a.signer.sign)
	}
	all = slices.AppendSeq(all, maps.Values(k.a.headers))
	for _, field := range queryFields {
		if slices.ContainsFunc(all, func(t template) bool { return t.has(field) }) {
			k.a.needs = append(k.a.needs, field)
		}
	}
}

// sample renders a template with a letter for every value.
func sample(t template) string {
	return string(t.append(nil, func(string) string { return "x" }, raw))
}

func (k *compiler) url() {
	const example = "write for instance https://api.example.com/v1/payments/{reference}"
	if k.c.URL == "" {
		k.bad("url", "missing; %s", example)
		return
	}
	u, err := url.Parse(sample(k.a.url))
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "":
		k.bad("url", "not a URL; %s", example)
	case u.Scheme == "http" && !k.c.AllowHTTP:
		k.bad("url", "without TLS anybody on the way can change a status; write https, or allow_http: true for a gateway on this machine")
	case u.Scheme != "https" && u.Scheme != "http":
		k.bad("url", "its scheme is not https; %s", example)
	case u.User != nil:
		k.bad("url", "credentials do not belong into a URL, where they end in logs; use auth with kind basic")
	case strings.Contains(k.c.URL, "#"):
		k.bad("url", "a fragment (#) is never sent; take it away")
	case !fixedHost(k.c.URL):
		k.bad("url", "placeholders belong into the path or the query, not into the host")
	default:
		k.c.Hosts = []string{u.Host}
	}
}

// fixedHost reports whether the host ends before the first placeholder begins.
func fixedHost(text string) bool {
	at := placeholder.FindStringIndex(text)
	if at == nil {
		return true
	}
	_, rest, _ := strings.Cut(text[:at[0]], "://")
	return strings.ContainsAny(rest, "/?")
}

func (k *compiler) body() {
	k.a.hasBody, k.a.escape = k.c.Body != "", quote
	oneOf(k.bad, "body_type", k.c.BodyType, "json", "form")
	switch {
	case k.c.Body == "":
	case k.c.Method == http.MethodGet:
		k.bad("body", "a GET has none; write method: POST, or take the body away")
	case k.c.BodyType == "form":
		k.a.escape = httpclient.AppendEscaped
		if _, err := url.ParseQuery(sample(k.a.body)); err != nil {
			k.bad("body", "not a form; write for instance token={reference}&locale=en")
		}
	case new(strictjson.Document).Parse([]byte(sample(k.a.body))) != nil:
		k.bad("body", `not JSON, with placeholders inside strings; write for instance {"id":"{reference}"}`)
	}
}

func (k *compiler) client() {
	if k.c.Hosts == nil { // the URL's problem was reported
		k.c.Hosts = []string{"unknown.invalid"}
	}
	client, err := httpclient.New(k.c.Config)
	if err != nil {
		k.errs = append(k.errs, err)
		return
	}
	k.a.client = client
}

// authorisation compiles the accounts.
func (k *compiler) authorisation(base http.Header) {
	auth := k.c.Auth
	oneOf(k.bad, "auth.kind", auth.Kind, "none", "bearer", "basic", "header", "hmac")
	if auth.Kind == "header" {
		if !httpclient.ValidHeaderName(auth.Header) || reserved[http.CanonicalHeaderKey(auth.Header)] || !httpclient.ValidHeaderValue(auth.Prefix+"x") {
			k.bad("auth.header", "auth.kind header needs the name of a header that can be set, and a prefix of printable ASCII; write for instance X-Api-Key")
		}
	}
	if auth.Kind == "hmac" {
		s, errs := k.c.compileSigner()
		k.a.signer, k.errs = s, append(k.errs, errs...)
	}
	for _, name := range k.authHeaders() {
		if base.Values(name) != nil || k.a.headers[name] != nil {
			k.bad("auth", "auth.kind %s sets the header %s, which is set already; take it out of headers and secret_headers", auth.Kind, name)
		}
	}
	known := k.c.Config.Secrets()
	for _, s := range k.c.SecretHeaders {
		known = append(known, s.Reveal())
	}
	k.a.accounts = map[string]*account{}
	for _, name := range slices.Sorted(maps.Keys(k.c.Accounts)) {
		k.a.accounts[name] = k.account("accounts."+name, base, known, k.c.Accounts[name])
		if name == "" {
			k.bad("accounts", "the default account has no name; its credentials belong into auth")
		}
	}
	if len(k.c.Accounts) == 0 || auth.Kind == "none" || auth.Credentials != (Credentials{}) {
		k.a.fallback = k.account("auth", base, known, auth.Credentials)
	}
}

// authHeaders are the headers that the authorisation sets.
func (k *compiler) authHeaders() []string {
	switch k.c.Auth.Kind {
	case "bearer", "basic":
		return []string{"Authorization"}
	case "header":
		return []string{http.CanonicalHeaderKey(k.c.Auth.Header)}
	case "hmac":
		return slices.Sorted(maps.Keys(k.a.signer.headers))
	}
	return nil
}

func (k *compiler) account(key string, base http.Header, known []string, cred Credentials) *account {
	a, err := k.c.compileAccount(base, known, cred)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			k.bad(key+"."+line[:strings.Index(line, ":")], "%s", line[strings.Index(line, ":")+2:])
		}
	}
	return a
}

func (k *compiler) pointers() {
	r := &k.a.reader
	for _, p := range []struct {
		key, text string
		to        *pointer
	}{
		{"pointers.status", k.c.Pointers.Status, &r.status}, {"pointers.detail", k.c.Pointers.Detail, &r.detail}, {"pointers.id", k.c.Pointers.ID, &r.id},
		{"pointers.merchant_reference", k.c.Pointers.MerchantReference, &r.merchantRef}, {"pointers.amount", k.c.Pointers.Amount, &r.amountAt},
		{"pointers.currency", k.c.Pointers.Currency, &r.currencyAt}, {"pointers.mode", k.c.Pointers.Mode, &r.modeAt},
		{"pointers.updated_at", k.c.Pointers.UpdatedAt, &r.updatedAt}, {"pointers.error_code", k.c.Pointers.ErrorCode, &r.errorCode},
		{"pointers.error_message", k.c.Pointers.ErrorMessage, &r.errorText}, {"pointers.retry_after", k.c.Pointers.RetryAfter, &r.retryAfterAt},
		{"success.pointer", k.c.Success.Pointer, &r.success},
	} {
		parsed, err := strictjson.ParsePointer(p.text)
		if err != nil {
			k.bad(p.key, "%.60q is not a JSON pointer: %v; write for instance /payment/status", p.text, err)
		}
		*p.to = pointer{parsed, p.text != ""}
	}
	if k.c.Pointers.Status == "" {
		k.bad("pointers.status", "missing; write where the status of the payment stands, for instance /status")
	}
	s := k.c.Success
	switch {
	case s.Pointer == "" && (len(s.Is) > 0 || len(s.IsNot) > 0):
		k.bad("success.pointer", "missing; write where to look, for instance /result")
	case s.Pointer != "" && (len(s.Is) > 0) == (len(s.IsNot) > 0):
		k.bad("success", "write is or is_not: the values that mean success, or those that do not")
	}
	r.is, r.isNot = s.Is, s.IsNot
	if (k.c.Mode == "") != (k.c.Pointers.Mode == "") {
		k.bad("mode", "mode and pointers.mode go together: what is expected, and where it stands")
	}
	r.mode = k.c.Mode
}

var word = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,63}$`)

func (k *compiler) statuses() { k.a.reader.statuses = compileStatuses(k.bad, k.c.Statuses) }

// compileStatuses reads a map of statuses.
func compileStatuses(bad func(key, format string, a ...any), written map[string]string) map[string]meaning {
	meanings := map[string]meaning{}
	succeeds := false
	for _, name := range slices.Sorted(maps.Keys(written)) {
		key := "statuses." + name
		status, detail, _ := strings.Cut(written[name], "/")
		m := meaning{name, reply.Meaning{Status: payment.Status(status), Detail: detail}}
		switch {
		case name == "" || len(name) > reply.MaxStatus || (&httpclient.Redactor{}).Name(name, reply.MaxStatus) != name:
			bad(key, "a gateway's status is printable text of 1 to %d bytes", reply.MaxStatus)
		case !m.Status.Valid():
			bad(key, "%.40q is not known; pending, succeeded, failed, cancelled or expired, and after a / the detail", written[name])
		case detail != "" && !word.MatchString(detail), strings.HasSuffix(written[name], "/"):
			bad(key, "the detail is a word of small letters, digits, _ . and -; write for instance pending/requires_action")
		}
		succeeds = succeeds || m.Status == payment.Succeeded
		meanings[name] = m
	}
	if !succeeds {
		bad("statuses", "none means succeeded, so no payment could; write for instance paid: succeeded")
	}
	return meanings
}

// codeClasses are the classes that an error code may mean. None of them ends a payment: only its status does.
var codeClasses = []gateway.Class{
	gateway.Transport, gateway.RateLimited, gateway.Unauthorized, gateway.NotFound, gateway.Malformed, gateway.Pending, gateway.Mismatch,
}

func (k *compiler) errorCodes() {
	r := &k.a.reader
	r.codes = map[string]gateway.Class{}
	for _, code := range slices.Sorted(maps.Keys(k.c.ErrorCodes)) {
		class, ok := gateway.ClassOf(k.c.ErrorCodes[code])
		if !ok || !slices.Contains(codeClasses, class) {
			k.bad("error_codes."+code, "%.40q is not known; one of %v", k.c.ErrorCodes[code], codeClasses)
		}
		r.codes[code] = class
	}
	if len(r.codes) > 0 && k.c.Pointers.ErrorCode == "" {
		k.bad("pointers.error_code", "missing; error_codes needs it, for instance /error/code")
	}
	r.byStatus = map[int]gateway.Class{}
	for _, l := range []struct {
		key      string
		class    gateway.Class
		statuses []int
	}{
		{"not_found_statuses", gateway.NotFound, k.c.NotFoundStatuses}, {"unauthorized_statuses", gateway.Unauthorized, k.c.UnauthorizedStatuses},
		{"rate_limited_statuses", gateway.RateLimited, k.c.RateLimitedStatuses},
	} {
		for _, s := range l.statuses {
			if other, twice := r.byStatus[s]; twice && other != l.class {
				k.bad(l.key, "%d means %v already; leave it in one of the lists", s, other)
			}
			if s < 400 || s > 599 {
				k.bad(l.key, "%d: between 400 and 599", s)
			}
			r.byStatus[s] = l.class
		}
	}
}

func (k *compiler) amount() {
	r, c := &k.a.reader, k.c.Amount
	oneOf(k.bad, "amount.unit", c.Unit, "minor", "major")
	oneOf(k.bad, "amount.check", c.Check, "always", "succeeded")
	r.unit = reply.Unit{Major: c.Unit == "major", Decimals: c.Exponents, Currencies: c.Currencies}
	r.onlySucceeded = c.Check == "succeeded"
	compileCurrencies(k.bad, r.unit)
}

// compileCurrencies checks what a gateway has otherwise than ISO 4217.
func compileCurrencies(bad func(key, format string, a ...any), u reply.Unit) {
	for _, code := range slices.Sorted(maps.Keys(u.Decimals)) {
		if _, ok := currency.Exponent(code); !ok || u.Decimals[code] < 0 || u.Decimals[code] > currency.MaxExponent {
			bad("amount.exponents."+code, "a currency of ISO 4217 with 0 to %d decimals; write for instance ISK: 2", currency.MaxExponent)
		}
	}
	if len(u.Decimals) > 0 && u.Major {
		bad("amount.exponents", "in major units every currency has its own decimals; take it away, or write unit: minor")
	}
	for _, name := range slices.Sorted(maps.Keys(u.Currencies)) {
		if _, ok := currency.Exponent(u.Currencies[name]); !ok || name == "" {
			bad("amount.currencies."+name, "%.10q is no currency of ISO 4217; write for instance \"949\": TRY", u.Currencies[name])
		}
	}
}

var mediaType = regexp.MustCompile(`^[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+$`)

func (k *compiler) rest() {
	r := &k.a.reader
	r.terms.Types = map[string]bool{}
	for _, t := range k.c.ContentTypes {
		if t == "none" {
			t = ""
		} else if !mediaType.MatchString(t) {
			k.bad("content_types", "%.60q is not a media type in small letters without parameters; write for instance text/plain, or none", t)
		}
		r.terms.Types[t] = true
	}
	if k.c.MaxRetryAfter < time.Second || k.c.MaxRetryAfter > 24*time.Hour {
		k.bad("max_retry_after", "%s: between 1s and 24h", k.c.MaxRetryAfter)
	}
	r.terms.MaxRetryAfter = k.c.MaxRetryAfter
	k.a.trace = *k.c.PropagateTrace
}
