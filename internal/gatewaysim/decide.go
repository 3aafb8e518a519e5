package gatewaysim

import "time"

// moment is when and how a call came.
type moment struct {
	wall   time.Time
	at     time.Duration // since the conditions were set
	down   Outcome       // how the gateway is down, Answered when it is up
	method bool          // it came as the gateway is asked: with GET
	key    bool          // it brought the key
}

// reply is what a call gets. It is a value: deciding it needs no connection, sending it no lock.
type reply struct {
	outcome    Outcome
	told       word          // the status in the answer, noWord when there is none
	wait       time.Duration // before the answer
	retryAfter time.Duration // for RateLimited
	asDate     bool          // says retryAfter as an HTTP date
	n          uint32        // the payment's n-th call
	reference  string
	amount     int64
	currency   string
	updated    int64     // when the status changed, in Unix seconds
	dialect    Dialect   // nil is the simulator's own
	question   *Question // in a dialect, what was asked
}

// decide says what the payment's n-th call gets. Everything random comes from the dice, in the same order whatever happens, so a
// call's faults do not depend on what the calls before it met. A nil entry is a payment that the gateway does not know.
func (c *climate) decide(e *entry, m moment, d dice) reply {
	delay, failure, brown, date := d.chance(), d.chance(), d.chance(), d.chance()
	b := c.brownout(m.at)
	r := reply{wait: c.wait(b, delay)}
	switch {
	case m.down != Answered:
		r.outcome, r.wait = m.down, 0
		return r
	case !m.method:
		r.outcome = BadRequest
		return r
	case !m.key || c.keyExpired(m.at):
		r.outcome = Unauthorized
		return r
	case c.limited(m.wall):
		r.outcome, r.retryAfter, r.asDate = RateLimited, c.retryAfter(), date < c.Limit.Dates
		return r
	case e == nil:
		r.outcome = NotFound
		return r
	}
	r.amount, r.currency, r.updated = e.AmountMinor, e.Currency, e.updated
	r.outcome, r.told = c.happens(e, m, b, failure, brown)
	return r
}

// happens returns the outcome of a call to a known payment of a gateway that is up, and the status that the answer tells.
func (c *climate) happens(e *entry, m moment, b *Brownout, failure, brown float64) (Outcome, word) {
	if c.late(e, m.wall) {
		return NotFound, noWord
	}
	if c.FaultsInRow == 0 || e.faultsInRow < c.FaultsInRow {
		if b != nil && brown < b.Failing {
			return Unavailable, noWord
		}
		if f := c.roll(failure); f != Answered {
			return f, e.tale(f)
		}
	}
	if !e.current().final() {
		return Answered, e.pending
	}
	return e.Script.Flaw, e.tale(e.Script.Flaw)
}

// late reports whether the gateway does not know the payment yet. Whether a payment is one of the late ones is its own chance,
// not the call's.
func (c *climate) late(e *entry, now time.Time) bool {
	return c.Late.Share > 0 && e.lateness < c.Late.Share && now.Sub(e.first) < c.Late.For
}

// wait is the latency of a call's chance.
func (c *climate) wait(b *Brownout, chance float64) time.Duration {
	latency, jitter := c.Latency, c.Jitter
	if b != nil {
		latency, jitter = b.Latency, b.Jitter
	}
	return latency + time.Duration(chance*float64(jitter))
}
