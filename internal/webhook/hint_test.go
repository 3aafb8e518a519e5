package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/webhook"
)

// desk takes rumours: of every payment that it knows it makes the poll due earlier.
type desk struct {
	mu    sync.Mutex
	known []string
	heard []string
	fail  error
	gate  chan struct{} // a look waits for it, unless nil
}

func (d *desk) Nudge(ctx context.Context, r webhook.Rumour) (bool, error) {
	if d.gate != nil {
		select {
		case <-d.gate:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard = append(d.heard, fmt.Sprint(r.Gateway, " ", r.Account, " ", r.References, " ", r.Rest))
	return slices.Contains(d.known, r.References[0]), d.fail
}

// rumourDoor is a door at which one request a second is looked at that is not believed, of gateway acme.
func rumourDoor(t *testing.T, d *desk) *door {
	t.Helper()
	m := &meter{}
	hints := webhook.NewHints(map[string]webhook.Unverified{"acme": {Rate: 1, Rest: time.Minute}}, d, m, quiet)
	cfg := roomy
	cfg.Hints = hints
	door := newDoor(t, cfg, &memory{}, webhook.Endpoint{Gateway: "acme", Scheme: plain{keys: webhook.Keys{secret}}, Mode: "live"},
		webhook.Endpoint{Gateway: "acme", Account: "eu", Scheme: plain{keys: webhook.Keys{secret}}},
		webhook.Endpoint{Gateway: "strict", Scheme: plain{keys: webhook.Keys{secret}}}, webhook.Endpoint{Gateway: "acme", Account: "away", Scheme: plain{gone: true}})
	door.meter, m.counts = m, map[string]int{}
	ctx, stop := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() {
		if err := hints.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); tasks.Wait() })
	return door
}

func TestWhatIsNotBelievedIsAHintWhereThatIsWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{known: []string{"pay_1"}}
		door := rumourDoor(t, d)
		answers := map[string]bool{}
		for _, c := range []struct{ path, body, signature, want string }{
			{"/webhooks/acme", "e1 pay_1 succeeded live", strings.Repeat("0", 64), "acme  [pay_1] 1m0s"},
			{"/webhooks/acme", "e1 pay_1 succeeded live", "", "acme  [pay_1] 1m0s"},
			{"/webhooks/acme", "e1 unheard_of succeeded", "", "acme  [unheard_of] 1m0s"},
			{"/webhooks/acme/eu", "e1 pay_1 failed", "00", "acme eu [pay_1] 1m0s"},
			{"/webhooks/acme", "e1 pay_1 succeeded test", "", ""}, // of the other mode
			{"/webhooks/acme", "e1 pay_1 refunded", "", ""},       // of no use
			{"/webhooks/acme", "", "", ""},                        // not readable
			{"/webhooks/acme", "forged", "", ""},
			{"/webhooks/acme", strings.Repeat("e", 2<<10), "", ""},
			{"/webhooks/acme/us", "e1 pay_1 succeeded", "", ""},
			{"/webhooks/strict", "e1 pay_1 succeeded", "", ""}, // not wanted
		} {
			time.Sleep(2 * time.Second) // in a bubble: the rate is another test's
			d.heard = nil
			r := door.post(c.path, c.body, c.signature)
			r.Header.Del("Date")
			answers[fmt.Sprint(r.Status, r.Header, text(t, r))] = true
			synctest.Wait()
			if got := strings.Join(d.heard, ", "); got != c.want || r.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s %q: heard %q, want %q; %d", c.path, c.body, got, c.want, r.StatusCode)
			}
		}
		if len(answers) != 1 {
			t.Errorf("%d different answers: %v", len(answers), answers)
		}
		time.Sleep(2 * time.Second)
		d.heard = nil
		door.post("/webhooks/acme", "e9 pay_1 succeeded live")
		if r := door.post("/webhooks/acme/away", "e1 pay_1 succeeded"); r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("what cannot be checked: %d", r.StatusCode)
		}
		synctest.Wait()
		if len(d.heard) != 0 {
			t.Errorf("what is believed, or will be, is no hint: %v", d.heard)
		}
		if len(door.record.kept) != 1 || door.meter.of("hint acme nudged") != 3 || door.meter.of("hint acme useless") != 5 || door.meter.of("hint strict useless") != 0 {
			t.Errorf("kept %v, counted %v", door.record.kept, door.meter.counts)
		}
	})
}

// A thousand come at once, then ten a second for a minute: one a second is looked at.
func TestHintsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{}
		door := rumourDoor(t, d)
		forged := func(n int) {
			for i := range n {
				door.post("/webhooks/acme", fmt.Sprintf("e%d pay_%d succeeded", i, i), "00")
			}
			synctest.Wait()
		}
		forged(1000)
		if len(d.heard) != 1 {
			t.Errorf("%d of 1,000 at once were looked at", len(d.heard))
		}
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			forged(1)
		}
		if n := len(d.heard); n < 60 || n > 61 {
			t.Errorf("%d were looked at in a minute", n)
		}
		if n := door.meter.of("hint acme limited"); n != 1600-len(d.heard) {
			t.Errorf("%d were counted as too many", n)
		}
	})
}

// A database that does not answer holds up neither answers nor memory, and what is lost is polled as planned.
func TestHintsThatCannotBeTakenAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{gate: make(chan struct{})}
		door := rumourDoor(t, d)
		for range 40 {
			time.Sleep(time.Second)
			if r := door.post("/webhooks/acme", "e1 pay_1 succeeded", "00"); r.StatusCode != http.StatusUnauthorized {
				t.Errorf("%d", r.StatusCode)
			}
		}
		synctest.Wait()
		if door.meter.of("hint acme limited") == 0 || len(d.heard) != 0 {
			t.Errorf("%v %v", door.meter.counts, d.heard)
		}
		close(d.gate)
		d.mu.Lock()
		d.fail = errors.New("the database is away")
		d.mu.Unlock()
		time.Sleep(time.Minute)
		door.post("/webhooks/acme", "e1 pay_1 succeeded", "00")
		synctest.Wait()
		if len(d.heard) == 0 || door.meter.of("hint acme nudged") != 0 {
			t.Errorf("%v %v", door.meter.counts, d.heard)
		}
	})
}
