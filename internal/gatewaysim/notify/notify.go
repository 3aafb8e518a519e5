// Package notify is the side of a gateway simulator that tells of its own accord: it posts signed notifications to a receiver, and lets go wrong with them what goes
// wrong with those of real gateways. Some are lost, some come twice, late or in the wrong order, and strangers forge some.
package notify

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"pollux/internal/gatewaysim"
	"pollux/internal/payment"
)

// Vendor is how a vendor writes and signs what it tells. Its methods are safe for concurrent use.
type Vendor interface {
	// Notification is the request that tells of an event.
	Notification(Event) Notification
	// SignsAmounts reports whether another amount makes the signature wrong.
	SignsAmounts() bool
}

// Event is something that a vendor tells, or that a forger wants to have believed.
type Event struct {
	ID       string           // hexadecimal; the same each time that the event is told
	State    gatewaysim.State // what is told
	Signed   gatewaysim.State // what the signature is made for: State, unless somebody changed it on its way
	At       time.Time        // when it is told, and signed
	Stranger bool             // signed with a key that is not the vendor's
}

// Notification is a request, but for its address.
type Notification struct {
	Query  string // without the question mark
	Header http.Header
	Body   []byte
}

// Faults are the shares of payments, between 0 and 1, whose notifications something is wrong with. One payment may have several.
type Faults struct {
	Lost      float64 // the end is never told, or not at first: see Config.Insist
	Doubled   float64 // it is told twice
	Late      float64 // it is told later by Config.Late
	Reordered float64 // that it is pending is told after its end
	Forged    float64 // strangers tell that it ended otherwise
}

// Config is what a sender is made from. Simulator and Vendor are required.
type Config struct {
	Simulator *gatewaysim.Simulator // whose payments are told of, and taken to their end
	Vendor    Vendor
	Faults    Faults
	Insist    bool          // what was lost is told again: the vendor goes on until it hears that it was taken
	Soon      time.Duration // a payment ends so long after it was made, at the earliest; 0 is DefaultSoon
	Spread    time.Duration // and at most so much later; 0 is DefaultSpread
	Late      time.Duration // 0 is DefaultLate
	Retry     time.Duration // after the first try that failed, then ever longer; 0 is DefaultRetry
	Seed      uint64
}

// The defaults of a Config: seconds, where real gateways take minutes.
const (
	DefaultSoon   = 100 * time.Millisecond
	DefaultSpread = 1500 * time.Millisecond
	DefaultLate   = 3 * time.Second
	DefaultRetry  = 500 * time.Millisecond
)

const (
	atOnce   = 8                // requests under way
	maxTries = 30               // of one notification, whose pauses become 32 times Retry
	timeout  = 10 * time.Second // of a request, as Adyen has it
)

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		at  *time.Duration
		not time.Duration
	}{{&c.Soon, DefaultSoon}, {&c.Spread, DefaultSpread}, {&c.Late, DefaultLate}, {&c.Retry, DefaultRetry}} {
		if *d.at == 0 {
			*d.at = d.not
		}
	}
	return c
}

// Counts are what a sender has done. Accepted, Refused and Unanswered count requests that were no forgeries.
type Counts struct {
	Events         int `json:"events"`
	Accepted       int `json:"accepted"`   // 2xx
	Refused        int `json:"refused"`    // 4xx: somebody who knows the key was not believed
	Unanswered     int `json:"unanswered"` // no answer, or 5xx; they come again
	GivenUp        int `json:"given_up"`   // events that were never taken
	Lost           int `json:"lost"`
	Doubled        int `json:"doubled"`
	Late           int `json:"late"`
	Reordered      int `json:"reordered"`
	Forged         int `json:"forged"`
	ForgedAccepted int `json:"forged_accepted"` // 2xx to a forgery
}

// Sender tells of payments. Make one with New and run it. It is safe for concurrent use.
type Sender struct {
	cfg    Config
	url    string // of the receiver
	client *http.Client
	agenda *agenda

	mu     sync.Mutex
	counts Counts
}

// New returns a sender.
func New(cfg Config) *Sender {
	return &Sender{cfg: cfg.withDefaults(), agenda: newAgenda(), client: &http.Client{
		Timeout:       timeout,
		Transport:     &http.Transport{MaxIdleConnsPerHost: atOnce, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Run sends to a receiver until ctx ends. It is called once.
func (s *Sender) Run(ctx context.Context, url string) error {
	defer s.client.CloseIdleConnections()
	s.url = url
	s.agenda.run(ctx, atOnce)
	return nil
}

// Idle reports whether there is nothing left to tell.
func (s *Sender) Idle() bool { return s.agenda.empty() }

// Counts returns the counts.
func (s *Sender) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

func (s *Sender) count(change func(*Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.counts)
}

// Watch takes payments of the simulator that were just made, to tell of them. What goes wrong with them depends on the seed and their references alone.
func (s *Sender) Watch(payments []gatewaysim.Payment) {
	now := time.Now()
	for _, p := range payments {
		st, known := s.cfg.Simulator.State(p.Reference)
		if !known {
			continue
		}
		dice := rand.New(rand.NewPCG(s.cfg.Seed, sum(p.Reference)))
		c := course{faults: s.cfg.Faults.roll(dice), forgery: dice.IntN(3)}
		if st.Status == payment.Pending {
			c.pending = &st
		}
		ends := now.Add(s.cfg.Soon + time.Duration(dice.Float64()*float64(s.cfg.Spread)))
		if c.pending != nil && !c.faults.reordered {
			s.tell(now.Add(time.Duration(dice.Float64()*float64(s.cfg.Soon))), "pending", st, nil)
		}
		s.agenda.add(ends, func(context.Context) { s.end(p.Reference, c) })
	}
}

// course is what goes wrong with the notifications of one payment.
type course struct {
	faults  faults
	forgery int
	pending *gatewaysim.State // before its end; nil when it had ended at once
}

type faults struct{ lost, doubled, late, reordered, forged bool }

func (f Faults) roll(dice *rand.Rand) faults {
	return faults{dice.Float64() < f.Lost, dice.Float64() < f.Doubled, dice.Float64() < f.Late, dice.Float64() < f.Reordered, dice.Float64() < f.Forged}
}

// end takes a payment to its end and tells of it.
func (s *Sender) end(reference string, c course) {
	st, ok := s.cfg.Simulator.Settle(reference)
	if !ok {
		return
	}
	f, at := c.faults, time.Now()
	f.reordered = f.reordered && c.pending != nil
	s.count(func(n *Counts) {
		n.Lost += one(f.lost)
		n.Doubled += one(f.doubled && !f.lost)
		n.Late += one(f.late && !f.lost)
		n.Reordered += one(f.reordered)
	})
	if f.forged {
		s.agenda.add(at, func(ctx context.Context) { s.forge(ctx, st, c.forgery) })
	}
	switch {
	case f.lost && s.cfg.Insist:
		at = at.Add(2 * s.cfg.Retry)
	case f.late && !f.lost:
		at = at.Add(s.cfg.Late)
	}
	after := func() {}
	if f.reordered {
		after = func() { s.tell(time.Now(), "pending", *c.pending, nil) }
	}
	if f.lost && !s.cfg.Insist {
		after()
		return
	}
	s.tell(at, "end", st, after)
	if f.doubled && !f.lost {
		s.tell(at.Add(s.cfg.Retry/8), "end", st, nil)
	}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// tell tells of an event at an instant, and again until it is taken. after, unless it is nil, is called when it was told for the first time.
func (s *Sender) tell(at time.Time, what string, st gatewaysim.State, after func()) {
	s.count(func(n *Counts) { n.Events++ })
	s.try(at, 1, Event{ID: eventID(what, st.Reference), State: st, Signed: st}, after)
}

func (s *Sender) try(at time.Time, try int, e Event, after func()) {
	s.agenda.add(at, func(ctx context.Context) {
		e.At = time.Now()
		status := s.post(ctx, e)
		if after != nil {
			after()
		}
		taken := status >= 200 && status < 300
		s.count(func(n *Counts) {
			n.Accepted += one(taken)
			n.Refused += one(status >= 400 && status < 500)
			n.Unanswered += one(status < 200 || status >= 500)
			n.GivenUp += one(!taken && try == maxTries)
		})
		if !taken && try < maxTries {
			s.try(time.Now().Add(s.cfg.Retry<<min(try-1, 5)), try+1, e, nil)
		}
	})
}

// forge posts what a stranger wants to have believed. He has seen a genuine notification, and does not have the key.
func (s *Sender) forge(ctx context.Context, st gatewaysim.State, how int) {
	e := Event{ID: eventID("forged", st.Reference), State: opposite(st), At: time.Now()}
	e.Signed = e.State
	switch {
	case how == 0:
		e.Stranger = true
	case how == 1 && s.cfg.Vendor.SignsAmounts(): // another amount, by the signature of the true one
		e.State = st
		e.State.AmountMinor += 1_000
		e.Signed = st
	default: // the signature of a notification about another payment
		e.Signed.Reference += "0"
	}
	status := s.post(ctx, e)
	s.count(func(n *Counts) {
		n.Forged++
		n.ForgedAccepted += one(status >= 200 && status < 300)
	})
}

// opposite is the end that a payment did not have.
func opposite(st gatewaysim.State) gatewaysim.State {
	if st.Status == payment.Succeeded {
		st.Status = payment.Failed
	} else {
		st.Status = payment.Succeeded
	}
	return st
}

// post sends one request and returns the HTTP status, 0 when no answer came.
func (s *Sender) post(ctx context.Context, e Event) int {
	n := s.cfg.Vendor.Notification(e)
	url := s.url
	if n.Query != "" {
		url += "?" + n.Query
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(n.Body))
	if err != nil {
		return 0
	}
	req.Header = n.Header
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10)) // so that the connection can be used again
	_ = resp.Body.Close()
	return resp.StatusCode
}

// eventID is the same for the same event, however often it is told.
func eventID(what, reference string) string { return fmt.Sprintf("%016x", sum(what+"/"+reference)) }
