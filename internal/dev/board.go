package dev

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"pollux/internal/payment"
	"pollux/internal/postgres"
)

// show tracks payments and shows each second what becomes of them, until ctx ends.
func (w *world) show(ctx context.Context) error {
	if err := w.startServices(ctx); err != nil {
		return err
	}
	w.introduce()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.track(ctx) })
	g.Go(func() error { return w.watch(ctx) })
	defer w.screen.leave()
	return g.Wait()
}

// introduce says where everything is.
func (w *world) introduce() {
	w.say("database  %s '%s'", w.psql, w.dsn)
	w.say("NATS      nats --server %s stream ls", w.natsURL)
	for _, s := range w.stations {
		w.say("%-9s curl %s/sim/stats", s.title(), s.sim.URL())
	}
	w.say("metrics   curl http://%s/metrics", w.tel.Addr())
	w.say("operate   go run ./cmd/pollux --config %s breaker list", w.file)
	if !w.options.Verbose {
		w.say("log       tail -f %s", w.logFile())
	}
	w.say("")
	if len(w.options.Gateways) > 0 {
		return
	}
	w.say("Track a payment of your own, in psql; the simulator knows any reference of")
	w.say("the form name_amount_CURRENCY:")
	w.say("  select pollux.track_payment('%s', 'mine_1999_EUR', 1999, 'EUR',", Gateway)
	w.say("    class => '%s');", Class)
	w.say("  select status, case when status <> 'pending' then status_updated_at - created_at end as took")
	w.say("  from pollux.payments where reference = 'mine_1999_EUR';")
	w.say("")
}

// moment is what the board shows.
type moment struct {
	scenario string
	running  time.Duration
	rate     float64 // payments tracked a second, as asked for
	census   postgres.Census
	polls    float64 // a second
	recent   postgres.Quantiles
}

// watch looks each second. On a terminal the board stays where it is, elsewhere each look is a line.
func (w *world) watch(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	m := moment{scenario: w.options.Scenario, rate: w.options.Rate}
	began := time.Now()
	for last, polls := began, int64(0); ; {
		if err := w.look(ctx, &m); err != nil {
			return err
		}
		if since := time.Since(last); since > 0 {
			m.polls = float64(m.census.Polls-polls) / since.Seconds()
		}
		last, polls, m.running = time.Now(), m.census.Polls, time.Since(began)
		if err := w.print(m); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (w *world) look(ctx context.Context, m *moment) (err error) {
	if m.census, err = postgres.Count(ctx, w.pool, w.first); err != nil {
		return err
	}
	m.recent, err = postgres.Measure(ctx, w.pool, w.first, time.Minute)
	return err
}

func (w *world) print(m moment) error {
	if w.screen.terminal {
		return w.screen.show(m.board())
	}
	w.say("%s", m.line())
	return nil
}

// cell is a number with its name.
type cell struct {
	name  string
	value any
}

// cells are all numbers, in the order of a payment's way.
func (m moment) cells() []cell {
	c := m.census
	return []cell{
		{"tracked", c.Tracked}, {"pending", c.Pending()}, {"in flight", c.InFlight}, {"held", c.Held}, {"parked", c.Parked}, {"deferred", c.Deferred},
		{"succeeded", c.ByStatus[payment.Succeeded]}, {"failed", c.ByStatus[payment.Failed]}, {"cancelled", c.ByStatus[payment.Cancelled]},
		{"expired", c.ByStatus[payment.Expired]}, {"dead", c.Dead}, {"polls/s", fmt.Sprintf("%.0f", m.polls)},
	}
}

// board is the moment as a table, 72 characters wide.
func (m moment) board() []string {
	lines := []string{fmt.Sprintf(" %s · %s · %s", m.scenario, clock(m.running), m.traffic()), ""}
	const columns = 6
	for cells := m.cells(); len(cells) > 0; cells = cells[columns:] {
		var names, values strings.Builder
		for _, c := range cells[:columns] {
			fmt.Fprintf(&names, "%12s", c.name)
			fmt.Fprintf(&values, "%12v", c.value)
		}
		lines = append(lines, names.String(), values.String(), "")
	}
	return append(lines,
		fmt.Sprintf("   time to finality  p50 %s  p99 %s  of the last minute", seconds(m.recent.Finality50), seconds(m.recent.Finality99)),
		"   dead: with a person, see pollux dlq list; Ctrl-C ends it all")
}

func (m moment) traffic() string {
	if m.rate == 0 {
		return "payments as fast as they can be"
	}
	return fmt.Sprintf("%g payments a second", m.rate)
}

// line is the moment for a file: names and values.
func (m moment) line() string {
	words := []string{m.scenario, clock(m.running)}
	for _, c := range m.cells() {
		words = append(words, fmt.Sprintf("%s=%v", strings.ReplaceAll(c.name, " ", "_"), c.value))
	}
	return strings.Join(append(words, "p50="+seconds(m.recent.Finality50), "p99="+seconds(m.recent.Finality99)), " ")
}

// clock is a duration as a stopwatch shows it.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	if s < 3600 {
		return fmt.Sprintf("%d:%02d", s/60, s%60)
	}
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3fs", d.Seconds()) }
