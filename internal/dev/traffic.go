package dev

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"pollux/internal/gatewaysim"
	"pollux/internal/postgres"
)

// trackBatch is how many payments are tracked in one call.
const trackBatch = 500

// track tracks the run's payments: all of them as fast as they can be, or at the rate until there are enough or ctx ends.
func (w *world) track(ctx context.Context) error {
	prefix := fmt.Sprintf("dev%d", time.Now().UnixMilli())
	if w.options.Rate == 0 && w.options.Payments > 0 {
		for left := w.options.Payments; left > 0; left -= trackBatch {
			if err := w.trackSome(ctx, prefix, min(left, trackBatch)); err != nil {
				return err
			}
		}
		return nil
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began, done := time.Now(), 0
	for w.options.Payments == 0 || done < w.options.Payments {
		due := int(time.Since(began).Seconds()*w.options.Rate) - done
		if w.options.Payments > 0 {
			due = min(due, w.options.Payments-done)
		}
		if due > 0 {
			if err := w.trackSome(ctx, prefix, min(due, trackBatch)); err != nil {
				return err
			}
			done += min(due, trackBatch)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// incoming is a payment as a payment service tracks it.
type incoming struct {
	Gateway        string `json:"gateway"`
	Reference      string `json:"reference"`
	AmountMinor    int64  `json:"amount_minor"`
	Currency       string `json:"currency"`
	Class          string `json:"class"`
	FirstPollAfter string `json:"first_poll_after,omitempty"`
}

// trackSome lets the gateways make payments and tracks them as a payment service would.
func (w *world) trackSome(ctx context.Context, prefix string, n int) error {
	rows, err := w.makeSome(prefix, n)
	if err != nil {
		return err
	}
	body, err := json.Marshal(rows)
	if err != nil {
		return fmt.Errorf("encoding payments: %w", err)
	}
	if _, err := w.pool.Exec(ctx, `select count(*) from pollux.track_payments($1)`, string(body)); err != nil {
		return fmt.Errorf("tracking payments: %w", err)
	}
	w.made.Add(int64(n))
	return nil
}

// makeSome lets the gateways make payments, each about as many as the others.
func (w *world) makeSome(prefix string, n int) (rows []incoming, err error) {
	for i, s := range w.stations {
		share := (int(w.made.Load())+n+i)/len(w.stations) - (int(w.made.Load())+i)/len(w.stations)
		made := s.sim.Generate(share, prefix)
		if len(made) < share {
			return nil, fmt.Errorf("the gateway simulator is full after %d payments", gatewaysim.DefaultCapacity)
		}
		first := ""
		if s.sender != nil {
			s.sender.Watch(made)
			first = firstPollAfter
		}
		for _, p := range made {
			rows = append(rows, incoming{s.name, p.Reference, p.AmountMinor, p.Currency, Class, first})
		}
	}
	return rows, nil
}

// firstPollAfter is how long a gateway that sends notifications is given to send one.
const firstPollAfter = "4 seconds"

// awaitTold waits until the gateways have told all that they have to tell.
func (w *world) awaitTold(ctx context.Context) error {
	for _, s := range w.stations {
		for s.sender != nil && !s.sender.Idle() {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%w: %s still sends notifications", context.Cause(ctx), s.name)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

// awaitSettled waits until every payment of the run is final or with a person, and its events are published.
func (w *world) awaitSettled(ctx context.Context) error {
	left := w.options.Payments
	for {
		n, err := postgres.Waiting(ctx, w.pool, w.first)
		if err == nil && n == 0 {
			n, err = postgres.Unpublished(ctx, w.pool, w.first)
		}
		if err == nil {
			left = n
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %d payments are still on their way", context.Cause(ctx), left)
		case err != nil:
			return err
		case n == 0:
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
