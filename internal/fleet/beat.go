package fleet

import (
	"context"
	"fmt"
	"time"
)

const (
	beatEvery = time.Second
	// silence is how long an instance's beat has not changed, as seen from here, when it counts as dead. Three beats may be lost. With a beat a second its
	// part of the limits is free after four and a half to five and a half seconds.
	silence = 4500 * time.Millisecond
	// lapse is how long this instance's own beats may fail without its taking the store for away. When the store comes back the others are given their time anew.
	lapse = 2 * time.Second
	// ghost is how long the beat of a dead instance is kept.
	ghost = time.Minute
)

// pulse is another instance's beat: what it was, and when it was seen to change, by our own steady clock. Clocks of two hosts are never compared.
type pulse struct {
	value string
	at    time.Time
}

// hear takes a beat that the watch has brought.
func (f *Fleet) hear(id string, value []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p, ok := f.heard[id]; id != f.id && (ok || len(f.heard) < maxEntries) && p.value != string(value) {
		f.heard[id] = pulse{string(value), time.Now()}
	}
}

// suspect reports whether an instance has been silent for too long, while the store was there to be told. One that was never heard of is given
// the time from now on.
func (f *Fleet) suspect(id string) (last string, silent bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.heard[id]
	if !ok {
		p = pulse{at: time.Now()}
		f.heard[id] = p
	}
	return p.value, f.touch.spans(p.at, silence)
}

// inTouch reports whether the store has been there all the time since an instant, and for so long.
func (f *Fleet) inTouch(since time.Time, d time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.touch.spans(since, d)
}

// touch is since when, and when last, the store took this instance's own beats.
type touch struct{ since, last time.Time }

func (t touch) spans(since time.Time, d time.Duration) bool {
	now := time.Now()
	return now.Sub(since) >= d && now.Sub(t.since) >= d && now.Sub(t.last) < lapse
}

// touched notes that the store took a beat.
func (f *Fleet) touched() {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.touch.last) >= lapse {
		f.touch.since = now
	}
	f.touch.last = now
}

// dead reports whether an instance is: it is silent, and the store itself, which the watch may lag behind, has no newer beat of it.
func (f *Fleet) dead(ctx context.Context, id string) bool {
	if id == f.id {
		return false
	}
	last, silent := f.suspect(id)
	if !silent {
		return false
	}
	e, err := get(ctx, f.kv, beatPrefix+id)
	if err != nil {
		f.noteStore(err)
		return false
	}
	if string(e.Value) != last {
		f.hear(id, e.Value)
		return false
	}
	return true
}

// beat shows the others that this instance lives, as long as it shares a limit with them.
func (f *Fleet) beat(ctx context.Context) {
	beat := f.record(beatPrefix + f.id)
	n := 0
	every(ctx, beatEvery, func() {
		f.bury(ctx)
		if !f.shares() {
			return
		}
		n++
		value := fmt.Appendf(nil, "%d", n)
		if _, err := beat.edit(ctx, func(Entry) []byte { return value }); err == nil {
			f.touched() // otherwise it is noted, and the next one comes in a second
		}
	})
	if n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveIn)
	defer cancel()
	_ = f.kv.Delete(ctx, beat.known.Key) // or others do, in a minute
}

// shares reports whether any gateway has a limit.
func (f *Fleet) shares() bool {
	for _, g := range f.all() {
		if g.shared() {
			return true
		}
	}
	return false
}

// bury removes the beat of an instance that has long been dead, one at a time.
func (f *Fleet) bury(ctx context.Context) {
	f.mu.Lock()
	var found string
	for id, p := range f.heard {
		if time.Since(p.at) >= ghost {
			found = id
			break
		}
	}
	f.mu.Unlock()
	if found == "" {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, ioTimeout, errSilent)
	defer cancel()
	if err := f.kv.Delete(ctx, beatPrefix+found); err != nil {
		f.noteStore(err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.heard, found)
}
