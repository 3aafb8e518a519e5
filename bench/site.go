package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/broker"
	"pollux/internal/gatewaysim"
	"pollux/internal/localpg"
	"pollux/internal/natsembed"
	"pollux/internal/postgres"
)

// bench is where it is measured: binaries built from this tree, and a PostgreSQL and a NATS as `make run` starts them.
type bench struct {
	runs  int
	dir   string
	pg    *localpg.Server
	nats  *natsembed.Server
	table *tabwriter.Writer
	made  int
}

func newBench(ctx context.Context, runs int) (_ *bench, err error) {
	b := &bench{runs: runs}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "pollux-bench-"); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", b.dir+"/", "./cmd/...")
	build.Dir, build.Stderr = "..", os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("building the binaries: %w", err)
	}
	bin, err := localpg.Ensure(ctx, func(s string) { fmt.Fprintln(os.Stderr, s) })
	if err != nil {
		return nil, err
	}
	// as production has them: durable
	b.pg, err = localpg.Start(ctx, localpg.Options{Bin: bin, Settings: map[string]string{"shared_buffers": "1GB", "max_wal_size": "4GB"}})
	if err != nil {
		return nil, err
	}
	b.nats, err = natsembed.Start(natsembed.Options{StoreDir: filepath.Join(b.dir, "jetstream")})
	return b, err
}

func (b *bench) close() {
	if b.nats != nil {
		_ = b.nats.Stop()
	}
	if b.pg != nil {
		_ = b.pg.Stop(context.Background())
	}
	_ = os.RemoveAll(b.dir)
}

// database makes an empty database with the schema and returns its URL.
func (b *bench) database(ctx context.Context) (string, error) {
	b.made++
	name := fmt.Sprintf("bench%d", b.made)
	admin, err := pgxpool.New(ctx, b.pg.DSN("postgres"))
	if err != nil {
		return "", err
	}
	defer admin.Close()
	if _, err := admin.Exec(ctx, "create database "+name); err != nil {
		return "", err
	}
	dsn := b.pg.DSN(name)
	_, err = postgres.Migrate(ctx, dsn)
	return dsn, err
}

// withPool opens a new database for fn.
func (b *bench) withPool(ctx context.Context, o postgres.Options, fn func(*pgxpool.Pool) error) error {
	dsn, err := b.database(ctx)
	if err != nil {
		return err
	}
	o.URL = dsn
	pool, err := postgres.Open(o)
	if err != nil {
		return err
	}
	defer pool.Close()
	return fn(pool)
}

// withBroker wipes the broker and opens a connection with all streams for fn.
func (b *bench) withBroker(ctx context.Context, fn func(*broker.Conn) error) error {
	if err := b.nats.Wipe(); err != nil {
		return err
	}
	conn, err := broker.Connect(ctx, broker.Config{URLs: []string{b.nats.URL()}, Name: "bench"}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Apply(ctx, broker.Options{}); err != nil {
		return err
	}
	return fn(conn)
}

// withGateway starts a gateway that answers each payment at once with its final status, after latency.
func withGateway(c gatewaysim.Conditions, fn func(*gatewaysim.Simulator) error) error {
	sim := gatewaysim.New(gatewaysim.Config{Adjust: func(gatewaysim.Conditions) gatewaysim.Conditions { return c }})
	if err := sim.Start("127.0.0.1:0"); err != nil {
		return err
	}
	return errors.Join(fn(sim), sim.Close())
}

// dev runs the launcher and returns its summary.
func (b *bench) dev(ctx context.Context, args ...string) (map[string]float64, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(b.dir, "dev"), append([]string{"--once", "-o", "json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("dev %v: %w", args, err)
	}
	var all map[string]any
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("dev %v: %w", args, err)
	}
	numbers := map[string]float64{}
	for name, v := range all {
		if f, ok := v.(float64); ok {
			numbers[name] = f
		}
	}
	return numbers, nil
}
