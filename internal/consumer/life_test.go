package consumer_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/consumer"
	"pollux/internal/consumer/consumertest"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// plan is what a life is drawn from. Shares are in percent.
type plan struct {
	Seed                                  uint64
	Payments, Relays, Consumers, Workers  int
	Storm                                 time.Duration // how long things go wrong
	RecordFails, RecordSlow, AnswersLost  int           // operations of the record that fail, take long, are done and say they failed
	PublishFails, StoredUnknown, Doubled  int           // messages that are not stored, are stored and said not to be, come twice
	TellingLost, Disorder, BadClock       int           // acks and NAKs that are lost; deliveries out of order, NAK delays that are wrong
	GatewayFails, Throttled, Panics       int           // calls
	Kills, Wipes                          int           // processes killed, brokers that came back empty
	Refused, Mismatched, Endless, Webhook int           // payments
	Outages                               int           // times that the record is away for long
}

func plans() *rapid.Generator[plan] {
	// Mostly nothing, or something that is felt: rapid's own integers are small.
	share := func(most int) *rapid.Generator[int] { return rapid.SampledFrom([]int{0, 0, 0, max(most/4, 1), most}) }
	return rapid.Custom(func(t *rapid.T) plan {
		return plan{
			Seed: rapid.Uint64().Draw(t, "seed"), Payments: rapid.SampledFrom([]int{1, 5, 20, 60}).Draw(t, "payments"),
			Relays: rapid.IntRange(1, 2).Draw(t, "relays"), Consumers: rapid.IntRange(1, 3).Draw(t, "consumers"), Workers: rapid.IntRange(1, 12).Draw(t, "workers"),
			Storm:       rapid.SampledFrom([]time.Duration{time.Minute, 4 * time.Minute, 15 * time.Minute}).Draw(t, "storm"),
			RecordFails: share(40).Draw(t, "record fails"), RecordSlow: share(20).Draw(t, "record slow"), AnswersLost: share(20).Draw(t, "answers lost"),
			PublishFails: share(40).Draw(t, "publish fails"), StoredUnknown: share(30).Draw(t, "stored, unknown"), Doubled: share(30).Draw(t, "doubled"),
			TellingLost: share(20).Draw(t, "telling lost"), Disorder: share(1).Draw(t, "disorder"), BadClock: share(1).Draw(t, "bad clock"),
			GatewayFails: share(40).Draw(t, "gateway fails"), Throttled: share(20).Draw(t, "throttled"), Panics: share(10).Draw(t, "panics"),
			Kills: share(8).Draw(t, "kills"), Wipes: share(3).Draw(t, "wipes"), Outages: share(2).Draw(t, "outages"),
			Refused: share(10).Draw(t, "refused"), Mismatched: share(10).Draw(t, "mismatched"), Endless: share(10).Draw(t, "endless"), Webhook: share(30).Draw(t, "webhooks"),
		}
	})
}

// quiet reports whether nothing goes wrong with our own parts: then each call leaves an attempt, none is early and none overlaps.
func (p plan) quiet() bool {
	return p.RecordFails+p.RecordSlow+p.AnswersLost+p.PublishFails+p.StoredUnknown+p.Doubled+p.TellingLost+p.BadClock+p.Kills+p.Wipes+p.Outages+p.Webhook+p.Refused == 0
}

// dice are thrown by many.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) hit(percent int) bool { return d.below(100) < percent }

func (d *dice) below(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

func (d *dice) upTo(most time.Duration) time.Duration { return time.Duration(d.below(int(most))) }

// fate is what a gateway knows of a payment.
type fate struct {
	pendings   int // answers before it is final
	status     payment.Status
	mismatched bool
	endless    bool
	refused    bool
}

// life is one run of relays and consumers over a plan.
type life struct {
	plan
	dice     *dice
	storm    atomic.Bool
	down     atomic.Bool
	record   *consumertest.Record
	broker   *consumertest.Broker
	gateway  *consumertest.Gateway
	meter    *consumertest.Meter
	fates    map[payment.ID]fate
	answered sync.Map // by payment: how many real answers it had
	mu       sync.Mutex
	faults   []string
}

var lifePolicy = redelivery.Policy{
	Name:              "life",
	Pending:           redelivery.Curve{List: []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, time.Minute}, Jitter: redelivery.Jitter{Kind: redelivery.JitterPercent, Percent: 20}},
	Error:             redelivery.Curve{Base: 500 * time.Millisecond, Cap: 30 * time.Second, Jitter: redelivery.Jitter{Kind: redelivery.JitterFull}},
	MaxAttempts:       8,
	MaxFailures:       12,
	Window:            2 * time.Hour,
	HoldLimit:         10 * time.Second,
	NotFoundGrace:     30 * time.Second,
	UnauthorizedDelay: 10 * time.Second,
	MaxRetryAfter:     time.Minute,
	PoisonDeliveries:  20,
}

const (
	lifeAckWait = 20 * time.Second
	lifeLease   = time.Minute
)

func (l *life) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.faults) < 20 {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}

func newLife(p plan) *life {
	l := &life{plan: p, dice: &dice{r: rand.New(rand.NewPCG(p.Seed, 1))}, record: consumertest.NewRecord(), broker: consumertest.NewBroker(),
		meter: &consumertest.Meter{}, fates: map[payment.ID]fate{}}
	l.storm.Store(true)
	l.gateway = consumertest.NewGateway(l.answer)
	l.record.Fault = l.recordFault
	l.record.Refuse = func(r consumer.Result) string {
		if r.Polled && l.fates[r.Payment].refused {
			return "refused"
		}
		return ""
	}
	l.broker.Message = l.messageFault
	l.broker.Lose = func() bool { return l.storm.Load() && l.dice.hit(l.TellingLost) }
	if p.Disorder > 0 {
		l.broker.Disorder = consumertest.Shuffle(rand.New(rand.NewPCG(p.Seed, 2)))
	}
	if p.BadClock > 0 {
		l.broker.Delay = func(d time.Duration) time.Duration { return d/2 + l.dice.upTo(d+1) }
	}
	for _, lane := range []string{"high", normal} {
		l.broker.Bind(acme, lane, lifeAckWait, 1000)
	}
	return l
}

func (l *life) recordFault(op consumertest.Op) (f consumertest.Fault) {
	if !l.storm.Load() {
		return f
	}
	if l.down.Load() {
		return gone
	}
	if l.dice.hit(l.RecordSlow) {
		f.Wait = l.dice.upTo(10 * time.Second)
	}
	switch {
	case l.dice.hit(l.RecordFails):
		f.Err = consumertest.ErrAway
	case op == consumertest.OpWrite && l.dice.hit(l.AnswersLost):
		f.Err, f.After = consumertest.ErrAway, true
	}
	return f
}

func (l *life) messageFault(m outbox.Message) (f consumertest.Fault) {
	if !l.storm.Load() {
		return f
	}
	switch {
	case l.dice.hit(l.PublishFails):
		f.Err = consumertest.ErrAway
	case l.dice.hit(l.StoredUnknown):
		f.Err, f.After = consumertest.ErrAway, true
	case strings.HasPrefix(m.Subject, "payments.poll.") && l.dice.hit(l.Doubled):
		l.broker.Put(m)
	}
	return f
}

// answer is the gateway: it may fail, and it never lies but where a payment is mismatched.
func (l *life) answer(ctx context.Context, q gateway.Query, _ int) gateway.Answer {
	if l.quiet() {
		if j := l.record.Payment(q.Payment).Job; j != nil && time.Until(j.NextPollAt) > redelivery.Early {
			l.fault("payment %d was polled %s too early", q.Payment, time.Until(j.NextPollAt))
		}
	}
	if !consumertest.Wait(ctx, l.dice.upTo(5*time.Second)) {
		return gateway.Answer{Class: gateway.Transport}
	}
	if l.storm.Load() {
		switch {
		case l.dice.hit(l.GatewayFails):
			return gateway.Answer{Class: []gateway.Class{gateway.Transport, gateway.Malformed, gateway.Unauthorized, gateway.Local}[l.dice.below(4)]}
		case l.dice.hit(l.Throttled):
			return gateway.Answer{Class: gateway.RateLimited, RetryAfter: l.dice.upTo(20 * time.Second)}
		case l.dice.hit(l.Panics):
			panic("adapter")
		}
	}
	f := l.fates[q.Payment]
	switch {
	case f.mismatched:
		return gateway.Answer{Class: gateway.Mismatch}
	case f.endless:
		return consumertest.Pending()
	}
	counter, _ := l.answered.LoadOrStore(q.Payment, new(atomic.Int64))
	if int(counter.(*atomic.Int64).Add(1)) <= f.pendings {
		return consumertest.Pending()
	}
	return consumertest.Final(f.status)
}

// process is a relay or a consumer that can be killed or stopped.
type process struct{ kill, stop func() }

// cutBroker is a broker that a killed relay does not reach.
type cutBroker struct {
	outbox.Broker
	cut *atomic.Bool
}

func (b cutBroker) Publish(ctx context.Context, messages []outbox.Message) []outbox.Receipt {
	if b.cut.Load() {
		receipts := make([]outbox.Receipt, len(messages))
		for i := range receipts {
			receipts[i].Err = consumertest.ErrAway
		}
		return receipts
	}
	return b.Broker.Publish(ctx, messages)
}

// cutRecord is a record that a killed relay does not reach.
type cutRecord struct {
	outbox.Record
	cut *atomic.Bool
}

func (r cutRecord) Release(ctx context.Context, jobs []outbox.Job) error {
	if r.cut.Load() {
		return consumertest.ErrAway
	}
	return r.Record.Release(ctx, jobs)
}

func (r cutRecord) Claim(ctx context.Context, rooms []outbox.Room, n int, owner string, lease time.Duration) ([]outbox.Job, error) {
	if r.cut.Load() {
		return nil, consumertest.ErrAway
	}
	return r.Record.Claim(ctx, rooms, n, owner, lease)
}

func (l *life) startRelay() process {
	cfg := outbox.Config{Owner: "relay", Queues: []outbox.Queue{{Gateway: acme, Lane: normal}}, Every: time.Second, Batch: 10, InFlight: 2, Lease: lifeLease,
		Backlog: 20, PublishTimeout: 2 * time.Second, Retry: time.Second, Watch: 15 * time.Second}
	if err := cfg.Validate(); err != nil {
		l.fault("%v", err)
	}
	var cut atomic.Bool
	relay := outbox.New(cfg, cutRecord{l.record, &cut}, cutBroker{l.broker, &cut}, l.meter, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	stop := func() {
		cancel()
		if err := <-ended; err != nil {
			l.fault("relay: %v", err)
		}
	}
	return process{stop: stop, kill: func() { cut.Store(true); stop() }}
}

func (l *life) startConsumer() process {
	log := slog.New(slog.DiscardHandler)
	line := &consumertest.Line{Record: l.record}
	recorder := consumer.NewRecorder(consumer.RecorderConfig{Worker: "w", Lease: lifeLease, Batch: 5, Linger: 2 * time.Millisecond, Writers: 2, Patience: 5 * time.Second},
		line, l.meter, log)
	ctx, cancel := context.WithCancel(context.Background())
	var sources []*consumertest.Source
	var workers []*consumer.Consumer
	var running sync.WaitGroup
	for _, lane := range []string{"high", normal} {
		cfg := consumer.Config{Gateway: acme, Lane: lane, Workers: l.Workers, AckWait: lifeAckWait, Lease: lifeLease, HoldBudget: 15, Drain: 3 * time.Second}
		source := l.broker.Source(acme, lane)
		w := consumer.New(cfg, source, l.gateway, line, recorder, func(string) redelivery.Policy { return lifePolicy }, l.meter, consumertest.Untraced{}, log)
		sources, workers = append(sources, source), append(workers, w)
		running.Go(func() {
			if err := w.Run(ctx); err != nil {
				l.fault("consumer: %v", err)
			}
		})
	}
	stop := func() {
		cancel()
		running.Wait()
		recorder.Close()
		for _, w := range workers {
			if b := w.Balance(); b != (consumer.Balance{}) {
				l.fault("a stopped consumer has in hand: %+v", b)
			}
		}
	}
	kill := func() {
		line.Cut()
		for _, s := range sources {
			s.Kill()
		}
		stop()
	}
	return process{kill: kill, stop: stop}
}

func (l *life) track() {
	for range l.Payments {
		lane := normal
		if l.dice.hit(30) {
			lane = "high"
		}
		id := l.record.Track(payment.Payment{Gateway: acme, Lane: lane, Account: fmt.Sprint("account-", l.dice.below(3)), Class: "standard"}, l.dice.upTo(l.Storm))
		l.fates[id] = fate{pendings: l.dice.below(5), status: payment.Statuses[1+l.dice.below(4)],
			mismatched: l.dice.hit(l.Mismatched), endless: l.dice.hit(l.Endless), refused: l.dice.hit(l.Refused)}
	}
}

// run lives the plan: a storm, then calm until nothing is left to do.
func (l *life) run() {
	l.track()
	var processes []process
	starts := []func() process{}
	for range l.Relays {
		starts = append(starts, l.startRelay)
	}
	for range l.Consumers {
		starts = append(starts, l.startConsumer)
	}
	for _, start := range starts {
		processes = append(processes, start())
	}
	l.weather(processes, starts)
	l.storm.Store(false)
	l.down.Store(false)
	limit := time.Now().Add(2 * time.Hour)
	for !l.settled() && time.Now().Before(limit) {
		<-time.After(10 * time.Second)
	}
	<-time.After(10 * time.Minute) // what is still at the broker comes again and is dropped
	for _, p := range processes {
		p.stop()
	}
	l.check()
}

// weather lets the storm pass: kills, wipes, outages and webhooks at any time.
func (l *life) weather(processes []process, starts []func() process) {
	type blow struct {
		at time.Duration
		do func()
	}
	var blows []blow
	add := func(n int, do func()) {
		for range n {
			blows = append(blows, blow{l.dice.upTo(l.Storm), do})
		}
	}
	add(l.Kills, func() {
		i := l.dice.below(len(processes))
		processes[i].kill()
		processes[i] = starts[i]()
	})
	add(l.Wipes, l.broker.Wipe)
	add(l.Outages, func() { l.down.Store(!l.down.Load()) })
	add(l.Payments*l.Webhook/100, func() {
		id := payment.ID(1 + l.dice.below(l.Payments))
		if f := l.fates[id]; !f.endless && !f.mismatched {
			l.record.Resolve(id, f.status)
		}
	})
	slices.SortFunc(blows, func(a, b blow) int { return cmp.Compare(a.at, b.at) })
	began := time.Now()
	for _, b := range blows {
		<-time.After(max(b.at-time.Since(began), 0))
		b.do()
	}
	<-time.After(max(l.Storm-time.Since(began), 0))
}

func (l *life) settled() bool {
	for _, p := range l.record.Payments() {
		if p.Job != nil && p.Job.State != consumertest.Dead {
			return false
		}
	}
	return l.record.Unpublished() == 0
}

func (l *life) check() {
	told := map[string]bool{}
	for _, name := range []string{message.StreamEvents, message.StreamDead} {
		for _, m := range l.broker.Messages(name) {
			told[m.ID] = true
		}
	}
	attempts := 0
	for _, p := range l.record.Payments() {
		attempts += len(p.Attempts)
		l.checkPayment(p, told)
	}
	for _, lane := range []string{"high", normal} {
		if fresh, unacknowledged := l.broker.Left(acme, lane); fresh+unacknowledged > 0 {
			l.fault("lane %s: %d messages undelivered, %d unacknowledged", lane, fresh, unacknowledged)
		}
	}
	if n := l.record.Unpublished(); n > 0 {
		l.fault("%d events unpublished", n)
	}
	if n := l.meter.Count("in_flight"); n != 0 {
		l.fault("%d polls in flight", n)
	}
	calls, ours := len(l.gateway.Calls()), l.meter.Count("call local")
	if l.quiet() && (calls != attempts+ours || l.gateway.Overlaps() > 0) {
		l.fault("%d calls, %d of them our own trouble, %d attempts recorded, %d overlaps although nothing went wrong", calls, ours, attempts, l.gateway.Overlaps())
	}
}

// fair are the reasons for which a person may be asked.
var fair = []redelivery.Reason{redelivery.ReasonAttempts, redelivery.ReasonFailures, redelivery.ReasonWindow, redelivery.ReasonMismatch, redelivery.ReasonRefused}

func (l *life) checkPayment(p consumertest.Payment, told map[string]bool) {
	f := l.fates[p.ID]
	switch {
	case p.Status == payment.Pending && (p.Job == nil || p.Job.State != consumertest.Dead || len(p.Letters) != 1):
		l.fault("payment %d is lost: %+v, %d letters", p.ID, p.Job, len(p.Letters))
	case p.Status == payment.Pending:
		why := p.Letters[0].Reason
		if !slices.Contains(fair, why) || f.mismatched != (why == redelivery.ReasonMismatch) && (f.mismatched || why == redelivery.ReasonMismatch) && !f.refused && l.GatewayFails+l.Panics == 0 {
			l.fault("payment %d is with a person: %s", p.ID, why)
		}
		if l.GatewayFails+l.Panics+l.Refused == 0 && !f.mismatched && !f.endless {
			l.fault("payment %d is with a person although the gateway answered: %s", p.ID, why)
		}
		if c := p.Job.Counters; c.Attempts > lifePolicy.MaxAttempts || c.Failures > lifePolicy.MaxFailures {
			l.fault("payment %d: %+v", p.ID, c)
		}
		if id := fmt.Sprintf("%d-dead-0-%s", p.ID, why); !told[id] {
			l.fault("nobody was told %s", id)
		}
	case f.mismatched || f.endless || p.Status != f.status || p.Turns != 1:
		l.fault("payment %d is %s after %d turns, the gateway says %+v", p.ID, p.Status, p.Turns, f)
	default:
		if id := fmt.Sprintf("%d-1-%s", p.ID, p.Status); !told[id] {
			l.fault("nobody was told %s", id)
		}
	}
}

// Whatever is lost, doubled, delayed, reordered, killed or away: every payment is final with the gateway's truth or with a person for a
// fair reason, none twice, bounds are kept, everybody is told, nothing is left at the broker, and no slot is lost.
func TestEveryPaymentIsFinalOrWithAPersonWhateverGoesWrong(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := plans().Draw(rt, "plan")
		var l *life
		synctest.Test(t, func(*testing.T) {
			l = newLife(p)
			l.run()
		})
		for _, f := range l.faults {
			rt.Error(f)
		}
	})
}
