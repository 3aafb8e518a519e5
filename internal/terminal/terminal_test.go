package terminal

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestWhatATerminalObeysIsEscaped(t *testing.T) {
	for _, c := range []struct{ name, in, line, lines string }{
		{"plain", "pay_1 19.99 EUR", "pay_1 19.99 EUR", "pay_1 19.99 EUR"},
		{"letters of others", "Zürich 東京 ٣ é 💶", "Zürich 東京 ٣ é 💶", "Zürich 東京 ٣ é 💶"},
		{"colour", "\x1b[31mred\x1b[0m", `\u001b[31mred\u001b[0m`, `\u001b[31mred\u001b[0m`},
		{"CSI of the upper half", "\u009b2J", `\u009b2J`, `\u009b2J`},
		{"title", "\x1b]0;owned\x07", `\u001b]0;owned\u0007`, `\u001b]0;owned\u0007`},
		{"carriage return", "failed\rsucceeded", `failed\u000dsucceeded`, `failed\u000dsucceeded`},
		{"backspace and delete", "9\b1\x7f", `9\u00081\u007f`, `9\u00081\u007f`},
		{"line breaks and tabs", "a\n\tb", `a\u000a\u0009b`, "a\n\tb"},
		{"separators of lines", "a\u2028b\u2029c\u0085d", `a\u2028b\u2029c\u0085d`, `a\u2028b\u2029c\u0085d`},
		{"bidirectional overrides", "\u202e91.9\u202c \u2066x\u2069", `\u202e91.9\u202c \u2066x\u2069`, `\u202e91.9\u202c \u2066x\u2069`},
		{"without width", "a\u200bb\ufeffc\u00add", `a\u200bb\ufeffc\u00add`, `a\u200bb\ufeffc\u00add`},
		{"tags", "a\U000e0041", `a\U000e0041`, `a\U000e0041`},
		{"private", "\ue000", `\ue000`, `\ue000`},
		{"not UTF-8", "a\xffb\xc3", `a\ufffdb\ufffd`, `a\ufffdb\ufffd`},
		{"NUL", "a\x00b", `a\u0000b`, `a\u0000b`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Line(c.in); got != c.line {
				t.Errorf("Line(%q) is %q, wanted %q", c.in, got, c.line)
			}
			if got := Lines(c.in); got != c.lines {
				t.Errorf("Lines(%q) is %q, wanted %q", c.in, got, c.lines)
			}
		})
	}
}

func FuzzNothingObeyedGetsThrough(f *testing.F) {
	f.Add("\x1b[31m\u202e\u009b\xff\U000e0041\n\t")
	f.Fuzz(func(t *testing.T, s string) {
		line := Line(s)
		if strings.IndexFunc(line, obeyed) >= 0 || !utf8.ValidString(line) {
			t.Errorf("Line(%q) is %q", s, line)
		}
		if Line(line) != line {
			t.Errorf("Line(%q) changes when it is made harmless again", s)
		}
		var b bytes.Buffer
		if err := JSON(&b, map[string]string{"text": s}); err != nil {
			t.Fatal(err)
		}
		if strings.IndexFunc(strings.ReplaceAll(b.String(), "\n", ""), obeyed) >= 0 {
			t.Errorf("the JSON of %q is %q", s, b.String())
		}
		var back map[string]string
		if err := json.Unmarshal(b.Bytes(), &back); err != nil {
			t.Fatalf("the JSON of %q cannot be read: %v", s, err)
		}
		if want := strings.ToValidUTF8(s, "\ufffd"); utf8.ValidString(s) && back["text"] != want {
			t.Errorf("%q comes back from JSON as %q", s, back["text"])
		}
	})
}

func TestJSONKeepsWhatPeopleRead(t *testing.T) {
	var b bytes.Buffer
	if err := JSON(&b, []string{"a < b & c > d", "ü"}); err != nil {
		t.Fatal(err)
	}
	if want := "[\n  \"a < b & c > d\",\n  \"ü\"\n]\n"; b.String() != want {
		t.Errorf("got %q, wanted %q", b.String(), want)
	}
	if err := JSON(&b, func() {}); err == nil {
		t.Error("a function was written as JSON")
	}
}

func TestAFileIsNoTerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if Is(f) || Is(&bytes.Buffer{}) {
		t.Error("a file or a buffer is taken for a terminal")
	}
	device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	if !Is(device) {
		t.Error("a device of characters is not taken for a terminal")
	}
}

func TestRecordsAreHarmlessToASpreadsheet(t *testing.T) {
	for in, want := range map[string]string{
		"": `""`, "a": `"a"`, `say "hi", twice`: `"say ""hi"", twice"`, "=1+1": `"'=1+1"`, "  @SUM(A1)": `"'  @SUM(A1)"`, "+1": `"'+1"`, "-1": `"'-1"`,
		"\t=1": `"'\u0009=1"`, "\r=1": `"'\u000d=1"`, "\uff1d1": `"'\uff1d1"`, "1=1": `"1=1"`, "a;=1": `"a;=1"`, "a\n=1": `"a\u000a=1"`, "\x1b[31m": `"\u001b[31m"`,
	} {
		want = strings.ReplaceAll(want, `\uff1d`, "\uff1d")
		if got := Record(in); got != want+"\n" {
			t.Errorf("%q: %s, not %s", in, got, want)
		}
	}
	if got, want := Record(-5, int64(7), "x", 1.5), "-5,7,\"x\",1.5\n"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}
