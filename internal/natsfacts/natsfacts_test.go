package natsfacts_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/natstest"
)

const subject = "facts.a"

// world is a server in virtual time with one stream and, mostly, one consumer.
type world struct {
	t   *testing.T
	srv *natstest.Server
	nc  *nats.Conn
	js  jetstream.JetStream
}

// inVirtualTime runs f with a server in a bubble. The stream FACTS takes facts.> and keeps by limits, unless edited.
func inVirtualTime(t *testing.T, f func(t *testing.T, w world), edit ...func(*jetstream.StreamConfig)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T) {
		f(t, newWorld(t, natstest.Start(t, natstest.Options{InProcess: true, NoStreams: true}), edit...))
	})
}

func newWorld(t *testing.T, srv *natstest.Server, edit ...func(*jetstream.StreamConfig)) world {
	t.Helper()
	nc := srv.Connect()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	w := world{t, srv, nc, js}
	cfg := jetstream.StreamConfig{Name: "FACTS", Subjects: []string{"facts.>"}}
	for _, e := range edit {
		e(&cfg)
	}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w world) consumer(edit ...func(*jetstream.ConsumerConfig)) jetstream.Consumer {
	w.t.Helper()
	cfg := jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxDeliver: -1}
	for _, e := range edit {
		e(&cfg)
	}
	c, err := w.js.CreateOrUpdateConsumer(w.t.Context(), "FACTS", cfg)
	w.must(err)
	return c
}

func (w world) publish(n int) {
	w.t.Helper()
	for i := range n {
		_, err := w.js.Publish(w.t.Context(), subject, []byte(fmt.Sprint(i)))
		w.must(err)
	}
}

// next waits for a delivery; none tells that there is none within d.
func (w world) next(c jetstream.Consumer) jetstream.Msg {
	w.t.Helper()
	m, err := c.Next(jetstream.FetchMaxWait(1000 * time.Hour))
	w.must(err)
	return m
}

func (w world) none(c jetstream.Consumer, d time.Duration) bool {
	w.t.Helper()
	_, err := c.Next(jetstream.FetchMaxWait(d))
	if err != nil && !errors.Is(err, nats.ErrTimeout) {
		w.t.Fatal(err)
	}
	return err != nil
}

func (w world) info(c jetstream.Consumer) *jetstream.ConsumerInfo {
	w.t.Helper()
	i, err := c.Info(w.t.Context())
	w.must(err)
	return i
}

func (w world) state() jetstream.StreamState {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), "FACTS")
	w.must(err)
	return s.CachedInfo().State
}

func count(t *testing.T, m jetstream.Msg) uint64 {
	t.Helper()
	md, err := m.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	return md.NumDelivered
}

// near reports whether a delay came as asked; the server's timers are exact to some ten milliseconds.
func near(got, want time.Duration) bool { return got >= want && got <= want+25*time.Millisecond }

func TestHeldMessageKeepsItsPlaceInMaxAckPending(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer(func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 2; c.AckWait = time.Hour })
		w.publish(3)
		start := time.Now()
		w.must(w.next(c).NakWithDelay(10 * time.Minute))
		w.must(w.next(c).NakWithDelay(20 * time.Minute))
		if m := w.next(c); !near(time.Since(start), 10*time.Minute) || count(t, m) != 2 {
			t.Errorf("after %s a delivery with count %d; want the fresh message to wait until the first held one is back at 10m", time.Since(start), count(t, m))
		}
	})
}

func TestBackOffSpoilsNakDelays(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer(func(c *jetstream.ConsumerConfig) {
			c.BackOff = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second}
		})
		w.publish(1)
		exact := true
		for range 3 {
			m, start := w.next(c), time.Now()
			w.must(m.NakWithDelay(300 * time.Millisecond))
			again := w.next(c)
			exact = exact && near(time.Since(start), 300*time.Millisecond)
			w.must(again.Nak())
		}
		if exact {
			t.Error("NAK delays of 300ms are exact beside a BackOff now: it need not be forbidden any more")
		}
	})
}

func TestChangedAckWaitShiftsDelaysThatRun(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer()
		w.publish(1)
		m, start := w.next(c), time.Now()
		w.must(m.NakWithDelay(2 * time.Second))
		natstest.Pass(100 * time.Millisecond)
		c = w.consumer(func(c *jetstream.ConsumerConfig) { c.AckWait = 36 * time.Second })
		w.next(c)
		if got := time.Since(start); !near(got, 8*time.Second) {
			t.Errorf("a delay of 2s came after %s when AckWait went from 30s to 36s, it used to be 8s", got)
		}
	})
}

func TestMessagePastMaxDeliverIsStoredAndInvisible(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer(func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 2 })
		w.publish(1)
		w.must(w.next(c).Nak())
		w.must(w.next(c).Nak())
		if !w.none(c, time.Hour) {
			t.Error("delivered a third time")
		}
		i := w.info(c)
		if s := w.state(); s.Msgs != 1 || i.NumAckPending != 0 || i.NumPending != 0 {
			t.Errorf("%d stored, ack pending %d, pending %d; it used to be 1, 0, 0", s.Msgs, i.NumAckPending, i.NumPending)
		}
	})
}

func TestDeliveryCountStartsAnewWhenAMessageIsPublishedAgain(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer()
		w.publish(1)
		w.must(w.next(c).Nak())
		m := w.next(c)
		if n := count(t, m); n != 2 {
			t.Errorf("count %d after a NAK, want 2", n)
		}
		w.must(m.Ack())
		w.publish(1)
		if n := count(t, w.next(c)); n != 1 {
			t.Errorf("count %d of the message published again, want 1", n)
		}
	})
}

func TestIDIsRememberedForTheDuplicateWindowAfterTheAckToo(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer()
		put := func() *jetstream.PubAck {
			a, err := w.js.Publish(t.Context(), subject, nil, jetstream.WithMsgID("id"))
			w.must(err)
			return a
		}
		put()
		w.must(w.next(c).Ack())
		natstest.Pass(100 * time.Second)
		if a := put(); !a.Duplicate || a.Sequence != 1 {
			t.Errorf("published again within the window: %+v, want a duplicate of 1", a)
		}
		if !w.none(c, 10*time.Second) {
			t.Error("a duplicate was delivered")
		}
		natstest.Pass(5 * time.Minute)
		if a := put(); a.Duplicate {
			t.Errorf("a duplicate past the window of two minutes: %+v", a)
		}
	}, func(c *jetstream.StreamConfig) { c.Duplicates = 2 * time.Minute })
}

func TestNakWithoutDelayComesAgainAtOnce(t *testing.T) {
	for _, d := range []time.Duration{0, -1, -time.Hour} {
		inVirtualTime(t, func(t *testing.T, w world) {
			c := w.consumer()
			w.publish(1)
			start := time.Now()
			for range 1000 {
				w.must(w.next(c).NakWithDelay(d))
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("a thousand redeliveries with delay %s took %s, they used to take no time", d, took)
			}
		})
	}
}

func TestNakDelaysAreKeptFromASecondToADay(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer()
		w.publish(1)
		for _, d := range []time.Duration{100 * time.Millisecond, time.Second, time.Minute, 31 * time.Minute, 24 * time.Hour} {
			m, start := w.next(c), time.Now()
			w.must(m.NakWithDelay(d))
			again := w.next(c)
			if got := time.Since(start); !near(got, d) {
				t.Errorf("asked for %s, came after %s", d, got)
			}
			w.must(again.Nak())
		}
	})
}

func TestUnacknowledgedDeliveryComesAgainAndBothAcksSucceed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer()
		w.publish(1)
		start := time.Now()
		first := w.next(c)
		second := w.next(c)
		if got := time.Since(start); !near(got, 30*time.Second) {
			t.Errorf("came again after %s, want AckWait, 30s", got)
		}
		w.must(first.DoubleAck(t.Context()))
		w.must(second.DoubleAck(t.Context()))
	})
}

func TestConsumePrefetchesPastAckWaitAndStopLeavesWhatItHolds(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer(func(c *jetstream.ConsumerConfig) { c.AckWait = time.Second })
		w.publish(40)
		calls, all := 0, make(chan struct{})
		acked := map[string]bool{}
		cc, err := c.Consume(func(m jetstream.Msg) {
			calls++
			<-time.After(100 * time.Millisecond)
			if m.Ack() == nil {
				acked[string(m.Data())] = true
			}
			if len(acked) == 40 && calls > 40 {
				select {
				case <-all:
				default:
					close(all)
				}
			}
		})
		w.must(err)
		select {
		case <-all:
		case <-time.After(time.Hour):
			t.Error("40 messages of 100ms with an AckWait of 1s took 40 calls: the prefetch does not run into AckWait any more")
		}
		cc.Stop()
		<-cc.Closed()
	})
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer()
		w.publish(100)
		block, begun := make(chan struct{}), make(chan struct{})
		first := true
		cc, err := c.Consume(func(jetstream.Msg) {
			if first {
				first = false
				close(begun)
			}
			<-block
		})
		w.must(err)
		<-begun
		natstest.Pass(time.Second)
		cc.Stop()
		close(block)
		<-cc.Closed()
		if n := w.info(c).NumAckPending; n != 100 {
			t.Errorf("%d messages pending after Stop, it used to be all 100", n)
		}
	})
}

func TestConsumeEndsForGoodWhenItsConsumerIsDeleted(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer()
		got := make(chan struct{}, 100)
		cc, err := c.Consume(func(m jetstream.Msg) {
			if m.Ack() == nil {
				got <- struct{}{}
			}
		})
		w.must(err)
		natstest.Pass(time.Second)
		w.must(w.js.DeleteConsumer(t.Context(), "FACTS", "c"))
		w.consumer()
		w.publish(1)
		natstest.Pass(time.Hour)
		if len(got) > 0 {
			t.Error("Consume goes on after its consumer was deleted and made again: the source need not supervise it any more")
		}
		<-cc.Closed()
	})
}

func TestConsumeTakesLongToFindAStreamThatWasLostAndMadeAgain(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer()
		got := make(chan struct{}, 100)
		cc, err := c.Consume(func(m jetstream.Msg) {
			if m.Ack() == nil {
				got <- struct{}{}
			}
		})
		w.must(err)
		defer cc.Stop()
		natstest.Pass(time.Second)
		w.srv.MustWipe()
		for !w.nc.IsConnected() || w.nc.Flush() != nil {
			natstest.Pass(10 * time.Millisecond)
		}
		natstest.Pass(time.Second) // its request finds nobody
		w2 := newWorldOn(w)
		w2.consumer()
		w2.publish(1)
		start := time.Now()
		select {
		case <-got:
		case <-time.After(time.Hour):
		}
		if took := time.Since(start); took < 2*time.Second {
			t.Errorf("resumed after %s: the source need not watch heartbeats itself any more", took)
		}
	})
}

// newWorldOn makes the stream again on a server that lost it.
func newWorldOn(w world) world {
	w.t.Helper()
	_, err := w.js.CreateStream(w.t.Context(), jetstream.StreamConfig{Name: "FACTS", Subjects: []string{"facts.>"}})
	w.must(err)
	return w
}

func TestHeldMessageSurvivesAKilledServer(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		c := w.consumer()
		w.publish(1)
		m, start := w.next(c), time.Now()
		w.must(m.NakWithDelay(time.Minute))
		w.must(w.nc.Flush())
		natstest.Pass(10 * time.Second)
		w.srv.MustCrash()
		for w.nc.Flush() != nil {
			natstest.Pass(10 * time.Millisecond)
		}
		again := w.next(c)
		if got := time.Since(start); got < 58*time.Second || got > 62*time.Second {
			t.Errorf("a delay of a minute came after %s over a crash, want about a minute", got)
		}
		if n := count(t, again); n != 2 {
			t.Errorf("count %d, want 2", n)
		}
	})
}

func TestStrangeSubjectsAreAcceptedAndStored(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		for _, s := range []string{"facts.*.x", "facts.>", "facts.a.b.c", "facts.$JS.x", "facts.a\x00b"} {
			before := w.state().LastSeq
			w.must(w.nc.PublishMsg(&nats.Msg{Subject: s}))
			w.must(w.nc.Flush())
			synctest.Wait() // storing goes on after the flush is answered
			if after := w.state().LastSeq; after != before+1 {
				t.Errorf("%q is not stored any more", s)
			}
		}
	})
}

func TestStoredHeadersPublishedAgainAreCommands(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		w.publish(5)
		h := nats.Header{"Nats-Expected-Last-Sequence": {"1"}}
		if _, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: h}); err == nil {
			t.Error("Nats-Expected-Last-Sequence was ignored")
		}
		h = nats.Header{"Nats-Rollup": {"all"}}
		_, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: h})
		w.must(err)
		if n := w.state().Msgs; n != 1 {
			t.Errorf("%d messages after a copied Nats-Rollup, it used to throw away all but itself", n)
		}
	}, func(c *jetstream.StreamConfig) { c.AllowRollup = true })
}

func TestDiscardOldLosesSilentlyAndDiscardNewSaysSo(t *testing.T) {
	for _, policy := range []jetstream.DiscardPolicy{jetstream.DiscardOld, jetstream.DiscardNew} {
		inVirtualTime(t, func(t *testing.T, w world) {
			w.publish(3)
			_, err := w.js.Publish(t.Context(), subject, nil)
			if lost := w.state().FirstSeq > 1; lost != (policy == jetstream.DiscardOld) || (err == nil) != lost {
				t.Errorf("discard %v of a full stream: first message lost %v, error %v", policy, lost, err)
			}
		}, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 3, policy })
	}
}

func TestWorkQueueCannotBeBrowsedAndInterestStreamForgetsWhatNobodyWants(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w world) {
		w.consumer()
		_, err := w.js.CreateConsumer(t.Context(), "FACTS", jetstream.ConsumerConfig{Durable: "browser", AckPolicy: jetstream.AckExplicitPolicy})
		if err == nil {
			t.Error("a second consumer on a work queue is allowed: it can be browsed now")
		}
	}, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
	inVirtualTime(t, func(t *testing.T, w world) {
		w.publish(1)
		if n := w.state().Msgs; n != 0 {
			t.Errorf("%d messages in an interest stream that nobody reads, it used to keep none", n)
		}
	}, func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy })
}

func TestHeldMessageAtTheFrontOfAWorkQueueLeavesAFileForEachMessageBehindIt(t *testing.T) {
	blocks := func(r jetstream.RetentionPolicy) (n int) {
		inVirtualTime(t, func(t *testing.T, w world) {
			c := w.consumer()
			w.publish(1)
			w.must(w.next(c).NakWithDelay(time.Hour))
			for range 50 { // until the block of the held message is full
				_, err := w.js.Publish(t.Context(), subject, make([]byte, 256<<10))
				w.must(err)
				w.must(w.next(c).DoubleAck(t.Context()))
			}
			for range 200 {
				w.publish(1)
				w.must(w.next(c).DoubleAck(t.Context()))
			}
			n = blockFiles(t, w.srv.StoreDir())
		}, func(c *jetstream.StreamConfig) { c.Retention = r })
		return n
	}
	queue, limits := blocks(jetstream.WorkQueuePolicy), blocks(jetstream.LimitsPolicy)
	if queue < 100 || limits > 10 {
		t.Errorf("%d files of a work queue and %d with limits, after 200 messages behind a held one; it used to be 200 and a few", queue, limits)
	}
}

func TestDelayedMessagesFollowTheServersWallClock(t *testing.T) {
	// A bubble's clock begins anew: the store of one is the past or the future of the next.
	for name, tc := range map[string]struct {
		shift, from, to time.Duration
	}{
		"set back by a minute":   {-time.Minute, 79 * time.Second, 111 * time.Second}, // a restarted server looks every AckWait only
		"set forward by an hour": {time.Hour, 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			image, present := t.TempDir(), time.Time{}
			inVirtualTime(t, func(t *testing.T, w world) {
				natstest.Pass(2 * time.Hour)
				c := w.consumer()
				w.publish(1)
				w.must(w.next(c).NakWithDelay(20 * time.Second))
				w.must(w.nc.Flush())
				present = time.Now().Round(0)
				w.srv.Pause()
				w.must(w.srv.CopyStore(image))
			})
			inShiftedTime(t, image, present.Add(tc.shift), func(t *testing.T, w world) {
				start := time.Now()
				w.next(w.existing())
				if got := time.Since(start); got < tc.from || got > tc.to {
					t.Errorf("20s became %s, want between %s and %s", got, tc.from, tc.to)
				}
			})
		})
	}
}

func (w world) existing() jetstream.Consumer {
	w.t.Helper()
	c, err := w.js.Consumer(w.t.Context(), "FACTS", "c")
	w.must(err)
	return c
}

func answerOf(t *testing.T, m *nats.Msg) (code int, seq uint64) {
	t.Helper()
	var a struct {
		Seq   uint64 `json:"seq"`
		Error *struct {
			Code int `json:"err_code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		t.Fatal(err)
	}
	if a.Error != nil {
		return a.Error.Code, 0
	}
	return 0, a.Seq
}
