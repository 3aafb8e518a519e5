package gatewaysim

import (
	"context"
	"crypto/subtle"
	"net/http"
	"strings"
	"time"
)

const paymentsPath = "/v1/payments/"

// ServeHTTP answers a call of the gateway, or of the simulator itself under /sim/.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if reference, ok := strings.CutPrefix(r.URL.Path, paymentsPath); ok && s.cfg.Dialect == nil {
		s.servePayment(w, r, &Question{Reference: reference, Key: s.opens(r), Bad: r.Method != http.MethodGet})
		return
	}
	switch {
	case strings.HasPrefix(r.URL.Path, trapPath):
		s.serveTrap(w, r)
	case strings.HasPrefix(r.URL.Path, "/sim/"):
		s.admin.ServeHTTP(w, r)
	case s.cfg.Dialect != nil && s.serveDialect(w, r):
	default:
		writeError(w, http.StatusNotFound, "no_such_resource", "There is nothing here; try "+paymentsPath+"demo_1999_EUR.")
	}
}

// servePayment is the hot path: one lock for the meter, one for the payment, one for the log.
func (s *Simulator) servePayment(w http.ResponseWriter, r *http.Request, q *Question) {
	now := time.Now()
	c := s.climate.Load()
	m := moment{wall: now, at: now.Sub(c.since), down: s.downAt(c, now), method: !q.Bad, key: q.Key}
	s.meter.arrive(now, m.down != Answered)

	h := hash(q.Reference)
	p, e := s.plan(c, m, h, q.Reference)
	p.dialect, p.question = s.cfg.Dialect, q
	rec := record{at: now.UnixNano(), outcome: Abandoned, n: p.n, down: m.down != Answered, reference: p.reference}
	defer func() { s.log(&rec, time.Since(now)) }() // also when the answer ends in a panic that drops the connection
	if p.wait > 0 && !s.wait(r.Context(), p.wait) {
		panic(http.ErrAbortHandler) // returning would send an empty 200
	}
	rec.outcome = p.outcome
	rec.status = uint16(s.send(w, r, &p))
	rec.told = p.told
	if e != nil && (p.told.final() || p.outcome.mismatch()) {
		s.book.sent(h, e, p.outcome, p.told)
	}
}

// opens reports whether the call brought the key.
func (s *Simulator) opens(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), s.bearer) == 1
}

// plan finds the payment, decides what the call gets and takes the payment on by it. The entry is nil for a payment that the
// gateway does not know; what changes in it must not be looked at without its lock.
func (s *Simulator) plan(c *climate, m moment, h uint64, reference string) (reply, *entry) {
	shard := s.book.of(h)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	e := shard.entries[reference]
	if e == nil && m.method && m.key {
		e = s.adopt(shard, h, c, m, reference)
	}
	if e == nil {
		p := c.decide(nil, m, diceFor(s.cfg.Seed, h, 0))
		p.reference = strings.Clone(reference[:min(len(reference), MaxReference)]) // the URL it comes from may be long
		return p, nil
	}
	e.called(m.wall)
	p := c.decide(e, m, diceFor(s.cfg.Seed, h, e.calls))
	p.n, p.reference = e.calls, e.Reference
	e.move(p, m.wall)
	return p, e
}

// adopt enters a payment whose reference says what it is. The caller has the shard's lock.
func (s *Simulator) adopt(shard *shard, h uint64, c *climate, m moment, reference string) *entry {
	p, ok := speaking(reference)
	if !ok {
		return nil
	}
	own := diceFor(s.cfg.Seed, ^h, 0)
	p.Reference = strings.Clone(reference)
	p.Script.Pending = int(own.between(int64(c.Mix.MinPending), int64(c.Mix.MaxPending)))
	p.Script = s.fit(p.Script)
	e, err := s.book.enter(shard, h, p, m.wall)
	if err != nil {
		return nil // full: the gateway does not know it
	}
	return e
}

// wait waits. It reports false when the client left or the simulator is closed.
func (s *Simulator) wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-s.closing:
	}
	return false
}

// log ends a call.
func (s *Simulator) log(r *record, took time.Duration) {
	r.took = uint32(min(took/time.Microsecond, 1<<32-1))
	s.outcomes[r.outcome].Add(1)
	s.journal.add(*r)
}
