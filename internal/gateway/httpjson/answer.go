package httpjson

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment"
	"pollux/internal/payment/currency"
)

// maxStatus bounds a gateway's status in an answer, in bytes.
const maxStatus = 64

// reader says what answers mean. It is pure, and safe for concurrent use.
type reader struct {
	status, detail, id, merchantRef, amountAt, currencyAt, modeAt, updatedAt pointer
	errorCode, errorText, retryAfterAt, success                              pointer

	statuses  map[string]meaning
	is, isNot []string
	codes     map[string]gateway.Class
	byStatus  map[int]gateway.Class
	mode      string

	major, onlySucceeded bool
	exponents            map[string]int
	currencies           map[string]string

	types         map[string]bool // media types taken for JSON; "" for none
	maxRetryAfter time.Duration
}

// pointer is a JSON pointer that may not be set.
type pointer struct {
	strictjson.Pointer
	set bool
}

// meaning is what a status of the gateway means.
type meaning struct {
	name   string // the key in the map: the gateway's word
	status payment.Status
	detail string
}

// reading is one answer being read.
type reading struct {
	*reader
	q    gateway.Query
	hide *httpclient.Redactor
	resp httpclient.Response
	root strictjson.Value
}

// read says what a response means. It never panics, and whatever is not clearly an answer about this payment is none.
func (r *reader) read(q gateway.Query, hide *httpclient.Redactor, resp httpclient.Response, err error, doc *strictjson.Document, now time.Time) gateway.Answer {
	x := reading{reader: r, q: q, hide: hide, resp: resp}
	var ans gateway.Answer
	switch {
	case resp.Status == 0:
		ans = x.failed(err)
	case resp.Status >= 200 && resp.Status <= 299:
		ans = x.ok(err, doc)
	default:
		ans = x.refused(err, doc)
	}
	ans.HTTPStatus, ans.Took = resp.Status, resp.Took
	if ans.Class != gateway.Final {
		ans.Status = payment.Pending
		x.wait(&ans, now)
	}
	return ans
}

// failed is a call without a whole answer.
func (x *reading) failed(err error) gateway.Answer {
	var e *httpclient.Error
	if !errors.As(err, &e) {
		return x.say(gateway.Transport, "HTTP %d is no answer", x.resp.Status)
	}
	class := e.Kind.Class()
	if x.resp.Status != 0 && (e.Kind == httpclient.TooLarge || e.Kind == httpclient.Encoding) {
		class = gateway.Malformed // it came, and is not what it should be
	}
	return x.say(class, "%s", x.hide.Name(e.Error(), 300))
}

// say is an answer with a message for a person. What came from outside was redacted before.
func (x *reading) say(c gateway.Class, format string, a ...any) gateway.Answer {
	return gateway.Answer{Class: c, Message: clip(fmt.Sprintf(format, a...), httpclient.MaxSnippet)}
}

// clip cuts a text to n bytes, between characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// ok reads an answer with a good HTTP status.
func (x *reading) ok(err error, doc *strictjson.Document) gateway.Answer {
	if err != nil {
		return x.failed(err)
	}
	if why := x.unreadable(doc); why != "" {
		return x.say(gateway.Malformed, "HTTP %d: %s", x.resp.Status, why)
	}
	x.root = doc.Root()
	if ans, bad := x.businessError(); bad {
		return ans
	}
	return x.payment()
}

// unreadable parses a good answer, or says why it is none.
func (x *reading) unreadable(doc *strictjson.Document) string {
	body := x.resp.Body
	switch {
	case x.resp.Status > 203:
		return "an answer with this status has no payment in it"
	case len(bytes.TrimSpace(body)) == 0:
		return "the body is empty"
	}
	kind, charset := contentType(x.resp.Header)
	if !isJSON(kind) && !x.types[kind] {
		return fmt.Sprintf("the body is %s, not JSON%s", orNone(x.hide.Name(kind, 60)), x.beginning())
	}
	if !slices.Contains([]string{"", "utf-8", "utf8", "us-ascii"}, charset) && !ascii(body) {
		return "the body is in " + x.hide.Name(charset, 40) + ", not UTF-8"
	}
	if err := doc.Parse(body); err != nil {
		if c := bytes.TrimSpace(body)[0]; c == '{' || c == '[' {
			return "the body is refused: " + err.Error() // and not shown: it may be a payment
		}
		return "the body is refused: " + err.Error() + x.beginning()
	}
	return ""
}

func orNone(s string) string {
	if s == "" {
		return "without a type"
	}
	return s
}

// beginning shows the start of a body that is not a payment.
func (x *reading) beginning() string {
	if len(bytes.TrimSpace(x.resp.Body)) == 0 {
		return ""
	}
	return `: "` + x.hide.Snippet(x.resp.Body, 256) + `"`
}

// contentType returns the media type and the charset, in small letters.
func contentType(h http.Header) (kind, charset string) {
	switch v := h.Get("Content-Type"); v {
	case "application/json", "application/json; charset=utf-8", "application/json;charset=UTF-8": // no need to look closer
		return "application/json", "utf-8"
	default:
		kind, params, err := mime.ParseMediaType(v)
		if err != nil && kind == "" {
			return strings.ToLower(strings.TrimSpace(v)), ""
		}
		return kind, strings.ToLower(params["charset"])
	}
}

// isJSON reports whether a media type says that it is JSON (RFC 6839 for the suffix).
func isJSON(kind string) bool {
	return kind == "application/json" || kind == "text/json" || strings.HasSuffix(kind, "+json")
}

func ascii(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// businessError reports whether a good HTTP status hides an error, and what that is.
func (x *reading) businessError() (gateway.Answer, bool) {
	if !x.success.set {
		return gateway.Answer{}, false
	}
	v := x.lookup(x.success)
	switch {
	case len(x.is) > 0 && !v.Scalar():
		return x.say(gateway.Malformed, "HTTP %d: nothing at %s says whether the call went well", x.resp.Status, x.success), true
	case len(x.is) > 0 && slices.Contains(x.is, v.Text()), len(x.isNot) > 0 && !slices.Contains(x.isNot, v.Text()):
		return gateway.Answer{}, false
	}
	return x.gatewayError(gateway.Transport), true
}

// refused reads an answer whose HTTP status is no good one.
func (x *reading) refused(err error, doc *strictjson.Document) gateway.Answer {
	if x.resp.Status < 400 { // a redirect, or no answer at all; the client says which
		return x.failed(err)
	}
	class, known := x.byStatus[x.resp.Status]
	if !known {
		class = gateway.Transport
	}
	if x.errorCode.set || x.errorText.set || x.retryAfterAt.set {
		x.root = tolerant(doc, x.resp.Body)
	}
	return x.gatewayError(class)
}

// tolerant reads the body of an error. Its charset may be any: what is not UTF-8 is replaced, because only codes and texts for people
// are read from it. A body that broke off, or is no JSON, has nothing.
func tolerant(doc *strictjson.Document, body []byte) strictjson.Value {
	if !utf8.Valid(body) {
		body = bytes.ToValidUTF8(body, []byte("\uFFFD"))
	}
	if doc.Parse(body) != nil {
		return strictjson.Value{}
	}
	return doc.Root()
}

// gatewayError is what the gateway says about a call that failed: the class of its code, or else the one given.
func (x *reading) gatewayError(class gateway.Class) gateway.Answer {
	code := x.text(x.errorCode)
	if c, ok := x.codes[fmt.Sprintf("%d/%s", x.resp.Status, code)]; ok && code != "" {
		class = c
	} else if c, ok := x.codes[code]; ok && code != "" {
		class = c
	}
	said := ""
	if code != "" {
		said += " error " + x.quoted(code)
	}
	if text := x.text(x.errorText); text != "" {
		said += `: "` + x.hide.Text(text, 256) + `"`
	}
	if said == "" {
		said = x.beginning()
	}
	ans := x.say(class, "HTTP %d%s", x.resp.Status, said)
	if class == gateway.Pending {
		ans.Detail = x.detailOf("", payment.Pending)
	}
	return ans
}

// lookup is what stands at a pointer; nothing for one that is not set.
func (x *reading) lookup(p pointer) strictjson.Value {
	if !p.set {
		return strictjson.Value{}
	}
	return x.root.Lookup(p.Pointer)
}

// text is the scalar at a pointer, as text.
func (x *reading) text(p pointer) string {
	if v := x.lookup(p); v.Scalar() {
		return v.Text()
	}
	return ""
}

// quoted shows a name that the gateway gave.
func (x *reading) quoted(name string) string { return `"` + x.hide.Name(name, 80) + `"` }

// payment reads what the answer says about the payment.
func (x *reading) payment() gateway.Answer {
	v := x.lookup(x.status)
	if !v.Scalar() {
		return x.say(gateway.Malformed, "HTTP %d: no status at %s", x.resp.Status, x.status)
	}
	m, known := x.meaningOf(v)
	if ans, wrong := x.wrong(m.status); wrong {
		ans.GatewayStatus = x.word(v, m)
		return ans
	}
	if !known {
		ans := x.say(gateway.UnknownStatus, "status %s is not in the map; add it to statuses%s", x.quoted(v.Text()), x.changed())
		ans.GatewayStatus = x.word(v, m)
		return ans
	}
	ans := gateway.Answer{Class: gateway.Pending, Status: m.status, Detail: x.detailOf(m.detail, m.status), GatewayStatus: m.name}
	if m.status.Final() {
		ans.Class = gateway.Final
	}
	return ans
}

// meaningOf finds a status in the map: together with its detail, or else alone.
func (x *reading) meaningOf(status strictjson.Value) (meaning, bool) {
	if d := x.lookup(x.detail); d.Scalar() {
		var both [2*maxStatus + 1]byte
		key := append(append(append(both[:0], status.Bytes()...), '/'), d.Bytes()...)
		if m, ok := x.statuses[string(key)]; ok {
			return m, true
		}
	}
	m, ok := x.statuses[string(status.Bytes())]
	return m, ok
}

// word is the gateway's status as it is recorded.
func (x *reading) word(v strictjson.Value, m meaning) string {
	if m.name != "" {
		return m.name
	}
	return x.hide.Name(v.Text(), maxStatus)
}

// detailOf is the status detail in our words: the map's, or the gateway's made a word, or one that says no more than the status.
func (x *reading) detailOf(mapped string, s payment.Status) string {
	if mapped != "" {
		return mapped
	}
	if said := x.text(x.detail); said != "" && x.hide.Name(said, maxStatus) == said {
		if w := asWord(said); w != "" {
			return w
		}
	}
	if s == payment.Pending {
		return "processing"
	}
	return string(s)
}

// asWord makes a word of small letters, digits and underscores of what a gateway says.
func asWord(s string) string {
	w := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '_'
	}, s)
	return strings.Trim(w, "_.-")
}

// changed says when the payment last changed, where the answer says so.
func (x *reading) changed() string {
	if at := x.text(x.updatedAt); at != "" {
		return "; it last changed " + x.hide.Name(at, 40)
	}
	return ""
}

// wrong reports whether the answer is not about the payment that was asked for. The status is that of the map, empty when it is
// unknown.
func (x *reading) wrong(s payment.Status) (gateway.Answer, bool) {
	for _, c := range []struct {
		what     string
		at       pointer
		expected string
	}{{"id", x.id, x.q.Reference}, {"merchant reference", x.merchantRef, x.q.MerchantRef}, {"mode", x.modeAt, x.mode}} {
		if !c.at.set || c.what == "merchant reference" && c.expected == "" {
			continue
		}
		v := x.lookup(c.at)
		switch {
		case !v.Scalar():
			return x.say(gateway.Malformed, "HTTP %d: no %s at %s", x.resp.Status, c.what, c.at), true
		case string(v.Bytes()) != c.expected:
			return x.say(gateway.Mismatch, "%s: the gateway says %s, expected %s%s", c.what, x.quoted(v.Text()), x.quoted(c.expected), x.changed()), true
		}
	}
	if x.onlySucceeded && s != payment.Succeeded {
		return gateway.Answer{}, false
	}
	if ans, wrong := x.wrongCurrency(s); wrong {
		return ans, true
	}
	return x.wrongAmount(s)
}

// missing is an amount or a currency that is not there. Only a success must have it: nothing is released for the other statuses, and
// gateways leave it out.
func (x *reading) missing(what string, p pointer, s payment.Status) (gateway.Answer, bool) {
	if s != payment.Succeeded {
		return gateway.Answer{}, false
	}
	return x.say(gateway.Malformed, "HTTP %d: the payment succeeded, but no %s is at %s", x.resp.Status, what, p), true
}

func (x *reading) wrongCurrency(s payment.Status) (gateway.Answer, bool) {
	if !x.currencyAt.set {
		return gateway.Answer{}, false
	}
	v := x.lookup(x.currencyAt)
	if !v.Exists() {
		return x.missing("currency", x.currencyAt, s)
	}
	if k := v.Kind(); k != strictjson.String && k != strictjson.Number {
		return x.say(gateway.Malformed, "HTTP %d: no currency at %s", x.resp.Status, x.currencyAt), true
	}
	code, ok := x.currencies[string(v.Bytes())]
	if !ok {
		code = v.Text()
	}
	if code == x.q.Currency || equalASCII(code, x.q.Currency) {
		return gateway.Answer{}, false
	}
	return x.say(gateway.Mismatch, "currency: the gateway says %s, expected %s%s", x.quoted(code), currency.Format(x.q.AmountMinor, x.q.Currency), x.changed()), true
}

// equalASCII compares without case. Other letters than ASCII are never equal to one: ſ is no S.
func equalASCII(a, b string) bool { return ascii([]byte(a)) && strings.EqualFold(a, b) }

func (x *reading) wrongAmount(s payment.Status) (gateway.Answer, bool) {
	if !x.amountAt.set {
		return gateway.Answer{}, false
	}
	v := x.lookup(x.amountAt)
	if !v.Exists() {
		return x.missing("amount", x.amountAt, s)
	}
	if k := v.Kind(); k != strictjson.String && k != strictjson.Number {
		return x.say(gateway.Malformed, "HTTP %d: no amount at %s", x.resp.Status, x.amountAt), true
	}
	shift, ok := x.shift()
	if !ok {
		return x.say(gateway.Mismatch, "amount: %s is no currency of ISO 4217, so its decimals are not known", x.quoted(x.q.Currency)), true
	}
	said, expected := v.Text(), currency.Format(x.q.AmountMinor, x.q.Currency)
	switch got, err := currency.Minor(said, shift); {
	case errors.Is(err, currency.ErrSyntax):
		return x.say(gateway.Malformed, "HTTP %d: the amount at %s is not a number; expected %s", x.resp.Status, x.amountAt, expected), true
	case err != nil:
		return x.say(gateway.Mismatch, "amount: the gateway says %s, which is %v; expected %s%s", x.quoted(said), err, expected, x.changed()), true
	case got != x.q.AmountMinor:
		return x.say(gateway.Mismatch, "amount: the gateway says %s, expected %s%s", currency.Format(got, x.q.Currency), expected, x.changed()), true
	}
	return gateway.Answer{}, false
}

// shift is the power of ten between the gateway's amounts and minor units.
func (x *reading) shift() (int, bool) {
	gateways, other := x.exponents[x.q.Currency]
	if !x.major && !other {
		return 0, true
	}
	iso, ok := currency.Exponent(x.q.Currency)
	return iso - gateways, ok
}

// wait reads how long the gateway asks us to wait.
func (x *reading) wait(ans *gateway.Answer, now time.Time) {
	d, tooLong := httpclient.RetryAfter(x.resp.Header, now, x.maxRetryAfter)
	if body := x.bodyWait(); body > d {
		d, tooLong = min(body, x.maxRetryAfter), body > x.maxRetryAfter
	}
	ans.RetryAfter = d
	if tooLong {
		note := fmt.Sprintf("the gateway asked for a longer wait than max_retry_after, %s", x.maxRetryAfter)
		if ans.Message != "" {
			note = clip(ans.Message, httpclient.MaxSnippet-len(note)-2) + "; " + note
		}
		ans.Message = note
	}
}

// bodyWait is the wait that the body asks for, in seconds; nonsense and what is negative is none.
func (x *reading) bodyWait() time.Duration {
	v := x.lookup(x.retryAfterAt)
	if k := v.Kind(); k != strictjson.Number && k != strictjson.String {
		return 0
	}
	n, err := currency.Minor(v.Text(), 9)
	if errors.Is(err, currency.ErrRange) && v.Bytes()[0] != '-' {
		return math.MaxInt64
	}
	return max(time.Duration(n), 0)
}
