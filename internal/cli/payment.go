package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/casework"
	"pollux/internal/config"
	"pollux/internal/limit"
	"pollux/internal/payment"
	"pollux/internal/payment/currency"
	"pollux/internal/postgres"
)

func paymentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "payment", Short: "Shows one payment, explains it, and puts it right",
		Long: `A payment is named by its id, or as GATEWAY/REFERENCE, or as GATEWAY/ACCOUNT/REFERENCE.

What changes it is written to the audit log with --actor and --reason, in the same transaction. What is refused changes nothing, is written there too, and
ends with exit code 1 and a hint.`,
	}
	cmd.AddCommand(paymentShow(), paymentExplain(), paymentPollNow(), paymentForce(), paymentHold(), paymentRelease())
	return cmd
}

// onePayment is the check of arguments that begin with a payment.
func onePayment(more ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1+len(more) {
			return app.Usage("%s needs %s; pollux payments list has payments", strings.TrimPrefix(cmd.CommandPath(), "pollux "), strings.Join(append([]string{"a payment"}, more...), " and "))
		}
		return nil
	}
}

// withCase opens the desk of single payments for fn.
func withCase(cmd *cobra.Command, name string, fn func(context.Context, *casework.Desk, casework.Key) error) error {
	key, err := casework.ParseKey(name)
	if err != nil {
		return app.Usage("%w", err)
	}
	return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
		return explained(name, fn(ctx, casework.NewDesk(postgres.NewCasework(pool)), key))
	})
}

// explained adds to the error of a payment which one it was and what to do.
func explained(name string, err error) error {
	var refusal *casework.Refusal
	switch {
	case errors.Is(err, casework.ErrNotFound):
		return app.Hint(fmt.Errorf("%w: %s", err, name), "pollux payments list shows those there are; with an account it is GATEWAY/ACCOUNT/REFERENCE")
	case errors.Is(err, casework.ErrAmbiguous):
		return app.Hint(err, "name it by its id")
	case errors.As(err, &refusal):
		err = fmt.Errorf("payment %s: %w", name, err)
		if refusal.Hint != "" {
			return app.Hint(err, "%s", refusal.Hint)
		}
	}
	return err
}

func paymentShow() *cobra.Command {
	type shown struct {
		casework.Dossier
		Timeline []casework.Moment `json:"timeline"`
	}
	return &cobra.Command{
		Use: "show PAYMENT", Short: "Shows all that is known about a payment, as a timeline", Args: onePayment(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withCase(cmd, args[0], func(ctx context.Context, desk *casework.Desk, key casework.Key) error {
				d, err := desk.Show(ctx, key)
				if err != nil {
					return err
				}
				d.Letters, d.Attempts, d.Events, d.Notices = orEmpty(d.Letters), orEmpty(d.Attempts), orEmpty(d.Events), orEmpty(d.Notices)
				d.Breaker, d.Acts = orEmpty(d.Breaker), orEmpty(d.Acts)
				v := inUTC(shown{d, d.Timeline()})
				return show(cmd, v, func(w io.Writer) { printDossier(w, v.Dossier, v.Timeline) })
			})
		},
	}
}

func printDossier(w io.Writer, d casework.Dossier, timeline []casework.Moment) {
	p := d.Payment
	row(w, "payment", p.ID)
	row(w, "gateway", p.Gateway)
	if p.Account != "" {
		row(w, "account", p.Account)
	}
	row(w, "reference", p.Reference)
	if p.MerchantReference != "" {
		row(w, "merchant's", p.MerchantReference)
	}
	row(w, "amount", currency.Format(p.AmountMinor, p.Currency))
	row(w, "class", p.Class)
	row(w, "status", p.StatusLine())
	row(w, "where", p.Place)
	row(w, "tracked", when(p.TrackedAt))
	if p.ExpiresAt != nil {
		row(w, "deadline", instant(*p.ExpiresAt))
	}
	if j := d.Job; j != nil {
		row(w, "counters", fmt.Sprintf("%d attempts, %d failures in a row, %d deferrals, %d replays", j.Attempts, j.Failures, j.Deferrals, j.Replays))
	}
	if p.TraceParent != "" {
		row(w, "trace", p.TraceParent)
	}
	row(w)
	row(w, "WHEN", "WHAT", "")
	for _, m := range timeline {
		row(w, m.At.UTC().Format("2006-01-02 15:04:05.000Z"), m.Kind, m.Text)
	}
	for what, n := range map[string]int{"attempts": len(d.Attempts), "acts": len(d.Acts), "webhooks": len(d.Notices), "changes of the breaker": len(d.Breaker)} {
		if n == casework.MaxRows {
			row(w, fmt.Sprintf("the newest %d %s; there may be older ones", n, what))
		}
	}
	row(w)
	row(w, fmt.Sprintf("what happens next: pollux payment explain %d", p.ID))
}

func paymentExplain() *cobra.Command {
	return &cobra.Command{
		Use: "explain PAYMENT", Short: "Says why a payment is where it is, and what happens next and when", Args: onePayment(),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := load(cmd, config.SkipBroker)
			if err != nil {
				return err
			}
			return withCase(cmd, args[0], func(ctx context.Context, desk *casework.Desk, key casework.Key) error {
				d, err := desk.Show(ctx, key)
				if err != nil {
					return err
				}
				e := inUTC(casework.Explain(d, settingsOf(cfg, d.Payment)))
				return show(cmd, e, func(w io.Writer) { printExplanation(w, d.Payment, e) })
			})
		},
	}
}

// settingsOf is what the configuration says about a payment.
func settingsOf(cfg config.Config, p casework.Payment) casework.Settings {
	g, ok := cfg.Gateways[p.Gateway]
	s := casework.Settings{Policy: cfg.Policy(p.Gateway, p.Class), Configured: ok}
	if rate := g.LimitConfig().Rate; ok && rate > 0 {
		s.Limit = limit.Rate(rate).String()
	}
	return s
}

func printExplanation(w io.Writer, p casework.Payment, e casework.Explanation) {
	row(w, fmt.Sprintf("payment %d of %s, %s, %s: %s", p.ID, p.Gateway, p.Reference, currency.Format(p.AmountMinor, p.Currency), strings.ReplaceAll(string(e.Place), "_", " ")))
	row(w, e.Where)
	row(w, e.Next)
	for _, b := range e.Bounds {
		row(w, "  "+b)
	}
}

// act does what an operator wants done and shows what became of it.
func act(cmd *cobra.Command, name string, o *order, a casework.Act) error {
	a.By, a.Reason = o.by(), o.reason
	return withCase(cmd, name, func(ctx context.Context, desk *casework.Desk, key casework.Key) error {
		done, err := desk.Act(ctx, key, a)
		if err != nil {
			return err
		}
		done = inUTC(done)
		return show(cmd, done, func(w io.Writer) { row(w, became(done)) })
	})
}

// became says what became of a payment.
func became(o casework.Outcome) string {
	switch o.Verb {
	case casework.Force:
		return fmt.Sprintf("payment %d is %s, it was %s; what its gateway says otherwise becomes a conflict", o.ID, o.After.Status, o.Before.Status)
	case casework.Hold:
		return fmt.Sprintf("payment %d is held until %s: nothing polls it", o.ID, instant(*o.After.HeldUntil))
	case casework.Release:
		return fmt.Sprintf("payment %d is not held any more: it is polled %s", o.ID, dueAt(o.After))
	}
	return fmt.Sprintf("payment %d is due now: the relay publishes it at its next look", o.ID)
}

func dueAt(c casework.Condition) string {
	if c.Due == nil || !c.Due.After(time.Now()) {
		return "now"
	}
	return "at " + instant(*c.Due)
}

func paymentPollNow() *cobra.Command {
	var o order
	cmd := &cobra.Command{
		Use: "poll-now PAYMENT", Short: "Makes a payment due at once", Args: onePayment(),
		Long: `poll-now makes a payment due at once, before the retries. The poll counts as any other: towards the attempts of the policy, within the limits of the
gateway, and not at all while its breaker is open.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(false); err != nil {
				return err
			}
			return act(cmd, args[0], &o, casework.Act{Verb: casework.PollNow})
		},
	}
	o.flags(cmd)
	return cmd
}

func paymentForce() *cobra.Command {
	var o order
	var overrule bool
	cmd := &cobra.Command{
		Use: "force PAYMENT STATUS --reason WHY", Short: "Gives a payment a final status by hand", Args: onePayment("a status"),
		Long: `force gives a payment its final status, succeeded, failed, cancelled or expired, when a person knows better: from the bank, from the gateway's
own pages. It ends its polls and its dead letter, and its event says that an operator was the source. What the gateway says otherwise, by a poll that is on its
way or by a webhook, becomes a conflict for a person and changes nothing.

A status that the gateway has said itself is contradicted with --against-gateway only.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			status := payment.Status(args[1])
			if !status.Final() {
				return app.Usage("%q: succeeded, failed, cancelled or expired", args[1])
			}
			if err := o.complete(true); err != nil {
				return err
			}
			return act(cmd, args[0], &o, casework.Act{Verb: casework.Force, Status: status, Overrule: overrule})
		},
	}
	o.flags(cmd)
	cmd.Flags().BoolVar(&overrule, "against-gateway", false, "also against what the gateway has said")
	return cmd
}

func paymentHold() *cobra.Command {
	var o order
	var during time.Duration
	until := moment{toCome: true}
	cmd := &cobra.Command{
		Use: "hold PAYMENT --reason WHY --for DURATION", Short: "Keeps a payment from being polled for a while", Args: onePayment(),
		Long: `hold keeps a payment from being polled, for --for or until --until, at most 31 days. A poll that is on its way changes nothing any more; a webhook still does. It
stays pending, verify counts it as held, and when the time is over it is polled as before. Its window goes on meanwhile.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("for") == cmd.Flags().Changed("until") {
				return app.Usage("--for or --until: say how long, in one way, such as --for 2h")
			}
			if cmd.Flags().Changed("for") && (during == 0 || during > casework.MaxHold) {
				return app.Usage("--for %s: more than 0s and at most %s", config.FormatDuration(during), config.FormatDuration(casework.MaxHold))
			}
			if err := o.complete(true); err != nil {
				return err
			}
			return act(cmd, args[0], &o, casework.Act{Verb: casework.Hold, For: during, Until: until.at})
		},
	}
	o.flags(cmd)
	config.AddDuration(cmd.Flags(), &during, "for", 0, "for how long, such as 2h or 3d")
	cmd.Flags().Var(&until, "until", "until when: a date, or a time with its zone")
	return cmd
}

func paymentRelease() *cobra.Command {
	var o order
	cmd := &cobra.Command{
		Use: "release PAYMENT", Short: "Ends the hold of a payment", Args: onePayment(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(false); err != nil {
				return err
			}
			return act(cmd, args[0], &o, casework.Act{Verb: casework.Release})
		},
	}
	o.flags(cmd)
	return cmd
}
