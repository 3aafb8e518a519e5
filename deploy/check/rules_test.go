package check

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

// rulesFile has the alerts of deploy/monitoring as the Prometheus Operator takes them: kustomize reads no files outside of its folder, and an object is no file of rules.
const rulesFile = manifests + "/components/monitoring/rules.yaml"

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
