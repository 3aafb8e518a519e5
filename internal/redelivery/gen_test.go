package redelivery_test

import (
	"math"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// The generators straddle the limits: what a validated policy and a healthy database would never show is among it.

func durations() *rapid.Generator[time.Duration] {
	edges := rapid.SampledFrom([]time.Duration{
		math.MinInt64, math.MinInt64 + 1, -time.Hour, -1, 0, 1, time.Microsecond, redelivery.MinDelay - 1, redelivery.MinDelay, redelivery.MinDelay + 1,
		redelivery.Early - 1, redelivery.Early, redelivery.Early + 1, time.Second - 1, time.Second, time.Second + 1, time.Minute, time.Hour, 24 * time.Hour,
		redelivery.MaxDelay - 1, redelivery.MaxDelay, redelivery.MaxDelay + 1, math.MaxInt64 / 3, math.MaxInt64/2 + 1, math.MaxInt64 - 1, math.MaxInt64,
	})
	usual := rapid.Map(rapid.Int64Range(1, int64(3*time.Hour)), func(n int64) time.Duration { return time.Duration(n) })
	any := rapid.Map(rapid.Int64(), func(n int64) time.Duration { return time.Duration(n) })
	return rapid.OneOf(edges, usual, any)
}

func counts() *rapid.Generator[int] {
	edges := rapid.SampledFrom([]int{math.MinInt, -1, 0, 1, 2, 3, 4, 5, 60, 61, 62, 63, 64, math.MaxInt32 - 1, math.MaxInt32, math.MaxInt - 1, math.MaxInt})
	return rapid.OneOf(edges, rapid.IntRange(0, 12), rapid.Int())
}

func chances() *rapid.Generator[float64] {
	edges := rapid.SampledFrom([]float64{
		0, math.Copysign(0, -1), math.SmallestNonzeroFloat64, 0.5, math.Nextafter(1, 0), 1, math.Nextafter(1, 2), 2, -1, 1e300, math.Inf(1), math.Inf(-1), math.NaN(),
	})
	return rapid.OneOf(edges, rapid.Float64Range(0, 1))
}

func curves() *rapid.Generator[redelivery.Curve] {
	return rapid.Custom(func(t *rapid.T) redelivery.Curve {
		c := redelivery.Curve{Jitter: redelivery.Jitter{
			Kind:    redelivery.JitterKind(rapid.IntRange(0, 6).Draw(t, "jitter")),
			Percent: rapid.OneOf(rapid.IntRange(1, 100), counts()).Draw(t, "percent"),
		}}
		if rapid.Bool().Draw(t, "explicit") {
			c.List = rapid.SliceOfN(durations(), 1, 6).Draw(t, "list")
			return c
		}
		c.Base, c.Cap = durations().Draw(t, "base"), durations().Draw(t, "cap")
		return c
	})
}

func policies() *rapid.Generator[redelivery.Policy] {
	return rapid.Custom(func(t *rapid.T) redelivery.Policy {
		return redelivery.Policy{
			Name:              "any",
			Pending:           curves().Draw(t, "pending"),
			Error:             curves().Draw(t, "error"),
			MaxAttempts:       counts().Draw(t, "max attempts"),
			MaxFailures:       counts().Draw(t, "max failures"),
			Window:            durations().Draw(t, "window"),
			OutageGrace:       durations().Draw(t, "outage grace"),
			HoldLimit:         durations().Draw(t, "hold limit"),
			NotFoundGrace:     durations().Draw(t, "grace"),
			UnauthorizedDelay: durations().Draw(t, "unauthorized delay"),
			MaxRetryAfter:     durations().Draw(t, "max Retry-After"),
			PoisonDeliveries:  counts().Draw(t, "poison deliveries"),
			MinInterval:       rapid.OneOf(rapid.Just(time.Duration(0)), durations()).Draw(t, "least interval"),
			NeverPoll:         rapid.IntRange(0, 3).Draw(t, "never asked") == 0,
		}
	})
}

// validPolicies draws policies that Validate accepts, small enough to be lived through.
func validPolicies() *rapid.Generator[redelivery.Policy] {
	seconds := func(t *rapid.T, name string, from, to int) time.Duration {
		return time.Duration(rapid.IntRange(from, to).Draw(t, name)) * time.Second
	}
	curve := rapid.Custom(func(t *rapid.T) redelivery.Curve {
		c := redelivery.Curve{Jitter: redelivery.Jitter{
			Kind:    redelivery.JitterKind(rapid.IntRange(0, 4).Draw(t, "jitter")),
			Percent: rapid.IntRange(1, 100).Draw(t, "percent"),
		}}
		if rapid.Bool().Draw(t, "explicit") {
			for range rapid.IntRange(1, 5).Draw(t, "length") {
				c.List = append(c.List, seconds(t, "delay", 1, 600))
			}
			return c
		}
		c.Base = time.Duration(rapid.IntRange(1, 60_000).Draw(t, "base ms")) * time.Millisecond
		c.Cap = c.Base + seconds(t, "cap beyond base", 0, 3600)
		return c
	})
	return rapid.Custom(func(t *rapid.T) redelivery.Policy {
		p := redelivery.Policy{
			Name:              "valid",
			Pending:           curve.Draw(t, "pending"),
			Error:             curve.Draw(t, "error"),
			MaxAttempts:       rapid.IntRange(0, 12).Draw(t, "max attempts"),
			MaxFailures:       rapid.IntRange(0, 8).Draw(t, "max failures"),
			OutageGrace:       seconds(t, "outage grace", 0, 7200),
			HoldLimit:         seconds(t, "hold limit", 0, 300),
			UnauthorizedDelay: seconds(t, "unauthorized delay", 1, 600),
			MaxRetryAfter:     seconds(t, "max Retry-After", 1, 3600),
			PoisonDeliveries:  rapid.SampledFrom([]int{0, 5, 6, 50}).Draw(t, "poison deliveries"),
			MinInterval:       rapid.SampledFrom([]time.Duration{0, 0, time.Second, 5 * time.Minute}).Draw(t, "least interval"),
		}
		if p.MaxAttempts == 0 || p.MaxFailures == 0 || rapid.Bool().Draw(t, "window too") {
			p.Window = seconds(t, "window", 1, 3600)
			p.NotFoundGrace = seconds(t, "grace", 0, int(p.Window/time.Second)-1)
		} else {
			p.NotFoundGrace = seconds(t, "grace", 0, 600)
		}
		if err := p.Validate(); err != nil {
			t.Fatalf("the generator made a policy that is refused: %v", err)
		}
		return p
	})
}

func answers() *rapid.Generator[*gateway.Answer] {
	return rapid.Custom(func(t *rapid.T) *gateway.Answer {
		return &gateway.Answer{
			Class:      gateway.Class(rapid.IntRange(0, len(gateway.Classes)).Draw(t, "class")), // the last is no class
			Status:     statuses().Draw(t, "answered status"),
			Detail:     rapid.SampledFrom([]string{"", "processing"}).Draw(t, "detail"),
			RetryAfter: rapid.OneOf(rapid.Just(time.Duration(0)), durations()).Draw(t, "Retry-After"),
		}
	})
}

func statuses() *rapid.Generator[payment.Status] {
	return rapid.SampledFrom([]payment.Status{payment.Pending, payment.Succeeded, payment.Failed, payment.Cancelled, payment.Expired, "", "paid"})
}

func observations() *rapid.Generator[redelivery.Observation] {
	// Most observations are of a delivery that the record knows, or nothing but the first rows would be seen.
	mostly := rapid.Map(rapid.IntRange(0, 9), func(n int) bool { return n > 0 })
	return rapid.Custom(func(t *rapid.T) redelivery.Observation {
		o := redelivery.Observation{
			Tracked:       mostly.Draw(t, "tracked"),
			Status:        payment.Pending,
			TokenCurrent:  mostly.Draw(t, "token current"),
			Dead:          !mostly.Draw(t, "not dead"),
			UntilDue:      durations().Draw(t, "until due"),
			Age:           durations().Draw(t, "age"),
			HasDeadline:   rapid.Bool().Draw(t, "has deadline"),
			UntilDeadline: durations().Draw(t, "until deadline"),
			Counters: redelivery.Counters{
				Attempts: counts().Draw(t, "attempts"), Failures: counts().Draw(t, "failures"), NotFounds: counts().Draw(t, "not founds"),
				Deferrals: counts().Draw(t, "deferrals"), Replays: counts().Draw(t, "replays"),
			},
			Previous:   durations().Draw(t, "previous"),
			Unrecorded: counts().Draw(t, "unrecorded"),
			HoldsLeft:  counts().Draw(t, "holds left"),
			Open:       rapid.Bool().Draw(t, "open"),
			Paused:     rapid.OneOf(rapid.Just(time.Duration(0)), durations()).Draw(t, "paused"),
			Chance:     chances().Draw(t, "chance"),
		}
		if !mostly.Draw(t, "pending") {
			o.Status = statuses().Draw(t, "status")
		}
		if rapid.Bool().Draw(t, "answered") {
			o.Answer = answers().Draw(t, "answer")
		}
		return o
	})
}
