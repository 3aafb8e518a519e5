package breaker_test

import (
	"testing"
	"time"

	"pollux/internal/breaker"
)

func newBreaker(t testing.TB, change func(*breaker.Config)) *breaker.Breaker {
	t.Helper()
	c := breaker.Defaults()
	if change != nil {
		change(&c)
	}
	b, err := breaker.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestACallAllocatesNothing(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	closed, open := newBreaker(t, nil), newBreaker(t, nil)
	if err := open.Force(now, breaker.Forced{Mode: breaker.Open, Reason: "test", Actor: "test", Until: breaker.At(now.Add(time.Hour))}); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Millisecond)
		p, _, ok := closed.Admit(now)
		if !ok {
			t.Fatal("refused")
		}
		p.Done(now, breaker.Success)
	}); n > 0 {
		t.Errorf("a call through a closed breaker: %v allocations", n)
	}
	if n := testing.AllocsPerRun(1000, func() {
		if _, _, ok := open.Admit(now); ok {
			t.Fatal("admitted")
		}
	}); n > 0 {
		t.Errorf("a call that is refused: %v allocations", n)
	}
}

func BenchmarkClosedCall(b *testing.B) {
	br := newBreaker(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		now := time.Now()
		p, _, _ := br.Admit(now)
		p.Done(now, breaker.Success)
	}
}

func BenchmarkClosedCallParallel(b *testing.B) {
	br := newBreaker(b, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			now := time.Now()
			p, _, _ := br.Admit(now)
			p.Done(now, breaker.Success)
		}
	})
}

func BenchmarkRefusedCall(b *testing.B) {
	br := newBreaker(b, nil)
	now := time.Now()
	if err := br.Force(now, breaker.Forced{Mode: breaker.Open, Reason: "test", Actor: "test", Until: breaker.At(now.Add(time.Hour))}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		br.Admit(now)
	}
}

func BenchmarkStep(b *testing.B) {
	m, err := breaker.NewMachine(breaker.Defaults())
	if err != nil {
		b.Fatal(err)
	}
	var s breaker.State
	now := breaker.At(time.Now())
	b.ReportAllocs()
	for b.Loop() {
		var v breaker.Verdict
		s, v, _ = m.Step(s, now, breaker.Event{Kind: breaker.Ask, Lease: 1})
		s, _, _ = m.Step(s, now, breaker.Event{Kind: breaker.Finish, Call: v.Call, Outcome: breaker.Success})
	}
}

func BenchmarkEncodeDecode(b *testing.B) {
	s := breaker.Shared{Kind: breaker.HalfOpen, Epoch: 7, Cause: breaker.CauseConsecutive, Since: breaker.At(time.Now())}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := breaker.Decode(s.Encode()); err != nil {
			b.Fatal(err)
		}
	}
}
