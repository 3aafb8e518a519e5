// Package reply reads what a gateway replied: whether it is whole, whether it is about the payment that was asked for, and what went wrong
// when it is not. All adapters read with it, so that none is laxer than another. It is pure: it asks nobody.
package reply

import (
	"bytes"
	"errors"
	"fmt"
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
)

// MaxStatus bounds a gateway's status in an answer, in bytes.
const MaxStatus = 64

// Reader says what a gateway's words mean. What it returns of an answer's HTTP status, duration and wait is replaced.
type Reader interface {
	// Payment reads a whole and unambiguous document that came with a good HTTP status, 200 to 203.
	Payment(*Reply) gateway.Answer
	// Refusal reads an answer with an HTTP status of 400 or more. Its document is absent where the body is none.
	Refusal(*Reply) gateway.Answer
}

// Terms are what is taken for an answer at all. The zero value takes JSON that says so and no wait. It is safe for concurrent use.
type Terms struct {
	Types         map[string]bool // Media types that are JSON although they do not say so; "" is an answer without one.
	MaxRetryAfter time.Duration   // What the gateway asks for beyond this is cut to it.
}

// Call is a question that was asked and what came of it: what httpclient.Client.Do returned.
type Call struct {
	Query gateway.Query
	Hide  *httpclient.Redactor // knows every secret that was sent
	HTTP  httpclient.Response
	Err   error
}

// Reply is one answer being read. A Reader sets Changed and Wait where the document has them.
type Reply struct {
	Query   gateway.Query
	Hide    *httpclient.Redactor
	HTTP    httpclient.Response // zero for what came otherwise than as an answer, as a notification does
	Root    strictjson.Value
	Changed string        // when the payment last changed, for messages to people
	Wait    time.Duration // how long the document asks us to wait
}

// Read says what a reply means. It never panics, and whatever is not clearly an answer about this payment is none. The document's memory is
// used for this reply alone.
func (t Terms) Read(rd Reader, c Call, doc *strictjson.Document, now time.Time) gateway.Answer {
	r := &Reply{Query: c.Query, Hide: c.Hide, HTTP: c.HTTP}
	var ans gateway.Answer
	switch status := c.HTTP.Status; {
	case status >= 200 && status <= 299:
		ans = r.good(rd, t, c.Err, doc)
	case status >= 400:
		r.Root = tolerant(doc, c.HTTP.Body)
		ans = rd.Refusal(r)
	default: // a redirect, or no answer at all; the client says which
		ans = r.failed(c.Err)
	}
	ans.HTTPStatus, ans.Took = c.HTTP.Status, c.HTTP.Took
	if ans.Class != gateway.Final {
		ans.Status = payment.Pending
		r.wait(&ans, t.MaxRetryAfter, now)
	}
	return ans
}

func (r *Reply) good(rd Reader, t Terms, err error, doc *strictjson.Document) gateway.Answer {
	if err != nil {
		return r.failed(err)
	}
	if why := r.unreadable(t, doc); why != "" {
		return r.Say(gateway.Malformed, "%s%s", r.at(), why)
	}
	r.Root = doc.Root()
	return rd.Payment(r)
}

// failed is a call without a whole answer.
func (r *Reply) failed(err error) gateway.Answer {
	var e *httpclient.Error
	if !errors.As(err, &e) {
		return r.Say(gateway.Transport, "HTTP %d is no answer", r.HTTP.Status)
	}
	class := e.Kind.Class()
	if r.HTTP.Status != 0 && (e.Kind == httpclient.TooLarge || e.Kind == httpclient.Encoding) {
		class = gateway.Malformed // it came, and is not what it should be
	}
	return r.Say(class, "%s", r.Hide.Name(e.Error(), 300))
}

// Say is an answer of a class with a message for a person, cut to what an answer may have. What came from outside must be redacted before.
func (r *Reply) Say(c gateway.Class, format string, a ...any) gateway.Answer {
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

// at is how a message about an answer begins: with its HTTP status, where it has one.
func (r *Reply) at() string {
	if r.HTTP.Status == 0 {
		return ""
	}
	return fmt.Sprintf("HTTP %d: ", r.HTTP.Status)
}

// Bad is an answer whose document is not what it should be; why says what is missing or wrong.
func (r *Reply) Bad(format string, a ...any) gateway.Answer {
	return r.Say(gateway.Malformed, "%s%s", r.at(), fmt.Sprintf(format, a...))
}

// unreadable parses a good answer, or says why it is none.
func (r *Reply) unreadable(t Terms, doc *strictjson.Document) string {
	body := r.HTTP.Body
	switch {
	case r.HTTP.Status > 203:
		return "an answer with this status has no payment in it"
	case len(bytes.TrimSpace(body)) == 0:
		return "the body is empty"
	}
	kind, charset := contentType(r.HTTP.Header)
	if !isJSON(kind) && !t.Types[kind] {
		return fmt.Sprintf("the body is %s, not JSON%s", orNone(r.Hide.Name(kind, 60)), r.beginning())
	}
	if !slices.Contains([]string{"", "utf-8", "utf8", "us-ascii"}, charset) && !ascii(body) {
		return "the body is in " + r.Hide.Name(charset, 40) + ", not UTF-8"
	}
	if err := doc.Parse(body); err != nil {
		if c := bytes.TrimSpace(body)[0]; c == '{' || c == '[' {
			return "the body is refused: " + err.Error() // and not shown: it may be a payment
		}
		return "the body is refused: " + err.Error() + r.beginning()
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
func (r *Reply) beginning() string {
	if len(bytes.TrimSpace(r.HTTP.Body)) == 0 {
		return ""
	}
	return `: "` + r.Hide.Snippet(r.HTTP.Body, 256) + `"`
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

// Error is what the gateway says about a call that failed: its code and its text, empty where it gave none. Where it gave neither, the
// beginning of the body is shown.
func (r *Reply) Error(class gateway.Class, code, text string) gateway.Answer {
	said := ""
	if code != "" {
		said += " error " + r.Quoted(code)
	}
	if text != "" {
		said += `: "` + r.Hide.Text(text, 256) + `"`
	}
	if said == "" {
		said = r.beginning()
	}
	return r.Say(class, "HTTP %d%s", r.HTTP.Status, said)
}

// Quoted shows a name that the gateway gave, redacted and in quotes.
func (r *Reply) Quoted(name string) string { return `"` + r.Hide.Name(name, 80) + `"` }

// Word is a gateway's status as it is recorded: redacted and cut.
func (r *Reply) Word(status string) string { return r.Hide.Name(status, MaxStatus) }

// Text is a scalar as text, empty for what is none or not there.
func Text(v strictjson.Value) string {
	if v.Scalar() {
		return v.Text()
	}
	return ""
}

// Detail makes a status detail, a word of small letters, digits and underscores, of what a gateway says. It is empty when that is no word, too
// long, or something that is not shown.
func (r *Reply) Detail(said string) string {
	if said == "" || r.Hide.Name(said, MaxStatus) != said {
		return ""
	}
	w := strings.Map(func(c rune) rune {
		switch {
		case c >= 'A' && c <= 'Z':
			return c + 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '.':
			return c
		}
		return '_'
	}, said)
	return strings.Trim(w, "_.-")
}

// Meaning is what a gateway's status means to us. An empty detail is one that says no more than the status.
type Meaning struct {
	Status payment.Status
	Detail string
}

// Answer is an answer about the payment. word is the gateway's own status.
func (r *Reply) Answer(m Meaning, word string) gateway.Answer {
	ans := gateway.Answer{Class: gateway.Pending, Status: m.Status, Detail: m.Detail, GatewayStatus: word}
	if m.Status.Final() {
		ans.Class = gateway.Final
	}
	switch {
	case ans.Detail != "":
	case ans.Class == gateway.Final:
		ans.Detail = string(m.Status)
	default:
		ans.Detail = "processing"
	}
	return ans
}

// Unknown is an answer with a status that nobody has told us about; hint says what to do about it.
func (r *Reply) Unknown(status, hint string) gateway.Answer {
	ans := r.Say(gateway.UnknownStatus, "status %s is not in the map; %s%s", r.Quoted(status), hint, r.changed())
	ans.GatewayStatus = r.Word(status)
	return ans
}

// changed says when the payment last changed, where the answer says so.
func (r *Reply) changed() string {
	if r.Changed == "" {
		return ""
	}
	return "; it last changed " + r.Hide.Name(r.Changed, 40)
}

// Differs reports whether a field of the answer is not what it must be: another is a mismatch, none is malformed. what names the field, where
// says where it was looked for.
func (r *Reply) Differs(what string, v strictjson.Value, where, expected string) (gateway.Answer, bool) {
	switch {
	case !v.Scalar():
		return r.Bad("no %s at %s", what, where), true
	case string(v.Bytes()) != expected:
		return r.Say(gateway.Mismatch, "%s: the gateway says %s, expected %s%s", what, r.Quoted(v.Text()), r.Quoted(expected), r.changed()), true
	}
	return gateway.Answer{}, false
}

// wait reads how long the gateway asks us to wait.
func (r *Reply) wait(ans *gateway.Answer, most time.Duration, now time.Time) {
	d, tooLong := httpclient.RetryAfter(r.HTTP.Header, now, most)
	if r.Wait > d {
		d, tooLong = min(r.Wait, most), r.Wait > most
	}
	ans.RetryAfter = d
	if tooLong {
		note := fmt.Sprintf("the gateway asked for a longer wait than max_retry_after, %s", most)
		if ans.Message != "" {
			note = clip(ans.Message, httpclient.MaxSnippet-len(note)-2) + "; " + note
		}
		ans.Message = note
	}
}
