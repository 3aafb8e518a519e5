package webhook_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/payment"
	"pollux/internal/webhook"
)

// pages is a source that has a page for each place.
type pages struct {
	pages map[string]webhook.Events
	since []time.Duration // how long ago each first page was asked for
	fail  error
}

func (p *pages) Events(_ context.Context, account string, since time.Time, after string) (webhook.Events, error) {
	if account != "eu" {
		return webhook.Events{}, errors.New("another account")
	}
	if after == "" {
		p.since = append(p.since, time.Since(since))
	}
	return p.pages[after], p.fail
}

// lookout says how quiet a gateway is, and whether somebody else is at it.
type lookout struct {
	quiet webhook.Quiet
	busy  bool
}

func (l *lookout) Quiet(context.Context, []string, time.Duration, int) ([]webhook.Quiet, error) {
	return []webhook.Quiet{l.quiet}, nil
}

func (l *lookout) Alone(ctx context.Context, _ string, do func(context.Context) error) error {
	if l.busy {
		return nil
	}
	return do(ctx)
}

func listed(id string) webhook.Notice {
	return webhook.Notice{ID: id, References: []string{"pay"}, Effect: webhook.Report, Status: payment.Succeeded, Detail: "succeeded"}
}

func TestWhatASilentGatewayToldIsFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &pages{pages: map[string]webhook.Events{
			"":   {Notices: []webhook.Notice{listed("e3"), {Fault: "not an event"}}, Next: "e3"},
			"e3": {Notices: []webhook.Notice{listed("e2"), listed("e1")}},
		}}
		record, m, l := &memory{}, &meter{}, &lookout{quiet: webhook.Quiet{Gateway: "acme", Heard: true, For: 10 * time.Minute}}
		target := webhook.Target{Gateway: "acme", Account: "eu", Source: source, Silence: webhook.Silence{After: 30 * time.Minute, Pending: 1}}
		f := webhook.NewFetcher(webhook.FetchConfig{Targets: []webhook.Target{target}, Every: time.Minute}, record, l, m, quiet)
		look := func() {
			t.Helper()
			if err := f.Look(t.Context(), target); err != nil {
				t.Error(err)
			}
		}
		look() // it is not silent
		l.quiet.Waiting, l.quiet.For, l.busy = true, time.Hour, true
		look() // somebody else fetches
		if source.since != nil || record.kept != nil {
			t.Fatalf("fetched: %v %v", source.since, record.kept)
		}
		l.busy = false
		look()
		for _, id := range []string{"e1", "e2", "e3"} {
			if a, ok := record.get(id); !ok || a.Key != webhook.KeyListed || a.Account != "eu" || a.Fault != "" {
				t.Errorf("%s: %t %+v", id, ok, a)
			}
		}
		if len(record.kept) != 4 || m.of("notice acme applied") != 3 || m.of("notice acme quarantined") != 1 {
			t.Errorf("%v %v", record.kept, m.counts)
		}
		time.Sleep(time.Minute)
		l.quiet.For += time.Minute
		look() // only what is new, and what may have been listed late
		if len(source.since) != 2 || source.since[0] != 65*time.Minute || source.since[1] != 6*time.Minute {
			t.Errorf("asked for what happened since %v", source.since)
		}
		if m.of("notice acme duplicate") != 0 || m.of("notice acme applied") != 3 {
			t.Errorf("what was there already is counted: %v", m.counts)
		}
		source.fail = errors.New("refused")
		if err := f.Look(t.Context(), target); err == nil {
			t.Error("a source that fails is no error")
		}
		l.quiet.Heard = false
		source.fail = nil
		other := target
		other.Gateway = "new" // never heard and never fetched
		if err := f.Look(t.Context(), other); err != nil || source.since[len(source.since)-1] != 24*time.Hour+5*time.Minute {
			t.Errorf("%v %v", err, source.since)
		}

		ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute+time.Second)
		defer stop()
		before := len(source.since)
		if err := f.Run(ctx); err != nil || len(source.since) != before+2 {
			t.Errorf("%v, looked %d times in two minutes", err, len(source.since)-before)
		}
	})
}
