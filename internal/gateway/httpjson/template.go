package httpjson

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"
)

// template is text with placeholders: {reference}, {account}, … A brace that does not enclose a name of small letters, digits and
// underscores stands for itself, as it does in JSON.
type template []part

type part struct {
	literal string
	field   string // empty for a literal
}

var placeholder = regexp.MustCompile(`\{[a-z0-9_]+\}`)

// parseTemplate reads a template that may have some fields.
func parseTemplate(text string, fields ...string) (template, error) {
	var t template
	from := 0
	for _, at := range placeholder.FindAllStringIndex(text, -1) {
		name := text[at[0]+1 : at[1]-1]
		if !contains(fields, name) {
			return nil, fmt.Errorf("no placeholder {%s}; there are {%s}", name, strings.Join(fields, "}, {"))
		}
		if at[0] > from {
			t = append(t, part{literal: text[from:at[0]]})
		}
		t = append(t, part{field: name})
		from = at[1]
	}
	if from < len(text) {
		t = append(t, part{literal: text[from:]})
	}
	return t, nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// has reports whether the template has a field.
func (t template) has(field string) bool {
	for _, p := range t {
		if p.field == field {
			return true
		}
	}
	return false
}

// fixed returns the text of a template without fields.
func (t template) fixed() (string, bool) {
	switch {
	case len(t) == 0:
		return "", true
	case len(t) == 1 && t[0].field == "":
		return t[0].literal, true
	}
	return "", false
}

// escape appends a value so that it cannot be anything but a value.
type escape func(dst []byte, value string) []byte

// append renders the template.
func (t template) append(dst []byte, value func(field string) string, esc escape) []byte {
	for _, p := range t {
		if p.field == "" {
			dst = append(dst, p.literal...)
		} else {
			dst = esc(dst, value(p.field))
		}
	}
	return dst
}

func raw(dst []byte, value string) []byte { return append(dst, value...) }

const hexDigits = "0123456789ABCDEF"

// percent escapes everything that RFC 3986 reserves, in a path, a query and a form alike: a value can then be nothing but one segment
// or one parameter.
func percent(dst []byte, value string) []byte {
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

// quote escapes what stands inside a JSON string. The value is valid UTF-8 without control characters.
func quote(dst []byte, value string) []byte {
	for i := range len(value) {
		if c := value[i]; c == '"' || c == '\\' {
			dst = append(dst, '\\', c)
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}

// maxValue is the longest value that is put into a request; the record has none longer.
const maxValue = 512

// unusable says why a value cannot stand in a request, or is empty. Whatever a server makes of escapes, no value becomes another path:
// a segment of dots is refused however it is written, since servers resolve it before and after they unescape.
func unusable(value string) string {
	switch {
	case value == "":
		return "is empty"
	case len(value) > maxValue:
		return fmt.Sprintf("is longer than %d bytes", maxValue)
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
