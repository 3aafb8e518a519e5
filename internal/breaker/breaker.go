package breaker

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Breaker is one machine and its state, for one account of one gateway, in one process. It is safe for concurrent use.
//
// It calls nobody back. What changed waits in Transitions; Changed says when there is something.
type Breaker struct {
	changed chan struct{}

	mu      sync.Mutex
	machine *Machine
	state   State
	pending []Transition
	lost    int
}

// maxPending bounds the transitions that wait to be taken. A breaker changes a few times a minute at the worst.
const maxPending = 1024

// New returns a closed breaker, or all problems of its configuration.
func New(c Config) (*Breaker, error) {
	m, err := NewMachine(c)
	if err != nil {
		return nil, err
	}
	return &Breaker{machine: m, changed: make(chan struct{}, 1)}, nil
}

// Permit is leave to call the gateway once. Whoever has it says with Done how the call ended, exactly once and whatever happens: a
// call that is never done counts as one that hangs. The zero value is leave that nobody asked for; its Done does nothing.
type Permit struct {
	breaker *Breaker
	call    Call
}

// Probe reports whether the call is a probe of a half-open breaker.
func (p Permit) Probe() bool { return p.call.Lease != 0 }

// Lease is the id of the place that a probe has taken, as it stands in Shared; 0 for other calls.
func (p Permit) Lease() uint64 { return p.call.Lease }

// Refusal says why a call is not admitted.
type Refusal struct {
	Why     Why
	Kind    Kind
	Cause   Cause     // why the breaker opened
	RetryAt time.Time // asking earlier is of no use; asking then may be
}

// Admit asks for leave to call the gateway. It returns a permit and true, or a refusal and false. It never waits.
func (b *Breaker) Admit(now time.Time) (Permit, Refusal, bool) {
	chance, lease := rand.Float64(), rand.Uint64()>>11 // 53 bits: what any reader of JSON keeps
	b.mu.Lock()
	defer b.mu.Unlock()
	x := step{m: b.machine, s: &b.state, now: At(now), lease: lease, chance: chance}
	v := x.ask()
	b.note(&x)
	if !v.Admitted {
		return Permit{}, Refusal{Why: v.Why, Kind: b.state.Shared.kind(), Cause: b.state.Shared.Cause, RetryAt: v.RetryAt.Time()}, false
	}
	return Permit{breaker: b, call: v.Call}, Refusal{}, true
}

// Done says how the call ended. What a call that was admitted before the breaker last changed its kind says is ignored.
func (p Permit) Done(now time.Time, o Outcome) {
	b := p.breaker
	if b == nil {
		return
	}
	chance := rand.Float64()
	b.mu.Lock()
	defer b.mu.Unlock()
	x := step{m: b.machine, s: &b.state, now: At(now), chance: chance}
	x.finish(p.call, o)
	b.note(&x)
}

// Force makes the breaker open, closed or disabled until an instant, whatever the gateway does. It returns an error, and changes
// nothing, when the forced state is not valid.
func (b *Breaker) Force(now time.Time, f Forced) error {
	if err := f.Validate(At(now)); err != nil {
		return err
	}
	b.apply(now, func(x *step) { x.force(f) })
	return nil
}

// Release ends a forced state: what was forced open is probed first, what was closed or disabled goes on as it was.
func (b *Breaker) Release(now time.Time, actor, reason string) {
	b.apply(now, func(x *step) { x.release(actor, reason) })
}

// Reset forgets the past: an open breaker probes at once, a closed one begins with an empty window, a forced state ends. It is for the
// operator who has mended the cause, for instance an expired key.
func (b *Breaker) Reset(now time.Time, actor, reason string) {
	b.apply(now, func(x *step) { x.reset(actor, reason) })
}

// Adopt takes over what the fleet agreed on.
func (b *Breaker) Adopt(now time.Time, s Shared) {
	b.apply(now, func(x *step) { x.adopt(s) })
}

// Replace is Adopt if the shared state is still the one that was seen, so that nothing that happened since is lost. It returns the shared state
// as it was taken over, with its instants bounded, and false when it changed nothing.
func (b *Breaker) Replace(now time.Time, seen, s Shared) (Shared, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.Shared != seen {
		return Shared{}, false
	}
	x := step{m: b.machine, s: &b.state, now: At(now)}
	x.adopt(s)
	b.note(&x)
	return b.state.Shared, true
}

// Say takes what this instance has to tell the others about its calls since the last time, and the epoch that it is of.
func (b *Breaker) Say() (Word, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.state.Local.Word
	b.state.Local.Word = Word{}
	return w, b.state.Shared.Epoch
}

// Hear takes how many calls in a row failed in the whole fleet, in an epoch; of another one than the present it says nothing.
func (b *Breaker) Hear(now time.Time, epoch uint64, r Run) {
	chance := rand.Float64()
	b.apply(now, func(x *step) {
		if x.chance = chance; x.s.Shared.Epoch == epoch {
			x.hear(r)
		}
	})
}

// Tick lets pass what time alone changes: steps of the ramp, the end of a forced state. Nothing depends on it but how soon these
// are seen.
func (b *Breaker) Tick(now time.Time) {
	b.apply(now, func(x *step) { x.settle() })
}

// Shared is what the fleet would have to agree on.
func (b *Breaker) Shared() Shared {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state.Shared
}

// Snapshot shows the breaker as it stands.
func (b *Breaker) Snapshot(now time.Time) Snapshot {
	b.mu.Lock()
	m, s := b.machine, b.state
	b.mu.Unlock()
	return m.Snapshot(s, At(now))
}

// Configure makes another configuration that of the breaker, or returns its problems and changes nothing. The breaker stays as it is, open, half-open or closed, and
// what is counted goes on counting; with another window the counting of its calls begins anew, failures in a row excepted.
func (b *Breaker) Configure(now time.Time, c Config) error {
	m, err := NewMachine(c)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &b.state.Local
	if m.width != b.machine.width {
		l.Buckets, l.Calls, l.Failed, l.Slow = [buckets]Bucket{}, 0, 0, 0
		l.Slot = int64(At(now)) / m.width
	}
	b.machine = m
	l.Step = m.rampStep(&b.state.Shared, At(now)) // of another ramp: it did not move
	x := step{m: m, s: &b.state, now: At(now)}
	x.settle()
	b.note(&x)
	return nil
}

// Changed receives after the shared state or anything else worth telling has changed. It is never closed, holds one signal
// however many changes there were, and is for one reader.
func (b *Breaker) Changed() <-chan struct{} { return b.changed }

// Transitions takes what has changed since the last call, oldest first, and how many older transitions were dropped because
// nobody took them.
func (b *Breaker) Transitions() (changes []Transition, dropped int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changes, dropped = b.pending, b.lost
	b.pending, b.lost = nil, 0
	return changes, dropped
}

// apply lets an operator's or the fleet's event happen.
func (b *Breaker) apply(now time.Time, f func(*step)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := step{m: b.machine, s: &b.state, now: At(now)}
	f(&x)
	b.note(&x)
}

// note keeps what changed and says that something did. The lock is held.
func (b *Breaker) note(x *step) {
	if len(x.changes) == 0 && !x.wrote {
		return
	}
	b.pending = append(b.pending, x.changes...)
	if over := len(b.pending) - maxPending; over > 0 {
		b.pending = append(b.pending[:0], b.pending[over:]...)
		b.lost += over
	}
	select {
	case b.changed <- struct{}{}:
	default:
	}
}
