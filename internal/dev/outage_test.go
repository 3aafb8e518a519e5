//go:build evidence

// What a gateway in trouble sees depends on how quickly instances hear of each other, and so on a machine that has time for them: these runs are for
// themselves, with `make evidence`, and not among tests that share the processors. What must hold on any machine is tested in virtual time (fleet, limit,
// breaker) and with real processes (chaos).

package dev

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"pollux/internal/app"
)

// TestGatewayInTroubleIsLeftAlone runs four consumers through each kind of trouble while payments come in. The launcher itself says what is wrong: calls
// while the breaker is open beyond the probes, calls beyond the limit, payments that paid for it.
func TestGatewayInTroubleIsLeftAlone(t *testing.T) {
	t.Parallel()
	var running sync.WaitGroup
	runs := []struct {
		scenario string
		args     string
		opens    bool
		outcome  chan outcome
	}{
		{scenario: "outage", opens: true},
		{scenario: "hung-probe", opens: true},
		{scenario: "flapping", opens: true},
		{scenario: "brownout"},
		{scenario: "expired-key", opens: true},
		{scenario: "throttled", args: "--gateway-rate 40"},
	}
	for i := range runs {
		r := &runs[i]
		r.outcome = make(chan outcome, 1)
		args := "--once -o json --payments 200 --rate 50 --consumers 4 --scenario " + r.scenario + " --database-url " + database(t) +
			" --timeout " + patience.String() + " " + r.args
		running.Go(func() { r.outcome <- launch(t.Context(), strings.Fields(args)...) })
	}
	running.Wait()
	for _, r := range runs {
		t.Run(r.scenario, func(t *testing.T) {
			o := <-r.outcome
			if o.code != app.ExitOK {
				t.Fatalf("exit code %d: %s\n%s", o.code, o.stderr, o.stdout)
			}
			s := o.summary(t)
			if opened := s["openings"] > 0; r.opens && !opened {
				t.Errorf("the breaker never opened: %s", o.stdout)
			}
			if r.opens && (s["probes_allowed"] == 0 || s["calls_while_open"] == 0 || s["recovery_seconds"] <= 0) {
				t.Errorf("nobody probed: %s", o.stdout)
			}
			if s["dead_lettered"]+s["attempts_spent_on_refusals"] != 0 && r.scenario != "brownout" {
				t.Errorf("payments paid for it: %s", o.stdout)
			}
			if r.scenario == "throttled" && (s["rate_limit"] != 40 || s["rate_burst"] != 4 || s["throttled"] != 0) {
				t.Errorf("the limit: %s", o.stdout)
			}
		})
	}
}

func TestThrottledWithoutALimitPausesAndLosesNothing(t *testing.T) {
	t.Parallel()
	o := launch(t.Context(), strings.Fields("--once -o json --payments 600 --preload --scenario throttled --gateway-rate 0 --latency 1ms --timeout "+
		patience.String()+" --database-url "+database(t))...)
	s := o.summary(t)
	if o.code != app.ExitOK || s["throttled"] == 0 || s["rate_limit"] != 0 || s["attempts_spent_on_refusals"] != 0 || s["openings"] != 0 {
		t.Errorf("exit code %d: %s\n%s", o.code, o.stderr, o.stdout)
	}
}

// The place of a probe whose process was killed is free again at its deadline; what the process had in hand is delivered again.
func TestConsumerKilledInTheMiddleOfItsProbeHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("dev", strings.Fields("--once -o json --payments 300 --rate 100 --consumers 3 --scenario hung-probe --kill-prober --timeout "+
		patience.String()+" --database-url "+database(t))...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, &stderr, &stdout)
	}
	s := outcome{stdout: stdout.String()}.summary(t)
	if s["tracked"] != 300 || s["openings"] == 0 || s["recovery_seconds"] <= 0 || s["calls_while_open"] > s["probes_allowed"] {
		t.Errorf("summary: %s", &stdout)
	}
}

func TestHistogramIsPrintedAfterAReopening(t *testing.T) {
	t.Parallel()
	o := launch(t.Context(), strings.Fields("--once --payments 150 --rate 50 --scenario outage --timeout "+patience.String()+" --database-url "+database(t))...)
	for _, want := range []string{"\ncalls while open, probes allowed  ", "\ngateway well to first resolution  ", "\naround the reopening, calls in each tenth of a second:\n -1.0 s "} {
		if o.code != app.ExitOK || !strings.Contains(o.stdout, want) {
			t.Errorf("exit code %d, no %q in %s; %s", o.code, want, o.stdout, o.stderr)
		}
	}
}
