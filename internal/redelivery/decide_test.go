package redelivery_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// observed is the observation of the examples with an answer and a change.
func observed(class gateway.Class, change func(*redelivery.Observation)) redelivery.Observation {
	o := exampleObservation()
	o.Answer = &gateway.Answer{Class: class, Status: payment.Succeeded}
	if change != nil {
		change(&o)
	}
	return o
}

func TestDecisionsAtTheLimits(t *testing.T) {
	type obs = redelivery.Observation
	unasked := func(change func(*obs)) obs {
		return observed(gateway.Local, func(o *obs) { o.Answer = nil; change(o) })
	}
	for name, c := range map[string]struct {
		o      obs
		verb   redelivery.Verb
		reason redelivery.Reason
		delay  time.Duration
	}{
		"early by the tolerance is polled":         {unasked(func(o *obs) { o.UntilDue = redelivery.Early }), redelivery.Poll, redelivery.ReasonDue, 0},
		"early by more goes back":                  {unasked(func(o *obs) { o.UntilDue = redelivery.Early + 1 }), redelivery.Return, redelivery.ReasonEarly, redelivery.Early + 1},
		"early by the hold limit goes back":        {unasked(func(o *obs) { o.UntilDue = 30 * time.Second }), redelivery.Return, redelivery.ReasonEarly, 30 * time.Second},
		"early by more is parked":                  {unasked(func(o *obs) { o.UntilDue = 30*time.Second + 1 }), redelivery.Park, redelivery.ReasonEarly, 30*time.Second + 1},
		"early by an age is parked for a year":     {unasked(func(o *obs) { o.UntilDue = math.MaxInt64 }), redelivery.Park, redelivery.ReasonEarly, redelivery.MaxDelay},
		"overdue for ever is polled":               {unasked(func(o *obs) { o.UntilDue = math.MinInt64 }), redelivery.Poll, redelivery.ReasonDue, 0},
		"one delivery short of poison is polled":   {unasked(func(o *obs) { o.Unrecorded = 4 }), redelivery.Poll, redelivery.ReasonDue, 0},
		"poison is not asked about":                {unasked(func(o *obs) { o.Unrecorded = 5; o.Open = true }), redelivery.DeadLetter, redelivery.ReasonPoison, 0},
		"past every bound, but not asked: polled":  {unasked(func(o *obs) { o.Age = 99 * time.Hour; o.Counters.Attempts = 99; o.HasDeadline = true }), redelivery.Poll, redelivery.ReasonDue, 0},
		"no holds left: parked":                    {unasked(func(o *obs) { o.Paused = time.Second; o.HoldsLeft = 0 }), redelivery.Park, redelivery.ReasonPaused, time.Second + redelivery.Early},
		"paused for ever is parked for a year":     {unasked(func(o *obs) { o.Paused = math.MaxInt64 }), redelivery.Park, redelivery.ReasonPaused, redelivery.MaxDelay},
		"held up to the hold limit":                {observed(gateway.Transport, func(o *obs) { o.Answer.RetryAfter = 30*time.Second - redelivery.Early }), redelivery.Hold, redelivery.ReasonFailure, 30 * time.Second},
		"parked beyond it":                         {observed(gateway.Transport, func(o *obs) { o.Answer.RetryAfter = 30*time.Second - redelivery.Early + 1 }), redelivery.Park, redelivery.ReasonFailure, 30*time.Second + 1},
		"Retry-After is cut":                       {observed(gateway.RateLimited, func(o *obs) { o.Answer.RetryAfter = 99999999 * time.Second }), redelivery.Park, redelivery.ReasonRateLimited, 15*time.Minute + redelivery.Early},
		"Retry-After in the past is none":          {observed(gateway.RateLimited, func(o *obs) { o.Answer.RetryAfter = -time.Hour }), redelivery.Hold, redelivery.ReasonRateLimited, time.Second},
		"Retry-After is spread":                    {observed(gateway.RateLimited, func(o *obs) { o.Answer.RetryAfter = 20 * time.Second; o.Chance = 0.5 }), redelivery.Hold, redelivery.ReasonRateLimited, 21*time.Second + redelivery.Early},
		"Retry-After with a still pending payment": {observed(gateway.Pending, func(o *obs) { o.Answer.RetryAfter = 2 * time.Minute }), redelivery.Park, redelivery.ReasonStillPending, 2*time.Minute + redelivery.Early},
		"Retry-After below the curve":              {observed(gateway.Pending, func(o *obs) { o.Answer.RetryAfter = time.Second }), redelivery.Park, redelivery.ReasonStillPending, time.Minute},
		"chance of NaN keeps to Retry-After":       {observed(gateway.RateLimited, func(o *obs) { o.Answer.RetryAfter = 20 * time.Second; o.Chance = math.NaN() }), redelivery.Hold, redelivery.ReasonRateLimited, 20*time.Second + redelivery.Early},
		"429 after 429 waits longer":               {observed(gateway.RateLimited, func(o *obs) { o.Previous = 8 * time.Second; o.Chance = 0.5 }), redelivery.Hold, redelivery.ReasonRateLimited, 12 * time.Second},
		"429 after hours waits no longer than cap": {observed(gateway.RateLimited, func(o *obs) { o.Previous = 3 * time.Hour }), redelivery.Park, redelivery.ReasonRateLimited, time.Minute},
		"429 after ages waits no longer than cap":  {observed(gateway.RateLimited, func(o *obs) { o.Previous = math.MaxInt64; o.Chance = 0.9 }), redelivery.Park, redelivery.ReasonRateLimited, time.Minute},
		"404 inside the grace past lowered bounds": {observed(gateway.NotFound, func(o *obs) { o.Age = 0; o.Counters.Attempts, o.Counters.NotFounds = 99, 99 }), redelivery.Park, redelivery.ReasonNotFound, time.Minute},
		"429 past every bound":                     {observed(gateway.RateLimited, func(o *obs) { o.Age = 99 * time.Hour; o.HasDeadline = true }), redelivery.Hold, redelivery.ReasonRateLimited, time.Second},
		"refused key past every bound":             {observed(gateway.Unauthorized, func(o *obs) { o.Age = 99 * time.Hour; o.HasDeadline = true }), redelivery.Park, redelivery.ReasonUnauthorized, 5*time.Minute + redelivery.Early},
		"refused key with a longer Retry-After":    {observed(gateway.Unauthorized, func(o *obs) { o.Answer.RetryAfter = 10 * time.Minute }), redelivery.Park, redelivery.ReasonUnauthorized, 10*time.Minute + redelivery.Early},
		"404 at the end of the grace is normal":    {observed(gateway.NotFound, func(o *obs) { o.Age = 2 * time.Minute; o.Counters.NotFounds = 99 }), redelivery.Park, redelivery.ReasonNotFound, time.Minute},
		"404 inside the grace spends no bound":     {observed(gateway.NotFound, func(o *obs) { o.Age = 0; o.Counters.Attempts, o.Counters.Failures = 4, 3 }), redelivery.Hold, redelivery.ReasonNotFound, time.Second},
		"404 inside the grace past the deadline":   {observed(gateway.NotFound, func(o *obs) { o.Age = 0; o.HasDeadline = true }), redelivery.DeadLetter, redelivery.ReasonDeadline, 0},
		"second 404 past the grace":                {observed(gateway.NotFound, func(o *obs) { o.Age = 2*time.Minute + 1; o.Counters.NotFounds = 1 }), redelivery.Hold, redelivery.ReasonNotFound, 2 * time.Second},
		"third 404, the last past the grace":       {observed(gateway.NotFound, func(o *obs) { o.Age = 2*time.Minute + 1; o.Counters.NotFounds = 2 }), redelivery.DeadLetter, redelivery.ReasonNotFound, 0},
		"one 404 after failures proves nothing":    {observed(gateway.NotFound, func(o *obs) { o.Counters.Failures = 3 }), redelivery.Hold, redelivery.ReasonNotFound, time.Second},
		"third 404 at the last attempt":            {observed(gateway.NotFound, func(o *obs) { o.Counters.NotFounds = 2; o.Counters.Attempts = 4 }), redelivery.DeadLetter, redelivery.ReasonNotFound, 0},
		"attempt before the last":                  {observed(gateway.Pending, func(o *obs) { o.Counters.Attempts = 3 }), redelivery.Park, redelivery.ReasonStillPending, 15 * time.Minute},
		"last attempt":                             {observed(gateway.Pending, func(o *obs) { o.Counters.Attempts = 4 }), redelivery.DeadLetter, redelivery.ReasonAttempts, 0},
		"last attempt succeeds":                    {observed(gateway.Final, func(o *obs) { o.Counters.Attempts = 4; o.Age = 99 * time.Hour; o.HasDeadline = true }), redelivery.Resolve, redelivery.ReasonResolved, 0},
		"failure before the last":                  {observed(gateway.Malformed, func(o *obs) { o.Counters.Failures = 2 }), redelivery.Hold, redelivery.ReasonFailure, 4 * time.Second},
		"last failure":                             {observed(gateway.Malformed, func(o *obs) { o.Counters.Failures = 3 }), redelivery.DeadLetter, redelivery.ReasonFailures, 0},
		"last failure is the breaker's":            {observed(gateway.Malformed, func(o *obs) { o.Counters.Failures = 3; o.Open = true }), redelivery.Defer, redelivery.ReasonCircuitOpen, 2*time.Hour + 50*time.Minute},
		"asleep until the deadline":                {unasked(func(o *obs) { o.Open = true; o.HasDeadline = true; o.UntilDeadline = time.Minute }), redelivery.Defer, redelivery.ReasonCircuitOpen, time.Minute},
		"asleep just inside the outage grace":      {unasked(func(o *obs) { o.Open = true; o.Age = 3*time.Hour - 1 }), redelivery.Defer, redelivery.ReasonCircuitOpen, redelivery.MinDelay},
		"asleep past the outage grace":             {unasked(func(o *obs) { o.Open = true; o.Age = 3 * time.Hour }), redelivery.DeadLetter, redelivery.ReasonWindow, 0},
		"a refused key past the outage grace":      {observed(gateway.Unauthorized, func(o *obs) { o.Open = true; o.Age = 99 * time.Hour; o.HasDeadline = true }), redelivery.Defer, redelivery.ReasonCircuitOpen, redelivery.MinDelay},
		"an answer while the breaker is open":      {observed(gateway.Pending, func(o *obs) { o.Open = true }), redelivery.Park, redelivery.ReasonStillPending, time.Minute},
		"just inside the window":                   {observed(gateway.Pending, func(o *obs) { o.Age = time.Hour - 1 }), redelivery.Park, redelivery.ReasonStillPending, time.Minute},
		"at the window":                            {observed(gateway.Pending, func(o *obs) { o.Age = time.Hour }), redelivery.DeadLetter, redelivery.ReasonWindow, 0},
		"just before the deadline: last poll then": {observed(gateway.Pending, func(o *obs) { o.HasDeadline = true; o.UntilDeadline = 20 * time.Second }), redelivery.Hold, redelivery.ReasonStillPending, 20 * time.Second},
		"a deadline that is far away":              {observed(gateway.Pending, func(o *obs) { o.HasDeadline = true; o.UntilDeadline = math.MaxInt64 }), redelivery.Park, redelivery.ReasonStillPending, time.Minute},
		"a deadline in a nanosecond":               {observed(gateway.Pending, func(o *obs) { o.HasDeadline = true; o.UntilDeadline = 1 }), redelivery.Hold, redelivery.ReasonStillPending, redelivery.MinDelay},
		"Retry-After beyond the deadline": {observed(gateway.Pending, func(o *obs) {
			o.HasDeadline = true
			o.UntilDeadline = time.Second
			o.Answer.RetryAfter = 20 * time.Second
		}), redelivery.Hold, redelivery.ReasonStillPending, 20*time.Second + redelivery.Early},
		"deadline and attempts: the deadline": {observed(gateway.Pending, func(o *obs) { o.HasDeadline = true; o.Counters.Attempts = 4 }), redelivery.DeadLetter, redelivery.ReasonDeadline, 0},
		"final without a final status":        {observed(gateway.Final, func(o *obs) { o.Answer.Status = payment.Pending }), redelivery.Hold, redelivery.ReasonFailure, time.Second},
		"final with a word that is no status": {observed(gateway.Final, func(o *obs) { o.Answer.Status = "paid" }), redelivery.Hold, redelivery.ReasonFailure, time.Second},
		"a class that is none is our trouble": {observed(gateway.Class(200), nil), redelivery.Return, redelivery.ReasonLocal, redelivery.LocalDelay},
		"our trouble again and again":         {observed(gateway.Local, func(o *obs) { o.Unrecorded = 4 }), redelivery.Park, redelivery.ReasonLocal, redelivery.LocalDelay},
		"resolved by somebody else meanwhile": {observed(gateway.Final, func(o *obs) { o.Status = payment.Failed }), redelivery.Drop, redelivery.ReasonAlreadyFinal, 0},
		"lease taken over meanwhile":          {observed(gateway.Final, func(o *obs) { o.TokenCurrent = false }), redelivery.Drop, redelivery.ReasonStale, 0},
		"dead meanwhile":                      {observed(gateway.Final, func(o *obs) { o.Dead = true }), redelivery.Drop, redelivery.ReasonWithPerson, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := examplePolicy.Decide(c.o)
			if d.Verb != c.verb || d.Reason != c.reason || d.Delay != c.delay {
				t.Errorf("%s, %s, %s; want %s, %s, %s", d.Verb, d.Reason, d.Delay, c.verb, c.reason, c.delay)
			}
		})
	}
}

func TestPolicyThatHoldsNothingKeepsNothingAtTheBroker(t *testing.T) {
	p := examplePolicy
	p.HoldLimit = 0
	early := func(d time.Duration) redelivery.Observation {
		return observed(gateway.Local, func(o *redelivery.Observation) { o.Answer, o.UntilDue = nil, d })
	}
	if d := p.Decide(observed(gateway.Transport, nil)); d.Verb != redelivery.Park {
		t.Errorf("a failed call: %s", d.Verb)
	}
	if d := p.Decide(early(redelivery.LocalDelay)); d.Verb != redelivery.Return {
		t.Errorf("early by %s: %s", redelivery.LocalDelay, d.Verb)
	}
	if d := p.Decide(early(redelivery.LocalDelay + 1)); d.Verb != redelivery.Park {
		t.Errorf("early by more than %s: %s", redelivery.LocalDelay, d.Verb)
	}
}

func TestPoliciesWithoutABoundAreNotBoundByIt(t *testing.T) {
	p := examplePolicy
	p.MaxAttempts, p.MaxFailures, p.Window, p.PoisonDeliveries = 0, 0, 0, 0
	many := func(o *redelivery.Observation) {
		o.Counters = redelivery.Counters{Attempts: 1 << 30, Failures: 1 << 30}
		o.Age, o.Unrecorded = 1<<62, 1<<30
	}
	for _, class := range []gateway.Class{gateway.Pending, gateway.Transport, gateway.UnknownStatus} {
		if d := p.Decide(observed(class, many)); d.Verb != redelivery.Park {
			t.Errorf("%s: %s, %s", class, d.Verb, d.Reason)
		}
	}
	if d := p.Decide(observed(gateway.Local, many)); d.Verb != redelivery.Return {
		t.Errorf("local: %s, %s", d.Verb, d.Reason)
	}
}

// The counters fit the integer columns that keep them.
func TestCountersStopAtTheirColumns(t *testing.T) {
	full := redelivery.Counters{Attempts: math.MaxInt32, Failures: math.MaxInt32, NotFounds: math.MaxInt32, Deferrals: math.MaxInt32, Replays: math.MaxInt32}
	for _, class := range gateway.Classes {
		for _, open := range []bool{false, true} {
			d := examplePolicy.Decide(observed(class, func(o *redelivery.Observation) { o.Counters, o.Open = full, open }))
			for _, n := range []int{d.Counters.Attempts, d.Counters.Failures, d.Counters.NotFounds, d.Counters.Deferrals, d.Counters.Replays} {
				if n > math.MaxInt32 {
					t.Errorf("%s: a counter is %d", class, n)
				}
			}
		}
	}
}

func TestStatusDetailComesOnlyFromAnswersAboutThePayment(t *testing.T) {
	about := []gateway.Class{gateway.Final, gateway.Pending, gateway.UnknownStatus, gateway.NotFound}
	for _, class := range gateway.Classes {
		d := examplePolicy.Decide(observed(class, func(o *redelivery.Observation) { o.Answer.Detail = "requires_action" }))
		if taken := d.Detail != ""; taken != slices.Contains(about, class) {
			t.Errorf("%s: the detail is %q", class, d.Detail)
		}
	}
}

func TestEveryObservationHasOneDisposition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, o := policies().Draw(t, "policy"), observations().Draw(t, "observation")
		before := o.Answer
		d := p.Decide(o)
		if diff := cmp.Diff(d, p.Decide(o)); diff != "" {
			t.Fatalf("decided twice, and differently:\n%s", diff)
		}
		if o.Answer != before {
			t.Fatal("the observation was changed")
		}
		if !slices.Contains(redelivery.Verbs, d.Verb) || !slices.Contains(redelivery.Reasons, d.Reason) {
			t.Fatalf("%d, %q: not a verb and a reason", d.Verb, d.Reason)
		}
		switch d.Verb {
		case redelivery.Return, redelivery.Hold, redelivery.Park:
			if d.Delay < redelivery.MinDelay || d.Delay > redelivery.MaxDelay {
				t.Fatalf("%s for %s", d.Verb, d.Delay)
			}
		case redelivery.Defer:
			if d.Delay < redelivery.MinDelay || d.Delay > redelivery.LookAgain {
				t.Fatalf("%s for %s", d.Verb, d.Delay)
			}
		default:
			if d.Delay != 0 {
				t.Fatalf("%s with a delay of %s", d.Verb, d.Delay)
			}
		}
		if d.Recorded() != (d.Verb == redelivery.Resolve || d.Verb == redelivery.Hold || d.Verb == redelivery.Park || d.Verb == redelivery.Defer || d.Verb == redelivery.DeadLetter) {
			t.Fatalf("%s recorded: %t", d.Verb, d.Recorded())
		}
	})
}

func TestOnlyAFinalAnswerAboutAPendingPaymentResolvesIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, o := policies().Draw(t, "policy"), observations().Draw(t, "observation")
		d := p.Decide(o)
		mine := o.Tracked && o.Status == payment.Pending && !o.Dead && o.TokenCurrent
		final := mine && o.Answer != nil && o.Answer.Class == gateway.Final && o.Answer.Status.Final()
		if (d.Verb == redelivery.Resolve) != final {
			t.Fatalf("%s, %s", d.Verb, d.Reason)
		}
		if final && d.Status != o.Answer.Status || !final && d.Status != "" {
			t.Fatalf("%s with the status %q", d.Verb, d.Status)
		}
		if (d.Verb == redelivery.Drop) == mine {
			t.Fatalf("%s, %s: dropped exactly when it is not ours", d.Verb, d.Reason)
		}
		if asked := o.Answer != nil; mine && !asked && d.Verb == redelivery.Resolve || asked && d.Verb == redelivery.Poll {
			t.Fatalf("%s, %s", d.Verb, d.Reason)
		}
	})
}

func TestOpenBreakerLetsNothingBePolled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := observations().Draw(t, "observation")
		o.Answer, o.Open = nil, true
		if d := policies().Draw(t, "policy").Decide(o); d.Verb == redelivery.Poll {
			t.Fatalf("%s, %s", d.Verb, d.Reason)
		}
	})
}

func TestBrokerHoldsNothingBeyondLimitAndBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, o := policies().Draw(t, "policy"), observations().Draw(t, "observation")
		switch d := p.Decide(o); d.Verb {
		case redelivery.Hold:
			if d.Delay > p.HoldLimit || o.HoldsLeft <= 0 {
				t.Fatalf("held for %s with a limit of %s and %d holds left", d.Delay, p.HoldLimit, o.HoldsLeft)
			}
		case redelivery.Return:
			if d.Delay > max(p.HoldLimit, redelivery.LocalDelay) {
				t.Fatalf("returned for %s with a limit of %s", d.Delay, p.HoldLimit)
			}
			if p.PoisonDeliveries > 0 && o.Unrecorded+1 >= p.PoisonDeliveries && o.Unrecorded < math.MaxInt {
				t.Fatalf("returned after %d unrecorded deliveries; at %d it is poison", o.Unrecorded, p.PoisonDeliveries)
			}
		}
	})
}

// Each class of answer changes its own counters and no other's.
func TestCountersAreNeverMixed(t *testing.T) {
	one := func(n int) int { return n + 1 }
	rapid.Check(t, func(t *rapid.T) {
		p, o := policies().Draw(t, "policy"), observations().Draw(t, "observation")
		small := rapid.IntRange(0, 1000)
		o.Counters = redelivery.Counters{
			Attempts: small.Draw(t, "a"), Failures: small.Draw(t, "f"), NotFounds: small.Draw(t, "n"), Deferrals: small.Draw(t, "d"), Replays: small.Draw(t, "r"),
		}
		d := p.Decide(o)
		want := o.Counters
		if d.Verb == redelivery.Defer {
			want.Deferrals = one(want.Deferrals)
		} else if o.Answer != nil && d.Verb != redelivery.Drop {
			class := o.Answer.Class
			if class == gateway.Final && !o.Answer.Status.Final() {
				class = gateway.Transport
			}
			switch class {
			case gateway.Final, gateway.Pending, gateway.UnknownStatus, gateway.Mismatch:
				want.Attempts, want.Failures, want.NotFounds = one(want.Attempts), 0, 0
			case gateway.Transport, gateway.Malformed:
				if !o.Open {
					want.Failures = one(want.Failures)
				}
			case gateway.NotFound:
				want.NotFounds, want.Failures = one(want.NotFounds), 0
				if o.Age > p.NotFoundGrace {
					want.Attempts = one(want.Attempts)
				}
			}
		}
		if diff := cmp.Diff(want, d.Counters); diff != "" {
			t.Fatalf("%s, %s: counters (-want +got):\n%s", d.Verb, d.Reason, diff)
		}
	})
}

// A payment goes to a person exactly when a bound is reached, and never for what says nothing about it.
func TestDeadLettersExactlyAtTheBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, o := policies().Draw(t, "policy"), observations().Draw(t, "observation")
		if rapid.Bool().Draw(t, "near the bounds") {
			p.MaxAttempts, p.MaxFailures = rapid.IntRange(0, 3).Draw(t, "A"), rapid.IntRange(0, 3).Draw(t, "F")
			o.Counters.Attempts, o.Counters.Failures = rapid.IntRange(0, 3).Draw(t, "a"), rapid.IntRange(0, 3).Draw(t, "f")
			o.Counters.NotFounds = rapid.IntRange(0, 3).Draw(t, "n")
			o.Age = p.Window + rapid.SampledFrom([]time.Duration{-1, 0, 1}).Draw(t, "age")
		}
		d := p.Decide(o)
		if d.Verb == redelivery.Drop || d.Verb == redelivery.Resolve {
			return
		}
		reached := map[redelivery.Reason]bool{
			redelivery.ReasonDeadline: o.HasDeadline && o.UntilDeadline <= 0,
			redelivery.ReasonAttempts: p.MaxAttempts > 0 && d.Counters.Attempts >= p.MaxAttempts,
			redelivery.ReasonFailures: p.MaxFailures > 0 && d.Counters.Failures >= p.MaxFailures,
			redelivery.ReasonWindow:   p.Window > 0 && o.Age >= p.Window,
		}
		asleep := map[redelivery.Reason]bool{ // behind an open breaker there is no last poll
			redelivery.ReasonDeadline: reached[redelivery.ReasonDeadline],
			redelivery.ReasonWindow:   reached[redelivery.ReasonWindow] && o.Age-p.Window >= min(p.OutageGrace, 30*24*time.Hour),
		}
		want := map[redelivery.Reason]bool{} // the reasons that may be given
		switch {
		case o.Answer == nil:
			if o.Open && o.UntilDue <= redelivery.Early {
				want = asleep
			}
			want[redelivery.ReasonPoison] = p.PoisonDeliveries > 0 && o.Unrecorded >= p.PoisonDeliveries
			if p.NeverPoll && o.UntilDue <= redelivery.Early { // there is no last poll
				want[redelivery.ReasonDeadline], want[redelivery.ReasonWindow] = reached[redelivery.ReasonDeadline], reached[redelivery.ReasonWindow]
			}
		case o.Answer.Class == gateway.Mismatch:
			want[redelivery.ReasonMismatch] = true
		case o.Answer.Class == gateway.NotFound && o.Age <= p.NotFoundGrace:
			want[redelivery.ReasonDeadline] = reached[redelivery.ReasonDeadline]
		case o.Answer.Class == gateway.NotFound:
			want = reached
			want[redelivery.ReasonNotFound] = d.Counters.NotFounds >= redelivery.NotFoundConfirmations
		case o.Answer.Class == gateway.Pending || o.Answer.Class == gateway.UnknownStatus:
			want = reached
		case o.Answer.Class == gateway.Transport || o.Answer.Class == gateway.Malformed || o.Answer.Class == gateway.Final:
			if want = reached; o.Open {
				want = asleep
			}
		}
		any := false
		for _, is := range want {
			any = any || is
		}
		if dead := d.Verb == redelivery.DeadLetter; dead != any || dead && !want[d.Reason] {
			t.Fatalf("%s, %s; bounds reached: %v", d.Verb, d.Reason, want)
		}
	})
}

func TestGatewayIsNeverAskedBeforeItSaidSo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, o := policies().Draw(t, "policy"), observations().Draw(t, "observation")
		if o.Answer == nil || o.Answer.Class == gateway.Local || int(o.Answer.Class) >= len(gateway.Classes) {
			return
		}
		d := p.Decide(o)
		if d.Verb != redelivery.Hold && d.Verb != redelivery.Park {
			return
		}
		asked := min(max(min(o.Answer.RetryAfter, p.MaxRetryAfter), p.MinInterval), redelivery.MaxDelay)
		if o.Answer.Class == gateway.Unauthorized {
			asked = max(asked, min(p.UnauthorizedDelay, redelivery.MaxDelay))
		}
		// Early is what a delivery may come too early by and still be polled.
		if earliest := d.Delay - redelivery.Early; asked > 0 && earliest < asked && d.Delay < redelivery.MaxDelay {
			t.Fatalf("polled after %s, asked to wait %s", earliest, asked)
		}
		if latest := max(o.UntilDeadline, redelivery.MinDelay, asked+redelivery.Early); o.HasDeadline && o.UntilDeadline > 0 && d.Delay > latest {
			t.Fatalf("last poll after %s, the deadline is in %s and the gateway asked for %s", d.Delay, o.UntilDeadline, asked)
		}
	})
}

func TestAGatewayThatIsNeverAskedIsNotAsked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, o := policies().Draw(t, "policy"), observations().Draw(t, "observation")
		o.Answer, p.NeverPoll = nil, true
		switch d := p.Decide(o); {
		case d.Verb == redelivery.Poll, d.Verb == redelivery.Defer, d.Verb == redelivery.Hold:
			t.Fatalf("%s, %s", d.Verb, d.Reason)
		case d.Reason == redelivery.ReasonWatched && p.Window > 0 && d.Delay > max(p.Window-max(o.Age, 0), redelivery.MinDelay):
			t.Fatalf("asleep for %s at the age of %s, past the window of %s", d.Delay, o.Age, p.Window)
		case d.Reason == redelivery.ReasonWatched && o.HasDeadline && d.Delay > max(o.UntilDeadline, redelivery.MinDelay):
			t.Fatalf("asleep for %s, the deadline is in %s", d.Delay, o.UntilDeadline)
		}
	})
}

func TestPollsKeepTheLeastInterval(t *testing.T) {
	p := examplePolicy
	p.MinInterval = 10 * time.Minute
	for _, class := range []gateway.Class{gateway.Pending, gateway.UnknownStatus, gateway.NotFound, gateway.Transport, gateway.Malformed, gateway.RateLimited, gateway.Unauthorized} {
		if d := p.Decide(observed(class, nil)); d.Verb != redelivery.Park || d.Delay != 10*time.Minute+redelivery.Early {
			t.Errorf("after %s: %s for %s", class, d.Verb, d.Delay)
		}
	}
	soon := func(o *redelivery.Observation) { o.HasDeadline, o.UntilDeadline = true, time.Second }
	if d := p.Decide(observed(gateway.Pending, soon)); d.Delay != 10*time.Minute+redelivery.Early {
		t.Errorf("with a deadline in between: %s", d.Delay)
	}
	if d := p.Decide(observed(gateway.Local, nil)); d.Delay != redelivery.LocalDelay {
		t.Errorf("the gateway was not asked, and yet %s", d.Delay)
	}
}

func TestWordsOfADecisionAreFitForLabelsAndSubjects(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range redelivery.Verbs {
		if s := v.String(); seen[s] || !message.ValidToken(s) {
			t.Errorf("verb %d is %q", v, s)
		}
		seen[v.String()] = true
	}
	for _, r := range redelivery.Reasons {
		if seen["reason "+string(r)] || !message.ValidSubject(message.DeadSubject("stripe", string(r))) {
			t.Errorf("reason %q", r)
		}
		seen["reason "+string(r)] = true
	}
	if s := redelivery.Verb(200).String(); s != "drop" {
		t.Errorf("a verb that is none is %q", s)
	}
}

func TestDecidingAllocatesNothing(t *testing.T) {
	for _, class := range gateway.Classes {
		o := observed(class, nil)
		if n := testing.AllocsPerRun(100, func() { sink = examplePolicy.Decide(o) }); n > 0 {
			t.Errorf("%s: %v allocations", class, n)
		}
	}
}

var (
	sink      redelivery.Disposition
	sinkDelay time.Duration
)

func BenchmarkDecide(b *testing.B) {
	for _, class := range []gateway.Class{gateway.Final, gateway.Pending, gateway.Transport, gateway.RateLimited} {
		b.Run(class.String(), func(b *testing.B) {
			p, o := examplePolicy, observed(class, nil)
			p.Error.Jitter.Kind = redelivery.JitterEqual
			b.ReportAllocs()
			for b.Loop() {
				sink = p.Decide(o)
			}
		})
	}
}

func BenchmarkDelay(b *testing.B) {
	c := redelivery.Curve{Base: time.Second, Cap: time.Hour, Jitter: redelivery.Jitter{Kind: redelivery.JitterDecorrelated}}
	b.ReportAllocs()
	for b.Loop() {
		sinkDelay = c.Delay(7, time.Minute, 0.5)
	}
}
