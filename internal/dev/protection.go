package dev

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/gatewaysim"
	"pollux/internal/postgres"
)

// Protection is how the gateway was treated. It comes from the gateway's own log and from the rows of its breaker's transitions.
type Protection struct {
	Openings       int `json:"openings"`         // from closed
	CallsWhileOpen int `json:"calls_while_open"` // that reached the gateway while the fleet's breaker was open or half-open; see propagation
	ProbesAllowed  int `json:"probes_allowed"`   // how many probes the configuration allows the fleet in that time

	// BeforeOpening is the most calls that met a gateway that was down or refused the key before one opening, those included that were on
	// their way. BeforeOpeningAllowed is the threshold and what all consumers can have in hand.
	BeforeOpening        int `json:"calls_before_opening"`
	BeforeOpeningAllowed int `json:"calls_before_opening_allowed"`

	MaxPerSecond int     `json:"max_requests_per_second"` // in any second, not only in those that begin with one
	RateLimit    float64 `json:"rate_limit"`              // a second, for the fleet; 0 without one
	RateBurst    int     `json:"rate_burst"`
	Stall        float64 `json:"longest_stall_seconds"` // for which the machine kept the launcher from running: in one second the gateway may see what was let out in a longer time
	Throttled    int64   `json:"throttled"`             // calls that the gateway answered with 429

	MaxReopening    int     `json:"max_calls_per_100ms_after_reopening"` // in the second after the breaker closed for the last time
	MaxUsual        int     `json:"max_calls_per_100ms"`                 // in the whole run
	RecoverySeconds float64 `json:"recovery_seconds"`                    // from when the gateway was well again, for the last time, to the first payment resolved; 0 when it was well all the time

	DeadLettered  int `json:"dead_lettered"`
	SpentRefusals int `json:"attempts_spent_on_refusals"` // attempts and failures that a payment was charged for a 401, 403 or 429
}

// propagation is how long after an opening calls may reach the gateway that were let in before it: calls on their way, and those of instances that
// have not heard of it yet. They count as calls before the opening; the probes of that time are neither counted nor allowed.
const propagation = time.Second

// stretch is a time in which the fleet's breaker was in one state.
type stretch struct {
	kind     breaker.Kind
	from, to time.Time
	opened   bool // it was closed before
	news     bool // not all instances knew it at once: it was closed before, or one of them took it for closed
	unproved bool // the row that says when its probes began is missing: its writer was killed
}

// stretches are the states of the fleet's breaker until an instant, from the rows of its transitions. Instances that changed it at the same time have each written a
// row, with one epoch: the earliest says when, and which of them prevailed is known from the state that the next epoch begins in.
func stretches(changes []postgres.Change, until time.Time) []stretch {
	changes = slices.Clone(changes)
	slices.SortStableFunc(changes, func(a, b postgres.Change) int { return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), a.At.Compare(b.At)) })
	all := []stretch{{kind: breaker.Closed}}
	for len(changes) > 0 {
		n := 1
		for n < len(changes) && changes[n].Epoch == changes[0].Epoch {
			n++
		}
		same, rest := changes[:n], changes[n:]
		changes = rest
		c := prevailing(same, rest)
		var from, to breaker.Kind
		if from.UnmarshalText([]byte(c.From)) != nil || to.UnmarshalText([]byte(c.To)) != nil {
			continue
		}
		last := &all[len(all)-1]
		last.unproved = last.unproved || last.kind == breaker.Open && from == breaker.HalfOpen
		if to == last.kind && to != breaker.HalfOpen {
			continue
		}
		at := later(same[0].At, last.from)
		last.to = at
		disputed := slices.ContainsFunc(same, func(o postgres.Change) bool { return o.To == breaker.Closed.String() })
		opened := to == breaker.Open && last.kind == breaker.Closed
		all = append(all, stretch{kind: to, from: at, opened: opened, news: opened || disputed})
	}
	all[len(all)-1].to = until
	return all
}

// prevailing is the row, among those of one epoch, that the next epoch followed.
func prevailing(same, rest []postgres.Change) postgres.Change {
	for _, c := range same {
		if len(rest) > 0 && rest[0].From == c.To {
			return c
		}
	}
	return same[0]
}

// probes is how many probes a stretch allows: those that succeed one after the other, those that are at the gateway when it ends, and a new set
// each time that the leases of lost ones have run out.
func (s stretch) probes(c breaker.Config) int {
	if s.kind != breaker.HalfOpen && !s.unproved {
		return 0
	}
	return c.Successes - 1 + c.Probes*(1+int(s.to.Sub(s.from)/c.ProbeDeadline))
}

// calls counts what reached the gateway in the stretches.
func (p *Protection) calls(c breaker.Config, all []stretch, log []gatewaysim.Call) {
	within := func(from, to time.Time, which func(gatewaysim.Call) bool) (n int) {
		for _, call := range log {
			if !call.At.Before(from) && call.At.Before(to) && which(call) {
				n++
			}
		}
		return n
	}
	every := func(gatewaysim.Call) bool { return true }
	var closed, known time.Time // since when all know that it is shut
	for _, s := range all {
		if s.kind != breaker.Open && s.kind != breaker.HalfOpen {
			closed = s.from
			continue
		}
		if s.news {
			known = s.from.Add(propagation)
		}
		if s.opened {
			p.Openings++
			p.BeforeOpening = max(p.BeforeOpening, within(closed, known, inVain))
		}
		if s.to.After(known) {
			p.CallsWhileOpen += within(later(s.from, known), s.to, every)
			p.ProbesAllowed += s.probes(c)
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// inVain reports whether a call met a gateway that was down or refused the key.
func inVain(c gatewaysim.Call) bool { return c.Down || c.Outcome == gatewaysim.Unauthorized }

// treatment is how one gateway was treated.
type treatment struct {
	gateway string // what a complaint about it begins with; nothing when there is one gateway only
	Protection
}

// protection looks at how the gateways were treated.
func (w *world) protection(ctx context.Context, s *Summary) error {
	for _, st := range w.stations {
		p, err := w.treated(ctx, s, st)
		if err != nil {
			return err
		}
		t := treatment{Protection: p}
		if len(w.stations) > 1 {
			t.gateway = st.name + ": "
		}
		s.treated = append(s.treated, t)
		s.Protection = s.Protection.and(p)
	}
	if err := w.costs(ctx, &s.Protection); err != nil {
		return err
	}
	var err error
	s.RecoverySeconds, err = w.recovery(ctx)
	return err
}

// and is how two gateways were treated together: sums of what is counted, and otherwise the larger number.
func (p Protection) and(o Protection) Protection {
	return Protection{
		Openings: p.Openings + o.Openings, CallsWhileOpen: p.CallsWhileOpen + o.CallsWhileOpen, ProbesAllowed: p.ProbesAllowed + o.ProbesAllowed,
		BeforeOpening: max(p.BeforeOpening, o.BeforeOpening), BeforeOpeningAllowed: max(p.BeforeOpeningAllowed, o.BeforeOpeningAllowed),
		MaxPerSecond: max(p.MaxPerSecond, o.MaxPerSecond), RateLimit: max(p.RateLimit, o.RateLimit), RateBurst: max(p.RateBurst, o.RateBurst),
		Stall: max(p.Stall, o.Stall), Throttled: p.Throttled + o.Throttled,
		MaxReopening: max(p.MaxReopening, o.MaxReopening), MaxUsual: max(p.MaxUsual, o.MaxUsual),
	}
}

// treated looks at how one gateway was treated. What a poll may take several calls for may be called so often.
func (w *world) treated(ctx context.Context, s *Summary, st *station) (p Protection, err error) {
	changes, err := w.transitions(ctx, st.name)
	if err != nil {
		return p, err
	}
	g, stats := w.cfg.Gateways[st.name], st.sim.Stats()
	b, all := g.BreakerConfig(), stretches(changes, time.Now())
	lanes := len(w.cfg.Consumer.Lanes) + 3 // and those of retries, replays and deferred polls
	p.BeforeOpeningAllowed = st.calls * (max(b.ConsecutiveFailures, b.CredentialFailures) + w.options.Consumers*lanes*g.Workers)
	p.calls(b, all, st.sim.Log())
	p.ProbesAllowed *= st.calls

	p.MaxPerSecond, p.Throttled = stats.PeakPerSecond, stats.Outcomes[gatewaysim.RateLimited.String()]
	p.Stall = time.Duration(w.stalls.longest.Load()).Seconds()
	if l := g.LimitConfig(); l.Rate > 0 {
		p.RateLimit, p.RateBurst = float64(l.Rate), l.Seats()
	}
	h, reopened := histogram{stats.BucketsFrom, stats.Buckets}, reopening(all)
	p.MaxUsual = h.max(w.began, time.Now())
	if !reopened.IsZero() {
		p.MaxReopening = h.max(reopened, reopened.Add(time.Second))
	}
	if len(w.stations) == 1 {
		s.histogram, s.reopened = h, reopened
	}
	return p, nil
}

// transitions are those of this run at one gateway.
func (w *world) transitions(ctx context.Context, gateway string) ([]postgres.Change, error) {
	changes, err := postgres.NewBreakers(w.pool).Changes(ctx, gateway, "", 100_000)
	return slices.DeleteFunc(changes, func(c postgres.Change) bool { return c.At.Before(w.began) }), err
}

// reopening is when the breaker closed for the last time, the zero time when it never did.
func reopening(all []stretch) (at time.Time) {
	for _, s := range all[1:] {
		if s.kind == breaker.Closed {
			at = s.from
		}
	}
	return at
}

// costs reads what payments were charged that they must not be.
func (w *world) costs(ctx context.Context, p *Protection) error {
	err := w.pool.QueryRow(ctx, `
		with calls as (
		  select class, applied,
		    greatest(attempts - lag(attempts, 1, 0) over each, 0) + greatest(failures - lag(failures, 1, 0) over each, 0) as spent
		  from pollux.poll_attempts
		  where payment_id >= $1
		  window each as (partition by payment_id order by at)
		)
		select
		  (select coalesce(sum(spent), 0) from calls where applied and class in ('unauthorized', 'rate_limited')),
		  (select count(*) from pollux.dead_letters where payment_id >= $1 and not review)`, int64(w.first)).Scan(&p.SpentRefusals, &p.DeadLettered)
	if err != nil {
		return fmt.Errorf("reading what calls cost: %w", err)
	}
	return nil
}

// recovery is how long after the gateway was well again, for the last time before all were settled, the first payment was resolved.
func (w *world) recovery(ctx context.Context) (float64, error) {
	var last *time.Time
	err := w.pool.QueryRow(ctx, `select max(status_updated_at) from pollux.payments where id >= $1 and status <> 'pending'`, int64(w.first)).Scan(&last)
	if err != nil || last == nil {
		return 0, err
	}
	well, troubled := w.stations[0].sim.Well(*last) // they are all well at the same time
	if at := w.mended.Load(); at != 0 {
		well, troubled = time.Unix(0, at), true
	}
	if !troubled {
		return 0, nil
	}
	var seconds float64
	err = w.pool.QueryRow(ctx, `
		select coalesce(extract(epoch from min(status_updated_at) - $2::timestamptz), 0)::float8
		from pollux.payments
		where id >= $1
		  and status <> 'pending'
		  and status_updated_at >= $2`, int64(w.first), well).Scan(&seconds)
	return seconds, err
}

// complaints are what is wrong with how the gateway was treated.
func (s Summary) complaints() (all []string) {
	add := func(wrong bool, format string, a ...any) {
		if wrong {
			all = append(all, fmt.Sprintf(format, a...))
		}
	}
	for _, t := range s.treated {
		add(t.CallsWhileOpen > t.ProbesAllowed, "%s%d calls reached the gateway while the breaker was open or half-open, %d probes are allowed", t.gateway, t.CallsWhileOpen, t.ProbesAllowed)
		add(t.BeforeOpening > t.BeforeOpeningAllowed, "%s%d calls were made in vain before the breaker opened, %d are allowed", t.gateway, t.BeforeOpening, t.BeforeOpeningAllowed)
		add(t.RateLimit > 0 && float64(t.MaxPerSecond) > t.RateLimit*(1+t.Stall)+float64(t.RateBurst), "%s%d calls in one second, the limit is %g and a burst of %d; the machine stalled for %.3f s at the most",
			t.gateway, t.MaxPerSecond, t.RateLimit, t.RateBurst, t.Stall)
	}
	add(s.SpentRefusals > 0, "%d attempts or failures were charged for refused keys and throttled calls", s.SpentRefusals)
	add(s.Scenario == "expired-key" && s.DeadLettered > 0, "%d payments went to a person because of a refused key", s.DeadLettered)
	return append(all, s.misheard()...)
}

// print prints a line for each.
func (p Protection) print(line func(name string, value any)) {
	line("openings of the breaker", p.Openings)
	line("calls while open, probes allowed", fmt.Sprintf("%d, %d", p.CallsWhileOpen, p.ProbesAllowed))
	line("calls in vain before an opening", p.BeforeOpening)
	if p.RateLimit > 0 {
		line("most calls in a second", fmt.Sprintf("%d, limit %g and a burst of %d", p.MaxPerSecond, p.RateLimit, p.RateBurst))
	} else {
		line("most calls in a second", p.MaxPerSecond)
	}
	line("calls answered with 429", p.Throttled)
	line("charged for refused keys and 429", p.SpentRefusals)
	if p.RecoverySeconds > 0 {
		line("gateway well to first resolution", fmt.Sprintf("%.3f s", p.RecoverySeconds))
	}
}
