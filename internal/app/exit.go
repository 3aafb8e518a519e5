package app

import (
	"errors"
	"fmt"

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

// ExitCode is the exit code of a command that ended with err.
func ExitCode(err error) int {
	var invalid *config.Invalid
	var wrong *refused
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrFindings):
		return ExitFindings
	case errors.As(err, &invalid), errors.As(err, &wrong):
		return ExitUsage
	}
	return ExitFailed
}

// refused is the error of a command that was not tried.
type refused struct {
	error
	commandLine bool // what is wrong is on the command line: its help helps
}

func (e *refused) Unwrap() error { return e.error }

// Usage returns an error of the command line: nothing was tried.
func Usage(format string, a ...any) error {
	return &refused{error: fmt.Errorf(format, a...), commandLine: true}
}

// NotTried marks an error, such as one of the configuration, because of which nothing was tried. NotTried of nil is nil.
func NotTried(err error) error {
	if err == nil {
		return nil
	}
	return &refused{error: err}
}

// Load reads the configuration.
func Load(o config.Options) (config.Config, error) {
	cfg, err := config.Load(o)
	return cfg, NotTried(err)
}

// hinted is an error that says below itself what to do.
type hinted struct {
	error
	hint string
}

func (e *hinted) Unwrap() error { return e.error }

// Hint says what to do about it.
func (e *hinted) Hint() string { return e.hint }

// Hint adds to an error what to do about it. Hint of nil is nil.
func Hint(err error, format string, a ...any) error {
	if err == nil {
		return nil
	}
	return &hinted{error: err, hint: fmt.Sprintf(format, a...)}
}

// said is an error that was shown already, in the log or otherwise.
type said struct{ error }

func (e *said) Unwrap() error { return e.error }

// Said marks an error as shown already, so that it is not printed again; it still decides about the exit code. Said of nil is nil.
func Said(err error) error {
	if err == nil {
		return nil
	}
	return &said{err}
}

// NoArgs refuses arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, %q is one", cmd.Name(), args[0])
	}
	return nil
}

// beStrict makes all that is wrong with a command line an error of the command line, in the command and in all below it. Cobra
// itself answers a command that does not exist with a page of help and success.
func beStrict(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage("%w", err) })
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return Usage("%w", err)
			}
			return nil
		}
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args, cmd.RunE = noSuchCommand, noCommand
	}
	for _, below := range cmd.Commands() {
		beStrict(below)
	}
}

func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	meant := ""
	cmd.SuggestionsMinimumDistance = 2
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		meant = fmt.Sprintf("; did you mean %s?", names[0])
	}
	return Usage("there is no command %s %q%s", cmd.CommandPath(), args[0], meant)
}

// noCommand is what a group of commands does by itself: it shows them, as an error, since a script that lost a word must not go on.
func noCommand(cmd *cobra.Command, _ []string) error {
	cmd.SetOut(cmd.ErrOrStderr())
	_ = cmd.Help() // a help page that cannot be written is not missed
	return Said(Usage("no command"))
}
