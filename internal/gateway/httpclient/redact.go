package httpclient

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"pollux/internal/card"
)

// MaxSnippet is the most that Redactor shows of anything, in bytes.
const MaxSnippet = 512

// Redactor makes text that came from outside fit for a log: short, valid UTF-8, on one line, and without secrets. What it knows to be
// secret it finds in any position and in the usual encodings; besides, it takes out card numbers, e-mail addresses, URLs behind
// their host, and what looks like a key or a token. The zero value knows no secret. It is safe for concurrent use.
type Redactor struct {
	secrets []string
	names   bool // what looks like a token is shown
}

// plain is for text that has nothing to do with our secrets.
var plain = new(Redactor)

// NewRedactor returns a redactor that knows secrets.
func NewRedactor(secrets ...string) *Redactor {
	r := new(Redactor)
	for _, s := range secrets {
		quoted, _ := json.Marshal(s)
		r.secrets = append(r.secrets, s, string(quoted[1:len(quoted)-1]), url.QueryEscape(s), url.PathEscape(s),
			base64.StdEncoding.EncodeToString([]byte(s)), base64.URLEncoding.EncodeToString([]byte(s)))
	}
	slices.SortFunc(r.secrets, func(a, b string) int { // the longest first: it may contain the others
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	r.secrets = slices.DeleteFunc(slices.Compact(r.secrets), func(s string) bool { return s == "" })
	return r
}

// Snippet returns the beginning of a body, at most most bytes and at most MaxSnippet.
func (r *Redactor) Snippet(body []byte, most int) string {
	const window = 16 << 10
	if len(body) <= window {
		return r.Text(string(body), most)
	}
	slack := 64 // what begins near the end of the window may be cut there, and then not be recognised
	if len(r.secrets) > 0 {
		slack += len(r.secrets[0])
	}
	s := string(body[:min(len(body), window+slack)])
	return r.text(s, window, most)
}

// Text returns s, at most most bytes of it and at most MaxSnippet, redacted.
func (r *Redactor) Text(s string, most int) string { return r.text(s, len(s), most) }

// Name returns a name that came from outside: an id, a status, a code. It is redacted like Text, but what merely looks like a token is
// shown, because ids look like tokens.
func (r *Redactor) Name(s string, most int) string {
	n := &Redactor{secrets: r.secrets, names: true}
	return n.text(s, len(s), most)
}

const cut = "…"

// text shows what begins before end.
func (r *Redactor) text(s string, end, most int) string {
	most = max(0, min(most, MaxSnippet))
	out := make([]byte, 0, min(most, len(s)))
	i, whole := 0, 0 // whole is how much of out leaves room for the mark of a cut
	for i < end {
		shown, next := r.hide(s, i)
		if next == i {
			shown, next = visible(s, i)
		}
		if len(out)+len(shown) > most {
			break
		}
		out = append(out, shown...)
		if len(out)+len(cut) <= most {
			whole = len(out)
		}
		i = next
	}
	if i < len(s) && len(cut) <= most {
		out = append(out[:whole], cut...)
	}
	return string(out)
}

// visible is the character at i as it is shown.
func visible(s string, i int) (string, int) {
	c, n := utf8.DecodeRuneInString(s[i:])
	switch {
	case c == utf8.RuneError && n <= 1:
		return fmt.Sprintf(`\x%02x`, s[i]), i + 1
	case strconv.IsPrint(c):
		return s[i : i+n], i + n
	}
	quoted := strconv.QuoteRune(c)
	return quoted[1 : len(quoted)-1], i + n
}

// hide returns what stands for something that must not be shown, and where that ends; i when nothing of the kind begins at i.
func (r *Redactor) hide(s string, i int) (string, int) {
	if n := r.secret(s, i); n > 0 {
		return "[secret]", i + n
	}
	all := finders
	if r.names {
		all = finders[:1]
	}
	for _, find := range all {
		if shown, n := find(r, s, i); n > 0 {
			return shown, r.extend(s, i, i+n)
		}
	}
	return "", i
}

// secret returns the length of the known secret at i, 0 when there is none.
func (r *Redactor) secret(s string, i int) int {
	for _, x := range r.secrets {
		if strings.HasPrefix(s[i:], x) {
			return len(x)
		}
	}
	return 0
}

// extend moves the end of something hidden behind a known secret that begins in it.
func (r *Redactor) extend(s string, i, end int) int {
	for _, x := range r.secrets {
		if n := strings.LastIndex(s[i:min(len(s), end+len(x)-1)], x); n >= 0 {
			end = max(end, i+n+len(x))
		}
	}
	return end
}

// finders recognise what must not be shown; in a name, only the first of them do. Each returns what to show instead and the length of
// what it found, 0 when it is not there.
var finders = []func(r *Redactor, s string, i int) (string, int){findCard, (*Redactor).findURL, findEmail, findToken}

func findCard(_ *Redactor, s string, i int) (string, int) { return card.Find(s, i) }

// span is how many bytes from i are in a set.
func span(s string, i int, in func(byte) bool) int {
	n := 0
	for i+n < len(s) && in(s[i+n]) {
		n++
	}
	return n
}

// starts reports whether a run of bytes in a set starts at i.
func starts(s string, i int, in func(byte) bool) bool { return in(s[i]) && (i == 0 || !in(s[i-1])) }

func digit(c byte) bool  { return c >= '0' && c <= '9' }
func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func word(c byte) bool   { return letter(c) || digit(c) || c == '_' || c == '-' || c == '+' || c == '/' }
func local(c byte) bool {
	return letter(c) || digit(c) || c == '.' || c == '_' || c == '%' || c == '+' || c == '-'
}
func domain(c byte) bool { return letter(c) || digit(c) || c == '.' || c == '-' || c == ':' }
func inURL(c byte) bool  { return c > ' ' && c < 0x7f && c != '"' && c != '\'' && c != '<' && c != '>' }

// findURL leaves the scheme and the host of a URL, or nothing of it when a known secret or a card number begins in them.
func (r *Redactor) findURL(s string, i int) (string, int) {
	if len(s)-i < len("http://") || !strings.EqualFold(s[i:i+4], "http") {
		return "", 0
	}
	n := span(s, i, inURL)
	scheme, rest, ok := strings.Cut(s[i:i+n], "://")
	if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return "", 0
	}
	authority := rest[:len(rest)-len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:@%~!$&()*+,;=[]"))]
	for at := range len(scheme) + len("://") + len(authority) {
		if _, card := card.Find(s, i+at); card > 0 || r.secret(s, i+at) > 0 {
			return "[url]", n
		}
	}
	shown, host := scheme+"://", authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		shown, host = shown+"[…]@", authority[at+1:]
	}
	whole := len(authority) == len(rest)
	if h := span(host, 0, domain); h < len(host) || h > 100 {
		host, whole = "", false
	}
	if shown += host; !whole {
		shown += "/[…]"
	}
	return shown, n
}

func findEmail(_ *Redactor, s string, i int) (string, int) {
	if !starts(s, i, local) {
		return "", 0
	}
	n := span(s, i, local)
	if i+n+1 >= len(s) || s[i+n] != '@' || !letter(s[i+n+1]) && !digit(s[i+n+1]) {
		return "", 0
	}
	return "[email]", n + 1 + span(s, i+n+1, domain)
}

// findToken finds what looks like a key: a long run of letters and digits, one with a known prefix, and what follows the name of
// something secret.
func findToken(_ *Redactor, s string, i int) (string, int) {
	if !starts(s, i, word) {
		return "", 0
	}
	n := span(s, i, word)
	run := s[i : i+n]
	if n >= 24 && mixed(run) || prefixed(run) || named(s[:i], run) {
		return "[token]", n
	}
	return "", 0
}

func mixed(run string) bool {
	letters, digits := 0, 0
	for i := range len(run) {
		switch {
		case letter(run[i]):
			letters++
		case digit(run[i]):
			digits++
		}
	}
	return letters > 0 && digits > 1
}

func prefixed(run string) bool {
	for _, p := range []string{"sk_", "rk_", "pk_", "whsec_", "eyJ"} {
		if len(run) > len(p)+4 && strings.HasPrefix(run, p) {
			return true
		}
	}
	return false
}

// named reports whether the text before a run names what it is: password=…, "api_key": "…", Bearer ….
func named(before, run string) bool {
	before = strings.ToLower(before[max(0, len(before)-40):])
	name := strings.TrimRight(before, " \t\"'\\")
	if scheme := strings.HasSuffix(name, "bearer") || strings.HasSuffix(name, "basic"); scheme && len(name) < len(before) {
		return len(run) >= 16 || mixed(run)
	}
	stripped := strings.TrimRight(name, ":=")
	if len(stripped) == len(name) {
		return false
	}
	stripped = strings.TrimRight(stripped, " \t\"'\\")
	for _, n := range []string{"password", "passwd", "pwd", "secret", "token", "apikey", "api_key", "api-key", "authorization", "signature", "cvv", "cvc", "pin"} {
		if strings.HasSuffix(stripped, n) {
			return true
		}
	}
	return false
}
