package httpjson

import (
	"fmt"
	"regexp"
	"strings"
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
