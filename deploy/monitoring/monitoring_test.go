package monitoring

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"pollux/internal/localprom"
	"pollux/internal/telemetry"
)

// promtool runs Prometheus's checker of rules in a folder.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	programs, err := localprom.Ensure(t.Context(), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), programs.Tool, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// files are the files of a pattern, at least one.
func files(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	return names
}

// rule is a rule of Prometheus.
type rule struct {
	Record, Alert, Expr string
	Labels, Annotations map[string]string
}

// rules are all rules, in the order of their files.
func rules(t *testing.T) []rule {
	t.Helper()
	var all []rule
	for _, name := range files(t, "rules/*.yaml") {
		var file struct{ Groups []struct{ Rules []rule } }
		decode(t, name, &file)
		for _, g := range file.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

func decode(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func TestRulesAreRules(t *testing.T) {
	promtool(t, ".", append([]string{"check", "rules"}, files(t, "rules/*.yaml")...)...)
}

func TestAlertsFireAndStaySilent(t *testing.T) {
	promtool(t, "tests", append([]string{"test", "rules"}, inside(files(t, "tests/*.yaml"))...)...)
}

// inside are the names without their folder.
func inside(names []string) []string {
	short := make([]string, len(names))
	for i, n := range names {
		short[i] = filepath.Base(n)
	}
	return short
}

// TestEachAlertIsTestedBothWays reads what promtool is asked: for each alert a time at which it fires, and two at which it does not: before it is due, and in a
// case of its own in which something only looks like it.
func TestEachAlertIsTestedBothWays(t *testing.T) {
	fires, silent := map[string]int{}, map[string]int{}
	for _, name := range files(t, "tests/*.yaml") {
		var file struct {
			Tests []struct {
				Expressions []struct {
					Expr    string
					Samples []struct{ Labels string } `yaml:"exp_samples"`
				} `yaml:"promql_expr_test"`
			}
		}
		decode(t, name, &file)
		for _, test := range file.Tests {
			for _, e := range test.Expressions {
				alert := regexp.MustCompile(`alertname="(\w+)"`).FindStringSubmatch(e.Expr)
				switch {
				case alert == nil: // one that is about all of them
				case len(e.Samples) > 0:
					fires[alert[1]]++
				default:
					silent[alert[1]]++
				}
			}
		}
	}
	for _, r := range rules(t) {
		if r.Alert != "" && (fires[r.Alert] < 1 || silent[r.Alert] < 2) {
			t.Errorf("%s: fires in %d tests and is silent in %d, at least 1 and 2 are needed", r.Alert, fires[r.Alert], silent[r.Alert])
		}
	}
}

func TestAlertsSayWhatToDo(t *testing.T) {
	sections := headings(t, "../../docs/runbook.md")
	seen := map[string]bool{}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		if seen[r.Alert] {
			t.Errorf("%s is there twice", r.Alert)
		}
		seen[r.Alert] = true
		if !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) || !slices.Contains([]string{"payments", "pollux", "gateway"}, r.Labels["about"]) {
			t.Errorf("%s: severity %q, about %q", r.Alert, r.Labels["severity"], r.Labels["about"])
		}
		if len(r.Annotations["summary"]) < 20 || len(r.Annotations["description"]) < 20 {
			t.Errorf("%s: summary %q, description %q: a person at night needs both", r.Alert, r.Annotations["summary"], r.Annotations["description"])
		}
		page, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#")
		if page != "docs/runbook.md" || anchor != strings.ToLower(r.Alert) || !slices.Contains(sections, anchor) {
			t.Errorf("%s: runbook_url %q, expected a section of docs/runbook.md with its name", r.Alert, r.Annotations["runbook_url"])
		}
	}
	for _, section := range sections {
		if name, ok := strings.CutPrefix(section, "pollux"); ok && !slices.ContainsFunc(rules(t), func(r rule) bool { return strings.ToLower(r.Alert) == "pollux"+name }) {
			t.Errorf("the runbook has a section %s, and no alert is called so", section)
		}
	}
}

// TestOnlyAlertsThatExistAreKeptQuiet reads the names in the example of Alertmanager's configuration.
func TestOnlyAlertsThatExistAreKeptQuiet(t *testing.T) {
	text, err := os.ReadFile("alertmanager.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`\bPollux\w+`).FindAllString(string(text), -1)
	for _, name := range names {
		if !slices.ContainsFunc(rules(t), func(r rule) bool { return r.Alert == name }) {
			t.Errorf("no alert is called %s", name)
		}
	}
	if len(names) < 10 {
		t.Errorf("only %d names are in it", len(names))
	}
}

// headings are the anchors of a page that consist of one word.
func headings(t *testing.T, page string) []string {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var anchors []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (\w+)$`).FindAllStringSubmatch(string(b), -1) {
		anchors = append(anchors, strings.ToLower(m[1]))
	}
	return anchors
}

// metrics are the names that an exposition can have, with the labels of each and the bounds of its buckets.
func metrics() map[string]telemetry.Metric {
	known := map[string]telemetry.Metric{}
	for _, m := range telemetry.Catalogue() {
		name := m.Prometheus()
		if m.Kind != telemetry.Histogram {
			known[name] = m
			continue
		}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			known[name+suffix] = m
		}
	}
	return known
}

var (
	selector = regexp.MustCompile(`\b(pollux_\w+)(?:\{([^}]*)\})?`)
	recorded = regexp.MustCompile(`\bpollux:[\w:]+`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|group_left|group_right)\s*\(([^)]*)\)`)
)

// unknown says what an expression of PromQL names that nothing exposes.
func unknown(expr string, rules []rule) []string {
	known, wrong := metrics(), []string(nil)
	complain := func(format string, a ...any) { wrong = append(wrong, fmt.Sprintf(format, a...)) }
	labels := []string{"instance", "job", "le", "slo", "by", "alertname", "severity", "about"} // of Prometheus, and of the rules
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		metric, ok := known[m[1]]
		if !ok {
			complain("no metric is called %s", m[1])
			continue
		}
		for _, l := range metric.Labels {
			labels = append(labels, l.Name)
		}
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if why := matches(metric, l[1], l[2], l[3]); why != "" {
				complain("%s: %s", m[1], why)
			}
		}
	}
	for _, name := range recorded.FindAllString(expr, -1) {
		if !slices.ContainsFunc(rules, func(r rule) bool { return r.Record == name }) {
			complain("no rule records %s", name)
		}
	}
	if recorded.MatchString(expr) {
		labels = append(labels, "gateway", "currency")
	}
	if strings.Contains(expr, "ALERTS{") {
		labels = append(labels, "gateway", "stream")
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for name := range strings.SplitSeq(m[1], ",") {
			if name = strings.TrimSpace(name); name != "" && !slices.Contains(labels, name) {
				complain("no metric in it has the label %s", name)
			}
		}
	}
	return wrong
}

// matches says what is wrong with a matcher: a label that the metric does not have, a value that is not one of its closed set, a bound that is none of its buckets.
func matches(m telemetry.Metric, label, operator, value string) string {
	if slices.Contains([]string{"instance", "job"}, label) || strings.HasPrefix(value, "$") {
		return ""
	}
	if label == "le" {
		value, tolerant := strings.CutSuffix(value, "([.]0)?")
		bound, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil || !slices.Contains(m.Buckets, bound):
			return fmt.Sprintf("le=%q is no bound of its buckets %v", value, m.Buckets)
		case bound == math.Trunc(bound) && (!tolerant || operator != "=~"):
			return "Prometheus may know the bound as " + value + ".0 too: write le=~\"" + value + "([.]0)?\""
		}
		return ""
	}
	i := slices.IndexFunc(m.Labels, func(l telemetry.Label) bool { return l.Name == label })
	if i < 0 {
		return "it has no label " + label
	}
	values := m.Labels[i].Values
	for v := range strings.SplitSeq(value, "|") {
		if len(values) > 0 && !slices.Contains(values, v) {
			return fmt.Sprintf("%s%s%q: its values are %s", label, operator, v, strings.Join(values, ", "))
		}
	}
	return ""
}

func TestRulesNameOnlyWhatIsExposed(t *testing.T) {
	all := rules(t)
	for _, r := range all {
		for _, expr := range append([]string{r.Expr}, queries(r.Annotations)...) {
			for _, w := range unknown(expr, all) {
				t.Errorf("%s%s: %s", r.Alert, r.Record, w)
			}
		}
	}
}

// TestTheRunbookNamesMetricsAsTheyAreExposed finds names of instruments, which nobody can look up on a page.
func TestTheRunbookNamesMetricsAsTheyAreExposed(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range telemetry.Catalogue() {
		if strings.Contains(string(text), "`"+d.Name+"`") {
			t.Errorf("%s is called otherwise on a page", d.Name)
		}
	}
}

// queries are the expressions in the templates of annotations.
func queries(annotations map[string]string) []string {
	var all []string
	for _, text := range annotations {
		for _, m := range regexp.MustCompile(`query "([^"]*)"`).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
	}
	return all
}

func TestWhatNothingExposesIsFound(t *testing.T) {
	for expr, want := range map[string]string{
		`pollux_relay_claim_total`:                            "no metric is called pollux_relay_claim_total",
		`pollux_breaker_state{stream="x"}`:                    "it has no label stream",
		`sum by (stream) (pollux_breaker_state)`:              "has the label stream",
		`pollux_gate_wait_seconds_bucket{le="0.07"}`:          "is no bound of its buckets",
		`pollux_gate_wait_seconds_bucket{le="1"}`:             "write le=~",
		`pollux_gate_refusals_total{why="tired"}`:             "its values are",
		`pollux:nothing:ratio > 1`:                            "no rule records pollux:nothing:ratio",
		`sum by (gateway) (pollux_breaker_state{job="x"})`:    "",
		`pollux_gate_wait_seconds_bucket{le=~"1([.]0)?"} > 0`: "",
		`pollux_gate_refusals_total{why=~"busy|standby"} > 0`: "",
	} {
		if got := strings.Join(unknown(expr, nil), "; "); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, expected %q", expr, got, want)
		}
	}
}

// dashboard is what of a dashboard of Grafana is looked at.
type dashboard struct {
	UID, Title, Description string
	SchemaVersion           int
	Panels                  []panel
	Templating              struct {
		List []struct{ Name, Type, Definition string }
	}
	Annotations struct{ List []struct{ Expr string } }
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct{ RefID, Expr string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Datasource               struct{ Type, UID string }
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	all := map[string]dashboard{}
	for _, name := range files(t, "dashboards/*.json") {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[filepath.Base(name)] = d
	}
	return all
}

func TestDashboardsAreWhole(t *testing.T) {
	uids := map[string]string{}
	for name, d := range dashboards(t) {
		if want := "pollux-" + strings.TrimSuffix(name, ".json"); d.UID != want || uids[d.UID] != "" {
			t.Errorf("%s: uid %q, expected %q and nobody else's", name, d.UID, want)
		}
		uids[d.UID] = name
		if d.Title == "" || d.Description == "" || d.SchemaVersion == 0 || len(d.Panels) < 10 {
			t.Errorf("%s: title %q, description %q, schema %d, %d panels", name, d.Title, d.Description, d.SchemaVersion, len(d.Panels))
		}
		ids := map[int]bool{}
		for i, p := range d.Panels {
			if p.ID == 0 || ids[p.ID] || p.Title == "" {
				t.Errorf("%s, panel %q: the id %d is missing or there twice, or it has no title", name, p.Title, p.ID)
			}
			ids[p.ID] = true
			for _, q := range d.Panels[:i] {
				if overlap(p, q) {
					t.Errorf("%s: the panels %q and %q overlap", name, p.Title, q.Title)
				}
			}
			if p.Type == "row" {
				continue
			}
			if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
				t.Errorf("%s, panel %q: a description, a unit, a query and the data source ${datasource} are needed", name, p.Title)
			}
		}
	}
}

func overlap(a, b panel) bool {
	x, y := a.GridPos, b.GridPos
	return x.X < y.X+y.W && y.X < x.X+x.W && x.Y < y.Y+y.H && y.Y < x.Y+x.H
}

// TestDashboardsNameOnlyWhatIsExposed looks at every query, and has promtool read all of them as rules.
func TestDashboardsNameOnlyWhatIsExposed(t *testing.T) {
	all := rules(t)
	type recording struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var read []recording
	for name, d := range dashboards(t) {
		look := func(what, expr string) {
			for _, w := range unknown(expr, all) {
				t.Errorf("%s, %s: %s", name, what, w)
			}
			for _, v := range d.Templating.List {
				expr = strings.ReplaceAll(expr, "$"+v.Name, "x")
			}
			read = append(read, recording{fmt.Sprintf("read:%d", len(read)), strings.ReplaceAll(expr, "$__rate_interval", "5m")})
		}
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				look(p.Title, q.Expr)
			}
		}
		for _, a := range d.Annotations.List {
			if a.Expr != "" {
				look("an annotation", a.Expr)
			}
		}
		for _, v := range d.Templating.List {
			if inner := regexp.MustCompile(`^label_values\((.*), *(\w+)\)$`).FindStringSubmatch(v.Definition); inner != nil {
				look("the variable "+v.Name, "sum by ("+inner[2]+") ("+inner[1]+")")
			} else if v.Type == "query" {
				t.Errorf("%s: the variable %s is not made of label_values", name, v.Name)
			}
		}
	}
	body, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": read}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, ".", "check", "rules", file)
}
