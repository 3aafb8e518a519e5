package postgres

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"pollux/internal/consumer"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// The longest texts that are recorded of an answer, in bytes.
const (
	maxMessage = 512
	maxDetail  = 255
	maxStatus  = 64
)

// Write implements consumer.Record. Jobs are locked in the order of their payments, so that whoever has the same ones waits, and nobody for ever.
//
// After an error that leaves the commit unknown the results may be written again: what is recorded has another revision, so that they are
// superseded then, and only the log of attempts has them twice.
func (s *Jobs) Write(ctx context.Context, results []consumer.Result, worker string, lease time.Duration) ([]consumer.Verdict, error) {
	order := make([]int, len(results))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(results[a].Payment, results[b].Payment) })
	sorted := make([]consumer.Result, len(results))
	for i, at := range order {
		sorted[i] = results[at]
	}
	verdicts, err := s.write(ctx, sorted, worker, lease)
	if err != nil {
		return nil, describe("recording results", err)
	}
	out := make([]consumer.Verdict, len(results))
	for i, at := range order {
		out[at] = verdicts[i]
	}
	return out, nil
}

// write writes all results in one transaction. When the database refuses one of them for good it begins anew and bisects.
func (s *Jobs) write(ctx context.Context, results []consumer.Result, worker string, lease time.Duration) (verdicts []consumer.Verdict, err error) {
	err = again(ctx, s.pool, func(tx pgx.Tx) (err error) {
		verdicts, err = write(ctx, tx, results, worker, lease)
		return err
	})
	if err == nil || !Refused(err) {
		return verdicts, err
	}
	err = again(ctx, s.pool, func(tx pgx.Tx) (err error) {
		verdicts, err = bisect(ctx, tx, results, worker, lease)
		return err
	})
	return verdicts, err
}

// bisect writes results under a savepoint and, when one of them is refused, each half in the same way, until the one is found.
func bisect(ctx context.Context, tx pgx.Tx, results []consumer.Result, worker string, lease time.Duration) (verdicts []consumer.Verdict, err error) {
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
		verdicts, err = write(ctx, tx, results, worker, lease)
		return err
	})
	switch {
	case err == nil || !Refused(err):
		return verdicts, err
	case len(results) == 1:
		return []consumer.Verdict{{Refused: Why(err)}}, nil
	}
	half := len(results) / 2
	first, err := bisect(ctx, tx, results[:half], worker, lease)
	if err != nil {
		return nil, err
	}
	second, err := bisect(ctx, tx, results[half:], worker, lease)
	return append(first, second...), err
}

// write is the transaction. Each statement touches only jobs that still carry the token and the revision that the consumer read.
func write(ctx context.Context, tx pgx.Tx, results []consumer.Result, worker string, lease time.Duration) ([]consumer.Verdict, error) {
	verdicts := make([]consumer.Verdict, len(results))
	var batch pgx.Batch
	queueLocks(&batch, results)
	queuePutOffs(&batch, results, verdicts, worker, lease)
	queueResolutions(&batch, results, verdicts)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, err
	}
	if err := contradict(ctx, tx, results, verdicts); err != nil {
		return nil, err
	}
	batch = pgx.Batch{}
	queueDetails(&batch, results, verdicts)
	queueAttempts(&batch, results, verdicts, worker)
	queueDeadLetters(&batch, results, verdicts, worker)
	if batch.Len() == 0 {
		return verdicts, nil
	}
	return verdicts, tx.SendBatch(ctx, &batch).Close()
}

// fences are the columns that every compare-and-set needs. ord finds the result again.
type fences struct {
	ords, ids, revisions []int64
	tokens               []string
}

func (f *fences) add(i int, r *consumer.Result) {
	f.ords, f.ids = append(f.ords, int64(i)), append(f.ids, int64(r.Payment))
	f.revisions, f.tokens = append(f.revisions, r.Revision), append(f.tokens, r.Token)
}

// apply marks what a statement returned as applied.
func apply(verdicts []consumer.Verdict) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		ords, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		for _, ord := range ords {
			verdicts[ord].Applied = true
		}
		return err
	}
}

// lockSQL locks jobs in the order of their payments.
const lockSQL = `
	select
	from pollux.poll_jobs
	where payment_id = any ($1::bigint[])
	order by payment_id
	for update`

// queueLocks locks all jobs, unless one statement will do so anyway.
func queueLocks(batch *pgx.Batch, results []consumer.Result) {
	ids, resolved := make([]int64, len(results)), 0
	for i := range results {
		ids[i] = int64(results[i].Payment)
		if results[i].Disposition.Verb == redelivery.Resolve {
			resolved++
		}
	}
	if resolved > 0 && resolved < len(results) {
		batch.Queue(lockSQL, ids)
	}
}

// putOffSQL puts jobs off: to the broker (held), to the deferred stream, to sleep in their row, or for ever (dead). A deferred job stays due when it was
// due: its delay says only when to look after it if nobody has. What sleeps in its row comes back in a lane of its own, so that a backlog of
// such polls does not stand before payments that were never asked about.
const putOffSQL = `
	update pollux.poll_jobs j
	set state = i.state,
	    lane = case when i.state <> 'scheduled' or j.lane = 'high' then j.lane when j.replays > 0 then 'replay' else 'retry' end,
	    next_poll_at = case when i.state in ('dead', 'deferred') then j.next_poll_at else now() + i.delay * interval '1 microsecond' end,
	    locked_until = case when i.leased then now() + (i.delay + $14::bigint) * interval '1 microsecond' end,
	    locked_by = case when i.leased then $15 end,
	    lock_token = case when i.leased then j.lock_token end,
	    revision = j.revision + 1,
	    attempts = i.attempts,
	    failures = i.failures,
	    not_founds = i.not_founds,
	    deferrals = i.deferrals,
	    last_delay_ms = i.delay / 1000,
	    last_class = i.class,
	    last_message = i.message,
	    updated_at = now()
	from unnest($1::bigint[], $2::bigint[], $3::text[]::uuid[], $4::bigint[], $5::text[], $6::bool[], $7::bigint[], $8::int[], $9::int[],
	  $10::int[], $11::int[], $12::text[], $13::text[])
	  as i(ord, id, token, revision, state, leased, delay, attempts, failures, not_founds, deferrals, class, message)
	where j.payment_id = i.id
	  and j.lock_token = i.token
	  and j.revision = i.revision
	returning i.ord`

func queuePutOffs(batch *pgx.Batch, results []consumer.Result, verdicts []consumer.Verdict, worker string, lease time.Duration) {
	var f fences
	var states, classes, messages []string
	var leased []bool
	var delays []int64
	var attempts, failures, notFounds, deferrals []int32
	for i := range results {
		r := &results[i]
		state, ok := putOff[r.Disposition.Verb]
		if !ok {
			continue
		}
		f.add(i, r)
		states, leased, delays = append(states, state), append(leased, state == "held" || state == "deferred"), append(delays, r.Disposition.Delay.Microseconds())
		c := r.Disposition.Counters
		attempts, failures = append(attempts, int32(c.Attempts)), append(failures, int32(c.Failures))
		notFounds, deferrals = append(notFounds, int32(c.NotFounds)), append(deferrals, int32(c.Deferrals))
		classes, messages = append(classes, lastClass(r)), append(messages, clean(r.Answer.Message, maxMessage))
	}
	if f.ords == nil {
		return
	}
	batch.Queue(putOffSQL,
		f.ords, f.ids, f.tokens, f.revisions, states, leased, delays, attempts, failures, notFounds, deferrals, classes, messages,
		lease.Microseconds(), worker).Query(apply(verdicts))
}

// putOff is the state of a job after a verb. A held or deferred message keeps its token.
var putOff = map[redelivery.Verb]string{redelivery.Hold: "held", redelivery.Park: "scheduled", redelivery.Defer: "deferred", redelivery.DeadLetter: "dead"}

func lastClass(r *consumer.Result) string {
	if !r.Polled {
		return string(r.Disposition.Reason)
	}
	return r.Answer.Class.String()
}

// resolveSQL ends jobs and gives their payments the final status. An empty detail takes away why the payment was pending. The schema's triggers write
// the events.
const resolveSQL = `
	with ended as (
	  delete from pollux.poll_jobs j
	  using unnest($1::bigint[], $2::bigint[], $3::text[]::uuid[], $4::bigint[], $5::text[], $6::text[]) as i(ord, id, token, revision, status, detail)
	  where j.payment_id = i.id
	    and j.lock_token = i.token
	    and j.revision = i.revision
	  returning i.ord, i.id, i.status, i.detail
	)
	update pollux.payments p
	set status = e.status, status_detail = e.detail, status_source = 'poll'
	from ended e
	where p.id = e.id
	returning e.ord`

func queueResolutions(batch *pgx.Batch, results []consumer.Result, verdicts []consumer.Verdict) {
	var f fences
	var statuses, details []string
	for i := range results {
		r := &results[i]
		if r.Disposition.Verb != redelivery.Resolve {
			continue
		}
		f.add(i, r)
		statuses, details = append(statuses, string(r.Disposition.Status)), append(details, clean(r.Disposition.Detail, maxDetail))
	}
	if f.ords == nil {
		return
	}
	batch.Queue(resolveSQL, f.ords, f.ids, f.tokens, f.revisions, statuses, details).Query(apply(verdicts))
}

// detailSQL records why payments are still pending.
const detailSQL = `
	update pollux.payments p
	set status_detail = i.detail
	from unnest($1::bigint[], $2::text[]) as i(id, detail)
	where p.id = i.id
	  and p.status = 'pending'`

// queueDetails records details where they changed.
func queueDetails(batch *pgx.Batch, results []consumer.Result, verdicts []consumer.Verdict) {
	var ids []int64
	var details []string
	for i := range results {
		r := &results[i]
		if r.DetailNew && verdicts[i].Applied && r.Disposition.Verb != redelivery.Resolve {
			ids, details = append(ids, int64(r.Payment)), append(details, clean(r.Disposition.Detail, maxDetail))
		}
	}
	if ids == nil {
		return
	}
	batch.Queue(detailSQL, ids, details)
}

// lockPaymentsSQL locks payments in their order.
const lockPaymentsSQL = `
	select
	from pollux.payments
	where id = any ($1::bigint[])
	order by id
	for update`

// contradictSQL says to the status machine what a gateway answered about payments that became final meanwhile. A success after something else is a late
// one, and returned; all else is a conflict, which changes nothing. The schema sees to that, and that a person is asked.
const contradictSQL = `
	update pollux.payments p
	set status = $4, status_detail = i.detail, status_source = 'poll'
	from unnest($1::bigint[], $2::bigint[], $3::text[]) as i(ord, id, detail)
	where p.id = i.id
	  and p.status not in ('pending', $4)
	returning i.ord`

// contradict looks after final answers that came too late. Nearly always somebody else has recorded the same. There is a statement for each status, since one
// statement changes a row once, and a payment that was answered about twice may have been said to be two things.
func contradict(ctx context.Context, tx pgx.Tx, results []consumer.Result, verdicts []consumer.Verdict) error {
	type late struct {
		ords, ids []int64
		details   []string
	}
	var all []int64
	by := map[payment.Status]*late{}
	for i := range results {
		d := results[i].Disposition
		if d.Verb != redelivery.Resolve || !results[i].Polled || verdicts[i].Applied || !d.Status.Final() {
			continue
		}
		l := by[d.Status]
		if l == nil {
			l = &late{}
			by[d.Status] = l
		}
		id := int64(results[i].Payment)
		all = append(all, id)
		l.ords, l.ids, l.details = append(l.ords, int64(i)), append(l.ids, id), append(l.details, clean(d.Detail, maxDetail))
	}
	if all == nil {
		return nil
	}
	var batch pgx.Batch
	batch.Queue(lockPaymentsSQL, all)
	for _, status := range payment.Statuses {
		if l := by[status]; l != nil {
			batch.Queue(contradictSQL, l.ords, l.ids, l.details, string(status)).Query(applyLate(verdicts))
		}
	}
	return tx.SendBatch(ctx, &batch).Close()
}

// applyLate marks what a statement returned as applied to payments that were final already.
func applyLate(verdicts []consumer.Verdict) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		ords, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		for _, ord := range ords {
			verdicts[ord].Applied, verdicts[ord].Late = true, true
		}
		return err
	}
}

// attemptSQL logs polls.
const attemptSQL = `
	insert into pollux.poll_attempts (payment_id, at, due_at, took_us, class, http_status, gateway_status, retry_after_ms, message, disposition,
	  reason, delay_ms, applied, attempts, failures, policy, trace_id, worker)
	select i.*, $18
	from unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::bigint[], $5::text[], $6::smallint[], $7::text[], $8::bigint[], $9::text[],
	  $10::text[], $11::text[], $12::bigint[], $13::bool[], $14::int[], $15::int[], $16::text[], $17::text[]) as i`

func queueAttempts(batch *pgx.Batch, results []consumer.Result, verdicts []consumer.Verdict, worker string) {
	var ids, took, retryAfter, delays []int64
	var at, due []time.Time
	var classes, statuses, messages, verbs, reasons, policies, traces []string
	var codes []int16
	var applied []bool
	var attempts, failures []int32
	for i := range results {
		r := &results[i]
		if !r.Polled {
			continue
		}
		d := r.Disposition
		ids, took = append(ids, int64(r.Payment)), append(took, r.Answer.Took.Microseconds())
		at, due = append(at, r.StartedAt), append(due, r.DueAt)
		classes, codes = append(classes, r.Answer.Class.String()), append(codes, int16(r.Answer.HTTPStatus))
		statuses, messages = append(statuses, clean(r.Answer.GatewayStatus, maxStatus)), append(messages, clean(r.Answer.Message, maxMessage))
		retryAfter, delays = append(retryAfter, r.Answer.RetryAfter.Milliseconds()), append(delays, d.Delay.Milliseconds())
		verbs, reasons = append(verbs, d.Verb.String()), append(reasons, string(d.Reason))
		applied = append(applied, verdicts[i].Applied)
		attempts, failures = append(attempts, int32(d.Counters.Attempts)), append(failures, int32(d.Counters.Failures))
		policies, traces = append(policies, r.Policy), append(traces, traceID(r.TraceParent))
	}
	if ids == nil {
		return
	}
	batch.Queue(attemptSQL,
		ids, at, due, took, classes, codes, statuses, retryAfter, messages, verbs, reasons, delays, applied, attempts, failures, policies, traces, worker)
}

// queueDeadLetters writes, for each job that died, all that a person needs. The schema's trigger writes the event.
func queueDeadLetters(batch *pgx.Batch, results []consumer.Result, verdicts []consumer.Verdict, worker string) {
	for i := range results {
		r := &results[i]
		if r.Disposition.Verb != redelivery.DeadLetter || !verdicts[i].Applied {
			continue
		}
		batch.Queue(`select pollux.bury($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
			int64(r.Payment), string(r.Disposition.Reason), lastClass(r), int16(r.Answer.HTTPStatus), clean(r.Answer.GatewayStatus, maxStatus),
			clean(r.Answer.Message, maxMessage), r.Policy, worker, traceID(r.TraceParent), r.Body, r.PolicyHash, clean(r.Build, maxStatus))
	}
}

// traceID is the trace id of a W3C traceparent, or nothing.
func traceID(traceParent string) string {
	if len(traceParent) != 55 {
		return ""
	}
	return traceParent[3:35]
}

// clean makes a text that the database takes and a person can read: printable UTF-8, n bytes at the most.
func clean(s string, n int) string {
	if len(s) <= n && plain(s) {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") // the cut may have gone through a character
	}
	return s
}

// plain reports whether s is printable ASCII, which nearly all texts are.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
