package gatewaysim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Simulator is a payment gateway. Make one with New. It is safe for concurrent use.
type Simulator struct {
	cfg       Config
	broken    error  // what is wrong with cfg
	bearer    []byte // the Authorization header that opens it
	book      *book
	journal   *journal
	meter     *meter
	outcomes  [outcomes]atomic.Int64
	trapped   atomic.Int64 // redirects that a client followed
	leaked    atomic.Int64 // and brought the key along
	climate   atomic.Pointer[climate]
	forced    atomic.Pointer[forcedDown]
	generated generated
	admin     http.Handler

	closing   chan struct{} // closed when calls that are being waited for are to end
	closeOnce sync.Once
	server    *http.Server // nil until Start
	served    chan struct{}
	url       string
}

// forcedDown is a time of being down that somebody asked for while the simulator was running.
type forcedDown struct {
	until time.Time
	with  Outcome
}

// New makes a simulator. It already answers through Handler; Start gives it an address. What is wrong with the configuration is
// said by Start.
func New(cfg Config) *Simulator {
	cfg = cfg.withDefaults()
	s := &Simulator{
		cfg:     cfg,
		broken:  cfg.validate(),
		bearer:  []byte("Bearer " + cfg.APIKey),
		book:    newBook(cfg.Capacity, cfg.Seed),
		journal: newJournal(cfg.LogLimit),
		meter:   &meter{begun: time.Now()},
		closing: make(chan struct{}),
	}
	s.admin = s.adminHandler()
	s.climate.Store(newClimate(DefaultScenario, Conditions{}, time.Now()))
	s.broken = errors.Join(s.broken, s.SetScenario(cfg.Scenario))
	return s
}

// SetScenario sets the conditions of the scenario of that name, adjusted as configured. Its windows count from now, and its token
// bucket is full. Payments stay as they are.
func (s *Simulator) SetScenario(name string) error {
	scenario, err := ScenarioNamed(name)
	if err != nil {
		return err
	}
	c := scenario.Conditions
	if s.cfg.Adjust != nil {
		c = s.cfg.Adjust(c)
	}
	return s.set(name, c)
}

// SetConditions sets conditions that are no scenario's. Their windows count from now.
func (s *Simulator) SetConditions(c Conditions) error { return s.set("custom", c) }

func (s *Simulator) set(name string, c Conditions) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("scenario %s: %w", name, err)
	}
	s.climate.Store(newClimate(name, c, time.Now()))
	return nil
}

// Scenario returns the name of the scenario that is set, "custom" for conditions that are no scenario's.
func (s *Simulator) Scenario() string { return s.climate.Load().scenario }

// Down takes the gateway down from now for that long, on top of what the conditions say; 0 or less brings it up again. It fails
// calls with Reset, which is the default, with Unavailable or with Timeout; anything else is an error.
func (s *Simulator) Down(d time.Duration, with Outcome) error {
	if err := validateDown(with); err != nil {
		return err
	}
	s.forced.Store(&forcedDown{until: time.Now().Add(d), with: downWith(with)})
	return nil
}

// Well returns since when the gateway has been well at an instant: the last end before it of a time in which it was down, slow or refused its key, and false
// when the present conditions have had no such time, or are in one. What Down did is not looked at.
func (s *Simulator) Well(at time.Time) (time.Time, bool) {
	c := s.climate.Load()
	return c.well(at)
}

// downAt returns how the gateway is down at that time, Answered when it is up.
func (s *Simulator) downAt(c *climate, now time.Time) Outcome {
	if f := s.forced.Load(); f != nil && now.Before(f.until) {
		return f.with
	}
	return c.down(now.Sub(c.since))
}

// Start listens on addr, whose port may be 0, and serves until Close. The conditions' windows count from here. Unless
// Config.AllowRemote is set, addr has to be a loopback address.
func (s *Simulator) Start(addr string) error {
	if s.broken != nil {
		return fmt.Errorf("gateway simulator: %w", s.broken)
	}
	if s.server != nil {
		return errors.New("gateway simulator: started already")
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("gateway simulator: %w", err)
	}
	bound := l.Addr().(*net.TCPAddr)
	if !s.cfg.AllowRemote && !bound.IP.IsLoopback() {
		_ = l.Close()
		return fmt.Errorf("gateway simulator: %s is not a loopback address, and anybody could ask it; --allow-remote permits that", addr)
	}
	s.serve(l)
	s.url = "http://" + reachable(bound)
	c := *s.climate.Load()
	s.climate.Store(newClimate(c.scenario, c.Conditions, time.Now()))
	return nil
}

// serve runs the server. It logs nothing: what clients do wrong is in the request log.
func (s *Simulator) serve(l net.Listener) {
	s.server = &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	s.served = make(chan struct{})
	go func() {
		defer close(s.served)
		_ = s.server.Serve(l) // always an error, and after Close never another one
	}()
}

// reachable is an address to call a listener at: the unspecified address is reached through loopback.
func reachable(bound *net.TCPAddr) string {
	if bound.IP.IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", bound.Port)
	}
	return bound.String()
}

// URL is where the gateway is, without a slash at the end: http://127.0.0.1:8089. It is empty before Start.
func (s *Simulator) URL() string { return s.url }

// Handler returns the gateway as a handler, for a server of one's own.
func (s *Simulator) Handler() http.Handler { return s }

// closeTimeout bounds what Close waits for answers that are being written.
const closeTimeout = 2 * time.Second

// Close ends what is being waited for, lets answers that are being written finish, and stops listening. Closing it again, or one
// that was never started, does no harm.
func (s *Simulator) Close() error {
	s.closeOnce.Do(func() { close(s.closing) })
	if s.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := s.server.Shutdown(ctx); err != nil {
		_ = s.server.Close() // a client that reads too slowly
	}
	<-s.served
	return nil
}
