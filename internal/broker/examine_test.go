package broker_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/broker"
	"pollux/internal/certificate"
	"pollux/internal/doctor"
	"pollux/internal/message"
	"pollux/internal/natstest"
	"pollux/internal/outbox"
)

func subscription() broker.SubscribeConfig {
	return broker.SubscribeConfig{Queue: outbox.Queue{Gateway: "acme", Lane: "normal"}, AckWait: time.Minute, MaxAckPending: 10_000, Prefetch: 64}
}

// examined is what the doctor says of a broker, by check; of several findings the worst.
func examined(t *testing.T, c *broker.Conn) map[string]doctor.Finding {
	t.Helper()
	s := &doctor.Sources{
		Hub: doctor.Ask(c.Hub), BrokerClock: doctor.Ask(c.Clock), Streams: doctor.Ask(c.Streams), Consumers: doctor.Ask(c.Consumers), Account: doctor.Ask(c.Account),
		Drift: doctor.Ask(func(ctx context.Context) ([]doctor.Difference, error) {
			ds, err := c.Drift(ctx, broker.Options{Consumers: []broker.SubscribeConfig{subscription()}})
			bucket, err2 := c.FleetDrift(ctx)
			return append(ds, bucket...), errors.Join(err, err2)
		}),
		Fleet: doctor.Know(doctor.Fleet{Instances: 1}), Outbox: doctor.Know(doctor.Outbox{}), Disk: doctor.Know(doctor.Disk{}),
	}
	set := &doctor.Settings{
		Gateways: []doctor.Gateway{{Name: "acme", Timeout: 10 * time.Second, Workers: 64, HoldLimit: 30 * time.Second}}, AckWait: time.Minute,
		ConsumerLease: 5 * time.Minute, RelayLease: 5 * time.Minute, PublishTimeout: 5 * time.Second, Retry: time.Second, HoldBudget: 5000, MaxAckPending: 10_000, Now: time.Now(),
	}
	found := map[string]doctor.Finding{}
	for _, f := range doctor.Examine(t.Context(), s, set, doctor.Broker, doctor.Security, doctor.Host).Findings {
		if _, ok := found[f.ID]; !ok { // the worst comes first
			found[f.ID] = f
		}
	}
	return found
}

func TestTheDoctorFindsWhatIsWrongAtTheBroker(t *testing.T) {
	srv := natstest.New(t)
	c := connectTo(t, srv.URL())
	if err := c.EnsureKV(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	source, err := c.Subscribe(t.Context(), subscription())
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}
	for id, f := range examined(t, c) {
		if f.Level != doctor.Green && id != "broker.sync" {
			t.Errorf("of a broker that is well: %+v", f)
		}
	}

	js, err := jetstream.New(srv.Connect())
	if err != nil {
		t.Fatal(err)
	}
	update := func(name string, how func(*jetstream.StreamConfig)) {
		t.Helper()
		s, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		cfg := s.CachedInfo().Config
		how(&cfg)
		if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	update(message.StreamEvents, func(s *jetstream.StreamConfig) {
		s.Discard, s.Duplicates, s.MaxMsgs = jetstream.DiscardOld, 5*time.Second, 2
	})
	ds, err := c.Drift(t.Context(), broker.Options{Readers: []string{reader}})
	for _, stream := range []string{message.StreamEvents, message.StreamDead} {
		if !slices.Contains(ds, doctor.Difference{Stream: stream, Consumer: reader}) {
			t.Errorf("a reader's consumer is missing in %s: %+v, %v", stream, ds, err)
		}
	}
	update(message.StreamPoll, func(s *jetstream.StreamConfig) { s.MaxAge = 3 * time.Minute })
	for range 2 {
		if _, err := js.Publish(t.Context(), "payments.resolved.acme.failed", []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	consumer, err := js.Consumer(t.Context(), message.StreamPoll, message.ConsumerName("acme", "normal"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := consumer.CachedInfo().Config
	cfg.AckWait, cfg.MaxAckPending, cfg.MaxDeliver = 8*time.Second, 50, 3
	if _, err := js.UpdateConsumer(t.Context(), message.StreamPoll, cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), message.StreamDeferred, jetstream.ConsumerConfig{
		Durable: message.DeferredConsumer("acme"), FilterSubject: message.DeferredSubject("acme"), AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3,
		BackOff: []time.Duration{time.Second, time.Minute}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), message.PollSubject("acme", "normal"), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	found := examined(t, c)
	for id, says := range map[string]string{
		"broker.streams": "declared", "broker.consumers": "declared", "broker.forbidden": "is ", "broker.ack_pending": "max_ack_pending is 50: 5000 may be held",
		"broker.ack_wait": "ack_wait is 8s", "broker.duplicates": "5s", "broker.full": "2 of 2 messages", "broker.workers": "1 message waits, and nobody asks",
	} {
		if f := found[id]; f.Level != doctor.Red || !strings.Contains(f.Found, says) {
			t.Errorf("%+v", f)
		}
	}
	if f := found["broker.max_age"]; f.Level != doctor.Yellow {
		t.Errorf("%+v", f)
	}
	all, err := c.Consumers(t.Context())
	if err != nil || !slices.ContainsFunc(all, func(c doctor.Consumer) bool {
		return c.Gateway == "acme" && c.Lane == message.LaneDeferred && len(c.BackOff) == 2
	}) {
		t.Errorf("%+v %v", all, err)
	}

	if err := js.DeleteStream(t.Context(), message.StreamPoll); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteKeyValue(t.Context(), broker.FleetBucket); err != nil {
		t.Fatal(err)
	}
	if f := examined(t, c)["broker.streams"]; f.Level != doctor.Red {
		t.Errorf("%+v", f)
	}
	srv.Pause()
	eventually(t, "it is away", func() bool { return !c.Connected() })
	for id, f := range examined(t, c) {
		if f.Area == doctor.Broker && f.Level != doctor.Unknown && f.Level != doctor.Red {
			t.Errorf("of a server that is away: %s %+v", id, f)
		}
	}
}

func connectTo(t *testing.T, url string) *broker.Conn {
	t.Helper()
	c, err := broker.Connect(t.Context(), broker.Config{URLs: []string{url}}, discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestAServerWithoutJetStreamIsFound(t *testing.T) {
	srv := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) { o.JetStream = false }})
	found := examined(t, connectTo(t, srv.URL()))
	if f := found["broker.jetstream"]; f.Level != doctor.Red {
		t.Errorf("%+v", f)
	}
	if f := found["broker.reachable"]; f.Level != doctor.Green {
		t.Errorf("%+v", f)
	}
}

func TestTheMonitoringPageTellsHowTheDiskIsSynced(t *testing.T) {
	for _, always := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		natstest.Start(t, natstest.Options{NoStreams: true, SyncAlways: always, Configure: func(o *server.Options) { o.HTTPHost, o.HTTPPort = "127.0.0.1", port }})
		d, err := broker.ReadDisk(t.Context(), fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil || !d.Asked || d.Always != always || d.Interval != 2*time.Minute {
			t.Errorf("always %t: %+v %v", always, d, err)
		}
	}
	if d, err := broker.ReadDisk(t.Context(), ""); err != nil || d.Asked {
		t.Errorf("%+v %v", d, err)
	}
	if _, err := broker.ReadDisk(t.Context(), "http://127.0.0.1:1"); err == nil {
		t.Error("a page that nobody serves is read")
	}
}

func TestTheServersCertificateIsSeen(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "nats"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(20 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := natstest.Start(t, natstest.Options{NoStreams: true, Configure: func(o *server.Options) {
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	}})
	trusted, err := certificate.Open("nats", certificate.Files{CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	c, err := broker.Connect(t.Context(), broker.Config{URLs: []string{strings.Replace(srv.URL(), "nats://", "tls://", 1)}, TLS: trusted}, discard())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	found := examined(t, c)
	if f := found["security.certificates"]; f.Level != doctor.Yellow || !strings.Contains(f.Found, "CN=nats ends on") {
		t.Errorf("%+v", f)
	}
	if f := found["security.broker_tls"]; f.Level != doctor.Green || f.Found != "TLS" {
		t.Errorf("%+v", f)
	}
}

// A server that lost its disk: what cannot be asked without streams says what makes them.
func TestWithoutStreamsTheDoctorSaysWhatMakesThem(t *testing.T) {
	srv := natstest.New(t)
	c := connectTo(t, srv.URL())
	js, err := jetstream.New(srv.Connect())
	if err != nil {
		t.Fatal(err)
	}
	for name := range js.StreamNames(t.Context()).Name() {
		if err := js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	_, fleetErr := c.KV().All(t.Context())
	if _, clockErr := c.Clock(t.Context()); clockErr == nil || fleetErr == nil {
		t.Fatal("there are streams")
	}
	s := &doctor.Sources{
		BrokerClock: doctor.Ask(c.Clock), Consumers: doctor.Ask(c.Consumers),
		Fleet: doctor.Ask(func(context.Context) (doctor.Fleet, error) {
			return doctor.Fleet{}, fmt.Errorf("looking: %w", fleetErr)
		}),
	}
	unknown := 0
	for _, f := range doctor.Examine(t.Context(), s, &doctor.Settings{}, doctor.Broker, doctor.Gateways, doctor.Host).Findings {
		if f.Level != doctor.Unknown {
			continue
		}
		unknown++
		if f.Mend != "pollux streams apply" {
			t.Errorf("%+v", f)
		}
	}
	if unknown != 5 { // the clock, the places for acknowledgements, and three of the gateways
		t.Errorf("%d are unknown", unknown)
	}
}

func TestWhatAUserIsNotMeantToAskIsNoFault(t *testing.T) {
	u := broker.User{Name: "relay", Publish: []string{"payments.poll.*.normal", "$JS.API.STREAM.INFO.PAYMENTS_POLL"}}
	for _, c := range []struct {
		err    error
		beyond bool
	}{
		{&broker.PermissionError{Subject: "$JS.API.INFO"}, true},
		{fmt.Errorf("looking: %w", &broker.PermissionError{Subject: "$JS.API.STREAM.INFO.KV_pollux_fleet"}), true},
		{&broker.PermissionError{Subject: "$JS.API.STREAM.INFO.PAYMENTS_POLL"}, false},
		{&broker.PermissionError{Subject: "payments.poll.acme.normal"}, false},
		{&broker.PermissionError{Subject: "_INBOX_pollux_operator.x", Subscribe: true}, false},
		{context.DeadlineExceeded, false},
	} {
		if got := u.Beyond(c.err); got != c.beyond {
			t.Errorf("%v: %t", c.err, got)
		}
	}
}

func TestCredentialsSayWhenTheyEnd(t *testing.T) {
	write := func(claims string) string {
		file := filepath.Join(t.TempDir(), "user.creds")
		part := base64.RawURLEncoding.EncodeToString
		token := part([]byte(`{"typ":"JWT"}`)) + "." + part([]byte(claims)) + "." + part([]byte("signature"))
		text := "-----BEGIN NATS USER JWT-----\n" + token + "\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\nSUA\n------END USER NKEY SEED------\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	if at, err := broker.CredentialsEnd(write(`{"exp":1772366400,"sub":"U"}`)); err != nil || !at.Equal(time.Unix(1772366400, 0)) {
		t.Errorf("%s %v", at, err)
	}
	if at, err := broker.CredentialsEnd(write(`{"sub":"U"}`)); err != nil || !at.IsZero() {
		t.Errorf("%s %v", at, err)
	}
	for _, bad := range []string{write(`[]`), filepath.Join(t.TempDir(), "none")} {
		if _, err := broker.CredentialsEnd(bad); err == nil || strings.Contains(err.Error(), "SUA") {
			t.Errorf("%v", err)
		}
	}
}
