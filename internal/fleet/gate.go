package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/gateway"
	"pollux/internal/limit"
)

// GateConfig is how a gateway is protected. Each of its accounts has a breaker and a limit of its own, configured alike.
type GateConfig struct {
	Gateway string
	Breaker breaker.Config
	Limit   limit.Config
}

// Validate returns the problems of the configuration.
func (c GateConfig) Validate() error {
	if err := errors.Join(c.Breaker.Validate(), c.Limit.Validate()); err != nil {
		return fmt.Errorf("gateway %s: %w", c.Gateway, err)
	}
	return nil
}

// Gate is what stands before a gateway: nobody calls it without having entered. It is safe for concurrent use.
type Gate struct {
	fleet  *Fleet
	name   string
	key    string // of the record of shares
	config atomic.Pointer[GateConfig]
	nudge  chan struct{}
	units  atomic.Pointer[map[string]*unit]

	mu      sync.Mutex
	joined  bool // it takes part in the record of shares
	share   float64
	members int
	moved   chan struct{} // closed when share changes

	seat seat // of the goroutine that runs the gate
}

// Gate makes the gate of a gateway, or returns the problems of its configuration. Each gateway has one.
func (f *Fleet) Gate(c GateConfig) (*Gate, error) {
	g := &Gate{
		fleet: f, name: c.Gateway, key: sharePrefix + c.Gateway,
		nudge: make(chan struct{}, 1), moved: make(chan struct{}),
	}
	g.config.Store(&c)
	if f.kv == nil || !g.shared() {
		g.share = 1
	}
	g.units.Store(&map[string]*unit{})
	g.seat = seat{record: f.record(g.key), me: f.id}
	if _, err := g.build(""); err != nil {
		return nil, fmt.Errorf("gateway %s: %w", c.Gateway, err)
	}
	f.mu.Lock()
	_, taken := f.gates[c.Gateway]
	if !taken {
		f.gates[c.Gateway] = g
	}
	f.mu.Unlock()
	if taken {
		return nil, fmt.Errorf("gateway %s has a gate already", c.Gateway)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.join()
	return g, nil
}

// join takes part in the record of shares from when the gateway has a limit. g.mu is held.
func (g *Gate) join() {
	if g.fleet.kv != nil && g.shared() && !g.joined {
		g.joined = true
		g.fleet.adopt(g, g.key)
	}
}

// Name is that of the gateway.
func (g *Gate) Name() string { return g.name }

// shared reports whether the gateway has a limit, of which each instance has a part.
func (g *Gate) shared() bool { return g.config.Load().Limit.Limited() }

// Configure makes another configuration that of the gate and all its accounts, or returns its problems and changes nothing. Calls under way are not touched. A gateway that
// had no limit is not called by this instance until it has its part of the new one, which takes a few seconds where the fleet's record of it is new.
func (g *Gate) Configure(c GateConfig) error {
	if err := c.Validate(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock() // an account that is new meanwhile is made of the one or of the other
	before := g.shared()
	g.config.Store(&c)
	now := time.Now()
	if !before && g.shared() && g.fleet.kv != nil {
		g.setShare(now, 0, g.members)
	}
	for _, u := range *g.units.Load() {
		if err := errors.Join(u.breaker.Configure(now, c.Breaker), u.limiter.Configure(now, c.Limit)); err != nil {
			return fmt.Errorf("gateway %s: %w", c.Gateway, err) // of a configuration that was checked there is none
		}
	}
	g.join()
	g.wake()
	return nil
}

// build makes what belongs to an account, which nobody knows of yet.
func (g *Gate) build(account string) (*unit, error) {
	b, errB := breaker.New(g.config.Load().Breaker)
	l, errL := limit.New(g.config.Load().Limit)
	if err := errors.Join(errB, errL); err != nil {
		return nil, err
	}
	t := Target{g.name, account}
	return &unit{
		gate: g, account: account, breaker: b, limiter: l, nudge: make(chan struct{}, 1), news: make(chan struct{}, 1),
		circuit: g.fleet.record(t.key(breakerPrefix)), complaints: g.fleet.record(t.key(limitPrefix)), voice: voice{record: g.fleet.record(t.key(runPrefix))},
	}, nil
}

// others is the account whose breaker and limit serve all for which there is no room.
const others = "*"

// unit returns what belongs to an account, making it when the account is new.
func (g *Gate) unit(account string) *unit {
	if u := (*g.units.Load())[account]; u != nil {
		return u
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	units := *g.units.Load()
	if units[account] == nil && len(units) >= MaxAccounts {
		account = others
	}
	if u := units[account]; u != nil {
		return u
	}
	u, err := g.build(account)
	if err != nil { // Gate has built one of the same configuration
		panic("fleet: " + err.Error())
	}
	u.limiter.SetShare(time.Now(), g.share)
	u.circuit.refresh()
	u.take(u.circuit.known) // what the fleet knows holds for the first call
	u.listen()
	u.complaints.refresh()
	u.limiter.Adopt(time.Now(), decodeComplaints(u.complaints.known))
	units = maps.Clone(units)
	units[account] = u
	g.units.Store(&units)
	g.fleet.adopt(u, u.circuit.known.Key, u.complaints.known.Key, u.voice.record.known.Key)
	return u
}

// Why says why a call may not be made. The reasons are a closed set: they are metric labels.
type Why string

// The reasons.
const (
	WhyAdmitted  Why = ""
	WhyOpen      Why = "open"      // the breaker is open
	WhyForced    Why = "forced"    // an operator forced it open
	WhyProbing   Why = "probing"   // it is half-open and all places for probes in the fleet are taken
	WhyRamp      Why = "ramp"      // it has just closed, and this call is not among the few that are let in
	WhyPaused    Why = "paused"    // the gateway asked to be left alone for a while
	WhyBusy      Why = "busy"      // the limit is used up for longer than a call may wait
	WhyStandby   Why = "standby"   // other instances use the whole limit
	WhyCancelled Why = "cancelled" // the caller's context ended
)

// Whys are all reasons of a refusal in a fixed order.
var Whys = []Why{WhyOpen, WhyForced, WhyProbing, WhyRamp, WhyPaused, WhyBusy, WhyStandby, WhyCancelled}

// ByBreaker reports whether it is the breaker that refuses: the work is to be deferred, and not to wait.
func (w Why) ByBreaker() bool {
	return w == WhyOpen || w == WhyForced || w == WhyProbing || w == WhyRamp
}

// Refusal says why a call may not be made. The zero value means that it may.
type Refusal struct {
	Why     Why
	Cause   breaker.Cause // why the breaker opened, when it is the breaker that refuses
	RetryAt time.Time     // asking earlier is of no use, asking then may be; zero when the caller gave up by itself
}

// Refused reports whether it is a refusal at all.
func (r Refusal) Refused() bool { return r.Why != WhyAdmitted }

// Pass is leave to call the gateway once. Whoever has it says with Done how the call ended, exactly once and whatever happens. The zero value
// is leave that nobody gave; its Done does nothing.
type Pass struct {
	unit   *unit
	permit breaker.Permit
}

// Probe reports whether the call is a probe of a half-open breaker.
func (p Pass) Probe() bool { return p.permit.Probe() }

// maxClaims is how often a call that was to be a probe and lost its place to another instance asks again.
const maxClaims = 3

// Enter asks for leave to call an account of the gateway. It waits for its turn under the limit, at most limit.Config.MaxWait; and a probe waits
// for the fleet's word that it has a place, at most a quarter of a second. Otherwise it answers at once.
func (g *Gate) Enter(ctx context.Context, account string, k limit.Kind) (Pass, Refusal) {
	u := g.unit(account)
	now := time.Now()
	if r := u.limiter.Try(now, k); r.Refused() {
		if no := u.shut(now); no.Refused() {
			return Pass{}, no // rather than waiting for a turn that is of no use
		}
		if r.Why == limit.WhyBusy {
			r = u.limiter.Acquire(ctx, k)
			now = time.Now()
		}
		if r.Refused() {
			return Pass{}, Refusal{Why: Why(r.Why), RetryAt: r.RetryAt}
		}
	}
	return u.enter(ctx, now)
}

// enter asks the breaker, for a call whose turn it is.
func (u *unit) enter(ctx context.Context, now time.Time) (Pass, Refusal) {
	for range maxClaims {
		permit, no, ok := u.breaker.Admit(now)
		if !ok {
			u.limiter.Return(now)
			return Pass{}, Refusal{Why: Why(no.Why), Cause: no.Cause, RetryAt: no.RetryAt}
		}
		if !permit.Probe() || u.agreed(ctx, permit.Lease()) {
			return Pass{u, permit}, Refusal{}
		}
		now = time.Now()
		permit.Done(now, breaker.Inconclusive)
		if ctx.Err() != nil {
			u.limiter.Return(now)
			return Pass{}, Refusal{Why: WhyCancelled}
		}
	}
	u.limiter.Return(now)
	return Pass{}, Refusal{Why: WhyProbing, RetryAt: now.Add(u.gate.config.Load().Breaker.ProbePause)}
}

// shut refuses when the breaker would, without asking it for leave.
func (u *unit) shut(now time.Time) Refusal {
	s := u.breaker.Snapshot(now)
	no := Refusal{Cause: s.Cause, RetryAt: s.RetryAt.Time()}
	switch {
	case s.Kind == breaker.Open && s.Forced.On():
		no.Why = WhyForced
	case s.Kind == breaker.Open && no.RetryAt.After(now):
		no.Why = WhyOpen
	case s.Kind == breaker.HalfOpen && (s.Probes >= s.ProbePlaces || no.RetryAt.After(now)):
		no.Why = WhyProbing
		if !no.RetryAt.After(now) {
			no.RetryAt = now.Add(u.gate.config.Load().Breaker.ProbePause)
		}
	default:
		return Refusal{}
	}
	return no
}

// Done says how the call ended: the class of the answer, and how long the gateway asked to be left alone, 0 when it did not. "Too many requests" and an
// outage with a Retry-After pause the gateway for the whole fleet; what an answer about a payment says of coming again is about that payment.
func (p Pass) Done(c gateway.Class, retryAfter time.Duration) {
	u := p.unit
	if u == nil {
		return
	}
	now := time.Now()
	o := breaker.OutcomeOf(c)
	p.permit.Done(now, o)
	if o == breaker.Failure || o == breaker.Refused || o == breaker.Success && u.suspect.Load() {
		u.speak()
	}
	switch {
	case c == gateway.RateLimited:
		u.limiter.Throttled(now, retryAfter)
		u.wake()
	case c == gateway.Transport && retryAfter > 0:
		u.limiter.Pause(now, now.Add(retryAfter))
		u.wake()
	}
	u.limiter.Release(now)
}

// Open reports whether the breaker of an account keeps calls away, probes excepted.
func (g *Gate) Open(account string) bool {
	k := g.unit(account).breaker.Snapshot(time.Now()).Kind
	return k == breaker.Open || k == breaker.HalfOpen
}

// Delay is about how long a call that comes now would wait for its turn under the limit.
func (g *Gate) Delay(account string, k limit.Kind) time.Duration {
	return g.unit(account).limiter.Delay(time.Now(), k)
}

// Snapshot is an account as it stands.
type Snapshot struct {
	Target
	Breaker breaker.Snapshot
	Limit   limit.Snapshot
}

// Snapshot shows an account.
func (g *Gate) Snapshot(account string) Snapshot {
	u, now := g.unit(account), time.Now()
	return Snapshot{Target{g.name, u.account}, u.breaker.Snapshot(now), u.limiter.Snapshot(now)}
}

// Accounts are those that have been called, in order.
func (g *Gate) Accounts() []string { return slices.Sorted(maps.Keys(*g.units.Load())) }

// Share is this instance's part of the gateway's limit, and how many instances there are to share it; 1 and 0 when there is no limit.
func (g *Gate) Share() (part float64, members int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.share, g.members
}

// AwaitShare waits until this instance has a part of the gateway's limit. While it has none others make the calls, and it should take no work for this gateway.
// It returns ctx's error when ctx ends first.
func (g *Gate) AwaitShare(ctx context.Context) error {
	for {
		g.mu.Lock()
		share, moved := g.share, g.moved
		g.mu.Unlock()
		if share > 0 {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
