package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/config"
	"pollux/internal/doctor"
)

func doctorCommand() *cobra.Command {
	var only []string
	var strict bool
	as := app.Programs[0]
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "doctor", Short: "Examines the live system and the configuration: what is wrong, why it matters, what mends it", Args: app.NoArgs,
		Long: `doctor looks at the database, the broker, the configuration, the gateways, certificates and rights, and this machine. It changes nothing. What it cannot look at it says:
that is unknown, never green, and the rest is looked at all the same. What a program is not meant to see is
left to an operator, and no fault of it.

  red      payments are late, at risk or unwatched
  unknown  could not be looked at
  yellow   works, and will not for ever; or cannot be told without a setting
  green    as it should be

Exit codes: 0 all is green or yellow; 1 something is red or unknown; 3 with --strict, something is yellow and nothing worse; 2 nothing was looked at, the command line or
the configuration is wrong. The page docs/doctor.md lists all checks.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			areas, err := areasOf(only)
			if err != nil {
				return err
			}
			if timeout < time.Second {
				return app.Usage("--timeout %s: at least 1s", config.FormatDuration(timeout))
			}
			if err := isProgram(as); err != nil {
				return err
			}
			report, err := examination(cmd, as, timeout, areas)
			if err != nil {
				return err
			}
			if err := show(cmd, report, func(w io.Writer) { printReport(w, report) }); err != nil {
				return err
			}
			return endOf(report, strict)
		},
	}
	cmd.Flags().StringSliceVar(&only, "only", nil, "only these areas, of "+strings.Join(texts(doctor.Areas), ", "))
	cmd.Flags().StringVar(&as, "as", as, "whose configuration it is, with the login and the user whose rights are held against those that it needs: "+strings.Join(app.Programs, ", "))
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 3 when something is yellow")
	config.AddDuration(cmd.Flags(), &timeout, "timeout", 20*time.Second, "for all of it; what has no answer by then is unknown")
	return cmd
}

// isProgram refuses a value of --as that is no program.
func isProgram(as string) error {
	if slices.Contains(app.Programs, as) {
		return nil
	}
	return app.Usage("--as %q: one of %s", as, strings.Join(app.Programs, ", "))
}

func areasOf(names []string) ([]doctor.Area, error) {
	var areas []doctor.Area
	for _, name := range names {
		if !slices.Contains(doctor.Areas, doctor.Area(name)) {
			return nil, app.Usage("--only %q: some of %s", name, strings.Join(texts(doctor.Areas), ", "))
		}
		areas = append(areas, doctor.Area(name))
	}
	return areas, nil
}

func texts[T ~string](list []T) []string {
	all := make([]string, len(list))
	for i, s := range list {
		all[i] = string(s)
	}
	return all
}

func examination(cmd *cobra.Command, as string, timeout time.Duration, areas []doctor.Area) (doctor.Report, error) {
	cfg, unusable, err := app.Diagnose(config.Options{Flags: cmd.Flags()}, as)
	if err != nil {
		return doctor.Report{}, err
	}
	patient, err := app.NewPatient(cfg, as, unusable...)
	if err != nil {
		return doctor.Report{}, err
	}
	defer patient.Close()
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("no answer within %s, the time for all of it", config.FormatDuration(timeout)))
	defer cancel()
	return doctor.Examine(ctx, &patient.Sources, &patient.Settings, areas...), nil
}

// endOf is how the command ends.
func endOf(r doctor.Report, strict bool) error {
	switch {
	case r.Level == doctor.Red || r.Level == doctor.Unknown:
		return app.Said(fmt.Errorf("%d red, %d unknown", r.Counts.Red, r.Counts.Unknown))
	case r.Level == doctor.Yellow && strict:
		return app.ErrFindings
	}
	return nil
}

// printReport prints an examination, area by area, the worst first. Below what is not green stands why it matters and what mends it.
func printReport(w io.Writer, r doctor.Report) {
	var area doctor.Area
	var last doctor.Finding
	findings := r.Findings
	for len(findings) > 0 {
		f := findings[0]
		if f.Area != area {
			if area != "" {
				fmt.Fprintln(w)
			}
			area = f.Area
			row(w, string(area))
		}
		same := alike(findings)
		findings = findings[same:]
		printFinding(w, f, last, same)
		last = f
	}
	fmt.Fprintln(w)
	row(w, summaryOf(r))
	if len(r.Left) > 0 {
		row(w, "left to an operator, whose rights they take: "+strings.Join(r.Left, ", "))
	}
}

// alike is how many findings from the first one on could not be looked at for the same reason.
func alike(findings []doctor.Finding) int {
	n := 1
	for n < len(findings) && findings[0].Level == doctor.Unknown && findings[n].Level == doctor.Unknown && findings[n].Area == findings[0].Area && findings[n].Found == findings[0].Found {
		n++
	}
	return n
}

// printFinding prints a finding, and below it why it matters and what mends it, unless the one before it said the same.
func printFinding(w io.Writer, f, before doctor.Finding, same int) {
	name, found := f.ID, f.Found
	if same > 1 {
		name = counted(same, "check", "checks")
	}
	if f.Subject != "" {
		found = f.Subject + ": " + found
	}
	row(w, "  "+string(f.Level), name, found)
	if f.Level == doctor.Green {
		return
	}
	again := before.ID == f.ID && before.Level != doctor.Green
	if same == 1 && !again {
		row(w, "", "", "why: "+f.Why)
	}
	if f.Mend != "" && !(again && before.Mend == f.Mend) {
		row(w, "", "", "mend: "+f.Mend)
	}
}

func summaryOf(r doctor.Report) string {
	var parts []string
	for _, c := range []struct {
		n     int
		level doctor.Level
	}{{r.Counts.Red, doctor.Red}, {r.Counts.Unknown, doctor.Unknown}, {r.Counts.Yellow, doctor.Yellow}, {r.Counts.Green, doctor.Green}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.level))
		}
	}
	if len(parts) == 0 {
		return "nothing was looked at"
	}
	return strings.Join(parts, ", ")
}
