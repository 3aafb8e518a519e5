// Package secret keeps secrets out of logs: a Secret shows itself to nobody who does not ask for it by name.
package secret

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// MaxBytes is the size of the largest secret: a chain of certificates fits, a wrong file rarely does.
const MaxBytes = 64 << 10

// What a secret shows of itself.
const (
	redacted = "[redacted]"
	unset    = "[unset]"
)

// Secret is a key, a password or a token. It redacts itself wherever it is printed, logged or encoded, also as a field of
// something else, and cannot be decoded from text: it comes from New, Load, FromFile or FromEnv. The zero value is no
// secret. It is safe for concurrent use.
//
// The value is behind a pointer because fmt calls no methods on unexported fields, but prints their pointers as addresses.
type Secret struct{ value *string }

// New returns a secret with a value that is already in memory. An empty value is no secret.
func New(value string) Secret {
	if value == "" {
		return Secret{}
	}
	return Secret{&value}
}

// Reveal returns the value, empty when there is none. Whoever calls it answers for where the value goes.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.value == nil }

// Equal reports whether both have the same value, in a time that does not depend on where they differ.
func (s Secret) Equal(o Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(o.Reveal())) == 1
}

// String returns a mark that says only whether there is a secret.
func (s Secret) String() string {
	if s.IsZero() {
		return unset
	}
	return redacted
}

// Format writes the mark, whatever the verb and its flags.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue is the mark.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is the mark.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON is the mark.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }

// MarshalYAML is the mark.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// Load reads the secret that a reference names: "file:/run/secrets/acme" or "env:ACME_TOKEN". Anything else is an error that
// does not repeat it: it may be a secret that somebody wrote into a configuration file.
func Load(reference string) (Secret, error) {
	kind, name, ok := strings.Cut(reference, ":")
	switch {
	case ok && kind == "file":
		return FromFile(name)
	case ok && kind == "env":
		return FromEnv(name)
	}
	return Secret{}, errors.New("a secret is named, never written out: file:/path/of/the/file or env:NAME")
}

// FromFile reads a secret from a regular file and takes one newline from its end. It refuses a file that is empty or larger
// than MaxBytes. Who may read the file is not checked: see Exposed.
func FromFile(path string) (Secret, error) {
	b, err := ReadFile(path, MaxBytes)
	if errors.Is(err, errTooLarge) {
		return Secret{}, fmt.Errorf("secret file %s: %w", path, err)
	}
	if err != nil {
		return Secret{}, fmt.Errorf("secret file: %w", err)
	}
	return checked("secret file "+path, string(b))
}

// ReadFile reads a regular file of at most limit bytes. Nothing else that a path may lead to is opened: a pipe would wait for ever for somebody to write into it, a device never ends.
func ReadFile(path string, limit int64) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%w than %d bytes, is it the right one?", errTooLarge, limit)
	}
	return b, err
}

var errTooLarge = errors.New("larger")

// FromEnv reads a secret from an environment variable and takes one newline from its end. It refuses a variable that is not
// set, empty or larger than MaxBytes.
func FromEnv(name string) (Secret, error) {
	v, ok := os.LookupEnv(name)
	if !ok {
		return Secret{}, fmt.Errorf("secret variable %s: not set", name)
	}
	return checked("secret variable "+name, v)
}

func checked(where, v string) (Secret, error) {
	if len(v) > MaxBytes {
		return Secret{}, fmt.Errorf("%s: larger than %d bytes, is it the right one?", where, MaxBytes)
	}
	if t, ok := strings.CutSuffix(v, "\n"); ok {
		v = strings.TrimSuffix(t, "\r")
	}
	if v == "" {
		return Secret{}, fmt.Errorf("%s: empty", where)
	}
	return New(v), nil
}

// Exposed reports whether everybody on the machine may read the file, and whether everybody may write it. What to make of it is the caller's decision: a
// container's mounted secrets are often readable by all, and nobody else is there.
func Exposed(path string) (readable, writable bool, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return false, false, fmt.Errorf("secret file: %w", err)
	}
	mode := st.Mode().Perm()
	return mode&0o004 != 0, mode&0o002 != 0, nil
}

// Swappable is a folder on the way to the file in which everybody on the machine may put another in its place; empty when there is none. The sticky bit keeps that from all but the
// owners, as in /tmp and where Kubernetes mounts secrets, and a mount that is read-only from everybody, as where it mounts a ConfigMap. Of a file behind symbolic links it is the way
// by its name, and that to where they lead.
func Swappable(path string) (folder string, err error) { return swappable(path, sealed) }

func swappable(path string, sealed func(dir string) bool) (folder string, err error) {
	named, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("secret file: %w", err)
	}
	real, err := filepath.EvalSymlinks(named)
	if err != nil {
		return "", fmt.Errorf("secret file: %w", err)
	}
	for _, file := range []string{named, real} {
		for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
			st, err := os.Stat(dir)
			if err != nil {
				return "", fmt.Errorf("secret file: %w", err)
			}
			if mode := st.Mode(); mode&0o002 != 0 && mode&fs.ModeSticky == 0 && !sealed(dir) {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", nil
}
