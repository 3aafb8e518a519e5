package limit

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"pollux/internal/breaker"
)

// Kind is why a call is made. The guaranteed shares of a limit are by kind.
type Kind uint8

// The kinds, in the order in which they get what another kind leaves over.
const (
	Fresh    Kind = iota // the scheduled poll of a pending payment
	Retry                // a poll that follows a failed one
	Deferred             // a poll that was put to sleep while the breaker was open
	Replay               // a poll that an operator asked for
	kinds    = 4
)

// Kinds are all kinds in a fixed order.
var Kinds = []Kind{Fresh, Retry, Deferred, Replay}

var kindNames = [kinds]string{"fresh", "retry", "deferred", "replay"}

// String returns the kind as it is configured, logged and used as a metric label.
func (k Kind) String() string { return kindNames[k.known()] }

// known makes a kind that does not exist the least of them.
func (k Kind) known() Kind { return min(k, Replay) }

// Rate is a number of calls a second. As a text it carries its unit: 60/s, 90/m, 1000/h. A bare number is refused.
type Rate float64

var units = []struct {
	name    string
	seconds float64
}{{"s", 1}, {"m", 60}, {"h", 3600}}

// ParseRate reads a rate as in 60/s, 0.5/s, 90/m or 1000/h.
func ParseRate(s string) (Rate, error) {
	number, unit, found := strings.Cut(strings.TrimSpace(s), "/")
	for _, u := range units {
		if !found || strings.TrimSpace(unit) != u.name {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(n >= 0) || math.IsInf(n, 0) {
			break
		}
		return Rate(n / u.seconds), nil
	}
	return 0, fmt.Errorf("rate %.40q: write calls with their unit of time, as in 60/s, 90/m or 1000/h", s)
}

// String returns the rate as ParseRate reads it.
func (r Rate) String() string {
	u := units[0]
	for _, longer := range units[1:] {
		if r <= 0 || float64(r)*u.seconds >= 1 {
			break
		}
		u = longer
	}
	n := math.Round(float64(r)*u.seconds*1e9) / 1e9
	return strconv.FormatFloat(n, 'f', -1, 64) + "/" + u.name
}

// MarshalText returns String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is ParseRate.
func (r *Rate) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRate(string(text))
	return err
}

// Shares are the parts of the calls that kinds are guaranteed, by Kind.
type Shares [kinds]breaker.Ratio

// Config is the limit of one account of a gateway, for the whole fleet. The zero value limits nothing but keeps pauses. Where a field says
// so, zero means a default.
type Config struct {
	// Rate is how many calls a second the fleet makes at the most; 0 means as many as it likes.
	Rate Rate
	// Burst is how many calls there can be at once after a quiet time. Over any stretch of t seconds the fleet makes at most Rate·t + Burst calls, so a
	// gateway that counts by the second sees at most Rate + Burst. 0 means what is made in a tenth of a second, at least 1.
	Burst int
	// Concurrency is how many calls of the fleet are under way at once; 0 means as many as it likes.
	Concurrency int
	// Shares are guaranteed to kinds that have work; what a kind does not use goes to the others, fresh first. Zero means DefaultShares.
	Shares Shares

	// Pause is how long a gateway is left alone that says "too many requests" without saying for how long. 0 means 1s.
	Pause time.Duration
	// MaxPause is the longest that a gateway can ask us to stay away. 0 means 15m.
	MaxPause time.Duration
	// Floor is the least part of Rate that repeated complaints of the gateway bring it down to. 0% means 10%.
	Floor breaker.Ratio
	// Recovery is how long the rate takes to rise again from nothing to Rate; from 70% it takes three tenths of it. 0 means 2m.
	Recovery time.Duration
	// MaxWait is the longest that a call waits here for its turn; one that would wait longer is sent away at once and may come again. 0
	// means 5s.
	MaxWait time.Duration
}

// DefaultShares are used where none are given: most for what is new, a little for each of the rest, so that no backlog stands still.
func DefaultShares() Shares {
	return Shares{Fresh: breaker.Percent(60), Retry: breaker.Percent(25), Deferred: breaker.Percent(10), Replay: breaker.Percent(5)}
}

const (
	defaultPause    = time.Second
	defaultMaxPause = 15 * time.Minute
	defaultRecovery = 2 * time.Minute
	defaultMaxWait  = 5 * time.Second

	// slowest is one call an hour; what is slower is a schedule, not a limit.
	slowest Rate = 1.0 / 3600
	fastest Rate = 1_000_000
)

// Limited reports whether there is a limit on the rate or on the calls under way.
func (c Config) Limited() bool { return c.Rate > 0 || c.Concurrency > 0 }

// Seats is into how many parts the limit can be divided so that each still allows a call; 0 means any number. When the fleet has more
// members, the others stand by.
func (c Config) Seats() int {
	c = c.withDefaults()
	switch {
	case c.Rate == 0:
		return c.Concurrency
	case c.Concurrency == 0:
		return c.Burst
	}
	return min(c.Burst, c.Concurrency)
}

func (c Config) withDefaults() Config {
	orElse := func(d *time.Duration, other time.Duration) {
		if *d == 0 {
			*d = other
		}
	}
	orElse(&c.Pause, defaultPause)
	orElse(&c.MaxPause, defaultMaxPause)
	orElse(&c.Recovery, defaultRecovery)
	orElse(&c.MaxWait, defaultMaxWait)
	if c.Burst == 0 {
		c.Burst = max(1, int(c.Rate/10))
	}
	if c.Shares == (Shares{}) {
		c.Shares = DefaultShares()
	}
	if c.Floor == (breaker.Ratio{}) {
		c.Floor = breaker.Percent(10)
	}
	return c
}

// Validate returns every problem of the configuration at once, each saying what to write instead.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if c.Rate != 0 && !(c.Rate >= slowest && c.Rate <= fastest) {
		bad("rate %s: 0/s (no limit) or between %s and %s", c.Rate, slowest, fastest)
	}
	if c.Burst < 0 || c.Burst > 1_000_000 {
		bad("burst %d: between 0 (the default, what is made in a tenth of a second) and 1000000", c.Burst)
	}
	if c.Concurrency < 0 || c.Concurrency > 1_000_000 {
		bad("concurrency %d: between 0 (no limit) and 1000000", c.Concurrency)
	}
	d := c.withDefaults()
	sum := 0.0
	for _, k := range Kinds {
		share := d.Shares[k].Float()
		if sum += share; share < 0.01 {
			bad("share of %s %s: at least 1%%, or a backlog of another kind would starve it", k, d.Shares[k])
		}
	}
	if math.Abs(sum-1) > 1e-9 {
		bad("shares add up to %g%%: make it 100%%", math.Round(sum*1e4)/100)
	}
	between := func(name string, d, low, high time.Duration) {
		if d < low || d > high {
			bad("%s %s: between %s and %s", name, d, low, high)
		}
	}
	between("max_pause", d.MaxPause, time.Second, 24*time.Hour)
	between("pause", d.Pause, 10*time.Millisecond, max(d.MaxPause, time.Second))
	between("recovery", d.Recovery, time.Second, 24*time.Hour)
	between("max_wait", d.MaxWait, time.Millisecond, time.Minute)
	return errors.Join(errs...)
}
