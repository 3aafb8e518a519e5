package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// rulesFile has the alerts of deploy/monitoring as the Prometheus Operator takes them: kustomize reads no files outside of its folder, and an object is no file of rules.
const rulesFile = manifests + "/components/monitoring/rules.yaml"

// TestThePrometheusOfComposeReadsEveryRuleAndQuery asks the parsers of the version that compose.yaml pins: promtool, which tries the alerts, is what the distribution has, and older. What
// else is in a configuration it reads with the discoveries of all clouds, which are not worth their weight here; docs/deployment.md says how to ask it when the image changes.
func TestThePrometheusOfComposeReadsEveryRuleAndQuery(t *testing.T) {
	module := regexp.MustCompile(`prometheus/prometheus v0\.(\d+)(\d\d)\.(\d+)`).FindStringSubmatch(read(t, "deploy/check/go.mod")) // 3.16.0 as a module is 0.316.0
	if module == nil {
		t.Fatal("go.mod has no Prometheus")
	}
	minor, err := strconv.Atoi(module[2])
	if err != nil {
		t.Fatal(err)
	}
	if got, want := loadCompose(t, read(t, composeFile)).Services["prometheus"].Image, fmt.Sprintf("prom/prometheus:v%s.%d.%s", module[1], minor, module[3]); got != want {
		t.Errorf("the image is %s; want %s, since that is whose parsers read the rules", got, want)
	}
	p := parser.NewParser(parser.Options{})
	files, err := filepath.Glob(filepath.Join(root, "deploy/monitoring/rules/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	for _, name := range files {
		if _, errs := rulefmt.ParseFile(name, false, model.UTF8Validation, p, slog.New(slog.DiscardHandler)); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs)
		}
	}
	queries := 0
	boards, err := filepath.Glob(filepath.Join(root, "deploy/monitoring/dashboards/*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range boards {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var board any
		if err := json.Unmarshal(content, &board); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		expressions(board, func(expr string) {
			queries++
			expr = variable.ReplaceAllString(strings.ReplaceAll(expr, "$__rate_interval", "5m"), "x") // as Grafana fills them in
			if _, err := p.ParseExpr(expr); err != nil {
				t.Errorf("%s: %s: %v", name, expr, err)
			}
		})
	}
	if queries < 50 {
		t.Errorf("only %d queries are in the dashboards", queries)
	}
	for _, wrong := range []string{"sum by (a) (b", "holt_winters(a[5m], 0.5, 0.5)"} { // the second was taken by version 2
		if _, err := p.ParseExpr(wrong); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}

var variable = regexp.MustCompile(`\$\w+`)

// expressions calls fn with every query below v.
func expressions(v any, fn func(expr string)) {
	switch v := v.(type) {
	case map[string]any:
		if expr, ok := v["expr"].(string); ok && expr != "" {
			fn(expr)
		}
		for _, below := range v {
			expressions(below, fn)
		}
	case []any:
		for _, below := range v {
			expressions(below, fn)
		}
	}
}

// TestTheOperatorsAlertsAreThoseOfPrometheus compares rulesFile with the files that it is made of. With -update it writes it: go test -run Alerts -update
func TestTheOperatorsAlertsAreThoseOfPrometheus(t *testing.T) {
	want := operatorRules(t)
	if *update {
		if err := os.WriteFile(filepath.Join(root, rulesFile), want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(want, []byte(read(t, rulesFile))) {
		t.Errorf("%s is not what deploy/monitoring/rules says; write it anew: cd deploy/check && go test -run Alerts -update", rulesFile)
	}
}

func operatorRules(t *testing.T) []byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "deploy/monitoring/rules/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	slices.Sort(files)
	var object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   struct {
			Name string `yaml:"name"`
		} `yaml:"metadata"`
		Spec struct {
			Groups []yaml.Node `yaml:"groups"`
		} `yaml:"spec"`
	}
	object.APIVersion, object.Kind, object.Metadata.Name = "monitoring.coreos.com/v1", "PrometheusRule", "pollux"
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var file struct{ Groups []yaml.Node }
		if err := strictly(string(content), &file); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		object.Spec.Groups = append(object.Spec.Groups, file.Groups...)
	}
	var b bytes.Buffer
	b.WriteString("# Made of deploy/monitoring/rules by: cd deploy/check && go test -run Alerts -update\n")
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(object); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
