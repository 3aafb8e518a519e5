package gatewaysim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/config"
)

// Command returns the command "gateway", which runs a simulator until SIGINT, SIGTERM or the end of the command's context.
func Command() *cobra.Command {
	var (
		listen, keyFile string
		latency         time.Duration
		rate            float64
		cfg             Config
	)
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Run a payment gateway to poll, with seeded faults",
		Long:  "Runs a payment gateway to poll, with seeded faults.\n\nScenarios:\n" + scenarioList(),
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keyFile != "" {
				key, err := readKey(keyFile)
				if err != nil {
					return err
				}
				cfg.APIKey = key
			}
			latencySet, rateSet := cmd.Flags().Changed("latency"), cmd.Flags().Changed("rate")
			cfg.Adjust = func(c Conditions) Conditions {
				if latencySet {
					c.Latency, c.Jitter = latency, 0
				}
				if rateSet {
					c.Limit.Rate, c.Limit.Burst = rate, 0
				}
				return c
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run(ctx, cmd.OutOrStdout(), cfg, listen, keyFile)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", "127.0.0.1:8089", "address to listen on; port 0 takes a free one")
	flags.StringVar(&cfg.Scenario, "scenario", DefaultScenario, "what goes wrong, see above")
	flags.Uint64Var(&cfg.Seed, "seed", 1, "of everything random: the same seed gives the same faults")
	flags.StringVar(&keyFile, "api-key-file", "", "file with the key that callers must bring (default is the key "+DefaultAPIKey+")")
	config.AddDuration(flags, &latency, "latency", 0, "time before every answer, instead of the scenario's")
	flags.Float64Var(&rate, "rate", 0, "calls a second above which it answers 429, instead of the scenario's; 0 has no limit")
	flags.BoolVar(&cfg.AllowRemote, "allow-remote", false, "let it listen on more than loopback; /sim/ answers to loopback all the same")
	return cmd
}

// run runs a simulator until the context ends.
func run(ctx context.Context, out io.Writer, cfg Config, listen, keyFile string) error {
	s := New(cfg)
	if err := s.Start(listen); err != nil {
		return err
	}
	defer s.Close()
	key := DefaultAPIKey
	if keyFile != "" {
		key = "$(cat " + shellQuote(keyFile) + ")"
	}
	fmt.Fprintf(out, `Payment gateway simulator on %[1]s, scenario %[2]s, seed %[3]d. Ctrl-C ends it.

  ask for a payment      curl -H "Authorization: Bearer %[4]s" %[1]s/v1/payments/demo_1999_EUR
  one that fails         curl -H "Authorization: Bearer %[4]s" %[1]s/v1/payments/demo_1999_EUR_failed
  make payments          curl -X POST '%[1]s/sim/generate?n=10&prefix=mine'
  register payments      echo '{"reference":"mine","amount_minor":1999,"currency":"EUR","script":{"pending":2}}' | curl --data-binary @- %[1]s/sim/payments
  take it down           curl -X POST '%[1]s/sim/down?for=10s'
  change the scenario    curl -X POST '%[1]s/sim/scenario?name=errors'
  look                   curl %[1]s/sim/stats   %[1]s/sim/log   %[1]s/sim/truth   %[1]s/sim/scenario
`, s.URL(), s.Scenario(), cfg.Seed, key)
	<-ctx.Done()
	return nil
}

// readKey reads a key from a file. It never says what is in it.
func readKey(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("reading the api key: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return "", fmt.Errorf("reading the api key: %w", err)
	}
	key := string(bytes.TrimSpace(b))
	if !validKey(key) {
		return "", errors.New("reading the api key: " + name + " has to contain 1 to 512 visible ASCII characters")
	}
	return key, nil
}

func scenarioList() string {
	var b strings.Builder
	for _, s := range Scenarios() {
		fmt.Fprintf(&b, "  %-12s %s\n", s.Name, s.About)
	}
	return b.String()
}

// shellQuote quotes a word for a POSIX shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
