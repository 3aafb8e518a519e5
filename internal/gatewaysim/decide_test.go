package gatewaysim

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// history plays n calls of each of some payments and returns what the log says of them, without times.
func history(t *testing.T, seed uint64, n int) []string {
	t.Helper()
	s := New(Config{Seed: seed, Patience: time.Millisecond})
	defer s.Close()
	c := Conditions{FaultsInRow: 2, Mix: Mix{MaxPending: 3}}
	for _, f := range Faults {
		if f != Drip && f != GzipBomb { // slow, and as random as the others
			c.Faults = append(c.Faults, Share{f, 0.04})
		}
	}
	must(t, s.SetConditions(c))
	must(t, s.Start("127.0.0.1:0"))
	client := freshClient(t)
	for range n {
		for p := range 10 {
			if resp, err := ask(t.Context(), client, s, fmt.Sprintf("p%d_100_EUR", p)); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				must(t, resp.Body.Close())
			}
		}
	}
	var out []string
	for _, c := range logged(t, s, n*10) {
		out = append(out, fmt.Sprintf("%s #%02d %s %d %s", c.Reference, c.N, c.Outcome, c.Status, c.Told))
	}
	slices.Sort(out) // a call is logged when it has ended, which can be after the next one began
	return out
}

func TestSameSeedGivesTheSameFaults(t *testing.T) {
	first, again, other := history(t, 7, 12), history(t, 7, 12), history(t, 8, 12)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("the same seed, another run:\n%s", diff)
	}
	if cmp.Equal(first, other) {
		t.Error("another seed gave the same run")
	}
}

// TestFaultDoesNotDependOnEarlierCalls is what makes a run repeatable even when calls meet an outage or a limit in between.
func TestFaultDoesNotDependOnEarlierCalls(t *testing.T) {
	c := newClimate("", Conditions{Faults: []Share{{ServerError, 0.5}}}, time.Now())
	up, down := moment{wall: time.Now(), method: true, key: true}, moment{down: Reset, method: true, key: true}
	play := func(outages int) []Outcome {
		e := &entry{Payment: Payment{Reference: "a"}, end: succeeded}
		var got []Outcome
		for n := range uint32(50) {
			m := up
			if int(n) < outages {
				m = down
			}
			r := c.decide(e, m, diceFor(3, hash("a"), n+1))
			e.move(r, m.wall)
			got = append(got, r.outcome)
		}
		return got[outages:]
	}
	if diff := cmp.Diff(play(0)[20:], play(20)); diff != "" {
		t.Error(diff)
	}
}

func TestSharesOfFaultsAreKept(t *testing.T) {
	c := newClimate("", Conditions{Faults: []Share{{ServerError, 0.2}, {Reset, 0.05}}}, time.Now())
	m := moment{method: true, key: true}
	const n = 100_000
	counts := map[Outcome]int{}
	for i := range uint32(n) {
		e := &entry{Payment: Payment{Reference: "a"}, end: succeeded}
		counts[c.decide(e, m, diceFor(1, hash("a"), i)).outcome]++
	}
	for o, want := range map[Outcome]float64{ServerError: 0.2, Reset: 0.05, Answered: 0.75} {
		if got := float64(counts[o]) / n; math.Abs(got-want) > 0.01 {
			t.Errorf("%s: %.3f of the calls, want %.3f", o, got, want)
		}
	}
}

func TestFaultsInRowAreBounded(t *testing.T) {
	c := newClimate("", Conditions{Faults: []Share{{Reset, 1}}, FaultsInRow: 3}, time.Now())
	e := &entry{Payment: Payment{Reference: "a"}, end: succeeded}
	m := moment{method: true, key: true}
	for n := range uint32(40) {
		r := c.decide(e, m, diceFor(1, 1, n))
		e.move(r, m.wall)
		if want := n%4 == 3; (r.outcome == Answered) != want {
			t.Fatalf("call %d: %s", n+1, r.outcome)
		}
	}
}

func TestWindowsBeginInclusivelyAndEndExclusively(t *testing.T) {
	const s = time.Second
	c := newClimate("", Conditions{
		Outages:    []Outage{{Window{2 * s, 4 * s}, 0}, {Window{6 * s, 7 * s}, Unavailable}},
		Flapping:   Flapping{Up: 10 * s, Down: 1 * s, With: Unavailable},
		ExpiredKey: []Window{{4 * s, 5 * s}},
		Brownouts:  []Brownout{{Window: Window{8 * s, 9 * s}, Latency: s, Failing: 1}},
		Latency:    time.Millisecond,
	}, time.Now())
	for at, want := range map[time.Duration]Outcome{
		0: Answered, 2*s - 1: Answered, 2 * s: Reset, 4*s - 1: Reset, 4 * s: Unauthorized, 5*s - 1: Unauthorized, 5 * s: Answered,
		6 * s: Unavailable, 7 * s: Answered, 8 * s: Unavailable, 9 * s: Answered, 10*s - 1: Answered, 10 * s: Unavailable, 11*s - 1: Unavailable,
		11 * s: Answered, 21 * s: Unavailable, 22 * s: Answered,
	} {
		e := &entry{Payment: Payment{Reference: "a"}, end: succeeded}
		r := c.decide(e, moment{at: at, down: c.down(at), method: true, key: true}, diceFor(1, 1, 1))
		if r.outcome != want {
			t.Errorf("at %s: %s, want %s", at, r.outcome, want)
		}
		if slow := r.wait >= s; slow != (at == 8*s) {
			t.Errorf("at %s: waits %s", at, r.wait)
		}
	}
}

func TestLatePaymentsAreNotFoundAtFirst(t *testing.T) {
	c := newClimate("", Conditions{Late: Late{For: time.Second, Share: 0.5}}, time.Now())
	begin := time.Now()
	for _, lateness := range []float64{0.4, 0.6} {
		e := &entry{Payment: Payment{Reference: "a"}, end: succeeded, lateness: lateness}
		e.called(begin)
		for after, late := range map[time.Duration]bool{0: true, time.Second - 1: true, time.Second: false} {
			r := c.decide(e, moment{wall: begin.Add(after), method: true, key: true}, diceFor(1, 1, 1))
			if want := late && lateness < 0.5; (r.outcome == NotFound) != want {
				t.Errorf("lateness %v after %s: %s", lateness, after, r.outcome)
			}
		}
	}
}

func TestLatencyLiesBetweenBaseAndBasePlusJitter(t *testing.T) {
	c := newClimate("", Conditions{Latency: 10 * time.Millisecond, Jitter: 20 * time.Millisecond}, time.Now())
	low, high := time.Hour, time.Duration(0)
	for n := range uint32(1000) {
		r := c.decide(nil, moment{method: true, key: true}, diceFor(1, 1, n))
		low, high = min(low, r.wait), max(high, r.wait)
	}
	if low < 10*time.Millisecond || low > 11*time.Millisecond || high > 30*time.Millisecond || high < 29*time.Millisecond {
		t.Errorf("from %s to %s", low, high)
	}
}

func TestDownByHandFailsCallsUntilItIsLifted(t *testing.T) {
	s := start(t, Config{}, Conditions{})
	client := freshClient(t)
	must(t, s.Down(time.Hour, Unavailable))
	if resp, _ := read(t, client, s, "demo_1999_EUR"); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("down: %d", resp.StatusCode)
	}
	must(t, s.Down(time.Hour, Answered))
	if _, err := ask(t.Context(), client, s, "demo_1999_EUR"); err == nil {
		t.Error("down with resets: it answered")
	}
	must(t, s.Down(0, Answered))
	if resp, _ := read(t, client, s, "demo_1999_EUR"); resp.StatusCode != 200 {
		t.Errorf("up again: %d", resp.StatusCode)
	}
	if err := s.Down(time.Hour, HTML); err == nil {
		t.Error("it is down with a page of HTML")
	}
	stats, calls := s.Stats(), logged(t, s, 3)
	slices.SortFunc(calls, func(a, b Call) int { return a.N - b.N }) // a call that was reset may end after the next one
	if stats.CallsDown != 2 || stats.Calls != 3 || !calls[0].Down || !calls[1].Down || calls[2].Down {
		t.Errorf("%+v\n%+v", stats, calls)
	}
}

func TestConditionsThatMakeNoSenseAreRefused(t *testing.T) {
	for name, c := range map[string]Conditions{
		"latency below 0":    {Latency: -1},
		"rates above 1":      {Faults: []Share{{Reset, 0.6}, {Timeout, 0.6}}},
		"rate below 0":       {Faults: []Share{{Reset, -0.1}}},
		"rate not a number":  {Faults: []Share{{Reset, math.NaN()}}},
		"not a fault":        {Faults: []Share{{RateLimited, 0.1}}},
		"answered by chance": {Faults: []Share{{Answered, 0.1}}},
		"empty window":       {Outages: []Outage{{Window{1, 1}, 0}}},
		"window before 0":    {ExpiredKey: []Window{{-1, 1}}},
		"down with HTML":     {Outages: []Outage{{Window{0, 1}, HTML}}},
		"flaps backwards":    {Flapping: Flapping{Up: -1, Down: 1}},
		"endless limit":      {Limit: Limit{Rate: math.Inf(1)}},
		"limit not a number": {Limit: Limit{Rate: math.NaN()}},
		"brownout":           {Brownouts: []Brownout{{Window: Window{0, 1}, Failing: 2}}},
		"late":               {Late: Late{For: -1}},
		"mix":                {Mix: Mix{MinPending: 2, MaxPending: 1}},
		"mix without flaws":  {Mix: Mix{Flawed: 0.1}},
		"mix above 1":        {Mix: Mix{Failed: 0.6, Expired: 0.6}},
		"faults in a row":    {FaultsInRow: -1},
	} {
		if err := New(Config{}).SetConditions(c); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
