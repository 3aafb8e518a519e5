package cli

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/config"
)

// verdict is the outcome of `config check` as -o json shows it.
type verdict struct {
	Good     bool      `json:"good"`
	Problems []problem `json:"problems"`
}

type problem struct {
	Where string `json:"where"` // file and line, variable or flag; empty when nobody wrote it
	Key   string `json:"key"`
	What  string `json:"what"`
}

func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Checks the configuration"}
	cmd.AddCommand(&cobra.Command{
		Use: "check [FILE]", Short: "Says everything that is wrong with a configuration; exit code 2 when something is",
		Long: `check reads the file, the environment and the flags as a service would, and says everything that is wrong at once, with lines.
With a FILE it reads that file alone, and does not ask for the secrets that it names: for a machine that does not have them.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return app.Usage("config check takes one file, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return reportFile(cmd, args[0])
			}
			_, err := app.Load(config.Options{Flags: cmd.Flags()})
			return report(cmd, "the configuration", err)
		},
	})
	return cmd
}

func reportFile(cmd *cobra.Command, file string) error {
	problems, err := config.Check(file)
	switch {
	case err != nil:
		return app.NotTried(err)
	case len(problems) > 0:
		err = &config.Invalid{Problems: problems}
	}
	return report(cmd, file, err)
}

// report says whether a configuration is good. For people, what is wrong is printed like any other error.
func report(cmd *cobra.Command, what string, err error) error {
	var invalid *config.Invalid
	if err != nil && (!errors.As(err, &invalid) || output(cmd) != "json") {
		return err
	}
	v := verdict{Good: err == nil, Problems: []problem{}}
	if invalid != nil {
		for _, p := range invalid.Problems {
			v.Problems = append(v.Problems, problem{p.Where, p.Key, p.What})
		}
	}
	if failed := show(cmd, v, func(w io.Writer) { row(w, what+" is good") }); failed != nil {
		return failed
	}
	return app.Said(err)
}
