package config

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
)

// checker turns what is written in one source into values, and remembers where each came from. What does not fit the schema is a
// problem and left out, so that one mistake hides no other.
type checker struct {
	root     *schema
	origins  map[string]origin // by path.id; of sections too
	problems []Problem
}

func newChecker(root *schema) *checker { return &checker{root: root, origins: map[string]origin{}} }

func (c *checker) refuse(at origin, key path, format string, a ...any) {
	c.problems = append(c.problems, at.problem(key, format, a...))
}

// mapping checks what is written below a path that holds a section or names of the user's own.
func (c *checker) mapping(s *schema, p path, n *node) map[string]any {
	tree := map[string]any{}
	if n.kind == scalar && n.tag == "!!null" {
		return tree // a section whose keys are all commented out
	}
	if n.kind != mapping {
		c.refuse(n.at, p, "a section; write its keys below it, indented")
		return tree
	}
	for _, f := range n.fields {
		below := s.below(f.name)
		if below == nil {
			c.unknown(s, p, f)
			continue
		}
		key := p.child(f.name)
		c.origins[key.id()] = f.at
		if v, ok := c.value(below, key, f.value); ok {
			tree[f.name] = v
		}
	}
	return tree
}

func (c *checker) unknown(s *schema, p path, f field) {
	what := "unknown key"
	if hint := suggest(c.root, s, f.name); hint != "" {
		what += "; " + hint
	}
	c.refuse(f.at, p.child(f.name), "%s", what)
}

func (c *checker) value(s *schema, p path, n *node) (any, bool) {
	switch s.kind {
	case mapping:
		return c.mapping(s, p, n), true
	case sequence:
		return c.sequence(s, p, n)
	}
	if n.kind != scalar {
		c.refuse(n.at, p, "a single value; this is a list or a section")
		return nil, false
	}
	v, err := parse(n, s.typ)
	if err != nil {
		c.refuse(n.at, p, "%s", discreet(err.Error(), n.text))
		return nil, false
	}
	return v, true
}

// discreet takes a text out of what is said about it that looks like a key: somebody may have written it on the wrong line.
func discreet(message, text string) string {
	letters, digits := 0, 0
	for _, c := range text {
		switch {
		case c >= '0' && c <= '9':
			digits++
		case unicode.IsLetter(c):
			letters++
		case unicode.IsSpace(c):
			return message
		}
	}
	if len(text) < 20 || letters == 0 || digits < 2 {
		return message
	}
	for _, shown := range []string{fmt.Sprintf("%.40q", text), text} {
		message = strings.ReplaceAll(message, shown, fmt.Sprintf("a text of %d characters", len(text)))
	}
	return message
}

// sequence checks a list. Sources that have only text write it with commas.
func (c *checker) sequence(s *schema, p path, n *node) (any, bool) {
	items := n.items
	switch {
	case n.kind == scalar && n.tag == "" && n.text != "":
		for text := range strings.SplitSeq(n.text, ",") {
			items = append(items, &node{text: strings.TrimSpace(text), at: n.at})
		}
	case n.kind == scalar && (n.tag == "" || n.tag == "!!null"):
		c.refuse(n.at, p, "empty; write one or several with commas between them, or take the key away for the default")
		return nil, false
	case n.kind != sequence:
		c.refuse(n.at, p, "a list; write it as [a, b], or an item a line, each behind a dash")
		return nil, false
	}
	before := len(c.problems)
	list := reflect.MakeSlice(s.typ, 0, len(items))
	for i, item := range items {
		if v, ok := c.value(s.elem, p.child(indexed(i)), item); ok {
			list = reflect.Append(list, reflect.ValueOf(v))
		}
	}
	return list.Interface(), len(c.problems) == before
}
