// Package dev is the launcher for a laptop: all of Pollux and all that it needs in one process tree, on loopback, leaving
// nothing behind.
package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/gatewaysim"
)

// Options are what the launcher is told.
type Options struct {
	Payments    int
	Rate        float64 // payments tracked a second; 0 means as fast as they can be
	Scenario    string
	Seed        uint64
	Consumers   int
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

// Command is the command `dev`.
func Command() *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Runs all of Pollux on this machine, with a gateway to poll and some traffic",
		Long: `dev starts a private PostgreSQL in a temporary folder, an embedded JetStream, a gateway simulator, the relay and consumers, tracks
payments and shows each second what becomes of them. Ctrl-C drains and leaves nothing behind.

With --once it tracks --payments payments, waits until each is final or with a person, compares every one of them with the gateway's own book, and
exits with 1 if one was lost, was finished twice or has a wrong status.`,
		Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd, o) },
	}
	f := cmd.Flags()
	f.IntVar(&o.Payments, "payments", 0, "payments to track; 0 goes on until Ctrl-C, with --once it means 200")
	f.Float64Var(&o.Rate, "rate", -1, "payments tracked a second; 0 is as fast as they can be (default 20, with --once 0)")
	f.StringVar(&o.Scenario, "scenario", gatewaysim.DefaultScenario, "what the gateway does: "+scenarioNames())
	f.Uint64Var(&o.Seed, "seed", 1, "of everything random at the gateway")
	f.IntVar(&o.Consumers, "consumers", 2, "consumers that share the work")
	f.BoolVar(&o.Once, "once", false, "track, wait, check, end")
	f.BoolVar(&o.Preload, "preload", false, "with --once: track all payments before the relay and the consumers start")
	f.DurationVar(&o.Latency, "latency", -1, "of each answer of the gateway, instead of the scenario's; every payment is then final at its first poll")
	f.StringVarP(&o.Output, "output", "o", "table", "table, or json: with --once one JSON object on standard output")
	f.StringVar(&o.DatabaseURL, "database-url", "", "a PostgreSQL that exists, instead of a private one; the schema pollux is migrated in it")
	f.StringVar(&o.NATSURL, "nats-url", "", "a NATS that exists, instead of an embedded one; the streams are created in it")
	f.StringArrayVar(&o.Set, "set", nil, "override a key of the configuration, such as --set relay.every=20ms; may be repeated")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "show the services' log lines")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "with --once: give up after so long")
	cmd.AddCommand(gatewaysim.Command())
	return cmd
}

func scenarioNames() string {
	var names string
	for i, s := range gatewaysim.Scenarios() {
		if i > 0 {
			names += ", "
		}
		names += s.Name
	}
	return names
}

func (o *Options) complete() error {
	if _, err := gatewaysim.ScenarioNamed(o.Scenario); err != nil {
		return app.Usage("--scenario: %w", err)
	}
	if o.Output != "table" && o.Output != "json" {
		return app.Usage("-o %s: table or json", o.Output)
	}
	if o.Payments < 0 || o.Payments > gatewaysim.MaxGenerate {
		return app.Usage("--payments %d: between 0 and %d", o.Payments, gatewaysim.MaxGenerate)
	}
	if o.Consumers < 1 || o.Consumers > 64 {
		return app.Usage("--consumers %d: between 1 and 64", o.Consumers)
	}
	if o.Once && o.Payments == 0 {
		o.Payments = 200
	}
	if o.Rate < 0 {
		o.Rate = 20
		if o.Once {
			o.Rate = 0
		}
	}
	return nil
}

func run(cmd *cobra.Command, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	say := func(format string, a ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", a...) }
	w, err := open(cmd.Context(), o, say)
	if err != nil {
		return err
	}
	defer w.close(say)
	if o.Once {
		return once(cmd, w)
	}
	return show(cmd, w)
}

// once tracks, waits, checks and prints the summary.
func once(cmd *cobra.Command, w *world) error {
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), w.options.Timeout, fmt.Errorf("not settled after %s", w.options.Timeout))
	defer cancel()
	s, err := w.settle(ctx)
	if err != nil {
		return err
	}
	if w.options.Output == "json" {
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		err = e.Encode(s)
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
	if err := w.sim.SetScenario(w.options.Scenario); err != nil { // its windows count from here
		return Summary{}, err
	}
	w.startServices()
	if !w.options.Preload {
		if err := w.track(ctx); err != nil {
			return Summary{}, err
		}
	}
	if err := w.awaitSettled(ctx); err != nil {
		return Summary{}, err
	}
	return w.check(ctx)
}
