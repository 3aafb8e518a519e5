package gatewaysim

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWellIsTheEndOfTheLastTrouble(t *testing.T) {
	const never = -1 * time.Second
	flapping := Conditions{Flapping: Flapping{Up: 2 * time.Second, Down: time.Second}}
	windows := Conditions{
		Outages:    []Outage{{Window{time.Second, 2 * time.Second}, Timeout}},
		ExpiredKey: []Window{{4 * time.Second, 6 * time.Second}},
		Brownouts:  []Brownout{{Window: Window{5 * time.Second, 7 * time.Second}}},
	}
	for _, c := range []struct {
		name       string
		conditions Conditions
		at, want   time.Duration
	}{
		{"nothing ever wrong", Conditions{}, time.Hour, never},
		{"before the first", windows, 999 * time.Millisecond, never},
		{"during an outage", windows, time.Second, never},
		{"at its end", windows, 2 * time.Second, 2 * time.Second},
		{"later", windows, 3 * time.Second, 2 * time.Second},
		{"during a refused key", windows, 4 * time.Second, never},
		{"after overlapping ones", windows, time.Minute, 7 * time.Second},
		{"first time up", flapping, time.Second, never},
		{"down", flapping, 2 * time.Second, never},
		{"up again", flapping, 3 * time.Second, 3 * time.Second},
		{"and again", flapping, 13 * time.Second, 12 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := New(Config{})
			must(t, s.SetConditions(c.conditions))
			since := time.Now()
			well, ok := s.Well(since.Add(c.at))
			if want := c.want != never; ok != want || ok && well.Sub(since) != c.want {
				t.Errorf("%s: %s %v, want %s", c.name, well.Sub(since), ok, c.want)
			}
		})
	}
}
