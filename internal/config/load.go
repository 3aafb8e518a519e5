package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"pollux/internal/secret"
)

// root is the schema of a whole configuration.
var root = complete(schemaOf(reflect.TypeFor[Config]()))

// Options say what Load reads. The zero value reads DefaultFile, where there is one, and the environment, and asks for everything.
type Options struct {
	File    string         // the file; empty means the flag --config, then $POLLUX_CONFIG, then DefaultFile where there is one
	Environ []string       // the environment as NAME=value; nil means that of the process
	Flags   *pflag.FlagSet // the flags of a command, parsed; nil means none. See AddFlags
	Set     []string       // overrides of the form key=value, stronger than all others; for programs
	Skip    Skip           // what the command does not use
	Gateway string         // the only gateway that the command uses, so that the secrets of the others need not be there; empty means all
}

// Skip says what a command does not use: what need not be there, and which secrets are not read.
type Skip uint8

// What can be skipped.
const (
	SkipDatabase Skip = 1 << iota
	SkipBroker
	SkipGateways  // the secrets of adapters are not read either
	SkipWebhooks  // the secrets of notifications are not read either
	SkipTelemetry // the secrets of pushes and the certificates of the pages are not read either
	skipSecrets   // no file or variable that a secret is named by is read: for Check
)

// sectionSkips are what skips the secrets and certificates of a section.
var sectionSkips = map[string]Skip{"database": SkipDatabase, "nats": SkipBroker, "gateways": SkipGateways, "webhooks": SkipWebhooks, "telemetry": SkipTelemetry}

// Load reads and checks the configuration. When it is refused the error is an *Invalid with every problem. Reading never changes anything
// and connects to nothing.
func Load(o Options) (Config, error) {
	c, problems, err := load(o)
	switch {
	case err != nil:
		return Config{}, err
	case len(problems) > 0:
		return Config{}, &Invalid{Problems: problems}
	}
	return c, nil
}

// Diagnose is Load for who looks at a system that may be ill. Where nothing is wrong but secrets and certificates that are not there or cannot be used, it returns the configuration without them,
// and what is wrong with them. A service refuses such a configuration at its start; one that runs has the last good ones.
func Diagnose(o Options) (Config, []Problem, error) {
	c, problems, err := load(o)
	if err != nil {
		return Config{}, nil, err
	}
	if slices.ContainsFunc(problems, func(p Problem) bool { return !p.unusable }) {
		return Config{}, nil, &Invalid{Problems: problems}
	}
	return c, problems, nil
}

// load reads everything, and returns it with all that is wrong.
func load(o Options) (Config, []Problem, error) {
	environ := o.Environ
	if environ == nil {
		environ = os.Environ()
	}
	file, content, err := readFile(o, environ)
	if err != nil {
		return Config{}, nil, err
	}
	w := gather(o, file, content, environ)
	if w.broken {
		return Config{}, order(w.problems), nil
	}
	w.inherit()
	c, problems, err := w.complete(o)
	if err == nil && len(problems) > 0 && file == "" && slices.ContainsFunc(problems, func(p Problem) bool { return !p.unusable }) {
		problems = append([]Problem{nothingRead(environ)}, problems...)
	}
	return c, problems, err
}

// complete makes a Config of what was written and reads the secrets; with it comes everything that is wrong.
func (w *written) complete(o Options) (Config, []Problem, error) {
	v := &verifier{origins: w.origins, bad: w.bad(), skip: o.Skip, only: o.Gateway}
	secrets := v.secrets(root, nil, w.values)
	c, err := w.decode(secrets)
	if err != nil {
		return Config{}, nil, err
	}
	c.secrets = secrets.names
	v.config(&c)
	c.warnings = order(v.warnings)
	c.from = &reading{options: o, written: w, values: secrets.values, units: w.units(&c, o.Skip)}
	return c, order(append(w.problems, v.problems...)), nil
}

// nothingRead is the first thing to know about what is missing where no file was read.
func nothingRead(environ []string) Problem {
	if slices.Contains(environ, envFile+"=") {
		return Problem{Where: "environment " + envFile, What: "empty, and no " + DefaultFile + " is here, so that no file was read; write its name there, or --" + FlagConfig + " FILE"}
	}
	return Problem{What: "no " + DefaultFile + " is here, so that no file was read; name one with --" + FlagConfig + " FILE or " + envFile + ", or copy pollux.example.yaml"}
}

// CheckFile reads and checks a file as a service elsewhere would, together with the flags: without the environment, and without the secrets and the
// files that are named in it, and without what is skipped. An empty name is that of the flags, or DefaultFile.
func CheckFile(file string, flags *pflag.FlagSet, skip Skip) error {
	_, err := Load(Options{File: file, Environ: []string{}, Flags: flags, Skip: skip | skipSecrets})
	return err
}

// readFile returns the name and the content of the file. No file is no content.
func readFile(o Options, environ []string) (string, []byte, error) {
	name, from := o.File, ""
	if name == "" && o.Flags != nil && o.Flags.Lookup(FlagConfig) != nil {
		name, from = o.Flags.Lookup(FlagConfig).Value.String(), " (flag --"+FlagConfig+")"
	}
	if name == "" {
		name, from = lookup(environ, envFile), " (environment "+envFile+")"
	}
	if name == "" {
		if _, err := os.Stat(DefaultFile); errors.Is(err, fs.ErrNotExist) {
			return "", nil, nil
		}
		name, from = DefaultFile, ""
	}
	st, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil, fmt.Errorf("no configuration file %s%s; copy pollux.example.yaml to it and change what differs", name, from)
	case err != nil:
		return "", nil, fmt.Errorf("configuration file%s: %w", from, err)
	case !st.Mode().IsRegular():
		return "", nil, fmt.Errorf("configuration file %s%s: not a regular file", name, from)
	case st.Mode().Perm()&0o002 != 0: // it says where the keys are sent
		return "", nil, fmt.Errorf("configuration file %s%s: everybody may change it; run: chmod o-w %s", name, from, name)
	case st.Size() > maxFileBytes:
		return "", nil, fmt.Errorf("configuration file %s%s: larger than %d bytes, is it the right one?", name, from, maxFileBytes)
	}
	if folder, err := secret.Swappable(name); err == nil && folder != "" {
		return "", nil, fmt.Errorf("configuration file %s%s: everybody may put another in its place; run: chmod o-w %s, or mount it read-only", name, from, folder)
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return "", nil, fmt.Errorf("configuration file%s: %w", from, err)
	}
	return name, content, nil
}

func lookup(environ []string, name string) string {
	for _, s := range environ {
		if v, ok := strings.CutPrefix(s, name+"="); ok {
			return v
		}
	}
	return ""
}

// written is what all sources say, merged.
type written struct {
	values   map[string]any
	origins  map[string]origin
	problems []Problem
	broken   bool // the file is no configuration at all, so that nothing else can be said
}

// gather reads all sources, the weakest first.
func gather(o Options, file string, content []byte, environ []string) *written {
	w := &written{}
	c := newChecker(root)
	merged := koanf.New(separator)
	put := func(n *node, problems []Problem) {
		w.problems = append(w.problems, problems...)
		if n == nil {
			return
		}
		w.merge(merged, c.mapping(root, nil, n))
	}
	w.merge(merged, valuesOf(reflect.ValueOf(Default())))
	fileNode, problems := &node{kind: mapping}, []Problem(nil)
	if file != "" {
		fileNode, problems = readYAML(file, content)
	}
	if fileNode == nil {
		w.problems, w.broken = problems, true
		return w
	}
	put(fileNode, problems)
	flags, flagProblems := fromFlags(o.Flags)
	env, envProblems := fromEnv(root, environ, namedVariables(environ, o.Set, fileNode, flags))
	put(env, envProblems)
	put(flags, flagProblems)
	set := &node{kind: mapping}
	put(set, set.set(o.Set, "the program"))
	w.values, w.origins, w.problems = merged.Raw(), c.origins, append(w.problems, c.problems...)
	return w
}

func (w *written) merge(into *koanf.Koanf, values map[string]any) {
	err := into.Load(confmap.Provider(values, ""), nil, koanf.WithMergeFunc(func(src, dest map[string]any) error {
		overlay(dest, src)
		return nil
	}))
	if err != nil { // confmap and overlay return none
		w.problems = append(w.problems, Problem{What: err.Error()})
	}
}

// overlay puts src over dst, section by section. Of a curve, a list takes the place of base and cap, and these of a list.
func overlay(dst, src map[string]any) {
	if src["list"] != nil {
		delete(dst, "base")
		delete(dst, "cap")
	}
	if src["base"] != nil || src["cap"] != nil {
		delete(dst, "list")
	}
	for name, v := range src {
		section, ok := v.(map[string]any)
		below, has := dst[name].(map[string]any)
		switch {
		case ok && has:
			overlay(below, section)
		case ok:
			dst[name] = clone(section)
		default:
			dst[name] = v
		}
	}
}

// clone copies the sections; values are never changed.
func clone(m map[string]any) map[string]any {
	c := make(map[string]any, len(m))
	for name, v := range m {
		if section, ok := v.(map[string]any); ok {
			v = clone(section)
		}
		c[name] = v
	}
	return c
}

// inherit completes what was written with what it inherits.
func (w *written) inherit() {
	inheritPolicies(w.values)
	inheritGateways(w.values)
	inheritHooks(w.values, func() map[string]any { return valuesOf(reflect.ValueOf(defaultHook())) })
}

// decode makes a Config of the values.
func (w *written) decode(found secrets) (Config, error) {
	complete := koanf.New(separator)
	if err := complete.Load(confmap.Provider(w.values, ""), nil); err != nil {
		return Config{}, fmt.Errorf("completing the configuration: %w", err)
	}
	var c Config
	err := complete.UnmarshalWithConf("", &c, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		TagName:     tagName,
		ErrorUnused: true,
		DecodeHook:  mapstructure.ComposeDecodeHookFunc(found.hook, mapstructure.TextUnmarshallerHookFunc()),
	}})
	if err != nil { // everything was checked before
		return Config{}, fmt.Errorf("completing the configuration: %w", err)
	}
	return c, nil
}

// secrets are the secrets in the sections of adapters, read.
type secrets struct {
	names  map[string]string        // by path.id
	values map[string]secret.Secret // by name
}

// hook puts secrets where their names stand.
func (s secrets) hook(from, to reflect.Type, v any) (any, error) {
	if to != secretType || from.Kind() != reflect.String {
		return v, nil
	}
	return s.values[v.(string)], nil
}

// inheritPolicies completes policies of the user's own from standard.
func inheritPolicies(values map[string]any) {
	policies := section(values, "policies")
	builtIn := Default().Policies
	for name := range policies {
		if _, ok := builtIn[name]; ok {
			continue
		}
		complete := clone(section(policies, Standard))
		overlay(complete, section(policies, name))
		policies[name] = complete
	}
}

// inheritGateways completes gateways from the default one, and their policies from those of the same name.
func inheritGateways(values map[string]any) {
	policies, gateways := section(values, "policies"), section(values, "gateways")
	for name := range gateways {
		written := section(gateways, name)
		adapter, _ := written["adapter"].(string)
		g := valuesOf(reflect.ValueOf(defaultGateway(adapter)))
		overlay(g, written)
		own := section(g, "policies")
		for policy := range own {
			complete := clone(section(policies, policy))
			overlay(complete, section(own, policy))
			own[policy] = complete
		}
		gateways[name] = g
	}
}

// section is what stands below a name; an empty section where nothing does.
func section(values map[string]any, name string) map[string]any {
	s, _ := values[name].(map[string]any)
	if s == nil {
		s = map[string]any{}
	}
	return s
}

// bad are the keys that have a problem already: what was written there is not in the values, so that nothing more can be said.
func (w *written) bad() map[string]bool {
	bad := map[string]bool{}
	for _, p := range w.problems {
		bad[p.Key] = true
	}
	return bad
}

// namedVariables are the environment variables that secrets are named by.
func namedVariables(environ, set []string, nodes ...*node) map[string]bool {
	names := map[string]bool{}
	for _, s := range slices.Concat(environ, set) {
		if _, name, ok := strings.Cut(s, "=env:"); ok {
			names[name] = true
		}
	}
	var walk func(*node)
	walk = func(n *node) {
		if n == nil {
			return
		}
		if name, ok := strings.CutPrefix(n.text, "env:"); ok && n.kind == scalar {
			names[name] = true
		}
		for _, item := range n.items {
			walk(item)
		}
		for _, f := range n.fields {
			walk(f.value)
		}
	}
	for _, n := range nodes {
		walk(n)
	}
	return names
}
