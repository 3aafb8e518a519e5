package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pollux"
	"pollux/internal/broker"
)

// idle measures what the processes cost while there is nothing to do.
func idle(ctx context.Context, b *bench) error {
	if runtime.GOOS != "linux" {
		fmt.Fprintln(b.table, "only on Linux")
		return nil
	}
	dsn, err := b.database(ctx)
	if err != nil {
		return err
	}
	if err := b.withBroker(ctx, func(*broker.Conn) error { return nil }); err != nil {
		return err
	}
	file := filepath.Join(b.dir, "pollux.yaml")
	if err := os.WriteFile(file, pollux.ExampleConfig, 0o600); err != nil {
		return err
	}
	for _, name := range []string{"outbox-relay", "consumer"} {
		cpu, rss, err := b.watch(ctx, name, "--config", file, "--set", "database.url="+dsn, "--set", "nats.urls="+b.nats.URL(),
			"--listen", "127.0.0.1:0", "--log-level", "error")
		if err != nil {
			return err
		}
		b.print(figure{name: name + ", idle: processor", unit: "% of one", runs: []float64{cpu}})
		b.print(figure{name: name + ", idle: memory", unit: "MiB", runs: []float64{rss}})
	}
	return nil
}

// watch runs a binary for some seconds and returns its share of a processor in percent and its resident memory in MiB.
func (b *bench) watch(ctx context.Context, name string, args ...string) (cpu, rss float64, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(b.dir, name), args...)
	var said bytes.Buffer
	cmd.Stderr, cmd.Env = &said, append(os.Environ(), "SIM_API_KEY=sim_key")
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	time.Sleep(4 * time.Second) // it starts
	before, _, err := usage(cmd.Process.Pid)
	if err != nil {
		return 0, 0, fmt.Errorf("%s ended: %w: %s", name, err, said.String())
	}
	const during = 10 * time.Second
	time.Sleep(during)
	after, rss, err := usage(cmd.Process.Pid)
	if err != nil {
		return 0, 0, fmt.Errorf("%s ended: %w: %s", name, err, said.String())
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	return 100 * (after - before).Seconds() / during.Seconds(), rss, cmd.Wait()
}

// usage reads a process's processor time and its resident memory in MiB.
func usage(pid int) (cpu time.Duration, rss float64, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 22 {
		return 0, 0, fmt.Errorf("reading /proc/%d/stat", pid)
	}
	pages, _ := strconv.ParseInt(fields[21], 10, 64)
	return ticks(fields[11], fields[12]), float64(pages*int64(os.Getpagesize())) / (1 << 20), nil
}

// ticks is the processor time of a user's and a system's share, as /proc has them.
func ticks(user, system string) time.Duration {
	const tick = time.Second / 100 // USER_HZ, the same on all Linux
	u, _ := strconv.ParseInt(user, 10, 64)
	s, _ := strconv.ParseInt(system, 10, 64)
	return time.Duration(u+s) * tick
}
