package casework

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/payment"
)

func TestAPaymentIsNamedByItsIDOrItsReference(t *testing.T) {
	for in, want := range map[string]Key{
		"42":          {ID: 42},
		"acme/pay_1":  {Gateway: "acme", Names: [][2]string{{"", "pay_1"}}},
		"acme/42":     {Gateway: "acme", Names: [][2]string{{"", "42"}}},
		"acme/eu/p1":  {Gateway: "acme", Names: [][2]string{{"", "eu/p1"}, {"eu", "p1"}}},
		"acme//p1":    {Gateway: "acme", Names: [][2]string{{"", "/p1"}, {"", "p1"}}},
		"acme/eu/a/b": {Gateway: "acme", Names: [][2]string{{"", "eu/a/b"}, {"eu", "a/b"}}},
		"acme/eu/":    {Gateway: "acme", Names: [][2]string{{"", "eu/"}}},
	} {
		if got, err := ParseKey(in); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "pay_1", "0", "-1", "99999999999999999999", "/pay_1", "acme/", "acme/" + strings.Repeat("x", 600)} {
		if k, err := ParseKey(in); err == nil {
			t.Errorf("%q is %+v", in, k)
		}
	}
}

// noon is when the tests of this package are.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// standing is a payment that is asleep for an hour.
func standing(change func(*Standing)) Standing {
	s := Standing{Now: noon, Due: noon.Add(time.Hour), Payment: Payment{ID: 42, Gateway: "acme", Status: payment.Pending, Place: Scheduled}}
	if change != nil {
		change(&s)
	}
	return s
}

func final(status payment.Status, source payment.Source) func(*Standing) {
	return func(s *Standing) {
		s.Payment.Status, s.Payment.StatusSource, s.Payment.Place, s.Payment.StatusSince = status, source, Final, noon.Add(-time.Hour)
	}
}

func TestActsAreJudgedByWhereThePaymentIs(t *testing.T) {
	in := func(p Place, leased bool) func(*Standing) {
		return func(s *Standing) { s.Payment.Place, s.Leased = p, leased }
	}
	held := func(s *Standing) { s.Payment.Place, s.HeldUntil = Held, noon.Add(time.Hour) }
	dead := func(s *Standing) { s.Payment.Place, s.Letter = WithPerson, 7 }
	now, hold, free := Act{Verb: PollNow}, Act{Verb: Hold, For: time.Hour}, Act{Verb: Release}
	force := func(to payment.Status, overrule bool) Act { return Act{Verb: Force, Status: to, Overrule: overrule} }
	for _, c := range []struct {
		name   string
		change func(*Standing)
		act    Act
		why    string // how the refusal begins; empty when it is done
		hint   string
	}{
		{"asleep, now", nil, now, "", ""},
		{"due, now", func(s *Standing) { s.Due = noon }, now, "it is due since 2026-11-30 12:00:00Z already", "explain 42"},
		{"on its way, now", in(InFlight, true), now, "its poll is on its way already", "explain 42"},
		{"lease over, now", in(InFlight, false), now, "", ""},
		{"held by the broker, now", in(Held, true), now, "", ""},
		{"held, now", held, now, "an operator holds it until 2026-11-30 13:00:00Z", "payment release 42"},
		{"deferred, now", in(Deferred, true), now, "it sleeps because the breaker of acme was open", "breaker show acme"},
		{"dead, now", dead, now, "it is with a person, nothing polls it: dead letter 7", "dlq replay 7"},
		{"discarded, now", func(s *Standing) { s.Payment.Place = WithPerson }, now, "it is with a person, who discarded its dead letter", "payment force 42"},
		{"final, now", final(payment.Failed, payment.ByPoll), now, "it is failed since 2026-11-30 11:00:00Z", "payment show 42"},

		{"asleep, hold", nil, hold, "", ""},
		{"held, hold longer", held, hold, "", ""},
		{"on its way, hold", in(InFlight, true), hold, "", ""},
		{"deferred, hold", in(Deferred, true), hold, "", ""},
		{"hold until past", nil, Act{Verb: Hold, Until: noon}, "the hold would be over at 2026-11-30 12:00:00Z", "--until"},
		{"hold too long", nil, Act{Verb: Hold, Until: noon.Add(MaxHold + 1)}, "a hold is at most 31 days", "again"},
		{"hold as long as can be", nil, Act{Verb: Hold, For: MaxHold}, "", ""},
		{"dead, hold", dead, hold, "it is with a person", "dlq show 7"},
		{"final, hold", final(payment.Succeeded, payment.ByWebhook), hold, "it is succeeded", "payment show 42"},

		{"held, release", held, free, "", ""},
		{"asleep, release", nil, free, "no operator holds it", "explain 42"},
		{"held by the broker, release", in(Held, true), free, "no operator holds it", "explain 42"},
		{"final, release", final(payment.Failed, payment.ByPoll), free, "it is failed", ""},

		{"pending, force", nil, force(payment.Failed, false), "", ""},
		{"held, force", held, force(payment.Succeeded, false), "", ""},
		{"dead, force", dead, force(payment.Expired, false), "", ""},
		{"force to pending", nil, force(payment.Pending, true), `"pending" is no final status`, "succeeded, failed"},
		{"force to what it is", final(payment.Failed, payment.ByPoll), force(payment.Failed, true), "it is failed already, since 2026-11-30 11:00:00Z by poll", "payment show 42"},
		{"against the gateway", final(payment.Failed, payment.ByWebhook), force(payment.Succeeded, false), "the gateway has said that it is failed (webhook, 2026-11-30 11:00:00Z)", "--against-gateway"},
		{"against the gateway, and meant", final(payment.Succeeded, payment.ByPoll), force(payment.Failed, true), "", ""},
		{"against another operator", final(payment.Failed, payment.ByOperator), force(payment.Cancelled, false), "", ""},
		{"nothing known", nil, Act{Verb: "refund"}, `there is no act "refund"`, ""},
	} {
		err := Judge(standing(c.change), c.act)
		var r *Refusal
		switch {
		case c.why == "":
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		case !errors.As(err, &r) || !strings.HasPrefix(r.Why, c.why) || !strings.Contains(r.Hint, c.hint):
			t.Errorf("%s: %v, hint %+v", c.name, err, r)
		}
	}
}

func TestDurationsAreSaidInTwoUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 3 * time.Millisecond: "3ms", 1500 * time.Millisecond: "1.5s", 59*time.Second + 90*time.Millisecond: "59.1s", time.Minute: "1m",
		61 * time.Second: "1m 1s", time.Hour: "1h", time.Hour + 5*time.Second: "1h", 25*time.Hour + time.Minute: "1d 1h", 30 * 24 * time.Hour: "30d", -time.Minute: "-1m",
	} {
		if got := short(d); got != want {
			t.Errorf("%d: %q, not %q", d, got, want)
		}
	}
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 112: "112th"} {
		if got := ordinal(n); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}

func minor(n int64) *int64 { return &n }

func TestAFilterSaysWhatIsWrongWithIt(t *testing.T) {
	for _, c := range []struct {
		filter  Filter
		wrong   string
		pending bool
	}{
		{Filter{}, "", true},
		{Filter{Status: payment.Pending}, "", true},
		{Filter{Status: Any}, "", false},
		{Filter{Status: payment.Failed}, "", false},
		{Filter{Place: Held}, "", true},
		{Filter{Place: Final}, "", false},
		{Filter{Place: Final, Status: payment.Failed}, "", false},
		{Filter{Place: Held, Status: Any}, "", true},
		{Filter{Gateway: "ACME"}, "--gateway", true},
		{Filter{Class: "x y"}, "--class", true},
		{Filter{Status: "lost"}, "--status", false},
		{Filter{Place: "nowhere"}, "--where", true},
		{Filter{Place: Final, Status: payment.Pending}, "exclude each other", true},
		{Filter{Place: Held, Status: payment.Failed}, "exclude each other", true},
		{Filter{Older: -1}, "--older", true},
		{Filter{Older: 2, Newer: 1}, "--older is more than --newer", true},
		{Filter{Older: 1, Newer: 1}, "", true},
		{Filter{Older: 1}, "", true},
		{Filter{Least: minor(2), Most: minor(1)}, "--min-amount is more than --max-amount", true},
		{Filter{Least: minor(1), Most: minor(1)}, "", true},
	} {
		err := c.filter.Validate()
		if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%+v: %v", c.filter, err)
		}
		if err == nil && c.filter.Pending() != c.pending {
			t.Errorf("%+v: pending %t", c.filter, !c.pending)
		}
	}
}
