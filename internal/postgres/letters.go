package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/deadletter"
)

// Letters is the record as an operator's desk sees it. It is safe for concurrent use.
type Letters struct{ pool *pgxpool.Pool }

var _ deadletter.Record = (*Letters)(nil)

// NewLetters returns the record of dead letters.
func NewLetters(pool *pgxpool.Pool) *Letters { return &Letters{pool: pool} }

// letterColumns are the columns of a letter d with its payment p, in the order of scanLetter.
const letterColumns = `
	d.id, d.payment_id, d.gateway, d.account, coalesce(p.reference, ''), d.class, d.amount_minor, coalesce(d.currency, ''), d.reason, d.state,
	d.last_class, d.http_status, d.gateway_status, d.message, d.attempts, d.failures, d.deferrals, d.replays, d.created_at, d.died_at,
	d.closed_at, coalesce(d.closed_by, '')`

func letterFields(l *deadletter.Letter) []any {
	return []any{&l.ID, &l.PaymentID, &l.Gateway, &l.Account, &l.Reference, &l.Class, &l.AmountMinor, &l.Currency, &l.Reason, &l.State,
		&l.LastClass, &l.HTTPStatus, &l.GatewayStatus, &l.Message, &l.Attempts, &l.Failures, &l.Deferrals, &l.Replays, &l.FirstDied, &l.LastDied,
		&l.ClosedAt, &l.ClosedBy}
}

// List implements deadletter.Record.
func (s *Letters) List(ctx context.Context, f deadletter.Filter, page deadletter.Page) ([]deadletter.Letter, error) {
	state := f.State
	if state == "" {
		state = deadletter.Open
	}
	rows, err := s.pool.Query(ctx, `
		select `+letterColumns+`
		from pollux.dead_letters d
		left join pollux.payments p on p.id = d.payment_id
		where ($1 = 'any' or d.state = $1)
		  and ($2 = '' or d.gateway = $2)
		  and ($3 = '' or d.account = $3)
		  and ($4 = '' or d.class = $4)
		  and ($5 = '' or d.reason = $5)
		  and ($6::bigint = 0 or d.died_at <= now() - $6::bigint * interval '1 microsecond')
		  and ($7::bigint = 0 or d.died_at >= now() - $7::bigint * interval '1 microsecond')
		  and ($8::bigint = 0 or d.id < $8::bigint)
		order by d.id desc
		limit $9`,
		state, f.Gateway, f.Account, f.Class, f.Reason, f.Older.Microseconds(), f.Newer.Microseconds(), page.Before, page.Limit)
	if err != nil {
		return nil, describe("listing dead letters", err)
	}
	letters, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l deadletter.Letter, err error) {
		return l, row.Scan(letterFields(&l)...)
	})
	return letters, describe("listing dead letters", err)
}

// Show implements deadletter.Record.
func (s *Letters) Show(ctx context.Context, id int64) (deadletter.Details, error) {
	var d deadletter.Details
	fields := append(letterFields(&d.Letter), &d.PaymentStatus, &d.StatusDetail, &d.Policy, &d.Worker, &d.TraceID, &d.Subject, &d.Body, &d.TrackedAt)
	err := s.pool.QueryRow(ctx, `
		select `+letterColumns+`, coalesce(p.status, ''), coalesce(p.status_detail, ''), d.policy, d.worker, d.trace_id, d.subject, d.body,
		  coalesce(p.created_at, d.created_at)
		from pollux.dead_letters d
		left join pollux.payments p on p.id = d.payment_id
		where d.id = $1`, id).Scan(fields...)
	if errors.Is(err, pgx.ErrNoRows) {
		return d, deadletter.ErrNotFound
	}
	if err != nil {
		return d, describe("reading a dead letter", err)
	}
	if d.PaymentID != nil {
		d.Polls, err = s.polls(ctx, *d.PaymentID)
	}
	return d, err
}

func (s *Letters) polls(ctx context.Context, payment int64) ([]deadletter.Attempt, error) {
	rows, err := s.pool.Query(ctx, `
		select at, class, http_status, gateway_status, message, took_us / 1000, disposition, reason, worker, trace_id
		from pollux.poll_attempts
		where payment_id = $1
		order by at desc
		limit 100`, payment)
	if err != nil {
		return nil, describe("reading attempts", err)
	}
	polls, err := pgx.CollectRows(rows, pgx.RowToStructByPos[deadletter.Attempt])
	return polls, describe("reading attempts", err)
}

// replaySQL locks the dead jobs of open letters, in the order of their payments, and makes them due one gap after the other in the order
// of the letters. Of two operators who replay the same letter one finds its job alive.
const replaySQL = `
	with chosen as materialized (
	  select min(i.ord) as ord, d.id, d.payment_id
	  from unnest($1::bigint[]) with ordinality as i(id, ord)
	  join pollux.dead_letters d on d.id = i.id
	  where d.state = 'open'
	  group by d.id
	), dead as materialized (
	  select j.payment_id
	  from pollux.poll_jobs j
	  where j.payment_id = any (array(select payment_id from chosen))
	    and j.state = 'dead'
	  order by j.payment_id
	  for update
	), place as materialized (
	  select c.id, c.payment_id, (row_number() over (order by c.ord) - 1) * $3::bigint + $2::bigint as delay
	  from chosen c
	  where c.payment_id in (select payment_id from dead)
	), alive as (
	  update pollux.poll_jobs j
	  set state = 'scheduled',
	      lane = 'replay',
	      next_poll_at = now() + p.delay * interval '1 microsecond',
	      window_started_at = now() + p.delay * interval '1 microsecond',
	      attempts = 0, failures = 0, not_founds = 0, last_delay_ms = 0,
	      replays = j.replays + 1, revision = j.revision + 1, updated_at = now()
	  from place p
	  where j.payment_id = p.payment_id
	  returning p.id
	)
	update pollux.dead_letters l
	set state = 'replaying'
	from alive a
	where l.id = a.id
	  and l.state = 'open'
	returning l.id`

// Replay implements deadletter.Record.
func (s *Letters) Replay(ctx context.Context, ids []int64, first, gap time.Duration) (deadletter.Outcome, error) {
	var o deadletter.Outcome
	err := again(ctx, s.pool, func(tx pgx.Tx) error {
		o = deadletter.Outcome{}
		rows, err := tx.Query(ctx, replaySQL, ids, first.Microseconds(), gap.Microseconds())
		if err != nil {
			return err
		}
		if o.Replayed, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
			return err
		}
		o.Refused, err = refusals(ctx, tx, ids, o.Replayed)
		return err
	})
	return o, describe("replaying dead letters", err)
}

// previewSQL reads the letters that a replay would replay, in the order of ids.
const previewSQL = `
	select ` + letterColumns + `
	from (
	  select id, min(ord) as ord
	  from unnest($1::bigint[]) with ordinality as i(id, ord)
	  group by id
	) i
	join pollux.dead_letters d on d.id = i.id
	join pollux.poll_jobs j on j.payment_id = d.payment_id
	left join pollux.payments p on p.id = d.payment_id
	where d.state = 'open'
	  and j.state = 'dead'
	order by i.ord`

// Preview implements deadletter.Record.
func (s *Letters) Preview(ctx context.Context, ids []int64) (letters []deadletter.Letter, refused []deadletter.Refusal, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, previewSQL, ids)
		if err != nil {
			return err
		}
		letters, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l deadletter.Letter, err error) {
			return l, row.Scan(letterFields(&l)...)
		})
		if err != nil {
			return err
		}
		replayed := make([]int64, len(letters))
		for i, l := range letters {
			replayed[i] = l.ID
		}
		refused, err = refusals(ctx, tx, ids, replayed)
		return err
	})
	return letters, refused, describe("looking at dead letters", err)
}

// refusals says why letters were not replayed.
func refusals(ctx context.Context, tx pgx.Tx, ids, replayed []int64) ([]deadletter.Refusal, error) {
	rows, err := tx.Query(ctx, `
		select i.id,
		  case
		    when d.id is null then 'there is no such dead letter'
		    when d.payment_id is null then 'its message belongs to no payment: there is nothing to poll'
		    when p.status <> 'pending' then 'its payment is ' || p.status
		    when d.state = 'replaying' then 'it is being replayed'
		    when d.state <> 'open' then 'it is ' || d.state
		    else 'its payment is polled already'
		  end
		from unnest($1::bigint[]) as i(id)
		left join pollux.dead_letters d on d.id = i.id
		left join pollux.payments p on p.id = d.payment_id
		where i.id <> all ($2::bigint[])`, ids, replayed)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[deadletter.Refusal])
}
