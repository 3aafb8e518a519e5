package card_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pollux/internal/card"
)

func TestMask(t *testing.T) {
	for text, want := range map[string]string{
		"":                                         "",
		"nothing":                                  "nothing",
		"4111111111111111":                         "[card]",
		"card 4111 1111 1111 1111 was declined":    "card [card] was declined",
		"4111-1111-1111-1111,4012888888881881":     "[card],[card]",
		"378282246310005":                          "[card]",
		"4222222222222":                            "[card]",
		"6304000000000000000":                      "[card]",
		"4111111111111112":                         "4111111111111112", // the check digit is wrong
		"400000000006":                             "400000000006",     // too short
		"41111111111111110000":                     "[digits]",
		"order 1234567, 2026-03-01 12:00":          "order 1234567, 2026-03-01 12:00",
		"x4111111111111111y":                       "x[card]y",
		"é4111111111111111é":                       "é[card]é",
		"4111111111111111 5555555555554444":        "[card]",
		strings.Repeat("9", 40):                    "[digits]",
		"\x00\xff4111111111111111\xfe":             "\x00\xff[card]\xfe",
		"4111  1111 1111 1111":                     "4111  1111 1111 1111", // two blanks are no group
		"5105105105105100 and 5105-1051-0510-5100": "[card] and [card]",
	} {
		if got := card.Mask(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func FuzzMask(f *testing.F) {
	for _, s := range []string{"4111111111111111", "4111 1111-1111 1111", strings.Repeat("4", 25), "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		masked := card.Mask(s)
		if again := card.Mask(masked); again != masked {
			t.Errorf("%q becomes %q and then %q", s, masked, again)
		}
		if utf8.ValidString(s) && !utf8.ValidString(masked) {
			t.Errorf("%q is no UTF-8 any more: %q", s, masked)
		}
		if !strings.ContainsAny(s, "0123456789") && masked != s {
			t.Errorf("%q becomes %q", s, masked)
		}
	})
}
