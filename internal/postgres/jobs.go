package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/consumer"
	"pollux/internal/message"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// Jobs is the record as the consumer sees it. It is safe for concurrent use.
type Jobs struct{ pool *pgxpool.Pool }

var _ consumer.Record = (*Jobs)(nil)

// NewJobs returns the record for a consumer.
func NewJobs(pool *pgxpool.Pool) *Jobs { return &Jobs{pool: pool} }

func byPayment(a, b message.Poll) int { return cmp.Compare(a.Payment, b.Payment) }

func pollKeys(polls []message.Poll) (ids []int64, tokens []string) {
	ids, tokens = make([]int64, len(polls)), make([]string, len(polls))
	for i, p := range polls {
		ids[i], tokens[i] = int64(p.Payment), p.Token
	}
	return ids, tokens
}

// readSQL reads payments with their jobs by key.
const readSQL = `
	select i.ord, now(),
	  p.gateway, p.account, p.reference, p.merchant_reference, p.class, p.lane, p.amount_minor, p.currency, p.status, p.status_detail,
	  coalesce(p.traceparent, ''), p.created_at, p.expires_at,
	  coalesce(j.lock_token = i.token, false), j.state = 'dead', j.revision, j.attempts, j.failures, j.not_founds, j.deferrals, j.replays,
	  j.next_poll_at, j.locked_until, j.window_started_at, j.last_delay_ms, coalesce(j.last_class, '')
	from unnest($1::bigint[], $2::text[]::uuid[]) with ordinality as i(id, token, ord)
	join pollux.payments p on p.id = i.id
	left join pollux.poll_jobs j on j.payment_id = i.id`

// Read implements consumer.Record.
func (s *Jobs) Read(ctx context.Context, polls []message.Poll) ([]consumer.Job, error) {
	ids, tokens := pollKeys(polls)
	rows, err := s.pool.Query(ctx, readSQL, ids, tokens)
	if err != nil {
		return nil, describe("reading jobs", err)
	}
	defer rows.Close()
	jobs := make([]consumer.Job, len(polls))
	for rows.Next() {
		var ord int64
		var row jobRow
		j := consumer.Job{Tracked: true}
		p := &j.Payment
		err := rows.Scan(&ord, &row.now,
			&p.Gateway, &p.Account, &p.Reference, &p.MerchantReference, &p.Class, &p.Lane, &p.AmountMinor, &p.Currency, &p.Status, &j.Detail,
			&p.TraceParent, &p.CreatedAt, &row.expiresAt,
			&j.TokenCurrent, &row.dead, &row.revision, &row.attempts, &row.failures, &row.notFounds, &row.deferrals, &row.replays,
			&row.nextPollAt, &row.lockedUntil, &row.windowStartedAt, &row.lastDelayMS, &j.LastClass)
		if err != nil {
			return nil, describe("reading jobs", err)
		}
		p.ID = polls[ord-1].Payment
		row.fill(&j)
		jobs[ord-1] = j
	}
	return jobs, describe("reading jobs", rows.Err())
}

// jobRow holds the columns of a job, which are null when the payment has none, and the instants that become durations.
type jobRow struct {
	now                                      time.Time
	expiresAt                                *time.Time
	dead                                     *bool
	revision                                 *int64
	attempts, failures, notFounds            *int32
	deferrals, replays                       *int32
	nextPollAt, lockedUntil, windowStartedAt *time.Time
	lastDelayMS                              *int64
}

func (r jobRow) fill(j *consumer.Job) {
	j.ReadAt = r.now
	if r.expiresAt != nil {
		j.HasDeadline, j.UntilEnd = true, r.expiresAt.Sub(r.now)
	}
	if r.revision == nil {
		return
	}
	j.Dead, j.Revision = *r.dead, *r.revision
	j.Counters = redelivery.Counters{Attempts: int(*r.attempts), Failures: int(*r.failures), NotFounds: int(*r.notFounds),
		Deferrals: int(*r.deferrals), Replays: int(*r.replays)}
	j.DueAt, j.UntilDue = *r.nextPollAt, r.nextPollAt.Sub(r.now)
	j.Age = r.now.Sub(*r.windowStartedAt)
	j.Previous = time.Duration(*r.lastDelayMS) * time.Millisecond
	if r.lockedUntil != nil {
		j.LeaseLeft = r.lockedUntil.Sub(r.now)
	}
}

// extendSQL moves leases on, never back.
const extendSQL = `
	update pollux.poll_jobs j
	set locked_until = greatest(j.locked_until, now() + $3::bigint * interval '1 microsecond'), updated_at = now()
	from unnest($1::bigint[], $2::text[]::uuid[]) as i(id, token)
	where j.payment_id = i.id
	  and j.lock_token = i.token
	returning i.id, i.token::text`

// Extend implements consumer.Record. Jobs are taken in the order of their payments, as by everybody.
func (s *Jobs) Extend(ctx context.Context, polls []message.Poll, d time.Duration) ([]bool, error) {
	ids, tokens := pollKeys(slices.SortedFunc(slices.Values(polls), byPayment))
	var extended map[message.Poll]bool
	err := again(ctx, s.pool, func(tx pgx.Tx) error {
		extended = make(map[message.Poll]bool, len(polls))
		rows, err := tx.Query(ctx, extendSQL, ids, tokens, d.Microseconds())
		if err != nil {
			return err
		}
		var id int64
		var token string
		_, err = pgx.ForEachRow(rows, []any{&id, &token}, func() error {
			extended[message.Poll{Payment: payment.ID(id), Token: token}] = true
			return nil
		})
		return err
	})
	if err != nil {
		return nil, describe("extending leases", err)
	}
	held := make([]bool, len(polls))
	for i, p := range polls {
		held[i] = extended[message.Poll{Payment: p.Payment, Token: p.Token}]
	}
	return held, nil
}

// Bury implements consumer.Record. A message that comes again, because the broker was not told, keeps its letter.
func (s *Jobs) Bury(ctx context.Context, p consumer.Poison) error {
	gateway := p.Gateway
	if !message.ValidToken(gateway) {
		gateway = "unknown"
	}
	body := p.Body
	if body == nil {
		body = []byte{}
	}
	_, err := s.pool.Exec(ctx, `
		insert into pollux.dead_letters (gateway, reason, message, subject, body, deliveries)
		values ($1, 'undecodable', $2, $3, $4, $5)
		on conflict (subject, sha256(body)) where payment_id is null and state = 'open' do update
		set deliveries = greatest(dead_letters.deliveries, excluded.deliveries)`, gateway, clean(p.Why, maxMessage), clean(p.Subject, 255), body, p.Count)
	return describe("burying a message", err)
}

// Ping implements consumer.Record.
func (s *Jobs) Ping(ctx context.Context) error {
	return Reach(ctx, s.pool)
}

// Check reports whether the record can be reached and fits this build.
func (s *Jobs) Check(ctx context.Context) error { return CheckSchema(ctx, s.pool) }

// ByID reads one payment's status, for those who only need that.
func (s *Jobs) ByID(ctx context.Context, id payment.ID) (payment.Status, error) {
	var status payment.Status
	err := s.pool.QueryRow(ctx, `select status from pollux.payments where id = $1`, int64(id)).Scan(&status)
	return status, describe("reading a payment", err)
}
