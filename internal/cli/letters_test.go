package cli

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/deadletter"
	"pollux/internal/redelivery"
)

// TestEveryReasonOfADeadLetterIsExplained takes the reasons from the page about dispositions, which another test holds the code to.
func TestEveryReasonOfADeadLetterIsExplained(t *testing.T) {
	page, err := os.ReadFile("../../docs/dispositions.md")
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, m := range regexp.MustCompile(`(?m)^\|[^|]*\|[^|]*\| dead-letter \| ([a-z_]+) \|`).FindAllSubmatch(page, -1) {
		reasons = append(reasons, string(m[1]))
	}
	_, rest, _ := strings.Cut(string(page), "## Reasons that do not come from the table")
	for _, m := range regexp.MustCompile("`([a-z_]+)` \\(").FindAllStringSubmatch(rest, -1) {
		reasons = append(reasons, m[1])
	}
	if len(reasons) < 10 {
		t.Fatalf("the page names only %v", reasons)
	}
	for _, r := range reasons {
		if meanings[redelivery.Reason(r)] == "" {
			t.Errorf("pollux dlq show does not say what %s means", r)
		}
		if !slices.Contains(redelivery.Reasons, redelivery.Reason(r)) {
			t.Errorf("there is no reason %s", r)
		}
	}
	for r := range meanings {
		if !slices.Contains(reasons, string(r)) {
			t.Errorf("%s has a meaning and is no reason of a dead letter", r)
		}
	}
}

func TestHowLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where no time passes between the lines
		for d, want := range map[time.Duration]string{
			-time.Minute: "0s ago", 0: "0s ago", time.Minute - 1: "59s ago", time.Minute: "1m ago", time.Hour - 1: "59m ago",
			time.Hour: "1h ago", 48*time.Hour - 1: "47h ago", 48 * time.Hour: "2d ago", 100 * 24 * time.Hour: "100d ago",
		} {
			if got := ago(time.Now().Add(-d)); got != want {
				t.Errorf("%s: %q, wanted %q", d, got, want)
			}
		}
	})
}

func TestLastAnswerSaysNothingTwice(t *testing.T) {
	for _, c := range []struct {
		letter deadletter.Letter
		want   string
	}{
		{deadletter.Letter{}, ""},
		{deadletter.Letter{Reason: "window", LastClass: "pending", HTTPStatus: 200, GatewayStatus: "processing"}, `pending 200 "processing"`},
		{deadletter.Letter{Reason: "mismatch", LastClass: "mismatch", HTTPStatus: 200, GatewayStatus: "paid", Message: "id: another"}, `200 "paid": id: another`},
		{deadletter.Letter{Reason: "mismatch", LastClass: "mismatch", Message: "id: another"}, "id: another"},
		{deadletter.Letter{Reason: "failures", LastClass: "malformed", HTTPStatus: 200, Message: "HTTP 200: no JSON"}, "malformed: HTTP 200: no JSON"},
		{deadletter.Letter{Reason: "failures", LastClass: "transport", Message: "connection refused"}, "transport: connection refused"},
	} {
		if got := lastAnswer(c.letter); got != c.want {
			t.Errorf("%+v: %q, wanted %q", c.letter, got, c.want)
		}
	}
}

func TestCutKeepsWholeCharacters(t *testing.T) {
	for in, want := range map[string]string{"": "", "12345": "12345", "123456": "1234…", "äöüßéñ": "äöüß…"} {
		if got := cut(in, 5); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}
