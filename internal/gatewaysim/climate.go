package gatewaysim

import (
	"math"
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// climate is conditions made ready for use: which scenario they come from, since when they hold, and what they are asked for at
// every call. Only its token bucket changes.
type climate struct {
	Conditions
	scenario string
	since    time.Time
	ladder   []rung
	bucket   *rate.Limiter // nil without a limit
}

// rung is a fault and the chance below which a call gets it.
type rung struct {
	below float64
	fault Outcome
}

func newClimate(scenario string, c Conditions, since time.Time) *climate {
	cl := &climate{Conditions: c, scenario: scenario, since: since}
	var sum float64
	for _, s := range c.Faults {
		sum += s.Rate
		cl.ladder = append(cl.ladder, rung{sum, s.Fault})
	}
	if c.Limit.Rate > 0 {
		burst := c.Limit.Burst
		if burst == 0 {
			burst = int(math.Ceil(c.Limit.Rate / 10))
		}
		cl.bucket = rate.NewLimiter(rate.Limit(c.Limit.Rate), burst)
	}
	return cl
}

// down returns how the gateway is down at that time, and Answered when it is up.
func (c *climate) down(at time.Duration) Outcome {
	for _, o := range c.Outages {
		if o.holds(at) {
			return downWith(o.With)
		}
	}
	if c.Flapping.down(at) {
		return downWith(c.Flapping.With)
	}
	return Answered
}

// keyExpired reports whether every key is refused at that time.
func (c *climate) keyExpired(at time.Duration) bool {
	for _, w := range c.ExpiredKey {
		if w.holds(at) {
			return true
		}
	}
	return false
}

// brownout returns the brownout of that time, nil when there is none.
func (c *climate) brownout(at time.Duration) *Brownout {
	for i := range c.Brownouts {
		if c.Brownouts[i].holds(at) {
			return &c.Brownouts[i]
		}
	}
	return nil
}

// troubles are the windows in which something is wrong with every call, flapping excepted.
func (c *climate) troubles() []Window {
	all := slices.Clone(c.ExpiredKey)
	for _, o := range c.Outages {
		all = append(all, o.Window)
	}
	for _, b := range c.Brownouts {
		all = append(all, b.Window)
	}
	return all
}

// well is Simulator.Well.
func (c *climate) well(now time.Time) (time.Time, bool) {
	at, last := now.Sub(c.since), time.Duration(-1)
	for _, w := range c.troubles() {
		if w.holds(at) {
			return time.Time{}, false
		}
		if w.To <= at {
			last = max(last, w.To)
		}
	}
	if period := c.Flapping.Up + c.Flapping.Down; c.Flapping.Down > 0 && at >= period {
		last = max(last, at.Truncate(period))
	}
	if last < 0 || c.Flapping.down(at) {
		return time.Time{}, false
	}
	return c.since.Add(last), true
}

// roll returns the fault of a chance, Answered for most.
func (c *climate) roll(chance float64) Outcome {
	for _, r := range c.ladder {
		if chance < r.below {
			return r.fault
		}
	}
	return Answered
}

// limited reports whether a call at that time is one too many.
func (c *climate) limited(at time.Time) bool { return c.bucket != nil && !c.bucket.AllowN(at, 1) }

// retryAfter is what a refused call is told: whole seconds, rounded up, at least one.
func (c *climate) retryAfter() time.Duration {
	return max(c.Limit.RetryAfter+time.Second-1, time.Second).Truncate(time.Second)
}
