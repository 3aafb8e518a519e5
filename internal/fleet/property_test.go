package fleet_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/breaker"
	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/limit"
)

// Whatever a gateway answers to whom, and whatever becomes of the store and the instances: as long as the store is there, no more probes are under way than
// the fleet has places for; once it is there again all agree; and once the gateway is well again all are closed.
func TestBreakersOfAFleetAgree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		places := rapid.IntRange(1, 4).Draw(rt, "places")
		latency := rapid.SampledFrom([]time.Duration{0, 5 * time.Millisecond}).Draw(rt, "latency") // with more, a crowd of changes can take longer than a probe waits
		type step struct {
			what  string
			who   int
			class gateway.Class
			after time.Duration
		}
		var steps []step
		for range rapid.IntRange(5, 60).Draw(rt, "steps") {
			steps = append(steps, step{
				what: rapid.SampledFrom([]string{
					"calls", "calls", "calls", "calls", "hang", "come back", "cut", "silent", "lossy", "fine", "all fine", "wipe", "restore", "force", "reset", "crash",
				}).Draw(rt, "what"),
				who:   rapid.IntRange(0, 2).Draw(rt, "who"),
				class: rapid.SampledFrom(gateway.Classes).Draw(rt, "class"),
				after: rapid.SampledFrom([]time.Duration{0, 3 * time.Millisecond, time.Second, 16 * time.Second, 2 * time.Minute}).Draw(rt, "after"),
			})
		}
		var failure error
		synctest.Test(t, func(t *testing.T) {
			s := newStore()
			c := config(func(c *fleet.GateConfig) { c.Breaker.Probes = places })
			all := startMany(t, s, 3, c)
			defer func() {
				for _, in := range all {
					in.stop()
				}
			}()
			image := s.image()
			trouble := time.Time{} // of the store, or an operator's word, when it was last seen
			var mu sync.Mutex
			var hanging []fleet.Pass
			type probe struct {
				at    time.Time
				epoch uint64 // another one begins with all places free, whoever still hangs
			}
			probing := map[fleet.Pass]probe{}
			enter := func(in *instance) (fleet.Pass, bool) {
				pass, no := in.gate.Enter(t.Context(), "", limit.Fresh)
				mu.Lock()
				defer mu.Unlock()
				epoch := in.gate.Snapshot("").Breaker.Epoch
				if pass.Probe() {
					probing[pass] = probe{time.Now(), epoch}
				}
				n := 0
				for _, p := range probing {
					if p.epoch == epoch && time.Since(p.at) < c.Breaker.ProbeDeadline-time.Second {
						n++
					}
				}
				if slices.ContainsFunc(all, func(in *instance) bool { m, _ := in.line.state(); return m != fine }) {
					trouble = time.Now()
				}
				if n > places && time.Since(trouble) > 40*time.Second && failure == nil {
					failure = fmt.Errorf("%d probes under way, the fleet has %d places", n, places)
				}
				return pass, !no.Refused()
			}
			done := func(pass fleet.Pass, class gateway.Class) {
				mu.Lock()
				delete(probing, pass)
				mu.Unlock()
				pass.Done(class, 0)
			}
			for _, st := range steps {
				in := all[st.who]
				switch st.what {
				case "calls":
					var wg sync.WaitGroup
					for _, in := range all {
						for range 4 {
							wg.Go(func() {
								if pass, ok := enter(in); ok {
									time.Sleep(2 * time.Millisecond)
									done(pass, st.class)
								}
							})
						}
					}
					wg.Wait()
				case "hang":
					if pass, ok := enter(in); ok {
						hanging = append(hanging, pass)
					}
				case "come back":
					for _, pass := range hanging {
						done(pass, st.class)
					}
					hanging = nil
				case "cut", "silent", "lossy":
					in.line.set(map[string]mood{"cut": cut, "silent": silent, "lossy": lossy}[st.what])
				case "fine":
					in.line.set(fine)
				case "all fine":
					for _, in := range all {
						in.line.set(fine)
					}
				case "wipe":
					s.wipe()
				case "restore":
					s.restore(image)
					image = s.image()
				case "force":
					_, err := fleet.Force(t.Context(), s.line(0), fleet.Target{Gateway: psp}, c.Breaker, breaker.Forced{
						Mode: breaker.Kinds[st.who%2], Reason: "test", Actor: "test", Until: breaker.At(time.Now().Add(time.Minute)),
					})
					if err != nil && failure == nil {
						failure = err
					}
				case "reset":
					if _, err := fleet.Reset(t.Context(), s.line(0), fleet.Target{Gateway: psp}, c.Breaker, "test", "test"); err != nil && failure == nil {
						failure = err
					}
				case "crash":
					in.crash()
					all[st.who] = start(t, s.line(latency), c)
				}
				if slices.Contains([]string{"wipe", "restore", "crash", "force", "reset"}, st.what) {
					trouble = time.Now()
				}
				time.Sleep(st.after)
				if st.class == gateway.Final {
					image = s.image()
				}
			}
			for _, pass := range hanging {
				done(pass, gateway.Local)
			}
			for _, in := range all {
				in.line.set(fine)
			}
			time.Sleep(15 * time.Second)
			synctest.Wait()
			first := all[0].gate.Snapshot("").Breaker
			for _, in := range all[1:] {
				if b := in.gate.Snapshot("").Breaker; (b.Epoch != first.Epoch || b.Kind != first.Kind || b.RetryAt != first.RetryAt || b.Probes != first.Probes) && failure == nil {
					failure = fmt.Errorf("they disagree: %+v and %+v", first, b)
				}
			}
			for end := time.Now().Add(20 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
				if everywhere(all, breaker.Closed)() && !all[0].gate.Snapshot("").Breaker.Ramping {
					break
				}
				if time.Now().After(end) {
					if failure == nil {
						failure = fmt.Errorf("the gateway is well, and the breakers are %s, %s and %s", all[0].kind(), all[1].kind(), all[2].kind())
					}
					break
				}
				for _, in := range all {
					in.call(t, gateway.Pending)
				}
			}
		})
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}
