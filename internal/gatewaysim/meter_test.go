package gatewaysim

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPeakIsThatOfTheDensestSecond(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &meter{begun: time.Now()}
		var at time.Duration
		var arrivals []time.Duration
		for _, gap := range rapid.SliceOfN(rapid.IntRange(0, 400), 1, 600).Draw(t, "gaps in ms") {
			at += time.Duration(gap) * time.Millisecond
			arrivals = append(arrivals, at)
			m.arrive(m.begun.Add(at), false)
		}
		want := 0
		for i := range arrivals {
			n := 0
			for j := i; j >= 0 && arrivals[j] > arrivals[i]-time.Second; j-- {
				n++
			}
			want = max(want, n)
		}
		if m.peak != want || m.calls != int64(len(arrivals)) {
			t.Fatalf("peak %d, want %d; %d calls, want %d", m.peak, want, m.calls, len(arrivals))
		}
		var sum uint32
		for _, n := range m.buckets {
			sum += n
		}
		if int(sum) != len(arrivals) || len(m.buckets) != int(at/bucketWidth)+1 {
			t.Fatalf("%d calls in %d buckets", sum, len(m.buckets))
		}
	})
}

func TestBucketsKeepTheLastHour(t *testing.T) {
	m := &meter{begun: time.Now()}
	m.arrive(m.begun, false)
	for i := range 3 * maxBuckets {
		m.arrive(m.begun.Add(time.Duration(i)*bucketWidth), true)
	}
	if n := len(m.buckets); n < maxBuckets || n >= 2*maxBuckets || m.from+n != 3*maxBuckets {
		t.Errorf("%d buckets from %d on", n, m.from)
	}
	m.arrive(m.begun.Add(1000*time.Hour), false)
	if len(m.buckets) != 1 || m.buckets[0] != 1 || m.from != 1000*36_000 {
		t.Errorf("after a long pause %d buckets from %d on", len(m.buckets), m.from)
	}
	if m.calls != 3*maxBuckets+2 || m.whileDown != 3*maxBuckets {
		t.Errorf("%d calls, %d while down", m.calls, m.whileDown)
	}
}

func TestArrivalThatWaitedForTheLockComesAfterTheOthers(t *testing.T) {
	m := &meter{begun: time.Now()}
	m.arrive(m.begun.Add(5*time.Second), false)
	m.arrive(m.begun.Add(time.Second), false)
	if m.peak != 2 || m.buckets[50] != 2 {
		t.Errorf("peak %d, buckets %v", m.peak, m.buckets)
	}
}
