package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Probe asks whether the record is there, over a connection of its own: one that had to wait for a connection of the pool would call a busy process unready, and would
// take from it what it is short of. It is safe for concurrent use.
type Probe struct {
	pool *pgxpool.Pool // whose configuration is used; no connection of it is

	mu     sync.Mutex
	conn   *pgx.Conn // nil until it is asked, and after a failure
	closed bool
}

// NewProbe returns a probe of the database that a pool leads to. It connects when it is asked. The caller ends it with Close.
func NewProbe(pool *pgxpool.Pool) *Probe { return &Probe{pool: pool} }

// ErrReadOnly is the error of a database that takes no writes: a standby, perhaps one that was the primary a moment ago.
var ErrReadOnly = errors.New("the database takes no writes: it is a standby, or default_transaction_read_only is on; is database.url that of the primary?")

// Check returns an error unless the database answers, takes writes and has a schema that serves this build. Each failure closes the connection; the next call makes another.
func (p *Probe) Check(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.check(ctx)
	if err != nil {
		p.drop()
	}
	return err
}

func (p *Probe) check(ctx context.Context) error {
	if p.closed {
		return errors.New("reaching the database: it is not looked at any more")
	}
	if p.conn == nil {
		conn, err := p.connect(ctx)
		if err != nil {
			return describe("reaching the database", err)
		}
		p.conn = conn
	}
	var readOnly bool
	if err := p.conn.QueryRow(ctx, `select current_setting('transaction_read_only')::boolean`).Scan(&readOnly); err != nil {
		return describe("reaching the database", err)
	}
	if readOnly {
		return ErrReadOnly
	}
	return CheckSchema(ctx, p.conn)
}

func (p *Probe) connect(ctx context.Context) (*pgx.Conn, error) {
	pool := p.pool.Config()
	cfg := pool.ConnConfig.Copy()
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, cfg); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, cfg)
}

// farewell is how long a server may take to hear that a connection ends. One that hangs never does.
const farewell = 100 * time.Millisecond

func (p *Probe) drop() {
	if p.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	_ = p.conn.Close(ctx) // it is broken, or about to be
	p.conn = nil
}

// Close ends the connection. From then on Check returns an error.
func (p *Probe) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.drop()
}
