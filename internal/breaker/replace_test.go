package breaker_test

import (
	"testing"
	"time"

	"pollux/internal/breaker"
)

func TestReplaceLosesNothingThatHappenedMeanwhile(t *testing.T) {
	now := noon.Time()
	b := newBreaker(t, nil)
	seen := b.Shared()
	trip(t, b, now)
	if _, ok := b.Replace(now, seen, breaker.Shared{Epoch: 9}); ok || b.Snapshot(now).Kind != breaker.Open {
		t.Error("a trip was lost to a state that was made before it")
	}
	far := breaker.Shared{Kind: breaker.Open, Epoch: 9, Since: breaker.At(now), RetryAt: breaker.At(now.Add(24 * time.Hour))}
	got, ok := b.Replace(now, b.Shared(), far)
	if !ok || got.Epoch != 9 || got != b.Shared() || got.RetryAt.Time().After(now.Add(time.Hour)) {
		t.Errorf("replaced %t, by %+v", ok, got)
	}
}

func TestPermitOfAProbeNamesItsLease(t *testing.T) {
	now := noon.Time()
	b := newBreaker(t, nil)
	if p, _, ok := b.Admit(now); !ok || p.Lease() != 0 {
		t.Errorf("a call that is no probe has the lease %d", p.Lease())
	}
	trip(t, b, now)
	now = b.Snapshot(now).RetryAt.Time()
	p, _, ok := b.Admit(now)
	if !ok || p.Lease() == 0 {
		t.Fatal("no probe")
	}
	for _, l := range b.Shared().Probes {
		if l.ID == p.Lease() {
			return
		}
	}
	t.Error("its lease is not among those of the shared state")
}
