package dev

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"pollux/internal/gatewaysim"
	"pollux/internal/payment"
	"pollux/internal/postgres"
)

// Summary is what a run with --once prints. It comes from the rows and the simulator's own book, not from what the services say.
type Summary struct {
	Scenario     string  `json:"scenario"`
	Consumers    int     `json:"consumers"`
	Tracked      int     `json:"tracked"`
	Succeeded    int     `json:"succeeded"`
	Failed       int     `json:"failed"`
	Cancelled    int     `json:"cancelled"`
	Expired      int     `json:"expired"`
	InReview     int     `json:"in_review"`      // pending, and with a person
	GatewayCalls int64   `json:"gateway_calls"`  // by the gateway's log
	Lost         int     `json:"lost"`           // neither final nor with a person, or without their event
	Twice        int     `json:"finished_twice"` // more than one final transition, or more than one event
	Wrong        int     `json:"wrong_status"`   // another status than the gateway's book has
	Seconds      float64 `json:"seconds"`        // from the first payment tracked to the last one settled
	PerSecond    float64 `json:"payments_per_second"`
	Working      float64 `json:"working_seconds"` // from the first poll to the last payment settled
	Resolving    float64 `json:"resolved_per_second"`
	Finality50   float64 `json:"time_to_finality_p50_seconds"`
	Finality99   float64 `json:"time_to_finality_p99_seconds"`
	Lateness50   float64 `json:"retry_lateness_p50_seconds"`
	Lateness99   float64 `json:"retry_lateness_p99_seconds"`
	First50      float64 `json:"first_poll_lateness_p50_seconds"`
	First99      float64 `json:"first_poll_lateness_p99_seconds"`

	Protection

	// Gateways is how each of the gateways that were chosen did, by its name.
	Gateways map[string]*Played `json:"gateways,omitempty"`

	treated   []treatment // each gateway for itself
	histogram histogram
	reopened  time.Time // when the breaker closed for the last time; zero when it never did
	examples  []string  // of what is wrong, for a person
}

// Good reports whether every payment ended as it had to, and the gateway was treated as it had to be.
func (s Summary) Good() bool {
	return s.Lost == 0 && s.Twice == 0 && s.Wrong == 0 && len(s.complaints()) == 0
}

func (s Summary) complaint() string {
	all := s.complaints()
	if s.Lost+s.Twice+s.Wrong > 0 {
		all = append([]string{fmt.Sprintf("%d lost, %d finished twice, %d with a wrong status: %s", s.Lost, s.Twice, s.Wrong, strings.Join(s.examples, "; "))}, all...)
	}
	return strings.Join(all, "; ")
}

// check compares each payment of the run with the gateway's book.
func (w *world) check(ctx context.Context) (Summary, error) {
	s := Summary{Scenario: w.options.Scenario, Consumers: w.options.Consumers}
	for _, st := range w.stations {
		s.GatewayCalls += st.sim.Stats().Calls
	}
	standings, err := postgres.Standings(ctx, w.pool, w.first)
	if err != nil {
		return s, err
	}
	if err := w.played(ctx, &s, standings); err != nil {
		return s, err
	}
	for _, p := range standings {
		truth, known := w.truth(p)
		if !known {
			continue // tracked by hand
		}
		s.judge(p, truth)
	}
	if missing := int(w.made.Load()) - s.Tracked; missing > 0 {
		s.Lost += missing
		s.examples = append(s.examples, fmt.Sprintf("%d were tracked and are not in the record", missing))
	}
	q, err := postgres.Measure(ctx, w.pool, w.first, 0)
	if err != nil {
		return s, err
	}
	s.Seconds = q.Span.Seconds()
	if s.Seconds > 0 {
		s.PerSecond = float64(s.Tracked) / s.Seconds
	}
	if s.Working = q.Working.Seconds(); s.Working > 0 {
		s.Resolving = float64(s.Tracked) / s.Working
	}
	s.Finality50, s.Finality99 = q.Finality50.Seconds(), q.Finality99.Seconds()
	s.Lateness50, s.Lateness99 = q.Lateness50.Seconds(), q.Lateness99.Seconds()
	s.First50, s.First99 = q.First50.Seconds(), q.First99.Seconds()
	return s, w.protection(ctx, &s)
}

// truth is what the payment's gateway has in its book.
func (w *world) truth(p postgres.Standing) (string, bool) {
	for _, s := range w.stations {
		if s.name == p.Gateway {
			return s.sim.Truth(p.Reference)
		}
	}
	return "", false
}

// judge counts one payment. A payment that a person must look at may have been handed over where the gateway would have given an answer in the
// end; one that the gateway never answers rightly must have been.
func (s *Summary) judge(p postgres.Standing, truth string) {
	s.Tracked++
	complain := func(counter *int, what string) {
		*counter++
		if len(s.examples) < 5 {
			s.examples = append(s.examples, fmt.Sprintf("%s %s (is %s, the gateway says %s)", p.Reference, what, p.Status, truth))
		}
	}
	switch p.Status {
	case payment.Succeeded:
		s.Succeeded++
	case payment.Failed:
		s.Failed++
	case payment.Cancelled:
		s.Cancelled++
	case payment.Expired:
		s.Expired++
	}
	final := p.Status.Final()
	switch {
	case !final && p.Person:
		s.InReview++
	case !final:
		complain(&s.Lost, "is neither final nor with a person")
	case p.Events == 0 || !p.Announced:
		complain(&s.Lost, "has no published event")
	case truth == gatewaysim.Review || string(p.Status) != truth:
		complain(&s.Wrong, "has a wrong status")
	}
	if p.Revision > 1 || p.Events > 1 || p.Resolves > 1 {
		complain(&s.Twice, "was finished twice")
	}
}

func (s Summary) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	line := func(name string, value any) { fmt.Fprintf(w, "%s\t%v\n", name, value) }
	line("scenario", s.Scenario)
	line("tracked", s.Tracked)
	line("succeeded", s.Succeeded)
	line("failed", s.Failed)
	line("cancelled", s.Cancelled)
	line("expired", s.Expired)
	line("with a person", s.InReview)
	line("lost", s.Lost)
	line("finished twice", s.Twice)
	line("wrong status", s.Wrong)
	line("gateway calls", s.GatewayCalls)
	line("seconds", fmt.Sprintf("%.2f", s.Seconds))
	line("payments a second", fmt.Sprintf("%.0f", s.PerSecond))
	line("resolved a second, from the first poll", fmt.Sprintf("%.0f", s.Resolving))
	line("time to finality p50, p99", fmt.Sprintf("%.3f s, %.3f s", s.Finality50, s.Finality99))
	line("lateness of retries p50, p99", fmt.Sprintf("%.3f s, %.3f s", s.Lateness50, s.Lateness99))
	s.Protection.print(line)
	for _, name := range slices.Sorted(maps.Keys(s.Gateways)) {
		line(name, s.Gateways[name])
	}
	if err := w.Flush(); err != nil || s.reopened.IsZero() {
		return err
	}
	return s.histogram.plot(out, "around the reopening", s.reopened)
}
