package broker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"pollux/internal/broker"
	"pollux/internal/message"
	"pollux/internal/natstest"
	"pollux/internal/outbox"
)

var queue = outbox.Queue{Gateway: "stripe", Lane: "normal"}

// eventually polls a condition until it holds or far too much time has passed.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30s: %s", what)
		}
		pause(t)
	}
}

// pause waits a moment between two looks.
func pause(t testing.TB) {
	t.Helper()
	select {
	case <-time.After(5 * time.Millisecond):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// journal is where a connection under test logs to.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// connect connects to a server of a test; edit may change the configuration.
func connect(t testing.TB, s *natstest.Server, edit ...func(*broker.Config)) *broker.Conn {
	t.Helper()
	c, _ := connectLogged(t, s, edit...)
	return c
}

func connectLogged(t testing.TB, s *natstest.Server, edit ...func(*broker.Config)) (*broker.Conn, *journal) {
	t.Helper()
	cfg := broker.Config{URLs: []string{s.URL()}, Name: "test"}
	if s.URL() == "" {
		cfg.URLs, cfg.InProcess = nil, s
	}
	for _, e := range edit {
		e(&cfg)
	}
	log := &journal{}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := broker.Connect(ctx, cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, log
}

// polls makes n messages for the queue with ids of a prefix.
func polls(prefix string, n int) []outbox.Message {
	ms := make([]outbox.Message, n)
	for i := range ms {
		ms[i] = outbox.Message{
			Subject: message.PollSubject(queue.Gateway, queue.Lane),
			ID:      fmt.Sprintf("%s-%d", prefix, i),
			Body:    message.EncodePoll(message.Poll{Payment: 1, Token: "9c0e0b2e-3d0a-4b4e-8f0e-0c7f1a1b2c3d", Revision: int64(i)}),
		}
	}
	return ms
}

// mustPublish publishes and fails the test unless everything is stored.
func mustPublish(t testing.TB, c *broker.Conn, ms []outbox.Message) []outbox.Receipt {
	t.Helper()
	rs := c.Publish(t.Context(), ms)
	for i, r := range rs {
		if r.Err != nil {
			t.Fatalf("message %d of %d: %v", i, len(ms), r.Err)
		}
	}
	return rs
}
