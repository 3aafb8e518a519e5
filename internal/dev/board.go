package dev

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"pollux/internal/payment"
	"pollux/internal/postgres"
)

// show tracks payments and prints the board each second until Ctrl-C, or until the wanted payments are settled.
func show(cmd *cobra.Command, w *world) error {
	if err := w.sim.SetScenario(w.options.Scenario); err != nil { // its windows count from here
		return err
	}
	w.startServices()
	w.introduce(func(format string, a ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", a...) })
	g, ctx := errgroup.WithContext(cmd.Context())
	g.Go(func() error { return w.track(ctx) })
	g.Go(func() error { return w.board(ctx, cmd.OutOrStdout()) })
	err := g.Wait()
	if stopped(cmd.Context(), err) {
		fmt.Fprintln(cmd.ErrOrStderr(), "\ndraining")
		return nil
	}
	return err
}

const (
	boardHead = "tracked  pending  in flight  held  parked  dead  succeeded  failed  cancelled  expired  polls/s  finality p50       p99"
	boardLine = "%7d  %7d  %9d  %4d  %6d  %4d  %9d  %6d  %9d  %7d  %7.0f  %10.3f s  %6.3f s\n"
)

// board prints a line each second. On a terminal the last line stays where it is.
func (w *world) board(ctx context.Context, out io.Writer) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var polls int64
	last, lines := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		c, err := postgres.Count(ctx, w.pool, w.first)
		if err != nil {
			return err
		}
		q, err := postgres.Measure(ctx, w.pool, w.first, time.Minute)
		if err != nil {
			return err
		}
		rate := float64(c.Polls-polls) / time.Since(last).Seconds()
		polls, last = c.Polls, time.Now()
		if lines%20 == 0 && (lines == 0 || !terminal(out)) {
			fmt.Fprintln(out, boardHead)
		}
		lines++
		if terminal(out) && lines > 1 {
			fmt.Fprint(out, "\x1b[1A\x1b[2K") // up a line, and clear it
		}
		fmt.Fprintf(out, boardLine,
			c.Tracked, c.Pending(), c.InFlight, c.Held, c.Parked, c.Dead, c.ByStatus[payment.Succeeded], c.ByStatus[payment.Failed],
			c.ByStatus[payment.Cancelled], c.ByStatus[payment.Expired], rate, q.Finality50.Seconds(), q.Finality99.Seconds())
	}
}

// terminal reports whether out is a terminal.
func terminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
