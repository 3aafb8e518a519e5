//go:build unix

package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"
)

// target is something that can be killed, or stopped in the middle of things, and brought back.
type target struct {
	name   string
	kill   func()
	revive func(context.Context) error
}

func (w *world) serviceTargets() []target {
	var all []target
	for _, s := range w.services() {
		all = append(all, target{s.name, s.kill, func(context.Context) error { return s.start() }})
	}
	return all
}

// pauseTargets are the services and the broker, stopped in the middle of things as a machine that is short of memory, or is moved, stops them. When they
// go on they have an old view of the world.
func (w *world) pauseTargets() []target {
	pausing := func(name string, p func() *process) target {
		return target{name + " (paused)", func() { p().signal(syscall.SIGSTOP) },
			func(context.Context) error { p().signal(syscall.SIGCONT); return nil }}
	}
	all := []target{pausing("NATS", func() *process { return w.nats.proc })}
	for _, s := range w.services() {
		all = append(all, pausing(s.name, s.running))
	}
	return all
}

func (w *world) postgresTarget() target {
	return target{"PostgreSQL", w.postgres.Kill, w.postgres.Restart}
}

// natsTarget is the broker. It comes back with what it had, or, as wiped says each time, empty; then the operator applies the streams.
func (w *world) natsTarget(wiped func() bool) target {
	return target{"NATS", w.nats.kill, func(ctx context.Context) error {
		if !wiped() {
			return w.nats.start(ctx)
		}
		w.log("NATS has lost its disk")
		return w.reviveEmpty(ctx)
	}}
}

func (w *world) reviveEmpty(ctx context.Context) error {
	if err := w.nats.wipe(); err != nil {
		return err
	}
	if err := w.nats.start(ctx); err != nil {
		return err
	}
	return w.tryOperate(ctx, "streams", "apply")
}

// storm strikes targets for d: every one to three seconds one of them, often two at once, sometimes many; of two strikes in three the deadly ones, otherwise
// the pauses, sometimes both. It returns how often each was struck, with everything alive again.
func (w *world) storm(d time.Duration, deadly, pauses []target) map[string]int {
	w.t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), d+2*time.Minute, errors.New("something did not come back"))
	defer cancel()
	rng, struck := w.rng(1), map[string]int{}
	for end := time.Now().Add(d); time.Now().Before(end); {
		next := time.Now().Add(between(rng, time.Second, 3*time.Second))
		victims := choose(rng, deadly)
		switch rng.IntN(9) {
		case 0, 1:
			victims = choose(rng, pauses)
		case 2:
			victims = append(victims, choose(rng, pauses)...)
		}
		for _, v := range victims {
			struck[v.name]++
		}
		down := between(rng, 0, 1500*time.Millisecond)
		if rng.IntN(8) == 0 { // long enough for leases to run out
			down = between(rng, 4*time.Second, 11*time.Second)
		}
		w.must(w.strike(ctx, rng, victims, down))
		pause(ctx, max(time.Until(next), 200*time.Millisecond))
	}
	return struck
}

// strike strikes victims at once and brings them back after a while, in any order.
func (w *world) strike(ctx context.Context, rng *rand.Rand, victims []target, down time.Duration) error {
	var dying sync.WaitGroup
	names := make([]string, len(victims))
	for i, v := range victims {
		names[i] = v.name
		dying.Go(v.kill)
	}
	dying.Wait()
	w.log("struck %s, for %s", strings.Join(names, ", "), down.Round(time.Millisecond))
	pause(ctx, down)
	rng.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	for _, v := range victims {
		if err := v.revive(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// choose chooses one target, often two, sometimes any number.
func choose(rng *rand.Rand, targets []target) []target {
	n := 1
	switch chance := rng.Float64(); {
	case chance < 0.1:
		n = 1 + rng.IntN(len(targets))
	case chance < 0.4:
		n = 2
	}
	chosen := make([]target, 0, n)
	for _, i := range rng.Perm(len(targets))[:min(n, len(targets))] {
		chosen = append(chosen, targets[i])
	}
	return chosen
}

func between(rng *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(rng.Int64N(int64(high-low)))
}

// pause waits for d or until ctx ends. It is the rhythm of a test, never what a test waits for.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
