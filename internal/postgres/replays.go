package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/audit"
	"pollux/internal/deadletter"
	"pollux/internal/payment/currency"
)

// Replays is the record of replays. It is safe for concurrent use.
type Replays struct{ pool *pgxpool.Pool }

// NewReplays returns the record of replays.
func NewReplays(pool *pgxpool.Pool) *Replays { return &Replays{pool: pool} }

// replayTarget names a replay in the audit log.
func replayTarget(id int64) string { return "replay:" + strconv.FormatInt(id, 10) }

// replayState is a replay in the audit log.
type replayState struct {
	State    string           `json:"state"`
	Why      string           `json:"why,omitempty"`
	Letters  int              `json:"letters,omitempty"`
	Money    map[string]int64 `json:"money,omitempty"`
	Checksum string           `json:"checksum,omitempty"`
	Refused  int64            `json:"refused,omitempty"` // letters that were chosen and are not polled
}

// orderedSQL is a selection with a verdict on each letter, in the order of a replay: what is polled first, of that one letter of each fingerprint, then by
// priority.
func orderedSQL(c *clauses, o deadletter.Order) string {
	prior := "s.died_at, s.id"
	if o.Priority == deadletter.ByMoney {
		prior = fmt.Sprintf("s.amount_minor / power(10::numeric, case when s.currency = any (%s::text[]) then 0 when s.currency = any (%s::text[]) then 3 when s.currency = any (%s::text[]) then 4 else 2 end) desc nulls last, s.id",
			c.arg(currency.Codes(0)), c.arg(currency.Codes(3)), c.arg(currency.Codes(4)))
	}
	most := c.arg(o.MaxTimes)
	return `
		selected as materialized (
		  select d.id, d.payment_id, d.gateway, d.fingerprint, d.amount_minor, d.currency, d.died_at,
		    case
		      when d.payment_id is null then 'no_payment'
		      when p.status <> 'pending' then 'already_final'
		      when a.replay_id is not null then 'in_another_replay'
		      when d.state <> 'open' then 'not_open'
		      when j.state is distinct from 'dead' then 'already_polled'
		      when ` + most + `::int > 0 and d.replays >= ` + most + `::int then 'replayed_too_often'
		      when p.expires_at <= now() then 'deadline_passed'
		      else 'would_be_polled'
		    end as verdict,
		    case
		      when p.status <> 'pending' then p.status
		      when a.replay_id is not null then a.replay_id::text
		      when d.state <> 'open' then d.state
		      when ` + most + `::int > 0 and d.replays >= ` + most + `::int then d.replays::text
		      else ''
		    end as detail
		  from ` + letterTables + `
		  left join pollux.poll_jobs j on j.payment_id = d.payment_id
		  where ` + c.selection(o.Selection) + `
		  limit ` + c.arg(deadletter.MaxReplay+1) + `
		), judged as (
		  select s.*, s.verdict in ('would_be_polled', 'deadline_passed') as polled,
		    row_number() over (partition by s.fingerprint, s.verdict in ('would_be_polled', 'deadline_passed') order by ` + prior + `) as nth
		  from selected s
		), ordered as (
		  select s.*, row_number() over (order by not s.polled, least(s.nth, 2), ` + prior + `) as ord
		  from judged s
		)`
}

// Create freezes the selection of an order and makes a replay of it, in one transaction. A request id that was used before returns the replay that was made for it
// and false. Letters that were replayed too often are put aside. A filter that chooses no letter makes no replay: the error is deadletter.ErrNothing then, and the
// refusal is in the audit log.
func (s *Replays) Create(ctx context.Context, o deadletter.Order, by By) (r deadletter.Replay, fresh bool, err error) {
	o.Selection = o.Selection.Distinct()
	var empty error
	err = again(ctx, s.pool, func(tx pgx.Tx) error {
		empty = nil
		// One selection after the other: what one has chosen the next one sees.
		if _, err := tx.Exec(ctx, `select from pollux.replay_turn for update`); err != nil {
			return err
		}
		var err error
		if r, err = known(ctx, tx, o); !errors.Is(err, deadletter.ErrNoReplay) {
			fresh = false
			return err
		}
		fresh = true
		var acts []audit.Act
		err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
			r, acts, err = create(ctx, tx, o, by)
			return err
		})
		if errors.Is(err, deadletter.ErrNothing) {
			empty, fresh, r = err, false, deadletter.Replay{}
			acts = []audit.Act{by.act("replay.create", audit.Refused, []audit.Change{{Target: "replay", After: replayState{Why: err.Error()}}})}
		} else if err != nil {
			return err
		}
		return writeActs(ctx, tx, acts...)
	})
	if err == nil {
		err = empty
	}
	return r, fresh, describe("making a replay", err)
}

// create writes a replay with its rows, and returns it and what is to be audited.
func create(ctx context.Context, tx pgx.Tx, o deadletter.Order, by By) (r deadletter.Replay, acts []audit.Act, err error) {
	var id int64
	err = tx.QueryRow(ctx, `
		insert into pollux.replays (request_id, selection, reason, priority, stage, created_by)
		values ($1, $2, $3, $4, $5, $6)
		returning id`, o.RequestID, o.Text(), by.Reason, string(o.Priority), firstStage(o), by.Name).Scan(&id)
	if err != nil {
		return r, nil, err
	}
	parked, err := freeze(ctx, tx, id, o, by)
	if err != nil {
		return r, nil, err
	}
	if r, err = readReplay(ctx, tx, "r.id = $1", id); err != nil {
		return r, nil, err
	}
	created := []audit.Change{{Target: replayTarget(id), After: replayState{r.State, r.Why, r.Letters, r.Money, r.Checksum, r.Counts.Refused + r.Counts.Final}}}
	return r, []audit.Act{by.act("replay.create", audit.Done, created), by.act("dlq.park", audit.Done, parked)}, nil
}

func firstStage(o deadletter.Order) int {
	if o.NoCanary {
		return len(deadletter.Canary)
	}
	return 0
}

// known is the replay that was made for a request before.
func known(ctx context.Context, tx pgx.Tx, o deadletter.Order) (deadletter.Replay, error) {
	r, err := readReplay(ctx, tx, "r.request_id = $1", o.RequestID)
	if err == nil && r.Selection != o.Text() {
		return r, fmt.Errorf("%w: %d, of %.200s", deadletter.ErrOther, r.ID, r.Selection)
	}
	return r, err
}

// freeze writes the rows of a replay and what they add up to, and returns the letters that it has put aside.
func freeze(ctx context.Context, tx pgx.Tx, id int64, o deadletter.Order, by By) ([]audit.Change, error) {
	var c clauses
	me := c.arg(id)
	tag, err := tx.Exec(ctx, `
		with `+orderedSQL(&c, o)+`
		insert into pollux.replay_items (replay_id, ord, letter_id, payment_id, gateway, fingerprint, amount_minor, currency, state, verdict, detail, ended_at)
		select `+me+`, ord, id, payment_id, gateway, fingerprint, amount_minor, currency,
		  case when polled then 'chosen' when verdict = 'already_final' then 'final' else 'refused' end, verdict, detail, case when not polled then now() end
		from ordered`, c.args...)
	if err != nil {
		return nil, err
	}
	if tag.RowsAffected() == 0 && !o.Selection.ByID() {
		return nil, nothing(o)
	}
	if tag.RowsAffected() > deadletter.MaxReplay {
		return nil, fmt.Errorf("more than %d letters are chosen; narrow the filter", deadletter.MaxReplay)
	}
	if err := nameMissing(ctx, tx, id, o, tag.RowsAffected()); err != nil {
		return nil, err
	}
	if err := sum(ctx, tx, id, o); err != nil {
		return nil, err
	}
	return putAside(ctx, tx, id, by)
}

func nothing(o deadletter.Order) error {
	return fmt.Errorf("%w: there is no dead letter with %s", deadletter.ErrNothing, o.Text())
}

// Unknown returns the terms of a filter that name a gateway, a class or a reason that no letter ever had, open or closed.
func (s *Replays) Unknown(ctx context.Context, f deadletter.Filter) ([]string, error) {
	var unknown []string
	for _, t := range f.Terms {
		if t.Op != deadletter.Is || !slices.Contains([]string{"gateway", "class", "reason"}, t.Field) {
			continue
		}
		rows, err := s.pool.Query(ctx, `
			select v
			from unnest($1::text[]) as v
			where not exists (
			  select from pollux.dead_letters d
			  where d.state = any ($2::text[])
			    and d.`+t.Field+` = v
			)`, t.Texts, deadletter.States)
		if err != nil {
			return nil, describe("looking for what no dead letter has", err)
		}
		values, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, describe("looking for what no dead letter has", err)
		}
		for _, v := range values {
			unknown = append(unknown, t.Field+"="+v)
		}
	}
	return unknown, nil
}

// nameMissing adds the ids that are no letters.
func nameMissing(ctx context.Context, tx pgx.Tx, id int64, o deadletter.Order, found int64) error {
	if found == int64(len(o.Selection.IDs)) || !o.Selection.ByID() {
		return nil
	}
	_, err := tx.Exec(ctx, `
		insert into pollux.replay_items (replay_id, ord, letter_id, state, verdict, ended_at)
		select $1, $2 + row_number() over (order by i.id), i.id, 'refused', 'missing', now()
		from unnest($3::bigint[]) as i(id)
		where not exists (select from pollux.dead_letters d where d.id = i.id)`, id, found, o.Selection.IDs)
	return err
}

// putAside parks the letters that were replayed too often.
func putAside(ctx context.Context, tx pgx.Tx, id int64, by By) ([]audit.Change, error) {
	rows, err := tx.Query(ctx, `
		update pollux.dead_letters d
		set state = 'parked'
		from pollux.replay_items i
		where i.replay_id = $1
		  and i.verdict = 'replayed_too_often'
		  and d.id = i.letter_id
		  and d.state = 'open'
		returning d.id`, id)
	if err != nil {
		return nil, err
	}
	parked, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil || len(parked) == 0 {
		return nil, err
	}
	_, err = tx.Exec(ctx, `
		insert into pollux.dead_letter_notes (letter_id, actor, text)
		select id, $2, 'put aside: replayed too often'
		from unnest($1::bigint[]) as i(id)`, parked, by.Name)
	changes := make([]audit.Change, len(parked))
	for i, letter := range parked {
		changes[i] = audit.Change{Target: audit.Letter(letter), Before: letterState{State: deadletter.Open}, After: letterState{State: deadletter.Parked, Replay: id}}
	}
	return changes, err
}

// sum writes what was chosen, how fast it goes and whether a second person must agree.
func sum(ctx context.Context, tx pgx.Tx, id int64, o deadletter.Order) error {
	var gateways []string
	var letters int
	var checksum string
	err := tx.QueryRow(ctx, `
		select coalesce(array_agg(distinct gateway), '{}'), count(*),
		  encode(sha256(convert_to(coalesce(string_agg(letter_id || ' ' || payment_id || ' ' || amount_minor || currency, ',' order by ord), ''), 'UTF8')), 'hex')
		from pollux.replay_items
		where replay_id = $1
		  and state = 'chosen'`, id).Scan(&gateways, &letters, &checksum)
	if err != nil {
		return err
	}
	money, err := moneyOf(ctx, tx, `from pollux.replay_items where replay_id = $1 and state = 'chosen' and currency is not null`, id)
	if err != nil {
		return err
	}
	rate, err := o.Rate.Of(o.Limits, gateways)
	if err != nil {
		return err
	}
	if err := deadletter.CheckDuration(letters, rate); err != nil {
		return err
	}
	state, why := deadletter.Running, o.Approval.Needed(letters, money)
	switch {
	case letters == 0:
		state = deadletter.Done
	case why != "":
		state = deadletter.AwaitingApproval
	}
	_, err = tx.Exec(ctx, `
		update pollux.replays
		set letters = $2, money = $3, gateways = $4, checksum = $5, rate = $6, state = $7, why = $8, ended_at = case when $7 = 'done' then now() end
		where id = $1`, id, letters, money, gateways, checksum, rate, state, why)
	return err
}

// moneyOf sums amounts by currency.
func moneyOf(ctx context.Context, db queryer, from string, args ...any) (map[string]int64, error) {
	rows, err := db.Query(ctx, `select currency, least(sum(amount_minor), `+maxBigint+`)::bigint `+from+` group by currency`, args...)
	if err != nil {
		return nil, err
	}
	money := map[string]int64{}
	var code string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&code, &n}, func() error {
		money[code] = n
		return nil
	})
	return money, err
}

// queryer is what a pool and a transaction have in common.
type queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Preview says what Create would do now, with the first n letters. It changes nothing. Where Create would return deadletter.ErrNothing, so does it.
func (s *Replays) Preview(ctx context.Context, o deadletter.Order, n int) (p deadletter.Preview, err error) {
	o.Selection = o.Selection.Distinct()
	p = deadletter.Preview{Money: map[string]int64{}, Verdicts: map[deadletter.Verdict]int{}}
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := inspect(ctx, tx, o, &p); err != nil {
			return err
		}
		p.First, err = first(ctx, tx, o, n)
		return err
	})
	if err != nil {
		return p, describe("looking at dead letters", err)
	}
	missing(&p, o, n)
	if len(p.Verdicts) == 0 {
		return p, describe("looking at dead letters", nothing(o))
	}
	if p.Rate, err = o.Rate.Of(o.Limits, p.Gateways); err != nil {
		return p, err
	}
	p.Approval = o.Approval.Needed(p.Letters, p.Money)
	return p, deadletter.CheckDuration(p.Letters, p.Rate)
}

// inspect counts what would become of a selection.
func inspect(ctx context.Context, tx pgx.Tx, o deadletter.Order, p *deadletter.Preview) error {
	var c clauses
	rows, err := tx.Query(ctx, `
		with `+orderedSQL(&c, o)+`
		select verdict, polled, gateway, coalesce(currency, ''), count(*), least(coalesce(sum(amount_minor), 0), `+maxBigint+`)::bigint
		from judged
		group by 1, 2, 3, 4`, c.args...)
	if err != nil {
		return err
	}
	var verdict deadletter.Verdict
	var polled bool
	var gateway, code string
	var letters int
	var money int64
	_, err = pgx.ForEachRow(rows, []any{&verdict, &polled, &gateway, &code, &letters, &money}, func() error {
		p.Verdicts[verdict] += letters
		if polled {
			p.Letters, p.Gateways = p.Letters+letters, insert(p.Gateways, gateway)
			p.Money[code] = saturated(p.Money[code], money)
		}
		return nil
	})
	return err
}

func first(ctx context.Context, tx pgx.Tx, o deadletter.Order, n int) ([]deadletter.Previewed, error) {
	var c clauses
	rows, err := tx.Query(ctx, `
		with `+orderedSQL(&c, o)+`
		select `+letterColumns+`, o.verdict, o.detail
		from (select id, ord, verdict, detail from ordered order by ord limit `+c.arg(n)+`) o
		join pollux.dead_letters d on d.id = o.id
		left join pollux.payments p on p.id = d.payment_id
		left join pollux.replay_items a on a.letter_id = d.id and a.state in ('chosen', 'queued')
		order by o.ord`, c.args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (v deadletter.Previewed, err error) {
		err = row.Scan(append(letterFields(&v.Letter), &v.Verdict, &v.Detail)...)
		v.Why = v.Verdict.Why(v.Detail)
		return v, err
	})
}

// missing adds the ids that are no letters.
func missing(p *deadletter.Preview, o deadletter.Order, n int) {
	found := 0
	for _, letters := range p.Verdicts {
		found += letters
	}
	if !o.Selection.ByID() || found == len(o.Selection.IDs) {
		return
	}
	p.Verdicts[deadletter.Missing] = len(o.Selection.IDs) - found
	seen := map[int64]bool{}
	for _, l := range p.First {
		seen[l.ID] = true
	}
	for _, id := range o.Selection.IDs {
		if !seen[id] && len(p.First) < n {
			p.First = append(p.First, deadletter.Previewed{Letter: deadletter.Letter{ID: id}, Verdict: deadletter.Missing, Why: deadletter.Missing.Why("")})
		}
	}
}

const replayColumns = `
	r.id, r.request_id, r.selection, r.reason, r.state, r.why, r.letters, r.money, r.gateways, r.checksum, r.rate, r.priority, r.stage, r.created_at,
	r.created_by, r.login, r.login = session_user and not pg_has_role(session_user, (select c.relowner from pg_catalog.pg_class c where c.oid = 'pollux.replays'::regclass), 'usage'),
	coalesce(r.approved_by, ''), coalesce(r.approved_login, ''), r.approved_at, r.ended_at, r.ended_by, r.ended_why, r.driver, r.driven_at`

func replayFields(r *deadletter.Replay) []any {
	return []any{&r.ID, &r.RequestID, &r.Selection, &r.Reason, &r.State, &r.Why, &r.Letters, &r.Money, &r.Gateways, &r.Checksum, &r.Rate, &r.Priority, &r.Stage,
		&r.CreatedAt, &r.CreatedBy, &r.Login, &r.Mine, &r.ApprovedBy, &r.ApprovedLogin, &r.ApprovedAt, &r.EndedAt, &r.EndedBy, &r.EndedWhy, &r.Driver, &r.DrivenAt}
}

// readReplay reads a replay with its counts. where is a condition on r whose only argument is $1.
func readReplay(ctx context.Context, db queryer, where string, arg any) (r deadletter.Replay, err error) {
	err = db.QueryRow(ctx, `select `+replayColumns+` from pollux.replays r where `+where, arg).Scan(replayFields(&r)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, deadletter.ErrNoReplay
	}
	if err != nil {
		return r, err
	}
	r.Counts, err = countItems(ctx, db, r.ID)
	return r, err
}

// itemCounts are the letters of a replay by what became of them, in the order of countFields.
const itemCounts = `
	count(*) filter (where i.state = 'chosen'),
	count(*) filter (where i.state = 'queued'),
	count(*) filter (where i.state = 'queued' and i.answered_at is not null),
	count(*) filter (where i.state = 'resolved'),
	count(*) filter (where i.state = 'failed_again'),
	count(*) filter (where i.state = 'failed_again' and i.came_back),
	count(*) filter (where i.state = 'final'),
	count(*) filter (where i.state = 'refused'),
	count(*) filter (where i.state = 'cancelled'),
	count(*) filter (where i.state = 'undone')`

func countFields(c *deadletter.Counts) []any {
	return []any{&c.Chosen, &c.Queued, &c.Answered, &c.Resolved, &c.FailedAgain, &c.CameBack, &c.Final, &c.Refused, &c.Cancelled, &c.Undone}
}

func countItems(ctx context.Context, db queryer, id int64) (c deadletter.Counts, err error) {
	err = db.QueryRow(ctx, `select `+itemCounts+` from pollux.replay_items i where i.replay_id = $1`, id).Scan(countFields(&c)...)
	return c, err
}

// Replay returns a replay as it stands, or deadletter.ErrNoReplay.
func (s *Replays) Replay(ctx context.Context, id int64) (deadletter.Replay, error) {
	r, err := readReplay(ctx, s.pool, "r.id = $1", id)
	return r, describe("reading a replay", err)
}

// List returns the newest n replays.
func (s *Replays) List(ctx context.Context, n int) ([]deadletter.Replay, error) {
	rows, err := s.pool.Query(ctx, `select `+replayColumns+` from pollux.replays r order by r.id desc limit $1`, n)
	if err != nil {
		return nil, describe("listing replays", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r deadletter.Replay, err error) { return r, row.Scan(replayFields(&r)...) })
	for i := range all {
		if err == nil {
			all[i].Counts, err = countItems(ctx, s.pool, all[i].ID)
		}
	}
	return all, describe("listing replays", err)
}

// Items gives what became of each letter of a replay to fn, in the order of the replay, and stops at the first error.
func (s *Replays) Items(ctx context.Context, id int64, fn func(deadletter.Item) error) error {
	after := int64(0)
	for {
		rows, err := s.pool.Query(ctx, `
			select `+itemColumns+`
			from pollux.replay_items i
			left join pollux.payments p on p.id = i.payment_id
			where i.replay_id = $1
			  and i.ord > $2
			order by i.ord
			limit $3`, id, after, deadletter.MaxPage)
		if err != nil {
			return describe("reading the letters of a replay", err)
		}
		items, err := pgx.CollectRows(rows, scanItem)
		if err != nil {
			return describe("reading the letters of a replay", err)
		}
		for _, i := range items {
			if err := fn(i); err != nil {
				return err
			}
			after = i.Ord
		}
		if len(items) < deadletter.MaxPage {
			return nil
		}
	}
}

// Left returns the first n letters of a replay that were left alone.
func (s *Replays) Left(ctx context.Context, id int64, n int) ([]deadletter.Item, error) {
	rows, err := s.pool.Query(ctx, `
		select `+itemColumns+`
		from pollux.replay_items i
		left join pollux.payments p on p.id = i.payment_id
		where i.replay_id = $1
		  and i.state in ('refused', 'final')
		order by i.ord
		limit $2`, id, n)
	if err != nil {
		return nil, describe("reading the letters of a replay", err)
	}
	items, err := pgx.CollectRows(rows, scanItem)
	return items, describe("reading the letters of a replay", err)
}

// itemColumns are the columns of a row i of a replay with its payment p, in the order of scanItem.
const itemColumns = `
	i.ord, i.letter_id, i.payment_id, i.gateway, coalesce(p.reference, ''), i.amount_minor, coalesce(i.currency, ''), i.state, i.verdict, i.detail,
	i.came_back, coalesce(p.status, ''), i.released_at, i.ended_at`

func scanItem(row pgx.CollectableRow) (i deadletter.Item, err error) {
	var verdict deadletter.Verdict
	var detail string
	err = row.Scan(&i.Ord, &i.Letter, &i.Payment, &i.Gateway, &i.Reference, &i.AmountMinor, &i.Currency, &i.State, &verdict, &detail, &i.CameBack, &i.Status,
		&i.ReleasedAt, &i.EndedAt)
	i.Why = whyOf(i.State, verdict, detail)
	return i, err
}

// lockReplay locks a replay: whoever has it is the only one who takes it further.
func lockReplay(ctx context.Context, tx pgx.Tx, id int64) (r deadletter.Replay, err error) {
	err = tx.QueryRow(ctx, `select `+replayColumns+` from pollux.replays r where r.id = $1 for update`, id).Scan(replayFields(&r)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, deadletter.ErrNoReplay
	}
	return r, err
}

// turn is what an operator does with a replay as a whole.
type turn struct {
	verb, done string   // as in "approve", "approved"
	from       []string // the states in which it can be done
	refuses    func(deadletter.Replay) error
	do         func(ctx context.Context, tx pgx.Tx) (letters []audit.Change, err error)
}

// turn does something with a replay and writes it to the audit log, as it does a refusal.
func (s *Replays) turn(ctx context.Context, id int64, by By, t turn) (r deadletter.Replay, err error) {
	var refusal error
	err = again(ctx, s.pool, func(tx pgx.Tx) error {
		before, err := lockReplay(ctx, tx, id)
		change := audit.Change{Target: replayTarget(id)}
		switch refusal = err; {
		case err == nil:
			refusal, change.Before = t.refusal(before), replayState{State: before.State}
		case !errors.Is(err, deadletter.ErrNoReplay):
			return err
		}
		if refusal != nil {
			r = before
			return writeAct(ctx, tx, By{by.Actor, by.Reason + ": " + refusal.Error()}.act("replay."+t.verb, audit.Refused, []audit.Change{change}))
		}
		letters, err := t.do(ctx, tx)
		if err != nil {
			return err
		}
		if r, err = readReplay(ctx, tx, "r.id = $1", id); err != nil {
			return err
		}
		turned := []audit.Change{{Target: replayTarget(id), Before: replayState{State: before.State}, After: replayState{State: r.State}}}
		return writeActs(ctx, tx, by.act("replay."+t.verb, audit.Done, turned), by.act("dlq."+t.verb, audit.Done, letters))
	})
	if err != nil {
		return r, describe("changing a replay", err)
	}
	return r, refusal
}

func (t turn) refusal(r deadletter.Replay) error {
	for _, s := range t.from {
		if r.State == s {
			if t.refuses == nil {
				return nil
			}
			return t.refuses(r)
		}
	}
	return &deadletter.StateError{ID: r.ID, State: r.State, Verb: t.done}
}

// samePerson reports whether two names are spelled alike but for capitals and blanks.
func samePerson(a, b string) bool {
	return strings.EqualFold(strings.Join(strings.Fields(a), " "), strings.Join(strings.Fields(b), " "))
}

// Approve lets a replay begin that waits for a second person. It returns deadletter.ErrSamePerson to whoever asked for it, by name, and deadletter.ErrSameLogin to the login that did,
// unless that owns the schema: then everybody may have it, and names are all there is.
func (s *Replays) Approve(ctx context.Context, id int64, by By) (deadletter.Replay, error) {
	return s.turn(ctx, id, by, turn{
		verb: "approve", done: "approved", from: []string{deadletter.AwaitingApproval},
		refuses: func(r deadletter.Replay) error {
			switch {
			case samePerson(r.CreatedBy, by.Name):
				return deadletter.ErrSamePerson
			case r.Mine:
				return deadletter.ErrSameLogin
			}
			return nil
		},
		do: func(ctx context.Context, tx pgx.Tx) ([]audit.Change, error) {
			_, err := tx.Exec(ctx, `
				update pollux.replays
				set state = 'running', why = '', approved_by = $2, approved_at = now(), next_release_at = now()
				where id = $1`, id, by.Name)
			return nil, err
		},
	})
}

// Cancel ends a replay: nothing more is released, and what was not is open as before.
func (s *Replays) Cancel(ctx context.Context, id int64, by By) (deadletter.Replay, error) {
	return s.turn(ctx, id, by, turn{
		verb: "cancel", done: "cancelled", from: []string{deadletter.Planned, deadletter.AwaitingApproval, deadletter.Running, deadletter.Stopped},
		do: func(ctx context.Context, tx pgx.Tx) ([]audit.Change, error) {
			return nil, endReplay(ctx, tx, id, deadletter.Cancelled, by)
		},
	})
}

// Resume lets a replay go on that has stopped, from its canary on.
func (s *Replays) Resume(ctx context.Context, id int64, by By) (deadletter.Replay, error) {
	return s.turn(ctx, id, by, turn{
		verb: "resume", done: "resumed", from: []string{deadletter.Stopped},
		do: func(ctx context.Context, tx pgx.Tx) ([]audit.Change, error) {
			_, err := tx.Exec(ctx, `
				update pollux.replays
				set state = 'running', why = '', ended_at = null, stage = case when stage >= $2 and leg = 0 then stage else 0 end, leg = leg + 1, next_release_at = now()
				where id = $1`, id, len(deadletter.Canary))
			return nil, err
		},
	})
}

// Undo ends a replay and takes back what was released and that nobody has polled yet: it is with a person as before, and the replay is not counted.
func (s *Replays) Undo(ctx context.Context, id int64, by By) (deadletter.Replay, error) {
	return s.turn(ctx, id, by, turn{
		verb: "undo", done: "undone", from: []string{deadletter.AwaitingApproval, deadletter.Running, deadletter.Stopped, deadletter.Cancelled, deadletter.Done},
		do: func(ctx context.Context, tx pgx.Tx) ([]audit.Change, error) {
			if err := endReplay(ctx, tx, id, deadletter.Undone, by); err != nil {
				return nil, err
			}
			return takeBack(ctx, tx, id)
		},
	})
}

func endReplay(ctx context.Context, tx pgx.Tx, id int64, state string, by By) error {
	_, err := tx.Exec(ctx, `
		update pollux.replays
		set state = $2, ended_at = now(), ended_by = $3, ended_why = $4
		where id = $1`, id, state, by.Name, by.Reason)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `update pollux.replay_items set state = $2, ended_at = now() where replay_id = $1 and state = 'chosen'`, id, state)
	return err
}

// takeBackSQL makes jobs dead again that nobody has claimed since they were made due, with the counters that they died with.
const takeBackSQL = `
	with waiting as materialized (
	  select j.payment_id, i.letter_id
	  from pollux.replay_items i
	  join pollux.poll_jobs j on j.payment_id = i.payment_id
	  where i.replay_id = $1
	    and i.state = 'queued'
	    and j.state = 'scheduled'
	    and j.revision = i.revision
	  order by j.payment_id
	  for update of j
	), dead as (
	  update pollux.poll_jobs j
	  set state = 'dead', attempts = d.attempts, failures = d.failures, deferrals = d.deferrals, replays = d.replays, revision = j.revision + 1, updated_at = now()
	  from waiting w
	  join pollux.dead_letters d on d.id = w.letter_id
	  where j.payment_id = w.payment_id
	    and j.state = 'scheduled'
	  returning w.letter_id
	)
	update pollux.dead_letters l
	set state = 'open'
	from dead
	where l.id = dead.letter_id
	  and l.state = 'replaying'
	returning l.id, l.replays`

func takeBack(ctx context.Context, tx pgx.Tx, id int64) ([]audit.Change, error) {
	rows, err := tx.Query(ctx, takeBackSQL, id)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (audit.Change, error) {
		var letter int64
		var times int
		err := row.Scan(&letter, &times)
		counted := times + 1
		return audit.Change{Target: audit.Letter(letter), Before: letterState{State: deadletter.Replaying, Replay: id, Times: &counted},
			After: letterState{State: deadletter.Open, Times: &times}}, err
	})
}
