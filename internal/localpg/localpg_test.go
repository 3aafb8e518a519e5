//go:build linux || darwin

package localpg

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakePostgreSQL makes a folder that looks like the programs of a PostgreSQL of a version.
func fakePostgreSQL(t *testing.T, dir, version string, programs ...string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range programs {
		script := "#!/bin/sh\necho '" + name + " (PostgreSQL) " + version + "'\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func notOnPath(string) (string, error) { return "", exec.ErrNotFound }

func TestFindTakesWhatTheVariableNamesAndNothingElse(t *testing.T) {
	tmp := t.TempDir()
	good := fakePostgreSQL(t, filepath.Join(tmp, "good"), "17.2 (Debian 17.2-1)", "postgres", "initdb")
	beta := fakePostgreSQL(t, filepath.Join(tmp, "beta"), "18beta1", "postgres", "initdb")
	old := fakePostgreSQL(t, filepath.Join(tmp, "old"), "14.9", "postgres", "initdb")
	noInitDB := fakePostgreSQL(t, filepath.Join(tmp, "no-initdb"), "17.2", "postgres")
	odd := fakePostgreSQL(t, filepath.Join(tmp, "odd"), "", "postgres", "initdb")
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(odd, name), []byte("#!/bin/sh\necho hello\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(tmp, "link")
	if err := os.Symlink(filepath.Join(good, "postgres"), link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, named, bin string
		version          int
		wrong            string // in the error
	}{
		{name: "a folder", named: good, bin: good, version: 17},
		{name: "the program", named: filepath.Join(good, "postgres"), bin: good, version: 17},
		{name: "a link to the program", named: link, bin: good, version: 17},
		{name: "a beta", named: beta, bin: beta, version: 18},
		{name: "too old", named: old, wrong: "it is PostgreSQL 14, and 15 or newer is needed"},
		{name: "no such folder", named: filepath.Join(tmp, "nowhere"), wrong: "no such file"},
		{name: "half of the programs", named: noInitDB, wrong: "does not hold the programs postgres and initdb"},
		{name: "another program", named: odd, wrong: `answers "hello\n"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := search{named: c.named, lookPath: notOnPath, folders: []string{good}}
			bin, version, err := s.find()
			if c.wrong == "" {
				if err != nil || bin != c.bin || version != c.version {
					t.Fatalf("find() = %q, %d, %v; want %q, %d", bin, version, err, c.bin, c.version)
				}
				return
			}
			if err == nil || bin != "" || !strings.Contains(err.Error(), c.wrong) || !strings.Contains(err.Error(), EnvBin) {
				t.Fatalf("find() = %q, %v; want an error with %q that names the variable", bin, err, c.wrong)
			}
			if errors.Is(err, ErrNotFound) {
				t.Fatalf("%v is ErrNotFound: it would be answered with an installation", err)
			}
		})
	}
}

func TestFindPrefersPathThenTheHighestVersion(t *testing.T) {
	tmp := t.TempDir()
	v9 := fakePostgreSQL(t, filepath.Join(tmp, "9.6", "bin"), "9.6.24", "postgres", "initdb")
	v16 := fakePostgreSQL(t, filepath.Join(tmp, "16", "bin"), "16.4", "postgres", "initdb")
	v17 := fakePostgreSQL(t, filepath.Join(tmp, "17", "bin"), "17.0", "postgres", "initdb")
	fakePostgreSQL(t, filepath.Join(tmp, "99", "bin"), "99.0", "psql") // a client alone
	folders := []string{filepath.Join(tmp, "*", "bin")}

	path := t.TempDir()
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.Symlink(filepath.Join(v16, name), filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
	}
	onPath := func(dir string, names ...string) func(string) (string, error) {
		return func(name string) (string, error) {
			for _, n := range names {
				if n == name {
					return filepath.Join(dir, name), nil
				}
			}
			return "", exec.ErrNotFound
		}
	}
	for _, c := range []struct {
		name     string
		lookPath func(string) (string, error)
		folders  []string
		bin      string
	}{
		{"links on PATH", onPath(path, "postgres", "initdb"), folders, v16},
		{"only initdb on PATH", onPath(path, "initdb"), folders, v16},
		{"an old one on PATH", onPath(v9, "postgres", "initdb"), folders, v17},
		{"nothing on PATH", notOnPath, folders, v17},
	} {
		t.Run(c.name, func(t *testing.T) {
			bin, version, err := search{lookPath: c.lookPath, folders: c.folders}.find()
			if err != nil || bin != c.bin {
				t.Fatalf("find() = %q, %d, %v; want %q", bin, version, err, c.bin)
			}
		})
	}
	t.Run("only an old one", func(t *testing.T) {
		_, _, err := search{lookPath: notOnPath, folders: []string{v9}}.find()
		if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "version 9 is in "+v9) {
			t.Fatalf("find() = %v; want ErrNotFound and where the old one is", err)
		}
	})
}

func TestTheUsualFoldersAreWellFormedPatterns(t *testing.T) {
	for _, pattern := range usualFolders {
		if _, err := filepath.Match(pattern, "/"); err != nil {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

// The real functions, with the real environment.
func TestAWrongVariableIsReportedAndNeverFallenBackFrom(t *testing.T) {
	t.Setenv(EnvBin, filepath.Join(t.TempDir(), "nowhere"))
	said := func(s string) { t.Errorf("it is installing: %s", s) }
	if _, _, err := Find(); err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), EnvBin) {
		t.Errorf("Find() = %v", err)
	}
	if _, err := Ensure(t.Context(), said); err == nil || !strings.Contains(err.Error(), EnvBin) {
		t.Errorf("Ensure() = %v", err)
	}
	if _, err := Start(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), EnvBin) {
		t.Errorf("Start() = %v", err)
	}
}
