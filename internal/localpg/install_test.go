//go:build linux || darwin

package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeMachine has some programs, and is changed by commands as its owner says.
type fakeMachine struct {
	programs  []string
	installed bool
	ran       []string
	answer    map[string]string // by the beginning of a command
	fail      map[string]error
}

func (f *fakeMachine) machine(t *testing.T, goos string, root bool) machine {
	return machine{
		goos: goos,
		root: root,
		has:  func(p string) bool { return slices.Contains(f.programs, p) },
		find: func() (string, int, error) {
			if !f.installed {
				return "", 0, ErrNotFound
			}
			return "/bin-of-postgresql", 17, nil
		},
		run:  f.run,
		lock: filepath.Join(t.TempDir(), "lock"),
	}
}

func (f *fakeMachine) run(_ context.Context, argv []string) (string, error) {
	line := strings.Join(argv, " ")
	f.ran = append(f.ran, line)
	for part, err := range f.fail {
		if strings.Contains(line, part) {
			return "", err
		}
	}
	if strings.Contains(line, "install ") {
		f.installed = true
	}
	for part, out := range f.answer {
		if strings.Contains(line, part) {
			return out, nil
		}
	}
	return "", nil
}

const policy15 = "postgresql:\n  Installed: (none)\n  Candidate: 15+248\n"

func TestEnsureInstallsWithTheMeansOfTheMachine(t *testing.T) {
	const (
		aptGet = "env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 "
		noMain = "sh -c mkdir -p /etc/postgresql-common/createcluster.d && echo 'create_main_cluster = false' > " +
			"/etc/postgresql-common/createcluster.d/pollux.conf"
		policy = "env LC_ALL=C apt-cache policy postgresql"
		remove = "rm -f /etc/postgresql-common/createcluster.d/pollux.conf"
	)
	for _, c := range []struct {
		name     string
		goos     string
		root     bool
		programs []string
		want     []string
	}{
		{"Debian, root", "linux", true, []string{"apt-get"}, []string{
			aptGet + "update", policy, noMain, aptGet + "--no-install-recommends install postgresql", remove,
		}},
		{"Debian, sudo", "linux", false, []string{"apt-get", "sudo"}, []string{
			"sudo -n true", "sudo -n " + aptGet + "update", policy, "sudo -n " + noMain,
			"sudo -n " + aptGet + "--no-install-recommends install postgresql", "sudo -n " + remove,
		}},
		{"macOS", "darwin", false, []string{"brew"}, []string{"brew install postgresql@17"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeMachine{programs: c.programs, answer: map[string]string{"policy": policy15}}
			var said []string
			bin, err := f.machine(t, c.goos, c.root).ensure(t.Context(), func(s string) { said = append(said, s) })
			if err != nil || bin != "/bin-of-postgresql" {
				t.Fatalf("ensure() = %q, %v", bin, err)
			}
			if diff := cmp.Diff(c.want, f.ran); diff != "" {
				t.Errorf("commands (-want +got):\n%s", diff)
			}
			if len(said) != 2 || !strings.Contains(said[0], "installing") || !strings.Contains(said[1], "/bin-of-postgresql") {
				t.Errorf("it said %q; want what it is about to do, and where it is", said)
			}
		})
	}
}

func TestEnsureTellsInOneSentenceWhatToDo(t *testing.T) {
	refused := errors.New("a password is required")
	for _, c := range []struct {
		name     string
		goos     string
		root     bool
		programs []string
		answer   map[string]string
		fail     map[string]error
		want     []string
	}{
		{name: "no sudo", goos: "linux", programs: []string{"apt-get"},
			want: []string{"needs root", "apt-get install postgresql"}},
		{name: "sudo asks for a password", goos: "linux", programs: []string{"apt-get", "sudo"}, fail: map[string]error{"sudo -n true": refused},
			want: []string{"without a password", "sudo apt-get install postgresql"}},
		{name: "another Linux", goos: "linux", root: true, programs: []string{"dnf"},
			want: []string{"cannot be installed here"}},
		{name: "Windows", goos: "windows", want: []string{"cannot be installed here"}},
		{name: "macOS without Homebrew", goos: "darwin", want: []string{"brew install postgresql@17"}},
		{name: "macOS as root", goos: "darwin", root: true, programs: []string{"brew"}, want: []string{"refuses root"}},
		{name: "an old Debian", goos: "linux", root: true, programs: []string{"apt-get"},
			answer: map[string]string{"policy": "  Candidate: 13+225\n"}, want: []string{"only version 13", "apt.postgresql.org"}},
		{name: "no such package", goos: "linux", root: true, programs: []string{"apt-get"},
			answer: map[string]string{"policy": "  Candidate: (none)\n"}, want: []string{"no package postgresql"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeMachine{programs: c.programs, answer: c.answer, fail: c.fail}
			_, err := f.machine(t, c.goos, c.root).ensure(t.Context(), func(string) {})
			if !errors.Is(err, ErrNotFound) {
				t.Fatalf("ensure() = %v; want ErrNotFound", err)
			}
			for _, part := range append(c.want, EnvBin) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q has several lines", err)
			}
			for _, ran := range f.ran {
				if strings.Contains(ran, "install ") {
					t.Errorf("it ran %q", ran)
				}
			}
		})
	}
}

func TestEnsureGoesOnAfterAFailedUpdateAndReportsAFailedInstallation(t *testing.T) {
	f := &fakeMachine{
		programs: []string{"apt-get"},
		answer:   map[string]string{"policy": policy15},
		fail:     map[string]error{"update": errors.New("a mirror is down")},
	}
	if _, err := f.machine(t, "linux", true).ensure(t.Context(), func(string) {}); err != nil {
		t.Fatalf("a failed update stopped it: %v", err)
	}
	f.installed = false
	f.fail["install "] = errors.New("no space left")
	_, err := f.machine(t, "linux", true).ensure(t.Context(), func(string) {})
	if err == nil || !strings.Contains(err.Error(), "no space left") || !strings.Contains(err.Error(), "a mirror is down") {
		t.Fatalf("ensure() = %v; want both causes", err)
	}
	if last := f.ran[len(f.ran)-1]; !strings.HasPrefix(last, "rm -f ") {
		t.Fatalf("the last command was %q; the drop-in file is still there", last)
	}
}

func TestEnsureReportsAnInstallationAfterWhichThereIsStillNone(t *testing.T) {
	f := &fakeMachine{programs: []string{"apt-get"}, answer: map[string]string{"policy": policy15}}
	m := f.machine(t, "linux", true)
	m.find = func() (string, int, error) { return "", 0, ErrNotFound }
	if _, err := m.ensure(t.Context(), func(string) {}); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "after it was installed") {
		t.Fatalf("ensure() = %v", err)
	}
}

// installInHelper is what a process of the next test does: it behaves like one of several test binaries on a fresh machine. It
// writes a line when it looks for PostgreSQL and one when it installs it; an installation lasts until it is released.
func installInHelper(dir string) error {
	m := machine{
		goos: "darwin",
		has:  func(string) bool { return true },
		find: func() (string, int, error) {
			if _, err := os.Stat(filepath.Join(dir, "installed")); err == nil {
				return dir, MinVersion, nil
			}
			return "", 0, errors.Join(ErrNotFound, appendLine(filepath.Join(dir, "looked")))
		},
		run: func(context.Context, []string) (string, error) {
			if err := appendLine(filepath.Join(dir, "installs")); err != nil {
				return "", err
			}
			if !poll(func() bool { _, err := os.Stat(filepath.Join(dir, "released")); return err == nil }) {
				return "", errors.New("never released")
			}
			return "", os.WriteFile(filepath.Join(dir, "installed"), nil, 0o600)
		},
		lock: filepath.Join(dir, "lock"),
	}
	_, err := m.ensure(context.Background(), func(string) {})
	return err
}

func appendLine(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, os.Getpid())
	return err
}

// pids returns the different processes that wrote a line.
func pids(path string) []string {
	b, _ := os.ReadFile(path)
	lines := strings.Fields(string(b))
	slices.Sort(lines)
	return slices.Compact(lines)
}

func TestProcessesInstallOnce(t *testing.T) {
	const processes = 3
	dir := t.TempDir()
	var helpers []*exec.Cmd
	for range processes {
		helpers = append(helpers, startHelper(t, nil, "install", dir))
	}
	eventually(t, "all processes look for PostgreSQL and one installs it", func() bool {
		return len(pids(filepath.Join(dir, "looked"))) == processes && len(pids(filepath.Join(dir, "installs"))) > 0
	})
	if err := os.WriteFile(filepath.Join(dir, "released"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, h := range helpers {
		if err := h.Wait(); err != nil {
			t.Errorf("a process: %v", err)
		}
	}
	if got := pids(filepath.Join(dir, "installs")); len(got) != 1 {
		t.Errorf("the processes %v installed; want one of them", got)
	}
}

func TestWaitingForAnotherInstallationEndsWithTheContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("patience ended"))
	defer cancel()
	if _, err := lockFile(ctx, path); err == nil || err.Error() != "patience ended" {
		t.Fatalf("lockFile() = %v while it is held", err)
	}
	unlock()
	again, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatalf("lockFile() = %v after it was given back", err)
	}
	again()
}

func TestAFailedCommandShowsTheEndOfItsOutput(t *testing.T) {
	_, err := run(t.Context(), []string{"sh", "-c", "seq 1 100; echo E: no space left >&2; exit 3"})
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "E: no space left") {
		t.Fatalf("run() = %v", err)
	}
	if strings.Contains(err.Error(), "\n95\n") {
		t.Errorf("the whole output is in the error: %v", err)
	}
}
