package archtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestTheSourcesKeepTheWalls(t *testing.T) {
	root := moduleRoot(t)
	m, err := load(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"./internal/payment", "./internal/archtest", "./cmd/consumer"} {
		if !slices.ContainsFunc(m.sources, func(s source) bool { return s.dir == dir }) {
			t.Errorf("the walk from %s did not come to %s", root, dir)
		}
	}
	for _, v := range m.check(rules) {
		t.Error(v)
	}
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod is above this test")
		}
		dir = parent
	}
}

// fixture is a source that breaks one rule, or none.
type fixture struct {
	file  string
	src   string
	rule  string // the broken rule's name; empty means none
	where string // where it is broken, if not at the file's second line
}

// in makes a source whose second line imports a package.
func in(file, imported string) (string, string) {
	name := packageOf(file)
	return file, "// Package " + name + " is a fixture.\npackage " + name + "; import _ \"" + imported + "\"\n"
}

func packageOf(file string) string {
	if dir := filepath.Dir(file); dir != "." {
		return filepath.Base(dir)
	}
	return "pollux"
}

// forbidden is an import that must be found.
func forbidden(rule, file, imported string) fixture {
	file, src := in(file, imported)
	return fixture{file: file, src: src, rule: rule}
}

// allowed is an import that must not.
func allowed(file, imported string) fixture {
	file, src := in(file, imported)
	return fixture{file: file, src: src}
}

// calling makes a source whose second line says something.
func calling(rule, file, imported, statement string) fixture {
	name := packageOf(file)
	return fixture{file: file, rule: rule, src: "// Package " + name + " is a fixture.\n" +
		"package " + name + "; import " + imported + "; func f(t, b, tb, rt any) { " + statement + " }\n"}
}

var fixtures = []fixture{
	forbidden("the core is pure", "internal/payment/x.go", "context"),
	forbidden("the core is pure", "internal/payment/currency/x.go", "context"),
	forbidden("the core is pure", "internal/redelivery/x.go", "log/slog"),
	forbidden("the core is pure", "internal/redelivery/x.go", "math/rand/v2"),
	forbidden("the core is pure", "internal/message/x.go", "github.com/google/uuid"),
	forbidden("the core is pure", "internal/message/x.go", "pollux"),
	forbidden("the core is pure", "internal/message/x.go", "pollux/internal/secret"),
	forbidden("the core is pure", "internal/gateway/x.go", "net/http"),
	forbidden("the core is pure", "internal/gateway/x.go", "pollux/internal/gateway/strictjson"),
	allowed("internal/gateway/x.go", "pollux/internal/payment"),
	allowed("internal/redelivery/x.go", "pollux/internal/gateway"),
	allowed("internal/redelivery/x.go", "math"),
	allowed("internal/gateway/stripe/x.go", "context"),
	allowed("internal/payment/x_test.go", "pgregory.net/rapid"),

	calling("the core has no clock", "internal/redelivery/x.go", `"time"`, "time.Now()"),
	calling("the core has no clock", "internal/redelivery/x.go", `clock "time"`, "clock.NewTimer(1)"),
	calling("the core has no clock", "internal/payment/x.go", `"time"`, "_ = time.Now"),
	calling("", "internal/redelivery/x.go", `"time"`, "_ = time.Second"),
	calling("", "internal/outbox/x.go", `"time"`, "time.Now()"),

	forbidden("use cases know no vendor", "internal/consumer/x.go", "pollux/internal/postgres"),
	forbidden("use cases know no vendor", "internal/deadletter/x.go", "pollux/internal/broker"),
	forbidden("use cases know no vendor", "internal/webhook/x.go", "pollux/internal/gateway/stripe"),
	forbidden("use cases know no vendor", "internal/breaker/x.go", "pollux/internal/telemetry"),
	allowed("internal/webhook/x.go", "pollux/internal/gateway/strictjson"),
	allowed("internal/consumer/x.go", "pollux/internal/gateway"),
	allowed("internal/consumer/x_test.go", "pollux/internal/postgres"),

	forbidden("arrows point inward", "internal/postgres/x.go", "pollux/internal/app"),
	forbidden("arrows point inward", "internal/config/x.go", "pollux/internal/cli"),
	allowed("cmd/pollux/x.go", "pollux/internal/cli"),
	allowed("internal/cli/x.go", "pollux/internal/app"),
	allowed("internal/postgres/x.go", "pollux/internal/consumer"),

	forbidden("adapters do not read the configuration", "internal/broker/x.go", "pollux/internal/config"),
	forbidden("adapters do not read the configuration", "internal/consumer/x.go", "pollux/internal/config"),
	allowed("internal/app/x.go", "pollux/internal/config"),

	forbidden("SQL is in one place", "internal/broker/x.go", "github.com/jackc/pgx/v5/pgxpool"),
	forbidden("SQL is in one place", "internal/telemetry/x.go", "database/sql"),
	forbidden("SQL is in one place", "x.go", "github.com/jackc/pgx/v5"),
	allowed("internal/app/x.go", "github.com/jackc/pgx/v5/pgxpool"),
	allowed("internal/postgres/x.go", "github.com/jackc/pgx/v5"),

	forbidden("NATS is in one place", "internal/postgres/x.go", "github.com/nats-io/nats.go"),
	forbidden("NATS is in one place", "internal/telemetry/x.go", "github.com/nats-io/nats.go/jetstream"),
	allowed("internal/broker/x.go", "github.com/nats-io/nats.go/jetstream"),

	forbidden("services contain no NATS server", "internal/app/x.go", "github.com/nats-io/nats-server/v2/server"),
	forbidden("services contain no NATS server", "cmd/consumer/x.go", "github.com/nats-io/nats-server/v2/server"),
	allowed("internal/natsembed/x.go", "github.com/nats-io/nats-server/v2/server"),
	allowed("internal/broker/x_test.go", "github.com/nats-io/nats-server/v2/server"),

	forbidden("services contain nothing of a laptop", "internal/app/x.go", "pollux/internal/localpg"),
	forbidden("services contain nothing of a laptop", "internal/cli/x.go", "pollux/internal/natsembed"),
	forbidden("services contain nothing of a laptop", "cmd/webhook/x.go", "pollux/internal/dev"),
	allowed("internal/dev/x.go", "pollux/internal/gatewaysim"),
	allowed("cmd/dev/x.go", "pollux/internal/dev"),
	allowed("internal/pgtest/x.go", "pollux/internal/localpg"),

	forbidden("services contain no tests", "internal/broker/x.go", "testing"),
	forbidden("services contain no tests", "internal/dev/x.go", "pollux/internal/pgtest"),
	allowed("internal/gateway/gatewaytest/x.go", "testing"),
	allowed("internal/broker/x_test.go", "pollux/internal/natstest"),

	calling("one reader of the environment", "internal/broker/x.go", `"os"`, `os.Getenv("X")`),
	calling("one reader of the environment", "cmd/consumer/x.go", `system "os"`, `system.LookupEnv("X")`),
	calling("one reader of the environment", "internal/app/x.go", `"os"`, `_ = os.Environ`),
	calling("", "internal/config/x.go", `"os"`, `os.Getenv("X")`),
	calling("", "internal/broker/x.go", `"os"`, `os.Getpid()`),
	calling("", "internal/broker/x_test.go", `"os"`, `os.Getenv("X")`),

	calling("one reader of secrets", "internal/app/x.go", `"pollux/internal/secret"`, `secret.Load("env:X")`),
	calling("", "internal/app/x.go", `"pollux/internal/secret"`, `secret.New("x")`),
	calling("", "internal/config/x.go", `"pollux/internal/secret"`, `secret.Load("env:X")`),

	forbidden("one reader of configuration files", "internal/app/x.go", "github.com/knadh/koanf/v2"),
	forbidden("one reader of configuration files", "internal/gateway/httpjson/x.go", "github.com/knadh/koanf/providers/file"),
	allowed("internal/config/x.go", "github.com/knadh/koanf/providers/env/v2"),

	forbidden("flags belong to commands", "internal/broker/x.go", "flag"),
	forbidden("flags belong to commands", "internal/outbox/x.go", "github.com/spf13/pflag"),
	allowed("internal/gatewaysim/x.go", "github.com/spf13/cobra"),
	allowed("internal/app/x.go", "github.com/spf13/pflag"),

	calling("tests do not skip", "internal/broker/x_test.go", `_ "testing"`, `t.Skip("no server")`),
	calling("tests do not skip", "internal/broker/x_test.go", `_ "testing"`, `func() { tb.SkipNow() }()`),
	calling("", "internal/broker/x_test.go", `_ "testing"`, `rt.Skip()`),

	calling("tests do not sleep", "internal/broker/x_test.go", `"time"`, "time.Sleep(1)"),
	calling("", "internal/broker/x_test.go", `("time"; _ "testing/synctest")`, "time.Sleep(1)"),
	calling("", "internal/broker/x.go", `"time"`, "time.Sleep(1)"),

	{"cmd/consumer/main.go", "// Command consumer is a fixture.\npackage main\n" + strings.Repeat("\n", 29), ruleMain, "cmd/consumer/main.go"},
	{"cmd/consumer/main.go", "// Command consumer is a fixture.\npackage main\n" + strings.Repeat("\n", 28), "", ""},

	{"internal/utils/x.go", "// Package utils is a fixture.\npackage utils\n", ruleName, "./internal/utils"},
	{"internal/common/money/x.go", "// Package money is a fixture.\npackage money\n", ruleName, "./internal/common/money"},
	{"internal/wire/x.go", "// Package types is a fixture.\npackage types\n", ruleName, "./internal/wire"},

	{"internal/payment/x.go", "package payment\n", ruleComment, "./internal/payment"},
	{"internal/payment/x.go", "// This package is a fixture.\npackage payment\n", ruleComment, "./internal/payment"},
	{"internal/payment/x.go", "//go:build linux\n\npackage payment\n", ruleComment, "./internal/payment"},
	{"cmd/pollux/x.go", "package main\n", ruleComment, "./cmd/pollux"},
	{"internal/natsfacts/x_test.go", "// Package natsfacts is a fixture of tests alone.\npackage natsfacts\n", "", ""},
}

func TestEachRuleFindsWhatBreaksItAndNothingElse(t *testing.T) {
	for _, f := range fixtures {
		m, err := load(fstest.MapFS{
			"go.mod": {Data: []byte("module pollux\n\ngo 1.26\n")},
			f.file:   {Data: []byte(f.src)},
		})
		if err != nil {
			t.Fatalf("%s: %v\n%s", f.file, err, f.src)
		}
		found := m.check(rules)
		if f.rule == "" {
			for _, v := range found {
				t.Errorf("wrongly found: %v\n%s", v, f.src)
			}
			continue
		}
		where := f.where
		if where == "" {
			where = f.file + ":2"
		}
		if !slices.ContainsFunc(found, func(v violation) bool { return v.rule == f.rule && v.where == where }) {
			t.Errorf("%q is not found at %s, but %v\n%s", f.rule, where, found, f.src)
		}
	}
}

func TestEachRuleHasAReasonAndIsTested(t *testing.T) {
	names := []string{ruleMain, ruleName, ruleComment}
	for _, r := range rules {
		if r.reason == "" || len(r.in) == 0 || len(r.imports)+len(r.calls) == 0 {
			t.Errorf("the rule %q lacks a reason, folders or what it forbids", r.name)
		}
		names = append(names, r.name)
	}
	for _, name := range names {
		if !slices.ContainsFunc(fixtures, func(f fixture) bool { return f.rule == name }) {
			t.Errorf("no fixture breaks the rule %q", name)
		}
	}
	for _, f := range fixtures {
		if f.rule != "" && !slices.Contains(names, f.rule) {
			t.Errorf("%s: there is no rule %q", f.file, f.rule)
		}
	}
}

func TestOtherModulesAndWhatGoLeavesOutAreNotRead(t *testing.T) {
	wrong := &fstest.MapFile{Data: []byte("this is no Go")}
	m, err := load(fstest.MapFS{
		"go.mod":                     {Data: []byte("module pollux\n")},
		"bench/go.mod":               {Data: []byte("module bench\n")},
		"bench/x.go":                 wrong,
		"internal/a/testdata/x.go":   wrong,
		"vendor/x.go":                wrong,
		".hidden/x.go":               wrong,
		"_old/x.go":                  wrong,
		"internal/payment/x.go":      {Data: []byte("package payment\n")},
		"internal/payment/notes.txt": wrong,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.sources) != 1 || m.sources[0].name != "internal/payment/x.go" {
		t.Errorf("it read %v", m.sources)
	}
	if _, err := load(fstest.MapFS{"go.mod": {Data: []byte("module pollux\n")}, "internal/payment/x.go": wrong}); err == nil {
		t.Error("a source that cannot be parsed passes")
	}
	if _, err := load(fstest.MapFS{"go.mod": {Data: []byte("go 1.26\n")}}); err == nil {
		t.Error("a module without a name passes")
	}
}

func TestPatternsMeanWhatTheRulesSay(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"log/...", "log", true},
		{"log/...", "log/slog", true},
		{"log/...", "logger", false},
		{"./internal/gateway/*", "./internal/gateway", false},
		{"./internal/gateway/*", "./internal/gateway/stripe", true},
		{"./internal/gateway", "./internal/gateway/stripe", false},
		{"./...", "./internal/payment", true},
		{"./...", ".", true},
		{"./...", "fmt", false},
		{outside, "github.com/google/uuid", true},
		{outside, "encoding/json", false},
		{outside, "./internal/payment", false},
		{outside, ".", false},
	} {
		if got := match(c.pattern, c.path); got != c.want {
			t.Errorf("match(%q, %q) = %v", c.pattern, c.path, got)
		}
	}
}
