package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// leaves are all commands that do something.
func leaves(cmd *cobra.Command) []*cobra.Command {
	if !cmd.HasSubCommands() {
		return []*cobra.Command{cmd}
	}
	var all []*cobra.Command
	for _, below := range cmd.Commands() {
		all = append(all, leaves(below)...)
	}
	return all
}

func TestNoCommandAnswersInCobrasWords(t *testing.T) {
	all := leaves(Command())
	if len(all) < 40 {
		t.Fatalf("only %d commands", len(all))
	}
	for _, cmd := range all {
		if cmd.Args == nil {
			t.Errorf("%s takes whatever it is given", cmd.CommandPath())
			continue
		}
		for _, n := range []int{0, 9} {
			err := cmd.Args(cmd, slices.Repeat([]string{"x"}, n))
			if err != nil && (strings.Contains(err.Error(), "arg(s)") || strings.Contains(err.Error(), "unknown command")) {
				t.Errorf("%s with %d arguments: %v", cmd.CommandPath(), n, err)
			}
		}
	}
}

func TestAllDurationsAreWrittenAsInTheConfiguration(t *testing.T) {
	found := 0
	for _, cmd := range leaves(Command()) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			found++
			if kind := fmt.Sprintf("%T", f.Value); kind != "*config.duration" {
				t.Errorf("%s --%s is a %s", cmd.CommandPath(), f.Name, kind)
			}
		})
	}
	if found < 10 {
		t.Errorf("only %d durations", found)
	}
}
