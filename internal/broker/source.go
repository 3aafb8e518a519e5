package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"

	"pollux/internal/consumer"
)

const (
	// heartbeat is how often the server says that a request for messages still stands. Twice and a half without a word and the
	// source looks what is the matter, so that a stream that was lost and made again is served within two seconds.
	heartbeat  = 500 * time.Millisecond
	silence    = heartbeat * 5 / 2
	pullExpiry = 30 * time.Second

	// longestPause is the longest time between two attempts to find the consumer again.
	longestPause = 500 * time.Millisecond
	// heldEvery is how often at the most the number of held messages is asked for.
	heldEvery = time.Second
)

// ErrSourceClosed is what Fetch returns after Close.
var ErrSourceClosed = errors.New("the source of deliveries is closed")

// Source takes deliveries of one queue. It is safe for concurrent use and implements consumer.Source.
//
// It keeps a standing request at the server for as many messages as it has room for, so that a message is here when it is published.
// nats.go's own Consume is not used: it ends for good when its consumer is deleted, takes some 25 seconds to notice that a stream
// was lost and made again, and on Stop leaves what it has fetched to AckWait.
type Source struct {
	conn  *Conn
	cfg   SubscribeConfig
	log   *slog.Logger
	stop  context.CancelFunc
	tasks sync.WaitGroup

	arrived chan struct{} // a word that the buffer is not empty
	closed  chan struct{}

	mu      sync.Mutex
	done    bool
	buffer  []*delivery
	session *session // nil while there is none

	held     atomic.Int64
	heldWish chan struct{}
}

// session is one subscription with its standing requests, from when the consumer was found until something is wrong with it.
type session struct {
	sub     *nats.Subscription
	trouble chan error // cap 1: why it has to end
	unwatch func()     // ends the watch for what the server forbids

	// Guarded by the source's mutex.
	asked int       // messages asked for and not here yet
	heard time.Time // when the server last said anything, or was last asked
	fed   bool      // it sent a message or a heartbeat
}

// Subscribe returns a source of a queue's deliveries. It makes the queue's consumer if it is missing; one that exists and
// differs from what it should be is an error that names each field, never changed. ctx bounds Subscribe alone. The caller ends the source with Close.
func (c *Conn) Subscribe(ctx context.Context, cfg SubscribeConfig) (*Source, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("subscribing to polls: %w", err)
	}
	info, differences, err := c.ensureConsumer(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("subscribing to polls: %w", err)
	}
	if len(differences) > 0 {
		return nil, fmt.Errorf("subscribing to polls: the consumer %s is not as it should be (%s); run: pollux streams diff",
			cfg.name(), summary(differences))
	}
	s := &Source{
		conn: c, cfg: cfg,
		log:     c.log.With("gateway", cfg.Queue.Gateway, "lane", cfg.Queue.Lane),
		arrived: make(chan struct{}, 1), closed: make(chan struct{}), heldWish: make(chan struct{}, 1),
	}
	s.held.Store(int64(info.NumAckPending))
	run, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.tasks.Go(func() { s.serve(run) })
	s.tasks.Go(func() { s.watchHeld(run) })
	return s, nil
}

// Fetch implements consumer.Source. Once the source or its connection is closed it returns an error at once.
func (s *Source) Fetch(ctx context.Context, n int) ([]consumer.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ds, err := s.take(max(n, 1))
		if err != nil || len(ds) > 0 {
			return ds, err
		}
		select {
		case <-s.arrived:
		case <-s.closed:
		case <-s.conn.closed:
			return nil, nats.ErrConnectionClosed
		case <-ctx.Done():
		}
	}
}

// take hands out up to n deliveries that are here and asks for as many new ones.
func (s *Source) take(n int) ([]consumer.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return nil, ErrSourceClosed
	}
	now := time.Now()
	var out []consumer.Delivery
	for len(s.buffer) > 0 && len(out) < n {
		d := s.buffer[0]
		s.buffer = s.buffer[1:]
		if d.fresh(now, s.cfg.AckWait) {
			out = append(out, d)
		}
	}
	s.ask(now)
	if len(s.buffer) > 0 {
		s.knock() // for another Fetch
	}
	return out, nil
}

func (s *Source) knock() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// ask asks for messages when there is room for half of the prefetch or more. s.mu is held.
func (s *Source) ask(now time.Time) {
	if s.session == nil {
		return
	}
	pending, prefetch := len(s.buffer)+s.session.asked, s.cfg.Prefetch
	if s.cfg.Wanted != nil {
		prefetch = min(prefetch, max(s.cfg.Wanted(), 1))
	}
	if pending > prefetch/2 {
		return
	}
	n := prefetch - pending
	body, err := json.Marshal(pullRequest{Batch: n, Expires: pullExpiry, Heartbeat: heartbeat})
	if err == nil {
		err = s.conn.nc.PublishRequest(nextSubject(s.cfg.stream(), s.cfg.name()), s.session.sub.Subject, body)
	}
	if err != nil {
		s.session.fail(fmt.Errorf("asking for messages: %w", err))
		return
	}
	if s.session.asked == 0 {
		s.session.heard = now // silence counts from here: nothing was asked for before
	}
	s.session.asked += n
}

// pullRequest is the body of a request for messages; durations are in nanoseconds.
type pullRequest struct {
	Batch     int           `json:"batch"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

// serve keeps a session going until the source is closed.
func (s *Source) serve(ctx context.Context) {
	pause := patience(longestPause)
	for {
		fed, err := s.run(ctx)
		if ctx.Err() != nil || errors.Is(err, nats.ErrConnectionClosed) {
			return
		}
		s.conn.interrupted.Failed(ctx, s.part(), err)
		if fed {
			pause.Reset()
		} else if sleep(ctx, pause.NextBackOff()) != nil { // it did not work at all: not at once again
			return
		}
		if s.find(ctx) != nil {
			return
		}
	}
}

// part is the queue as lines about interruptions name it.
func (s *Source) part() string { return s.cfg.Queue.Gateway + "/" + s.cfg.Queue.Lane }

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// run is one session. It reports whether the server served it, and why it ended.
func (s *Source) run(ctx context.Context) (fed bool, err error) {
	ses, err := s.open()
	if err != nil {
		return false, err
	}
	err = s.watch(ctx, ses)
	return s.endSession(ses), err
}

// find waits until the consumer is there, making it if need be.
func (s *Source) find(ctx context.Context) error {
	look := func() error {
		_, differences, err := s.conn.ensureConsumer(ctx, s.cfg)
		if err == nil && len(differences) > 0 {
			s.log.Error("the consumer is not as it should be; run: pollux streams diff", "differences", summary(differences))
		}
		if errors.Is(err, nats.ErrConnectionClosed) {
			return backoff.Permanent(err)
		}
		return err
	}
	notify := func(err error, _ time.Duration) { s.conn.interrupted.Failed(ctx, s.part(), err) }
	return backoff.RetryNotify(look, backoff.WithContext(patience(longestPause), ctx), notify)
}

// open subscribes and asks for the first messages.
func (s *Source) open() (*session, error) {
	ses := &session{trouble: make(chan error, 1), heard: time.Now()}
	sub, err := s.conn.nc.Subscribe(s.conn.nc.NewInbox(), func(m *nats.Msg) { s.receive(ses, m) })
	if err != nil {
		return nil, fmt.Errorf("subscribing: %w", err)
	}
	ses.sub = sub
	ses.unwatch = s.conn.forbids.watch(ses.fail, nextSubject(s.cfg.stream(), s.cfg.name()))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = ses
	s.ask(time.Now())
	return ses, nil
}

// watch returns why the session has to end.
func (s *Source) watch(ctx context.Context, ses *session) error {
	status := s.conn.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer s.conn.nc.RemoveStatusListener(status)
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ses.trouble:
			return err
		case st := <-status:
			if st == nats.CLOSED {
				return nats.ErrConnectionClosed
			}
			return errors.New("the connection was made again; requests of before are forgotten")
		case now := <-tick.C:
			fed, silent := s.state(ses, now)
			if silent {
				return fmt.Errorf("no heartbeat for %s", silence)
			}
			if fed { // and not when the consumer was found: a server that shuts down answers that still
				s.conn.interrupted.Well(ctx, s.part())
			}
		}
	}
}

// state reports whether the server served a session, and whether it has said nothing for too long.
func (s *Source) state(ses *session, now time.Time) (fed, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ses.fed, ses.asked > 0 && now.Sub(ses.heard) > silence
}

// endSession takes the session out of use and reports whether the server ever served it. What is on its way to us still arrives.
func (s *Source) endSession(ses *session) (fed bool) {
	s.mu.Lock()
	if s.session == ses {
		s.session = nil
	}
	fed = ses.fed
	s.mu.Unlock()
	ses.unwatch()
	ses.leave(s.conn)
	return fed
}

// leave ends the subscription. With a connection it waits for what the server has already sent.
func (ses *session) leave(c *Conn) {
	if !c.Connected() {
		_ = ses.sub.Unsubscribe() // fails only when the connection is closed, and the subscription with it
		return
	}
	gone := make(chan struct{})
	ses.sub.SetClosedHandler(func(string) { close(gone) })
	if ses.sub.Drain() != nil {
		return // closed, as above
	}
	select {
	case <-gone:
	case <-time.After(2 * time.Second):
	}
}

func (ses *session) fail(err error) {
	select {
	case ses.trouble <- err:
	default:
	}
}

// receive is called by nats.go for everything that arrives in a session, one after the other.
func (s *Source) receive(ses *session, m *nats.Msg) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	ses.heard = now
	if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 {
		s.control(ses, status, m.Header)
		s.ask(now)
		return
	}
	ses.asked, ses.fed = max(ses.asked-1, 0), true
	d := &delivery{conn: s.conn.nc, msg: m, at: now}
	if s.done {
		_ = d.Return(0) // the source is closing; a connection that is lost gives it back too
		return
	}
	s.buffer = append(s.buffer, d)
	s.knock()
}

// control reads what the server says about our requests. s.mu is held.
func (s *Source) control(ses *session, status string, h nats.Header) {
	switch status {
	case "100": // a heartbeat
		ses.fed = true
	case "408": // a request ran out; the header says how many messages of it did not come
		left, err := strconv.Atoi(h.Get("Nats-Pending-Messages"))
		if err != nil {
			ses.fail(errors.New("the server ended a request for messages without saying how many are open"))
			return
		}
		ses.asked = max(ses.asked-left, 0)
	case "503":
		ses.fail(errors.New("nobody answers requests for messages: the consumer, its stream or JetStream is away"))
	default: // consumer deleted, leadership changed, server shutting down, a limit of requests: begin anew
		ses.fail(fmt.Errorf("the server ended a request for messages: %s %s", status, h.Get("Description")))
	}
}

// Held implements consumer.Source. It never waits: the number is refreshed in the background, once a second at the most and only while asked for.
func (s *Source) Held() int {
	select {
	case s.heldWish <- struct{}{}:
	default:
	}
	return int(s.held.Load())
}

func (s *Source) watchHeld(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.heldWish:
		}
		s.refreshHeld(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(heldEvery):
		}
	}
}

// refreshHeld keeps the last number when the server cannot be asked: the source itself notices that and says so.
func (s *Source) refreshHeld(ctx context.Context) {
	if !s.conn.Connected() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	c, err := s.conn.js.Consumer(ctx, s.cfg.stream(), s.cfg.name())
	if err != nil {
		return
	}
	s.held.Store(int64(c.CachedInfo().NumAckPending))
}

// Close stops the source and gives back at once what it has fetched and not handed out. Deliveries that were handed out can still be
// acknowledged. It may be called again.
func (s *Source) Close() error {
	s.mu.Lock()
	if s.done {
		s.mu.Unlock()
		s.tasks.Wait()
		return nil
	}
	s.done = true
	rest := s.buffer
	s.buffer = nil
	close(s.closed)
	s.mu.Unlock()

	s.stop()
	s.tasks.Wait() // the session drains; what still arrives is given back as it comes
	var errs []error
	for _, d := range rest {
		errs = append(errs, d.Return(0))
	}
	if s.conn.Connected() {
		errs = append(errs, s.conn.nc.FlushTimeout(2*time.Second))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("giving back %d deliveries that were not begun: %w", len(rest), err)
	}
	return nil
}
