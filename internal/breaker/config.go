package breaker

import (
	"errors"
	"fmt"
	"time"
)

// The limits of every configuration.
const (
	// MaxProbes is how many probes there can be at once.
	MaxProbes = 16
	// MaxForced is how long a state can be forced for. A forced state that nobody remembers is worse than the outage that it was made for.
	MaxForced = 7 * 24 * time.Hour
	// maxRamp is how many steps a ramp can have.
	maxRamp = 16
	// buckets is into how many parts the window is divided: a call leaves it at most a tenth of a window late.
	buckets = 10
)

// Config says when a breaker opens and how it recovers. The zero value is refused by New; start from Defaults.
type Config struct {
	// Availability: transport failures, 5xx, malformed answers.
	Window              time.Duration // how long a call counts
	MinCalls            int           // calls in the window before a ratio says anything
	FailureRatio        Ratio         // of the calls in the window: opens
	ConsecutiveFailures int           // opens, however long they took: a gateway that is asked once an hour must trip too
	SlowCall            time.Duration // a call that takes so long, finished or not, is slow; 0 switches slow calls off
	SlowRatio           Ratio         // of the calls in the window: opens

	// Credentials: 401, 403, an expired key.
	CredentialFailures int // refusals in a row: opens

	Cooldown           Cooldown // how long it stays open after a trip for availability
	CredentialCooldown Cooldown // and after one for credentials: asking again with a bad key helps nobody, and may lock the account

	Probes        int           // calls at once while half-open, in the whole fleet
	ProbeDeadline time.Duration // a probe that has not come back by then gives its place to another; longer than a gateway call may take
	ProbePause    time.Duration // no probe for so long after one that was inconclusive
	Successes     int           // successful probes that close it

	Ramp          []Ratio       // the share of calls that is admitted after closing, step by step; the last is 100%
	RampStep      time.Duration // how long a step lasts
	RampTolerance Ratio         // a failure steps the ramp back when more of the calls since closing failed; 0% means at any failure; each step back adds it once more
}

// Cooldown is how long a breaker stays open: min(Cap, Base·2ⁿ) after n openings without recovery between, of which a half is
// left to chance ("equal jitter", AWS Architecture Blog, 2015), for many breakers open at the same moment.
type Cooldown struct{ Base, Cap time.Duration }

// Defaults returns the configuration that is used where none is given. Each value and its source is in docs/breaker.md.
func Defaults() Config {
	return Config{
		Window:              30 * time.Second,
		MinCalls:            20,
		FailureRatio:        Percent(50),
		ConsecutiveFailures: 5,
		SlowCall:            5 * time.Second,
		SlowRatio:           Percent(80),
		CredentialFailures:  3,
		Cooldown:            Cooldown{Base: 5 * time.Second, Cap: 30 * time.Second},
		CredentialCooldown:  Cooldown{Base: 30 * time.Second, Cap: 10 * time.Minute},
		Probes:              3,
		ProbeDeadline:       30 * time.Second,
		ProbePause:          time.Second,
		Successes:           3,
		Ramp:                []Ratio{Percent(1), Percent(2), Percent(5), Percent(10), Percent(25), Percent(50), Percent(100)},
		RampStep:            5 * time.Second,
		RampTolerance:       Percent(10),
	}
}

// Validate returns every problem of the configuration at once, each saying what to write instead.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	between := func(name string, d, low, high time.Duration) {
		if d < low || d > high {
			bad("%s %s: between %s and %s", name, d, low, high)
		}
	}
	count := func(name string, n, high int) {
		if n < 1 || n > high {
			bad("%s %d: between 1 and %d", name, n, high)
		}
	}
	between("window", c.Window, time.Second, time.Hour)
	count("min_calls", c.MinCalls, 1_000_000)
	if c.FailureRatio == (Ratio{}) {
		bad("failure_ratio 0%%: more than 0%%, or the breaker would open at once")
	}
	count("consecutive_failures", c.ConsecutiveFailures, 1_000_000)
	if c.SlowCall != 0 {
		between("slow_call", c.SlowCall, time.Millisecond, time.Hour)
		if c.SlowCall > c.Window/2 {
			bad("slow_call %s: at most half the window of %s, or slow calls leave it before they are seen; 0s switches it off", c.SlowCall, c.Window)
		}
		if c.SlowRatio == (Ratio{}) {
			bad("slow_ratio 0%%: more than 0%%, or the breaker would open at once; slow_call 0s switches it off")
		}
	}
	count("credential_failures", c.CredentialFailures, 1_000_000)
	for _, x := range []struct {
		name string
		Cooldown
	}{{"cooldown", c.Cooldown}, {"credential_cooldown", c.CredentialCooldown}} {
		between(x.name+" base", x.Base, 100*time.Millisecond, time.Hour)
		between(x.name+" cap", x.Cap, 100*time.Millisecond, 24*time.Hour)
		if x.Cap < x.Base {
			bad("%s cap %s is below its base %s", x.name, x.Cap, x.Base)
		}
	}
	count("probes", c.Probes, MaxProbes)
	between("probe_deadline", c.ProbeDeadline, 100*time.Millisecond, time.Hour)
	between("probe_pause", c.ProbePause, 10*time.Millisecond, c.ProbeDeadline)
	count("successes", c.Successes, 1000)
	errs = append(errs, c.validateRamp())
	return errors.Join(errs...)
}

func (c Config) validateRamp() error {
	if len(c.Ramp) == 0 || len(c.Ramp) > maxRamp || c.Ramp[len(c.Ramp)-1] != Percent(100) {
		return fmt.Errorf("ramp of %d steps: between 1 and %d, the last of them 100%%", len(c.Ramp), maxRamp)
	}
	var below Ratio
	for i, r := range c.Ramp {
		if r.hundredths <= below.hundredths {
			return fmt.Errorf("ramp[%d] = %s: more than the step before, %s", i, r, below)
		}
		below = r
	}
	if c.RampStep < 10*time.Millisecond || c.RampStep > time.Hour {
		return fmt.Errorf("ramp_step %s: between 10ms and 1h", c.RampStep)
	}
	return nil
}
