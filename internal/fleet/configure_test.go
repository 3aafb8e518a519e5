package fleet_test

import (
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/fleet"
	"pollux/internal/gateway"
)

func reconfigure(t *testing.T, c fleet.GateConfig, all ...*instance) {
	t.Helper()
	for _, in := range all {
		if err := in.gate.Configure(c); err != nil {
			t.Fatal(err)
		}
	}
}

// TestALimitCanComeAndGo: instances of a gateway without a limit share one that comes, and need no share when it goes.
func TestALimitCanComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 2, config())
		free := func() bool {
			return !all[0].call(t, gateway.Pending).Refused() && !all[1].call(t, gateway.Pending).Refused()
		}
		for range 2 {
			if !free() {
				t.Fatal("a call is refused where there is no limit")
			}
			reconfigure(t, config(limited(60, 10)), all...)
			if no := all[0].call(t, gateway.Pending); no.Why != fleet.WhyStandby {
				t.Errorf("before it has a part: %q", no.Why)
			}
			within(t, 15*time.Second, "each has a half", fair(all...))
			reconfigure(t, config(), all...)
			within(t, 3*time.Second, "there is nothing to share", func() bool {
				a, n := all[0].gate.Share()
				b, m := all[1].gate.Share()
				return a == 1 && b == 1 && n+m == 0
			})
		}
		third := start(t, s.line(5*time.Millisecond), config(limited(60, 10)))
		within(t, 15*time.Second, "an instance that was configured earlier has it all", fair(third))
		reconfigure(t, config(limited(60, 10)), all...)
		within(t, 15*time.Second, "each of three has a third", fair(append(all, third)...))
	})
}

func TestAGateTakesAllOfAConfigurationOrNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		in := start(t, nil, config(limited(60, 10)))
		wrong := config(limited(1, 1))
		wrong.Breaker.Probes = 0
		if err := in.gate.Configure(wrong); err == nil {
			t.Fatal("a wrong one is taken")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s := in.gate.Snapshot(""); s.Limit.Rate != 60 {
			t.Errorf("the half of it is: %s", s.Limit.Rate)
		}
		in.call(t, gateway.Pending)
		reconfigure(t, config(limited(30, 3)), in)
		if s := in.gate.Snapshot(""); s.Limit.Rate != 30 {
			t.Errorf("an account that was called goes on at %s", s.Limit.Rate)
		}
		if s := in.gate.Snapshot("new"); s.Limit.Rate != 30 {
			t.Errorf("an account that is new begins at %s", s.Limit.Rate)
		}
	})
}
