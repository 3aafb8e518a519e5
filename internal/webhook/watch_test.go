package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/webhook"
)

// keeper is what a watch looks after: notices that wait, and how quiet gateways are.
type keeper struct {
	waiting []webhook.Verdict
	old     int
	quiet   webhook.Quiet
	calls   []string
	fail    error

	sightings []webhook.Sighting
	met       []int64 // above which ids it was looked
}

func (k *keeper) call(format string, a ...any) error {
	k.calls = append(k.calls, fmt.Sprintf(format, a...))
	return k.fail
}

func (k *keeper) LookAgain(_ context.Context, n int, patience time.Duration) ([]webhook.Verdict, error) {
	some := k.waiting[:min(n, len(k.waiting))]
	k.waiting = k.waiting[len(some):]
	return some, k.call("look %d %s", n, patience)
}

func (k *keeper) Meet(_ context.Context, after int64, n int) (webhook.Sighting, error) {
	k.met = append(k.met, after)
	if len(k.sightings) == 0 {
		return webhook.Sighting{}, k.fail
	}
	s := k.sightings[0]
	k.sightings = k.sightings[1:]
	return s, k.fail
}

func (k *keeper) Forget(_ context.Context, keep time.Duration, n int) (int, error) {
	some := min(n, k.old)
	k.old -= some
	return some, k.call("forget %d %s", n, keep)
}

func (k *keeper) Quiet(_ context.Context, gateways []string, after time.Duration, n int) ([]webhook.Quiet, error) {
	return []webhook.Quiet{k.quiet}, k.call("quiet %v %s %d", gateways, after, n)
}

func (k *keeper) Densen(_ context.Context, gateway string, within time.Duration, n int) (int, error) {
	return 1, k.call("densen %s %s %d", gateway, within, n)
}

func newWatch(k *keeper, m *meter, s webhook.Silence) *webhook.Watch {
	return webhook.NewWatch(webhook.WatchConfig{Look: time.Second, Meet: time.Second, Reach: 100, Patience: time.Hour, Keep: 48 * time.Hour, Batch: 2, Every: time.Minute,
		Gateways: map[string]webhook.Silence{"acme": s}}, k, m, quiet)
}

func TestWaitingNoticesAreLookedAtUntilNoneIsLeft(t *testing.T) {
	k, m := &keeper{waiting: []webhook.Verdict{{Gateway: "acme", Decision: webhook.Applied}, {Gateway: "acme", Decision: webhook.Waiting}, {Gateway: "acme", Decision: webhook.Conflicting}}}, &meter{}
	if err := newWatch(k, m, webhook.Silence{}).LookAgain(t.Context()); err != nil || len(k.waiting) != 0 || len(k.calls) != 2 {
		t.Errorf("%v %v", err, k)
	}
	if m.of("notice acme applied") != 1 || m.of("notice acme conflict") != 1 || m.of("notice acme waiting") != 0 {
		t.Error(m.counts)
	}
}

func TestOldNoticesAreForgottenInSteps(t *testing.T) {
	k := &keeper{old: 5}
	if err := newWatch(k, &meter{}, webhook.Silence{}).Forget(t.Context()); err != nil || k.old != 0 || len(k.calls) != 3 {
		t.Errorf("%v %v", err, k)
	}
}

func TestASilentGatewayRaisesAnAlarmAndIsPolledMore(t *testing.T) {
	silence := webhook.Silence{After: 10 * time.Minute, Pending: 3, Within: 5 * time.Minute}
	for _, c := range []struct {
		name   string
		q      webhook.Quiet
		silent bool
	}{
		{"heard a moment ago", webhook.Quiet{Heard: true, For: time.Minute, Waiting: true}, false},
		{"heard at the limit", webhook.Quiet{Heard: true, For: 10 * time.Minute, Waiting: true}, false},
		{"not heard for too long", webhook.Quiet{Heard: true, For: 10*time.Minute + 1, Waiting: true}, true},
		{"never heard", webhook.Quiet{Waiting: true}, true},
		{"nothing waits", webhook.Quiet{Heard: true, For: time.Hour}, false},
	} {
		c.q.Gateway = "acme"
		k, m := &keeper{quiet: c.q}, &meter{}
		if err := newWatch(k, m, silence).Listen(t.Context()); err != nil {
			t.Error(err)
		}
		if got := strings.Contains(strings.Join(k.calls, "\n"), "densen acme 5m0s 2"); got != c.silent || m.of(fmt.Sprintf("silence acme %t", c.silent)) != 1 {
			t.Errorf("%s: %v %v", c.name, k.calls, m.counts)
		}
	}
	k := &keeper{quiet: webhook.Quiet{Gateway: "acme", Waiting: true}}
	if err := newWatch(k, &meter{}, webhook.Silence{After: time.Minute, Pending: 1}).Listen(t.Context()); err != nil || len(k.calls) != 1 {
		t.Errorf("one that cannot be polled: %v %v", k.calls, err)
	}
	k.calls = nil
	if err := newWatch(k, &meter{}, webhook.Silence{}).Listen(t.Context()); err != nil || k.calls != nil {
		t.Errorf("one that may be silent: %v %v", k.calls, err)
	}
}

func TestAWatchGoesOnAfterTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &guarded{keeper: &keeper{fail: errors.New("the database is away")}, calls: make(chan string, 100)}
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute+time.Second)
		defer stop()
		w := webhook.NewWatch(webhook.WatchConfig{Look: 30 * time.Second, Meet: 30 * time.Second, Batch: 2, Every: time.Minute, Gateways: map[string]webhook.Silence{"acme": {After: time.Minute}}}, k, &meter{}, quiet)
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
		close(k.calls)
		counts := map[string]int{}
		for c := range k.calls {
			counts[c]++
		}
		if counts["look"] != 5 || counts["quiet"] != 3 || counts["forget"] != 3 {
			t.Error(counts)
		}
	})
}

func TestAWatchWithoutADatabaseAsksEverMoreSeldomAndTellsOfItOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		k := &guarded{keeper: &keeper{fail: errors.New("the database is away")}, calls: make(chan string, 1000)}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		w := webhook.NewWatch(webhook.WatchConfig{Look: 250 * time.Millisecond, Meet: time.Second, Batch: 2, Every: time.Minute}, k, &meter{}, slog.New(slog.NewTextHandler(&log, nil)))
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
		if n := len(k.calls); n > 20 {
			t.Errorf("asked %d times in a minute", n)
		}
		if n := strings.Count(log.String(), "notifications cannot be looked after"); n < 2 || n > 4 || strings.Count(log.String(), "hint=") != n {
			t.Errorf("told %d times in a minute:\n%s", n, &log)
		}
	})
}

// guarded is a keeper for several tasks at once.
type guarded struct {
	*keeper
	calls chan string
}

func (g *guarded) LookAgain(context.Context, int, time.Duration) ([]webhook.Verdict, error) {
	g.calls <- "look"
	return nil, g.fail
}

func (g *guarded) Forget(context.Context, time.Duration, int) (int, error) {
	g.calls <- "forget"
	return 0, g.fail
}

func (g *guarded) Quiet(context.Context, []string, time.Duration, int) ([]webhook.Quiet, error) {
	g.calls <- "quiet"
	return nil, g.fail
}

// A payment may appear behind one with a higher id, for as long as a transaction is open that was open when that one was seen.
func TestNewPaymentsAreLookedForUntilNoneCanAppearBelow(t *testing.T) {
	k := &keeper{sightings: []webhook.Sighting{
		{Last: 10, Oldest: 100, Next: 100}, // nothing is open
		{Last: 20, Oldest: 105, Next: 110}, // some are, 105 the oldest
		{Last: 30, Oldest: 105, Next: 120}, // 105 goes on
		{Last: 40, Oldest: 105, Next: 130},
		{Last: 50, Oldest: 140, Next: 140}, // it is over
		{Last: 60, Oldest: 150, Next: 150},
		{Last: 60, Oldest: 160, Next: 160},
		{Last: 60, Oldest: 170, Next: 170},
	}}
	w := newWatch(k, &meter{}, webhook.Silence{})
	for range 8 {
		if err := w.Meet(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := fmt.Sprint(k.met), "[0 0 0 0 0 10 40 50]"; got != want {
		t.Errorf("it was looked above %s, want %s", got, want)
	}
	k.fail = errors.New("the database is away")
	k.sightings = []webhook.Sighting{{Last: 99, Oldest: 999, Next: 999}}
	if err := w.Meet(t.Context()); err == nil {
		t.Error("no error")
	}
	k.fail = nil
	if _ = w.Meet(t.Context()); k.met[9] != 60 {
		t.Errorf("after an error it was looked above %d", k.met[9])
	}
}
