package limit_test

import (
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/limit"
)

func configure(t *testing.T, l *limit.Limiter, c limit.Config) {
	t.Helper()
	if err := l.Configure(time.Now(), c); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherRateCountsFromTheNextCallOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 10, Burst: 10})
		time.Sleep(time.Minute)
		if err := l.Configure(time.Now(), limit.Config{Rate: -1}); err == nil || try(l, limit.Fresh) != limit.WhyAdmitted {
			t.Errorf("a wrong configuration: %v", err)
		}
		l.Release(time.Now())
		configure(t, l, limit.Config{Rate: 1, Burst: 2})
		passed := 0
		for range 20 {
			if try(l, limit.Fresh) == limit.WhyAdmitted {
				passed++
				l.Release(time.Now())
			}
		}
		if passed != 2 {
			t.Errorf("%d at once after the burst became 2", passed)
		}
		if r := l.Try(time.Now(), limit.Fresh); time.Until(r.RetryAt).Round(time.Millisecond) != time.Second {
			t.Errorf("again in %s, want a second", time.Until(r.RetryAt))
		}
		configure(t, l, limit.Config{Rate: 100, Burst: 50})
		if got := try(l, limit.Fresh); got != limit.WhyBusy {
			t.Errorf("a larger burst is there at once: %q", got)
		}
		time.Sleep(100 * time.Millisecond)
		for i := range 10 {
			if got := try(l, limit.Fresh); got != limit.WhyAdmitted {
				t.Errorf("call %d of a larger rate: %q", i, got)
			}
		}
	})
}

func TestWhatTheGatewayComplainedAboutStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 10})
		l.Throttled(time.Now(), 10*time.Second)
		configure(t, l, limit.Config{Rate: 20})
		if s := l.Snapshot(time.Now()); s.Factor > 0.71 || time.Until(s.PausedUntil) != 10*time.Second {
			t.Errorf("%+v", s)
		}
		configure(t, l, limit.Config{})
		if got := try(l, limit.Fresh); got != limit.WhyPaused {
			t.Errorf("without a limit the pause is over: %q", got)
		}
	})
}

// TestALimitThatComesAndGoesCountsEveryCallOnce begins calls without a limit and under one, and ends them in any order.
func TestALimitThatComesAndGoesCountsEveryCallOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{})
		places := limit.Config{Concurrency: 3}
		begin := func(n int) {
			t.Helper()
			for range n {
				if got := try(l, limit.Fresh); got != limit.WhyAdmitted {
					t.Fatalf("%q", got)
				}
			}
		}
		end := func(n int) {
			for range n {
				l.Release(time.Now())
			}
		}
		begin(5)
		configure(t, l, places)
		begin(3)
		if got := try(l, limit.Fresh); got != limit.WhyBusy {
			t.Fatalf("a fourth under a limit of three: %q", got)
		}
		end(5) // of these eight; the three under the limit are taken for those that go on
		if got := try(l, limit.Fresh); got != limit.WhyBusy {
			t.Errorf("three are under way, and a fourth: %q", got)
		}
		end(1)
		begin(1)
		configure(t, l, limit.Config{})
		begin(4)
		end(7)
		configure(t, l, places)
		begin(3)
		if got := try(l, limit.Fresh); got != limit.WhyBusy || l.Snapshot(time.Now()).UnderWay != 3 {
			t.Errorf("after all that: %q, %d under way", got, l.Snapshot(time.Now()).UnderWay)
		}
	})
}

func TestWhoWaitsIsLetPassWhenTheLimitGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limit.Config{Rate: 1, MaxWait: time.Minute})
		passed := make(chan limit.Refusal, 10)
		for range 10 {
			go func() { passed <- l.Acquire(t.Context(), limit.Retry) }()
		}
		synctest.Wait()
		configure(t, l, limit.Config{})
		for range 10 {
			if r := <-passed; r.Refused() {
				t.Errorf("%q", r.Why)
			}
			l.Release(time.Now())
		}
		configure(t, l, limit.Config{Concurrency: 1})
		if s := l.Snapshot(time.Now()); s.UnderWay != 0 || try(l, limit.Fresh) != limit.WhyAdmitted {
			t.Errorf("%+v", s)
		}
	})
}
