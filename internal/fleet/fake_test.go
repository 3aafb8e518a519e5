package fleet_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"pollux/internal/fleet"
)

// store is a fleet's store in memory. Each instance has a line of its own to it, which can be slow, silent or cut.
type store struct {
	mu       sync.Mutex
	entries  map[string]fleet.Entry
	revision uint64
	life     int            // how often it was lost
	changed  chan struct{}  // closed at the next change
	writes   map[string]int // by key
}

func newStore() *store {
	return &store{entries: map[string]fleet.Entry{}, writes: map[string]int{}, changed: make(chan struct{})}
}

// wipe loses everything; revisions begin anew.
func (s *store) wipe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries, s.revision = map[string]fleet.Entry{}, 0
	s.life++
	s.stir()
}

// set writes a record whatever its revision is.
func (s *store) set(key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(key, value)
}

func (s *store) value(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[key].Value
}

func (s *store) keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for k, e := range s.entries {
		if e.Value != nil {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// image and restore are a backup of everything, revisions included.
func (s *store) image() map[string]fleet.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]fleet.Entry{}
	for k, e := range s.entries {
		all[k] = e
	}
	return all
}

func (s *store) restore(image map[string]fleet.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries, s.revision = map[string]fleet.Entry{}, 0
	for k, e := range image {
		s.entries[k] = e
		s.revision = max(s.revision, e.Revision)
	}
	s.life++
	s.stir()
}

func (s *store) write(key string, value []byte) uint64 {
	s.revision++
	s.writes[key]++
	s.entries[key] = fleet.Entry{Key: key, Value: value, Revision: s.revision}
	s.stir()
	return s.revision
}

// written is how often a record was written.
func (s *store) written(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes[key]
}

func (s *store) stir() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// mood is what a line to the store is like.
type mood int

const (
	fine   mood = iota
	cut         // every request fails at once, and watches end
	silent      // no request is ever answered, and watches hear nothing
	deaf        // requests are answered, but watches hear nothing
	lossy       // every second write is made and not confirmed
)

var errCut = errors.New("the line to the store is cut")

// line is an instance's connection to a store.
type line struct {
	store *store

	mu      sync.Mutex
	mood    mood
	latency time.Duration // of each way, at most
	changed chan struct{}
	count   int
}

func (s *store) line(latency time.Duration) *line {
	return &line{store: s, latency: latency, changed: make(chan struct{})}
}

func (l *line) set(m mood) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mood = m
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *line) state() (mood, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mood, l.changed
}

// travel is one way of a request or an answer.
func (l *line) travel(ctx context.Context) error {
	for {
		m, changed := l.state()
		switch m {
		case cut:
			return errCut
		case silent:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-changed:
				continue
			}
		}
		if l.latency == 0 {
			return ctx.Err()
		}
		t := time.NewTimer(rand.N(l.latency))
		defer t.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			return nil
		}
	}
}

func (l *line) Get(ctx context.Context, key string) (fleet.Entry, error) {
	if err := l.travel(ctx); err != nil {
		return fleet.Entry{}, err
	}
	l.store.mu.Lock()
	e, ok := l.store.entries[key]
	l.store.mu.Unlock()
	if err := l.travel(ctx); err != nil {
		return fleet.Entry{}, err
	}
	if !ok {
		return fleet.Entry{}, fleet.ErrNotFound
	}
	return e, nil
}

func (l *line) Put(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if err := l.travel(ctx); err != nil {
		return 0, err
	}
	s := l.store
	s.mu.Lock()
	if s.entries[key].Revision != revision {
		s.mu.Unlock()
		return 0, fleet.ErrConflict
	}
	revision = s.write(key, slices.Clone(value))
	s.mu.Unlock()
	if err := l.travel(ctx); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count++; l.mood == lossy && l.count%2 == 0 {
		return 0, errCut
	}
	return revision, nil
}

func (l *line) Delete(ctx context.Context, key string) error {
	if err := l.travel(ctx); err != nil {
		return err
	}
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	delete(l.store.entries, key)
	return nil
}

func (l *line) All(ctx context.Context) (all []fleet.Entry, err error) {
	if err := l.travel(ctx); err != nil {
		return nil, err
	}
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	for _, e := range l.store.entries {
		if e.Value != nil {
			all = append(all, e)
		}
	}
	return all, nil
}

func (l *line) Watch(ctx context.Context, see func(fleet.Entry)) error {
	s := l.store
	s.mu.Lock()
	life := s.life
	s.mu.Unlock()
	seen, complete := uint64(0), false
	for {
		m, moved := l.state()
		if m == cut {
			return errCut
		}
		s.mu.Lock()
		changed := s.changed
		var news []fleet.Entry
		for _, e := range s.entries {
			if e.Revision > seen {
				news = append(news, e)
			}
		}
		lost := s.life != life
		s.mu.Unlock()
		if lost {
			return nil
		}
		if m == fine || m == lossy {
			slices.SortFunc(news, func(a, b fleet.Entry) int { return cmp.Compare(a.Revision, b.Revision) })
			if err := l.travel(ctx); err != nil {
				return err
			}
			for _, e := range news {
				see(e)
				seen = e.Revision
			}
			if !complete {
				complete = true
				see(fleet.Entry{})
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-moved:
		}
	}
}
