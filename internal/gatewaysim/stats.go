package gatewaysim

import (
	"slices"
	"time"
)

// Stats are the simulator's counts since New. Calls are counted when they come, outcomes when they end.
type Stats struct {
	Scenario      string           `json:"scenario"`
	Down          bool             `json:"down"` // now
	UptimeSeconds float64          `json:"uptime_seconds"`
	Payments      int64            `json:"payments"`
	Calls         int64            `json:"calls"`
	CallsDown     int64            `json:"calls_while_down"`
	Underway      int64            `json:"calls_under_way"`         // calls that have come and not ended
	PeakPerSecond int              `json:"max_calls_in_one_second"` // in any second, not only in those that begin with one
	Outcomes      map[string]int64 `json:"by_outcome"`              // those that occurred
	Logged        int64            `json:"logged"`                  // calls that the log has
	Dropped       int64            `json:"dropped"`                 // older calls that the log no longer has
	Followed      int64            `json:"redirects_followed"`      // by clients that trust a redirect to another host
	Leaked        int64            `json:"keys_leaked"`             // by those of them that brought the key along

	// Buckets are the calls in each tenth of a second, one after the other, of the last hour at least.
	Buckets     []uint32  `json:"calls_per_100ms,omitempty"`
	BucketsFrom time.Time `json:"calls_per_100ms_from,omitzero"` // when the first of them began
}

// Stats returns the counts.
func (s *Simulator) Stats() Stats {
	now := time.Now()
	c := s.climate.Load()
	out := Stats{Scenario: c.scenario, Down: s.downAt(c, now) != Answered, Payments: s.book.size.Load(), Outcomes: map[string]int64{}}
	out.Followed, out.Leaked = s.trapped.Load(), s.leaked.Load()
	out.Logged, out.Dropped = s.journal.counts()
	for o := range s.outcomes {
		if n := s.outcomes[o].Load(); n > 0 {
			out.Outcomes[Outcome(o).String()] = n
			out.Underway -= n
		}
	}

	m := s.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	out.UptimeSeconds = now.Sub(m.begun).Seconds()
	out.Calls, out.CallsDown, out.PeakPerSecond = m.calls, m.whileDown, m.peak
	out.Underway += m.calls // those that ended were counted before, so that it is never below 0
	out.Buckets = slices.Clone(m.buckets)
	out.BucketsFrom = m.begun.Add(time.Duration(m.from) * bucketWidth).UTC()
	return out
}

// Log returns the request log: every call that has ended, or the last Config.LogLimit of them at least, in the order of their ends.
func (s *Simulator) Log() []Call {
	kept, _ := s.journal.counts()
	out := make([]Call, 0, kept)
	for from := int64(0); ; {
		calls, next := s.journal.page(from)
		if len(calls) == 0 {
			return out
		}
		out, from = append(out, calls...), next
	}
}
