package gatewaysim

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Conditions are what calls meet. The zero value answers every call rightly, at once. Windows count from the moment at which the
// conditions were set.
type Conditions struct {
	Latency     time.Duration // before every answer
	Jitter      time.Duration // and up to so much more
	Faults      []Share       // what goes wrong with a call, by chance
	FaultsInRow int           // after so many failed calls of a payment, one goes well; 0 means no bound
	Late        Late          // payments that the gateway does not know at once
	Limit       Limit         // the rate above which it answers 429
	Outages     []Outage      // when it is down
	Flapping    Flapping      // up and down, again and again
	Brownouts   []Brownout    // when it is slow and some calls fail
	ExpiredKey  []Window      // when it refuses every key
	Mix         Mix           // what Generate makes
}

// Share is the share of calls that a fault is given to.
type Share struct {
	Fault Outcome
	Rate  float64 // between 0 and 1
}

// Late is the share of payments that are not found during the first For after their first call: gateways answer from replicas.
type Late struct {
	For   time.Duration
	Share float64
}

// Limit is a token bucket. The zero value has no limit.
type Limit struct {
	Rate       float64       // calls per second; 0 means no limit
	Burst      int           // calls at once; 0 means a tenth of a second's
	RetryAfter time.Duration // what a refused call is told, in whole seconds; at least one
	Dates      float64       // the share of refused calls that are told as an HTTP date
}

// Mix is what Generate makes payments from. Shares are between 0 and 1; what is left of them succeeds.
type Mix struct {
	MinPending, MaxPending     int // pending answers before the final one
	Failed, Cancelled, Expired float64
	Flawed                     float64   // payments that never answer rightly
	Flaws                      []Outcome // the faults that those show, each as often
}

// Validate returns every problem of the conditions at once.
func (c Conditions) Validate() error {
	var errs []error
	check := func(ok bool, format string, a ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, a...))
		}
	}
	check(c.Latency >= 0 && c.Jitter >= 0, "latency %s and jitter %s: not below 0s", c.Latency, c.Jitter)
	check(c.Latency < time.Hour && c.Jitter < time.Hour, "latency %s and jitter %s: below 1h", c.Latency, c.Jitter)
	check(c.FaultsInRow >= 0, "faults in a row %d: not below 0", c.FaultsInRow)
	check(c.Late.For >= 0 && share(c.Late.Share), "late: not below 0s, and a share between 0 and 1")
	errs = append(errs, validateShares(c.Faults), c.Limit.validate(), c.Flapping.validate(), c.Mix.validate())
	for _, o := range c.Outages {
		errs = append(errs, o.validate())
	}
	for _, b := range c.Brownouts {
		errs = append(errs, b.validate())
	}
	for _, w := range c.ExpiredKey {
		errs = append(errs, w.validate())
	}
	return errors.Join(errs...)
}

func validateShares(shares []Share) error {
	var sum float64
	for _, s := range shares {
		if !s.Fault.fault() {
			return fmt.Errorf("fault %s: not something that a share of calls can be given", s.Fault)
		}
		if !share(s.Rate) {
			return fmt.Errorf("fault %s: rate %v: between 0 and 1", s.Fault, s.Rate)
		}
		sum += s.Rate
	}
	if sum > 1+1e-9 {
		return fmt.Errorf("faults: their rates sum up to %v, more than 1", sum)
	}
	return nil
}

func (l Limit) validate() error {
	if !(l.Rate >= 0) || math.IsInf(l.Rate, 0) || l.Burst < 0 || l.RetryAfter < 0 || !share(l.Dates) {
		return fmt.Errorf("limit: rate, burst and retry-after not below 0, dates a share between 0 and 1")
	}
	return nil
}

func (m Mix) validate() error {
	if m.MinPending < 0 || m.MaxPending < m.MinPending || m.MaxPending > MaxPending {
		return fmt.Errorf("mix: pending answers from %d to %d: from 0 to at most %d", m.MinPending, m.MaxPending, MaxPending)
	}
	if !share(m.Failed) || !share(m.Cancelled) || !share(m.Expired) || !share(m.Flawed) || !share(m.Failed+m.Cancelled+m.Expired) {
		return fmt.Errorf("mix: shares between 0 and 1, failed, cancelled and expired together too")
	}
	if m.Flawed > 0 && len(m.Flaws) == 0 {
		return fmt.Errorf("mix: a flawed share needs flaws")
	}
	for _, f := range m.Flaws {
		if !f.fault() || f == Unauthorized {
			return fmt.Errorf("mix: flaw %s: not something that one payment can show", f)
		}
	}
	return nil
}

func share(x float64) bool { return x >= 0 && x <= 1 }
