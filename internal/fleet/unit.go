package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/limit"
)

// probeWait is how long a probe waits for the fleet's word that it has a place. Without it, the store being away, this instance's own breaker decides.
const probeWait = 250 * time.Millisecond

// unit is one account of a gateway: its breaker and its limiter, and the records that keep them in step with the fleet.
type unit struct {
	gate    *Gate
	account string
	breaker *breaker.Breaker
	limiter *limit.Limiter
	nudge   chan struct{}

	mu     sync.Mutex
	claims []claim

	// Of the goroutine that runs the unit.
	circuit record
	base    breaker.Shared // what the breaker and the record last agreed on
	taken   Entry          // the record as it was last looked at
	pushed  breaker.Shared // what is being written
	unread  bool           // the record cannot be read, and that has been said

	complaints record
	voice      voice

	news    chan struct{} // a call to tell the fleet of
	suspect atomic.Bool   // the fleet has failures in a row: a call that works is news
}

// claim is a probe that waits for the fleet's word.
type claim struct {
	lease uint64
	won   chan bool
}

// run keeps the unit in step until ctx ends. What changed last is still written then.
func (u *unit) run(ctx context.Context) {
	retry := time.NewTimer(time.Hour)
	retry.Stop()
	defer retry.Stop()
	tell := time.NewTimer(time.Hour)
	tell.Stop()
	defer tell.Stop()
	for {
		err := u.sync(ctx)
		if err != nil {
			retry.Reset(retryIn + rand.N(retryIn/4))
		}
		if err == nil && u.voice.word != (breaker.Word{}) {
			tell.Reset(max(u.hush(), shortestBreath))
		}
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveIn)
			defer cancel()
			_ = u.sync(last) // it is noted; nothing more can be done
			return
		case <-u.breaker.Changed():
		case <-u.nudge:
		case <-u.news:
		case <-tell.C:
		case <-retry.C:
		}
	}
}

// wake makes the unit look at its records.
func (u *unit) wake() {
	select {
	case u.nudge <- struct{}{}:
	default:
	}
}

// sync takes over what the fleet has changed and writes what changed here.
func (u *unit) sync(ctx context.Context) error {
	u.mu.Lock()
	claims := u.claims
	u.claims = nil
	u.mu.Unlock()
	var err error
	if u.gate.fleet.kv != nil {
		err = u.syncBreaker(ctx)
	}
	for _, c := range claims { // the breaker was looked at after they had claimed
		c.won <- has(u.base, c.lease) || err != nil && !errors.Is(err, ErrConflict)
	}
	if u.gate.fleet.kv != nil {
		_, errLimit := u.complaints.edit(ctx, u.proposeLimit)
		err = errors.Join(err, errLimit, u.syncRun(ctx))
	}
	changes, dropped := u.breaker.Transitions()
	u.gate.fleet.tell(u.gate.name, u.account, changes)
	u.gate.fleet.dropped.Add(uint64(dropped))
	return err
}

func (u *unit) syncBreaker(ctx context.Context) error {
	wrote, err := u.circuit.edit(ctx, u.proposeBreaker)
	if wrote {
		u.taken, u.base = u.circuit.known, u.pushed
	}
	return err
}

// proposeBreaker takes over a record and returns what it should be, or nil when it is right.
func (u *unit) proposeBreaker(e Entry) []byte {
	if e.Revision != u.taken.Revision || !bytes.Equal(e.Value, u.taken.Value) { // revisions of two stores may be the same
		u.take(e)
	}
	u.pushed = u.breaker.Shared()
	if u.pushed == u.base {
		return nil
	}
	return u.pushed.Encode()
}

// take takes over a record. One that cannot be read is left alone, and our next change replaces it.
func (u *unit) take(e Entry) {
	u.taken = e
	theirs, ok := u.decode(e)
	if !ok {
		return
	}
	places := u.gate.config.Load().Breaker.Probes
	for {
		now := time.Now()
		mine := u.breaker.Shared()
		merged := merge(u.base, mine, theirs, breaker.At(now), places)
		if merged == mine {
			u.base = theirs
			return
		}
		adopted, ok := u.breaker.Replace(now, mine, merged)
		if !ok {
			continue
		}
		if u.base = theirs; merged == theirs {
			u.base = adopted // with its instants bounded; that alone is nothing to write
		}
		return
	}
}

func (u *unit) decode(e Entry) (breaker.Shared, bool) {
	if e.Value == nil {
		return breaker.Shared{}, true
	}
	s, err := breaker.Decode(e.Value)
	if err != nil && !u.unread {
		u.gate.fleet.log.Error("a record of the fleet cannot be read and is left alone", "key", e.Key, "error", err)
	}
	u.unread = err != nil
	return s, err == nil
}

// complaintsVersion is the version of the record that this build reads and writes.
const complaintsVersion = 1

type complaints struct {
	Version int `json:"v"`
	limit.Shared
}

// proposeLimit is proposeBreaker for the limiter: what both know is joined.
func (u *unit) proposeLimit(e Entry) []byte {
	now := time.Now()
	theirs := u.limiter.Believable(now, decodeComplaints(e))
	u.limiter.Adopt(now, theirs)
	joined := theirs.Join(u.limiter.Shared())
	if joined == theirs {
		return nil
	}
	value, err := json.Marshal(complaints{complaintsVersion, joined})
	if err != nil { // a factor that is no number, which Believable lets through neither way
		return nil
	}
	return value
}

// decodeComplaints returns a record that says nothing when it cannot be read.
func decodeComplaints(e Entry) limit.Shared {
	var c complaints
	if e.Value == nil || json.Unmarshal(e.Value, &c) != nil || c.Version != complaintsVersion {
		return limit.Shared{Factor: 1}
	}
	return c.Shared
}

// agreed waits until the fleet has said whether a probe has a place.
func (u *unit) agreed(ctx context.Context, lease uint64) bool {
	if !u.gate.fleet.running() {
		return true
	}
	c := claim{lease, make(chan bool, 1)}
	u.mu.Lock()
	u.claims = append(u.claims, c)
	u.mu.Unlock()
	u.wake()
	patience := time.NewTimer(probeWait)
	defer patience.Stop()
	select {
	case won := <-c.won:
		return won
	case <-patience.C:
		return true
	case <-ctx.Done():
		return false
	}
}
