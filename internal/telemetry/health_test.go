package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// running runs a health in a bubble of virtual time until the test ends.
func running(t *testing.T, h *Health) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); h.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// pass lets virtual time pass, and what is due in it happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func ready(h *Health) (bool, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	return w.Code == http.StatusOK, w.Body.String()
}

func TestNotReadyBeforeTheFirstAnswer(t *testing.T) {
	h := newHealth()
	h.Register("database", time.Second, func(context.Context) error { return nil })
	if ok, body := ready(h); ok || !strings.Contains(body, "not asked yet") {
		t.Errorf("ready %v: %s", ok, body)
	}
}

func TestReadyFollowsADependencyWithinFifteenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		h := newHealth()
		h.Register("broker", time.Second, func(context.Context) error { return nil })
		h.Register("database", time.Second, func(context.Context) error {
			if away.Load() {
				return errors.New("connection refused")
			}
			return nil
		})
		running(t, h)
		synctest.Wait()
		if ok, body := ready(h); !ok {
			t.Fatalf("not ready with all checks well: %s", body)
		}
		away.Store(true)
		pass(15 * time.Second)
		ok, body := ready(h)
		if ok || !strings.Contains(body, "connection refused") {
			t.Errorf("ready %v, 15 s after the database went away: %s", ok, body)
		}
		away.Store(false)
		pass(15 * time.Second)
		if ok, body := ready(h); !ok {
			t.Errorf("not ready 15 s after the database came back: %s", body)
		}
	})
}

func TestReadySeesACheckThatIgnoresItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var hang atomic.Bool
		h := newHealth()
		h.Register("disk", time.Second, func(context.Context) error {
			if hang.Load() {
				<-release
			}
			return nil
		})
		running(t, h)
		synctest.Wait()
		hang.Store(true)
		pass(checkEvery + staleAfter + time.Second)
		if ok, body := ready(h); ok || !strings.Contains(body, "the check hangs") {
			t.Errorf("ready %v: %s", ok, body)
		}
		hang.Store(false)
		close(release)
		pass(checkEvery)
		if ok, body := ready(h); !ok {
			t.Errorf("not ready after the check came back: %s", body)
		}
	})
}

func TestCheckIsToldToGiveUpInTime(t *testing.T) {
	for _, asked := range []time.Duration{0, time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			h := newHealth()
			h.Register("database", asked, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			running(t, h)
			pass(MaxCheckTimeout + time.Millisecond)
			if ok, body := ready(h); ok || !strings.Contains(body, "no answer within") {
				t.Errorf("asked for %s: ready %v: %s", asked, ok, body)
			}
		})
	}
}

func TestARefreshAsksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var there atomic.Bool
		h := newHealth()
		h.Register("database", time.Second, func(context.Context) error {
			if !there.Load() {
				return errors.New("waited for")
			}
			return nil
		})
		running(t, h)
		synctest.Wait()
		there.Store(true)
		synctest.Wait()
		if ok, body := ready(h); ok {
			t.Fatalf("ready before it was asked again: %s", body)
		}
		h.Refresh()
		h.Refresh() // what is asked for already is not asked for twice
		synctest.Wait()
		if ok, body := ready(h); !ok {
			t.Errorf("not ready after a refresh: %s", body)
		}
	})
}

func TestDrainingIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth()
		h.Register("database", time.Second, func(context.Context) error { return nil })
		running(t, h)
		synctest.Wait()
		h.Drain()
		if ok, body := ready(h); ok || !strings.Contains(body, `"draining": true`) {
			t.Errorf("ready %v: %s", ok, body)
		}
	})
}

func TestReportListsEveryCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth()
		h.Register("database", time.Second, func(context.Context) error { return nil })
		h.Register("broker", time.Second, func(context.Context) error { return errors.New(strings.Repeat("long ", 100)) })
		running(t, h)
		pass(2 * time.Second)
		_, body := ready(h)
		var r Report
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Checks) != 2 || r.Checks[0].Name != "database" || !r.Checks[0].Ready || r.Checks[1].Name != "broker" || r.Checks[1].Ready {
			t.Errorf("checks: %+v", r.Checks)
		}
		if r.Checks[0].Age != 2 {
			t.Errorf("asked %v s ago, want 2", r.Checks[0].Age)
		}
		if n := len(r.Checks[1].Error); n > maxCheckError+len("…") {
			t.Errorf("an error of %d bytes on the page", n)
		}
	})
}

// knowing is an error that knows what to do about itself.
type knowing struct{ error }

func (knowing) Hint() string { return "renew the certificate" }

func TestReadySaysWhatToDoWhereThatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth()
		h.Register("broker", time.Second, func(context.Context) error {
			return fmt.Errorf("asking for a stream: %w", knowing{errors.New("expired")})
		})
		h.Register("database", time.Second, func(context.Context) error { return errors.New("away") })
		running(t, h)
		synctest.Wait()
		_, body := ready(h)
		if strings.Count(body, `"hint"`) != 1 || !strings.Contains(body, `"hint": "renew the certificate"`) {
			t.Error(body)
		}
	})
}
