package fleet_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/gateway"
	"pollux/internal/limit"
)

// elapse lets time pass in a bubble, and all that it wakes be done.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A gateway that is asked once a minute, each time by another of four instances, trips after as many failures as one that has but one instance.
func TestFailuresInARowAreCountedInTheWholeFleet(t *testing.T) {
	for _, c := range []struct {
		class gateway.Class
		after int
		cause breaker.Cause
	}{
		{gateway.Transport, breaker.Defaults().ConsecutiveFailures, breaker.CauseConsecutive},
		{gateway.Unauthorized, breaker.Defaults().CredentialFailures, breaker.CauseCredentials},
	} {
		t.Run(c.class.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := startMany(t, newStore(), 4, config())
				for n := range c.after {
					if k := all[0].kind(); k != breaker.Closed {
						t.Fatalf("%s after %d calls", k, n)
					}
					all[n%4].call(t, c.class)
					elapse(time.Minute)
				}
				within(t, time.Second, "open everywhere", everywhere(all, breaker.Open))
				if got := all[0].gate.Snapshot("").Breaker.Cause; got != c.cause {
					t.Errorf("cause %s, want %s", got, c.cause)
				}
			})
		})
	}
}

// A call that works ends the row, whoever made it, and one that worked before the row began does not.
func TestASuccessAnywhereEndsTheRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := startMany(t, newStore(), 3, config())
		for round := range 20 {
			for n := range breaker.Defaults().ConsecutiveFailures - 1 {
				all[n%2].call(t, gateway.Transport)
				elapse(10 * time.Second)
			}
			if all[2].call(t, gateway.Pending); !everywhere(all, breaker.Closed)() {
				t.Fatalf("round %d: opened although a call worked", round)
			}
			elapse(10 * time.Second)
		}
		for n := range breaker.Defaults().ConsecutiveFailures {
			all[n%3].call(t, gateway.Transport)
			elapse(10 * time.Second)
		}
		within(t, time.Second, "open everywhere", everywhere(all, breaker.Open))
	})
}

// Each instance is called ten times a second when the gateway goes down: the fleet makes few more calls than one instance would.
func TestCallsBeforeAnOpeningAreThoseOfOneThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := startMany(t, newStore(), 4, config())
		for range 100 {
			for _, in := range all {
				in.call(t, gateway.Pending)
				elapse(25 * time.Millisecond)
			}
		}
		inVain := 0
		for n := 0; !everywhere(all, breaker.Open)(); n++ {
			if pass, no := all[n%4].gate.Enter(t.Context(), "", limit.Fresh); !no.Refused() {
				inVain++
				pass.Done(gateway.Transport, 0)
			}
			elapse(25 * time.Millisecond)
		}
		// a threshold, and what is called in a breath
		if most := breaker.Defaults().ConsecutiveFailures + 4; inVain > most {
			t.Errorf("%d calls in vain, want %d at the most", inVain, most)
		}
	})
}

// A gateway that fails a tenth of many calls does not open, and the store is not kept busy with that.
func TestFailuresAmongManySuccessesCostFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 4, config())
		before := s.written("run." + psp)
		for n := range 40_000 {
			c := gateway.Pending
			if n%10 == 0 {
				c = gateway.Transport
			}
			all[n%4].call(t, c)
			elapse(time.Millisecond)
		}
		if !everywhere(all, breaker.Closed)() {
			t.Error("opened by a tenth of failures")
		}
		if n := s.written("run."+psp) - before; n > 100 {
			t.Errorf("%d writes in 40 s", n)
		}
	})
}

// Without the store each instance counts for itself, and what was counted before an opening is forgotten after it.
func TestARowEndsWithTheOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 2, config())
		all[0].trip(t)
		within(t, time.Second, "open everywhere", everywhere(all, breaker.Open))
		within(t, 5*time.Minute, "closed everywhere", func() bool {
			for _, in := range all {
				in.call(t, gateway.Pending)
			}
			return everywhere(all, breaker.Closed)() && !all[0].gate.Snapshot("").Breaker.Ramping
		})
		for n := range breaker.Defaults().ConsecutiveFailures - 1 {
			all[n%2].call(t, gateway.Transport)
			elapse(time.Second)
		}
		if !everywhere(all, breaker.Closed)() {
			t.Error("opened by failures from before")
		}
		for _, junk := range []string{"", "{", `{"v":1,"epoch":3,"failures":-1}`, `{"v":2,"failures":99}`, fmt.Sprintf(`{"v":1,"epoch":%d,"failures":99}`, uint64(1)<<60)} {
			s.set("run."+psp, []byte(junk))
			elapse(time.Second)
			if !everywhere(all, breaker.Closed)() {
				t.Fatalf("opened by the record %q", junk)
			}
		}
	})
}
