package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"pollux/internal/broker"
	"pollux/internal/consumer"
	"pollux/internal/message"
	"pollux/internal/natstest"
	"pollux/internal/outbox"
)

var _ consumer.Source = (*broker.Source)(nil)
var _ outbox.Broker = (*broker.Conn)(nil)

// config is a usual subscription.
func config(prefetch int) broker.SubscribeConfig {
	return broker.SubscribeConfig{Queue: queue, AckWait: time.Minute, MaxAckPending: 1000, Prefetch: prefetch}
}

// fetch fetches until n deliveries are here, at most batch at a time.
func fetch(t testing.TB, src *broker.Source, n, batch int) []consumer.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour) // for bubbles; the rest is ended by go test
	defer cancel()
	var out []consumer.Delivery
	for len(out) < n {
		ds, err := src.Fetch(ctx, min(batch, n-len(out)))
		if err != nil {
			t.Fatalf("after %d of %d deliveries: %v", len(out), n, err)
		}
		out = append(out, ds...)
	}
	return out
}

func ackAll(t testing.TB, ds []consumer.Delivery) {
	t.Helper()
	for _, d := range ds {
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	}
}

func consumerInfo(t testing.TB, s *natstest.Server) *jetstream.ConsumerInfo {
	t.Helper()
	c, err := jetStream(t, s).Consumer(t.Context(), message.StreamPoll, message.ConsumerName(queue.Gateway, queue.Lane))
	if err != nil {
		t.Fatal(err)
	}
	return c.CachedInfo()
}

func TestSourceDeliversWhatWasPublishedBeforeAndAfterAndAcksEndIt(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	mustPublish(t, c, polls("before", 50))
	src := subscribe(t, c, config(16))
	ds := fetch(t, src, 50, 7)
	mustPublish(t, c, polls("after", 50))
	ds = append(ds, fetch(t, src, 50, 100)...)
	for i, d := range ds {
		p, err := message.DecodePoll(d.Body())
		if err != nil || p.Revision != int64(i%50) || d.Count() != 1 {
			t.Fatalf("delivery %d: poll %+v, error %v, count %d", i, p, err, d.Count())
		}
	}
	ackAll(t, ds)
	eventually(t, "the server has all acknowledgements", func() bool {
		i := consumerInfo(t, s)
		return i.NumAckPending == 0 && i.AckFloor.Stream == 100
	})
}

func TestFetchReturnsWhatIsThereWithoutWaitingForMore(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Start(t, natstest.Options{InProcess: true})
		c := connect(t, s)
		src := subscribe(t, c, config(100))
		got := make(chan int)
		go func() {
			ds, err := src.Fetch(t.Context(), 100)
			if err != nil {
				t.Error(err)
			}
			got <- len(ds)
		}()
		time.Sleep(time.Hour) // it waits for the first one, over many requests that run out
		start := time.Now()
		mustPublish(t, c, polls("p", 1))
		if n := <-got; n != 1 {
			t.Errorf("%d deliveries, want 1", n)
		}
		if waited := time.Since(start); waited > 0 {
			t.Errorf("waited %s for more", waited)
		}
		mustPublish(t, c, polls("q", 30))
		synctest.Wait()
		if ds, err := src.Fetch(t.Context(), 20); len(ds) != 20 || err != nil {
			t.Errorf("%d deliveries and error %v, want 20 of the 30 that are there", len(ds), err)
		}
	})
}

func TestFetchReturnsItsContextsError(t *testing.T) {
	s := natstest.New(t)
	src := subscribe(t, connect(t, s), config(1))
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(errors.New("enough")) })
	if _, err := src.Fetch(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestReturnedDeliveryComesAgainAfterItsDelay(t *testing.T) {
	for _, delay := range []time.Duration{-time.Second, 0, time.Microsecond, time.Millisecond, 250 * time.Millisecond, 30 * time.Second, 6 * time.Hour} {
		t.Run(delay.String(), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				s := natstest.Start(t, natstest.Options{InProcess: true})
				c := connect(t, s)
				src := subscribe(t, c, config(1))
				mustPublish(t, c, polls("p", 1))
				d := fetch(t, src, 1, 1)[0]
				start := time.Now()
				if err := d.Return(delay); err != nil {
					t.Fatal(err)
				}
				again := fetch(t, src, 1, 1)[0]
				want := delay
				if delay < time.Millisecond {
					want = 0
				}
				if got := time.Since(start); got < want || got > want+20*time.Millisecond {
					t.Errorf("came again after %s, want %s", got, want)
				}
				if again.Count() != 2 {
					t.Errorf("count %d, want 2", again.Count())
				}
			})
		})
	}
}

func TestCloseGivesBackAtOnceWhatWasNotHandedOut(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	mustPublish(t, c, polls("p", 10))
	cfg := config(10)
	cfg.AckWait = time.Hour
	first := subscribe(t, c, cfg)
	kept := fetch(t, first, 3, 3)
	eventually(t, "the rest is prefetched", func() bool { return consumerInfo(t, s).NumPending == 0 })
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Fetch(t.Context(), 1); !errors.Is(err, broker.ErrSourceClosed) {
		t.Errorf("Fetch after Close: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	ackAll(t, fetch(t, subscribe(t, c, cfg), 7, 10))
	ackAll(t, kept) // what was handed out can still be acknowledged
	eventually(t, "nothing is pending", func() bool { return consumerInfo(t, s).NumAckPending == 0 })
}

func TestSourceNeverTakesMoreThanItsPrefetch(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	mustPublish(t, c, polls("p", 200))
	src := subscribe(t, c, config(8))
	for handedOut := 0; handedOut < 100; handedOut += 5 {
		eventually(t, "the prefetch is filled to more than half", func() bool {
			return consumerInfo(t, s).NumAckPending > handedOut+4
		})
		if n := consumerInfo(t, s).NumAckPending; n > handedOut+8 {
			t.Fatalf("%d messages taken with %d handed out and a prefetch of 8", n, handedOut)
		}
		fetch(t, src, 5, 5)
	}
}

func TestDeliveryThatLayLongerThanAckWaitIsNotHandedOut(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Start(t, natstest.Options{InProcess: true})
		c := connect(t, s)
		cfg := config(1)
		cfg.AckWait = 30 * time.Second
		src := subscribe(t, c, cfg)
		mustPublish(t, c, polls("p", 1))
		time.Sleep(31 * time.Second) // nobody fetches: the server has it pending no more
		if d := fetch(t, src, 1, 1)[0]; d.Count() != 2 {
			t.Errorf("count %d: handed out though it has been given back, want the second delivery", d.Count())
		}
	})
}

func TestDeliveryThatLayForAWhileHasItsWholeAckWaitWhenHandedOut(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Start(t, natstest.Options{InProcess: true})
		c := connect(t, s)
		cfg := config(1)
		cfg.AckWait = 30 * time.Second
		src := subscribe(t, c, cfg)
		mustPublish(t, c, polls("p", 1))
		time.Sleep(20 * time.Second)
		d := fetch(t, src, 1, 1)[0]
		time.Sleep(25 * time.Second)
		if n := consumerInfo(t, s).NumRedelivered; n != 0 {
			t.Errorf("given to somebody else while it was worked on")
		}
		ackAll(t, []consumer.Delivery{d})
		synctest.Wait()
		if n := consumerInfo(t, s).NumAckPending; n != 0 {
			t.Errorf("%d messages pending after the acknowledgement", n)
		}
	})
}

// disasters are what a source has to survive by itself. Each is a function that causes it and puts right what is not the source's to put right.
var disasters = map[string]func(*testing.T, *natstest.Server){
	"server restarted": func(_ *testing.T, s *natstest.Server) { s.MustRestart() },
	"server killed":    func(_ *testing.T, s *natstest.Server) { s.MustCrash() },
	"server away for a minute": func(_ *testing.T, s *natstest.Server) {
		s.Pause()
		time.Sleep(time.Minute)
		s.MustResume()
	},
	"store wiped": func(_ *testing.T, s *natstest.Server) { s.MustWipe(); s.ApplyStreams() },
	"store wiped, streams back after a minute": func(_ *testing.T, s *natstest.Server) {
		s.MustWipe()
		time.Sleep(time.Minute)
		s.ApplyStreams()
	},
	"stream deleted and made again": func(t *testing.T, s *natstest.Server) {
		if err := jetStream(t, s).DeleteStream(t.Context(), message.StreamPoll); err != nil {
			t.Fatal(err)
		}
		s.ApplyStreams()
	},
	"stream deleted for a minute": func(t *testing.T, s *natstest.Server) {
		if err := jetStream(t, s).DeleteStream(t.Context(), message.StreamPoll); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		s.ApplyStreams()
	},
	"consumer deleted": func(t *testing.T, s *natstest.Server) {
		name := message.ConsumerName(queue.Gateway, queue.Lane)
		if err := jetStream(t, s).DeleteConsumer(t.Context(), message.StreamPoll, name); err != nil {
			t.Fatal(err)
		}
	},
	"consumer deleted and made again": func(t *testing.T, s *natstest.Server) {
		js, name := jetStream(t, s), message.ConsumerName(queue.Gateway, queue.Lane)
		have := consumerInfo(t, s).Config
		if err := js.DeleteConsumer(t.Context(), message.StreamPoll, name); err != nil {
			t.Fatal(err)
		}
		// The source makes it too, at the same time; then the server may refuse ours, or be in the middle of making it.
		if _, err := js.CreateConsumer(t.Context(), message.StreamPoll, have); err != nil {
			t.Log(err)
		}
	},
}

func TestSourceServesAgainWithinTwoSecondsOfADisaster(t *testing.T) {
	for name, strike := range disasters {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, busy=%v", name, busy), func(t *testing.T) {
				natstest.Bubble(t, func(t *testing.T) {
					s := natstest.Start(t, natstest.Options{InProcess: true})
					c, log := connectLogged(t, s)
					src := subscribe(t, c, config(4))
					if busy {
						mustPublish(t, c, polls("before", 3))
						ackAll(t, fetch(t, src, 3, 3))
					}
					time.Sleep(10 * time.Second)
					strike(t, s)
					after := polls("after", 20)
					for c.Publish(t.Context(), after)[19].Err != nil { // until the connection is back
						time.Sleep(10 * time.Millisecond)
					}
					mustPublish(t, c, after)
					start := time.Now()
					ackAll(t, fetch(t, src, 20, 20))
					if took := time.Since(start); took > 2*time.Second {
						t.Errorf("served again after %s\n%s", took, log)
					}
				})
			})
		}
	}
}

func TestAnInterruptionOfAllQueuesIsToldOfOnceEverMoreSeldomAndWhenItIsOver(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Start(t, natstest.Options{InProcess: true})
		c, log := connectLogged(t, s)
		for _, lane := range message.Lanes {
			cfg := config(4)
			cfg.Queue.Lane = lane
			subscribe(t, c, cfg)
		}
		time.Sleep(10 * time.Second)
		s.Pause()
		time.Sleep(time.Minute)
		s.MustResume()
		time.Sleep(10 * time.Second)
		text := log.String()
		if n := strings.Count(text, "deliveries interrupted"); n < 1 || n > 5 { // at 0, 10 and 30 s, and where a queue joins late
			t.Errorf("told %d times in a minute:\n%s", n, text)
		}
		if n := strings.Count(text, "NATS is away; it is tried again"); n != 3 { // at 0, 10 and 30 s
			t.Errorf("told %d times in a minute that there is no connection:\n%s", n, text)
		}
		for _, once := range []string{"connected to NATS again", `deliveries resumed" after=1m`} {
			if strings.Count(text, once) != 1 {
				t.Errorf("not told once: %s\n%s", once, text)
			}
		}
		if !strings.Contains(text, `hint="does NATS run where nats.urls says?`) {
			t.Errorf("no hint:\n%s", text)
		}
	})
}

func TestSourceSurvivesARealRestartUnderLoad(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	cfg := config(64)
	cfg.AckWait = 2 * time.Second // what was on its way when the server died comes again after it
	src := subscribe(t, c, cfg)
	seen := map[string]bool{}
	take := func(ds []consumer.Delivery) {
		for _, d := range ds {
			seen[string(d.Body())] = true
		}
		ackAll(t, ds)
	}
	mustPublish(t, c, polls("p", 1500))
	for range 3 {
		take(fetch(t, src, 400, 10))
		s.MustCrash()
	}
	// Acknowledgements that were on their way are lost, so some came twice and others are still to come.
	eventually(t, "nothing is left", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		ds, _ := src.Fetch(ctx, 64)
		take(ds)
		i := consumerInfo(t, s)
		return i.NumPending == 0 && i.NumAckPending == 0
	})
	if len(seen) != 1500 {
		t.Errorf("%d messages seen, want 1500", len(seen))
	}
}

func TestConsumerThatDiffersIsNamedFieldByFieldAndLeftAlone(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	want := jetstream.ConsumerConfig{
		Durable: message.ConsumerName(queue.Gateway, queue.Lane), FilterSubject: "payments.poll.stripe.>", AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: 10 * time.Second, MaxDeliver: 5, BackOff: []time.Duration{time.Second, 5 * time.Second}, MaxAckPending: 7,
	}
	if _, err := jetStream(t, s).CreateConsumer(t.Context(), message.StreamPoll, want); err != nil {
		t.Fatal(err)
	}
	before := consumerInfo(t, s).Config
	_, err := c.Subscribe(t.Context(), config(4))
	if err == nil {
		t.Fatal("no error")
	}
	for _, says := range []string{"filter_subject", "ack_wait", "max_deliver is 5, wanted -1", "backoff is 1s 5s, wanted not set", "max_ack_pending is 7, wanted 1000", "pollux streams diff"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("the error does not say %q: %v", says, err)
		}
	}
	if after := consumerInfo(t, s).Config; fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("changed from %+v to %+v", before, after)
	}
}

func TestSubscribeRefusesWhatCannotWork(t *testing.T) {
	s := natstest.Start(t, natstest.Options{NoStreams: true})
	c := connect(t, s)
	for says, cfg := range map[string]broker.SubscribeConfig{
		"gateway":              {Queue: outbox.Queue{Gateway: "a.b", Lane: "normal"}, AckWait: time.Minute, MaxAckPending: 10, Prefetch: 1},
		"lane":                 {Queue: outbox.Queue{Gateway: "a", Lane: ">"}, AckWait: time.Minute, MaxAckPending: 10, Prefetch: 1},
		"ack_wait":             {Queue: queue, AckWait: time.Millisecond, MaxAckPending: 10, Prefetch: 1},
		"max_ack_pending":      {Queue: queue, AckWait: time.Minute, Prefetch: 1},
		"prefetch":             {Queue: queue, AckWait: time.Minute, MaxAckPending: 10, Prefetch: 11},
		"pollux streams apply": config(1),
	} {
		if _, err := c.Subscribe(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
	}
}

func TestHeldFollowsTheServerInTheBackground(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Start(t, natstest.Options{InProcess: true})
		c := connect(t, s)
		src := subscribe(t, c, config(5))
		mustPublish(t, c, polls("p", 5))
		for _, d := range fetch(t, src, 5, 5) {
			if err := d.Return(time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		src.Held()
		time.Sleep(2 * time.Second)
		if n := src.Held(); n != 5 {
			t.Errorf("held %d, want 5", n)
		}
		// Asked for all the time, the server is asked once a second; not asked for, never.
		asked := infoRequests(t, s)
		for range 1000 {
			src.Held()
			time.Sleep(10 * time.Millisecond)
		}
		if n := asked(); n < 9 || n > 11 {
			t.Errorf("the server was asked %d times in ten seconds, want about 10", n)
		}
		time.Sleep(time.Hour)
		if n := asked(); n > 1 {
			t.Errorf("the server was asked %d times in an hour without use", n)
		}
	})
}

// infoRequests counts requests for consumer information since the last call.
func infoRequests(t *testing.T, s *natstest.Server) func() int {
	t.Helper()
	var mu sync.Mutex
	n := 0
	nc := s.Connect()
	if _, err := nc.Subscribe("$JS.API.CONSUMER.INFO.>", func(*nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		n++
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		got := n
		n = 0
		return got
	}
}

func TestSeveralFetchersShareASource(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	src := subscribe(t, c, config(50))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	seen := map[int64]int{}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				ds, err := src.Fetch(ctx, 3)
				if err != nil {
					return
				}
				for _, d := range ds {
					p, err := message.DecodePoll(d.Body())
					if err != nil {
						t.Error(err)
					}
					if err := d.Ack(); err != nil {
						t.Error(err)
					}
					mu.Lock()
					if seen[p.Revision]++; len(seen) == 2000 {
						cancel()
					}
					mu.Unlock()
				}
			}
		})
	}
	mustPublish(t, c, polls("p", 2000))
	all.Wait()
	for rev, n := range seen {
		if n != 1 {
			t.Errorf("message %d was handed out %d times", rev, n)
		}
	}
}

func TestClosingLeavesNoGoroutineBehind(t *testing.T) {
	s := natstest.New(t)
	// The server's own goroutines for the consumer live as long as the server.
	first := connect(t, s)
	if err := subscribe(t, first, config(4)).Close(); err != nil {
		t.Fatal(err)
	}
	first.Close()
	leak := goleak.IgnoreCurrent()
	for _, away := range []bool{false, true} {
		c := connect(t, s)
		src := subscribe(t, c, config(4))
		mustPublish(t, c, polls(fmt.Sprint(away), 10))
		fetch(t, src, 2, 2)
		src.Held()
		if away {
			s.Pause()
			eventually(t, "the connection is noticed to be lost", func() bool { return !c.Connected() })
		}
		if err := src.Close(); err != nil {
			t.Errorf("away=%v: %v", away, err)
		}
		c.Close()
		if away {
			s.MustResume()
			continue // the server has new goroutines
		}
		goleak.VerifyNone(t, leak)
	}
	s.Pause()
	goleak.VerifyNone(t, leak)
}
