package streams_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/message"
	"pollux/streams"
)

func config(t *testing.T, d streams.Definition) jetstream.StreamConfig {
	t.Helper()
	var c jetstream.StreamConfig
	if err := json.Unmarshal(d.JSON, &c); err != nil {
		t.Fatalf("%s: %v", d.Name, err)
	}
	return c
}

func TestDefinitionsAreTheStreamsOfTheDesign(t *testing.T) {
	type core struct {
		Retention jetstream.RetentionPolicy
		Discard   jetstream.DiscardPolicy
		MaxAge    time.Duration
		Atomic    bool
	}
	want := map[string]core{
		message.StreamPoll:     {jetstream.LimitsPolicy, jetstream.DiscardOld, 10 * time.Minute, true},
		message.StreamDeferred: {jetstream.WorkQueuePolicy, jetstream.DiscardNew, 0, true},
		message.StreamEvents:   {jetstream.LimitsPolicy, jetstream.DiscardNew, 7 * 24 * time.Hour, true},
		message.StreamDead:     {jetstream.LimitsPolicy, jetstream.DiscardNew, 90 * 24 * time.Hour, true},
	}
	got := map[string]core{}
	for _, d := range streams.Definitions() {
		c := config(t, d)
		got[c.Name] = core{c.Retention, c.Discard, c.MaxAge, c.AllowAtomicPublish}
		if c.Storage != jetstream.FileStorage || c.Replicas != 1 || c.Duplicates != 2*time.Minute {
			t.Errorf("%s: storage %v, replicas %d, duplicate window %s; want file, 1, 2m", c.Name, c.Storage, c.Replicas, c.Duplicates)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestEverySubjectOfThePackageMessageHasItsStream(t *testing.T) {
	for subject, want := range map[string]string{
		message.PollSubject("stripe", "high"):     message.StreamPoll,
		message.DeferredSubject("stripe"):         message.StreamDeferred,
		message.DeadSubject("stripe", "attempts"): message.StreamDead,
		"payments.resolved.stripe.succeeded":      message.StreamEvents,
		"payments.late_success.stripe":            message.StreamEvents,
		"payments.review.stripe.mismatch":         message.StreamEvents,
		"payments.other.stripe":                   "",
		"payments.poll.":                          "",
		"payments.poll":                           "",
		"payments.polls.stripe.high":              "",
		"orders.resolved.stripe.succeeded":        "",
	} {
		got, ok := streams.Of(subject)
		if got != want || ok != (want != "") {
			t.Errorf("Of(%q) = %q, %v; want %q", subject, got, ok, want)
		}
	}
}

func TestPollStreamOutlivesALeaseAndTakesTheLargestPoll(t *testing.T) {
	for _, d := range streams.Definitions() {
		if d.Name != message.StreamPoll {
			continue
		}
		c := config(t, d)
		if headers := 512; int(c.MaxMsgSize) < message.MaxPollBytes+headers {
			t.Errorf("max_msg_size %d has no room for a poll of %d bytes with its headers", c.MaxMsgSize, message.MaxPollBytes)
		}
	}
}
