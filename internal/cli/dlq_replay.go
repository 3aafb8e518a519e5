package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/config"
	"pollux/internal/deadletter"
	"pollux/internal/postgres"
	"pollux/internal/terminal"
)

// replay is what a replay was asked for.
type replay struct {
	choice   choice
	order    order
	rate     string
	priority string
	request  string
	noCanary bool
	dryRun   bool
	ask      bool
	detach   bool
	noWait   bool
	limit    int
}

func dlqReplay() *cobra.Command {
	var r replay
	cmd := &cobra.Command{
		Use:   "replay ID...|FILTER --reason WHY",
		Short: "Polls payments again: by id, or all open ones that a filter chooses",
		Long: `replay freezes what is chosen now (what dies later is not in it) and makes the payments due again, at --rate. One letter is tried first, then ten, then
the rest goes; when the fault comes back with the same fingerprint the replay stops. Attempts, failures and the window begin anew, and the replay is counted. Fresh
payments go first at the gateway: a replay has the share of its limit that limits.shares.replay says.

The replay is in the database: when this command ends, for whatever reason, pollux dlq resume goes on with it, and pollux dlq status shows it. The same
--request-id again is the same replay. A payment that became final meanwhile is not polled; of two replays that choose the same letter, one gets it.

A filter that matches nothing makes no replay: exit code 1. Exit code 3 when some of what was chosen was not replayed, failed again, or the replay stopped or waits for a second person (pollux approve).`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := r.complete(cmd, args)
			if err != nil {
				return err
			}
			return withReplays(cmd, func(ctx context.Context, cfg config.Config, replays *postgres.Replays) error {
				configured(&o, cfg)
				if r.dryRun {
					return r.preview(ctx, cmd, replays, o)
				}
				return r.run(ctx, cmd, replays, o)
			})
		},
	}
	r.choice.flags(cmd, false)
	r.order.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&r.rate, "rate", "10", "payments a second, as in 10 or 90/m, or a part of the lowest limit of their gateways, as in 10%")
	f.StringVar(&r.priority, "priority", string(deadletter.ByAge), "what goes first: age or money")
	f.StringVar(&r.request, "request-id", "", "a name for this replay; the same name again is the same replay, not a second one")
	f.BoolVar(&r.noCanary, "no-canary", false, "do not try a few first")
	f.BoolVar(&r.dryRun, "dry-run", false, "show what would be replayed and change nothing")
	f.BoolVar(&r.ask, "ask-gateway", false, fmt.Sprintf("with --dry-run: ask the gateway what it says now, about the first %d at most", maxAsked))
	f.BoolVar(&r.detach, "detach", false, "only make the replay; pollux dlq resume releases it")
	f.BoolVar(&r.noWait, "no-wait", false, "end when all is released, without waiting for answers")
	f.IntVar(&r.limit, "limit", 50, "with --dry-run: show the first so many")
	return cmd
}

// complete refuses a replay that does not say clearly what it is to do.
func (r *replay) complete(cmd *cobra.Command, args []string) (o deadletter.Order, err error) {
	if o.Selection, err = r.choice.selection(cmd, args); err != nil {
		return o, err
	}
	if o.Rate, err = deadletter.ParseRate(r.rate); err != nil {
		return o, app.Usage("--rate %w", err)
	}
	o.Priority = deadletter.Priority(r.priority)
	switch {
	case o.Priority != deadletter.ByAge && o.Priority != deadletter.ByMoney:
		return o, app.Usage("--priority %q: age or money", r.priority)
	case r.ask && !r.dryRun:
		return o, app.Usage("--ask-gateway goes with --dry-run: a replay asks anyway")
	case r.limit < 1 || r.limit > deadletter.MaxPage:
		return o, app.Usage("--limit %d: between 1 and %d", r.limit, deadletter.MaxPage)
	case len(r.request) > 128 || r.request != terminal.Line(r.request):
		return o, app.Usage("--request-id: at most 128 printable characters")
	}
	o.NoCanary, o.RequestID = r.noCanary, r.request
	if o.RequestID == "" {
		o.RequestID = uuid.NewString()
	}
	return o, r.order.complete(!r.dryRun)
}

// configured adds to an order what the configuration says.
func configured(o *deadletter.Order, cfg config.Config) {
	o.MaxTimes = cfg.Operators.MaxReplays
	o.Approval = deadletter.Approval{Letters: cfg.Operators.ApproveAboveCount, Money: cfg.ApproveAbove()}
	o.Limits = map[string]float64{}
	for name, g := range cfg.Gateways {
		o.Limits[name] = float64(g.LimitConfig().Rate)
	}
}

// withReplays opens the record of replays for fn.
func withReplays(cmd *cobra.Command, fn func(context.Context, config.Config, *postgres.Replays) error) error {
	cfg, err := load(cmd, config.SkipBroker)
	if err != nil {
		return err
	}
	return withDatabase(cmd, func(ctx context.Context, pool *pgxpool.Pool) error {
		return fn(ctx, cfg, postgres.NewReplays(pool))
	})
}

func (r *replay) run(ctx context.Context, cmd *cobra.Command, replays *postgres.Replays, o deadletter.Order) error {
	made, fresh, err := replays.Create(ctx, o, r.by())
	if errors.Is(err, deadletter.ErrOther) {
		return app.Hint(err, "a request id is for one replay: take another, or pollux dlq resume goes on with that one")
	}
	if errors.Is(err, deadletter.ErrNothing) {
		return nothingMatches(ctx, replays, o, err)
	}
	if err != nil {
		return err
	}
	if !fresh {
		fmt.Fprintf(cmd.ErrOrStderr(), "replay %d was made for this request before; it goes on\n", made.ID)
	}
	if r.detach || made.State != deadletter.Running {
		return summary(ctx, cmd, replays, made)
	}
	return drive(ctx, cmd, replays, made.ID, r.by(), !r.noWait)
}

// nothingMatches adds to the error of a replay of nothing what of its filter no dead letter ever had: most likely that is misspelt.
func nothingMatches(ctx context.Context, replays *postgres.Replays, o deadletter.Order, err error) error {
	unknown, lookErr := replays.Unknown(ctx, o.Selection.Filter)
	if lookErr != nil || len(unknown) == 0 {
		return app.Hint(err, "pollux dlq groups shows what waits; pollux dlq list --state any what does not wait any more")
	}
	return app.Hint(err, "no dead letter, open or closed, ever had %s: is it misspelt? pollux dlq groups shows what there is", strings.Join(unknown, " or "))
}

func (r *replay) by() postgres.By { return postgres.By{Actor: r.order.by(), Reason: r.order.reason} }

// drive drives a replay to its end, or until something is known about each of its letters, and says what became of it.
func drive(ctx context.Context, cmd *cobra.Command, replays *postgres.Replays, id int64, by postgres.By, settle bool) error {
	board := &board{w: cmd.ErrOrStderr(), every: 10 * time.Second}
	if terminal.Is(board.w) {
		board.every = time.Second
	}
	d := deadletter.Driver{Steps: postgres.Drive{Replays: replays, By: by}, Transient: postgres.Transient, Report: board.report, Settle: settle}
	if _, err := d.Run(ctx, id); err != nil {
		return app.Hint(fmt.Errorf("replay %d is interrupted: %w", id, err), "to go on with it: pollux dlq resume %d; to end it: pollux dlq cancel %d --reason WHY", id, id)
	}
	r, err := replays.Replay(ctx, id)
	if err != nil {
		return err
	}
	return summary(ctx, cmd, replays, r)
}

// shownLeft is how many letters that were not polled a summary names.
const shownLeft = 10

// summary shows a replay with the first letters that were left alone, and says by the exit code whether a person should look at it.
func summary(ctx context.Context, cmd *cobra.Command, replays *postgres.Replays, r deadletter.Replay) error {
	left, err := replays.Left(ctx, r.ID, shownLeft)
	if err != nil {
		return err
	}
	if err := show(cmd, replayOf(r), func(w io.Writer) { printReplay(w, r, left) }); err != nil {
		return err
	}
	if c := r.Counts; c.Refused+c.Final+c.FailedAgain > 0 || r.State == deadletter.Stopped || r.State == deadletter.AwaitingApproval {
		return app.ErrFindings
	}
	return nil
}

// board says how a replay goes on, now and then.
type board struct {
	w       io.Writer
	every   time.Duration
	said    time.Time
	last    string
	first   time.Time
	already int64
}

func (b *board) report(p deadletter.Progress) {
	if b.first.IsZero() {
		b.first, b.already = time.Now(), p.Counts.Released()
	}
	line := progressLine(p, b.speed(p))
	if line == b.last || time.Since(b.said) < b.every {
		return
	}
	b.said, b.last = time.Now(), line
	fmt.Fprintln(b.w, terminal.Line(line))
}

// speed is how many letters a second were released since this board began to look.
func (b *board) speed(p deadletter.Progress) float64 {
	if took := time.Since(b.first).Seconds(); took > 0.5 {
		return float64(p.Counts.Released()-b.already) / took
	}
	return 0
}

func dlqStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status [REPLAY]", Short: "Shows how far replays have come", Args: atMostOne("one replay"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return withReplays(cmd, func(ctx context.Context, _ config.Config, replays *postgres.Replays) error {
					all, err := replays.List(ctx, 20)
					if err != nil {
						return err
					}
					return show(cmd, replaysOf(all), func(w io.Writer) { printReplays(w, all) })
				})
			}
			return oneReplay(cmd, args, func(ctx context.Context, replays *postgres.Replays, id int64) error {
				r, err := replays.Replay(ctx, id)
				if err != nil {
					return replayError(err, id)
				}
				return show(cmd, replayOf(r), func(w io.Writer) { printReplay(w, r, nil) })
			})
		},
	}
}

// oneReplay reads the id of a replay and opens the record for fn.
func oneReplay(cmd *cobra.Command, args []string, fn func(context.Context, *postgres.Replays, int64) error) error {
	id, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil || id <= 0 {
		return app.Usage("%q is no id of a replay; pollux dlq status has them", args[0])
	}
	return withReplays(cmd, func(ctx context.Context, _ config.Config, replays *postgres.Replays) error {
		return fn(ctx, replays, id)
	})
}

// replayError adds to the error of a replay what to do about it.
func replayError(err error, id int64) error {
	var state *deadletter.StateError
	switch {
	case errors.Is(err, deadletter.ErrNoReplay):
		return app.Hint(fmt.Errorf("%w: %d", deadletter.ErrNoReplay, id), "pollux dlq status lists them")
	case errors.Is(err, deadletter.ErrSamePerson), errors.Is(err, deadletter.ErrSameLogin):
		return app.Hint(err, "somebody else runs: pollux approve %d --reason WHY", id)
	case errors.As(err, &state):
		return app.Hint(err, "pollux dlq status %d says how far it has come", id)
	}
	return err
}

func exactlyOneReplay(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return app.Usage("%s needs the id of one replay; pollux dlq status has them", cmd.CommandPath())
	}
	return nil
}

// replayTurn is a command that does something with a replay as a whole.
func replayTurn(verb, short string, do func(*postgres.Replays, context.Context, int64, postgres.By) (deadletter.Replay, error)) *cobra.Command {
	var o order
	cmd := &cobra.Command{
		Use: verb + " REPLAY --reason WHY", Short: short, Args: exactlyOneReplay,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(true); err != nil {
				return err
			}
			return oneReplay(cmd, args, func(ctx context.Context, replays *postgres.Replays, id int64) error {
				r, err := do(replays, ctx, id, postgres.By{Actor: o.by(), Reason: o.reason})
				if err != nil {
					return replayError(err, id)
				}
				return show(cmd, replayOf(r), func(w io.Writer) { printReplay(w, r, nil) })
			})
		},
	}
	o.flags(cmd)
	return cmd
}

func dlqResume() *cobra.Command {
	var o order
	var detach, noWait bool
	cmd := &cobra.Command{
		Use: "resume REPLAY [--reason WHY]", Short: "Goes on with a replay: one whose command ended, or one that stopped", Args: exactlyOneReplay,
		Long: `resume releases what is left of a replay. Any number of people may do so at once: each letter is released once. A replay that has stopped because the fault came
back begins with a single letter again, and needs a --reason; to go on where another command ended, the reason of the replay is enough.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(false); err != nil {
				return err
			}
			return oneReplay(cmd, args, func(ctx context.Context, replays *postgres.Replays, id int64) error {
				r, err := replays.Replay(ctx, id)
				if errors.Is(err, deadletter.ErrNoReplay) { // what is refused is in the audit log
					_, err = replays.Resume(ctx, id, postgres.By{Actor: o.by(), Reason: o.reason})
				}
				if err == nil && r.State == deadletter.AwaitingApproval {
					return app.Hint(&deadletter.StateError{ID: id, State: "waiting for a second person", Verb: "resumed"}, "to let it begin: pollux approve %d --reason WHY", id)
				}
				if err != nil {
					return replayError(err, id)
				}
				if r.State == deadletter.Running && o.reason == "" {
					o.reason = r.Reason
				}
				if err := o.complete(true); err != nil {
					return err
				}
				by := postgres.By{Actor: o.by(), Reason: o.reason}
				if r.State != deadletter.Running {
					r, err = replays.Resume(ctx, id, by)
				}
				if err != nil {
					return replayError(err, id)
				}
				if detach {
					return summary(ctx, cmd, replays, r)
				}
				return drive(ctx, cmd, replays, id, by, !noWait)
			})
		},
	}
	o.flags(cmd)
	cmd.Flags().BoolVar(&detach, "detach", false, "only let it go on; another resume releases")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "end when all is released, without waiting for answers")
	return cmd
}

func dlqOutcomes() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "outcomes REPLAY", Short: "Writes what became of each payment of a replay to standard output", Args: exactlyOneReplay,
		RunE: func(cmd *cobra.Command, args []string) error {
			write, err := writer(format, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			return oneReplay(cmd, args, func(ctx context.Context, replays *postgres.Replays, id int64) error {
				if _, err := replays.Replay(ctx, id); err != nil {
					return replayError(err, id)
				}
				if err := write.head(itemHead); err != nil {
					return err
				}
				return replays.Items(ctx, id, func(i deadletter.Item) error { return write.line(itemOf(i), itemCells(i)) })
			})
		},
	}
	cmd.Flags().StringVar(&format, "format", "csv", "csv or jsonl")
	return cmd
}
