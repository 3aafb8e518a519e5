package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pages are the pages about gateways.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../docs/gateways/*.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[strings.TrimSuffix(filepath.Base(name), ".md")] = string(text)
	}
	return texts
}

// TestDocumentedGatewaysAreTaken loads every configuration that the pages about gateways show.
func TestDocumentedGatewaysAreTaken(t *testing.T) {
	above, _, _ := strings.Cut(enough, "gateways:")
	for page, text := range pages(t) {
		for _, m := range regexp.MustCompile("(?s)```yaml\n((gateways|webhooks):.*?)```").FindAllStringSubmatch(text, -1) {
			content := above + m[1]
			if m[2] == "webhooks" {
				content = enough + m[1]
			}
			if got := problems(t, Options{File: file(t, content), Skip: skipSecrets}); got != "" {
				t.Errorf("%s.md: %s\n%s", page, got, m[1])
			}
		}
	}
}

// TestEveryAdapterHasAPage with every key of its own, the words that it understands and where they are from.
func TestEveryAdapterHasAPage(t *testing.T) {
	all := pages(t)
	shared := map[string]bool{}
	for _, f := range keysOf(connection) {
		shared[f.key] = true
	}
	for _, name := range Adapters {
		text, ok := all[name]
		if !ok {
			t.Errorf("docs/gateways/%s.md is missing", name)
			continue
		}
		if name == "httpjson" { // its package holds it to its keys
			continue
		}
		if section := root.at(path{"gateways", "*", name}); section != nil {
			for _, key := range section.names {
				if !shared[key] && !strings.Contains(text, "`"+key+"`") {
					t.Errorf("docs/gateways/%s.md says nothing about `%s`", name, key)
				}
			}
		}
		for _, heading := range []string{"\n## What its words mean\n", "\n## Webhooks\n", "\n## Quirks\n", "\n## Sources\n"} {
			if !strings.Contains(text, heading) {
				t.Errorf("docs/gateways/%s.md has no section%s", name, heading)
			}
		}
	}
}
