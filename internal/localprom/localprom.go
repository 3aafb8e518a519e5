// Package localprom has Prometheus's programs for tests: they find them, or unpack them where that can be done without asking anybody. Nothing is installed and
// no service is started: Debian's package is fetched and unpacked into a folder of the user's cache.
package localprom

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Programs are where Prometheus's programs are.
type Programs struct {
	Server string // prometheus
	Tool   string // promtool
}

// Ensure returns Prometheus's programs: those in PATH, those that were unpacked before, or else those of Debian's package, which it fetches with apt-get and
// unpacks; no right but that of the user is needed for it. It tells say, which must not be nil, what it is about to do. Processes that call it at the same time
// do no harm to each other.
//
// The error is one sentence that tells a person what to do.
func Ensure(ctx context.Context, say func(string)) (Programs, error) {
	cache, err := os.UserCacheDir()
	if err != nil { // no home: a folder that lives until the machine is started anew
		cache = filepath.Join(os.TempDir(), fmt.Sprintf("cache-%d", os.Geteuid()))
	}
	return machine{look: exec.LookPath, run: run, cache: filepath.Join(cache, "pollux", "prometheus")}.ensure(ctx, say)
}

// machine is what finding and unpacking depend on.
type machine struct {
	look  func(program string) (string, error)
	run   func(ctx context.Context, dir string, argv ...string) error
	cache string // the folder that holds what was unpacked
}

func (m machine) ensure(ctx context.Context, say func(string)) (Programs, error) {
	server, errServer := m.look("prometheus")
	tool, errTool := m.look("promtool")
	if errServer == nil && errTool == nil {
		return Programs{server, tool}, nil
	}
	unpacked := Programs{filepath.Join(m.cache, "usr/bin/prometheus"), filepath.Join(m.cache, "usr/bin/promtool")}
	if unpacked.there() {
		return unpacked, nil
	}
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := m.look(program); err != nil {
			return Programs{}, byHand(fmt.Errorf("this machine has no %s to fetch it with", program))
		}
	}
	say("Prometheus was not found: fetching Debian's package prometheus and unpacking it into " + m.cache + " (nothing is installed or started)")
	if err := m.fetch(ctx); err != nil {
		return Programs{}, byHand(err)
	}
	if !unpacked.there() {
		return Programs{}, byHand(errors.New("the package prometheus does not have its programs in usr/bin"))
	}
	return unpacked, nil
}

func (p Programs) there() bool {
	_, errServer := os.Stat(p.Server)
	_, errTool := os.Stat(p.Tool)
	return errServer == nil && errTool == nil
}

func byHand(why error) error {
	return fmt.Errorf("prometheus and promtool are not in PATH: install Prometheus, such as with apt-get install prometheus or brew install prometheus (%w)", why)
}

// fetch unpacks the package beside its place and then moves it there, so that nobody sees half of it.
func (m machine) fetch(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(m.cache), 0o700); err != nil {
		return fmt.Errorf("a place for it: %w", err)
	}
	work, err := os.MkdirTemp(filepath.Dir(m.cache), "unpacking-*")
	if err != nil {
		return fmt.Errorf("a place for it: %w", err)
	}
	defer os.RemoveAll(work)
	if err := m.download(ctx, work); err != nil {
		return err
	}
	packages, _ := filepath.Glob(filepath.Join(work, "prometheus_*.deb")) // the pattern is right
	if len(packages) != 1 {
		return fmt.Errorf("apt-get fetched %d packages, expected one", len(packages))
	}
	tree := filepath.Join(work, "tree")
	if err := m.run(ctx, work, "dpkg-deb", "--extract", packages[0], tree); err != nil {
		return fmt.Errorf("unpacking it: %w", err)
	}
	if err := os.Rename(tree, m.cache); err != nil && !errors.Is(err, os.ErrExist) { // somebody else was quicker
		return fmt.Errorf("moving it to its place: %w", err)
	}
	return nil
}

// download fetches the package into a folder. Where the lists of packages are missing or old they are fetched too, into the same folder: the machine's own belong to root.
func (m machine) download(ctx context.Context, work string) error {
	if m.run(ctx, work, "apt-get", "-q", "download", "prometheus") == nil {
		return nil
	}
	lists := filepath.Join(work, "lists", "partial")
	archives := filepath.Join(work, "archives", "partial")
	if err := errors.Join(os.MkdirAll(lists, 0o700), os.MkdirAll(archives, 0o700)); err != nil {
		return fmt.Errorf("a place for the lists of packages: %w", err)
	}
	apt := []string{"apt-get", "-q", "-o", "Dir::State::Lists=" + filepath.Dir(lists), "-o", "Dir::Cache=" + work, "-o", "Dir::Cache::Archives=" + filepath.Dir(archives)}
	if err := m.run(ctx, work, append(apt, "update")...); err != nil {
		return fmt.Errorf("fetching the lists of packages: %w", err)
	}
	if err := m.run(ctx, work, append(apt, "download", "prometheus")...); err != nil {
		return fmt.Errorf("fetching the package: %w", err)
	}
	return nil
}

// run runs a command in a folder to its end; the error carries the last lines that it printed.
func run(ctx context.Context, dir string, argv ...string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		return fmt.Errorf("%s: %w: %s", argv[0], err, strings.Join(lines[max(0, len(lines)-3):], "; "))
	}
	return nil
}
