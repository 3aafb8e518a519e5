package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentsNameOnlyCommandsThatExist reads every `pollux …` of the documents and asks the command line whether it knows it.
func TestDocumentsNameOnlyCommandsThatExist(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "../../README.md")
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?m)`pollux ([^`\n]+)`|^\\$? ?pollux ([a-z][^#\n]*)").FindAllStringSubmatch(string(text), -1) {
			found++
			if line := m[1] + m[2]; !known(strings.Fields(line)) {
				t.Errorf("%s: there is no command pollux %s", filepath.Base(page), line)
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d commands in %v", found, pages)
	}
}

// known reports whether a command line names a command and flags that exist. Of commands that are written as one|another all must.
func known(words []string) bool {
	for i, w := range words {
		if first, others, several := strings.Cut(w, "|"); several {
			before, after := words[:i:i], words[i+1:]
			return known(append(append(before, first), after...)) && known(append(append(before, others), after...))
		}
	}
	cmd, rest, err := Command().Find(words)
	if err != nil || !cmd.HasParent() || cmd.ParseFlags(rest) != nil {
		return false
	}
	return !cmd.HasSubCommands() || len(rest) == 0
}
