package cli

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentsNameOnlyCommandsThatWork reads every `pollux …` of the documents, those that samples of output end with included (hints go on in prose), and asks the command line whether it would take it: the command, its flags, its
// arguments and, where a command needs one, a reason.
func TestDocumentsNameOnlyCommandsThatWork(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	alerts, err := filepath.Glob("../../deploy/monitoring/rules/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(append(pages, "../../README.md", "../../SECURITY.md", "../../deploy/kubernetes/README.md"), alerts...)
	label := regexp.MustCompile(`{{[^}]*}}`) // stands for a name in an alert
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?m)`pollux ([^`\n]+)`|^\\$? ?pollux ([a-z][^#\n]*)|(?:[^n]t|[^t]): pollux ([a-z](?: \"[^\"\n]*\"|[^;.\n\"])*)").FindAllStringSubmatch(string(text), -1) {
			found++
			line := label.ReplaceAllString(m[1]+m[2]+m[3], "name")
			if err := works(words(line)); err != nil {
				t.Errorf("%s: pollux %s: %v", filepath.Base(page), line, err)
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d commands in %v", found, pages)
	}
}

// words splits a command line as a shell does, as far as documents need it: blanks divide, quotes keep together, and a pipe or a redirection ends it.
func words(line string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?:"[^"]*"|'[^']*'|[^\s"'])+`).FindAllString(line, -1) {
		if m == "|" || m == "&&" || strings.HasPrefix(m, ">") {
			break
		}
		all = append(all, strings.NewReplacer(`"`, "", `'`, "").Replace(m))
	}
	return all
}

// works says what is wrong with a command line; nil for one that would be taken, and for the bare name of a command. Of commands that are written as
// one|another all must work.
func works(words []string) error {
	for i, w := range words {
		if first, others, several := strings.Cut(w, "|"); several {
			before, after := words[:i:i], words[i+1:]
			return errors.Join(works(append(append(before, first), after...)), works(append(append(before, others), after...)))
		}
	}
	cmd, rest, err := Command().Find(words)
	switch {
	case err != nil:
		return err
	case !cmd.HasParent():
		return errors.New("there is no such command")
	case len(rest) == 0:
		return nil
	case cmd.HasSubCommands():
		return errors.New("there is no such subcommand")
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err
	}
	if strings.Contains(cmd.Use, " --reason ") && !cmd.Flags().Changed("reason") && !cmd.Flags().Changed("dry-run") && (cmd.Flags().NArg() > 0 || cmd.Flags().Changed("all")) {
		return errors.New("it needs --reason")
	}
	return nil
}

func TestACommandLineThatWouldBeRefusedIsFound(t *testing.T) {
	for line, want := range map[string]string{
		"dlq cancel 1":                        "it needs --reason",
		"dlq cancel 1 2 --reason x":           "needs the id of one replay",
		"dlq nothing":                         "",
		"dlq list --nope":                     "unknown flag",
		"payment show":                        "-",
		"dlq resume 1":                        "-",
		"dlq replay --all --dry-run":          "-",
		`dlq cancel 1 --reason "they are up"`: "-",
		"dlq list --older 2h | head":          "-",
		"payment hold|release 7":              "it needs --reason",
	} {
		switch err := works(words(line)); {
		case want == "-" && err != nil, want != "-" && err == nil, want != "-" && !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v, expected %q", line, err, want)
		}
	}
}
