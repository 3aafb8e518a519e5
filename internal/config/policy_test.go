package config

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

func TestDefaultPoliciesAreValid(t *testing.T) {
	for name, p := range Default().Policies {
		if err := p.named(name).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// polls plays a payment that stays pending until a person is asked, with the given luck of the jitter. It returns how often the gateway was
// asked and when a person was.
func polls(p redelivery.Policy, chance float64) (n int, age time.Duration, why redelivery.Reason) {
	var counters redelivery.Counters
	var previous time.Duration
	for {
		n++
		d := p.Decide(redelivery.Observation{
			Tracked: true, Status: payment.Pending, TokenCurrent: true, Age: age, Counters: counters, Previous: previous, HoldsLeft: 1, Chance: chance,
			Answer: &gateway.Answer{Class: gateway.Pending, Status: payment.Pending},
		})
		if d.Verb == redelivery.DeadLetter {
			return n, age, d.Reason
		}
		counters, previous = d.Counters, d.Delay
		age += d.Delay
	}
}

func TestHighValueIsAskedEightToTenTimesWithinFiveMinutes(t *testing.T) {
	p := Default().Policies[HighValue].named(HighValue)
	for _, chance := range []float64{0, 0.5, 0.999999} {
		n, age, why := polls(p, chance)
		if n < 8 || n > 10 || age > 5*time.Minute || age < 3*time.Minute {
			t.Errorf("chance %v: %d polls, a person is asked after %s (%s)", chance, n, age, why)
		}
	}
}

func TestBackgroundIsAskedThreeTimes(t *testing.T) {
	p := Default().Policies[Background].named(Background)
	for _, chance := range []float64{0, 0.999999} {
		if n, age, why := polls(p, chance); n != 3 || why != redelivery.ReasonAttempts {
			t.Errorf("chance %v: %d polls, a person is asked after %s (%s)", chance, n, age, why)
		}
	}
}

func TestStandardIsAskedForADayAndThenGoesToAPerson(t *testing.T) {
	p := Default().Policies[Standard].named(Standard)
	for _, chance := range []float64{0, 0.5, 0.999999} {
		n, age, why := polls(p, chance)
		if why != redelivery.ReasonWindow || age < 24*time.Hour || age > 28*time.Hour || n < 10 || n > 18 {
			t.Errorf("chance %v: %d polls, a person is asked after %s (%s)", chance, n, age, why)
		}
	}
}

func TestClassThatIsNotConfiguredIsTreatedAsStandard(t *testing.T) {
	c := mustLoad(t, Options{File: file(t, enough+`
policies: {quick: {max_attempts: 4}}
classes: {standard: quick}
`)})
	for _, gateway := range []string{"acme", "unknown", ""} {
		for class, want := range map[string]string{"": "quick", "unheard": "quick", Standard: "quick", HighValue: HighValue, Background: Background} {
			if got := c.Policy(gateway, class); got.Name != want {
				t.Errorf("gateway %q, class %q: policy %q, want %q", gateway, class, got.Name, want)
			}
		}
	}
	if got := c.PolicyOf("acme")("unheard").MaxAttempts; got != 4 {
		t.Errorf("max_attempts %d, want 4", got)
	}
}

func TestPolicyOfOnesOwnIsCompletedFromStandard(t *testing.T) {
	c := mustLoad(t, Options{File: file(t, enough+`
policies:
  standard: {hold_limit: 7s}
  night: {max_attempts: 4}
classes: {night: night}
`)})
	want := c.Policy("", Standard)
	want.Name, want.MaxAttempts = "night", 4
	if d := cmp.Diff(want, c.Policy("", "night")); d != "" {
		t.Error(d)
	}
	if want.HoldLimit != 7*time.Second {
		t.Errorf("hold_limit %s, standard has been given 7s", want.HoldLimit)
	}
}

func TestGatewayOverridesPoliciesAndClasses(t *testing.T) {
	c := mustLoad(t, Options{File: file(t, enough+`
  zenith:
    httpjson: {url: "https://zenith.example/{reference}", pointers: {status: /s}, statuses: {ok: succeeded}}
    policies:
      standard: {max_failures: 7, error: {cap: 2s}}
    classes: {gold: high_value}
policies:
  standard: {max_attempts: 9}
`)})
	at, elsewhere := c.Policy("zenith", Standard), c.Policy("acme", Standard)
	if at.MaxFailures != 7 || at.Error.Cap != 2*time.Second || at.MaxAttempts != 9 || at.Error.Base != elsewhere.Error.Base {
		t.Errorf("at zenith %+v", at)
	}
	if elsewhere.MaxFailures != 0 || elsewhere.Error.Cap == 2*time.Second {
		t.Errorf("elsewhere %+v", elsewhere)
	}
	if got := c.Policy("zenith", "gold").Name; got != HighValue {
		t.Errorf("gold has the policy %s at zenith", got)
	}
	if got := c.Policy("acme", "gold").Name; got != Standard {
		t.Errorf("gold has the policy %s at acme", got)
	}
}

func TestListTakesThePlaceOfBaseAndCapAndTheOtherWayRound(t *testing.T) {
	c := mustLoad(t, Options{File: file(t, enough+`
policies:
  standard:
    pending: {base: 1m, cap: 1h}
    error: {list: [1s, 2s]}
`), Environ: []string{"POLLUX_POLICIES__STANDARD__PENDING__CAP=2h"}})
	p := c.Policy("", Standard)
	want := redelivery.Curve{Base: time.Minute, Cap: 2 * time.Hour, Jitter: redelivery.Jitter{Kind: redelivery.JitterPercent, Percent: 20}}
	if d := cmp.Diff(want, p.Pending); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(redelivery.Curve{List: []time.Duration{time.Second, 2 * time.Second}, Jitter: redelivery.Jitter{Kind: redelivery.JitterFull}}, p.Error); d != "" {
		t.Error(d)
	}
}
