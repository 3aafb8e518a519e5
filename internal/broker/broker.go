// Package broker is the adapter to NATS: it publishes to JetStream, takes deliveries from it and looks after the streams. All
// NATS code is here.
package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/message"
	"pollux/internal/outage"
	"pollux/internal/outbox"
)

const (
	// requestTimeout bounds one request to the JetStream API when its caller's context does not bound it more.
	requestTimeout = 5 * time.Second
	// closeTimeout is how long Close waits for what is under way.
	closeTimeout = 5 * time.Second
)

// ErrNotConnected is why nothing was sent: there is no connection at the moment. It comes back by itself.
var ErrNotConnected = errors.New("not connected to NATS")

// Conn is a connection to NATS. It is safe for concurrent use and reconnects for ever, until Close.
type Conn struct {
	cfg    Config
	log    *slog.Logger
	nc     *nats.Conn
	made   atomic.Pointer[nats.Conn] // nc, for what nats.go calls while Connect has not returned yet
	js     jetstream.JetStream
	acks   *exchange
	seed   *seed         // who we are, where that is an nkey
	closed chan struct{} // closed when nats.go has closed the connection for good

	away        *outage.Log // the connection
	interrupted *outage.Log // deliveries, by queue

	forbids forbids // what the server forbids us

	mu      sync.Mutex
	closing bool
	last    error           // why there is no connection, of the last attempt; nil while there is one
	paces   map[string]pace // by stream
}

// Connect waits until the first connection is there, trying again for as long as ctx lives; what cannot come right by
// trying again (a missing file, refused credentials) is an error at once. Afterwards lost connections come back by
// themselves. The caller ends it with Close.
func Connect(ctx context.Context, cfg Config, log *slog.Logger) (*Conn, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuration of NATS: %w", err)
	}
	cfg = cfg.withDefaults()
	opts, seed, err := cfg.options()
	if err != nil {
		return nil, fmt.Errorf("configuration of NATS: %w", err)
	}
	c := &Conn{
		cfg: cfg, log: log, seed: seed, acks: newExchange(cfg.MaxOutstanding),
		closed: make(chan struct{}), paces: map[string]pace{},
		away: outage.New(log, outage.Words{Begins: "NATS is away; it is tried again", Over: "connected to NATS again", Hint: natsHint}),
		interrupted: outage.New(log, outage.Words{Begins: "deliveries interrupted; payments wait in their streams and rows", Over: "deliveries resumed",
			Hint: natsHint + " pollux streams diff says whether the streams are as they must be"}),
	}
	if c.nc, err = c.dial(ctx, append(opts, c.handlers()...)); err != nil {
		return nil, err
	}
	c.made.Store(c.nc)
	if seed != nil {
		seed.conn.Store(c.nc)
	}
	if err := c.start(); err != nil {
		c.nc.Close()
		return nil, fmt.Errorf("setting up the connection to NATS: %w", err)
	}
	return c, nil
}

// dial is RetryOnFailedConnect with the errors in sight: nats.go keeps those of its own first attempts to itself.
func (c *Conn) dial(ctx context.Context, opts []nats.Option) (*nats.Conn, error) {
	var nc *nats.Conn
	var last error
	servers := strings.Join(c.cfg.URLs, ",")
	try := func() (err error) {
		nc, err = nats.Connect(servers, opts...)
		last = err
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
			return backoff.Permanent(err)
		}
		return err
	}
	notify := func(err error, _ time.Duration) { c.away.Failed(ctx, servers, c.hinted(err)) }
	if err := backoff.RetryNotify(try, backoff.WithContext(patience(5*time.Second), ctx), notify); err != nil {
		why := cmp.Or(last, err)
		if !errors.Is(err, why) {
			err = fmt.Errorf("%w (last attempt: %w)", err, why)
		}
		return nil, fmt.Errorf("connecting to NATS at %s: %w", servers, &hinted{err, cmp.Or(c.hint(why), natsHint)})
	}
	c.away.Well(ctx, servers)
	return nc, nil
}

// patience returns delays that grow from 50ms to about longest and never end. They are for a loop that a context ends: the
// library's own default would give up after 15 minutes by returning a negative delay.
func patience(longest time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(longest),
		backoff.WithMaxElapsedTime(0),
	)
}

func (c *Conn) start() (err error) {
	if c.js, err = jetstream.New(c.nc, jetstream.WithDefaultTimeout(requestTimeout)); err != nil {
		return err
	}
	if err := c.acks.listen(c.nc); err != nil {
		return err
	}
	return c.hears()
}

// hears finds out at once whether the server lets us read answers: it says no before it answers the flush. A connection that is lost meanwhile comes back by itself.
func (c *Conn) hears() error {
	_ = c.nc.FlushTimeout(requestTimeout)
	if no := c.violation(c.nc.LastError()); no != nil {
		return no
	}
	return nil
}

// handlers are what nats.go calls from a goroutine of its own, one after the other.
func (c *Conn) handlers() []nats.Option {
	reconnecting := false
	return []nats.Option{
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			reconnecting = true
			if c.why() == nil { // the server may have said beforehand why it ends the connection
				c.lost(cmp.Or(err, errConnectionLost))
			}
			c.forbids.forget()
			c.acks.abandon(errConnectionLost)
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { c.lost(err) }),
		nats.CustomReconnectDelay(func(int) time.Duration {
			// Of a server that answers and refuses TLS or the user nats.go tells nobody, but keeps the error until the next attempt.
			if nc := c.made.Load(); nc != nil && nc.LastError() != nil {
				c.lost(nc.LastError())
			}
			return reconnectWait + rand.N(reconnectJitter)
		}),
		nats.ReconnectHandler(func(*nats.Conn) {
			reconnecting = false
			c.found()
			c.away.Well(context.Background(), "connection")
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
		nats.ErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
			switch {
			case !refused(err):
				c.asyncError(nc, sub, err)
			case !reconnecting: // otherwise it is that of an attempt to connect
				c.lost(err)
			}
		}),
	}
}

// Connected reports whether there is a connection at the moment.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// Reconnects is how often a lost connection was made again.
func (c *Conn) Reconnects() uint64 { return c.nc.Stats().Reconnects }

// Close lets what is under way finish, at most five seconds long, and closes the connection. Sources must be closed before. It may
// be called again.
func (c *Conn) Close() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	if err := c.nc.Drain(); err != nil {
		c.nc.Close()
	}
	select {
	case <-c.closed:
	case <-time.After(closeTimeout + time.Second):
		c.nc.Close()
		<-c.closed
	}
	c.acks.abandon(nats.ErrConnectionClosed)
}

// Backlog returns how many messages of a queue wait undelivered, and false when its consumer does not exist. It is one request.
func (c *Conn) Backlog(ctx context.Context, q outbox.Queue) (n int, exists bool, err error) {
	name := message.ConsumerName(q.Gateway, q.Lane)
	if !c.Connected() {
		return 0, false, c.notConnected()
	}
	ctx, named := c.asking(ctx, consumerInfo(message.StreamPoll, name))
	consumer, err := c.js.Consumer(ctx, message.StreamPoll, name)
	err = named(err)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("asking for the backlog of the consumer %s: %w", name, err)
	}
	return int(consumer.CachedInfo().NumPending), true, nil
}

// stream asks for a stream. It is one request.
func (c *Conn) stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if !c.Connected() {
		return nil, c.notConnected()
	}
	ctx, named := c.asking(ctx, streamInfo(name))
	s, err := c.js.Stream(ctx, name)
	err = named(err)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("the stream %s does not exist; run: pollux streams apply", name)
	}
	if err != nil {
		return nil, fmt.Errorf("asking for the state of the stream %s: %w", name, err)
	}
	return s, nil
}

// CheckStream returns an error unless there is a connection and, there, the stream. It reads no message, so that every user may ask. It is one request.
func (c *Conn) CheckStream(ctx context.Context, name string) error {
	_, err := c.stream(ctx, name)
	return err
}

// Stream returns the state of a stream, for which it reads the last message and those at the marks; of our users, only the relay's may. It is a request for each, and one more.
func (c *Conn) Stream(ctx context.Context, name string, marks ...outbox.Mark) (outbox.StreamState, error) {
	s, err := c.stream(ctx, name)
	if err != nil {
		return outbox.StreamState{}, err
	}
	info := s.CachedInfo()
	state := outbox.StreamState{Name: name, Created: info.Created, LastSequence: info.State.LastSeq}
	if state.LastID, err = c.idAt(ctx, s, state.LastSequence); err != nil {
		return outbox.StreamState{}, fmt.Errorf("reading the last message of the stream %s: %w", name, err)
	}
	for _, m := range marks {
		id := state.LastID
		if m.Sequence < state.LastSequence {
			if id, err = c.idAt(ctx, s, m.Sequence); err != nil {
				return outbox.StreamState{}, fmt.Errorf("reading a message of the stream %s: %w", name, err)
			}
		}
		state.Replaced = state.Replaced || m.Sequence > state.LastSequence || id != "" && m.ID != "" && id != m.ID
	}
	return state, nil
}

// idAt is the id of the message at a sequence, empty when there is none, or none any more.
func (c *Conn) idAt(ctx context.Context, s jetstream.Stream, sequence uint64) (string, error) {
	if sequence == 0 {
		return "", nil
	}
	name := s.CachedInfo().Config.Name
	ctx, named := c.asking(ctx, messageGet(name), directGet(name))
	m, err := s.GetMsg(ctx, sequence)
	err = named(err)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return m.Header.Get(jetstream.MsgIDHeader), nil
}
