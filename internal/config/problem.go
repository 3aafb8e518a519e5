package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Where string // where it was written: "pollux.yaml:41", "environment POLLUX_RELAY__EVERY", "flag --set"; empty when nobody wrote it
	Key   string // the path of the key: "gateways.acme.workers"; empty when it is about the file
	What  string // what is wrong and what to write instead; never a value that may be a secret

	file     string
	line     int    // for the order
	unusable bool   // it is a secret or a certificate that is not there or cannot be used, and nothing else
	id       string // of the path
}

// Unit is what is renewed as one that the key belongs to: database, nats, telemetry, gateways.NAME, webhooks.gateways.NAME.
func (p Problem) Unit() string { return unitOf(strings.Split(p.id, separator)) }

// String is the problem in one line.
func (p Problem) String() string {
	var b strings.Builder
	for _, s := range []string{p.Where, p.Key} {
		if s != "" {
			b.WriteString(s)
			b.WriteString(": ")
		}
	}
	b.WriteString(p.What)
	return b.String()
}

// Invalid is the error of a configuration that is refused. It has every problem at once.
type Invalid struct{ Problems []Problem }

// Error lists the problems, one a line.
func (e *Invalid) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].String()
	}
	lines := make([]string, 0, len(e.Problems)+1)
	lines = append(lines, fmt.Sprintf("the configuration has %d problems:", len(e.Problems)))
	for _, p := range e.Problems {
		lines = append(lines, "  "+p.String())
	}
	return strings.Join(lines, "\n")
}

// Line is the problems in one line, for where there are no others.
func (e *Invalid) Line() string {
	words := make([]string, 0, len(e.Problems))
	for _, p := range e.Problems {
		words = append(words, p.String())
	}
	return strings.Join(words, "; ")
}

// order sorts problems as their reader mends them: down the file, then the environment, the flags and what is missing.
func order(problems []Problem) []Problem {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			cmp.Compare(a.line, b.line),
			cmp.Compare(a.Where, b.Where),
			cmp.Compare(a.Key, b.Key))
	})
	return slices.CompactFunc(problems, func(a, b Problem) bool { return a.String() == b.String() })
}

func rank(p Problem) int {
	switch {
	case p.file != "":
		return 0
	case p.Where != "":
		return 1
	}
	return 2
}

// origin is where something was written.
type origin struct {
	file string // of a file, with its line
	line int
	name string // otherwise: an environment variable or a flag
}

func (o origin) String() string {
	switch {
	case o.file != "" && o.line > 0:
		return fmt.Sprintf("%s:%d", o.file, o.line)
	case o.file != "":
		return o.file
	}
	return o.name
}

func (o origin) problem(key path, format string, a ...any) Problem {
	return Problem{Where: o.String(), Key: key.String(), What: fmt.Sprintf(format, a...), file: o.file, line: o.line, id: key.id()}
}

// path is the way to a key.
type path []string

// separator stands between the parts of a path where koanf needs one string. A key cannot contain it: see printable.
const separator = "\x1f"

func (p path) id() string { return strings.Join(p, separator) }

// child is the path of a key below p. It shares nothing with p.
func (p path) child(names ...string) path { return append(p[:len(p):len(p)], names...) }

// String is the path as it is shown. A name that has a dot is quoted.
func (p path) String() string {
	var b strings.Builder
	for i, name := range p {
		if i > 0 && !strings.HasPrefix(name, "[") {
			b.WriteByte('.')
		}
		if strings.ContainsAny(name, ". ") {
			name = fmt.Sprintf("%q", name)
		}
		b.WriteString(name)
	}
	return b.String()
}
