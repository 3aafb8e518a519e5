package gatewaysim

import (
	"sync"
	"testing"
	"time"
)

func TestLogKeepsTheNewestAndCountsWhatItDropped(t *testing.T) {
	j := newJournal(10)
	const n = 3*chunkSize + 7
	for i := range n {
		j.add(record{n: uint32(i)})
	}
	kept, dropped := j.counts()
	if kept+dropped != n || kept < 10 || kept > 10+chunkSize || dropped == 0 {
		t.Fatalf("kept %d, dropped %d of %d", kept, dropped, n)
	}
	seen := dropped
	for from := int64(0); ; {
		calls, next := j.page(from)
		if len(calls) == 0 {
			break
		}
		for _, c := range calls {
			if c.Seq != seen || c.N != int(seen) {
				t.Fatalf("call %d has the number %d and the content of %d", seen, c.Seq, c.N)
			}
			seen++
		}
		from = next
	}
	if seen != n {
		t.Errorf("the pages end at %d of %d", seen, n)
	}
}

func TestLogIsReadWhileItIsWritten(t *testing.T) {
	j := newJournal(chunkSize)
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 20_000 {
				j.add(record{})
			}
		})
	}
	var last int64 = -1
	read := func() {
		calls, _ := j.page(last + 1)
		for _, c := range calls {
			if c.Seq <= last {
				t.Errorf("call %d comes after %d", c.Seq, last)
			}
			last = c.Seq
		}
	}
	for range 1000 {
		read()
	}
	writers.Wait()
	for last < 80_000-1 {
		read()
	}
}

func TestRecordKeepsACall(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 5, time.UTC)
	got := record{reference: "a", at: at.UnixNano(), took: 1500, n: 3, status: 200, outcome: Drip, told: canceled, down: true}.call(9)
	want := Call{Seq: 9, At: at, Reference: "a", N: 3, Outcome: Drip, Status: 200, Told: "canceled", Took: 1500 * time.Microsecond, Down: true}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
