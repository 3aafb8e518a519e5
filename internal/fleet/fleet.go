// Package fleet is what the instances of Pollux agree on: when a gateway is not to be called, for how long it is to be left alone, and
// who has which part of its limit. They agree over a small store of records, and each decides with what it knows: the store away, slow or stale
// never keeps a call waiting.
package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pollux/internal/breaker"
)

// KV is a small store of records that all instances see. A revision is the number of a record's last write; all writes to the store have one order.
type KV interface {
	// Get returns a record, and ErrNotFound when there never was one. It never returns an older one than a write that was confirmed before.
	Get(ctx context.Context, key string) (Entry, error)
	// Put writes a record if its revision is still the one that was last seen, 0 when there never was any, and returns the new revision. It returns
	// ErrConflict when somebody else has written it. After any other error it may have been written all the same.
	Put(ctx context.Context, key string, value []byte, revision uint64) (uint64, error)
	// Delete removes a record, if there is one. Watchers may not hear of it.
	Delete(ctx context.Context, key string) error
	// All returns every record as it is now, in no order, for somebody who looks once.
	All(ctx context.Context) ([]Entry, error)
	// Watch hands every record to see, then the zero Entry once, then every change as it is made; of several changes to a record the last is
	// enough. It calls see from one goroutine. It returns when ctx ends, and also when the store cannot be reached, when a change may have been
	// missed, or when revisions begin anew because the store was lost and made again. Then it is to be called again.
	Watch(ctx context.Context, see func(Entry)) error
}

// Entry is a record. Value is nil when it was removed.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
}

// The errors of a KV that mean something.
var (
	ErrNotFound = errors.New("no such record")
	ErrConflict = errors.New("the record was written by somebody else")
)

const (
	// MaxAccounts is how many accounts of a gateway have a breaker and a limit of their own; the rest share those of the account "*".
	MaxAccounts = 256
	// MaxMembers is how many instances share a gateway's limit; more stand by.
	MaxMembers = 256
	// MaxValueBytes is how long a record can be.
	MaxValueBytes = 64 << 10

	maxEntries      = 16384 // of the store that are remembered
	transitionsKept = 1024  // that nobody has taken yet

	ioTimeout = 2 * time.Second // for one request to the store
	retryIn   = time.Second     // after the store failed
	leaveIn   = 3 * time.Second // for the last writes of an instance that stops
)

// Options says how an instance takes part in the fleet.
type Options struct {
	ID  string       // of this instance among all, good for a key of KV; empty: one that no other has
	KV  KV           // nil: this instance is the whole fleet
	Log *slog.Logger // nil: silence
}

// Fleet is this instance's part in the fleet. It is safe for concurrent use. Its gates work from the start, each for itself; Run
// makes them agree with those of the others.
type Fleet struct {
	kv          KV
	log         *slog.Logger
	id          string
	ready       chan struct{}
	transitions chan Transition
	dropped     atomic.Uint64
	away        atomic.Bool // the store does not answer
	blind       atomic.Bool // the store does not tell what changes

	mu      sync.Mutex
	gates   map[string]*Gate
	owners  map[string]owner // by key of the record
	entries map[string]remembered
	era     uint64           // of the present watch
	known   uint64           // the era whose records are all here
	heard   map[string]pulse // by id of the instance
	touch   touch
	work    context.Context // nil while not running
	tasks   sync.WaitGroup
}

// owner is whoever keeps a record in step with the fleet.
type owner interface {
	run(ctx context.Context)
	wake()
}

// remembered is a record as the watch told it. Revisions of different eras cannot be compared.
type remembered struct {
	Entry
	era uint64
}

// Transition is a change of an account's breaker. What another instance or an operator did has the cause breaker.CauseAdopted here and its
// own cause there.
type Transition struct {
	Gateway string
	Account string
	breaker.Transition
}

// New returns an instance of a fleet.
func New(o Options) *Fleet {
	f := &Fleet{
		kv: o.KV, log: o.Log, id: cmp.Or(o.ID, newID()),
		ready: make(chan struct{}), transitions: make(chan Transition, transitionsKept),
		gates: map[string]*Gate{}, owners: map[string]owner{}, entries: map[string]remembered{}, heard: map[string]pulse{},
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	if f.kv == nil {
		close(f.ready)
	}
	return f
}

// newID is a name that no other instance has.
func newID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails: the program ends if it would
	return hex.EncodeToString(b[:])
}

// ID is this instance's name among the members of the fleet.
func (f *Fleet) ID() string { return f.id }

// Ready waits until this instance knows the records of the fleet, or until ctx ends. Calls made earlier are decided without them: wait a second or
// two for it at start, and go on without it.
func (f *Fleet) Ready(ctx context.Context) error {
	select {
	case <-f.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the records of the fleet: %w", context.Cause(ctx))
	}
}

// Transitions hands out what changed, for logs, metrics and rows. If nobody takes them the newest are dropped and counted; nothing waits. It is closed when Run
// returns.
func (f *Fleet) Transitions() <-chan Transition { return f.transitions }

// Dropped is how many transitions were dropped because nobody took them.
func (f *Fleet) Dropped() uint64 { return f.dropped.Load() }

// Run takes part in the fleet until ctx ends; then it gives its shares of the limits back, within three seconds, and returns. It is called
// once, and should end after the last call to a gateway has.
func (f *Fleet) Run(ctx context.Context) error {
	work, stop := context.WithCancel(ctx)
	defer stop()
	f.mu.Lock()
	f.work = work
	f.tasks.Go(func() { every(work, time.Second, f.tick) })
	if f.kv != nil {
		f.tasks.Go(func() { f.watch(work) })
		f.tasks.Go(func() { f.beat(work) })
	}
	for o := range f.distinct() {
		f.begin(o)
	}
	f.mu.Unlock()

	<-work.Done()
	f.mu.Lock()
	f.work = nil
	f.mu.Unlock()
	f.tasks.Wait()
	close(f.transitions)
	return nil
}

// adopt makes o the owner of records, and lets it run as long as the fleet runs.
func (f *Fleet) adopt(o owner, keys ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		f.owners[key] = o
	}
	f.begin(o)
}

// begin lets an owner run, if the fleet does. f.mu is held.
func (f *Fleet) begin(o owner) {
	if work := f.work; work != nil {
		f.tasks.Go(func() { o.run(work) })
	}
}

// every calls do at once and then at a steady pace.
func every(ctx context.Context, pace time.Duration, do func()) {
	t := time.NewTicker(pace)
	defer t.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// tick lets pass what time alone changes, so that it is seen without calls too.
func (f *Fleet) tick() {
	now := time.Now()
	for _, g := range f.all() {
		for _, u := range *g.units.Load() {
			u.breaker.Tick(now)
		}
	}
}

// running reports whether this instance takes part in the fleet.
func (f *Fleet) running() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.work != nil && f.kv != nil
}

func (f *Fleet) all() []*Gate {
	f.mu.Lock()
	defer f.mu.Unlock()
	gates := make([]*Gate, 0, len(f.gates))
	for _, g := range f.gates {
		gates = append(gates, g)
	}
	return gates
}

// watch keeps the records of the fleet at hand.
func (f *Fleet) watch(ctx context.Context) {
	const shortest, longest = 100 * time.Millisecond, time.Second
	pause := shortest
	era := f.nextEra()
	for {
		err := f.kv.Watch(ctx, func(e Entry) { f.see(e, era) })
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			f.noteWatch(err)
		}
		if _, live := f.present(); live {
			pause = shortest
		}
		era = f.nextEra() // what happens from now on is not seen
		sleep(ctx, pause)
		pause = min(2*pause, longest)
	}
}

// nextEra begins an era, of whose records none is known yet.
func (f *Fleet) nextEra() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.era++
	return f.era
}

// present is the present era, and whether the watch has brought all records in it and goes on.
func (f *Fleet) present() (era uint64, live bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.era, f.known == f.era
}

// see takes a record that the watch has brought, or its word that these were all.
func (f *Fleet) see(e Entry, era uint64) {
	if e.Key == "" {
		f.caughtUp(era)
		return
	}
	if id, ok := strings.CutPrefix(e.Key, beatPrefix); ok {
		f.hear(id, e.Value)
		return
	}
	f.mu.Lock()
	if _, ok := f.entries[e.Key]; ok || len(f.entries) < maxEntries {
		f.entries[e.Key] = remembered{e, era}
	}
	o := f.owners[e.Key]
	f.mu.Unlock()
	if o != nil {
		o.wake()
	}
}

// caughtUp forgets records that are not there any more, and lets everybody look at what is.
func (f *Fleet) caughtUp(era uint64) {
	f.mu.Lock()
	for key, r := range f.entries {
		if r.era < era {
			delete(f.entries, key)
		}
	}
	first := f.known == 0
	f.known = era
	owners := f.distinct()
	f.mu.Unlock()
	f.noteWatch(nil)
	if first {
		close(f.ready)
	}
	for o := range owners {
		o.wake()
	}
}

// distinct is all owners, each once. f.mu is held.
func (f *Fleet) distinct() map[owner]struct{} {
	all := map[owner]struct{}{}
	for _, o := range f.owners {
		all[o] = struct{}{}
	}
	return all
}

// Apart reports whether this instance decides for itself, since the store does not answer, or does not tell what changes.
func (f *Fleet) Apart() bool { return f.away.Load() || f.blind.Load() }

// noteStore says when the store fails and when it works again, once each.
func (f *Fleet) noteStore(err error) {
	f.note(&f.away, err, "the fleet's store does not answer: this instance decides for itself", "the fleet's store answers again")
}

// noteWatch does the same for the watch.
func (f *Fleet) noteWatch(err error) {
	f.note(&f.blind, err, "the fleet's store does not tell what changes", "the fleet's store tells again what changes")
}

func (f *Fleet) note(trouble *atomic.Bool, err error, bad, good string) {
	switch {
	case err == nil:
		if trouble.CompareAndSwap(true, false) {
			f.log.Info(good)
		}
	case errors.Is(err, context.Canceled), errors.Is(err, ErrConflict): // we stop; it answers
	default:
		if trouble.CompareAndSwap(false, true) {
			f.log.Warn(bad, "error", err, "hint", "payments go on; is the bucket pollux_fleet there? pollux streams diff")
		}
	}
}

func (f *Fleet) tell(gateway, account string, changes []breaker.Transition) {
	for _, t := range changes {
		select {
		case f.transitions <- Transition{gateway, account, t}:
		default:
			f.dropped.Add(1)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
