package redelivery_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// life is a payment in virtual time: every wait takes as long as it says, every call no time at all.
type life struct {
	age      time.Duration
	deadline time.Duration // by age; 0 when it has none
	counters redelivery.Counters
	previous time.Duration
	polls    int // calls that spent something
	longest  time.Duration
	idle     time.Duration // waits for what spends nothing, once the payment was past its window
}

func (l *life) observation(t *rapid.T) redelivery.Observation {
	return redelivery.Observation{
		Tracked: true, Status: payment.Pending, TokenCurrent: true, Age: l.age, Counters: l.counters, Previous: l.previous,
		HasDeadline: l.deadline > 0, UntilDeadline: l.deadline - l.age,
		HoldsLeft: rapid.IntRange(0, 1).Draw(t, "holds left"),
		Chance:    rapid.Float64Range(0, 1).Draw(t, "chance"),
	}
}

// spends reports whether a class of answer brings a payment nearer to its bounds.
func spends(c gateway.Class) bool {
	return c != gateway.RateLimited && c != gateway.Unauthorized && c != gateway.Local
}

// live lives through a payment whose gateway answers as draw says, until it is resolved or with a person.
func (l *life) live(t *rapid.T, p redelivery.Policy, draw func() gateway.Answer) redelivery.Disposition {
	for range 100_000 {
		o := l.observation(t)
		if d := p.Decide(o); d.Verb != redelivery.Poll {
			t.Fatalf("due, but %s, %s", d.Verb, d.Reason)
		}
		a := draw()
		o.Answer = &a
		d := p.Decide(o)
		l.counters = d.Counters
		if spends(a.Class) {
			l.polls++
		}
		if d.Verb == redelivery.Resolve || d.Verb == redelivery.DeadLetter {
			return d
		}
		if p.Window > 0 && l.age >= p.Window && spends(a.Class) && !(a.Class == gateway.NotFound && l.age <= p.NotFoundGrace) {
			t.Fatalf("%s at the age of %s, past the window of %s: %s, %s", a.Class, l.age, p.Window, d.Verb, d.Reason)
		}
		if p.Window > 0 && l.age >= p.Window {
			l.idle += d.Delay
		} else {
			l.longest = max(l.longest, d.Delay)
		}
		l.age += d.Delay
		l.previous = d.Delay
	}
	t.Fatalf("still alive at the age of %s after %d polls: %+v", l.age, l.polls, l.counters)
	return redelivery.Disposition{}
}

func TestALifeEndsWithinItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := validPolicies().Draw(t, "policy")
		l := &life{}
		if rapid.Bool().Draw(t, "has a deadline") {
			l.deadline = time.Duration(rapid.IntRange(1, 7200).Draw(t, "deadline")) * time.Second
		}
		// Each life has a bias, or most would end at their first final answer.
		classes := rapid.SliceOfN(rapid.SampledFrom(gateway.Classes), 1, 4).Draw(t, "classes")
		quota := rapid.IntRange(0, 200).Draw(t, "answers that spend nothing")
		d := l.live(t, p, func() gateway.Answer {
			c := rapid.SampledFrom(classes).Draw(t, "class")
			if quota--; !spends(c) && quota < 0 { // the gateway comes back in the end
				c = gateway.Pending
			}
			return gateway.Answer{Class: c, Status: payment.Succeeded, RetryAfter: time.Duration(rapid.IntRange(0, 7200).Draw(t, "Retry-After")) * time.Second}
		})
		if p.Window > 0 && l.age > p.Window+l.longest+l.idle {
			t.Fatalf("%s, %s at the age of %s: beyond the window of %s, one delay of %s, and %s of waits that spend nothing", d.Verb, d.Reason, l.age, p.Window, l.longest, l.idle)
		}
		if p.MaxAttempts > 0 && l.counters.Attempts > p.MaxAttempts || p.MaxFailures > 0 && l.counters.Failures > p.MaxFailures {
			t.Fatalf("%s, %s beyond the bounds: %+v", d.Verb, d.Reason, l.counters)
		}
		// Between two attempts there are at most MaxFailures−1 failed calls; only a 404 inside its grace is neither.
		if p.MaxAttempts > 0 && p.MaxFailures > 0 && p.NotFoundGrace == 0 && l.polls > p.MaxAttempts*p.MaxFailures+p.MaxFailures {
			t.Fatalf("%s, %s after %d polls with %d attempts and %d failures in a row", d.Verb, d.Reason, l.polls, p.MaxAttempts, p.MaxFailures)
		}
	})
}

// Days of refused keys and 429, then an answer: the payment is as it was.
func TestAnOutageCostsAPaymentNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := validPolicies().Draw(t, "policy")
		l := &life{}
		before := l.counters
		var calls int
		d := l.live(t, p, func() gateway.Answer {
			if calls++; l.age > 72*time.Hour || calls > 5000 {
				return gateway.Answer{Class: gateway.Final, Status: payment.Succeeded}
			}
			if l.counters != before {
				t.Fatalf("counters %+v after %s of an outage", l.counters, l.age)
			}
			return gateway.Answer{Class: rapid.SampledFrom([]gateway.Class{gateway.RateLimited, gateway.Unauthorized, gateway.Local}).Draw(t, "class")}
		})
		if d.Verb != redelivery.Resolve {
			t.Fatalf("%s, %s", d.Verb, d.Reason)
		}
	})
}

// A gateway that is down for a day probes with the payment at the front again and again.
func TestAProbeOfAnOutageStaysWhole(t *testing.T) {
	p := examplePolicy
	p.OutageGrace = 24 * time.Hour
	o := exampleObservation()
	for minute := range 24 * 60 {
		o.Open, o.Answer = false, nil
		o.Age += time.Minute
		if d := p.Decide(o); d.Verb != redelivery.Poll {
			t.Fatalf("minute %d: %s, %s", minute, d.Verb, d.Reason)
		}
		o.Open, o.Answer = true, &gateway.Answer{Class: gateway.Transport}
		d := p.Decide(o)
		if d.Verb != redelivery.Defer {
			t.Fatalf("minute %d: %s, %s", minute, d.Verb, d.Reason)
		}
		o.Counters = d.Counters
	}
	if want := (redelivery.Counters{Deferrals: 24 * 60}); o.Counters != want {
		t.Fatalf("counters %+v after a day, want %+v", o.Counters, want)
	}
}

// 429 for ever does not become a loop: the waits grow to the cap.
func TestWaitsAfter429Grow(t *testing.T) {
	p := examplePolicy
	o := observed(gateway.RateLimited, nil)
	o.Answer.RetryAfter = 0
	o.Chance = 0.5
	var total time.Duration
	for range 20 {
		d := p.Decide(o)
		if d.Delay < o.Previous && o.Previous < p.Error.Cap {
			t.Fatalf("%s after %s", d.Delay, o.Previous)
		}
		o.Previous = d.Delay
		total += d.Delay
	}
	if o.Previous != p.Error.Cap || total < 8*time.Minute {
		t.Fatalf("twenty 429 take %s, the last wait is %s", total, o.Previous)
	}
}
