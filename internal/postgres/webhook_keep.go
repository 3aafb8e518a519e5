package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"pollux/internal/message"
	"pollux/internal/webhook"
)

// waitingSQL reads notices that wait and are due to be looked at, the longest due first.
const waitingSQL = `
	select gateway, account, event_id, kind, refs, effect, status, detail, amount_minor, currency, part, occurred_at, mode, key, digest,
	  received_at < now() - $2::bigint * interval '1 microsecond'
	from pollux.webhook_events
	where decision = 'waiting'
	  and look_at <= now()
	order by look_at
	limit $1`

// LookAgain implements webhook.Keeper. Nothing is locked while they are read: whoever else judges one meanwhile has it done.
func (s *Webhooks) LookAgain(ctx context.Context, n int, patience time.Duration) ([]webhook.Verdict, error) {
	rows, err := s.pool.Query(ctx, waitingSQL, n, patience.Microseconds())
	if err != nil {
		return nil, describe("reading notifications that wait", err)
	}
	var lapsed []bool
	arrivals, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a webhook.Arrival, err error) {
		a, late, err := scanWaiting(row)
		lapsed = append(lapsed, late)
		return a, err
	})
	if err != nil || len(arrivals) == 0 {
		return nil, describe("reading notifications that wait", err)
	}
	verdicts, err := s.take(ctx, arrivals, lapsed)
	return verdicts, describe("applying notifications that waited", err)
}

func scanWaiting(row pgx.CollectableRow) (a webhook.Arrival, late bool, err error) {
	var effect string
	var amount *int64
	var currency *string
	var occurred *time.Time
	var digest []byte
	err = row.Scan(&a.Gateway, &a.Account, &a.ID, &a.Kind, &a.References, &effect, &a.Status, &a.Detail, &amount, &currency, &a.Part, &occurred, &a.Mode, &a.Key,
		&digest, &late)
	for e, name := range effects {
		if name == effect {
			a.Effect = e
		}
	}
	if amount != nil && currency != nil {
		a.Money = &webhook.Money{Minor: *amount, Currency: *currency}
	}
	if occurred != nil {
		a.OccurredAt = *occurred
	}
	copy(a.Digest[:], digest)
	return a, late, err
}

// Forget implements webhook.Keeper. The oldest stand at the front of the primary key.
func (s *Webhooks) Forget(ctx context.Context, keep time.Duration, n int) (int, error) {
	tag, err := s.pool.Exec(ctx, `
		delete from pollux.webhook_events
		where id = any (array(
		    select id
		    from pollux.webhook_events
		    order by id
		    limit $2
		  ))
		  and received_at < now() - $1::bigint * interval '1 microsecond'`, keep.Microseconds(), n)
	return int(tag.RowsAffected()), describe("taking old notifications away", err)
}

// quietSQL says how long ago a gateway was heard, and whether so many payments wait for it. It looks at no more than 10,000 jobs.
const quietSQL = `
	select g.name,
	  (
	    select extract(epoch from now() - e.received_at)
	    from pollux.webhook_events e
	    where e.gateway || '' = g.name
	      and e.key <> 'listed'
	    order by e.id desc
	    limit 1
	  )::float8,
	  (
	    select count(*)
	    from (
	      select j.state, j.window_started_at
	      from pollux.poll_jobs j
	      where j.gateway = g.name
	      limit 10000
	    ) w
	    where w.state <> 'dead'
	      and w.window_started_at < now() - $2::bigint * interval '1 microsecond'
	  ) >= $3::bigint
	from unnest($1::text[]) as g(name)`

// Quiet implements webhook.Keeper.
func (s *Webhooks) Quiet(ctx context.Context, gateways []string, after time.Duration, n int) ([]webhook.Quiet, error) {
	rows, err := s.pool.Query(ctx, quietSQL, gateways, after.Microseconds(), n)
	if err != nil {
		return nil, describe("listening for silence", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (q webhook.Quiet, err error) {
		var ago *float64
		err = row.Scan(&q.Gateway, &ago, &q.Waiting)
		if ago != nil {
			q.Heard, q.For = true, time.Duration(*ago*float64(time.Second))
		}
		return q, err
	})
	return all, describe("listening for silence", err)
}

// Alone implements webhook.Lookout: it holds a lock, and a connection, for as long as do runs.
func (s *Webhooks) Alone(ctx context.Context, gateway string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchPatience, errors.New("the gateway did not list its events in time"))
	defer cancel()
	// By itself: whoever meets a row that is being inserted waits for its transaction.
	if _, err := s.pool.Exec(ctx, `insert into pollux.fetch_turns (gateway) values ($1) on conflict (gateway) do nothing`, gateway); err != nil {
		return describe("taking turns", err)
	}
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return describe("taking turns", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // nothing was written
	mine, err := tx.Exec(ctx, `select from pollux.fetch_turns where gateway = $1 for update skip locked`, gateway)
	if err != nil || mine.RowsAffected() == 0 {
		return describe("taking turns", err)
	}
	return do(ctx)
}

// fetchPatience is below the 60 s after which the server ends a transaction in which nothing happens.
const fetchPatience = 50 * time.Second

// densenSQL spreads polls over a time that would sleep longer than it, lane by lane. What the gateway itself asked to wait, waits.
const densenSQL = `
	update pollux.poll_jobs j
	set next_poll_at = now() + random() * $3::bigint * interval '1 microsecond'
	where j.payment_id = any (array(
	    select s.payment_id
	    from unnest($2::text[]) as l(lane)
	    cross join lateral (
	      select j.payment_id
	      from pollux.poll_jobs j
	      where j.gateway = $1
	        and j.lane = l.lane
	        and j.claimable_at > now() + $3::bigint * interval '1 microsecond'
	        and j.state = 'scheduled'
	        and ` + unasked + `
	      order by j.claimable_at
	      limit $4
	    ) s
	    order by s.payment_id
	  ))
	  and j.state = 'scheduled'`

// Densen implements webhook.Keeper.
func (s *Webhooks) Densen(ctx context.Context, gateway string, within time.Duration, n int) (int, error) {
	lanes := append([]string{message.LaneRetry, message.LaneReplay}, message.Lanes...)
	var moved int
	err := again(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, densenSQL, gateway, lanes, within.Microseconds(), n)
		moved = int(tag.RowsAffected())
		return err
	})
	return moved, describe("making polls due earlier", err)
}

// ListWebhooks returns notices, the newest first: of one gateway or all, of one decision or all, of one payment or all, or of those that a person has to look
// at. It is for people.
func (s *Webhooks) ListWebhooks(ctx context.Context, f WebhookFilter) ([]WebhookRow, error) {
	rows, err := s.pool.Query(ctx, `
		select id, gateway, account, event_id, kind, array_to_string(refs, ' '), status, decision, why, payment_id, key, occurred_at, received_at, body
		from pollux.webhook_events
		where ($1 = '' or gateway || '' = $1)
		  and ($2 = '' or decision = $2 or $2 = 'people' and decision in ('late_hint', 'conflict', 'mismatch', 'quarantined'))
		  and ($3::bigint = 0 or payment_id = $3)
		  and ($4::bigint = 0 or id < $4)
		order by id desc
		limit $5`, f.Gateway, f.Decision, f.Payment, f.Before, f.Limit)
	if err != nil {
		return nil, describe("listing notifications", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[WebhookRow])
	return all, describe("listing notifications", err)
}

// ShowWebhook returns a notice with all that is kept of it; nil when there is none with that id.
func (s *Webhooks) ShowWebhook(ctx context.Context, id int64) (*WebhookDetail, error) {
	rows, err := s.pool.Query(ctx, `
		select e.id, e.gateway, e.account, e.event_id, e.kind, array_to_string(e.refs, ' '), e.status, e.decision, e.why, e.payment_id, e.key, e.occurred_at,
		  e.received_at, e.body, e.mode, e.effect, e.detail, e.amount_minor, coalesce(e.currency, ''), encode(e.digest, 'hex'), e.decided_at, e.look_at,
		  coalesce(e.payment_id, (
		    select p.id
		    from pollux.payments p
		    where p.gateway = e.gateway
		      and p.account = e.account
		      and p.reference = any (e.refs)
		    order by array_position(e.refs, p.reference)
		    limit 1
		  ))
		from pollux.webhook_events e
		where e.id = $1`, id)
	if err != nil {
		return nil, describe("reading a notification", err)
	}
	d, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[WebhookDetail])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return d, describe("reading a notification", err)
}

// WebhookDetail is all that is kept of a notice. Headers are not: they hold what proves that a request is genuine.
type WebhookDetail struct {
	WebhookRow
	Mode        string     `json:"mode"`
	Effect      string     `json:"effect"`
	Detail      string     `json:"detail"`
	AmountMinor *int64     `json:"amount_minor"`
	Currency    string     `json:"currency"`
	Digest      string     `json:"digest"` // SHA-256 of the body as it came, in hexadecimal
	DecidedAt   time.Time  `json:"decided_at"`
	LookAt      *time.Time `json:"look_at"` // when its payment is looked for next, while it waits
	Tracked     *int64     `json:"tracked"` // the payment that it is about, or names, where one is tracked
}

// ForPeople chooses the notices that a person has to look at, whatever became of them.
const ForPeople = "people"

// WebhookFilter chooses notices. The zero value of a field chooses all.
type WebhookFilter struct {
	Gateway  string
	Decision string // or ForPeople
	Payment  int64
	Before   int64 // only those with a smaller id
	Limit    int
}

// WebhookRow is a notice as a person sees it.
type WebhookRow struct {
	ID         int64            `json:"id"`
	Gateway    string           `json:"gateway"`
	Account    string           `json:"account"`
	EventID    string           `json:"event_id"`
	Kind       string           `json:"kind"`
	References string           `json:"references"`
	Status     string           `json:"status"`
	Decision   webhook.Decision `json:"decision"`
	Why        string           `json:"why"`
	PaymentID  *int64           `json:"payment_id"`
	Key        string           `json:"key"`
	OccurredAt *time.Time       `json:"occurred_at"`
	ReceivedAt time.Time        `json:"received_at"`
	Body       []byte           `json:"body"`
}
