package config

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// YAML is the whole configuration as it is in force, in the form that Load reads. Secrets stand there by their names, passwords of this machine
// as xxxxx.
func (c Config) YAML() ([]byte, error) {
	n := c.describe()
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(n), e.Close()); err != nil {
		return nil, fmt.Errorf("writing the configuration as YAML: %w", err)
	}
	return b.Bytes(), nil
}

// MarshalJSON is YAML as JSON.
func (c Config) MarshalJSON() ([]byte, error) {
	n := c.describe()
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, fmt.Errorf("writing the configuration as JSON: %w", err)
	}
	return json.Marshal(v)
}

// String is YAML.
func (c Config) String() string {
	b, err := c.YAML()
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Format writes YAML, whatever the verb and its flags.
func (c Config) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue is YAML.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// describe makes a node of the configuration: keys in the order of their types, names of the user's own sorted, what is zero and has no
// default left out.
func (c Config) describe() *yaml.Node {
	n := &yaml.Node{}
	describer{c.secrets}.value(n, nil, reflect.ValueOf(c))
	return n
}

type describer struct{ secrets map[string]string } // the names of secrets, by path

func (d describer) value(n *yaml.Node, p path, v reflect.Value) {
	v = reflect.Indirect(v)
	if name, ok := d.secrets[p.id()]; ok {
		n.SetString(name)
		return
	}
	if text, ok := textOf(v); ok {
		n.SetString(text)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		n.Kind = yaml.MappingNode
		for _, f := range keysOf(v.Type()) {
			if below := v.FieldByIndex(f.Index); !blank(f, below) {
				d.add(n, p.child(f.key), below)
			}
		}
	case reflect.Map:
		n.Kind = yaml.MappingNode
		for _, key := range stringKeys(v) {
			d.add(n, p.child(key), v.MapIndex(reflect.ValueOf(key)))
		}
	case reflect.Slice:
		n.Kind, n.Style = yaml.SequenceNode, yaml.FlowStyle
		for i := range v.Len() {
			item := &yaml.Node{}
			d.value(item, p.child(indexed(i)), v.Index(i))
			n.Content = append(n.Content, item)
		}
	case reflect.Bool:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!bool", strconv.FormatBool(v.Bool())
	case reflect.Int, reflect.Int64:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!int", strconv.FormatInt(v.Int(), 10)
	default:
		n.SetString(v.String())
	}
}

func (d describer) add(n *yaml.Node, p path, v reflect.Value) {
	key, value := &yaml.Node{}, &yaml.Node{}
	key.SetString(p[len(p)-1])
	d.value(value, p, v)
	n.Content = append(n.Content, key, value)
}

// blank reports whether a value is left out: nothing was written and nothing stands for it.
func blank(f keyField, v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice:
		return v.Len() == 0
	case reflect.Pointer:
		return v.IsNil()
	case reflect.Struct:
		z, ok := v.Interface().(interface{ IsZero() bool })
		return ok && z.IsZero()
	}
	return f.owner == curveType && v.IsZero() // a list, or base and cap
}

// textOf is the text of a value that writes itself, and of durations.
func textOf(v reflect.Value) (string, bool) {
	if v.Type() == durationType {
		return FormatDuration(time.Duration(v.Int())), true
	}
	m, ok := v.Interface().(encoding.TextMarshaler)
	if !ok {
		return "", false
	}
	b, err := m.MarshalText()
	if err != nil {
		return "", false
	}
	return string(b), true
}

// valuesOf are the values of a section in the form that sources have: sections as maps, texts of what reads its text, values of what does
// not. What nobody wrote and nothing stands for is left out.
func valuesOf(v reflect.Value) map[string]any {
	values := map[string]any{}
	for _, f := range keysOf(v.Type()) {
		if value := v.FieldByIndex(f.Index); !blank(f, value) {
			values[f.key] = valueOf(value)
		}
	}
	return values
}

func valueOf(v reflect.Value) any {
	v = reflect.Indirect(v)
	if v.Type() != durationType {
		if text, ok := textOf(v); ok {
			return text
		}
	}
	switch v.Kind() {
	case reflect.Struct:
		return valuesOf(v)
	case reflect.Map:
		values := map[string]any{}
		for _, key := range stringKeys(v) {
			values[key] = valueOf(v.MapIndex(reflect.ValueOf(key)))
		}
		return values
	case reflect.Slice:
		return itemsOf(v)
	}
	return v.Interface()
}

// itemsOf is a list as it is, or the texts of its items where these write themselves.
func itemsOf(v reflect.Value) any {
	if !v.Type().Elem().Implements(marshaler) {
		return v.Interface()
	}
	texts := make([]string, v.Len())
	for i := range texts {
		texts[i], _ = textOf(v.Index(i))
	}
	return texts
}

// stringKeys are the keys of a map in order.
func stringKeys(v reflect.Value) []string {
	keys := make([]string, 0, v.Len())
	for _, k := range v.MapKeys() {
		keys = append(keys, k.String())
	}
	slices.Sort(keys)
	return keys
}

// sorted are the keys of a map in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
