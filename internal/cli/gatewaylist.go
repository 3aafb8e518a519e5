package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/config"
	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/payment/currency"
	"pollux/internal/postgres"
)

// lister is a gateway whose payments can be listed.
type lister interface {
	List(ctx context.Context, p gateway.Period) (gateway.Page, error)
}

// listed is a payment of a gateway beside what the record says, as -o json shows it.
type listed struct {
	Reference string    `json:"reference"`
	Tracked   string    `json:"tracked_as"` // the reference under which the record has it; empty when it has not
	Amount    string    `json:"amount"`
	CreatedAt time.Time `json:"created_at"`
	Class     string    `json:"class"`
	Status    string    `json:"status"`
	Detail    string    `json:"detail"`
	Record    string    `json:"record"` // its status there; empty when it is not tracked
	Finding   string    `json:"finding"`
}

// The findings. An empty one is that all is well.
const (
	behind     = "behind"      // the gateway has decided and the record is pending: a poll or a webhook will tell
	differs    = "differs"     // both have decided, and differently, or the money is another
	notTracked = "not_tracked" // money that the record knows nothing of
)

// maxListed is the most payments that are listed at once.
const maxListed = 10_000

func gatewayList() *cobra.Command {
	var account string
	var since, until time.Duration
	var all bool
	cmd := &cobra.Command{
		Use: "list GATEWAY", Short: "Compares the payments that a gateway lists with the record, and shows what differs", Args: arguments("acme", "a gateway"),
		Long: `list reads the payments that the gateway made in a period and looks each of them up in the record. It changes nothing. What the gateway does not list is not looked
at: lists lag, and a payment that is missing from one has not failed.

not_tracked  it succeeded at the gateway, and the record has no such payment
differs      both have decided, and differently, or the money is another
behind       the gateway has decided, the record is still pending; the next poll or webhook tells

Exit code 3 when something is not tracked or differs.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if since <= until {
				return app.Usage("--since %s --until %s: ago, and since is the longer one, such as --since 2d --until 1h", config.FormatDuration(since), config.FormatDuration(until))
			}
			now := time.Now()
			return listAndCompare(cmd, args[0], gateway.Period{Account: account, From: now.Add(-since), To: now.Add(-until)}, all)
		},
	}
	cmd.Flags().StringVar(&account, "account", "", "the gateway's account; empty is the default one")
	config.AddDuration(cmd.Flags(), &since, "since", 25*time.Hour, "payments that were made no longer ago than this")
	config.AddDuration(cmd.Flags(), &until, "until", time.Hour, "and at least so long ago: lists lag")
	cmd.Flags().BoolVar(&all, "all", false, "shows those that are as they should be, too")
	return cmd
}

func listAndCompare(cmd *cobra.Command, name string, period gateway.Period, all bool) error {
	cfg, err := app.Load(config.Options{Flags: cmd.Flags(), Skip: config.SkipBroker | config.SkipWebhooks, Gateway: name})
	if err != nil {
		return err
	}
	g, known := cfg.Gateways[name]
	if !known {
		return app.Usage("gateway %q is not in the configuration", name)
	}
	if !g.Capabilities().List {
		return app.Usage("the payments of %s cannot be listed: its adapter, %s, has no list", name, g.Adapter)
	}
	adapter, err := app.Adapter(g)
	if err != nil {
		return err
	}
	if c, ok := adapter.(interface{ Close() }); ok {
		defer c.Close()
	}
	return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
		found, seen, err := compare(ctx, adapter.(lister), postgres.NewJobs(pool), name, period)
		if err != nil {
			return err
		}
		if err := show(cmd, orEmpty(chosen(found, all)), func(w io.Writer) { printListed(w, chosen(found, all), seen) }); err != nil {
			return err
		}
		for _, l := range found {
			if l.Finding == notTracked || l.Finding == differs {
				return app.ErrFindings
			}
		}
		return nil
	})
}

// compare reads all pages, and for each the record, once.
func compare(ctx context.Context, list lister, record *postgres.Jobs, name string, period gateway.Period) (found []listed, seen int, err error) {
	for {
		page, err := list.List(ctx, period)
		if err != nil {
			return nil, 0, err
		}
		var references []string
		for _, p := range page.Payments {
			references = append(references, p.Reference, p.Parent, p.MerchantRef)
		}
		known, err := record.Compare(ctx, name, period.Account, references)
		if err != nil {
			return nil, 0, err
		}
		for _, p := range page.Payments {
			found = append(found, listedOf(p, known))
		}
		seen += len(page.Payments)
		switch {
		case page.Next == "":
			return found, seen, nil
		case seen >= maxListed || page.Next == period.Next:
			return nil, 0, app.Hint(fmt.Errorf("more than %d payments in that period", maxListed), "choose a shorter one with --since and --until")
		}
		period.Next = page.Next
	}
}

// listedOf compares a payment with the record. Where an order or our own reference is tracked, the payment is one try of it, of which only a success says
// anything.
func listedOf(p gateway.Listed, known map[string]postgres.Known) listed {
	l := listed{
		Reference: p.Reference, Amount: currency.Format(p.AmountMinor, p.Currency), CreatedAt: p.CreatedAt.UTC(),
		Class: p.Answer.Class.String(), Status: string(p.Answer.Status), Detail: p.Answer.Detail,
	}
	var record postgres.Known
	for _, reference := range []string{p.Reference, p.Parent, p.MerchantRef} {
		if st, ok := known[reference]; ok && reference != "" {
			l.Tracked, l.Record, record = reference, string(st.Status), st
			break
		}
	}
	l.Finding = finding(p, record, l.Tracked == p.Reference)
	return l
}

func finding(p gateway.Listed, record postgres.Known, itself bool) string {
	success := p.Answer.Status == payment.Succeeded
	switch {
	case p.Answer.Class != gateway.Final || !success && !itself:
		return ""
	case record.Status == "":
		return notTracked
	case success && (record.AmountMinor != p.AmountMinor || record.Currency != p.Currency):
		return differs
	case record.Status == payment.Pending:
		return behind
	case record.Status != p.Answer.Status:
		return differs
	}
	return ""
}

// chosen are the payments to show.
func chosen(found []listed, all bool) []listed {
	var list []listed
	for _, l := range found {
		if all || l.Finding != "" {
			list = append(list, l)
		}
	}
	return list
}

func printListed(w io.Writer, list []listed, seen int) {
	if len(list) > 0 {
		row(w, "REFERENCE", "MADE", "AMOUNT", "GATEWAY", "RECORD", "FINDING")
	}
	for _, l := range list {
		row(w, cut(l.Reference, 40), instant(l.CreatedAt), l.Amount, l.Status+" "+l.Detail, orDash(l.Record), orDash(l.Finding))
	}
	row(w, fmt.Sprintf("%s of the gateway, %s", counted(seen, "payment", "payments"), counted(len(list), "shown", "shown")))
}
