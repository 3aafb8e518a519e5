package fleet_test

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/limit"
)

func TestTripIsAdoptedByAllWithinASecond(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all := startMany(t, newStore(), 3, config())
		all[0].trip(t)
		within(t, time.Second, "open everywhere", everywhere(all, breaker.Open))
		synctest.Wait()
		if got := all[0].causes(); !slices.Equal(got, []breaker.Cause{breaker.CauseConsecutive}) {
			t.Errorf("who tripped it says %v", got)
		}
		if got := all[1].causes(); !slices.Equal(got, []breaker.Cause{breaker.CauseAdopted}) {
			t.Errorf("who adopted it says %v", got)
		}
		a, b := all[0].gate.Snapshot("").Breaker, all[1].gate.Snapshot("").Breaker
		if a.RetryAt != b.RetryAt || a.Epoch != b.Epoch || a.Cause != b.Cause {
			t.Errorf("they disagree: %+v and %+v", a, b)
		}
	})
}

// An instance that starts while the gateway is known to be down does not find that out by calling it.
func TestNewInstanceKnowsWhatTheFleetKnows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		startMany(t, s, 1, config())[0].trip(t)
		time.Sleep(time.Second)
		late := startMany(t, s, 1, config())[0]
		if no := late.call(t, gateway.Final); no.Why != fleet.WhyOpen {
			t.Errorf("its first call: %q", no.Why)
		}
	})
}

// An account that is called for the first time, long after the watch has brought its record, begins with it.
func TestNewAccountBeginsWithItsRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all := startMany(t, newStore(), 2, config())
		for range 5 {
			pass, _ := all[0].gate.Enter(t.Context(), "acct_1.eu:x", limit.Fresh)
			pass.Done(gateway.Transport, 0)
		}
		time.Sleep(time.Second)
		if _, no := all[1].gate.Enter(t.Context(), "acct_1.eu:x", limit.Fresh); no.Why != fleet.WhyOpen || no.Cause != breaker.CauseConsecutive {
			t.Errorf("the first call for the account: %+v", no)
		}
		if no := all[1].call(t, gateway.Final); no.Refused() {
			t.Errorf("another account: %q", no.Why)
		}
		pass, _ := all[0].gate.Enter(t.Context(), "paused", limit.Fresh)
		pass.Done(gateway.RateLimited, time.Minute)
		time.Sleep(time.Second)
		if _, no := all[1].gate.Enter(t.Context(), "paused", limit.Fresh); no.Why != fleet.WhyPaused {
			t.Errorf("the first call for an account that is paused: %+v", no)
		}
	})
}

// With 50 workers on each of three instances, no more probes reach the gateway than the fleet has places for.
func TestProbesAreBoundedForTheFleet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 3, config())
		all[0].trip(t)
		within(t, time.Second, "open everywhere", everywhere(all, breaker.Open))
		places := breaker.Defaults().Probes
		deadline := breaker.Defaults().ProbeDeadline
		for round := range 20 { // the probes of all but the last round fail
			time.Sleep(time.Until(all[0].gate.Snapshot("").Breaker.RetryAt.Time()))
			var mu sync.Mutex
			var probes []fleet.Pass
			var wg sync.WaitGroup
			for _, in := range all {
				for range 50 {
					wg.Go(func() {
						pass, no := in.gate.Enter(t.Context(), "", limit.Deferred)
						if no.Refused() {
							return
						}
						mu.Lock()
						probes = append(probes, pass)
						mu.Unlock()
					})
				}
			}
			wg.Wait()
			if len(probes) == 0 || len(probes) > places {
				t.Fatalf("round %d: %d probes, the fleet has %d places", round, len(probes), places)
			}
			class := gateway.Transport
			if round == 19 {
				class = gateway.Pending
			}
			for _, p := range probes {
				if !p.Probe() {
					t.Error("a call that is no probe was let in")
				}
				p.Done(class, 0)
			}
			time.Sleep(deadline)
			if round < 19 && !everywhere(all, breaker.Open)() {
				t.Fatalf("round %d: not open everywhere after failed probes", round)
			}
		}
		within(t, 10*time.Second, "closed everywhere after probes that succeeded", func() bool {
			for _, in := range all {
				in.call(t, gateway.Pending)
			}
			return everywhere(all, breaker.Closed)()
		})
	})
}

// A place is given back when its holder dies, or hangs.
func TestPlaceOfADeadProberIsGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := config(func(c *fleet.GateConfig) { c.Breaker.Probes = 1 })
		all := startMany(t, newStore(), 2, c)
		all[0].trip(t)
		time.Sleep(time.Until(all[0].gate.Snapshot("").Breaker.RetryAt.Time()))
		began := time.Now()
		pass, no := all[0].gate.Enter(t.Context(), "", limit.Deferred)
		if no.Refused() || !pass.Probe() {
			t.Fatalf("no probe: %q", no.Why)
		}
		all[0].crash()
		for {
			no := all[1].call(t, gateway.Pending)
			if !no.Refused() {
				break
			}
			if no.Why != fleet.WhyProbing || !no.RetryAt.After(time.Now()) {
				t.Fatalf("refused: %+v", no)
			}
			time.Sleep(time.Until(no.RetryAt))
		}
		if waited := time.Since(began); waited < c.Breaker.ProbeDeadline || waited > c.Breaker.ProbeDeadline+2*time.Second {
			t.Errorf("the place was free after %s, its deadline is %s", waited, c.Breaker.ProbeDeadline)
		}
	})
}

// The store away, slow or silent never keeps a call waiting, but for a probe a quarter of a second; each instance trips and recovers for itself.
func TestStoreAwayDoesNotKeepCallsWaiting(t *testing.T) {
	for name, m := range map[string]mood{"cut": cut, "silent": silent, "deaf": deaf, "lossy": lossy} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				all := startMany(t, s, 2, config())
				for _, in := range all {
					in.line.set(m)
				}
				for range 10 { // outages of ten minutes, with as long between
					for _, in := range all {
						outage(t, in, 10*time.Minute)
					}
					time.Sleep(10 * time.Minute)
				}
				for _, in := range all {
					in.line.set(fine)
				}
				time.Sleep(10 * time.Second)
				all[0].trip(t)
				within(t, time.Second, "they agree again", everywhere(all, breaker.Open))
			})
		})
	}
}

// outage lets the gateway be away from an instance's point of view, and come back.
func outage(t *testing.T, in *instance, d time.Duration) {
	t.Helper()
	enter := func() (fleet.Pass, fleet.Refusal) {
		start := time.Now()
		pass, no := in.gate.Enter(t.Context(), "", limit.Fresh)
		if took := time.Since(start); took > 0 && !(pass.Probe() && took <= 250*time.Millisecond) && no.Why != fleet.WhyProbing {
			t.Fatalf("a call waited %s (probe %t, refusal %q)", took, pass.Probe(), no.Why)
		}
		return pass, no
	}
	calls := 0
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		if pass, no := enter(); !no.Refused() {
			calls++
			pass.Done(gateway.Transport, 0)
		}
	}
	if most := 5 + int(d/(breaker.Defaults().Cooldown.Base/2)); calls > most || calls < 5+int(d/breaker.Defaults().Cooldown.Cap)/2 {
		t.Fatalf("%d calls in an outage of %s", calls, d)
	}
	for end := time.Now().Add(5 * time.Minute); in.gate.Snapshot("").Breaker.Ramping || in.kind() != breaker.Closed; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still %s five minutes after the gateway is back", in.kind())
		}
		pass, _ := enter()
		pass.Done(gateway.Pending, 0)
	}
}

// What an instance learns in its last moment it still tells.
func TestInstanceThatStopsTellsWhatItLearnedLast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for range 10 {
			all := startMany(t, newStore(), 2, config())
			all[0].trip(t)
			all[0].stop()
			within(t, time.Second, "open", everywhere(all[1:], breaker.Open))
			if got := all[0].causes(); !slices.Equal(got, []breaker.Cause{breaker.CauseConsecutive}) {
				t.Errorf("its last transitions: %v", got)
			}
		}
	})
}

// What one instance learns while the store is away, all know when it is back.
func TestTripWhileTheStoreIsAwayIsToldAfterwards(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all := startMany(t, newStore(), 3, config())
		for _, in := range all {
			in.line.set(cut)
		}
		all[0].trip(t)
		time.Sleep(time.Second)
		if !everywhere(all[1:], breaker.Closed)() {
			t.Fatal("adopted without a store")
		}
		for _, in := range all {
			in.line.set(fine)
		}
		within(t, 8*time.Second, "told when the store is back", everywhere(all, breaker.Open))
		if log := all[0].log.String(); strings.Count(log, "does not answer") != 1 || strings.Count(log, "answers again") != 1 {
			t.Errorf("the log should say once that the store was away and once that it is back:\n%s", log)
		}
	})
}

// Instances that went separate ways while the store was away agree on the later epoch, and no record keeps anybody open or closed for good.
func TestInstancesThatWentSeparateWaysConverge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all := startMany(t, newStore(), 3, config())
		all[1].line.set(silent)
		all[2].line.set(cut)
		all[0].trip(t)
		outage(t, all[1], 3*time.Minute)
		outage(t, all[2], 20*time.Minute)
		all[1].line.set(fine)
		all[2].line.set(fine)
		within(t, 10*time.Second, "they agree", func() bool {
			a, b, c := all[0].gate.Snapshot("").Breaker, all[1].gate.Snapshot("").Breaker, all[2].gate.Snapshot("").Breaker
			return a.Epoch == b.Epoch && b.Epoch == c.Epoch && a.Kind == b.Kind && b.Kind == c.Kind
		})
		outage(t, all[0], time.Minute)
	})
}

func TestStoreThatIsLostIsFilledAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 3, config())
		all[0].trip(t)
		within(t, time.Second, "open everywhere", everywhere(all, breaker.Open))
		s.wipe()
		within(t, time.Second, "the record is there again", func() bool { return s.value("breaker."+psp) != nil })
		if !everywhere(all, breaker.Open)() {
			t.Error("a lost store closes breakers")
		}
		late := startMany(t, s, 1, config())[0]
		if no := late.call(t, gateway.Final); no.Why != fleet.WhyOpen {
			t.Errorf("a new instance: %q", no.Why)
		}
	})
}

// A store that comes back with an old image, as after a power cut, does not undo what was agreed on since.
func TestOlderRecordDoesNotUndoNewerOnes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 3, config())
		outage(t, all[0], time.Minute)
		time.Sleep(time.Minute)
		old := s.image()
		all[1].trip(t)
		within(t, time.Second, "open everywhere", everywhere(all, breaker.Open))
		s.restore(old)
		time.Sleep(time.Second)
		if !everywhere(all, breaker.Open)() {
			t.Error("an old image closed the breaker")
		}
		r, err := breaker.Decode(s.value("breaker." + psp))
		if err != nil || r.Kind != breaker.Open {
			t.Errorf("the record: %+v, %v", r, err)
		}
	})
}

// Whatever lies in the store, instances go on, and trip and recover as ever.
func TestHostileRecordsKeepNobodyOpenOrClosed(t *testing.T) {
	far := breaker.At(time.Now().Add(time.Hour * 24 * 365 * 100))
	hostile := map[string][]byte{
		"nothing":              {},
		"no JSON":              []byte("open"),
		"another version":      []byte(`{"v":99,"kind":"open"}`),
		"open for ever":        breaker.Shared{Kind: breaker.Open, Epoch: 9, Since: far, RetryAt: far}.Encode(),
		"the last epoch":       breaker.Shared{Kind: breaker.Closed, Epoch: math.MaxUint64}.Encode(),
		"the last epoch, open": breaker.Shared{Kind: breaker.Open, Epoch: math.MaxUint64, RetryAt: far}.Encode(),
		"no places left": func() []byte {
			r := breaker.Shared{Kind: breaker.HalfOpen, Epoch: 5}
			for i := range r.Probes {
				r.Probes[i] = breaker.Lease{ID: uint64(i + 1), Deadline: far}
			}
			return r.Encode()
		}(),
	}
	for name, value := range hostile {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				s.set("breaker."+psp, value)
				s.set("limit."+psp, value)
				s.set("share."+psp, value)
				all := startMany(t, s, 2, config())
				if no := all[0].call(t, gateway.Pending); no.Why == fleet.WhyPaused {
					t.Errorf("paused by nonsense")
				}
				time.Sleep(time.Minute)
				for range 3 {
					for _, in := range all {
						outage(t, in, 5*time.Minute)
					}
				}
				within(t, time.Minute, "they agree", func() bool {
					return all[0].gate.Snapshot("").Breaker.Epoch == all[1].gate.Snapshot("").Breaker.Epoch
				})
			})
		})
	}
}

// A gateway that is up for two seconds and down for two is called little, and in the end recovers.
func TestFlappingGateway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all := startMany(t, newStore(), 3, config())
		begin := time.Now()
		calls, perCycle := 0, map[int]int{}
		for end := begin.Add(10 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			up := int(time.Since(begin)/(2*time.Second))%2 == 1
			for _, in := range all {
				pass, no := in.gate.Enter(t.Context(), "", limit.Fresh)
				if no.Refused() {
					continue
				}
				calls++
				perCycle[int(time.Since(begin)/time.Minute)]++
				if up {
					pass.Done(gateway.Pending, 0)
				} else {
					pass.Done(gateway.Transport, 0)
				}
			}
		}
		if calls > 1800 { // of 90,000: the ramp does not leave its first steps
			t.Errorf("%d calls to a flapping gateway in ten minutes, by minute %v", calls, perCycle)
		}
		within(t, 3*time.Minute, "closed and at full share everywhere", func() bool {
			for _, in := range all {
				in.call(t, gateway.Pending)
			}
			return everywhere(all, breaker.Closed)() && !all[0].gate.Snapshot("").Breaker.Ramping
		})
	})
}

// Days of outages, each of hours, in a fleet whose store and instances come and go.
func TestDaysOfOutages(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 3, config())
		for day := range 5 {
			switch day {
			case 1:
				s.wipe()
			case 2:
				all[1].crash()
				all[1] = startMany(t, s, 1, config())[0]
			case 3:
				for _, in := range all {
					in.line.set(silent)
				}
			case 4:
				for _, in := range all {
					in.line.set(fine)
				}
			}
			time.Sleep(8 * time.Hour)
			begin, calls := time.Now(), 0
			for ; time.Since(begin) < 8*time.Hour; time.Sleep(5 * time.Second) {
				for _, in := range all {
					if no := in.call(t, gateway.Transport); !no.Refused() {
						calls++
					}
				}
			}
			most := 3*5 + 8*3600/15*2 // the cooldown ends every 15 to 30 s, and then one probe fails
			if day == 3 {
				most *= 3 // each for itself
			}
			if calls > most || calls < 8*3600/35 {
				t.Errorf("day %d: %d calls in an outage of eight hours, at most %d", day, calls, most)
			}
			back := time.Now()
			within(t, 2*time.Minute, "closed everywhere, at full share", func() bool {
				for _, in := range all {
					in.call(t, gateway.Pending)
				}
				return everywhere(all, breaker.Closed)() && !all[2].gate.Snapshot("").Breaker.Ramping
			})
			if day == 0 {
				t.Logf("at full share %s after the gateway was back", time.Since(back))
			}
			time.Sleep(8 * time.Hour)
		}
	})
}

func TestOperatorsForceReleaseAndReset(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 3, config())
		kv, target, cfg := s.line(0), fleet.Target{Gateway: psp}, breaker.Defaults()
		force := func(k breaker.Kind) []breaker.Transition {
			t.Helper()
			changes, err := fleet.Force(t.Context(), kv, target, cfg, breaker.Forced{
				Mode: k, Reason: "maintenance", Actor: "ops", Until: breaker.At(time.Now().Add(time.Hour)),
			})
			if err != nil {
				t.Fatal(err)
			}
			return changes
		}
		changes := force(breaker.Open)
		if len(changes) != 1 || changes[0].Cause != breaker.CauseForced || changes[0].Actor != "ops" || changes[0].Reason != "maintenance" {
			t.Errorf("changes %+v", changes)
		}
		within(t, time.Second, "forced open everywhere", everywhere(all, breaker.Open))
		if no := all[2].call(t, gateway.Pending); no.Why != fleet.WhyForced || !no.Why.ByBreaker() || time.Until(no.RetryAt) > time.Hour {
			t.Errorf("refusal %+v", no)
		}
		force(breaker.Disabled)
		within(t, time.Second, "disabled everywhere", everywhere(all, breaker.Disabled))
		for range 100 {
			if no := all[0].call(t, gateway.Transport); no.Refused() {
				t.Fatalf("disabled, and refused: %s", no.Why)
			}
		}
		if changes, err := fleet.Release(t.Context(), kv, target, cfg, "ops", "done"); err != nil || len(changes) != 1 {
			t.Fatalf("%+v, %v", changes, err)
		}
		within(t, time.Second, "closed everywhere", everywhere(all, breaker.Closed))
		if changes, err := fleet.Release(t.Context(), kv, target, cfg, "ops", "again"); err != nil || len(changes) != 0 {
			t.Errorf("releasing what is not forced: %+v, %v", changes, err)
		}

		for range 3 {
			all[0].call(t, gateway.Unauthorized)
		}
		within(t, time.Second, "open for credentials everywhere", everywhere(all, breaker.Open))
		if _, err := fleet.Reset(t.Context(), kv, target, cfg, "ops", "new key"); err != nil {
			t.Fatal(err)
		}
		within(t, time.Second, "probing everywhere", everywhere(all, breaker.HalfOpen))
		within(t, 5*time.Second, "closed", func() bool {
			all[1].call(t, gateway.Pending)
			return everywhere(all, breaker.Closed)()
		})
		records, err := fleet.List(t.Context(), kv)
		if err != nil || len(records) != 1 || records[0].Target != target || records[0].Breaker.Kind != breaker.Closed || records[0].Err != nil {
			t.Errorf("list %+v, %v", records, err)
		}
	})
}

// An operator's word counts though an instance that the store was away from has changed the breaker many times since.
func TestOperatorsWordCountsAgainstLaterEpochs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 2, config())
		all[1].line.set(cut)
		outage(t, all[1], 10*time.Minute)
		if _, err := fleet.Force(t.Context(), s.line(0), fleet.Target{Gateway: psp}, breaker.Defaults(), breaker.Forced{
			Mode: breaker.Open, Reason: "contract ended", Actor: "ops", Until: breaker.At(time.Now().Add(24 * time.Hour)),
		}); err != nil {
			t.Fatal(err)
		}
		all[1].line.set(fine)
		within(t, 10*time.Second, "forced open everywhere", func() bool {
			return all[0].gate.Snapshot("").Breaker.Forced.On() && all[1].gate.Snapshot("").Breaker.Forced.On()
		})
		time.Sleep(23 * time.Hour)
		if no := all[1].call(t, gateway.Pending); no.Why != fleet.WhyForced {
			t.Errorf("a day later: %q", no.Why)
		}
		time.Sleep(time.Hour)
		within(t, 10*time.Second, "it ended by itself, and was probed", func() bool {
			all[0].call(t, gateway.Pending)
			all[1].call(t, gateway.Pending)
			return everywhere(all, breaker.Closed)()
		})
	})
}

func TestOperatorsErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		kv, target := s.line(0), fleet.Target{Gateway: psp, Account: "a.b"}
		if _, err := fleet.Force(t.Context(), kv, target, breaker.Defaults(), breaker.Forced{Mode: breaker.Open}); err == nil {
			t.Error("forced without a reason")
		}
		s.set("breaker.stripe.a=2eb", []byte(`{"v":2}`))
		if _, err := fleet.Reset(t.Context(), kv, target, breaker.Defaults(), "ops", "x"); err == nil || !strings.Contains(err.Error(), "version") {
			t.Errorf("resetting a record of another version: %v", err)
		}
		if string(s.value("breaker.stripe.a=2eb")) != `{"v":2}` {
			t.Error("a record of another version was overwritten")
		}
		records, err := fleet.List(t.Context(), kv)
		if err != nil || len(records) != 1 || records[0].Target != target || records[0].Err == nil {
			t.Errorf("list %+v, %v", records, err)
		}
		kv.set(cut)
		if _, err := fleet.List(t.Context(), kv); err == nil {
			t.Error("a list without a store")
		}
		if _, err := fleet.Reset(t.Context(), kv, target, breaker.Defaults(), "ops", "x"); err == nil {
			t.Error("reset without a store")
		}
		kv.set(silent)
		start := time.Now()
		if _, err := fleet.Reset(t.Context(), kv, target, breaker.Defaults(), "ops", "x"); err == nil || time.Since(start) > 5*time.Second {
			t.Errorf("reset with a silent store: %v after %s", err, time.Since(start))
		}
	})
}

func TestComplaintOfOneInstancePausesAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 3, config(limited(100, 30)))
		time.Sleep(5 * time.Second)
		pass, no := all[0].gate.Enter(t.Context(), "", limit.Fresh)
		if no.Refused() {
			t.Fatal(no.Why)
		}
		until := time.Now().Add(30 * time.Second)
		pass.Done(gateway.RateLimited, 30*time.Second)
		time.Sleep(100 * time.Millisecond)
		for i, in := range all {
			if no := in.call(t, gateway.Pending); no.Why != fleet.WhyPaused || no.RetryAt.Sub(until).Abs() > 2*time.Millisecond {
				t.Errorf("instance %d: %q until %s, want paused until %s", i, no.Why, no.RetryAt, until)
			}
			if _, no := in.gate.Enter(t.Context(), "another", limit.Fresh); no.Why == fleet.WhyPaused {
				t.Errorf("instance %d: another account is paused too", i)
			}
			if f := in.gate.Snapshot("").Limit.Factor; f > 0.71 {
				t.Errorf("instance %d: factor %v, want 0.7", i, f)
			}
			if k := in.kind(); k != breaker.Closed {
				t.Errorf("instance %d: a complaint made the breaker %s", i, k)
			}
		}
		records, err := fleet.List(t.Context(), s.line(0))
		if err != nil || len(records) != 1 || records[0].Limit.PausedUntil != breaker.At(until) || math.Abs(records[0].Limit.Factor-0.7) > 1e-9 {
			t.Errorf("list %+v, %v", records, err)
		}
		time.Sleep(time.Until(until) + time.Second)
		for i, in := range all {
			if no := in.call(t, gateway.Pending); no.Refused() {
				t.Errorf("instance %d after the pause: %q", i, no.Why)
			}
		}
	})
}

func TestOnlyARetryAfterOfTheGatewayItselfPauses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for class, want := range map[gateway.Class]bool{
			gateway.RateLimited: true, gateway.Transport: true, gateway.Pending: false, gateway.Final: false, gateway.NotFound: false, gateway.Local: false,
		} {
			in := start(t, nil, config())
			pass, _ := in.gate.Enter(t.Context(), "", limit.Fresh)
			pass.Done(class, time.Minute)
			if got := in.call(t, gateway.Pending).Why == fleet.WhyPaused; got != want {
				t.Errorf("%s with Retry-After: paused %t, want %t", class, got, want)
			}
			in.stop()
		}
	})
}

// A complaint that the store did not take is not lost when others complain meanwhile: pauses are joined.
func TestPausesAreJoined(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all := startMany(t, newStore(), 2, config())
		all[0].line.set(cut)
		for i, d := range []time.Duration{10 * time.Minute, time.Minute} {
			pass, _ := all[i].gate.Enter(t.Context(), "", limit.Fresh)
			pass.Done(gateway.RateLimited, d)
		}
		all[0].line.set(fine)
		time.Sleep(6 * time.Second)
		for i, in := range all {
			if no := in.call(t, gateway.Pending); no.Why != fleet.WhyPaused || time.Until(no.RetryAt) < 9*time.Minute {
				t.Errorf("instance %d: %q for %s, want the longer pause", i, no.Why, time.Until(no.RetryAt))
			}
		}
	})
}

func TestPauseBeyondAllBoundsIsNotAdopted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		value, err := json.Marshal(map[string]any{"v": 1, "paused_until": "9999-01-01T00:00:00.000Z", "factor": 0.0001, "cut_at": "9999-01-01T00:00:00.000Z"})
		if err != nil {
			t.Fatal(err)
		}
		s.set("limit."+psp, value)
		in := startMany(t, s, 1, config())[0]
		if no := in.call(t, gateway.Pending); no.Refused() {
			t.Errorf("refused: %s", no.Why)
		}
	})
}

func TestAccountsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		in := start(t, nil, config())
		for i := range 2 * fleet.MaxAccounts {
			pass, no := in.gate.Enter(t.Context(), "account-"+time.Duration(i).String(), limit.Fresh)
			if no.Refused() {
				t.Fatalf("account %d: %s", i, no.Why)
			}
			pass.Done(gateway.Pending, 0)
		}
		if n := len(in.gate.Accounts()); n != fleet.MaxAccounts+1 {
			t.Errorf("%d accounts are kept, want %d and the one for all others", n, fleet.MaxAccounts)
		}
		for range 5 {
			pass, _ := in.gate.Enter(t.Context(), "new", limit.Fresh)
			pass.Done(gateway.Transport, 0)
		}
		if !in.gate.Open("one more") || in.gate.Open("account-0s") {
			t.Error("the accounts beyond share a breaker, and the others do not")
		}
	})
}

func TestTransitionsThatNobodyTakesAreCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := fleet.New(fleet.Options{})
		g, err := f.Gate(config())
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := f.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		for f.Dropped() == 0 {
			pass, _ := g.Enter(t.Context(), "", limit.Fresh)
			pass.Done(gateway.Transport, 0)
			time.Sleep(time.Second)
		}
		stop()
		<-done
		n := 0
		for range f.Transitions() {
			n++
		}
		if n != 1024 {
			t.Errorf("%d transitions are kept, want 1024", n)
		}
	})
}

func TestGateOfAGatewayIsMadeOnce(t *testing.T) {
	f := fleet.New(fleet.Options{})
	if _, err := f.Gate(config()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Gate(config()); err == nil {
		t.Error("made twice")
	}
	if _, err := f.Gate(fleet.GateConfig{Gateway: "other", Limit: limit.Config{Rate: -1}}); err == nil || !strings.Contains(err.Error(), "window") || !strings.Contains(err.Error(), "rate") {
		t.Errorf("a bad configuration: %v", err)
	}
}
