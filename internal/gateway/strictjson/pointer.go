package strictjson

import (
	"errors"
	"strconv"
	"strings"
)

// Pointer is a JSON pointer (RFC 6901). The zero value points at the whole document.
type Pointer struct {
	text   string
	tokens []token
}

type token struct {
	key   string
	index int // as an index of an array; −1 when it cannot be one
}

// ParsePointer reads a pointer: "/payment/status", "/items/0/id", "/a~1b" for the key a/b, "" for the whole document.
func ParsePointer(text string) (Pointer, error) {
	p := Pointer{text: text}
	if text == "" {
		return p, nil
	}
	if text[0] != '/' {
		return Pointer{}, errors.New("a JSON pointer begins with /")
	}
	for part := range strings.SplitSeq(text[1:], "/") {
		key, err := unescape(part)
		if err != nil {
			return Pointer{}, err
		}
		p.tokens = append(p.tokens, token{key, index(part)})
	}
	return p, nil
}

func unescape(part string) (string, error) {
	for i := range len(part) {
		if part[i] == '~' && (i+1 == len(part) || part[i+1] != '0' && part[i+1] != '1') {
			return "", errors.New("in a JSON pointer ~ is written ~0, and / within a key ~1")
		}
	}
	return strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~"), nil
}

// index is the token as an array's index: digits without leading zeros. "-" is the element after the last, which never exists.
func index(part string) int {
	if part == "" || len(part) > 1 && part[0] == '0' || part[0] == '+' || part[0] == '-' {
		return -1
	}
	n, err := strconv.Atoi(part)
	if err != nil {
		return -1
	}
	return n
}

// String returns the pointer as it was written.
func (p Pointer) String() string { return p.text }

// Lookup returns what the pointer points at, seen from v; Absent when there is nothing.
func (v Value) Lookup(p Pointer) Value {
	for _, t := range p.tokens {
		switch v.Kind() {
		case Object:
			v = v.Member(t.key)
		case Array:
			v = v.Element(t.index)
		default:
			return Value{}
		}
	}
	return v
}
