package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/card"
	"pollux/internal/config"
	"pollux/internal/deadletter"
	"pollux/internal/postgres"
	"pollux/internal/terminal"
)

func dlqCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dlq", Short: "Shows the payments that are with a person, and puts them right",
		Long: `A dead letter is a payment that Pollux could not finish, or a message that it could not read. It waits for a person, and its payment is still pending.

Letters are chosen by a filter, whose terms all hold:

  gateway=acme reason=window,attempts 'age>2h' 'amount>=100.00' currency=EUR fingerprint=ab12 text~timeout owner=none

= and != take lists, ~ looks for a text, < <= > >= compare; without state=… only open letters are chosen. The fields are
` + strings.Join(deadletter.Fields(), ", ") + `.`,
	}
	cmd.AddCommand(dlqList(), dlqGroups(), dlqShow(), dlqExport(),
		dlqReplay(), dlqStatus(), dlqOutcomes(),
		replayTurn("cancel", "Releases nothing more of a replay; what was released goes on", (*postgres.Replays).Cancel),
		dlqResume(),
		replayTurn("undo", "Ends a replay and takes back what nobody has polled yet", (*postgres.Replays).Undo),
		dlqChange(deadletter.Discard, "Closes letters for good: nothing will be done"),
		dlqChange(deadletter.Park, "Puts letters aside: replays leave them alone"),
		dlqChange(deadletter.Reopen, "Takes back letters that were discarded or put aside"),
		dlqChange(deadletter.Settle, "Closes by hand what there is nothing to poll for: messages, conflicts, late successes"),
		dlqAssign(), dlqNote())
	return cmd
}

// choice is which letters a command is about: a filter, flags that are short for some of its terms, or ids.
type choice struct {
	gateway, account, class, reason, state string
	older, newer                           time.Duration
	all                                    bool
}

// flags adds what is short for terms of a filter. Where a command has a --reason of its own, reason= is written in the filter.
func (c *choice) flags(cmd *cobra.Command, reads bool) {
	f := cmd.Flags()
	f.StringVar(&c.gateway, "gateway", "", "short for gateway=…")
	f.StringVar(&c.account, "account", "", "short for account=…")
	f.StringVar(&c.class, "class", "", "short for class=…")
	config.AddDuration(f, &c.older, "older", 0, "short for age>=…: only what died at least so long ago, such as 2h or 3d")
	config.AddDuration(f, &c.newer, "newer", 0, "short for age<=…: only what died at most so long ago")
	if reads {
		f.StringVar(&c.reason, "reason", "", "short for reason=…, such as window or mismatch")
		f.StringVar(&c.state, "state", "", "short for state=…: open (the default), replaying, resolved, discarded, parked or any")
		return
	}
	f.BoolVar(&c.all, "all", false, "all open dead letters")
}

// filter is what the arguments and the flags choose. A flag that was given and is empty is refused: --gateway "$GATEWAY" of a script whose
// variable is not set would choose everything.
func (c *choice) filter(cmd *cobra.Command, args []string) (deadletter.Filter, error) {
	f, err := deadletter.Parse(strings.Join(args, " "))
	if err != nil {
		return f, app.Usage("the filter, %w", err)
	}
	if c.newer > 0 && c.older > c.newer {
		return f, app.Usage("--older is more than --newer: nothing died both before and after")
	}
	for _, short := range []struct {
		flag, field string
		op          deadletter.Op
		value       string
	}{
		{"gateway", "gateway", deadletter.Is, c.gateway}, {"account", "account", deadletter.Is, c.account}, {"class", "class", deadletter.Is, c.class},
		{"reason", "reason", deadletter.Is, c.reason}, {"state", "state", deadletter.Is, c.state},
		{"older", "age", deadletter.AtLeast, c.older.String()}, {"newer", "age", deadletter.AtMost, c.newer.String()},
	} {
		flag := cmd.Flags().Lookup(short.flag)
		if flag == nil || !flag.Changed || short.flag == "reason" && cmd.Flags().Lookup("actor") != nil {
			continue
		}
		if short.value == "" || short.value == "0s" {
			return f, app.Usage("--%s is empty; leave it out to choose all", short.flag)
		}
		if f, err = f.And(short.field, short.op, short.value); err != nil {
			return f, app.Usage("--%s: %s", short.flag, plainly(err))
		}
	}
	return f, nil
}

// plainly is what is wrong with a term that has no place, since a flag made it.
func plainly(err error) string {
	var syntax *deadletter.SyntaxError
	if errors.As(err, &syntax) {
		return syntax.What
	}
	return err.Error()
}

// selection is what a command that changes something is about. It must be said clearly.
func (c *choice) selection(cmd *cobra.Command, args []string) (deadletter.Selection, error) {
	var s deadletter.Selection
	var err error
	if len(args) > 0 && !slices.ContainsFunc(args, func(a string) bool { return strings.ContainsAny(a, "=~<>") }) {
		if s.IDs, err = parseIDs(args); err != nil {
			return s, err
		}
		args = nil
	}
	if s.Filter, err = c.filter(cmd, args); err != nil {
		return s, err
	}
	ways := 0
	for _, chosen := range []bool{s.ByID(), len(s.Filter.Terms) > 0, c.all} {
		if chosen {
			ways++
		}
	}
	switch ways {
	case 0:
		return s, app.Usage("nothing is chosen: name ids, or a filter such as gateway=acme or reason=window, or --all")
	case 1:
		return s, nil
	}
	return s, app.Usage("ids, a filter and --all exclude each other")
}

// withLetters opens the record of dead letters for fn.
func withLetters(cmd *cobra.Command, fn func(context.Context, *postgres.Letters) error) error {
	return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
		return fn(ctx, postgres.NewLetters(pool))
	})
}

func dlqList() *cobra.Command {
	var c choice
	var page deadletter.Page
	cmd := &cobra.Command{
		Use: "list [FILTER]", Short: "Lists dead letters, the newest first", Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := c.filter(cmd, args)
			if err != nil {
				return err
			}
			if page.Limit < 1 || page.Limit > deadletter.MaxPage {
				return app.Usage("--limit %d: between 1 and %d", page.Limit, deadletter.MaxPage)
			}
			if page.Before < 0 {
				return app.Usage("--before %d: an id that list printed", page.Before)
			}
			return withLetters(cmd, func(ctx context.Context, letters *postgres.Letters) error {
				found, err := letters.List(ctx, f, page)
				if err != nil {
					return err
				}
				return show(cmd, lettersOf(found), func(w io.Writer) { printPage(w, found, f, page) })
			})
		},
	}
	c.flags(cmd, true)
	cmd.Flags().Int64Var(&page.Before, "before", 0, "the next page: letters with an id below this one")
	cmd.Flags().IntVar(&page.Limit, "limit", 50, "at most so many")
	return cmd
}

func dlqGroups() *cobra.Command {
	var c choice
	var limit int
	cmd := &cobra.Command{
		Use: "groups [FILTER]", Short: "Counts dead letters by what they have in common: the fingerprint of their last answer", Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := c.filter(cmd, args)
			if err != nil {
				return err
			}
			if limit < 1 || limit > deadletter.MaxGroups {
				return app.Usage("--limit %d: between 1 and %d", limit, deadletter.MaxGroups)
			}
			return withLetters(cmd, func(ctx context.Context, letters *postgres.Letters) error {
				groups, total, err := letters.Groups(ctx, f, limit)
				if err != nil {
					return err
				}
				return show(cmd, groupsOf(groups), func(w io.Writer) { printGroups(w, groups, total, f) })
			})
		},
	}
	c.flags(cmd, true)
	cmd.Flags().IntVar(&limit, "limit", 50, "at most so many groups, the largest first")
	return cmd
}

func dlqShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Shows all about one dead letter",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return app.Usage("dlq show needs the id of one dead letter; dlq list has them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return withLetters(cmd, func(ctx context.Context, letters *postgres.Letters) error {
				d, err := letters.Show(ctx, ids[0])
				if errors.Is(err, deadletter.ErrNotFound) {
					return app.Hint(fmt.Errorf("%w: %d", err, ids[0]), "pollux dlq list shows those there are; --state any the closed ones too")
				}
				if err != nil {
					return err
				}
				return show(cmd, detailsOf(d), func(w io.Writer) { printDetails(w, d) })
			})
		},
	}
}

func dlqExport() *cobra.Command {
	var c choice
	var format string
	cmd := &cobra.Command{
		Use: "export [FILTER]", Short: "Writes dead letters to standard output, for spreadsheets or machines", Args: cobra.ArbitraryArgs,
		Long: `export writes all letters that the filter chooses, the newest first: as CSV whose cells no spreadsheet takes for a formula, or as JSON, a letter a line.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := c.filter(cmd, args)
			if err != nil {
				return err
			}
			write, err := writer(format, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			return withLetters(cmd, func(ctx context.Context, letters *postgres.Letters) error {
				if err := write.head(letterHead); err != nil {
					return err
				}
				return letters.Each(ctx, f, func(l deadletter.Letter) error { return write.line(letterOf(l), letterCells(l)) })
			})
		},
	}
	c.flags(cmd, true)
	cmd.Flags().StringVar(&format, "format", "csv", "csv or jsonl")
	return cmd
}

// dlqChange is a command that brings letters into another state.
func dlqChange(verb deadletter.Verb, short string) *cobra.Command {
	var c choice
	var o order
	cmd := &cobra.Command{
		Use: string(verb) + " ID...|FILTER --reason WHY", Short: short, Args: cobra.ArbitraryArgs,
		Long: short + `. At most 10000 at once, in one transaction; what cannot be is refused with a reason, and the exit code is 3 then. The reason is kept
with each letter and in the audit log.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			sel, err := c.selection(cmd, args)
			if err != nil {
				return err
			}
			if err := o.complete(true); err != nil {
				return err
			}
			return change(cmd, sel, deadletter.Change{Verb: verb, Note: o.reason}, &o)
		},
	}
	c.flags(cmd, false)
	o.flags(cmd)
	return cmd
}

// change changes letters and says what became of them.
func change(cmd *cobra.Command, sel deadletter.Selection, ch deadletter.Change, o *order) error {
	return withLetters(cmd, func(ctx context.Context, letters *postgres.Letters) error {
		done, err := letters.Change(ctx, sel, ch, postgres.By{Actor: o.by(), Reason: o.reason})
		if err != nil {
			return err
		}
		done.Changed, done.Refused = orEmpty(done.Changed), orEmpty(done.Refused)
		err = show(cmd, done, func(w io.Writer) {
			printRefused(w, done.Refused, "was left as it is")
			row(w, counted(len(done.Changed), "letter is ", "letters are ")+participle[ch.Verb])
		})
		if err == nil && len(done.Refused) > 0 {
			return app.ErrFindings
		}
		return err
	})
}

var participle = map[deadletter.Verb]string{
	deadletter.Discard: "discarded", deadletter.Park: "put aside", deadletter.Reopen: "open", deadletter.Settle: "resolved",
	deadletter.Assign: "assigned", deadletter.Remark: "annotated",
}

func dlqAssign() *cobra.Command {
	var c choice
	var o order
	var to string
	cmd := &cobra.Command{
		Use: "assign ID...|FILTER --to NAME", Short: "Says who looks after letters; --to none takes it back", Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			sel, err := c.selection(cmd, args)
			if err != nil {
				return err
			}
			if to == "" || len(to) > 128 || to != terminal.Line(to) {
				return app.Usage("--to %q: a name of 1 to 128 printable characters, or none", to)
			}
			if err := o.complete(false); err != nil {
				return err
			}
			owner := to
			if to == deadletter.Nobody {
				owner = ""
			}
			return change(cmd, sel, deadletter.Change{Verb: deadletter.Assign, Owner: owner}, &o)
		},
	}
	c.flags(cmd, false)
	o.flags(cmd)
	cmd.Flags().StringVar(&to, "to", "", "who; none: nobody any more")
	return cmd
}

func dlqNote() *cobra.Command {
	var c choice
	var o order
	var text, link string
	cmd := &cobra.Command{
		Use: "note ID...|FILTER --text TEXT [--link URL]", Short: "Writes down what was found out; notes are never changed", Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			sel, err := c.selection(cmd, args)
			if err != nil {
				return err
			}
			if text == "" && link == "" || len(text) > 2000 {
				return app.Usage("--text: 1 to 2000 characters, or --link, or both")
			}
			if u, err := url.Parse(link); link != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || len(link) > 500) {
				return app.Usage("--link: a URL of the form https://host/path without a user, at most 500 characters")
			}
			if err := o.complete(false); err != nil {
				return err
			}
			return change(cmd, sel, deadletter.Change{Verb: deadletter.Remark, Note: card.Mask(strings.ToValidUTF8(text, " ")), Link: link}, &o)
		},
	}
	c.flags(cmd, false)
	o.flags(cmd)
	cmd.Flags().StringVar(&text, "text", "", "what was found out")
	cmd.Flags().StringVar(&link, "link", "", "where more is: a ticket, a conversation")
	return cmd
}

func parseIDs(args []string) ([]int64, error) {
	ids := make([]int64, len(args))
	for i, a := range args {
		id, err := strconv.ParseInt(a, 10, 64)
		if err != nil || id <= 0 {
			return nil, app.Usage("%q is no id of a dead letter", a)
		}
		ids[i] = id
	}
	return ids, nil
}

// lines writes rows one after the other: as CSV, or as JSON a line each.
type lines struct {
	w    io.Writer
	json bool
}

func writer(format string, w io.Writer) (lines, error) {
	if format != "csv" && format != "jsonl" {
		return lines{}, app.Usage("--format %q: csv or jsonl", format)
	}
	return lines{w, format == "jsonl"}, nil
}

func (l lines) head(names []any) error {
	if l.json {
		return nil
	}
	_, err := io.WriteString(l.w, terminal.Record(names...))
	return err
}

func (l lines) line(value any, cells []any) error {
	if l.json {
		return terminal.JSONLine(l.w, value)
	}
	_, err := io.WriteString(l.w, terminal.Record(cells...))
	return err
}
