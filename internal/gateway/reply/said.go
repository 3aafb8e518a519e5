package reply

import (
	"errors"
	"fmt"
	"strings"

	"pollux/internal/gateway/strictjson"
	"pollux/internal/payment/currency"
)

// Said is the money that a gateway says something is about, of its own accord and not compared with anything yet: whole minor units and the currency's code
// of ISO 4217. Its error repeats neither.
func (u Unit) Said(amount, code strictjson.Value) (minor int64, iso string, err error) {
	if k := code.Kind(); k != strictjson.String && k != strictjson.Number {
		return 0, "", errors.New("no currency")
	}
	iso, ok := u.Currencies[string(code.Bytes())]
	if !ok && ascii(code.Bytes()) {
		iso = strings.ToUpper(code.Text())
	}
	if _, ok := currency.Exponent(iso); !ok {
		return 0, "", errors.New("a currency that is none of ISO 4217")
	}
	if k := amount.Kind(); k != strictjson.String && k != strictjson.Number {
		return 0, "", errors.New("no amount")
	}
	shift, _ := u.shift(iso)
	if minor, err = currency.Minor(amount.Text(), shift); err != nil {
		return 0, "", fmt.Errorf("an amount that is %w", err)
	}
	return minor, iso, nil
}
