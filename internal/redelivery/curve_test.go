package redelivery_test

import (
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/redelivery"
)

func TestDelaysAtTheLimits(t *testing.T) {
	const least, most = redelivery.MinDelay, redelivery.MaxDelay
	almost := math.Nextafter(1, 0)
	list := []time.Duration{time.Minute, 5 * time.Minute, 3 * time.Hour}
	jitter := func(k redelivery.JitterKind, percent int) redelivery.Jitter {
		return redelivery.Jitter{Kind: k, Percent: percent}
	}
	for name, c := range map[string]struct {
		curve    redelivery.Curve
		n        int
		previous time.Duration
		chance   float64
		want     time.Duration
	}{
		"first":                     {redelivery.Curve{Base: time.Second, Cap: time.Minute}, 0, 0, 0.5, time.Second},
		"doubles":                   {redelivery.Curve{Base: time.Second, Cap: time.Minute}, 5, 0, 0.5, 32 * time.Second},
		"reaches the cap":           {redelivery.Curve{Base: time.Second, Cap: time.Minute}, 6, 0, 0.5, time.Minute},
		"lands on the cap":          {redelivery.Curve{Base: time.Second, Cap: 64 * time.Second}, 6, 0, 0.5, 64 * time.Second},
		"stays at the cap":          {redelivery.Curve{Base: time.Second, Cap: time.Minute}, math.MaxInt, 0, 0.5, time.Minute},
		"negative n":                {redelivery.Curve{Base: time.Second, Cap: time.Minute}, math.MinInt, 0, 0.5, time.Second},
		"n at the width of an int":  {redelivery.Curve{Base: 1, Cap: most}, 62, 0, 0, most},
		"n just below":              {redelivery.Curve{Base: 1, Cap: most}, 54, 0, 0, 1 << 54},
		"tiny base":                 {redelivery.Curve{Base: 1, Cap: time.Minute}, 3, 0, 0, least},
		"huge cap":                  {redelivery.Curve{Base: time.Hour, Cap: math.MaxInt64}, 60, 0, 0, most},
		"huge base":                 {redelivery.Curve{Base: math.MaxInt64, Cap: math.MaxInt64}, 1, 0, 0, most},
		"no cap":                    {redelivery.Curve{Base: time.Second}, 3, 0, 0, least},
		"no curve":                  {redelivery.Curve{}, 3, 0, 0, least},
		"negative base":             {redelivery.Curve{Base: -1, Cap: time.Minute}, 0, 0, 0, time.Minute},
		"list":                      {redelivery.Curve{List: list}, 1, 0, 0.5, 5 * time.Minute},
		"list repeats its last":     {redelivery.Curve{List: list}, math.MaxInt, 0, 0.5, 3 * time.Hour},
		"list with zero":            {redelivery.Curve{List: []time.Duration{0}}, 0, 0, 0.5, least},
		"list with a negative":      {redelivery.Curve{List: []time.Duration{-time.Hour}}, 0, 0, 0.5, least},
		"list with too much":        {redelivery.Curve{List: []time.Duration{math.MaxInt64}}, 0, 0, 0.5, most},
		"full, least":               {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(redelivery.JitterFull, 0)}, 3, 0, 0, least},
		"full, half":                {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(redelivery.JitterFull, 0)}, 3, 0, 0.5, 4 * time.Second},
		"equal, least":              {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(redelivery.JitterEqual, 0)}, 3, 0, 0, 4 * time.Second},
		"equal, half":               {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(redelivery.JitterEqual, 0)}, 3, 0, 0.5, 6 * time.Second},
		"decorrelated, first":       {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(redelivery.JitterDecorrelated, 0)}, 0, 0, 0.5, 2 * time.Second},
		"decorrelated, next":        {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(redelivery.JitterDecorrelated, 0)}, 9, 7 * time.Second, 0.5, 11 * time.Second},
		"decorrelated, capped":      {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(redelivery.JitterDecorrelated, 0)}, 0, math.MaxInt64, almost, time.Minute - 1},
		"decorrelated, nonsense":    {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(redelivery.JitterDecorrelated, 0)}, 0, math.MinInt64, 0, time.Second},
		"percent, least":            {redelivery.Curve{List: list, Jitter: jitter(redelivery.JitterPercent, 20)}, 0, 0, 0, 48 * time.Second},
		"percent, half":             {redelivery.Curve{List: list, Jitter: jitter(redelivery.JitterPercent, 20)}, 0, 0, 0.5, time.Minute},
		"percent never above a cap": {redelivery.Curve{Base: time.Minute, Cap: time.Minute, Jitter: jitter(redelivery.JitterPercent, 50)}, 0, 0, almost, time.Minute},
		"percent of 100, least":     {redelivery.Curve{List: list, Jitter: jitter(redelivery.JitterPercent, 100)}, 0, 0, 0, least},
		"percent of too much":       {redelivery.Curve{List: []time.Duration{math.MaxInt64}, Jitter: jitter(redelivery.JitterPercent, math.MaxInt)}, 0, 0, almost, most},
		"chance below":              {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(redelivery.JitterEqual, 0)}, 3, 0, -5, 4 * time.Second},
		"chance above":              {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(redelivery.JitterEqual, 0)}, 3, 0, 5, 8*time.Second - 1},
		"chance not a number":       {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(redelivery.JitterEqual, 0)}, 3, 0, math.NaN(), 4 * time.Second},
		"unknown jitter is none":    {redelivery.Curve{Base: time.Second, Cap: time.Minute, Jitter: jitter(99, 0)}, 3, 0, 0.9, 8 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.curve.Delay(c.n, c.previous, c.chance)
			if diff := got - c.want; diff < -1 || diff > 1 { // a float64 rounds
				t.Errorf("delay %s, want %s", got, c.want)
			}
		})
	}
}

func TestDelayIsAlwaysWithinItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := curves().Draw(t, "curve")
		n, previous, chance := counts().Draw(t, "n"), durations().Draw(t, "previous"), chances().Draw(t, "chance")
		d := c.Delay(n, previous, chance)
		if d < redelivery.MinDelay || d > c.Max() || c.Max() > redelivery.MaxDelay {
			t.Fatalf("delay %s of a curve whose longest is %s", d, c.Max())
		}
		if len(c.List) == 0 && d > max(c.Cap, redelivery.MinDelay) {
			t.Fatalf("delay %s above the cap %s", d, c.Cap)
		}
		if again := c.Delay(n, previous, chance); again != d {
			t.Fatalf("%s, then %s", d, again)
		}
	})
}

// The plain curve is min(Cap, Base·2ⁿ), as whole numbers without bounds have it.
func TestPlainCurveIsWhatArithmeticSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := redelivery.Curve{
			Base: time.Duration(rapid.OneOf(rapid.Int64Range(1, int64(time.Hour)), rapid.Int64Range(1, math.MaxInt64)).Draw(t, "base")),
			Cap:  durations().Draw(t, "cap"),
		}
		n := rapid.IntRange(0, 200).Draw(t, "n")
		want := new(big.Int).Lsh(big.NewInt(int64(c.Base)), uint(n))
		for _, bound := range []time.Duration{c.Cap, redelivery.MaxDelay} {
			if b := big.NewInt(int64(bound)); want.Cmp(b) > 0 {
				want = b
			}
		}
		if least := big.NewInt(int64(redelivery.MinDelay)); want.Cmp(least) < 0 {
			want = least
		}
		if got := c.Delay(n, 0, 0); big.NewInt(int64(got)).Cmp(want) != 0 {
			t.Fatalf("delay %d, want %s", got, want)
		}
	})
}

func TestPlainCurveNeverShrinks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := redelivery.Curve{Base: durations().Draw(t, "base"), Cap: durations().Draw(t, "cap")}
		n := counts().Filter(func(n int) bool { return n < math.MaxInt }).Draw(t, "n")
		if a, b := c.Delay(n, 0, 0), c.Delay(n+1, 0, 0); b < a {
			t.Fatalf("delay %s after %d, %s after %d", a, n, b, n+1)
		}
	})
}

func TestListIsFollowedAndItsLastRepeats(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := redelivery.Curve{List: rapid.SliceOfN(durations(), 1, 8).Draw(t, "list")}
		n := counts().Draw(t, "n")
		want := min(max(c.List[min(max(n, 0), len(c.List)-1)], redelivery.MinDelay), redelivery.MaxDelay)
		if got := c.Delay(n, 0, 0); got != want {
			t.Fatalf("delay %s, want %s", got, want)
		}
	})
}

func TestJitterKeepsToItsRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := validPolicies().Draw(t, "policy").Error
		n := rapid.IntRange(0, 80).Draw(t, "n")
		previous := time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "previous"))
		chance := rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "chance")
		plain := c
		plain.Jitter = redelivery.Jitter{}
		d, p, first := c.Delay(n, previous, chance), plain.Delay(n, 0, 0), plain.Delay(0, 0, 0)
		low, high := p, p
		switch share := time.Duration(c.Jitter.Percent); c.Jitter.Kind {
		case redelivery.JitterFull:
			low = 0
		case redelivery.JitterEqual:
			low = p / 2
		case redelivery.JitterDecorrelated:
			low, high = first, 3*max(previous, first)
		case redelivery.JitterPercent:
			low, high = p-p*share/100, p+p*share/100
		}
		low, high = max(low-1, redelivery.MinDelay), min(high+1, c.Max())
		if d < low || d > high {
			t.Fatalf("delay %s, not in [%s, %s]", d, low, high)
		}
	})
}

// A storm of payments that fell due at once does not come again at once.
func TestJitterSpreadsAStorm(t *testing.T) {
	const payments, buckets = 10_000, 100
	for _, kind := range []redelivery.JitterKind{redelivery.JitterFull, redelivery.JitterEqual, redelivery.JitterDecorrelated, redelivery.JitterPercent} {
		c := redelivery.Curve{Base: time.Minute, Cap: time.Hour, Jitter: redelivery.Jitter{Kind: kind, Percent: 20}}
		var delays []time.Duration
		for i := range payments {
			delays = append(delays, c.Delay(0, 0, float64(i)/payments))
		}
		slices.Sort(delays)
		width := delays[payments-1] - delays[0]
		if width < 20*time.Second {
			t.Errorf("jitter %d: all within %s", kind, width)
		}
		count := map[time.Duration]int{}
		for _, d := range delays {
			count[(d-delays[0])*buckets/(width+1)]++
		}
		for b, n := range count {
			if n > 2*payments/buckets {
				t.Errorf("jitter %d: %d of %d in bucket %d of %d", kind, n, payments, b, buckets)
			}
		}
	}
}

func TestPolicyNamesAllItsProblemsAtOnce(t *testing.T) {
	if err := examplePolicy.Validate(); err != nil {
		t.Fatalf("a good policy is refused: %v", err)
	}
	bad := redelivery.Policy{
		Pending:          redelivery.Curve{List: []time.Duration{time.Minute, 0, redelivery.MaxDelay + 1}, Base: time.Second, Jitter: redelivery.Jitter{Kind: 9}},
		Error:            redelivery.Curve{Base: time.Minute, Cap: time.Second, Jitter: redelivery.Jitter{Kind: redelivery.JitterPercent, Percent: 101}},
		HoldLimit:        5*time.Minute + 1,
		NotFoundGrace:    -1,
		MaxRetryAfter:    25 * time.Hour,
		PoisonDeliveries: 4,
	}
	err := bad.Validate()
	if err == nil {
		t.Fatal("a bad policy is accepted")
	}
	for _, want := range []string{
		"name", "pending: list, or base", "pending: list[1]", "pending: list[2]", "pending: jitter", "error: cap", "error: jitter",
		"max_attempts and window", "max_failures and window", "hold_limit", "not_found_grace", "unauthorized_delay", "max_retry_after", "poison_deliveries",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not among the problems:\n%v", want, err)
		}
	}
}

func TestPolicyIsAcceptedUpToItsLimits(t *testing.T) {
	change := func(f func(*redelivery.Policy)) redelivery.Policy {
		p := examplePolicy
		f(&p)
		return p
	}
	for name, c := range map[string]struct {
		policy redelivery.Policy
		want   string // a word of the error; empty when it is accepted
	}{
		"least interval of a day":   {change(func(p *redelivery.Policy) { p.MinInterval = 24 * time.Hour }), ""},
		"least interval of more":    {change(func(p *redelivery.Policy) { p.MinInterval = 24*time.Hour + 1 }), "min_interval"},
		"never asked, no window":    {change(func(p *redelivery.Policy) { p.NeverPoll, p.Window = true, 0 }), "window 0s"},
		"never asked, with one":     {change(func(p *redelivery.Policy) { p.NeverPoll = true }), ""},
		"hold limit of 0":           {change(func(p *redelivery.Policy) { p.HoldLimit = 0 }), ""},
		"hold limit of 5m":          {change(func(p *redelivery.Policy) { p.HoldLimit = 5 * time.Minute }), ""},
		"hold limit below 0":        {change(func(p *redelivery.Policy) { p.HoldLimit = -1 }), "hold_limit"},
		"window alone":              {change(func(p *redelivery.Policy) { p.MaxAttempts, p.MaxFailures = 0, 0 }), ""},
		"attempts and failures":     {change(func(p *redelivery.Policy) { p.Window = 0 }), ""},
		"attempts alone":            {change(func(p *redelivery.Policy) { p.Window, p.MaxFailures = 0, 0 }), "max_failures"},
		"failures alone":            {change(func(p *redelivery.Policy) { p.Window, p.MaxAttempts = 0, 0 }), "max_attempts"},
		"negative bound":            {change(func(p *redelivery.Policy) { p.MaxFailures = -1 }), "max_failures"},
		"grace up to the window":    {change(func(p *redelivery.Policy) { p.NotFoundGrace = p.Window - 1 }), ""},
		"grace of the window":       {change(func(p *redelivery.Policy) { p.NotFoundGrace = p.Window }), "not_found_grace"},
		"grace without a window":    {change(func(p *redelivery.Policy) { p.Window, p.NotFoundGrace = 0, 48*time.Hour }), ""},
		"unauthorized after 1s":     {change(func(p *redelivery.Policy) { p.UnauthorizedDelay = time.Second }), ""},
		"unauthorized after less":   {change(func(p *redelivery.Policy) { p.UnauthorizedDelay = time.Second - 1 }), "unauthorized_delay"},
		"unauthorized after a week": {change(func(p *redelivery.Policy) { p.UnauthorizedDelay = 168 * time.Hour }), "unauthorized_delay"},
		"Retry-After of a day":      {change(func(p *redelivery.Policy) { p.MaxRetryAfter = 24 * time.Hour }), ""},
		"Retry-After below 1s":      {change(func(p *redelivery.Policy) { p.MaxRetryAfter = time.Second - 1 }), "max_retry_after"},
		"never poison":              {change(func(p *redelivery.Policy) { p.PoisonDeliveries = 0 }), ""},
		"base of 0":                 {change(func(p *redelivery.Policy) { p.Error.Base = 0 }), "base"},
		"cap of base":               {change(func(p *redelivery.Policy) { p.Error.Cap = p.Error.Base }), ""},
		"cap beyond all":            {change(func(p *redelivery.Policy) { p.Error.Cap = redelivery.MaxDelay + 1 }), "cap"},
		"jitter of 0 %":             {change(func(p *redelivery.Policy) { p.Error.Jitter = redelivery.Jitter{Kind: redelivery.JitterPercent} }), "jitter"},
		"jitter of 100 %": {change(func(p *redelivery.Policy) {
			p.Error.Jitter = redelivery.Jitter{Kind: redelivery.JitterPercent, Percent: 100}
		}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.policy.Validate()
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want one about %s", err, c.want)
			}
		})
	}
}
