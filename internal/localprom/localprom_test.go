package localprom

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fake is a machine with some programs, whose apt-get and dpkg-deb make files as the real ones do.
type fake struct {
	programs []string
	fail     string // what of a command fails
	ran      []string
}

func (f *fake) machine(t *testing.T) machine {
	return machine{look: f.look, run: f.run, cache: filepath.Join(t.TempDir(), "pollux", "prometheus")}
}

func (f *fake) look(program string) (string, error) {
	if slices.Contains(f.programs, program) {
		return "/path/" + program, nil
	}
	return "", exec.ErrNotFound
}

func (f *fake) run(_ context.Context, dir string, argv ...string) error {
	line := strings.Join(argv, " ")
	f.ran = append(f.ran, line)
	if f.fail != "" && strings.Contains(line, f.fail) {
		return errors.New(f.fail + " fails")
	}
	switch {
	case strings.HasSuffix(line, "download prometheus"):
		return os.WriteFile(filepath.Join(dir, "prometheus_2.42.0_amd64.deb"), nil, 0o600)
	case argv[0] == "dpkg-deb":
		bin := filepath.Join(argv[3], "usr/bin")
		return errors.Join(os.MkdirAll(bin, 0o700), os.WriteFile(filepath.Join(bin, "prometheus"), nil, 0o600), os.WriteFile(filepath.Join(bin, "promtool"), nil, 0o600))
	}
	return nil
}

func quiet(string) {}

func TestWhatIsInPathIsTaken(t *testing.T) {
	f := &fake{programs: []string{"prometheus", "promtool"}}
	p, err := f.machine(t).ensure(t.Context(), quiet)
	if err != nil || p != (Programs{"/path/prometheus", "/path/promtool"}) || f.ran != nil {
		t.Errorf("%+v, %v; ran %q", p, err, f.ran)
	}
}

func TestThePackageIsUnpackedOnce(t *testing.T) {
	f := &fake{programs: []string{"apt-get", "dpkg-deb", "promtool"}} // half of it does not do
	m, said := f.machine(t), ""
	for range 2 {
		p, err := m.ensure(t.Context(), func(s string) { said += s })
		if err != nil || p.Tool != filepath.Join(m.cache, "usr/bin/promtool") {
			t.Fatalf("%+v, %v", p, err)
		}
	}
	if len(f.ran) != 2 || strings.Count(said, "fetching Debian's package") != 1 {
		t.Errorf("ran %q, said %q", f.ran, said)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(m.cache), "unpacking-*")); left != nil {
		t.Errorf("left behind: %q", left)
	}
}

func TestMissingListsAreFetchedIntoAFolderOfOurOwn(t *testing.T) {
	f := &fake{programs: []string{"apt-get", "dpkg-deb"}, fail: "-q download"}
	m := f.machine(t)
	if _, err := m.ensure(t.Context(), quiet); err != nil {
		t.Fatal(err)
	}
	if len(f.ran) != 4 || !strings.HasSuffix(f.ran[1], " update") || !strings.Contains(f.ran[1], "Dir::State::Lists="+filepath.Dir(m.cache)) {
		t.Errorf("ran %q", f.ran)
	}
}

func TestOneSentenceSaysWhatToDo(t *testing.T) {
	for name, f := range map[string]*fake{
		"no apt":      {},
		"no network":  {programs: []string{"apt-get", "dpkg-deb"}, fail: "apt-get"},
		"bad package": {programs: []string{"apt-get", "dpkg-deb"}, fail: "dpkg-deb"},
	} {
		_, err := f.machine(t).ensure(t.Context(), quiet)
		if err == nil || !strings.Contains(err.Error(), "install Prometheus, such as with apt-get install prometheus") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
