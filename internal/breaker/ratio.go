package breaker

import (
	"fmt"
	"strconv"
	"strings"
)

// Ratio is a share between 0 % and 100 %, kept in hundredths of a percent so that sums are exact. The zero value is 0 %.
// As a text it carries its unit: 30%. A bare number is refused, for 30 and 0.3 are both written by people who mean 30 %.
type Ratio struct{ hundredths int32 }

const whole = 100_00

// Percent returns p percent; what is below 0 or above 100 is cut.
func Percent(p int) Ratio { return Ratio{int32(min(max(p, 0), 100) * 100)} }

// ParseRatio reads a percentage between 0% and 100% with at most two digits after the point: 30%, 0.5%.
func ParseRatio(s string) (Ratio, error) {
	number, found := strings.CutSuffix(strings.TrimSpace(s), "%")
	if !found {
		return Ratio{}, fmt.Errorf("ratio %q has no unit: write 30%%, not 30 and not 0.3", s)
	}
	units, decimals, _ := strings.Cut(strings.TrimSpace(number), ".")
	n, err := strconv.ParseUint(units, 10, 8)
	if err != nil || len(decimals) > 2 {
		return Ratio{}, badRatio(s)
	}
	var d uint64
	if decimals != "" {
		if d, err = strconv.ParseUint((decimals + "0")[:2], 10, 8); err != nil {
			return Ratio{}, badRatio(s)
		}
	}
	if n*100+d > whole {
		return Ratio{}, badRatio(s)
	}
	return Ratio{int32(n*100 + d)}, nil
}

func badRatio(s string) error {
	return fmt.Errorf("ratio %q: between 0%% and 100%%, with at most two digits after the point", s)
}

// String returns the ratio as ParseRatio reads it.
func (r Ratio) String() string {
	s := strconv.FormatFloat(float64(r.hundredths)/100, 'f', -1, 64)
	return s + "%"
}

// Float returns the ratio as a number between 0 and 1, for a metric or a limiter.
func (r Ratio) Float() float64 { return float64(r.hundredths) / whole }

// Equal reports whether two ratios are the same.
func (r Ratio) Equal(other Ratio) bool { return r == other }

// MarshalText returns String.
func (r Ratio) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is ParseRatio.
func (r *Ratio) UnmarshalText(text []byte) error {
	parsed, err := ParseRatio(string(text))
	if err != nil {
		return err
	}
	*r = parsed
	return nil
}

// reached reports whether part of all is the ratio or more.
func (r Ratio) reached(part, all int) bool {
	return int64(part)*whole >= int64(r.hundredths)*int64(all)
}
