package broker_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/message"
	"pollux/internal/natstest"
	"pollux/internal/outbox"
	"pollux/internal/survey"
)

func TestASurveySaysWhatIsInTheStreamsAndWhatDrifted(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	src := subscribe(t, c, config(4))
	mustPublish(t, c, polls("polls", 10))
	fetch(t, src, 4, 4)
	mustPublish(t, c, []outbox.Message{
		{Subject: message.DeferredSubject("stripe"), ID: "a", Body: []byte("{}")}, {Subject: message.DeferredSubject("stripe"), ID: "b", Body: []byte("{}")},
		{Subject: message.DeferredSubject("acme"), ID: "c", Body: []byte("{}")},
		{Subject: "payments.resolved.stripe.succeeded", ID: "d", Body: []byte("{}")}, {Subject: "payments.resolved.stripe.failed", ID: "e", Body: []byte("{}")},
	})
	if _, err := jetStream(t, s).CreateConsumer(t.Context(), message.StreamEvents, jetstream.ConsumerConfig{Durable: "yours", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	reconfigure(t, s, message.StreamEvents, func(c *jetstream.StreamConfig) { c.MaxMsgs = 1_000_000 })
	var got survey.Streams
	eventually(t, "all is where it is", func() bool {
		var err error
		if got, err = c.Survey(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(got.Unacked) == 1 && got.Unacked[0].N >= 4
	})
	in := got.Unacked[0].N // the source asks for more when it has handed out
	want := survey.Streams{
		Streams: []survey.Stream{
			{Name: message.StreamDead}, {Name: message.StreamDeferred, Messages: 3}, {Name: message.StreamEvents, Messages: 2, Lag: 2, Drift: 1},
			{Name: message.StreamPoll, Messages: 10, Lag: 10 - in},
		},
		Unacked:  []survey.Load{{Gateway: "stripe", Lane: "normal", N: in}},
		Deferred: []survey.Load{{Gateway: "acme", N: 1}, {Gateway: "stripe", N: 2}},
		Waiting:  10 - in,
	}
	byGateway := cmpopts.SortSlices(func(a, b survey.Load) bool { return a.Gateway < b.Gateway })
	if d := cmp.Diff(want, got, byGateway, cmpopts.IgnoreFields(survey.Stream{}, "Bytes", "Oldest")); d != "" {
		t.Error(d)
	}
}

func TestAStreamThatIsMissingHasDrifted(t *testing.T) {
	s := natstest.New(t)
	c := connect(t, s)
	if err := jetStream(t, s).DeleteStream(t.Context(), message.StreamPoll); err != nil {
		t.Fatal(err)
	}
	got, err := c.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range got.Streams {
		if missing := found.Name == message.StreamPoll; missing != (found.Drift > 0) {
			t.Errorf("%+v", found)
		}
	}
	if len(got.Streams) != 4 {
		t.Errorf("%d streams are told of", len(got.Streams))
	}
}
