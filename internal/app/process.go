package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/broker"
	"pollux/internal/outage"
	"pollux/internal/postgres"
	"pollux/internal/telemetry"
)

// Process is what a service runs in: how it is seen from outside, and how far it is with what it needs.
type Process struct {
	*telemetry.Telemetry
	// Started is called, unless it is nil, when a service of this process has what it needs and begins to work.
	Started func()
	// Listening is called, unless it is nil, when the receiver of notifications takes connections, with its address.
	Listening func(address net.Addr)

	database *dependency
	broker   *dependency
	live     live
}

// NewProcess returns a process that is not ready until its database and its broker were found and are as they must be. Call it
// before the telemetry runs.
func NewProcess(tel *telemetry.Telemetry) *Process {
	p := newRecordProcess(tel)
	tel.Health.Register(p.broker.name, checkTimeout, p.broker.check)
	return p
}

// newRecordProcess is NewProcess for a service that needs no broker.
func newRecordProcess(tel *telemetry.Telemetry) *Process {
	p := &Process{Telemetry: tel, database: &dependency{name: "database"}, broker: &dependency{name: "broker"}}
	tel.Health.Register(p.database.name, checkTimeout, p.database.check)
	return p
}

const (
	// checkTimeout bounds a look at a dependency for /readyz. Its answer takes milliseconds.
	checkTimeout = 2 * time.Second
	// askTimeout bounds one attempt to find a dependency.
	askTimeout = 5 * time.Second
)

// name is what a service of this process signs with: the name of the process, which its log has in every line. Where several services share a process, each has a name of its own, since
// a lease tells them apart by it.
func (p *Process) name(service string) string {
	if strings.HasPrefix(p.Instance, service+"@") {
		return p.Instance
	}
	return instance(service)
}

// begins says that a service begins to work.
func (p *Process) begins() {
	if p.Started != nil {
		p.Started()
	}
}

// dependency is something that a service waits for when it starts, and that is looked at from then on.
type dependency struct {
	name string

	mu  sync.Mutex
	ask func(context.Context) error // nil while it is waited for
	why error                       // why it is still waited for
}

// Why a dependency is not ready that did not fail.
var (
	errNotFoundYet = errors.New("not asked for yet")
	errStarting    = errors.New("it is there; the service is starting")
)

func (d *dependency) check(ctx context.Context) error {
	d.mu.Lock()
	ask, why := d.ask, d.why
	d.mu.Unlock()
	switch {
	case ask != nil:
		return ask(ctx)
	case why != nil:
		return why
	}
	return errNotFoundYet
}

func (d *dependency) set(ask func(context.Context) error, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ask, d.why = ask, why
}

// await asks until a dependency is there and as it must be, since an orchestrator starts everything at the same time. Each failure says what to
// run. A schema that this build does not fit is an error at once: no waiting mends it.
func (p *Process) await(ctx context.Context, d *dependency, ask func(context.Context) error) error {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond), backoff.WithMaxInterval(5*time.Second),
		backoff.WithMaxElapsedTime(0))
	waiting := outage.New(p.Log, outage.Words{Begins: "waiting for a dependency; it is tried again", Over: "the dependency is there",
		Hint: "pollux doctor says what is missing, and what mends it"})
	var last error
	err := backoff.RetryNotify(func() error {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		err := ask(ctx)
		if errors.Is(err, postgres.ErrSchema) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(b, ctx), func(err error, _ time.Duration) {
		last = err
		d.set(nil, err)
		p.Health.Refresh()
		waiting.Failed(ctx, d.name, err)
	})
	switch {
	case err != nil && last != nil && ctx.Err() != nil:
		return fmt.Errorf("waiting for the %s: %w (%w)", d.name, err, last)
	case err != nil:
		return err
	}
	waiting.Well(ctx, d.name)
	d.set(nil, errStarting)
	return nil
}

// found makes a dependency ready for as long as watch says so.
func (p *Process) found(d *dependency, watch func(context.Context) error) {
	d.set(watch, nil)
	p.Health.Refresh()
}

// seePool shows the connections to the database.
func (p *Process) seePool(pool *pgxpool.Pool) {
	p.Metrics.WatchPool(func() telemetry.Pool {
		s := pool.Stat()
		return telemetry.Pool{InUse: int(s.AcquiredConns()), Idle: int(s.IdleConns()), Max: int(s.MaxConns()), Waits: s.EmptyAcquireCount(), Waited: s.EmptyAcquireWaitTime()}
	})
}

// seeBroker shows the connection to the broker.
func (p *Process) seeBroker(conn *broker.Conn) {
	p.Metrics.WatchBroker(func() telemetry.Link {
		return telemetry.Link{Connected: conn.Connected(), Reconnects: conn.Reconnects()}
	})
}
