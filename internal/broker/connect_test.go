package broker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"pollux/internal/broker"
	"pollux/internal/message"
	"pollux/internal/natsembed"
	"pollux/internal/natstest"
	"pollux/internal/secret"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestConnectWaitsForAServerThatComesLater(t *testing.T) {
	s := natstest.New(t)
	url := s.URL()
	s.Pause()
	log := &journal{}
	type result struct {
		c   *broker.Conn
		err error
	}
	done := make(chan result, 1)
	go func() {
		c, err := broker.Connect(t.Context(), broker.Config{URLs: []string{url}}, slog.New(slog.NewTextHandler(log, nil)))
		done <- result{c, err}
	}()
	eventually(t, "it says that it cannot reach the server", func() bool { return strings.Contains(log.String(), "NATS is away") })
	s.MustResume()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(r.c.Close)
	mustPublish(t, r.c, polls("p", 1))
}

func TestConnectGivesUpWithItsContextAndNamesTheServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "nats://" + l.Addr().String()
	l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = broker.Connect(ctx, broker.Config{URLs: []string{url}}, discard())
	if err == nil || !strings.Contains(err.Error(), url) || ctx.Err() == nil {
		t.Errorf("got %v, want an error that names %s after the context's end", err, url)
	}
}

func TestConnectReturnsAtOnceWhenCredentialsAreRefused(t *testing.T) {
	s := users(t, nil)
	_, err := broker.Connect(t.Context(), broker.Config{URLs: []string{s.URL()}, User: "relay", Password: secret.New("wrong-password")}, discard())
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), "authorization") || strings.Contains(err.Error(), "wrong-password") {
		t.Errorf("got %v, want an error about authorization without the password", err)
	}
}

func TestPasswordFileIsReadAgainAtEachReconnect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	write := func(p string) {
		if err := os.WriteFile(file, []byte(p+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	password := "old"
	s := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) {
		o.Users = []*server.User{{Username: "relay", Password: password}}
	}})
	write("old")
	c := connect(t, s, func(c *broker.Config) { c.User, c.PasswordFile = "relay", file })
	s.Pause()
	password = "new"
	write("new")
	s.MustResume()
	eventually(t, "the connection is back with the new password", c.Connected)
}

func TestNKeyAuthenticates(t *testing.T) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "relay.nk")
	if err := os.WriteFile(file, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	s := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) {
		o.Nkeys = []*server.NkeyUser{{Nkey: public}}
	}})
	if c := connect(t, s, func(c *broker.Config) { c.NKeyFile = file }); !c.Connected() {
		t.Error("not connected")
	}
}

func TestInboxPrefixServesAUserWhoMayReadItsOwnInboxesOnly(t *testing.T) {
	s := users(t, &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_relay.>"}}})
	c := connect(t, s, asRelay, func(c *broker.Config) { c.InboxPrefix = "_INBOX_relay" })
	mustPublish(t, c, polls("p", 100))
	ackAll(t, fetch(t, subscribe(t, c, config(10)), 100, 10))
	if err := c.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMissingPermissionForTheAPIIsNamed(t *testing.T) {
	s := users(t, &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.API.CONSUMER.>"}}})
	c, log := connectLogged(t, s, asRelay)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, _, err := c.Backlog(ctx, queue)
	if err == nil || !strings.Contains(err.Error(), "may not publish to $JS.API.CONSUMER.INFO."+message.StreamPoll) {
		t.Errorf("got %v, want an error that names the permission\n%s", err, log)
	}
}

func TestWrongConfigurationIsRefusedWithAllItsProblems(t *testing.T) {
	cfg := broker.Config{
		URLs:            []string{"nats://ok:4222", "nats://user:hunter2@host:4222", "host:4222", "nats://%zz"},
		CredentialsFile: "a", NKeyFile: "b", Password: secret.New("hunter2"), PasswordFile: "c",
		InboxPrefix: "a.>", PublishTimeout: -1, MaxOutstanding: 100_000, Batches: "often", BatchThreshold: 1,
	}
	_, err := broker.Connect(t.Context(), cfg, discard())
	if err == nil {
		t.Fatal("no error")
	}
	for _, says := range []string{
		"urls[1]", "urls[2]", "urls[3]", "credentials_file, nkey_file", "password and password_file", "password without user",
		"inbox_prefix", "publish_timeout", "max_outstanding", "batches", "batch_threshold",
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("says nothing of %s: %v", says, err)
		}
	}
	for _, never := range []string{"urls[0]", "hunter2"} {
		if strings.Contains(err.Error(), never) {
			t.Errorf("says %q: %v", never, err)
		}
	}
}

func TestMissingFileIsAnErrorAtOnce(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for says, cfg := range map[string]broker.Config{
		"credentials_file": {CredentialsFile: missing},
		"nkey_file":        {NKeyFile: missing},
		"password_file":    {User: "u", PasswordFile: missing},
	} {
		_, err := broker.Connect(t.Context(), cfg, discard())
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), missing) {
			t.Errorf("%s: got %v, want an error that names it and the file", says, err)
		}
	}
}

func TestSecretNeverShows(t *testing.T) {
	cfg := broker.Config{User: "u", Password: secret.New("hunter2")}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "config", cfg, "password", cfg.Password)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "config", cfg, "password", cfg.Password)
	marshalled, err := json.Marshal(map[string]any{"p": cfg.Password})
	if err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprintf("%v %+v %#v %s %q %s %s", cfg, cfg, cfg, cfg.Password, cfg.Password, log.String(), marshalled)
	if strings.Contains(shown, "hunter2") || !strings.Contains(shown, "[redacted]") {
		t.Error(shown)
	}
}

func TestLostConnectionIsLoggedAndAClosedOneIsNot(t *testing.T) {
	s := natstest.New(t)
	c, log := connectLogged(t, s)
	c.Close()
	if strings.Contains(log.String(), "away") {
		t.Errorf("Close is logged as a loss: %s", log)
	}
	c, log = connectLogged(t, s)
	s.MustRestart()
	eventually(t, "loss and return are logged", func() bool {
		return strings.Contains(log.String(), "NATS is away") && strings.Contains(log.String(), "connected to NATS again")
	})
	mustPublish(t, c, polls("p", 1))
}

func TestCloseEndsTheConnectionAlsoWhenTheServerIsAway(t *testing.T) {
	for _, away := range []bool{false, true} {
		srv, err := natsembed.Start(natsembed.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := broker.Connect(t.Context(), broker.Config{URLs: []string{srv.URL()}}, discard())
		if err != nil {
			t.Fatal(err)
		}
		if away {
			srv.Pause()
			eventually(t, "the connection is noticed to be lost", func() bool { return !c.Connected() })
		}
		c.Close()
		c.Close()
		if c.Connected() {
			t.Errorf("away=%v: connected after Close", away)
		}
		if r := c.Publish(t.Context(), polls("p", 1))[0]; r.Err == nil {
			t.Errorf("away=%v: published after Close", away)
		}
		if err := srv.Stop(); err != nil {
			t.Error(err)
		}
	}
}
