package canary

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// mark is a secret or a card number that must not be found.
type mark struct {
	name  string
	forms []string // as it may be written
}

// marks are all of a test. They are made before anything runs, and safe for concurrent use then.
type marks struct {
	random *rand.Rand
	all    []mark
}

func newMarks() *marks { return &marks{random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))} }

// secret makes a secret behind a prefix.
func (m *marks) secret(name, prefix string) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	b := make([]byte, 32)
	for i := range b {
		b[i] = letters[m.random.IntN(len(letters))]
	}
	b[0], b[1], b[2] = 'c', '7', '9' // a letter and digits, as every key has
	text := string(b)
	whole := prefix + text
	forms := []string{text, url.QueryEscape(whole), hex.EncodeToString([]byte(text)), base64.StdEncoding.EncodeToString([]byte(whole)), base64.URLEncoding.EncodeToString([]byte(whole))}
	m.all = append(m.all, mark{name, slices.Compact(forms)})
	return whole
}

// phrase makes a secret that does not look like one: letters alone, which only who knows it can find.
func (m *marks) phrase(name string) string {
	b := make([]byte, 32)
	for i := range b {
		b[i] = byte('a' + m.random.IntN(26))
	}
	s := string(b)
	m.all = append(m.all, mark{name, []string{s, hex.EncodeToString(b), base64.StdEncoding.EncodeToString(b)}})
	return s
}

// inside adds a form of a secret that comes from it: its part of a header, for instance.
func (m *marks) inside(name, form string) string {
	m.all = append(m.all, mark{name, []string{form}})
	return form
}

// card makes a card number whose check digit is right.
func (m *marks) card(name string) string {
	digits := []byte(fmt.Sprintf("4%014d", m.random.Int64N(1e14)))
	sum := 0
	for i, c := range digits {
		d := int(c - '0')
		if i%2 == 0 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	n := string(append(digits, byte('0'+(10-sum%10)%10)))
	m.all = append(m.all, mark{name, []string{n, grouped(n, " "), grouped(n, "-"), base64.StdEncoding.EncodeToString([]byte(n))}})
	return n
}

// grouped writes a card number as people do.
func grouped(n, separator string) string {
	return strings.Join([]string{n[:4], n[4:8], n[8:12], n[12:]}, separator)
}

// in names the marks that are in something that was kept or shown.
func (m *marks) in(content []byte) (found []string) {
	for _, x := range m.all {
		for _, form := range x.forms {
			if bytes.Contains(content, []byte(form)) {
				found = append(found, x.name)
				break
			}
		}
	}
	return found
}

// none fails when a mark is in something.
func (m *marks) none(t *testing.T, where string, content []byte) {
	t.Helper()
	for _, name := range m.in(content) {
		t.Errorf("%s: in %s", name, where)
	}
}

// TestMarksAreFound: a test that looks for what it would not recognise says nothing.
func TestMarksAreFound(t *testing.T) {
	m := newMarks()
	s, n := m.secret("a secret", "sk_live_"), m.card("a card")
	for _, text := range []string{s, strings.TrimPrefix(s, "sk_live_"), hex.EncodeToString([]byte(strings.TrimPrefix(s, "sk_live_"))), base64.StdEncoding.EncodeToString([]byte(s))} {
		if got := m.in([]byte("before " + text + " behind")); !slices.Equal(got, []string{"a secret"}) {
			t.Errorf("%s: found %v", text, got)
		}
	}
	for _, text := range []string{n, grouped(n, " "), grouped(n, "-")} {
		if got := m.in([]byte("x" + text)); !slices.Equal(got, []string{"a card"}) {
			t.Errorf("%s: found %v", text, got)
		}
	}
	if got := m.in([]byte("nothing, 4111111111111111")); len(got) > 0 {
		t.Errorf("found %v", got)
	}
}
