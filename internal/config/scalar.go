package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// parse reads a scalar as a value of type t, or checks that its text can be read by t itself. The errors say what to write; they repeat the
// text only where it cannot be a secret.
func parse(n *node, t reflect.Type) (any, error) {
	typed := n.tag != "" // a source with types: 5 is a number there and "5" is not
	if n.tag == "!!null" || !typed && n.text == "" {
		return nil, errors.New("has no value; write one, or take the key away for the default")
	}
	switch {
	case t == durationType:
		d, err := ParseDuration(n.text)
		return d, err
	case t == secretType: // its name; the secret itself is read when everything else is known
		return n.text, new(Secret).UnmarshalText([]byte(n.text))
	case reflect.PointerTo(t).Implements(unmarshaler):
		return n.text, reflect.New(t).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.text))
	}
	switch t.Kind() {
	case reflect.String:
		if typed && n.tag != "!!str" {
			return nil, errors.New("not text to YAML but a number, a date, or true or false; write it in quotes")
		}
		return reflect.ValueOf(n.text).Convert(t).Interface(), nil
	case reflect.Bool:
		return parseBool(n, typed)
	}
	return parseInt(n, t, typed)
}

func parseBool(n *node, typed bool) (any, error) {
	if typed && n.tag != "!!bool" || n.text != "true" && n.text != "false" {
		return nil, errors.New("write true or false")
	}
	return n.text == "true", nil
}

func parseInt(n *node, t reflect.Type, typed bool) (any, error) {
	i, err := strconv.ParseInt(n.text, 10, 64)
	if err != nil || typed && n.tag != "!!int" {
		return nil, errors.New("write a whole number, such as 500")
	}
	return reflect.ValueOf(i).Convert(t).Interface(), nil
}

// day is what d means in a duration. Nothing that is configured in days cares for the hour that a clock may change.
const day = 24 * time.Hour

// ParseDuration reads what time.ParseDuration reads, not below 0, and days in front: 30d, 1d12h. A number without a unit is
// refused, zero too: nobody can tell what it was meant to be.
func ParseDuration(s string) (time.Duration, error) {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, fmt.Errorf("%s has no unit; write %ss, or another of ms, s, m, h and d", s, s)
	}
	wrong := fmt.Errorf("%.40q is not a duration; write one such as 250ms, 30s, 5m, 1h30m or 30d", s)
	days, rest, found := strings.Cut(s, "d")
	if !found {
		days, rest = "0", s
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil || strings.ContainsAny(rest, "+-") {
		return 0, wrong
	}
	total := time.Duration(n) * day
	if rest == "" && found {
		return total, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d > maxDuration {
		return 0, wrong
	}
	return total + d, nil
}

// maxDuration keeps every sum of two durations inside its type.
const maxDuration = 1 << 61

// FormatDuration is the inverse of ParseDuration, as a person writes it: 30d, 24h, 1h30m, 250ms.
func FormatDuration(d time.Duration) string {
	if d > day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if t, ok := strings.CutSuffix(s, "m0s"); ok {
		s = t + "m"
	}
	if t, ok := strings.CutSuffix(s, "h0m"); ok {
		s = t + "h"
	}
	return s
}
