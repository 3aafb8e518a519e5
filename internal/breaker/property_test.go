package breaker_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/breaker"
)

func instants() *rapid.Generator[breaker.Instant] {
	near := rapid.Map(rapid.Int64Range(-int64(14*24*time.Hour/time.Millisecond), int64(14*24*time.Hour/time.Millisecond)), func(d int64) breaker.Instant { return noon + breaker.Instant(d) })
	edges := rapid.SampledFrom([]breaker.Instant{math.MinInt64, -1, 0, 1, noon - 1, noon, noon + 1, 253402300799999, 253402300800000, math.MaxInt64})
	return rapid.OneOf(edges, near)
}

func numbers() *rapid.Generator[int] {
	return rapid.OneOf(rapid.SampledFrom([]int{math.MinInt, -1, 0, 1, 2, 100, 100_00, math.MaxInt - 1, math.MaxInt}), rapid.IntRange(-3, 20))
}

// shareds draws shared states as somebody hostile, or a build of another time, might write them.
func shareds() *rapid.Generator[breaker.Shared] {
	return rapid.Custom(func(t *rapid.T) breaker.Shared {
		s := breaker.Shared{
			Kind:      breaker.Kind(rapid.IntRange(0, 5).Draw(t, "kind")),
			Epoch:     rapid.SampledFrom([]uint64{0, 1, math.MaxUint64}).Draw(t, "epoch"),
			Cause:     rapid.SampledFrom(append([]breaker.Cause{"", "made up"}, breaker.Causes...)).Draw(t, "cause"),
			Since:     instants().Draw(t, "since"),
			RetryAt:   instants().Draw(t, "retry at"),
			Trips:     numbers().Draw(t, "trips"),
			Successes: numbers().Draw(t, "successes"),
			Step:      numbers().Draw(t, "step"),
			StepAt:    instants().Draw(t, "step at"),
		}
		for i := range rapid.IntRange(0, breaker.MaxProbes).Draw(t, "probes") {
			s.Probes[i] = breaker.Lease{ID: rapid.Uint64Range(0, 3).Draw(t, "id"), Deadline: instants().Draw(t, "deadline")}
		}
		if rapid.Bool().Draw(t, "forced") {
			s.Forced = breaker.Forced{Mode: breaker.Kind(rapid.IntRange(0, 5).Draw(t, "mode")), Reason: "r", Actor: "a", Until: instants().Draw(t, "until")}
		}
		return s
	})
}

func states() *rapid.Generator[breaker.State] {
	return rapid.Custom(func(t *rapid.T) breaker.State {
		s := breaker.State{Shared: shareds().Draw(t, "shared")}
		l := &s.Local
		l.Generation = rapid.SampledFrom([]uint64{0, 1, math.MaxUint64}).Draw(t, "generation")
		l.Slot = int64(numbers().Draw(t, "slot"))
		for _, n := range []*int{&l.Calls, &l.Failed, &l.Slow, &l.Consecutive, &l.Refused, &l.Credit, &l.Step} {
			*n = numbers().Draw(t, "local")
		}
		for i := range l.Buckets {
			l.Buckets[i] = breaker.Bucket{Started: numbers().Draw(t, "started"), Done: numbers().Draw(t, "done")}
		}
		return s
	})
}

func TestEveryStateTakesEveryEvent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, err := breaker.NewMachine(configs().Draw(t, "config"))
		if err != nil {
			t.Fatal(err)
		}
		s, now := states().Draw(t, "state"), instants().Draw(t, "now")
		for range 5 {
			e := breaker.Event{
				Kind:    breaker.EventKind(rapid.IntRange(0, 9).Draw(t, "event")),
				Lease:   rapid.Uint64Range(0, 5).Draw(t, "lease"),
				Outcome: breaker.Outcome(rapid.IntRange(0, 5).Draw(t, "outcome")),
				Chance:  rapid.SampledFrom([]float64{0, 0.5, 1, -1, math.NaN(), math.Inf(1)}).Draw(t, "chance"),
				Call: breaker.Call{
					Generation: s.Local.Generation, Start: instants().Draw(t, "start"), Slot: int64(numbers().Draw(t, "call's slot")),
					Lease: rapid.Uint64Range(0, 3).Draw(t, "call's lease"),
				},
				Forced: breaker.Forced{Mode: breaker.Open, Reason: "r", Actor: "a", Until: now.Add(time.Hour)},
				Shared: shareds().Draw(t, "adopted"),
				Run:    breaker.Run{Failures: numbers().Draw(t, "failures"), Refused: numbers().Draw(t, "refused")},
			}
			next, v, _ := m.Step(s, now, e)
			if again, w, _ := m.Step(s, now, e); again != next || v != w {
				t.Fatal("stepped twice, and differently")
			}
			m.Snapshot(next, now)
			s = next
			now = now.Add(time.Duration(rapid.IntRange(-1000, 1000).Draw(t, "ms")) * time.Millisecond)
		}
	})
}

// Nothing that can be read from the bucket keeps a breaker from opening when the gateway is down, or from closing when it
// is back, for longer than a state may be forced.
func survives(t rapid.TB, m *breaker.Machine, cfg breaker.Config, s breaker.State, now breaker.Instant) {
	lease := uint64(1 << 40)
	call := func(o breaker.Outcome) bool {
		lease++
		var v breaker.Verdict
		s, v, _ = m.Step(s, now, breaker.Event{Kind: breaker.Ask, Lease: lease})
		if v.Admitted {
			s, _, _ = m.Step(s, now, breaker.Event{Kind: breaker.Finish, Call: v.Call, Outcome: o})
		}
		return v.Admitted
	}
	latest := now.Add(2*breaker.MaxForced + cfg.CredentialCooldown.Cap + cfg.Cooldown.Cap + cfg.ProbeDeadline + time.Duration(len(cfg.Ramp)+1)*cfg.RampStep)

	start, down := s, now
	now = latest
	cooling := func() bool {
		snap := m.Snapshot(s, now)
		return snap.Kind == breaker.Open && snap.RetryAt > now
	}
	for tries := 0; tries < 100*cfg.ConsecutiveFailures+100 && !cooling(); tries++ {
		call(breaker.Failure) // one in a hundred is admitted at the ramp's lowest
	}
	if !cooling() {
		t.Fatalf("the gateway is down, the breaker not open: %+v", m.Snapshot(s, now))
	}
	if call(breaker.Failure) {
		t.Fatalf("an open breaker admits calls")
	}
	if _, err := breaker.Decode(s.Shared.Encode()); err != nil {
		t.Fatalf("what became of a record cannot be read: %v", err)
	}

	s, now = start, down
	now = latest
	for range cfg.Successes + 1 {
		call(breaker.Success)
		now = now.Add(max(cfg.ProbeDeadline, cfg.Cooldown.Cap))
	}
	now = now.Add(time.Duration(len(cfg.Ramp)+1) * cfg.RampStep)
	if snap := m.Snapshot(s, now); snap.Kind != breaker.Closed || snap.Share != breaker.Percent(100) {
		t.Fatalf("the gateway is back, the breaker %s at %s: %+v", snap.Kind, snap.Share, snap)
	}
}

func TestNoRecordKeepsABreakerOpenOrClosed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := configs().Draw(t, "config")
		m, err := breaker.NewMachine(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s, _, _ := m.Step(breaker.State{}, noon, breaker.Event{Kind: breaker.Adopt, Shared: shareds().Draw(t, "shared")})
		survives(t, m, cfg, s, noon)
	})
}

// A process that starts anew reads the same record: a forced state without a sane end must not begin again with it.
func TestForcedStateInARecordEndsForEveryReader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, err := breaker.NewMachine(breaker.Defaults())
		if err != nil {
			t.Fatal(err)
		}
		record := shareds().Draw(t, "shared")
		later := noon.Add(2*breaker.MaxForced + time.Hour)
		if record.Since > noon.Add(breaker.MaxForced) {
			record.Since = noon // nobody believes one that begins so far ahead
		}
		s, _, _ := m.Step(breaker.State{}, later, breaker.Event{Kind: breaker.Adopt, Shared: record})
		s, _, _ = m.Step(s, later, breaker.Event{Kind: breaker.Tick})
		if s.Shared.Forced.On() {
			t.Fatalf("%+v, read %s later, is still forced until %s", record.Forced, later.Time().Sub(noon.Time()), s.Shared.Forced.Until.Time())
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"v":1,"kind":"closed","epoch":0}`))
	f.Add(breaker.Shared{
		Kind: breaker.HalfOpen, Epoch: 7, Cause: breaker.CauseConsecutive, Since: noon, RetryAt: noon, Trips: 2, Successes: 1,
		Probes: [breaker.MaxProbes]breaker.Lease{{ID: 5, Deadline: noon.Add(time.Minute)}},
	}.Encode())
	f.Add(breaker.Shared{Forced: breaker.Forced{Mode: breaker.Closed, Reason: "r", Actor: "a", Until: noon}}.Encode())
	f.Add([]byte(`{"v":2,"kind":"wide_open"}`))
	f.Add([]byte(`{"v":1,"kind":"closed","epoch":18446744073709551615,"trips":9223372036854775807,"step":9223372036854775807,"step_at":"9999-12-31T23:59:59Z"}`))
	cfg := breaker.Defaults()
	m, err := breaker.NewMachine(cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := breaker.Decode(b)
		if err != nil {
			if s != (breaker.Shared{}) {
				t.Fatalf("refused, but returned %+v", s)
			}
			return
		}
		encoded := s.Encode()
		if len(encoded) > breaker.MaxRecordBytes {
			t.Fatalf("a record of %d bytes is written, and would not be read", len(encoded))
		}
		if again, err := breaker.Decode(encoded); err != nil || again != s {
			t.Fatalf("%s becomes %s: %v", b, encoded, err)
		}
		state, _, _ := m.Step(breaker.State{}, noon, breaker.Event{Kind: breaker.Adopt, Shared: s})
		survives(t, m, cfg, state, noon)
	})
}

// Whatever happened before, a gateway that answers again is called at full share again, though probes were lost on the way.
func TestNoHistoryKeepsABreakerFromRecovering(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t, nil)
		for range rapid.IntRange(0, 100).Draw(t, "events") {
			if v := m.ask(); v.Admitted && rapid.IntRange(0, 3).Draw(t, "comes back") > 0 {
				m.finish(v.Call, rapid.SampledFrom(breaker.Outcomes).Draw(t, "outcome"))
			}
			m.after(time.Duration(rapid.IntRange(0, 10_000).Draw(t, "ms")) * time.Millisecond)
		}
		deadline := m.now.Add(m.cfg.CredentialCooldown.Cap + m.cfg.ProbeDeadline + time.Duration(len(m.cfg.Ramp))*m.cfg.RampStep + m.cfg.Window + time.Minute)
		for m.now < deadline {
			if v := m.ask(); v.Admitted {
				m.finish(v.Call, breaker.Success)
			}
			m.after(500 * time.Millisecond)
		}
		if s := m.snapshot(); s.Kind != breaker.Closed || s.Ramping {
			t.Fatalf("%s at %s", s.Kind, s.Share)
		}
	})
}

// fleet is instances with windows of their own that agree on one shared state, as they would through a bucket with compare-and-set.
type fleet struct {
	m         *breaker.Machine
	record    breaker.Shared
	instances []breaker.State
	writes    int
}

func (f *fleet) step(i int, now breaker.Instant, e breaker.Event) breaker.Verdict {
	s, _, _ := f.m.Step(f.instances[i], now, breaker.Event{Kind: breaker.Adopt, Shared: f.record})
	s, v, _ := f.m.Step(s, now, e)
	if s.Shared != f.record {
		f.record = s.Shared
		f.writes++
	}
	f.instances[i] = s
	return v
}

// The shared part is enough for a fleet: together its instances admit no more probes than one would, and all that the calls of a closed
// breaker need is local.
func TestFleetThatAgreesOnTheSharedPartProbesAsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := breaker.Defaults()
		m, err := breaker.NewMachine(cfg)
		if err != nil {
			t.Fatal(err)
		}
		f := &fleet{m: m, instances: make([]breaker.State, rapid.IntRange(1, 6).Draw(t, "instances"))}
		now, lease := noon, uint64(0)
		which := rapid.IntRange(0, len(f.instances)-1)
		call := func(i int) breaker.Verdict {
			lease++
			return f.step(i, now, breaker.Event{Kind: breaker.Ask, Lease: lease, Chance: 0.5})
		}
		finish := func(i int, c breaker.Call, o breaker.Outcome) {
			f.step(i, now, breaker.Event{Kind: breaker.Finish, Call: c, Outcome: o, Chance: 0.5})
		}
		for i := range f.instances {
			f.step(i, now, breaker.Event{})
		}
		f.writes = 0
		for range 100 {
			i := which.Draw(t, "instance")
			finish(i, call(i).Call, breaker.Success)
		}
		if f.writes > 0 {
			t.Fatalf("%d writes for calls of a closed breaker", f.writes)
		}
		first := which.Draw(t, "first to trip")
		for range cfg.ConsecutiveFailures {
			finish(first, call(first).Call, breaker.Failure)
		}
		for i := range f.instances {
			if call(i).Admitted {
				t.Fatalf("instance %d calls though %d has tripped", i, first)
			}
		}
		now = f.record.RetryAt
		type probe struct {
			by   int
			call breaker.Call
		}
		var probes []probe
		for range 50 {
			i := which.Draw(t, "prober")
			if v := call(i); v.Admitted {
				probes = append(probes, probe{i, v.Call})
			}
		}
		if len(probes) != cfg.Probes {
			t.Fatalf("%d probes in the fleet, want %d", len(probes), cfg.Probes)
		}
		for _, p := range probes {
			finish(p.by, p.call, breaker.Success)
		}
		for i := range f.instances {
			f.step(i, now, breaker.Event{})
			if k := m.Snapshot(f.instances[i], now); k.Kind != breaker.Closed || k.Share != cfg.Ramp[0] {
				t.Fatalf("instance %d is %s at %s", i, k.Kind, k.Share)
			}
		}
	})
}

func TestAdoptingIsATransitionOnlyWhenSomethingChanged(t *testing.T) {
	m := newMachine(t, nil)
	m.call(3, breaker.Failure)
	m.step(breaker.Event{Kind: breaker.Adopt, Shared: m.s.Shared})
	if s := m.snapshot(); s.Consecutive != 3 || len(m.changes) != 0 {
		t.Fatalf("%d failures in a row, changes %v", s.Consecutive, m.changes)
	}
	other := newMachine(t, nil)
	other.open()
	c := m.admitted()
	m.step(breaker.Event{Kind: breaker.Adopt, Shared: other.s.Shared})
	m.is(breaker.Open)
	if got := m.causes(); len(got) != 1 || got[0] != breaker.CauseAdopted {
		t.Fatalf("causes %v", got)
	}
	before := m.s
	m.finish(c, breaker.Failure)
	if m.s != before {
		t.Fatal("a call from before counts")
	}

	// While others probe, leases come and go: that begins no new generation.
	m.now = m.s.Shared.RetryAt
	p := m.admitted()
	elsewhere := m.s.Shared
	elsewhere.Probes[1] = breaker.Lease{ID: 1 << 50, Deadline: m.now.Add(time.Second)}
	m.step(breaker.Event{Kind: breaker.Adopt, Shared: elsewhere})
	m.finish(p, breaker.Success)
	if s := m.snapshot(); s.Successes != 1 || s.Probes != 1 {
		t.Fatalf("%d successes, %d probes", s.Successes, s.Probes)
	}
}

// Whatever of its meaning differs, another record begins another generation: what was admitted before says nothing.
func TestAdoptingAnotherStateBeginsAnotherGeneration(t *testing.T) {
	for name, change := range map[string]func(*breaker.Shared){
		"kind":  func(s *breaker.Shared) { s.Kind = breaker.HalfOpen },
		"epoch": func(s *breaker.Shared) { s.Epoch++ },
		"since": func(s *breaker.Shared) { s.Since++ },
		"forced": func(s *breaker.Shared) {
			s.Forced = breaker.Forced{Mode: breaker.Closed, Reason: "r", Actor: "a", Until: noon.Add(time.Hour)}
		},
	} {
		m := newMachine(t, nil)
		m.open()
		m.close()
		c := m.admitted()
		other := m.s.Shared
		change(&other)
		m.step(breaker.Event{Kind: breaker.Adopt, Shared: other})
		m.finish(c, breaker.Failure)
		if s := m.snapshot(); s.Calls != 0 || s.Consecutive != 0 {
			t.Errorf("another %s: %d calls, %d failures in a row", name, s.Calls, s.Consecutive)
		}
	}
}

func TestAdoptingAStepBackOfTheRampKeepsTheWindow(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	m.close()
	c := m.admitted()
	m.after(3 * m.cfg.RampStep)
	m.ask()
	m.causes()
	back := m.s.Shared
	back.Step, back.StepAt = 2, m.now
	m.step(breaker.Event{Kind: breaker.Adopt, Shared: back})
	if got := m.causes(); len(got) != 1 || got[0] != breaker.CauseAdopted {
		t.Errorf("causes %v", got)
	}
	m.finish(c, breaker.Success)
	if s := m.snapshot(); s.Share != m.cfg.Ramp[2] || s.Calls == 0 {
		t.Errorf("share %s, %d calls", s.Share, s.Calls)
	}
}
