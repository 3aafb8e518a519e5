package webhook_test

import (
	"encoding/hex"
	"testing"
	"time"

	"pollux/internal/webhook"
)

func TestKeysCountWithinTheirTime(t *testing.T) {
	keys := webhook.Keys{{Name: "a", Secret: []byte("a"), Until: noon}, {Name: "b", Secret: []byte("b"), From: noon}, {Name: "c", Secret: []byte("c")}}
	for _, c := range []struct {
		at   time.Time
		want string
	}{{noon.Add(-1), "ac"}, {noon, "bc"}} {
		tried := ""
		if _, ok := keys.Match(c.at, func(secret []byte) bool { tried += string(secret); return false }); ok || tried != c.want {
			t.Errorf("at %s: %q %t", c.at, tried, ok)
		}
	}
	tried := 0
	if name, ok := keys.Match(noon, func([]byte) bool { tried++; return true }); name != "b" || !ok || tried != 2 {
		t.Errorf("%q %t, %d were tried", name, ok, tried)
	}
}

// The first test case of RFC 4231.
func TestHMAC(t *testing.T) {
	key, _ := hex.DecodeString("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b")
	if got := hex.EncodeToString(webhook.SHA256(key, []byte("Hi "), []byte("There"))); got != "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7" {
		t.Error(got)
	}
}

func TestTimesAreReadStrictly(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "1772366400": 1772366400, "9999999999": 9999999999} {
		if at, ok := webhook.UnixTime(text); !ok || at.Unix() != want {
			t.Errorf("%s: %s %t", text, at, ok)
		}
	}
	if at, ok := webhook.UnixMilliTime("1772366400123"); !ok || at.UnixMilli() != 1772366400123 {
		t.Errorf("%s %t", at, ok)
	}
	for _, text := range []string{"", "-1", "+1", "1.5", "1e9", " 1", "17723664001", "１"} {
		if at, ok := webhook.UnixTime(text); ok {
			t.Errorf("%q is %s", text, at)
		}
	}
	tolerance := webhook.Tolerance{Past: time.Minute, Future: time.Second}
	for d, want := range map[time.Duration]bool{-time.Minute: true, -time.Minute - 1: false, time.Second: true, time.Second + 1: false, 0: true} {
		if got := tolerance.Holds(noon.Add(d), noon); got != want {
			t.Errorf("signed %s: %t", d, got)
		}
	}
}
