package dev

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/app"
)

// launcher is the launcher as a process, in a folder for temporary files of its own.
type launcher struct {
	t      *testing.T
	cmd    *exec.Cmd
	tmp    string
	out    *bufio.Scanner
	said   strings.Builder
	stderr bytes.Buffer
}

func startLauncher(t *testing.T, args ...string) *launcher {
	t.Helper()
	return startCommand(t, exec.Command("dev", args...))
}

// startCommand starts a command that runs the launcher, in a process group of its own.
func startCommand(t *testing.T, cmd *exec.Cmd) *launcher {
	t.Helper()
	tmp, err := os.MkdirTemp("", "pollux-dev-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o755); err != nil { // PostgreSQL may run as another user
		t.Fatal(err)
	}
	l := &launcher{t: t, cmd: cmd, tmp: tmp}
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	l.cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	l.cmd.Stderr = &l.stderr
	stdout, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.out = bufio.NewScanner(stdout)
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := func() { _ = syscall.Kill(-l.cmd.Process.Pid, syscall.SIGKILL) } // none is left, usually
	stuck := time.AfterFunc(patience, kill)
	t.Cleanup(func() { stuck.Stop(); kill() })
	return l
}

// until reads standard output until a line matches.
func (l *launcher) until(pattern string) {
	l.t.Helper()
	for re := regexp.MustCompile(pattern); l.out.Scan(); {
		l.said.WriteString(l.out.Text() + "\n")
		if re.MatchString(l.out.Text()) {
			return
		}
	}
	l.t.Fatalf("it ended before it said %q: %s%s", pattern, &l.said, &l.stderr)
}

func (l *launcher) signal(s syscall.Signal) {
	l.t.Helper()
	if err := l.cmd.Process.Signal(s); err != nil {
		l.t.Fatal(err)
	}
}

// endsWith waits for the end.
func (l *launcher) endsWith(code int) {
	l.t.Helper()
	for l.out.Scan() {
		l.said.WriteString(l.out.Text() + "\n")
	}
	err := l.cmd.Wait()
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	}
	if got != code {
		l.t.Errorf("exit code %d, wanted %d: %s%s", got, code, &l.said, &l.stderr)
	}
}

// leavesNothing fails when a file or a process of the run is left.
func (l *launcher) leavesNothing() {
	l.t.Helper()
	left, err := filepath.Glob(filepath.Join(l.tmp, "*"))
	if err != nil || len(left) > 0 {
		l.t.Errorf("left behind: %v %v", left, err)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		l.t.Fatal(err)
	}
	for _, file := range commands {
		if line, err := os.ReadFile(file); err == nil && bytes.Contains(line, []byte(l.tmp)) { // it may have ended meanwhile
			l.t.Errorf("still running: %s", bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
		}
	}
}

// TestMakeRunEndsQuietly presses Ctrl-C as a terminal does: make, its shell and the launcher are told at once. make itself then ends by the signal, as it always does.
func TestMakeRunEndsQuietly(t *testing.T) {
	t.Parallel()
	l := startCommand(t, exec.Command("make", "-C", "../..", "run"))
	l.until(`calm 0:\d\d tracked=\d+ .* succeeded=[1-9]`)
	if err := syscall.Kill(-l.cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	l.endsWith(-1)
	if said := l.said.String() + l.stderr.String(); !strings.Contains(said, "ended; nothing is left behind") || strings.Contains(said, "Error") {
		t.Errorf("it ended with\n%s", said)
	}
	l.leavesNothing()
}

// TestCtrlCLeavesNothingBehind stops the whole of it, with a private PostgreSQL, while it works.
func TestCtrlCLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	l := startLauncher(t, "--scenario", "errors", "--rate", "50")
	l.until(`errors 0:\d\d tracked=\d+ .* succeeded=[1-9]`)
	l.signal(syscall.SIGINT)
	l.endsWith(app.ExitOK)
	said := l.said.String()
	for _, part := range []string{
		"database  psql 'postgres://", "NATS      nats --server nats://127.0.0.1:", "gateway   curl http://127.0.0.1:", "metrics   curl http://127.0.0.1:",
		"log       tail -f " + l.tmp, "select pollux.track_payment('sim', 'mine_1999_EUR', 1999, 'EUR',", "draining", "ended; nothing is left behind",
	} {
		if !strings.Contains(said, part) {
			t.Errorf("no %q in\n%s", part, said)
		}
	}
	if strings.Contains(said, "\x1b") {
		t.Errorf("what is no terminal is told what only a terminal understands:\n%q", said)
	}
	if l.stderr.Len() > 0 {
		t.Errorf("stderr: %s", &l.stderr)
	}
	l.leavesNothing()
}

// TestAStopDuringTheStartLeavesNothingBehind stops it at several moments of its start.
func TestAStopDuringTheStartLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, sign := range []string{"pollux-dev-*", "pollux-postgresql-*", "pollux-postgresql-*/data"} {
		l := startLauncher(t)
		tick := time.NewTicker(5 * time.Millisecond)
		for there := false; !there; <-tick.C {
			found, err := filepath.Glob(filepath.Join(l.tmp, sign))
			if err != nil {
				t.Fatal(err)
			}
			there = len(found) > 0
		}
		tick.Stop()
		l.signal(syscall.SIGTERM)
		for l.out.Scan() {
		}
		_ = l.cmd.Wait() // it is an error or, when it had started by then, none
		l.leavesNothing()
	}
}
