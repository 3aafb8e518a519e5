package check

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// stages reads a Dockerfile as the builder does.
func stages(text string) ([]instructions.Stage, error) {
	parsed, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	all, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		for _, c := range s.Commands {
			run, ok := c.(*instructions.RunCommand)
			if !ok {
				continue
			}
			if err := run.Expand(func(word string) (string, error) { return word, nil }); err != nil { // which reads the mounts
				return nil, err
			}
		}
	}
	return all, nil
}

func dockerfileProblems(t *testing.T, text string) []string {
	t.Helper()
	all, err := stages(text)
	if err != nil {
		return []string{err.Error()}
	}
	var problems []string
	say := func(format string, a ...any) { problems = append(problems, fmt.Sprintf(format, a...)) }
	byName := map[string]instructions.Stage{}
	for _, s := range all {
		if _, ours := byName[s.BaseName]; !ours && s.BaseName != "scratch" && !exactTag.MatchString(s.BaseName) {
			say("the base %s is not pinned to a version", s.BaseName)
		}
		byName[s.Name] = s
	}
	if m := regexp.MustCompile(`golang:(\d+\.\d+)`).FindStringSubmatch(text); m == nil || !strings.Contains(read(t, "go.mod"), "\ngo "+m[1]) {
		say("it is built with another Go than go.mod says: %q", m)
	}
	if last := all[len(all)-1]; last.Name != "pollux" {
		say("a build without --target makes %s", last.Name)
	}
	for target, want := range map[string][]string{"pollux": {"consumer", "outbox-relay", "webhook", "pollux"}, "dev": {"consumer", "outbox-relay", "webhook", "pollux", "dev"}} {
		image := inherit(byName, target)
		if image.user != "65532:65532" {
			say("%s runs as %q", target, image.user)
		}
		if image.env["POLLUX_CONFIG"] != configPath {
			say("%s looks for its configuration at %q", target, image.env["POLLUX_CONFIG"])
		}
		if image.bottom != "scratch" {
			say("%s stands on %s", target, image.bottom)
		}
		for _, label := range []string{"title", "description", "licenses", "version", "revision"} {
			if !image.labels["org.opencontainers.image."+label] {
				say("%s has no label %s", target, label)
			}
		}
		slices.Sort(want)
		slices.Sort(image.binaries)
		if !slices.Equal(image.binaries, want) {
			say("%s contains %v; want %v", target, image.binaries, want)
		}
		if !image.authorities {
			say("%s has no certificates of authorities", target)
		}
	}
	if !slices.ContainsFunc(byName["build"].Commands, func(c instructions.Command) bool {
		return strings.Contains(fmt.Sprint(c), "make build VERSION=") && strings.Contains(fmt.Sprint(c), "sbom")
	}) {
		say("it is not built as make build does, or without its bill of materials")
	}
	return problems
}

// image is what a stage has, with the stages that it stands on.
type image struct {
	bottom, user string
	env          map[string]string
	labels       map[string]bool
	binaries     []string
	authorities  bool
}

func inherit(stages map[string]instructions.Stage, name string) image {
	s, ok := stages[name]
	if !ok {
		return image{bottom: name, env: map[string]string{}, labels: map[string]bool{}}
	}
	i := inherit(stages, s.BaseName)
	for _, c := range s.Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			i.user = c.User
		case *instructions.EnvCommand:
			for _, kv := range c.Env {
				i.env[kv.Key] = kv.Value
			}
		case *instructions.LabelCommand:
			for _, kv := range c.Labels {
				i.labels[strings.Trim(kv.Key, `"`)] = true
			}
		case *instructions.CopyCommand:
			for _, source := range c.SourcePaths {
				if binary, ok := strings.CutPrefix(source, "/src/bin/"); ok {
					i.binaries = append(i.binaries, binary)
				}
				i.authorities = i.authorities || strings.HasSuffix(source, "/ca-certificates.crt")
			}
		}
	}
	return i
}

func TestDockerfileMakesWhatIsPromised(t *testing.T) {
	text := read(t, "Dockerfile")
	report(t, dockerfileProblems(t, text))
	for _, m := range []mutation{
		{"golang:1.26.8-bookworm", "golang:latest", "not pinned"},
		{"golang:1.26", "golang:1.25", "another Go"},
		{"FROM scratch", "FROM gcr.io/distroless/static-debian12:nonroot", "not pinned"},
		{"USER 65532:65532", "USER root", "runs as"},
		{"/src/bin/webhook /src/bin/pollux /usr", "/src/bin/pollux /usr", "contains"},
		{"type=cache,target", "type=cache,tarjet", "tarjet"},
		{"make build", "go build", "not built as make build does"},
		{"--old-file=build sbom", "--old-file=build bom", "bill of materials"},
		{"COPY --from=build /etc/ssl", "COPI --from=build /etc/ssl", "COPI"},
		{"image.revision", "image.commit", "no label revision"},
		{"POLLUX_CONFIG=/etc/pollux/", "POLLUX_CONFIG=/etc/", "looks for its configuration"},
	} {
		if problems := dockerfileProblems(t, m.apply(t, text)); !m.found(problems) {
			t.Errorf("%q in the place of %q is not found, but %q", m.new, m.old, problems)
		}
	}
}

// TestImagesHaveEveryBinary compares the binaries that this module knows with the folders of cmd.
func TestImagesHaveEveryBinary(t *testing.T) {
	entries, err := os.ReadDir(filepath.Join(root, "cmd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if binaries[e.Name()] == nil {
			t.Errorf("cmd/%s is in no image", e.Name())
		}
	}
	if len(entries) != len(binaries) {
		t.Errorf("%d binaries are known; cmd has %d", len(binaries), len(entries))
	}
}

// TestTheBuildGetsWhatItNeedsAndNoSecrets walks over the files as the builder does that is given .dockerignore.
func TestTheBuildGetsWhatItNeedsAndNoSecrets(t *testing.T) {
	patterns, err := ignorefile.ReadAll(bytes.NewReader([]byte(read(t, ".dockerignore"))))
	if err != nil {
		t.Fatal(err)
	}
	m, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	ignored := func(name string) bool {
		t.Helper()
		is, err := m.MatchesOrParentMatches(name)
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	for _, name := range []string{".git/config", ".env", "pollux.yaml", "deploy/compose/secrets/postgres_password", "bin/consumer", "docs/runbook.md", "bench/main.go",
		"internal/app/serve_test.go", "internal/cli/testdata/script/dlq-list.txtar"} {
		if !ignored(name) {
			t.Errorf("%s gets into the build", name)
		}
	}
	needed := []string{"go.mod", "go.sum", "Makefile", "LICENSE", "tools/supply/go.mod", "tools/supply/go.sum"}
	sources := os.DirFS(root)
	for _, folder := range []string{"cmd", "internal", "streams", "tools/supply"} {
		err := fs.WalkDir(sources, folder, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
				needed = append(needed, name)
				needed = append(needed, embedded(t, sources, name)...)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	needed = append(needed, "example.go")
	needed = append(needed, embedded(t, sources, "example.go")...)
	for _, name := range needed {
		if ignored(name) {
			t.Errorf("%s is needed and does not get into the build", name)
		}
	}
	if len(needed) < 100 {
		t.Errorf("only %d files are needed", len(needed))
	}
}

var embeds = regexp.MustCompile(`(?m)^//go:embed (.+)$`)

// embedded are the files that a source embeds.
func embedded(t *testing.T, sources fs.FS, name string) []string {
	t.Helper()
	content, err := fs.ReadFile(sources, name)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range embeds.FindAllSubmatch(content, -1) {
		for _, pattern := range strings.Fields(string(m[1])) {
			found, err := fs.Glob(sources, filepath.Join(filepath.Dir(name), strings.Trim(strings.TrimPrefix(pattern, "all:"), `"`)))
			if err != nil || len(found) == 0 {
				t.Errorf("%s embeds %s, which is not there: %v", name, pattern, err)
			}
			all = append(all, found...)
		}
	}
	return all
}

// TestTheVersionIsPutWhereItIsLookedFor: the linker says nothing about a variable that does not exist.
func TestTheVersionIsPutWhereItIsLookedFor(t *testing.T) {
	if !strings.Contains(read(t, "Makefile"), "-X pollux/internal/app.stamp=$(VERSION)") {
		t.Error("make build VERSION=… puts it somewhere else")
	}
	if !regexp.MustCompile(`(?m)^var stamp string$`).MatchString(read(t, "internal/app/app.go")) {
		t.Error("internal/app has no variable stamp, in which make build puts the version")
	}
}
