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

func TestAGroupShowsWhatItsLettersHaveInCommon(t *testing.T) {
	l := deadletter.Letter{Reason: "mismatch", LastClass: "mismatch", GatewayStatus: "paid", Message: "id: another"}
	if got := fault(l); got != "id: another" {
		t.Errorf("%q: the status is the payment's", got)
	}
	l.Reason, l.LastClass = "attempts", "unknown_status"
	if got := fault(l); got != `unknown_status "paid": id: another` {
		t.Errorf("%q: the status is the fault", got)
	}
	for in, want := range map[string]string{"": "", "123456": "123456", "1234567": "123…67", "äöüßéñç": "äöü…ñç"} {
		if got := ends(in, 6); got != want {
			t.Errorf("%q: %q, wanted %q", in, got, want)
		}
	}
}

func TestAReplayThatIsDoneSaysWhatBecameOfIt(t *testing.T) {
	for want, r := range map[string]deadletter.Replay{
		"done: of 2 2 failed again": {Letters: 2, Counts: deadletter.Counts{FailedAgain: 2}},
		"done: of 4 1 resolved, 1 failed again, 1 still pending, 1 not answered yet": {Letters: 4, Counts: deadletter.Counts{Resolved: 1, FailedAgain: 1, Queued: 2, Answered: 1}},
		"done: of 3 none was polled":                          {Letters: 3, Counts: deadletter.Counts{Final: 3}},
		"done: nothing was polled, 2 letters were left alone": {Counts: deadletter.Counts{Refused: 1, Final: 1}},
	} {
		r.State = deadletter.Done
		if got := replayState(r); got != want {
			t.Errorf("%q, wanted %q", got, want)
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
