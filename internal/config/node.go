package config

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// node is something written in one of the sources, before anybody knows what it should be.
type node struct {
	kind   kind
	text   string // of a scalar
	tag    string // of a scalar: !!str, !!int, !!float, !!bool, !!null, …; empty when the source has only text
	items  []*node
	fields []field
	at     origin
}

type field struct {
	name  string
	at    origin
	value *node
}

type kind uint8

const (
	scalar kind = iota
	sequence
	mapping
)

// maxFileBytes is the size of the largest file that is read. The largest honest one has some thousand lines.
const maxFileBytes = 1 << 20

// readYAML reads a YAML file into nodes. What it refuses (duplicate keys, aliases, a second document) is a problem with its line.
// An empty file is an empty mapping.
func readYAML(name string, content []byte) (*node, []Problem) {
	r := reader{file: name}
	root := &node{kind: mapping, at: origin{file: r.file}}
	d := yaml.NewDecoder(bytes.NewReader(content))
	var doc yaml.Node
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return root, nil
	case err != nil:
		return nil, []Problem{r.syntax(content, err)}
	}
	var second yaml.Node
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		r.refuse(max(second.Line, 1), nil, "a second YAML document; write one")
	}
	top := doc.Content[0]
	if top.Tag == "!!null" && top.Kind == yaml.ScalarNode {
		return root, r.problems
	}
	if top.Kind != yaml.MappingNode {
		r.refuse(top.Line, nil, "not a mapping of sections; see pollux.example.yaml")
		return nil, r.problems
	}
	n := r.node(nil, top)
	return n, r.problems
}

// plainYAMLError is the parser's error without its prefix. It names the line and what the parser expected, not the text.
func plainYAMLError(err error) string {
	return "not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")
}

// syntax is what is wrong with a file that is no YAML. The parser does not name a tab, which nobody sees.
func (r *reader) syntax(content []byte, err error) Problem {
	line := 0
	for text := range bytes.Lines(content) {
		line++
		if indent := text[:len(text)-len(bytes.TrimLeft(text, " \t"))]; bytes.IndexByte(indent, '\t') >= 0 && len(bytes.TrimSpace(text)) > 0 {
			return r.at(line).problem(nil, "not YAML: the line begins with a tab; indent it with blanks")
		}
	}
	return r.at(0).problem(nil, "%s", plainYAMLError(err))
}

type reader struct {
	file     string
	problems []Problem
}

func (r *reader) at(line int) origin { return origin{file: r.file, line: line} }

func (r *reader) refuse(line int, key path, format string, a ...any) {
	r.problems = append(r.problems, r.at(line).problem(key, format, a...))
}

func (r *reader) node(key path, y *yaml.Node) *node {
	n := &node{at: r.at(y.Line)}
	switch {
	case y.Kind == yaml.AliasNode || y.Anchor != "":
		r.refuse(y.Line, key, "anchors and aliases are not read; write the value out")
		return nil
	case y.Kind == yaml.ScalarNode:
		n.text, n.tag = y.Value, y.ShortTag()
		return n
	case y.Kind == yaml.SequenceNode:
		n.kind = sequence
		for _, item := range y.Content {
			if v := r.node(key, item); v != nil {
				n.items = append(n.items, v)
			}
		}
		return n
	}
	n.kind = mapping
	first := map[string]int{}
	for i := 0; i+1 < len(y.Content); i += 2 {
		r.field(n, key, y.Content[i], y.Content[i+1], first)
	}
	return n
}

func (r *reader) field(n *node, key path, name, value *yaml.Node, first map[string]int) {
	switch line, twice := first[name.Value]; {
	case name.Kind != yaml.ScalarNode || name.Tag == "!!merge":
		r.refuse(name.Line, key, "merge keys and keys that are no words are not read; write the keys out")
		return
	case !printable(name.Value):
		r.refuse(name.Line, key, "a key that is empty, longer than %d bytes or has control characters", maxNameBytes)
		return
	case twice:
		r.refuse(name.Line, key.child(name.Value), "written twice, first on line %d; keep one", line)
		return
	}
	first[name.Value] = name.Line
	if v := r.node(key.child(name.Value), value); v != nil {
		n.fields = append(n.fields, field{name: name.Value, at: r.at(name.Line), value: v})
	}
}

const maxNameBytes = 256

// printable reports whether a name can be a key: it is shown in messages, and cannot contain the separator.
func printable(name string) bool {
	return name != "" && len(name) <= maxNameBytes && strings.IndexFunc(name, unicode.IsControl) < 0
}
