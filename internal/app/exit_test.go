package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/config"
)

func TestExitCodes(t *testing.T) {
	plain := errors.New("connection refused")
	invalid := &config.Invalid{Problems: []config.Problem{{What: "missing"}}}
	for _, c := range []struct {
		name string
		err  error
		want int
	}{
		{"done", nil, 0},
		{"wrong", plain, 1},
		{"wrong, with a hint", Hint(plain, "look"), 1},
		{"wrong, said already", Said(plain), 1},
		{"the command line", Usage("no"), 2},
		{"the command line, wrapped", fmt.Errorf("replaying: %w", Usage("no")), 2},
		{"the configuration", invalid, 2},
		{"the configuration, said already", Said(fmt.Errorf("reading: %w", invalid)), 2},
		{"not tried", NotTried(plain), 2},
		{"findings", ErrFindings, 3},
		{"findings, wrapped", fmt.Errorf("diff: %w", ErrFindings), 3},
		{"a hint on nothing", Hint(nil, "look"), 0},
		{"nothing said", Said(nil), 0},
		{"nothing not tried", NotTried(nil), 0},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("%s: %d, wanted %d", c.name, got, c.want)
		}
	}
}

// tree is a command with a group of commands below it; do ends with an error of the test's choice.
func tree(err error) *cobra.Command {
	root := &cobra.Command{Use: "tree"}
	group := &cobra.Command{Use: "group", Short: "a group"}
	do := &cobra.Command{Use: "do", Short: "does it", Args: NoArgs, RunE: func(*cobra.Command, []string) error { return err }}
	do.Flags().Int("many", 0, "")
	pair := &cobra.Command{Use: "pair", Args: cobra.ExactArgs(2), RunE: func(*cobra.Command, []string) error { return err }}
	group.AddCommand(do, pair)
	root.AddCommand(group)
	return root
}

func runTree(ctx context.Context, err error, args ...string) (code int, stdout, stderr string) {
	var out, complaints bytes.Buffer
	root := tree(err)
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&complaints)
	code = Run(ctx, root)
	return code, out.String(), complaints.String()
}

func TestWhatIsWrongIsSaidOnceWithAHint(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"nothing", nil, ""},
		{"findings", ErrFindings, ""},
		{"said", Said(errors.New("in the log")), ""},
		{"said, and wrapped", fmt.Errorf("again: %w", Said(errors.New("in the log"))), ""},
		{"plain", errors.New("no"), "tree: no\n"},
		{"hint", fmt.Errorf("listing: %w", Hint(errors.New("refused"), "does it run at %d?", 5432)), "tree: listing: refused\nhint: does it run at 5432?\n"},
		{"usage", Usage("--rate %d", 0), "tree: --rate 0\nhint: tree group do --help says how it is used\n"},
		{"a hint is better than the help", Hint(Usage("no"), "try this"), "tree: no\nhint: try this\n"},
		{"configuration", NotTried(errors.New("no file")), "tree: no file\n"},
		{"two lines", errors.New("two:\n\tone\n\ttwo"), "tree: two:\n\tone\n\ttwo\n"},
		{"for a terminal", Hint(errors.New("\x1b[2J\u202e"), "\x9b"), "tree: \\u001b[2J\\u202e\nhint: \\ufffd\n"},
	} {
		if _, stdout, stderr := runTree(t.Context(), c.err, "group", "do"); stderr != c.want || stdout != "" {
			t.Errorf("%s: %q and on stdout %q, wanted %q", c.name, stderr, stdout, c.want)
		}
	}
}

func TestAnInterruptedCommandSaysWhoInterruptedIt(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errors.New("told to stop: interrupt"))
	code, _, stderr := runTree(ctx, fmt.Errorf("listing: %w", context.Canceled), "group", "do")
	if code != ExitFailed || stderr != "tree: listing: context canceled (told to stop: interrupt)\n" {
		t.Errorf("%d, %q", code, stderr)
	}
}

func TestACommandLineIsTakenStrictly(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"nope"}, `tree: there is no command tree "nope"`},
		{[]string{"grop"}, `tree: there is no command tree "grop"; did you mean group?`},
		{[]string{"group", "doo"}, `tree: there is no command tree group "doo"; did you mean do?`},
		{[]string{"group", "do", "more"}, `tree: do takes no arguments, "more" is one`},
		{[]string{"group", "do", "--few"}, "tree: unknown flag: --few"},
		{[]string{"group", "do", "--many", "x"}, `tree: invalid argument "x" for "--many" flag`},
		{[]string{"group", "pair", "one"}, "tree: accepts 2 arg(s), received 1"},
		{[]string{"--few"}, "tree: unknown flag: --few"},
		{nil, "Usage:"},
		{[]string{"group"}, "Usage:"},
	} {
		code, stdout, stderr := runTree(t.Context(), nil, c.args...)
		if code != ExitUsage || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: %d, %q and on stdout %q", c.args, code, stderr, stdout)
		}
	}
	if code, stdout, stderr := runTree(t.Context(), nil, "--help"); code != ExitOK || stderr != "" || !strings.Contains(stdout, "group") {
		t.Errorf("help: %d, %q, %q", code, stdout, stderr)
	}
	if code, _, stderr := runTree(t.Context(), nil, "group", "pair", "1", "2"); code != ExitOK || stderr != "" {
		t.Errorf("what is right: %d, %q", code, stderr)
	}
}

// told is what became of a process that was sent signals at these times.
func told(t *testing.T, at ...time.Duration) (ended os.Signal, when time.Duration, stopped error) {
	synctest.Test(t, func(t *testing.T) {
		signals, done := make(chan os.Signal, 2), make(chan struct{})
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		began, gone := time.Now(), make(chan struct{})
		go func() {
			defer close(gone)
			obey(signals, done, stop, func(s os.Signal) {
				if ended == nil {
					ended, when = s, time.Since(began)
				}
			})
		}()
		for _, d := range at {
			time.Sleep(d - time.Since(began))
			signals <- syscall.SIGTERM
			synctest.Wait()
		}
		stopped = context.Cause(ctx)
		close(done)
		<-gone
	})
	return ended, when, stopped
}

func TestTheFirstSignalStopsAndTheSecondEnds(t *testing.T) {
	if ended, _, stopped := told(t); stopped != nil || ended != nil {
		t.Errorf("nobody said anything: %v, %v", stopped, ended)
	}
	if ended, _, stopped := told(t, time.Second); stopped == nil || stopped.Error() != "told to stop: terminated" || ended != nil {
		t.Errorf("once: %v, %v", stopped, ended)
	}
	// what a wrapper sends to the process and to its group
	if ended, _, _ := told(t, 0, time.Millisecond, echo/2, echo); ended != nil {
		t.Errorf("an echo: %v", ended)
	}
	if ended, when, _ := told(t, 0, echo+time.Millisecond, time.Minute); ended != syscall.SIGTERM || when != echo+time.Millisecond {
		t.Errorf("twice: %v after %s", ended, when)
	}
	// the echo counts from the first signal, not from its last echo
	if ended, when, _ := told(t, 0, echo-time.Millisecond, echo+time.Millisecond); ended == nil || when != echo+time.Millisecond {
		t.Errorf("three times: %v after %s", ended, when)
	}
}
