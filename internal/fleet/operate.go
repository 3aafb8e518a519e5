package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/limit"
)

// Force forces a breaker open, closed or disabled for the whole fleet, until an instant. It needs no instance: it changes the record, and all
// adopt it. It returns what changed, to be recorded. c is the breaker's configuration.
func Force(ctx context.Context, kv KV, t Target, c breaker.Config, f breaker.Forced) ([]breaker.Transition, error) {
	if err := f.Validate(breaker.At(time.Now())); err != nil {
		return nil, err
	}
	return operate(ctx, kv, t, c, breaker.Event{Kind: breaker.Force, Forced: f})
}

// Release ends a forced state. Without one it changes nothing and returns no transitions.
func Release(ctx context.Context, kv KV, t Target, c breaker.Config, actor, reason string) ([]breaker.Transition, error) {
	return operate(ctx, kv, t, c, breaker.Event{Kind: breaker.Release, Forced: breaker.Forced{Actor: actor, Reason: reason}})
}

// Reset makes a breaker forget the past: an open one probes at once, a forced state ends. It is for whoever has mended the cause.
func Reset(ctx context.Context, kv KV, t Target, c breaker.Config, actor, reason string) ([]breaker.Transition, error) {
	return operate(ctx, kv, t, c, breaker.Event{Kind: breaker.Reset, Forced: breaker.Forced{Actor: actor, Reason: reason}})
}

func operate(ctx context.Context, kv KV, t Target, c breaker.Config, e breaker.Event) ([]breaker.Transition, error) {
	m, err := breaker.NewMachine(c)
	if err != nil {
		return nil, err
	}
	known, err := get(ctx, kv, t.key(breakerPrefix))
	if err != nil {
		return nil, fmt.Errorf("reading the record of the breaker: %w", err)
	}
	var changes []breaker.Transition
	var unread error
	_, err = edit(ctx, kv, &known, func(old Entry) []byte {
		var s breaker.State
		if old.Value != nil {
			if s.Shared, unread = breaker.Decode(old.Value); unread != nil {
				return nil
			}
		}
		before := s.Shared
		if s, _, changes = m.Step(s, breaker.At(time.Now()), e); s.Shared == before {
			return nil
		}
		return s.Shared.Encode()
	})
	if err == nil && unread != nil {
		err = fmt.Errorf("the record %s is not changed: %w", known.Key, unread)
	}
	if err != nil {
		return nil, err
	}
	return changes, nil
}

// Record is what the fleet has agreed on about an account.
type Record struct {
	Target
	Breaker breaker.Shared
	Limit   limit.Shared
	Err     error // why the breaker's record cannot be read; nil when it can
}

// List returns all accounts of which the fleet keeps a record, in order: those whose breaker ever opened, and those of whose limit the
// gateway ever complained.
func List(ctx context.Context, kv KV) ([]Record, error) {
	entries, err := kv.All(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the records of the fleet: %w", err)
	}
	found := map[Target]Record{}
	at := func(t Target) Record {
		if r, ok := found[t]; ok {
			return r
		}
		return Record{Target: t, Limit: limit.Shared{Factor: 1}}
	}
	for _, e := range entries {
		if t, ok := targetOf(breakerPrefix, e.Key); ok {
			r := at(t)
			r.Breaker, r.Err = breaker.Decode(e.Value)
			found[t] = r
		}
		if t, ok := targetOf(limitPrefix, e.Key); ok {
			r := at(t)
			r.Limit = decodeComplaints(e)
			found[t] = r
		}
	}
	var records []Record
	for _, r := range found {
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b Record) int {
		return strings.Compare(a.Gateway+"\x00"+a.Account, b.Gateway+"\x00"+b.Account)
	})
	return records, nil
}
