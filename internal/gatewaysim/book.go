package gatewaysim

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const shards = 64 // far more than cores, so that two calls seldom want the same lock

// errFull is what a simulator says that knows as many payments as it may.
var errFull = errors.New("the simulator is full: raise Config.Capacity")

// book keeps the payments. Each shard of it has its own lock.
type book struct {
	shards   [shards]shard
	size     atomic.Int64
	capacity int64
	seed     uint64
}

type shard struct {
	mu      sync.Mutex
	entries map[string]*entry
}

// entry is a payment and how far it has come. Its shard's lock guards what changes.
type entry struct {
	Payment
	pending  word
	end      word    // noWord when it never ends
	lateness float64 // its own chance of being one of the late payments

	calls       uint32
	faultsInRow int
	pendingLeft int
	first       time.Time // its first call
	updated     int64     // when its status changed, in Unix seconds
	ended       bool      // the final status was decided on
	tellings    int       // how often the final status was told in full
	misled      bool      // before that, an answer was about something else: a person has to look
}

func newBook(capacity int, seed uint64) *book {
	b := &book{capacity: int64(capacity), seed: seed}
	for i := range b.shards {
		b.shards[i].entries = make(map[string]*entry)
	}
	return b
}

// of returns the shard of a reference with that hash.
func (b *book) of(h uint64) *shard { return &b.shards[mix(h)%shards] }

// add enters a payment that is valid. Entering the same one again changes nothing; another one of that reference is an error.
func (b *book) add(p Payment, now time.Time) error {
	h := hash(p.Reference)
	s := b.of(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[p.Reference]; e != nil {
		if e.Payment != p {
			return fmt.Errorf("payment %s is registered already, with another amount, currency or script", p.Reference)
		}
		return nil
	}
	_, err := b.enter(s, h, p, now)
	return err
}

// enter makes the entry. The caller has the shard's lock.
func (b *book) enter(s *shard, h uint64, p Payment, now time.Time) (*entry, error) {
	if b.size.Add(1) > b.capacity {
		b.size.Add(-1)
		return nil, errFull
	}
	own := diceFor(b.seed, h, 0)
	e := &entry{Payment: p, end: finalWord(p.Script.final()), lateness: own.chance(), pendingLeft: p.Script.Pending, updated: now.Unix()}
	e.pending, _ = pendingWord(p.Script.Detail)
	s.entries[p.Reference] = e
	return e, nil
}

// each calls f with a copy of every entry, in no order.
func (b *book) each(f func(entry)) {
	for i := range b.shards {
		for _, e := range b.shards[i].copies() {
			f(e)
		}
	}
}

func (s *shard) copies() []entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]entry, 0, len(s.entries))
	for _, e := range s.entries {
		out = append(out, *e)
	}
	return out
}

// find returns a copy of an entry.
func (b *book) find(reference string) (entry, bool) {
	s := b.of(hash(reference))
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[reference]; e != nil {
		return *e, true
	}
	return entry{}, false
}

// sent notes what the client has now been told.
func (b *book) sent(h uint64, e *entry, o Outcome, told word) {
	s := b.of(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.mismatch() {
		e.misled = e.misled || e.tellings == 0
	} else if told.final() {
		e.tellings++
	}
}

// called counts a call.
func (e *entry) called(now time.Time) {
	if e.calls == 0 {
		e.first = now
	}
	e.calls++
}

// current is the true status.
func (e *entry) current() word {
	if e.pendingLeft > 0 || e.end == noWord {
		return e.pending
	}
	return e.end
}

// tale is the status that an answer with that outcome tells, if it tells one. An answer about something else tells a final
// status: it is there to be believed by mistake.
func (e *entry) tale(o Outcome) word {
	switch {
	case o == Answered || o == CutHeaders || o == CutBody || o == Drip || o == GzipBomb:
		return e.current()
	case o == UnknownStatus:
		return settling
	case !o.mismatch():
		return noWord
	case e.end == noWord:
		return succeeded
	}
	return e.end
}

// move takes the payment on by what was decided.
func (e *entry) move(r reply, now time.Time) {
	switch {
	case r.outcome != Answered:
		e.faultsInRow++
		return
	case e.pendingLeft > 0:
		e.pendingLeft--
	case r.told.final() && !e.ended:
		e.ended, e.updated = true, now.Unix()
	}
	e.faultsInRow = 0
}

// truth is what a correct client has recorded in the end.
func (e *entry) truth() string {
	if e.misled {
		return Review
	}
	return e.Script.truth()
}
