package broker

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"pollux/internal/doctor"
	"pollux/internal/message"
	"pollux/streams"
)

// What follows gathers facts for the doctor. It changes nothing.

// Hub tells which server this connection leads to.
func (c *Conn) Hub(context.Context) (doctor.Hub, error) {
	if !c.Connected() {
		return doctor.Hub{}, c.notConnected()
	}
	h := doctor.Hub{
		Version: c.nc.ConnectedServerVersion(), Name: c.nc.ConnectedServerName(), Cluster: c.nc.ConnectedClusterName(),
		Servers: len(c.nc.Servers()), Auth: c.nc.AuthRequired(), Peer: doctor.Peer{Local: c.cfg.InProcess != nil || isLocal(c.nc.ConnectedUrl())},
	}
	if state, err := c.nc.TLSConnectionState(); err == nil {
		h.Peer.Secure = true
		h.Peer.Certificates = certificates(state)
	}
	return h, nil
}

func certificates(state tls.ConnectionState) []doctor.Certificate {
	var all []doctor.Certificate
	for _, cert := range state.PeerCertificates {
		all = append(all, doctor.Certificate{Where: "broker", Subject: cert.Subject.String(), NotAfter: cert.NotAfter})
	}
	return all
}

// isLocal reports whether a URL leads to this machine.
func isLocal(raw string) bool {
	u, err := url.Parse(raw)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// clockReadings is how often a clock is read: the quickest answer says most.
const clockReadings = 5

// Clock tells how far the clock of the stream of polls is from ours: of the server that leads it.
func (c *Conn) Clock(ctx context.Context) (doctor.Clock, error) {
	return doctor.ReadClock(clockReadings, func() (time.Time, error) {
		var r struct {
			At    time.Time `json:"ts"`
			Error *apiError `json:"error"`
		}
		if err := c.KV().request(ctx, streamInfo(message.StreamPoll), nil, &r); err != nil {
			return time.Time{}, fmt.Errorf("reading the broker's clock: %w", err)
		}
		switch {
		case r.Error != nil:
			return time.Time{}, fmt.Errorf("reading the broker's clock: %w", r.Error)
		case r.At.IsZero():
			return time.Time{}, errors.New("reading the broker's clock: this server does not tell it, it is older than 2.10")
		}
		return r.At, nil
	})
}

// Drift tells what is not as declared of the streams and their consumers, with those of the readers. It does not look at the fleet's bucket (FleetDrift).
func (c *Conn) Drift(ctx context.Context, o Options) ([]doctor.Difference, error) {
	found, err := c.Diff(ctx, o)
	if err != nil {
		return nil, err
	}
	readers, err := c.MissingReaders(ctx, o.Readers)
	if err != nil {
		return nil, err
	}
	found = append(found, readers...)
	ds := make([]doctor.Difference, 0, len(found))
	for _, d := range found {
		ds = append(ds, doctor.Difference{Stream: d.Stream, Consumer: d.Consumer, Field: d.Field, Have: d.Have, Want: d.Want, Blocked: d.Blocked})
	}
	return ds, nil
}

// FleetDrift tells whether the fleet's bucket is as it should be.
func (c *Conn) FleetDrift(ctx context.Context) ([]doctor.Difference, error) {
	err := c.CheckKV(ctx)
	differs, ok := errors.AsType[*BucketError](err)
	switch {
	case ok && differs.Missing:
		return []doctor.Difference{{Stream: FleetBucket}}, nil
	case ok:
		return []doctor.Difference{{Stream: FleetBucket, Field: "the bucket", Have: "one that " + differs.Why, Want: "as the fleet needs it"}}, nil
	}
	return nil, err
}

// Streams tells of the streams that there are.
func (c *Conn) Streams(ctx context.Context) ([]doctor.Stream, error) {
	var all []doctor.Stream
	for _, d := range streams.Definitions() {
		asked, named := c.asking(ctx, streamInfo(d.Name))
		s, err := c.js.Stream(asked, d.Name)
		if err = named(err); errors.Is(err, jetstream.ErrStreamNotFound) {
			continue // it is a difference
		}
		if err != nil {
			return nil, fmt.Errorf("looking at the stream %s: %w", d.Name, err)
		}
		all = append(all, streamOf(s.CachedInfo()))
	}
	return all, nil
}

// muchLag is by how many operations a replica may be behind that keeps up: they come in batches of a thousand.
const muchLag = 10_000

func streamOf(i *jetstream.StreamInfo) doctor.Stream {
	s := doctor.Stream{
		Name: i.Config.Name, Retention: word(i.Config.Retention), Discard: word(i.Config.Discard), Storage: word(i.Config.Storage), Replicas: i.Config.Replicas,
		MaxAge: i.Config.MaxAge, DuplicateWindow: i.Config.Duplicates,
		Messages: int64(i.State.Msgs), Bytes: int64(i.State.Bytes), MaxMessages: i.Config.MaxMsgs, MaxBytes: i.Config.MaxBytes, //nolint:gosec // below 2^63
	}
	if i.Cluster != nil && i.Cluster.Name != "" {
		s.Clustered, s.Leader = true, i.Cluster.Leader
		for _, r := range i.Cluster.Replicas {
			switch {
			case r.Offline:
				s.Offline = append(s.Offline, r.Name)
			case !r.Current && r.Lag > muchLag:
				s.Lagging = append(s.Lagging, r.Name)
			}
		}
	}
	return s
}

// Consumers tells of all consumers that take polls, whoever made them.
func (c *Conn) Consumers(ctx context.Context) ([]doctor.Consumer, error) {
	var all []doctor.Consumer
	for _, name := range []string{message.StreamPoll, message.StreamDeferred} {
		found, err := c.consumersOf(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("listing the consumers of %s: %w", name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func (c *Conn) consumersOf(ctx context.Context, stream string) (all []doctor.Consumer, err error) {
	ctx, named := c.asking(ctx, streamInfo(stream), consumerList(stream))
	s, err := c.js.Stream(ctx, stream)
	if err != nil {
		if err = named(err); errors.Is(err, jetstream.ErrStreamNotFound) {
			err = nil // it is a difference
		}
		return nil, err
	}
	list := s.ListConsumers(ctx)
	for info := range list.Info() {
		all = append(all, consumerOf(info))
	}
	return all, named(list.Err())
}

func consumerOf(i *jetstream.ConsumerInfo) doctor.Consumer {
	c := doctor.Consumer{
		Stream: i.Stream, Name: i.Name, AckPolicy: word(i.Config.AckPolicy), AckWait: i.Config.AckWait, MaxDeliver: i.Config.MaxDeliver, BackOff: i.Config.BackOff,
		MaxAckPending: i.Config.MaxAckPending, Push: i.Config.DeliverSubject != "",
		Pending: int64(i.NumPending), AckPending: int64(i.NumAckPending), Waiting: i.NumWaiting, //nolint:gosec // below 2^63
	}
	if queue, ok := strings.CutPrefix(i.Name, "poll_"); ok {
		if at := strings.LastIndex(queue, "_"); at > 0 {
			c.Gateway, c.Lane = queue[:at], queue[at+1:]
		}
	}
	if gateway, ok := strings.CutPrefix(i.Name, "deferred_"); ok {
		c.Gateway, c.Lane = gateway, message.LaneDeferred
	}
	return c
}

// Account tells how much of what our account may store is used.
func (c *Conn) Account(ctx context.Context) (doctor.Account, error) {
	ctx, named := c.asking(ctx, accountInfo)
	info, err := c.js.AccountInfo(ctx)
	err = named(err)
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return doctor.Account{Off: err.Error()}, nil
	}
	if err != nil {
		return doctor.Account{}, fmt.Errorf("asking for the limits of the account: %w", err)
	}
	a := doctor.Account{Limits: limitsOf("", info.Tier)}
	for name, tier := range info.Tiers {
		a.Limits = append(a.Limits, limitsOf(name+" ", tier)...)
	}
	return a, nil
}

func limitsOf(tier string, t jetstream.Tier) []doctor.Limit {
	return []doctor.Limit{
		{Name: tier + "storage", Used: int64(t.Store), Max: t.Limits.MaxStore, Bytes: true},  //nolint:gosec // below 2^63
		{Name: tier + "memory", Used: int64(t.Memory), Max: t.Limits.MaxMemory, Bytes: true}, //nolint:gosec // below 2^63
		{Name: tier + "streams", Used: int64(t.Streams), Max: int64(t.Limits.MaxStreams)},
		{Name: tier + "consumers", Used: int64(t.Consumers), Max: int64(t.Limits.MaxConsumers)},
	}
}

// ReadDisk asks the monitoring page of a server, http://host:8222, how it syncs its disk. An empty page is not asked.
func ReadDisk(ctx context.Context, page string) (doctor.Disk, error) {
	if page == "" {
		return doctor.Disk{}, nil
	}
	const doing = "reading the monitoring page of NATS"
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(page, "/")+"/jsz", nil)
	if err != nil {
		return doctor.Disk{}, fmt.Errorf("%s: %w", doing, err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	if err != nil {
		return doctor.Disk{}, fmt.Errorf("%s: %w", doing, err)
	}
	defer resp.Body.Close()
	var jsz struct {
		Config struct {
			Interval time.Duration `json:"sync_interval"`
			Always   bool          `json:"sync_always"`
		} `json:"config"`
	}
	const longest = 1 << 20
	if err := json.NewDecoder(io.LimitReader(resp.Body, longest)).Decode(&jsz); err != nil || resp.StatusCode != http.StatusOK {
		return doctor.Disk{}, fmt.Errorf("%s: it is not the page /jsz of a NATS server, status %d", doing, resp.StatusCode)
	}
	return doctor.Disk{Asked: true, Always: jsz.Config.Always, Interval: jsz.Config.Interval}, nil
}

// CredentialsEnd returns when the JWT in a credentials file ends; the zero time when it never does.
func CredentialsEnd(file string) (time.Time, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the credentials: %w", err)
	}
	wrong := fmt.Errorf("reading the credentials: %s is no credentials file as nsc writes it", file)
	token, err := nkeys.ParseDecoratedJWT(content)
	if err != nil {
		return time.Time{}, wrong
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}, wrong
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Expires int64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return time.Time{}, wrong
	}
	if claims.Expires == 0 {
		return time.Time{}, nil
	}
	return time.Unix(claims.Expires, 0).UTC(), nil
}
