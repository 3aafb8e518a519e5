package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"pollux/internal/consumer"
	"pollux/internal/message"
	"pollux/internal/payment"
)

// findSQL finds a payment by its identity. One without a job, or without a lease, has a token that no job has.
const findSQL = `
	select p.id, coalesce(j.lock_token, '00000000-0000-0000-0000-000000000000')::text
	from pollux.payments p
	left join pollux.poll_jobs j on j.payment_id = p.id
	where p.gateway = $1
	  and p.account = $2
	  and p.reference = $3`

// Find returns what the record says about a payment, for somebody who looks at it and holds no lease. It reports false when there is no such
// payment.
func (s *Jobs) Find(ctx context.Context, gateway, account, reference string) (consumer.Job, bool, error) {
	var id int64
	var token string
	err := s.pool.QueryRow(ctx, findSQL, gateway, account, reference).Scan(&id, &token)
	if errors.Is(err, pgx.ErrNoRows) {
		return consumer.Job{}, false, nil
	}
	if err != nil {
		return consumer.Job{}, false, describe("finding a payment", err)
	}
	jobs, err := s.Read(ctx, []message.Poll{{Payment: payment.ID(id), Token: token}})
	if err != nil {
		return consumer.Job{}, false, err
	}
	return jobs[0], jobs[0].Tracked, nil
}

// Known is what the record says of a payment, to somebody who compares.
type Known struct {
	Status      payment.Status
	AmountMinor int64
	Currency    string
}

// compareSQL reads payments by their identities, one look-up in an index each.
const compareSQL = `
	select p.reference, p.status, p.amount_minor, p.currency
	from pollux.payments p
	where p.gateway = $1
	  and p.account = $2
	  and p.reference = any($3::text[])`

// Compare returns what the record says of payments of an account, by their references. What is not tracked is not in it.
func (s *Jobs) Compare(ctx context.Context, gateway, account string, references []string) (map[string]Known, error) {
	rows, err := s.pool.Query(ctx, compareSQL, gateway, account, references)
	if err != nil {
		return nil, describe("comparing payments", err)
	}
	defer rows.Close()
	known := make(map[string]Known, len(references))
	for rows.Next() {
		var reference string
		var st Known
		if err := rows.Scan(&reference, &st.Status, &st.AmountMinor, &st.Currency); err != nil {
			return nil, describe("comparing payments", err)
		}
		known[reference] = st
	}
	return known, describe("comparing payments", rows.Err())
}
