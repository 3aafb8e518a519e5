package natstest_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/message"
	"pollux/internal/natstest"
)

func lastSequence(t *testing.T, nc *nats.Conn) uint64 {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), message.StreamPoll)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.LastSeq
}

func publish(t *testing.T, nc *nats.Conn) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), message.PollSubject("stripe", "normal"), []byte("x")); err != nil {
		t.Fatal(err)
	}
}

func TestStoreSurvivesRestartAndCrashAndNotWipe(t *testing.T) {
	s := natstest.New(t)
	publish(t, s.Connect())
	for name, again := range map[string]func(){"restart": s.MustRestart, "crash": s.MustCrash} {
		again()
		if got := lastSequence(t, s.Connect()); got != 1 {
			t.Errorf("after a %s the stream's last sequence is %d, want 1", name, got)
		}
	}
	s.MustWipe()
	s.ApplyStreams()
	if got := lastSequence(t, s.Connect()); got != 0 {
		t.Errorf("after a wipe the stream's last sequence is %d, want 0", got)
	}
}

func TestMemoryStoreIsLostWithARestart(t *testing.T) {
	s := natstest.Start(t, natstest.Options{Memory: true})
	publish(t, s.Connect())
	s.MustRestart()
	s.ApplyStreams()
	if got := lastSequence(t, s.Connect()); got != 0 {
		t.Errorf("after a restart the stream's last sequence is %d, want 0", got)
	}
}

func TestDelayOfADayPassesExactlyInABubble(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.Start(t, natstest.Options{InProcess: true})
		nc := s.Connect()
		publish(t, nc)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		c, err := js.CreateConsumer(t.Context(), message.StreamPoll, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		next := func() jetstream.Msg {
			m, err := c.Next(jetstream.FetchMaxWait(48 * time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		start := time.Now()
		if err := next().NakWithDelay(24 * time.Hour); err != nil {
			t.Fatal(err)
		}
		next()
		if got := time.Since(start).Round(time.Second); got != 24*time.Hour {
			t.Errorf("came back after %s, want 24h", got)
		}
	})
}
