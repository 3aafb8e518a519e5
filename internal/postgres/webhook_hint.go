package postgres

import (
	"context"

	"pollux/internal/webhook"
)

var _ webhook.Rumours = (*Webhooks)(nil)

// nudgeSQL makes one poll due earlier that sleeps in its row, of the likeliest payment that is tracked. Its rest since what was done last bounds how often that can be: a
// second rumour finds the poll due as early as it may be, whoever took the first. The limit in the join keeps it a look into an index for each reference.
const nudgeSQL = `
	update pollux.poll_jobs j
	set next_poll_at = greatest(now(), j.updated_at + $4::bigint * interval '1 microsecond'),
	    revision = j.revision + 1
	where j.payment_id = (
	    select p.id
	    from unnest($3::text[]) with ordinality as i(reference, ord)
	    cross join lateral (
	      select p.id
	      from pollux.payments p
	      where p.gateway = $1
	        and p.account = $2
	        and p.reference = i.reference
	      limit 1
	    ) p
	    order by i.ord
	    limit 1
	  )
	  and j.state = 'scheduled'
	  and j.next_poll_at > greatest(now(), j.updated_at + $4::bigint * interval '1 microsecond')
	  and ` + unasked

// Nudge implements webhook.Rumours. A reference that is not tracked costs a look into an index.
func (s *Webhooks) Nudge(ctx context.Context, r webhook.Rumour) (bool, error) {
	tag, err := s.pool.Exec(ctx, nudgeSQL, r.Gateway, r.Account, r.References, r.Rest.Microseconds())
	return tag.RowsAffected() > 0, describe("making a poll due earlier", err)
}

// meetSQL finds the notices that wait for one of the newest payments and has them looked at now. The limit in the join keeps it a look into an index for each payment; more
// notices about one payment than that are found by the next look. A notice that somebody judges at this moment is left to him. The
// expression keeps the plan off the index of all notices that wait.
const meetSQL = `
	with newest as (
	  select coalesce(max(id), 0) as id
	  from pollux.payments
	), fresh as materialized (
	  select p.id, p.gateway, p.account, p.reference
	  from pollux.payments p
	  where p.id > greatest($1::bigint, (select id from newest) - $2::bigint)
	    and exists (select from pollux.webhook_waiting)
	  order by p.id
	  limit $2::bigint
	), met as (
	  update pollux.webhook_events
	  set look_at = now()
	  where id = any (array(
	      select id
	      from pollux.webhook_events
	      where id = any (array(
	          select w.event_id
	          from fresh f
	          cross join lateral (
	            select w.event_id
	            from pollux.webhook_waiting w
	            where w.gateway = f.gateway
	              and w.account = f.account
	              and w.reference = f.reference
	            limit 100
	          ) w
	        ))
	        and decision || '' = 'waiting'
	        and look_at > now()
	      for update skip locked
	    ))
	)
	select (select id from newest), pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint`

// Meet implements webhook.Keeper. That a notice waits for a payment is seen by one statement, so that what it did not see belongs to a transaction of its snapshot.
func (s *Webhooks) Meet(ctx context.Context, after int64, n int) (seen webhook.Sighting, err error) {
	err = s.pool.QueryRow(ctx, meetSQL, after, n).Scan(&seen.Last, &seen.Oldest, &seen.Next)
	return seen, describe("looking for payments that notifications wait for", err)
}
