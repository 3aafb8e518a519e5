package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pollux"
	"pollux/internal/natsembed"
)

// What is measured: so many payments, tracked at this rate. The gateway of the launcher says of every second one once that it is still pending.
const (
	costPayments = 20_000
	costPerTenth = 100
)

// cost measures what a payment costs each component, every one a process of its own: processor time, memory, disk. What they cost while there is
// nothing to do is measured before and taken off.
func cost(ctx context.Context, b *bench) error {
	if runtime.GOOS != "linux" {
		fmt.Fprintln(b.table, "only on Linux")
		return nil
	}
	figures := map[string]*figure{}
	add := func(name, unit string, v float64) {
		if figures[name] == nil {
			figures[name] = &figure{name: name, unit: unit}
		}
		figures[name].runs = append(figures[name].runs, v)
	}
	for range b.runs {
		if err := b.costOnce(ctx, add); err != nil {
			return err
		}
	}
	for _, name := range costNames {
		if f := figures[name]; f != nil {
			b.print(*f)
		}
	}
	return nil
}

// costNames are the figures in the order of the page that quotes them.
var costNames = []string{
	"polls of a payment", "postgres: processor", "relay: processor", "consumer: processor", "nats: processor",
	"postgres: WAL", "payments, with indexes", "outbox, with indexes", "attempts, with indexes", "nats: disk",
	"relay: memory", "consumer: memory", "nats: memory",
}

func (b *bench) costOnce(ctx context.Context, add func(name, unit string, v float64)) (err error) {
	dsn, err := b.database(ctx)
	if err != nil {
		return err
	}
	store, err := os.MkdirTemp(b.dir, "cost-")
	if err != nil {
		return err
	}
	parts, stop, err := b.startParts(ctx, dsn, store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)

	time.Sleep(4 * time.Second) // they start
	const quiet = 5 * time.Second
	first, err := b.spent(parts)
	if err != nil {
		return err
	}
	time.Sleep(quiet)
	before, err := b.spent(parts)
	if err != nil {
		return err
	}
	var wal string
	if err := conn.QueryRow(ctx, `select pg_current_wal_lsn()::text`).Scan(&wal); err != nil {
		return err
	}
	began := time.Now()
	if err := resolveAll(ctx, conn); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := b.spent(parts)
	if err != nil {
		return err
	}
	for name, cpu := range after {
		idle := time.Duration(float64(before[name]-first[name]) * took.Seconds() / quiet.Seconds())
		add(name+": processor", "µs a payment", float64((cpu-before[name]-idle).Microseconds())/costPayments)
	}
	for name, pid := range parts {
		if _, rss, err := usage(pid); err == nil && name != "postgres" {
			add(name+": memory", "MiB", rss)
		}
	}
	add("nats: disk", "bytes a payment", folderSize(store)/costPayments)
	return sizes(ctx, conn, wal, add)
}

// startParts starts NATS, the gateway, the relay and a consumer, and returns their process ids by name.
func (b *bench) startParts(ctx context.Context, dsn, store string) (map[string]int, func() error, error) {
	parts := map[string]int{"postgres": b.pg.PID()}
	var stops []func() error
	stop := func() (err error) {
		for i := range stops {
			err = errors.Join(err, stops[len(stops)-1-i]())
		}
		return err
	}
	start := func(name, program string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), "SIM_API_KEY=sim_key")
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return "", err
		}
		stops = append(stops, func() error { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait(); return nil })
		if name != "gateway" {
			parts[name] = cmd.Process.Pid
		}
		if name != "nats" {
			return "", nil
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		return strings.TrimSpace(line), err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	url, err := start("nats", self, "-nats", store)
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	port, err := freePort()
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	file := filepath.Join(b.dir, "cost.yaml")
	if err := os.WriteFile(file, pollux.ExampleConfig, 0o600); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	gateway := "127.0.0.1:" + strconv.Itoa(port)
	flags := []string{"--config", file, "--set", "database.url=" + dsn, "--set", "nats.urls=" + url, "--log-level", "error",
		"--set", "gateways.sim.httpjson.url=http://" + gateway + "/v1/payments/{reference}",
		"--set", "policies.standard.pending.list=2s", "--set", "policies.standard.hold_limit=1s"}
	apply := exec.CommandContext(ctx, filepath.Join(b.dir, "pollux"), append([]string{"streams", "apply"}, flags...)...)
	if out, err := apply.CombinedOutput(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("streams apply: %w: %s", err, out), stop())
	}
	for _, p := range []struct {
		name, program string
		args          []string
	}{
		{"gateway", "dev", []string{"gateway", "--listen", gateway, "--latency", "20ms"}},
		{"relay", "outbox-relay", append(flags, "--listen", "127.0.0.1:0")},
		{"consumer", "consumer", append(flags, "--listen", "127.0.0.1:0")},
	} {
		if _, err := start(p.name, filepath.Join(b.dir, p.program), p.args...); err != nil {
			return nil, nil, errors.Join(err, stop())
		}
	}
	return parts, stop, nil
}

// resolveAll tracks the payments, a tenth of a second's at a time, and waits until all are final.
func resolveAll(ctx context.Context, conn *pgx.Conn) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 0; n < costPayments; n += costPerTenth {
		_, err := conn.Exec(ctx, `
			select pollux.track_payment('sim', 'cost' || g || '_1999_EUR', 1999, 'EUR')
			from generate_series($1::int, $2::int) g`, n+1, n+costPerTenth)
		if err != nil {
			return err
		}
		<-tick.C
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("they are not final after a minute"))
	defer cancel()
	for {
		var left int
		if err := conn.QueryRow(ctx, `select count(*) from pollux.poll_jobs`).Scan(&left); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if left == 0 {
			return nil
		}
		<-tick.C
	}
}

// spent is the processor time of each part: of PostgreSQL that of all its processes, those that have ended included.
func (b *bench) spent(parts map[string]int) (map[string]time.Duration, error) {
	all := map[string]time.Duration{}
	for name, pid := range parts {
		cpu, _, err := usage(pid)
		if err != nil {
			return nil, fmt.Errorf("%s ended: %w", name, err)
		}
		all[name] = cpu
	}
	processes, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, p := range processes {
		stat, err := os.ReadFile(p)
		if err != nil {
			continue // it has ended since
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 14 && fields[1] == strconv.Itoa(parts["postgres"]) {
			all["postgres"] += ticks(fields[11], fields[12])
		}
		if len(fields) > 14 && filepath.Dir(p) == "/proc/"+strconv.Itoa(parts["postgres"]) {
			all["postgres"] += ticks(fields[13], fields[14])
		}
	}
	return all, nil
}

// sizes adds what the payments take on disk, and what was written to have them there.
func sizes(ctx context.Context, conn *pgx.Conn, wal string, add func(name, unit string, v float64)) error {
	var polls, written, payments, outbox, attempts float64
	err := conn.QueryRow(ctx, `
		select (select count(*) from pollux.poll_attempts), pg_current_wal_lsn() - $1::text::pg_lsn, pg_total_relation_size('pollux.payments'),
		  (select sum(pg_total_relation_size(inhrelid)) from pg_inherits where inhparent = 'pollux.outbox'::regclass),
		  (select sum(pg_total_relation_size(inhrelid)) from pg_inherits where inhparent = 'pollux.poll_attempts'::regclass)`, wal).
		Scan(&polls, &written, &payments, &outbox, &attempts)
	if err != nil {
		return err
	}
	add("polls of a payment", "", polls/costPayments)
	add("postgres: WAL", "bytes a payment", written/costPayments)
	add("payments, with indexes", "bytes a payment", payments/costPayments)
	add("outbox, with indexes", "bytes a payment", outbox/costPayments)
	add("attempts, with indexes", "bytes a poll", attempts/polls)
	return nil
}

// freePort is a port of the loopback address that nobody listens on now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// folderSize is what the files below a folder take, in bytes.
func folderSize(dir string) (size float64) {
	_ = filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil
		}
		if info, err := e.Info(); err == nil {
			size += float64(info.Size())
		}
		return nil
	})
	return size
}

// serveNATS is this program as a NATS server: it prints its address and goes on until it is interrupted.
func serveNATS(ctx context.Context, store string, out io.Writer) error {
	s, err := natsembed.Start(natsembed.Options{StoreDir: store})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, s.URL())
	<-ctx.Done()
	return s.Stop()
}
