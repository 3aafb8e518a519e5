package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/audit"
	"pollux/internal/breaker"
	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/fleet"
	"pollux/internal/message"
	"pollux/internal/postgres"
	"pollux/internal/terminal"
)

func breakerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "breaker", Short: "Shows the gateways' breakers, and forces and releases them",
		Long: `A breaker keeps calls away from a gateway that is down, or that refuses our key, for the whole fleet. While it is open payments sleep; a few
probes find out whether the gateway is back, and then the calls are let in little by little.`,
	}
	cmd.AddCommand(breakerList(), breakerShow(),
		forceCommand("open", breaker.Open, "Keeps all calls away from a gateway, probes too"),
		forceCommand("close", breaker.Closed, "Lets all calls in, whatever the gateway does"),
		forceCommand("disable", breaker.Disabled, "Lets all calls in and counts none"),
		breakerRelease(), breakerReset())
	return cmd
}

// standing is a breaker as it is shown.
type standing struct {
	Gateway   string     `json:"gateway"`
	Account   string     `json:"account"`
	State     string     `json:"state"`
	Cause     string     `json:"cause"`
	Since     *time.Time `json:"since"`
	RetryAt   *time.Time `json:"retry_at"`
	Share     string     `json:"share"` // of the calls that are let in
	Forced    string     `json:"forced"`
	Actor     string     `json:"actor"`
	Reason    string     `json:"reason"`
	Until     *time.Time `json:"forced_until"`
	Paused    *time.Time `json:"paused_until"`
	Rate      string     `json:"rate"` // the configured limit, and what complaints have left of it
	Deferred  int64      `json:"deferred"`
	OldestDue *time.Time `json:"oldest_due_at"`
	Forecast  string     `json:"forecast"`
	Unread    string     `json:"unreadable"` // why the record cannot be read
}

func breakerList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "Lists the breakers of all gateways; exit code 3 when one is not closed", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withFleet(cmd, func(ctx context.Context, f operatedFleet) error {
				all, err := f.standings(ctx)
				if err != nil {
					return err
				}
				if err := show(cmd, orEmpty(all), func(w io.Writer) { printStandings(w, all) }); err != nil {
					return err
				}
				for _, s := range all {
					if s.State != breaker.Closed.String() || s.Unread != "" {
						return app.ErrFindings
					}
				}
				return nil
			})
		},
	}
}

func printStandings(w io.Writer, all []standing) {
	row(w, "GATEWAY", "ACCOUNT", "STATE", "WHY", "SINCE", "NEXT PROBE", "LET IN", "DEFERRED", "FORECAST")
	for _, s := range all {
		row(w, s.Gateway, orDash(s.Account), s.State, orDash(s.why()), orDash(agoOf(s.Since)), orDash(untilOf(s.RetryAt)), s.Share, s.Deferred, orDash(s.Forecast))
	}
}

// why is why a breaker is as it is, in a few words.
func (s standing) why() string {
	switch {
	case s.Unread != "":
		return s.Unread
	case s.Forced != "":
		return fmt.Sprintf("forced by %s until %s: %s", s.Actor, instant(*s.Until), s.Reason)
	case s.Paused != nil:
		return "the gateway asked to be left alone until " + instant(*s.Paused)
	}
	return s.Cause
}

func agoOf(t *time.Time) string {
	if t == nil {
		return ""
	}
	return ago(*t)
}

func untilOf(t *time.Time) string {
	switch {
	case t == nil:
		return ""
	case !t.After(time.Now()):
		return "now"
	}
	return "in " + time.Until(*t).Round(time.Second).String()
}

func breakerShow() *cobra.Command {
	var account string
	type details struct {
		standing
		Changes []postgres.Change `json:"transitions"`
	}
	cmd := &cobra.Command{
		Use: "show GATEWAY[/ACCOUNT]", Short: "Shows a breaker with its last transitions: who, why, from, to, when", Args: arguments("acme", "a gateway"),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := breakerNamed(args[0], account)
			if err != nil {
				return err
			}
			return withFleet(cmd, func(ctx context.Context, f operatedFleet) error {
				all, err := f.standings(ctx)
				if err != nil {
					return err
				}
				var d details
				if d.Changes, err = f.rows.Changes(ctx, t.Gateway, t.Account, 50); err != nil {
					return err
				}
				known := slices.IndexFunc(all, func(s standing) bool { return s.Gateway == t.Gateway && s.Account == t.Account })
				if _, configured := f.cfg.Gateways[t.Gateway]; !configured && known < 0 && len(d.Changes) == 0 {
					return unknownGateway(t.Gateway)
				}
				if known >= 0 {
					d.standing = all[known]
				} else {
					d.standing = f.standing(fleet.Record{Target: t}, nil)
					doubt(ctx, cmd, f.rows, t)
				}
				d.Changes = orEmpty(d.Changes)
				for i := range d.Changes {
					d.Changes[i].At, d.Changes[i].RetryAt = d.Changes[i].At.UTC(), utc(d.Changes[i].RetryAt)
				}
				return show(cmd, d, func(w io.Writer) { printBreaker(w, d.standing, d.Changes) })
			})
		},
	}
	cmd.Flags().StringVar(&account, "account", "", "the gateway's account; empty is the default one")
	return cmd
}

func printBreaker(w io.Writer, s standing, changes []postgres.Change) {
	row(w, "gateway", s.Gateway)
	row(w, "account", orDash(s.Account))
	row(w, "state", s.State)
	row(w, "why", orDash(s.why()))
	row(w, "since", orDash(agoOf(s.Since)))
	row(w, "next probe", orDash(untilOf(s.RetryAt)))
	row(w, "calls let in", s.Share)
	row(w, "limit", orDash(s.Rate))
	row(w, "deferred", s.Deferred)
	row(w, "oldest due", orDash(agoOf(s.OldestDue)))
	row(w, "forecast", orDash(s.Forecast))
	row(w)
	if len(changes) == 0 {
		row(w, "it never changed")
		return
	}
	row(w, "WHEN", "FROM", "TO", "CAUSE", "WHO", "REASON")
	for _, c := range changes {
		who := c.Actor
		if who == "" {
			who = c.Instance
		}
		row(w, when(c.At), c.From, c.To, c.Cause, who, orDash(c.Reason))
	}
}

// breakerOrder is what an operator says beside the command itself.
type breakerOrder struct {
	order
	account string
	during  time.Duration
}

func (o *breakerOrder) flags(cmd *cobra.Command) {
	o.order.flags(cmd)
	cmd.Flags().StringVar(&o.account, "account", "", "the gateway's account; empty is the default one")
}

func forceCommand(verb string, mode breaker.Kind, short string) *cobra.Command {
	var o breakerOrder
	cmd := &cobra.Command{
		Use: verb + " GATEWAY[/ACCOUNT] --reason WHY --for DURATION", Short: short, Args: arguments("acme --reason maintenance --for 30m", "a gateway"),
		Long: short + `, in the whole fleet, until --for is over or it is released. It is written down with who and why.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("for") {
				return app.Usage("--for: say for how long, such as --for 30m, at most %s; a forced state that nobody remembers is worse than the outage", config.FormatDuration(breaker.MaxForced))
			}
			if o.during == 0 || o.during > breaker.MaxForced {
				return app.Usage("--for %s: more than 0s and at most %s", config.FormatDuration(o.during), config.FormatDuration(breaker.MaxForced))
			}
			return operate(cmd, args[0], &o, func(ctx context.Context, kv fleet.KV, t fleet.Target, c breaker.Config) ([]breaker.Transition, error) {
				return fleet.Force(ctx, kv, t, c, breaker.Forced{Mode: mode, Reason: o.reason, Actor: o.actor, Until: breaker.At(time.Now().Add(o.during))})
			})
		},
	}
	o.flags(cmd)
	config.AddDuration(cmd.Flags(), &o.during, "for", 0, "for how long, such as 30m or 2d")
	return cmd
}

func breakerRelease() *cobra.Command {
	var o breakerOrder
	cmd := &cobra.Command{
		Use: "release GATEWAY[/ACCOUNT] --reason WHY", Short: "Ends a forced state", Args: arguments("acme --reason \"it is over\"", "a gateway"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return operate(cmd, args[0], &o, func(ctx context.Context, kv fleet.KV, t fleet.Target, c breaker.Config) ([]breaker.Transition, error) {
				return fleet.Release(ctx, kv, t, c, o.actor, o.reason)
			})
		},
	}
	o.flags(cmd)
	return cmd
}

func breakerReset() *cobra.Command {
	var o breakerOrder
	cmd := &cobra.Command{
		Use: "reset GATEWAY[/ACCOUNT] --reason WHY", Short: "Makes a breaker forget the past and probe at once: after the cause was mended, such as an expired key", Args: arguments("acme --reason \"new key\"", "a gateway"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return operate(cmd, args[0], &o, func(ctx context.Context, kv fleet.KV, t fleet.Target, c breaker.Config) ([]breaker.Transition, error) {
				return fleet.Reset(ctx, kv, t, c, o.actor, o.reason)
			})
		},
	}
	o.flags(cmd)
	return cmd
}

// operate changes a breaker and writes down who did it and why. The breaker comes first: in an emergency the database may be away, and it is no
// condition then.
func operate(cmd *cobra.Command, name string, o *breakerOrder,
	change func(context.Context, fleet.KV, fleet.Target, breaker.Config) ([]breaker.Transition, error)) error {
	t, err := breakerNamed(name, o.account)
	if err != nil {
		return err
	}
	if err := o.complete(true); err != nil {
		return err
	}
	cfg, err := load(cmd, config.SkipDatabase)
	if err != nil {
		return err
	}
	g, known := cfg.Gateways[t.Gateway]
	if !known {
		return unknownGateway(t.Gateway)
	}
	return withBroker(cmd, 0, func(ctx context.Context, conn *broker.Conn, _ broker.Options) error {
		if err := conn.CheckKV(ctx); err != nil {
			return err
		}
		changes, err := change(ctx, conn.KV(), t, g.BreakerConfig())
		if err != nil {
			return err
		}
		err = show(cmd, o.changedOf(t, changes), func(w io.Writer) {
			for _, c := range changes {
				row(w, o.became(t, c))
			}
			if len(changes) == 0 {
				row(w, spoken(t)+" is as it was: nothing to change")
			}
		})
		if err != nil || len(changes) == 0 {
			return err
		}
		if err := o.writeDown(cmd, t, changes); err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), terminal.Lines(fmt.Sprintf("pollux: it is done, but it is not in the audit log: %v\nnote who did it, why and when", err)))
			return app.ErrFindings
		}
		return nil
	})
}

// breakerNamed reads GATEWAY or GATEWAY/ACCOUNT, also as the audit log has it, beside the flag --account.
func breakerNamed(name, account string) (fleet.Target, error) {
	gateway, within, slash := strings.Cut(strings.TrimPrefix(name, "breaker:"), "/")
	switch {
	case !message.ValidToken(gateway), slash && within == "":
		return fleet.Target{}, app.Usage("%q: name a breaker as GATEWAY or GATEWAY/ACCOUNT, such as acme or acme/eu", name)
	case !slash:
		within = account
	case account != "" && account != within:
		return fleet.Target{}, app.Usage("%q and --account %q are two accounts; name one", name, account)
	}
	if len(within) > 128 || audit.Text(within, 128) != within {
		return fleet.Target{}, app.Usage("account %q: at most 128 printable characters", within)
	}
	return fleet.Target{Gateway: gateway, Account: within}, nil
}

func unknownGateway(name string) error {
	return app.Usage("gateway %q is not in the configuration; pollux breaker list has those there are", name)
}

// spoken names a breaker in a sentence.
func spoken(t fleet.Target) string {
	if t.Account == "" {
		return t.Gateway
	}
	return t.Gateway + ", account " + t.Account + ","
}

// doubt says so when no payment has the account: it may be misspelled. What cannot be found out is not doubted.
func doubt(ctx context.Context, cmd *cobra.Command, rows *postgres.Breakers, t fleet.Target) {
	if t.Account == "" {
		return
	}
	if known, err := rows.Account(ctx, t.Gateway, t.Account); err == nil && !known {
		fmt.Fprintln(cmd.ErrOrStderr(), terminal.Line(fmt.Sprintf("note: no payment of %s that is on record has the account %q: is it spelled so?", t.Gateway, t.Account)))
	}
}

// until is how long what was forced at an instant stays, or nil.
func (o *breakerOrder) until(at breaker.Instant) *time.Time {
	if o.during == 0 {
		return nil
	}
	t := at.Time().Add(o.during).UTC()
	return &t
}

// became says what became of a breaker.
func (o *breakerOrder) became(t fleet.Target, c breaker.Transition) string {
	s := fmt.Sprintf("%s is %s", spoken(t), c.To)
	if until := o.until(c.At); until != nil {
		s += " until " + instant(*until)
	}
	return fmt.Sprintf("%s, it was %s", s, c.From)
}

// writeDown records what became of a breaker, and who did it.
func (o *breakerOrder) writeDown(cmd *cobra.Command, target fleet.Target, changes []breaker.Transition) error {
	return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
		rows := postgres.NewBreakers(pool)
		doubt(ctx, cmd, rows, target)
		for _, t := range changes {
			t.Actor, t.Reason = o.actor, o.reason
			if err := rows.Transition(ctx, fleet.Transition{Gateway: target.Gateway, Account: target.Account, Transition: t}, "pollux-cli"); err != nil {
				return err
			}
		}
		type state struct {
			State string     `json:"state"`
			Until *time.Time `json:"until,omitempty"`
		}
		last := changes[len(changes)-1]
		after := state{State: last.To.String(), Until: o.until(last.At)}
		return postgres.NewAudit(pool).Record(ctx, o.act("breaker."+cmd.Name(), audit.Done,
			audit.Change{Target: audit.Breaker(target.Gateway, target.Account), Before: state{State: changes[0].From.String()}, After: after}))
	})
}

// changed is what an operator's command did to a breaker, as -o json shows it.
type changed struct {
	Gateway string     `json:"gateway"`
	Account string     `json:"account"`
	From    string     `json:"from"`
	To      string     `json:"to"`
	At      time.Time  `json:"at"`
	Until   *time.Time `json:"forced_until"` // nil when nothing is forced any more
}

func (o *breakerOrder) changedOf(target fleet.Target, changes []breaker.Transition) []changed {
	list := make([]changed, len(changes))
	for i, t := range changes {
		list[i] = changed{target.Gateway, target.Account, t.From.String(), t.To.String(), t.At.Time().UTC(), o.until(t.At)}
	}
	return list
}

// operatedFleet is what operators need of the fleet.
type operatedFleet struct {
	cfg  config.Config
	kv   fleet.KV
	rows *postgres.Breakers
}

// withFleet opens the broker and the database for fn.
func withFleet(cmd *cobra.Command, fn func(context.Context, operatedFleet) error) error {
	cfg, err := load(cmd, 0)
	if err != nil {
		return err
	}
	return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
		return withBroker(cmd, 0, func(ctx context.Context, conn *broker.Conn, _ broker.Options) error {
			if err := conn.CheckKV(ctx); err != nil {
				return err
			}
			return fn(ctx, operatedFleet{cfg: cfg, kv: conn.KV(), rows: postgres.NewBreakers(pool)})
		})
	})
}

// standings are the breakers of all configured gateways, and of all others that the fleet knows of.
func (f operatedFleet) standings(ctx context.Context) ([]standing, error) {
	records, err := fleet.List(ctx, f.kv)
	if err != nil {
		return nil, err
	}
	asleep, err := f.rows.Asleep(ctx)
	if err != nil {
		return nil, err
	}
	known := map[fleet.Target]bool{}
	var all []standing
	for _, r := range records {
		known[r.Target] = true
		all = append(all, f.standing(r, asleep))
	}
	for name := range f.cfg.Gateways {
		if t := (fleet.Target{Gateway: name}); !known[t] {
			all = append(all, f.standing(fleet.Record{Target: t}, asleep))
		}
	}
	slices.SortFunc(all, func(a, b standing) int {
		return cmp.Or(cmp.Compare(a.Gateway, b.Gateway), cmp.Compare(a.Account, b.Account))
	})
	return all, nil
}

func (f operatedFleet) standing(r fleet.Record, asleep []postgres.Asleep) standing {
	s := standing{Gateway: r.Gateway, Account: r.Account, State: r.Breaker.Kind.String(), Cause: string(r.Breaker.Cause), Share: "100%",
		Since: timeOf(r.Breaker.Since), RetryAt: timeOf(r.Breaker.RetryAt)}
	if r.Err != nil {
		s.Unread = r.Err.Error()
	}
	now := breaker.At(time.Now())
	g, configured := f.cfg.Gateways[r.Gateway]
	if m, err := breaker.NewMachine(g.BreakerConfig()); configured && err == nil {
		snap := m.Snapshot(breaker.State{Shared: r.Breaker}, now)
		s.State, s.Cause, s.Share = snap.Kind.String(), string(snap.Cause), snap.Share.String()
	}
	if s.State == breaker.Closed.String() {
		s.RetryAt = nil
	}
	if forced := r.Breaker.Forced; forced.On() && forced.Until > now {
		s.Forced, s.Actor, s.Reason, s.Until = forced.Mode.String(), forced.Actor, forced.Reason, timeOf(forced.Until)
	}
	if r.Limit.PausedUntil > now {
		s.Paused = timeOf(r.Limit.PausedUntil)
	}
	rate := float64(g.LimitConfig().Rate)
	if rate > 0 {
		s.Rate = fmt.Sprintf("%g/s", rate)
	}
	for _, a := range asleep {
		if a.Gateway == r.Gateway && a.Account == r.Account {
			s.Deferred, s.OldestDue = a.Count, utc(a.Oldest)
		}
	}
	s.Forecast = forecast(s.Deferred, rate)
	return s
}

// forecast says how long it takes until nothing sleeps any more, once the breaker is closed. The first minute of a ramp is not in it.
func forecast(deferred int64, rate float64) string {
	switch {
	case deferred == 0:
		return ""
	case rate <= 0:
		return fmt.Sprintf("%d deferred, as fast as the gateway answers", deferred)
	}
	return fmt.Sprintf("%d deferred, about %s at %g/s", deferred, time.Duration(float64(deferred)/rate*float64(time.Second)).Round(time.Second), rate)
}

func timeOf(i breaker.Instant) *time.Time {
	if i == 0 {
		return nil
	}
	t := i.Time()
	return utc(&t)
}
