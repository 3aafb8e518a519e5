package httpclient

import (
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

const hexDigits = "0123456789ABCDEF"

// AppendEscaped appends a value with everything escaped that RFC 3986 reserves, so that in a path, in a query and in a form alike it can be
// nothing but one segment or one parameter. A value that Unsendable refuses must not be sent all the same.
func AppendEscaped(dst []byte, value string) []byte {
	for i := range len(value) {
		c := value[i]
		if c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_' || c == '~' {
			dst = append(dst, c)
		} else {
			dst = append(dst, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return dst
}

// MaxValue is the longest value that is put into a request, in bytes; the record has none longer.
const MaxValue = 512

// Unsendable says why a value cannot stand in a request, or is empty. Whatever a server makes of escapes, no value becomes another path:
// a segment of dots is refused however it is written, since servers resolve it before and after they unescape.
func Unsendable(value string) string {
	switch {
	case value == "":
		return "is empty"
	case len(value) > MaxValue:
		return fmt.Sprintf("is longer than %d bytes", MaxValue)
	case !utf8.ValidString(value):
		return "is not UTF-8"
	case strings.ContainsFunc(value, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }):
		return "has control characters"
	}
	for plain := value; ; {
		if dots(plain) {
			return "has a segment of dots, which changes the path"
		}
		next, err := url.PathUnescape(plain)
		if err != nil || next == plain {
			return ""
		}
		plain = next
	}
}

// dots reports whether a segment of the value, or what some servers take for one, is . or ..
func dots(value string) bool {
	for segment := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == '/' || r == '\\' }) {
		segment, _, _ = strings.Cut(segment, ";") // parameters of a segment
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}
