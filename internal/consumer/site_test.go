package consumer_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
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

const (
	acme    = "acme"
	normal  = "normal"
	ackWait = time.Minute
	lease   = 5 * time.Minute
)

// policy is that of all payments here, unless a test says otherwise.
var policy = redelivery.Policy{
	Name:              "test",
	Pending:           redelivery.Curve{List: []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute}},
	Error:             redelivery.Curve{Base: time.Second, Cap: time.Minute},
	MaxAttempts:       6,
	MaxFailures:       8,
	Window:            24 * time.Hour,
	HoldLimit:         30 * time.Second,
	NotFoundGrace:     2 * time.Minute,
	UnauthorizedDelay: time.Minute,
	MaxRetryAfter:     15 * time.Minute,
	PoisonDeliveries:  20,
}

// site is a consumer with all around it.
type site struct {
	t        *testing.T
	record   *consumertest.Record
	broker   *consumertest.Broker
	gateway  *consumertest.Gateway
	meter    *consumertest.Meter
	log      *journal
	config   consumer.Config
	recorder consumer.RecorderConfig
	policy   redelivery.Policy
	gate     consumer.Gate // nil: none
	tracer   consumer.Tracer
	bounds   func() consumer.Bounds
}

func newSite(t *testing.T, answer func(context.Context, gateway.Query, int) gateway.Answer) *site {
	s := &site{
		t: t, record: consumertest.NewRecord(), broker: consumertest.NewBroker(), gateway: consumertest.NewGateway(answer),
		meter: &consumertest.Meter{}, log: &journal{}, policy: policy, tracer: consumertest.Untraced{},
		config: consumer.Config{Gateway: acme, Lane: normal, Workers: 8, AckWait: ackWait, Lease: lease, HoldBudget: 1000, Drain: 25 * time.Second},
		recorder: consumer.RecorderConfig{Worker: "test", Lease: lease, Batch: 100, Linger: 2 * time.Millisecond, Writers: 2,
			Patience: 20 * time.Second},
	}
	s.broker.Bind(acme, normal, ackWait, 10_000)
	return s
}

// worker is a running consumer with a recorder of its own.
type worker struct {
	*consumer.Consumer
	site     *site
	source   *consumertest.Source
	line     *consumertest.Line
	recorder *consumer.Recorder
	cancel   context.CancelFunc
	ended    chan error
	once     sync.Once
}

func (s *site) start() *worker { return s.startWith(s.broker.Source(acme, normal)) }

func (s *site) startWith(source *consumertest.Source) *worker {
	if err := s.config.Validate(); err != nil {
		s.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(s.log, nil))
	w := &worker{site: s, source: source, line: &consumertest.Line{Record: s.record}, ended: make(chan error, 1)}
	w.recorder = consumer.NewRecorder(s.recorder, w.line, s.meter, log).WithSleeper(s.broker)
	w.Consumer = consumer.New(s.config, w.source, s.gateway, w.line, w.recorder, func(string) redelivery.Policy { return s.policy },
		s.meter, s.tracer, log)
	if s.gate != nil {
		w.WithGate(s.gate)
	}
	if s.bounds != nil {
		w.WithBounds(s.bounds)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	w.cancel = cancel
	go func() { w.ended <- w.Run(ctx) }()
	return w
}

// stop ends a worker as SIGTERM does, and checks that nothing is left in its hands.
func (w *worker) stop() {
	w.site.t.Helper()
	w.once.Do(func() {
		w.cancel()
		if err := <-w.ended; err != nil {
			w.site.t.Errorf("Run: %v", err)
		}
		w.recorder.Close()
		if b := w.Balance(); b != (consumer.Balance{}) {
			w.site.t.Errorf("left in hand: %+v", b)
		}
	})
}

// kill ends a worker as SIGKILL does: from now on nothing that it does is seen.
func (w *worker) kill() {
	w.site.t.Helper()
	w.source.Kill()
	w.line.Cut()
	w.stop()
}

// track tracks a payment that is due and puts its poll at the broker.
func (s *site) track() payment.ID { return s.trackFor("") }

func (s *site) trackFor(account string) payment.ID {
	id := s.record.Track(payment.Payment{Gateway: acme, Lane: normal, Account: account, Class: "standard", Reference: "ref", AmountMinor: 100, Currency: "EUR"}, 0)
	s.put(id)
	return id
}

// put leases a payment's job, as the relay does, and puts its poll at the broker.
func (s *site) put(id payment.ID) message.Poll {
	p := s.record.Lease(id, lease)
	s.broker.PutPoll(acme, normal, p)
	return p
}

// pass lets virtual time pass, and everything that happens in it happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (s *site) status(id payment.ID) payment.Status { return s.record.Payment(id).Status }

// left fails the test when the broker has messages that nobody acknowledged.
func (s *site) left() {
	s.t.Helper()
	if fresh, unacknowledged := s.broker.Left(acme, normal); fresh+unacknowledged > 0 {
		s.t.Errorf("%d messages undelivered, %d unacknowledged", fresh, unacknowledged)
	}
}

// want fails the test when a count is another.
func (s *site) want(count string, n int) {
	s.t.Helper()
	if got := s.meter.Count(count); got != n {
		s.t.Errorf("%s: %d, want %d; all: %v", count, got, n, s.meter.Counts())
	}
}

// letter fails the test unless a payment died once, with a reason.
func (s *site) letter(id payment.ID, reason redelivery.Reason) {
	s.t.Helper()
	letters := s.record.Payment(id).Letters
	if len(letters) != 1 || letters[0].Reason != reason {
		s.t.Errorf("payment %d: letters %+v, want one: %s", id, letters, reason)
	}
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

// lines is how many lines contain a text.
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

// away is a switch for a record that is away for some operations.
type away struct {
	mu  sync.Mutex
	ops map[consumertest.Op]consumertest.Fault
}

func (a *away) fault(op consumertest.Op) consumertest.Fault {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ops[op]
}

func (a *away) set(f consumertest.Fault, ops ...consumertest.Op) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ops = map[consumertest.Op]consumertest.Fault{}
	for _, op := range ops {
		a.ops[op] = f
	}
}

var gone = consumertest.Fault{Err: consumertest.ErrAway}

var allReads = []consumertest.Op{consumertest.OpRead, consumertest.OpExtend, consumertest.OpWrite, consumertest.OpBury, consumertest.OpPing}
