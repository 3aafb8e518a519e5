package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"pollux/internal/broker"
	"pollux/internal/message"
	"pollux/internal/natstest"
	"pollux/internal/outbox"
)

// TestReadyWithThePrintedPermissions asks as each program does, of a stream that has had a poll.
func TestReadyWithThePrintedPermissions(t *testing.T) {
	users := broker.Users(broker.Access{Queues: []outbox.Queue{{Gateway: "acme", Lane: "normal"}}})
	conf, seeds := broker.Conf(users, broker.NKey), map[string]string{}
	for _, u := range users {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, err1 := pair.PublicKey()
		seed, err2 := pair.Seed()
		seeds[u.Name] = filepath.Join(t.TempDir(), u.Name+".nk")
		if err := errors.Join(err1, err2, os.WriteFile(seeds[u.Name], seed, 0o600)); err != nil {
			t.Fatal(err)
		}
		conf = strings.ReplaceAll(conf, "$"+broker.NKey.Variable(u.Name), public)
	}
	s := natstest.Start(t, natstest.Options{Accounts: conf})
	as := func(user string) *broker.Conn {
		c, err := broker.Connect(t.Context(), broker.Config{URLs: []string{s.URL()}, Name: "test", NKeyFile: seeds[user], InboxPrefix: message.InboxPrefix(user)}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	if _, err := as(message.UserMigrator).Apply(t.Context(), broker.Options{}); err != nil {
		t.Fatal(err)
	}
	relay := as(message.UserRelay)
	for _, r := range relay.Publish(t.Context(), []outbox.Message{{ID: "x", Subject: message.PollSubject("acme", "normal"), Body: []byte("{}")}}) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	for user, c := range map[string]*broker.Conn{message.UserRelay: relay, message.UserConsumer: as(message.UserConsumer)} {
		if err := ready(c)(t.Context()); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
}
