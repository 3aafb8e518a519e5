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

// trackSome lets the gateway make payments and tracks them as a payment service would.
func (w *world) trackSome(ctx context.Context, prefix string, n int) error {
	type incoming struct {
		Gateway     string `json:"gateway"`
		Reference   string `json:"reference"`
		AmountMinor int64  `json:"amount_minor"`
		Currency    string `json:"currency"`
		Class       string `json:"class"`
	}
	made := w.sim.Generate(n, prefix)
	if len(made) < n {
		return fmt.Errorf("the gateway simulator is full after %d payments", gatewaysim.DefaultCapacity)
	}
	rows := make([]incoming, len(made))
	for i, p := range made {
		rows[i] = incoming{Gateway, p.Reference, p.AmountMinor, p.Currency, Class}
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
