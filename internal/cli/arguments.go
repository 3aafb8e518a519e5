package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pollux/internal/app"
)

// arguments is the check of a command that takes as many arguments as have a name here. The example follows the command's own words in what is said of any others.
func arguments(example string, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return app.Usage("%s takes %s, not %s; such as: %s %s",
			strings.TrimPrefix(cmd.CommandPath(), "pollux "), strings.Join(names, " and "), counted(len(args), "argument", "arguments"), cmd.CommandPath(), example)
	}
}

// atMostOne is the check of a command that takes one argument or none.
func atMostOne(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < 2 {
			return nil
		}
		return app.Usage("%s takes %s, not %d", strings.TrimPrefix(cmd.CommandPath(), "pollux "), name, len(args))
	}
}

// requireUTF8 refuses arguments and flags that are no text: neither the database nor a log could hold them as they are.
func requireUTF8(cmd *cobra.Command, args []string) error {
	for _, a := range args {
		if !utf8.ValidString(a) {
			return app.Usage("%q: not UTF-8, so it is no text; look at where it was copied from", a)
		}
	}
	var err error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && !utf8.ValidString(textOf(f.Value)) {
			err = app.Usage("--%s: not UTF-8, so it is no text; look at where it was copied from", f.Name)
		}
	})
	return err
}

// textOf is what was given to a flag, as one text.
func textOf(v pflag.Value) string {
	if list, ok := v.(pflag.SliceValue); ok {
		return strings.Join(list.GetSlice(), " ")
	}
	return fmt.Sprint(v)
}
