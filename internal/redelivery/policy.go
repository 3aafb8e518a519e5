package redelivery

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"time"
)

// The constants of every policy.
const (
	// MinDelay is the shortest delay there is: a NAK with a delay of zero or less is an immediate redelivery, thousands of times a second.
	MinDelay = time.Millisecond
	// MaxDelay is the longest delay there is. It keeps every sum of an instant and a delay inside a timestamp.
	MaxDelay = 366 * 24 * time.Hour
	// Early is how much too early a delivery may come and still be polled: the broker's timer is not the database's.
	Early = 5 * time.Millisecond
	// LocalDelay is how long a delivery goes back for when the trouble is ours.
	LocalDelay = time.Second
	// LookAgain is how long a deferred payment sleeps at most before it is looked at again, though the breaker woke nobody: its message may be lost.
	LookAgain = 6 * time.Hour
	// NotFoundConfirmations is how many answers in a row must say "not found", the last of them past the grace, before a person is
	// asked. One 404 proves nothing: gateways answer it for payments that they created a moment ago, and from a replica that lags.
	NotFoundConfirmations = 3
)

// Policy says how one class of payments is retried. The zero value is not usable; see Validate.
type Policy struct {
	Name              string
	Pending           Curve         // delays after an answer that the payment is still pending, by attempts
	Error             Curve         // delays after a failed call, by consecutive failures
	MaxAttempts       int           // answered calls before a person is asked; 0 means no bound
	MaxFailures       int           // consecutive failed calls before a person is asked; 0 means no bound
	Window            time.Duration // age at which a person is asked; 0 means no bound
	OutageGrace       time.Duration // how long past its window a payment sleeps behind an open breaker before a person is asked; without a window it sleeps on
	HoldLimit         time.Duration // the longest delay that the broker keeps a message for; what is longer is parked
	NotFoundGrace     time.Duration // how long "not found" is normal, by the payment's age
	UnauthorizedDelay time.Duration // at least so long after a refused key
	MaxRetryAfter     time.Duration // what a gateway asks for beyond this is cut to it
	PoisonDeliveries  int           // deliveries without a record before a message is poison; 0 means never
	MinInterval       time.Duration // between two polls of one payment, whatever the curves say; 0 means none. It is the gateway's wish
	NeverPoll         bool          // the gateway cannot be asked: payments are watched until their deadline or the window ends
}

// maxOutageGrace is the longest outage grace: a person should hear within a month.
const maxOutageGrace = 30 * 24 * time.Hour

// Hash is the same for policies that decide the same, so that a person can tell whether a policy was changed since.
func (p Policy) Hash() string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%+v", p)
	return fmt.Sprintf("%08x", h.Sum32())
}

// Curve says how long to wait after the n-th time, n from 0. Either List is set, and its last element repeats, or the
// delay is min(Cap, Base·2ⁿ).
type Curve struct {
	Base, Cap time.Duration
	List      []time.Duration
	Jitter    Jitter
}

// Jitter spreads delays so that payments that were created together are not polled together.
type Jitter struct {
	Kind    JitterKind
	Percent int // for JitterPercent: 1 to 100
}

// JitterKind is the kind of jitter.
type JitterKind uint8

// The kinds of jitter. Full, equal and decorrelated are those of "Exponential Backoff And Jitter" (AWS Architecture
// Blog, 2015). The delay never exceeds the curve's cap, whatever the jitter.
const (
	JitterNone         JitterKind = iota // the delay as it is
	JitterFull                           // uniform in [0, delay]
	JitterEqual                          // uniform in [delay/2, delay]
	JitterDecorrelated                   // uniform in [base, 3·previous delay], whatever n; the first time the base counts as previous
	JitterPercent                        // uniform in [delay·(1−p), delay·(1+p)]
)

// Max is the longest delay that the curve gives.
func (c Curve) Max() time.Duration {
	if len(c.List) == 0 {
		return min(max(c.Cap, MinDelay), MaxDelay)
	}
	var longest time.Duration
	for _, d := range c.List {
		longest = max(longest, d)
	}
	if c.Jitter.Kind == JitterPercent {
		longest = scale(longest, 1+float64(c.Jitter.Percent)/100)
	}
	return min(max(longest, MinDelay), MaxDelay)
}

// Delay returns the delay after the n-th time: between MinDelay and Max, for every n, every previous delay and every
// chance in [0, 1). A chance outside is clamped.
func (c Curve) Delay(n int, previous time.Duration, chance float64) time.Duration {
	chance = inUnit(chance)
	plain := c.plain(n)
	var d time.Duration
	switch c.Jitter.Kind {
	case JitterFull:
		d = scale(plain, chance)
	case JitterEqual:
		d = plain/2 + scale(plain-plain/2, chance)
	case JitterDecorrelated:
		base := c.plain(0)
		top := min(scale(max(previous, base), 3), c.Max())
		d = base + scale(top-base, chance)
	case JitterPercent:
		p := float64(c.Jitter.Percent) / 100
		d = scale(plain, 1-p+2*p*chance)
	default:
		d = plain
	}
	return min(max(d, MinDelay), c.Max())
}

// plain is the delay without jitter.
func (c Curve) plain(n int) time.Duration {
	n = max(n, 0)
	if len(c.List) > 0 {
		return min(max(c.List[min(n, len(c.List)-1)], MinDelay), MaxDelay)
	}
	top := c.Max()
	if n >= 62 || c.Base <= 0 || c.Base > top>>n {
		return top
	}
	return max(c.Base<<n, MinDelay)
}

// inUnit clamps a chance to [0, 1). NaN becomes 0.
func inUnit(chance float64) float64 {
	if !(chance >= 0) {
		return 0
	}
	return min(chance, math.Nextafter(1, 0))
}

// scale multiplies without overflow.
func scale(d time.Duration, f float64) time.Duration {
	x := float64(d) * f
	if x >= float64(MaxDelay) {
		return MaxDelay
	}
	return time.Duration(x)
}

// Validate returns every problem of the policy at once, each saying what to write instead.
func (p Policy) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if p.Name == "" {
		bad("name: a policy needs one")
	}
	errs = append(errs, p.Pending.validate("pending"), p.Error.validate("error"))
	if p.MaxAttempts < 0 || p.MaxFailures < 0 || p.Window < 0 {
		bad("max_attempts, max_failures and window: not below 0; 0 means no bound")
	}
	if p.MaxAttempts == 0 && p.Window == 0 {
		bad("max_attempts and window are both 0: such a payment would be polled for ever; set one of them")
	}
	if p.MaxFailures == 0 && p.Window == 0 {
		bad("max_failures and window are both 0: a payment whose gateway never answers would be polled for ever; set one of them")
	}
	if p.OutageGrace < 0 || p.OutageGrace > maxOutageGrace {
		bad("outage_grace %s: between 0s (the window ends it at once) and %s", p.OutageGrace, maxOutageGrace)
	}
	if p.HoldLimit < 0 || p.HoldLimit > 5*time.Minute {
		bad("hold_limit %s: between 0s (never hold) and 5m; what waits longer belongs in the database", p.HoldLimit)
	}
	if p.NotFoundGrace < 0 || p.Window > 0 && p.NotFoundGrace >= p.Window {
		bad("not_found_grace %s: not below 0s, and below the window of %s; inside the grace nobody is asked", p.NotFoundGrace, p.Window)
	}
	if p.UnauthorizedDelay < time.Second || p.UnauthorizedDelay > 24*time.Hour {
		bad("unauthorized_delay %s: between 1s and 24h; a refused key does not come right by asking again at once", p.UnauthorizedDelay)
	}
	if p.MaxRetryAfter < time.Second || p.MaxRetryAfter > 24*time.Hour {
		bad("max_retry_after %s: between 1s and 24h", p.MaxRetryAfter)
	}
	if p.MinInterval < 0 || p.MinInterval > 24*time.Hour {
		bad("min_interval %s: between 0s (none) and 24h", p.MinInterval)
	}
	if p.NeverPoll && p.Window == 0 {
		bad("window 0s: its gateway is never asked, so that nothing but the window brings a payment to a person; set it")
	}
	if p.PoisonDeliveries < 0 || p.PoisonDeliveries > 0 && p.PoisonDeliveries < 5 {
		bad("poison_deliveries %d: 0 (never) or at least 5; a restart alone costs one", p.PoisonDeliveries)
	}
	return errors.Join(errs...)
}

func (c Curve) validate(name string) error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(name+": "+format, a...)) }
	if len(c.List) > 0 {
		if c.Base != 0 || c.Cap != 0 {
			bad("list, or base and cap, not both")
		}
		for i, d := range c.List {
			if d <= 0 || d > MaxDelay {
				bad("list[%d] = %s: more than 0s and at most %s", i, d, MaxDelay)
			}
		}
	} else {
		if c.Base <= 0 {
			bad("base %s: more than 0s", c.Base)
		}
		if c.Cap < c.Base {
			bad("cap %s is below base %s", c.Cap, c.Base)
		}
		if c.Cap > MaxDelay {
			bad("cap %s: at most %s", c.Cap, MaxDelay)
		}
	}
	if c.Jitter.Kind > JitterPercent {
		bad("jitter of kind %d: full, equal, decorrelated, a percentage, or none", c.Jitter.Kind)
	}
	if p := c.Jitter.Percent; c.Jitter.Kind == JitterPercent && (p < 1 || p > 100) {
		bad("jitter ±%d%%: between 1 and 100", p)
	}
	return errors.Join(errs...)
}
