//go:build linux

package app

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/fleet"
	"pollux/internal/natstest"
	"pollux/internal/pgtest"
	"pollux/internal/telemetry"
)

// road leads to a server, and can be blocked: what is sent then goes nowhere, and no connection is refused or closed. So networks fail.
type road struct {
	listener net.Listener
	blocked  atomic.Bool
	mu       sync.Mutex
	conns    []net.Conn
}

func newRoad(t *testing.T, to string) *road {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &road{listener: l}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, near, far)
			r.mu.Unlock()
			tasks.Go(func() { r.carry(far, near) })
			tasks.Go(func() { r.carry(near, far) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.cut()
		tasks.Wait()
	})
	return r
}

func (r *road) carry(to, from net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			to.Close()
			return
		}
		if !r.blocked.Load() {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
	}
}

// cut closes all connections.
func (r *road) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// open lets everything through again. What was lost on the way stays lost, so that the old connections are useless.
func (r *road) open() {
	r.blocked.Store(false)
	r.cut()
}

// readiness is what /readyz says of each dependency; false for those that it does not name.
func (s *site) readiness() (code int, ready map[string]bool) {
	s.t.Helper()
	code, body := s.page("/readyz")
	var r telemetry.Report
	ready = map[string]bool{}
	if json.Unmarshal([]byte(body), &r) == nil {
		for _, c := range r.Checks {
			ready[c.Name] = c.Ready
		}
	}
	return code, ready
}

// stands waits until /readyz says this of the two dependencies, and that the process lives all the while. It has the checks made at once: that they are made often enough is
// tested in virtual time, beside them.
func (s *site) stands(p *Process, what string, database, broker bool) {
	s.t.Helper()
	eventually(s.t, "it is served", func() bool { code, _ := s.page("/healthz"); return code != 0 })
	eventually(s.t, what, func() bool {
		if code, body := s.page("/healthz"); code != http.StatusOK {
			s.t.Fatalf("%s: it is not live: %d %s", what, code, body)
		}
		p.Health.Refresh()
		code, ready := s.readiness()
		return ready["database"] == database && ready["broker"] == broker && (code == http.StatusOK) == (database && broker)
	})
}

// TestReadinessTellsTheTruthOfEachDependency takes the dependencies away in all the ways in which they go, and gives them back.
func TestReadinessTellsTheTruthOfEachDependency(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	database := pgtest.Server(t)
	direct := database.DSN("postgres")
	if err := migrated(t.Context(), direct); err != nil {
		t.Fatal(err)
	}
	nats := natstest.Start(t, natstest.Options{NoStreams: true})
	s.dsn, s.nats = direct, nats.URL()
	s.apply()
	toDatabase, toBroker := newRoad(t, hostOf(t, direct)), newRoad(t, hostOf(t, nats.URL()))
	s.dsn = strings.Replace(direct, hostOf(t, direct), toDatabase.listener.Addr().String(), 1)
	s.nats = "nats://" + toBroker.listener.Addr().String()

	made := make(chan *Process, 1)
	v := s.serveIn("consumer", s.config(), func(tel *telemetry.Telemetry) *Process {
		p := NewProcess(tel)
		made <- p
		return p
	}, Consumer)
	p := <-made
	s.stands(p, "all is well", true, true)

	thaw := freeze(t, database.PID())
	s.stands(p, "PostgreSQL is stopped: connections are open, and nobody answers", false, true)
	thaw()
	s.stands(p, "PostgreSQL goes on", true, true)

	toDatabase.blocked.Store(true)
	s.stands(p, "the network to PostgreSQL swallows everything", false, true)
	toDatabase.open()
	s.stands(p, "the network is well again", true, true)

	nats.Pause()
	s.stands(p, "NATS is killed", true, false)
	nats.MustResume()
	s.stands(p, "NATS is back", true, true)

	toBroker.blocked.Store(true)
	s.stands(p, "the network to NATS swallows everything", true, false)
	toBroker.open()
	s.stands(p, "the network is well again", true, true)

	database.Kill()
	nats.Pause()
	s.stands(p, "both are away", false, false)
	nats.MustResume()
	if err := database.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.stands(p, "both are back", true, true)
	if err := v.ends(); err != nil {
		t.Error(err)
	}
}

func hostOf(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func TestReadyWithABreakerOpen(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	s.dsn = pgtest.New(t, migrated)
	s.broker()
	cfg := s.config()
	conn, err := Dial(t.Context(), cfg, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	changes, err := fleet.Force(ctx, conn.KV(), fleet.Target{Gateway: "acme"}, cfg.Gateways["acme"].BreakerConfig(),
		breaker.Forced{Mode: breaker.Open, Actor: "ada", Reason: "test", Until: breaker.At(time.Now().Add(time.Hour))})
	if err != nil || len(changes) == 0 {
		t.Fatal(changes, err)
	}
	v := s.serve("consumer", Consumer)
	eventually(t, "it is ready", s.ready)
	if code, body := s.page("/readyz"); code != http.StatusOK || strings.Contains(body, "acme") {
		t.Errorf("a gateway is no dependency: %d %s", code, body)
	}
	if err := v.ends(); err != nil {
		t.Error(err)
	}
}
