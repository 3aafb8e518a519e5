package fleet

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"pollux/internal/breaker"
)

func probes(ids ...uint64) (p [breaker.MaxProbes]breaker.Lease) {
	for i, id := range ids {
		p[i] = breaker.Lease{ID: id, Deadline: 100}
	}
	return p
}

// ids is the set of probes in a record.
func ids(s breaker.Shared) map[uint64]bool {
	set := map[uint64]bool{}
	for _, l := range s.Probes {
		if l.ID != 0 {
			set[l.ID] = true
		}
	}
	return set
}

func TestMerge(t *testing.T) {
	const now, places = 50, 3
	closed := func(epoch uint64, step int, at breaker.Instant) breaker.Shared {
		return breaker.Shared{Kind: breaker.Closed, Epoch: epoch, Step: step, StepAt: at}
	}
	open := func(epoch uint64) breaker.Shared {
		return breaker.Shared{Kind: breaker.Open, Epoch: epoch, RetryAt: 77}
	}
	half := func(epoch uint64, successes int, retryAt breaker.Instant, ps ...uint64) breaker.Shared {
		return breaker.Shared{Kind: breaker.HalfOpen, Epoch: epoch, Successes: successes, RetryAt: retryAt, Probes: probes(ps...)}
	}
	forced := func(epoch uint64) breaker.Shared {
		return breaker.Shared{Epoch: epoch, Forced: breaker.Forced{Mode: breaker.Open, Reason: "r", Actor: "a", Until: 1000}}
	}
	expired := half(7, 0, 0, 1, 2)
	expired.Probes[1].Deadline = now
	for name, c := range map[string]struct{ base, mine, theirs, want breaker.Shared }{
		"nothing of mine":                {closed(3, 0, 0), closed(3, 0, 0), open(4), open(4)},
		"nothing of theirs":              {closed(3, 0, 0), open(4), closed(3, 0, 0), open(4)},
		"mine went further":              {closed(3, 0, 0), half(5, 0, 0, 1), open(4), half(5, 0, 0, 1)},
		"theirs went further":            {closed(3, 0, 0), open(4), closed(6, 0, 0), closed(6, 0, 0)},
		"theirs was first":               {half(5, 0, 0), closed(6, 0, 0), open(6), open(6)},
		"theirs is old, mine agreed":     {open(6), open(6), closed(5, 0, 0), open(6)},
		"epochs beyond the last":         {closed(math.MaxUint64, 0, 0), open(0), closed(math.MaxUint64, 0, 0), open(0)},
		"the last epoch is before those": {open(0), open(0), closed(math.MaxUint64, 0, 0), open(0)},
		"an operator's word":             {closed(3, 0, 0), half(9, 0, 0, 1), forced(4), forced(4)},
		"an operator's word of long ago": {closed(5, 0, 0), closed(5, 0, 0), forced(4), closed(5, 0, 0)},
		"a forced state that has ended":  {forced(4), half(5, 0, 0), forced(4), half(5, 0, 0)},
		"a step back of mine":            {closed(3, 4, 10), closed(3, 2, 40), closed(3, 4, 10), closed(3, 2, 40)},
		"a later step back of theirs":    {closed(3, 4, 10), closed(3, 2, 40), closed(3, 1, 45), closed(3, 1, 45)},
		"a probe of each":                {half(7, 0, 0), half(7, 0, 0, 1), half(7, 0, 0, 2), half(7, 0, 0, 1, 2)},
		"a probe of each in a new epoch": {open(6), half(7, 0, 0, 1), half(7, 0, 0, 2), half(7, 0, 0, 1, 2)},
		"no place for mine":              {open(6), half(7, 0, 0, 9), half(7, 0, 0, 1, 2, 3), half(7, 0, 0, 1, 2, 3)},
		"my probe came back":             {half(7, 0, 0, 1, 2), half(7, 1, 0, 2), half(7, 0, 0, 1, 2, 3), half(7, 1, 0, 2, 3)},
		"their probe came back":          {half(7, 0, 0, 1, 2), half(7, 0, 0, 1, 2, 3), half(7, 1, 0, 1), half(7, 1, 0, 1, 3)},
		"both came back":                 {half(7, 1, 0, 1, 2), half(7, 2, 0, 2), half(7, 2, 0, 1), half(7, 3, 0)},
		"my probe was inconclusive":      {half(7, 0, 0, 1), half(7, 0, 60), half(7, 0, 55, 1, 2), half(7, 0, 60, 2)},
		"what ran out is left alone":     {half(7, 0, 0), half(7, 0, 0), expired, expired},
		"what ran out makes place":       {half(7, 0, 0), half(7, 0, 0, 3, 4), expired, half(7, 0, 0, 1, 3, 4)},
	} {
		t.Run(name, func(t *testing.T) {
			got := merge(c.base, c.mine, c.theirs, now, places)
			a, b := ids(got), ids(c.want)
			same := len(a) == len(b)
			for id := range b {
				same = same && a[id]
			}
			if c.want == expired { // to the letter, or it would be written again
				same = got == c.want
			}
			got.Probes, c.want.Probes = [breaker.MaxProbes]breaker.Lease{}, [breaker.MaxProbes]breaker.Lease{}
			if !same || got != c.want {
				t.Errorf("got %+v with probes %v, want %+v with probes %v", got, a, c.want, b)
			}
		})
	}
}

func TestKeysCanBeReadBack(t *testing.T) {
	for target, want := range map[Target]string{
		{Gateway: "stripe"}:                         "breaker.stripe",
		{Gateway: "stripe", Account: "acct_1"}:      "breaker.stripe.acct_1",
		{Gateway: "a-b_c", Account: "Shop.eu:1=*ü"}: "breaker.a-b_c.Shop=2eeu=3a1=3d=2a=c3=bc",
	} {
		key := target.key(breakerPrefix)
		if back, ok := targetOf(breakerPrefix, key); key != want || !ok || back != target {
			t.Errorf("%+v: key %s, read back as %+v, %t", target, key, back, ok)
		}
	}
	for _, key := range []string{"limit.stripe", "breaker.", "breaker.x.=", "breaker.x.=g0", "breaker.x.a=2"} {
		if target, ok := targetOf(breakerPrefix, key); ok {
			t.Errorf("%s is read as %+v", key, target)
		}
	}
}

func TestAnyAccountHasAKeyOfItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		target := Target{"g", rapid.String().Draw(t, "account")}
		if back, ok := targetOf(limitPrefix, target.key(limitPrefix)); !ok || back != target {
			t.Fatalf("%+v is read back as %+v, %t", target, back, ok)
		}
	})
}
