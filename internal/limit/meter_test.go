package limit

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/breaker"
)

// admitted is when a fleet made calls, in order.
type admitted []time.Duration

// within reports the first stretch of time that holds more than rate·t + burst calls.
func (a admitted) within(rate, burst float64) error {
	for i := range a {
		for j := i; j < len(a); j++ {
			t := (a[j] - a[i]).Seconds()
			if n := float64(j - i + 1); n > rate*t+burst+1e-6 {
				return fmt.Errorf("%v calls in %.6fs from %s on: more than %v/s and %v", n, t, a[i], rate, burst)
			}
		}
	}
	return nil
}

func drawShares(t *rapid.T) Shares {
	cuts := []int{1, 1, 1, 1}
	for range 96 {
		cuts[rapid.IntRange(0, 3).Draw(t, "kind")]++
	}
	var s Shares
	for k, n := range cuts {
		s[k] = breaker.Percent(n)
	}
	return s
}

// A fleet whose members come, go, and hand shares to each other never makes more calls than its limit allows, whichever stretch
// of time is looked at; nor does a call that was allowed and not made count for one that was.
func TestFleetStaysWithinTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{
			Rate:     Rate(rapid.SampledFrom([]float64{0.5, 1, 5, 25, 60, 1000}).Draw(t, "rate")),
			Burst:    rapid.IntRange(1, 20).Draw(t, "burst"),
			Recovery: time.Second * time.Duration(rapid.IntRange(1, 100).Draw(t, "recovery")),
		}.withDefaults()
		step := time.Duration(float64(time.Second) / float64(c.Rate))
		fleet := []*meter{}
		join := func() {
			m := newMeter(c)
			fleet = append(fleet, &m)
		}
		join()
		fleet[0].part = 1
		at := time.Duration(0)
		var made admitted
		member := func() *meter { return fleet[rapid.IntRange(0, len(fleet)-1).Draw(t, "member")] }
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			at += time.Duration(rapid.Float64Range(0, 1.5).Draw(t, "time") * rapid.Float64Range(0, 1).Draw(t, "less") * float64(step))
			switch m := member(); rapid.SampledFrom([]string{"call", "call", "call", "call", "unmade", "hand over", "join", "pause", "complaint", "quiet"}).Draw(t, "what") {
			case "call":
				for range rapid.IntRange(1, 30).Draw(t, "times") {
					if m.wait(at) == 0 {
						m.take(Kind(rapid.IntRange(0, 3).Draw(t, "kind")))
						made = append(made, at)
					}
				}
			case "unmade":
				if m.wait(at) == 0 {
					m.take(Fresh)
					at += time.Duration(rapid.Float64Range(0, 2).Draw(t, "pondered") * float64(step))
					m.done(at, false)
				}
			case "hand over":
				to, part := member(), m.part*rapid.Float64Range(0, 1).Draw(t, "part")
				if to != m {
					m.share(at, m.part-part)
					to.share(at, to.part+part)
				}
			case "join":
				if len(fleet) < 6 {
					join()
				}
			case "pause":
				m.pause(at, at+time.Duration(rapid.Float64Range(0, 3).Draw(t, "pause")*float64(step)))
			case "complaint":
				m.throttled(at)
			case "quiet":
				at += 30 * step
			}
		}
		if err := made.within(float64(c.Rate), float64(c.Burst)); err != nil {
			t.Fatal(err)
		}
	})
}

// crowd lets calls of all kinds wait and serves them as a limiter does, in virtual time.
type crowd struct {
	m      meter
	at     time.Duration
	served [kinds]int
}

// serve serves what waits for a while, calling each time before it does.
func (c *crowd) serve(d time.Duration, each func()) {
	for end := c.at + d; ; {
		_, waiting := c.m.next()
		wait := c.m.wait(c.at)
		if !waiting || c.at+wait > end {
			c.at = end
			return
		}
		if wait > 0 {
			c.at += wait
			continue
		}
		each()
		k, _ := c.m.next()
		c.m.take(k)
		c.m.done(c.at, true)
		c.m.queued[k]--
		c.served[k]++
	}
}

// As long as a kind waits it gets its share of all calls, but for a constant, whatever the others do; and as long as
// anybody waits nothing of the rate is lost.
func TestKindsThatWaitGetTheirShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Rate: Rate(rapid.Float64Range(0.1, 500).Draw(t, "rate")), Burst: rapid.IntRange(1, 10).Draw(t, "burst"), Shares: drawShares(t)}.withDefaults()
		c := crowd{m: newMeter(cfg)}
		c.m.part = 1
		second := time.Duration(float64(time.Second) / float64(cfg.Rate)) // in which one call may be made
		for range rapid.IntRange(1, 8).Draw(t, "phases") {
			var waits [kinds]bool
			some := false
			for k := range waits {
				waits[k] = rapid.Bool().Draw(t, "waits")
				some = some || waits[k]
			}
			if !some {
				c.at += time.Duration(rapid.IntRange(0, 50).Draw(t, "quiet")) * second
				continue
			}
			refill := func() {
				for k := range waits {
					if waits[k] {
						c.m.queued[k] = max(c.m.queued[k], 3)
					}
				}
			}
			refill()
			before := c.served
			calls := rapid.IntRange(1, 2000).Draw(t, "calls")
			c.serve(time.Duration(calls)*second, refill)
			total := 0
			for k := range before {
				before[k] = c.served[k] - before[k]
				total += before[k]
			}
			if total < calls-1-calls/1000000 {
				t.Fatalf("%d calls while calls waited, %d were allowed", total, calls)
			}
			for k := range waits {
				if least := cfg.Shares[k].Float()*float64(total) - 4*maxCredit; waits[k] && float64(before[k]) < least {
					t.Fatalf("%d of %d calls for %s, which waited all the time and has %s", before[k], total, Kind(k), cfg.Shares[k])
				}
			}
			c.m.queued = [kinds]int{}
		}
	})
}

// What the kinds that have nothing to do leave over goes to fresh first, also when there is no rate but only places.
func TestWhatIsLeftOverGoesToFreshFirst(t *testing.T) {
	for name, cfg := range map[string]Config{"rate": {Rate: 100}, "places": {Concurrency: 4}} {
		t.Run(name, func(t *testing.T) {
			cfg = cfg.withDefaults()
			for _, busy := range [][]Kind{{Fresh, Replay}, {Fresh, Retry, Deferred}, {Retry, Replay}, {Fresh, Retry, Deferred, Replay}, {Replay}} {
				c := crowd{m: newMeter(cfg)}
				c.m.part = 1
				refill := func() {
					for _, k := range busy {
						c.m.queued[k] = 5
					}
				}
				refill()
				for range 10_000 {
					if wait := c.m.wait(c.at); wait > 0 {
						c.at += wait
					}
					k, _ := c.m.next()
					c.m.take(k)
					c.m.done(c.at, true)
					c.served[k]++
				}
				rest := 1.0
				for _, k := range busy[1:] {
					share := cfg.Shares[k].Float()
					rest -= share
					if got := float64(c.served[k]) / 10_000; math.Abs(got-share) > 0.002 {
						t.Errorf("%v busy: %s got %.1f%%, want %s", busy, k, got*100, cfg.Shares[k])
					}
				}
				if got := float64(c.served[busy[0]]) / 10_000; math.Abs(got-rest) > 0.002 {
					t.Errorf("%v busy: %s got %.1f%%, want the rest, %.1f%%", busy, busy[0], got*100, rest*100)
				}
			}
		})
	}
}

func TestRateFallsOncePerPauseAndRisesSteadily(t *testing.T) {
	m := newMeter(Config{Rate: 10, Recovery: 100 * time.Second}.withDefaults())
	m.part = 1
	cut := func(at time.Duration, want bool) {
		t.Helper()
		if got := m.throttled(at); got != want {
			t.Errorf("at %s: lowered %t, want %t", at, got, want)
		}
	}
	near := func(at time.Duration, want float64) {
		t.Helper()
		if got := m.factorAt(at); math.Abs(got-want) > 1e-9 {
			t.Errorf("at %s: factor %v, want %v", at, got, want)
		}
	}
	near(0, 1)
	cut(10*time.Second, true)
	near(10*time.Second, 0.7)
	cut(10*time.Second+999*time.Millisecond, false) // the same crowd of calls
	m.pause(11*time.Second, 20*time.Second)
	cut(19*time.Second, false) // what was under way when it began
	near(20*time.Second, 0.8)
	near(30*time.Second, 0.9)
	cut(30*time.Second, true)
	near(30*time.Second, 0.63)
	near(67*time.Second, 1)
	near(1000*time.Hour, 1)
	for at := 2000 * time.Second; at < 2100*time.Second; at += time.Second {
		m.throttled(at)
	}
	near(2099*time.Second, 0.1) // the floor
}

func TestEstimateIsAboutTheWait(t *testing.T) {
	m := newMeter(Config{Rate: 10, Burst: 1}.withDefaults())
	m.part = 1
	m.queued[Fresh] = 9
	if got := m.estimate(0, Fresh); got != time.Second {
		t.Errorf("tenth in line at 10/s: %s, want 1s", got)
	}
	m.queued[Retry] = 1000
	if got := m.estimate(0, Fresh).Round(time.Millisecond); got != 1467*time.Millisecond { // one retry and ten fresh at 7.5/s
		t.Errorf("beside retries: %s", got)
	}
	if got := m.estimate(0, Replay); got != 4*time.Second { // one other and one replay at 0.5/s
		t.Errorf("a replay behind both: %s", got)
	}
	m.pause(0, time.Minute)
	if got := m.estimate(0, Replay); got != 64*time.Second {
		t.Errorf("while paused: %s", got)
	}
}
