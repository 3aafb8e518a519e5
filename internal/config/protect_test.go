package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/breaker"
	"pollux/internal/limit"
)

func TestGatewayThatSaysNothingHasTheDefaultBreakerAndNoLimit(t *testing.T) {
	g := mustLoad(t, Options{File: file(t, enough)}).Gateways["acme"]
	if d := cmp.Diff(breaker.Defaults(), g.BreakerConfig()); d != "" {
		t.Error(d)
	}
	if l := g.LimitConfig(); l.Limited() || l.Validate() != nil {
		t.Errorf("limits %+v: limited %v, %v", l, l.Limited(), l.Validate())
	}
}

// TestDefaultsOfLimitsAreTheLimitersOwn lets the same things happen to a limiter that was told nothing but a rate and to one of a gateway that
// says nothing else.
func TestDefaultsOfLimitsAreTheLimitersOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := mustLoad(t, Options{File: file(t, enough), Set: set("limits.rate=2/s")}).Gateways["acme"]
		if d := cmp.Diff(life(t, limit.Config{Rate: 2}), life(t, g.LimitConfig())); d != "" {
			t.Error(d)
		}
	})
}

// life is what a limiter lets happen: to a crowd, to complaints, and while it recovers.
func life(t *testing.T, c limit.Config) []string {
	l, err := limit.New(c)
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	start := time.Now()
	note := func(what string, s limit.Snapshot) {
		seen = append(seen, fmt.Sprintf("%s: rate %s, paused for %s", what, s.Rate, time.Until(s.PausedUntil)))
	}
	l.SetShare(start, 1)
	admitted := make(chan limit.Kind, 100)
	for range 25 { // a crowd of every kind, of which those pass whose turn comes soon
		for _, k := range limit.Kinds {
			go func() {
				if !l.Acquire(t.Context(), k).Refused() {
					admitted <- k
				}
			}()
			synctest.Wait() // in this order, whoever is faster
		}
	}
	time.Sleep(time.Minute) // of the bubble
	synctest.Wait()
	close(admitted)
	counts := map[limit.Kind]int{}
	for k := range admitted {
		counts[k]++
	}
	seen = append(seen, fmt.Sprint("admitted ", counts))
	l.Throttled(time.Now(), 0)
	note("a complaint", l.Snapshot(time.Now()))
	l.Throttled(time.Now(), 48*time.Hour)
	note("a complaint for days", l.Snapshot(time.Now()))
	for range 20 {
		time.Sleep(time.Until(l.Snapshot(time.Now()).PausedUntil))
		l.Throttled(time.Now(), time.Second)
	}
	note("many complaints", l.Snapshot(time.Now()))
	time.Sleep(time.Minute)
	note("a minute later", l.Snapshot(time.Now()))
	return seen
}

// everything is a section of each kind in which no value is the default.
const everything = `    limits:
      rate: 90/m
      burst: 7
      concurrency: 40
      shares: {fresh: 40%, retry: 30%, deferred: 20.5%, replay: 9.5%}
      pause: 2s
      max_pause: 1h
      floor: 5%
      recovery: 3m
      max_wait: 4s
    breaker:
      window: 1m
      min_calls: 21
      failure_ratio: 30%
      consecutive_failures: 6
      slow_call: 7s
      slow_ratio: 70%
      credential_failures: 2
      cooldown: {base: 6s, cap: 1m}
      credential_cooldown: {base: 1m, cap: 1h}
      probes: 2
      probe_deadline: 40s
      probe_pause: 2s
      successes: 4
      ramp: [5%, 12.5%, 100%]
      ramp_step: 6s
      ramp_tolerance: 0%
`

func TestLimitsAndBreakersAreTakenAsWritten(t *testing.T) {
	g := mustLoad(t, Options{File: file(t, enough+everything)}).Gateways["acme"]
	if d := cmp.Diff(limit.Config{
		Rate: 1.5, Burst: 7, Concurrency: 40,
		Shares: limit.Shares{breaker.Percent(40), breaker.Percent(30), ratio(t, "20.5%"), ratio(t, "9.5%")},
		Pause:  2 * time.Second, MaxPause: time.Hour, Floor: breaker.Percent(5), Recovery: 3 * time.Minute, MaxWait: 4 * time.Second,
	}, g.LimitConfig()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(breaker.Config{
		Window: time.Minute, MinCalls: 21, FailureRatio: breaker.Percent(30), ConsecutiveFailures: 6,
		SlowCall: 7 * time.Second, SlowRatio: breaker.Percent(70), CredentialFailures: 2,
		Cooldown:           breaker.Cooldown{Base: 6 * time.Second, Cap: time.Minute},
		CredentialCooldown: breaker.Cooldown{Base: time.Minute, Cap: time.Hour},
		Probes:             2, ProbeDeadline: 40 * time.Second, ProbePause: 2 * time.Second, Successes: 4,
		Ramp:     []breaker.Ratio{breaker.Percent(5), ratio(t, "12.5%"), breaker.Percent(100)},
		RampStep: 6 * time.Second,
	}, g.BreakerConfig()); d != "" {
		t.Error(d)
	}
	standard := mustLoad(t, Options{File: file(t, enough)}).Gateways["acme"]
	noneEqual(t, standard.LimitConfig(), g.LimitConfig())
	noneEqual(t, standard.BreakerConfig(), g.BreakerConfig())
}

func ratio(t *testing.T, s string) breaker.Ratio {
	t.Helper()
	r, err := breaker.ParseRatio(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// noneEqual finds the settings that nobody can change.
func noneEqual(t *testing.T, a, b any) {
	t.Helper()
	v, w := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range v.NumField() {
		if reflect.DeepEqual(v.Field(i).Interface(), w.Field(i).Interface()) {
			t.Errorf("%T.%s is the default %v although every key was given another value", a, v.Type().Field(i).Name, v.Field(i))
		}
	}
}

func TestLimitsAndBreakersSurviveBeingPrinted(t *testing.T) {
	for _, more := range []string{"", everything} {
		c := mustLoad(t, Options{File: file(t, enough+more)})
		printed, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again := mustLoad(t, Options{File: file(t, string(printed))})
		was, is := c.Gateways["acme"], again.Gateways["acme"]
		if d := cmp.Diff(was.LimitConfig(), is.LimitConfig()); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(was.BreakerConfig(), is.BreakerConfig()); d != "" {
			t.Error(d)
		}
		if more != "" && (!strings.Contains(string(printed), "ramp: [5%, 12.5%, 100%]") || !strings.Contains(string(printed), "rate: 1.5/s")) {
			t.Errorf("printed\n%s", printed)
		}
	}
}

func TestListsOfRatiosAreWrittenWithCommasOutsideAFile(t *testing.T) {
	g := mustLoad(t, Options{File: file(t, enough), Environ: []string{"POLLUX_GATEWAYS__ACME__BREAKER__RAMP=10%, 100%"}}).Gateways["acme"]
	if d := cmp.Diff([]breaker.Ratio{breaker.Percent(10), breaker.Percent(100)}, g.BreakerConfig().Ramp); d != "" {
		t.Error(d)
	}
}

func TestSlowCallFitsIntoTimeoutAndWindowUnlessItIsWritten(t *testing.T) {
	for _, c := range []struct {
		set  []string
		want time.Duration
	}{
		{nil, 5 * time.Second},
		{set("httpjson.timeout=2s"), time.Second},
		{set("httpjson.timeout=20s"), 5 * time.Second},
		{set("breaker.window=6s"), 3 * time.Second},
		{set("httpjson.timeout=2s", "breaker.slow_call=1.5s"), 1500 * time.Millisecond},
		{set("breaker.slow_call=0s"), 0},
	} {
		if got := mustLoad(t, Options{File: file(t, enough), Set: c.set}).Gateways["acme"].BreakerConfig().SlowCall; got != c.want {
			t.Errorf("%v: slow_call %s, want %s", c.set, got, c.want)
		}
	}
}

func TestMistakesInLimitsAndBreakersAreRefusedAtTheirLines(t *testing.T) {
	at := strings.Count(enough, "\n") + 2 // the line below the section's name
	for _, c := range []struct{ section, line, want string }{
		{"limits", "rate: 25", `rate: rate "25": write calls with their unit of time, as in 60/s, 90/m or 1000/h`},
		{"limits", "rate: 25/d", `rate: rate "25/d": write calls with their unit of time, as in 60/s, 90/m or 1000/h`},
		{"limits", "rate: 0.1/h", `rate: 0.1/h: 0/s (no limit) or between 1/h and 1000000/s`},
		{"limits", "burst: 0", `burst: 0; write 1 or more, or take the key away for what the rate makes in a tenth of a second`},
		{"limits", "burst: -1", `burst: -1; write 1 or more, or take the key away for what the rate makes in a tenth of a second`},
		{"limits", "burst: 2000000", `burst: 2000000: between 0`},
		{"limits", "concurrency: -1", `concurrency: -1: between 0 (no limit) and 1000000`},
		{"limits", "shares: {fresh: 70%}", `shares: shares add up to 110%: make it 100%`},
		{"limits", "shares: {fresh: 0.5%, retry: 84.5%}", `shares.fresh: 0.5%: at least 1%, or a backlog of another kind would starve it`},
		{"limits", "shares: {fresh: 60}", `shares.fresh: ratio "60" has no unit: write 30%, not 30 and not 0.3`},
		{"limits", "shares: {fresh: 0%, retry: 0%, deferred: 0%, replay: 0%}", `shares: shares add up to 0%: make it 100%`},
		{"limits", "shares: {stale: 60%}", `shares.stale: unknown key; known here: fresh, retry, deferred, replay`},
		{"limits", "pause: 0s", `pause: 0s; write more, or take the key away for 1s`},
		{"limits", "max_pause: 0s", `max_pause: 0s; write more, or take the key away for 15m`},
		{"limits", "max_pause: 25h", `max_pause: 25h0m0s: between 1s and 24h0m0s`},
		{"limits", "recovery: 0s", `recovery: 0s; write more, or take the key away for 2m`},
		{"limits", "max_wait: 0s", `max_wait: 0s; write more, or take the key away for 5s`},
		{"limits", "floor: 0%", `floor: 0%; write more, or take the key away for 10%`},
		{"limits", "floor: 0.1", `floor: ratio "0.1" has no unit`},
		{"limits", "rte: 5/s", `rte: unknown key; did you mean rate?`},
		{"breaker", "window: 10ms", `window: 10ms: between 1s and 1h0m0s`},
		{"breaker", "window: 30", `window: 30 has no unit; write 30s, or another of ms, s, m, h and d`},
		{"breaker", "min_calls: 0", `min_calls: 0: between 1 and 1000000`},
		{"breaker", "failure_ratio: 0.5", `failure_ratio: ratio "0.5" has no unit: write 30%, not 30 and not 0.3`},
		{"breaker", "failure_ratio: 101%", `failure_ratio: ratio "101%": between 0% and 100%`},
		{"breaker", "failure_ratio: 0%", `failure_ratio: 0%: more than 0%, or the breaker would open at once`},
		{"breaker", "consecutive_failures: 0", `consecutive_failures: 0: between 1 and 1000000`},
		{"breaker", "slow_call: 10s", `slow_call: slow_call (10s) is not below the timeout of acme (10s), so that no call would be slow; write a shorter one, or 0s to say so`},
		{"breaker", "slow_ratio: 0%", `slow_ratio: 0%: more than 0%`},
		{"breaker", "credential_failures: 0", `credential_failures: 0: between 1 and 1000000`},
		{"breaker", "cooldown: {base: 10ms}", `cooldown.base: 10ms: between 100ms and 1h0m0s`},
		{"breaker", "cooldown: {base: 1m}", `cooldown.cap: 30s is below its base 1m0s`},
		{"breaker", "credential_cooldown: {cap: 25h}", `credential_cooldown.cap: 25h0m0s: between 100ms and 24h0m0s`},
		{"breaker", "credential_cooldown: {cap: 29s}", `credential_cooldown.cap: 29s is below its base 30s`},
		{"breaker", "probes: 17", `probes: 17: between 1 and 16`},
		{"breaker", "probe_deadline: 10s", `probe_deadline: probe_deadline (10s) is not longer than the timeout of acme (10s): a probe would lose its place while it is under way; write a longer deadline or a shorter timeout`},
		{"breaker", "probe_pause: 31s", `probe_pause: 31s: between 10ms and 30s`},
		{"breaker", "successes: 0", `successes: 0: between 1 and 1000`},
		{"breaker", "ramp: []", `ramp: ramp of 0 steps: between 1 and 16, the last of them 100%`},
		{"breaker", "ramp: [1%, 50%]", `ramp: ramp of 2 steps: between 1 and 16, the last of them 100%`},
		{"breaker", "ramp: [50%, 5%, 100%]", `ramp: ramp[1] = 5%: more than the step before, 50%`},
		{"breaker", "ramp: [1%, 0.5]", `ramp[1]: ratio "0.5" has no unit: write 30%, not 30 and not 0.3`},
		{"breaker", "ramp: 100%", `ramp: a list; write it as [a, b], or an item a line, each behind a dash`},
		{"breaker", "ramp_step: 1ms", `ramp_step: 1ms: between 10ms and 1h`},
		{"breaker", "ramp_tolerance: ten", `ramp_tolerance: ratio "ten" has no unit`},
		{"breaker", "enabled: false", `enabled: unknown key`},
	} {
		t.Run(c.section+" "+c.line, func(t *testing.T) {
			got := problems(t, Options{File: file(t, enough+"    "+c.section+":\n      "+c.line+"\n")})
			want := fmt.Sprintf("pollux.yaml:%d: gateways.acme.%s.%s", at, c.section, c.want)
			if !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestLimitsAndBreakersFitTheTimesAroundThem(t *testing.T) {
	for _, c := range []struct {
		set  []string
		want string
	}{
		{append(set("httpjson.timeout=35s"), "consumer.drain=40s"), "gateways.acme.httpjson.timeout: probe_deadline (30s) is not longer than the timeout of acme (35s)"},
		{set("limits.rate=5/s", "limits.max_wait=50s"), "gateways.acme.limits.max_wait: max_wait (50s) and the timeout of acme (10s) together are not below consumer.ack_wait (1m)"},
		{append(set("limits.concurrency=5"), "consumer.ack_wait=15s"), "consumer.ack_wait: max_wait (5s) and the timeout of acme (10s) together are not below consumer.ack_wait (15s)"},
	} {
		if got := problems(t, Options{File: file(t, enough), Set: c.set}); !strings.HasPrefix(got, "the program: "+c.want) || strings.Contains(got, "\n") {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	mustLoad(t, Options{File: file(t, enough), Set: append(set("limits.max_wait=50s"), "consumer.ack_wait=15s")}) // without a limit nobody waits
}

func TestWayToPublishBatchesIsOneOfThree(t *testing.T) {
	for _, way := range []string{"auto", "always", "never"} {
		if got := mustLoad(t, Options{File: file(t, enough), Set: []string{"nats.batches=" + way}}).NATS.Batches; got != way {
			t.Errorf("batches %s, want %s", got, way)
		}
	}
	got := problems(t, Options{File: file(t, enough), Set: []string{"nats.batches=often"}})
	if want := `the program: nats.batches: "often"; write auto, always or never`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
