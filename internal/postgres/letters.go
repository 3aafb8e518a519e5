package postgres

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/deadletter"
)

// Letters is the record of dead letters. It is safe for concurrent use. Nothing here needs the broker.
type Letters struct{ pool *pgxpool.Pool }

// NewLetters returns the record of dead letters.
func NewLetters(pool *pgxpool.Pool) *Letters { return &Letters{pool: pool} }

// letterColumns are the columns of a letter d with its payment p and its active row a in a replay, in the order of letterFields.
const letterColumns = `
	d.id, d.payment_id, d.gateway, d.account, coalesce(p.reference, ''), d.class, d.amount_minor, coalesce(d.currency, ''), d.reason, d.state,
	d.fingerprint, d.owner, d.link, d.last_class, d.http_status, d.gateway_status, d.message, d.attempts, d.failures, d.deferrals, d.replays,
	d.created_at, d.died_at, d.closed_at, coalesce(d.closed_by, ''), coalesce(a.replay_id, 0)`

// letterTables are what they are read from.
const letterTables = `
	pollux.dead_letters d
	left join pollux.payments p on p.id = d.payment_id
	left join pollux.replay_items a on a.letter_id = d.id and a.state in ('chosen', 'queued')`

func letterFields(l *deadletter.Letter) []any {
	return []any{&l.ID, &l.PaymentID, &l.Gateway, &l.Account, &l.Reference, &l.Class, &l.AmountMinor, &l.Currency, &l.Reason, &l.State,
		&l.Fingerprint, &l.Owner, &l.Link, &l.LastClass, &l.HTTPStatus, &l.GatewayStatus, &l.Message, &l.Attempts, &l.Failures, &l.Deferrals, &l.Replays,
		&l.FirstDied, &l.LastDied, &l.ClosedAt, &l.ClosedBy, &l.Replay}
}

func scanLetter(row pgx.CollectableRow) (l deadletter.Letter, err error) {
	return l, row.Scan(letterFields(&l)...)
}

// List returns a page of the letters that a filter chooses, the newest first.
func (s *Letters) List(ctx context.Context, f deadletter.Filter, page deadletter.Page) ([]deadletter.Letter, error) {
	var c clauses
	before := page.Before
	if before <= 0 {
		before = math.MaxInt64
	}
	rows, err := s.pool.Query(ctx, `
		select `+letterColumns+`
		from `+letterTables+`
		where `+c.filter(f.Opened())+`
		  and d.id < `+c.arg(before)+`
		order by d.id desc
		limit `+c.arg(page.Limit), c.args...)
	if err != nil {
		return nil, describe("listing dead letters", err)
	}
	letters, err := pgx.CollectRows(rows, scanLetter)
	return letters, describe("listing dead letters", err)
}

// Each gives all letters that a filter chooses to fn, the newest first, page by page, and stops at the first error.
func (s *Letters) Each(ctx context.Context, f deadletter.Filter, fn func(deadletter.Letter) error) error {
	page := deadletter.Page{Limit: deadletter.MaxPage}
	for {
		letters, err := s.List(ctx, f, page)
		if err != nil {
			return err
		}
		for _, l := range letters {
			if err := fn(l); err != nil {
				return err
			}
			page.Before = l.ID
		}
		if len(letters) < page.Limit {
			return nil
		}
	}
}

// tally is one row of groupsSQL: a part of a group.
type tally struct {
	Fingerprint, Gateway, Reason, Currency string
	Letters, Amount, Newest                int64
	LastHour, HourBefore, CameBack         int64
	First, Last                            time.Time
}

// groupsSQL counts letters by fingerprint. As long as the filter asks for nothing else it is answered by the index dead_letters_groups alone.
func groupsSQL(c *clauses, f deadletter.Filter) string {
	from := "pollux.dead_letters d"
	if f.Has("reference") || f.Has("text") {
		from += " left join pollux.payments p on p.id = d.payment_id"
	}
	return `
		select d.fingerprint, d.gateway, d.reason, coalesce(d.currency, ''), count(*), least(coalesce(sum(d.amount_minor), 0), ` + maxBigint + `)::bigint, max(d.id),
		  count(*) filter (where d.died_at > now() - interval '1 hour'),
		  count(*) filter (where d.died_at > now() - interval '2 hours' and d.died_at <= now() - interval '1 hour'),
		  count(*) filter (where d.replays > 0),
		  min(d.created_at), max(d.died_at)
		from ` + from + `
		where ` + c.filter(f.Opened()) + `
		group by d.fingerprint, d.gateway, d.reason, d.currency`
}

const maxBigint = "9223372036854775807"

// Groups returns the letters that a filter chooses by what they have in common, the largest n groups first, and what all groups add up to.
func (s *Letters) Groups(ctx context.Context, f deadletter.Filter, n int) ([]deadletter.Group, deadletter.Total, error) {
	var parts []tally
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if indexed(f) {
			if err := pinGroups(ctx, tx); err != nil {
				return err
			}
		}
		var c clauses
		rows, err := tx.Query(ctx, groupsSQL(&c, f), c.args...)
		if err != nil {
			return err
		}
		parts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[tally])
		return err
	})
	if err != nil {
		return nil, deadletter.Total{}, describe("grouping dead letters", err)
	}
	groups := fold(parts)
	total := deadletter.Total{Groups: len(groups), Money: map[string]int64{}}
	for _, g := range groups {
		total.Letters += g.Letters
		for code, minor := range g.Money {
			total.Money[code] = saturated(total.Money[code], minor)
		}
	}
	groups = groups[:min(n, len(groups))]
	return groups, total, s.samples(ctx, groups)
}

// groupable are the fields that the index dead_letters_groups has.
var groupable = []string{"state", "fingerprint", "gateway", "reason", "currency", "amount", "first", "age", "replays", "id"}

// indexed reports whether that index answers a filter alone. Its plan is then pinned to it: the table is many times as large.
func indexed(f deadletter.Filter) bool {
	return !slices.ContainsFunc(f.Terms, func(t deadletter.Term) bool { return !slices.Contains(groupable, t.Field) })
}

// pinGroups pins the plan of groupsSQL. The index answers alone as long as vacuum has seen most of the table; before that it would look up letter after letter in
// its own order, and the whole table in the order of its pages is many times faster.
func pinGroups(ctx context.Context, tx pgx.Tx) error {
	var seen bool
	err := tx.QueryRow(ctx, `
		select c.relallvisible >= 0.5 * pg_relation_size(c.oid) / current_setting('block_size')::int
		from pg_class c
		where c.oid = 'pollux.dead_letters'::regclass`).Scan(&seen)
	if err != nil {
		return err
	}
	pin := `set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_indexscan = off; set local jit = off`
	if !seen {
		pin = `set local enable_seqscan = on; set local enable_bitmapscan = off; set local enable_indexscan = off; set local enable_indexonlyscan = off; set local jit = off`
	}
	_, err = tx.Exec(ctx, pin)
	return err
}

// fold makes groups of their parts, the largest first.
func fold(parts []tally) []deadletter.Group {
	found := map[string]*deadletter.Group{}
	for _, t := range parts {
		g := found[t.Fingerprint]
		if g == nil {
			g = &deadletter.Group{Fingerprint: t.Fingerprint, Money: map[string]int64{}, First: t.First, Last: t.Last}
			found[t.Fingerprint] = g
		}
		g.Letters, g.LastHour, g.HourBefore, g.CameBack = g.Letters+t.Letters, g.LastHour+t.LastHour, g.HourBefore+t.HourBefore, g.CameBack+t.CameBack
		if t.Currency != "" {
			g.Money[t.Currency] = saturated(g.Money[t.Currency], t.Amount)
		}
		if t.First.Before(g.First) {
			g.First = t.First
		}
		if t.Last.After(g.Last) {
			g.Last = t.Last
		}
		g.Gateways, g.Reasons = insert(g.Gateways, t.Gateway), insert(g.Reasons, t.Reason)
		g.Sample.ID = max(g.Sample.ID, t.Newest)
	}
	groups := make([]deadletter.Group, 0, len(found))
	for _, fingerprint := range slices.Sorted(maps.Keys(found)) {
		groups = append(groups, *found[fingerprint])
	}
	slices.SortStableFunc(groups, func(a, b deadletter.Group) int { return cmp.Compare(b.Letters, a.Letters) })
	return groups
}

// saturated is a sum that ends at the largest amount there is.
func saturated(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func insert(list []string, s string) []string {
	at, found := slices.BinarySearch(list, s)
	if found {
		return list
	}
	return slices.Insert(list, at, s)
}

// samples reads the newest letter of each group.
func (s *Letters) samples(ctx context.Context, groups []deadletter.Group) error {
	ids := make([]int64, len(groups))
	for i, g := range groups {
		ids[i] = g.Sample.ID
	}
	rows, err := s.pool.Query(ctx, `select `+letterColumns+` from `+letterTables+` where d.id = any ($1::bigint[])`, ids)
	if err != nil {
		return describe("reading dead letters", err)
	}
	letters, err := pgx.CollectRows(rows, scanLetter)
	for _, l := range letters {
		groups[slices.Index(ids, l.ID)].Sample = l
	}
	return describe("reading dead letters", err)
}

// Show returns all about a letter, or deadletter.ErrNotFound.
func (s *Letters) Show(ctx context.Context, id int64) (deadletter.Details, error) {
	var d deadletter.Details
	fields := append(letterFields(&d.Letter), &d.Review, &d.PaymentStatus, &d.StatusDetail, &d.Classes, &d.FirstClass, &d.FirstMessage, &d.FirstAt, &d.Policy,
		&d.PolicyHash, &d.Build, &d.Worker, &d.TraceID, &d.Subject, &d.Deliveries, &d.Body, &d.TrackedAt)
	err := s.pool.QueryRow(ctx, `
		select `+letterColumns+`, d.review, coalesce(p.status, ''), coalesce(p.status_detail, ''), d.classes, d.first_class, d.first_message, d.first_at, d.policy,
		  d.policy_hash, d.build, d.worker, d.trace_id, d.subject, d.deliveries, d.body, coalesce(p.created_at, d.created_at)
		from `+letterTables+`
		where d.id = $1`, id).Scan(fields...)
	if errors.Is(err, pgx.ErrNoRows) {
		return d, deadletter.ErrNotFound
	}
	if err != nil {
		return d, describe("reading a dead letter", err)
	}
	if d.PaymentID != nil {
		if d.Polls, err = s.polls(ctx, *d.PaymentID); err != nil {
			return d, err
		}
	}
	if d.Notes, err = s.notes(ctx, id); err != nil {
		return d, err
	}
	d.InReplays, err = s.inReplays(ctx, id)
	return d, err
}

func (s *Letters) polls(ctx context.Context, payment int64) ([]deadletter.Attempt, error) {
	rows, err := s.pool.Query(ctx, `
		select at, class, http_status, gateway_status, message, took_us / 1000, disposition, reason, worker, trace_id
		from pollux.poll_attempts
		where payment_id = $1
		order by at desc
		limit $2`, payment, deadletter.MaxPolls)
	if err != nil {
		return nil, describe("reading attempts", err)
	}
	polls, err := pgx.CollectRows(rows, pgx.RowToStructByPos[deadletter.Attempt])
	return polls, describe("reading attempts", err)
}

func (s *Letters) notes(ctx context.Context, letter int64) ([]deadletter.Note, error) {
	rows, err := s.pool.Query(ctx, `
		select at, actor, login, text
		from pollux.dead_letter_notes
		where letter_id = $1
		order by id`, letter)
	if err != nil {
		return nil, describe("reading notes", err)
	}
	notes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[deadletter.Note])
	return notes, describe("reading notes", err)
}

func (s *Letters) inReplays(ctx context.Context, letter int64) ([]deadletter.InReplay, error) {
	rows, err := s.pool.Query(ctx, `
		select i.replay_id, r.created_by, i.state, i.verdict, i.detail, i.released_at, i.ended_at
		from pollux.replay_items i
		join pollux.replays r on r.id = i.replay_id
		where i.letter_id = $1
		order by i.replay_id`, letter)
	if err != nil {
		return nil, describe("reading replays", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r deadletter.InReplay, err error) {
		var verdict deadletter.Verdict
		var detail string
		err = row.Scan(&r.Replay, &r.By, &r.State, &verdict, &detail, &r.ReleasedAt, &r.EndedAt)
		r.Why = whyOf(r.State, verdict, detail)
		return r, err
	})
	return all, describe("reading replays", err)
}

// whyOf says why a letter is in a state of a replay: of one that was not polled the verdict, of one that died again the reason.
func whyOf(state string, v deadletter.Verdict, detail string) string {
	if why := v.Why(detail); why != "" && (state == deadletter.Refused || state == deadletter.Final) {
		return why
	}
	return detail
}
