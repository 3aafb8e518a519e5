// Package localpg runs a private PostgreSQL on this machine, for the development launcher and for tests.
//
// It finds PostgreSQL's programs, or installs them where that can be done without asking anybody, and starts a server
// of its own in a folder of its own: nothing outside that folder is read or written, nothing but loopback is listened
// on, and nothing is left behind, also when the process that started the server is killed.
package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// MinVersion is the oldest major version of PostgreSQL that Pollux runs on: what it promises is tested from here on.
const MinVersion = 15

// EnvBin is the environment variable that names PostgreSQL's programs: the folder that holds postgres and initdb, or
// the program postgres itself.
const EnvBin = "POLLUX_POSTGRES_BIN"

// ErrNotFound is what Find and Ensure return, wrapped, when no PostgreSQL that is new enough is on this machine. A wrong
// value of EnvBin is another error: whoever sets it wants that PostgreSQL and no other.
var ErrNotFound = fmt.Errorf("PostgreSQL %d or newer was not found on this machine", MinVersion)

// usualFolders are where packages put PostgreSQL without putting it on PATH.
var usualFolders = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // PostgreSQL's own packages for Red Hat, Fedora, SUSE
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/local/pgsql/bin", // built from source
}

// Find looks for PostgreSQL's programs and returns the folder that holds postgres and initdb, and their major version.
//
// EnvBin comes first, and if it is set nothing else is tried; then PATH; then the usual folders, the highest version
// first. Links are followed, since PATH often holds links to two programs of a folder of thirty. The error is
// ErrNotFound, or says what is wrong with EnvBin.
func Find() (bin string, version int, err error) {
	return search{named: os.Getenv(EnvBin), lookPath: exec.LookPath, folders: usualFolders}.find()
}

// search is where to look.
type search struct {
	named    string // the value of EnvBin
	lookPath func(string) (string, error)
	folders  []string // patterns of filepath.Glob
}

func (s search) find() (bin string, version int, err error) {
	if s.named != "" {
		bin, version, err = inspect(s.named)
		if err == nil && version < MinVersion {
			err = fmt.Errorf("it is PostgreSQL %d, and %d or newer is needed", version, MinVersion)
		}
		if err != nil {
			return "", 0, fmt.Errorf("%s=%s: %w", EnvBin, s.named, err)
		}
		return bin, version, nil
	}
	var tooOld string
	best := func(paths []string) {
		for _, path := range paths {
			b, v, err := inspect(path)
			switch {
			case err != nil: // a folder without a server, such as one of a client package, is nothing to report
			case v < MinVersion:
				tooOld = fmt.Sprintf(" (version %d is in %s)", v, b)
			case v > version:
				bin, version = b, v
			}
		}
	}
	best(s.onPath())
	if bin == "" {
		best(s.inFolders())
	}
	if bin == "" {
		return "", 0, fmt.Errorf("%w%s", ErrNotFound, tooOld)
	}
	return bin, version, nil
}

// onPath returns the first postgres and the first initdb of PATH: either leads to the folder of both.
func (s search) onPath() []string {
	var paths []string
	for _, name := range []string{"postgres", "initdb"} {
		if path, err := s.lookPath(name); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

func (s search) inFolders() []string {
	var paths []string
	for _, pattern := range s.folders {
		found, _ := filepath.Glob(pattern) // the only error is a malformed pattern; they are constants, and tested
		paths = append(paths, found...)
	}
	return paths
}

// inspect returns the folder that holds both programs, given that folder or one of the programs, and the version.
func inspect(path string) (bin string, version int, err error) {
	bin, err = programs(path)
	if err != nil {
		return "", 0, err
	}
	version, err = versionOf(filepath.Join(bin, "postgres"))
	return bin, version, err
}

func programs(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if st.IsDir() {
		path = filepath.Join(path, "postgres")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("making its path absolute: %w", err)
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		real = abs
	}
	// The link's target first: PostgreSQL looks for its share folder beside the real program.
	for _, dir := range []string{filepath.Dir(real), filepath.Dir(abs)} {
		if executable(filepath.Join(dir, "postgres")) && executable(filepath.Join(dir, "initdb")) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s does not hold the programs postgres and initdb; the right folder is like /usr/lib/postgresql/%d/bin",
		filepath.Dir(real), MinVersion)
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0
}

// versionPattern finds the major version in "postgres (PostgreSQL) 17.2 (Debian 17.2-1)" and in "… 18beta1".
var versionPattern = regexp.MustCompile(`^postgres \([^)]*\) ([0-9]+)`)

func versionOf(postgres string) (int, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 20*time.Second, errors.New("no answer in 20 s"))
	defer cancel()
	out, err := exec.CommandContext(ctx, postgres, "--version").Output()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return 0, fmt.Errorf("asking %s for its version: %w", postgres, err)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%s --version answers %.80q, which is not how PostgreSQL tells its version", postgres, out)
	}
	return strconv.Atoi(string(m[1]))
}
