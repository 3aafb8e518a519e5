package breaker_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"pollux/internal/breaker"
)

var noon = breaker.At(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))

// machine is a machine with its state and a clock of its own.
type machine struct {
	t       rapid.TB
	m       *breaker.Machine
	cfg     breaker.Config
	s       breaker.State
	now     breaker.Instant
	leases  uint64
	chance  float64
	changes []breaker.Transition
}

func newMachine(t rapid.TB, change func(*breaker.Config)) *machine {
	t.Helper()
	c := breaker.Defaults()
	if change != nil {
		change(&c)
	}
	m, err := breaker.NewMachine(c)
	if err != nil {
		t.Fatal(err)
	}
	return &machine{t: t, m: m, cfg: c, now: noon, chance: 0.5}
}

func (m *machine) step(e breaker.Event) breaker.Verdict {
	e.Chance = m.chance
	s, v, changes := m.m.Step(m.s, m.now, e)
	m.s = s
	m.changes = append(m.changes, changes...)
	return v
}

func (m *machine) after(d time.Duration) { m.now = m.now.Add(d) }

func (m *machine) ask() breaker.Verdict {
	m.leases++
	return m.step(breaker.Event{Kind: breaker.Ask, Lease: m.leases})
}

func (m *machine) finish(c breaker.Call, o breaker.Outcome) {
	m.step(breaker.Event{Kind: breaker.Finish, Call: c, Outcome: o})
}

// admitted asks and expects to be admitted.
func (m *machine) admitted() breaker.Call {
	m.t.Helper()
	v := m.ask()
	if !v.Admitted {
		m.t.Fatalf("refused: %s, retry after %s", v.Why, v.RetryAt.Time().Sub(m.now.Time()))
	}
	return v.Call
}

// refused asks and expects to be refused.
func (m *machine) refused(why breaker.Why) breaker.Verdict {
	m.t.Helper()
	v := m.ask()
	if v.Admitted || v.Why != why {
		m.t.Fatalf("admitted %t, refused for %q, want a refusal for %q", v.Admitted, v.Why, why)
	}
	return v
}

// call makes n calls that end at once.
func (m *machine) call(n int, o breaker.Outcome) {
	m.t.Helper()
	for range n {
		m.finish(m.admitted(), o)
	}
}

func (m *machine) snapshot() breaker.Snapshot { return m.m.Snapshot(m.s, m.now) }

func (m *machine) is(k breaker.Kind) {
	m.t.Helper()
	if s := m.snapshot(); s.Kind != k {
		m.t.Fatalf("%s, want %s", s.Kind, k)
	}
}

// open brings the machine to open by failures in a row.
func (m *machine) open() {
	m.t.Helper()
	m.call(m.cfg.ConsecutiveFailures, breaker.Failure)
	m.is(breaker.Open)
}

// close brings an open machine to closed, at the start of the ramp.
func (m *machine) close() {
	m.t.Helper()
	m.now = m.s.Shared.RetryAt
	m.call(m.cfg.Successes, breaker.Success)
	m.is(breaker.Closed)
}

// fail lets every call that is admitted on the ramp fail until the machine opens.
func (m *machine) fail() {
	m.t.Helper()
	for failures := 0; failures < m.cfg.ConsecutiveFailures; {
		if v := m.ask(); v.Admitted {
			m.finish(v.Call, breaker.Failure)
			failures++
		}
	}
	m.is(breaker.Open)
}

func (m *machine) causes() []breaker.Cause {
	var c []breaker.Cause
	for _, t := range m.changes {
		c = append(c, t.Cause)
	}
	m.changes = nil
	return c
}

func TestFailuresInARowOpen(t *testing.T) {
	m := newMachine(t, nil)
	m.call(m.cfg.ConsecutiveFailures-1, breaker.Failure)
	m.is(breaker.Closed)
	m.call(1, breaker.Success)
	m.call(m.cfg.ConsecutiveFailures-1, breaker.Failure)
	m.is(breaker.Closed)
	m.call(1, breaker.Failure)
	m.is(breaker.Open)
	if got := m.causes(); !slices.Equal(got, []breaker.Cause{breaker.CauseConsecutive}) {
		t.Errorf("causes %v", got)
	}
}

// A gateway that is asked once an hour trips too.
func TestQuietGatewayTrips(t *testing.T) {
	m := newMachine(t, nil)
	for range m.cfg.ConsecutiveFailures {
		m.is(breaker.Closed)
		m.call(1, breaker.Failure)
		m.after(time.Hour)
	}
	if m.s.Shared.Kind != breaker.Open {
		t.Fatal("closed after failures an hour apart")
	}
}

// Never having seen a success, and having seen a hundred thousand, trip alike.
func TestHistoryDoesNotDelayATrip(t *testing.T) {
	m := newMachine(t, nil)
	for range 1000 {
		m.call(100, breaker.Success)
		m.after(100 * time.Millisecond)
	}
	m.call(m.cfg.ConsecutiveFailures, breaker.Failure)
	m.is(breaker.Open)
}

func TestRatioOpensOnlyAboveAMinimumOfCalls(t *testing.T) {
	m := newMachine(t, func(c *breaker.Config) { c.ConsecutiveFailures = 1000 })
	for range (m.cfg.MinCalls - 2) / 2 {
		m.call(1, breaker.Failure)
		m.call(1, breaker.Success)
	}
	m.call(1, breaker.Failure)
	m.is(breaker.Closed) // 10 of 19
	m.call(1, breaker.Success)
	m.is(breaker.Closed) // nobody looks after a success
	m.call(1, breaker.Failure)
	m.is(breaker.Open) // 11 of 21
	if got := m.causes(); !slices.Equal(got, []breaker.Cause{breaker.CauseFailures}) {
		t.Errorf("causes %v", got)
	}
}

func TestCallsLeaveTheWindow(t *testing.T) {
	m := newMachine(t, func(c *breaker.Config) { c.ConsecutiveFailures = 1000 })
	m.call(m.cfg.MinCalls-1, breaker.Failure)
	m.after(m.cfg.Window + m.cfg.Window/10)
	m.call(m.cfg.MinCalls-1, breaker.Failure)
	m.is(breaker.Closed)
	if got := m.snapshot().Calls; got != m.cfg.MinCalls-1 {
		t.Errorf("%d calls in the window, want %d", got, m.cfg.MinCalls-1)
	}
	m.after(m.cfg.Window / 2)
	m.call(1, breaker.Failure)
	m.is(breaker.Open)
}

// Calls are counted when they start: ones in flight are among the calls that a ratio is taken of.
func TestCallsInFlightCount(t *testing.T) {
	m := newMachine(t, func(c *breaker.Config) { c.ConsecutiveFailures = 1000; c.FailureRatio = breaker.Percent(50) })
	var calls []breaker.Call
	for range 40 {
		calls = append(calls, m.admitted())
	}
	for _, c := range calls[:19] {
		m.finish(c, breaker.Failure)
	}
	m.is(breaker.Closed) // 19 of 40, though all that came back failed
	m.finish(calls[19], breaker.Failure)
	m.is(breaker.Open)
}

func TestHangingCallsOpen(t *testing.T) {
	m := newMachine(t, nil)
	for range m.cfg.MinCalls {
		m.admitted()
	}
	m.after(m.cfg.SlowCall)
	m.admitted()
	m.is(breaker.Closed)       // the bucket of the hanging calls is not over for as long as a slow call takes
	m.after(m.cfg.Window / 10) // it is now
	m.refused(breaker.WhyOpen) // and none of them has come back
	if got := m.causes(); !slices.Equal(got, []breaker.Cause{breaker.CauseSlow}) {
		t.Errorf("causes %v", got)
	}
}

func TestSlowCallsOpen(t *testing.T) {
	m := newMachine(t, nil)
	for i := range m.cfg.MinCalls {
		c := m.admitted()
		if i >= m.cfg.MinCalls/5 { // four in five
			m.after(m.cfg.SlowCall)
		}
		m.finish(c, breaker.Success)
		m.now = noon
	}
	m.is(breaker.Open)

	off := newMachine(t, func(c *breaker.Config) { c.SlowCall = 0 })
	for range 100 {
		c := off.admitted()
		off.now = noon.Add(10 * time.Second)
		off.finish(c, breaker.Success)
		off.now = noon
	}
	off.is(breaker.Closed)
}

// A call that hung for longer than the window still counts as the failure that it became.
func TestFailureAfterTheWindowCounts(t *testing.T) {
	m := newMachine(t, func(c *breaker.Config) { c.ConsecutiveFailures = 1000; c.SlowCall = 0 })
	var calls []breaker.Call
	for range m.cfg.MinCalls {
		calls = append(calls, m.admitted())
	}
	m.after(2 * m.cfg.Window)
	for _, c := range calls {
		m.finish(c, breaker.Failure)
	}
	m.is(breaker.Open)
}

func TestRefusedCredentialsOpenAtTheFirstFew(t *testing.T) {
	m := newMachine(t, nil)
	m.call(100, breaker.Success)
	m.call(m.cfg.CredentialFailures-1, breaker.Refused)
	m.call(1, breaker.Success)
	m.call(m.cfg.CredentialFailures-1, breaker.Refused)
	m.is(breaker.Closed)
	m.call(1, breaker.Failure)      // not an answer about the key
	m.call(1, breaker.Inconclusive) // nor this
	m.call(1, breaker.Refused)
	m.is(breaker.Open)
	if c := m.snapshot().Cause; c != breaker.CauseCredentials {
		t.Errorf("cause %s", c)
	}
	if left := m.s.Shared.RetryAt.Time().Sub(m.now.Time()); left < m.cfg.CredentialCooldown.Base/2 {
		t.Errorf("probes a refused key after %s", left)
	}
}

func TestAnswersAboutPaymentsNeverTrip(t *testing.T) {
	m := newMachine(t, nil)
	for range 500 {
		m.call(7, breaker.Success)
		m.call(7, breaker.Inconclusive)
		m.after(100 * time.Millisecond)
	}
	m.is(breaker.Closed)
	if len(m.changes) > 0 {
		t.Errorf("changes %v", m.changes)
	}
}

func TestInconclusiveCallsAreNotCounted(t *testing.T) {
	m := newMachine(t, nil)
	m.call(m.cfg.ConsecutiveFailures-1, breaker.Failure)
	m.call(100, breaker.Inconclusive)
	if s := m.snapshot(); s.Calls != m.cfg.ConsecutiveFailures-1 || s.Consecutive != s.Calls {
		t.Fatalf("%d calls, %d failures in a row", s.Calls, s.Consecutive)
	}
	m.call(1, breaker.Failure)
	m.is(breaker.Open)
}

func TestOpenAdmitsNothingUntilTheCooldownIsOver(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	retry := m.s.Shared.RetryAt
	if v := m.refused(breaker.WhyOpen); v.RetryAt != retry {
		t.Errorf("retry at %v, want %v", v.RetryAt, retry)
	}
	m.now = retry - 1
	m.refused(breaker.WhyOpen)
	m.now = retry
	if c := m.admitted(); c.Lease == 0 {
		t.Error("the first call after the cooldown is not a probe")
	}
	m.is(breaker.HalfOpen)
}

func TestCooldownGrowsWithJitterUpToItsCap(t *testing.T) {
	for _, chance := range []float64{0, 0.5, 0.999} {
		m := newMachine(t, nil)
		m.chance = chance
		m.open()
		for n := range 12 {
			plain := min(m.cfg.Cooldown.Base<<n, m.cfg.Cooldown.Cap)
			got := m.s.Shared.RetryAt.Time().Sub(m.now.Time())
			want := plain/2 + time.Duration(float64(plain/2)*chance)
			if diff := got - want; diff < -time.Millisecond || diff > time.Millisecond {
				t.Errorf("opening %d with chance %g: cooldown %s, want %s", n+1, chance, got, want)
			}
			m.now = m.s.Shared.RetryAt
			m.call(1, breaker.Failure)
			m.is(breaker.Open)
		}
	}
}

func TestHalfOpenAdmitsSoManyProbesAndNoMore(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	m.now = m.s.Shared.RetryAt
	var probes []breaker.Call
	for range m.cfg.Probes {
		probes = append(probes, m.admitted())
	}
	if v := m.refused(breaker.WhyProbing); v.RetryAt != m.now.Add(m.cfg.ProbeDeadline) {
		t.Errorf("retry in %s", v.RetryAt.Time().Sub(m.now.Time()))
	}
	m.finish(probes[0], breaker.Success)
	m.admitted()
	m.refused(breaker.WhyProbing)
	m.finish(probes[1], breaker.Success)
	m.finish(probes[2], breaker.Success)
	m.is(breaker.Closed)
	if got := m.causes(); !slices.Equal(got, []breaker.Cause{breaker.CauseConsecutive, breaker.CauseCooldown, breaker.CauseRecovered}) {
		t.Errorf("causes %v", got)
	}
}

func TestProbeThatHangsGivesItsPlaceBack(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	m.now = m.s.Shared.RetryAt
	var dead []breaker.Call
	for range m.cfg.Probes {
		dead = append(dead, m.admitted()) // their workers died
	}
	m.after(m.cfg.ProbeDeadline - time.Millisecond)
	m.refused(breaker.WhyProbing)
	m.after(time.Millisecond)
	for range m.cfg.Probes {
		m.admitted()
	}
	m.refused(breaker.WhyProbing)

	m.finish(dead[0], breaker.Success) // too late to say anything
	if s := m.snapshot(); s.Successes != 0 || s.Probes != m.cfg.Probes {
		t.Errorf("%d successes and %d probes after one that came too late", s.Successes, s.Probes)
	}
	m.finish(dead[1], breaker.Inconclusive)
	m.is(breaker.HalfOpen)
	m.finish(dead[2], breaker.Failure) // a failure is one, however late
	m.is(breaker.Open)
}

func TestInconclusiveProbeGivesItsPlaceBack(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	m.now = m.s.Shared.RetryAt
	for range 10 {
		m.finish(m.admitted(), breaker.Inconclusive)
		m.is(breaker.HalfOpen)
		m.refused(breaker.WhyProbing) // our own trouble is not tried again at once
		m.after(m.cfg.ProbePause)
	}
	if s := m.snapshot(); s.Probes != 0 || s.Trips != 1 {
		t.Errorf("%d probes, %d trips", s.Probes, s.Trips)
	}
	m.close()
}

func TestProbeThatFailsOpensAgain(t *testing.T) {
	for o, cause := range map[breaker.Outcome]breaker.Cause{breaker.Failure: breaker.CauseProbe, breaker.Refused: breaker.CauseCredentials} {
		m := newMachine(t, nil)
		m.open()
		m.now = m.s.Shared.RetryAt
		m.call(m.cfg.Successes-1, breaker.Success)
		m.call(1, o)
		m.is(breaker.Open)
		if s := m.snapshot(); s.Cause != cause || s.Trips != 2 || s.Successes != 0 {
			t.Errorf("%s: %+v", o, s)
		}
	}
	slow := newMachine(t, nil)
	slow.open()
	slow.now = slow.s.Shared.RetryAt
	c := slow.admitted()
	slow.after(slow.cfg.SlowCall)
	slow.finish(c, breaker.Success)
	slow.is(breaker.Open)
	if s := slow.snapshot(); s.Cause != breaker.CauseSlow {
		t.Errorf("a slow probe: %s", s.Cause)
	}
}

func TestRampAdmitsItsShareStepByStep(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	m.close()
	for i, share := range m.cfg.Ramp {
		const asks = 1000
		admitted := 0
		for range asks {
			if v := m.ask(); v.Admitted {
				admitted++
				m.finish(v.Call, breaker.Success)
			} else if v.Why != breaker.WhyRamp || v.RetryAt != m.s.Shared.StepAt.Add(time.Duration(i+1)*m.cfg.RampStep) {
				t.Fatalf("step %d: refused for %s, retry in %s", i, v.Why, v.RetryAt.Time().Sub(m.now.Time()))
			}
		}
		want := int(share.Float() * asks)
		if admitted < want || admitted > want+1 {
			t.Errorf("step %d, %s: %d of %d admitted", i, share, admitted, asks)
		}
		if s := m.snapshot(); s.Share != share || !s.Ramping {
			t.Errorf("step %d: share %s, ramping %t", i, s.Share, s.Ramping)
		}
		m.after(m.cfg.RampStep)
	}
	if s := m.snapshot(); s.Ramping || s.Trips != 0 || s.Share != breaker.Percent(100) {
		t.Errorf("after the ramp: %+v", s)
	}
}

func TestFirstCallOfTheRampIsAdmittedAtOnce(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	m.close()
	m.admitted()
	m.refused(breaker.WhyRamp)
}

func TestFailureStepsTheRampBackAndResetsNothingElse(t *testing.T) {
	m := newMachine(t, func(c *breaker.Config) { c.RampTolerance = breaker.Percent(0) })
	m.open()
	m.close()
	early := m.admitted()
	m.after(3 * m.cfg.RampStep)
	for !m.ask().Admitted {
	}
	if s := m.snapshot(); s.Share != breaker.Percent(10) {
		t.Fatalf("share %s", s.Share)
	}
	before := m.snapshot()
	m.causes()
	c := m.ask()
	for ; !c.Admitted; c = m.ask() {
	}
	m.finish(c.Call, breaker.Failure)
	after := m.snapshot()
	if after.Share != breaker.Percent(5) {
		t.Errorf("share %s after a failure at 10%%", after.Share)
	}
	if after.Epoch != before.Epoch || after.Trips != before.Trips || after.Calls != before.Calls+1 || after.Since != before.Since {
		t.Errorf("more than the step changed:\n%s", cmp.Diff(before, after))
	}
	if got := m.causes(); !slices.Equal(got, []breaker.Cause{breaker.CauseRampBack}) {
		t.Errorf("causes %v", got)
	}
	m.finish(early, breaker.Failure) // admitted at another step
	if s := m.snapshot(); s.Share != breaker.Percent(5) {
		t.Errorf("share %s after the failure of a call from before", s.Share)
	}
	m.after(m.cfg.RampStep)
	if s := m.snapshot(); s.Share != breaker.Percent(10) {
		t.Errorf("share %s a step later", s.Share)
	}
}

func TestRampAtItsFirstStepStaysThere(t *testing.T) {
	m := newMachine(t, func(c *breaker.Config) { c.RampTolerance = breaker.Percent(0) })
	m.open()
	m.close()
	c := m.admitted()
	m.after(m.cfg.RampStep - time.Millisecond)
	m.causes()
	m.finish(c, breaker.Failure)
	m.after(m.cfg.RampStep - time.Millisecond) // the step begins again with the failure
	if s := m.snapshot(); s.Share != m.cfg.Ramp[0] || len(m.changes) != 0 {
		t.Errorf("share %s, changes %v", s.Share, m.changes)
	}
	m.after(time.Millisecond)
	if s := m.snapshot(); s.Share != m.cfg.Ramp[1] {
		t.Errorf("share %s", s.Share)
	}
}

// A gateway always fails a little. That must not keep it from its full share for ever.
func TestRampToleratesWhatIsNormal(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	m.close()
	calls := 0
	for range 10_000 {
		m.after(10 * time.Millisecond)
		v := m.ask()
		if !v.Admitted {
			continue
		}
		o := breaker.Success
		if calls++; calls%25 == 0 {
			o = breaker.Failure
		}
		m.finish(v.Call, o)
	}
	if s := m.snapshot(); s.Ramping || s.Kind != breaker.Closed {
		t.Errorf("after 100 s with 4%% failures: %s at %s", s.Kind, s.Share)
	}
}

// ramped lets a gateway be called a hundred times a second for two minutes after an outage. failed says whether a call fails, by the share that the
// gateway has and by the calls so far. It returns the shares that it had.
func ramped(t *testing.T, failed func(share breaker.Ratio, calls int) bool) (shares []breaker.Ratio, end breaker.Snapshot) {
	m := newMachine(t, nil)
	m.open()
	m.close()
	calls := 0
	for range 12_000 {
		m.after(10 * time.Millisecond)
		v := m.ask()
		share := m.snapshot().Share
		if len(shares) == 0 || shares[len(shares)-1] != share {
			shares = append(shares, share)
		}
		if !v.Admitted {
			continue
		}
		o := breaker.Success
		if calls++; failed(share, calls) {
			o = breaker.Failure
		}
		m.finish(v.Call, o)
	}
	return shares, m.snapshot()
}

// A gateway that fails a third of its calls, however few they are, is as well as it ever was: the failures say nothing about the load.
func TestRampEndsAtAGatewayThatAlwaysFailsAThird(t *testing.T) {
	shares, end := ramped(t, func(_ breaker.Ratio, calls int) bool { return calls%3 == 0 })
	if end.Ramping || end.Kind != breaker.Closed {
		t.Errorf("after two minutes: %s at %s; shares %v", end.Kind, end.Share, shares)
	}
}

// One that fails a third of its calls as soon as it is called more gets more time at the smaller shares first.
func TestRampStepsBackSeveralTimesWhereAGatewayBeginsToFail(t *testing.T) {
	shares, end := ramped(t, func(share breaker.Ratio, calls int) bool { return share.Float() > 0.05 && calls%3 == 0 })
	backs := 0
	for i := range shares[1:] {
		if shares[i+1].Float() < shares[i].Float() {
			backs++
		}
	}
	if backs < 3 || end.Ramping {
		t.Errorf("%d steps back; after two minutes %s at %s; shares %v", backs, end.Kind, end.Share, shares)
	}
}

func TestRampReopensByTheOrdinaryTriggers(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	m.close()
	m.fail()
	if s := m.snapshot(); s.Trips != 2 {
		t.Errorf("%d trips: the cooldown does not grow", s.Trips)
	}
}

func TestRecoveryForgetsEarlierTrips(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	m.close()
	m.after(time.Duration(len(m.cfg.Ramp))*m.cfg.RampStep - time.Millisecond)
	almost := *m
	almost.fail()
	if s := almost.snapshot(); s.Trips != 2 {
		t.Errorf("a moment before the recovery is full: %d trips", s.Trips)
	}
	m.after(time.Millisecond)
	m.fail()
	if s := m.snapshot(); s.Trips != 1 {
		t.Errorf("after a full recovery: %d trips", s.Trips)
	}
}

func TestOutcomesOfAnEarlierGenerationSayNothing(t *testing.T) {
	m := newMachine(t, nil)
	var old []breaker.Call
	for range 50 {
		old = append(old, m.admitted())
	}
	m.open()
	open := m.s
	m.finish(old[0], breaker.Success)
	m.finish(old[1], breaker.Failure)
	if m.s != open {
		t.Error("an open breaker heard a call from before")
	}
	m.now = m.s.Shared.RetryAt
	m.admitted()
	for _, c := range old[2:20] {
		m.finish(c, breaker.Failure)
		m.finish(c, breaker.Success)
	}
	m.is(breaker.HalfOpen)
	m.s.Shared.Probes = [breaker.MaxProbes]breaker.Lease{}
	m.call(m.cfg.Successes, breaker.Success)
	closed := m.s
	for _, c := range old[20:] {
		m.finish(c, breaker.Failure)
	}
	if m.s != closed {
		t.Error("a closed breaker heard calls from before it opened")
	}
}

func TestForcedStates(t *testing.T) {
	hour := func(m *machine, k breaker.Kind) breaker.Forced {
		return breaker.Forced{Mode: k, Reason: "maintenance at the gateway", Actor: "ayla", Until: m.now.Add(time.Hour)}
	}
	t.Run("open", func(t *testing.T) {
		m := newMachine(t, nil)
		m.step(breaker.Event{Kind: breaker.Force, Forced: hour(m, breaker.Open)})
		if v := m.refused(breaker.WhyForced); v.RetryAt != m.now.Add(time.Hour) {
			t.Errorf("retry at %v", v.RetryAt.Time())
		}
		if c := m.changes[0]; c.Actor != "ayla" || c.Reason != "maintenance at the gateway" || c.Cause != breaker.CauseForced || c.RetryAt != m.now.Add(time.Hour) {
			t.Errorf("transition %+v", c)
		}
		m.after(time.Hour)
		if c := m.admitted(); c.Lease == 0 {
			t.Error("a herd is let in when a forced state ends, not a probe")
		}
		if got := m.causes(); !slices.Equal(got, []breaker.Cause{breaker.CauseForced, breaker.CauseExpired}) {
			t.Errorf("causes %v", got)
		}
	})
	t.Run("closed", func(t *testing.T) {
		m := newMachine(t, nil)
		m.open()
		m.step(breaker.Event{Kind: breaker.Force, Forced: hour(m, breaker.Closed)})
		m.causes()
		m.call(100, breaker.Failure)
		m.is(breaker.Closed)
		if s := m.snapshot(); s.Failed != 100 || s.Share != breaker.Percent(100) || len(m.changes) > 0 {
			t.Errorf("%d failures seen, share %s, changes %v", s.Failed, s.Share, m.changes)
		}
		m.after(time.Hour)
		m.is(breaker.Closed)
		m.call(m.cfg.ConsecutiveFailures, breaker.Failure)
		m.is(breaker.Open)
	})
	t.Run("disabled", func(t *testing.T) {
		m := newMachine(t, nil)
		m.open()
		m.step(breaker.Event{Kind: breaker.Force, Forced: hour(m, breaker.Disabled)})
		m.call(100, breaker.Failure)
		m.call(100, breaker.Refused)
		if s := m.snapshot(); s.Kind != breaker.Disabled || s.Calls != 0 || s.Share != breaker.Percent(100) {
			t.Errorf("%+v", s)
		}
		m.step(breaker.Event{Kind: breaker.Release, Forced: breaker.Forced{Actor: "ayla"}})
		m.is(breaker.Closed)
		m.step(breaker.Event{Kind: breaker.Release, Forced: breaker.Forced{Actor: "ayla"}}) // nothing to release
		if got := m.causes(); !slices.Equal(got, []breaker.Cause{breaker.CauseConsecutive, breaker.CauseForced, breaker.CauseReleased}) {
			t.Errorf("causes %v", got)
		}
	})
	t.Run("over another", func(t *testing.T) {
		m := newMachine(t, nil)
		m.step(breaker.Event{Kind: breaker.Force, Forced: hour(m, breaker.Disabled)})
		m.step(breaker.Event{Kind: breaker.Force, Forced: hour(m, breaker.Open)})
		m.is(breaker.Open)
		if from := m.changes[1].From; from != breaker.Disabled {
			t.Errorf("from %s", from)
		}
	})
	t.Run("not valid", func(t *testing.T) {
		m := newMachine(t, nil)
		good := hour(m, breaker.Open)
		for name, spoil := range map[string]func(*breaker.Forced){
			"no reason":       func(f *breaker.Forced) { f.Reason = "" },
			"no actor":        func(f *breaker.Forced) { f.Actor = "" },
			"long reason":     func(f *breaker.Forced) { f.Reason = strings.Repeat("x", 257) },
			"long actor":      func(f *breaker.Forced) { f.Actor = strings.Repeat("x", 129) },
			"not UTF-8":       func(f *breaker.Forced) { f.Reason = "\xff" },
			"half-open":       func(f *breaker.Forced) { f.Mode = breaker.HalfOpen },
			"no such kind":    func(f *breaker.Forced) { f.Mode = 9 },
			"without an end":  func(f *breaker.Forced) { f.Until = 0 },
			"until now":       func(f *breaker.Forced) { f.Until = m.now },
			"for a long time": func(f *breaker.Forced) { f.Until = m.now.Add(breaker.MaxForced) + 1 },
		} {
			f := good
			spoil(&f)
			if f.Validate(m.now) == nil {
				t.Errorf("%s: accepted", name)
			}
			m.step(breaker.Event{Kind: breaker.Force, Forced: f})
			if m.is(breaker.Closed); len(m.changes) > 0 {
				t.Errorf("%s: forced", name)
			}
		}
		if err := good.Validate(m.now); err != nil {
			t.Error(err)
		}
	})
}

func TestResetForgetsThePast(t *testing.T) {
	reset := breaker.Event{Kind: breaker.Reset, Forced: breaker.Forced{Actor: "ayla", Reason: "new key"}}
	m := newMachine(t, nil)
	m.call(m.cfg.CredentialFailures, breaker.Refused)
	m.is(breaker.Open)
	m.step(reset)
	m.is(breaker.HalfOpen)
	if c := m.changes[1]; c.Actor != "ayla" || c.Reason != "new key" || c.Cause != breaker.CauseReset {
		t.Errorf("transition %+v", c)
	}
	m.call(1, breaker.Refused) // the new key is wrong too
	if s := m.snapshot(); s.Kind != breaker.Open || s.Trips != 1 {
		t.Errorf("%s after %d trips", s.Kind, s.Trips)
	}
	m.step(reset)
	m.call(m.cfg.Successes, breaker.Success)
	m.is(breaker.Closed)
	if s := m.snapshot(); !s.Ramping {
		t.Error("no ramp")
	}
	m.step(reset)
	if s := m.snapshot(); s.Ramping || s.Kind != breaker.Closed {
		t.Errorf("%+v", s)
	}
	m.call(m.cfg.ConsecutiveFailures-1, breaker.Failure)
	m.step(reset)
	m.call(m.cfg.ConsecutiveFailures-1, breaker.Failure)
	m.is(breaker.Closed)

	forced := newMachine(t, nil)
	forced.step(breaker.Event{Kind: breaker.Force, Forced: breaker.Forced{Mode: breaker.Open, Reason: "r", Actor: "a", Until: forced.now.Add(time.Hour)}})
	forced.step(reset)
	forced.is(breaker.HalfOpen)
}

// A wall clock that jumps costs a cooldown, a window or a ramp, never more.
func TestClockThatJumps(t *testing.T) {
	for _, jump := range []time.Duration{-24 * time.Hour, -time.Minute, -time.Second, time.Second, time.Minute, 24 * time.Hour} {
		open := newMachine(t, nil)
		open.open()
		open.after(jump)
		open.ask()
		if left := open.s.Shared.RetryAt.Time().Sub(open.now.Time()); left > open.cfg.Cooldown.Cap {
			t.Errorf("jump %s: open for %s more", jump, left)
		}
		open.after(open.cfg.Cooldown.Cap)
		if open.s.Shared.Kind == breaker.Open {
			open.admitted()
		}

		probing := newMachine(t, nil)
		probing.open()
		probing.now = probing.s.Shared.RetryAt
		for range probing.cfg.Probes {
			probing.admitted()
		}
		probing.after(jump)
		probing.ask()
		probing.after(probing.cfg.ProbeDeadline)
		probing.admitted()

		ramping := newMachine(t, nil)
		ramping.open()
		ramping.close()
		ramping.after(ramping.cfg.RampStep * 3)
		ramping.ask()
		ramping.after(jump)
		ramping.ask()
		ramping.after(time.Duration(len(ramping.cfg.Ramp)) * ramping.cfg.RampStep)
		if s := ramping.snapshot(); s.Ramping {
			t.Errorf("jump %s: still ramping at %s", jump, s.Share)
		}

		sliding := newMachine(t, func(c *breaker.Config) { c.ConsecutiveFailures = 1000 })
		sliding.call(sliding.cfg.MinCalls-1, breaker.Failure)
		sliding.after(jump)
		sliding.call(1, breaker.Success)
		sliding.after(2*sliding.cfg.Window + time.Minute)
		if sliding.call(1, breaker.Failure); sliding.snapshot().Calls != 1 {
			t.Errorf("jump %s: %d calls in the window, long after all but one", jump, sliding.snapshot().Calls)
		}

		counting := newMachine(t, nil)
		counting.call(counting.cfg.ConsecutiveFailures-1, breaker.Failure)
		counting.after(jump)
		counting.call(1, breaker.Failure)
		counting.is(breaker.Open)
	}
}

func TestOutcomeThatIsDoneTwiceDoesNoHarm(t *testing.T) {
	m := newMachine(t, nil)
	c := m.admitted()
	for range 5 {
		m.finish(c, breaker.Inconclusive)
		m.finish(c, breaker.Success)
	}
	if s := m.snapshot(); s.Calls != 0 || s.Slow != 0 {
		t.Errorf("%d calls, %d slow", s.Calls, s.Slow)
	}
	m.open()
	m.now = m.s.Shared.RetryAt
	p := m.admitted()
	for range 5 {
		m.finish(p, breaker.Success)
	}
	if s := m.snapshot(); s.Successes != 1 {
		t.Errorf("%d successes of one probe", s.Successes)
	}
}

func TestSnapshotChangesNothing(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	m.close()
	m.after(time.Minute)
	before := m.s
	a, b := m.snapshot(), m.snapshot()
	if m.s != before || a != b {
		t.Error("looking changed it")
	}
}

func TestProbesWithoutAnIDTakePlacesToo(t *testing.T) {
	m := newMachine(t, nil)
	m.open()
	m.now = m.s.Shared.RetryAt
	for range m.cfg.Probes {
		if v := m.step(breaker.Event{Kind: breaker.Ask}); !v.Admitted || v.Call.Lease == 0 {
			t.Fatalf("%+v", v)
		}
	}
	if v := m.step(breaker.Event{Kind: breaker.Ask}); v.Admitted {
		t.Fatal("more probes than places")
	}
}

// A record may be forced and half-open at once, though no machine writes that: what is forced stays so.
func TestProbeOfAForcedStateSaysNothing(t *testing.T) {
	m := newMachine(t, nil)
	probe := breaker.Lease{ID: 7, Deadline: m.now.Add(time.Second)}
	m.step(breaker.Event{Kind: breaker.Adopt, Shared: breaker.Shared{
		Kind: breaker.HalfOpen, Since: m.now, Probes: [breaker.MaxProbes]breaker.Lease{probe},
		Forced: breaker.Forced{Mode: breaker.Disabled, Reason: "r", Actor: "a", Until: m.now.Add(time.Hour)},
	}})
	before := m.s
	m.finish(breaker.Call{Generation: m.s.Local.Generation, Start: m.now, Lease: 7}, breaker.Failure)
	if m.s != before {
		t.Errorf("%+v", m.s.Shared)
	}
}
