package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/deadletter"
)

func TestAFilterIsReadAndWrittenAgain(t *testing.T) {
	for in, want := range map[string]string{
		"":             "",
		"  \t ":        "",
		"gateway=acme": "gateway=acme",
		" gateway=stripe  reason=window,attempts age>2h amount>=100.00 currency=EUR fingerprint=ab12 text~timeout owner=none ": "gateway=stripe reason=window,attempts age>2h amount>=100.00 currency=EUR fingerprint=ab12 text~timeout owner=none",
		`text~"says \"no\", \\ thanks"`: `text~"says \"no\", \\ thanks"`,
		`owner="ada"`:                   "owner=ada",
		"amount<5JPY":                   "amount<5JPY",
		"state=any":                     "state=any",
		"id!=1,2":                       "id!=1,2",
		"reference=ünïcode":             "reference=ünïcode",
	} {
		f, err := deadletter.Parse(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		if f.String() != want {
			t.Errorf("%q is written as %q, not %q", in, f, want)
		}
	}
}

func TestTheValuesOfAFilter(t *testing.T) {
	f, err := deadletter.Parse("amount>=100.5 currency=KWD age>1d12h amount<7EUR fingerprint=AB12")
	if err != nil {
		t.Fatal(err)
	}
	if a := f.Terms[0]; a.Numbers[0] != 100_500 || a.Currency != "KWD" {
		t.Errorf("%+v", a)
	}
	if a := f.Terms[2]; a.Numbers[0] != (36 * time.Hour).Microseconds() {
		t.Errorf("%+v", a)
	}
	if a := f.Terms[3]; a.Numbers[0] != 700 || a.Currency != "EUR" {
		t.Errorf("%+v", a)
	}
	if f.Terms[4].Texts[0] != "ab12" {
		t.Errorf("%+v", f.Terms[4])
	}
}

func TestAFilterThatIsWrongSaysWhereAndWhat(t *testing.T) {
	for in, want := range map[string]string{
		"gatway=acme":                    "at character 1: there is no field gatway; did you mean gateway?; the fields are account, age, amount",
		"gateway=acme xyzzy=1":           "at character 14: there is no field xyzzy; the fields are",
		"gateway":                        "at character 8: an operator follows gateway: one of = !=",
		"gateway=":                       "at character 9: gateway= has no value; leave the term out to choose all",
		`gateway=""`:                     "at character 9: gateway= has no value",
		"reason=window,":                 "at character 15: reason= has no value",
		"=acme":                          "at character 1: a term begins with the name of a field",
		"1":                              "at character 1: a term begins with the name of a field",
		"gateway~acme":                   "at character 1: gateway takes = !=, not ~",
		"gateway=ACME":                   `at character 1: gateway "ACME": 1 to 64 of a-z, 0-9, _ and -`,
		"reason=windows":                 `at character 1: reason "windows": one of `,
		"state=lost":                     `at character 1: state "lost": one of open, replaying, resolved, discarded, parked, any`,
		"age=2h":                         "at character 1: age takes > >= < <=, not =",
		"age>2":                          `at character 1: age "2": a duration such as 90m, 2h or 30d`,
		"age>-2h":                        `a duration such as`,
		"age>2h,3h":                      "takes one value",
		"amount>5":                       `at character 1: amount "5": in which currency? write amount>5EUR, or add currency=EUR`,
		"amount>5 currency=EUR,USD":      "in which currency?",
		"amount>5.001 currency=EUR":      `amount "5.001": more decimals than the currency has`,
		"amount>5XXX":                    "XXX is no currency",
		"currency=eur":                   `currency "eur": one of the codes of ISO 4217, such as EUR`,
		"id=x":                           `id "x": a whole number from 0 on`,
		"id=-1":                          "a whole number from 0 on",
		"fingerprint=ab":                 `fingerprint "ab": 4 to 12 of 0-9 and a-f`,
		"fingerprint=wxyz":               "4 to 12 of 0-9 and a-f",
		`text~"open`:                     "at character 6: the quote is not closed",
		`owner="a"b`:                     "at character 10: a blank separates terms",
		"text~a\x00b":                    "zero byte",
		strings.Repeat("id=1 ", 1000):    "a filter has at most 4096 characters",
		"gateway=acme  reason=wndow id=": "at character 31: id= has no value",
	} {
		_, err := deadletter.Parse(in)
		var syntax *deadletter.SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, not %s", in, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "gateway=acme age>2h", `text~"a\"b" id=1,2`, "amount>=1.00EUR", "fingerprint!=abcd", "=", `"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		filter, err := deadletter.Parse(s)
		if err != nil {
			return
		}
		again, err := deadletter.Parse(filter.String())
		if err != nil || again.String() != filter.String() {
			t.Errorf("%q is written as %q, which is %q, %v", s, filter, again, err)
		}
	})
}

func TestThePageNamesEveryFieldOfAFilter(t *testing.T) {
	page, err := os.ReadFile("../../docs/deadletters.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range deadletter.Fields() {
		if !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("docs/deadletters.md does not say what %s is", name)
		}
	}
	for _, s := range deadletter.States {
		if !strings.Contains(string(page), "| `"+s+"` |") {
			t.Errorf("docs/deadletters.md does not say what %s is", s)
		}
	}
}

func TestAFilterWithoutAStateChoosesWhatIsOpen(t *testing.T) {
	f, _ := deadletter.Parse("gateway=acme")
	if f.Opened().String() != "gateway=acme state=open" || f.String() != "gateway=acme" {
		t.Errorf("%s, %s", f.Opened(), f)
	}
	f, _ = deadletter.Parse("state=any")
	if f.Opened().String() != "state=any" {
		t.Errorf("%s", f.Opened())
	}
}

func TestVerbsRefuse(t *testing.T) {
	open := deadletter.Case{State: deadletter.Open, Payment: true, Status: "pending", Dead: true}
	with := func(change func(*deadletter.Case)) deadletter.Case {
		c := open
		change(&c)
		return c
	}
	for _, c := range []struct {
		verb deadletter.Verb
		of   deadletter.Case
		why  string
	}{
		{deadletter.Discard, open, ""},
		{deadletter.Discard, with(func(c *deadletter.Case) { c.State = deadletter.Parked }), ""},
		{deadletter.Discard, with(func(c *deadletter.Case) { c.State = deadletter.Replaying }), "it is replaying"},
		{deadletter.Park, open, ""},
		{deadletter.Park, with(func(c *deadletter.Case) { c.State = deadletter.Parked }), "it is parked"},
		{deadletter.Reopen, open, "it is open"},
		{deadletter.Reopen, with(func(c *deadletter.Case) { c.State = deadletter.Discarded }), ""},
		{deadletter.Reopen, with(func(c *deadletter.Case) { c.State, c.Status = deadletter.Discarded, "failed" }), "its payment is failed"},
		{deadletter.Reopen, with(func(c *deadletter.Case) { c.State, c.Dead = deadletter.Discarded, false }), "its payment is polled already"},
		{deadletter.Reopen, with(func(c *deadletter.Case) { c.State, c.Other = deadletter.Discarded, true }), "another letter of its payment is open"},
		{deadletter.Reopen, with(func(c *deadletter.Case) { c.State, c.Review, c.Status = deadletter.Discarded, true, "failed" }), ""},
		{deadletter.Settle, open, "its payment is pending, and only a status ends it: pollux payment force PAYMENT STATUS --reason WHY"},
		{deadletter.Settle, with(func(c *deadletter.Case) { c.State, c.Status = deadletter.Resolved, "failed" }), "it is resolved, and its payment is failed"},
		{deadletter.Settle, with(func(c *deadletter.Case) { c.State, c.Status = deadletter.Discarded, "failed" }), "it is discarded, and its payment is failed"},
		{deadletter.Settle, with(func(c *deadletter.Case) { c.Status = "failed" }), ""},
		{deadletter.Settle, with(func(c *deadletter.Case) { c.Payment, c.Status = false, "" }), ""},
		{deadletter.Settle, with(func(c *deadletter.Case) { c.Review, c.Status = true, "succeeded" }), ""},
		{deadletter.Assign, with(func(c *deadletter.Case) { c.State = deadletter.Resolved }), ""},
		{deadletter.Remark, with(func(c *deadletter.Case) { c.State = deadletter.Replaying }), ""},
	} {
		if why := c.verb.Refuses(c.of); why != c.why {
			t.Errorf("%s of %+v: %q, not %q", c.verb, c.of, why, c.why)
		}
	}
}

func TestTrends(t *testing.T) {
	for want, g := range map[string]deadletter.Group{
		"quiet":   {Letters: 5},
		"new":     {Letters: 5, LastHour: 5},
		"rising":  {Letters: 50, LastHour: 20, HourBefore: 10},
		"falling": {Letters: 50, LastHour: 10, HourBefore: 20},
		"steady":  {Letters: 50, LastHour: 10, HourBefore: 10},
	} {
		if g.Trend() != want {
			t.Errorf("%+v is %s, not %s", g, g.Trend(), want)
		}
	}
}

func TestRates(t *testing.T) {
	for in, want := range map[string]float64{"10": 10, "10/s": 10, "90/m": 1.5, "36/h": 0.01, "0.001": 0.001, "100000": 100_000, "10%": 2, "100%": 20, "0.001%": deadletter.MinRate} {
		r, err := deadletter.ParseRate(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, err := r.Of(map[string]float64{"acme": 20, "other": 50}, []string{"acme", "other"}); err != nil || got != want {
			t.Errorf("%s: %g a second, %v, not %g", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "0", "-1", "NaN", "Inf", "1e9", "100001", "0.0001", "0%", "101%", "-5%", "NaN%", "10/d", "10/"} {
		if r, err := deadletter.ParseRate(in); err == nil && in != "10/" {
			t.Errorf("%q is %+v", in, r)
		}
	}
	r, _ := deadletter.ParseRate("10%")
	if _, err := r.Of(map[string]float64{"acme": 20}, []string{"acme", "free"}); err == nil || !strings.Contains(err.Error(), "gateway free has no limit") {
		t.Errorf("%v", err)
	}
	if err := deadletter.CheckDuration(1_000_000, 0.001); err == nil {
		t.Error("a replay of thirty years is taken")
	}
}

func TestWhatNeedsASecondPerson(t *testing.T) {
	a := deadletter.Approval{Letters: 10, Money: map[string]int64{"EUR": 100_00}}
	for _, c := range []struct {
		letters int
		money   map[string]int64
		why     string
	}{
		{10, map[string]int64{"EUR": 100_00, "USD": 1 << 40}, ""},
		{11, nil, "11 letters, and more than 10 need a second person"},
		{1, map[string]int64{"EUR": 100_01}, "100.01 EUR, and more than 100.00 EUR need a second person"},
	} {
		if why := a.Needed(c.letters, c.money); why != c.why {
			t.Errorf("%d, %v: %q", c.letters, c.money, why)
		}
	}
	if why := (deadletter.Approval{}).Needed(1_000_000, nil); why != "" {
		t.Error(why)
	}
}

// progress is where a replay stands that runs.
func progress(stage int, chosen int64, leg deadletter.Leg, ready int) deadletter.Progress {
	p := deadletter.Progress{Leg: leg, Ready: ready}
	p.State, p.Stage, p.Counts.Chosen = deadletter.Running, stage, chosen
	return p
}

func TestTheNextDeed(t *testing.T) {
	type leg = deadletter.Leg
	for name, c := range map[string]struct {
		p    deadletter.Progress
		want string
	}{
		"one is tried first":                {progress(0, 100, leg{}, 50), "release 1"},
		"when the rate allows it":           {progress(0, 100, leg{}, 0), "wait"},
		"it is waited for":                  {progress(0, 99, leg{Released: 1, Unanswered: 1}, 50), "wait"},
		"then ten":                          {progress(0, 99, leg{Released: 1}, 50), "advance"},
		"ten":                               {progress(1, 99, leg{}, 50), "release 10"},
		"ten, as the rate allows":           {progress(1, 96, leg{Released: 3, Unanswered: 2}, 4), "release 4"},
		"the rest of ten":                   {progress(1, 96, leg{Released: 3}, 50), "release 7"},
		"ten are waited for":                {progress(1, 89, leg{Released: 10, Unanswered: 1}, 50), "wait"},
		"then the rest":                     {progress(1, 89, leg{Released: 10}, 50), "advance"},
		"the rest":                          {progress(2, 89, leg{Released: 5, Unanswered: 5}, 50), "release 50"},
		"no more than there are":            {progress(2, 3, leg{}, 50), "release 3"},
		"no more than a transaction takes":  {progress(2, 1e6, leg{}, 1e5), "release 1000"},
		"one that came back stops":          {progress(0, 99, leg{Released: 1, CameBack: 1, Ended: 1}, 50), "stop"},
		"one of ten that came back stops":   {progress(1, 89, leg{Released: 10, Unanswered: 9, CameBack: 1}, 50), "stop"},
		"a few of the rest do not":          {progress(2, 89, leg{Released: 900, CameBack: 9, Ended: 9}, 50), "release 50"},
		"ten of twenty do":                  {progress(2, 89, leg{Released: 900, CameBack: 10, Ended: 20}, 50), "stop"},
		"ten of a hundred do not":           {progress(2, 89, leg{Released: 900, CameBack: 10, Ended: 100}, 50), "release 50"},
		"nothing is left":                   {progress(2, 0, leg{Released: 900, Unanswered: 9}, 50), "finish"},
		"nothing was left before the stage": {progress(0, 0, leg{Released: 1, Unanswered: 1}, 50), "finish"},
	} {
		d := deadletter.Next(c.p)
		got := "wait"
		switch {
		case d.Stop != "":
			got = "stop"
		case d.Finish:
			got = "finish"
		case d.Advance:
			got = "advance"
		case d.Release > 0:
			got = fmt.Sprintf("release %d", d.Release)
		}
		if got != c.want {
			t.Errorf("%s: %s, not %s", name, got, c.want)
		}
	}
	for _, state := range []string{deadletter.AwaitingApproval, deadletter.Stopped, deadletter.Cancelled, deadletter.Undone, deadletter.Done} {
		p := progress(2, 5, leg{CameBack: 50, Ended: 50}, 5)
		if p.State = state; deadletter.Next(p) != (deadletter.Deed{}) {
			t.Errorf("something is done with a replay that is %s", state)
		}
	}
}

// table is a record of one replay in memory, with a gateway that answers whenever it likes.
type table struct {
	p        deadletter.Progress
	answer   func(n int64) (came int64) // how many of n that were released come back
	fail     int
	before   func(*deadletter.Progress) // happens before each step; may be nil
	last     int64                      // how many the last step released
	released []int64
}

func (t *table) Step(_ context.Context, _ int64, next func(deadletter.Progress) deadletter.Deed) (deadletter.Progress, deadletter.Deed, error) {
	if t.fail > 0 {
		t.fail--
		return t.p, deadletter.Deed{}, errors.New("connection refused")
	}
	if n := t.p.Leg.Unanswered; n > 0 {
		came := t.answer(n)
		t.p.Leg.Unanswered, t.p.Leg.CameBack, t.p.Leg.Ended = 0, t.p.Leg.CameBack+came, t.p.Leg.Ended+n
		t.p.Counts.Queued, t.p.Counts.FailedAgain, t.p.Counts.Resolved = 0, t.p.Counts.FailedAgain+came, t.p.Counts.Resolved+n-came
	}
	if t.before != nil {
		t.before(&t.p)
	}
	d := next(t.p)
	n := int64(d.Release)
	t.last = n
	t.p.Counts.Chosen, t.p.Counts.Queued = t.p.Counts.Chosen-n, t.p.Counts.Queued+n
	t.p.Leg.Released, t.p.Leg.Unanswered = t.p.Leg.Released+n, t.p.Leg.Unanswered+n
	if n > 0 {
		t.released = append(t.released, n)
	}
	switch {
	case d.Advance:
		t.p.Stage, t.p.Leg = t.p.Stage+1, deadletter.Leg{}
	case d.Stop != "":
		t.p.State, t.p.Why = deadletter.Stopped, d.Stop
	case d.Finish:
		t.p.State = deadletter.Done
	}
	return t.p, d, nil
}

func TestADriverTriesAFewAndThenReleasesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &table{p: progress(0, 500, deadletter.Leg{}, 200), answer: func(int64) int64 { return 0 }}
		p, err := deadletter.Driver{Steps: rec, Settle: true}.Run(t.Context(), 1)
		if err != nil || p.State != deadletter.Done || p.Counts.Resolved != 500 {
			t.Errorf("%s, %+v, %v", p.State, p.Counts, err)
		}
		if want := []int64{1, 10, 200, 200, 89}; !slices.Equal(rec.released, want) {
			t.Errorf("%v, not %v", rec.released, want)
		}
	})
}

func TestADriverStopsWhenTheFaultComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &table{p: progress(0, 500, deadletter.Leg{}, 200), answer: func(n int64) int64 { return n / 10 }}
		p, err := deadletter.Driver{Steps: rec, Settle: true}.Run(t.Context(), 1)
		if err != nil || p.State != deadletter.Stopped || p.Counts.Chosen != 489 {
			t.Errorf("%s, %+v, %v", p.State, p.Counts, err)
		}
	})
}

func TestADriverWaitsWhileTheRecordIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &table{p: progress(2, 5, deadletter.Leg{}, 5), answer: func(int64) int64 { return 0 }, fail: 5}
		transient := func(error) bool { return true }
		if p, err := (deadletter.Driver{Steps: rec, Transient: transient}).Run(t.Context(), 1); err != nil || p.State != deadletter.Done {
			t.Errorf("%s, %v", p.State, err)
		}
		rec.fail = 1e6
		if _, err := (deadletter.Driver{Steps: rec, Transient: transient}).Run(t.Context(), 1); err == nil {
			t.Error("it waits for ever")
		}
		if _, err := (deadletter.Driver{Steps: rec}).Run(t.Context(), 1); err == nil || rec.fail < 1e5 {
			t.Errorf("%v", err)
		}
		ctx, stop := context.WithCancelCause(t.Context())
		stop(errors.New("told to stop"))
		rec.fail, rec.p.State = 0, deadletter.Running
		rec.p.Counts.Chosen, rec.p.Ready = 5, 0
		if _, err := (deadletter.Driver{Steps: rec}).Run(ctx, 1); err == nil || !strings.Contains(err.Error(), "told to stop") {
			t.Errorf("%v", err)
		}
	})
}

// TestADriverReleasesEachLetterOnce plays replays of all sizes and answers against the driver.
func TestADriverReleasesEachLetterOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			letters := rapid.Int64Range(0, 3000).Draw(rt, "letters")
			rec := &table{p: progress(rapid.IntRange(0, 2).Draw(rt, "stage"), letters, deadletter.Leg{}, rapid.IntRange(1, 2000).Draw(rt, "ready"))}
			bad := rapid.Int64Range(0, 3).Draw(rt, "bad")
			rec.answer = func(n int64) int64 { return n * bad / 4 }
			p, err := deadletter.Driver{Steps: rec, Settle: true}.Run(context.Background(), 1)
			if err != nil {
				rt.Fatal(err)
			}
			var sum int64
			for _, n := range rec.released {
				sum += n
			}
			c := p.Counts
			if sum != c.Released() || sum+c.Chosen != letters || (p.State == deadletter.Done) != (c.Chosen == 0) && p.State != deadletter.Stopped {
				rt.Fatalf("%s: %d released of %d, %+v", p.State, sum, letters, c)
			}
			if p.State == deadletter.Stopped && bad == 0 {
				rt.Fatal("it stops without a fault")
			}
		})
	})
}

// What is released ahead must last until the next look, or the rate would not be kept, however large the replay.
func TestWhatIsReleasedAheadLastsUntilTheNextLook(t *testing.T) {
	for _, letters := range []int{10, 100_000, 100_001, deadletter.MaxReplay} {
		synctest.Test(t, func(t *testing.T) {
			const rate = 100
			began := time.Now()
			due := began // of the next letter
			rec := &table{p: progress(2, int64(letters), deadletter.Leg{}, 0), answer: func(int64) int64 { return 0 }}
			rec.p.Letters = letters
			rec.before = func(p *deadletter.Progress) {
				due = due.Add(time.Duration(rec.last) * time.Second / rate)
				if due.Before(time.Now()) && p.Counts.Released() > 0 && p.Counts.Chosen > 0 {
					t.Fatalf("%d letters: nothing is due since %s", letters, time.Since(due))
				}
				ahead := time.Until(due.Add(-p.Ahead()))
				p.Ready, p.Wait = 0, max(ahead, 0)
				if ahead <= 0 {
					p.Ready = int(min(-ahead, p.Ahead())*rate/time.Second) + 1
				}
				if time.Since(began) > time.Minute {
					p.State = deadletter.Cancelled
				}
			}
			if _, err := (deadletter.Driver{Steps: rec}).Run(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		})
	}
}
