package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/message"
	"pollux/internal/outbox"
)

// SubscribeConfig says how deliveries of a queue are taken. All fields are needed. The queue of the lane message.LaneDeferred is the gateway's part of
// PAYMENTS_DEFERRED.
type SubscribeConfig struct {
	Queue outbox.Queue
	// AckWait is after how long without an acknowledgement the broker delivers a message again.
	AckWait time.Duration
	// MaxAckPending bounds the messages that are with consumers or held, of the whole fleet. A held message keeps its place in it.
	MaxAckPending int
	// Prefetch bounds the deliveries that a source has asked for and not handed out: AckWait runs for them already.
	Prefetch int
	// Wanted, unless it is nil, is how many of Prefetch are wanted at the moment. It must be fast and safe for concurrent use.
	Wanted func() int
}

func (c SubscribeConfig) validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !message.ValidToken(c.Queue.Gateway) || !message.ValidToken(c.Queue.Lane) {
		bad("queue %.80q/%.80q: gateway and lane must be of a-z, 0-9, _ and -, 64 at the most", c.Queue.Gateway, c.Queue.Lane)
	}
	if c.AckWait < time.Second {
		bad("ack_wait %s: at least 1s", c.AckWait)
	}
	if c.MaxAckPending < 1 {
		bad("max_ack_pending %d: at least 1", c.MaxAckPending)
	}
	if c.Prefetch < 1 || c.Prefetch > c.MaxAckPending {
		bad("prefetch %d: between 1 and max_ack_pending (%d)", c.Prefetch, c.MaxAckPending)
	}
	return errors.Join(errs...)
}

func (c SubscribeConfig) deferred() bool { return c.Queue.Lane == message.LaneDeferred }

// name is that of the durable consumer.
func (c SubscribeConfig) name() string {
	if c.deferred() {
		return message.DeferredConsumer(c.Queue.Gateway)
	}
	return message.ConsumerName(c.Queue.Gateway, c.Queue.Lane)
}

func (c SubscribeConfig) stream() string {
	if c.deferred() {
		return message.StreamDeferred
	}
	return message.StreamPoll
}

func (c SubscribeConfig) subject() string {
	if c.deferred() {
		return message.DeferredSubject(c.Queue.Gateway)
	}
	return message.PollSubject(c.Queue.Gateway, c.Queue.Lane)
}

// consumer is the durable consumer as it should be. MaxDeliver is unbounded, since a message past it would be invisible
// and still stored; there is no BackOff, since it spoils the delays that we ask for.
func (c SubscribeConfig) consumer() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       c.name(),
		Description:   "Due polls of " + c.Queue.Gateway + ", lane " + c.Queue.Lane,
		FilterSubject: c.subject(),
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       c.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: c.MaxAckPending,
	}
}

// consumerField is a setting of a consumer that matters to us.
type consumerField struct {
	name   string
	value  func(jetstream.ConsumerConfig) string
	update func(have *jetstream.ConsumerConfig, want jetstream.ConsumerConfig) // nil when the server cannot change it
}

var consumerFields = []consumerField{
	{"filter_subject", func(c jetstream.ConsumerConfig) string {
		return strings.Join(append(slices.Clone(c.FilterSubjects), c.FilterSubject), ",")
	}, nil},
	{"deliver_policy", func(c jetstream.ConsumerConfig) string { return word(c.DeliverPolicy) }, nil},
	{"ack_policy", func(c jetstream.ConsumerConfig) string { return word(c.AckPolicy) }, nil},
	{"ack_wait", func(c jetstream.ConsumerConfig) string { return c.AckWait.String() },
		func(have *jetstream.ConsumerConfig, want jetstream.ConsumerConfig) { have.AckWait = want.AckWait }},
	{"max_deliver", func(c jetstream.ConsumerConfig) string { return fmt.Sprint(c.MaxDeliver) },
		func(have *jetstream.ConsumerConfig, want jetstream.ConsumerConfig) { have.MaxDeliver = want.MaxDeliver }},
	{"backoff", func(c jetstream.ConsumerConfig) string { return durations(c.BackOff) },
		func(have *jetstream.ConsumerConfig, want jetstream.ConsumerConfig) { have.BackOff = want.BackOff }},
	{"max_ack_pending", func(c jetstream.ConsumerConfig) string { return fmt.Sprint(c.MaxAckPending) },
		func(have *jetstream.ConsumerConfig, want jetstream.ConsumerConfig) {
			have.MaxAckPending = want.MaxAckPending
		}},
	{"headers_only", func(c jetstream.ConsumerConfig) string { return fmt.Sprint(c.HeadersOnly) },
		func(have *jetstream.ConsumerConfig, want jetstream.ConsumerConfig) {
			have.HeadersOnly = want.HeadersOnly
		}},
	{"inactive_threshold", func(c jetstream.ConsumerConfig) string { return c.InactiveThreshold.String() },
		func(have *jetstream.ConsumerConfig, want jetstream.ConsumerConfig) {
			have.InactiveThreshold = want.InactiveThreshold
		}},
	{"deliver_subject", func(c jetstream.ConsumerConfig) string { return c.DeliverSubject }, nil},
	{"priority_policy", func(c jetstream.ConsumerConfig) string { return fmt.Sprint(c.PriorityPolicy) }, nil},
}

// word is a policy as it is in configurations.
func word(policy json.Marshaler) string {
	b, err := policy.MarshalJSON()
	if err != nil {
		return "unknown"
	}
	return strings.Trim(string(b), `"`)
}

func durations(ds []time.Duration) string {
	words := make([]string, len(ds))
	for i, d := range ds {
		words[i] = d.String()
	}
	return strings.Join(words, " ")
}

// consumerDifferences names what a consumer has otherwise than wanted, of the fields named; of all when none is.
func consumerDifferences(have, want jetstream.ConsumerConfig, only ...string) []Difference {
	var ds []Difference
	for _, f := range consumerFields {
		if len(only) > 0 && !slices.Contains(only, f.name) {
			continue
		}
		if h, w := f.value(have), f.value(want); h != w {
			d := Difference{Stream: message.StreamPoll, Consumer: have.Durable, Field: f.name, Have: h, Want: w}
			if f.update == nil {
				d.Blocked = "a consumer's " + f.name + " cannot be changed; stop its services, delete it, and they create it again at start"
			}
			ds = append(ds, d)
		}
	}
	return ds
}

// ensureConsumer makes the queue's consumer if it is missing, and returns what the server says about it and how it differs
// from what it should be. An existing consumer is never changed.
func (c *Conn) ensureConsumer(ctx context.Context, cfg SubscribeConfig) (*jetstream.ConsumerInfo, []Difference, error) {
	if !c.Connected() {
		return nil, nil, c.notConnected()
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ctx, named := c.asking(ctx, consumerInfo(cfg.stream(), cfg.name()), consumerCreate(cfg.stream(), cfg.name(), cfg.subject()))
	got, err := c.js.Consumer(ctx, cfg.stream(), cfg.name())
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		got, err = c.js.CreateConsumer(ctx, cfg.stream(), cfg.consumer())
		if errors.Is(err, jetstream.ErrConsumerExists) { // somebody else was faster, with other settings
			got, err = c.js.Consumer(ctx, cfg.stream(), cfg.name())
		}
	}
	switch err = named(err); {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, nil, fmt.Errorf("the stream %s does not exist; run: pollux streams apply", cfg.stream())
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return nil, nil, fmt.Errorf("the consumer %s pushes; ours pull. Delete it, and it is created again", cfg.name())
	case err != nil:
		return nil, nil, fmt.Errorf("preparing the consumer %s: %w", cfg.name(), err)
	}
	info := got.CachedInfo()
	return info, consumerDifferences(info.Config, cfg.consumer()), nil
}
