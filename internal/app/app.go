// Package app wires the services: it reads the configuration, opens what they need, starts them, and stops them in
// the reverse order.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"pollux/internal/outage"
	"pollux/internal/terminal"
)

// Main runs a command until it ends or is told to stop by SIGINT, SIGTERM or, unless it was started to ignore it, SIGHUP, and returns
// the exit code. A second signal ends the process at once. SIGHUP does not stop a service: it has it read its configuration anew.
func Main(cmd *cobra.Command) int {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	switch {
	case cmd.Annotations[reloads] != "":
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // one that comes before the configuration was read asks for nothing
	case !signal.Ignored(syscall.SIGHUP): // nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	defer signal.Stop(signals)
	ended := make(chan struct{})
	defer close(ended)
	go obey(signals, ended, stop, func(s os.Signal) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s again: ended at once, without finishing what was begun\n", cmd.Name(), s)
		os.Exit(ExitFailed)
	})
	return Run(ctx, cmd)
}

// echo is how long after a signal the next one is taken for its echo: wrappers such as timeout(1) send it to the process and to its group.
const echo = 300 * time.Millisecond

// obey tells a process to stop at the first signal and ends it at a second one.
func obey(signals <-chan os.Signal, ended <-chan struct{}, stop context.CancelCauseFunc, end func(os.Signal)) {
	var again time.Time
	for {
		select {
		case <-ended:
			return
		case s := <-signals:
			switch now := time.Now(); {
			case again.IsZero():
				again = now.Add(echo)
				stop(fmt.Errorf("told to stop: %s", s))
			case now.After(again):
				end(s)
			}
		}
	}
}

// Run runs a command, says on its standard error what went wrong, and returns the exit code.
func Run(ctx context.Context, cmd *cobra.Command) int {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.Version = Version()
	beStrict(cmd)
	which, err := cmd.ExecuteContextC(ctx)
	complain(ctx, cmd.ErrOrStderr(), which, err)
	return ExitCode(err)
}

// complain prints an error and, below it, what to do about it.
func complain(ctx context.Context, w io.Writer, cmd *cobra.Command, err error) {
	var shown *said
	if err == nil || errors.Is(err, ErrFindings) || errors.As(err, &shown) {
		return
	}
	text := err.Error()
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		text += " (" + cause.Error() + ")"
	}
	fmt.Fprintf(w, "%s: %s\n", cmd.Root().Name(), terminal.Lines(text))
	var wrong *refused
	switch hint := outage.Hint(err); {
	case hint != "":
		fmt.Fprintf(w, "hint: %s\n", terminal.Lines(hint))
	case errors.As(err, &wrong) && wrong.commandLine:
		fmt.Fprintf(w, "hint: %s --help says how it is used\n", cmd.CommandPath())
	}
}

// stamp is the version that `make build VERSION=…` puts in, where a build has no .git to learn it from.
var stamp string

// Version is the version of this build: what it was told, that of the module, or the commit that it was built from.
func Version() string {
	if stamp != "" {
		return stamp
	}
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

// instance makes a name for a process among its like. It is made once for each: what a log line, a lease, an attempt, a row of the audit log and the fleet call a process is the same name.
func instance(service string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s@%.40s#%s", service, host, uuid.NewString()[:8])
}
