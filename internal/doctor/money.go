package doctor

import (
	"slices"
	"strings"

	"pollux/internal/payment/currency"
)

// money is sums of money, by currency.
func money(sums map[string]int64) string {
	var words []string
	for code, minor := range sums {
		words = append(words, currency.Format(minor, code))
	}
	if len(words) == 0 {
		return "nothing"
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}
