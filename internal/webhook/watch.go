package webhook

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"pollux/internal/outage"
)

// WatchConfig says what is looked after, and how often.
type WatchConfig struct {
	Look     time.Duration // how often notices that wait for their payments are looked at; each is looked at ever more seldom
	Meet     time.Duration // how often it is looked whether a payment was tracked that one waits for
	Reach    int           // at most so many of the newest payments are looked through then
	Patience time.Duration // how long a notice waits for its payment
	Keep     time.Duration // how long notices are kept
	Batch    int           // at most so many rows at once

	Gateways map[string]Silence // the gateways that are listened to
	Every    time.Duration      // how often it is looked whether they are silent
}

// Silence says when a gateway that says nothing is silent. The zero value is never.
type Silence struct {
	After   time.Duration // without a notification, while
	Pending int           // so many payments have been pending for that long;
	Within  time.Duration // then each of them is polled within this time. 0: the gateway cannot be polled
}

// Watch looks after what was kept, and listens for silence. Several at once do no harm.
type Watch struct {
	cfg     WatchConfig
	keeper  Keeper
	metrics Metrics
	log     *slog.Logger
	failing *outage.Log // by task
	silent  map[string]bool
	newest  horizon
}

// NewWatch returns a watch.
func NewWatch(cfg WatchConfig, keeper Keeper, metrics Metrics, log *slog.Logger) *Watch {
	return &Watch{cfg: cfg, keeper: keeper, metrics: metrics, log: log, silent: map[string]bool{},
		failing: outage.New(log, outage.Words{Begins: "notifications cannot be looked after; it is tried again", Over: "notifications are looked after again",
			Hint: "can PostgreSQL be reached where database.url says?"})}
}

// Run watches until ctx ends. It returns nil: what goes wrong is tried again.
func (w *Watch) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	tasks.Go(func() { w.repeat(ctx, "waiting", w.cfg.Look, w.LookAgain) })
	tasks.Go(func() { w.repeat(ctx, "tracked", w.cfg.Meet, w.Meet) })
	tasks.Go(func() { w.repeat(ctx, "silence", w.cfg.Every, w.Listen) })
	tasks.Go(func() { w.repeat(ctx, "old", forgetEvery, w.Forget) })
	tasks.Wait()
	return nil
}

// forgetEvery is how often old notices are taken away.
const forgetEvery = time.Minute

// longestRetry is how long a task waits at the most after it went wrong, unless it waits as long in any case.
const longestRetry = 5 * time.Second

// repeat does a task from time to time until ctx ends, and ever more seldom while it goes wrong.
func (w *Watch) repeat(ctx context.Context, task string, every time.Duration, do func(context.Context) error) {
	wait := every
	for {
		err := do(ctx)
		switch {
		case err == nil:
			wait = every
			w.failing.Well(ctx, task)
		case ctx.Err() == nil:
			wait = max(every, min(2*wait, longestRetry))
			w.failing.Failed(ctx, task, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// LookAgain applies notices whose payments were tracked meanwhile.
func (w *Watch) LookAgain(ctx context.Context) error {
	for ctx.Err() == nil {
		verdicts, err := w.keeper.LookAgain(ctx, w.cfg.Batch, w.cfg.Patience)
		if err != nil {
			return err
		}
		for _, v := range verdicts {
			if v.Decision == Waiting {
				continue
			}
			v.count(w.metrics)
			if v.Decision.ForPerson() {
				w.log.ErrorContext(ctx, "a notification needs a person: pollux webhook list", "gateway", v.Gateway, "decision", string(v.Decision),
					"reason", v.Why, "payment_id", int64(v.Payment)) // it waited for its payment, so that there is one
			}
		}
		if len(verdicts) < w.cfg.Batch {
			return nil
		}
	}
	return nil
}

// Meet has notices looked at whose payments were tracked since the last look. It is called by one at a time.
func (w *Watch) Meet(ctx context.Context) error {
	seen, err := w.keeper.Meet(ctx, w.newest.settled, w.cfg.Reach)
	if err == nil {
		w.newest.saw(seen)
	}
	return err
}

// Forget takes away what was kept long enough.
func (w *Watch) Forget(ctx context.Context) error {
	for ctx.Err() == nil {
		n, err := w.keeper.Forget(ctx, w.cfg.Keep, w.cfg.Batch)
		if err != nil || n < w.cfg.Batch {
			return err
		}
	}
	return nil
}

// Listen raises an alarm for gateways that are silent, and has their payments polled more often.
func (w *Watch) Listen(ctx context.Context) error {
	for gateway, s := range w.cfg.Gateways {
		if s.After <= 0 {
			continue
		}
		all, err := w.keeper.Quiet(ctx, []string{gateway}, s.After, s.Pending)
		if err != nil {
			return err
		}
		for _, q := range all {
			if err := w.heed(ctx, q, s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *Watch) heed(ctx context.Context, q Quiet, s Silence) error {
	silent := q.silent(s)
	w.metrics.WebhookSilence(q.Gateway, silent, q.For)
	was := w.silent[q.Gateway]
	w.silent[q.Gateway] = silent
	switch {
	case silent && !was:
		w.log.ErrorContext(ctx, "a gateway sends no notifications although payments wait for it; they are polled more often", "gateway", q.Gateway,
			"heard", q.Heard, "quiet_for", q.For.Round(time.Second), "hint", "look at its webhook settings, and whether this endpoint can be reached")
	case was && !silent:
		w.log.InfoContext(ctx, "a gateway sends notifications again, or nothing waits for it", "gateway", q.Gateway)
	}
	if !silent || s.Within <= 0 {
		return nil
	}
	n, err := w.keeper.Densen(ctx, q.Gateway, s.Within, w.cfg.Batch)
	if n > 0 {
		w.log.DebugContext(ctx, "polls of a silent gateway are due earlier", "gateway", q.Gateway, "polls", n)
	}
	return err
}
