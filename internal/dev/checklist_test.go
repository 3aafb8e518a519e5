package dev

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestChecklistPointsAtWhatIsThere reads the checklist: each name in code stands in the file that is named before it.
func TestChecklistPointsAtWhatIsThere(t *testing.T) {
	const root = "../../"
	page, err := os.ReadFile(root + "docs/checklist.md")
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile("`[^`]+`")
	checked := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !strings.Contains(line, "internal/") {
			continue
		}
		for _, cell := range cells[3:5] {
			var file, source string
			for _, name := range code.FindAllString(cell, -1) {
				if name = strings.Trim(name, "`"); strings.HasSuffix(name, ".go") {
					b, err := os.ReadFile(root + name)
					if err != nil {
						t.Errorf("%v", err)
					}
					file, source = name, string(b)
					continue
				}
				checked++
				if !regexp.MustCompile(`\b` + name + `\b`).MatchString(source) {
					t.Errorf("%s has no %s", file, name)
				}
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d names were found", checked)
	}
	for _, field := range regexp.MustCompile(`(?m)^\| ([a-z_0-9, ]+) \| [A-Z]`).FindAllStringSubmatch(string(page), -1) {
		source, err := os.ReadFile("protection.go")
		for name := range strings.SplitSeq(field[1], ", ") {
			if err != nil || !strings.Contains(string(source), `json:"`+name+`"`) {
				t.Errorf("the summary has no field %s (%v)", name, err)
			}
		}
	}
}
