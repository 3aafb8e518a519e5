// Package currency knows how many decimals a currency has (ISO 4217) and turns decimal text into whole minor units, exactly:
// no amount ever passes through a floating-point number. It is pure.
package currency

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// MaxExponent is the largest number of decimals that a currency has.
const MaxExponent = 4

// byExponent are the currencies of ISO 4217 (list one, 2026) by their number of decimals, without metals, funds of central
// banks and test codes, and with those that were withdrawn since 2019: old payments have them.
var byExponent = [MaxExponent + 1]string{
	0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
	2: "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF CHW " +
		"CNY COP COU CRC CUC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HRK HTG HUF " +
		"IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV " +
		"MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SLL SOS SRD " +
		"SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR ZMW ZWG ZWL",
	3: "BHD IQD JOD KWD LYD OMR TND",
	4: "CLF UYW",
}

var exponents = index()

func index() map[string]int {
	m := make(map[string]int, 192)
	for exponent, codes := range byExponent {
		for code := range strings.FieldsSeq(codes) {
			m[code] = exponent
		}
	}
	return m
}

// Exponent returns the number of decimals of a currency: 2 for EUR, 0 for JPY, 3 for KWD. The code is in capital letters. It
// reports false for a code that is no currency.
func Exponent(code string) (int, bool) {
	e, ok := exponents[code]
	return e, ok
}

// Codes returns the currencies with a number of decimals, in order.
func Codes(exponent int) []string {
	if exponent < 0 || exponent > MaxExponent {
		return nil
	}
	return strings.Fields(byExponent[exponent])
}

// The errors of Minor.
var (
	ErrSyntax   = errors.New("not a decimal number")
	ErrFraction = errors.New("more decimals than the currency has")
	ErrRange    = errors.New("larger than an amount can be")
)

// MaxText is the longest text that Minor reads.
const MaxText = 128

// Minor returns the number that text spells, times ten to the power of exponent, which must come out whole: Minor("10.5", 2)
// is 1050, Minor("1e3", 0) is 1000, Minor("10.000", 2) is 1000 and Minor("10.005", 2) is ErrFraction. The text is an optional
// minus, digits, optionally a point and digits, optionally an exponent; leading zeros are fine, blanks, plus signs, separators
// and currency signs are ErrSyntax. A result beyond ±MaxInt64 is ErrRange. The exponent may be negative.
func Minor(text string, exponent int) (int64, error) {
	if len(text) > MaxText {
		return 0, ErrSyntax
	}
	mantissa, exp, err := splitExponent(text)
	if err != nil {
		return 0, err
	}
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, point := strings.Cut(mantissa, ".")
	if !digits(whole) || point && !digits(fraction) {
		return 0, ErrSyntax
	}
	n := strings.TrimLeft(whole+fraction, "0")
	if n == "" {
		return 0, nil
	}
	shift := exp - len(fraction) + exponent // the value is n·10^shift
	significant := strings.TrimRight(n, "0")
	shift += len(n) - len(significant)
	switch {
	case shift < 0:
		return 0, ErrFraction
	case len(significant)+shift > 19:
		return 0, ErrRange
	}
	v, err := strconv.ParseUint(significant+zeros[:shift], 10, 64)
	if err != nil || v > math.MaxInt64 {
		return 0, ErrRange
	}
	if negative {
		return -int64(v), nil
	}
	return int64(v), nil
}

const zeros = "0000000000000000000"

// splitExponent takes the exponent off a number in scientific notation. One of more than four digits is cut to 10000: the number
// is far out of range either way.
func splitExponent(text string) (string, int, error) {
	i := strings.IndexAny(text, "eE")
	if i < 0 {
		return text, 0, nil
	}
	d := strings.TrimPrefix(text[i+1:], "-")
	if len(d) == len(text)-i-1 {
		d = strings.TrimPrefix(d, "+")
	}
	if !digits(d) {
		return "", 0, ErrSyntax
	}
	if d = strings.TrimLeft(d, "0"); len(d) > 4 {
		d = "10000"
	}
	exp, _ := strconv.Atoi("0" + d)
	if text[i+1] == '-' {
		exp = -exp
	}
	return text[:i], exp, nil
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// Format returns an amount for a person: "10.50 EUR", "1000 JPY". An amount in a currency that is not known is shown in minor
// units, and said to be.
func Format(minor int64, code string) string {
	e, ok := Exponent(code)
	if !ok {
		return strconv.FormatInt(minor, 10) + " minor units of " + code
	}
	sign := ""
	u := uint64(minor)
	if minor < 0 {
		sign, u = "-", -u
	}
	s := strconv.FormatUint(u, 10)
	if e == 0 {
		return sign + s + " " + code
	}
	if len(s) <= e {
		s = zeros[:e+1-len(s)] + s
	}
	return sign + s[:len(s)-e] + "." + s[len(s)-e:] + " " + code
}
