package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/deadletter"
	"pollux/internal/payment/currency"
	"pollux/internal/postgres"
)

func dlqCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "dlq", Short: "Shows and replays the payments that are with a person"}
	cmd.AddCommand(dlqList(), dlqShow(), dlqReplay())
	return cmd
}

// addFilter adds the flags that choose letters.
func addFilter(cmd *cobra.Command, f *deadletter.Filter) {
	flags := cmd.Flags()
	flags.StringVar(&f.Gateway, "gateway", "", "only this gateway")
	flags.StringVar(&f.Account, "account", "", "only this account")
	flags.StringVar(&f.Class, "class", "", "only this class of payments")
	flags.StringVar(&f.Reason, "reason", "", "only this reason, such as window or mismatch")
	flags.DurationVar(&f.Older, "older", 0, "only what died at least so long ago, such as 2h")
	flags.DurationVar(&f.Newer, "newer", 0, "only what died at most so long ago")
}

func dlqList() *cobra.Command {
	var f deadletter.Filter
	var page deadletter.Page
	cmd := &cobra.Command{
		Use: "list", Short: "Lists dead letters, the newest first", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
				letters, err := deadletter.NewDesk(postgres.NewLetters(pool)).List(ctx, f, page)
				if err != nil {
					return err
				}
				return show(cmd, letters, func(w io.Writer) { printLetters(w, letters, page.Limit) })
			})
		},
	}
	addFilter(cmd, &f)
	cmd.Flags().StringVar(&f.State, "state", "", "open (the default), replaying, resolved, discarded or any")
	cmd.Flags().Int64Var(&page.Before, "before", 0, "the next page: letters with an id below this one")
	cmd.Flags().IntVar(&page.Limit, "limit", 50, "at most so many")
	return cmd
}

func printLetters(w io.Writer, letters []deadletter.Letter, limit int) {
	if len(letters) == 0 {
		row(w, "no dead letters")
		return
	}
	row(w, "ID", "DIED", "STATE", "REASON", "GATEWAY", "REFERENCE", "AMOUNT", "POLLS", "REPLAYS", "LAST ANSWER")
	for _, l := range letters {
		row(w, l.ID, ago(l.LastDied), l.State, l.Reason, l.Gateway, l.Reference, amount(l), l.Attempts+l.Failures, l.Replays, lastAnswer(l))
	}
	if len(letters) == limit {
		row(w, fmt.Sprintf("there may be more: --before %d", letters[len(letters)-1].ID))
	}
}

// amount is a letter's money as people write it.
func amount(l deadletter.Letter) string {
	if l.AmountMinor == nil {
		return "-"
	}
	return currency.Format(*l.AmountMinor, l.Currency)
}

func lastAnswer(l deadletter.Letter) string {
	s := l.LastClass
	if l.HTTPStatus != 0 {
		s += fmt.Sprintf(" %d", l.HTTPStatus)
	}
	if l.GatewayStatus != "" {
		s += " " + l.GatewayStatus
	}
	if l.Message != "" {
		s += ": " + l.Message
	}
	return cut(s, 60)
}

func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

func dlqShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Shows all about one dead letter", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
				d, err := deadletter.NewDesk(postgres.NewLetters(pool)).Show(ctx, ids[0])
				if errors.Is(err, deadletter.ErrNotFound) {
					return fmt.Errorf("%w: %d; pollux dlq list shows those there are", err, ids[0])
				}
				if err != nil {
					return err
				}
				return show(cmd, d, func(w io.Writer) { printDetails(w, d) })
			})
		},
	}
}

func printDetails(w io.Writer, d deadletter.Details) {
	row(w, "dead letter", d.ID)
	row(w, "state", d.State)
	row(w, "reason", d.Reason)
	if d.PaymentID != nil {
		row(w, "payment", *d.PaymentID)
		row(w, "gateway", d.Gateway)
		row(w, "account", d.Account)
		row(w, "reference", d.Reference)
		row(w, "amount", amount(d.Letter))
		row(w, "class", d.Class)
		row(w, "status", d.PaymentStatus+" "+d.StatusDetail)
		row(w, "tracked", d.TrackedAt.UTC().Format("2006-01-02 15:04:05Z"))
	} else {
		row(w, "subject", d.Subject)
		row(w, "message bytes", fmt.Sprintf("%q", d.Body))
	}
	row(w, "died first", d.FirstDied.UTC().Format("2006-01-02 15:04:05Z"))
	row(w, "died last", d.LastDied.UTC().Format("2006-01-02 15:04:05Z"))
	row(w, "counters", fmt.Sprintf("%d attempts, %d failures in a row, %d deferrals, %d replays", d.Attempts, d.Failures, d.Deferrals, d.Replays))
	row(w, "last answer", lastAnswer(d.Letter))
	row(w, "policy", d.Policy)
	row(w, "worker", d.Worker)
	if d.TraceID != "" {
		row(w, "trace", d.TraceID)
	}
	if d.ClosedAt != nil {
		row(w, "closed", d.ClosedAt.UTC().Format("2006-01-02 15:04:05Z")+" by "+d.ClosedBy)
	}
	if len(d.Polls) > 0 {
		row(w)
		row(w, "POLLED", "CLASS", "HTTP", "SAID", "TOOK", "DECIDED", "WHY", "MESSAGE")
	}
	for _, p := range d.Polls {
		row(w, p.At.UTC().Format("2006-01-02 15:04:05.000Z"), p.Class, p.HTTPStatus, p.GatewayStatus, fmt.Sprintf("%d ms", p.TookMS), p.Disposition, p.Reason, cut(p.Message, 60))
	}
}

func dlqReplay() *cobra.Command {
	var f deadletter.Filter
	var rate float64
	var all, dryRun bool
	cmd := &cobra.Command{
		Use:   "replay [ID...]",
		Short: "Polls payments again: by id, or all open ones that a filter chooses",
		Long: `replay makes the payments of open dead letters due again, spread over time by --rate. Attempts, failures and the window begin anew; the replay is
counted. It may be interrupted and called again: what is being replayed is not open any more. A payment that became final meanwhile is not polled.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			if len(ids) > 0 && (all || f != deadletter.Filter{}) {
				return app.Usage("ids or a filter, not both")
			}
			if len(ids) == 0 && !all && f == (deadletter.Filter{}) {
				return app.Usage("%w", errNothingChosen)
			}
			return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
				desk := deadletter.NewDesk(postgres.NewLetters(pool))
				if dryRun {
					return previewReplay(cmd, ctx, desk, ids, f)
				}
				o, err := desk.Replay(ctx, ids, f, rate, func(done, of int) {
					if of > deadletter.MaxPage {
						fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d\n", done, of)
					}
				})
				if err != nil {
					return fmt.Errorf("%d are being replayed, then: %w; call it again for the rest", len(o.Replayed), err)
				}
				return printOutcome(cmd, o)
			})
		},
	}
	addFilter(cmd, &f)
	cmd.Flags().Float64Var(&rate, "rate", 10, "payments a second")
	cmd.Flags().BoolVar(&all, "all", false, "all open dead letters")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be replayed and change nothing")
	return cmd
}

func previewReplay(cmd *cobra.Command, ctx context.Context, desk *deadletter.Desk, ids []int64, f deadletter.Filter) error {
	letters, err := desk.Chosen(ctx, ids, f)
	if err != nil {
		return err
	}
	return show(cmd, letters, func(w io.Writer) {
		printLetters(w, letters, 0)
		row(w, fmt.Sprintf("%d would be replayed; nothing was changed", len(letters)))
	})
}

func printOutcome(cmd *cobra.Command, o deadletter.Outcome) error {
	err := show(cmd, o, func(w io.Writer) {
		row(w, fmt.Sprintf("%d are polled again, the last one in %s", len(o.Replayed), o.Takes.Round(1e9)))
		for _, r := range o.Refused {
			row(w, fmt.Sprintf("%d was not replayed: %s", r.ID, r.Why))
		}
	})
	if err == nil && len(o.Refused) > 0 {
		return app.ErrFindings
	}
	return err
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
