package config

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"pollux/streams"
)

const example = "../../pollux.example.yaml"

// yours marks the lines of the example that say something about a particular installation.
const yours = "# yours"

func TestExampleIsTaken(t *testing.T) {
	t.Setenv("SIM_API_KEY", "sim_key")
	c, err := Load(Options{File: example, Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	if g, ok := c.Gateways["sim"]; !ok || g.Adapter != "httpjson" {
		t.Errorf("gateways %v, want sim by httpjson", c.Gateways)
	}
	if err := CheckFile(example, nil, 0); err != nil {
		t.Errorf("by itself: %v", err)
	}
}

// TestExampleShowsTheDefaults holds what the example shows to what happens when nothing is said.
func TestExampleShowsTheDefaults(t *testing.T) {
	content, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		t.Fatal(err)
	}
	defaults := valuesOf(reflect.ValueOf(Default()))
	defaults["gateways"] = map[string]any{"sim": valuesOf(reflect.ValueOf(completeGateway()))}
	lines := strings.Split(string(content), "\n")
	leaves(doc.Content[0], nil, false, lines, func(p path, n *yaml.Node, marked bool) {
		s := root.at(p)
		if s == nil {
			t.Errorf("%s is no key", p)
			return
		}
		if same := isDefault(t, s, n, valueAt(defaults, p)); same == marked {
			t.Errorf("line %d: %s: the default %v, marked %q %v", n.Line, p, same, yours, marked)
		}
	})
}

// completeGateway is a gateway that says nothing, with all defaults written out.
func completeGateway() Gateway {
	g := defaultGateway("")
	for _, g.Adapter = range Adapters {
		g.section().Complete("")
	}
	g.Adapter = "httpjson"
	return g
}

// leaves calls fn for every value that is no section, and says whether its line or that of a section around it is marked. The section of a
// gateway itself is not: it is an example as a whole.
func leaves(n *yaml.Node, p path, marked bool, lines []string, fn func(path, *yaml.Node, bool)) {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		fn(p, n, marked)
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		below := p.child(key.Value)
		leaves(n.Content[i+1], below, marked || (len(below) != 2 || below[0] != "gateways") && strings.Contains(lines[key.Line-1], yours), lines, fn)
	}
}

// valueAt is the default of a key, nil when there is none.
func valueAt(values map[string]any, p path) any {
	for _, name := range p[:len(p)-1] {
		values = section(values, name)
	}
	return values[p[len(p)-1]]
}

// isDefault compares what stands in the example with a default; no default is an empty text or list.
func isDefault(t *testing.T, s *schema, y *yaml.Node, want any) bool {
	t.Helper()
	var r reader
	n := r.node(nil, y)
	if n.kind == mapping && len(n.fields) == 0 {
		return true
	}
	if want == nil {
		return n.kind == scalar && n.text == "" || n.kind == sequence && len(n.items) == 0
	}
	c := newChecker(root)
	got, ok := c.value(s, nil, n)
	if !ok {
		t.Errorf("line %d: %v", y.Line, c.problems)
	}
	if text, isText := want.(string); isText && s.unmarshals() { // ±20% and 20% are the same
		return canonical(t, s, got.(string)) == canonical(t, s, text)
	}
	return reflect.DeepEqual(got, want)
}

func canonical(t *testing.T, s *schema, text string) any {
	t.Helper()
	v := reflect.New(s.typ)
	if err := v.Interface().(interface{ UnmarshalText([]byte) error }).UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return v.Elem().Interface()
}

func TestExampleShowsEveryKey(t *testing.T) {
	content, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	var missing func(*schema, path)
	missing = func(s *schema, p path) {
		if s.elem != nil && s.elem.kind == mapping {
			missing(s.elem, p.child("*"))
		}
		for _, name := range s.names {
			if !regexp.MustCompile(`(?m)(^|[\s#{,])` + name + `:`).Match(content) {
				t.Errorf("%s does not show %s", example, p.child(name))
			}
			missing(s.fields[name], p.child(name))
		}
	}
	missing(root, nil)
}

func TestStreamsAreMadeWithTheTimesThatAreChecked(t *testing.T) {
	for _, d := range streams.Definitions() {
		var s struct {
			MaxAge    time.Duration `json:"max_age"`
			Duplicate time.Duration `json:"duplicate_window"`
		}
		if err := json.Unmarshal(d.JSON, &s); err != nil {
			t.Fatal(err)
		}
		if s.Duplicate != DuplicateWindow {
			t.Errorf("%s remembers ids for %s, checked is %s", d.Name, s.Duplicate, DuplicateWindow)
		}
		if d.Name == "PAYMENTS_POLL" && s.MaxAge != StreamMaxAge {
			t.Errorf("%s keeps polls for %s, checked is %s", d.Name, s.MaxAge, StreamMaxAge)
		}
	}
}
