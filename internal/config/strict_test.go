package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestEveryMistakeIsRefusedWithItsPlaceAndWhatToWrite(t *testing.T) {
	at := strings.Count(enough, "\n") + 1 // the first line of what is appended
	for _, c := range []struct{ name, more, want string }{
		{"unknown key", "relay: {evry: 1s}", `relay.evry: unknown key; did you mean every?`},
		{"unknown section", "realy: {every: 1s}", `realy: unknown key; did you mean relay?`},
		{"key in another spelling", "relay: {publishTimeout: 1s}", `relay.publishTimeout: unknown key; did you mean publish_timeout?`},
		{"key of another section", "relay: {linger: 1ms}", `relay.linger: unknown key; did you mean consumer.record.linger?`},
		{"key like no other", "log: {zzzzzzzz: 1}", `log.zzzzzzzz: unknown key; known here: format, level`},
		{"bare number for a duration", "relay: {every: 10}", `relay.every: 10 has no unit; write 10s, or another of ms, s, m, h and d`},
		{"bare zero for a duration", "policies: {standard: {window: 0}}", `policies.standard.window: 0 has no unit; write 0s, or another of ms, s, m, h and d`},
		{"duration in words", "relay: {every: soon}", `relay.every: "soon" is not a duration; write one such as 250ms, 30s, 5m, 1h30m or 30d`},
		{"negative duration", "relay: {every: -1s}", `relay.every: "-1s" is not a duration; write one such as 250ms, 30s, 5m, 1h30m or 30d`},
		{"text for a number", `relay: {batch: "500"}`, `relay.batch: write a whole number, such as 500`},
		{"fraction for a number", `relay: {batch: 1.5}`, `relay.batch: write a whole number, such as 500`},
		{"hexadecimal number", `relay: {batch: 0x10}`, `relay.batch: write a whole number, such as 500`},
		{"number for text", `log: {format: 5}`, `log.format: not text to YAML but a number, a date, or true or false; write it in quotes`},
		{"list for a value", `relay: {batch: [1]}`, `relay.batch: a single value; this is a list or a section`},
		{"value for a list", `consumer: {lanes: high}`, `consumer.lanes: a list; write it as [a, b], or an item a line, each behind a dash`},
		{"value for a section", `relay: fast`, `relay: a section; write its keys below it, indented`},
		{"list for a section", `relay: [fast]`, `relay: a section; write its keys below it, indented`},
		{"no value", `relay: {batch: }`, `relay.batch: has no value; write one, or take the key away for the default`},
		{"bare number for a jitter", `policies: {standard: {error: {jitter: 20}}}`, `policies.standard.error.jitter: 20 has no unit; write a percentage such as ±20%`},
		{"jitter beyond a hundred", `policies: {standard: {error: {jitter: 120%}}}`, `policies.standard.error.jitter: "120%" is not a jitter; write none, full, equal, decorrelated, or a percentage from ±1% to ±100%`},
		{"unknown jitter", `policies: {standard: {error: {jitter: some}}}`, `policies.standard.error.jitter: "some" is not a jitter; write none, full, equal, decorrelated, or a percentage from ±1% to ±100%`},
		{"bare number for a share", `telemetry: {trace_ratio: 0.1}`, `telemetry.trace_ratio: "0.1" has no unit; write a percentage such as 10%`},
		{"share beyond all", `telemetry: {trace_ratio: 101%}`, `telemetry.trace_ratio: "101%" is not between 0% and 100%`},
		{"unknown level", `log: {level: loud}`, `log.level: "loud" is not a level; write debug, info, warn or error`},
		{"unknown format", `log: {format: xml}`, `log.format: "xml" is not a format; write text or json`},
		{"no address", `telemetry: {listen: "9464"}`, `telemetry.listen: "9464" is not an address; write host:port such as 127.0.0.1:9464, or :9464 for all interfaces`},
		{"profiles for all", `telemetry: {pprof_listen: ":6060"}`, `telemetry.pprof_listen: :6060 is not loopback, and profiles show memory; write 127.0.0.1:6060`},
		{"one port for two", `telemetry: {pprof_listen: "127.0.0.1:9464"}`, `telemetry.pprof_listen: pprof_listen and listen are both 127.0.0.1:9464; write another port`},
		{"collector without a scheme", `telemetry: {otlp_endpoint: "collector:4317"}`, `telemetry.otlp_endpoint: not a URL of the form http://host:4317 or https://host:4317`},
		{"batch too large", `relay: {batch: 100000}`, `relay.batch: 100000; write 1 to 10000`},
		{"publish timeout beyond the duplicate window", `relay: {publish_timeout: 2m, lease: 10m}`, `relay.publish_timeout: 2m; write 100ms to 1m59s`},
		{"lease beyond the stream", `consumer: {lease: 11m}`, `consumer.lease: 11m; write 1s to 10m`},
		{"unknown lane", `consumer: {lanes: [high, express]}`, `consumer.lanes: "express" is not a lane; write some of high, normal, low`},
		{"lane twice", `consumer: {lanes: [high, high]}`, `consumer.lanes: high twice; write each lane once`},
		{"no lane", `consumer: {lanes: []}`, `consumer.lanes: no lane; write some of high, normal, low`},
		{"lease not above ack_wait", `consumer: {lease: 30s}`, `consumer.lease: consumer.lease (30s) is not longer than consumer.ack_wait (1m): the relay would publish a poll anew that is still being worked on; write a longer lease`},
		{"relay's lease not above ack_wait", `relay: {lease: 50s}`, `relay.lease: relay.lease (50s) is not longer than consumer.ack_wait (1m): the relay would publish a poll anew that is still being worked on; write a longer lease`},
		{"lease not above publishing", `relay: {lease: 2m, publish_timeout: 1m}`, `relay.lease: relay.lease (2m) is not more than twice relay.publish_timeout (1m), so that a batch would be claimed again while it is published; write a longer lease`},
		{"too few pending", `consumer: {max_ack_pending: 5063}`, `consumer.max_ack_pending: max_ack_pending (5063) is below hold_budget (5000) and the workers of acme (64) together: held polls would keep fresh ones from being delivered; write at least 5064`},
		{"cap below base", `policies: {standard: {error: {base: 2s, cap: 1s}}}`, `policies.standard.error.cap: 1s is below base 2s`},
		{"base without cap", `policies: {standard: {pending: {base: 2s}}}`, `policies.standard.pending.cap: 0s is below base 2s`},
		{"no bound", `policies: {standard: {window: 0s, max_failures: 1}}`, `policies.standard.max_attempts: max_attempts and window are both 0: such a payment would be polled for ever; set one of them`},
		{"hold limit of hours", `policies: {standard: {hold_limit: 6m}}`, `policies.standard.hold_limit: 6m0s: between 0s (never hold) and 5m; what waits longer belongs in the database`},
		{"class without a policy", `classes: {vip: gold}`, `classes.vip: no policy is named "gold"; write one of background, high_value, standard`},
		{"class with a name that is none", `classes: {VIP: standard}`, `classes.VIP: not a name; write 1 to 64 of a-z, 0-9, _ and -, beginning with a letter or a digit`},
		{"policy with a name that is none", `policies: {"a.b": {}}`, `policies."a.b": not a name; write 1 to 64 of a-z, 0-9, _ and -, beginning with a letter or a digit`},
		{"credentials in two ways", `nats: {}`, `nats: written twice, first on line 4; keep one`},
		{"anchor", `log: &l {level: info}`, `log: anchors and aliases are not read; write the value out`},
		{"merge key", `log: {<<: {level: info}}`, `log: merge keys and keys that are no words are not read; write the keys out`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := problems(t, Options{File: file(t, enough+c.more+"\n")})
			want := fmt.Sprintf("pollux.yaml:%d: %s", at, c.want)
			if !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestMistakesAcrossSectionsNameWhoeverWasWritten(t *testing.T) {
	got := problems(t, Options{File: file(t, enough+`
policies: {standard: {hold_limit: 5m}}
consumer: {lease: 6m}
`)})
	want := fmt.Sprintf("pollux.yaml:%d: policies.standard.hold_limit: hold_limit (5m) and consumer.lease (6m) together are longer than the broker keeps a poll (10m); write less",
		strings.Count(enough, "\n")+2)
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got = problems(t, Options{File: file(t, enough), Set: []string{"consumer.record.linger=1s", "consumer.ack_wait=9s", "gateways.acme.httpjson.timeout=5s"}})
	if want := "the program: consumer.record.linger: record.linger (1s) is more than a tenth of ack_wait (9s); write a few milliseconds"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got = problems(t, Options{File: file(t, enough), Environ: []string{"POLLUX_CONSUMER__ACK_WAIT=6m"}})
	for _, want := range []string{
		"environment POLLUX_CONSUMER__ACK_WAIT: consumer.ack_wait: consumer.lease (5m) is not longer than",
		"environment POLLUX_CONSUMER__ACK_WAIT: consumer.ack_wait: relay.lease (5m) is not longer than",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nis not said in\n%s", want, got)
		}
	}
}

func TestAllProblemsComeAtOnceInTheOrderOfTheFile(t *testing.T) {
	_, err := Load(Options{File: file(t, `database: {url: postgres://db.internal/payments, max_conn: 3}
nats:
  urls: [nats://127.0.0.1:4222]
relay:
  every: 10
  batch: 0
policies:
  standard:
    hold_limit: 1h
  standard: {}
gateways:
  ACME: {}
`), Environ: []string{"POLLUX_LOG__LEVEL=noisy"}, Set: []string{"nonsense"}})
	if err == nil {
		t.Fatal("loaded")
	}
	got := err.Error()
	from := 0
	for _, want := range []string{
		"problems:", ":1: database.max_conn:", ":5: relay.every:", ":6: relay.batch:", ":9: policies.standard.hold_limit:", ":10: policies.standard: written twice",
		":12: gateways.ACME: not a name", "environment POLLUX_LOG__LEVEL: log.level:", "the program: not of the form",
	} {
		i := strings.Index(got[from:], want)
		if i < 0 {
			t.Fatalf("%s is not said, or not in its place:\n%s", want, got)
		}
		from += i
	}
}

func TestWhatIsNotYAMLIsOneProblemWithItsLine(t *testing.T) {
	for content, want := range map[string]string{
		"relay:\n\tevery: 1s\n":   "pollux.yaml:2: not YAML: the line begins with a tab; indent it with blanks",
		"a: [\n":                  "not YAML: line",
		"- a\n- b\n":              "pollux.yaml:1: not a mapping of sections",
		"just text\n":             "pollux.yaml:1: not a mapping of sections",
		"log: {}\n---\nlog: {}\n": "a second YAML document",
		"log: {\"\\0\": 1}\n":     "pollux.yaml:1: log: a key that is empty",
		"log: {? [a, b] : 1}\n":   "pollux.yaml:1: log: merge keys and keys that are no words",
	} {
		if got := problems(t, Options{File: file(t, content), Skip: SkipDatabase | SkipBroker | SkipGateways}); !strings.Contains(got, want) {
			t.Errorf("%q: got  %s\nwant %s", content, got, want)
		}
	}
	for _, content := range []string{"relay:\n\tevery: 1s\n", "a: [\n", "just text\n"} { // what is missing then is in the file
		if got := problems(t, Options{File: file(t, content)}); strings.Contains(got, "missing") || strings.Contains(got, "\n") {
			t.Errorf("%q: %s", content, got)
		}
	}
}

func TestTheMonitoringPageIsAURL(t *testing.T) {
	for _, page := range []string{"nats:8222", "http://", "http://me:hunter2@nats:8222"} {
		if got := problems(t, Options{File: file(t, enough), Set: []string{"nats.monitor_url=" + page}}); !strings.Contains(got, "nats.monitor_url: not a URL of the form http://host:8222") || strings.Contains(got, "hunter2") {
			t.Errorf("%s: %s", page, got)
		}
	}
}

func TestEmptyListSaysThatItIsEmpty(t *testing.T) {
	for _, o := range []Options{
		{File: file(t, enough), Set: []string{"nats.urls="}},
		{File: file(t, enough), Environ: []string{"POLLUX_NATS__URLS="}},
		{File: file(t, strings.Replace(enough, "[nats://127.0.0.1:4222]", "", 1))},
	} {
		if got := problems(t, o); !strings.Contains(got, "nats.urls: empty; write one") || strings.Contains(got, "\n") {
			t.Errorf("got %s", got)
		}
	}
}

func TestEmptySectionsAndFilesSayNothing(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "---\n", "relay:\n#  every: 1s\npolicies:\n  standard:\ngateways:\n"} {
		if got := problems(t, Options{File: file(t, content), Skip: SkipDatabase | SkipBroker | SkipGateways}); got != "" {
			t.Errorf("%q: %s", content, got)
		}
	}
}

const inlineSecret = "hunter2-do-not-tell"

func TestSecretsWrittenOutAreRefusedAndNotRepeated(t *testing.T) {
	for name, o := range map[string]Options{
		"password in a URL":           {Set: []string{"database.url=postgres://pollux:" + inlineSecret + "@db.internal/payments"}},
		"password as a parameter":     {Set: []string{"database.url=postgres://db.internal/payments?password=" + inlineSecret}},
		"loopback that is not":        {Set: []string{"database.url=postgres://u:" + inlineSecret + "@127.0.0.1/payments?host=db.internal"}},
		"loopback by another address": {Set: []string{"database.url=postgres://u:" + inlineSecret + "@127.0.0.1/payments?hostaddr=192.0.2.1"}},
		"no URL":                      {Set: []string{"database.url=host=db.internal password=" + inlineSecret}},
		"variable of the environment": {Environ: []string{"POLLUX_DATABASE__URL=postgres://pollux:" + inlineSecret + "@db.internal/payments"}},
		"flag":                        {Flags: flags(t, "--set", "nats.password="+inlineSecret)},
		"password of the broker":      {Set: []string{"nats.user=pollux", "nats.password=" + inlineSecret}},
		"password in a broker's URL":  {Set: []string{"nats.urls=nats://pollux:" + inlineSecret + "@nats.internal:4222"}},
		"token in a broker's URL":     {Set: []string{"nats.urls=nats://" + inlineSecret + "@nats.internal:4222"}},
		"secret of another file":      {Set: []string{"database.url=file:/nowhere/" + "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			o.File = file(t, enough)
			got := problems(t, o)
			if got == "" {
				t.Error("was taken")
			}
			if strings.Contains(got, inlineSecret) {
				t.Errorf("the secret is repeated: %s", got)
			}
		})
	}
}

func TestMissingSecretsAreRefused(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{
		"database.url=file:/nowhere/url":            "/nowhere/url",
		"database.url=file:" + empty:                "empty",
		"database.url=env:POLLUX_TEST_NOT_SET":      "POLLUX_TEST_NOT_SET: not set",
		"nats.credentials_file=/nowhere/nats.creds": "/nowhere/nats.creds",
		"nats.ca_file=/nowhere/ca.pem":              "/nowhere/ca.pem",
	} {
		got := problems(t, Options{File: file(t, enough), Set: []string{set}})
		key, _, _ := strings.Cut(set, "=")
		if !strings.HasPrefix(got, "the program: "+key+": ") || !strings.Contains(got, want) {
			t.Errorf("%s: %s", set, got)
		}
		if got := problems(t, Options{File: file(t, enough), Set: []string{set}, Skip: skipSecrets}); got != "" {
			t.Errorf("%s, secrets skipped: %s", set, got)
		}
	}
}

func TestWhatGoesTogetherIsWrittenTogether(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, set := range map[string][]string{
		"a certificate and its key go together":    {"nats.cert_file=" + secret},
		"a user and its password go together":      {"nats.user=pollux"},
		"are three ways to the same end":           {"nats.credentials_file=" + secret, "nats.nkey_file=" + secret},
		"not the beginning of a subject":           {"nats.inbox_prefix=_INBOX.>"},
		"not a URL of the form postgres://":        {"database.url=mysql://127.0.0.1/payments"},
		"the URL at place 2 is not of the form":    {"nats.urls=nats://127.0.0.1:4222,http://127.0.0.1"},
		"the URL at place 1 carries credentials":   {"nats.urls=nats://pollux@127.0.0.1:4222"},
		"nats.max_outstanding: 5; write 1000 to 5": {"nats.max_outstanding=5"},
	} {
		if got := problems(t, Options{File: file(t, enough), Set: set}); !strings.Contains(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%v: %s", set, got)
		}
	}
}

func TestSecretsAreReadAndShownByTheirNames(t *testing.T) {
	const password, dsn = "swordfish", "postgres://pollux:swordfish@db.internal:5432/payments"
	name := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(name, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("POLLUX_TEST_DSN", dsn)
	c := mustLoad(t, Options{File: file(t, enough), Set: []string{"database.url=env:POLLUX_TEST_DSN", "nats.user=pollux", "nats.password=file:" + name}})
	if got := c.Database.URL.Reveal(); got != dsn {
		t.Errorf("database URL %q", got)
	}
	if got := c.NATS.Password.Value().Reveal(); got != password || c.NATS.Password.File() != name {
		t.Errorf("password %q of file %q", got, c.NATS.Password.File())
	}
	asJSON, err := c.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{c, &c, c.Database, c.NATS, c.NATS.Password, c.Database.URL, c.LogValue(), string(asJSON), struct{ C Config }{c}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			s := fmt.Sprintf(verb, v)
			if strings.Contains(s, password) || strings.Contains(s, fmt.Sprintf("%x", password)) {
				t.Errorf("%s of %T shows the password", verb, v)
			}
		}
	}
	if s := c.String(); !strings.Contains(s, "url: env:POLLUX_TEST_DSN") || !strings.Contains(s, "password: file:"+name) {
		t.Errorf("the names of the secrets are not shown in\n%s", s)
	}
}

func TestPasswordsOfThisMachineMayBeWrittenOutAndAreNotShown(t *testing.T) {
	for _, dsn := range []string{
		"postgres://pollux:swordfish@127.0.0.1:5432/payments",
		"postgres://pollux:swordfish@localhost/payments",
		"postgres://pollux:swordfish@[::1]/payments",
		"postgres:///payments?host=/var/run/postgresql&user=pollux&password=swordfish",
	} {
		c := mustLoad(t, Options{File: file(t, enough), Set: []string{"database.url=" + dsn}})
		if got := c.Database.URL.Reveal(); got != dsn {
			t.Errorf("URL %q, want %q", got, dsn)
		}
		if s := fmt.Sprintf("%v %+v %#v", c, c.Database, c.Database); strings.Contains(s, "swordfish") {
			t.Errorf("the password is shown: %s", s)
		}
	}
}

// FuzzFileIsReadOrRefused looks for files that end the process, or that are refused without a place.
func FuzzFileIsReadOrRefused(f *testing.F) {
	example, err := os.ReadFile("../../pollux.example.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{enough, string(example), "a: &a [*a]", "? {a: b}\n: c", "relay: {every: 1e309, batch: !!binary aGk=}", "\xff", "a: |\n  b", "gateways: {a: {httpjson: }}"} {
		f.Add(seed)
	}
	place := regexp.MustCompile(`^pollux\.yaml(:\d+)?$`)
	f.Fuzz(func(t *testing.T, content string) {
		n, found := readYAML("pollux.yaml", []byte(content))
		c := newChecker(root)
		if n != nil {
			c.mapping(root, nil, n)
		}
		for _, p := range append(found, c.problems...) {
			if !place.MatchString(p.Where) || p.What == "" {
				t.Fatalf("a problem without a place: %+v", p)
			}
		}
		if n == nil && len(found) == 0 {
			t.Fatal("neither read nor refused")
		}
	})
}
