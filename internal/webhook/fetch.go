package webhook

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"time"
)

// Source lists what a gateway told, so that what was lost on its way can be had all the same. It is safe for concurrent use.
type Source interface {
	// Events returns a page of what happened since an instant, the newest first. after is empty, or Next of the page before.
	Events(ctx context.Context, account string, since time.Time, after string) (Events, error)
}

// Events is a page of what a gateway told.
type Events struct {
	Notices []Notice
	Next    string // what the page behind it is asked for with; empty when there is none
}

// KeyListed stands for the key of a notice that was listed and not sent: who answers by the vendor's own address is the vendor.
const KeyListed = "listed"

// Target is an account whose events can be listed.
type Target struct {
	Gateway string
	Account string
	Source  Source
	Mode    string // as that of an Endpoint
	Silence Silence
}

// FetchConfig says what is fetched from gateways that are silent.
type FetchConfig struct {
	Targets []Target
	Every   time.Duration // how often it is looked whether one is silent
}

// The bounds of a fetch.
const (
	fetchPages   = 50              // of one account at once
	fetchOldest  = 24 * time.Hour  // what happened before is left to polls
	fetchOverlap = 5 * time.Minute // between two fetches: vendors list late
)

// Lookout is what a Fetcher needs of the record besides keeping notices.
type Lookout interface {
	// Quiet is as that of Keeper.
	Quiet(ctx context.Context, gateways []string, after time.Duration, n int) ([]Quiet, error)
	// Alone runs do unless somebody else is at it for that gateway, anywhere.
	Alone(ctx context.Context, gateway string, do func(context.Context) error) error
}

// Fetcher fetches what silent gateways told. It runs where the gateways' own keys are, which is not where strangers knock.
type Fetcher struct {
	cfg     FetchConfig
	record  Record
	lookout Lookout
	metrics Metrics
	log     *slog.Logger
	fetched map[[2]string]time.Time // by gateway and account: up to when
}

// NewFetcher returns a fetcher.
func NewFetcher(cfg FetchConfig, record Record, lookout Lookout, metrics Metrics, log *slog.Logger) *Fetcher {
	return &Fetcher{cfg: cfg, record: record, lookout: lookout, metrics: metrics, log: log, fetched: map[[2]string]time.Time{}}
}

// Run fetches until ctx ends, and returns nil: what goes wrong is tried again, and polls find what is not fetched.
func (f *Fetcher) Run(ctx context.Context) error {
	if len(f.cfg.Targets) == 0 {
		return nil
	}
	ticker := time.NewTicker(f.cfg.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		for _, t := range f.cfg.Targets {
			if err := f.Look(ctx, t); err != nil && ctx.Err() == nil {
				f.log.WarnContext(ctx, "the events of a silent gateway cannot be fetched; its payments are polled", "gateway", t.Gateway, "account", t.Account, "error", err)
			}
		}
	}
}

// Look fetches what an account told if its gateway is silent.
func (f *Fetcher) Look(ctx context.Context, t Target) error {
	if t.Silence.After <= 0 {
		return nil
	}
	all, err := f.lookout.Quiet(ctx, []string{t.Gateway}, t.Silence.After, t.Silence.Pending)
	if err != nil {
		return err
	}
	for _, q := range all {
		if !q.silent(t.Silence) {
			continue
		}
		err := f.lookout.Alone(ctx, t.Gateway, func(ctx context.Context) error { return f.fetch(ctx, t, q) })
		if err != nil {
			return err
		}
	}
	return nil
}

// fetch takes all pages since the gateway was heard last, or since the last fetch.
func (f *Fetcher) fetch(ctx context.Context, t Target, q Quiet) error {
	key, now := [2]string{t.Gateway, t.Account}, time.Now()
	since := now.Add(-fetchOldest)
	if q.Heard && q.For < fetchOldest {
		since = now.Add(-q.For)
	}
	if last, ok := f.fetched[key]; ok && last.After(since) {
		since = last
	}
	after := ""
	for range fetchPages {
		page, err := t.Source.Events(ctx, t.Account, since.Add(-fetchOverlap), after)
		if err != nil {
			return err
		}
		if err := f.keep(ctx, t, page.Notices); err != nil {
			return err
		}
		if after = page.Next; after == "" {
			break
		}
	}
	f.fetched[key] = now
	return nil
}

func (f *Fetcher) keep(ctx context.Context, t Target, notices []Notice) error {
	if len(notices) == 0 {
		return nil
	}
	arrivals := make([]Arrival, len(notices))
	for i, n := range notices {
		if n.Fault != "" && !token(n.ID) {
			n.ID = IDOf(KeyListed, n.Kind, n.ID, n.Fault)
		}
		arrivals[i] = Arrival{Notice: n.sound(t.Mode), Gateway: t.Gateway, Account: t.Account, Key: KeyListed, Digest: sha256.Sum256([]byte(n.ID))}
	}
	verdicts, err := f.record.Take(ctx, arrivals)
	if err != nil {
		return err
	}
	for i, v := range verdicts {
		if v.Decision == Duplicate {
			continue
		}
		v.count(f.metrics)
		tell(ctx, f.log, arrivals[i], v)
	}
	return nil
}
