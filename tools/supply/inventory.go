package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// stdlib is what vulnerability scanners call Go's own packages.
const stdlib = "stdlib"

// inventory is what some binaries are made of.
type inventory struct {
	version  string // of Pollux
	binaries []binary
	modules  []module // by path; Go's own packages are one of them
}

type binary struct {
	name     string
	sum      string // SHA-256 of the file, in hexadecimal digits
	platform string
	uses     []string // the paths of the modules in it, in order
}

type module struct {
	path, version string
	sum           string // as in go.sum; empty for Go's own packages
	dir           string // where its licence is
	licences      []string
	texts         []text
}

// text is a file with a licence or a notice.
type text struct{ name, body string }

// readBinaries reads what binaries are made of.
func readBinaries(paths []string) (*inventory, error) {
	inv, known := &inventory{}, map[string]*module{}
	for _, path := range paths {
		if err := inv.readBinary(path, known); err != nil {
			return nil, err
		}
	}
	for _, m := range known {
		inv.modules = append(inv.modules, *m)
	}
	slices.SortFunc(inv.modules, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return inv, nil
}

func (inv *inventory) readBinary(path string, known map[string]*module) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%s is no binary of Go; make build makes those that are asked for: %w", path, err)
	}
	sum, err := sumOf(path)
	if err != nil {
		return err
	}
	b := binary{name: filepath.Base(path), sum: sum, platform: setting(info, "GOOS") + "/" + setting(info, "GOARCH")}
	deps := append([]*debug.Module{{Path: stdlib, Version: strings.TrimPrefix(info.GoVersion, "go")}}, info.Deps...)
	for _, d := range deps {
		if d.Replace != nil {
			return fmt.Errorf("%s has %s replaced: what ships must be what its name says", path, d.Path)
		}
		switch was := known[d.Path]; {
		case was == nil:
			known[d.Path] = &module{path: d.Path, version: d.Version, sum: d.Sum}
		case was.version != d.Version:
			return fmt.Errorf("%s has %s %s, another binary has %s: build them together with make build", path, d.Path, d.Version, was.version)
		}
		b.uses = append(b.uses, d.Path)
	}
	slices.Sort(b.uses)
	inv.version = versionOf(info)
	inv.binaries = append(inv.binaries, b)
	return nil
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// versionOf is what make was told, the version of the module, or the commit that it was built from.
func versionOf(info *debug.BuildInfo) string {
	if v := os.Getenv("VERSION"); v != "" {
		return v
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	if r := setting(info, "vcs.revision"); r != "" {
		return r
	}
	return "devel"
}

// findLicences looks into the folder of each module, which the module cache has since it was built.
func (inv *inventory) findLicences() error {
	dirs, err := inv.folders()
	if err != nil {
		return err
	}
	var errs []error
	for i := range inv.modules {
		m := &inv.modules[i]
		m.dir = dirs[m.path]
		if m.dir == "" {
			errs = append(errs, fmt.Errorf("%s %s is not in the module cache; run make build", m.path, m.version))
			continue
		}
		errs = append(errs, m.readLicences())
	}
	return errors.Join(errs...)
}

// folders are where the modules are, by path, as the repository's go.mod has them.
func (inv *inventory) folders() (map[string]string, error) {
	own, err := output(".", "go", "env", "GOMOD") // git knows its root too, but the build of a container has no .git
	if err != nil {
		return nil, err
	}
	root := filepath.Join(filepath.Dir(strings.TrimSpace(string(own))), "..", "..")
	ask := []string{"list", "-m", "-json=Path,Dir"}
	for _, m := range inv.modules {
		if m.path != stdlib {
			ask = append(ask, m.path)
		}
	}
	list, err := output(root, "go", ask...)
	if err != nil {
		return nil, err
	}
	goroot, err := output(".", "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{stdlib: strings.TrimSpace(string(goroot))}
	for d := json.NewDecoder(bytes.NewReader(list)); ; {
		var m struct{ Path, Dir string }
		switch err := d.Decode(&m); {
		case errors.Is(err, io.EOF):
			return dirs, nil
		case err != nil:
			return nil, fmt.Errorf("reading what go list says: %w", err)
		}
		dirs[m.Path] = m.Dir
	}
}

func output(dir, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return out, nil
}
