package app

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/consumer"
	"pollux/internal/fleet"
	"pollux/internal/limit"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/postgres"
	"pollux/internal/telemetry"
)

// gates makes the gate of each gateway.
func gates(c config.Config, f *fleet.Fleet) (map[string]*fleet.Gate, error) {
	all := make(map[string]*fleet.Gate, len(c.Gateways))
	var errs []error
	for _, name := range gatewayNames(c) {
		gate, err := f.Gate(gateConfig(&c, name))
		errs = append(errs, err)
		all[name] = gate
	}
	return all, errors.Join(errs...)
}

func gateConfig(c *config.Config, name string) fleet.GateConfig {
	g := c.Gateways[name]
	return fleet.GateConfig{Gateway: name, Breaker: g.BreakerConfig(), Limit: g.LimitConfig()}
}

// regate prepares the gates for another configuration.
func regate(gates map[string]*fleet.Gate, next *config.Config) (func(), error) {
	all, errs := map[*fleet.Gate]fleet.GateConfig{}, []error(nil)
	for name, gate := range gates {
		c := gateConfig(next, name)
		errs = append(errs, c.Validate())
		all[gate] = c
	}
	return func() {
		for gate, c := range all {
			_ = gate.Configure(c) // it was validated
		}
	}, errors.Join(errs...)
}

// entrance is a gate as the consumer of one queue sees it.
type entrance struct {
	gate    *fleet.Gate
	kind    limit.Kind
	gateway string
	metrics *telemetry.Metrics
}

// kinds of the lanes; a poll of any other is a fresh one.
var kinds = map[string]limit.Kind{
	message.LaneRetry: limit.Retry, message.LaneDeferred: limit.Deferred, message.LaneReplay: limit.Replay,
}

// Open implements consumer.Gate.
func (e entrance) Open(account string) bool { return e.gate.Open(account) }

// Enter implements consumer.Gate.
func (e entrance) Enter(ctx context.Context, account string) (consumer.Pass, consumer.Refusal) {
	began := time.Now()
	pass, no := e.gate.Enter(ctx, account, e.kind)
	e.metrics.Turn(e.gateway, time.Since(began))
	if pass.Probe() {
		e.metrics.Probed(e.gateway)
	}
	if no.Refused() {
		e.metrics.NotCalled(e.gateway, no.Why)
		return nil, consumer.Refusal{Open: no.Why.ByBreaker(), Wait: time.Until(no.RetryAt)}
	}
	return pass, consumer.Refusal{}
}

var _ consumer.Pass = fleet.Pass{}

// bed is where deferred polls sleep: the stream PAYMENTS_DEFERRED.
type bed struct{ conn *broker.Conn }

// Sleep implements consumer.Sleeper.
func (b bed) Sleep(ctx context.Context, polls []consumer.Sleep) []error {
	messages := make([]outbox.Message, len(polls))
	for i, p := range polls {
		messages[i] = outbox.Message{Subject: message.DeferredSubject(p.Gateway), ID: p.ID, Body: message.EncodePoll(p.Poll), TraceParent: p.TraceParent}
	}
	errs := make([]error, len(polls))
	for i, receipt := range b.conn.Publish(ctx, messages) {
		errs[i] = receipt.Err
	}
	return errs
}

// sleepers is the source of a gateway's deferred polls. Nobody asks the broker for them while the breaker is open; those that were fetched when it opens
// again go back.
type sleepers struct {
	conn  *broker.Conn
	cfg   broker.SubscribeConfig
	gate  *fleet.Gate
	awake *broker.Source // nil while nobody asks; only Fetch and Close, which do not run at once, touch it
}

// look is how often it is looked whether the breaker lets calls in.
const look = 50 * time.Millisecond

// Fetch implements consumer.Source.
func (s *sleepers) Fetch(ctx context.Context, n int) ([]consumer.Delivery, error) {
	for ctx.Err() == nil {
		n := s.wanted(n)
		if n == 0 {
			if err := s.doze(); err != nil {
				return nil, err
			}
			wait(ctx, look)
			continue
		}
		if s.awake == nil {
			source, err := s.conn.Subscribe(ctx, s.cfg)
			if err != nil {
				return nil, err
			}
			s.awake = source
		}
		short, cancel := context.WithTimeout(ctx, 4*look)
		deliveries, err := s.awake.Fetch(short, n)
		cancel()
		if err == nil || !errors.Is(err, context.DeadlineExceeded) {
			return deliveries, err
		}
	}
	return nil, ctx.Err()
}

// wanted is how many of n polls to wake: none while the breaker is open, as many as it probes with while it finds out, and as many as the ramp lets in.
func (s *sleepers) wanted(n int) int {
	accounts := s.gate.Accounts()
	if len(accounts) == 0 {
		return n
	}
	most := 0
	for _, account := range accounts {
		b := s.gate.Snapshot(account).Breaker
		switch {
		case b.Forced.On() && b.Kind == breaker.Open:
		case (b.Kind == breaker.Open || b.Kind == breaker.HalfOpen) && b.RetryAt.Time().After(time.Now()):
		case b.Kind == breaker.Open || b.Kind == breaker.HalfOpen:
			most = max(most, min(n, b.ProbePlaces-b.Probes))
		default:
			most = max(most, int(math.Ceil(float64(n)*b.Share.Float())))
		}
	}
	return min(most, n)
}

// doze gives back what was fetched.
func (s *sleepers) doze() error {
	if s.awake == nil {
		return nil
	}
	source := s.awake
	s.awake = nil
	return source.Close()
}

// Held implements consumer.Source: nothing of what sleeps is held with a delay.
func (s *sleepers) Held() int { return 0 }

// Close implements consumer.Source.
func (s *sleepers) Close() error { return s.doze() }

// seated is a source that takes nothing while this instance has no part of the gateway's limit.
type seated struct {
	consumer.Source
	gate *fleet.Gate
}

// Fetch implements consumer.Source.
func (s seated) Fetch(ctx context.Context, n int) ([]consumer.Delivery, error) {
	if err := s.gate.AwaitShare(ctx); err != nil {
		return nil, err
	}
	return s.Source.Fetch(ctx, n)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// memberOf is the name of a process as the fleet has it: in a key of the bucket, which takes letters, digits, - and =. consumer@vm#8f3f32ff is consumer=vm=8f3f32ff.
func memberOf(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '@', r == '#':
			return '='
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '-'
	}, name)
}

// chronicle tells of transitions until they end: a line for people, a number, and a row, by the instance that made it.
func chronicle(ctx context.Context, f *fleet.Fleet, name string, tel *telemetry.Telemetry, rows *postgres.Breakers) {
	for t := range f.Transitions() {
		level := slog.LevelInfo
		if t.To == breaker.Open && t.From != breaker.Open && t.Cause != breaker.CauseAdopted {
			level = slog.LevelError
		}
		tel.Log.LogAttrs(ctx, level, "the breaker of a gateway changed", slog.String("gateway", t.Gateway), slog.String("account", t.Account),
			slog.String("from", t.From.String()), slog.String("to", t.To.String()), slog.String("cause", string(t.Cause)), slog.Uint64("epoch", t.Epoch))
		tel.Metrics.Transition(t.Gateway, t.From, t.To, t.Cause)
		if t.Cause == breaker.CauseAdopted || t.Cause == breaker.CauseRampUp {
			continue // another instance made it, and writes it down; and the ramp rises by time alone, before everybody's eyes
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		if err := rows.Transition(ctx, t, name); err != nil {
			tel.Log.Warn("a transition of a breaker is not written down", "error", err)
		}
		cancel()
	}
}
