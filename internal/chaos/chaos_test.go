//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"pollux/internal/gatewaysim"
)

// stormFor is how long the longest test kills.
func stormFor() time.Duration {
	switch {
	case *forFlag > 0:
		return *forFlag
	case testing.Short():
		return 12 * time.Second
	}
	return 40 * time.Second
}

func TestNothingIsLostWhenEverythingIsKilled(t *testing.T) {
	w := build(t, plan{relays: 2, consumers: 3, gateway: stormy(), set: limited})
	shop := w.open(40)
	disk, half := w.rng(2), time.Now().Add(stormFor()/2)
	// In the first half only: a wipe makes good what was lost before by another fault.
	wiped := func() bool { return time.Now().Before(half) && disk.IntN(2) == 0 }
	deadly := append(w.serviceTargets(), w.postgresTarget(), w.natsTarget(wiped))
	w.log("struck: %v", w.storm(stormFor(), deadly, w.pauseTargets()))
	all := shop.close()
	w.calm()
	w.log("%d payments tracked, everything is alive", len(all))
	w.settle()
	w.check(all)
}

func TestABrokerThatComesBackEmptyCostsOnlyTime(t *testing.T) {
	w := build(t, plan{relays: 2, consumers: 2, gateway: stormy(), set: limited})
	shop, rng := w.open(40), w.rng(1)
	wiped := w.natsTarget(func() bool { return true })
	published := 0
	for range 3 {
		w.storeEvents(150)
		published = w.published()
		w.log("%d events are published", published)
		w.must(w.strike(context.Background(), rng, []target{wiped}, between(rng, 0, 1500*time.Millisecond)))
	}
	all := shop.close()
	w.calm()
	w.settle()
	if f := w.check(all); f.final+f.withPerson < published { // each of which was in a stream that is no more, and is in one again
		t.Errorf("%d payments are final or with a person, and %d events had been published before", f.final+f.withPerson, published)
	}
}

// A power cut: what the broker had acknowledged and not synced yet is gone, in all of its streams. The gateway is never down for long here: polls that were put
// to sleep in those seconds are looked for after six hours, if nobody notices before that they are lost.
func TestABrokerThatLosesItsLastSecondsCostsOnlyTime(t *testing.T) {
	gateway := stormy()
	gateway.Flapping = gatewaysim.Flapping{}
	w := build(t, plan{relays: 2, consumers: 2, gateway: gateway, set: limited})
	shop, rng := w.open(40), w.rng(1)
	w.storeEvents(50)
	for i := range 3 {
		image := filepath.Join(w.dir, fmt.Sprintf("image-%d", i))
		w.must(w.nats.snapshot(image))
		w.storeEvents(1 + rng.IntN(60))
		w.log("a power cut: %d events were stored, and what was stored since the disk was synced is lost", w.published())
		restored := target{"NATS", w.nats.kill, func(ctx context.Context) error {
			if err := errors.Join(w.nats.wipe(), os.Rename(image, w.nats.store)); err != nil {
				return err
			}
			return w.nats.start(ctx)
		}}
		w.must(w.strike(context.Background(), rng, []target{restored}, between(rng, 0, 1500*time.Millisecond)))
		w.storeEvents(60)
	}
	all := shop.close()
	w.calm()
	w.settle()
	w.check(all)
}

// published is how many events the broker has acknowledged.
func (w *world) published() int {
	w.t.Helper()
	n, err := w.count(context.Background(), `select count(*) from pollux.outbox where published_at is not null`)
	w.must(err)
	return n
}

// storeEvents waits until the broker has acknowledged so many more events.
func (w *world) storeEvents(more int) {
	w.t.Helper()
	want := w.published() + more
	w.until(fmt.Sprintf("%d events are published", want), func(context.Context) (bool, error) { return w.published() >= want, nil })
}

// trackAtOnce tracks n payments in one go, each in a transaction of its own.
func (w *world) trackAtOnce(n int) []tracked {
	w.t.Helper()
	s := &shop{w: w}
	for _, p := range w.sim.Generate(n, "pay") {
		f := s.try(context.Background(), p, false, "normal")
		if f != acknowledged {
			w.t.Fatalf("tracking %s while nothing is being killed: %s", p.Reference, f)
		}
		s.all = append(s.all, tracked{p, f})
	}
	return s.all
}

// underway is how many calls the gateway has taken and not answered.
func (w *world) underway() int64 {
	s := w.sim.Stats()
	return s.Calls - s.Logged - s.Dropped
}

func TestAPausedConsumerChangesNothing(t *testing.T) {
	t.Parallel() // with the others that mostly wait
	w := build(t, plan{relays: 1, consumers: 1, gateway: steady(400 * time.Millisecond)})
	all := w.trackAtOnce(120)
	w.until("the consumer has polls in hand", func(context.Context) (bool, error) { return w.underway() >= 8, nil })
	paused := w.consumers[0]
	paused.running().signal(syscall.SIGSTOP)
	leased, err := w.count(context.Background(), `select count(*) from pollux.poll_jobs where state = 'in_flight'`)
	w.must(err)
	w.log("a consumer is paused; %d jobs are leased", leased)

	other := w.newService("consumer", 2)
	w.consumers = append(w.consumers, other)
	w.must(other.start())
	w.until("the other consumer has finished every payment, those of the paused one after their leases", func(ctx context.Context) (bool, error) {
		n, err := w.count(ctx, `select count(*) from pollux.poll_jobs`)
		return n == 0, err
	})
	w.log("the other consumer has finished every payment")
	paused.running().signal(syscall.SIGCONT)
	w.until("what the paused consumer had in hand is refused", func(ctx context.Context) (bool, error) {
		n, err := w.count(ctx, `select count(*) from pollux.poll_attempts where not applied`)
		return n > 0, err
	})
	w.settle()
	if f := w.check(all); f.final != len(all) || f.superseded == 0 {
		t.Errorf("%d of %d payments are final and %d answers were refused; all of them, and some, would be right", f.final, len(all), f.superseded)
	}
}

// patient are times so long that whatever waits for one of them fails its test: what a process that drains does not give back comes again only
// after them.
var patient = []string{
	"consumer.ack_wait=4m", "consumer.lease=5m", "relay.lease=5m", "relay.publish_timeout=10s", "consumer.drain=20s",
	"gateways." + gatewayName + ".httpjson.timeout=15s", "gateways." + gatewayName + ".workers=8", "gateways." + gatewayName + ".breaker.probe_deadline=20s",
}

func TestADrainBurnsNoAttempt(t *testing.T) {
	t.Parallel() // with the others that mostly wait
	w := build(t, plan{relays: 1, consumers: 1, gateway: steady(250 * time.Millisecond), set: patient})
	all := w.trackAtOnce(150)
	old := w.consumers[0]
	for i := range 3 {
		w.until("the consumer has all hands full", func(context.Context) (bool, error) { return w.underway() >= 6, nil })
		w.log("a consumer and a relay are told to stop, with %d polls under way", w.underway())
		next := w.newService("consumer", i+2)
		w.consumers = append(w.consumers, next)
		w.must(next.start())
		w.stopsInOrder(old)
		w.stopsInOrder(w.relays[0])
		w.must(w.relays[0].start())
		old = next
	}
	w.settle()
	w.check(all)
	w.checkPolls(all)
}

// stopsInOrder tells a service to stop and checks that it ends with 0, within what its drain may take and a while for a busy machine.
func (w *world) stopsInOrder(s *service) {
	w.t.Helper()
	p := s.terminate()
	select {
	case <-p.ended:
	case <-time.After(40 * time.Second):
		w.t.Fatalf("%s has not ended after a drain of 20s:\n%s", s.name, lastWords(p.said, 20))
	}
	if p.code() != 0 {
		w.t.Errorf("%s ended with code %d:\n%s", s.name, p.code(), lastWords(p.said, 20))
	}
}

// checkPolls checks, where no call fails, that the gateway was called as often as it had to be, and that each call was recorded: one that was
// cut off, or whose answer was thrown away, would have to be made again.
func (w *world) checkPolls(all []tracked) {
	w.t.Helper()
	var f finding
	calls := w.calls(&f)
	rows, err := w.rows(context.Background())
	w.must(err)
	for _, t := range all {
		want := t.Script.Pending + 1
		got, recorded := calls[t.Reference], rows[t.Reference].Trail
		cut := slices.ContainsFunc(got, func(c gatewaysim.Call) bool { return c.Outcome != gatewaysim.Answered })
		if len(got) != want || len(recorded) != want || cut {
			f.complain("%s took %d polls, %d of them recorded (%v), where %d were needed: %s", t.Reference, len(got), len(recorded), recorded, want, outcomes(got))
		}
	}
	f.fail(w)
}

func TestASecondSignalEndsADrain(t *testing.T) {
	t.Parallel() // with the others that mostly wait
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	pages := "127.0.0.1:" + strconv.Itoa(port)
	w := build(t, plan{relays: 1, gateway: steady(4 * time.Second), set: []string{
		"consumer.ack_wait=9s", "consumer.lease=10s", "consumer.drain=20s", "gateways." + gatewayName + ".httpjson.timeout=7s",
		"gateways." + gatewayName + ".breaker.probe_deadline=10s",
	}})
	s := w.newService("consumer", 1)
	s.args = append(slices.Clone(s.args), "--set", "telemetry.listen="+pages)
	w.consumers = append(w.consumers, s)
	w.must(s.start())
	all := w.trackAtOnce(40)
	w.until("the consumer has polls in hand", func(context.Context) (bool, error) { return w.underway() >= 8, nil })

	p := s.terminate()
	w.until("the consumer says that it drains", func(ctx context.Context) (bool, error) { return drains(ctx, pages) })
	w.until("the consumer has ended", func(context.Context) (bool, error) {
		select {
		case <-p.ended:
			return true, nil
		default:
			p.signal(syscall.SIGTERM) // again, as people do: one that follows at the first one's heels is taken for its echo
			return false, nil
		}
	})
	if p.code() != 1 {
		t.Errorf("it ended with code %d, 1 is that of an end in the middle of things:\n%s", p.code(), lastWords(p.said, 20))
	}
	w.calm()
	w.must(s.start())
	w.settle()
	if f := w.check(all); f.final != len(all) {
		t.Errorf("%d of %d payments are final", f.final, len(all))
	}
	if n := w.sim.Stats().Outcomes[gatewaysim.Abandoned.String()]; n == 0 {
		t.Error("no call was cut off: the consumer had ended its drain before the second signal")
	}
}

// drains reports whether a service says that it drains.
func drains(ctx context.Context, pages string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+pages+"/readyz", nil)
	if err != nil {
		return false, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	var page struct{ Draining bool }
	err = json.NewDecoder(res.Body).Decode(&page)
	return page.Draining, err
}
