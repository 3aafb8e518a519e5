package webhook_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/payment"
	"pollux/internal/webhook"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func standing(s payment.Status) webhook.Standing {
	return webhook.Standing{Tracked: true, Payment: 7, Status: s, Detail: "processing", AmountMinor: 1999, Currency: "EUR", Since: noon}
}

func forced(s payment.Status) webhook.Standing {
	standing := standing(s)
	standing.Forced = true
	return standing
}

func report(s payment.Status, at time.Time) webhook.Notice {
	return webhook.Notice{ID: "evt", References: []string{"pay"}, Effect: webhook.Report, Status: s, Detail: "processing",
		Money: &webhook.Money{Minor: 1999, Currency: "EUR"}, OccurredAt: at}
}

func TestWhatBecomesOfANotice(t *testing.T) {
	before, after := noon.Add(-time.Second), noon.Add(time.Second)
	hint := webhook.Notice{ID: "evt", References: []string{"pay"}, Effect: webhook.Hint}
	older, newer := hint, hint
	older.OccurredAt, newer.OccurredAt = noon, after
	timeless := standing(payment.Failed)
	timeless.Since = time.Time{}
	within := func(d time.Duration) webhook.Standing {
		s := standing(payment.Failed)
		s.Now = noon.Add(d)
		return s
	}
	polling := standing(payment.Pending)
	polling.Polling = true
	other := report(payment.Succeeded, after)
	other.Money = &webhook.Money{Minor: 100, Currency: "EUR"}
	part := other
	part.Part = true
	dong := report(payment.Succeeded, after)
	dong.Money = &webhook.Money{Minor: 1999, Currency: "VND"}
	silent := report(payment.Succeeded, after)
	silent.Money = nil
	action := report(payment.Pending, after)
	action.Detail = "requires_action"
	early := action
	early.OccurredAt = noon
	for _, c := range []struct {
		name string
		n    webhook.Notice
		s    webhook.Standing
		want webhook.Decision
	}{
		{"success", report(payment.Succeeded, after), standing(payment.Pending), webhook.Applied},
		{"failure", report(payment.Failed, after), standing(payment.Pending), webhook.Applied},
		{"success that happened before what we know of a pending payment", report(payment.Succeeded, before), standing(payment.Pending), webhook.Applied},
		{"failure that happened before what we know of a pending payment", report(payment.Failed, before), standing(payment.Pending), webhook.Stale},
		{"failure in the second of what we know of a pending payment", report(payment.Failed, noon), standing(payment.Pending), webhook.Applied},
		{"failure without a time", report(payment.Failed, time.Time{}), standing(payment.Pending), webhook.Applied},
		{"success without a time", report(payment.Succeeded, time.Time{}), standing(payment.Pending), webhook.Applied},
		{"success without money to compare", silent, standing(payment.Pending), webhook.Applied},
		{"success with another amount", other, standing(payment.Pending), webhook.Mismatched},
		{"success in another currency", dong, standing(payment.Pending), webhook.Mismatched},
		{"success with another amount, of one that failed", other, standing(payment.Failed), webhook.Mismatched},
		{"success of a part", part, standing(payment.Pending), webhook.Hastened},
		{"success of a part, of one that succeeded", part, standing(payment.Succeeded), webhook.Same},
		{"success again", report(payment.Succeeded, after), standing(payment.Succeeded), webhook.Same},
		{"late success", report(payment.Succeeded, after), standing(payment.Failed), webhook.LateSuccess},
		{"success against an operator", report(payment.Succeeded, after), forced(payment.Failed), webhook.Conflicting},
		{"what an operator did not know yet", report(payment.Failed, before), forced(payment.Succeeded), webhook.Conflicting},
		{"the same as an operator", report(payment.Failed, after), forced(payment.Failed), webhook.Same},
		{"late success that happened before the failure", report(payment.Succeeded, before), standing(payment.Expired), webhook.LateSuccess},
		{"failure after success", report(payment.Failed, after), standing(payment.Succeeded), webhook.Conflicting},
		{"failure in the second of the success", report(payment.Failed, noon), standing(payment.Succeeded), webhook.Conflicting},
		{"failure before success, delivered late", report(payment.Failed, before), standing(payment.Succeeded), webhook.Stale},
		{"failure after success, without a time", report(payment.Failed, time.Time{}), standing(payment.Succeeded), webhook.Conflicting},
		{"processing after success", report(payment.Pending, after), standing(payment.Succeeded), webhook.Conflicting},
		{"processing in the second of the success", report(payment.Pending, noon), standing(payment.Succeeded), webhook.Stale},
		{"cancelled after failed", report(payment.Cancelled, after), standing(payment.Failed), webhook.Conflicting},
		{"processing after failed: the shopper tries again", report(payment.Pending, after), standing(payment.Failed), webhook.Stale},
		{"a newer detail", action, standing(payment.Pending), webhook.Noted},
		{"an older detail", early, standing(payment.Pending), webhook.Stale},
		{"the same detail", report(payment.Pending, after), standing(payment.Pending), webhook.Same},
		{"not tracked", report(payment.Succeeded, after), webhook.Standing{}, webhook.Waiting},
		{"a hint", hint, standing(payment.Pending), webhook.Hastened},
		{"a hint while a poll is under way", hint, polling, webhook.Waiting},
		{"a hint about one that succeeded", newer, standing(payment.Succeeded), webhook.Same},
		{"a hint about what made one final", older, standing(payment.Failed), webhook.Same},
		{"a hint about what happened after one failed", newer, standing(payment.Failed), webhook.LateHint},
		{"a hint about what happened after an operator's word", newer, forced(payment.Cancelled), webhook.LateHint},
		{"a hint about one of which nobody knows since when it is final", hint, timeless, webhook.LateHint},
		{"a hint without a time, soon after one failed", hint, within(time.Minute), webhook.Same},
		{"a hint without a time, long after one failed", hint, within(time.Minute + 1), webhook.LateHint},
		{"success of a part, after one failed", part, standing(payment.Failed), webhook.LateHint},
		{"a hint about one that is not tracked", hint, webhook.Standing{}, webhook.Waiting},
		{"nothing", webhook.Notice{ID: "evt"}, webhook.Standing{}, webhook.Ignored},
		{"of no use", webhook.Notice{ID: "evt", Fault: "no JSON"}, standing(payment.Pending), webhook.Quarantined},
	} {
		if got, why := webhook.Judge(c.n, c.s); got != c.want {
			t.Errorf("%s: %s (%s), want %s", c.name, got, why, c.want)
		}
	}
}

// Whatever comes in whatever order: the status only ever moves as payments may move, and a success that came with the right money is never lost.
func TestNoticesInAnyOrderConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := standing(payment.Pending)
		succeeded := false
		for range rapid.IntRange(0, 12).Draw(t, "notices") {
			n := report(rapid.SampledFrom(payment.Statuses).Draw(t, "status"), noon.Add(time.Duration(rapid.IntRange(-3, 3).Draw(t, "at"))*time.Second))
			if rapid.IntRange(0, 4).Draw(t, "wrong") == 0 {
				n.Money = &webhook.Money{Minor: 1998, Currency: "EUR"}
			}
			d, _ := webhook.Judge(n, s)
			switch d {
			case webhook.Applied, webhook.LateSuccess:
				if tr := payment.Between(s.Status, n.Status); tr != payment.Resolution && tr != payment.LateSuccess || n.Money.Minor != 1999 {
					t.Fatalf("%s moved the payment from %s to %s", d, s.Status, n.Status)
				}
				s.Status, s.Since = n.Status, n.OccurredAt
			}
			succeeded = succeeded || n.Status == payment.Succeeded && n.Money.Minor == 1999
		}
		if succeeded != (s.Status == payment.Succeeded) {
			t.Fatalf("succeeded: %t, the payment is %s", succeeded, s.Status)
		}
	})
}
