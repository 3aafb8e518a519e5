package breaker_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"pollux/internal/breaker"
)

func TestRecordIsReadableByPeople(t *testing.T) {
	s := breaker.Shared{
		Kind: breaker.HalfOpen, Epoch: 7, Cause: breaker.CauseConsecutive, Since: noon, RetryAt: noon.Add(1500 * time.Millisecond), Trips: 2, Successes: 1,
		Probes: [breaker.MaxProbes]breaker.Lease{{ID: 5, Deadline: noon.Add(time.Minute)}},
		Forced: breaker.Forced{Mode: breaker.Open, Reason: "maintenance", Actor: "ayla", Until: noon.Add(time.Hour)},
	}
	// Other builds read this text: a change of it needs another version.
	want := `{"v":1,"kind":"half_open","epoch":7,"cause":"consecutive_failures","since":"2026-11-30T12:00:00.000Z","retry_at":"2026-11-30T12:00:01.500Z",` +
		`"trips":2,"successes":1,"probes":[{"id":5,"deadline":"2026-11-30T12:01:00.000Z"}],` +
		`"forced":{"mode":"open","reason":"maintenance","actor":"ayla","until":"2026-11-30T13:00:00.000Z"}}`
	if got := string(s.Encode()); got != want {
		t.Errorf("record\n%s\nwant\n%s", got, want)
	}
	if got, err := breaker.Decode([]byte(want)); err != nil || got != s {
		t.Errorf("read as %+v: %v", got, err)
	}
	if got := string(breaker.Shared{}.Encode()); got != `{"v":1,"kind":"closed","epoch":0}` {
		t.Errorf("the zero record is %s", got)
	}
}

func TestLargestRecordIsRead(t *testing.T) {
	s := breaker.Shared{
		Kind: breaker.HalfOpen, Epoch: 1<<64 - 1, Cause: breaker.CauseConsecutive, Since: noon, RetryAt: noon, Trips: 1 << 62, Successes: 1 << 62, Step: 1 << 62, StepAt: noon,
		Forced: breaker.Forced{Mode: breaker.Disabled, Reason: strings.Repeat("<", 256), Actor: strings.Repeat("\x01", 128), Until: noon},
	}
	for i := range s.Probes {
		s.Probes[i] = breaker.Lease{ID: 1<<64 - 1 - uint64(i), Deadline: noon}
	}
	b := s.Encode()
	if len(b) > breaker.MaxRecordBytes {
		t.Fatalf("%d bytes", len(b))
	}
	if got, err := breaker.Decode(b); err != nil || got != s {
		t.Fatalf("read as %+v: %v", got, err)
	}
}

func TestRecordThatCannotBeRightIsRefused(t *testing.T) {
	good := `{"v":1,"kind":"open","epoch":3,"since":"2026-11-30T12:00:00Z"}`
	if _, err := breaker.Decode([]byte(good)); err != nil {
		t.Fatal(err)
	}
	probes := `{"id":1,"deadline":"2026-11-30T12:00:00Z"}`
	for name, b := range map[string]string{
		"empty":                     ``,
		"null":                      `null`,
		"array":                     `[]`,
		"cut":                       good[:len(good)-1],
		"two":                       good + good,
		"trailing":                  good + "x",
		"too long":                  good + strings.Repeat(" ", breaker.MaxRecordBytes),
		"unknown field":             strings.Replace(good, `"v":1`, `"v":1,"x":1`, 1),
		"kind of no such name":      strings.Replace(good, `"open"`, `"wide_open"`, 1),
		"kind as a number":          strings.Replace(good, `"open"`, `1`, 1),
		"disabled without force":    strings.Replace(good, `"open"`, `"disabled"`, 1),
		"negative epoch":            strings.Replace(good, `:3`, `:-3`, 1),
		"epoch too large":           strings.Replace(good, `:3`, `:18446744073709551616`, 1),
		"negative trips":            strings.Replace(good, `:3`, `:3,"trips":-1`, 1),
		"negative step":             strings.Replace(good, `:3`, `:3,"step":-1`, 1),
		"negative successes":        strings.Replace(good, `:3`, `:3,"successes":-1`, 1),
		"instant that is none":      strings.Replace(good, `2026-11-30T12:00:00Z`, `noon`, 1),
		"instant as a number":       strings.Replace(good, `"2026-11-30T12:00:00Z"`, `1796040000`, 1),
		"probe without an id":       strings.Replace(good, `:3`, `:3,"probes":[{"deadline":"2026-11-30T12:00:00Z"}]`, 1),
		"too many probes":           strings.Replace(good, `:3`, `:3,"probes":[`+strings.Repeat(probes+",", breaker.MaxProbes)+probes+`]`, 1),
		"forced half-open":          strings.Replace(good, `:3`, `:3,"forced":{"mode":"half_open","reason":"r","actor":"a","until":"2026-11-30T12:00:00Z"}`, 1),
		"forced by nobody":          strings.Replace(good, `:3`, `:3,"forced":{"mode":"open","reason":"r","actor":"","until":"2026-11-30T12:00:00Z"}`, 1),
		"forced for no reason":      strings.Replace(good, `:3`, `:3,"forced":{"mode":"open","reason":"","actor":"a","until":"2026-11-30T12:00:00Z"}`, 1),
		"forced without an end":     strings.Replace(good, `:3`, `:3,"forced":{"mode":"closed","reason":"r","actor":"a"}`, 1),
		"forced until before 1970":  strings.Replace(good, `:3`, `:3,"forced":{"mode":"closed","reason":"r","actor":"a","until":"1960-01-01T00:00:00Z"}`, 1),
		"forced with a long reason": strings.Replace(good, `:3`, `:3,"forced":{"mode":"open","reason":"`+strings.Repeat("x", 257)+`","actor":"a","until":"2026-11-30T12:00:00Z"}`, 1),
	} {
		if s, err := breaker.Decode([]byte(b)); err == nil || s != (breaker.Shared{}) {
			t.Errorf("%s: read as %+v, error %v", name, s, err)
		} else if errors.Is(err, breaker.ErrVersion) {
			continue // null, [] and the like have no version
		}
	}
	for _, v := range []string{`0`, `2`, `-1`} {
		if _, err := breaker.Decode([]byte(strings.Replace(good, `"v":1`, `"v":`+v+`,"kind_of_tomorrow":{}`, 1))); !errors.Is(err, breaker.ErrVersion) {
			t.Errorf("version %s: %v", v, err)
		}
	}
	s, err := breaker.Decode([]byte(strings.Replace(good, `:3`, `:3,"cause":"moon_phase"`, 1)))
	if err != nil || s.Cause != breaker.CauseUnknown {
		t.Errorf("a cause of another version: %s, %v", s.Cause, err)
	}
}

func TestInstantsKeepWholeMilliseconds(t *testing.T) {
	at := time.Date(2026, 11, 30, 13, 0, 0, 123456789, time.FixedZone("CET", 3600))
	i := breaker.At(at)
	if got := i.Time(); !got.Equal(at.Truncate(time.Millisecond)) || got.Location() != time.UTC {
		t.Errorf("%s", got)
	}
	if breaker.At(time.Time{}) != 0 || breaker.At(time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)).Time().Year() != 9999 {
		t.Error("an instant outside is not cut")
	}
	if !breaker.Instant(0).Time().IsZero() {
		t.Error("no instant is one")
	}
	b, err := json.Marshal(i)
	if err != nil || string(b) != `"2026-11-30T12:00:00.123Z"` {
		t.Errorf("%s: %v", b, err)
	}
}

func TestWordsOfABreakerAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range breaker.Kinds {
		var back breaker.Kind
		if err := back.UnmarshalText([]byte(k.String())); err != nil || back != k || seen[k.String()] {
			t.Errorf("kind %d is %q", k, k)
		}
		seen[k.String()] = true
	}
	for _, c := range breaker.Causes {
		if c == breaker.CauseNone || seen[string(c)] {
			t.Errorf("cause %q", c)
		}
		seen[string(c)] = true
	}
	for _, o := range breaker.Outcomes {
		if seen[o.String()] {
			t.Errorf("outcome %q", o)
		}
		seen[o.String()] = true
	}
	if breaker.Kind(99).String() != "unknown" || breaker.Outcome(99).String() != "inconclusive" {
		t.Error("a value that is none has another's name")
	}
}
