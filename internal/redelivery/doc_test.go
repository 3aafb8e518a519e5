package redelivery_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

const page = "../../docs/dispositions.md"

// row is a row of the page's table that describes a decision.
type row struct {
	number   int
	then     string
	reason   redelivery.Reason
	counters string
	example  string
	gives    string
}

// readTable returns the decisions of the page's table in their order.
func readTable(t *testing.T) []row {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	for line := range strings.SplitSeq(string(text), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 10 {
			continue
		}
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `")
		}
		n, err := strconv.Atoi(cells[1])
		if err != nil {
			continue // the head, and the headings between
		}
		rows = append(rows, row{number: n, then: cells[3], reason: redelivery.Reason(cells[4]), counters: cells[6], example: cells[7], gives: cells[8]})
	}
	if len(rows) < 25 {
		t.Fatalf("%s: %d rows of a table were read", page, len(rows))
	}
	return rows
}

// examplePolicy is the policy that the page decides its examples with.
var examplePolicy = redelivery.Policy{
	Name:              "example",
	Pending:           redelivery.Curve{List: []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute}},
	Error:             redelivery.Curve{Base: time.Second, Cap: time.Minute},
	MaxAttempts:       5,
	MaxFailures:       4,
	Window:            time.Hour,
	OutageGrace:       2 * time.Hour,
	HoldLimit:         30 * time.Second,
	NotFoundGrace:     2 * time.Minute,
	UnauthorizedDelay: 5 * time.Minute,
	MaxRetryAfter:     15 * time.Minute,
	PoisonDeliveries:  5,
}

// exampleObservation is the observation that the page's examples start from.
func exampleObservation() redelivery.Observation {
	return redelivery.Observation{
		Tracked: true, Status: payment.Pending, TokenCurrent: true, Age: 10 * time.Minute, HoldsLeft: 10,
	}
}

// observe changes an observation as an example says.
func observe(t *testing.T, o redelivery.Observation, example string) redelivery.Observation {
	t.Helper()
	duration := func(s string) time.Duration {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for field := range strings.FieldsSeq(example) {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "tracked":
			o.Tracked = value != "no"
		case "status":
			o.Status = payment.Status(value)
		case "dead":
			o.Dead = value == "yes"
		case "token":
			o.TokenCurrent = value != "old"
		case "open":
			o.Open = value == "yes"
		case "unrecorded":
			o.Unrecorded = number(value)
		case "until_due":
			o.UntilDue = duration(value)
		case "paused":
			o.Paused = duration(value)
		case "age":
			o.Age = duration(value)
		case "attempts":
			o.Counters.Attempts = number(value)
		case "failures":
			o.Counters.Failures = number(value)
		case "not_founds":
			o.Counters.NotFounds = number(value)
		case "deadline":
			if o.HasDeadline = value != "none"; o.HasDeadline {
				o.UntilDeadline = duration(value)
			}
		case "retry_after":
			a := *o.Answer
			a.RetryAfter = duration(value)
			o.Answer = &a
		case "never_poll": // of the policy: see policyOf
		case "answer":
			if o.Answer = nil; value == "none" {
				break
			}
			name, status, _ := strings.Cut(value, ":")
			class, known := gateway.ClassOf(name)
			if !known {
				t.Fatalf("%s: no class of answer", name)
			}
			o.Answer = &gateway.Answer{Class: class, Status: payment.Status(status)}
		default:
			t.Fatalf("example %q: %s is not known", example, key)
		}
	}
	return o
}

// short drops what a duration has none of.
var short = strings.NewReplacer("h0m0s", "h", "m0s", "m")

// policyOf is the policy that examples are decided with.
func policyOf(examples ...string) redelivery.Policy {
	p := examplePolicy
	p.NeverPoll = strings.Contains(strings.Join(examples, " "), "never_poll=yes")
	return p
}

// told writes a disposition as the page does.
func told(d redelivery.Disposition) string {
	switch {
	case d.Verb == redelivery.Resolve:
		return fmt.Sprintf("%s %s", d.Verb, d.Status)
	case d.Delay != 0:
		return fmt.Sprintf("%s %s", d.Verb, short.Replace(d.Delay.String()))
	}
	return d.Verb.String()
}

// count changes counters as a row says: attempts+1 failures=0.
func count(t *testing.T, c redelivery.Counters, change string) redelivery.Counters {
	t.Helper()
	counter := map[string]*int{"attempts": &c.Attempts, "failures": &c.Failures, "not_founds": &c.NotFounds, "deferrals": &c.Deferrals, "replays": &c.Replays}
	for field := range strings.FieldsSeq(change) {
		if name, found := strings.CutSuffix(field, "+1"); found && counter[name] != nil {
			*counter[name]++
		} else if name, found := strings.CutSuffix(field, "=0"); found && counter[name] != nil {
			*counter[name] = 0
		} else {
			t.Fatalf("%q changes no counter", field)
		}
	}
	return c
}

// verbs are the verbs that a word of the column "then" stands for.
func verbs(then string) []redelivery.Verb {
	switch then {
	case "wait":
		return []redelivery.Verb{redelivery.Hold, redelivery.Park}
	case "dead-letter":
		return []redelivery.Verb{redelivery.DeadLetter}
	}
	for _, v := range redelivery.Verbs {
		if v.String() == then {
			return []redelivery.Verb{v}
		}
	}
	return nil
}

func TestThePageSaysWhatIsDecided(t *testing.T) {
	for i, r := range readTable(t) {
		t.Run(fmt.Sprintf("row %d", r.number), func(t *testing.T) {
			if r.number != i+1 {
				t.Errorf("row %d is the table's %d.", r.number, i+1)
			}
			o := observe(t, exampleObservation(), r.example)
			d := policyOf(r.example).Decide(o)
			if got := told(d); got != r.gives {
				t.Errorf("%s gives %q, the page says %q", r.example, got, r.gives)
			}
			if d.Reason != r.reason {
				t.Errorf("%s: reason %s, the page says %s", r.example, d.Reason, r.reason)
			}
			if !slices.Contains(verbs(r.then), d.Verb) {
				t.Errorf("%s: %s, the page says %q", r.example, d.Verb, r.then)
			}
			if diff := cmp.Diff(count(t, o.Counters, r.counters), d.Counters); diff != "" {
				t.Errorf("%s: counters differ from the page (-page +code):\n%s", r.example, diff)
			}
		})
	}
}

// An example that is also that of a row above is decided by that row, or by one higher still.
func TestRowsAreTriedFromTheTop(t *testing.T) {
	rows := readTable(t)
	for i, low := range rows {
		for j, high := range rows[:i] {
			o := observe(t, observe(t, exampleObservation(), low.example), high.example)
			d := policyOf(low.example, high.example).Decide(o)
			decides := func(r row) bool { return d.Reason == r.reason && slices.Contains(verbs(r.then), d.Verb) }
			if !slices.ContainsFunc(rows[:j+1], decides) {
				t.Errorf("row %d's example, with row %d's over it, is decided by neither it nor a row above: %s, %s", low.number, high.number, d.Verb, d.Reason)
			}
		}
	}
}

func TestThePageNamesEveryReason(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	rows := readTable(t)
	for _, r := range redelivery.Reasons {
		inTable := slices.ContainsFunc(rows, func(x row) bool { return x.reason == r })
		if !inTable && !strings.Contains(string(text), "`"+string(r)+"`") {
			t.Errorf("the page does not say when the reason is %s", r)
		}
	}
	for _, x := range rows {
		if !slices.Contains(redelivery.Reasons, x.reason) {
			t.Errorf("row %d: %q is not a reason", x.number, x.reason)
		}
	}
}
