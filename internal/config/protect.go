package config

import (
	"time"

	"pollux/internal/breaker"
	"pollux/internal/limit"
)

// Limits say how often a gateway is called, by the whole fleet. Each of its accounts has such limits for itself.
type Limits struct {
	Rate        limit.Rate    `koanf:"rate"`        // Calls a second, a minute or an hour: `25/s`, `100/m`, `1000/h`. `0/s`: no bound. The instances share it, and one that dies gives its part back within seconds.
	Burst       *int          `koanf:"burst"`       // Calls at once after a quiet time: in any second the gateway sees at most rate and burst together. Not written: what the rate makes in a tenth of a second, at least 1. With fewer than there are instances, some stand by.
	Concurrency int           `koanf:"concurrency"` // Calls under way at once. 0: no bound but that of the workers. With fewer than there are instances, some stand by.
	Shares      Shares        `koanf:"shares"`      // The parts of the rate that kinds of work are guaranteed while they have any; what one leaves over is for the others, fresh first. Together 100%.
	Pause       time.Duration `koanf:"pause"`       // How long the gateway is left alone when it says that we ask too often and not for how long.
	MaxPause    time.Duration `koanf:"max_pause"`   // What the gateway asks us to stay away is cut to this.
	Floor       breaker.Ratio `koanf:"floor"`       // The least part of the rate that the gateway's complaints bring it down to: each one takes 30% of it.
	Recovery    time.Duration `koanf:"recovery"`    // How long the rate takes to rise again from nothing to all of it; after one complaint three tenths of that.
	MaxWait     time.Duration `koanf:"max_wait"`    // The longest that a poll waits for its turn; one that would wait longer comes again later. Together with the gateway's timeout below `consumer.ack_wait`.
}

// Shares are guaranteed parts of a rate.
type Shares struct {
	Fresh    breaker.Ratio `koanf:"fresh"`    // Polls of pending payments when they are due.
	Retry    breaker.Ratio `koanf:"retry"`    // Polls after a call that failed.
	Deferred breaker.Ratio `koanf:"deferred"` // Polls that slept while the breaker was open.
	Replay   breaker.Ratio `koanf:"replay"`   // Polls that an operator asked for.
}

// Breaker says when a gateway is not called any more, by the whole fleet, and how it comes back. Each of its accounts has such a breaker for itself.
type Breaker struct {
	Window              time.Duration   `koanf:"window"`               // How long a call counts.
	MinCalls            int             `koanf:"min_calls"`            // Calls in the window before a ratio says anything.
	FailureRatio        breaker.Ratio   `koanf:"failure_ratio"`        // Of the calls in the window; opens. Failures are calls without an answer, 5xx and answers that make no sense.
	ConsecutiveFailures int             `koanf:"consecutive_failures"` // Failures in a row; opens, however long they took: a gateway that is asked once an hour must trip too.
	SlowCall            time.Duration   `koanf:"slow_call"`            // A call that takes so long, finished or not, is slow. Not written: half of the gateway's timeout or of the window where that is shorter. `0s`: none is.
	SlowRatio           breaker.Ratio   `koanf:"slow_ratio"`           // Slow ones of the calls in the window; opens.
	CredentialFailures  int             `koanf:"credential_failures"`  // Refusals of our key in a row; opens.
	Cooldown            Cooldown        `koanf:"cooldown"`             // How long it stays open before a probe.
	CredentialCooldown  Cooldown        `koanf:"credential_cooldown"`  // The same after our key was refused: asking again with it helps nobody, and may lock the account.
	Probes              int             `koanf:"probes"`               // Calls at once while it finds out whether the gateway is back, of the whole fleet. At most 16.
	ProbeDeadline       time.Duration   `koanf:"probe_deadline"`       // A probe that has not come back by then gives its place to another. Longer than the gateway's timeout.
	ProbePause          time.Duration   `koanf:"probe_pause"`          // No probe for so long after one that told nothing.
	Successes           int             `koanf:"successes"`            // Probes that must succeed before it closes.
	Ramp                []breaker.Ratio `koanf:"ramp"`                 // The parts of the calls that are let in after it has closed, step by step, the last one `100%`.
	RampStep            time.Duration   `koanf:"ramp_step"`            // How long a step lasts.
	RampTolerance       breaker.Ratio   `koanf:"ramp_tolerance"`       // A failure takes the ramp a step back when more of the calls since it closed failed than this, and each step back adds it once more: a gateway that fails as much at a smaller share does not fail for being called too much. `0%`: any failure does.
}

// Cooldown is how long a breaker stays open, half of it left to chance.
type Cooldown struct {
	Base time.Duration `koanf:"base"` // After the first opening; twice as long after each further one without a full recovery between.
	Cap  time.Duration `koanf:"cap"`  // At the longest.
}

// defaultLimits bound neither rate nor calls under way: nobody but the gateway's owner knows them. What complaints of the gateway do to a rate is
// as package limit has it when it is told nothing.
func defaultLimits() Limits {
	s := limit.DefaultShares()
	return Limits{
		Shares:   Shares{Fresh: s[limit.Fresh], Retry: s[limit.Retry], Deferred: s[limit.Deferred], Replay: s[limit.Replay]},
		Pause:    time.Second,
		MaxPause: 15 * time.Minute,
		Floor:    breaker.Percent(10),
		Recovery: 2 * time.Minute,
		MaxWait:  5 * time.Second,
	}
}

func defaultBreaker() Breaker {
	d := breaker.Defaults()
	return Breaker{
		Window: d.Window, MinCalls: d.MinCalls, FailureRatio: d.FailureRatio, ConsecutiveFailures: d.ConsecutiveFailures,
		SlowCall: d.SlowCall, SlowRatio: d.SlowRatio, CredentialFailures: d.CredentialFailures,
		Cooldown: Cooldown(d.Cooldown), CredentialCooldown: Cooldown(d.CredentialCooldown),
		Probes: d.Probes, ProbeDeadline: d.ProbeDeadline, ProbePause: d.ProbePause, Successes: d.Successes,
		Ramp: d.Ramp, RampStep: d.RampStep, RampTolerance: d.RampTolerance,
	}
}

// LimitConfig is how the calls to each account of the gateway are limited.
func (g Gateway) LimitConfig() limit.Config {
	l := g.Limits
	c := limit.Config{
		Rate: l.Rate, Concurrency: l.Concurrency,
		Shares: limit.Shares{limit.Fresh: l.Shares.Fresh, limit.Retry: l.Shares.Retry, limit.Deferred: l.Shares.Deferred, limit.Replay: l.Shares.Replay},
		Pause:  l.Pause, MaxPause: l.MaxPause, Floor: l.Floor, Recovery: l.Recovery, MaxWait: l.MaxWait,
	}
	if l.Burst != nil {
		c.Burst = *l.Burst
	}
	return c
}

// BreakerConfig is when the breaker of each account of the gateway opens and how it recovers.
func (g Gateway) BreakerConfig() breaker.Config {
	b := g.Breaker
	return breaker.Config{
		Window: b.Window, MinCalls: b.MinCalls, FailureRatio: b.FailureRatio, ConsecutiveFailures: b.ConsecutiveFailures,
		SlowCall: b.SlowCall, SlowRatio: b.SlowRatio, CredentialFailures: b.CredentialFailures,
		Cooldown: breaker.Cooldown(b.Cooldown), CredentialCooldown: breaker.Cooldown(b.CredentialCooldown),
		Probes: b.Probes, ProbeDeadline: b.ProbeDeadline, ProbePause: b.ProbePause, Successes: b.Successes,
		Ramp: b.Ramp, RampStep: b.RampStep, RampTolerance: b.RampTolerance,
	}
}
