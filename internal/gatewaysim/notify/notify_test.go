package notify_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"pollux/internal/gatewaysim"
	"pollux/internal/gatewaysim/notify"
	"pollux/internal/payment"
)

// plain is a vendor whose signature is what it was made for, in the clear.
type plain struct{ amounts bool }

type letter struct {
	Event  notify.Event
	Signed gatewaysim.State
}

func (p plain) SignsAmounts() bool { return p.amounts }

func (plain) Notification(e notify.Event) notify.Notification {
	b, err := json.Marshal(letter{e, e.Signed})
	if err != nil {
		panic(err)
	}
	return notify.Notification{Query: "of=plain", Header: http.Header{}, Body: b}
}

// door receives letters. It refuses forged ones and answers what it is told to.
type door struct {
	mu       sync.Mutex
	letters  []letter
	taken    map[string]int // by event
	forged   int
	gullible bool           // it takes forged ones too
	fails    map[string]int // so many times each event gets a 503 first
	busy     int
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	var l letter
	if json.Unmarshal(b, &l) != nil || r.URL.RawQuery != "of=plain" || r.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "no letter", http.StatusTeapot)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	forged := l.Event.Stranger || l.Signed != l.Event.State
	switch {
	case forged && !d.gullible:
		d.forged++
		http.Error(w, "refused", http.StatusUnauthorized)
	case d.fails[l.Event.ID] < d.busy && !forged:
		d.fails[l.Event.ID]++
		http.Error(w, "busy", http.StatusServiceUnavailable)
	default:
		d.letters = append(d.letters, l)
		d.taken[l.Event.ID]++
	}
}

// tell lets a sender tell a door about payments, until there is no more to tell.
func tell(t *testing.T, d *door, cfg notify.Config, payments int) (*gatewaysim.Simulator, notify.Counts) {
	t.Helper()
	d.taken, d.fails = map[string]int{}, map[string]int{}
	server := httptest.NewServer(d)
	defer server.Close()
	sim := gatewaysim.New(gatewaysim.Config{Adjust: func(c gatewaysim.Conditions) gatewaysim.Conditions {
		c.Mix.MinPending, c.Mix.MaxPending = 5, 5
		return c
	}})
	cfg.Simulator, cfg.Soon, cfg.Spread, cfg.Late, cfg.Retry = sim, time.Millisecond, 20*time.Millisecond, 30*time.Millisecond, 8*time.Millisecond
	if cfg.Vendor == nil {
		cfg.Vendor = plain{amounts: true}
	}
	s := notify.New(cfg)
	s.Watch(sim.Generate(payments, "p"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, server.URL) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !s.Idle() {
		<-tick.C
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return sim, s.Counts()
}

// ends are the letters about the ends of payments, by reference.
func (d *door) ends() map[string][]letter {
	all := map[string][]letter{}
	for _, l := range d.letters {
		if l.Event.State.Status != payment.Pending {
			all[l.Event.State.Reference] = append(all[l.Event.State.Reference], l)
		}
	}
	return all
}

func TestEveryEndIsToldAsItIs(t *testing.T) {
	t.Parallel()
	d := &door{}
	sim, counts := tell(t, d, notify.Config{}, 50)
	ends := d.ends()
	for _, v := range sim.Truths() {
		if len(ends[v.Reference]) != 1 || string(ends[v.Reference][0].Event.State.Status) != v.Truth {
			t.Errorf("%+v: told %+v", v, ends[v.Reference])
		}
	}
	if len(ends) != 50 || counts.Events != 100 || counts.Accepted != 100 || counts.Forged+counts.Lost+counts.Refused+counts.GivenUp != 0 {
		t.Errorf("%d ends, %+v", len(ends), counts)
	}
	if st, _ := sim.State("p_000001"); !st.Status.Final() {
		t.Errorf("the gateway itself says %s", st.Status)
	}
}

func TestWhatGoesWrong(t *testing.T) {
	t.Parallel()
	const payments = 40
	for _, c := range []struct {
		name   string
		cfg    notify.Config
		door   *door
		counts notify.Counts
		ends   int
	}{
		{name: "all are lost", cfg: notify.Config{Faults: notify.Faults{Lost: 1}}, counts: notify.Counts{Events: payments, Accepted: payments, Lost: payments}},
		{name: "all are lost at first", cfg: notify.Config{Faults: notify.Faults{Lost: 1}, Insist: true},
			counts: notify.Counts{Events: 2 * payments, Accepted: 2 * payments, Lost: payments}, ends: payments},
		{name: "all come twice", cfg: notify.Config{Faults: notify.Faults{Doubled: 1}}, ends: 2 * payments,
			counts: notify.Counts{Events: 3 * payments, Accepted: 3 * payments, Doubled: payments}},
		{name: "all are late", cfg: notify.Config{Faults: notify.Faults{Late: 1}}, ends: payments, counts: notify.Counts{Events: 2 * payments, Accepted: 2 * payments, Late: payments}},
		{name: "all are forged", cfg: notify.Config{Faults: notify.Faults{Forged: 1}}, ends: payments,
			counts: notify.Counts{Events: 2 * payments, Accepted: 2 * payments, Forged: payments}},
		{name: "all are forged where no amount is signed", cfg: notify.Config{Vendor: plain{}, Faults: notify.Faults{Forged: 1}}, ends: payments,
			counts: notify.Counts{Events: 2 * payments, Accepted: 2 * payments, Forged: payments}},
		{name: "all are forged and believed", cfg: notify.Config{Faults: notify.Faults{Forged: 1}}, door: &door{gullible: true}, ends: 2 * payments,
			counts: notify.Counts{Events: 2 * payments, Accepted: 2 * payments, Forged: payments, ForgedAccepted: payments}},
		{name: "the receiver is busy", door: &door{busy: 2}, ends: payments, counts: notify.Counts{Events: 2 * payments, Accepted: 2 * payments, Unanswered: 4 * payments}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := c.door
			if d == nil {
				d = &door{}
			}
			_, got := tell(t, d, c.cfg, payments)
			if got != c.counts {
				t.Errorf("got  %+v\nwant %+v", got, c.counts)
			}
			n := 0
			for _, letters := range d.ends() {
				n += len(letters)
			}
			if n != c.ends {
				t.Errorf("%d ends were told, want %d", n, c.ends)
			}
			if c.counts.Forged > 0 && !d.gullible && d.forged != payments {
				t.Errorf("%d forgeries came", d.forged)
			}
		})
	}
}

// TestReorderedTellsOfTheEndFirst looks at the order in which letters came.
func TestReorderedTellsOfTheEndFirst(t *testing.T) {
	t.Parallel()
	d := &door{}
	_, counts := tell(t, d, notify.Config{Faults: notify.Faults{Reordered: 1}}, 30)
	ended := map[string]bool{}
	for _, l := range d.letters {
		if st := l.Event.State; st.Status != payment.Pending {
			ended[st.Reference] = true
		} else if !ended[st.Reference] {
			t.Errorf("%s was told to be pending before its end", st.Reference)
		}
	}
	if counts.Reordered != 30 || counts.Accepted != 60 {
		t.Errorf("%+v", counts)
	}
}

// TestTheSeedDecides compares what goes wrong in two runs.
func TestTheSeedDecides(t *testing.T) {
	t.Parallel()
	faults := notify.Faults{Lost: 0.3, Doubled: 0.3, Late: 0.3, Reordered: 0.3, Forged: 0.3}
	run := func(seed uint64) notify.Counts {
		_, counts := tell(t, &door{}, notify.Config{Faults: faults, Seed: seed}, 40)
		return counts
	}
	one, again, other := run(1), run(1), run(2)
	if one != again || one == other {
		t.Errorf("%+v\n%+v\n%+v", one, again, other)
	}
}

// TestAnEndThatIsNeverRightlyToldIsNotTold has payments that a person must look at.
func TestAnEndThatIsNeverRightlyToldIsNotTold(t *testing.T) {
	t.Parallel()
	sim := gatewaysim.New(gatewaysim.Config{})
	if err := sim.Register([]gatewaysim.Payment{
		{Reference: "flawed", Currency: "EUR", Script: gatewaysim.Script{Flaw: gatewaysim.OtherAmount}},
		{Reference: "endless", Currency: "EUR", Script: gatewaysim.Script{Final: payment.Pending}},
	}); err != nil {
		t.Fatal(err)
	}
	for _, reference := range []string{"flawed", "endless", "unknown"} {
		if st, ok := sim.Settle(reference); ok {
			t.Errorf("%s: %+v", reference, st)
		}
	}
}
