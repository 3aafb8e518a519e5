package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"pollux/internal/redelivery"
	"pollux/internal/secret"
)

// Percent is a share between 0% and 100%. It is written with its sign: nobody can tell whether 1 is all or a hundredth.
type Percent float64

// Ratio is the share between 0 and 1.
func (p Percent) Ratio() float64 { return float64(p) / 100 }

// UnmarshalText reads a share such as "12.5%".
func (p *Percent) UnmarshalText(b []byte) error {
	digits, ok := strings.CutSuffix(string(b), "%")
	if !ok {
		return fmt.Errorf("%.40q has no unit; write a percentage such as 10%%", b)
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || !(f >= 0 && f <= 100) {
		return fmt.Errorf("%.40q is not between 0%% and 100%%", b)
	}
	*p = Percent(f)
	return nil
}

// MarshalText writes the share as UnmarshalText reads it.
func (p Percent) MarshalText() ([]byte, error) {
	return append(strconv.AppendFloat(nil, float64(p), 'f', -1, 64), '%'), nil
}

// Level is the importance of a log line: debug, info, warn or error.
type Level slog.Level

var levels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

// UnmarshalText reads a level.
func (l *Level) UnmarshalText(b []byte) error {
	level, ok := levels[string(b)]
	if !ok {
		return fmt.Errorf("%.40q is not a level; write debug, info, warn or error", b)
	}
	*l = Level(level)
	return nil
}

// MarshalText writes the level as UnmarshalText reads it.
func (l Level) MarshalText() ([]byte, error) {
	return []byte(strings.ToLower(slog.Level(l).String())), nil
}

// Jitter is the jitter of a curve as it is written: none, full, equal, decorrelated, ±20% or 20%.
type Jitter redelivery.Jitter

var jitterKinds = map[string]redelivery.JitterKind{
	"none": redelivery.JitterNone, "full": redelivery.JitterFull, "equal": redelivery.JitterEqual, "decorrelated": redelivery.JitterDecorrelated,
}

// UnmarshalText reads a jitter.
func (j *Jitter) UnmarshalText(b []byte) error {
	s := string(b)
	if kind, ok := jitterKinds[s]; ok {
		*j = Jitter{Kind: kind}
		return nil
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return fmt.Errorf("%s has no unit; write a percentage such as ±20%%", s)
	}
	digits, ok := strings.CutSuffix(strings.TrimPrefix(s, "±"), "%")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 1 || n > 100 {
		return fmt.Errorf("%.40q is not a jitter; write none, full, equal, decorrelated, or a percentage from ±1%% to ±100%%", s)
	}
	*j = Jitter{Kind: redelivery.JitterPercent, Percent: n}
	return nil
}

// MarshalText writes the jitter as UnmarshalText reads it.
func (j Jitter) MarshalText() ([]byte, error) {
	if j.Kind == redelivery.JitterPercent {
		return fmt.Appendf(nil, "±%d%%", j.Percent), nil
	}
	for name, kind := range jitterKinds {
		if kind == j.Kind {
			return []byte(name), nil
		}
	}
	return nil, fmt.Errorf("jitter of kind %d", j.Kind)
}

// errInline says that a secret was written out, without repeating it.
var errInline = errors.New("a secret is named, never written out: put it into a file or an environment variable and write file:/path/of/the/file or env:NAME")

// Secret is the name of a secret, file:/path or env:NAME, and after Load the secret itself. It shows only its name. The zero value is none.
type Secret struct {
	name  string
	value secret.Secret
}

// UnmarshalText reads the name of a secret and refuses everything else: it may be a secret that somebody wrote out.
func (s *Secret) UnmarshalText(b []byte) error {
	if !isReference(string(b)) {
		return errInline
	}
	*s = Secret{name: string(b)}
	return nil
}

// MarshalText is the name.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.name), nil }

// String is the name.
func (s Secret) String() string { return s.name }

// GoString is the name: %#v would show what is in memory.
func (s Secret) GoString() string { return s.name }

// IsZero reports whether there is none.
func (s Secret) IsZero() bool { return s.name == "" }

// File is the path of the file that holds the secret, for those who read it again when it changes; empty when it is no file.
func (s Secret) File() string {
	file, _ := strings.CutPrefix(s.name, "file:")
	if file == s.name {
		return ""
	}
	return file
}

// Value is the secret, which shows itself to nobody; none before Load.
func (s Secret) Value() secret.Secret { return s.value }

// load reads the secret.
func (s *Secret) load() error {
	if s.IsZero() {
		return nil
	}
	value, err := secret.Load(s.name)
	s.value = value
	return err
}

// URL is where something is, or the name of a secret that says where: file:/path or env:NAME. It shows its password to nobody. The zero
// value is none.
type URL struct {
	shown string // the URL without its password, or the name of the secret
	value secret.Secret
}

// UnmarshalText reads a URL or the name of a secret. It refuses a URL with a password unless it leads to this machine.
func (u *URL) UnmarshalText(b []byte) error {
	s := string(b)
	if isReference(s) {
		*u = URL{shown: s}
		return nil
	}
	parsed, err := url.Parse(s)
	if err != nil || parsed.Scheme == "" {
		return errors.New("not a URL, and not the name of a secret: write scheme://host:port, file:/path/of/the/file or env:NAME")
	}
	if carriesSecret(parsed) && !leadsHome(parsed) {
		return errInline
	}
	*u = URL{shown: hidePassword(parsed), value: secret.New(s)}
	return nil
}

// MarshalText is the URL without its password, or the name of the secret.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.shown), nil }

// String is the URL without its password, or the name of the secret.
func (u URL) String() string { return u.shown }

// GoString is String: %#v would show what is in memory.
func (u URL) GoString() string { return u.shown }

// IsZero reports whether nothing was written.
func (u URL) IsZero() bool { return u.shown == "" }

// File is the path of the file that holds the URL; empty when it is no file.
func (u URL) File() string { return Secret{name: u.shown}.File() }

// Fresh is Reveal with the secret read again: what renews a password need not restart anybody.
func (u URL) Fresh() (string, error) {
	if u.File() == "" {
		return u.Reveal(), nil
	}
	err := u.load()
	return u.Reveal(), err
}

// Reveal is the URL with its password; empty before Load where a secret was named. Whoever calls it answers for where it goes.
func (u URL) Reveal() string { return u.value.Reveal() }

// ReadURL reads a URL that is not in the configuration but on a command line, with the secret that it names.
func ReadURL(text string) (URL, error) {
	var u URL
	if err := u.UnmarshalText([]byte(text)); err != nil {
		return URL{}, err
	}
	return u, u.load()
}

// load reads the secret that a URL names.
func (u *URL) load() error {
	if !isReference(u.shown) {
		return nil
	}
	value, err := secret.Load(u.shown)
	u.value = value
	return err
}

func isReference(s string) bool { return strings.HasPrefix(s, "file:") || strings.HasPrefix(s, "env:") }

// secretParameters are the parameters of PostgreSQL's URLs that are secrets.
var secretParameters = []string{"password", "sslpassword"}

func carriesSecret(u *url.URL) bool {
	_, has := u.User.Password()
	return has || slices.ContainsFunc(secretParameters, u.Query().Has)
}

// leadsHome reports whether a URL leads to this machine and nowhere else.
func leadsHome(u *url.URL) bool {
	host := u.Hostname()
	if q := u.Query(); q.Has("host") || q.Has("hostaddr") { // PostgreSQL takes the parameter before the authority
		return strings.HasPrefix(q.Get("host"), "/") && !q.Has("hostaddr") && host == ""
	}
	return isLoopback(host)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// hidePassword is a URL as it may be shown.
func hidePassword(u *url.URL) string {
	shown := *u
	q := u.Query()
	for _, name := range secretParameters {
		if q.Has(name) {
			q.Set(name, "xxxxx")
			shown.RawQuery = q.Encode()
		}
	}
	return shown.Redacted()
}
