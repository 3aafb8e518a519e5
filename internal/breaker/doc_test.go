package breaker_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/gateway"
)

const page = "../../docs/breaker.md"

// table returns the rows of the page's table whose head begins with the named columns.
func table(t *testing.T, head ...string) [][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	inside := false
	for line := range strings.SplitSeq(string(text), "\n") {
		if !strings.HasPrefix(line, "|") {
			inside = false
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case len(cells) >= len(head) && slices.Equal(cells[:len(head)], head):
			inside = true
		case inside && !strings.HasPrefix(cells[0], "--"):
			rows = append(rows, cells)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no table with the columns %v", page, head)
	}
	return rows
}

func TestThePageHasTheDefaults(t *testing.T) {
	d := breaker.Defaults()
	var ramp []string
	for _, r := range d.Ramp {
		ramp = append(ramp, r.String())
	}
	short := func(d time.Duration) string { return strings.TrimSuffix(d.String(), "0s") }
	want := map[string]string{
		"window":               fmt.Sprint(d.Window),
		"min_calls":            fmt.Sprint(d.MinCalls),
		"failure_ratio":        d.FailureRatio.String(),
		"consecutive_failures": fmt.Sprint(d.ConsecutiveFailures),
		"slow_call":            fmt.Sprint(d.SlowCall),
		"slow_ratio":           d.SlowRatio.String(),
		"credential_failures":  fmt.Sprint(d.CredentialFailures),
		"cooldown":             fmt.Sprintf("%s to %s", d.Cooldown.Base, d.Cooldown.Cap),
		"credential_cooldown":  fmt.Sprintf("%s to %s", d.CredentialCooldown.Base, short(d.CredentialCooldown.Cap)),
		"probes":               fmt.Sprint(d.Probes),
		"probe_deadline":       fmt.Sprint(d.ProbeDeadline),
		"probe_pause":          fmt.Sprint(d.ProbePause),
		"successes":            fmt.Sprint(d.Successes),
		"ramp":                 strings.Join(ramp, " "),
		"ramp_step":            fmt.Sprint(d.RampStep),
		"ramp_tolerance":       d.RampTolerance.String(),
	}
	for _, row := range table(t, "key", "default") {
		if want[row[0]] != row[1] {
			t.Errorf("%s is %s on the page, %s in the code", row[0], row[1], want[row[0]])
		}
		if row[3] == "" {
			t.Errorf("%s has no source", row[0])
		}
		delete(want, row[0])
	}
	for key := range want {
		t.Errorf("%s is not on the page", key)
	}
}

func TestThePageSaysWhatEachClassCounts(t *testing.T) {
	seen := 0
	for _, row := range table(t, "outcome", "classes of answer") {
		for name := range strings.SplitSeq(row[1], ", ") {
			class, known := gateway.ClassOf(name)
			if !known {
				t.Errorf("%s is no class", name)
			}
			if got := breaker.OutcomeOf(class).String(); got != row[0] {
				t.Errorf("%s is %s, on the page %s", name, got, row[0])
			}
			seen++
		}
	}
	if seen != len(gateway.Classes) {
		t.Errorf("%d classes on the page, %d in the code", seen, len(gateway.Classes))
	}
}

// happened runs breakers through random histories and returns each transition that it saw.
func happened(t *testing.T) map[string]bool {
	seen := map[string]bool{}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		m := newMachine(t, func(c *breaker.Config) {
			c.MinCalls = 5
			if i%2 == 0 { // so that the ratios get their turn
				c.ConsecutiveFailures, c.CredentialFailures = 100, 100
			}
		})
		var under []breaker.Call
		mood := breaker.Success
		for range 400 {
			switch n := r.IntN(100); {
			case n < 3:
				mood = breaker.Outcomes[r.IntN(len(breaker.Outcomes))]
			case n < 4:
				mode := []breaker.Kind{breaker.Open, breaker.Closed, breaker.Disabled}[r.IntN(3)]
				m.step(breaker.Event{Kind: breaker.Force, Forced: breaker.Forced{Mode: mode, Reason: "r", Actor: "a", Until: m.now.Add(5 * time.Second)}})
			case n < 5:
				m.step(breaker.Event{Kind: breaker.Release, Forced: breaker.Forced{Actor: "a"}})
			case n < 6:
				m.step(breaker.Event{Kind: breaker.Reset, Forced: breaker.Forced{Actor: "a"}})
			case n < 8:
				other := breaker.Shared{Kind: breaker.Kind(r.IntN(3)), Epoch: r.Uint64(), Since: m.now, RetryAt: m.now.Add(time.Second), StepAt: m.now}
				if r.IntN(4) == 0 {
					other.Forced = breaker.Forced{Mode: breaker.Disabled, Reason: "r", Actor: "a", Until: m.now.Add(time.Minute)}
				}
				m.step(breaker.Event{Kind: breaker.Adopt, Shared: other})
			case n < 10 && m.s.Shared.Kind == breaker.Open:
				m.now = max(m.now, m.s.Shared.RetryAt)
			case n < 30:
				m.after(time.Duration(r.IntN(2000)) * time.Millisecond)
			case n < 65 || len(under) == 0:
				if v := m.ask(); v.Admitted {
					under = append(under, v.Call)
				}
			default:
				i := r.IntN(len(under))
				o := mood
				if r.IntN(3) == 0 {
					o = breaker.Success
				}
				m.finish(under[i], o)
				under = slices.Delete(under, i, i+1)
			}
		}
		for _, c := range m.changes {
			seen[fmt.Sprintf("%s to %s by %s", c.From, c.To, c.Cause)] = true
		}
	}
	return seen
}

func TestThePageHasEveryTransition(t *testing.T) {
	onPage := map[string]bool{}
	needed := map[string]bool{} // the pairs of a cause that any two states may have need not all happen
	for _, row := range table(t, "from", "to", "cause") {
		froms, tos, causes := strings.Split(row[0], ", "), strings.Split(row[1], ", "), strings.Split(row[2], ", ")
		for _, from := range froms {
			for _, to := range tos {
				for _, cause := range causes {
					key := fmt.Sprintf("%s to %s by %s", from, to, cause)
					onPage[key] = true
					needed[key] = cause != string(breaker.CauseForced) && cause != string(breaker.CauseAdopted)
				}
			}
		}
	}
	seen := happened(t)
	for key := range seen {
		if !onPage[key] {
			t.Errorf("%s happens, and is not on the page", key)
		}
	}
	for key := range onPage {
		if needed[key] && !seen[key] {
			t.Errorf("%s is on the page, and never happens", key)
		}
	}
}
