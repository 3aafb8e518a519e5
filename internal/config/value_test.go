package config

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/redelivery"
)

func TestDurationsAreReadAsTheyAreWritten(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"0s": 0, "1ms": time.Millisecond, "1h30m": 90 * time.Minute, "30d": 720 * time.Hour, "1d12h": 36 * time.Hour, "0d": 0, "1.5h": 90 * time.Minute,
	} {
		if got, err := ParseDuration(s); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "d", "5", "5.5", "-5s", "1d-5h", "-1d", "1dd", "99999999d", "1 h", "1h ", "inf", "NaN", "9e9s", "3000000h", "1w"} {
		if got, err := ParseDuration(s); err == nil {
			t.Errorf("%q was taken as %v", s, got)
		}
	}
}

func TestDurationsAreWrittenInLargeUnits(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s": 0, "250ms": 250 * time.Millisecond, "1m": time.Minute, "1h30m": 90 * time.Minute, "24h": 24 * time.Hour, "30d": 720 * time.Hour,
		"25h": 25 * time.Hour, "1h0m5s": time.Hour + 5*time.Second, "10s": 10 * time.Second, "20m": 20 * time.Minute, "10h": 10 * time.Hour,
	} {
		if got := FormatDuration(d); got != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}
}

func TestDurationsSurviveWritingAndReading(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.OneOf(rapid.Int64Range(0, int64(maxDuration)), rapid.Map(rapid.Int64Range(0, 10000), func(n int64) int64 {
			return n * int64(time.Hour)
		})).Draw(t, "d"))
		if got, err := ParseDuration(FormatDuration(d)); err != nil || got != d {
			t.Fatalf("%d became %s, and that %v (%v)", d, FormatDuration(d), got, err)
		}
	})
}

func TestJitterIsReadAsItIsWritten(t *testing.T) {
	for s, want := range map[string]Jitter{
		"none": {}, "full": {Kind: redelivery.JitterFull}, "equal": {Kind: redelivery.JitterEqual}, "decorrelated": {Kind: redelivery.JitterDecorrelated},
		"±20%": percent(20), "1%": percent(1), "±100%": percent(100),
	} {
		var got Jitter
		if err := got.UnmarshalText([]byte(s)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
		text, err := got.MarshalText()
		if err != nil {
			t.Error(err)
		}
		var again Jitter
		if err := again.UnmarshalText(text); err != nil || again != want {
			t.Errorf("%s was written as %s", s, text)
		}
	}
	for _, s := range []string{"", "Full", "20", "0.2", "0%", "101%", "-5%", "±±5%", "5 %", "±%", "1.5%"} {
		var j Jitter
		if err := j.UnmarshalText([]byte(s)); err == nil {
			t.Errorf("%q was taken as %+v", s, j)
		}
	}
}

func TestSharesCarryTheirUnit(t *testing.T) {
	for s, want := range map[string]float64{"0%": 0, "1%": 0.01, "12.5%": 0.125, "100%": 1} {
		var p Percent
		if err := p.UnmarshalText([]byte(s)); err != nil || p.Ratio() != want {
			t.Errorf("%s: %v, %v", s, p.Ratio(), err)
		}
		if text, err := p.MarshalText(); err != nil || string(text) != s {
			t.Errorf("%s was written as %s (%v)", s, text, err)
		}
	}
	for _, s := range []string{"", "%", "0.5", "1", "-1%", "100.1%", "NaN%", "Inf%"} {
		var p Percent
		if err := p.UnmarshalText([]byte(s)); err == nil {
			t.Errorf("%q was taken as %v", s, p)
		}
	}
}

func TestEditsIsADistance(t *testing.T) {
	edits := func(a, b string) int { return edits(a, b, 1000) }
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 8, -1)
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		d := edits(a, b)
		if d != edits(b, a) {
			t.Fatalf("%q to %q is %d, and back %d", a, b, d, edits(b, a))
		}
		if (d == 0) != (a == b) {
			t.Fatalf("%q to %q is %d", a, b, d)
		}
		if d > max(len(a), len(b)) || d < max(len(a), len(b))-min(len(a), len(b)) {
			t.Fatalf("%q to %q is %d", a, b, d)
		}
	})
	for pair, want := range map[[2]string]int{{"every", "evry"}: 1, {"batch", "bathc"}: 1, {"abc", "xyz"}: 3, {"", "abc"}: 3} {
		if got := edits(pair[0], pair[1]); got != want {
			t.Errorf("%v is %d, want %d", pair, got, want)
		}
	}
}

func TestPathsAreShownSoThatTheyCanBeRead(t *testing.T) {
	p := path{"gateways", "acme", "httpjson", "status", "map", "in.review"}
	if got := fmt.Sprint(p); got != `gateways.acme.httpjson.status.map."in.review"` {
		t.Error(got)
	}
	if got := (path{"relay", "queues", "[2]", "name"}).String(); got != "relay.queues[2].name" {
		t.Error(got)
	}
}
