package limit

import "time"

// meter is the arithmetic of a limiter: pure, with the present as an argument. Its instants are durations since the limiter began.
//
// Two questions are kept apart. When may there be a call: one bucket of tokens, filled with this process's part of the fleet's rate and
// holding its part of the burst, and places for calls under way. Whose call is it: each call that is made hands out one credit, divided among
// the kinds by their shares; a kind that waits and has a whole credit goes next and pays with it, and when none has one the call is left
// over and goes to the first that waits, fresh first. So a kind that waits gets its share of the calls whatever the others do, and
// no call is held back while anybody waits.
type meter struct {
	rate     float64 // of the fleet, calls a second; 0 is no limit
	burst    float64
	places   int // of the fleet; 0 is no limit
	weight   [kinds]float64
	floor    float64
	recovery time.Duration

	part   float64 // of the limit that is this process's
	tokens float64
	last   time.Duration // when tokens were last counted
	until  time.Duration // paused until

	factor float64       // of the rate, when it was last cut
	cut    time.Duration // when that was
	uncut  time.Duration // it is not cut again before

	inUse  int // calls under way
	credit [kinds]float64
	queued [kinds]int // calls that wait
}

const (
	// dust is what sums of fractions may be short of a whole.
	dust = 1e-9
	// maxCredit bounds what a kind saves up: enough not to lose any while others with a credit go before it, too little to make a burst.
	maxCredit = 4
	// backOff is what a complaint of the gateway multiplies the rate by. TCP halves; a gateway's limit is a known number, near which we stay.
	backOff = 0.7
	// cutEvery is the shortest time between two cuts: the complaints about one crowd of calls are one complaint.
	cutEvery = time.Second
	// longest is the longest wait that is computed; what is further away is as good as never.
	longest = 24 * time.Hour
)

func newMeter(c Config) meter {
	m := meter{
		rate: float64(c.Rate), burst: float64(c.Burst), places: c.Concurrency,
		floor: c.Floor.Float(), recovery: c.Recovery, factor: 1,
	}
	for _, k := range Kinds {
		m.weight[k] = c.Shares[k].Float()
	}
	return m
}

// configure takes another configuration. Tokens beyond the new burst are lost, and a larger one fills up by time.
func (m *meter) configure(at time.Duration, c Config) {
	m.refill(at)
	next := newMeter(c)
	m.rate, m.burst, m.places, m.weight, m.floor, m.recovery = next.rate, next.burst, next.places, next.weight, next.floor, next.recovery
	m.tokens = min(m.tokens, m.burst*m.part)
}

// factorAt is the part of the rate that the gateway's complaints leave: it rises from the last cut by a steady amount.
func (m *meter) factorAt(at time.Duration) float64 {
	if m.factor == 1 {
		return 1
	}
	return min(1, m.factor+max(0, (at-m.cut).Seconds())/m.recovery.Seconds())
}

// refill adds what has come in since the last time. Over a stretch in which the factor rises it counts with the one at its beginning: never too many.
func (m *meter) refill(at time.Duration) {
	if at <= m.last {
		return
	}
	m.tokens = min(m.burst*m.part, m.tokens+m.speed(m.last)*(at-m.last).Seconds())
	m.last = at
}

// speed is this process's calls a second.
func (m *meter) speed(at time.Duration) float64 { return m.rate * m.part * m.factorAt(at) }

// share sets this process's part. A smaller one takes tokens away, a larger one gives none.
func (m *meter) share(at time.Duration, part float64) {
	m.refill(at)
	m.part = part
	m.tokens = min(m.tokens, m.burst*part)
}

// pause lets nothing pass until an instant. The bucket is empty then, so that what waited comes at the rate and not at once. What the
// gateway still complains about until then is what it is paused for.
func (m *meter) pause(at, until time.Duration) {
	if until <= max(at, m.until) {
		return
	}
	m.until = until
	m.uncut = max(m.uncut, until)
	m.tokens, m.last = 0, until
}

// throttled lowers the rate, if it has not just been lowered, and reports whether it did.
func (m *meter) throttled(at time.Duration) (cut bool) {
	if cut = at >= m.uncut && m.rate > 0; cut {
		m.refill(at)
		m.factor, m.cut = max(m.floor, m.factorAt(at)*backOff), at
	}
	m.uncut = max(m.uncut, at+cutEvery)
	return cut
}

// cutElsewhere takes over a cut that another process made some time ago.
func (m *meter) cutElsewhere(at, ago time.Duration, factor float64) {
	m.refill(at)
	m.factor, m.cut = max(m.floor, factor), at-ago
	m.uncut = max(m.uncut, m.cut+cutEvery)
}

// here is how many calls this process may have under way.
func (m *meter) here() int { return int(float64(m.places)*m.part + dust) }

// idle reports whether this process's part is too small for a single call.
func (m *meter) idle() bool {
	return m.part == 0 || m.rate > 0 && m.burst*m.part < 1-dust || m.places > 0 && m.here() == 0
}

// wait is how long until the next call may go as far as time alone is concerned; 0 when it is now, and longest when no time is enough.
func (m *meter) wait(at time.Duration) time.Duration {
	if at < m.until {
		return m.until - at
	}
	if m.idle() || m.places > 0 && m.inUse >= m.here() {
		return longest // only a larger part, or a call that comes back, lets another one go
	}
	if m.rate == 0 {
		return 0
	}
	m.refill(at)
	missing := 1 - dust - m.tokens
	if missing <= 0 {
		return 0
	}
	seconds := min(missing/m.speed(at), longest.Seconds())
	return time.Duration(seconds*float64(time.Second)) + 1
}

// next is the kind whose call goes next, of those that wait.
func (m *meter) next() (Kind, bool) {
	first, some := Fresh, false
	for _, k := range Kinds {
		if m.queued[k] == 0 {
			continue
		}
		if m.credit[k] >= 1-dust {
			return k, true
		}
		if !some {
			first, some = k, true
		}
	}
	return first, some
}

// take makes a call of a kind. wait has said that it may be.
func (m *meter) take(k Kind) {
	m.inUse++
	if m.rate > 0 {
		m.tokens--
	}
	if m.credit[k] >= 1-dust {
		m.credit[k]--
	}
	for i := range m.credit {
		m.credit[i] = min(maxCredit, m.credit[i]+m.weight[i])
	}
}

// done ends a call; one that was not made gives its token back.
func (m *meter) done(at time.Duration, made bool) {
	m.inUse = max(m.inUse-1, 0)
	if made || m.rate == 0 || at < m.until {
		return
	}
	m.refill(at)
	m.tokens = min(m.burst*m.part, m.tokens+1)
}

// estimate is about how long a call of a kind that comes now would wait for a token: behind those of its kind, at the speed that its kind
// has beside the others that wait. Calls under way are not foreseen.
func (m *meter) estimate(at time.Duration, k Kind) time.Duration {
	var d time.Duration
	if at < m.until {
		d = m.until - at
	}
	if m.rate == 0 {
		return d
	}
	if m.idle() {
		return longest
	}
	m.refill(at)
	left, ahead, first := 1.0, 0.0, true // of the speed, when those that wait have their shares; calls of others that go before; no kind before it waits
	for _, other := range Kinds {
		if other != k && m.queued[other] > 0 {
			left -= m.weight[other]
			ahead = 1
			first = first && k < other
		}
	}
	if !first {
		left = m.weight[k]
	}
	missing := float64(m.queued[k]) + ahead + 1 - m.tokens
	if missing <= 0 {
		return d
	}
	seconds := min(missing/(left*m.speed(at)), longest.Seconds())
	return min(longest, d+time.Duration(seconds*float64(time.Second)))
}
