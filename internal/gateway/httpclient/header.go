package httpclient

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RetryAfter returns how long an answer asks us to wait, and whether that was cut to most. It reads both forms of RFC 9110, section
// 10.2.3: seconds, and a date, which counts from the answer's own Date where it has one, so that our clock and the gateway's need
// not agree, and from now where it has none. What cannot be read, and what is over already, is 0. Of several, the longest counts.
func RetryAfter(h http.Header, now time.Time, most time.Duration) (wait time.Duration, wasCut bool) {
	for _, v := range h["Retry-After"] {
		wait = max(wait, retryAfter(strings.TrimSpace(v), h, now))
	}
	if wait > most {
		return max(most, 0), true
	}
	return wait, false
}

func retryAfter(v string, h http.Header, now time.Time) time.Duration {
	if v != "" && span(v, 0, digit) == len(v) {
		const most = 1 << 32 // seconds; far beyond every cap, far from overflowing
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n > most {
			n = most
		}
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return at.Sub(now)
}

// ValidHeaderName reports whether s can be the name of a header: a token of RFC 9110, section 5.6.2.
func ValidHeaderName(s string) bool {
	for i := range len(s) {
		if c := s[i]; !letter(c) && !digit(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// ValidHeaderValue reports whether s can be the value of a header: printable ASCII, blanks and tabs. Bytes beyond ASCII are refused,
// because servers disagree about them.
func ValidHeaderValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c != '\t' && (c < ' ' || c > '~') {
			return false
		}
	}
	return strings.TrimSpace(s) == s
}
