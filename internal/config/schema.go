package config

import (
	"encoding"
	"reflect"
	"strings"
	"time"

	"pollux/internal/secret"
)

// schema is what may be written: read off the types, so that a key that a type has is a key that a file may have.
type schema struct {
	kind   kind         // scalar and sequence have a value of typ
	typ    reflect.Type // of a scalar, a sequence; a sequence of what reads its text itself is one of texts
	names  []string     // of a section, in the order of its type
	fields map[string]*schema
	elem   *schema // of a mapping with names of the user's own; nil for a section

	restart []string // the services that a change takes a restart of; none: it is live
}

const (
	tagName    = "koanf"
	restartTag = "restart"
)

var (
	unmarshaler  = reflect.TypeFor[encoding.TextUnmarshaler]()
	marshaler    = reflect.TypeFor[encoding.TextMarshaler]()
	durationType = reflect.TypeFor[time.Duration]()
	secretType   = reflect.TypeFor[secret.Secret]()
	curveType    = reflect.TypeFor[Curve]()
)

// schemaOf reads the schema off a type. It panics on a type that a configuration cannot have: that is a mistake of the program,
// found by any test.
func schemaOf(t reflect.Type) *schema {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == secretType || reflect.PointerTo(t).Implements(unmarshaler) {
		return &schema{kind: scalar, typ: t}
	}
	switch t.Kind() {
	case reflect.Struct:
		return sectionOf(t)
	case reflect.Map:
		return &schema{kind: mapping, typ: t, elem: schemaOf(t.Elem())}
	case reflect.Slice:
		if elem := schemaOf(t.Elem()); elem.kind == scalar {
			if elem.unmarshals() { // their texts
				t = reflect.TypeFor[[]string]()
			}
			return &schema{kind: sequence, typ: t, elem: elem}
		}
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64:
		return &schema{kind: scalar, typ: t}
	}
	panic("config: no way to write a " + t.String())
}

func sectionOf(t reflect.Type) *schema {
	s := &schema{kind: mapping, typ: t, fields: map[string]*schema{}}
	for _, f := range keysOf(t) {
		s.names = append(s.names, f.key)
		s.fields[f.key] = schemaOf(f.Type)
	}
	return s
}

// complete is a schema with what a change of each key takes: as its tag says, or as it is with the section around it.
func complete(s *schema) *schema {
	s.inherit(nil)
	return s
}

func (s *schema) inherit(restart []string) {
	s.restart = restart
	if s.elem != nil {
		s.elem.inherit(restart)
	}
	if !s.section() {
		return
	}
	for _, f := range keysOf(s.typ) {
		below := restart
		if services, ok := f.Tag.Lookup(restartTag); ok {
			below = strings.Fields(services)
		}
		s.fields[f.key].inherit(below)
	}
}

// keyField is a field of a type that is a key.
type keyField struct {
	reflect.StructField
	key   string
	owner reflect.Type // the type that declares it
}

// keysOf are the fields of a type that are keys, in their order; those of a squashed field stand in its place.
func keysOf(t reflect.Type) []keyField {
	var all []keyField
	for f := range t.Fields() {
		switch key := f.Tag.Get(tagName); key {
		case "", "-":
		case ",squash":
			for _, below := range keysOf(f.Type) {
				below.Index = append(f.Index[:len(f.Index):len(f.Index)], below.Index...)
				all = append(all, below)
			}
		default:
			all = append(all, keyField{StructField: f, key: key, owner: t})
		}
	}
	return all
}

// section reports whether the names below s are fixed.
func (s *schema) section() bool { return s != nil && s.fields != nil }

// unmarshals reports whether the values of s read their text themselves.
func (s *schema) unmarshals() bool { return reflect.PointerTo(s.typ).Implements(unmarshaler) }

// below is the schema of a name below s, or nil.
func (s *schema) below(name string) *schema {
	switch {
	case s.kind != mapping:
		return nil
	case s.section():
		return s.fields[name]
	}
	return s.elem
}

// at is the schema of a path below s, or nil.
func (s *schema) at(p path) *schema {
	for _, name := range p {
		if s = s.below(name); s == nil {
			return nil
		}
	}
	return s
}

// suggest is what somebody who wrote an unknown name below s may have meant: a near name in the same section, or the same
// name elsewhere. It is empty when nothing comes near.
func suggest(root, s *schema, name string) string {
	plain := spelling(name)
	best, distance := "", max(2, len(plain)/3)+1
	for _, known := range s.names {
		if d := edits(plain, spelling(known), distance); d < distance {
			best, distance = known, d
		}
	}
	if best != "" {
		return "did you mean " + best + "?"
	}
	if elsewhere := find(root, nil, plain); len(elsewhere) == 1 {
		return "did you mean " + elsewhere[0].String() + "?"
	}
	if len(s.names) <= 12 {
		return "known here: " + strings.Join(s.names, ", ")
	}
	return ""
}

// find returns the paths of all keys in fixed sections whose name is spelled so.
func find(s *schema, p path, plain string) []path {
	var found []path
	for _, name := range s.names {
		if spelling(name) == plain {
			found = append(found, p.child(name))
		}
		found = append(found, find(s.fields[name], p.child(name), plain)...)
	}
	return found
}

// spelling takes what people vary out of a name: ackWait, ack-wait and ACK_WAIT are ack_wait.
func spelling(name string) string { return strings.ToLower(unvaried.Replace(name)) }

var unvaried = strings.NewReplacer("_", "", "-", "", " ", "")

// edits is the number of insertions, deletions, replacements and swaps of neighbours that turn a into b, or some number of at least enough
// when it takes so many.
func edits(a, b string, enough int) int {
	if d := max(len(a), len(b)) - min(len(a), len(b)); d >= enough {
		return d
	}
	before, last := []int(nil), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
