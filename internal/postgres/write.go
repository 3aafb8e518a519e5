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
	"pollux/internal/redelivery"
)

// The longest texts that are recorded of an answer, in bytes.
const (
	maxMessage = 512
	maxDetail  = 255
	maxStatus  = 64
)

// Write implements consumer.Record. Rows are taken in the order of their payments, so that two consumers never wait for each other.
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
	verdicts, err := s.bisect(ctx, sorted, worker, lease)
	if err != nil {
		return nil, describe("recording results", err)
	}
	out := make([]consumer.Verdict, len(results))
	for i, at := range order {
		out[at] = verdicts[i]
	}
	return out, nil
}

// bisect writes all results in one transaction. When the database refuses one of them for good, halves are tried until the one is found.
func (s *Jobs) bisect(ctx context.Context, results []consumer.Result, worker string, lease time.Duration) ([]consumer.Verdict, error) {
	var verdicts []consumer.Verdict
	err := again(ctx, s.pool, func(tx pgx.Tx) (err error) {
		verdicts, err = write(ctx, tx, results, worker, lease)
		return err
	})
	switch {
	case err == nil:
		return verdicts, nil
	case !Refused(err):
		return nil, err
	case len(results) == 1:
		return []consumer.Verdict{{Refused: Why(err)}}, nil
	}
	half := len(results) / 2
	first, err := s.bisect(ctx, results[:half], worker, lease)
	if err != nil {
		return nil, err
	}
	second, err := s.bisect(ctx, results[half:], worker, lease)
	return append(first, second...), err
}

// write is the transaction. Each statement touches only jobs that still carry the token and the revision that the consumer read.
func write(ctx context.Context, tx pgx.Tx, results []consumer.Result, worker string, lease time.Duration) ([]consumer.Verdict, error) {
	verdicts := make([]consumer.Verdict, len(results))
	var batch pgx.Batch
	queueReschedules(&batch, results, verdicts, worker, lease)
	queueResolutions(&batch, results, verdicts)
	queueDead(&batch, results, verdicts)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
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

func queueReschedules(batch *pgx.Batch, results []consumer.Result, verdicts []consumer.Verdict, worker string, lease time.Duration) {
	var f fences
	var states, classes, messages []string
	var delays []int64
	var attempts, failures, deferrals []int32
	for i := range results {
		r := &results[i]
		state, ok := rescheduled[r.Disposition.Verb]
		if !ok {
			continue
		}
		f.add(i, r)
		states, delays = append(states, state), append(delays, r.Disposition.Delay.Microseconds())
		c := r.Disposition.Counters
		attempts, failures, deferrals = append(attempts, int32(c.Attempts)), append(failures, int32(c.Failures)), append(deferrals, int32(c.Deferrals))
		classes, messages = append(classes, lastClass(r)), append(messages, clean(r.Answer.Message, maxMessage))
	}
	if f.ords == nil {
		return
	}
	batch.Queue(`
		update pollux.poll_jobs j
		set state = i.state,
		    next_poll_at = now() + i.delay * interval '1 microsecond',
		    locked_until = case i.state when 'scheduled' then null else now() + (i.delay + $12::bigint) * interval '1 microsecond' end,
		    locked_by = case i.state when 'scheduled' then null else $13 end,
		    lock_token = case i.state when 'scheduled' then null else j.lock_token end,
		    revision = j.revision + 1,
		    attempts = i.attempts,
		    failures = i.failures,
		    deferrals = i.deferrals,
		    last_delay_ms = i.delay / 1000,
		    last_class = i.class,
		    last_message = i.message,
		    updated_at = now()
		from unnest($1::bigint[], $2::bigint[], $3::text[]::uuid[], $4::bigint[], $5::text[], $6::bigint[], $7::int[], $8::int[], $9::int[],
		  $10::text[], $11::text[]) as i(ord, id, token, revision, state, delay, attempts, failures, deferrals, class, message)
		where j.payment_id = i.id
		  and j.lock_token = i.token
		  and j.revision = i.revision
		returning i.ord`,
		f.ords, f.ids, f.tokens, f.revisions, states, delays, attempts, failures, deferrals, classes, messages,
		lease.Microseconds(), worker).Query(apply(verdicts))
}

// rescheduled is the state of a job after a verb that leaves it alive. A held or deferred message keeps its token.
var rescheduled = map[redelivery.Verb]string{redelivery.Hold: "held", redelivery.Park: "scheduled", redelivery.Defer: "deferred"}

func lastClass(r *consumer.Result) string {
	if !r.Polled {
		return string(r.Disposition.Reason)
	}
	return r.Answer.Class.String()
}

// queueResolutions ends jobs and gives their payments the final status. The schema's triggers write the events.
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
	batch.Queue(`
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
		returning e.ord`, f.ords, f.ids, f.tokens, f.revisions, statuses, details).Query(apply(verdicts))
}

func queueDead(batch *pgx.Batch, results []consumer.Result, verdicts []consumer.Verdict) {
	var f fences
	var attempts, failures []int32
	var classes, messages []string
	for i := range results {
		r := &results[i]
		if r.Disposition.Verb != redelivery.DeadLetter {
			continue
		}
		f.add(i, r)
		attempts, failures = append(attempts, int32(r.Disposition.Counters.Attempts)), append(failures, int32(r.Disposition.Counters.Failures))
		classes, messages = append(classes, lastClass(r)), append(messages, clean(r.Answer.Message, maxMessage))
	}
	if f.ords == nil {
		return
	}
	batch.Queue(`
		update pollux.poll_jobs j
		set state = 'dead', locked_until = null, locked_by = null, lock_token = null, revision = j.revision + 1,
		    attempts = i.attempts, failures = i.failures, last_class = i.class, last_message = i.message, updated_at = now()
		from unnest($1::bigint[], $2::bigint[], $3::text[]::uuid[], $4::bigint[], $5::int[], $6::int[], $7::text[], $8::text[])
		  as i(ord, id, token, revision, attempts, failures, class, message)
		where j.payment_id = i.id
		  and j.lock_token = i.token
		  and j.revision = i.revision
		returning i.ord`, f.ords, f.ids, f.tokens, f.revisions, attempts, failures, classes, messages).Query(apply(verdicts))
}

// queueDetails records why payments are still pending, where that changed.
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
	batch.Queue(`
		update pollux.payments p
		set status_detail = i.detail
		from unnest($1::bigint[], $2::text[]) as i(id, detail)
		where p.id = i.id
		  and p.status = 'pending'`, ids, details)
}

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
		policies, traces = append(policies, r.Policy), append(traces, r.TraceID)
	}
	if ids == nil {
		return
	}
	batch.Queue(`
		insert into pollux.poll_attempts (payment_id, at, due_at, took_us, class, http_status, gateway_status, retry_after_ms, message, disposition,
		  reason, delay_ms, applied, attempts, failures, policy, trace_id, worker)
		select i.*, $18
		from unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::bigint[], $5::text[], $6::smallint[], $7::text[], $8::bigint[], $9::text[],
		  $10::text[], $11::text[], $12::bigint[], $13::bool[], $14::int[], $15::int[], $16::text[], $17::text[]) as i`,
		ids, at, due, took, classes, codes, statuses, retryAfter, messages, verbs, reasons, delays, applied, attempts, failures, policies, traces, worker)
}

// queueDeadLetters writes, for each job that died, all that a person needs. The schema's trigger writes the event.
func queueDeadLetters(batch *pgx.Batch, results []consumer.Result, verdicts []consumer.Verdict, worker string) {
	for i := range results {
		r := &results[i]
		if r.Disposition.Verb != redelivery.DeadLetter || !verdicts[i].Applied {
			continue
		}
		batch.Queue(`select pollux.bury($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			int64(r.Payment), string(r.Disposition.Reason), lastClass(r), int16(r.Answer.HTTPStatus), clean(r.Answer.GatewayStatus, maxStatus),
			clean(r.Answer.Message, maxMessage), r.Policy, worker, r.TraceID, r.Body)
	}
}

// clean makes a text that the database takes and a person can read: valid UTF-8 without control characters, n bytes at the most.
func clean(s string, n int) string {
	if len(s) <= n && plain(s) {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
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
