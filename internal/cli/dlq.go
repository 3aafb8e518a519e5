package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pollux/internal/app"
	"pollux/internal/deadletter"
	"pollux/internal/postgres"
)

func dlqCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "dlq", Short: "Shows and replays the payments that are with a person"}
	cmd.AddCommand(dlqList(), dlqShow(), dlqReplay())
	return cmd
}

// addFilter adds the flags that choose letters.
func addFilter(flags *pflag.FlagSet, f *deadletter.Filter) {
	flags.StringVar(&f.Gateway, "gateway", "", "only this gateway")
	flags.StringVar(&f.Account, "account", "", "only this account")
	flags.StringVar(&f.Class, "class", "", "only this class of payments")
	flags.StringVar(&f.Reason, "reason", "", "only this reason, such as window or mismatch")
	flags.DurationVar(&f.Older, "older", 0, "only what died at least so long ago, such as 2h")
	flags.DurationVar(&f.Newer, "newer", 0, "only what died at most so long ago")
}

// checkFilter refuses a filter that is wrong, or that was given and is empty: --gateway "$GATEWAY" of a script whose variable is not set would
// choose everything.
func checkFilter(flags *pflag.FlagSet, f deadletter.Filter) error {
	for _, name := range []string{"gateway", "account", "class", "reason", "state", "older", "newer"} {
		flag := flags.Lookup(name)
		if flag != nil && flag.Changed && (flag.Value.String() == "" || flag.Value.String() == "0s") {
			return app.Usage("--%s is empty; leave it out to choose all", name)
		}
	}
	if err := f.Validate(); err != nil {
		return app.Usage("%w", err)
	}
	return nil
}

// withDesk opens the operator's desk for fn.
func withDesk(cmd *cobra.Command, fn func(context.Context, *deadletter.Desk) error) error {
	return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
		return fn(ctx, deadletter.NewDesk(postgres.NewLetters(pool)))
	})
}

func dlqList() *cobra.Command {
	var f deadletter.Filter
	var page deadletter.Page
	cmd := &cobra.Command{
		Use: "list", Short: "Lists dead letters, the newest first", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFilter(cmd.Flags(), f); err != nil {
				return err
			}
			if page.Limit < 1 || page.Limit > deadletter.MaxPage {
				return app.Usage("--limit %d: between 1 and %d", page.Limit, deadletter.MaxPage)
			}
			if page.Before < 0 {
				return app.Usage("--before %d: an id that list printed", page.Before)
			}
			return withDesk(cmd, func(ctx context.Context, desk *deadletter.Desk) error {
				letters, err := desk.List(ctx, f, page)
				if err != nil {
					return err
				}
				return show(cmd, lettersOf(letters), func(w io.Writer) { printPage(w, letters, f, page) })
			})
		},
	}
	addFilter(cmd.Flags(), &f)
	cmd.Flags().StringVar(&f.State, "state", "", "open (the default), replaying, resolved, discarded or any")
	cmd.Flags().Int64Var(&page.Before, "before", 0, "the next page: letters with an id below this one")
	cmd.Flags().IntVar(&page.Limit, "limit", 50, "at most so many")
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
			return withDesk(cmd, func(ctx context.Context, desk *deadletter.Desk) error {
				d, err := desk.Show(ctx, ids[0])
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

// replay is what a replay was asked for.
type replay struct {
	filter deadletter.Filter
	ids    []int64
	rate   float64
	all    bool
	dryRun bool
}

func dlqReplay() *cobra.Command {
	var r replay
	cmd := &cobra.Command{
		Use:   "replay [ID...]",
		Short: "Polls payments again: by id, or all open ones that a filter chooses",
		Long: `replay makes the payments of open dead letters due again, spread over time by --rate. Attempts, failures and the window begin anew; the replay is
counted. It may be interrupted and called again: what is being replayed is not open any more. A payment that became final meanwhile is not polled.

Exit code 3 when some of what was chosen was not replayed.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if r.ids, err = parseIDs(args); err != nil {
				return err
			}
			if err := r.check(cmd.Flags()); err != nil {
				return err
			}
			return withDesk(cmd, func(ctx context.Context, desk *deadletter.Desk) error {
				if r.dryRun {
					return r.preview(ctx, cmd, desk)
				}
				return r.run(ctx, cmd, desk)
			})
		},
	}
	addFilter(cmd.Flags(), &r.filter)
	cmd.Flags().Float64Var(&r.rate, "rate", 10, "payments a second")
	cmd.Flags().BoolVar(&r.all, "all", false, "all open dead letters")
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "show what would be replayed and change nothing")
	return cmd
}

// check refuses a replay that does not say clearly what it is to choose.
func (r *replay) check(flags *pflag.FlagSet) error {
	if err := checkFilter(flags, r.filter); err != nil {
		return err
	}
	if !(r.rate >= deadletter.MinRate && r.rate <= deadletter.MaxRate) {
		return app.Usage("--rate %g: between %g and %d payments a second", r.rate, deadletter.MinRate, deadletter.MaxRate)
	}
	ways := 0
	for _, chosen := range []bool{len(r.ids) > 0, r.filter != deadletter.Filter{}, r.all} {
		if chosen {
			ways++
		}
	}
	switch ways {
	case 0:
		return app.Usage("nothing is chosen: name ids, or a filter such as --gateway, or --all")
	case 1:
		return nil
	}
	return app.Usage("ids, a filter and --all exclude each other")
}

func (r *replay) run(ctx context.Context, cmd *cobra.Command, desk *deadletter.Desk) error {
	o, err := desk.Replay(ctx, r.ids, r.filter, r.rate, func(done, of int) {
		if of > deadletter.MaxPage {
			fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d\n", done, of)
		}
	})
	if err != nil {
		return app.Hint(fmt.Errorf("after %d of them: %w", len(o.Replayed), err), "call it again for the rest: what is being replayed is not open any more")
	}
	return printOutcome(cmd, o)
}

func (r *replay) preview(ctx context.Context, cmd *cobra.Command, desk *deadletter.Desk) error {
	p, err := desk.Preview(ctx, r.ids, r.filter, r.rate)
	if err != nil {
		return err
	}
	return printPreview(cmd, p)
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

// takes is how long a replay is spread over, in words.
func takes(d time.Duration) string {
	if d < time.Second {
		return "at once"
	}
	return "over " + d.Round(time.Second).String()
}
