//go:build unix

package chaos

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"

	"pollux/internal/gatewaysim"
)

// fate is what a payment service knows of a transaction in which it tracked a payment.
type fate uint8

const (
	absent       fate = iota // it never sent the commit, or rolled back: the payment must not be there
	unknown                  // it sent the commit and got no answer: the payment may be there
	acknowledged             // the database said that it is committed: the payment must be there
)

var fates = [...]string{"absent", "unknown", "acknowledged"}

func (f fate) String() string { return fates[f] }

// tracked is a payment and what its service knows of it.
type tracked struct {
	gatewaysim.Payment
	fate fate
}

// shop is a payment service: it takes orders and tracks their payments, each in a transaction of its own, and goes on whatever happens
// to the database.
type shop struct {
	w     *world
	limit *rate.Limiter
	stop  context.CancelFunc
	tills sync.WaitGroup

	mu  sync.Mutex
	all []tracked
}

// tills is how many payments are tracked at once.
const tills = 6

// open begins to track payments at a rate a second.
func (w *world) open(perSecond float64) *shop {
	ctx, stop := context.WithCancel(context.Background())
	s := &shop{w: w, limit: rate.NewLimiter(rate.Limit(perSecond), tills), stop: stop}
	for i := range tills {
		s.tills.Go(func() { s.till(ctx, w.rng(uint64(1000+i))) })
	}
	w.t.Cleanup(func() { s.close() })
	return s
}

// close stops tracking and returns what was tracked.
func (s *shop) close() []tracked {
	s.stop()
	s.tills.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

func (s *shop) till(ctx context.Context, rng *rand.Rand) {
	for s.limit.Wait(ctx) == nil {
		made := s.w.sim.Generate(1, "pay")
		if len(made) == 0 {
			return // the gateway is full, after millions
		}
		t := tracked{Payment: made[0]}
		t.fate = s.track(ctx, t.Payment, rng)
		s.mu.Lock()
		s.all = append(s.all, t)
		s.mu.Unlock()
	}
}

// track tracks a payment as a careful service does: after a failure, or a commit that it knows nothing of, it often tries again, which is
// harmless; and sometimes it gives up, or changes its mind before the commit.
func (s *shop) track(ctx context.Context, p gatewaysim.Payment, rng *rand.Rand) (known fate) {
	for {
		f := s.try(ctx, p, rng.IntN(50) == 0, lanes[rng.IntN(len(lanes))])
		known = max(known, f) // once a commit was sent nothing but a later acknowledgement makes it certain
		if known == acknowledged || ctx.Err() != nil || rng.IntN(4) == 0 {
			return known
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// lanes are the lanes of payments: most are normal.
var lanes = []string{"normal", "normal", "normal", "high", "low"}

// try makes one transaction. It is not interrupted by the end of the shop.
func (s *shop) try(ctx context.Context, p gatewaysim.Payment, regrets bool, lane string) fate {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	tx, err := s.w.pool.Begin(ctx)
	if err != nil {
		return absent
	}
	defer tx.Rollback(ctx) // after a commit it does nothing
	if !write(ctx, tx, p, lane) || regrets {
		return absent
	}
	if tx.Commit(ctx) != nil {
		return unknown
	}
	return acknowledged
}

// write writes the order and tracks its payment.
func write(ctx context.Context, tx pgx.Tx, p gatewaysim.Payment, lane string) bool {
	_, err := tx.Exec(ctx, `insert into orders (reference) values ($1) on conflict do nothing`, p.Reference)
	if err != nil {
		return false
	}
	_, err = tx.Exec(ctx, `select pollux.track_payment($1, $2, $3, $4, class => $5, lane => $6)`,
		gatewayName, p.Reference, p.AmountMinor, p.Currency, class, lane)
	return err == nil
}
