package consumer_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/consumer/consumertest"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

var succeed = consumertest.Script(consumertest.Final(payment.Succeeded))

// slowly answers after d, and says that it was cut off when it was.
func slowly(d time.Duration, a gateway.Answer) func(context.Context, gateway.Query, int) gateway.Answer {
	return func(ctx context.Context, _ gateway.Query, _ int) gateway.Answer {
		if !consumertest.Wait(ctx, d) {
			return gateway.Answer{Class: gateway.Transport, Message: "cut off"}
		}
		return a
	}
}

func TestPaymentIsPolledUntilItIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, consumertest.Script(consumertest.Pending(), gateway.Answer{Class: gateway.Transport}, consumertest.Final(payment.Failed)))
		id := s.track()
		w := s.start()
		pass(time.Minute)
		w.stop()
		p := s.record.Payment(id)
		if p.Status != payment.Failed || p.Turns != 1 || len(p.Attempts) != 3 {
			t.Errorf("%s after %d turns and %d attempts", p.Status, p.Turns, len(p.Attempts))
		}
		began := s.gateway.Calls()[0].Began
		for i, want := range []time.Duration{0, 10 * time.Second, 11 * time.Second} {
			if got := s.gateway.Calls()[i].Began.Sub(began); got != want {
				t.Errorf("call %d after %s, want %s", i+1, got, want)
			}
		}
		s.want("delivery hold still_pending", 1)
		s.want("delivery hold failure", 1)
		s.want("delivery resolve resolved", 1)
		s.want("finality standard", 1)
		s.want("in_flight", 0)
		s.left()
	})
}

func TestLoneResultIsRecordedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		s.recorder.Linger = time.Hour
		id := s.track()
		w := s.start()
		defer w.stop()
		synctest.Wait()
		if got := s.status(id); got != payment.Succeeded {
			t.Errorf("%s while nothing else is on its way", got)
		}
	})
}

func TestRowsAreReadAndResultsWrittenManyAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(50*time.Millisecond, consumertest.Final(payment.Succeeded)))
		s.config.Workers = 100
		for range 1000 {
			s.track()
		}
		w := s.start()
		pass(time.Minute)
		w.stop()
		if reads, writes := s.record.Ops(consumertest.OpRead), s.record.Ops(consumertest.OpWrite); reads > 200 || writes > 200 { // how they fall together is chance
			t.Errorf("1000 payments took %d reads and %d writes", reads, writes)
		}
		s.want("resolved succeeded", 1000)
		s.left()
	})
}

func TestNoMorePaymentsAreInHandThanWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(time.Second, consumertest.Final(payment.Succeeded)))
		for range 40 {
			s.track()
		}
		w := s.start()
		defer w.stop()
		for i := range 5 {
			pass(500 * time.Millisecond)
			if b := w.Balance(); b.Slots != 8 || b.Payments != 8 {
				t.Errorf("in round %d: %+v", i, b)
			}
			pass(500 * time.Millisecond)
		}
		pass(time.Second)
		s.want("resolved succeeded", 40)
		if got := s.gateway.Most(); got != 8 {
			t.Errorf("%d calls at once", got)
		}
	})
}

// TestBoundsChangeWhileItRuns lowers the number of payments in hand, raises it, and does so while results cannot be recorded, when one at a time is tried.
func TestBoundsChangeWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(time.Second, consumertest.Final(payment.Succeeded)))
		for range 300 {
			s.track()
		}
		var bounds atomic.Pointer[consumer.Bounds]
		bounds.Store(&consumer.Bounds{Workers: 8, HoldBudget: 10})
		s.bounds = func() consumer.Bounds { return *bounds.Load() }
		w := s.start()
		defer w.stop()
		for _, workers := range []int{8, 2, 5, 1, 0, 100, 3} {
			bounds.Store(&consumer.Bounds{Workers: workers, HoldBudget: 10})
			pass(3500 * time.Millisecond)
			want := min(max(workers, 1), 8)
			if b := w.Balance(); b.Payments != want {
				t.Errorf("bound to %d: %+v", workers, b)
			}
		}
		bounds.Store(&consumer.Bounds{Workers: 8, HoldBudget: 10})
		pass(time.Minute)
		s.want("resolved succeeded", 300)
		s.left()
	})
}

func TestDeliveriesThatAreNotForPollingCostNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*consumertest.Payment)
		count  string
	}{
		"final meanwhile":        {func(p *consumertest.Payment) { p.Status, p.Job = payment.Succeeded, nil }, "delivery drop already_final"},
		"with a person":          {func(p *consumertest.Payment) { p.Job.State = consumertest.Dead }, "delivery drop with_person"},
		"leased by somebody new": {func(p *consumertest.Payment) { p.Job.Token = "other" }, "delivery drop stale"},
		"not tracked":            {func(p *consumertest.Payment) { p.Status, p.Job = payment.Cancelled, nil }, "delivery drop already_final"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, succeed)
				id := s.track()
				s.record.Change(id, c.change)
				w := s.start()
				pass(time.Minute)
				w.stop()
				s.want(c.count, 1)
				if n := len(s.gateway.Calls()); n != 0 {
					t.Errorf("%d calls", n)
				}
				s.left()
			})
		})
	}
}

func TestUntrackedPaymentIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		s.broker.PutPoll(acme, normal, message.Poll{Payment: 99, Token: "00000000-0000-4000-8000-000000000000"})
		w := s.start()
		pass(time.Minute)
		w.stop()
		s.want("delivery drop untracked", 1)
		s.left()
	})
}

func TestEarlyDeliveryGoesBackForTheRestOfItsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		s.broker.Delay = func(d time.Duration) time.Duration { return d - d/4 } // the broker's clock runs fast
		id := s.track()
		due := time.Now().Add(8 * time.Second)
		s.record.Change(id, func(p *consumertest.Payment) { p.Job.NextPollAt = due })
		w := s.start()
		pass(time.Minute)
		w.stop()
		if call := s.gateway.Calls()[0]; call.Began.Before(due.Add(-redelivery.Early)) || call.Began.After(due) {
			t.Errorf("polled %s from its due time", call.Began.Sub(due))
		}
		p := s.record.Payment(id)
		if p.Status != payment.Succeeded || len(p.Attempts) != 1 || s.record.Ops(consumertest.OpWrite) != 1 {
			t.Errorf("%s, %d attempts, %d writes", p.Status, len(p.Attempts), s.record.Ops(consumertest.OpWrite))
		}
	})
}

func TestTwoMessagesOfOnePaymentAreNotPolledTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(30*time.Second, consumertest.Final(payment.Succeeded)))
		id := s.record.Track(payment.Payment{Gateway: acme, Lane: normal}, 0)
		p := s.put(id)
		s.broker.PutPoll(acme, normal, p)
		s.broker.PutPoll(acme, normal, p)
		w := s.start()
		pass(time.Minute)
		w.stop()
		if n := s.gateway.Times(id); n != 1 {
			t.Errorf("polled %d times", n)
		}
		if n := s.broker.Deliveries(acme, normal); n != 6 { // one; two that wait for it; two that come again, of which one waits for the other; one that comes again
			t.Errorf("%d deliveries", n)
		}
		s.want("delivery drop already_final", 2)
		s.left()
	})
}

// A stream that is made anew arms the jobs in flight again: a message with a new token comes while the payment is in hand for long. It used to go
// back and forth each second and was then taken for poison.
func TestNewTokenOfAPaymentInHandIsNotTakenForPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(50*time.Second, consumertest.Pending()))
		s.policy.PoisonDeliveries = 5
		id := s.track()
		w := s.start()
		pass(time.Second)
		s.put(id)
		pass(3 * time.Minute)
		w.stop()
		p := s.record.Payment(id)
		if len(p.Letters) != 0 || p.Job.Counters.Attempts == 0 {
			t.Errorf("letters %+v, %+v", p.Letters, p.Job.Counters)
		}
		s.want("superseded", 1)
		if s.gateway.Overlaps() != 0 {
			t.Error("asked twice at once")
		}
	})
}

func TestPoisonIsBuriedWithItsBytesAndTheRestFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		body := []byte("{\"v\":1,\"payment\":")
		s.broker.Put(outbox.Message{Subject: message.PollSubject(acme, normal), ID: "x", Body: body})
		id := s.track()
		w := s.start()
		pass(time.Minute)
		w.stop()
		buried := s.record.Buried()
		if len(buried) != 1 || string(buried[0].Body) != string(body) || buried[0].Count != 1 || buried[0].Gateway != acme ||
			buried[0].Subject != "payments.poll.acme.normal" || strings.Contains(buried[0].Why, "payment\":") {
			t.Errorf("%+v", buried)
		}
		if s.status(id) != payment.Succeeded {
			t.Error("the message behind it waits")
		}
		s.want("delivery dead_letter undecodable", 1)
		s.left()
	})
}

func TestPoisonThatCannotBeBuriedHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		var db away
		db.set(consumertest.Fault{Wait: time.Hour}, consumertest.OpBury)
		s.record.Fault = db.fault
		for range 3 {
			s.broker.Put(outbox.Message{Subject: message.PollSubject(acme, normal), Body: []byte("?")})
		}
		w := s.start()
		defer w.stop()
		synctest.Wait()
		id := s.track()
		pass(time.Second)
		if got := s.status(id); got != payment.Succeeded {
			t.Errorf("a payment is %s while burials hang", got)
		}
		pass(10 * time.Minute)
		if n := s.broker.Deliveries(acme, normal); n > 60 {
			t.Errorf("%d deliveries in ten minutes: the poison goes round", n)
		}
		db.set(consumertest.Fault{})
		pass(2 * time.Minute)
		if got := len(s.record.Buried()); got != 3 {
			t.Errorf("%d buried", got)
		}
		w.stop()
		s.left()
	})
}

// A message that ends the process each time never gets a record.
func TestMessageThatKillsItsWorkerIsPoisonInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(time.Hour, consumertest.Pending()))
		s.policy.PoisonDeliveries = 5
		s.config.Lease = 9 * ackWait
		s.config.Drain = 0
		id := s.record.Track(payment.Payment{Gateway: acme, Lane: normal}, 0)
		s.broker.PutPoll(acme, normal, s.record.Lease(id, time.Hour))
		for range 7 {
			w := s.start()
			pass(time.Second)
			w.kill()
			pass(ackWait)
		}
		s.letter(id, redelivery.ReasonPoison)
		if body := s.record.Payment(id).Letters[0].Body; len(body) == 0 {
			t.Error("its bytes are gone")
		}
		if n := s.gateway.Times(id); n != 5 {
			t.Errorf("the gateway was asked %d times", n)
		}
	})
}

func TestWorkerKilledBetweenAnswerAndRecordCostsOnePollMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		var db away
		db.set(consumertest.Fault{Wait: time.Hour}, consumertest.OpWrite)
		s.record.Fault = db.fault
		s.config.Drain, s.recorder.Patience = 0, 2*time.Second
		id := s.track()
		dying := s.start()
		synctest.Wait()
		dying.kill()
		db.set(consumertest.Fault{})
		w := s.start()
		pass(2 * ackWait)
		w.stop()
		p := s.record.Payment(id)
		if s.gateway.Times(id) != 2 || p.Turns != 1 || p.Status != payment.Succeeded {
			t.Errorf("%d polls, %d turns, %s", s.gateway.Times(id), p.Turns, p.Status)
		}
		s.left()
	})
}

func TestShortLeaseIsProlongedBeforeThePoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(30*time.Second, consumertest.Final(payment.Succeeded)))
		near, far, lost := s.track(), s.track(), s.track()
		s.record.Change(near, func(p *consumertest.Payment) { p.Job.LockedUntil = time.Now().Add(ackWait - 1) })
		s.record.Change(far, func(p *consumertest.Payment) { p.Job.LockedUntil = time.Now().Add(ackWait) })
		s.record.Change(lost, func(p *consumertest.Payment) { p.Job.Token, p.Job.LockedUntil = "other", time.Now() })
		w := s.start()
		synctest.Wait()
		left := func(id payment.ID) time.Duration { return time.Until(s.record.Payment(id).Job.LockedUntil) }
		if left(near) != lease || left(far) != ackWait {
			t.Errorf("leases run for %s and %s more", left(near), left(far))
		}
		if got := s.record.Sizes(consumertest.OpExtend); !slices.Equal(got, []int{1}) {
			t.Errorf("extended: %v", got)
		}
		pass(time.Minute)
		w.stop()
		s.want("resolved succeeded", 2)
		s.want("delivery drop stale", 1)
	})
}

func TestPanickingAdapterIsBoundByFailuresAndLosesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, nil)
		bad := s.track()
		s.gateway.Answer = func(_ context.Context, q gateway.Query, _ int) gateway.Answer {
			if q.Payment == bad {
				panic("index out of range with a secret in it")
			}
			return consumertest.Final(payment.Succeeded)
		}
		w := s.start()
		for range 20 {
			s.track()
		}
		for range 20 { // parked by the error curve in between: the relay's part
			pass(time.Minute)
			if j := s.record.Payment(bad).Job; j.State == consumertest.Scheduled {
				s.put(bad)
			}
		}
		w.stop()
		s.letter(bad, redelivery.ReasonFailures)
		if n := s.gateway.Times(bad); n != policy.MaxFailures {
			t.Errorf("asked %d times", n)
		}
		s.want("resolved succeeded", 20)
		s.want("in_flight", 0)
		if s.log.lines("secret") > 0 {
			t.Error("what the adapter panicked with is in the log")
		}
		s.left()
	})
}

func TestRateLimitedAccountIsLeftAloneAndOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, func(_ context.Context, q gateway.Query, n int) gateway.Answer {
			if q.Account == "busy" && n == 1 && q.Payment == 1 {
				return gateway.Answer{Class: gateway.RateLimited, HTTPStatus: 429, RetryAfter: 20 * time.Second}
			}
			return consumertest.Final(payment.Succeeded)
		})
		s.trackFor("busy")
		w := s.start()
		synctest.Wait()
		told := time.Now()
		for range 50 {
			s.trackFor("busy")
			s.trackFor("other")
		}
		pass(19 * time.Second)
		if got := len(s.gateway.Calls()); got != 51 {
			t.Errorf("%d calls during the pause, want that which was refused and 50 of the other account", got)
		}
		s.want("delivery hold paused", 50)
		pass(10 * time.Second)
		w.stop()
		began := map[time.Time]int{}
		for _, c := range s.gateway.Calls()[51:] {
			began[c.Began]++
			if late := c.Began.Sub(told); late < 20*time.Second || late > 25*time.Second {
				t.Errorf("polled %s after it was told to wait 20s", late)
			}
		}
		if len(began) < 25 {
			t.Errorf("51 payments came back in %d instants", len(began))
		}
		for _, p := range s.record.Payments() {
			if n := len(p.Attempts); p.Status != payment.Succeeded || p.Account == "other" && n != 1 || n > 2 {
				t.Errorf("payment %d: %s after %d attempts", p.ID, p.Status, n)
			}
		}
		if w.Pauses() != 0 {
			t.Error("a pause that is over is remembered")
		}
		s.left()
	})
}

// Nobody says how long: the account is left alone for a second, then two, then four, and others never.
func TestPauseGrowsWhileTheGatewayDoesNotSayHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, consumertest.Script(gateway.Answer{Class: gateway.RateLimited, HTTPStatus: 429}))
		s.policy.Error = redelivery.Curve{Base: time.Millisecond, Cap: time.Millisecond} // a payment itself would be back at once
		for range 200 {
			s.trackFor("busy")
		}
		w := s.start()
		pass(time.Minute)
		w.stop()
		bursts, last := 0, time.Time{}
		for _, c := range s.gateway.Calls() {
			if c.Began.Sub(last) > 100*time.Millisecond {
				bursts++
			}
			last = c.Began
		}
		if n := len(s.gateway.Calls()); bursts < 4 || bursts > 7 || n > bursts*8 {
			t.Errorf("%d calls in %d bursts in a minute; after 1s, 3s, 7s, 15s and 31s there may be one", n, bursts)
		}
	})
}

func TestRateLimitsSpendNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, func(_ context.Context, _ gateway.Query, n int) gateway.Answer {
			if n <= 20 {
				return gateway.Answer{Class: gateway.RateLimited, HTTPStatus: 429, RetryAfter: time.Second}
			}
			return consumertest.Pending()
		})
		s.policy.Pending.List = []time.Duration{time.Hour}
		id := s.track()
		w := s.start()
		for range 60 {
			pass(time.Minute)
			if j := s.record.Payment(id).Job; j.State == consumertest.Scheduled && j.Counters.Attempts == 0 {
				s.put(id)
			}
		}
		w.stop()
		if c := s.record.Payment(id).Job.Counters; c.Attempts != 1 || c.Failures != 0 || s.gateway.Times(id) != 21 {
			t.Errorf("%+v after %d calls", c, s.gateway.Times(id))
		}
	})
}

func TestPaymentOfAGatewayThatIsNeverAskedSleepsUntilItsWindowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		s.policy.NeverPoll, s.policy.Window = true, time.Hour
		id := s.track()
		w := s.start()
		pass(time.Minute)
		if j := s.record.Payment(id).Job; j.State != consumertest.Scheduled || time.Until(j.NextPollAt) < 58*time.Minute || j.Counters.Attempts != 0 {
			t.Errorf("job %+v, due in %s", j, time.Until(j.NextPollAt))
		}
		pass(time.Hour)
		s.put(id)
		pass(time.Minute)
		w.stop()
		if p := s.record.Payment(id); p.Status != payment.Pending || p.Job.State != consumertest.Dead || len(s.gateway.Calls()) != 0 {
			t.Errorf("%s, %s after %d calls", p.Status, p.Job.State, len(s.gateway.Calls()))
		}
		s.want("delivery park watched", 1)
		s.want("delivery dead_letter window", 1)
	})
}

func TestUnknownStatusCallsAPersonOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, consumertest.Script(gateway.Answer{Class: gateway.UnknownStatus, GatewayStatus: "settling_v2", HTTPStatus: 200}))
		ids := []payment.ID{s.track(), s.track(), s.track()}
		w := s.start()
		pass(15 * time.Second)
		w.stop()
		if got := s.log.lines("settling_v2"); got != 1 {
			t.Errorf("said %d times", got)
		}
		for _, id := range ids {
			if got := s.status(id); got != payment.Pending {
				t.Errorf("payment %d is %s", id, got)
			}
		}
	})
}

func TestSupersededResultIsReadAgainAndNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, nil)
		id := s.track()
		s.gateway.Answer = func(context.Context, gateway.Query, int) gateway.Answer {
			s.record.Change(id, func(p *consumertest.Payment) { p.Job.Revision++ }) // each time somebody is quicker
			return consumertest.Pending()
		}
		w := s.start()
		pass(20 * time.Second)
		w.stop()
		if n := s.gateway.Times(id); n < 2 || n > 21 {
			t.Errorf("%d calls in 20 seconds", n)
		}
	})
}

func TestResultIsDroppedWhenAWebhookWasQuicker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(time.Second, consumertest.Final(payment.Failed)))
		id := s.track()
		w := s.start()
		pass(500 * time.Millisecond)
		s.record.Resolve(id, payment.Succeeded)
		pass(time.Minute)
		w.stop()
		if p := s.record.Payment(id); p.Status != payment.Succeeded || p.Turns != 1 {
			t.Errorf("%s after %d turns", p.Status, p.Turns)
		}
		s.want("superseded", 1)
		s.want("resolved failed", 0)
		s.left()
	})
}

func TestFullHoldBudgetParks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, consumertest.Script(consumertest.Pending()))
		s.config.HoldBudget = 3
		for range 10 {
			s.track()
			// one after the other, so that each sees what the others hold
		}
		s.config.Workers = 1
		w := s.start()
		pass(time.Second)
		w.stop()
		s.want("delivery hold still_pending", 2) // the third place is its own
		s.want("delivery park still_pending", 8)
	})
}

func TestLostAcknowledgementCostsADeliveryThatIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		var lost atomic.Bool
		s.broker.Lose = func() bool { return !lost.Swap(true) }
		id := s.track()
		w := s.start()
		pass(ackWait + time.Second)
		w.stop()
		if s.gateway.Times(id) != 1 || s.record.Payment(id).Turns != 1 {
			t.Errorf("%d polls", s.gateway.Times(id))
		}
		s.want("delivery drop already_final", 1)
		s.left()
	})
}

func TestSourceThatFailsIsNotAskedInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		var asked atomic.Int64
		source := s.broker.Source(acme, normal)
		source.Fault = func() error {
			if asked.Add(1) <= 20 {
				return consumertest.ErrAway
			}
			return nil
		}
		id := s.track()
		w := s.startWith(source)
		pass(5 * time.Second)
		if n := asked.Load(); n > 12 {
			t.Errorf("asked %d times in five seconds", n)
		}
		pass(5 * time.Minute)
		w.stop()
		if got := s.status(id); got != payment.Succeeded {
			t.Errorf("%s after the source came back", got)
		}
		if got := s.log.lines("fetching deliveries"); got != 20 {
			t.Errorf("said %d times", got)
		}
	})
}

func TestConfigurationIsCheckedAtOnce(t *testing.T) {
	good := consumer.Config{Gateway: acme, Lane: normal, Workers: 1, AckWait: time.Second, Lease: time.Second + 1}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	err := consumer.Config{Gateway: "a.b", Lane: "", Workers: 0, AckWait: time.Second, Lease: time.Second, HoldBudget: -1, Drain: -1}.Validate()
	for _, part := range []string{"queue", "workers", "lease", "hold_budget"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("nothing about %s in %v", part, err)
		}
	}
}
