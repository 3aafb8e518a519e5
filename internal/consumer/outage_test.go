package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/consumer/consumertest"
	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

func TestShortOutageOfTheRecordCostsNoRedelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		var db away
		s.record.Fault = db.fault
		db.set(gone, allReads...)
		for range 8 {
			s.track()
		}
		w := s.start()
		pass(20 * time.Second)
		if n := len(s.gateway.Calls()); n != 0 {
			t.Errorf("%d calls while nothing can be read or recorded", n)
		}
		db.set(consumertest.Fault{})
		pass(5 * time.Second)
		w.stop()
		s.want("resolved succeeded", 8)
		if n := s.broker.Deliveries(acme, normal); n != 8 {
			t.Errorf("%d deliveries of 8 messages", n)
		}
	})
}

// Three processes, a bound of five deliveries, and a record that is away, slow or read-only for four minutes.
func TestOutageOfTheRecordMakesNoPoison(t *testing.T) {
	for name, c := range map[string]struct {
		fault consumertest.Fault
		ops   []consumertest.Op
	}{
		"away":                      {gone, allReads},
		"silent":                    {consumertest.Fault{Wait: time.Hour}, allReads},
		"reachable, but not read":   {gone, []consumertest.Op{consumertest.OpRead}},
		"read-only":                 {gone, []consumertest.Op{consumertest.OpExtend, consumertest.OpWrite, consumertest.OpBury}},
		"writes hang":               {consumertest.Fault{Wait: time.Hour}, []consumertest.Op{consumertest.OpExtend, consumertest.OpWrite, consumertest.OpBury}},
		"results alone are refused": {gone, []consumertest.Op{consumertest.OpWrite}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, succeed)
				s.policy.PoisonDeliveries = 5
				var db away
				s.record.Fault = db.fault
				for range 100 {
					s.track()
				}
				db.set(c.fault, c.ops...)
				workers := []*worker{s.start(), s.start(), s.start()}
				pass(4 * time.Minute)
				calls := len(s.gateway.Calls())
				if most := 3*8 + 3*12; calls > most {
					t.Errorf("%d calls for nothing, at most %d: a full hand at first, then one payment at a time", calls, most)
				}
				db.set(consumertest.Fault{})
				pass(3 * time.Minute)
				for _, w := range workers {
					w.stop()
				}
				for _, p := range s.record.Payments() {
					if p.Status != payment.Succeeded || p.Turns != 1 {
						t.Errorf("payment %d: %s, %d letters", p.ID, p.Status, len(p.Letters))
					}
				}
				s.left()
			})
		})
	}
}

func TestNothingIsFetchedWhileTheRecordIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		var db away
		s.record.Fault = db.fault
		db.set(gone, allReads...)
		for range 1000 {
			s.track()
		}
		w := s.start()
		pass(time.Hour)
		if n := s.broker.Deliveries(acme, normal); n != 8 {
			t.Errorf("%d deliveries in an hour", n)
		}
		w.stop()
	})
}

// An outage of an hour is told when it begins, after 10, 20, 40 seconds and so on up to every 10 minutes, and when it is over.
func TestALongOutageOfTheRecordIsToldEverMoreSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		var db away
		s.record.Fault = db.fault
		for range 20 {
			s.track()
		}
		db.set(gone, append(allReads, consumertest.OpWrite)...)
		w := s.start()
		pass(time.Hour)
		told := s.log.lines("the record is away")
		db.set(consumertest.Fault{})
		pass(time.Minute)
		w.stop()
		if over := s.log.lines("the record is back"); told < 3 || told > 15 || over != 1 {
			t.Errorf("it is told %d times, and %d times that it is over", told, over)
		}
		s.want("resolved succeeded", 20)
	})
}

func TestResultsAreKeptWhileTheRecordIsAwayForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(time.Second, consumertest.Final(payment.Succeeded)))
		var db away
		s.record.Fault = db.fault
		for range 8 {
			s.track()
		}
		w := s.start()
		pass(500 * time.Millisecond)
		db.set(gone, allReads...)
		pass(15 * time.Second)
		db.set(consumertest.Fault{})
		pass(5 * time.Second)
		w.stop()
		s.want("resolved succeeded", 8)
		if n := len(s.gateway.Calls()); n != 8 {
			t.Errorf("8 payments took %d calls", n)
		}
	})
}

func TestCommitWhoseAnswerIsLostIsReadBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, consumertest.Script(consumertest.Pending(), consumertest.Final(payment.Succeeded)))
		var db away
		s.record.Fault = db.fault
		id := s.track()
		db.set(consumertest.Fault{Err: consumertest.ErrAway, After: true}, consumertest.OpWrite)
		w := s.start()
		synctest.Wait()
		db.set(consumertest.Fault{})
		pass(time.Minute)
		w.stop()
		p := s.record.Payment(id)
		if p.Status != payment.Succeeded || p.Turns != 1 || s.gateway.Times(id) != 2 {
			t.Errorf("%s after %d turns and %d calls", p.Status, p.Turns, s.gateway.Times(id))
		}
		s.left()
	})
}

func TestRefusedResultIsSetAsideAndTheOthersAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(time.Second, gateway.Answer{Class: gateway.Final, Status: payment.Succeeded, Detail: "\x00", GatewayStatus: "\x00"}))
		const bad payment.ID = 3
		s.record.Refuse = func(r consumer.Result) string {
			if r.Payment == bad && (r.Polled || r.Answer.GatewayStatus != "" || r.Answer.Detail != "" || r.Disposition.Detail != "") {
				return "invalid byte sequence (22021)"
			}
			return ""
		}
		for range 8 {
			s.track()
		}
		w := s.start()
		pass(time.Minute)
		w.stop()
		s.letter(bad, redelivery.ReasonRefused)
		if got := s.record.Payment(bad).Letters[0].Message; got != "invalid byte sequence (22021)" {
			t.Errorf("the person is told %q", got)
		}
		if n := len(s.gateway.Calls()); n != 8 {
			t.Errorf("%d calls", n)
		}
		s.want("resolved succeeded", 7)
		s.want("refused", 1)
		s.want("delivery dead_letter refused", 1)
		s.want("delivery resolve resolved", 7)
		s.left()
	})
}

func TestManyRefusedResultsAreSetAsideTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(time.Second, consumertest.Final(payment.Succeeded)))
		s.config.Workers = 50
		s.record.Refuse = func(r consumer.Result) string {
			if r.Polled {
				return "refused"
			}
			return ""
		}
		for range 50 {
			s.track()
		}
		w := s.start()
		pass(time.Minute)
		w.stop()
		s.want("delivery dead_letter refused", 50)
		if n := s.record.Ops(consumertest.OpWrite); n > 4 {
			t.Errorf("%d writes", n)
		}
	})
}

// The bound on deliveries ends it: then only the dead letter is tried, and the gateway is not asked any more.
func TestResultThatIsRefusedWithItsDeadLetterDoesNotGoRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		s.policy.PoisonDeliveries = 5
		s.record.Refuse = func(consumer.Result) string { return "refused" }
		id := s.track()
		w := s.start()
		pass(4 * time.Minute)
		w.stop()
		if n := s.gateway.Times(id); n > 5 {
			t.Errorf("%d calls", n)
		}
		if _, unacknowledged := s.broker.Left(acme, normal); unacknowledged != 1 {
			t.Error("acknowledged although nothing was written")
		}
		s.want("delivery dead_letter refused", 0)
		if n := s.broker.Deliveries(acme, normal); n > 25 {
			t.Errorf("%d deliveries in four minutes", n)
		}
	})
}

func TestStopGivesBackAtOnceWhatWasNotBegunAndFinishesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(10*time.Second, consumertest.Final(payment.Succeeded)))
		begun := s.track()
		w := s.start()
		pass(5 * time.Second)
		var db away
		s.record.Fault = db.fault
		db.set(consumertest.Fault{Wait: 10 * time.Second}, consumertest.OpRead)
		notBegun := []payment.ID{s.track(), s.track()}
		again := s.put(begun) // waits for the first
		s.record.Change(begun, func(p *consumertest.Payment) { p.Job.Token = s.gateway.Calls()[0].Reference })
		_ = again
		pass(time.Second)
		stopped := time.Now()
		w.cancel()
		synctest.Wait()
		other := s.broker.Source(acme, normal)
		back, err := other.Fetch(t.Context(), 10)
		if err != nil || len(back) != 3 {
			t.Errorf("%d came back at once, want the 2 whose rows were being read and the one that waited: %v", len(back), err)
		}
		if !w.source.Closed() {
			t.Error("the source is not closed while calls still run")
		}
		w.stop()
		if took := time.Since(stopped); took != 4*time.Second {
			t.Errorf("stopped after %s, the call that was begun takes 4s more", took)
		}
		for _, id := range notBegun {
			if s.gateway.Times(id) != 0 {
				t.Error("begun after the stop")
			}
		}
		if n := len(s.record.Payment(begun).Attempts); n != 1 {
			t.Errorf("%d attempts recorded of the call that was begun", n)
		}
	})
}

func TestStopRecordsWhatWasAnsweredWithinDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(20*time.Second, consumertest.Final(payment.Succeeded)))
		for range 8 {
			s.track()
		}
		w := s.start()
		pass(time.Second)
		w.stop()
		s.want("resolved succeeded", 8)
		s.left()
	})
}

func TestStopEndsCallsAfterDrainWithoutBurningAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, slowly(time.Hour, consumertest.Final(payment.Succeeded)))
		id := s.track()
		w := s.start()
		pass(time.Second)
		began := time.Now()
		w.stop()
		if took := time.Since(began); took != s.config.Drain {
			t.Errorf("stopped after %s", took)
		}
		p := s.record.Payment(id)
		if p.Job.Revision != 0 || p.Job.Counters != (redelivery.Counters{}) || len(p.Attempts) != 0 {
			t.Errorf("%+v, %d attempts", p.Job, len(p.Attempts))
		}
		s.want("call local", 1)
		s.want("call transport", 0)
		// another worker has it at once
		s.gateway.Answer = succeed
		next := s.start()
		pass(2 * time.Second)
		next.stop()
		if got := s.status(id); got != payment.Succeeded {
			t.Error(got)
		}
	})
}

func TestStopDoesNotWaitForARecordThatIsAway(t *testing.T) {
	for name, fault := range map[string]consumertest.Fault{"away": gone, "silent": {Wait: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, succeed)
				s.recorder.Patience, s.config.Drain = 4*time.Minute, 10*time.Second
				if fault.Wait > 0 {
					s.recorder.Patience = 20 * time.Second
				}
				var db away
				s.record.Fault = db.fault
				db.set(fault, consumertest.OpWrite)
				for range 20 {
					s.track()
				}
				w := s.start()
				pass(time.Second)
				began := time.Now()
				w.stop()
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("stopped after %s", took)
				}
				db.set(consumertest.Fault{})
				next := s.start()
				pass(5 * time.Minute)
				next.stop()
				s.want("resolved succeeded", 20)
				s.left()
			})
		})
	}
}

func TestStopWhileTheRecordCannotBeReadIsImmediate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, succeed)
		var db away
		s.record.Fault = db.fault
		db.set(gone, allReads...)
		for range 20 {
			s.track()
		}
		w := s.start()
		for _, after := range []time.Duration{time.Second, 2 * time.Minute} { // while it is tried again, and while it is waited for
			pass(after)
			began := time.Now()
			w.stop()
			if took := time.Since(began); took != 0 {
				t.Errorf("stopped after %s", took)
			}
			w = s.start()
		}
		w.stop()
		if fresh, _ := s.broker.Left(acme, normal); fresh < 4 {
			t.Errorf("%d fresh messages left", fresh)
		}
	})
}

func TestStoppedConsumerThatNeverHadWorkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, func(context.Context, gateway.Query, int) gateway.Answer { panic("asked") })
		w := s.start()
		synctest.Wait()
		w.stop()
	})
}
