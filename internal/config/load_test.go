package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"pollux/internal/certificate/certificatetest"
)

// enough is the least that Load takes.
const enough = `
database:
  url: postgres://pollux@127.0.0.1/payments
nats:
  urls: [nats://127.0.0.1:4222]
gateways:
  acme:
    httpjson: {url: "https://acme.example/v1/payments/{reference}", pointers: {status: /status}, statuses: {paid: succeeded}}
`

// file writes a configuration and returns its name.
func file(t testing.TB, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "pollux.yaml")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func mustLoad(t testing.TB, o Options) Config {
	t.Helper()
	if o.Environ == nil {
		o.Environ = []string{}
	}
	c, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// problems returns what Load refuses, one a line, with the name of the file taken out.
func problems(t testing.TB, o Options) string {
	t.Helper()
	if o.Environ == nil {
		o.Environ = []string{}
	}
	_, err := Load(o)
	if err == nil {
		return ""
	}
	var invalid *Invalid
	if !errors.As(err, &invalid) {
		t.Fatalf("not a list of problems: %v", err)
	}
	var lines []string
	for _, p := range invalid.Problems {
		lines = append(lines, strings.ReplaceAll(p.String(), filepath.Dir(o.File)+"/", ""))
	}
	return strings.Join(lines, "\n")
}

func flags(t testing.TB, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(fs)
	AddFlag(fs, "every", "relay.every", "")
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func TestFlagsOverrideEnvironmentOverridesFileOverridesDefaults(t *testing.T) {
	name := file(t, enough+`
relay: {every: 11ms, batch: 11, backlog: 11}
`)
	env := []string{"POLLUX_RELAY__EVERY=12ms", "POLLUX_RELAY__BATCH=12", "HOME=/root"}
	fs := flags(t, "--every", "13ms")
	c := mustLoad(t, Options{File: name, Environ: env, Flags: fs})
	got := []any{c.Relay.InFlight, c.Relay.Backlog, c.Relay.Batch, c.Relay.Every}
	want := []any{Default().Relay.InFlight, 11, 12, 13 * time.Millisecond}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	c = mustLoad(t, Options{File: name, Environ: env, Flags: fs, Set: []string{"relay.every=14ms"}})
	if c.Relay.Every != 14*time.Millisecond {
		t.Errorf("every %s, a program's override is strongest", c.Relay.Every)
	}
}

func TestFlagsThatAreNotGivenOverrideNothing(t *testing.T) {
	c := mustLoad(t, Options{File: file(t, enough+"log: {level: warn}\n"), Flags: flags(t)})
	if got := c.Log.Level; got != Level(4) {
		t.Errorf("level %v, the file says warn", got)
	}
}

func TestSetOverridesAnyKey(t *testing.T) {
	c := mustLoad(t, Options{File: file(t, enough), Flags: flags(t, "--set", "gateways.acme.workers=3", "--set", "policies.standard.pending.list=1s, 2s",
		"--log-level", "debug", "--log-format", "json")})
	if c.Gateways["acme"].Workers != 3 || c.Log.Format != "json" || c.Log.Level != Level(-4) {
		t.Errorf("workers %d, log %+v", c.Gateways["acme"].Workers, c.Log)
	}
	if d := cmp.Diff([]time.Duration{time.Second, 2 * time.Second}, c.Policies[Standard].Pending.List); d != "" {
		t.Error(d)
	}
}

func TestEnvironmentReachesEveryKindOfKey(t *testing.T) {
	c := mustLoad(t, Options{File: file(t, enough), Environ: []string{
		"POLLUX_CONSUMER__LANES=low,high",
		"POLLUX_CONSUMER__RECORD__LINGER=3ms",
		"POLLUX_TELEMETRY__TRACE_RATIO=12.5%",
		"POLLUX_POLICIES__STANDARD__ERROR__JITTER=decorrelated",
		"POLLUX_CLASSES__VIP=high_value",
		"POLLUX_GATEWAYS__ACME__WORKERS=7",
	}})
	if d := cmp.Diff([]string{"low", "high"}, c.Consumer.Lanes); d != "" {
		t.Error(d)
	}
	if c.Consumer.Record.Linger != 3*time.Millisecond || c.Telemetry.TraceRatio.Ratio() != 0.125 || c.Gateways["acme"].Workers != 7 {
		t.Errorf("linger %s, ratio %v, workers %d", c.Consumer.Record.Linger, c.Telemetry.TraceRatio, c.Gateways["acme"].Workers)
	}
	if got := c.Policy("acme", "vip").Name; got != HighValue {
		t.Errorf("vip has the policy %s", got)
	}
}

func TestVariableWithoutItsNestingIsRefusedNotIgnored(t *testing.T) {
	got := problems(t, Options{File: file(t, enough), Environ: []string{"POLLUX_RELAY_EVERY=20ms"}})
	if want := "environment POLLUX_RELAY_EVERY: relay.every: not read; two underscores stand for a dot: write POLLUX_RELAY__EVERY"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestVariablesOfOthersAreLeftAlone(t *testing.T) {
	t.Setenv("POLLUX_DATABASE_URL", "postgres://pollux:hunter2@db.internal/payments")
	mustLoad(t, Options{File: file(t, enough), Environ: []string{
		"POLLUX_SERVICE_HOST=10.0.0.1", "POLLUX_PORT=tcp://10.0.0.1:80", "POLLUX_PORT_80_TCP_ADDR=10.0.0.1", // an orchestrator's
		"POLLUX_POSTGRES_BIN=/usr/lib/postgresql/15/bin",
		"POLLUX_CONFIG=elsewhere.yaml",
		"POLLUX_DATABASE__URL=env:POLLUX_DATABASE_URL", // a secret may be called as it likes
		"POLLUX_DATABASE_URL=postgres://pollux:hunter2@db.internal/payments",
		"NOPE__NOPE=1",
	}})
}

func TestFileIsTheNamedOneThenTheVariablesThenTheUsual(t *testing.T) {
	level := func(s string) string { return enough + "log: {level: " + s + "}\n" }
	dir := t.TempDir()
	t.Chdir(dir)
	if _, err := Load(Options{Environ: []string{}, Skip: SkipDatabase | SkipBroker | SkipGateways}); err != nil {
		t.Errorf("no file and nothing needed: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, DefaultFile), []byte(level("debug")), 0o600); err != nil {
		t.Fatal(err)
	}
	byEnv, byFlag, byOption := file(t, level("info")), file(t, level("warn")), file(t, level("error"))
	env := []string{"POLLUX_CONFIG=" + byEnv}
	for want, o := range map[Level]Options{
		-4: {},
		0:  {Environ: env},
		4:  {Environ: env, Flags: flags(t, "--config", byFlag)},
		8:  {Environ: env, Flags: flags(t, "--config", byFlag), File: byOption},
	} {
		if got := mustLoad(t, o).Log.Level; got != want {
			t.Errorf("level %v, want %v", got, want)
		}
	}
}

func TestMissingFileSaysWhatToCopy(t *testing.T) {
	for _, o := range []Options{
		{File: "nowhere.yaml"},
		{Flags: flags(t, "--config", "nowhere.yaml")},
		{Environ: []string{"POLLUX_CONFIG=nowhere.yaml"}},
	} {
		if o.Environ == nil {
			o.Environ = []string{}
		}
		_, err := Load(o)
		if err == nil || !strings.Contains(err.Error(), "nowhere.yaml") || !strings.Contains(err.Error(), "copy pollux.example.yaml") {
			t.Errorf("Load says %v", err)
		}
		if errors.Is(err, &Invalid{}) {
			t.Error("a missing file is no problem of a configuration")
		}
	}
}

func TestWhatIsNoFileIsRefused(t *testing.T) {
	big := file(t, strings.Repeat("# nothing\n", maxFileBytes/10+1))
	for _, name := range []string{t.TempDir(), big, "/dev/null"} {
		if _, err := Load(Options{File: name, Environ: []string{}}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAFileThatEverybodyMayChangeIsRefused(t *testing.T) {
	name := file(t, "log: {level: warn}")
	if err := os.Chmod(name, 0o646); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Options{File: name, Environ: []string{}}); err == nil || !strings.Contains(err.Error(), "chmod o-w "+name) {
		t.Fatal(err)
	}
}

func TestWhatACommandDoesNotUseNeedNotBeThere(t *testing.T) {
	for _, c := range []struct {
		skip Skip
		want []string
	}{
		{0, []string{"database.url: missing", "nats.urls: missing", "gateways: missing"}},
		{SkipDatabase, []string{"nats.urls: missing", "gateways: missing"}},
		{SkipBroker | SkipGateways, []string{"database.url: missing"}},
		{SkipDatabase | SkipBroker | SkipGateways, nil},
	} {
		got := problems(t, Options{File: file(t, ""), Skip: c.skip})
		if n := strings.Count(got, "missing"); n != len(c.want) {
			t.Errorf("skip %d: %s", c.skip, got)
		}
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("skip %d: %s is not said in\n%s", c.skip, want, got)
			}
		}
	}
}

// A service refuses what cannot be used; who examines it goes on with the rest, and nothing else is forgiven.
func TestADiagnosisGoesOnWithoutSecretsThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	empty, cert, key := filepath.Join(dir, "empty"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pair, private := certificatetest.New(t).Issue("relay", -time.Minute)
	certificatetest.Write(t, cert, pair)
	certificatetest.Write(t, key, private)
	o := Options{Environ: []string{}, File: file(t, "database: {url: 'file:"+empty+"'}\nnats: {urls: ['tls://h:4222'], nkey_file: "+dir+"/none, cert_file: "+cert+", key_file: "+key+"}\n"), Skip: SkipGateways | SkipWebhooks}
	c, unusable, err := Diagnose(o)
	if err != nil || len(c.NATS.URLs) != 1 {
		t.Fatalf("%v, %+v", err, c.NATS)
	}
	var ill []string
	for _, p := range unusable {
		ill = append(ill, p.Key)
	}
	slices.Sort(ill)
	if !slices.Equal(ill, []string{"database.url", "nats.cert_file", "nats.nkey_file"}) {
		t.Errorf("%v", unusable)
	}
	if _, err := Load(o); err == nil {
		t.Error("a service takes it")
	}
	for _, f := range c.Files() {
		if f.Unused {
			t.Errorf("%+v", f)
		}
	}
	o.Set = []string{"relay.batch=0"}
	var invalid *Invalid
	if _, _, err := Diagnose(o); !errors.As(err, &invalid) || len(invalid.Problems) != 4 {
		t.Errorf("%v", err)
	}
	o.Set, o.Skip = nil, SkipDatabase|SkipBroker|SkipGateways
	if c, unusable, err = Diagnose(o); err != nil || len(unusable) > 0 {
		t.Errorf("%v %v", unusable, err)
	}
	for _, f := range c.Files() {
		if !f.Unused {
			t.Errorf("%+v", f)
		}
	}
}

func TestAFileByItselfIsCheckedWithTheFlagsAndNothingElse(t *testing.T) {
	t.Setenv("POLLUX_RELAY__BATCH", "0")
	name := file(t, strings.Replace(enough, "nats:\n", "nats:\n  user: pollux\n  password: file:/nowhere\n", 1))
	if err := CheckFile(name, nil, 0); err != nil {
		t.Errorf("a secret that only the service has: %v", err)
	}
	if err := CheckFile(name, flags(t, "--set", "relay.evry=3s"), 0); err == nil || !strings.Contains(err.Error(), "flag --set: relay.evry: unknown key") {
		t.Errorf("a flag was dropped: %v", err)
	}
	var invalid *Invalid
	if err := CheckFile(file(t, enough+"nats: {password: file:/nowhere}\n"), nil, 0); !errors.As(err, &invalid) || len(invalid.Problems) != 1 || invalid.Problems[0].Key != "nats" {
		t.Errorf("problems: %v", err)
	}
	if err := CheckFile(filepath.Join(t.TempDir(), "nowhere.yaml"), nil, 0); err == nil || errors.As(err, &invalid) && invalid == nil {
		t.Error("a file that does not exist was checked")
	}
}

func TestThatNoFileWasReadIsSaidFirst(t *testing.T) {
	t.Chdir(t.TempDir())
	for want, o := range map[string]Options{
		"no pollux.yaml is here, so that no file was read; name one with --config FILE or POLLUX_CONFIG, or copy pollux.example.yaml": {},
		"environment POLLUX_CONFIG: empty, and no pollux.yaml is here":                                                                {Environ: []string{"POLLUX_CONFIG="}},
	} {
		got := problems(t, o)
		if !strings.HasPrefix(got, want) || strings.Count(got, "missing") != 3 {
			t.Errorf("got\n%s\nwant first\n%s", got, want)
		}
	}
	if got := problems(t, Options{File: file(t, "")}); strings.Contains(got, "was read") {
		t.Errorf("a file was read: %s", got)
	}
}

func TestFlagForAnUnknownKeyIsAMistakeOfTheProgram(t *testing.T) {
	for _, key := range []string{"relay.evry", "relay"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a flag for %s was taken", key)
				}
			}()
			AddFlag(pflag.NewFlagSet("test", pflag.ContinueOnError), "x", key, "")
		}()
	}
}

func TestWhatIsPrintedCanBeLoaded(t *testing.T) {
	c := mustLoad(t, Options{File: file(t, enough+`
telemetry: {listen: ""}
policies:
  night: {pending: {base: 1m, cap: 36h, jitter: equal}, max_attempts: 5}
  high_value: {window: 0s, max_failures: 50, hold_limit: 0s}
classes: {night: night}
`), Set: []string{"gateways.acme.policies.standard.max_failures=9"}})
	printed, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again := mustLoad(t, Options{File: file(t, string(printed))})
	if d := cmp.Diff(c.String(), again.String()); d != "" {
		t.Errorf("another configuration when loaded again:\n%s", d)
	}
	if d := cmp.Diff(c.Policy("acme", "night"), again.Policy("acme", "night")); d != "" {
		t.Error(d)
	}
	if p := again.Policy("acme", HighValue); p.Window != 0 || p.HoldLimit != 0 || again.Telemetry.Listen != "" {
		t.Errorf("what was set to nothing has its default again: %+v %+v", p, again.Telemetry)
	}
	if got := again.Policy("acme", "standard").MaxFailures; got != 9 {
		t.Errorf("max_failures %d at acme, want 9", got)
	}
}
