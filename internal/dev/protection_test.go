package dev

import (
	"strings"
	"testing"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/gatewaysim"
	"pollux/internal/postgres"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(s float64) time.Time { return noon.Add(time.Duration(s * float64(time.Second))) }

// change is a row of a transition, so many seconds after noon.
func change(s float64, epoch int64, from, to string) postgres.Change {
	return postgres.Change{At: at(s), Epoch: epoch, From: from, To: to}
}

// protected is a fleet that allows three probes at once, needs two successes, and takes a probe for lost after three seconds.
var protected = breaker.Config{Probes: 3, Successes: 2, ProbeDeadline: 3 * time.Second}

func TestCallsAreCountedByTheStateOfTheFleetsBreaker(t *testing.T) {
	// Two instances tripped at once and both have written it down; rows come in any order.
	rows := []postgres.Change{
		change(14, 5, "closed", "closed"), // a step of the ramp
		change(10.2, 1, "closed", "open"),
		change(10, 1, "closed", "open"),
		change(13, 4, "half_open", "closed"),
		change(12.5, 3, "open", "half_open"),
		change(12, 2, "open", "half_open"),
		change(12.1, 2, "open", "half_open"),
	}
	call := func(s float64, down bool, o gatewaysim.Outcome) gatewaysim.Call {
		return gatewaysim.Call{At: at(s), Down: down, Outcome: o}
	}
	log := []gatewaysim.Call{
		call(9, false, gatewaysim.Answered), // long before
		call(9.8, true, gatewaysim.Reset),   // in vain
		call(9.9, false, gatewaysim.Unauthorized),
		call(10.9, true, gatewaysim.Reset),     // let in before it opened
		call(11.1, true, gatewaysim.Reset),     // not any more
		call(12.1, false, gatewaysim.Answered), // probes
		call(12.6, false, gatewaysim.Answered),
		call(13.0, false, gatewaysim.Answered), // closed again
		call(15, true, gatewaysim.Reset),
	}
	var p Protection
	p.calls(protected, stretches(rows, at(20)), log)
	if p.Openings != 1 || p.CallsWhileOpen != 3 || p.BeforeOpening != 3 {
		t.Errorf("openings %d, calls while open %d, calls before %d; want 1, 3, 3", p.Openings, p.CallsWhileOpen, p.BeforeOpening)
	}
	if want := 2 * (3 + 1); p.ProbesAllowed != want { // two half-open stretches
		t.Errorf("probes allowed %d, want %d", p.ProbesAllowed, want)
	}
}

func TestFirstSecondAfterAnOpeningIsNeitherCountedNorAllowed(t *testing.T) {
	rows := []postgres.Change{
		change(10, 1, "closed", "open"), change(10.3, 2, "open", "half_open"), change(10.4, 3, "half_open", "open"),
		change(10.9, 4, "open", "half_open"), change(11.2, 5, "half_open", "open"),
	}
	log := []gatewaysim.Call{{At: at(10.2)}, {At: at(10.35), Down: true}, {At: at(10.95), Down: true}, {At: at(11.05)}, {At: at(11.5)}}
	var p Protection
	p.calls(protected, stretches(rows, at(20)), log)
	if p.CallsWhileOpen != 2 || p.ProbesAllowed != 4 || p.BeforeOpening != 2 {
		t.Errorf("calls while open %d, probes allowed %d, calls before %d; want 2, 4, 2", p.CallsWhileOpen, p.ProbesAllowed, p.BeforeOpening)
	}
}

// One instance closed the breaker and another's probe failed, in the same epoch: the fleet went on with what the next epoch followed.
func TestDisputedTransitionIsWhatTheFleetWentOnWith(t *testing.T) {
	rows := []postgres.Change{
		change(10, 1, "closed", "open"), change(12, 2, "open", "half_open"),
		change(12.1, 3, "half_open", "closed"), change(12.2, 3, "half_open", "open"), change(12.3, 3, "closed", "closed"),
		change(14, 4, "open", "half_open"), change(14.1, 5, "half_open", "closed"),
	}
	log := []gatewaysim.Call{
		{At: at(12.15)}, {At: at(12.9)}, // of the one that took it for closed and had not yet heard
		{At: at(13.5)}, // nobody's
		{At: at(14.05)},
	}
	var p Protection
	p.calls(protected, stretches(rows, at(20)), log)
	if p.CallsWhileOpen != 2 || p.ProbesAllowed != 8 {
		t.Errorf("calls while open %d, probes allowed %d; want 2 and 8", p.CallsWhileOpen, p.ProbesAllowed)
	}
	rows[5].From, rows[5].To = "closed", "open"
	all := stretches(rows[:6], at(20))
	if last := all[len(all)-2]; last.kind != breaker.Closed || !last.from.Equal(at(12.1)) {
		t.Errorf("before the last it was %s from %s", last.kind, last.from)
	}
}

func TestProbesOfWhoeverWasKilledAreAllowed(t *testing.T) {
	for _, c := range []struct {
		name string
		rows []postgres.Change
		want int
	}{
		{"never opened", nil, 0},
		{"open all the time", []postgres.Change{change(0, 1, "closed", "open")}, 0},
		{"half-open for less than a lease", []postgres.Change{change(0, 1, "closed", "open"), change(2, 2, "open", "half_open"), change(4.9, 3, "half_open", "closed")}, 4},
		{"for two leases", []postgres.Change{change(0, 1, "closed", "open"), change(1, 2, "open", "half_open"), change(8, 3, "half_open", "closed")}, 10},
		{"its row was never written", []postgres.Change{change(0, 1, "closed", "open"), change(2, 3, "half_open", "closed")}, 4},
	} {
		var p Protection
		p.calls(protected, stretches(c.rows, at(20)), nil)
		if p.ProbesAllowed != c.want {
			t.Errorf("%s: %d probes, want %d", c.name, p.ProbesAllowed, c.want)
		}
	}
}

func TestWhatTheGatewayMustNotSeeIsComplainedOf(t *testing.T) {
	within := Protection{CallsWhileOpen: 4, ProbesAllowed: 4, BeforeOpening: 9, BeforeOpeningAllowed: 9, MaxPerSecond: 330, RateLimit: 300, RateBurst: 30}
	for _, c := range []struct {
		scenario string
		spoil    func(*Protection)
		want     string
	}{
		{"outage", func(*Protection) {}, ""},
		{"outage", func(p *Protection) { p.CallsWhileOpen++ }, "5 calls reached the gateway while the breaker was open"},
		{"outage", func(p *Protection) { p.BeforeOpening++ }, "10 calls were made in vain"},
		{"throttled", func(p *Protection) { p.MaxPerSecond++ }, "331 calls in one second"},
		{"throttled", func(p *Protection) { p.MaxPerSecond, p.Stall = 331, 0.01 }, ""},
		{"throttled", func(p *Protection) { p.MaxPerSecond, p.RateLimit = 5000, 0 }, ""},
		{"calm", func(p *Protection) { p.SpentRefusals = 1 }, "1 attempts or failures were charged"},
		{"expired-key", func(p *Protection) { p.DeadLettered = 2 }, "2 payments went to a person because of a refused key"},
		{"wrong", func(p *Protection) { p.DeadLettered = 2 }, ""},
	} {
		s := Summary{Scenario: c.scenario, Protection: within}
		c.spoil(&s.Protection)
		s.treated = []treatment{{Protection: s.Protection}}
		if got := s.complaint(); s.Good() != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("good %v, %q; want %q", s.Good(), got, c.want)
		}
	}
}

func TestHistogramShowsTheCallsAroundAnInstant(t *testing.T) {
	h := histogram{noon, make([]uint32, 100)}
	h.calls[19], h.calls[20], h.calls[21], h.calls[99] = 1, 30, 120, 500
	if got := h.max(at(1), at(3)); got != 120 {
		t.Errorf("most calls %d, want 120", got)
	}
	if got := h.max(at(-5), at(99)); got != 500 {
		t.Errorf("most calls of all %d, want 500", got)
	}
	var b strings.Builder
	if err := h.plot(&b, "here", at(2)); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	for i, want := range map[int]string{
		0: "here, calls in each tenth of a second:", 1: " -1.0 s     0", 10: " -0.1 s     1  #", 11: " +0.0 s    30  ###############",
		12: " +0.1 s   120  ############################################################", 50: " +3.9 s     0",
	} {
		if len(lines) != 51 || lines[i] != want {
			t.Errorf("%d lines, line %d is %q, want %q", len(lines), i, lines[min(i, len(lines)-1)], want)
		}
	}
}
