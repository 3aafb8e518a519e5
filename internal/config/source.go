package config

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/spf13/pflag"
)

// envPrefix begins every variable that is read; envNesting stands where a path has its dots.
const (
	envPrefix  = "POLLUX_"
	envNesting = "__"
	envFile    = envPrefix + "CONFIG"
	envActor   = envPrefix + "ACTOR"
)

// Actor is who acts when the command line does not say: $POLLUX_ACTOR, or nobody. It is no configuration: it belongs to a person's session.
func Actor() string { return os.Getenv(envActor) }

// envName is the environment variable that overrides a key: relay.every is POLLUX_RELAY__EVERY.
func envName(p path) string { return envPrefix + strings.ToUpper(strings.Join(p, envNesting)) }

// fromEnv reads the environment. A variable with the prefix and without nesting is not configuration: orchestrators put POLLUX_SERVICE_HOST and
// the like there, and secrets that env:NAME names have names of their own choosing. But one that would be a key if its nesting were written is
// a mistake that nobody would ever find, and is refused.
func fromEnv(root *schema, environ []string, named map[string]bool) (*node, []Problem) {
	flat := flatNames(root, nil, map[string]path{})
	var problems []Problem
	top := &node{kind: mapping}
	provider := env.Provider("", env.Opt{
		Prefix:      envPrefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, text string) (string, any) {
			at := origin{name: "environment " + name}
			short := strings.TrimPrefix(name, envPrefix)
			if strings.Contains(short, envNesting) {
				p := path(strings.Split(strings.ToLower(short), envNesting))
				return p.id(), &node{text: text, at: at}
			}
			if meant, ok := flat[strings.ToLower(short)]; ok && !named[name] {
				problems = append(problems, at.problem(meant, "not read; two underscores stand for a dot: write %s", envName(meant)))
			}
			return "", nil
		},
	})
	values, err := provider.Read()
	if err != nil {
		return nil, []Problem{{What: "reading the environment: " + err.Error()}}
	}
	for _, id := range sorted(values) {
		top.put(strings.Split(id, separator), values[id].(*node))
	}
	return top, problems
}

// flatNames are all fixed keys by their names with single underscores for dots.
func flatNames(s *schema, p path, names map[string]path) map[string]path {
	for _, name := range s.names {
		key := p.child(name)
		if below := s.fields[name]; below.section() {
			flatNames(below, key, names)
		} else {
			names[strings.Join(key, "_")] = key
		}
	}
	return names
}

// The flags of the configuration.
const (
	FlagConfig = "config"
	FlagSet    = "set"
	flagKey    = "pollux.key" // the annotation of a flag that stands for a key
)

// AddFlags adds the flags that every command has: --config, --set, --log-level and --log-format.
func AddFlags(fs *pflag.FlagSet) {
	fs.String(FlagConfig, "", "configuration file (default $"+envFile+", or "+DefaultFile+" where there is one)")
	fs.StringArray(FlagSet, nil, "override a key of the configuration, such as --set relay.every=20ms; may be repeated")
	AddFlag(fs, "log-level", "log.level", "what is less important is not written: debug, info, warn or error")
	AddFlag(fs, "log-format", "log.format", "text or json")
}

// AddFlag adds a flag that overrides a key of the configuration. It panics when there is no such key.
func AddFlag(fs *pflag.FlagSet, name, key, usage string) {
	if s := root.at(strings.Split(key, ".")); s == nil || s.kind == mapping {
		panic("config: the flag --" + name + " stands for an unknown key " + key)
	}
	fs.String(name, "", usage)
	if err := fs.SetAnnotation(name, flagKey, []string{key}); err != nil {
		panic("config: " + err.Error())
	}
}

// fromFlags reads the flags that were given.
func fromFlags(fs *pflag.FlagSet) (*node, []Problem) {
	top := &node{kind: mapping}
	if fs == nil {
		return top, nil
	}
	provider := posflag.ProviderWithFlag(fs, "", nil, func(f *pflag.Flag) (string, any) {
		key := f.Annotations[flagKey]
		if len(key) == 0 {
			return "", nil
		}
		p := path(strings.Split(key[0], "."))
		return p.id(), &node{text: f.Value.String(), at: origin{name: "flag --" + f.Name}}
	})
	values, err := provider.Read()
	if err != nil {
		return nil, []Problem{{What: "reading the flags: " + err.Error()}}
	}
	for _, id := range sorted(values) {
		top.put(strings.Split(id, separator), values[id].(*node))
	}
	if fs.Lookup(FlagSet) == nil {
		return top, nil
	}
	given, err := fs.GetStringArray(FlagSet)
	if err != nil {
		return nil, []Problem{{What: "reading the flags: " + err.Error()}}
	}
	return top, top.set(given, "flag --"+FlagSet)
}

// set puts overrides of the form key=value in.
func (n *node) set(given []string, from string) []Problem {
	var problems []Problem
	for _, s := range given {
		key, text, ok := strings.Cut(s, "=")
		p := path(strings.Split(key, "."))
		if !ok || slices.ContainsFunc(p, func(name string) bool { return !printable(name) }) {
			problems = append(problems, origin{name: from}.problem(nil, "not of the form key=value; write one such as relay.every=20ms"))
			continue
		}
		n.put(p, &node{text: text, at: origin{name: from}})
	}
	return problems
}

// put puts a value at a path, with the sections above it. A value that stands in the way of a section makes place.
func (n *node) put(p path, v *node) {
	for i := range n.fields {
		if f := &n.fields[i]; f.name == p[0] {
			if len(p) == 1 {
				f.value, f.at = v, v.at
				return
			}
			if f.value.kind != mapping {
				f.value = &node{kind: mapping, at: v.at}
			}
			f.value.put(p[1:], v)
			return
		}
	}
	if len(p) > 1 {
		section := &node{kind: mapping, at: v.at}
		section.put(p[1:], v)
		v = section
	}
	n.fields = append(n.fields, field{name: p[0], at: v.at, value: v})
}

func indexed(i int) string { return fmt.Sprintf("[%d]", i) }
