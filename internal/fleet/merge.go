package fleet

import "pollux/internal/breaker"

// merge is what a breaker's record should say when this instance has it as mine, the store has it as theirs, and base is what both last agreed
// on.
//
// Each change of a breaker's kind begins an epoch, so the later epoch knows more. Of two that are equal the store's was first. Within an
// epoch only little changes, and that is put together: probes that come and go, their successes, the step of the ramp. An operator's word
// counts whatever has happened meanwhile.
func merge(base, mine, theirs breaker.Shared, now breaker.Instant, places int) breaker.Shared {
	switch {
	case theirs.Forced.On() && theirs.Forced != base.Forced && later(theirs.Epoch, base.Epoch):
		return theirs
	case later(mine.Epoch, theirs.Epoch):
		return mine
	case mine.Epoch != theirs.Epoch, mine.Kind != theirs.Kind, mine == base:
		return theirs
	case mine.Kind == breaker.HalfOpen:
		return mergeProbes(base, mine, theirs, now, places)
	case mine.Kind == breaker.Closed && mine.StepAt > theirs.StepAt:
		theirs.Step, theirs.StepAt = mine.Step, mine.StepAt
	}
	return theirs
}

// later compares epochs as serial numbers, so that the last of all numbers in a record from anywhere is not later than every other for good.
func later(a, b uint64) bool { return int64(a-b) > 0 }

// mergeProbes adds to theirs what changed from base to mine. A probe for which no place is left is not added: it has lost.
func mergeProbes(base, mine, theirs breaker.Shared, now breaker.Instant, places int) breaker.Shared {
	if base.Epoch != mine.Epoch || base.Kind != mine.Kind {
		base = breaker.Shared{} // nobody had probed yet
	}
	for i, l := range theirs.Probes {
		if gone := has(base, l.ID) && !has(mine, l.ID); gone || l.Deadline <= now {
			theirs.Probes[i] = breaker.Lease{}
		}
	}
	for _, l := range mine.Probes {
		if l.ID != 0 && l.Deadline > now && !has(base, l.ID) && !has(theirs, l.ID) {
			place(&theirs, l, places)
		}
	}
	theirs.Successes = max(theirs.Successes, theirs.Successes+mine.Successes-base.Successes)
	theirs.RetryAt = max(theirs.RetryAt, mine.RetryAt)
	return theirs
}

// has reports whether a probe is among those of a record.
func has(s breaker.Shared, id uint64) bool {
	for _, l := range s.Probes {
		if l.ID == id && id != 0 {
			return true
		}
	}
	return false
}

// place gives a probe a place, if one of so many is free.
func place(s *breaker.Shared, l breaker.Lease, places int) {
	free := -1
	for i, taken := range s.Probes {
		if taken.ID != 0 {
			places--
		} else {
			free = i
		}
	}
	if places > 0 && free >= 0 {
		s.Probes[free] = l
	}
}
