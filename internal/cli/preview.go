package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/breaker"
	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/deadletter"
	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/postgres"
)

// A gateway is asked about few payments before a replay, slowly, since these calls are beside its limit.
const (
	maxAsked = 20
	askEvery = 500 * time.Millisecond
)

// preview is what a replay would do, as -o json shows it.
type preview struct {
	deadletter.Preview
	Takes    float64 `json:"takes_seconds"` // until the last of them is due
	Breakers string  `json:"breakers"`      // known, or why they are not
}

func (r *replay) preview(ctx context.Context, cmd *cobra.Command, replays *postgres.Replays, o deadletter.Order) error {
	found, err := replays.Preview(ctx, o, r.limit)
	if errors.Is(err, deadletter.ErrNothing) {
		return nothingMatches(ctx, replays, o, err)
	}
	if err != nil {
		return err
	}
	v := preview{Preview: found, Takes: deadletter.Takes(found.Letters, found.Rate).Seconds(), Breakers: "known"}
	open, err := openBreakers(cmd)
	if err != nil {
		v.Breakers = "unknown: " + err.Error()
	}
	sleepers(&v.Preview, open)
	if r.ask {
		if err := askGateways(ctx, cmd, &v.Preview, open); err != nil {
			return err
		}
	}
	for i := range v.First {
		v.First[i].Letter = letterOf(v.First[i].Letter)
	}
	v.First, v.Gateways = orEmpty(v.First), orEmpty(v.Gateways)
	if err := show(cmd, v, func(w io.Writer) { printPreview(w, v, r.ask) }); err != nil {
		return err
	}
	if refused(v.Preview) > 0 {
		return app.ErrFindings
	}
	return nil
}

// sleepers says of the letters whose breaker is open that they would sleep.
func sleepers(p *deadletter.Preview, open map[fleet.Target]bool) {
	for i, l := range p.First {
		if l.Verdict == deadletter.WouldPoll && open[fleet.Target{Gateway: l.Gateway, Account: l.Account}] {
			p.First[i].Verdict = deadletter.BreakerOpen
			p.First[i].Why = deadletter.BreakerOpen.Why("")
		}
	}
}

// openBreakers are the accounts that are not called now. The broker need not be there: then it is not known.
func openBreakers(cmd *cobra.Command) (map[fleet.Target]bool, error) {
	open := map[fleet.Target]bool{}
	err := withBroker(cmd, 0, func(ctx context.Context, conn *broker.Conn, _ broker.Options) error {
		ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("NATS does not answer"))
		defer cancel()
		if err := conn.CheckKV(ctx); err != nil {
			return err
		}
		records, err := fleet.List(ctx, conn.KV())
		for _, r := range records {
			open[r.Target] = isOpen(r.Breaker, breaker.At(time.Now()))
		}
		return err
	})
	var invalid *config.Invalid
	switch {
	case errors.As(err, &invalid):
		return nil, errors.New("no broker is configured")
	case err != nil:
		text, _, _ := strings.Cut(err.Error(), "\n")
		return nil, errors.New(text)
	}
	return open, nil
}

// isOpen reports whether a breaker keeps all calls away: by itself, or because a person says so.
func isOpen(s breaker.Shared, now breaker.Instant) bool {
	if s.Forced.On() && s.Forced.Until > now {
		return s.Forced.Mode == breaker.Open
	}
	return s.Kind == breaker.Open
}

// askGateways asks what the gateways say now about the first letters.
func askGateways(ctx context.Context, cmd *cobra.Command, p *deadletter.Preview, open map[fleet.Target]bool) error {
	cfg, err := app.Load(config.Options{Flags: cmd.Flags(), Skip: config.SkipBroker})
	if err != nil {
		return err
	}
	gateways, stop, err := app.Gateways(cfg)
	if err != nil {
		return err
	}
	defer stop()
	asked := 0
	for i := range p.First {
		l := &p.First[i]
		g := gateways[l.Gateway]
		switch {
		case l.PaymentID == nil || asked == maxAsked:
			continue
		case open[fleet.Target{Gateway: l.Gateway, Account: l.Account}]:
			l.Says = "not asked: its breaker is open"
			continue
		case g == nil:
			l.Says = "not asked: the gateway is not in the configuration"
			continue
		}
		if asked++; asked > 1 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(askEvery):
			}
		}
		l.Says = saysNow(g.Poll(ctx, queryOf(l.Letter)))
	}
	return nil
}

func queryOf(l deadletter.Letter) gateway.Query {
	q := gateway.Query{Account: l.Account, Reference: l.Reference, Currency: l.Currency}
	if l.AmountMinor != nil {
		q.AmountMinor = *l.AmountMinor
	}
	return q
}

// saysNow is an answer in a few words.
func saysNow(a gateway.Answer) string {
	return lastAnswer(deadletter.Letter{LastClass: a.Class.String(), HTTPStatus: a.HTTPStatus, GatewayStatus: a.GatewayStatus, Message: a.Message})
}

// refused is how many letters a replay would leave alone.
func refused(p deadletter.Preview) int {
	n := 0
	for verdict, letters := range p.Verdicts {
		if !verdict.Polls() {
			n += letters
		}
	}
	return n
}

func printPreview(w io.Writer, v preview, asked bool) {
	if len(v.First) > 0 {
		head := []any{"ID", "DIED", "REASON", "GATEWAY", "REFERENCE", "AMOUNT", "REPLAYS", "WOULD BE", "WHY"}
		if asked {
			head = append(head, "THE GATEWAY SAYS")
		}
		row(w, head...)
	}
	for _, l := range v.First {
		cells := []any{l.ID, died(l.Letter), orDash(l.Reason), orDash(l.Gateway), orDash(cut(l.Reference, 40)), amount(l.Letter), l.Replays, would(l.Verdict), orDash(l.Why)}
		if asked {
			cells = append(cells, orDash(cut(l.Says, 60)))
		}
		row(w, cells...)
	}
	if more := v.Letters + refused(v.Preview) - len(v.First); more > 0 {
		row(w, fmt.Sprintf("and %d more: --limit shows them", more))
	}
	if len(v.First) > 0 {
		row(w)
	}
	for _, verdict := range slices.Sorted(maps.Keys(v.Verdicts)) {
		row(w, string(verdict), v.Verdicts[verdict])
	}
	row(w, "money", moneyOf(v.Money))
	if v.Breakers != "known" {
		row(w, "breakers", v.Breakers)
	}
	if v.Approval != "" {
		row(w, "approval", v.Approval)
	}
	row(w, counted(v.Letters, "payment", "payments")+" would be polled again, "+takes(time.Duration(v.Takes*float64(time.Second)))+"; nothing was changed")
}

func would(v deadletter.Verdict) string {
	switch {
	case v == deadletter.BreakerOpen:
		return "deferred"
	case v.Polls():
		return "polled"
	}
	return "left"
}

func died(l deadletter.Letter) string {
	if l.LastDied.IsZero() {
		return "-"
	}
	return ago(l.LastDied)
}

// takes is how long a replay is spread over, in words.
func takes(d time.Duration) string {
	if d < time.Second {
		return "at once"
	}
	return "over " + d.Round(time.Second).String()
}
