package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/broker"
	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/limit"
	"pollux/internal/natstest"
)

// server starts a JetStream server with the fleet's bucket.
func server(t *testing.T) *natstest.Server {
	t.Helper()
	s := natstest.Start(t, natstest.Options{InProcess: true, NoStreams: true})
	if err := dial(t, s).EnsureKV(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return s
}

func dial(t *testing.T, s *natstest.Server) *broker.Conn {
	t.Helper()
	c, err := broker.Connect(t.Context(), broker.Config{InProcess: s}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Every store behaves as the interface says: the one in memory that most tests here use, and the bucket of NATS.
func TestStores(t *testing.T) {
	stores := map[string]func(t *testing.T) func() fleet.KV{
		"memory": func(t *testing.T) func() fleet.KV {
			s := newStore()
			return func() fleet.KV { return s.line(time.Millisecond) }
		},
		"bucket": func(t *testing.T) func() fleet.KV {
			s := server(t)
			return func() fleet.KV { return dial(t, s).KV() }
		},
	}
	for name, begin := range stores {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) { testStore(t, begin(t)) })
		})
	}
}

func testStore(t *testing.T, open func() fleet.KV) {
	ctx := t.Context()
	a, b := open(), open()
	if _, err := a.Get(ctx, "x.y"); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("getting what is not there: %v", err)
	}
	if _, err := a.Put(ctx, "x.y", []byte("1"), 7); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("changing what is not there: %v", err)
	}
	first, err := a.Put(ctx, "x.y", []byte("1"), 0)
	if err != nil || first == 0 {
		t.Fatalf("making a record: revision %d, %v", first, err)
	}
	if _, err := b.Put(ctx, "x.y", []byte("2"), 0); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("making it again: %v", err)
	}
	second, err := b.Put(ctx, "x.y", []byte("2"), first)
	if err != nil || second <= first {
		t.Fatalf("changing it: revision %d after %d, %v", second, first, err)
	}
	if _, err := a.Put(ctx, "x.y", []byte("3"), first); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("changing an older one: %v", err)
	}
	if e, err := a.Get(ctx, "x.y"); err != nil || e.Key != "x.y" || string(e.Value) != "2" || e.Revision != second {
		t.Errorf("reading it: %+v, %v", e, err)
	}
	if other, err := a.Put(ctx, "x", []byte{}, 0); err != nil || other <= second {
		t.Errorf("an empty value: revision %d, %v", other, err)
	}
	if e, err := a.Get(ctx, "x"); err != nil || e.Value == nil || len(e.Value) != 0 {
		t.Errorf("an empty value is read as %v, %v", e.Value, err)
	}
	testWatch(t, a, b)

	if err := b.Delete(ctx, "x.y"); err != nil {
		t.Errorf("deleting: %v", err)
	}
	if err := b.Delete(ctx, "never.was"); err != nil {
		t.Errorf("deleting what is not there: %v", err)
	}
	if _, err := a.Get(ctx, "x.y"); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("getting what was deleted: %v", err)
	}
	if _, err := a.Put(ctx, "x.y", []byte("4"), 0); err != nil {
		t.Errorf("making it again after it was deleted: %v", err)
	}

	var wg sync.WaitGroup // of many that count up at once every one that succeeds counts
	var mu sync.Mutex
	won := 0
	for range 20 {
		wg.Go(func() {
			e, err := a.Get(ctx, "x")
			if err != nil {
				t.Error(err)
			}
			switch _, err := b.Put(ctx, "x", append(slices.Clone(e.Value), '+'), e.Revision); {
			case err == nil:
				mu.Lock()
				won++
				mu.Unlock()
			case !errors.Is(err, fleet.ErrConflict):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if e, err := a.Get(ctx, "x"); err != nil || len(e.Value) != won || won == 0 {
		t.Errorf("%d writes succeeded, %d are in the record, %v", won, len(e.Value), err)
	}
}

// testWatch expects the records x and x.y.
func testWatch(t *testing.T, watched, other fleet.KV) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	var seen []string
	ended := make(chan error)
	go func() {
		ended <- watched.Watch(ctx, func(e fleet.Entry) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf("%s=%s", e.Key, e.Value))
		})
	}()
	looks := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
	within(t, time.Second, "what is there", func() bool { return slices.Equal(looks(), []string{"x.y=2", "x=", "="}) })
	last := uint64(0)
	for i := range 3 {
		var err error
		if last, err = other.Put(t.Context(), "w", fmt.Append(nil, i), last); err != nil {
			t.Fatal(err)
		}
		within(t, time.Second, "a change", func() bool { return slices.Contains(looks(), fmt.Sprintf("w=%d", i)) })
	}
	time.Sleep(time.Hour) // and nothing ends it
	if n := len(looks()); n != 6 {
		t.Errorf("seen %v", looks())
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a watch that was ended returns %v", err)
	}
}

// startOn starts n instances on a server, each with a connection of its own.
func startOn(t *testing.T, s *natstest.Server, n int, c fleet.GateConfig) []*instance {
	t.Helper()
	var all []*instance
	for range n {
		in := start(t, dial(t, s).KV(), c)
		if err := in.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		all = append(all, in)
	}
	return all
}

func TestTripIsAdoptedOverNATSWithinASecond(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		all := startOn(t, server(t), 3, config())
		for _, who := range []int{0, 1, 2} {
			all[who].trip(t)
			within(t, time.Second, "open everywhere", everywhere(all, breaker.Open))
			time.Sleep(time.Until(all[who].gate.Snapshot("").Breaker.RetryAt.Time()))
			within(t, 3*time.Minute, "closed everywhere, and at full share", func() bool {
				for _, in := range all {
					in.call(t, gateway.Pending)
				}
				return everywhere(all, breaker.Closed)() && !all[0].gate.Snapshot("").Breaker.Ramping
			})
		}
	})
}

// The case of the field: half-open, 50 workers on each of three nodes.
func TestProbesAreBoundedOverNATS(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		all := startOn(t, server(t), 3, config())
		all[0].trip(t)
		within(t, time.Second, "open everywhere", everywhere(all, breaker.Open))
		for round := range 5 {
			within(t, time.Second, "agreed on when to probe", func() bool { // several may have tripped it at once
				return !slices.ContainsFunc(all, func(in *instance) bool {
					return in.gate.Snapshot("").Breaker.RetryAt != all[0].gate.Snapshot("").Breaker.RetryAt
				})
			})
			time.Sleep(time.Until(all[0].gate.Snapshot("").Breaker.RetryAt.Time()))
			var mu sync.Mutex
			var probes []fleet.Pass
			var wg sync.WaitGroup
			for _, in := range all {
				for range 50 {
					wg.Go(func() {
						if pass, no := in.gate.Enter(t.Context(), "", limit.Deferred); !no.Refused() {
							mu.Lock()
							probes = append(probes, pass)
							mu.Unlock()
						}
					})
				}
			}
			wg.Wait()
			if n := len(probes); n == 0 || n > breaker.Defaults().Probes {
				t.Fatalf("round %d: %d probes", round, n)
			}
			for _, p := range probes {
				p.Done(gateway.Transport, 0)
			}
			within(t, time.Second, "open again everywhere", everywhere(all, breaker.Open))
		}
	})
}

// A server that is away for an hour, restarts, dies and loses everything.
func TestFleetOutlivesItsServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := server(t)
		all := startOn(t, s, 3, config(limited(60, 10)))
		within(t, 10*time.Second, "all have a third", fair(all...))
		down := map[string]func(){
			"away for an hour": func() {
				s.Pause()
				time.Sleep(time.Hour)
				s.MustResume()
			},
			"restart": s.MustRestart,
			"crash":   s.MustCrash,
			"wipe": func() {
				s.MustWipe()
				time.Sleep(5 * time.Second) // until somebody has said: pollux streams apply
				if err := dial(t, s).EnsureKV(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
			},
		}
		for _, name := range []string{"away for an hour", "restart", "crash", "wipe"} {
			all[0].trip(t)
			within(t, time.Second, name+": open everywhere", everywhere(all, breaker.Open))
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				down[name]()
			}()
			began := time.Now()
			if no := all[1].call(t, gateway.Pending); !no.Refused() && time.Since(began) > 300*time.Millisecond {
				t.Errorf("%s: a call waited %s", name, time.Since(began))
			}
			<-stopped
			within(t, 3*time.Minute, name+": closed everywhere, and at full share", func() bool {
				for _, in := range all {
					in.call(t, gateway.Pending)
				}
				return everywhere(all, breaker.Closed)() && !all[0].gate.Snapshot("").Breaker.Ramping
			})
			within(t, 30*time.Second, name+": all have a third", fair(all...))
		}
		late := startOn(t, s, 1, config(limited(60, 10)))[0]
		within(t, 10*time.Second, "a newcomer has a fourth", fair(append(all, late)...))
		all[2].stop()
		within(t, 10*time.Second, "one that stops gives its part back", fair(all[0], all[1], late))
		synctest.Wait()
	})
}

// A bucket that is deleted and made again while everybody is connected.
func TestFleetNoticesANewBucket(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := server(t)
		all := startOn(t, s, 3, config(limited(60, 10)))
		within(t, 10*time.Second, "all have a third", fair(all...))
		nc := s.Connect()
		for range 5 {
			if _, err := nc.Request("$JS.API.STREAM.DELETE.KV_"+broker.FleetBucket, nil, time.Second); err != nil {
				t.Fatal(err)
			}
			if err := dial(t, s).EnsureKV(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			late := startOn(t, s, 1, config(limited(60, 10)))[0]
			within(t, 15*time.Second, "all have a fourth", func() bool {
				if sum := sumOf(shares(append(all, late))); sum > 1+1e-9 {
					t.Fatalf("parts add up to %v", sum)
				}
				return fair(append(all, late)...)()
			})
			late.stop()
			within(t, 5*time.Second, "all have a third", fair(all...))
		}
		all[0].trip(t)
		within(t, time.Second, "open everywhere", everywhere(all, breaker.Open))
	})
}

func TestRecordsAreReadableByPeople(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := server(t)
		in := startOn(t, s, 1, config(limited(60, 10)))[0]
		in2, err := in.Fleet.Gate(fleet.GateConfig{Gateway: "adyen", Breaker: breaker.Defaults()})
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			pass, _ := in2.Enter(t.Context(), "shop.eu:1", limit.Fresh)
			pass.Done(gateway.Transport, 0)
		}
		within(t, 10*time.Second, "it has the limit", fair(in))
		in.call(t, gateway.Pending)
		pass, _ := in.gate.Enter(t.Context(), "", limit.Fresh)
		pass.Done(gateway.RateLimited, time.Minute)
		var keys []string
		kv := dial(t, s).KV()
		within(t, 5*time.Second, "all records are there", func() bool {
			records, err := fleet.List(t.Context(), kv)
			if err != nil {
				t.Fatal(err)
			}
			keys = nil
			for _, r := range records {
				keys = append(keys, fmt.Sprint(r.Target, r.Breaker.Kind, r.Limit.PausedUntil != 0))
			}
			return slices.Equal(keys, []string{fmt.Sprint(fleet.Target{Gateway: "adyen", Account: "shop.eu:1"}, breaker.Open, false), fmt.Sprint(fleet.Target{Gateway: psp}, breaker.Closed, true)})
		})
		if e, err := kv.Get(t.Context(), "breaker.adyen.shop=2eeu=3a1"); err != nil {
			t.Errorf("the record of an account: %v, %v", e, err)
		}
	})
}
