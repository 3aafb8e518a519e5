package currency_test

import (
	"errors"
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pollux/internal/payment/currency"
)

func TestExponent(t *testing.T) {
	for code, want := range map[string]int{
		"EUR": 2, "USD": 2, "TRY": 2, "HUF": 2, "TWD": 2, "IDR": 2, "MGA": 2, "MRU": 2, "CVE": 2, "XCG": 2,
		"JPY": 0, "KRW": 0, "VND": 0, "CLP": 0, "ISK": 0, "UGX": 0, "XAF": 0, "XOF": 0, "XPF": 0, "UYI": 0,
		"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3, "CLF": 4, "UYW": 4,
	} {
		if got, ok := currency.Exponent(code); !ok || got != want {
			t.Errorf("%s has %d decimals (%v), want %d", code, got, ok, want)
		}
	}
	for _, code := range []string{"", "eur", "EURO", "XXX", "XTS", "XAU", "€", "TL"} {
		if got, ok := currency.Exponent(code); ok {
			t.Errorf("%q is a currency with %d decimals", code, got)
		}
	}
}

func TestMinor(t *testing.T) {
	for _, c := range []struct {
		text     string
		exponent int
		want     int64
		err      error
	}{
		{"10.00", 2, 1000, nil}, {"10", 2, 1000, nil}, {"10.5", 2, 1050, nil}, {"10.000", 2, 1000, nil}, {"0", 2, 0, nil},
		{"0.01", 2, 1, nil}, {"-0", 2, 0, nil}, {"-10.50", 2, -1050, nil}, {"000010.50", 2, 1050, nil}, {"0.00000", 2, 0, nil},
		{"1000", 0, 1000, nil}, {"1000.00", 0, 1000, nil}, {"1e3", 0, 1000, nil}, {"1E+3", 0, 1000, nil}, {"1000e-3", 2, 100, nil},
		{"1.234", 3, 1234, nil}, {"1.2345", 4, 12345, nil}, {"0e9999", 2, 0, nil}, {"1e0002", 0, 100, nil},
		{"1000", -2, 10, nil}, {"1001", -2, 0, currency.ErrFraction}, {"19.99", 1, 0, currency.ErrFraction},
		{"92233720368547758.07", 2, math.MaxInt64, nil}, {"92233720368547758.08", 2, 0, currency.ErrRange},
		{"-9223372036854775807", 0, -math.MaxInt64, nil}, {"-9223372036854775808", 0, 0, currency.ErrRange},
		{"18446744073709551616", 0, 0, currency.ErrRange}, {"99999999999999999999", 0, 0, currency.ErrRange},
		{"1e19", 0, 0, currency.ErrRange}, {"1e9999", 0, 0, currency.ErrRange}, {"1e99999", 0, 0, currency.ErrRange}, {"0e99999", 0, 0, nil}, {"1e-99999999999999999999", 0, 0, currency.ErrFraction}, {"xe99999", 0, 0, currency.ErrSyntax},
		{"10.005", 2, 0, currency.ErrFraction}, {"0.5", 0, 0, currency.ErrFraction}, {"1e-9999", 2, 0, currency.ErrFraction},
		{"", 2, 0, currency.ErrSyntax}, {"-", 2, 0, currency.ErrSyntax}, {"+1", 2, 0, currency.ErrSyntax}, {".5", 2, 0, currency.ErrSyntax},
		{"5.", 2, 0, currency.ErrSyntax}, {"1,000.00", 2, 0, currency.ErrSyntax}, {"10,00", 2, 0, currency.ErrSyntax},
		{" 10", 2, 0, currency.ErrSyntax}, {"10 ", 2, 0, currency.ErrSyntax}, {"€10", 2, 0, currency.ErrSyntax}, {"0x10", 2, 0, currency.ErrSyntax},
		{"1e", 2, 0, currency.ErrSyntax}, {"e1", 2, 0, currency.ErrSyntax}, {"1e+-1", 2, 0, currency.ErrSyntax}, {"1e1.0", 2, 0, currency.ErrSyntax},
		{"1e-+1", 2, 0, currency.ErrSyntax}, {"1e1e1", 2, 0, currency.ErrSyntax}, {"NaN", 2, 0, currency.ErrSyntax}, {"--1", 2, 0, currency.ErrSyntax},
		{"1.2.3", 2, 0, currency.ErrSyntax}, {"١", 2, 0, currency.ErrSyntax}, {strings.Repeat("0", 129), 2, 0, currency.ErrSyntax},
	} {
		got, err := currency.Minor(c.text, c.exponent)
		if got != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("Minor(%q, %d) = %d, %v; want %d, %v", c.text, c.exponent, got, err, c.want, c.err)
		}
	}
}

var grammar = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$`)

// TestMinorIsExact compares with rational arithmetic, which cannot round.
func TestMinorIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`-?0{0,3}[0-9]{1,20}(\.[0-9]{1,6}0{0,20})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "text")
		exponent := rapid.IntRange(-4, 4).Draw(t, "exponent")
		got, err := currency.Minor(text, exponent)
		if !grammar.MatchString(text) {
			t.Fatalf("the generator wrote %q", text)
		}
		r, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("the oracle cannot read %q", text)
		}
		scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(4), nil))
		r.Mul(r, scale)
		for range 4 - exponent {
			r.Quo(r, big.NewRat(10, 1))
		}
		switch {
		case !r.IsInt():
			if !errors.Is(err, currency.ErrFraction) {
				t.Fatalf("Minor(%q, %d) = %d, %v; it is no whole number", text, exponent, got, err)
			}
		case new(big.Int).Abs(r.Num()).Cmp(big.NewInt(math.MaxInt64)) > 0:
			if !errors.Is(err, currency.ErrRange) {
				t.Fatalf("Minor(%q, %d) = %d, %v; it is out of range", text, exponent, got, err)
			}
		default:
			if err != nil || got != r.Num().Int64() {
				t.Fatalf("Minor(%q, %d) = %d, %v; want %s", text, exponent, got, err, r.Num())
			}
		}
	})
}

func TestFormatIsReadBackAsTheSameAmount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		minor := rapid.OneOf(rapid.Int64Range(-10_000, 10_000), rapid.Int64Range(-math.MaxInt64, math.MaxInt64)).Draw(t, "minor")
		code := rapid.SampledFrom([]string{"JPY", "EUR", "KWD", "CLF"}).Draw(t, "code")
		text, found := strings.CutSuffix(currency.Format(minor, code), " "+code)
		e, _ := currency.Exponent(code)
		if back, err := currency.Minor(text, e); !found || err != nil || back != minor {
			t.Fatalf("%d is shown as %q, which reads as %d, %v", minor, text, back, err)
		}
	})
	for _, c := range []struct {
		minor int64
		code  string
		want  string
	}{
		{1050, "EUR", "10.50 EUR"}, {5, "EUR", "0.05 EUR"}, {-5, "EUR", "-0.05 EUR"}, {1000, "JPY", "1000 JPY"}, {7, "KWD", "0.007 KWD"},
		{7, "XTS", "7 minor units of XTS"}, {math.MinInt64, "JPY", "-9223372036854775808 JPY"},
	} {
		if got := currency.Format(c.minor, c.code); got != c.want {
			t.Errorf("Format(%d, %s) = %q, want %q", c.minor, c.code, got, c.want)
		}
	}
}

func FuzzMinor(f *testing.F) {
	for _, s := range []string{"10.00", "1e3", "-0", "1e-9999", "00.10", "9223372036854775807"} {
		f.Add(s, 2)
	}
	f.Fuzz(func(t *testing.T, text string, exponent int) {
		exponent %= currency.MaxExponent + 1
		v, err := currency.Minor(text, exponent)
		if err != nil && v != 0 {
			t.Fatalf("Minor(%q, %d) = %d with %v", text, exponent, v, err)
		}
		if err == nil && !regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$`).MatchString(text) {
			t.Fatalf("Minor(%q, %d) = %d: that is no number", text, exponent, v)
		}
	})
}
