package consumer

import (
	"context"
	"sync"
	"time"

	"pollux/internal/gateway"
)

// pauses are the gate of a consumer that was given none: the accounts of the gateway that are not to be called for a while. A pause is the account's and not its payments': how long each of
// those waits for itself must not add up to how long all do.
type pauses struct {
	mu sync.Mutex
	of map[string]pause
}

type pause struct {
	end    time.Time
	length time.Duration // of one that we chose ourselves; 0 when the gateway said how long
}

// Pauses of our own choice, for gateways that do not say how long: from a second, doubled each time that the first call afterwards is refused
// too, to a minute.
const (
	shortestPause = time.Second
	longestPause  = time.Minute
)

// refused pauses an account after it was told that there were too many calls, and for how long to stop (0: not told). Calls that were under way
// when the pause began are told so too, and change nothing unless they are told to wait for longer.
func (p *pauses) refused(account string, told time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = make(map[string]pause)
	}
	last := p.of[account]
	switch {
	case told > 0:
		if end := now.Add(told); end.After(last.end) {
			p.of[account] = pause{end: end}
		}
	case !last.end.After(now):
		length := min(max(2*last.length, shortestPause), longestPause)
		p.of[account] = pause{end: now.Add(length), length: length}
	}
}

// left is how long an account is still paused. A pause is forgotten when nothing was refused for as long again.
func (p *pauses) left(account string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.of[account]
	if known && !last.end.Add(last.length).After(now) {
		delete(p.of, account)
	}
	return max(last.end.Sub(now), 0)
}

// Open implements Gate: without a breaker the gateway may always be called.
func (p *pauses) Open(string) bool { return false }

// Enter implements Gate.
func (p *pauses) Enter(_ context.Context, account string) (Pass, Refusal) {
	if left := p.left(account, time.Now()); left > 0 {
		return nil, Refusal{Wait: left}
	}
	return pausePass{p, account}, Refusal{}
}

// pausePass is leave to call an account that is not paused.
type pausePass struct {
	pauses  *pauses
	account string
}

// Done implements Pass.
func (p pausePass) Done(c gateway.Class, retryAfter time.Duration) {
	if c == gateway.RateLimited {
		p.pauses.refused(p.account, retryAfter, time.Now())
	}
}
