package consumer_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/consumer/consumertest"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// door is a gate that a test opens and shuts. Open accounts are those whose breaker is.
type door struct {
	mu      sync.Mutex
	open    bool          // the breaker
	ajar    int           // probes that may pass although it is
	turn    time.Duration // how long each waits for its turn
	later   time.Duration // the limit is used up for so long
	entered int
	done    int
	classes []gateway.Class
}

func (d *door) Open(string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open
}

func (d *door) Enter(ctx context.Context, _ string) (consumer.Pass, consumer.Refusal) {
	if d.turn > 0 && !consumertest.Wait(ctx, d.turn) {
		return nil, consumer.Refusal{Wait: time.Second}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.open && d.ajar == 0:
		return nil, consumer.Refusal{Open: true, Wait: 5 * time.Second}
	case d.later > 0:
		return nil, consumer.Refusal{Wait: d.later}
	case d.open:
		d.ajar--
	}
	d.entered++
	return leave{d}, consumer.Refusal{}
}

func (d *door) set(open bool, ajar int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open, d.ajar = open, ajar
}

// even fails the test unless everyone who entered left once.
func (d *door) even(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entered != d.done {
		t.Errorf("%d entered, %d left", d.entered, d.done)
	}
}

type leave struct{ *door }

func (l leave) Done(c gateway.Class, _ time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done++
	l.classes = append(l.classes, c)
}

// sleepers is the consumer of the deferred polls of a site.
func (s *site) sleepers() *worker {
	s.broker.Bind(acme, message.LaneDeferred, ackWait, 10_000)
	awake := *s
	awake.config.Lane, awake.config.Deferred = message.LaneDeferred, true
	return awake.startWith(s.broker.Source(acme, message.LaneDeferred))
}

func TestOpenBreakerPutsPollsToSleepWithoutACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		d := &door{open: true}
		s.gate = d
		for range 20 {
			s.track()
		}
		w := s.start()
		pass(time.Minute)
		w.stop()
		asleep := s.broker.Messages(message.StreamDeferred)
		if len(asleep) != 20 || len(s.gateway.Calls()) != 0 {
			t.Errorf("%d asleep, %d calls", len(asleep), len(s.gateway.Calls()))
		}
		for _, m := range asleep {
			p, err := message.DecodePoll(m.Body)
			job := s.record.Payment(p.Payment).Job
			if err != nil || p.Token != job.Token || p.Revision != job.Revision || job.State != consumertest.Deferred || job.Counters.Deferrals != 1 || job.Counters.Attempts != 0 {
				t.Errorf("%+v, %v: %+v", p, err, job)
			}
		}
		s.left()
		d.even(t)
	})
}

func TestSleepersAreWokenByTheBreakerAndFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, nil)
		d := &door{open: true}
		s.gate = d
		up := false
		s.gateway.Answer = func(context.Context, gateway.Query, int) gateway.Answer {
			if !up {
				return gateway.Answer{Class: gateway.Transport}
			}
			return consumertest.Final(payment.Succeeded)
		}
		for range 20 {
			s.track()
		}
		sleepers, w := s.sleepers(), s.start()
		pass(time.Minute)
		d.set(true, 2) // half-open: two probes fail
		pass(time.Minute)
		if n := len(s.gateway.Calls()); n != 2 {
			t.Errorf("%d probes", n)
		}
		for _, p := range s.record.Payments() {
			if c := p.Job.Counters; c.Failures != 0 || c.Attempts != 0 || len(p.Letters) != 0 {
				t.Errorf("payment %d paid for the outage: %+v", p.ID, c)
			}
		}
		pass(time.Hour) // many times back to sleep: no message is poison for that
		up = true
		d.set(false, 0)
		pass(time.Minute)
		w.stop()
		sleepers.stop()
		for _, p := range s.record.Payments() {
			if p.Status != payment.Succeeded || p.Turns != 1 {
				t.Errorf("payment %d: %s, %+v", p.ID, p.Status, p.Letters)
			}
		}
		s.left()
		if fresh, unacknowledged := s.broker.Left(acme, message.LaneDeferred); fresh+unacknowledged > 0 {
			t.Errorf("%d and %d are left asleep", fresh, unacknowledged)
		}
		d.even(t)
	})
}

func TestPollThatCannotBePutToSleepAtTheBrokerSleepsInItsRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		d := &door{open: true}
		s.gate = d
		var at away
		at.set(gone, consumertest.OpPublish)
		s.broker.Fault = at.fault
		id := s.track()
		w := s.start()
		pass(time.Second)
		w.stop()
		job := s.record.Payment(id).Job
		if wait := time.Until(job.NextPollAt); job.State != consumertest.Scheduled || wait <= 0 || wait > time.Minute {
			t.Errorf("%+v, due in %s", job, wait)
		}
		s.left()
	})
}

func TestLimitThatIsUsedUpHoldsThePollWithoutACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		d := &door{later: 3 * time.Second}
		s.gate = d
		for range 20 {
			s.track()
		}
		w := s.start()
		pass(10 * time.Second)
		if n := len(s.gateway.Calls()); n != 0 {
			t.Errorf("%d calls", n)
		}
		for _, p := range s.record.Payments() {
			if p.Job.Counters != (redelivery.Counters{}) {
				t.Errorf("payment %d paid for it: %+v", p.ID, p.Job.Counters)
			}
		}
		d.mu.Lock()
		d.later = 0
		d.mu.Unlock()
		pass(10 * time.Second)
		w.stop()
		s.want("resolved succeeded", 20)
		s.left()
		d.even(t)
	})
}

// Panics, cut-off calls and a stop while polls wait for their turn: everyone who entered leaves once, and no slot is lost.
func TestEveryoneWhoEntersTheGateLeavesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, func(ctx context.Context, q gateway.Query, _ int) gateway.Answer {
			if q.Payment%3 == 0 {
				panic("adapter")
			}
			if !consumertest.Wait(ctx, time.Hour) {
				return gateway.Answer{Class: gateway.Transport}
			}
			return consumertest.Pending()
		})
		d := &door{turn: 3 * time.Second}
		s.gate, s.config.Drain = d, time.Second
		for range 30 {
			s.track()
		}
		w := s.start()
		pass(5 * time.Second)
		w.stop() // some wait for their turn, some for the gateway
		d.even(t)
		for _, c := range d.classes {
			if c != gateway.Local && c != gateway.Malformed {
				t.Errorf("the breaker hears of %s from a call that we ended", c)
			}
		}
		if d.entered == 0 {
			t.Error("nobody entered")
		}
	})
}
