package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/broker"
	"pollux/internal/fleet"
	"pollux/internal/natstest"
)

// bucket starts a server with the fleet's bucket and connects to it.
func bucket(t testing.TB) (*natstest.Server, *broker.Conn) {
	t.Helper()
	s := natstest.Start(t, natstest.Options{InProcess: true, NoStreams: true})
	c := connect(t, s)
	if err := c.EnsureKV(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return s, c
}

// sighting is what a watch has seen.
type sighting struct {
	mu    sync.Mutex
	seen  map[string]string
	full  int // how often it knew everything
	ended chan error
}

func watch(ctx context.Context, kv fleet.KV) *sighting {
	w := &sighting{seen: map[string]string{}, ended: make(chan error, 1)}
	go func() {
		w.ended <- kv.Watch(ctx, func(e fleet.Entry) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if e.Key == "" {
				w.full++
				return
			}
			if w.seen[e.Key] = string(e.Value); e.Value == nil {
				w.seen[e.Key] = "(removed)"
			}
		})
	}()
	return w
}

func (w *sighting) of(key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[key]
}

func (w *sighting) complete() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.full == 1
}

// end waits for the end of a watch in virtual time and returns why, and after how long.
func (w *sighting) end() (time.Duration, error) {
	began := time.Now()
	err := <-w.ended
	return time.Since(began), err
}

func TestWatchEndsWithWhatItStandsOn(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(s *natstest.Server, c *broker.Conn)
		within time.Duration
	}{
		"server restarts":   {func(s *natstest.Server, _ *broker.Conn) { s.MustRestart() }, 3 * time.Second},
		"server dies":       {func(s *natstest.Server, _ *broker.Conn) { s.MustCrash() }, 3 * time.Second},
		"server goes away":  {func(s *natstest.Server, _ *broker.Conn) { s.Pause() }, 3 * time.Second},
		"bucket is deleted": {func(s *natstest.Server, _ *broker.Conn) { deleteBucket(s) }, 2 * time.Second},
		"bucket is made again": {func(s *natstest.Server, c *broker.Conn) {
			deleteBucket(s)
			if err := c.EnsureKV(context.Background(), 0); err != nil {
				panic(err)
			}
		}, 2 * time.Second},
		"connection is closed": {func(_ *natstest.Server, c *broker.Conn) { c.Close() }, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				s, conn := bucket(t)
				kv := conn.KV()
				if _, err := kv.Put(t.Context(), "a", []byte("1"), 0); err != nil {
					t.Fatal(err)
				}
				w := watch(t.Context(), kv)
				eventually(t, "it knows everything", func() bool { return w.complete() && w.of("a") == "1" })
				natstest.Pass(10 * time.Minute)
				select {
				case err := <-w.ended:
					t.Fatalf("ended for no reason: %v", err)
				default:
				}
				c.spoil(s, conn)
				if took, err := w.end(); err == nil || errors.Is(err, context.Canceled) || took > c.within {
					t.Errorf("ended with %v after %s, want an error within %s", err, took, c.within)
				}
			})
		})
	}
}

func deleteBucket(s *natstest.Server) {
	nc := s.Connect()
	defer nc.Close()
	if _, err := nc.Request("$JS.API.STREAM.DELETE.KV_"+broker.FleetBucket, nil, 10*time.Second); err != nil {
		panic(err)
	}
}

func TestWatchOfManyRecordsAndChanges(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		_, c := bucket(t)
		kv := c.KV()
		revisions := map[string]uint64{}
		write := func(key, value string) {
			t.Helper()
			r, err := kv.Put(t.Context(), key, []byte(value), revisions[key])
			if err != nil {
				t.Fatal(err)
			}
			revisions[key] = r
		}
		for i := range 2000 {
			write(fmt.Sprint("k.", i), "old")
		}
		w := watch(t.Context(), kv)
		for i := range 2000 {
			write(fmt.Sprint("k.", i%100), fmt.Sprint(i))
		}
		eventually(t, "the last of each has been seen", func() bool {
			for i := range 2000 {
				want := "old"
				if i < 100 {
					want = fmt.Sprint(1900 + i)
				}
				if w.of(fmt.Sprint("k.", i)) != want {
					return false
				}
			}
			return w.complete()
		})
	})
}

// What the nats command does to a bucket is understood.
func TestRecordsRemovedByTheNATSCommand(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s, c := bucket(t)
		kv := c.KV()
		if _, err := kv.Put(t.Context(), "a", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		w := watch(t.Context(), kv)
		js, err := jetstream.New(s.Connect())
		if err != nil {
			t.Fatal(err)
		}
		foreign, err := js.KeyValue(t.Context(), broker.FleetBucket)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := foreign.Get(t.Context(), "a"); err != nil || string(e.Value()) != "1" {
			t.Errorf("read by another client: %v", err)
		}
		for _, remove := range []func() error{
			func() error { return foreign.Delete(t.Context(), "a") },
			func() error { return foreign.Purge(t.Context(), "a") },
		} {
			if err := remove(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the watch sees it", func() bool { return w.of("a") == "(removed)" })
			e, err := kv.Get(t.Context(), "a")
			if err != nil || e.Value != nil || e.Revision == 0 {
				t.Fatalf("a removed record: %+v, %v", e, err)
			}
			if _, err := kv.Put(t.Context(), "a", []byte("2"), e.Revision); err != nil {
				t.Errorf("writing it again: %v", err)
			}
			eventually(t, "the watch sees that too", func() bool { return w.of("a") == "2" })
		}
	})
}

func TestBucketIsBounded(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		_, c := bucket(t)
		kv := c.KV()
		if _, err := kv.Put(t.Context(), "a", make([]byte, fleet.MaxValueBytes), 0); err != nil {
			t.Errorf("the longest value: %v", err)
		}
		if _, err := kv.Put(t.Context(), "b", make([]byte, fleet.MaxValueBytes+1), 0); err == nil || errors.Is(err, fleet.ErrConflict) {
			t.Errorf("a longer value: %v", err)
		}
		for _, key := range []string{"", ".", "a.", ".a", "a..b", "a*", ">", "a b", "a/b", "ä", strings.Repeat("a", 1025)} {
			if _, err := kv.Put(t.Context(), key, nil, 0); err == nil {
				t.Errorf("the key %.20q is taken", key)
			}
			if _, err := kv.Get(t.Context(), key); err == nil || errors.Is(err, fleet.ErrNotFound) {
				t.Errorf("getting the key %.20q: %v", key, err)
			}
			if err := kv.Delete(t.Context(), key); err == nil {
				t.Errorf("deleting the key %.20q", key)
			}
		}
		revision := uint64(0)
		for i := range 5 {
			e, err := kv.Get(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if revision, err = kv.Put(t.Context(), "a", fmt.Append(nil, i), e.Revision); err != nil {
				t.Fatal(err)
			}
		}
		e, err := kv.Get(t.Context(), "a")
		if err != nil || e.Revision != revision || string(e.Value) != "4" {
			t.Errorf("%+v, %v", e, err)
		}
	})
}

func TestBucketIsMadeCheckedAndMended(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Start(t, natstest.Options{InProcess: true, NoStreams: true})
		c := connect(t, s)
		if err := c.CheckKV(t.Context()); err == nil || !strings.Contains(err.Error(), "pollux streams apply") {
			t.Errorf("checking a bucket that is missing: %v", err)
		}
		if err := c.KV().Watch(t.Context(), func(fleet.Entry) {}); err == nil || !strings.Contains(err.Error(), "pollux streams apply") {
			t.Errorf("watching a bucket that is missing: %v", err)
		}
		for range 2 { // the second time nothing is to be done
			if err := c.EnsureKV(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if err := c.CheckKV(t.Context()); err != nil {
				t.Error(err)
			}
		}
		js, err := jetstream.New(s.Connect())
		if err != nil {
			t.Fatal(err)
		}
		stream, err := js.Stream(t.Context(), "KV_"+broker.FleetBucket)
		if err != nil {
			t.Fatal(err)
		}
		spoiled := stream.CachedInfo().Config
		spoiled.MaxAge, spoiled.AllowDirect, spoiled.MaxMsgsPerSubject = time.Hour, true, 5
		if _, err := js.UpdateStream(t.Context(), spoiled); err != nil {
			t.Fatal(err)
		}
		err = c.CheckKV(t.Context())
		for _, want := range []string{"max_age is 1h0m0s, wanted 0s", "allow_direct is true, wanted false", "max_msgs_per_subject is 5, wanted 1", "pollux streams apply"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("nothing about %q in: %v", want, err)
			}
		}
		if err := c.EnsureKV(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if err := c.CheckKV(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestBucketWithoutAConnection(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s, c := bucket(t)
		kv := c.KV()
		s.Pause()
		eventually(t, "the connection is lost", func() bool { return !c.Connected() })
		began := time.Now()
		_, errGet := kv.Get(t.Context(), "a")
		_, errPut := kv.Put(t.Context(), "a", nil, 0)
		for name, err := range map[string]error{
			"get": errGet, "put": errPut, "delete": kv.Delete(t.Context(), "a"), "watch": kv.Watch(t.Context(), nil),
			"ensure": c.EnsureKV(t.Context(), 0), "check": c.CheckKV(t.Context()),
		} {
			if !errors.Is(err, broker.ErrNotConnected) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %s to say so", took)
		}
		s.MustResume()
		eventually(t, "the connection is back", c.Connected)
		if _, err := kv.Get(t.Context(), "a"); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("what was refused without a connection was sent later: %v", err)
		}
	})
}

// A request that nobody answers ends with its context.
func TestRequestToASilentBucketEndsWithItsContext(t *testing.T) {
	s := natstest.Start(t, natstest.Options{NoStreams: true})
	c := connect(t, s)
	nc := s.Connect()
	hush := func(subject string) {
		if _, err := nc.Subscribe(subject, func(*nats.Msg) {}); err != nil { // takes requests and says nothing
			t.Fatal(err)
		}
	}
	hush("$KV." + broker.FleetBucket + ".>")
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.KV().Put(ctx, "a", nil, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
