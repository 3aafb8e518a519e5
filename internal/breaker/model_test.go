package breaker_test

import (
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/breaker"
)

// model is the machine as one would write it without a care for speed: it remembers every call of the present generation and
// counts anew whenever it is asked. Time goes only forward in it.
type model struct {
	cfg         breaker.Config
	now         breaker.Instant
	kind        breaker.Kind
	forced      breaker.Forced
	retryAt     breaker.Instant
	trips       int
	epoch       uint64
	calls       []*modelCall // admitted while closed, in this generation
	consecutive int
	word        breaker.Word // of this generation: nobody takes it here
	backs       int          // steps back of the ramp in this generation
	refused     int
	looked      int64 // the bucket in which it was last looked for hanging calls
	probes      map[uint64]breaker.Instant
	successes   int
	ramp        int
	rampAt      breaker.Instant
	asked       int // hundredths of a percent, summed up since the last call on the ramp
}

type modelCall struct {
	slot               int64 // counted in; moves when it comes back after the window
	started            breaker.Instant
	done, failed, slow bool
}

// ticket is what an admitted call has to show when it comes back.
type ticket struct {
	real  breaker.Call
	call  *modelCall // nil for a probe and for what is not counted
	lease uint64
	epoch uint64
}

func (m *model) slot() int64 { return int64(m.now) / (m.cfg.Window.Milliseconds() / 10) }

func (m *model) last() int { return len(m.cfg.Ramp) - 1 }

// step is the step of the ramp now.
func (m *model) step() int {
	if m.kind != breaker.Closed || m.forced.On() {
		return m.last()
	}
	s := m.ramp
	for t := m.rampAt.Add(m.cfg.RampStep); t <= m.now && s < m.last(); t = t.Add(m.cfg.RampStep) {
		s++
	}
	return s
}

func (m *model) recovered() bool {
	return m.now >= m.rampAt.Add(time.Duration(len(m.cfg.Ramp)-m.ramp)*m.cfg.RampStep)
}

func (m *model) settle() {
	if m.forced.On() && m.now >= m.forced.Until {
		m.unforce()
	}
}

func (m *model) unforce() {
	mode := m.forced.Mode
	m.forced = breaker.Forced{}
	if mode == breaker.Open {
		m.become(breaker.HalfOpen)
	} else {
		m.become(breaker.Closed)
		m.rampAt = 0
	}
}

func (m *model) become(k breaker.Kind) {
	m.kind = k
	m.epoch++
	m.retryAt, m.successes, m.probes = 0, 0, map[uint64]breaker.Instant{}
	m.calls, m.backs, m.consecutive, m.refused, m.asked, m.word = nil, 0, 0, 0, 100_00, breaker.Word{}
	m.ramp, m.rampAt = 0, m.now
	m.looked = m.slot()
}

// window is what counts now.
func (m *model) window() (calls, failed, slow, overdue int) {
	width := m.cfg.Window.Milliseconds() / 10
	for _, c := range m.calls {
		if c.slot <= m.slot()-10 {
			continue
		}
		calls++
		if c.failed {
			failed++
		}
		if c.slow {
			slow++
		}
		if end := breaker.Instant((c.slot + 1) * width); m.cfg.SlowCall > 0 && !c.done && m.now >= end.Add(m.cfg.SlowCall) {
			overdue++
		}
	}
	return calls, failed, slow, overdue
}

// hundredths is a ratio in hundredths of a percent.
func hundredths(r breaker.Ratio) int { return int(r.Float()*100_00 + 0.5) }

// judge returns whether a trigger is reached, and whether it is the credentials'.
func (m *model) judge() (trip, credentials bool) {
	calls, failed, slow, overdue := m.window()
	switch {
	case m.forced.On():
		return false, false
	case m.refused >= m.cfg.CredentialFailures:
		return true, true
	case m.consecutive >= m.cfg.ConsecutiveFailures:
		return true, false
	case calls < m.cfg.MinCalls:
		return false, false
	case 100_00*failed >= hundredths(m.cfg.FailureRatio)*calls:
		return true, false
	}
	return m.cfg.SlowCall > 0 && 100_00*(slow+overdue) >= hundredths(m.cfg.SlowRatio)*calls, false
}

func (m *model) trip(credentials bool, chance float64) {
	if m.kind == breaker.Closed && m.recovered() {
		m.trips = 0
	}
	m.trips++
	c := m.cfg.Cooldown
	if credentials {
		c = m.cfg.CredentialCooldown
	}
	d := c.Base
	for range m.trips - 1 {
		if d = 2 * d; d >= c.Cap {
			break
		}
	}
	d = min(d, c.Cap)
	m.become(breaker.Open)
	m.retryAt = m.now.Add(d/2 + time.Duration(float64(d-d/2)*chance))
}

// look looks for hanging calls when a bucket begins.
func (m *model) look(chance float64) {
	if m.slot() == m.looked {
		return
	}
	m.looked = m.slot()
	if trip, credentials := m.judge(); trip {
		m.trip(credentials, chance)
	}
}

// ask returns whether a call is admitted, and the call when it is counted.
func (m *model) ask(lease uint64, chance float64) (bool, ticket) {
	m.settle()
	count := func() (bool, ticket) {
		c := &modelCall{slot: m.slot(), started: m.now}
		m.calls = append(m.calls, c)
		return true, ticket{call: c, epoch: m.epoch}
	}
	switch {
	case m.forced.On() && m.forced.Mode == breaker.Open:
		return false, ticket{}
	case m.forced.On() && m.forced.Mode == breaker.Disabled:
		return true, ticket{}
	case m.forced.On():
		m.looked = m.slot()
		return count()
	case m.kind == breaker.Open && m.now < m.retryAt:
		return false, ticket{}
	case m.kind == breaker.Open:
		m.become(breaker.HalfOpen)
		fallthrough
	case m.kind == breaker.HalfOpen:
		maps.DeleteFunc(m.probes, func(_ uint64, until breaker.Instant) bool { return m.now >= until })
		if m.now < m.retryAt || len(m.probes) >= m.cfg.Probes {
			return false, ticket{}
		}
		m.probes[lease] = m.now.Add(m.cfg.ProbeDeadline)
		return true, ticket{lease: lease, epoch: m.epoch}
	}
	if m.look(chance); m.kind == breaker.Open {
		return false, ticket{}
	}
	if s := m.step(); s < m.last() {
		if m.asked = min(m.asked, 100_00) + hundredths(m.cfg.Ramp[s]); m.asked < 100_00 {
			return false, ticket{}
		}
		m.asked -= 100_00
	}
	return count()
}

func (m *model) finish(k ticket, o breaker.Outcome, chance float64) {
	m.settle()
	if k.lease != 0 {
		m.finishProbe(k, o, chance)
		return
	}
	if k.call == nil || k.epoch != m.epoch || m.kind != breaker.Closed {
		return
	}
	if m.look(chance); m.kind == breaker.Open {
		return
	}
	slow := m.cfg.SlowCall > 0 && m.now.Time().Sub(k.call.started.Time()) >= m.cfg.SlowCall
	if o == breaker.Inconclusive {
		m.calls = slices.DeleteFunc(m.calls, func(c *modelCall) bool { return c == k.call })
		return
	}
	if k.call.slot <= m.slot()-10 && (o == breaker.Failure || slow) {
		k.call.slot = m.slot()
	}
	k.call.done, k.call.failed, k.call.slow = true, o == breaker.Failure, slow
	switch o {
	case breaker.Success:
		m.consecutive, m.refused = 0, 0
		m.word = breaker.Word{Worked: true, Granted: true}
	case breaker.Failure:
		m.consecutive++
		m.word = m.word.Then(breaker.Word{Run: breaker.Run{Failures: 1}})
	case breaker.Refused:
		m.consecutive = 0
		m.refused++
		m.word = m.word.Then(breaker.Word{Run: breaker.Run{Refused: 1}, Worked: true})
	}
	if o != breaker.Success || slow {
		if trip, credentials := m.judge(); trip {
			m.trip(credentials, chance)
			return
		}
	}
	calls, failed, _, _ := m.window()
	if o == breaker.Failure && !m.forced.On() && !m.recovered() && k.call.started >= m.rampAt && 100_00*failed > hundredths(m.cfg.RampTolerance)*(1+m.backs)*calls {
		m.backs++
		m.ramp, m.rampAt = max(m.step()-1, 0), m.now
	}
}

func (m *model) finishProbe(k ticket, o breaker.Outcome, chance float64) {
	if m.kind != breaker.HalfOpen || m.forced.On() || k.epoch != m.epoch {
		return
	}
	until, held := m.probes[k.lease]
	held = held && m.now < until
	delete(m.probes, k.lease)
	slow := m.cfg.SlowCall > 0 && m.now.Time().Sub(k.real.Start.Time()) >= m.cfg.SlowCall
	switch {
	case o == breaker.Refused:
		m.trip(true, chance)
	case o == breaker.Failure:
		m.trip(false, chance)
	case !held:
	case o == breaker.Success && slow:
		m.trip(false, chance)
	case o == breaker.Success:
		if m.successes++; m.successes == m.cfg.Successes {
			m.become(breaker.Closed)
		}
	default:
		m.retryAt = m.now.Add(m.cfg.ProbePause)
	}
}

func (m *model) shown() breaker.Kind {
	if m.forced.On() {
		return m.forced.Mode
	}
	return m.kind
}

// configs draws configurations that Validate accepts, small enough for every trigger to be reached.
func configs() *rapid.Generator[breaker.Config] {
	return rapid.Custom(func(t *rapid.T) breaker.Config {
		ms := func(name string, from, to int) time.Duration {
			return time.Duration(rapid.IntRange(from, to).Draw(t, name)) * time.Millisecond
		}
		percent := func(name string, from int) breaker.Ratio {
			return breaker.Percent(rapid.IntRange(from, 100).Draw(t, name))
		}
		c := breaker.Config{
			Window:              ms("window", 1000, 20_000),
			MinCalls:            rapid.SampledFrom([]int{1, 3, 8, 20, 100}).Draw(t, "min calls"),
			FailureRatio:        percent("failure ratio", 1),
			ConsecutiveFailures: rapid.SampledFrom([]int{1, 3, 5, 12, 100}).Draw(t, "consecutive failures"),
			SlowRatio:           percent("slow ratio", 1),
			CredentialFailures:  rapid.IntRange(1, 5).Draw(t, "credential failures"),
			Cooldown:            breaker.Cooldown{Base: ms("cooldown", 100, 5000)},
			CredentialCooldown:  breaker.Cooldown{Base: ms("credential cooldown", 100, 5000)},
			Probes:              rapid.IntRange(1, 5).Draw(t, "probes"),
			ProbeDeadline:       ms("probe deadline", 100, 10_000),
			ProbePause:          ms("probe pause", 10, 100),
			Successes:           rapid.IntRange(1, 5).Draw(t, "successes"),
			RampStep:            ms("ramp step", 10, 5000),
			RampTolerance:       percent("ramp tolerance", 0),
		}
		if rapid.Bool().Draw(t, "slow calls count") {
			c.SlowCall = min(ms("slow call", 1, 5000), c.Window/2)
		}
		c.Cooldown.Cap = c.Cooldown.Base * time.Duration(rapid.IntRange(1, 20).Draw(t, "cap"))
		c.CredentialCooldown.Cap = c.CredentialCooldown.Base * time.Duration(rapid.IntRange(1, 20).Draw(t, "credential cap"))
		for _, p := range rapid.SliceOfNDistinct(rapid.IntRange(1, 99), 0, 6, rapid.ID[int]).Draw(t, "ramp") {
			c.Ramp = append(c.Ramp, breaker.Percent(p))
		}
		slices.SortFunc(c.Ramp, func(a, b breaker.Ratio) int { return hundredths(a) - hundredths(b) })
		c.Ramp = append(c.Ramp, breaker.Percent(100))
		if err := c.Validate(); err != nil {
			t.Fatalf("the generator made a configuration that is refused: %v", err)
		}
		return c
	})
}

func TestMachineBehavesLikeItsModel(t *testing.T) {
	for i := range 10 { // a history is short: many of them
		t.Run(strconv.Itoa(i), func(t *testing.T) { rapid.Check(t, history) })
	}
}

// history lives through what rapid draws, with the machine and with its model.
func history(t *rapid.T) {
	cfg := configs().Draw(t, "config")
	machine, err := breaker.NewMachine(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mod := &model{cfg: cfg, now: noon, probes: map[uint64]breaker.Instant{}, asked: 100_00}
	mod.looked = mod.slot()
	var (
		s      breaker.State
		lease  uint64
		open   []ticket // admitted and not back yet
		chance = rapid.SampledFrom([]float64{0, 0.25, 0.5, 0.75})
		// A gateway has good times and bad ones, or no history would go far.
		mood = rapid.SampledFrom([]breaker.Outcome{breaker.Success, breaker.Success, breaker.Failure, breaker.Failure, breaker.Refused, breaker.Inconclusive})
		now  = mood.Draw(t, "mood")
	)
	step := func(e breaker.Event) breaker.Verdict {
		before := s
		next, v, changes := machine.Step(s, mod.now, e)
		if again, w, _ := machine.Step(before, mod.now, e); again != next || w != v {
			t.Fatal("stepped twice, and differently")
		}
		if len(changes) > 0 && changes[len(changes)-1].To != machine.Snapshot(next, mod.now).Kind {
			t.Fatalf("the last transition is to %s", changes[len(changes)-1].To)
		}
		s = next
		return v
	}
	ask := func(t *rapid.T) {
		lease++
		c := chance.Draw(t, "chance")
		v := step(breaker.Event{Kind: breaker.Ask, Lease: lease, Chance: c})
		admitted, k := mod.ask(lease, c)
		if v.Admitted != admitted {
			t.Fatalf("admitted: %t (refused for %q), the model says %t", v.Admitted, v.Why, admitted)
		}
		if !v.Admitted && v.RetryAt <= mod.now {
			t.Fatalf("refused for %q, to be asked again at %s, which is past", v.Why, v.RetryAt.Time())
		}
		if admitted {
			k.real = v.Call
			open = append(open, k)
		}
	}
	finishOne := func(t *rapid.T, i int, o breaker.Outcome) {
		k := open[i]
		open = slices.Delete(open, i, i+1)
		c := chance.Draw(t, "chance")
		step(breaker.Event{Kind: breaker.Finish, Call: k.real, Outcome: o, Chance: c})
		mod.finish(k, o, c)
	}
	finish := func(t *rapid.T, o breaker.Outcome) {
		if len(open) > 0 {
			finishOne(t, rapid.IntRange(0, len(open)-1).Draw(t, "call"), o)
		}
	}
	finishLast := func(t *rapid.T, o breaker.Outcome) {
		if len(open) > 0 {
			finishOne(t, len(open)-1, o)
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"ask": ask,
		"ask 5": func(t *rapid.T) {
			for range 5 {
				ask(t)
			}
		},
		"finish": func(t *rapid.T) { finish(t, now) },
		"finish otherwise": func(t *rapid.T) {
			finish(t, rapid.SampledFrom(breaker.Outcomes).Draw(t, "outcome"))
		},
		"call": func(t *rapid.T) { ask(t); finishLast(t, now) },
		"mood": func(t *rapid.T) { now = mood.Draw(t, "mood") },
		"wait a little": func(t *rapid.T) {
			mod.now = mod.now.Add(time.Duration(rapid.IntRange(1, 500).Draw(t, "ms")) * time.Millisecond)
		},
		"wait": func(t *rapid.T) {
			mod.now = mod.now.Add(time.Duration(rapid.IntRange(1, 30_000).Draw(t, "ms")) * time.Millisecond)
		},
		"until the cooldown is over": func(t *rapid.T) {
			if mod.kind == breaker.Open && !mod.forced.On() {
				mod.now = max(mod.now, mod.retryAt)
			}
		},
		"recover": func(t *rapid.T) {
			if mod.kind != breaker.Open || mod.forced.On() {
				return
			}
			mod.now = max(mod.now, mod.retryAt)
			for range mod.cfg.Successes {
				ask(t)
				finishLast(t, breaker.Success)
			}
		},
		"call on the ramp": func(t *rapid.T) {
			for n := len(open); n == len(open) && mod.kind == breaker.Closed && !mod.forced.On(); {
				ask(t)
			}
			finishLast(t, now)
		},
		"busy": func(t *rapid.T) {
			pattern := rapid.Uint32().Draw(t, "which fail")
			for i := range 32 {
				ask(t)
				o := breaker.Success
				if pattern>>i&1 == 1 {
					o = breaker.Failure
				}
				finishLast(t, o)
				mod.now = mod.now.Add(mod.cfg.RampStep / 8)
			}
		},
		"hear": func(t *rapid.T) {
			r := breaker.Run{Failures: rapid.IntRange(0, 2*mod.cfg.ConsecutiveFailures).Draw(t, "failures"), Refused: rapid.IntRange(0, 2*mod.cfg.CredentialFailures).Draw(t, "refused")}
			c := chance.Draw(t, "chance")
			step(breaker.Event{Kind: breaker.Hear, Run: r, Chance: c})
			if mod.settle(); mod.kind != breaker.Closed || mod.forced.On() {
				return
			}
			r = mod.word.After(r)
			mod.consecutive, mod.refused = min(mod.consecutive, r.Failures), min(mod.refused, r.Refused)
			if credentials := r.Refused >= mod.cfg.CredentialFailures; credentials || r.Failures >= mod.cfg.ConsecutiveFailures {
				mod.trip(credentials, c)
			}
		},
		"force": func(t *rapid.T) {
			if rapid.IntRange(0, 4).Draw(t, "seldom") > 0 {
				return
			}
			f := breaker.Forced{
				Mode: rapid.SampledFrom([]breaker.Kind{breaker.Open, breaker.Closed, breaker.Disabled}).Draw(t, "mode"), Reason: "r", Actor: "a",
				Until: mod.now.Add(time.Duration(rapid.IntRange(1, 10_000).Draw(t, "for")) * time.Millisecond),
			}
			step(breaker.Event{Kind: breaker.Force, Forced: f})
			mod.settle()
			mod.forced = f
			mod.become(breaker.Closed)
		},
		"release": func(t *rapid.T) {
			step(breaker.Event{Kind: breaker.Release})
			mod.settle()
			if mod.forced.On() {
				mod.unforce()
			}
		},
		"reset": func(t *rapid.T) {
			if rapid.IntRange(0, 4).Draw(t, "seldom") > 0 {
				return
			}
			step(breaker.Event{Kind: breaker.Reset})
			mod.settle()
			k := mod.shown()
			mod.forced, mod.trips = breaker.Forced{}, 0
			if k == breaker.Closed || k == breaker.Disabled {
				mod.become(breaker.Closed)
			} else {
				mod.become(breaker.HalfOpen)
			}
			mod.rampAt = 0
		},
		"": func(t *rapid.T) { agree(t, machine, s, mod) },
	})
}

// agree compares all that can be seen of a machine with its model.
func agree(t *rapid.T, machine *breaker.Machine, s breaker.State, mod *model) {
	got := machine.Snapshot(s, mod.now)
	mod.settle()
	if got.Kind != mod.shown() {
		t.Fatalf("%s, the model is %s", got.Kind, mod.shown())
	}
	if sh := s.Shared; sh.Epoch > mod.epoch || mod.epoch-sh.Epoch > 1 { // the model has settled, the state not yet
		t.Fatalf("epoch %d, the model's %d", sh.Epoch, mod.epoch)
	}
	var share breaker.Ratio
	if k := mod.shown(); k == breaker.Closed || k == breaker.Disabled {
		share = mod.cfg.Ramp[mod.step()]
	}
	if got.Share != share {
		t.Fatalf("share %s, the model's %s", got.Share, share)
	}
	if mod.shown() == breaker.Open && !mod.forced.On() && (got.RetryAt-mod.retryAt > 1 || mod.retryAt-got.RetryAt > 1) {
		t.Fatalf("retry at %s, the model's %s", got.RetryAt.Time(), mod.retryAt.Time())
	}
	if mod.kind == breaker.HalfOpen && !mod.forced.On() {
		living := 0
		for _, until := range mod.probes {
			if mod.now < until {
				living++
			}
		}
		if got.Probes != living || got.Successes != mod.successes || got.Probes > mod.cfg.Probes {
			t.Fatalf("%d probes and %d successes, the model's %d and %d", got.Probes, got.Successes, living, mod.successes)
		}
	}
	if k := mod.shown(); k == breaker.Closed {
		calls, failed, slow, overdue := mod.window()
		if got.Calls != calls || got.Failed != failed || got.Slow != slow+overdue || got.Consecutive != mod.consecutive || got.Refused != mod.refused {
			t.Fatalf("%d calls, %d failed, %d slow, %d failures and %d refusals in a row; the model's %d, %d, %d, %d, %d",
				got.Calls, got.Failed, got.Slow, got.Consecutive, got.Refused, calls, failed, slow+overdue, mod.consecutive, mod.refused)
		}
	}
	if again, err := breaker.Decode(s.Shared.Encode()); err != nil || again != s.Shared {
		t.Fatalf("the record does not survive: %v", err)
	}
}
