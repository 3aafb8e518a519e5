//go:build unix

package chaos

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a program that runs or has ended.
type process struct {
	cmd   *exec.Cmd
	said  string        // the file of all that it writes
	ended chan struct{} // closed when it has ended
}

// launch starts a program in the warden's group. It sees nothing of our environment but PATH: what POLLUX_ variables say on this
// machine is not what is tested.
func launch(said, program string, args ...string) (*process, error) {
	pgid, err := group()
	if err != nil {
		return nil, err
	}
	out, err := os.Create(said)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir = filepath.Dir(said)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: pgid}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", filepath.Base(program), err)
	}
	p := &process{cmd: cmd, said: said, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in cmd.ProcessState
		close(p.ended)
	}()
	return p, nil
}

// signal sends a signal; to a process that has ended it sends nothing.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process as a power cut would, also one that was stopped, and returns when it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// code is the exit code of a process that has ended, -1 when a signal ended it.
func (p *process) code() int { return p.cmd.ProcessState.ExitCode() }

// lastWords are the last lines that a process wrote.
func lastWords(file string, lines int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(len(all)-lines, 0):], "\n")
}

// service is a program that an orchestrator keeps running: if it ends by itself it is started again.
type service struct {
	t       testing.TB
	name    string
	program string
	args    []string
	dir     string // of what its processes write

	mu      sync.Mutex
	current *process
	wanted  bool
	lives   []*process
	falls   []string // of the times that it ended by itself with the exit code of an error: when, and its last words
}

// start starts the service if it does not run.
func (s *service) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanted {
		return nil
	}
	s.wanted = true
	return s.launch()
}

func (s *service) launch() error {
	p, err := launch(filepath.Join(s.dir, fmt.Sprintf("%s.%03d.log", s.name, len(s.lives))), s.program, s.args...)
	if err != nil {
		return err
	}
	s.current, s.lives = p, append(s.lives, p)
	go func() {
		<-p.ended
		s.fell(p)
	}()
	return nil
}

// restartPause is how long an orchestrator waits before it starts a service again that ended by itself.
const restartPause = 300 * time.Millisecond

// fell starts the service again if nobody here ended it.
func (s *service) fell(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != p || !s.wanted {
		return
	}
	s.falls = append(s.falls, fmt.Sprintf("%s ended by itself with code %d: %s", filepath.Base(p.said), p.code(), lastWords(p.said, 3)))
	time.AfterFunc(restartPause, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.current != p || !s.wanted {
			return
		}
		if err := s.launch(); err != nil {
			s.falls = append(s.falls, err.Error())
		}
	})
}

// release takes the process out of the orchestrator's care and returns it; nil when none runs.
func (s *service) release() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = false
	return s.current
}

// kill ends the service as a power cut would.
func (s *service) kill() {
	if p := s.release(); p != nil {
		p.kill()
	}
}

// terminate tells the service to stop and returns its process, which ends when it has drained.
func (s *service) terminate() *process {
	p := s.release()
	p.signal(syscall.SIGTERM)
	return p
}

// running is the process that runs now.
func (s *service) running() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// confess reports what no service may do, whatever happens to it: panic, race, or end with another code than that of an error. That it
// ended with an error is not forbidden (it is started again), but said.
func (s *service) confess() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.falls[:min(len(s.falls), 3)] {
		s.t.Logf("%d times: %s", len(s.falls), f)
	}
	for _, p := range s.lives {
		b, err := os.ReadFile(p.said)
		if err != nil {
			s.t.Error(err)
		}
		for _, cry := range []string{"panic:", "panicked", "fatal error:", "DATA RACE"} {
			if i := bytes.Index(b, []byte(cry)); i >= 0 {
				s.t.Errorf("%s: %s", filepath.Base(p.said), b[i:min(i+3000, len(b))])
			}
		}
		select {
		case <-p.ended:
			if c := p.code(); c != -1 && c != 0 && c != 1 {
				s.t.Errorf("%s ended with code %d: %s", filepath.Base(p.said), c, lastWords(p.said, 10))
			}
		default:
		}
	}
}
