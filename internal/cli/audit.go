package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/audit"
	"pollux/internal/postgres"
	"pollux/internal/terminal"
)

func auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "Shows, exports and verifies the log of what operators did",
		Long: `Everything that operators do, and what they were refused, is written down in the transaction of its effect: who, when, from where, what, why, before
and after. The log is only ever added to, and each row carries the hash of the row before it.`,
	}
	cmd.AddCommand(auditList(), auditVerify(), auditExport())
	return cmd
}

// auditFilter holds the flags that choose rows of the audit log.
type auditFilter struct {
	postgres.AuditFilter
	since, until moment
}

func (f *auditFilter) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Actor, "actor", "", "only what this actor did")
	cmd.Flags().StringVar(&f.Login, "login", "", "only what was done with this login of the database")
	cmd.Flags().StringVar(&f.Action, "action", "", "only this action, such as payment.force, or all of a kind, such as payment")
	cmd.Flags().StringVar(&f.Target, "target", "", "only what was done to this, such as payment:42, dead_letter:7 or breaker:acme")
	cmd.Flags().StringVar(&f.Outcome, "outcome", "", "done or refused")
	cmd.Flags().Var(&f.since, "since", "only from then on: a date, a time, or how long ago")
	cmd.Flags().Var(&f.until, "until", "only before then")
}

// complete refuses a filter that was given and is empty, and one that is wrong.
func (f *auditFilter) complete(cmd *cobra.Command) error {
	for _, name := range []string{"actor", "login", "action", "target", "outcome"} {
		if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return app.Usage("--%s is empty; leave it out to choose all", name)
		}
	}
	if !slices.Contains([]string{"", string(audit.Done), string(audit.Refused)}, f.Outcome) {
		return app.Usage("--outcome %q: done or refused", f.Outcome)
	}
	if f.Since, f.Until = f.since.at, f.until.at; !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return app.Usage("--since is not before --until: no row is between them")
	}
	return nil
}

func auditList() *cobra.Command {
	var f auditFilter
	limit := 50
	cmd := &cobra.Command{
		Use: "list", Short: "Lists what operators did, the newest first", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(cmd); err != nil {
				return err
			}
			if limit < 1 || limit > 1000 {
				return app.Usage("--limit %d: between 1 and 1000", limit)
			}
			if f.Before < 0 {
				return app.Usage("--before %d: a row that list printed", f.Before)
			}
			return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
				entries, err := postgres.NewAudit(pool).List(ctx, f.AuditFilter, limit)
				if err != nil {
					return err
				}
				return show(cmd, orEmpty(entries), func(w io.Writer) { printEntries(w, entries, limit) })
			})
		},
	}
	f.flags(cmd)
	cmd.Flags().Int64Var(&f.Before, "before", 0, "the next page: rows before this one")
	cmd.Flags().IntVar(&limit, "limit", limit, "at most so many")
	return cmd
}

func printEntries(w io.Writer, entries []audit.Entry, limit int) {
	if len(entries) == 0 {
		row(w, "no rows match")
		return
	}
	row(w, "ROW", "WHEN", "ACTOR", "LOGIN", "ACTION", "TARGET", "OUTCOME", "REASON", "BEFORE", "AFTER")
	for _, e := range entries {
		row(w, e.Seq, instant(e.At), e.Actor, e.Login, e.Action, e.Target, e.Outcome, orDash(e.Reason), object(e.Before), object(e.After))
	}
	if len(entries) == limit {
		row(w, fmt.Sprintf("there may be more: add --before %d", entries[len(entries)-1].Seq))
	}
}

// object is a JSON object of a row, or a dash.
func object(text *string) string {
	if text == nil {
		return "-"
	}
	return cut(*text, 80)
}

// verification is what became of a verification.
type verification struct {
	Sound  bool   `json:"sound"`
	Rows   int64  `json:"rows"` // verified, up to the first that is wrong
	Head   string `json:"head"` // what to write down elsewhere and to expect the next time; empty when there is no row
	Broken int64  `json:"broken_row"`
	Why    string `json:"why"`
}

func auditVerify() *cobra.Command {
	var expect string
	var part bool
	cmd := &cobra.Command{
		Use: "verify [FILE|-]", Short: "Verifies the chain of the audit log, or of an exported file; exit code 3 when it is broken", Args: atMostOne("one file"),
		Long: `verify reads the log from its first row to its last and computes each hash anew. It names the first row that was changed, is missing or was put in.

Whoever can do everything in the database can write the whole log anew, or cut its end off. That is found by a row that was written down elsewhere: verify
prints the last one as HASH@SEQ, and the next time is given it with --expect.

With a file, or - for standard input, it verifies what pollux audit export wrote, without a database. --part allows it to begin in the middle of the log.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			chain := audit.Chain{Part: part}
			if cmd.Flags().Changed("expect") {
				anchor, err := audit.ParseAnchor(expect)
				if err != nil {
					return app.Usage("--expect %w", err)
				}
				chain.Expect = &anchor
			}
			if part && len(args) == 0 {
				return app.Usage("--part: the log of the database is whole; name the file that is a part of it")
			}
			if len(args) == 0 {
				return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
					return judge(cmd, &chain, postgres.NewAudit(pool).Each(ctx, postgres.AuditFilter{}, chain.Next))
				})
			}
			return readFile(cmd, args[0], func(r io.Reader) error { return judge(cmd, &chain, eachLine(r, &chain)) })
		},
	}
	cmd.Flags().StringVar(&expect, "expect", "", "a row that must be there, as HASH@SEQ")
	cmd.Flags().BoolVar(&part, "part", false, "the file may begin in the middle of the log")
	return cmd
}

// readFile opens a file for fn, or standard input when it is called -.
func readFile(cmd *cobra.Command, name string, fn func(io.Reader) error) error {
	if name == "-" {
		return fn(cmd.InOrStdin())
	}
	f, err := os.Open(name)
	if err != nil {
		return app.NotTried(app.Hint(fmt.Errorf("reading the file: %w", err), "name a file that is there, or - for standard input; %s --help says what is to be in it", cmd.CommandPath()))
	}
	defer f.Close()
	return fn(f)
}

// maxLine is the longest line of an exported log: more than ten times what a row may hold.
const maxLine = 1 << 20

func eachLine(r io.Reader, chain *audit.Chain) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		e, err := audit.ParseLine(lines.Bytes())
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if err := chain.Next(e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading the file: %w", err)
	}
	return nil
}

// judge shows what became of a verification that ended with err.
func judge(cmd *cobra.Command, chain *audit.Chain, err error) error {
	if err == nil {
		err = chain.End()
	}
	v := verification{Sound: err == nil, Rows: chain.Rows()}
	if v.Rows > 0 {
		v.Head = chain.Head().String()
	}
	var broken *audit.Broken
	if errors.As(err, &broken) {
		v.Broken, v.Why = broken.Seq, broken.Why
	} else if err != nil {
		return err
	}
	err = show(cmd, v, func(w io.Writer) {
		switch {
		case !v.Sound:
			row(w, fmt.Sprintf("the log is broken at row %d: %s", v.Broken, v.Why))
			row(w, fmt.Sprintf("%s before it are as they were written", counted(int(v.Rows), "row", "rows")))
			row(w, "what to do: keep a copy before anything else, pollux audit export > FILE; verify the newest file that was exported before, pollux audit verify FILE;")
			row(w, "compare the two from that row on; then find out who could write to the table. The page docs/audit.md has more")
		case v.Rows == 0:
			row(w, "the log is empty")
		default:
			row(w, fmt.Sprintf("%s as written; the last one is %s", counted(int(v.Rows), "row is", "rows are"), v.Head))
		}
	})
	if err == nil && !v.Sound {
		return app.ErrFindings
	}
	return err
}

func auditExport() *cobra.Command {
	var f auditFilter
	format := "jsonl"
	cmd := &cobra.Command{
		Use: "export", Short: "Writes the audit log to standard output, as JSON lines or CSV", Args: app.NoArgs,
		Long: `export writes rows, the oldest first. JSON lines can be verified anywhere with pollux audit verify FILE: whole, or with --part when --since and --until cut
a part out of the log; other filters leave gaps, which no verification accepts. CSV is for spreadsheets: texts that one would take for formulas
have an apostrophe before them.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(cmd); err != nil {
				return err
			}
			write, ok := exporters[format]
			if !ok {
				return app.Usage("--format %q: jsonl or csv", format)
			}
			return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
				out := bufio.NewWriter(cmd.OutOrStdout())
				if format == "csv" {
					fmt.Fprint(out, terminal.Record("seq", "at", "actor", "login", "client", "application", "origin", "action", "outcome", "reason", "target", "before", "after", "previous", "hash"))
				}
				err := postgres.NewAudit(pool).Each(ctx, f.AuditFilter, func(e audit.Entry) error { return write(out, e) })
				return errors.Join(err, out.Flush())
			})
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&format, "format", format, "jsonl or csv")
	return cmd
}

var exporters = map[string]func(io.Writer, audit.Entry) error{
	"jsonl": func(w io.Writer, e audit.Entry) error {
		line, err := e.Line()
		if err != nil {
			return err
		}
		_, err = io.WriteString(w, terminal.EscapeJSON(string(line))+"\n")
		return err
	},
	"csv": func(w io.Writer, e audit.Entry) error {
		_, err := io.WriteString(w, terminal.Record(e.Seq, e.At.UTC().Format("2006-01-02T15:04:05.000000Z"), e.Actor, e.Login, e.Client, e.Application, e.Origin, e.Action,
			e.Outcome, e.Reason, e.Target, valueOf(e.Before), valueOf(e.After), e.Previous, e.Hash))
		return err
	},
}

func valueOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}
