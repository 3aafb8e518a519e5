package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/limit"
)

// shares are the parts of the limit that instances use now.
func shares(all []*instance) []float64 {
	var parts []float64
	for _, in := range all {
		part, _ := in.gate.Share()
		parts = append(parts, part)
	}
	return parts
}

// fair reports whether all have the same part, and together the whole.
func fair(all ...*instance) func() bool {
	return func() bool {
		for _, part := range shares(all) {
			if math.Abs(part*float64(len(all))-1) > 1e-9 {
				return false
			}
		}
		return true
	}
}

func TestInstancesShareTheLimitFairly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 1, config(limited(60, 10)))
		within(t, 6*time.Second, "alone, it has the whole limit", fair(all...))
		for n := 2; n <= 8; n++ {
			all = append(all, startMany(t, s, 1, config(limited(60, 10)))...)
			within(t, 1500*time.Millisecond, fmt.Sprintf("%d have the same part", n), fair(all...))
		}
		if _, members := all[3].gate.Share(); members != 8 {
			t.Errorf("it knows of %d instances, want 8", members)
		}
		all[3].stop()
		all = slices.Delete(all, 3, 4)
		within(t, time.Second, "one that stops gives its part back at once", fair(all...))

		all[0].crash()
		died := time.Now()
		all = all[1:]
		within(t, 7*time.Second, "one that dies loses its part", fair(all...))
		if took := time.Since(died); took < 3500*time.Millisecond || took > 6500*time.Millisecond {
			t.Errorf("the part of one that died was free after %s, want about five seconds", took)
		}
	})
}

// With more instances than calls in the burst the last ones stand by, and one takes over when a caller dies.
func TestMoreInstancesThanCalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 1, config(limited(5, 2)))
		within(t, 6*time.Second, "alone", fair(all...))
		all = append(all, startMany(t, s, 4, config(limited(5, 2)))...)
		callers := func() (seated []int) {
			for i, part := range shares(all) {
				if part > 0 {
					seated = append(seated, i)
				}
			}
			return seated
		}
		within(t, 2*time.Second, "two of five have a half each", func() bool { c := callers(); return len(c) == 2 && fair(all[c[0]], all[c[1]])() })
		standing := all[slices.Index(shares(all), 0)]
		if no := standing.call(t, gateway.Pending); no.Why != fleet.WhyStandby || !no.RetryAt.After(time.Now()) || no.Why.ByBreaker() {
			t.Errorf("a call of one that stands by: %+v", no)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errCut)
		defer cancel()
		if err := standing.gate.AwaitShare(ctx); !errors.Is(err, errCut) {
			t.Errorf("waiting for a part: %v", err)
		}
		waiting := make(chan error)
		go func() {
			for i := range all {
				if i != callers()[0] && i != callers()[1] {
					go func() { waiting <- all[i].gate.AwaitShare(t.Context()) }()
				}
			}
		}()
		synctest.Wait()
		gone := callers()[0]
		all[gone].crash()
		all = slices.Delete(all, gone, gone+1)
		died := time.Now()
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		if took := time.Since(died); took > 6500*time.Millisecond {
			t.Errorf("a place was taken after %s", took)
		}
		for _, in := range all { // let the others go
			if part, _ := in.gate.Share(); part == 0 {
				continue
			}
			in.stop()
		}
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	})
}

func TestInstanceWithoutALimitNeedsNoShare(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		in := startMany(t, s, 1, config())[0]
		if err := in.gate.AwaitShare(t.Context()); err != nil {
			t.Error(err)
		}
		if no := in.call(t, gateway.Pending); no.Refused() {
			t.Error(no.Why)
		}
		time.Sleep(time.Hour)
		if keys := s.keys(); len(keys) != 0 {
			t.Errorf("it keeps records: %v", keys)
		}
	})
}

func TestSharesStayWhileTheStoreIsAway(t *testing.T) {
	for name, m := range map[string]mood{"cut": cut, "silent": silent, "deaf": deaf} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				all := startMany(t, newStore(), 3, config(limited(60, 10)))
				within(t, 6*time.Second, "all have a third", fair(all...))
				for _, in := range all {
					in.line.set(m)
				}
				for range 1000 {
					time.Sleep(time.Second)
					if !fair(all...)() {
						t.Fatalf("parts %v", shares(all))
					}
					if no := all[0].call(t, gateway.Pending); no.Refused() {
						t.Fatalf("refused: %s", no.Why)
					}
				}
				for _, in := range all {
					in.line.set(fine)
				}
				for range 3000 { // nobody takes anybody for dead who was away like itself
					if time.Sleep(10 * time.Millisecond); !fair(all...)() {
						t.Fatalf("when the store is back: parts %v", shares(all))
					}
				}
			})
		})
	}
}

// honest looks at what an instance says of its part when it says it.
type honest struct {
	fleet.KV
	t    *testing.T
	in   atomic.Pointer[instance]
	said int
}

func (h *honest) Put(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if key == "share."+psp {
		var roll struct {
			Members []struct {
				ID    string
				Share float64
			}
		}
		if err := json.Unmarshal(value, &roll); err != nil {
			h.t.Error(err)
		}
		in := h.in.Load()
		for ; in == nil; in = h.in.Load() {
			time.Sleep(time.Millisecond) // the test has it in a moment
		}
		part, _ := in.gate.Share()
		for _, m := range roll.Members {
			if m.ID == in.ID() && part > m.Share+1e-9 {
				h.t.Errorf("it uses %v and says %v", part, m.Share)
			}
		}
		h.said++
	}
	return h.KV.Put(ctx, key, value, revision)
}

// An instance uses less before it says so, for it may not hear that it was heard; and says that it uses more before it does.
func TestInstanceNeverUsesMoreThanItHasSaid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		h := &honest{KV: s.line(time.Millisecond), t: t}
		first := start(t, h, config(limited(60, 10)))
		h.in.Store(first) // in time: the first request takes a millisecond
		within(t, 6*time.Second, "alone", fair(first))
		for range 10 {
			second := startMany(t, s, 1, config(limited(60, 10)))[0]
			within(t, 2*time.Second, "both have a half", fair(first, second))
			second.stop()
			within(t, 2*time.Second, "alone again", fair(first))
		}
		first.stop()
		if h.said < 20 {
			t.Errorf("it said %d times what it uses", h.said)
		}
	})
}

// The same, of one of whose words many are lost on the way back.
func TestPartIsGivenUpBeforeThatIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		first := startMany(t, s, 1, config(limited(60, 10)))[0]
		within(t, 6*time.Second, "alone", fair(first))
		first.line.set(lossy)
		for range 10 {
			second := startMany(t, s, 1, config(limited(60, 10)))[0]
			for range 5000 {
				if sum := sumOf(shares([]*instance{first, second})); sum > 1+1e-9 {
					t.Fatalf("parts add up to %v", sum)
				}
				time.Sleep(time.Millisecond)
			}
			if !fair(first, second)() {
				t.Fatalf("parts %v", shares([]*instance{first, second}))
			}
			second.stop()
			within(t, 6*time.Second, "alone again", fair(first))
		}
	})
}

// An instance whose watch hears nothing looks for itself, so that it notices a store that was lost.
func TestPartIsEnteredAgainWithoutAWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		first := startMany(t, s, 1, config(limited(60, 10)))[0]
		within(t, 6*time.Second, "alone", fair(first))
		first.line.set(deaf)
		s.wipe()
		second := startMany(t, s, 1, config(limited(60, 10)))[0]
		for range 10000 {
			if sum := sumOf(shares([]*instance{first, second})); sum > 1+1e-9 {
				t.Fatalf("parts add up to %v", sum)
			}
			time.Sleep(time.Millisecond)
		}
		if !fair(first, second)() {
			t.Fatalf("parts %v", shares([]*instance{first, second}))
		}
	})
}

// An instance that was cut off from the store for so long that the others took it for dead gives its part up when it is back, before it gets one again.
func TestInstanceTakenForDeadComesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all := startMany(t, newStore(), 3, config(limited(60, 10)))
		within(t, 6*time.Second, "all have a third", fair(all...))
		all[0].line.set(silent)
		within(t, 7*time.Second, "the others have a half each", fair(all[1], all[2]))
		if part := shares(all)[0]; math.Abs(part-1.0/3) > 1e-9 {
			t.Errorf("cut off, it has %v, want what it had", part)
		}
		all[0].line.set(fine)
		within(t, 10*time.Second, "it knows", func() bool { return sumOf(shares(all)) <= 1+1e-9 })
		within(t, 10*time.Second, "all have a third again", func() bool {
			if sum := sumOf(shares(all)); sum > 1+1e-9 {
				t.Fatalf("parts add up to %v", sum)
			}
			return fair(all...)()
		})
	})
}

func sumOf(parts []float64) float64 {
	sum := 0.0
	for _, p := range parts {
		sum += p
	}
	return sum
}

func TestSharesSurviveALostStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		all := startMany(t, s, 3, config(limited(60, 10)))
		within(t, 6*time.Second, "all have a third", fair(all...))
		for range 10 {
			s.wipe()
			for range 500 {
				if time.Sleep(10 * time.Millisecond); !fair(all...)() {
					t.Fatalf("parts %v", shares(all))
				}
			}
		}
		for range 20 {
			s.wipe()
			late := startMany(t, s, 1, config(limited(60, 10)))[0] // which sees an empty store
			all = append(all, late)
			within(t, 8*time.Second, "all have the same part", func() bool {
				if sum := sumOf(shares(all)); sum > 1+1e-9 {
					t.Fatalf("parts add up to %v: %v", sum, shares(all))
				}
				return fair(all...)()
			})
			late.stop()
			all = all[:3]
			within(t, 5*time.Second, "all have a third", fair(all...))
		}
	})
}

// Calls that are under way hold their place until they come back: a newcomer waits for them.
func TestPlacesOfCallsUnderWayAreNotGivenAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := config(func(c *fleet.GateConfig) { c.Limit.Concurrency = 10 })
		s := newStore()
		first := startMany(t, s, 1, c)[0]
		within(t, 6*time.Second, "alone", fair(first))
		var passes []fleet.Pass
		for range 10 {
			pass, no := first.gate.Enter(t.Context(), "", limit.Fresh)
			if no.Refused() {
				t.Fatal(no.Why)
			}
			passes = append(passes, pass)
		}
		second := startMany(t, s, 1, c)[0]
		for left := 10; left > 5; left-- {
			time.Sleep(5 * time.Second)
			part, _ := second.gate.Share()
			if want := float64(10-left) / 10; math.Abs(part-want) > 1e-9 {
				t.Errorf("%d of 10 under way: the other has %v, want %v", left, part, want)
			}
			passes[0].Done(gateway.Pending, 0)
			passes = passes[1:]
		}
		within(t, 2*time.Second, "both have a half", fair(first, second))
	})
}

func TestBeatsOfTheDeadAreRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		survivor := startMany(t, s, 1, config(limited(60, 10)))[0]
		for range 50 {
			startMany(t, s, 1, config(limited(60, 10)))[0].crash()
			time.Sleep(time.Second)
		}
		within(t, 10*time.Second, "the survivor has all", fair(survivor))
		time.Sleep(3 * time.Minute)
		if keys := s.keys(); !slices.Equal(keys, []string{"beat." + survivor.ID(), "share." + psp}) {
			t.Errorf("records %v", keys)
		}
		survivor.stop()
		if keys := s.keys(); !slices.Equal(keys, []string{"share." + psp}) {
			t.Errorf("records after the last has stopped: %v", keys)
		}
		if roll := string(s.value("share." + psp)); !strings.Contains(roll, `"members":[]`) {
			t.Errorf("shares after the last has stopped: %s", roll)
		}
	})
}

func TestFleetLargerThanARollStandsBy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		type member struct {
			ID    string  `json:"id"`
			Share float64 `json:"share"`
		}
		var members []member
		for i := range fleet.MaxMembers {
			members = append(members, member{fmt.Sprint(i), 1.0 / fleet.MaxMembers})
		}
		value, err := json.Marshal(map[string]any{"v": 1, "lineage": "x", "settled": true, "members": members})
		if err != nil {
			t.Fatal(err)
		}
		s.set("share."+psp, value)
		in := startMany(t, s, 1, config(limited(10000, 1000)))[0]
		time.Sleep(2 * time.Second)
		if part, _ := in.gate.Share(); part != 0 {
			t.Errorf("it has %v of a limit that %d others share", part, fleet.MaxMembers)
		}
		within(t, 5*time.Minute, "those that were never heard of are dead", fair(in))
	})
}

// ledger is every call that a fleet made.
type ledger struct {
	mu    sync.Mutex
	calls []time.Time
	now   int
	most  int
}

func (l *ledger) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, time.Now())
	l.now++
	l.most = max(l.most, l.now)
}

func (l *ledger) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now--
}

// check reports a stretch of time with more calls than rate·t + burst, found as a bucket that such calls would overdraw.
func (l *ledger) check(rate, burst float64, concurrency int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	tokens, last := burst, time.Time{}
	for i, at := range l.calls {
		if i > 0 {
			tokens = min(burst, tokens+at.Sub(last).Seconds()*rate)
		}
		if last = at; rate > 0 && tokens < 1-1e-6 {
			return fmt.Errorf("call %d of %d is one too many for %v/s with a burst of %v", i, len(l.calls), rate, burst)
		}
		tokens--
	}
	if l.most > concurrency && concurrency > 0 {
		return fmt.Errorf("%d calls at once, at most %d", l.most, concurrency)
	}
	return nil
}

// since counts the calls of the last stretch of time.
func (l *ledger) since(d time.Duration) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, at := range l.calls {
		if time.Since(at) <= d {
			n++
		}
	}
	return n
}

// greedy calls as much as it may until ctx ends; then its calls are over too.
func (in *instance) greedy(ctx context.Context, l *ledger, took time.Duration) {
	for ctx.Err() == nil {
		pass, no := in.gate.Enter(ctx, "", limit.Kind(rand.IntN(4)))
		if no.Refused() {
			wait(ctx, min(max(time.Until(no.RetryAt), time.Millisecond), 200*time.Millisecond))
			continue
		}
		l.begin()
		if took > 0 {
			wait(ctx, rand.N(took))
		}
		l.end()
		pass.Done(gateway.Pending, 0)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Instances that start, stop and die, a store that is slow, deaf, away for all, or lost: whatever happens the fleet stays within its limit over any
// stretch of time; and when all is well again it uses all of it.
func TestFleetStaysWithinItsLimit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rate := rapid.SampledFrom([]limit.Rate{0, 2, 20, 100}).Draw(rt, "rate")
		burst := rapid.IntRange(1, 12).Draw(rt, "burst")
		concurrency := rapid.SampledFrom([]int{0, 1, 3, 10}).Draw(rt, "concurrency")
		if rate == 0 {
			concurrency = max(concurrency, 1)
		}
		took := rapid.SampledFrom([]time.Duration{0, 50 * time.Millisecond, 3 * time.Second}).Draw(rt, "took")
		if concurrency > 0 {
			took = max(took, 50*time.Millisecond)
		} else {
			took = min(took, 50*time.Millisecond)
		}
		latency := rapid.SampledFrom([]time.Duration{0, 5 * time.Millisecond, 300 * time.Millisecond}).Draw(rt, "latency")
		type step struct {
			what  string
			who   int
			after time.Duration
		}
		var steps []step
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			steps = append(steps, step{
				what:  rapid.SampledFrom([]string{"start", "start", "stop", "crash", "deaf", "lossy", "fine", "all away", "all silent", "all fine", "wipe", "blink"}).Draw(rt, "what"),
				who:   rapid.IntRange(0, 5).Draw(rt, "who"),
				after: rapid.SampledFrom([]time.Duration{0, time.Millisecond, 100 * time.Millisecond, 1500 * time.Millisecond, 8 * time.Second}).Draw(rt, "after"),
			})
		}
		var failure error
		synctest.Test(t, func(t *testing.T) {
			type member struct {
				*instance
				stopCalls func()
			}
			s := newStore()
			l := &ledger{}
			c := config(limited(rate, burst), func(c *fleet.GateConfig) {
				c.Limit.Concurrency = concurrency
				c.Limit.MaxWait = time.Second
				c.Breaker.SlowCall = 0
			})
			var members []member
			present := fine
			enter := func() {
				in := start(t, s.line(latency), c)
				in.line.set(present)
				ctx, cancel := context.WithCancel(t.Context())
				var calls sync.WaitGroup
				for range 4 {
					calls.Go(func() { in.greedy(ctx, l, took) })
				}
				members = append(members, member{in, sync.OnceFunc(func() {
					cancel()
					calls.Wait()
				})})
			}
			everybody := func(m mood) {
				present = m
				for _, in := range members {
					in.line.set(m)
				}
			}
			enter()
			for _, st := range steps {
				var m member
				if len(members) > 0 {
					m = members[st.who%len(members)]
				}
				switch {
				case st.what == "start" && len(members) < 6:
					enter()
				case st.what == "all away":
					everybody(cut)
				case st.what == "all silent":
					everybody(silent)
				case st.what == "all fine":
					everybody(fine)
				case st.what == "wipe" && present == fine:
					s.wipe()
				case len(members) == 0:
				case st.what == "stop" && present == fine:
					m.stopCalls()
					m.stop()
					members = slices.Delete(members, st.who%len(members), st.who%len(members)+1)
				case st.what == "crash":
					m.stopCalls()
					m.crash()
					members = slices.Delete(members, st.who%len(members), st.who%len(members)+1)
				case st.what == "blink": // away for less than it takes to be thought dead
					m.line.set(silent)
					time.Sleep(2 * time.Second)
					m.line.set(present)
				case present != fine:
				case st.what == "deaf":
					m.line.set(deaf)
				case st.what == "lossy":
					m.line.set(lossy)
				case st.what == "fine":
					m.line.set(fine)
				}
				time.Sleep(st.after)
			}
			everybody(fine)
			if len(members) == 0 {
				enter()
			}
			time.Sleep(25 * time.Second)
			made := l.since(10 * time.Second)
			for _, m := range members {
				m.stopCalls()
				m.stop()
			}
			if failure = l.check(float64(rate), float64(burst), concurrency); failure == nil && rate > 0 && concurrency == 0 && float64(made) < 8*float64(rate) {
				failure = fmt.Errorf("%d calls in ten seconds at the end, %s are allowed and %d instances want to", made, rate, len(members))
			}
			if concurrency > 0 && made == 0 {
				failure = errors.Join(failure, fmt.Errorf("no calls at the end"))
			}
		})
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}
