package secret_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"pollux/internal/secret"
)

const marked = "hunter2-marked-value"

// holder has the secret where printing code finds it: exported, unexported, behind a pointer, in collections.
type holder struct {
	Public  secret.Secret
	private secret.Secret
	Pointer *secret.Secret
	Slice   []secret.Secret
	Map     map[string]secret.Secret
	Any     any
}

type document struct{ S secret.Secret }

func TestSecretShowsItselfToNobody(t *testing.T) {
	s := secret.New(marked)
	h := holder{s, s, &s, []secret.Secret{s}, map[string]secret.Secret{"k": s}, s}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%T", "%10s", "%!"} {
		for _, x := range []any{s, &s, h, &h, []any{s}, map[string]any{"k": h}, struct{ s secret.Secret }{s}, fmt.Errorf("with %w", fmt.Errorf("%v", s))} {
			fmt.Fprintf(&out, verb+"\n", x)
		}
	}
	for _, l := range []*slog.Logger{slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.NewJSONHandler(&out, nil))} {
		l.Info("a", "secret", s, "pointer", &s, "holder", h, "any", slog.AnyValue(h), slog.Group("g", "s", s))
	}
	encode := func(b []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	encode(json.Marshal(h))
	encode(yaml.Marshal(map[string]any{"s": s, "p": &s, "slice": h.Slice}))
	encode(xml.Marshal(document{s}))
	encode(s.MarshalText())
	fmt.Fprintln(&out, s.String(), s.LogValue())

	printed := out.String()
	for _, leak := range []string{marked, fmt.Sprintf("%x", marked), fmt.Sprintf("%X", marked), "hunter2"} {
		if i := strings.Index(printed, leak); i >= 0 {
			t.Errorf("leaked: …%s…", printed[max(0, i-80):min(len(printed), i+80)])
		}
	}
	if !strings.Contains(printed, "[redacted]") {
		t.Error("nothing says that there is a secret")
	}
	if s.Reveal() != marked {
		t.Errorf("Reveal() = %q", s.Reveal())
	}
}

func TestSecretSaysWhetherItIsSet(t *testing.T) {
	var none secret.Secret
	if !none.IsZero() || none.Reveal() != "" || none.String() != "[unset]" || !secret.New("").IsZero() {
		t.Errorf("the zero value: %v, %q", none.IsZero(), none.Reveal())
	}
	if s := secret.New("x"); s.IsZero() || s.String() != "[redacted]" {
		t.Errorf("a secret: %v, %v", s.IsZero(), s)
	}
	if !secret.New("a").Equal(secret.New("a")) || secret.New("a").Equal(secret.New("b")) || secret.New("a").Equal(none) {
		t.Error("Equal does not compare values")
	}
}

func TestSecretCannotBeDecodedFromText(t *testing.T) {
	var h struct{ S secret.Secret }
	if err := json.Unmarshal([]byte(`{"S":"typed-into-a-file"}`), &h); err == nil && !h.S.IsZero() {
		t.Error("JSON text became a secret")
	}
	if err := yaml.Unmarshal([]byte("s: typed-into-a-file"), &h); err == nil && !h.S.IsZero() {
		t.Error("YAML text became a secret")
	}
}

func write(t *testing.T, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFromFile(t *testing.T) {
	for name, c := range map[string]struct{ content, want, err string }{
		"plain":            {"abc", "abc", ""},
		"newline":          {"abc\n", "abc", ""},
		"windows newline":  {"abc\r\n", "abc", ""},
		"only one newline": {"abc\n\n", "abc\n", ""},
		"blanks are kept":  {" abc ", " abc ", ""},
		"lone CR is kept":  {"abc\r", "abc\r", ""},
		"binary":           {"\x00\xff", "\x00\xff", ""},
		"largest":          {strings.Repeat("a", secret.MaxBytes), strings.Repeat("a", secret.MaxBytes), ""},
		"too large":        {strings.Repeat("a", secret.MaxBytes+1), "", "larger than 65536 bytes"},
		"empty":            {"", "", "empty"},
		"newline alone":    {"\n", "", "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := secret.FromFile(write(t, c.content, 0o600))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || !s.IsZero() {
					t.Fatalf("got %v, %v; want an error that says %q", s, err, c.err)
				}
				return
			}
			if err != nil || s.Reveal() != c.want {
				t.Fatalf("got %q, %v; want %q", s.Reveal(), err, c.want)
			}
		})
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "absent"), t.TempDir(), "/dev/zero"} {
		if _, err := secret.FromFile(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestFromEnv(t *testing.T) {
	t.Setenv("POLLUX_TEST_TOKEN", marked+"\n")
	t.Setenv("POLLUX_TEST_EMPTY", "")
	if s, err := secret.FromEnv("POLLUX_TEST_TOKEN"); err != nil || s.Reveal() != marked {
		t.Errorf("got %v, %v", s, err)
	}
	for _, name := range []string{"POLLUX_TEST_EMPTY", "POLLUX_TEST_ABSENT"} {
		if _, err := secret.FromEnv(name); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLoadNamesASecretAndNeverTakesOne(t *testing.T) {
	t.Setenv("POLLUX_TEST_TOKEN", marked)
	path := write(t, marked, 0o600)
	for _, ref := range []string{"env:POLLUX_TEST_TOKEN", "file:" + path} {
		if s, err := secret.Load(ref); err != nil || s.Reveal() != marked {
			t.Errorf("%s: %v, %v", ref, s, err)
		}
	}
	for _, ref := range []string{marked, "vault:" + marked, "", ":", marked + ":x"} {
		s, err := secret.Load(ref)
		if err == nil || !s.IsZero() {
			t.Errorf("%q was taken", ref)
		} else if strings.Contains(err.Error(), marked) {
			t.Errorf("the error repeats it: %v", err)
		}
	}
}

func TestExposedFollowsTheModeOfTheFile(t *testing.T) {
	type who struct{ readable, writable bool }
	for mode, want := range map[os.FileMode]who{0o600: {}, 0o400: {}, 0o640: {}, 0o660: {}, 0o604: {readable: true}, 0o602: {writable: true}, 0o666: {true, true}} {
		name := write(t, "x", mode)
		if err := os.Chmod(name, mode); err != nil { // whatever the umask is
			t.Fatal(err)
		}
		readable, writable, err := secret.Exposed(name)
		if got := (who{readable, writable}); err != nil || got != want {
			t.Errorf("%o: %v, %v; want %v", mode, got, err, want)
		}
	}
	if _, _, err := secret.Exposed(filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("a file that is not there has no mode")
	}
}

// Kubernetes mounts a folder that everybody may write to, with the sticky bit, and swaps a link in it.
func TestAFolderInWhichEverybodyMaySwapTheFileIsNamed(t *testing.T) {
	mkdir := func(at string, mode os.FileMode) string {
		t.Helper()
		if err := errors.Join(os.Mkdir(at, 0o700), os.Chmod(at, mode)); err != nil { // whatever the umask is
			t.Fatal(err)
		}
		return at
	}
	put := func(dir string) string {
		t.Helper()
		at := filepath.Join(dir, "key")
		if err := os.WriteFile(at, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		return at
	}
	link := func(to, at string) string {
		t.Helper()
		if err := os.Symlink(to, at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	base := t.TempDir()
	private, open := mkdir(filepath.Join(base, "private"), 0o755), mkdir(filepath.Join(base, "open"), 0o777)
	mount := mkdir(filepath.Join(base, "mount"), os.ModeSticky|os.ModeSetgid|0o777)
	data := mkdir(filepath.Join(mount, "..1"), 0o755)
	put(data)
	link("..1", filepath.Join(mount, "..data"))
	for name, c := range map[string]struct{ file, folder string }{
		"a folder of its owner":       {put(private), ""},
		"a folder of everybody":       {put(open), open},
		"below a folder of everybody": {put(mkdir(filepath.Join(open, "below"), 0o700)), open},
		"a mount of Kubernetes":       {link("..data/key", filepath.Join(mount, "key")), ""},
		"a link to everybody's":       {link(filepath.Join(open, "key"), filepath.Join(private, "to")), open},
		"a link in everybody's":       {link(filepath.Join(private, "key"), filepath.Join(open, "from")), open},
	} {
		if folder, err := secret.Swappable(c.file); err != nil || folder != c.folder {
			t.Errorf("%s: %q, %v; want %q", name, folder, err, c.folder)
		}
	}
	if _, err := secret.Swappable(filepath.Join(base, "absent")); err == nil {
		t.Error("a file that is not there is in no folder")
	}
}
