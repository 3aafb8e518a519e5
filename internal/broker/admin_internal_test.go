package broker

import (
	"encoding/json"
	"testing"
	"time"
)

func TestLowerLimitIsBlockedOnlyWhereMessagesWouldGo(t *testing.T) {
	full := state{Messages: 100, Bytes: 1000, FirstTime: time.Now().Add(-time.Hour)}
	for _, tc := range []struct {
		discard, field, limit string
		have                  state
		want                  bool
	}{
		{"old", "max_msgs", "99", full, true},
		{"old", "max_msgs", "100", full, false},
		{"old", "max_msgs", "-1", full, false},
		{"new", "max_msgs", "99", full, false},
		{"old", "max_bytes", "999", full, true},
		{"old", "max_bytes", "1000", full, false},
		{"new", "max_age", "60000000000", full, true},
		{"new", "max_age", "7200000000000", full, false},
		{"new", "max_age", "0", full, false},
		{"old", "max_age", "60000000000", state{}, false},
		{"old", "duplicate_window", "1", full, false},
		{"old", "retention", `"limits"`, state{}, true},
		{"old", "storage", `"file"`, state{}, true},
		{"old", "allow_atomic", "true", full, false},
	} {
		want := fields{"discard": json.RawMessage(`"` + tc.discard + `"`), tc.field: json.RawMessage(tc.limit)}
		if got := blocked(tc.field, want, tc.have); (got != "") != tc.want {
			t.Errorf("%s to %s with discard %s: %q, want blocked %v", tc.field, tc.limit, tc.discard, got, tc.want)
		}
	}
}

func TestValuesThatMeanTheSameShowTheSame(t *testing.T) {
	for _, tc := range []struct{ field, a, b, shown string }{
		{"allow_atomic", "", "false", ""},
		{"allow_atomic", "true", " true ", "true"},
		{"max_age", "0", "", ""},
		{"max_age", "600000000000", "600000000000 ", "10m0s"},
		{"max_msgs", "-1", "-1", "unlimited"},
		{"max_msgs", "10000000", "10000000", "10000000"},
		{"subjects", `["b","a"]`, `["a", "b"]`, "a b"},
		{"placement", `{"cluster": "x"}`, `{"cluster":"x"}`, `{"cluster":"x"}`},
		{"discard", `"new"`, `"new"`, "new"},
	} {
		a, b := show(tc.field, json.RawMessage(tc.a)), show(tc.field, json.RawMessage(tc.b))
		if a != b || a != tc.shown {
			t.Errorf("%s: %s shows as %q, %s as %q, want %q", tc.field, tc.a, a, tc.b, b, tc.shown)
		}
	}
}
