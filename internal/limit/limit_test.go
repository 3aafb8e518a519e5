package limit_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"pollux/internal/breaker"
	"pollux/internal/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newLimiter returns a limiter that has the whole limit.
func newLimiter(t testing.TB, c limit.Config) *limit.Limiter {
	t.Helper()
	l, err := limit.New(c)
	if err != nil {
		t.Fatal(err)
	}
	l.SetShare(time.Now(), 1)
	return l
}

func try(l *limit.Limiter, k limit.Kind) limit.Why { return l.Try(time.Now(), k).Why }

func TestBurstIsEmptyAtTheStartFillsUpAndIsSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 10, Burst: 3})
		if got := try(l, limit.Fresh); got != limit.WhyBusy {
			t.Fatalf("a new process may call at once: %q", got)
		}
		time.Sleep(time.Hour)
		for i := range 3 {
			if got := try(l, limit.Fresh); got != limit.WhyAdmitted {
				t.Fatalf("call %d: %s", i, got)
			}
		}
		r := l.Try(time.Now(), limit.Fresh)
		if wait := time.Until(r.RetryAt).Round(time.Millisecond); r.Why != limit.WhyBusy || wait != 100*time.Millisecond {
			t.Errorf("refusal %q, again in %s; want busy and 100ms", r.Why, wait)
		}
	})
}

func TestCallsOfAKindPassInTheOrderInWhichTheyCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 10, Burst: 1})
		start := time.Now()
		var mu sync.Mutex
		var order []int
		var when []time.Duration
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if r := l.Acquire(t.Context(), limit.Retry); r.Refused() {
					t.Errorf("call %d: %s", i, r.Why)
				}
				mu.Lock()
				order, when = append(order, i), append(when, time.Since(start))
				mu.Unlock()
				l.Release(time.Now())
			})
			synctest.Wait()
		}
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 20 {
			t.Errorf("order %v", order)
		}
		for i, d := range when {
			if want := time.Duration(i+1) * 100 * time.Millisecond; d < want-time.Microsecond || d > want+time.Microsecond {
				t.Errorf("call %d passed after %s, want %s", i, d, want)
			}
		}
	})
}

// A hundred thousand calls of other kinds that wait do not keep a fresh one waiting for longer than its share of the rate needs.
func TestNoBacklogStarvesFreshCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 50, Burst: 1, MaxWait: time.Minute})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, k := range []limit.Kind{limit.Retry, limit.Deferred, limit.Replay} {
			for range 100 {
				wg.Go(func() {
					for ctx.Err() == nil {
						if l.Acquire(ctx, k).Refused() {
							return
						}
						l.Release(time.Now())
					}
				})
			}
		}
		for range 200 {
			time.Sleep(40 * time.Millisecond) // 25/s, of which 30/s are its share
			start := time.Now()
			if r := l.Acquire(ctx, limit.Fresh); r.Refused() {
				t.Fatalf("refused: %s", r.Why)
			}
			l.Release(time.Now())
			if d := time.Since(start); d > 100*time.Millisecond {
				t.Errorf("a fresh call waited %s at 50/s", d)
			}
		}
		stop()
		wg.Wait()
	})
}

func TestCallsUnderWayAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Concurrency: 3, MaxWait: time.Minute})
		most, now := 0, 0
		var mu sync.Mutex
		var wg sync.WaitGroup
		start := time.Now()
		for range 30 {
			wg.Go(func() {
				if r := l.Acquire(t.Context(), limit.Fresh); r.Refused() {
					t.Errorf("refused: %s", r.Why)
					return
				}
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				now--
				mu.Unlock()
				l.Release(time.Now())
			})
		}
		wg.Wait()
		if took := time.Since(start); most != 3 || took != 10*time.Second {
			t.Errorf("%d at once, %s in all; want 3 and 10s", most, took)
		}
	})
}

func TestShareOfTheConcurrencyIsHeldUntilCallsComeBack(t *testing.T) {
	l := newLimiter(t, limit.Config{Concurrency: 10})
	for range 10 {
		if why := try(l, limit.Fresh); why != limit.WhyAdmitted {
			t.Fatal(why)
		}
	}
	l.SetShare(time.Now(), 0.5)
	for left := 10; left > 5; left-- {
		if got, want := l.Held(), float64(left)/10; got != want {
			t.Errorf("%d under way: holds %v of the limit, want %v", left, got, want)
		}
		if why := try(l, limit.Fresh); why != limit.WhyBusy {
			t.Errorf("%d under way of five: %q", left, why)
		}
		l.Release(time.Now())
	}
	l.Release(time.Now())
	if why := try(l, limit.Fresh); why != limit.WhyAdmitted {
		t.Errorf("four under way of five: %q", why)
	}
}

func TestCallThatWasNotMadeGivesItsTurnToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 1, Burst: 1})
		time.Sleep(time.Second)
		if why := try(l, limit.Fresh); why != limit.WhyAdmitted {
			t.Fatal(why)
		}
		l.Return(time.Now())
		if why := try(l, limit.Fresh); why != limit.WhyAdmitted {
			t.Error(why)
		}
		got := make(chan limit.Refusal)
		go func() { got <- l.Acquire(t.Context(), limit.Fresh) }()
		synctest.Wait()
		start := time.Now()
		l.Return(time.Now())
		if r := <-got; r.Refused() || time.Since(start) != 0 {
			t.Errorf("%q after %s, want at once", r.Why, time.Since(start))
		}
	})
}

func TestWaitEndsWithItsContextAndGivesTheTurnBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 1, Burst: 1})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if r := l.Acquire(ctx, limit.Fresh); r.Why != limit.WhyCancelled {
			t.Errorf("%q, want cancelled", r.Why)
		}
		start := time.Now()
		if r := l.Acquire(t.Context(), limit.Fresh); r.Refused() || time.Since(start).Round(time.Millisecond) != 500*time.Millisecond {
			t.Errorf("%q after %s, want the call at the full second", r.Why, time.Since(start))
		}
	})
}

// Of calls whose context ends in the very moment in which it is their turn none takes the turn with it.
func TestCancelledTurnsAreNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 10, Burst: 1})
		for range 100 {
			time.Sleep(time.Second)
			if why := try(l, limit.Fresh); why != limit.WhyAdmitted {
				t.Fatalf("after a quiet second: %q", why)
			}
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan limit.Refusal)
			go func() { got <- l.Acquire(ctx, limit.Fresh) }()
			synctest.Wait()
			cancel()
			l.Return(time.Now())
			if r := <-got; !r.Refused() {
				l.Return(time.Now())
			}
			if s := l.Snapshot(time.Now()); s.UnderWay != 0 || s.Waiting != [4]int{} {
				t.Fatalf("%d under way, %v waiting, after all have gone", s.UnderWay, s.Waiting)
			}
			if why := try(l, limit.Fresh); why != limit.WhyAdmitted {
				t.Fatalf("the turn is lost: %q", why)
			}
			l.Release(time.Now())
		}
	})
}

func TestCallThatWouldWaitTooLongIsSentAwayAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 10, Burst: 1, MaxWait: 2050 * time.Millisecond})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if r := l.Acquire(t.Context(), limit.Fresh); r.Refused() {
					t.Errorf("refused: %s", r.Why)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		r := l.Acquire(t.Context(), limit.Fresh)
		if wait := time.Until(r.RetryAt).Round(time.Millisecond); r.Why != limit.WhyBusy || time.Since(start) != 0 || wait != 2100*time.Millisecond {
			t.Errorf("%q after %s, again in %s; want busy at once, again in 2.1s", r.Why, time.Since(start), wait)
		}
		wg.Wait()
	})
}

// Calls that hang in all places keep others waiting for MaxWait, not for ever.
func TestWaitForAPlaceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Concurrency: 1, MaxWait: 2 * time.Second})
		if why := try(l, limit.Fresh); why != limit.WhyAdmitted {
			t.Fatal(why)
		}
		start := time.Now()
		if r := l.Acquire(t.Context(), limit.Fresh); r.Why != limit.WhyBusy || time.Since(start) != 2*time.Second || r.RetryAt.IsZero() {
			t.Errorf("%q after %s", r.Why, time.Since(start))
		}
	})
}

func TestPauseSendsAwayIsNeverShortenedAndEndsWithoutAHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 10, Burst: 10})
		waiting := make(chan limit.Refusal, 1)
		go func() { waiting <- l.Acquire(t.Context(), limit.Fresh) }()
		synctest.Wait()
		start := time.Now()
		until := start.Add(time.Minute)
		l.Pause(start, until)
		l.Pause(start, start.Add(time.Second)) // shorter: nothing
		if r := <-waiting; r.Why != limit.WhyPaused || !r.RetryAt.Equal(until) {
			t.Errorf("who waited: %q until %s, want %s", r.Why, r.RetryAt, until)
		}
		for time.Now().Before(until) {
			if r := l.Acquire(t.Context(), limit.Fresh); r.Why != limit.WhyPaused || !r.RetryAt.Equal(until) {
				t.Fatalf("%s into the pause: %q", time.Since(start), r.Why)
			}
			time.Sleep(time.Second)
		}
		passed := 0
		for ; time.Since(until) < time.Second; time.Sleep(time.Millisecond) {
			if why := try(l, limit.Fresh); why == limit.WhyAdmitted {
				passed++
			}
		}
		if passed < 9 || passed > 10 {
			t.Errorf("%d calls in the first second after the pause, the rate is 10/s", passed)
		}
	})
}

func TestPauseEmptiesTheBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 10, Burst: 10})
		time.Sleep(time.Hour)
		if why := try(l, limit.Fresh); why != limit.WhyAdmitted {
			t.Fatal(why)
		}
		l.Pause(time.Now(), time.Now().Add(time.Minute))
		l.Return(time.Now()) // does not fill it either
		time.Sleep(time.Minute)
		if why := try(l, limit.Fresh); why != limit.WhyBusy {
			t.Errorf("%q in the moment in which the pause ends", why)
		}
	})
}

func TestSmallerShareTakesTokensAwayAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newLimiter(t, limit.Config{Rate: 10, Burst: 10}), newLimiter(t, limit.Config{Rate: 10, Burst: 10})
		b.SetShare(time.Now(), 0)
		time.Sleep(time.Hour)
		a.SetShare(time.Now(), 0.5)
		b.SetShare(time.Now(), 0.5)
		for name, c := range map[string]struct {
			l    *limit.Limiter
			want int
		}{"who had all": {a, 5}, "who had none": {b, 0}} {
			n := 0
			for !c.l.Try(time.Now(), limit.Fresh).Refused() {
				n++
			}
			if n != c.want {
				t.Errorf("%s made %d calls at once, want %d", name, n, c.want)
			}
		}
	})
}

func TestPauseIsCutAndHoldsForAGatewayWithoutALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{MaxPause: time.Minute})
		if why := try(l, limit.Fresh); why != limit.WhyAdmitted {
			t.Fatal(why)
		}
		l.Throttled(time.Now(), 99999999*time.Second)
		time.Sleep(time.Minute - 1)
		if r := l.Try(time.Now(), limit.Fresh); r.Why != limit.WhyPaused {
			t.Errorf("%q within the pause", r.Why)
		}
		time.Sleep(time.Nanosecond)
		if why := try(l, limit.Fresh); why != limit.WhyAdmitted {
			t.Errorf("%q after the longest pause", why)
		}
		l.Throttled(time.Now(), 0)
		if d := l.Delay(time.Now(), limit.Fresh); d != time.Second {
			t.Errorf("paused for %s when the gateway did not say for how long, want 1s", d)
		}
	})
}

func TestProcessWithoutAShareStandsBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 10, Burst: 2})
		waiting := make(chan limit.Refusal, 1)
		go func() { waiting <- l.Acquire(t.Context(), limit.Fresh) }()
		synctest.Wait()
		l.SetShare(time.Now(), 0)
		if r := <-waiting; r.Why != limit.WhyStandby {
			t.Errorf("who waited: %q", r.Why)
		}
		if r := l.Acquire(t.Context(), limit.Fresh); r.Why != limit.WhyStandby || !r.RetryAt.After(time.Now()) {
			t.Errorf("%q", r.Why)
		}
		l.SetShare(time.Now(), 0.4) // less than one call of the burst
		if why := try(l, limit.Fresh); why != limit.WhyStandby {
			t.Errorf("with part of a call: %q", why)
		}
	})
}

func TestSharedStateCarriesPausesAndCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := limit.Config{Rate: 100, Recovery: 100 * time.Second}
		a, b := newLimiter(t, c), newLimiter(t, c)
		a.Throttled(time.Now(), 10*time.Second)
		time.Sleep(2 * time.Second)
		b.Adopt(time.Now(), a.Shared())
		sa, sb := a.Snapshot(time.Now()), b.Snapshot(time.Now())
		if sa.Factor != sb.Factor || !sa.PausedUntil.Equal(sb.PausedUntil) || sb.Factor > 0.721 {
			t.Errorf("one has factor %v and pause %s, the other %v and %s", sa.Factor, sa.PausedUntil, sb.Factor, sb.PausedUntil)
		}
		b.Throttled(time.Now(), 0) // its own call of before the pause
		if got := b.Shared(); got != a.Shared() {
			t.Errorf("the same crowd lowered the rate twice: %+v and %+v", a.Shared(), got)
		}
	})
}

func TestNonsenseIsNotAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 100})
		far := breaker.At(time.Now().Add(1000 * time.Hour))
		for _, s := range []limit.Shared{
			{PausedUntil: far, Factor: 1}, {PausedUntil: -1, CutAt: far, Factor: 0.5}, {CutAt: 5, Factor: -1}, {CutAt: 5, Factor: 2}, {CutAt: -5, Factor: 0.5},
		} {
			l.Adopt(time.Now(), s)
			if got := l.Snapshot(time.Now()); got.Factor != 1 || !got.PausedUntil.IsZero() {
				t.Errorf("%+v: factor %v, paused until %s", s, got.Factor, got.PausedUntil)
			}
		}
		l.Adopt(time.Now(), limit.Shared{CutAt: breaker.At(time.Now()), Factor: 0.000001})
		if got := l.Snapshot(time.Now()).Factor; got < 0.1 {
			t.Errorf("factor %v, the floor is 10%%", got)
		}
	})
}

func TestJoinIsTheSameInAnyOrder(t *testing.T) {
	all := []limit.Shared{{Factor: 1}, {PausedUntil: 5, Factor: 1}, {CutAt: 3, Factor: 0.7}, {CutAt: 3, Factor: 0.5}, {CutAt: 4, Factor: 0.9, PausedUntil: 2}}
	for _, a := range all {
		if a.Join(a) != a {
			t.Errorf("%+v joined with itself: %+v", a, a.Join(a))
		}
		for _, b := range all {
			if a.Join(b) != b.Join(a) {
				t.Errorf("%+v and %+v: %+v or %+v", a, b, a.Join(b), b.Join(a))
			}
			for _, c := range all {
				if a.Join(b).Join(c) != a.Join(b.Join(c)) {
					t.Errorf("%+v, %+v, %+v: the order matters", a, b, c)
				}
			}
		}
	}
}

func TestSharesOfMembersKeepTheFleetWithinItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const members, rate, burst = 4, 50, 8
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var mu sync.Mutex
		var made []time.Time
		var wg sync.WaitGroup
		var fleet []*limit.Limiter
		for range members {
			l := newLimiter(t, limit.Config{Rate: rate, Burst: burst})
			l.SetShare(time.Now(), 0)
			fleet = append(fleet, l)
			for range 10 {
				wg.Go(func() {
					for ctx.Err() == nil {
						if r := l.Acquire(ctx, limit.Fresh); r.Refused() {
							time.Sleep(50 * time.Millisecond)
							continue
						}
						mu.Lock()
						made = append(made, time.Now())
						mu.Unlock()
						l.Release(time.Now())
					}
				})
			}
		}
		fleet[0].SetShare(time.Now(), 1)
		for n := 2; ctx.Err() == nil; n = n%members + 1 { // so many share it now: those that have less first
			time.Sleep(700 * time.Millisecond)
			for _, l := range fleet {
				if now := l.Snapshot(time.Now()).Share; now > 1/float64(n) {
					l.SetShare(time.Now(), 1/float64(n))
				}
			}
			for _, l := range fleet[n:] {
				l.SetShare(time.Now(), 0)
			}
			for _, l := range fleet[:n] {
				l.SetShare(time.Now(), 1/float64(n))
			}
		}
		wg.Wait()
		for i := range made {
			for j := i; j < min(len(made), i+500); j++ {
				if n, most := float64(j-i+1), made[j].Sub(made[i]).Seconds()*rate+burst; n > most+1e-6 {
					t.Fatalf("%v calls in %s, at most %v", n, made[j].Sub(made[i]), most)
				}
			}
		}
		if n := len(made); n < 60*rate*9/10 {
			t.Errorf("%d calls in a minute at %d/s", n, rate)
		}
	})
}

func TestCallAllocatesNothing(t *testing.T) {
	limited, free := newLimiter(t, limit.Config{Rate: 1_000_000, Burst: 1_000_000, Concurrency: 10}), newLimiter(t, limit.Config{})
	limited.SetShare(time.Now(), 1)
	now := time.Now().Add(time.Minute)
	for name, l := range map[string]*limit.Limiter{"limited": limited, "not limited": free} {
		if n := testing.AllocsPerRun(1000, func() {
			if l.Try(now, limit.Fresh).Refused() {
				t.Fatal("refused")
			}
			l.Release(now)
		}); n > 0 {
			t.Errorf("%s: %v allocations for a call that is free to go", name, n)
		}
	}
}

func BenchmarkTryLimited(b *testing.B) {
	l := newLimiter(b, limit.Config{Rate: 1_000_000, Burst: 1_000_000, Concurrency: 1000})
	bench(b, l)
}

func BenchmarkTryUnlimited(b *testing.B) { bench(b, newLimiter(b, limit.Config{})) }

func bench(b *testing.B, l *limit.Limiter) {
	b.ReportAllocs()
	now := time.Now()
	for b.Loop() {
		now = now.Add(10 * time.Microsecond)
		if !l.Try(now, limit.Fresh).Refused() {
			l.Release(now)
		}
	}
}

func BenchmarkAcquire(b *testing.B) {
	l := newLimiter(b, limit.Config{Concurrency: 1000})
	b.ReportAllocs()
	for b.Loop() {
		if !l.Acquire(b.Context(), limit.Fresh).Refused() {
			l.Release(time.Now())
		}
	}
}
