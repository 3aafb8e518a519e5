package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/fleet"
)

// Breakers is the record of what became of the breakers. It is safe for concurrent use.
type Breakers struct{ pool *pgxpool.Pool }

// NewBreakers returns the record of breakers.
func NewBreakers(pool *pgxpool.Pool) *Breakers { return &Breakers{pool} }

// Transition writes down a change of a breaker that an instance made.
func (b *Breakers) Transition(ctx context.Context, t fleet.Transition, instance string) error {
	var retryAt *time.Time
	if t.RetryAt != 0 {
		at := t.RetryAt.Time()
		retryAt = &at
	}
	_, err := b.pool.Exec(ctx, `
		insert into pollux.breaker_transitions (at, gateway, account, from_state, to_state, cause, reason, actor, epoch, retry_at, instance)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		t.At.Time(), t.Gateway, t.Account, t.From.String(), t.To.String(), string(t.Cause), clean(t.Reason, maxMessage), clean(t.Actor, maxDetail),
		int64(t.Epoch), retryAt, instance)
	return describe("writing a transition of a breaker", err)
}

// Transitions are written by several processes, each when it comes to it and with its own clock. Each has its epoch, a number that the fleet's store counts up: that
// is the order in which they happened. A store that was lost begins to count anew; it is told by a number that goes back although more time has passed than clocks
// differ.
const newestTransition = `life desc, epoch desc, at desc, id desc`

// writtenLate is how many rows back in the table what is written late can be.
const writtenLate = 64

// maxTransitions is the most transitions that are put in order, the last that were written.
const maxTransitions = 1000

// transitionsSQL selects the last transitions of the gateway $2 and its account $3 for which a condition holds, each with the life of the store that it is of.
func transitionsSQL(condition string) string {
	return fmt.Sprintf(`
		  select *, sum(anew::int) over (order by at, epoch, id) as life
		  from (
		    select *, coalesce(epoch < lag(epoch) over w and at > lag(at) over w + interval '1 minute', false) as anew
		    from (
		      select *
		      from pollux.breaker_transitions
		      where gateway = $2
		        and account = $3%s
		      order by id desc
		      limit %d
		    ) written
		    window w as (order by at, epoch, id)
		  ) ordered`, condition, maxTransitions)
}

// Change is a transition as people read it.
type Change struct {
	At       time.Time  `json:"at"`
	Gateway  string     `json:"gateway"`
	Account  string     `json:"account"`
	From     string     `json:"from"`
	To       string     `json:"to"`
	Cause    string     `json:"cause"`
	Reason   string     `json:"reason"`
	Actor    string     `json:"actor"`
	Epoch    int64      `json:"epoch"`
	RetryAt  *time.Time `json:"retry_at"`
	Instance string     `json:"instance"`
}

// Changes returns the last n transitions of a gateway's account, the newest first.
func (b *Breakers) Changes(ctx context.Context, gateway, account string, n int) ([]Change, error) {
	rows, err := b.pool.Query(ctx, `
		select at, gateway, account, from_state, to_state, cause, reason, actor, epoch, retry_at, instance
		from (`+transitionsSQL(``)+`) t
		order by `+newestTransition+`
		limit $1`, n, gateway, account)
	if err != nil {
		return nil, describe("reading transitions", err)
	}
	changes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Change])
	return changes, describe("reading transitions", err)
}

// Account reports whether any payment has an account of a gateway.
func (b *Breakers) Account(ctx context.Context, gateway, account string) (known bool, err error) {
	err = b.pool.QueryRow(ctx, `select exists (select from pollux.payments where gateway = $1 and account = $2)`, gateway, account).Scan(&known)
	return known, describe("looking for an account", err)
}

// Asleep is what sleeps behind a gateway's breaker.
type Asleep struct {
	Gateway string     `json:"gateway"`
	Account string     `json:"account"`
	Count   int64      `json:"deferred"`
	Oldest  *time.Time `json:"oldest_due_at"`
}

// Asleep counts deferred payments by gateway and account. It reads all jobs; it is for people.
func (b *Breakers) Asleep(ctx context.Context) ([]Asleep, error) {
	rows, err := b.pool.Query(ctx, `
		select j.gateway, p.account, count(*), min(j.next_poll_at)
		from pollux.poll_jobs j
		join pollux.payments p on p.id = j.payment_id
		where j.state = 'deferred'
		group by j.gateway, p.account
		order by j.gateway, p.account`)
	if err != nil {
		return nil, describe("counting deferred payments", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Asleep])
	return all, describe("counting deferred payments", err)
}
