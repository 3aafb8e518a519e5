package app

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is a process that a test has started.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  *bufio.Scanner
	stderr bytes.Buffer
	ended  chan struct{}
	code   int
}

// patience is how long a test waits for something that takes a moment on an idle machine.
const patience = time.Minute

func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(name, args...), ended: make(chan struct{})}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines, p.cmd.Stderr = bufio.NewScanner(stdout), &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		var exit *exec.ExitError
		if err := p.cmd.Wait(); errors.As(err, &exit) {
			p.code = exit.ExitCode()
		}
	}()
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.ended })
	return p
}

func (p *process) says(want string) {
	p.t.Helper()
	if !p.lines.Scan() || p.lines.Text() != want {
		p.t.Fatalf("says %q, wanted %q; stderr: %s", p.lines.Text(), want, &p.stderr)
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// endsWith waits for the end and returns what was written on standard error.
func (p *process) endsWith(code int) string {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("does not end; stderr: %s", &p.stderr)
	}
	if p.code != code {
		p.t.Fatalf("exit code %d, wanted %d; stderr: %s", p.code, code, &p.stderr)
	}
	return p.stderr.String()
}

func TestASignalLetsAProcessFinish(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		p := start(t, "slow")
		p.says("running")
		p.signal(s)
		p.says("stopping")
		p.stdin.Close()
		if stderr := p.endsWith(ExitOK); stderr != "" {
			t.Errorf("%s: %s", s, stderr)
		}
	}
}

func TestASecondSignalEndsAProcess(t *testing.T) {
	p := start(t, "slow")
	p.says("running")
	p.signal(syscall.SIGTERM)
	p.says("stopping")
	p.signal(syscall.SIGTERM) // its echo
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; {
		select {
		case <-p.ended:
			if stderr := p.endsWith(ExitFailed); !strings.HasPrefix(stderr, "slow: terminated again: ended at once") {
				t.Errorf("stderr: %s", stderr)
			}
			return
		case <-tick.C:
			_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
		}
		if time.Now().After(deadline) {
			t.Fatal("it goes on")
		}
	}
}

func TestNohupIsObeyed(t *testing.T) {
	p := start(t, "nohup", "slow")
	p.says("running")
	p.signal(syscall.SIGHUP)
	p.signal(syscall.SIGTERM)
	p.says("stopping")
	p.stdin.Close()
	p.endsWith(ExitOK)
}
