package broker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/broker"
	"pollux/internal/message"
	"pollux/internal/natstest"
	"pollux/streams"
)

// lines is what differs, without the remedies.
func lines(ds []broker.Difference) []string {
	var out []string
	for _, d := range ds {
		d.Blocked = ""
		out = append(out, d.String())
	}
	return out
}

func diff(t *testing.T, c *broker.Conn, o broker.Options) []broker.Difference {
	t.Helper()
	ds, err := c.Diff(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// updates counts the advisories of changed streams and consumers.
func updates(t *testing.T, s *natstest.Server) func() int {
	t.Helper()
	nc := s.Connect()
	sub, err := nc.SubscribeSync("$JS.EVENT.ADVISORY.*.UPDATED.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() int {
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		n, _, err := sub.Pending()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

func TestApplyCreatesWhatIsMissingAndThenNothingDiffers(t *testing.T) {
	s := natstest.Start(t, natstest.Options{NoStreams: true})
	c := connect(t, s)
	want := []string{"PAYMENTS_DEAD: missing", "PAYMENTS_DEFERRED: missing", "PAYMENTS_EVENTS: missing", "PAYMENTS_POLL: missing"}
	if d := cmp.Diff(want, lines(diff(t, c, broker.Options{}))); d != "" {
		t.Error(d)
	}
	if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "PAYMENTS_POLL: missing") || !strings.Contains(err.Error(), "run: pollux streams diff") {
		t.Errorf("Check: %v", err)
	}
	changed, err := c.Apply(t.Context(), broker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, lines(changed)); d != "" {
		t.Error(d)
	}
	if ds := diff(t, c, broker.Options{Replicas: 1}); len(ds) > 0 {
		t.Errorf("still differs: %v", lines(ds))
	}
	if err := c.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(streams.Definitions()); n != len(want) {
		t.Errorf("%d definitions", n)
	}
}

func TestApplyDoesNotTouchWhatIsAsItShouldBe(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	subscribe(t, c, config(4))
	n := updates(t, s)
	if changed, err := c.Apply(t.Context(), broker.Options{Consumers: []broker.SubscribeConfig{config(4)}}); err != nil || len(changed) > 0 {
		t.Errorf("changed %v, error %v", lines(changed), err)
	}
	reconfigure(t, s, message.StreamEvents, func(c *jetstream.StreamConfig) { c.MaxMsgs = 5 })
	eventually(t, "the server announces a change", func() bool { return n() == 1 })
	if _, err := c.Apply(t.Context(), broker.Options{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server announces the one change of Apply", func() bool { return n() == 2 })
	if _, err := c.Apply(t.Context(), broker.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := n(); got != 2 {
		t.Errorf("%d changes announced, want 2", got)
	}
}

func TestApplyChangesOnlyTheFieldsThatDiffer(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	reconfigure(t, s, message.StreamPoll, func(c *jetstream.StreamConfig) {
		c.MaxAge, c.AllowAtomicPublish, c.Discard = time.Hour, false, jetstream.DiscardNew
		c.Metadata = map[string]string{"owner": "payments"} // what the definition does not name is the operator's
		c.Description = "ours"
		c.DenyPurge = true
	})
	want := []string{
		"PAYMENTS_POLL: allow_atomic is not set, wanted true",
		"PAYMENTS_POLL: discard is new, wanted old",
		"PAYMENTS_POLL: max_age is 1h0m0s, wanted 10m0s",
	}
	changed, err := c.Apply(t.Context(), broker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, lines(changed)); d != "" {
		t.Error(d)
	}
	got := stream(t, s, message.StreamPoll).CachedInfo().Config
	if got.MaxAge != 10*time.Minute || !got.AllowAtomicPublish || got.Discard != jetstream.DiscardOld {
		t.Errorf("not applied: %+v", got)
	}
	if got.Metadata["owner"] != "payments" || got.Description != "ours" || !got.DenyPurge {
		t.Errorf("the operator's own settings are gone: %+v", got)
	}
}

func TestApplyRefusesWhatNeedsANewStreamAndChangesNothing(t *testing.T) {
	s := natstest.Start(t, natstest.Options{NoStreams: true})
	js := jetStream(t, s)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: message.StreamPoll, Subjects: []string{"payments.poll.>"}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.MemoryStorage,
	}); err != nil {
		t.Fatal(err)
	}
	c := connect(t, s)
	_, err := c.Apply(t.Context(), broker.Options{})
	if err == nil {
		t.Fatal("no error")
	}
	for _, says := range []string{"retention is workqueue, wanted limits", "storage is memory, wanted file", "delete the stream", "nothing was changed"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("does not say %q: %v", says, err)
		}
	}
	if ds := diff(t, c, broker.Options{}); !strings.Contains(strings.Join(lines(ds), "\n"), "PAYMENTS_DEAD: missing") {
		t.Error("it made other streams all the same")
	}
}

func TestApplyRefusesALimitThatWouldThrowMessagesAway(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Start(t, natstest.Options{InProcess: true})
		c := connect(t, s)
		reconfigure(t, s, message.StreamPoll, func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour })
		mustPublish(t, c, polls("p", 1))
		natstest.Pass(9 * time.Minute)
		if ds := diff(t, c, broker.Options{}); len(ds) != 1 || ds[0].Blocked != "" {
			t.Errorf("after nine minutes: %v, want a change that can be applied", ds)
		}
		natstest.Pass(2 * time.Minute)
		_, err := c.Apply(t.Context(), broker.Options{})
		if err == nil || !strings.Contains(err.Error(), "max_age is 1h0m0s, wanted 10m0s") || !strings.Contains(err.Error(), "throw away") {
			t.Errorf("after eleven minutes: %v, want a refusal", err)
		}
		if n := stream(t, s, message.StreamPoll).CachedInfo().State.Msgs; n != 1 {
			t.Errorf("%d messages, want 1", n)
		}
	})
}

func TestReplicasAreComparedOnlyWhenAskedFor(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	if ds := diff(t, c, broker.Options{}); len(ds) > 0 {
		t.Errorf("differs: %v", lines(ds))
	}
	ds := diff(t, c, broker.Options{Replicas: 3})
	if len(ds) != 4 || lines(ds)[0] != "PAYMENTS_DEAD: num_replicas is 1, wanted 3" {
		t.Errorf("differs: %v", lines(ds))
	}
	if _, err := c.Apply(t.Context(), broker.Options{Replicas: 3}); err == nil || !strings.Contains(err.Error(), "replicas") {
		t.Errorf("one server cannot keep three replicas, but: %v", err)
	}
}

func TestConsumersWithHarmfulSettingsAreFoundAndPutRight(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	bad := jetstream.ConsumerConfig{
		Durable: message.ConsumerName(queue.Gateway, queue.Lane), FilterSubject: message.PollSubject(queue.Gateway, queue.Lane),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: 10 * time.Second, MaxAckPending: 1000,
		MaxDeliver: 5, BackOff: []time.Duration{10 * time.Second, 20 * time.Second},
	}
	js := jetStream(t, s)
	if _, err := js.CreateConsumer(t.Context(), message.StreamPoll, bad); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), message.StreamPoll, jetstream.ConsumerConfig{Durable: "somebody_elses", MaxDeliver: 3}); err != nil {
		t.Fatal(err)
	}
	const where = "PAYMENTS_POLL consumer poll_stripe_normal: "
	harmful := []string{where + "max_deliver is 5, wanted -1", where + "backoff is 10s 20s, wanted not set"}
	if d := cmp.Diff(harmful, lines(diff(t, c, broker.Options{}))); d != "" {
		t.Error(d)
	}
	if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "backoff") {
		t.Errorf("Check: %v", err)
	}
	full := broker.Options{Consumers: []broker.SubscribeConfig{config(4)}}
	want := append([]string{where + "ack_wait is 10s, wanted 1m0s"}, harmful...)
	changed, err := c.Apply(t.Context(), full)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, lines(changed)); d != "" {
		t.Error(d)
	}
	subscribe(t, c, config(4))
}

func TestConsumerThatMustBeMadeAnewIsRefusedWithWhatToDo(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	if _, err := jetStream(t, s).CreateConsumer(t.Context(), message.StreamPoll, jetstream.ConsumerConfig{
		Durable: message.ConsumerName(queue.Gateway, queue.Lane), FilterSubject: "payments.poll.>", AckPolicy: jetstream.AckAllPolicy, MaxAckPending: 1000, AckWait: time.Minute,
	}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Apply(t.Context(), broker.Options{Consumers: []broker.SubscribeConfig{config(4)}})
	if err == nil || !strings.Contains(err.Error(), "ack_policy is all, wanted explicit") || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("got %v, want a refusal that says what to do", err)
	}
}
