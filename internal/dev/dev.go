// Package dev is the launcher for a laptop: all of Pollux and all that it needs in one process tree, on loopback, leaving
// nothing behind.
package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pollux/internal/app"
	"pollux/internal/config"
	"pollux/internal/gatewaysim"
	"pollux/internal/terminal"
)

// Options are what the launcher is told.
type Options struct {
	Payments    int
	Rate        float64 // payments tracked a second; 0 means as fast as they can be
	Scenario    string
	Seed        uint64
	Consumers   int
	GatewayRate float64  // calls a second to the gateway, by all consumers together; 0 means as many as they like
	Gateways    []string // vendors to play instead of the one gateway; empty plays that
	KillProber  bool     // consumers are processes, and one is killed in the middle of its probe
	Once        bool
	Preload     bool
	Latency     time.Duration // of the gateway; below 0 means the scenario's
	Output      string
	DatabaseURL string
	NATSURL     string
	Set         []string
	Verbose     bool
	Timeout     time.Duration
}

// The defaults of what depends on other flags.
const (
	defaultRate     = 20  // payments a second, to look at
	defaultPayments = 200 // with --once
	maxRate         = 50_000
	throttledRate   = 300 // below what the gateway of the scenario throttled bears
)

// Command is the command `dev`.
func Command() *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Runs all of Pollux on this machine, with a gateway to poll and some traffic",
		Long: `dev starts a private PostgreSQL in a temporary folder, an embedded JetStream, a gateway simulator, the relay and consumers, tracks
payments and shows each second what becomes of them. Ctrl-C drains and leaves nothing behind.

With --once it tracks --payments payments, waits until each is final or with a person, compares every one of them with the gateway's own book, and
exits with 1 if one was lost, was finished twice or has a wrong status.

The scenarios:
` + scenarios(),
		Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(cmd.Flags()); err != nil {
				return err
			}
			return run(cmd, o)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Payments, "payments", 0, fmt.Sprintf("payments to track; 0 goes on until Ctrl-C, with --once it means %d", defaultPayments))
	f.Float64Var(&o.Rate, "rate", 0, fmt.Sprintf("payments tracked a second; 0 is as fast as they can be (default %d; with --once as fast as they can be, or so that they come until the scenario's trouble is over)", defaultRate))
	f.StringVar(&o.Scenario, "scenario", gatewaysim.DefaultScenario, "what the gateway does, see above")
	f.Uint64Var(&o.Seed, "seed", 1, "of everything random at the gateway")
	f.IntVar(&o.Consumers, "consumers", 2, "consumers that share the work")
	f.Float64Var(&o.GatewayRate, "gateway-rate", 0, fmt.Sprintf("limit of calls a second to the gateway, of all consumers together; 0 is none (default none, with the scenario throttled %d)", throttledRate))
	f.StringSliceVar(&o.Gateways, "gateways", nil, "vendors whose gateways are played, each with notifications of its own, instead of one gateway that is only asked: "+strings.Join(partNames(), ","))
	f.BoolVar(&o.KillProber, "kill-prober", false, "with the scenario hung-probe: consumers are processes, and one is killed while its probe hangs; the gateway is well from then on")
	f.BoolVar(&o.Once, "once", false, "track, wait, check, end")
	f.BoolVar(&o.Preload, "preload", false, "with --once: track all payments before the relay and the consumers start")
	config.AddDuration(f, &o.Latency, "latency", 0, "of each answer of the gateway, instead of the scenario's; every payment is then final at its first poll")
	f.StringVarP(&o.Output, "output", "o", "table", "table; or json, with --once: one JSON object on standard output")
	f.StringVar(&o.DatabaseURL, "database-url", "", "a PostgreSQL that exists, instead of a private one; the schema pollux is migrated in it and stays")
	f.StringVar(&o.NATSURL, "nats-url", "", "a NATS that exists, instead of an embedded one; the streams are created in it and stay")
	f.StringArrayVar(&o.Set, "set", nil, "override a key of the configuration, such as --set relay.every=20ms; may be repeated")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "show the services' log lines")
	config.AddDuration(f, &o.Timeout, "timeout", 5*time.Minute, "with --once: give up after so long")
	cmd.AddCommand(gatewaysim.Command(), childCommand())
	return cmd
}

// scenarios lists what the gateway can do, a line each.
func scenarios() string {
	var b strings.Builder
	for _, s := range gatewaysim.Scenarios() {
		fmt.Fprintf(&b, "  %-12s %s\n", s.Name, s.About)
	}
	return strings.TrimRight(b.String(), "\n")
}

// complete refuses what cannot be meant and fills in what depends on something else.
func (o *Options) complete(flags *pflag.FlagSet) error {
	scenario, err := gatewaysim.ScenarioNamed(o.Scenario)
	if err != nil {
		return app.Usage("--scenario: %w", err)
	}
	if !flags.Changed("latency") {
		o.Latency = -1
	}
	if !flags.Changed("rate") && !o.Once {
		o.Rate = defaultRate
	}
	if o.Scenario == "throttled" && !flags.Changed("gateway-rate") {
		o.GatewayRate = throttledRate
	}
	if o.Once && o.Payments == 0 {
		o.Payments = defaultPayments
	}
	if over := scenario.Conditions.Over(); over > 0 && o.Once && !o.Preload && !flags.Changed("rate") && !flags.Changed("latency") {
		o.Rate = min(float64(o.Payments)/over.Seconds(), maxRate) // all at once they would be final before the trouble begins
	}
	if _, err := parts(o.Gateways); err != nil {
		return app.Usage("--gateways: %w", err)
	}
	switch {
	case o.Output != "table" && o.Output != "json":
		return app.Usage("-o %q: table or json", o.Output)
	case o.Output == "json" && !o.Once:
		return app.Usage("-o json: only with --once, which ends with one JSON object")
	case o.Preload && !o.Once:
		return app.Usage("--preload: only with --once")
	case o.Payments < 0 || o.Payments > gatewaysim.MaxGenerate:
		return app.Usage("--payments %d: between 0 and %d", o.Payments, gatewaysim.MaxGenerate)
	case !(o.Rate >= 0 && o.Rate <= maxRate):
		return app.Usage("--rate %g: between 0 and %d payments a second", o.Rate, maxRate)
	case o.Rate == 0 && o.Payments == 0:
		return app.Usage("--rate 0 is as fast as they can be: say with --payments how many")
	case o.Consumers < 1 || o.Consumers > 64:
		return app.Usage("--consumers %d: between 1 and 64", o.Consumers)
	case flags.Changed("latency") && (o.Latency < 0 || o.Latency > time.Minute):
		return app.Usage("--latency %s: between 0s and 1m", o.Latency)
	case !(o.GatewayRate == 0 || o.GatewayRate >= 1 && o.GatewayRate <= maxRate):
		return app.Usage("--gateway-rate %g: 0, or between 1 and %d calls a second", o.GatewayRate, maxRate)
	case o.KillProber && (o.Scenario != "hung-probe" || !o.Once || o.Consumers < 2):
		return app.Usage("--kill-prober: only with --once --scenario hung-probe and two consumers or more")
	case o.KillProber && len(o.Gateways) > 0:
		return app.Usage("--kill-prober: not with --gateways")
	case o.Timeout <= 0:
		return app.Usage("--timeout %s: more than 0s", o.Timeout)
	}
	for _, name := range []string{"database-url", "nats-url"} {
		if f := flags.Lookup(name); f.Changed && f.Value.String() == "" {
			return app.Usage("--%s is empty; leave it out for a private one", name)
		}
	}
	return nil
}

// run runs the launcher. ctx ends when it is told to stop, and when a service fails: without that service it would wait for ever.
func run(cmd *cobra.Command, o Options) error {
	ctx, fail := context.WithCancelCause(cmd.Context())
	defer fail(nil)
	out := newScreen(cmd.ErrOrStderr())
	if !o.Once {
		out = newScreen(cmd.OutOrStdout())
	}
	w, err := open(ctx, o, out, fail)
	if err != nil {
		return err
	}
	if o.Once {
		err = w.once(ctx, cmd)
	} else {
		err = w.show(ctx)
	}
	stopped := cmd.Context().Err() != nil
	switch {
	case stopped && !o.Once:
		w.say("\ndraining: what was begun is finished")
		err = nil
	case ctx.Err() != nil && !stopped:
		err = context.Cause(ctx) // what failed, and not who noticed first
	}
	if err != nil && !stopped && !o.Verbose {
		w.quoteLog()
	}
	closed := w.close()
	if err == nil && closed == nil && stopped {
		w.say("%s", w.remains())
	}
	if err == nil {
		err = closed
	}
	return err
}

// remains says what is left behind.
func (w *world) remains() string {
	switch {
	case w.options.DatabaseURL != "" && w.options.NATSURL != "":
		return "ended; the schema and the streams stay where they are"
	case w.options.DatabaseURL != "":
		return "ended; the schema stays where it is, nothing else is left behind"
	case w.options.NATSURL != "":
		return "ended; the streams stay where they are, nothing else is left behind"
	}
	return "ended; nothing is left behind"
}

// once tracks, waits, checks and prints the summary.
func (w *world) once(ctx context.Context, cmd *cobra.Command) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.options.Timeout, fmt.Errorf("not settled after %s", w.options.Timeout))
	defer cancel()
	s, err := w.settle(ctx)
	if err != nil {
		return err
	}
	if w.options.Output == "json" {
		err = terminal.JSON(cmd.OutOrStdout(), s)
	} else {
		err = s.print(cmd.OutOrStdout())
	}
	if err == nil && !s.Good() {
		err = errors.New(s.complaint())
	}
	return err
}

// settle runs the whole course of a run with --once.
func (w *world) settle(ctx context.Context) (Summary, error) {
	if w.options.Preload {
		if err := w.track(ctx); err != nil {
			return Summary{}, err
		}
	}
	if err := w.startServices(ctx); err != nil {
		return Summary{}, err
	}
	if !w.options.Preload {
		if err := w.track(ctx); err != nil {
			return Summary{}, err
		}
	}
	for _, wait := range []func(context.Context) error{w.awaitSettled, w.awaitTold, w.awaitSettled} {
		if err := wait(ctx); err != nil {
			return Summary{}, err
		}
	}
	return w.check(ctx)
}

// quoted is how much of the log is shown when something went wrong.
const quoted = 4096

// quoteLog shows the end of the services' log, which goes with the folder.
func (w *world) quoteLog() {
	log, err := os.ReadFile(w.logFile())
	if err != nil || len(log) == 0 {
		return
	}
	end := string(log)
	if len(end) > quoted {
		_, end, _ = strings.Cut(end[len(end)-quoted:], "\n")
	}
	w.say("the services' log ended with:\n%s", strings.TrimRight(end, "\n"))
}
