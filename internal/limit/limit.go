// Package limit keeps the calls to one account of a gateway within its limits: a rate with a burst, and calls under way at once. A
// Limiter holds this process's part of a limit that belongs to the whole fleet.
package limit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Limiter lets calls pass. It is safe for concurrent use and needs no closing. A new one has no part of the limit yet: SetShare gives it one.
type Limiter struct {
	cfg    atomic.Pointer[Config]
	began  time.Time
	paused atomic.Int64 // until when, since began: an unlimited gateway looks at nothing else
	free   atomic.Int64 // calls under way that passed while there was no limit

	mu     sync.Mutex
	meter  meter
	shared Shared
	lines  [kinds]line
	timer  *time.Timer // calls serve; nil until somebody has waited
}

// Why says why a call may not pass.
type Why string

// The reasons. They are a closed set: they are metric labels.
const (
	WhyAdmitted  Why = ""          // it may
	WhyPaused    Why = "paused"    // the gateway asked to be left alone for a while
	WhyBusy      Why = "busy"      // its turn is too far away
	WhyStandby   Why = "standby"   // this process has no part of the limit: others of the fleet make the calls
	WhyCancelled Why = "cancelled" // the caller's context ended while it waited
)

// Refusal says why a call may not pass, and when to ask again. The zero value means that it may.
type Refusal struct {
	Why     Why
	RetryAt time.Time // asking earlier is of no use; zero when the caller gave up by itself
}

// Refused reports whether it is a refusal at all.
func (r Refusal) Refused() bool { return r.Why != WhyAdmitted }

// standbyRetry is when a call that came to a process standing by may ask again: a process that dies is replaced within seconds.
const standbyRetry = time.Second

// New returns a limiter without a part of its limit, or all problems of the configuration. One without a limit lets everything pass at once.
func New(c Config) (*Limiter, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("limit configuration: %w", err)
	}
	c = c.withDefaults()
	l := &Limiter{began: time.Now(), meter: newMeter(c), shared: Shared{Factor: 1}}
	l.cfg.Store(&c)
	return l, nil
}

// Configure makes another configuration that of the limiter, or returns its problems and changes nothing. A lower rate or a smaller burst counts from the next
// call on; what the gateway complained about, pauses and the part of the limit stay.
func (l *Limiter) Configure(now time.Time, c Config) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("limit configuration: %w", err)
	}
	c = c.withDefaults()
	at := now.Sub(l.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.meter.configure(at, c)
	l.cfg.Store(&c)
	switch {
	case !c.Limited():
		l.letAll()
	case l.meter.idle():
		l.sendAway(l.refuse(WhyStandby, at+standbyRetry))
	default:
		l.serve(at)
	}
	return nil
}

// letAll lets pass all that wait for a turn under a limit that is no more. l.mu is held.
func (l *Limiter) letAll() {
	for _, k := range Kinds {
		for l.meter.queued[k] > 0 {
			l.meter.queued[k]--
			l.free.Add(1)
			l.lines[k].pop().turn <- Refusal{}
		}
	}
}

// Try lets a call pass or says why not. It never waits: WhyBusy means that Acquire would, or that others are before it. A call that passed
// ends with Release, or with Return when it was not made after all.
func (l *Limiter) Try(now time.Time, k Kind) Refusal {
	at := now.Sub(l.began)
	if until := l.paused.Load(); int64(at) < until {
		return Refusal{WhyPaused, l.began.Add(time.Duration(until))}
	}
	if !l.cfg.Load().Limited() {
		l.free.Add(1)
		return Refusal{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.try(at, k.known())
}

func (l *Limiter) try(at time.Duration, k Kind) Refusal {
	m := &l.meter
	if at < m.until {
		return l.refuse(WhyPaused, m.until)
	}
	if m.idle() {
		return l.refuse(WhyStandby, at+standbyRetry)
	}
	if _, waiting := m.next(); waiting || m.wait(at) > 0 {
		return l.refuse(WhyBusy, at+m.estimate(at, k))
	}
	m.take(k)
	return Refusal{}
}

func (l *Limiter) refuse(why Why, until time.Duration) Refusal {
	return Refusal{why, l.began.Add(until)}
}

// Acquire waits for the turn of a call, first come first served within a kind, and lets it pass, or says why not. It waits no longer
// than Config.MaxWait; a pause that begins meanwhile sends away all that wait. A call that passed ends with Release, or with Return
// when it was not made after all.
func (l *Limiter) Acquire(ctx context.Context, k Kind) Refusal {
	k = k.known()
	now := time.Now()
	r := l.Try(now, k)
	if r.Why != WhyBusy {
		return r
	}
	w, r := l.queue(now.Sub(l.began), k)
	if w == nil {
		return r
	}
	patience := time.NewTimer(l.cfg.Load().MaxWait)
	defer patience.Stop()
	select {
	case r = <-w.turn:
		return r
	case <-ctx.Done():
		return l.leave(w, Refusal{Why: WhyCancelled})
	case <-patience.C:
		return l.leave(w, Refusal{Why: WhyBusy})
	}
}

// queue puts a call into its line, unless it may pass at once or would wait too long.
func (l *Limiter) queue(at time.Duration, k Kind) (*waiter, Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.try(at, k)
	if r.Why != WhyBusy || l.meter.estimate(at, k) > l.cfg.Load().MaxWait {
		return nil, r
	}
	w := &waiter{kind: k, turn: make(chan Refusal, 1)}
	l.lines[k].push(w)
	l.meter.queued[k]++
	l.serve(at)
	return w, Refusal{}
}

// leave takes a call out of its line. If its turn has just come it gives that back.
func (l *Limiter) leave(w *waiter, why Refusal) Refusal {
	at := time.Since(l.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	if why.Why == WhyBusy {
		why.RetryAt = l.began.Add(at + l.meter.estimate(at, w.kind))
	}
	if l.lines[w.kind].remove(w) {
		l.meter.queued[w.kind]--
		return why
	}
	if r := <-w.turn; r.Refused() {
		return r
	}
	l.meter.done(at, false)
	l.serve(at)
	return why
}

// serve lets pass those whose turn it is, and sets the timer for the next. l.mu is held.
func (l *Limiter) serve(at time.Duration) {
	m := &l.meter
	for {
		k, waiting := m.next()
		if !waiting {
			return
		}
		switch wait := m.wait(at); wait {
		case 0:
			m.take(k)
			m.queued[k]--
			l.lines[k].pop().turn <- Refusal{}
		case longest: // a call that ends, or a larger share, calls again
			return
		default:
			l.wake(wait)
			return
		}
	}
}

func (l *Limiter) wake(after time.Duration) {
	if l.timer == nil {
		l.timer = time.AfterFunc(after, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.serve(time.Since(l.began))
		})
		return
	}
	l.timer.Reset(after)
}

// sendAway refuses all that wait. l.mu is held.
func (l *Limiter) sendAway(r Refusal) {
	for _, k := range Kinds {
		for l.meter.queued[k] > 0 {
			l.meter.queued[k]--
			l.lines[k].pop().turn <- r
		}
	}
}

// Release ends a call that passed and was made.
func (l *Limiter) Release(now time.Time) { l.end(now, true) }

// Return ends a call that passed and was not made: what it took is for another one.
func (l *Limiter) Return(now time.Time) { l.end(now, false) }

func (l *Limiter) end(now time.Time, made bool) {
	if l.freed() {
		return
	}
	at := now.Sub(l.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.meter.done(at, made)
	l.serve(at)
}

// freed takes a call that ended from those that passed without a limit. Where there is a limit now, those are the first to end: which of the calls under way has
// ended is not known, and so none is counted twice or not at all.
func (l *Limiter) freed() bool {
	for {
		n := l.free.Load()
		if n == 0 {
			return false
		}
		if l.free.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// SetShare gives this process a part of the fleet's limit, between 0 (it stands by, and those that wait are sent away) and 1. What the
// members of a fleet have must never add up to more than 1: a member gets more only after another one has less. A larger part lets in no
// call that a smaller one would not have: it only fills up faster.
func (l *Limiter) SetShare(now time.Time, part float64) {
	at := now.Sub(l.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.meter.share(at, min(max(part, 0), 1))
	if l.meter.idle() {
		l.sendAway(l.refuse(WhyStandby, at+standbyRetry))
		return
	}
	l.serve(at)
}

// Held is the smallest part of the limit that covers the calls that are under way here: after SetShare with a smaller part it may still be
// more than that, and nobody else can have it before they have come back.
func (l *Limiter) Held() float64 {
	places := l.cfg.Load().Concurrency
	if places == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return min(float64(l.meter.inUse)/float64(places), 1)
}

// Delay is about how long a call that comes now would wait; calls under way that come back meanwhile are not foreseen.
func (l *Limiter) Delay(now time.Time, k Kind) time.Duration {
	at := now.Sub(l.began)
	if !l.cfg.Load().Limited() {
		return max(0, time.Duration(l.paused.Load())-at)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.meter.estimate(at, k.known())
}

// Snapshot is a limiter as it stands.
type Snapshot struct {
	Share       float64    // this process's part of the limit
	Rate        Rate       // this process's calls a second at present; 0 when there is no limit
	Factor      float64    // what the gateway's complaints leave of the rate
	Concurrency int        // this process's calls under way at once; 0 when there is no limit
	UnderWay    int        // calls under way; not counted when there is no limit at all
	Waiting     [kinds]int // by Kind
	PausedUntil time.Time  // zero when it is not paused
}

// Snapshot shows the limiter.
func (l *Limiter) Snapshot(now time.Time) Snapshot {
	at := now.Sub(l.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.meter
	s := Snapshot{
		Share: m.part, Rate: Rate(m.speed(at)), Factor: m.factorAt(at), Concurrency: m.here(), UnderWay: m.inUse, Waiting: m.queued,
	}
	if at < m.until {
		s.PausedUntil = l.began.Add(m.until)
	}
	return s
}
