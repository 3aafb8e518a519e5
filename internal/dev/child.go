package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/app"
)

// childCommand is the consumer as a process of its own, which the launcher starts from its own binary. It stops when its standard input ends: when it is
// told to, and when the launcher is no more.
func childCommand() *cobra.Command {
	cmd := app.ConsumerCommand()
	cmd.Hidden = true
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := context.WithCancelCause(cmd.Context())
		go func() {
			_, _ = io.Copy(io.Discard, cmd.InOrStdin()) // its end is all that it says
			stop(errors.New("the launcher is done"))
		}()
		cmd.SetContext(ctx)
		return run(cmd, args)
	}
	return cmd
}

// killedProber is what the configuration says differently when a consumer is killed in the middle of its probe: one place for probes, so that the killed one has
// it; and what the killed one had in hand is delivered again soon.
func killedProber() []string {
	breaker := "gateways." + Gateway + ".breaker."
	return []string{breaker + "probes=1", "consumer.ack_wait=8s", "gateways." + Gateway + ".limits.max_wait=3s"}
}

// children are consumers in processes of their own. Each calls the gateway at an address of its own, so that it is known whose calls hang.
type children struct {
	world  *world
	front  *http.Server
	served chan struct{}
	all    []*child
}

type child struct {
	cmd      *exec.Cmd
	stdin    io.Closer    // its end tells the child to stop
	underway atomic.Int64 // its calls at the gateway
	killed   atomic.Bool
	ended    chan struct{}
	err      error // once ended is closed
}

// startChildren starts the consumers as processes and kills one of them in the middle of its probe.
func (w *world) startChildren(ctx context.Context) error {
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this binary: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening before the gateway: %w", err)
	}
	c := &children{world: w, served: make(chan struct{})}
	for range w.options.Consumers {
		c.all = append(c.all, &child{ended: make(chan struct{})})
	}
	c.front = &http.Server{Handler: c, ReadHeaderTimeout: 10 * time.Second}
	go func() { defer close(c.served); _ = c.front.Serve(l) }() // always an error, and after Close never another one
	w.onClose("the children", c.close)
	for i, one := range c.all {
		if err := c.begin(i, one, binary, "http://"+l.Addr().String()); err != nil {
			return err
		}
		w.start(ctx, "a consumer", one.wait)
	}
	w.start(ctx, "killing a consumer", c.killProber)
	return nil
}

// begin starts a child. Its configuration is the launcher's, secrets in files; it sees nothing of the environment.
func (c *children) begin(i int, one *child, binary, front string) error {
	args := []string{"consumer", "--config", c.world.file}
	for _, s := range c.world.set {
		args = append(args, "--set", s)
	}
	args = append(args, "--set", fmt.Sprintf("gateways.%s.httpjson.url=%s/%d/v1/payments/{reference}", Gateway, front, i))
	log, err := c.world.log()
	if err != nil {
		return err
	}
	one.cmd = exec.Command(binary, args...)
	one.cmd.Args[0] = os.Args[0] // the name that this process has been called by
	one.cmd.Env, one.cmd.Stderr = []string{}, log
	if one.stdin, err = one.cmd.StdinPipe(); err == nil {
		err = one.cmd.Start()
	}
	if err != nil {
		close(one.ended)
		return fmt.Errorf("starting a consumer: %w", err)
	}
	go func() {
		defer close(one.ended)
		one.err = one.cmd.Wait()
	}()
	return nil
}

// wait waits for a child, and tells it to stop when ctx ends. One that was killed has done as it was told.
func (one *child) wait(ctx context.Context) error {
	select {
	case <-one.ended:
	case <-ctx.Done():
		_ = one.stdin.Close() // it may have ended
		<-one.ended
	}
	if one.killed.Load() {
		return nil
	}
	return one.err
}

// ServeHTTP hands a call to the gateway and counts whose it is while it is under way.
func (c *children) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	number, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	i, err := strconv.Atoi(number)
	if err != nil || i < 0 || i >= len(c.all) {
		http.NotFound(w, r)
		return
	}
	c.all[i].underway.Add(1)
	defer c.all[i].underway.Add(-1)
	http.StripPrefix("/"+number, c.world.stations[0].sim.Handler()).ServeHTTP(w, r)
}

// hangs is how long a probe is under way before it is taken for one that hangs.
const hangs = 300 * time.Millisecond

// killProber waits until a probe hangs, kills the process that sent it, and lets the gateway be well from then on.
func (c *children) killProber(ctx context.Context) error {
	prober, err := c.prober(ctx)
	if err != nil {
		return nil // told to stop
	}
	prober.killed.Store(true)
	if err := prober.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("killing a consumer: %w", err)
	}
	<-prober.ended
	c.world.mended.Store(time.Now().UnixNano())
	return c.world.stations[0].sim.SetScenario("calm")
}

// prober waits for the process whose probe hangs: the only call that is under way, for a while.
func (c *children) prober(ctx context.Context) (*child, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var since time.Time
	var calls int64
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		s := c.world.stations[0].sim.Stats()
		if s.Underway != 1 || !s.Down || s.Calls != calls {
			since, calls = time.Now(), s.Calls
			continue
		}
		for _, one := range c.all {
			if one.underway.Load() == 1 && time.Since(since) >= hangs {
				return one, nil
			}
		}
	}
}

// close ends the children that are left, and then the way to the gateway.
func (c *children) close(context.Context) error {
	for _, one := range c.all {
		if one.cmd == nil || one.cmd.Process == nil {
			continue
		}
		_ = one.cmd.Process.Kill() // those that were told to stop have ended
		<-one.ended
	}
	err := c.front.Close()
	<-c.served
	return err
}
