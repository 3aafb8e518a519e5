package breaker_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"pollux/internal/breaker"
)

func TestRatiosCarryTheirUnit(t *testing.T) {
	for text, want := range map[string]string{
		"0%": "0%", "1%": "1%", "30%": "30%", "100%": "100%", "0.5%": "0.5%", "0.05%": "0.05%", "99.99%": "99.99%", " 30 % ": "30%", "12.50%": "12.5%", "100.00%": "100%",
	} {
		r, err := breaker.ParseRatio(text)
		if err != nil || r.String() != want {
			t.Errorf("%q is read as %s: %v", text, r, err)
		}
	}
	for _, text := range []string{"", "%", "30", "0.3", "30 percent", "101%", "100.01%", "-1%", "+1%", "1e1%", "0x1%", "1.234%", "1.-1%", "1,5%", "NaN%", ".5%", "30%%", "999999999999999999999%", "1.+5%"} {
		if r, err := breaker.ParseRatio(text); err == nil {
			t.Errorf("%q is read as %s", text, r)
		}
	}
	if _, err := breaker.ParseRatio("0.3"); err == nil || !strings.Contains(err.Error(), "30%") {
		t.Errorf("a bare number: %v", err)
	}
}

func TestRatioSurvivesItsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[0-9]{1,2}(\.[0-9]{1,2})?%`).Draw(t, "ratio")
		r, err := breaker.ParseRatio(text)
		if err != nil {
			t.Fatal(err)
		}
		again, err := breaker.ParseRatio(r.String())
		if err != nil || !again.Equal(r) {
			t.Fatalf("%s becomes %s, then %s: %v", text, r, again, err)
		}
	})
}

func TestRatioInAFileIsAText(t *testing.T) {
	var c struct {
		R breaker.Ratio `yaml:"r" json:"r"`
	}
	if err := yaml.Unmarshal([]byte("r: 30%"), &c); err != nil || c.R != breaker.Percent(30) {
		t.Errorf("30%% in YAML is %s: %v", c.R, err)
	}
	for _, bare := range []string{"r: 30", "r: 0.3"} {
		if err := yaml.Unmarshal([]byte(bare), &c); err == nil {
			t.Errorf("%q is read as %s", bare, c.R)
		}
	}
	if err := json.Unmarshal([]byte(`{"r":30}`), &c); err == nil {
		t.Errorf("a number in JSON is read as %s", c.R)
	}
	b, err := json.Marshal(breaker.Percent(30))
	if err != nil || string(b) != `"30%"` {
		t.Errorf("%s: %v", b, err)
	}
	if breaker.Percent(-5) != breaker.Percent(0) || breaker.Percent(500) != breaker.Percent(100) {
		t.Error("a percentage outside is not cut")
	}
}

func TestDefaultsAreValid(t *testing.T) {
	if err := breaker.Defaults().Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestConfigNamesAllItsProblemsAtOnce(t *testing.T) {
	err := breaker.Config{SlowCall: 2 * time.Hour}.Validate()
	if err == nil {
		t.Fatal("the zero configuration is accepted")
	}
	for _, want := range []string{
		"window", "min_calls", "failure_ratio", "consecutive_failures", "slow_call", "slow_ratio", "credential_failures", "cooldown base", "cooldown cap",
		"credential_cooldown base", "probes", "probe_deadline", "probe_pause", "successes", "ramp",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not among the problems:\n%v", want, err)
		}
	}
	if _, err := breaker.New(breaker.Config{}); err == nil {
		t.Error("a breaker of the zero configuration")
	}
}

func TestConfigIsAcceptedUpToItsLimits(t *testing.T) {
	ramp := func(percents ...int) (r []breaker.Ratio) {
		for _, p := range percents {
			r = append(r, breaker.Percent(p))
		}
		return r
	}
	for name, c := range map[string]struct {
		change func(*breaker.Config)
		want   string // a word of the error; empty when it is accepted
	}{
		"window of a second":         {func(c *breaker.Config) { c.Window, c.SlowCall = time.Second, 0 }, ""},
		"window of less":             {func(c *breaker.Config) { c.Window, c.SlowCall = time.Second-1, 0 }, "window"},
		"slow calls off":             {func(c *breaker.Config) { c.SlowCall, c.SlowRatio = 0, breaker.Percent(0) }, ""},
		"slow call of half a window": {func(c *breaker.Config) { c.SlowCall = c.Window / 2 }, ""},
		"slow call of more":          {func(c *breaker.Config) { c.SlowCall = c.Window/2 + 1 }, "slow_call"},
		"slow ratio of 0 %":          {func(c *breaker.Config) { c.SlowRatio = breaker.Percent(0) }, "slow_ratio"},
		"one failure opens":          {func(c *breaker.Config) { c.ConsecutiveFailures = 1 }, ""},
		"no failure opens":           {func(c *breaker.Config) { c.ConsecutiveFailures = 0 }, "consecutive_failures"},
		"no refusal opens":           {func(c *breaker.Config) { c.CredentialFailures = 0 }, "credential_failures"},
		"cap of base":                {func(c *breaker.Config) { c.Cooldown.Cap = c.Cooldown.Base }, ""},
		"cap below base":             {func(c *breaker.Config) { c.Cooldown.Cap = c.Cooldown.Base - 1 }, "cooldown cap"},
		"as many probes as can be":   {func(c *breaker.Config) { c.Probes = breaker.MaxProbes }, ""},
		"more probes":                {func(c *breaker.Config) { c.Probes = breaker.MaxProbes + 1 }, "probes"},
		"pause beyond the deadline":  {func(c *breaker.Config) { c.ProbePause = c.ProbeDeadline + 1 }, "probe_pause"},
		"no ramp":                    {func(c *breaker.Config) { c.Ramp = ramp(100) }, ""},
		"ramp that ends early":       {func(c *breaker.Config) { c.Ramp = ramp(1, 50) }, "ramp"},
		"ramp that falls":            {func(c *breaker.Config) { c.Ramp = ramp(10, 5, 100) }, "ramp[1]"},
		"ramp that begins at 0 %":    {func(c *breaker.Config) { c.Ramp = ramp(0, 100) }, "ramp[0]"},
		"ramp step of nothing":       {func(c *breaker.Config) { c.RampStep = 0 }, "ramp_step"},
		"tolerance of 0 %":           {func(c *breaker.Config) { c.RampTolerance = breaker.Percent(0) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := breaker.Defaults()
			c.change(&cfg)
			err := cfg.Validate()
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want one about %s", err, c.want)
			}
		})
	}
}

func TestMachineKeepsItsConfiguration(t *testing.T) {
	m := newMachine(t, nil)
	m.cfg.Ramp[0] = breaker.Percent(100) // the caller's own
	m.open()
	m.close()
	if s := m.snapshot(); s.Share != breaker.Percent(1) {
		t.Errorf("share %s", s.Share)
	}
}
