package fleet_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"pollux/internal/breaker"
	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// psp is the gateway of the tests.
const psp = "stripe"

// instance is one process of a fleet.
type instance struct {
	*fleet.Fleet
	gate *fleet.Gate
	line *line
	stop func() // and waits until it has stopped
	log  *journal

	mu      sync.Mutex
	changes []fleet.Transition
}

// config is a gateway's protection with the defaults, changed by edits.
func config(edits ...func(*fleet.GateConfig)) fleet.GateConfig {
	c := fleet.GateConfig{Gateway: psp, Breaker: breaker.Defaults()}
	for _, e := range edits {
		e(&c)
	}
	return c
}

func limited(rate limit.Rate, burst int) func(*fleet.GateConfig) {
	return func(c *fleet.GateConfig) { c.Limit.Rate, c.Limit.Burst = rate, burst }
}

// start starts an instance. kv is nil for one that is the whole fleet.
func start(t testing.TB, kv fleet.KV, c fleet.GateConfig) *instance {
	t.Helper()
	in := &instance{log: &journal{}}
	in.Fleet = fleet.New(fleet.Options{KV: kv, Log: slog.New(slog.NewTextHandler(in.log, nil))})
	in.line, _ = kv.(*line)
	var err error
	if in.gate, err = in.Fleet.Gate(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() {
		if err := in.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	tasks.Go(func() {
		for tr := range in.Transitions() {
			in.mu.Lock()
			in.changes = append(in.changes, tr)
			in.mu.Unlock()
		}
	})
	in.stop = sync.OnceFunc(func() {
		cancel()
		tasks.Wait()
	})
	t.Cleanup(in.stop)
	return in
}

// crash ends an instance without a word to anybody.
func (in *instance) crash() {
	in.line.set(cut)
	in.stop()
}

// startMany starts n instances on a store and waits until they know it.
func startMany(t testing.TB, s *store, n int, c fleet.GateConfig) []*instance {
	t.Helper()
	var all []*instance
	for range n {
		all = append(all, start(t, s.line(5*time.Millisecond), c))
	}
	for _, in := range all {
		if err := in.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func (in *instance) kind() breaker.Kind { return in.gate.Snapshot("").Breaker.Kind }

func (in *instance) causes() []breaker.Cause {
	in.mu.Lock()
	defer in.mu.Unlock()
	var cs []breaker.Cause
	for _, c := range in.changes {
		cs = append(cs, c.Cause)
	}
	return cs
}

// call makes one call and reports whether it was let in.
func (in *instance) call(t testing.TB, c gateway.Class) fleet.Refusal {
	t.Helper()
	pass, no := in.gate.Enter(t.Context(), "", limit.Fresh)
	pass.Done(c, 0)
	return no
}

// trip makes calls that fail until the breaker is open.
func (in *instance) trip(t testing.TB) {
	t.Helper()
	for range breaker.Defaults().ConsecutiveFailures {
		if no := in.call(t, gateway.Transport); no.Refused() {
			t.Fatalf("refused before it opened: %s", no.Why)
		}
	}
	if k := in.kind(); k != breaker.Open {
		t.Fatalf("%s after so many failures", k)
	}
}

// within waits in virtual time until ok holds, looking every ten milliseconds.
func within(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", d, what)
		}
	}
}

func everywhere(all []*instance, k breaker.Kind) func() bool {
	return func() bool {
		return !slices.ContainsFunc(all, func(in *instance) bool { return in.kind() != k })
	}
}

// journal is where an instance logs to.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
