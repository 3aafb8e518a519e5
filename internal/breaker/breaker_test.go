package breaker_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/gateway"
)

// trip makes a breaker open by calls that fail.
func trip(t testing.TB, b *breaker.Breaker, now time.Time) {
	t.Helper()
	for range breaker.Defaults().ConsecutiveFailures {
		p, _, ok := b.Admit(now)
		if !ok {
			t.Fatal("refused before it opened")
		}
		p.Done(now, breaker.Failure)
	}
	if k := b.Snapshot(now).Kind; k != breaker.Open {
		t.Fatalf("%s after so many failures", k)
	}
}

func TestBreakerSaysWhyAndUntilWhen(t *testing.T) {
	now := noon.Time()
	b := newBreaker(t, nil)
	trip(t, b, now)
	_, refusal, ok := b.Admit(now)
	if ok || refusal.Why != breaker.WhyOpen || refusal.Kind != breaker.Open || refusal.Cause != breaker.CauseConsecutive || !refusal.RetryAt.After(now) {
		t.Fatalf("admitted %t, refusal %+v", ok, refusal)
	}
	p, _, ok := b.Admit(refusal.RetryAt)
	if !ok || !p.Probe() {
		t.Fatalf("admitted %t, probe %t", ok, p.Probe())
	}
	p.Done(refusal.RetryAt, breaker.Success)
	if s := b.Snapshot(refusal.RetryAt); s.Kind != breaker.HalfOpen || s.Successes != 1 || s.Probes != 0 {
		t.Fatalf("%+v", s)
	}
	var changes []breaker.Transition
	changes, _ = b.Transitions()
	if len(changes) != 2 || changes[0].To != breaker.Open || changes[1].To != breaker.HalfOpen {
		t.Fatalf("transitions %+v", changes)
	}
	if changes, _ = b.Transitions(); changes != nil {
		t.Fatalf("transitions taken twice: %+v", changes)
	}
}

func TestPermitOfNobodyDoesNothing(t *testing.T) {
	var p breaker.Permit
	p.Done(noon.Time(), breaker.Failure)
	if p.Probe() {
		t.Error("a probe")
	}
}

func TestChangedHoldsOneSignal(t *testing.T) {
	now := noon.Time()
	b := newBreaker(t, nil)
	signalled := func() bool {
		select {
		case <-b.Changed():
			return true
		default:
			return false
		}
	}
	p, _, _ := b.Admit(now)
	p.Done(now, breaker.Success)
	if signalled() {
		t.Error("a call of a closed breaker is told")
	}
	trip(t, b, now)
	if err := b.Force(now, breaker.Forced{Mode: breaker.Disabled, Reason: "r", Actor: "a", Until: breaker.At(now.Add(time.Hour))}); err != nil {
		t.Fatal(err)
	}
	if !signalled() || signalled() {
		t.Error("two changes are not one signal")
	}
	b.Reset(now, "a", "r")
	trip(t, b, now)
	signalled()
	now = b.Snapshot(now).RetryAt.Time()
	for range breaker.Defaults().Probes {
		if b.Admit(now); !signalled() {
			t.Error("a probe took its place, and the fleet does not know")
		}
	}
	if b.Admit(now); signalled() {
		t.Error("a refusal is told")
	}
}

func TestTransitionsThatNobodyTakesAreBounded(t *testing.T) {
	now := noon.Time()
	b := newBreaker(t, nil)
	for range 1000 {
		if err := b.Force(now, breaker.Forced{Mode: breaker.Open, Reason: "r", Actor: "a", Until: breaker.At(now.Add(time.Hour))}); err != nil {
			t.Fatal(err)
		}
		b.Release(now, "a", "r")
	}
	changes, dropped := b.Transitions()
	if len(changes)+dropped != 2000 || len(changes) != 1024 {
		t.Fatalf("%d kept, %d dropped of 2000", len(changes), dropped)
	}
	if last := changes[len(changes)-1]; last.Cause != breaker.CauseReleased {
		t.Fatalf("the newest was dropped: %+v", last)
	}
}

func TestForcingWithoutAReasonIsAnError(t *testing.T) {
	b := newBreaker(t, nil)
	if err := b.Force(noon.Time(), breaker.Forced{Mode: breaker.Open, Actor: "a", Until: noon.Add(time.Hour)}); err == nil {
		t.Fatal("accepted")
	}
	if k := b.Snapshot(noon.Time()).Kind; k != breaker.Closed {
		t.Fatalf("%s", k)
	}
}

func TestBreakersThatAdoptFromEachOtherOpenTogether(t *testing.T) {
	now := noon.Time()
	a, b := newBreaker(t, nil), newBreaker(t, nil)
	trip(t, a, now)
	b.Adopt(now, a.Shared())
	if _, _, ok := b.Admit(now); ok {
		t.Fatal("the other one calls on")
	}
	b.Tick(now)
	if a.Shared() != b.Shared() {
		t.Fatal("they do not agree")
	}
}

// Fifty workers at the door of a half-open breaker: so many probes go in, and no more.
func TestCrowdAtAHalfOpenBreaker(t *testing.T) {
	b := newBreaker(t, nil)
	trip(t, b, noon.Time())
	now := b.Snapshot(noon.Time()).RetryAt.Time()
	var admitted atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, _, ok := b.Admit(now); ok {
				admitted.Add(1)
			}
		})
	}
	wg.Wait()
	if n := admitted.Load(); int(n) != breaker.Defaults().Probes {
		t.Fatalf("%d probes", n)
	}
}

func TestBreakerUnderConcurrentUse(t *testing.T) {
	b := newBreaker(t, nil)
	var clock atomic.Int64
	now := func() time.Time { return noon.Time().Add(time.Duration(clock.Add(1)) * time.Millisecond) }
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for range 3000 {
				if p, _, ok := b.Admit(now()); ok {
					p.Done(now(), breaker.Outcomes[r.IntN(len(breaker.Outcomes))])
				}
			}
		})
	}
	wg.Go(func() {
		for range 500 {
			b.Snapshot(now())
			b.Adopt(now(), b.Shared())
			b.Transitions()
			b.Tick(now())
		}
	})
	wg.Go(func() {
		for range 50 {
			at := now()
			if err := b.Force(at, breaker.Forced{Mode: breaker.Disabled, Reason: "r", Actor: "a", Until: breaker.At(at.Add(time.Minute))}); err != nil {
				t.Error(err)
			}
			b.Release(now(), "a", "r")
			b.Reset(now(), "a", "r")
		}
	})
	wg.Wait()
	for range 100_000 {
		clock.Add(50)
		at := now()
		if p, _, ok := b.Admit(at); ok {
			p.Done(at, breaker.Success)
		}
	}
	if s := b.Snapshot(now()); s.Kind != breaker.Closed || s.Ramping {
		t.Fatalf("%s at %s after a long good time", s.Kind, s.Share)
	}
}

// Ten minutes of outage in virtual time, with twenty workers at the door all the while.
func TestOutageIsNoticedSatOutAndRecoveredFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			workers = 20
			latency = 50 * time.Millisecond
			pause   = 20 * time.Millisecond // of a worker that is refused
		)
		cfg := breaker.Defaults()
		b := newBreaker(t, nil)
		begin := time.Now()
		down, up, end := begin.Add(time.Minute), begin.Add(11*time.Minute), begin.Add(14*time.Minute)
		var mu sync.Mutex
		var starts []time.Time
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for now := time.Now(); now.Before(end); now = time.Now() {
					p, _, ok := b.Admit(now)
					if !ok {
						<-time.After(pause)
						continue
					}
					mu.Lock()
					starts = append(starts, now)
					mu.Unlock()
					<-time.After(latency)
					now = time.Now()
					if now.Before(down) || now.After(up) {
						p.Done(now, breaker.Success)
					} else {
						p.Done(now, breaker.Failure)
					}
				}
			})
		}
		wg.Wait()

		changes, dropped := b.Transitions()
		if dropped > 0 {
			t.Fatalf("%d transitions lost", dropped)
		}
		halfOpenings := 0
		for _, c := range changes {
			if c.To == breaker.HalfOpen {
				halfOpenings++
			}
		}
		during, early := 0, 0 // calls while it is down, and in the first seconds after it is up again
		var first time.Time
		for _, s := range starts {
			switch {
			case s.After(down) && s.Before(up):
				during++
			case s.After(up) && first.IsZero():
				first = s
			}
			if !first.IsZero() && s.Before(first.Add(latency+cfg.RampStep)) {
				early++
			}
		}
		if most := cfg.ConsecutiveFailures + workers + halfOpenings*cfg.Probes; during > most {
			t.Errorf("%d calls while the gateway was down, at most %d are in the threshold, in flight and probes", during, most)
		}
		if since := first.Sub(up); since > cfg.Cooldown.Cap {
			t.Errorf("first call %s after it was back", since)
		}
		asks := int(cfg.RampStep/pause) * workers
		if most := cfg.Successes + cfg.Probes + int(cfg.Ramp[0].Float()*float64(asks)) + 1; early > most {
			t.Errorf("%d calls in the first step of the ramp, at most %d are its share", early, most)
		}
		if s := b.Snapshot(time.Now()); s.Kind != breaker.Closed || s.Ramping || s.Trips != 0 {
			t.Errorf("in the end: %+v", s)
		}
	})
}

// A gateway that never answers and workers that die over their probes: the breaker is never stuck.
func TestProbesThatNeverReturnDoNotStopProbing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, nil)
		trip(t, b, time.Now())
		lost := 0
		for begin := time.Now(); time.Since(begin) < time.Hour; {
			if p, _, ok := b.Admit(time.Now()); ok && p.Probe() {
				lost++ // and is never done
			}
			<-time.After(100 * time.Millisecond)
		}
		cfg := breaker.Defaults()
		if most := cfg.Probes * (int(time.Hour/cfg.ProbeDeadline) + 1); lost > most || lost < most/2 {
			t.Fatalf("%d probes in an hour, %d at most", lost, most)
		}
		<-time.After(cfg.ProbeDeadline)
		for range cfg.Successes {
			p, r, ok := b.Admit(time.Now())
			if !ok {
				t.Fatalf("refused: %+v", r)
			}
			p.Done(time.Now(), breaker.Success)
		}
		if k := b.Snapshot(time.Now()).Kind; k != breaker.Closed {
			t.Fatalf("%s", k)
		}
	})
}

// Two seconds up, two seconds down: the cooldown grows, and the calls into the dark stay few.
func TestFlappingGatewayIsCalledLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, nil)
		begin := time.Now()
		up := func(now time.Time) bool { return now.Sub(begin)/(2*time.Second)%2 == 0 }
		failed := 0
		for now := begin; now.Sub(begin) < 10*time.Minute; now = time.Now() {
			if p, _, ok := b.Admit(now); ok {
				o := breaker.Success
				if !up(now) {
					o = breaker.Failure
					failed++
				}
				p.Done(now, o)
			}
			<-time.After(10 * time.Millisecond)
		}
		changes, _ := b.Transitions()
		var openings int
		var longest time.Duration
		for _, c := range changes {
			if c.To == breaker.Open {
				openings++
				longest = max(longest, c.RetryAt.Time().Sub(c.At.Time()))
			}
		}
		cfg := breaker.Defaults()
		if longest < cfg.Cooldown.Cap/2 {
			t.Errorf("the longest cooldown of %d was %s", openings, longest)
		}
		if failed > 300 { // of 30,000 asks while it was down
			t.Errorf("%d calls failed in %d openings", failed, openings)
		}
	})
}

func TestOutcomeOfEachClassOfAnswer(t *testing.T) {
	want := map[gateway.Class]breaker.Outcome{
		gateway.Local: breaker.Inconclusive, gateway.RateLimited: breaker.Inconclusive, gateway.Class(200): breaker.Inconclusive,
		gateway.Pending: breaker.Success, gateway.Final: breaker.Success, gateway.NotFound: breaker.Success, gateway.UnknownStatus: breaker.Success,
		gateway.Mismatch:  breaker.Success,
		gateway.Transport: breaker.Failure, gateway.Malformed: breaker.Failure,
		gateway.Unauthorized: breaker.Refused,
	}
	for _, c := range append([]gateway.Class{200}, gateway.Classes...) {
		if got := breaker.OutcomeOf(c); got != want[c] {
			t.Errorf("%s is %s, want %s", c, got, want[c])
		}
	}
}
