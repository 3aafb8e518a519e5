package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/consumer/consumertest"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

const (
	acme   = "acme"
	normal = "normal"
)

// site is a relay with all around it.
type site struct {
	t      *testing.T
	record *consumertest.Record
	broker *consumertest.Broker
	meter  *consumertest.Meter
	log    *journal
	config outbox.Config
}

func newSite(t *testing.T) *site {
	s := &site{t: t, record: consumertest.NewRecord(), broker: consumertest.NewBroker(), meter: &consumertest.Meter{}, log: &journal{},
		config: outbox.Config{Owner: "relay", Queues: []outbox.Queue{{Gateway: acme, Lane: normal}}, Every: 10 * time.Millisecond, Batch: 10, InFlight: 2,
			Lease: 20 * time.Minute, Backlog: 1000, PublishTimeout: 2 * time.Second, Retry: time.Second, Watch: 5 * time.Second}}
	s.broker.Bind(acme, normal, time.Minute, 1000)
	return s
}

func (s *site) relay() *outbox.Relay {
	if err := s.config.Validate(); err != nil {
		s.t.Fatal(err)
	}
	return outbox.New(s.config, s.record, s.broker, s.meter, slog.New(slog.NewTextHandler(s.log, nil)))
}

// start runs a relay; the returned function stops it as SIGTERM does.
func (s *site) start() (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	relay := s.relay()
	go func() { ended <- relay.Run(ctx) }()
	var once sync.Once
	return func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				s.t.Errorf("Run: %v", err)
			}
		})
	}
}

func (s *site) track(gateway string, n int) {
	for range n {
		s.record.Track(payment.Payment{Gateway: gateway, Lane: normal}, 0)
	}
}

func (s *site) polls() []consumertest.Published { return s.broker.Messages(message.StreamPoll) }

func (s *site) want(count string, n int) {
	s.t.Helper()
	if got := s.meter.Count(count); got != n {
		s.t.Errorf("%s: %d, want %d; all: %v", count, got, n, s.meter.Counts())
	}
}

// leased is how many jobs are out of relays' sight and were not delivered.
func (s *site) leased() (n int) {
	for _, p := range s.record.Payments() {
		if p.Job != nil && p.Job.State == consumertest.InFlight {
			n++
		}
	}
	return n
}

// pass lets virtual time pass, and everything that happens in it happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// journal is a log that can be read while it is written.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) lines(text string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for line := range strings.Lines(j.b.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// faults are what goes wrong now.
type faults struct {
	mu  sync.Mutex
	ops map[consumertest.Op]consumertest.Fault
}

func (f *faults) of(op consumertest.Op) consumertest.Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops[op]
}

func (f *faults) set(fault consumertest.Fault, ops ...consumertest.Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ops = map[consumertest.Op]consumertest.Fault{}
	for _, op := range ops {
		f.ops[op] = fault
	}
}

var gone = consumertest.Fault{Err: consumertest.ErrAway}

func TestDuePollIsPublishedWithItsTokenAsId(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		id := s.record.Track(payment.Payment{Gateway: acme, Lane: normal, TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, time.Minute)
		stop := s.start()
		pass(59 * time.Second)
		if len(s.polls()) != 0 {
			t.Error("published before it is due")
		}
		pass(time.Second + s.config.Every)
		stop()
		job := s.record.Payment(id).Job
		if len(s.polls()) != 1 {
			t.Fatalf("%d polls", len(s.polls()))
		}
		m := s.polls()[0]
		p, err := message.DecodePoll(m.Body)
		if err != nil || p != (message.Poll{Payment: id, Token: job.Token, Revision: job.Revision}) || m.ID != job.Token ||
			m.Subject != "payments.poll.acme.normal" || !strings.HasPrefix(m.TraceParent, "00-4bf9") {
			t.Errorf("%+v, %+v, %v", m, p, err)
		}
		s.want("claimed acme normal", 1)
		s.want("published PAYMENTS_POLL", 1)
	})
}

func TestEventIsPublishedOnceAndKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.track(acme, 25)
		for id := range 25 {
			s.record.Resolve(payment.ID(id+1), payment.Succeeded)
		}
		stop := s.start()
		pass(time.Minute)
		stop()
		if n := len(s.broker.Messages(message.StreamEvents)); n != 25 || s.record.Unpublished() != 0 {
			t.Errorf("%d events, %d unpublished", n, s.record.Unpublished())
		}
		s.want("published PAYMENTS_EVENTS", 25)
		s.want("duplicates PAYMENTS_EVENTS", 0)
	})
}

func TestRelayDoesNotWaitWhileThereIsABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.config.Every = time.Hour
		s.track(acme, 100)
		for id := range 50 {
			s.record.Resolve(payment.ID(id+1), payment.Succeeded)
		}
		stop := s.start()
		synctest.Wait()
		if polls, events := len(s.polls()), len(s.broker.Messages(message.StreamEvents)); polls != 50 || events != 50 {
			t.Errorf("%d of 50 polls and %d of 50 events are published", polls, events)
		}
		stop()
	})
}

func TestLessThanHalfABatchIsGatheredForAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		stop := s.start()
		defer stop()
		synctest.Wait()
		before := s.record.Ops(consumertest.OpClaim)
		for range 100 {
			s.track(acme, 3)
			pass(s.config.Every)
		}
		if claims := s.record.Ops(consumertest.OpClaim) - before; claims != 100 {
			t.Errorf("%d claims in 100 intervals", claims)
		}
	})
}

func TestNextBatchIsClaimedWhileBatchesArePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		var at faults
		s.broker.Fault, s.record.Fault = at.of, at.of
		at.set(consumertest.Fault{Wait: 100 * time.Millisecond}, consumertest.OpPublish, consumertest.OpClaim)
		s.track(acme, 100)
		stop := s.start()
		pass(1050 * time.Millisecond) // one claim after the other, ten of them; the last is published 100ms later
		if n := len(s.polls()); n < 90 {
			t.Errorf("%d of 100 published", n)
		}
		pass(100 * time.Millisecond)
		if n := len(s.polls()); n != 100 {
			t.Errorf("%d of 100 published", n)
		}
		stop()
	})
}

func TestPublishesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		var at faults
		s.broker.Fault = at.of
		at.set(consumertest.Fault{Wait: time.Second}, consumertest.OpPublish)
		s.track(acme, 200)
		stop := s.start()
		synctest.Wait()
		if n := s.broker.Ops(consumertest.OpPublish); n != 2 {
			t.Errorf("%d batches at once, in_flight is 2", n)
		}
		if n := s.leased(); n != 30 {
			t.Errorf("%d jobs leased: two batches that are published and one that waits are 30", n)
		}
		stop()
		if n := len(s.polls()); n != 30 || s.leased() != 30 {
			t.Errorf("stopped with %d published and %d leased", n, s.leased())
		}
	})
}

// One queue has more than the relay can publish. Others have a poll now and then.
func TestQueueWithEndlessPollsKeepsNoOtherWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.config.Backlog = 1_000_000
		var at faults
		s.broker.Fault = at.of
		at.set(consumertest.Fault{Wait: 100 * time.Millisecond}, consumertest.OpPublish)
		s.track(acme, 5000)
		quiet := []string{"zeta", "alpha", "beta", "gamma", "delta"}
		for _, name := range quiet {
			s.broker.Bind(name, normal, time.Minute, 1000)
			s.config.Queues = append(s.config.Queues, outbox.Queue{Gateway: name, Lane: normal})
		}
		stop := s.start()
		defer stop()
		worst := time.Duration(0)
		for i := range 50 {
			name := quiet[i%len(quiet)]
			s.track(name, 1)
			began, before := time.Now(), s.meter.Count("claimed "+name+" normal")
			for s.meter.Count("claimed "+name+" normal") == before && time.Since(began) < time.Minute {
				pass(10 * time.Millisecond)
			}
			worst = max(worst, time.Since(began))
		}
		if worst > 210*time.Millisecond {
			t.Errorf("a poll of a quiet queue waited %s; two batches of the busy one take 200ms", worst)
		}
		if n := s.meter.Count("claimed acme normal"); n < 500 {
			t.Errorf("the busy queue had %d", n)
		}
	})
}

func TestTwoBusyQueuesShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.config.Backlog = 1_000_000
		s.broker.Bind("other", normal, time.Minute, 1000)
		s.config.Queues = append(s.config.Queues, outbox.Queue{Gateway: "other", Lane: normal})
		var at faults
		s.broker.Fault = at.of
		at.set(consumertest.Fault{Wait: 100 * time.Millisecond}, consumertest.OpPublish)
		s.track(acme, 2000)
		s.track("other", 2000)
		stop := s.start()
		pass(5 * time.Second)
		stop()
		if a, b := s.meter.Count("claimed acme normal"), s.meter.Count("claimed other normal"); a < b-30 || b < a-30 || a+b < 500 {
			t.Errorf("%d and %d", a, b)
		}
	})
}

func TestBacklogAtTheBrokerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.config.Backlog = 37
		s.track(acme, 500)
		stop := s.start()
		for range 100 {
			pass(100 * time.Millisecond)
			if fresh, _ := s.broker.Left(acme, normal); fresh > 37 {
				t.Fatalf("%d undelivered", fresh)
			}
		}
		if fresh, _ := s.broker.Left(acme, normal); fresh != 37 || s.leased() != 37 {
			t.Errorf("%d undelivered, %d leased: what waits is to wait in the database", fresh, s.leased())
		}
		if n := s.broker.Ops(consumertest.OpBacklog); n > 120 {
			t.Errorf("a full queue was asked for %d times in ten seconds", n)
		}
		stop()
	})
}

func TestSmallBacklogDoesNotBoundTheThroughput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.config.Backlog, s.config.Watch = 50, time.Minute
		s.track(acme, 600)
		stop := s.start()
		defer stop()
		source := s.broker.Source(acme, normal)
		began := time.Now()
		for taken := 0; taken < 600; {
			deliveries, err := source.Fetch(t.Context(), 5)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range deliveries {
				taken++
				if err := d.Ack(); err != nil {
					t.Fatal(err)
				}
			}
			pass(10 * time.Millisecond)
		}
		if took := time.Since(began); took > 1500*time.Millisecond {
			t.Errorf("a consumer that can take 500 a second was given 600 in %s", took)
		}
	})
}

func TestQueueWithoutAConsumerWaitsInTheDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.track("unbound", 20)
		s.track(acme, 20)
		stop := s.start()
		pass(time.Minute)
		if n := s.meter.Count("claimed unbound normal"); n != 0 || len(s.polls()) != 20 {
			t.Errorf("%d claimed, %d published", n, len(s.polls()))
		}
		if n := s.log.lines("no consumer"); n != 1 {
			t.Errorf("said %d times", n)
		}
		if n := s.log.lines("configuration does not name"); n != 1 {
			t.Errorf("said %d times", n)
		}
		s.broker.Bind("unbound", normal, time.Minute, 1000)
		pass(s.config.Watch + time.Second)
		stop()
		s.want("claimed unbound normal", 20)
	})
}

func TestNothingIsClaimedWhileTheBrokerIsAway(t *testing.T) {
	for name, fault := range map[string]consumertest.Fault{"away": gone, "silent": {Wait: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				for _, name := range []string{"beta", "gamma"} {
					s.broker.Bind(name, normal, time.Minute, 1000)
					s.config.Queues = append(s.config.Queues, outbox.Queue{Gateway: name, Lane: normal})
				}
				var at faults
				s.broker.Fault = at.of
				stop := s.start()
				pass(time.Second)
				at.set(fault, consumertest.OpPublish, consumertest.OpBacklog, consumertest.OpStream)
				pass(s.config.Watch + 2*time.Second) // what was known is known no more
				claims := s.record.Ops(consumertest.OpClaim)
				s.track(acme, 50)
				s.track("beta", 30)
				s.track("gamma", 30)
				for id := range 10 {
					s.record.Resolve(payment.ID(id+1), payment.Succeeded)
				}
				pass(10 * time.Second)
				taken := s.meter.Count("events")
				pass(10 * time.Minute)
				if n := s.record.Ops(consumertest.OpClaim) - claims; n != 0 || s.leased() != 0 {
					t.Errorf("%d claims in ten minutes, %d leased", n, s.leased())
				}
				if n := s.meter.Count("events") - taken; taken == 0 || n != 0 {
					t.Errorf("%d events taken at first, %d in ten minutes", taken, n)
				}
				at.set(consumertest.Fault{})
				pass(10 * time.Second)
				if polls, events := len(s.polls()), len(s.broker.Messages(message.StreamEvents)); polls != 100 || events != 10 {
					t.Errorf("%d of 100 polls and %d of 10 events are published ten seconds after it came back", polls, events)
				}
				stop()
			})
		})
	}
}

// The consumers of ten queues have no leader: nobody answers questions about them.
func TestQueuesWhoseBacklogIsNotToldHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		for i := range 10 {
			name := fmt.Sprintf("silent-%d", i)
			s.config.Queues = append(s.config.Queues, outbox.Queue{Gateway: name, Lane: normal})
			s.track(name, 1)
		}
		relay := outbox.New(s.config, s.record, silentBacklog{s.broker}, s.meter, slog.New(slog.NewTextHandler(s.log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		worst := time.Duration(0)
		for range 50 {
			pass(333 * time.Millisecond)
			s.track(acme, 1)
			began, before := time.Now(), len(s.polls())
			for len(s.polls()) == before && time.Since(began) < time.Minute {
				pass(5 * time.Millisecond)
			}
			worst = max(worst, time.Since(began))
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if worst > 50*time.Millisecond {
			t.Errorf("a poll of another queue waited %s", worst)
		}
		if n := len(s.polls()); n != 50 {
			t.Errorf("%d published", n)
		}
		if n := s.log.lines("the backlog of queues is not known"); n < 1 || n > 3 {
			t.Errorf("said %d times of 10 queues within seconds", n)
		}
	})
}

type silentBacklog struct{ *consumertest.Broker }

func (b silentBacklog) Backlog(ctx context.Context, q outbox.Queue) (int, bool, error) {
	if strings.HasPrefix(q.Gateway, "silent") {
		<-ctx.Done()
		return 0, false, ctx.Err()
	}
	return b.Broker.Backlog(ctx, q)
}

// A publish whose outcome is unknown may have been stored: its token is out of date then, and the job has a new one.
func TestUnknownOutcomeIsPublishedAnewWithAnotherToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		var at faults
		s.broker.Fault = at.of
		at.set(consumertest.Fault{Err: context.DeadlineExceeded, After: true}, consumertest.OpPublish)
		s.track(acme, 1)
		stop := s.start()
		synctest.Wait()
		at.set(consumertest.Fault{})
		pass(5 * time.Second)
		stop()
		polls := s.polls()
		if len(polls) != 2 || polls[0].ID == polls[1].ID || polls[1].ID != s.record.Payment(1).Job.Token {
			t.Errorf("%v", polls)
		}
		s.want("publish_failed", 1)
		s.want("published PAYMENTS_POLL", 1)
	})
}

// The subject of one gateway is forbidden: its publishes time out.
func TestQueueThatCannotBePublishedToHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.broker.Bind("forbidden", normal, time.Minute, 1000)
		s.config.Queues = append(s.config.Queues, outbox.Queue{Gateway: "forbidden", Lane: normal})
		s.broker.Message = func(m outbox.Message) consumertest.Fault {
			if strings.Contains(m.Subject, "forbidden") {
				return gone
			}
			return consumertest.Fault{}
		}
		s.track("forbidden", 100)
		stop := s.start()
		worst := time.Duration(0)
		for range 30 {
			s.track(acme, 1)
			began, before := time.Now(), len(s.polls())
			for len(s.polls()) == before && time.Since(began) < time.Minute {
				pass(10 * time.Millisecond)
			}
			worst = max(worst, time.Since(began))
			pass(5 * time.Second)
		}
		stop()
		if worst > 100*time.Millisecond {
			t.Errorf("a poll of the other queue waited %s", worst)
		}
		if n := s.meter.Count("claimed forbidden normal"); n == 0 || n > 300 {
			t.Errorf("claimed and given back %d times in two and a half minutes", n)
		}
		if n := s.leased(); n != 30 {
			t.Errorf("%d leased, want those that were published", n)
		}
	})
}

func TestQueueWhoseBacklogCannotBeAskedHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.config.Queues = append([]outbox.Queue{{Gateway: "broken", Lane: normal}}, s.config.Queues...)
		broken := brokenBacklog{s.broker}
		relay := outbox.New(s.config, s.record, broken, s.meter, slog.New(slog.NewTextHandler(s.log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		pass(time.Second)
		for range 20 {
			s.track(acme, 1)
			before := len(s.polls())
			pass(3 * time.Second)
			if len(s.polls()) == before {
				t.Error("a poll of the other queue waits for seconds")
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := s.log.lines("the relay waits"); n != 0 {
			t.Errorf("the relay waited %d times", n)
		}
	})
}

func TestFullQueueIsServedSoonAlthoughAnotherIsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.config.Backlog = 1
		s.config.Queues = append([]outbox.Queue{{Gateway: "broken", Lane: normal}}, s.config.Queues...)
		relay := outbox.New(s.config, s.record, brokenBacklog{s.broker}, s.meter, slog.New(slog.NewTextHandler(s.log, nil)))
		s.track(acme, 2)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		pass(time.Minute)
		if _, err := s.broker.Source(acme, normal).Fetch(ctx, 1); err != nil || len(s.polls()) != 1 {
			t.Errorf("%d published, %v", len(s.polls()), err)
		}
		pass(200 * time.Millisecond)
		if n := len(s.polls()); n != 2 {
			t.Error("the queue has room and gets nothing")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

type brokenBacklog struct{ *consumertest.Broker }

func (b brokenBacklog) Backlog(ctx context.Context, q outbox.Queue) (int, bool, error) {
	if q.Gateway == "broken" {
		return 0, false, consumertest.ErrAway
	}
	return b.Broker.Backlog(ctx, q)
}

func TestRefusedMessagesAreSetAsideAndTheRestFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.track(acme, 7)
		s.record.Resolve(1, payment.Succeeded)
		s.record.Resolve(2, payment.Failed)
		bad := ""
		s.broker.Refuse = func(m outbox.Message) string {
			if strings.HasSuffix(m.Subject, ".failed") {
				return "the subject is not one"
			}
			if p, err := message.DecodePoll(m.Body); err == nil && p.Payment == 5 {
				bad = m.ID
				return "too large"
			}
			return ""
		}
		stop := s.start()
		pass(time.Minute)
		stop()
		p := s.record.Payment(5)
		if bad == "" || len(p.Letters) != 1 || p.Letters[0].Reason != redelivery.ReasonUnpublishable || p.Letters[0].Message != "too large" {
			t.Errorf("%+v", p.Letters)
		}
		if len(s.polls()) != 4 {
			t.Errorf("%d of the other 4 are published", len(s.polls()))
		}
		s.want("set_aside poll", 1)
		s.want("set_aside event", 1)
		s.want("published PAYMENTS_EVENTS", 1)
		s.want("published PAYMENTS_DEAD", 1)
		if s.record.Unpublished() != 0 {
			t.Error("an event that can never be published is tried again and again")
		}
	})
}

func TestEventsThatFailDoNotSlowDownOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.broker.Message = func(m outbox.Message) consumertest.Fault {
			if strings.HasSuffix(m.Subject, ".failed") {
				return gone // say, the stream is full
			}
			return consumertest.Fault{}
		}
		s.track("elsewhere", 100)
		s.record.Resolve(1, payment.Failed)
		stop := s.start()
		worst := time.Duration(0)
		for id := range 50 {
			pass(777 * time.Millisecond)
			s.record.Resolve(payment.ID(id+2), payment.Succeeded)
			began, before := time.Now(), len(s.broker.Messages(message.StreamEvents))
			for len(s.broker.Messages(message.StreamEvents)) == before && time.Since(began) < time.Minute {
				pass(5 * time.Millisecond)
			}
			worst = max(worst, time.Since(began))
		}
		stop()
		if worst > 150*time.Millisecond {
			t.Errorf("an event waited %s", worst)
		}
		if s.record.Unpublished() != 1 {
			t.Errorf("%d unpublished", s.record.Unpublished())
		}
	})
}

func TestEventThatFailsInEveryBatchDoesNotSlowDownTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.config.Retry = time.Millisecond
		s.broker.Message = func(m outbox.Message) consumertest.Fault {
			if strings.HasSuffix(m.Subject, ".failed") {
				return gone
			}
			return consumertest.Fault{}
		}
		s.track("elsewhere", 1001)
		s.record.Resolve(1, payment.Failed)
		stop := s.start()
		defer stop()
		for id := range 1000 { // one for each look at the outbox, most of the time
			s.record.Resolve(payment.ID(id+2), payment.Succeeded)
			pass(s.config.Every / 2)
		}
		pass(100 * time.Millisecond)
		if n := s.record.Unpublished(); n != 1 {
			t.Errorf("%d unpublished", n)
		}
		if n := s.log.lines("the relay waits"); n > 10 {
			t.Errorf("the loop waited %d times", n)
		}
	})
}

func TestEventPublishedTwiceIsCountedAsDuplicate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		var at faults
		s.broker.Fault = at.of
		at.set(consumertest.Fault{Err: context.DeadlineExceeded, After: true}, consumertest.OpPublish)
		s.track(acme, 1)
		s.record.Resolve(1, payment.Succeeded)
		stop := s.start()
		synctest.Wait()
		at.set(consumertest.Fault{})
		pass(time.Minute)
		stop()
		if n := len(s.broker.Messages(message.StreamEvents)); n != 1 || s.record.Unpublished() != 0 {
			t.Errorf("stored %d times", n)
		}
		s.want("duplicates PAYMENTS_EVENTS", 1)
	})
}

func TestStopFinishesTheClaimAndThePublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		var at faults
		s.record.Fault, s.broker.Fault = at.of, at.of
		at.set(consumertest.Fault{Wait: time.Second}, consumertest.OpClaim, consumertest.OpPublish)
		s.track(acme, 15)
		s.record.Resolve(1, payment.Succeeded)
		stop := s.start()
		pass(500 * time.Millisecond) // in the middle of the claim, and of the publish of the event
		began := time.Now()
		stop()
		if took := time.Since(began); took > 4*s.config.PublishTimeout {
			t.Errorf("stopped after %s", took)
		}
		if polls, leased := len(s.polls()), s.leased(); polls != 10 || leased != 10 {
			t.Errorf("%d polls are published and %d leased of a claim of 10", polls, leased)
		}
		if s.record.Unpublished() != 0 || len(s.broker.Messages(message.StreamEvents)) != 1 {
			t.Error("the event was cut off")
		}
	})
}

func TestStopReleasesWhatIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		var at faults
		s.broker.Fault = at.of
		at.set(consumertest.Fault{Wait: time.Hour}, consumertest.OpPublish)
		s.track(acme, 5)
		stop := s.start()
		synctest.Wait()
		stop()
		if n := s.leased(); n != 0 {
			t.Errorf("%d jobs wait for their lease", n)
		}
	})
}

func TestStopDoesNotWaitForADatabaseThatIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		var at faults
		s.record.Fault = at.of
		at.set(consumertest.Fault{Wait: time.Hour}, consumertest.OpClaim, consumertest.OpPublishEvents, consumertest.OpQueues, consumertest.OpDue, consumertest.OpObserve, consumertest.OpMaintain)
		stop := s.start()
		pass(500 * time.Millisecond)
		began := time.Now()
		stop()
		if took := time.Since(began); took > 2*s.config.PublishTimeout {
			t.Errorf("stopped after %s", took)
		}
	})
}

func TestDatabaseThatIsAwayIsAskedEverMoreSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		var at faults
		s.record.Fault = at.of
		at.set(gone, consumertest.OpClaim, consumertest.OpPublishEvents, consumertest.OpQueues, consumertest.OpDue, consumertest.OpObserve, consumertest.OpMaintain)
		s.track(acme, 1)
		stop := s.start()
		pass(10 * time.Minute)
		for _, op := range []consumertest.Op{consumertest.OpClaim, consumertest.OpPublishEvents} {
			if n := s.record.Ops(op); n < 100 || n > 300 {
				t.Errorf("%s: asked %d times in ten minutes", op, n)
			}
		}
		if n := s.log.lines("the relay waits"); n > 8 || s.log.lines("hint=") != n {
			t.Errorf("told %d times in ten minutes, wanted at 0s, 10s, 30s, 1m10s, … and with a hint", n)
		}
		at.set(consumertest.Fault{})
		pass(8 * time.Second)
		if n := len(s.polls()); n != 1 {
			t.Errorf("%d published after it came back", n)
		}
		if n := s.log.lines("the relay goes on"); n != 1 {
			t.Errorf("told %d times that it goes on", n)
		}
		stop()
	})
}

func TestPollsThatWaitInTheDatabaseAreCountedByQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.config.Queues = append(s.config.Queues, outbox.Queue{Gateway: "idle", Lane: normal})
		var at faults
		s.record.Fault = at.of
		at.set(gone, consumertest.OpClaim)
		s.track(acme, 7)
		stop := s.start()
		pass(2 * s.config.Watch)
		s.want("ready "+acme+" "+normal, 7)
		if n, told := s.meter.Counts()["ready idle "+normal]; n != 0 || !told {
			t.Errorf("a queue without polls is told to have %d (%v)", n, told)
		}
		s.track(acme, outbox.MostReady)
		pass(2 * s.config.Watch)
		s.want("ready "+acme+" "+normal, outbox.MostReady)
		at.set(consumertest.Fault{})
		pass(time.Minute)
		s.want("ready idle "+normal, 0)
		stop()
	})
}

func TestEveryStreamIsObservedWhateverTheOthersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.track(acme, 3)
		s.record.Resolve(1, payment.Succeeded)
		missing := missingStream{s.broker}
		relay := outbox.New(s.config, s.record, missing, s.meter, slog.New(slog.NewTextHandler(s.log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		pass(10 * time.Second)
		s.broker.Wipe()
		pass(20 * time.Second)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		s.want("lost PAYMENTS_POLL", 1)
		s.want("lost PAYMENTS_EVENTS", 1)
		s.want("lost PAYMENTS_DEAD", 1)
		if polls, events := len(s.polls()), len(s.broker.Messages(message.StreamEvents)); polls != 2 || events != 1 {
			t.Errorf("%d of 2 polls and %d of 1 event are published again", polls, events)
		}
		if s.log.lines("no such stream") == 0 {
			t.Error("nobody is told that a stream is missing")
		}
	})
}

// A stream that loses its last messages in a crash and grows beyond them before anybody looks has other messages where they were: they are not left to
// wait until their lease ends.
func TestALostTailIsFoundAlthoughTheStreamHasGrownSince(t *testing.T) {
	for name, looked := range map[string]bool{"seen by a look": true, "published since the last look": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				s.config.Watch, s.config.Lease = 10*time.Second, time.Hour
				stop := s.start()
				defer stop()
				pass(time.Second)
				s.track(acme, 3)
				if pass(time.Second); looked {
					pass(10 * time.Second)
				}
				s.broker.LoseTail(message.StreamPoll, 3)
				s.track(acme, 5)
				pass(time.Second)
				pass(20 * time.Second)
				s.want("lost PAYMENTS_POLL", 1)
				there := map[payment.ID]bool{}
				for _, m := range s.polls() {
					p, err := message.DecodePoll(m.Body)
					if err != nil {
						t.Fatal(err)
					}
					there[p.Payment] = true
				}
				if len(there) != 8 {
					t.Errorf("%d of 8 payments have a poll in the stream", len(there))
				}
			})
		})
	}
}

// Relay one publishes an event, which a power cut takes; relay two fills its place, and then relay one goes on behind it.
func TestAnEventWhosePlaceAnotherRelayFilledIsPublishedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.track(acme, 3)
		s.config.Watch = 10 * time.Second
		s.broker.Session.Store(1)
		stop := s.start()
		defer stop()
		pass(time.Second)
		s.record.Resolve(1, payment.Succeeded)
		pass(time.Second)
		s.broker.LoseTail(message.StreamEvents, 1)
		s.broker.Session.Store(2)
		s.broker.Put(outbox.Message{Subject: "payments.resolved.acme.succeeded", ID: "by another relay"})
		s.record.Resolve(2, payment.Succeeded)
		pass(20 * time.Second)
		s.want("lost PAYMENTS_EVENTS", 1)
		ids := map[string]bool{}
		for _, m := range s.broker.Messages(message.StreamEvents) {
			ids[m.ID] = true
		}
		if len(ids) != 3 {
			t.Errorf("the stream has %v, want the events of two payments and that of the other relay", ids)
		}
	})
}

// A loss that publishing has shown is not left to the next look, which may be far away: a stream that was made anew has lost more.
func TestALossSeenByPublishingIsSaidAndLookedAtAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.track(acme, 3)
		s.config.Watch = time.Hour
		record := &losing{Record: s.record}
		relay := outbox.New(s.config, record, s.broker, s.meter, slog.New(slog.NewTextHandler(s.log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		pass(time.Minute)
		s.record.Resolve(1, payment.Succeeded)
		s.record.Resolve(2, payment.Succeeded)
		pass(time.Second)
		s.broker.Wipe()
		record.lost.Store(true)
		s.record.Resolve(3, payment.Succeeded)
		pass(time.Second)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := len(s.broker.Messages(message.StreamEvents)); n != 3 {
			t.Errorf("%d of 3 events are in the stream that was made anew", n)
		}
		s.want("lost PAYMENTS_EVENTS", 2) // by publishing, and by the look that followed
		if s.log.lines("the relay waits") > 0 {
			t.Error("the relay takes what was put right for a failure")
		}
	})
}

// losing is a record that finds a loss while it publishes.
type losing struct {
	*consumertest.Record
	lost atomic.Bool
}

func (r *losing) PublishEvents(ctx context.Context, n int, retry time.Duration, publish func(context.Context, []outbox.Event) []outbox.Receipt) (int, error) {
	n, err := r.Record.PublishEvents(ctx, n, retry, publish)
	if err == nil && n > 0 && r.lost.CompareAndSwap(true, false) {
		err = &outbox.LostError{Events: map[string]int{message.StreamEvents: 1}}
	}
	return n, err
}

type missingStream struct{ *consumertest.Broker }

func (b missingStream) Stream(ctx context.Context, name string, marks ...outbox.Mark) (outbox.StreamState, error) {
	if name == message.StreamDeferred {
		return outbox.StreamState{}, fmt.Errorf("no such stream")
	}
	return b.Broker.Stream(ctx, name, marks...)
}

func TestRelaysSideBySidePublishEachPollOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.track(acme, 300)
		for id := range 100 {
			s.record.Resolve(payment.ID(id+1), payment.Succeeded)
		}
		stops := []func(){s.start(), s.start(), s.start()}
		pass(time.Second)
		for _, stop := range stops {
			stop()
		}
		if polls, events := len(s.polls()), len(s.broker.Messages(message.StreamEvents)); polls != 200 || events != 100 {
			t.Errorf("%d polls of 200, %d events of 100", polls, events)
		}
		s.want("duplicates PAYMENTS_EVENTS", 0)
	})
}

func TestRelayThatDiedIsReplacedWhenItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.track(acme, 1)
		s.config.Lease = time.Minute
		s.record.Lease(1, s.config.Lease) // claimed, and never published
		stop := s.start()
		pass(s.config.Lease - time.Second)
		if len(s.polls()) != 0 {
			t.Error("published while another relay has the lease")
		}
		pass(2 * time.Second)
		stop()
		if len(s.polls()) != 1 {
			t.Error("lost with the relay")
		}
	})
}

func TestOncePublishesAllAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.track(acme, 42)
		for id := range 12 {
			s.record.Resolve(payment.ID(id+1), payment.Succeeded)
		}
		polls, events, err := s.relay().Once(t.Context())
		if polls != 30 || events != 12 || err != nil || len(s.polls()) != 30 {
			t.Errorf("%d polls, %d events, %v; %d are stored", polls, events, err, len(s.polls()))
		}
		if s.record.Ops(consumertest.OpMaintain) != 1 || s.record.Ops(consumertest.OpObserve) != 4 {
			t.Error("the streams or the partitions were not looked after")
		}
	})
}

func TestOnceWaitsForABrokerThatIsFarAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.config.Backlog = 25
		var at faults
		s.broker.Fault = at.of
		at.set(consumertest.Fault{Wait: 150 * time.Millisecond}, consumertest.OpBacklog, consumertest.OpPublish)
		s.track(acme, 42)
		polls, _, err := s.relay().Once(t.Context())
		if polls != 25 || err != nil || len(s.polls()) != 25 {
			t.Errorf("%d polls, %v; %d are stored", polls, err, len(s.polls()))
		}
	})
}

func TestOnceEndsWhenAQueueIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.config.Backlog = 25
		s.track(acme, 42)
		polls, _, err := s.relay().Once(t.Context())
		if polls != 25 || err != nil || s.leased() != 25 {
			t.Errorf("%d polls, %v, %d leased", polls, err, s.leased())
		}
	})
}

func TestOnceReturnsWhatWentWrongAndDoesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.track(acme, 5)
		s.record.Resolve(1, payment.Succeeded)
		s.broker.Message = func(m outbox.Message) consumertest.Fault {
			if strings.HasPrefix(m.Subject, "payments.poll.") {
				return gone
			}
			return consumertest.Fault{}
		}
		_, events, err := s.relay().Once(t.Context())
		if events != 1 || err == nil || s.leased() != 0 {
			t.Errorf("%d events, %v, %d leased", events, err, s.leased())
		}
		s.broker.Message = nil
		var at faults
		at.set(gone, consumertest.OpClaim)
		s.record.Fault = at.of
		if _, _, err := s.relay().Once(t.Context()); err == nil {
			t.Error("no error while nothing can be claimed")
		}
	})
}

func TestOnceEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		var at faults
		s.broker.Fault = at.of
		at.set(consumertest.Fault{Wait: 50 * time.Millisecond}, consumertest.OpPublish)
		s.track(acme, 1000)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		polls, _, err := s.relay().Once(ctx)
		if err == nil || polls == 0 || polls == 1000 || len(s.polls()) != polls {
			t.Errorf("%d polls claimed, %d published, %v", polls, len(s.polls()), err)
		}
	})
}

func TestConfigurationIsCheckedAtOnce(t *testing.T) {
	err := outbox.Config{Lease: time.Second, PublishTimeout: time.Second}.Validate()
	for _, name := range []string{"every", "batch", "in_flight", "backlog", "retry", "watch", "lease"} {
		if err == nil || !strings.Contains(err.Error(), "relay."+name) {
			t.Errorf("nothing about %s in %v", name, err)
		}
	}
}
