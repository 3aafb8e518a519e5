package archtest

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// module is the parsed sources of a module.
type module struct {
	path    string // as in go.mod
	fset    *token.FileSet
	sources []source
}

// source is a file.
type source struct {
	name  string // of the file, from the module's root
	dir   string // of its package, as in a rule
	kind  kind
	lines int
	file  *ast.File
}

// violation is what breaks a rule, and where.
type violation struct {
	where string // file and line, or folder
	what  string
	rule  string // the rule's name
}

func (v violation) String() string { return v.where + ": " + v.what }

// load parses the sources of the module in fsys. Like the go command it leaves out folders called testdata or vendor, those
// that begin with a dot or an underscore, and other modules within.
func load(fsys fs.FS) (*module, error) {
	m := &module{fset: token.NewFileSet()}
	var err error
	if m.path, err = modulePath(fsys); err != nil {
		return nil, err
	}
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && leftOut(fsys, name):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		return m.parse(fsys, name)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the sources: %w", err)
	}
	return m, nil
}

func modulePath(fsys fs.FS) (string, error) {
	b, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return "", fmt.Errorf("reading go.mod: %w", err)
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if p, ok := strings.CutPrefix(s.Text(), "module "); ok {
			return strings.TrimSpace(p), nil
		}
	}
	return "", errors.New("go.mod names no module")
}

func leftOut(fsys fs.FS, dir string) bool {
	base := path.Base(dir)
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := fs.Stat(fsys, path.Join(dir, "go.mod"))
	return err == nil
}

func (m *module) parse(fsys fs.FS, name string) error {
	src, err := fs.ReadFile(fsys, name)
	if err != nil {
		return err
	}
	f, err := parser.ParseFile(m.fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	s := source{name: name, dir: "./" + path.Dir(name), lines: bytes.Count(src, []byte("\n")), file: f}
	if s.dir == "./." {
		s.dir = "."
	}
	if strings.HasSuffix(name, "_test.go") {
		s.kind = tests
	}
	m.sources = append(m.sources, s)
	return nil
}

// check returns what breaks the rules, in the order of the files.
func (m *module) check(rules []rule) []violation {
	var found []violation
	for _, s := range m.sources {
		for _, r := range rules {
			if s.kind == r.files && matchAny(r.in, s.dir) && !matchAny(r.except, s.dir) {
				found = append(found, m.checkImports(r, s)...)
				found = append(found, m.checkCalls(r, s)...)
			}
		}
		found = append(found, checkMain(s)...)
	}
	found = append(found, m.checkPackages()...)
	slices.SortStableFunc(found, func(a, b violation) int { return cmp.Compare(a.where, b.where) })
	return found
}

func (m *module) checkImports(r rule, s source) []violation {
	var found []violation
	for _, spec := range s.file.Imports {
		p := m.relative(importPath(spec))
		if matchAny(r.imports, p) && !matchAny(r.but, p) {
			found = append(found, m.violation(r, spec.Pos(), "imports "+importPath(spec)))
		}
	}
	return found
}

func (m *module) checkCalls(r rule, s source) []violation {
	if len(r.calls) == 0 || imports(s, r.unless) {
		return nil
	}
	paths := importNames(s.file)
	var found []violation
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		// A name that no import explains is a variable, such as the t of a test.
		called := cmp.Or(paths[x.Name], x.Name) + "." + sel.Sel.Name
		if slices.Contains(r.calls, called) {
			found = append(found, m.violation(r, sel.Pos(), "uses "+called))
		}
		return true
	})
	return found
}

func (m *module) violation(r rule, pos token.Pos, what string) violation {
	p := m.fset.Position(pos)
	return violation{
		where: fmt.Sprintf("%s:%d", p.Filename, p.Line),
		what:  fmt.Sprintf("%s, but %s: %s", what, r.name, r.reason),
		rule:  r.name,
	}
}

// relative writes a package of this module as the rules do.
func (m *module) relative(importPath string) string {
	if importPath == m.path {
		return "."
	}
	if p, ok := strings.CutPrefix(importPath, m.path+"/"); ok {
		return "./" + p
	}
	return importPath
}

func importPath(spec *ast.ImportSpec) string {
	p, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
	return p
}

func imports(s source, p string) bool {
	return p != "" && slices.ContainsFunc(s.file.Imports, func(spec *ast.ImportSpec) bool { return importPath(spec) == p })
}

// importNames returns the import paths of a file by the names that stand for them in it. It takes the last part of a path for
// the package's name, which is right for the packages whose functions the rules name.
func importNames(f *ast.File) map[string]string {
	names := map[string]string{}
	for _, spec := range f.Imports {
		p := importPath(spec)
		name := path.Base(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	return names
}

func matchAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return match(pattern, p) })
}

// match reports whether a pattern of a rule means a package.
func match(pattern, p string) bool {
	if pattern == outside {
		first, _, _ := strings.Cut(p, "/")
		return strings.Contains(strings.TrimPrefix(first, "."), ".")
	}
	if dir, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == dir || strings.HasPrefix(p, dir+"/")
	}
	if dir, ok := strings.CutSuffix(pattern, "/*"); ok {
		return strings.HasPrefix(p, dir+"/")
	}
	return p == pattern
}

// The names of the rules that are no table.
const (
	ruleMain    = "main is short"
	ruleName    = "names say something"
	ruleComment = "packages are explained"
)

func checkMain(s source) []violation {
	command, isMain := strings.CutPrefix(s.name, "cmd/")
	if !isMain || path.Base(command) != "main.go" || s.lines <= maxMain {
		return nil
	}
	return []violation{{s.name, fmt.Sprintf("has %d lines, and the main.go of a command has at most %d: what is in it cannot be tested", s.lines, maxMain), ruleMain}}
}

// checkPackages checks the names and the comments of the packages.
func (m *module) checkPackages() []violation {
	byDir := map[string][]source{}
	for _, s := range m.sources {
		byDir[s.dir] = append(byDir[s.dir], s)
	}
	var found []violation
	for dir, files := range byDir {
		names := append(strings.Split(dir, "/"), packageName(files))
		if i := slices.IndexFunc(names, func(n string) bool { return slices.Contains(vagueNames, n) }); i >= 0 {
			found = append(found, violation{dir, "the name " + names[i] + " says nothing: a package is named after what it provides", ruleName})
		}
		if want := commentStart(files); !slices.ContainsFunc(files, func(s source) bool { return strings.HasPrefix(s.file.Doc.Text(), want) && s.file.Doc.Text() != "" }) {
			found = append(found, violation{dir, fmt.Sprintf("no file has a package comment that begins with %q: what the package is for", want), ruleComment})
		}
	}
	return found
}

// packageName is the name of a package without that of its external tests.
func packageName(files []source) string { return strings.TrimSuffix(files[0].file.Name.Name, "_test") }

func commentStart(files []source) string {
	if name := packageName(files); name != "main" {
		return "Package " + name + " "
	}
	return "Command "
}
