package fleet_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/limit"
)

func TestPassOfNobodyDoesNothing(t *testing.T) {
	var p fleet.Pass
	p.Done(gateway.Transport, time.Hour)
	if p.Probe() {
		t.Error("a probe")
	}
}

// A call that would have to wait for its turn does not when the breaker is open, and neither does one whose breaker opens while it waits.
func TestNobodyWaitsInFrontOfAnOpenBreaker(t *testing.T) {
	bubble(t, func(t *testing.T) {
		in := start(t, nil, config(limited(1, 5)))
		time.Sleep(10 * time.Second)
		var passes []fleet.Pass
		for range 5 {
			pass, no := in.gate.Enter(t.Context(), "", limit.Fresh)
			if no.Refused() {
				t.Fatal(no.Why)
			}
			passes = append(passes, pass)
		}
		waiting := make(chan fleet.Refusal, 3)
		for range 3 {
			go func() {
				_, no := in.gate.Enter(t.Context(), "", limit.Fresh)
				waiting <- no
			}()
		}
		synctest.Wait()
		for _, p := range passes {
			p.Done(gateway.Transport, 0)
		}
		began := time.Now()
		if _, no := in.gate.Enter(t.Context(), "", limit.Fresh); no.Why != fleet.WhyOpen || time.Since(began) != 0 {
			t.Errorf("%q after %s, want open at once", no.Why, time.Since(began))
		}
		for range 3 {
			if no := <-waiting; no.Why != fleet.WhyOpen {
				t.Errorf("who waited: %q", no.Why)
			}
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("all that waited were gone after %s, the next turn was a second away", d)
		}
		if s := in.gate.Snapshot("").Limit; s.UnderWay != 0 {
			t.Errorf("%d calls under way", s.UnderWay)
		}
	})
}

// Calls that the ramp sends away cost nothing of the rate.
func TestRampDoesNotUseUpTheLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		in := start(t, nil, config(limited(10, 2), func(c *fleet.GateConfig) {
			c.Breaker.Ramp = []breaker.Ratio{breaker.Percent(50), breaker.Percent(100)}
			c.Breaker.RampStep = time.Minute
		}))
		for range 5 {
			time.Sleep(time.Second)
			in.call(t, gateway.Transport)
		}
		time.Sleep(time.Until(in.gate.Snapshot("").Breaker.RetryAt.Time()))
		for in.kind() != breaker.Closed {
			in.call(t, gateway.Pending)
			time.Sleep(time.Second)
		}
		let := 0
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // 50 a second
			if no := in.call(t, gateway.Pending); !no.Refused() {
				let++
			} else if no.Why != fleet.WhyRamp && no.Why != fleet.WhyBusy {
				t.Fatalf("refused: %s", no.Why)
			}
		}
		if let < 190 { // half of a thousand would be let in, the rate allows 200
			t.Errorf("%d calls in 20 seconds at 10/s", let)
		}
	})
}

func TestEnterEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		in := start(t, nil, config(limited(1, 1)))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, no := in.gate.Enter(ctx, "", limit.Fresh); no.Why != fleet.WhyCancelled {
			t.Errorf("%q", no.Why)
		}
	})
}

// A probe whose context ends while it waits for the fleet's word gives its place back.
func TestCancelledProbeGivesItsPlaceBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		in := startMany(t, s, 1, config(func(c *fleet.GateConfig) { c.Breaker.Probes = 1 }))[0]
		in.trip(t)
		time.Sleep(time.Until(in.gate.Snapshot("").Breaker.RetryAt.Time()))
		in.line.set(silent)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, no := in.gate.Enter(ctx, "", limit.Fresh); no.Why != fleet.WhyCancelled {
			t.Fatalf("%q", no.Why)
		}
		time.Sleep(breaker.Defaults().ProbePause)
		began := time.Now()
		pass, no := in.gate.Enter(t.Context(), "", limit.Fresh)
		if no.Refused() || time.Since(began) != 250*time.Millisecond {
			t.Errorf("the next probe: %q after %s, want the place after a quarter of a second without the store's word", no.Why, time.Since(began))
		}
		pass.Done(gateway.Pending, 0)
	})
}

func TestReasonsAreThoseOfTheBreakerAndTheLimiter(t *testing.T) {
	have := map[fleet.Why]bool{}
	for _, w := range fleet.Whys {
		have[w] = true
	}
	for _, w := range []breaker.Why{breaker.WhyOpen, breaker.WhyForced, breaker.WhyProbing, breaker.WhyRamp} {
		if !have[fleet.Why(w)] || !fleet.Why(w).ByBreaker() {
			t.Errorf("%q of the breaker", w)
		}
	}
	for _, w := range []limit.Why{limit.WhyPaused, limit.WhyBusy, limit.WhyStandby, limit.WhyCancelled} {
		if !have[fleet.Why(w)] || fleet.Why(w).ByBreaker() {
			t.Errorf("%q of the limiter", w)
		}
	}
}

// open returns the gate of a running instance without a store, with the whole limit.
func openGate(t testing.TB, l limit.Config) *fleet.Gate {
	t.Helper()
	f := fleet.New(fleet.Options{})
	c := config()
	c.Limit = l
	g, err := f.Gate(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestCallAllocatesNothing(t *testing.T) {
	for name, l := range map[string]limit.Config{"no limit": {}, "limit": {Concurrency: 10}} {
		g := openGate(t, l)
		ctx := t.Context()
		if n := testing.AllocsPerRun(1000, func() {
			pass, no := g.Enter(ctx, "", limit.Fresh)
			if no.Refused() {
				t.Fatal(no.Why)
			}
			pass.Done(gateway.Pending, 0)
		}); n > 0 {
			t.Errorf("%s: %v allocations for a call", name, n)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	for name, l := range map[string]limit.Config{"no limit": {}, "limit": {Concurrency: 10}} {
		b.Run(name, func(b *testing.B) {
			g := openGate(b, l)
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				pass, _ := g.Enter(ctx, "", limit.Fresh)
				pass.Done(gateway.Pending, 0)
			}
		})
	}
}

func BenchmarkRefusedCall(b *testing.B) {
	g := openGate(b, limit.Config{})
	for range 5 {
		pass, _ := g.Enter(b.Context(), "", limit.Fresh)
		pass.Done(gateway.Transport, 0)
	}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if _, no := g.Enter(ctx, "", limit.Fresh); !no.Refused() {
			b.Fatal("not refused")
		}
	}
}
