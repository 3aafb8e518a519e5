package breaker

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAnotherConfigurationChangesWhatIsDecidedAndNotWhatIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Defaults()
		b, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		fail := func(n int) {
			for range n {
				if p, _, ok := b.Admit(time.Now()); ok {
					p.Done(time.Now(), Failure)
				}
			}
		}
		kind := func() Kind { return b.Snapshot(time.Now()).Kind }
		configure := func(edit func(*Config)) {
			t.Helper()
			edit(&c)
			if err := b.Configure(time.Now(), c); err != nil {
				t.Fatal(err)
			}
		}
		fail(4)
		bad := c
		bad.Window = 0
		if err := b.Configure(time.Now(), bad); err == nil {
			t.Error("a wrong configuration is taken")
		}
		configure(func(c *Config) { c.ConsecutiveFailures, c.Window = 7, time.Minute }) // four in a row are four in a row, whatever the window is
		fail(2)
		if kind() != Closed {
			t.Fatal("it opens as the one before would")
		}
		fail(1)
		if kind() != Open {
			t.Fatalf("seven in a row: %s", kind())
		}
		configure(func(c *Config) {
			c.Cooldown = Cooldown{Base: time.Second, Cap: time.Second}
			c.Probes = 1
			c.Successes = 1
		})
		if kind() != Open {
			t.Fatalf("another cooldown: %s", kind())
		}
		time.Sleep(time.Second) // a longer one is cut to it
		p, no, ok := b.Admit(time.Now())
		if !ok || !p.Probe() {
			t.Fatalf("no probe after the new cooldown: %+v", no)
		}
		configure(func(c *Config) { c.Window = 2 * time.Minute })
		p.Done(time.Now(), Success) // a probe that was under way counts
		if kind() != Closed {
			t.Fatalf("after the probe: %s", kind())
		}
		_, _ = b.Transitions()
		configure(func(c *Config) { c.Ramp = []Ratio{Percent(100)} })
		for range 20 {
			if p, no, ok := b.Admit(time.Now()); !ok {
				t.Fatalf("without a ramp: %+v", no)
			} else {
				p.Done(time.Now(), Success)
			}
		}
	})
}

func TestAnotherWindowForgetsWhatWasCountedInTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Defaults()
		c.ConsecutiveFailures = 1000
		b, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		call := func(o Outcome) {
			if p, _, ok := b.Admit(time.Now()); ok {
				p.Done(time.Now(), o)
			}
		}
		late, _, _ := b.Admit(time.Now())
		for range c.MinCalls - 2 {
			call(Failure)
		}
		c.Window = 10 * time.Second
		if err := b.Configure(time.Now(), c); err != nil {
			t.Fatal(err)
		}
		late.Done(time.Now(), Failure)
		for range c.MinCalls - 2 {
			call(Failure)
		}
		if k := b.Snapshot(time.Now()).Kind; k != Closed {
			t.Errorf("%s before as many calls as a ratio needs", k)
		}
		call(Failure)
		if k := b.Snapshot(time.Now()).Kind; k != Open {
			t.Errorf("%s after that", k)
		}
	})
}
