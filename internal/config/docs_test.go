package config

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/breaker"
	"pollux/internal/gateway/httpclient"
)

var update = flag.Bool("update", false, "write the tables of docs/configuration.md")

const docs = "../../docs/configuration.md"

// TestDocumentationSaysWhatTheTypesSay compares the tables of docs/configuration.md with the types and their comments. With -update it
// writes them: go test ./internal/config -run Documentation -update
func TestDocumentationSaysWhatTheTypesSay(t *testing.T) {
	page, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?s)(<!-- table: ([a-z_.]+) -->\n).*?(<!-- end -->)`)
	written := map[string]bool{}
	want := block.ReplaceAllFunc(page, func(found []byte) []byte {
		m := block.FindSubmatch(found)
		name := string(m[2])
		written[name] = true
		return bytes.Join([][]byte{m[1], []byte(table(t, name)), m[3]}, nil)
	})
	for _, name := range tables() {
		if !written[name] {
			t.Errorf("%s has no table of %s", docs, name)
		}
	}
	if *update {
		if err := os.WriteFile(docs, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(string(want), string(page)); d != "" {
		t.Errorf("%s is not what the types say; write it with -update:\n%s", docs, d)
	}
}

// tables are the sections that have tables of their own.
func tables() []string {
	names := []string{"sections", "built_in"}
	for _, name := range root.names {
		if name != "classes" {
			names = append(names, name)
		}
	}
	return names
}

// table is the table of a section of the configuration.
func table(t *testing.T, name string) string {
	var b strings.Builder
	switch name {
	case "sections":
		b.WriteString("| section | what it is about |\n|---|---|\n")
		for f := range reflect.TypeFor[Config]().Fields() {
			if key := f.Tag.Get(tagName); key != "" {
				fmt.Fprintf(&b, "| `%s` | %s |\n", key, comment(t, reflect.TypeFor[Config](), f.Name))
			}
		}
	case "built_in":
		builtIn(&b)
	default:
		b.WriteString("| key | type | default | change | what and why |\n|---|---|---|---|---|\n")
		at := path{name}
		if name == "policies" || name == "gateways" {
			at = at.child("NAME")
		}
		rows(t, &b, at, "", defaultOf(t, name))
	}
	return b.String()
}

// defaultOf is the default of a section, or of one of the entries that a section of names has.
func defaultOf(t *testing.T, name string) reflect.Value {
	switch name {
	case "policies":
		return reflect.ValueOf(standardPolicy())
	case "gateways":
		return reflect.ValueOf(completeGateway())
	}
	v := reflect.ValueOf(Default())
	for f, value := range v.Fields() {
		if f.Tag.Get(tagName) == name {
			return value
		}
	}
	t.Fatalf("no section %s", name)
	return reflect.Value{}
}

// connection is what all adapters have to say about their connections.
var connection = reflect.TypeFor[httpclient.Config]()

// change is what a change of a key takes.
func change(p path) string {
	services := slices.Clone(root.at(p).restart)
	if len(services) == 0 {
		return "SIGHUP"
	}
	slices.Sort(services)
	return "restart: " + strings.Join(services, ", ")
}

func rows(t *testing.T, b *strings.Builder, above path, prefix string, v reflect.Value) {
	for _, f := range keysOf(v.Type()) {
		value, key, at := v.FieldByIndex(f.Index), prefix+f.key, above.child(f.key)
		s := schemaOf(f.Type)
		switch {
		case f.owner == connection && prefix != "httpjson.": // the same for every adapter
			if f.key == "timeout" {
				fmt.Fprintf(b, "| `%s`, … | | | SIGHUP | How the gateway is reached, with the keys and defaults of `httpjson.timeout` to `httpjson.user_agent`. |\n", key)
			}
			continue
		case s.section():
			value = reflect.Indirect(value)
			fmt.Fprintf(b, "| `%s` | section | | | %s |\n", key, comment(t, f.owner, f.Name))
			rows(t, b, at, key+".", value)
		default:
			fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", key, typeName(s), shown(value), change(at), comment(t, f.owner, f.Name))
		}
		if s.elem.section() && s.elem.typ != reflect.TypeFor[Policy]() {
			rows(t, b, at.child("NAME"), key+".NAME.", elementOf(s.elem.typ))
		}
	}
}

// elementOf is the default of what a section of names has.
func elementOf(t reflect.Type) reflect.Value {
	if t == reflect.TypeFor[Hook]() {
		return reflect.ValueOf(defaultHook())
	}
	return reflect.New(t).Elem()
}

// shown is a default as it would be written in the file.
func shown(v reflect.Value) string {
	if v = reflect.Indirect(v); !v.IsValid() {
		return ""
	}
	if v.IsZero() && v.Kind() != reflect.Int && v.Kind() != reflect.Float64 && v.Kind() != reflect.Bool {
		return ""
	}
	if v.Kind() == reflect.Slice {
		var items []string
		for i := range v.Len() {
			items = append(items, strings.Trim(shown(v.Index(i)), "`"))
		}
		return "`[" + strings.Join(items, ", ") + "]`"
	}
	if text, ok := textOf(v); ok {
		return "`" + text + "`"
	}
	return fmt.Sprintf("`%v`", v.Interface())
}

func typeName(s *schema) string {
	switch {
	case s.kind == sequence:
		return "list of " + typeName(s.elem) + "s"
	case s.kind == mapping && s.elem.kind == scalar:
		return "name: " + typeName(s.elem)
	case s.kind == mapping:
		return "name: section"
	case s.typ == durationType:
		return "duration"
	case s.typ == reflect.TypeFor[Percent](), s.typ == reflect.TypeFor[breaker.Ratio]():
		return "percentage"
	case s.typ == reflect.TypeFor[URL]():
		return "URL or secret"
	case s.typ == reflect.TypeFor[Secret](), s.typ == secretType:
		return "secret"
	case s.unmarshals():
		return strings.ToLower(s.typ.Name())
	case s.typ.Kind() == reflect.Bool:
		return "true or false"
	case s.typ.Kind() == reflect.String:
		return "text"
	}
	return "number"
}

// builtIn compares the policies that always exist.
func builtIn(b *strings.Builder) {
	policies := Default().Policies
	names := []string{Standard, HighValue, Background}
	fmt.Fprintf(b, "| key | `%s` |\n|---|---|---|---|\n", strings.Join(names, "` | `"))
	var line func(prefix string, values []reflect.Value)
	line = func(prefix string, values []reflect.Value) {
		for i, f := range reflect.VisibleFields(values[0].Type()) {
			key := prefix + f.Tag.Get(tagName)
			cells := make([]string, len(values))
			below := make([]reflect.Value, len(values))
			for j, v := range values {
				below[j] = v.Field(i)
				cells[j] = shown(below[j])
			}
			if schemaOf(f.Type).section() {
				line(key+".", below)
				continue
			}
			if strings.Join(cells, "") != "" {
				fmt.Fprintf(b, "| `%s` | %s |\n", key, strings.Join(cells, " | "))
			}
		}
	}
	values := make([]reflect.Value, len(names))
	for i, name := range names {
		values[i] = reflect.ValueOf(policies[name])
	}
	line("", values)
}

// comment is what the source says about a field of a type of this module.
func comment(t *testing.T, typ reflect.Type, name string) string {
	t.Helper()
	dir := filepath.Join("../..", strings.TrimPrefix(typ.PkgPath(), "pollux/"))
	c, ok := comments(t, dir)[typ.Name()+"."+name]
	if !ok {
		t.Errorf("%s.%s has no comment", typ, name)
	}
	return strings.ReplaceAll(c, "|", `\|`)
}

var read = map[string]map[string]string{}

// comments are the comments of all fields of the types in a folder: above the field, or behind it.
func comments(t *testing.T, dir string) map[string]string {
	t.Helper()
	if read[dir] != nil {
		return read[dir]
	}
	found := map[string]string{}
	read[dir] = found
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					collect(found, spec.Name.Name, s)
				}
			}
			return true
		})
	}
	return found
}

func collect(into map[string]string, typ string, s *ast.StructType) {
	for _, f := range s.Fields.List {
		group := f.Doc
		if group == nil {
			group = f.Comment
		}
		if group == nil {
			continue
		}
		for _, name := range f.Names {
			into[typ+"."+name.Name] = strings.Join(strings.Fields(group.Text()), " ")
		}
	}
}
