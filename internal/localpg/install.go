package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// Ensure returns the folder of PostgreSQL's programs as Find does, and installs them first if there are none: with apt-get
// as root or through a sudo that asks for no password, or with Homebrew on macOS. It tells say, which must not be nil,
// what it is about to do. Processes that call it at the same time install once: the others wait.
//
// The error is one sentence that tells a person what to do. A wrong value of EnvBin is never answered with an installation.
func Ensure(ctx context.Context, say func(string)) (bin string, err error) {
	return thisMachine().ensure(ctx, say)
}

// machine is what an installation depends on.
type machine struct {
	goos string
	root bool
	has  func(program string) bool
	find func() (bin string, version int, err error)
	run  func(ctx context.Context, argv []string) (output string, err error)
	lock string // the file that serialises installations
}

func thisMachine() machine {
	return machine{
		goos: runtime.GOOS,
		root: os.Geteuid() == 0,
		has:  func(program string) bool { _, err := exec.LookPath(program); return err == nil },
		find: Find,
		run:  run,
		// One file for each user: a sticky /tmp refuses to open another user's file for writing, even to root. Two users
		// who install at the same time wait for each other at apt's own lock.
		lock: filepath.Join(os.TempDir(), fmt.Sprintf("pollux-install-postgresql-%d.lock", os.Geteuid())),
	}
}

func (m machine) ensure(ctx context.Context, say func(string)) (string, error) {
	bin, _, err := m.find()
	if !errors.Is(err, ErrNotFound) {
		return bin, err
	}
	unlock, err := lockFile(ctx, m.lock)
	if err != nil {
		return "", fmt.Errorf("waiting for another process that may be installing PostgreSQL: %w", err)
	}
	defer unlock()
	bin, _, err = m.find() // the process that held the lock may have installed it
	if !errors.Is(err, ErrNotFound) {
		return bin, err
	}
	notFound := err
	if err := m.install(ctx, say); err != nil {
		return "", fmt.Errorf("%w, and %w", notFound, err)
	}
	bin, _, err = m.find()
	if err != nil {
		return "", fmt.Errorf("looking for PostgreSQL after it was installed: %w", err)
	}
	say("PostgreSQL is installed in " + bin)
	return bin, nil
}

// install uses the package manager of this machine. Its error reads on after "PostgreSQL was not found, and".
func (m machine) install(ctx context.Context, say func(string)) error {
	switch {
	case m.goos == "linux" && m.has("apt-get") && m.root:
		return m.apt(ctx, say, nil)
	case m.goos == "linux" && m.has("apt-get") && m.has("sudo"):
		sudo := []string{"sudo", "-n"}
		if _, err := m.run(ctx, append(sudo, "true")); err != nil {
			return byHand("installing it needs root, which sudo does not give without a password",
				"sudo apt-get install postgresql")
		}
		return m.apt(ctx, say, sudo)
	case m.goos == "linux" && m.has("apt-get"):
		return byHand("installing it needs root", "apt-get install postgresql")
	case m.goos == "darwin" && m.has("brew") && !m.root:
		return m.brew(ctx, say)
	case m.goos == "darwin":
		return byHand("Homebrew, which could install it, is missing or refuses root", "brew install "+formula)
	}
	return byHand("it cannot be installed here without help", "the package manager of this system")
}

// byHand is the one sentence for whoever has to install PostgreSQL.
func byHand(why, how string) error {
	return fmt.Errorf("%s: install it with %s, or set %s to the folder that holds its programs postgres and initdb", why, how, EnvBin)
}

// dropIn keeps Debian's package from creating and starting a server of its own on port 5432. As a file of its own in
// the folder that createcluster.conf includes, it touches nobody's configuration; and it is there only while the package is
// installed, so that this machine's owner finds Debian's defaults afterwards.
const dropIn = "/etc/postgresql-common/createcluster.d/pollux.conf"

func (m machine) apt(ctx context.Context, say func(string), sudo []string) error {
	as := func(argv ...string) []string { return append(sudo[:len(sudo):len(sudo)], argv...) }
	// A lock timeout, since unattended upgrades hold the lock for minutes on a machine that was just started.
	apt := func(argv ...string) []string {
		return as(append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=600"}, argv...)...)
	}
	say("PostgreSQL was not found: installing the package postgresql with apt-get (a minute or two; no database server is set up or started)")
	// A failed update is not the end: one dead mirror among many fails it, and the lists of yesterday will do.
	_, updateErr := m.run(ctx, apt("update"))
	if err := m.offered(ctx); err != nil {
		return errors.Join(err, updateErr)
	}
	write := fmt.Sprintf("mkdir -p %s && echo 'create_main_cluster = false' > %s", filepath.Dir(dropIn), dropIn)
	if _, err := m.run(ctx, as("sh", "-c", write)); err != nil {
		return fmt.Errorf("keeping the package from starting a server of its own: %w", err)
	}
	_, err := m.run(ctx, apt("--no-install-recommends", "install", "postgresql"))
	if _, rmErr := m.run(context.WithoutCancel(ctx), as("rm", "-f", dropIn)); rmErr != nil {
		say("removing " + dropIn + ": " + rmErr.Error())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("installing it failed: %w", err), updateErr)
	}
	return nil
}

var candidatePattern = regexp.MustCompile(`(?m)^\s*Candidate: ([0-9]+)`)

// offered checks that apt's version is new enough before it is installed for nothing.
func (m machine) offered(ctx context.Context) error {
	out, err := m.run(ctx, []string{"env", "LC_ALL=C", "apt-cache", "policy", "postgresql"})
	if err != nil {
		return fmt.Errorf("asking apt which PostgreSQL it offers: %w", err)
	}
	c := candidatePattern.FindStringSubmatch(out)
	if c == nil {
		return byHand("apt offers no package postgresql (its package lists may be missing)", "the package manager of this system")
	}
	if version, err := strconv.Atoi(c[1]); err != nil || version < MinVersion {
		return byHand("apt offers only version "+c[1], "the packages of apt.postgresql.org")
	}
	return nil
}

// formula is Homebrew's current package of a version that is old enough to be everywhere.
const formula = "postgresql@17"

func (m machine) brew(ctx context.Context, say func(string)) error {
	say("PostgreSQL was not found: installing " + formula + " with Homebrew (a few minutes; no service is started)")
	if _, err := m.run(ctx, []string{"brew", "install", formula}); err != nil {
		return fmt.Errorf("installing it failed: %w", err)
	}
	return nil
}

// run runs a command to its end and returns what it printed; the error carries the last lines of it.
func run(ctx context.Context, argv []string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	// Asked to stop, not killed: a package manager that is killed leaves half-installed packages.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, lastLines(out.String(), 5))
	}
	return out.String(), nil
}

// lastLines returns the last n lines of s.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
