package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"pollux/internal/outage"
)

// The times of readiness. A dependency that goes away is seen after at most checkEvery + the check's timeout = 10 s, and a check that
// hangs, whatever it hangs in, after staleAfter = 15 s.
const (
	checkEvery = 5 * time.Second
	// MaxCheckTimeout is the longest that a readiness check may take.
	MaxCheckTimeout = 5 * time.Second
	staleAfter      = 15 * time.Second
)

// Health knows whether the process can do its work. The checks run in the background, so that asking is cheap and always
// answered at once; an orchestrator's probe gives up after a second.
type Health struct {
	mu       sync.Mutex
	checks   []*check
	draining bool
}

type check struct {
	name    string
	timeout time.Duration
	ask     func(context.Context) error
	now     chan struct{} // to be asked now; cap 1

	mu   sync.Mutex
	done time.Time // when it last ended; zero before
	took time.Duration
	err  error
}

func newHealth() *Health { return &Health{} }

// Register adds a check under a name; it is asked every five seconds, each time for no longer than timeout, which is cut to
// MaxCheckTimeout. The check must return when its context ends. Register before Run.
func (h *Health) Register(name string, timeout time.Duration, ask func(context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if timeout <= 0 || timeout > MaxCheckTimeout {
		timeout = MaxCheckTimeout
	}
	h.checks = append(h.checks, &check{name: name, timeout: timeout, ask: ask, now: make(chan struct{}, 1)})
}

// Refresh asks every check now and not when its turn comes. It does not wait for the answers.
func (h *Health) Refresh() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.checks {
		select {
		case c.now <- struct{}{}:
		default:
		}
	}
}

// Drain makes the process not ready from now on, whatever its checks say: it is about to stop, send it nothing more.
func (h *Health) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
}

func (h *Health) run(ctx context.Context) {
	h.mu.Lock()
	checks := h.checks
	h.mu.Unlock()
	var running sync.WaitGroup
	for _, c := range checks {
		running.Go(func() { c.run(ctx) })
	}
	running.Wait()
}

func (c *check) run(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		c.once(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-c.now:
		}
	}
}

func (c *check) once(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %s", c.timeout))
	defer cancel()
	start := time.Now()
	err := c.ask(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done, c.took, c.err = time.Now(), time.Since(start), err
}

// Report is what /readyz says.
type Report struct {
	Ready    bool          `json:"ready"`
	Draining bool          `json:"draining,omitempty"`
	Checks   []CheckReport `json:"checks"`
}

// CheckReport is how one check stands.
type CheckReport struct {
	Name  string  `json:"name"`
	Ready bool    `json:"ready"`
	Error string  `json:"error,omitempty"`
	Hint  string  `json:"hint,omitempty"` // what to do about it, where that is known
	Took  float64 `json:"took_seconds"`
	Age   float64 `json:"age_seconds"` // how long ago it was asked
}

// Report says how every check stands, in the order of registration.
func (h *Health) Report() Report {
	h.mu.Lock()
	checks, draining := h.checks, h.draining
	h.mu.Unlock()
	r := Report{Ready: !draining, Draining: draining, Checks: make([]CheckReport, 0, len(checks))}
	now := time.Now()
	for _, c := range checks {
		one := c.report(now)
		r.Ready = r.Ready && one.Ready
		r.Checks = append(r.Checks, one)
	}
	return r
}

// maxCheckError keeps the page short; what is longer stands in the log.
const maxCheckError = 200

func (c *check) report(now time.Time) CheckReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := CheckReport{Name: c.name}
	if c.done.IsZero() {
		r.Error = "not asked yet"
		return r
	}
	age := now.Sub(c.done)
	r.Took, r.Age = c.took.Seconds(), age.Seconds()
	switch {
	case age > staleAfter:
		r.Error = fmt.Sprintf("no answer for %s: the check hangs", age.Round(time.Second))
	case c.err != nil:
		r.Error, r.Hint = cut(c.err.Error(), maxCheckError), outage.Hint(c.err)
	default:
		r.Ready = true
	}
	return r
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

// ServeHTTP answers 200 when ready and 503 when not, with the report as JSON either way.
func (h *Health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	report := h.Report()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !report.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(report) // the reader is gone; nobody is left to tell
}
