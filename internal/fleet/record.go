package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// record is a record of the store as one task knows it. It is for that task alone; the key never changes.
type record struct {
	fleet *Fleet
	known Entry
	era   uint64
}

func (f *Fleet) record(key string) record { return record{fleet: f, known: Entry{Key: key}} }

// refresh looks whether the watch has brought something newer.
func (r *record) refresh() {
	f := r.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.entries[r.known.Key]
	switch {
	case ok && (e.era > r.era || e.era == r.era && e.Revision > r.known.Revision):
		r.known, r.era = e.Entry, e.era
	case !ok && f.known > r.era: // all records of another store are here, and this is not among them
		r.known, r.era = Entry{Key: r.known.Key}, f.known
	}
}

// read is refresh, and asks the store itself while the watch does not tell what changes. It reports false when the store does not answer.
func (r *record) read(ctx context.Context) bool {
	r.refresh()
	era, live := r.fleet.present()
	if live {
		return true
	}
	e, err := get(ctx, r.fleet.kv, r.known.Key)
	r.fleet.noteStore(err)
	if err == nil {
		r.known, r.era = e, era // what the watch brought earlier is older
	}
	return err == nil
}

// maxTries is how often a change is tried again after somebody else was faster. One of all that try at once succeeds each time.
const maxTries = 64

// edit changes the record by compare-and-set: from what is known of it and, when that is not current, from what is there. change returns
// the new value, or nil to leave the record as it is; it may be called several times. The last time is the one that counts.
func (r *record) edit(ctx context.Context, change func(Entry) []byte) (wrote bool, err error) {
	r.refresh()
	wrote, err = edit(ctx, r.fleet.kv, &r.known, change)
	if wrote || err != nil {
		r.fleet.noteStore(err)
	}
	return wrote, err
}

func edit(ctx context.Context, kv KV, known *Entry, change func(Entry) []byte) (wrote bool, err error) {
	for try := range maxTries {
		value := change(*known)
		if value == nil {
			return false, nil
		}
		revision, err := put(ctx, kv, *known, value)
		if err == nil {
			known.Value, known.Revision = value, revision
			return true, nil
		}
		if !errors.Is(err, ErrConflict) {
			return false, fmt.Errorf("writing the record %s: %w", known.Key, err)
		}
		if try > 0 {
			sleep(ctx, rand.N(time.Duration(try)*time.Millisecond))
		}
		if *known, err = get(ctx, kv, known.Key); err != nil {
			return false, fmt.Errorf("reading the record %s: %w", known.Key, err)
		}
	}
	return false, fmt.Errorf("writing the record %s: %w, %d times", known.Key, ErrConflict, maxTries)
}

func put(ctx context.Context, kv KV, old Entry, value []byte) (uint64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ioTimeout, errSilent)
	defer cancel()
	return kv.Put(ctx, old.Key, value, old.Revision)
}

// get returns a record without a value when there is none.
func get(ctx context.Context, kv KV, key string) (Entry, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ioTimeout, errSilent)
	defer cancel()
	e, err := kv.Get(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return Entry{Key: key}, nil
	}
	e.Key = key
	return e, err
}

var errSilent = fmt.Errorf("no answer within %s", ioTimeout)
