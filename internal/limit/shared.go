package limit

import (
	"time"

	"pollux/internal/breaker"
)

// Shared is what the fleet agrees on about a gateway's complaints. It is a plain value; two of them are joined into one that holds
// what either knew, in whatever order and however often.
type Shared struct {
	PausedUntil breaker.Instant `json:"paused_until"` // zero: never
	Factor      float64         `json:"factor"`       // of the rate, right after it was last cut
	CutAt       breaker.Instant `json:"cut_at"`       // when that was; zero: never
}

// Join returns the longer pause and the later cut.
func (s Shared) Join(other Shared) Shared {
	s.PausedUntil = max(s.PausedUntil, other.PausedUntil)
	if other.CutAt > s.CutAt || other.CutAt == s.CutAt && other.Factor < s.Factor {
		s.CutAt, s.Factor = other.CutAt, other.Factor
	}
	return s
}

// Believable is s without what cannot be: pauses that end, and cuts that were made, further ahead than any pause may last. They are of
// a clock that is very wrong, or nonsense.
func (l *Limiter) Believable(now time.Time, s Shared) Shared {
	bound := breaker.At(now.Add(2 * l.cfg.Load().MaxPause)) // twice, for clocks differ
	if s.PausedUntil < 0 || s.PausedUntil > bound {
		s.PausedUntil = 0
	}
	if s.CutAt <= 0 || s.CutAt > bound || !(s.Factor > 0 && s.Factor <= 1) {
		s.CutAt, s.Factor = 0, 1
	}
	return s
}

// Shared is what this process knows.
func (l *Limiter) Shared() Shared {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shared
}

// Pause lets no call pass until an instant, cut to Config.MaxPause from now, and sends away those that wait. It never ends a longer pause earlier.
func (l *Limiter) Pause(now, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pause(now, until.Sub(now))
}

// Throttled says that the gateway complained about too many calls, and for how long it wants to be left alone (0 when it did not say, then Config.Pause).
// The gateway is paused and the rate lowered to 70%, once for all complaints until the pause is over and at most once a second; it rises again by a
// steady amount, from nothing to Config.Rate in Config.Recovery ("additive increase, multiplicative decrease", Chiu and Jain, 1989).
func (l *Limiter) Throttled(now time.Time, retryAfter time.Duration) {
	if retryAfter <= 0 {
		retryAfter = l.cfg.Load().Pause
	}
	retryAfter = min(retryAfter, l.cfg.Load().MaxPause)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.meter.throttled(now.Sub(l.began)) {
		l.shared = l.shared.Join(Shared{Factor: l.meter.factor, CutAt: breaker.At(now)})
	}
	l.pause(now, retryAfter)
}

func (l *Limiter) pause(now time.Time, d time.Duration) {
	d = min(d, l.cfg.Load().MaxPause)
	at := now.Sub(l.began)
	if d <= 0 || at+d <= l.meter.until {
		return
	}
	l.meter.pause(at, at+d)
	l.paused.Store(int64(at + d))
	l.shared.PausedUntil = max(l.shared.PausedUntil, breaker.At(now.Add(d)))
	l.sendAway(l.refuse(WhyPaused, at+d))
}

// Adopt takes over what the fleet agreed on, as far as it is believable.
func (l *Limiter) Adopt(now time.Time, s Shared) {
	s = l.Believable(now, s)
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.CutAt > l.shared.CutAt || s.CutAt == l.shared.CutAt && s.Factor < l.shared.Factor {
		at := now.Sub(l.began)
		l.meter.cutElsewhere(at, max(0, now.Sub(s.CutAt.Time())), s.Factor)
	}
	if s.PausedUntil != 0 {
		l.pause(now, s.PausedUntil.Time().Sub(now))
	}
	l.shared = l.shared.Join(s)
}
