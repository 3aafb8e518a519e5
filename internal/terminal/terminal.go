// Package terminal makes what comes from outside fit to be shown to a person: a gateway's message must not clear the screen, move the
// cursor, hide a line or turn an amount around.
package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Line returns s as one line. What a terminal would obey and what changes the place or the direction of other characters is written as
// a Go escape: \u001b, \u202e. What is not UTF-8 becomes \ufffd. A line that is harmless is returned as it is.
func Line(s string) string { return escape(s, "") }

// Lines is Line for a text that may have line breaks and tabs: they stay.
func Lines(s string) string { return escape(s, "\n\t") }

func escape(s, allowed string) string {
	harmful := func(r rune) bool { return obeyed(r) && !strings.ContainsRune(allowed, r) }
	if strings.IndexFunc(s, harmful) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !harmful(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// obeyed reports whether a character is not a picture: control characters, formatting such as the bidirectional overrides and what has no
// width, separators of lines, private and unassigned ones, and the one that stands for invalid bytes.
func obeyed(r rune) bool { return !unicode.IsGraphic(r) || r == utf8.RuneError }

// JSON writes value as indented JSON that is harmless to a terminal: encoding/json leaves the controls of the upper half and the
// bidirectional overrides as they are; here they are escaped, which no reader of JSON notices.
func JSON(w io.Writer, value any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	_, err := io.WriteString(w, EscapeJSON(b.String()))
	return err
}

// EscapeJSON makes a text that is JSON, or lines of it, harmless to a terminal. It means the same afterwards.
func EscapeJSON(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || !obeyed(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// Record returns a line of a CSV file, with its end. A text that a spreadsheet would take for a formula gets an apostrophe before it (CWE-1236), and what a
// terminal would obey is escaped. Every text is quoted, so that it stays one cell whatever a program takes for the separator. Numbers are
// written as they are.
func Record(cells ...any) string {
	var b strings.Builder
	for i, c := range cells {
		if i > 0 {
			b.WriteByte(',')
		}
		switch c.(type) {
		case int, int64, float64:
			fmt.Fprint(&b, c)
		default:
			b.WriteString(`"` + strings.ReplaceAll(harmlessCell(fmt.Sprint(c)), `"`, `""`) + `"`)
		}
	}
	b.WriteByte('\n')
	return b.String()
}

// formulas are the characters that begin a formula in one spreadsheet or another, wide ones included.
const formulas = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"

func harmlessCell(s string) string {
	if first, _ := utf8.DecodeRuneInString(strings.TrimLeft(s, " ")); s != "" && strings.ContainsRune(formulas, first) {
		s = "'" + s
	}
	return Line(s)
}

// Is reports whether w is a terminal, or something like one: a device of characters.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
