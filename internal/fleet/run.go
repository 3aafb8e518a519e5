package fleet

import (
	"context"
	"encoding/json"
	"time"

	"pollux/internal/breaker"
)

// An instance that has told of its calls is silent for a breath, and each time that it has more to say soon after, for twice as long, up to the longest: failures that come all the time
// are not the beginning of an outage, and its own count sees one as fast. After a silence of four breaths it begins with the shortest again.
const (
	shortestBreath = 100 * time.Millisecond
	longestBreath  = 5 * time.Second
)

// runVersion is the version of the record that this build reads and writes.
const runVersion = 1

// run is the record of how many calls in a row failed in the whole fleet, in an epoch of its breaker. Whoever sees a call succeed after that begins it anew.
type run struct {
	Version int    `json:"v"`
	Epoch   uint64 `json:"epoch"`
	breaker.Run
}

// decodeRun returns a run that says nothing when the record cannot be read; our next word replaces it.
func decodeRun(e Entry) run {
	var r run
	if e.Value == nil || json.Unmarshal(e.Value, &r) != nil || r.Version != runVersion || r.Failures < 0 || r.Refused < 0 {
		return run{Version: runVersion}
	}
	return r
}

// voice is what a unit has to tell of its calls. It is for the goroutine that runs the unit.
type voice struct {
	record record
	word   breaker.Word // not told yet
	epoch  uint64       // that it is of
	heard  breaker.Run  // what the fleet last knew
	spoke  time.Time
	breath time.Duration
}

// told notes that the word is out.
func (v *voice) told() {
	silent := time.Since(v.spoke)
	if v.word, v.spoke = (breaker.Word{}), time.Now(); silent > 4*v.breath {
		v.breath = shortestBreath
		return
	}
	v.breath = min(2*v.breath, longestBreath)
}

// speak lets the unit tell of a call.
func (u *unit) speak() {
	select {
	case u.news <- struct{}{}:
	default:
	}
}

// listen takes what the fleet knows when the unit begins.
func (u *unit) listen() {
	v := &u.voice
	v.record.refresh()
	if there := decodeRun(v.record.known); there.Epoch == u.breaker.Shared().Epoch {
		v.heard = there.Run
		u.suspect.Store(there.Run != breaker.Run{})
	}
}

// hush is how long the unit is silent yet.
func (u *unit) hush() time.Duration {
	return max(u.voice.breath-time.Since(u.voice.spoke), 0)
}

// syncRun adds what happened here to what happened in the fleet, and lets the breaker hear of it.
func (u *unit) syncRun(ctx context.Context) error {
	v := &u.voice
	word, epoch := u.breaker.Say()
	if epoch != v.epoch {
		v.word, v.epoch = breaker.Word{}, epoch
	}
	v.word = v.word.Then(word)
	wrote, err := v.record.edit(ctx, u.proposeRun)
	if wrote {
		v.heard = v.word.After(v.heard)
		v.told()
	}
	return err
}

// proposeRun returns what the record should be, or nil when it is right or it is too soon to write it.
func (u *unit) proposeRun(e Entry) []byte {
	v, there := &u.voice, decodeRun(e)
	if there.Epoch > v.epoch { // the breaker has not heard yet that it opened
		return nil
	}
	known := breaker.Run{}
	if there.Epoch == v.epoch {
		known = there.Run
	}
	if v.heard == (breaker.Run{}) { // a call that worked before anybody failed ends nothing
		v.word.Worked, v.word.Granted = false, false
	}
	v.heard = known
	next := v.word.After(known)
	u.suspect.Store(next != breaker.Run{})
	u.breaker.Hear(time.Now(), v.epoch, next)
	if next == known {
		v.word = breaker.Word{}
		return nil
	}
	if u.hush() > 0 {
		return nil
	}
	value, err := json.Marshal(run{runVersion, v.epoch, next})
	if err != nil { // numbers
		return nil
	}
	return value
}
