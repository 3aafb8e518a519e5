package broker_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"pollux/internal/broker"
	"pollux/internal/certificate"
	"pollux/internal/certificate/certificatetest"
	"pollux/internal/message"
	"pollux/internal/natstest"
	"pollux/internal/outage"
	"pollux/internal/secret"
)

// TestAServerWhoseCertificateHasEndedIsToldOfAsThat restarts a server with a certificate that has ended: the connection that was there is lost with an EOF, and what matters is why it
// does not come back.
func TestAServerWhoseCertificateHasEndedIsToldOfAsThat(t *testing.T) {
	a := certificatetest.New(t)
	life := time.Hour
	srv := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) {
		pair, err := tls.X509KeyPair(a.Issue("server", life))
		if err != nil {
			t.Error(err)
		}
		o.TLS, o.TLSTimeout, o.TLSConfig = true, 10, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	}})
	source, err := certificate.Open("nats", certificate.Files{CA: certificatetest.Write(t, filepath.Join(t.TempDir(), "ca"), a.PEM)})
	if err != nil {
		t.Fatal(err)
	}
	c, log := connectLogged(t, srv, func(c *broker.Config) { c.TLS = source })
	srv.Pause()
	life = -time.Minute
	srv.MustResume()
	eventually(t, "the log says why", func() bool {
		return strings.Contains(log.String(), "certificate has expired") && strings.Contains(log.String(), "renew it")
	})
	requireAway(t, c, "certificate has expired", "renew it")
	life = time.Hour
	srv.Pause()
	srv.MustResume()
	eventually(t, "it is connected again", c.Connected)
	if _, _, err := c.Backlog(t.Context(), queue); errors.Is(err, broker.ErrNotConnected) {
		t.Error(err)
	}
}

// requireAway waits until what needs a connection says why there is none, as /readyz does.
func requireAway(t *testing.T, c *broker.Conn, why, hint string) {
	t.Helper()
	var err error
	eventually(t, "whoever asks is told why", func() bool {
		err = c.CheckStream(t.Context(), message.StreamPoll)
		return errors.Is(err, broker.ErrNotConnected) && strings.Contains(err.Error(), why)
	})
	if got := outage.Hint(err); !strings.Contains(got, hint) {
		t.Errorf("%v: the hint is %q, want something about %s", err, got, hint)
	}
}

// TestAKeyThatTheServerKnowsNoMoreIsToldOfSeldomAndByName lets a server forget a key while it is used.
func TestAKeyThatTheServerKnowsNoMoreIsToldOfSeldomAndByName(t *testing.T) {
	ours, public := seedOf(t)
	file := filepath.Join(t.TempDir(), "relay.nk")
	if err := os.WriteFile(file, ours, 0o600); err != nil {
		t.Fatal(err)
	}
	door := &door{}
	door.open.Store(true)
	srv := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) { o.CustomClientAuthentication, o.AlwaysEnableNonce = door, true }})
	c, log := connectLogged(t, srv, func(c *broker.Config) { c.NKeyFile = file })
	srv.Pause()
	door.open.Store(false)
	srv.MustResume()

	requireAway(t, c, "uthorization", "nats.nkey_file "+file+" ("+public+")")
	eventually(t, "it was tried some times", func() bool { return door.refused.Load() > 3 })
	if n := strings.Count(log.String(), "level="); n > 4 { // the connection that is lost, that it is refused, and once more after ten seconds
		t.Errorf("%d lines:\n%s", n, log)
	}
	if !strings.Contains(log.String(), "pollux perms keys") || strings.Contains(log.String(), "NATS reports an error") {
		t.Errorf("%s", log)
	}
	if strings.Contains(log.String(), string(ours)) {
		t.Error("the seed is in the log")
	}
}

// door lets everybody into a server, or nobody.
type door struct {
	open    atomic.Bool
	refused atomic.Int64
}

func (d *door) Check(server.ClientAuthentication) bool {
	if !d.open.Load() {
		d.refused.Add(1)
	}
	return d.open.Load()
}

func TestWhoIsRefusedAtTheFirstConnectionIsToldWhoItIs(t *testing.T) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	_, known := seedOf(t)
	keyed := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: known}} }})
	named := users(t, nil)
	for name, c := range map[string]struct {
		srv  *natstest.Server
		cfg  broker.Config
		want string
	}{
		"an unknown key":   {keyed, broker.Config{NKeyFile: file}, "nats.nkey_file " + file + " (U"},
		"nobody":           {keyed, broker.Config{}, "who we are"},
		"a wrong password": {named, broker.Config{User: "relay", Password: secret.New("wrong-password")}, "nats.user relay, or its password"},
	} {
		c.cfg.URLs = []string{c.srv.URL()}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		_, err := broker.Connect(ctx, c.cfg, slog.New(slog.DiscardHandler))
		cancel()
		if got := outage.Hint(err); err == nil || !strings.Contains(got, c.want) || strings.Contains(got, "wrong-password") {
			t.Errorf("%s: %v: the hint is %q, want something about %s", name, err, got, c.want)
		}
	}
}

// TestTheKeyOfAnotherProgramIsNamedWhereItsInboxIsForbidden is about a relay with the seed of the consumer, which may read other inboxes.
func TestTheKeyOfAnotherProgramIsNamedWhereItsInboxIsForbidden(t *testing.T) {
	seed, public := seedOf(t)
	file := filepath.Join(t.TempDir(), "consumer.nk")
	if err := os.WriteFile(file, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	srv := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) {
		o.Nkeys = []*server.NkeyUser{{Nkey: public, Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_pollux_consumer.>"}}}}}
	}})
	_, err := broker.Connect(t.Context(), broker.Config{URLs: []string{srv.URL()}, NKeyFile: file, InboxPrefix: "_INBOX_pollux_relay"}, discard())
	for _, want := range []string{"may not subscribe to _INBOX_pollux_relay", "is nats.nkey_file " + file + " (" + public + ") the key of this program"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if got := outage.Hint(err); !strings.Contains(got, "the key of another") {
		t.Error(got)
	}
}
