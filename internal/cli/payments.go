package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/casework"
	"pollux/internal/config"
	"pollux/internal/payment"
	"pollux/internal/payment/currency"
	"pollux/internal/postgres"
)

func paymentsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "payments", Short: "Lists payments, and brings in those that a team already has"}
	cmd.AddCommand(paymentsList(), paymentsImport())
	return cmd
}

// paymentFilter holds the flags that choose payments.
type paymentFilter struct {
	casework.Filter
	status, where string
	least, most   string
}

func (f *paymentFilter) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Gateway, "gateway", "", "only this gateway")
	cmd.Flags().StringVar(&f.Account, "account", "", "only this account")
	cmd.Flags().StringVar(&f.Class, "class", "", "only this class of payments")
	cmd.Flags().StringVar(&f.status, "status", "", "pending (the default), succeeded, failed, cancelled, expired or any")
	cmd.Flags().StringVar(&f.where, "where", "", "only where they are: final, scheduled, in_flight, held, deferred or with_person")
	config.AddDuration(cmd.Flags(), &f.Older, "older", 0, "only what was tracked at least so long ago, such as 2h or 3d")
	config.AddDuration(cmd.Flags(), &f.Newer, "newer", 0, "only what was tracked at most so long ago")
	cmd.Flags().StringVar(&f.least, "min-amount", "", "only from this amount on, such as \"100 EUR\"")
	cmd.Flags().StringVar(&f.most, "max-amount", "", "only up to this amount")
	cmd.Flags().StringVar(&f.Currency, "currency", "", "only this currency")
	cmd.Flags().StringVar(&f.Text, "text", "", "only what has this in its reference or the merchant's")
}

// complete refuses a filter that is wrong, or that was given and is empty: --gateway "$GATEWAY" of a script whose variable is not set would choose everything.
func (f *paymentFilter) complete(cmd *cobra.Command) error {
	for _, name := range []string{"gateway", "account", "class", "status", "where", "older", "newer", "min-amount", "max-amount", "currency", "text"} {
		if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return app.Usage("--%s is empty; leave it out to choose all", name)
		}
	}
	f.Status, f.Place = payment.Status(f.status), casework.Place(f.where)
	var err error
	if f.Least, err = f.amount("min-amount", f.least); err != nil {
		return err
	}
	if f.Most, err = f.amount("max-amount", f.most); err != nil {
		return err
	}
	if f.Currency != "" {
		if _, ok := currency.Exponent(f.Currency); !ok {
			return app.Usage("--currency %q: no currency of ISO 4217; such as EUR", f.Currency)
		}
	}
	if err := f.Validate(); err != nil {
		return app.Usage("%w", err)
	}
	return nil
}

// amount reads an amount with its currency, which is then the filter's.
func (f *paymentFilter) amount(flag, text string) (*int64, error) {
	if text == "" {
		return nil, nil
	}
	number, code, _ := strings.Cut(text, " ")
	exponent, ok := currency.Exponent(code)
	if !ok {
		return nil, app.Usage("--%s %q: an amount and its currency, such as \"100 EUR\"", flag, text)
	}
	if f.Currency != "" && f.Currency != code {
		return nil, app.Usage("--%s %q: amounts of one currency only, %s is wanted already", flag, text, f.Currency)
	}
	minor, err := currency.Minor(number, exponent)
	if err != nil {
		return nil, app.Usage("--%s %q: %w", flag, text, err)
	}
	f.Currency = code
	return &minor, nil
}

func paymentsList() *cobra.Command {
	var f paymentFilter
	var before int64
	limit, totals := 50, true
	type page struct {
		Payments []casework.Waiting `json:"payments"`
		Totals   []casework.Total   `json:"totals"` // of all that the filter chooses
	}
	cmd := &cobra.Command{
		Use: "list", Short: "Lists payments, the newest first, with their money", Args: app.NoArgs,
		Long: `list shows the pending payments that the filters choose, the newest first, and the money of all of them by currency. Final ones are shown with --status. The money of
all final payments takes as long as there are payments: --totals=false leaves it out.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(cmd); err != nil {
				return err
			}
			if limit < 1 || limit > casework.MaxPage {
				return app.Usage("--limit %d: between 1 and %d", limit, casework.MaxPage)
			}
			if before < 0 {
				return app.Usage("--before %d: an id that list printed", before)
			}
			return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
				book := postgres.NewCasework(pool)
				list, err := book.List(ctx, f.Filter, before, limit)
				if err != nil {
					return err
				}
				p := page{Payments: inUTC(orEmpty(list)), Totals: []casework.Total{}}
				if totals {
					if p.Totals, err = book.Totals(ctx, f.Filter); err != nil {
						return err
					}
				}
				p.Totals = orEmpty(p.Totals)
				return show(cmd, p, func(w io.Writer) { printPayments(w, p.Payments, p.Totals, limit) })
			})
		},
	}
	f.flags(cmd)
	cmd.Flags().Int64Var(&before, "before", 0, "the next page: payments with an id below this one")
	cmd.Flags().IntVar(&limit, "limit", limit, "at most so many")
	cmd.Flags().BoolVar(&totals, "totals", totals, "add up the money of all that the filters choose, not of the page alone")
	return cmd
}

func printPayments(w io.Writer, list []casework.Waiting, totals []casework.Total, limit int) {
	if len(list) == 0 {
		row(w, "no payments")
		return
	}
	row(w, "ID", "TRACKED", "GATEWAY", "ACCOUNT", "REFERENCE", "CLASS", "AMOUNT", "STATUS", "WHERE", "NEXT POLL", "ATTEMPTS", "FAILURES")
	for _, p := range list {
		row(w, p.ID, ago(p.TrackedAt), p.Gateway, orDash(p.Account), cut(p.Reference, 40), p.Class, currency.Format(p.AmountMinor, p.Currency),
			cut(p.StatusLine(), 40), p.Place, orDash(untilOf(p.Due)), p.Attempts, p.Failures)
	}
	if len(list) == limit {
		row(w, fmt.Sprintf("there may be more: add --before %d", list[len(list)-1].ID))
	}
	for _, t := range totals {
		row(w, fmt.Sprintf("%s, %s", counted(int(t.Count), "payment", "payments"), currency.Format(t.AmountMinor, t.Currency)))
	}
}

func verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "Counts every payment into exactly one place; exit code 3 when one fits none, its event is not there once, or none takes what is due", Args: app.NoArgs,
		Long: `verify counts all tracked payments, in one snapshot of the database: each is final, scheduled, in flight, held, deferred or with a person. What is in none of these
places, or in two, is named: then the record is not sound. Nor is it when the event of a payment's last change is not in the outbox exactly once, as long as events of that day are
kept, or when an event says what never was. It also says what is due for so long that nobody can be working.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
				began := time.Now()
				n, err := postgres.NewCasework(pool).Count(ctx)
				if err != nil {
					return err
				}
				n = inUTC(n)
				if err := show(cmd, n, func(w io.Writer) { printCount(w, n, time.Since(began)) }); err != nil {
					return err
				}
				if !n.Sound() || n.Overdue > 0 {
					return app.ErrFindings
				}
				return nil
			})
		},
	}
}

func printCount(w io.Writer, n casework.Count, took time.Duration) {
	for _, p := range casework.Places {
		notes := ""
		if p == casework.Held && n.ByHand > 0 {
			notes = fmt.Sprintf("%d of them by operators", n.ByHand)
		}
		row(w, strings.ReplaceAll(string(p), "_", " "), n.In[p], notes)
	}
	row(w, "tracked", n.Tracked, "")
	named := func(strays []casework.Stray, all int64) {
		for _, s := range strays {
			row(w, fmt.Sprintf("payment %d: %s", s.ID, s.Why))
		}
		if all > int64(len(strays)) {
			row(w, fmt.Sprintf("and %d more", all-int64(len(strays))))
		}
	}
	named(n.Strays, n.Lost)
	named(n.Events.Named, n.Events.Wrong)
	if n.Overdue > 0 {
		row(w, fmt.Sprintf("%s due for more than %s and nobody takes them, the oldest since %s: do a relay and consumers run?",
			counted(int(n.Overdue), "is", "are"), config.FormatDuration(casework.Patience), instant(*n.Oldest)))
	}
	if n.Sound() {
		row(w, fmt.Sprintf("each payment is in exactly one place, and of %d the event is in the outbox, once (%s)", n.Events.Judged, took.Round(time.Millisecond)))
		return
	}
	var wrong []string
	if n.Lost > 0 {
		wrong = append(wrong, counted(int(n.Lost), "is", "are")+" in no place")
	}
	if n.Events.Wrong > 0 {
		wrong = append(wrong, "the events of "+counted(int(n.Events.Wrong), "payment are", "payments are")+" not what became of them")
	}
	row(w, "the record is not sound: "+strings.Join(wrong, ", "))
}
