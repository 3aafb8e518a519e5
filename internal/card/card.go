// Package card knows card numbers in texts, so that none is kept that was not asked for. It is pure.
package card

import "strings"

// The lengths of card numbers (ISO/IEC 7812-1), and from where on a run of digits could have one anywhere in it.
const (
	shortest = 13
	longest  = 19
)

// What is shown instead.
const (
	Number = "[card]"
	Digits = "[digits]"
)

// Find reports what begins at i: a card number, of 13 to 19 digits, perhaps in groups with a blank or a dash between, whose check digit is right; or a run of 20
// digits or more. It returns what to show instead and its length, 0 when neither begins there. Of a card number the groups that follow belong to it: where it ends is
// a guess.
func Find(s string, i int) (shown string, n int) {
	if !digit(s[i]) || i > 0 && digit(s[i-1]) {
		return "", 0
	}
	if n := span(s, i); n > longest {
		return Digits, n
	}
	number, found, end := make([]byte, 0, 2*longest), false, i
	for found || len(number) <= longest {
		n := span(s, end)
		number = append(number, s[end:end+min(n, longest+1)]...)
		found = found || len(number) >= shortest && len(number) <= longest && luhn(number)
		if end += n; !grouped(s, end) {
			break
		}
		end++
	}
	if !found {
		return "", 0
	}
	return Number, end - i
}

// Mask is a text with what Find finds masked in it.
func Mask(s string) string {
	var b strings.Builder
	last := 0
	for i := 0; i < len(s); i++ {
		shown, n := Find(s, i)
		if n == 0 {
			continue
		}
		b.WriteString(s[last:i])
		b.WriteString(shown)
		last = i + n
		i = last - 1
	}
	if last == 0 {
		return s
	}
	b.WriteString(s[last:])
	return b.String()
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// span is how many digits begin at i.
func span(s string, i int) int {
	n := 0
	for i+n < len(s) && digit(s[i+n]) {
		n++
	}
	return n
}

// grouped reports whether a separator and another group of digits stand at i.
func grouped(s string, i int) bool {
	return i+1 < len(s) && (s[i] == ' ' || s[i] == '-') && digit(s[i+1])
}

// luhn reports whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B).
func luhn(number []byte) bool {
	sum := 0
	for i, c := range number {
		d := int(c - '0')
		if (len(number)-i)%2 == 0 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	return sum%10 == 0
}
