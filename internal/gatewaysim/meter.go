package gatewaysim

import (
	"slices"
	"sync"
	"time"
)

const (
	bucketWidth = 100 * time.Millisecond
	maxBuckets  = 36_000 // an hour; older ones go
)

// meter counts calls when they come: how many, how many of them while the gateway was down, and how dense.
type meter struct {
	mu        sync.Mutex
	begun     time.Time
	calls     int64
	whileDown int64
	last      time.Duration // the latest arrival, since begun
	latest    ring          // arrivals of the last second, in nanoseconds since begun
	peak      int
	buckets   []uint32
	from      int // the number of the first bucket
}

// arrive counts a call that came at that time. One that waited for the lock counts as coming after those that did not.
func (m *meter) arrive(now time.Time, down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = max(m.last, now.Sub(m.begun))
	m.calls++
	if down {
		m.whileDown++
	}
	m.latest.push(int64(m.last), int64(m.last-time.Second))
	m.peak = max(m.peak, m.latest.size)
	m.count(int(m.last / bucketWidth))
}

// count adds one to a bucket, which is the last one or a later one.
func (m *meter) count(bucket int) {
	if bucket-m.from >= 2*maxBuckets { // nothing for so long that nothing of it is kept
		m.buckets, m.from = m.buckets[:0], bucket
	}
	for len(m.buckets) <= bucket-m.from {
		m.buckets = append(m.buckets, 0)
	}
	m.buckets[bucket-m.from]++
	if len(m.buckets) >= 2*maxBuckets {
		m.from += len(m.buckets) - maxBuckets
		m.buckets = slices.Clone(m.buckets[len(m.buckets)-maxBuckets:])
	}
}

// ring is a queue of instants that grows as it must. Its size is a power of two.
type ring struct {
	slots []int64
	head  int // the oldest
	size  int
}

// push adds an instant and drops those at or before the horizon.
func (r *ring) push(at, horizon int64) {
	for r.size > 0 && r.slots[r.head] <= horizon {
		r.head = (r.head + 1) & (len(r.slots) - 1)
		r.size--
	}
	if r.size == len(r.slots) {
		grown := make([]int64, max(2*len(r.slots), 256))
		n := copy(grown, r.slots[r.head:])
		copy(grown[n:], r.slots[:r.head])
		r.slots, r.head = grown, 0
	}
	r.slots[(r.head+r.size)&(len(r.slots)-1)] = at
	r.size++
}
