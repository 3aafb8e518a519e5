package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/payment"
	"pollux/internal/redelivery"
	"pollux/internal/webhook"
)

// Webhooks is the record as the receiver of notifications sees it. It is safe for concurrent use.
type Webhooks struct {
	pool *pgxpool.Pool
	name string
}

var (
	_ webhook.Lookout = (*Webhooks)(nil)
	_ webhook.Record  = (*Webhooks)(nil)
	_ webhook.Keeper  = (*Webhooks)(nil)
)

// NewWebhooks returns the record for a receiver. The name says in dead letters who wrote them.
func NewWebhooks(pool *pgxpool.Pool, name string) *Webhooks { return &Webhooks{pool: pool, name: name} }

// Ping implements webhook.Record.
func (s *Webhooks) Ping(ctx context.Context) error {
	return Reach(ctx, s.pool)
}

// Check reports whether the record can be reached and fits this build.
func (s *Webhooks) Check(ctx context.Context) error { return CheckSchema(ctx, s.pool) }

// Take implements webhook.Record.
func (s *Webhooks) Take(ctx context.Context, arrivals []webhook.Arrival) ([]webhook.Verdict, error) {
	verdicts, err := s.take(ctx, arrivals, nil)
	if Refused(err) {
		return nil, fmt.Errorf("%w: %s", webhook.ErrRefused, Why(err))
	}
	return verdicts, describe("keeping notifications", err)
}

// take keeps, judges and applies arrivals in one transaction. For those that are kept already and wait, lapsed says which waited long enough.
func (s *Webhooks) take(ctx context.Context, arrivals []webhook.Arrival, lapsed []bool) (verdicts []webhook.Verdict, err error) {
	err = again(ctx, s.pool, func(tx pgx.Tx) error {
		b := &notices{arrivals: slices.Clone(arrivals), lapsed: lapsed, verdicts: make([]webhook.Verdict, len(arrivals))}
		for round := b.distinct(); len(round) > 0; {
			later, err := b.judge(ctx, tx, round)
			if err != nil {
				return err
			}
			if err := b.write(ctx, tx, round[:len(round)-len(later)], s.name); err != nil {
				return err
			}
			round = later
		}
		verdicts = b.verdicts
		return nil
	})
	return verdicts, err
}

// notices are arrivals on their way into the record.
type notices struct {
	arrivals []webhook.Arrival
	lapsed   []bool
	verdicts []webhook.Verdict
}

type noticeKey struct{ gateway, account, id string }

func keyOf(a *webhook.Arrival) noticeKey { return noticeKey{a.Gateway, a.Account, a.ID} }

// distinct returns the places of arrivals, in the order of their keys, so that two that have the same ones wait for each other and never for
// ever. What came twice at once is kept once.
func (b *notices) distinct() []int {
	first := make(map[noticeKey]int, len(b.arrivals))
	var round []int
	for i := range b.arrivals {
		a := &b.arrivals[i]
		b.verdicts[i].Gateway = a.Gateway
		if at, twice := first[keyOf(a)]; twice {
			b.verdicts[i].Decision, b.verdicts[i].Altered = webhook.Duplicate, a.Digest != b.arrivals[at].Digest
			continue
		}
		first[keyOf(a)] = i
		round = append(round, i)
	}
	slices.SortFunc(round, func(i, j int) int {
		x, y := &b.arrivals[i], &b.arrivals[j]
		return cmp.Or(cmp.Compare(x.Gateway, y.Gateway), cmp.Compare(x.Account, y.Account), cmp.Compare(x.ID, y.ID))
	})
	return round
}

// namedSQL are the payments that arrivals name.
const namedSQL = `
	select p.id
	from unnest($1::text[], $2::text[], $3::text[]) as i(gateway, account, reference)
	join pollux.payments p on p.gateway = i.gateway and p.account = i.account and p.reference = i.reference`

// lockNamedSQL locks their jobs, before the payments as everybody does.
const lockNamedSQL = `
	select
	from pollux.poll_jobs
	where payment_id = any (array(` + namedSQL + `))
	order by payment_id
	for update`

// standingSQL locks them and reads where they stand. What the record knows is as old as the notice that it has it from, as the
// poll that found it, or as the last change.
const standingSQL = `
	select p.gateway, p.account, p.reference, p.id, p.status, p.status_detail, p.amount_minor, p.currency, coalesce(j.state = 'in_flight', false),
	  case when p.status = 'pending' or p.status_source = 'webhook' then (
	    select max(e.occurred_at)
	    from pollux.webhook_events e
	    where e.payment_id = p.id
	      and e.decision in ('applied', 'late_success', 'noted', 'same')
	  ) else coalesce((
	    select max(a.at)
	    from pollux.poll_attempts a
	    where a.payment_id = p.id
	      and a.applied
	      and a.at between p.status_updated_at - interval '1 hour' and p.status_updated_at
	      and p.status_source = 'poll'
	  ), p.status_updated_at) end,
	  now(),
	  p.status <> 'pending' and coalesce(p.status_source = 'operator', false), p.class, p.created_at,
	  coalesce(p.traceparent, '')
	from pollux.payments p
	left join pollux.poll_jobs j on j.payment_id = p.id
	where p.id = any (array(` + namedSQL + `))
	order by p.id
	for update of p`

// knownSQL finds the notices that came before. What was listed and not sent has no bytes to be compared with. It runs behind the locks, so that of two that are the same one sees the other.
const knownSQL = `
	select i.ord, e.decision, e.payment_id, e.digest = i.digest or 'listed' in (e.key, i.key)
	from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[]) as i(ord, gateway, account, event_id, digest, key)
	join pollux.webhook_events e on e.gateway = i.gateway and e.account = i.account and e.event_id = i.event_id`

type named struct{ gateway, account, reference string }

// judge reads what the record knows and decides. Of several notices about one payment the first is judged; the others stand at the end of round
// then and are returned, for they depend on it.
func (b *notices) judge(ctx context.Context, tx pgx.Tx, round []int) (later []int, err error) {
	standings, err := b.read(ctx, tx, round)
	if err != nil {
		return nil, err
	}
	seen := map[payment.ID]bool{}
	var now []int
	for _, i := range round {
		a, v := &b.arrivals[i], &b.verdicts[i]
		if v.Decision == webhook.Duplicate {
			now = append(now, i)
			continue
		}
		standing := standingOf(a, standings)
		if standing.Tracked && seen[standing.Payment] {
			later = append(later, i)
			continue
		}
		seen[standing.Payment] = true
		v.Payment, v.Class, v.Age, v.TraceParent = standing.Payment, standing.Class, standing.Now.Sub(standing.TrackedAt), standing.TraceParent
		v.Decision, v.Why = webhook.Judge(a.Notice, standing)
		if v.Decision == webhook.Waiting && b.lapsed != nil && b.lapsed[i] {
			v.Decision, v.Why = webhook.Lapsed, "no such payment was tracked in time"
		}
		now = append(now, i)
	}
	copy(round[copy(round, now):], later)
	return round[len(now):], nil
}

// standingOf is where the payment of a notice stands: the first one that is tracked of those that it may be about.
func standingOf(a *webhook.Arrival, standings map[named]webhook.Standing) webhook.Standing {
	for _, r := range a.References {
		if s, ok := standings[named{a.Gateway, a.Account, r}]; ok {
			return s
		}
	}
	return webhook.Standing{}
}

// read locks the payments of a round and marks what came before.
func (b *notices) read(ctx context.Context, tx pgx.Tx, round []int) (map[named]webhook.Standing, error) {
	var gateways, accounts, references []string
	for _, i := range round {
		for _, r := range b.arrivals[i].References {
			gateways, accounts = append(gateways, b.arrivals[i].Gateway), append(accounts, b.arrivals[i].Account)
			references = append(references, r)
		}
	}
	standings := map[named]webhook.Standing{}
	var batch pgx.Batch
	if references != nil {
		batch.Queue(lockNamedSQL, gateways, accounts, references)
		batch.Queue(standingSQL, gateways, accounts, references).Query(func(rows pgx.Rows) error { return scanStandings(rows, standings) })
	}
	b.queueKnown(&batch, round)
	return standings, tx.SendBatch(ctx, &batch).Close()
}

func scanStandings(rows pgx.Rows, standings map[named]webhook.Standing) error {
	var n named
	var s webhook.Standing
	var since *time.Time
	_, err := pgx.ForEachRow(rows, []any{&n.gateway, &n.account, &n.reference, &s.Payment, &s.Status, &s.Detail, &s.AmountMinor, &s.Currency, &s.Polling, &since, &s.Now, &s.Forced,
		&s.Class, &s.TrackedAt, &s.TraceParent},
		func() error {
			s.Tracked, s.Since = true, time.Time{}
			if since != nil {
				s.Since = *since
			}
			standings[n] = s
			return nil
		})
	return err
}

func (b *notices) queueKnown(batch *pgx.Batch, round []int) {
	var ords []int64
	var gateways, accounts, ids, names []string
	var digests [][]byte
	for _, i := range round {
		a := &b.arrivals[i]
		names = append(names, a.Key)
		ords, gateways, accounts = append(ords, int64(i)), append(gateways, a.Gateway), append(accounts, a.Account)
		ids, digests = append(ids, a.ID), append(digests, a.Digest[:])
	}
	batch.Queue(knownSQL, ords, gateways, accounts, ids, digests, names).Query(func(rows pgx.Rows) error {
		var ord int64
		var decision webhook.Decision
		var id *int64
		var same bool
		_, err := pgx.ForEachRow(rows, []any{&ord, &decision, &id, &same}, func() error {
			v := &b.verdicts[ord]
			v.Altered = !same
			if decision == webhook.Waiting {
				if v.Altered {
					b.arrivals[ord] = b.arrivals[ord].Reused()
				}
				return nil // it is judged once more
			}
			v.Decision, v.Payment = webhook.Duplicate, 0
			if id != nil {
				v.Payment = payment.ID(*id)
			}
			return nil
		})
		return err
	})
}

// reportSQL gives payments the status that their gateway reports. The triggers write the events and end the jobs.
const reportSQL = `
	update pollux.payments p
	set status = i.status, status_detail = i.detail, status_source = 'webhook'
	from unnest($1::bigint[], $2::text[], $3::text[]) as i(id, status, detail)
	where p.id = i.id
	  and p.status <> i.status`

// unasked holds of a job j whose gateway does not ask us to stay away. The aggregate keeps the question one per job: a join might read all attempts.
const unasked = `coalesce(j.last_class, '') not in ('rate_limited', 'unauthorized')
	  and coalesce((
	    select max(a.at + a.retry_after_ms * interval '1 millisecond')
	    from pollux.poll_attempts a
	    where a.payment_id = j.payment_id
	      and a.retry_after_ms > 0
	  ) <= now(), true)`

// hastenSQL makes the polls of payments due that sleep in their rows: not within two seconds of what was done last, nor before the time that the gateway itself
// asked for. What is with a person is polled again as if replayed.
const hastenSQL = `
	update pollux.poll_jobs j
	set state = 'scheduled',
	    next_poll_at = case when j.state = 'dead' then now() else least(j.next_poll_at, greatest(now(), j.updated_at + interval '2 seconds')) end,
	    lane = case when j.state = 'dead' then 'replay' else j.lane end,
	    window_started_at = case when j.state = 'dead' then now() else j.window_started_at end,
	    attempts = case when j.state = 'dead' then 0 else j.attempts end,
	    failures = case when j.state = 'dead' then 0 else j.failures end,
	    not_founds = case when j.state = 'dead' then 0 else j.not_founds end,
	    replays = j.replays + (j.state = 'dead')::integer,
	    revision = j.revision + 1
	where j.payment_id = any ($1::bigint[])
	  and j.state in ('scheduled', 'dead')
	  and ` + unasked

// replayingSQL says so in the letters of those that were with a person.
const replayingSQL = `
	update pollux.dead_letters d
	set state = 'replaying'
	from pollux.poll_jobs j
	where d.payment_id = any ($1::bigint[])
	  and d.state in ('open', 'parked')
	  and not d.review
	  and j.payment_id = d.payment_id
	  and j.state = 'scheduled'`

// stopSQL stops the polls of payments that a person has to look at.
const stopSQL = `
	update pollux.poll_jobs j
	set state = 'dead', locked_until = null, locked_by = null, lock_token = null, revision = j.revision + 1,
	    last_class = 'mismatch', last_message = i.why, updated_at = now()
	from unnest($1::bigint[], $2::text[]) as i(id, why)
	where j.payment_id = i.id
	  and j.state <> 'dead'`

// keepSQL keeps notices, or says what became of those that waited. One that waits is looked for again after half as long as it has waited, within bounds.
const keepSQL = `
	insert into pollux.webhook_events as e (gateway, account, event_id, kind, refs, effect, status, detail, amount_minor, currency, part, occurred_at,
	  mode, key, digest, body, decision, why, payment_id, look_at)
	select i.gateway, i.account, i.event_id, i.kind, string_to_array(i.refs, ' '), i.effect, i.status, i.detail, i.amount_minor, i.currency, i.part,
	  i.occurred_at, i.mode, i.key, i.digest, i.body, i.decision, i.why, i.payment_id, case when i.decision = 'waiting' then now() + interval '250 milliseconds' end
	from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint[], $10::text[],
	  $11::bool[], $12::timestamptz[], $13::text[], $14::text[], $15::bytea[], $16::bytea[], $17::text[], $18::text[], $19::bigint[])
	  as i(gateway, account, event_id, kind, refs, effect, status, detail, amount_minor, currency, part, occurred_at, mode, key, digest, body, decision,
	  why, payment_id)
	on conflict (gateway, account, event_id) do update
	set decision = excluded.decision, why = excluded.why, payment_id = excluded.payment_id, decided_at = now(),
	    look_at = case when excluded.decision = 'waiting'
	      then now() + greatest(interval '250 milliseconds', least((now() - e.received_at) / 2, interval '30 minutes')) end
	where e.decision = 'waiting'`

var effects = map[webhook.Effect]string{webhook.Report: "report", webhook.Hint: "hint", webhook.Nothing: "nothing"}

// write carries out what was decided about a round.
func (b *notices) write(ctx context.Context, tx pgx.Tx, round []int, worker string) error {
	var batch pgx.Batch
	b.queueReports(&batch, round)
	b.queueHints(&batch, round)
	b.queueMismatches(&batch, round, worker)
	b.queueKept(&batch, round)
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, &batch).Close()
}

func (b *notices) queueReports(batch *pgx.Batch, round []int) {
	var finals, pendings []int64
	var statuses, details, notes []string
	for _, i := range round {
		id, detail := int64(b.verdicts[i].Payment), clean(b.arrivals[i].Detail, maxDetail)
		switch b.verdicts[i].Decision {
		case webhook.Applied, webhook.LateSuccess:
			finals, statuses, details = append(finals, id), append(statuses, string(b.arrivals[i].Status)), append(details, detail)
		case webhook.Noted:
			pendings, notes = append(pendings, id), append(notes, detail)
		}
	}
	if finals != nil {
		batch.Queue(reportSQL, finals, statuses, details)
	}
	if pendings != nil {
		batch.Queue(detailSQL, pendings, notes)
	}
}

// queueHints has payments polled about which something is said that is not believed. An old end of one that is pending is such a thing; one that is final has
// no job.
func (b *notices) queueHints(batch *pgx.Batch, round []int) {
	var ids []int64
	for _, i := range round {
		d := b.verdicts[i].Decision
		if d == webhook.Hastened || d == webhook.Stale && b.arrivals[i].Status.Final() {
			ids = append(ids, int64(b.verdicts[i].Payment))
		}
	}
	if ids != nil {
		batch.Queue(hastenSQL, ids)
		batch.Queue(replayingSQL, ids)
	}
}

// queueMismatches hands payments to a person whose gateway reports other money than is tracked. Those that are final already stay so.
func (b *notices) queueMismatches(batch *pgx.Batch, round []int, worker string) {
	for _, i := range round {
		v := &b.verdicts[i]
		if v.Decision != webhook.Mismatched {
			continue
		}
		id, why := int64(v.Payment), clean("notification: "+v.Why, maxMessage)
		batch.Queue(stopSQL, []int64{id}, []string{why})
		batch.Queue(`select pollux.bury($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			id, string(redelivery.ReasonMismatch), "mismatch", int16(0), clean(b.arrivals[i].Kind, maxStatus), why, "", worker, "", nil)
	}
}

func (b *notices) queueKept(batch *pgx.Batch, round []int) {
	var gateways, accounts, ids, kinds, refs, does, statuses, details, modes, names, decisions, whys []string
	var amounts, payments []*int64
	var currencies []*string
	var occurred []*time.Time
	var digests, bodies [][]byte
	var parts []bool
	for _, i := range round {
		a, v := &b.arrivals[i], &b.verdicts[i]
		if v.Decision == webhook.Duplicate {
			continue
		}
		gateways, accounts, ids = append(gateways, a.Gateway), append(accounts, a.Account), append(ids, a.ID)
		kinds, refs, does = append(kinds, clean(a.Kind, maxDetail)), append(refs, joined(a.References)), append(does, effects[a.Effect])
		statuses, details = append(statuses, string(a.Status)), append(details, clean(a.Detail, maxDetail))
		modes, names = append(modes, clean(a.Mode, maxStatus)), append(names, clean(a.Key, maxStatus))
		decisions, whys = append(decisions, string(v.Decision)), append(whys, clean(v.Why, maxMessage))
		amounts, currencies, occurred, payments = append(amounts, nil), append(currencies, nil), append(occurred, nil), append(payments, nil)
		last := len(amounts) - 1
		if a.Money != nil {
			currency := clean(a.Money.Currency, maxStatus)
			amounts[last], currencies[last] = &a.Money.Minor, &currency
		}
		if !a.OccurredAt.IsZero() {
			occurred[last] = &a.OccurredAt
		}
		if v.Payment != 0 {
			payments[last] = (*int64)(&v.Payment)
		}
		digests, bodies, parts = append(digests, a.Digest[:]), append(bodies, a.Body), append(parts, a.Part)
	}
	if ids != nil {
		batch.Queue(keepSQL, gateways, accounts, ids, kinds, refs, does, statuses, details, amounts, currencies, parts, occurred, modes, names, digests, bodies,
			decisions, whys, payments)
	}
}

// joined are references as one text: they have no blanks.
func joined(references []string) string {
	if len(references) == 1 {
		return references[0]
	}
	var b []byte
	for i, r := range references {
		if i > 0 {
			b = append(b, ' ')
		}
		b = append(b, r...)
	}
	return string(b)
}
