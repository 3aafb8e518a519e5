package cli

import (
	"cmp"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/config"
)

// verdict is the outcome of `config check` as -o json shows it.
type verdict struct {
	Good        bool      `json:"good"`
	Problems    []problem `json:"problems"`
	Warnings    []problem `json:"warnings"` // what is taken and should not stay so
	NotLookedAt []string  `json:"not_looked_at"`
}

type problem struct {
	Where string `json:"where"` // file and line, variable or flag; empty when nobody wrote it
	Key   string `json:"key"`
	What  string `json:"what"`
}

// What a check does not look at: connections, and with --file-only what is on the machine that the file is for.
var (
	unconnected = []string{"whether the database, the broker and the gateways can be reached"}
	elsewhere   = append([]string{"the environment", "the secrets and files that are named in it"}, unconnected...)
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Checks the configuration"}
	cmd.AddCommand(configCheck())
	return cmd
}

func configCheck() *cobra.Command {
	var fileOnly bool
	var as string
	cmd := &cobra.Command{
		Use: "check [FILE]", Short: "Says everything that is wrong with a configuration; exit code 2 when something is",
		Long: `check reads the file, the environment and the flags as a service here would, and says everything that is wrong at once, with lines. The secrets
that are named must be there. With --as PROGRAM it checks only what that program uses, as a configuration of its own needs it. The file is FILE, or that of --config, or $POLLUX_CONFIG, or pollux.yaml.

With --file-only it looks neither at the environment nor at the secrets and files that are named: for a file of another machine. Nothing is
connected to either way.`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return app.Usage("config check takes one file, not %d", len(args))
			case len(args) == 1 && cmd.Flags().Changed(config.FlagConfig):
				return app.Usage("two files: %q and that of --config; name one", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			file := ""
			if len(args) == 1 {
				file = args[0]
			}
			if as != "" {
				if err := isProgram(as); err != nil {
					return err
				}
			}
			if fileOnly {
				return report(cmd, file, elsewhere, nil, app.CheckFile(file, cmd.Flags(), as))
			}
			cfg, err := app.LoadAs(config.Options{File: file, Flags: cmd.Flags()}, as)
			return report(cmd, file, unconnected, cfg.Warnings(), err)
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "only what this program uses: one of "+strings.Join(app.Programs, ", ")+"; all of it without")
	cmd.Flags().BoolVar(&fileOnly, "file-only", false, "do not look at the environment and at the secrets and files that are named: for a file of another machine")
	return cmd
}

// report says whether a configuration is good. For people, what is wrong is printed like any other error.
func report(cmd *cobra.Command, file string, unseen []string, warnings []config.Problem, err error) error {
	var invalid *config.Invalid
	if err != nil && (!errors.As(err, &invalid) || output(cmd) != "json") {
		return err
	}
	v := verdict{Good: err == nil, Problems: []problem{}, Warnings: []problem{}, NotLookedAt: unseen}
	for _, p := range warnings {
		v.Warnings = append(v.Warnings, problem{p.Where, p.Key, p.What})
	}
	if invalid != nil {
		for _, p := range invalid.Problems {
			v.Problems = append(v.Problems, problem{p.Where, p.Key, p.What})
		}
	}
	failed := show(cmd, v, func(w io.Writer) {
		row(w, cmp.Or(file, "the configuration")+" is good")
		for _, p := range warnings {
			row(w, "warning: "+p.String())
		}
		for _, what := range unseen {
			row(w, "not looked at: "+what)
		}
	})
	if failed != nil {
		return failed
	}
	return app.Said(err)
}
