// Package app wires the services: it reads the configuration, opens what they need, starts them, and stops them in
// the reverse order.
package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"pollux/internal/config"
)

// The exit codes of every command.
const (
	ExitOK       = 0
	ExitFailed   = 1 // it was tried and went wrong
	ExitUsage    = 2 // it was not tried: the command line or the configuration is wrong
	ExitFindings = 3 // it was done, and found something that a person should see
)

// ErrFindings is the error of a command that was done and found something that a person should see. It is not printed.
var ErrFindings = errors.New("findings")

// echo is how long after a signal the same one is taken for its echo: wrappers such as timeout(1) send it to the process and to its group.
const echo = 300 * time.Millisecond

// Main runs a command until it ends or is told to stop by SIGINT or SIGTERM, and returns the exit code. A second signal ends the process
// at once.
func Main(cmd *cobra.Command) int {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		stop(fmt.Errorf("told to stop: %s", s))
		for again := time.Now().Add(echo); ; {
			<-signals
			if time.Now().After(again) {
				os.Exit(ExitFailed)
			}
		}
	}()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.Version = Version()
	err := cmd.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, ErrFindings) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", cmd.Name(), err)
	}
	return ExitCode(err)
}

// ExitCode is the exit code of a command that ended with err.
func ExitCode(err error) int {
	var invalid *config.Invalid
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrFindings):
		return ExitFindings
	case errors.As(err, &invalid), errors.Is(err, ErrUsage):
		return ExitUsage
	}
	return ExitFailed
}

// ErrUsage marks an error of the command line.
var ErrUsage = errors.New("usage")

// Version is the version of this build: that of the module, or the commit that it was built from.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(12, len(s.Value))]
		}
	}
	return "devel"
}

// instance names this process among its like: who holds a lease, who wrote an attempt.
func instance(service string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s@%.40s#%s", service, host, uuid.NewString()[:8])
}
