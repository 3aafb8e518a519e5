package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/casework"
	"pollux/internal/deadletter"
	"pollux/internal/outbox"
	"pollux/internal/survey"
)

// node is a node of a plan that was run, as PostgreSQL explains it.
type node struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Filtered float64 `json:"Rows Removed by Filter"`
	Joined   float64 `json:"Rows Removed by Join Filter"`
	Recheck  float64 `json:"Rows Removed by Index Recheck"`
	Hit      float64 `json:"Shared Hit Blocks"`
	Read     float64 `json:"Shared Read Blocks"`
	Plans    []node  `json:"Plans"`
}

// rows is how many rows the node looked at.
func (n node) rows() float64 { return (n.Rows + n.Filtered + n.Joined + n.Recheck) * max(n.Loops, 1) }

func (n node) walk(fn func(node)) {
	fn(n)
	for _, child := range n.Plans {
		child.walk(fn)
	}
}

// explained collects the plans of all statements that a pool runs, those inside functions and triggers too, as they are really run.
type explained struct {
	mu    sync.Mutex
	plans []explainedPlan
}

type explainedPlan struct {
	Query string `json:"Query Text"`
	Plan  node   `json:"Plan"`
}

func (e *explained) notice(_ *pgconn.PgConn, n *pgconn.Notice) {
	_, doc, found := strings.Cut(n.Message, "plan:\n")
	if !found {
		return
	}
	var p explainedPlan
	if err := json.Unmarshal([]byte(doc), &p); err != nil {
		p.Query = fmt.Sprintf("a plan that cannot be read: %v", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.plans = append(e.plans, p)
}

func (e *explained) take() []explainedPlan {
	e.mu.Lock()
	defer e.mu.Unlock()
	plans := e.plans
	e.plans = nil
	return plans
}

// explain opens the record with one connection whose statements are explained.
func explain(tb testing.TB, url string, indexed bool) (*record, *explained) {
	tb.Helper()
	var e explained
	base := open(tb, Options{URL: url, MaxConns: 1, Name: "explained", Indexed: indexed})
	cfg := base.Config()
	cfg.ConnConfig.OnNotice = e.notice
	cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `
			load 'auto_explain';
			set auto_explain.log_min_duration = 0;
			set auto_explain.log_analyze = on;
			set auto_explain.log_timing = off;
			set auto_explain.log_buffers = on;
			set auto_explain.log_nested_statements = on;
			set auto_explain.log_format = json;
			set client_min_messages = log`)
		return err
	}
	pool, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return &record{url: url, pool: pool, relay: NewRelay(pool, 24*time.Hour, 24*time.Hour), jobs: NewJobs(pool), letters: NewLetters(pool), replays: NewReplays(pool)}, &e
}

// hotBatch is how many rows each hot statement has to do with in the test of their plans.
const hotBatch = 40

// TestHotStatementsReadOnlyWhatTheyNeed runs everything that a relay, a consumer, a payment service and an operator run, first on empty tables, where their plans are
// made, then with a million sleeping payments on the plans that were made then, then on new plans with and without statistics.
func TestHotStatementsReadOnlyWhatTheyNeed(t *testing.T) {
	r := newRecord(t)
	for _, table := range []string{"payments", "poll_jobs", "dead_letters"} {
		r.exec(t, `alter table pollux.`+table+` set (autovacuum_enabled = off)`)
	}
	services, services_ := explain(t, r.url, true)
	callers, callers_ := explain(t, r.url, false)
	const whileEmpty = 7 // rounds: a plan is kept from the sixth time on
	round := 0
	look := func(t *testing.T) {
		round++
		operator, operator_ := explain(t, r.url, false)
		services_.take()
		callers_.take()
		hotStatements(t, services, callers, operator, fmt.Sprintf("round%d-", round))
		seen := checkPlans(t, services_, true) + checkPlans(t, callers_, false)
		if round > whileEmpty { // by then an operator's own statements use indexes too
			checkPlans(t, operator_, false)
		}
		if seen < 40 {
			t.Fatalf("only %d plans were seen", seen)
		}
	}
	watcher, watched := explain(t, r.url, true)
	t.Run("empty", func(t *testing.T) {
		for range whileEmpty {
			look(t)
			lookAround(t, watcher)
		}
	})
	fill(t, r, 1_000_000)
	t.Run("plans made while empty", look)
	watched.take()
	t.Run("looked at with plans made while empty", func(t *testing.T) { lookAround(t, watcher); checkSurvey(t, watched) })
	watcher, watched = explain(t, r.url, true)
	t.Run("looked at, never analyzed", func(t *testing.T) { lookAround(t, watcher); checkSurvey(t, watched) })
	services, services_ = explain(t, r.url, true)
	callers, callers_ = explain(t, r.url, false)
	t.Run("never analyzed", look)
	r.exec(t, `analyze pollux.payments, pollux.poll_jobs, pollux.outbox, pollux.dead_letters, pollux.poll_attempts, pollux.replay_items`)
	t.Run("analyzed", look)
	watcher, watched = explain(t, r.url, true)
	t.Run("looked at, analyzed", func(t *testing.T) { lookAround(t, watcher); checkSurvey(t, watched) })
}

// lookAround is a survey, the slices of its walks included.
func lookAround(t *testing.T, r *record) {
	t.Helper()
	ctx, s := t.Context(), NewSurvey(r.pool)
	_, jobs := s.Jobs(ctx)
	_, letters := s.Letters(ctx)
	_, events := s.Events(ctx)
	_, storage := s.Storage(ctx)
	_, sessions := s.Sessions(ctx)
	_, _, payments := s.Orphans(ctx, survey.PaymentWithoutJob, 0)
	_, _, halves := s.Orphans(ctx, survey.JobWithoutPayment, 0)
	_, entries := s.Entries(ctx, 0)
	if err := errors.Join(jobs, letters, events, storage, sessions, payments, halves, entries); err != nil {
		t.Fatal(err)
	}
}

// checkSurvey fails when a look reads more rows of a table of ours than it says, or more pages than a few milliseconds' worth.
func checkSurvey(t *testing.T, e *explained) {
	t.Helper()
	plans := e.take()
	if len(plans) < 10 {
		t.Fatalf("only %d plans were seen", len(plans))
	}
	for _, p := range plans {
		if pages := p.Plan.Hit + p.Plan.Read; pages > 10*survey.Slice {
			t.Errorf("it reads %.0f pages:\n%s", pages, p.Query)
		}
		p.Plan.walk(func(n node) {
			if strings.HasPrefix(n.Relation, "pg_") || n.Relation == "" {
				return
			}
			if n.Type == "Seq Scan" || n.rows() > survey.Slice+4*hotBatch {
				t.Errorf("%s of %s %s reads %.0f rows in\n%s", n.Type, n.Relation, n.Index, n.rows(), p.Query)
			}
		})
	}
}

// What is due stands at the front of an index in the order in which it is taken: a sort of all that is due would take ever longer in a backlog.
func TestABacklogIsNotReadToTakeAPartOfIt(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `insert into pollux.payments (gateway, reference, amount_minor, currency, poll_after, status, status_source)
		select 'sim', g::text, g, 'EUR', now() - random() * interval '1 hour', case when g % 2 = 0 then 'pending' else 'failed' end, 'poll' from generate_series(1, 6000) g`)
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'poll' where status = 'failed'`)
	take := func(t *testing.T) {
		services, plans := explain(t, r.url, true)
		for range 7 {
			if jobs := services.claim(t, 10, time.Minute); len(jobs) != 10 {
				t.Fatalf("%d jobs", len(jobs))
			}
			if n, err := services.relay.PublishEvents(t.Context(), 10, time.Second, stored); err != nil || n != 10 {
				t.Fatalf("%d events, %v", n, err)
			}
		}
		if n := checkPlans(t, plans, true); n < 4*7 {
			t.Fatalf("only %d plans were seen", n)
		}
	}
	t.Run("never analyzed", take)
	r.exec(t, `analyze pollux.payments, pollux.poll_jobs, pollux.outbox`)
	t.Run("analyzed", take)
}

// checkPlans fails when a plan reads many more rows than a batch has, or scans a table although it is pinned to indexes. It returns the number of plans.
func checkPlans(t *testing.T, e *explained, pinned bool) int {
	t.Helper()
	plans := e.take()
	for _, p := range plans {
		checkPlan(t, p, pinned)
	}
	return len(plans)
}

func checkPlan(t *testing.T, p explainedPlan, pinned bool) {
	t.Helper()
	p.Plan.walk(func(n node) {
		if strings.HasPrefix(n.Relation, "pg_") {
			return
		}
		if n.Type == "Seq Scan" && pinned {
			t.Errorf("a sequential scan of %s in\n%s", n.Relation, p.Query)
		}
		if n.rows() > 4*hotBatch {
			t.Errorf("%s %s %s reads %.0f rows in\n%s", n.Type, n.Relation, n.Index, n.rows(), p.Query)
		}
	})
}

// fill adds n payments that sleep for a day, without the triggers, and as many published events, attempts and closed letters as a busy day leaves.
func fill(t testing.TB, r *record, n int) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, sql := range []string{
		`set session_replication_role = replica`,
		`insert into pollux.payments (gateway, reference, amount_minor, currency, poll_after)
		 select 'sim', 'sleeping' || g, 100, 'EUR', now() + interval '1 day' from generate_series(1, $1::int) g`,
		`insert into pollux.poll_jobs (payment_id, gateway, lane, next_poll_at)
		 select id, gateway, lane, poll_after from pollux.payments where poll_after > now() limit $1::int`,
		`insert into pollux.outbox (event_id, payment_id, subject, body, published_at, stream, stream_seq)
		 select id, id, 'payments.resolved.sim.succeeded', '{}', now(), 'PAYMENTS_EVENTS', id from pollux.payments order by id limit $1::int / 5`,
		`insert into pollux.poll_attempts (payment_id, at, due_at, took_us, class, http_status, gateway_status, retry_after_ms, message, disposition, reason,
		   delay_ms, applied, attempts, failures, policy, worker, trace_id)
		 select id, now(), now(), 1, 'pending', 200, '', 0, '', 'park', 'still_pending', 1, true, 1, 0, '', '', '' from pollux.payments order by id limit $1::int / 5`,
		`insert into pollux.dead_letters (payment_id, gateway, reason, state, closed_at)
		 select id, 'sim', 'attempts', 'resolved', now() from pollux.payments order by id limit $1::int / 5`,
		`insert into pollux.replay_items (replay_id, ord, letter_id, payment_id, state)
		 select -1 - id / 1000, id, id, payment_id, 'resolved' from pollux.dead_letters order by id limit $1::int / 5`,
	} {
		args := []any{n}
		if !strings.Contains(sql, "$1") {
			args = nil
		}
		if _, err := conn.Exec(ctx, sql, args...); err != nil {
			t.Fatalf("%v\n%s", err, sql)
		}
	}
}

// hotStatements runs what the services run, each with hotBatch rows, what payment services run in long sessions, and webhooks and operators
// in short ones, without pinned plans.
func hotStatements(t *testing.T, services, callers, operator *record, prefix string) {
	t.Helper()
	ctx := t.Context()
	callers.track(t, prefix, hotBatch)
	callers.track(t, prefix, hotBatch) // known already
	query[int64](t, callers, `select pollux.track_payment('sim', $1, 100, 'EUR')`, prefix+"one")
	query[int64](t, callers, `select pollux.track_payment('sim', $1, 100, 'EUR')`, prefix+"one")

	jobs := services.claim(t, hotBatch, time.Minute)
	if len(jobs) != hotBatch {
		t.Fatalf("%d jobs were claimed, not %d", len(jobs), hotBatch)
	}
	services.relay.jobs.forget()
	if jobs := services.claim(t, hotBatch, time.Minute); len(jobs) != 1 {
		t.Fatalf("%d jobs were claimed, not the last one", len(jobs))
	}
	services.relay.jobs.forget()
	services.claim(t, hotBatch, time.Minute)
	services.claim(t, hotBatch, time.Minute)
	if err := services.relay.Release(ctx, jobs[:4]); err != nil {
		t.Fatal(err)
	}
	jobs = append(services.claim(t, 4, time.Minute), jobs[4:]...)
	if _, err := services.jobs.Extend(ctx, pollsOf(jobs), time.Minute); err != nil {
		t.Fatal(err)
	}
	if queues, err := services.relay.Queues(ctx); err != nil || len(queues) != 1 {
		t.Fatalf("queues: %v, %v", queues, err)
	}
	if due, err := services.relay.Due(ctx, []outbox.Queue{jobs[0].Queue}, hotBatch); err != nil || len(due) != 1 {
		t.Fatalf("due: %v, %v", due, err)
	}
	if err := services.relay.SetAside(ctx, []outbox.SetAside{{Job: jobs[0], Reason: "too large"}}); err != nil {
		t.Fatal(err)
	}
	jobs = jobs[1:]
	verdicts, err := services.jobs.Write(ctx, mixed(jobs, services.read(t, jobs)), "worker-1", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range verdicts {
		if !v.Applied {
			t.Fatalf("a result was not applied: %s", v.Refused)
		}
	}
	for range 2 {
		if _, err := services.relay.PublishEvents(ctx, hotBatch, time.Second, stored); err != nil {
			t.Fatal(err)
		}
	}
	letters, err := operator.letters.List(ctx, deadletter.Filter{}, deadletter.Page{Limit: hotBatch})
	if err != nil || len(letters) == 0 {
		t.Fatalf("letters: %v, %v", letters, err)
	}
	if _, err := operator.letters.Show(ctx, letters[0].ID); err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for _, l := range letters[:3] {
		ids = append(ids, l.ID)
	}
	if o := operator.replay(t, ids); len(o.Released) != 3 {
		t.Fatalf("replay: %+v", o)
	}
	for _, a := range []casework.Act{{Verb: casework.Hold, For: time.Hour}, {Verb: casework.Release}} {
		operator.mustAct(t, jobs[len(jobs)-1].Payment, a)
	}
	if list, err := operator.casework().List(ctx, casework.Filter{}, 0, 20); err != nil || len(list) != 20 {
		t.Fatalf("%d payments are listed, %v", len(list), err)
	}
	if log, err := NewAudit(operator.pool).List(ctx, AuditFilter{Target: "payment:1"}, 10); err != nil {
		t.Fatalf("%v, %v", log, err)
	}
	// an operator and a webhook finish what is left; one is a late success
	operator.exec(t, `update pollux.payments set status = 'failed', status_source = 'operator' where id = any ($1::bigint[]) and status = 'pending'`, idsOf(jobs[2:]))
	callers.exec(t, `update pollux.payments set status = 'failed', status_source = 'webhook' where id = $1 and status = 'pending'`, int64(jobs[1].Payment))
	callers.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'webhook' where id = $1 and status = 'failed'`, int64(jobs[0].Payment))
	if _, err := services.relay.PublishEvents(ctx, hotBatch, time.Second, stored); err != nil {
		t.Fatal(err)
	}
	// nothing of this round is left to be found by the next
	operator.exec(t, `update pollux.payments set status = 'cancelled', status_source = 'operator'
		where id in (select payment_id from pollux.poll_jobs where gateway = 'sim' and lane = 'normal' and claimable_at < now() + interval '2 minutes')`)
	operator.exec(t, `update pollux.payments set status = 'cancelled', status_source = 'operator' where id in (select payment_id from pollux.dead_letters where state = 'open')`)
	for n := 1; n > 0; {
		if n, err = services.relay.PublishEvents(ctx, hotBatch, time.Second, stored); err != nil {
			t.Fatal(err)
		}
	}
}

func idsOf(jobs []outbox.Job) []int64 {
	ids := make([]int64, len(jobs))
	for i, j := range jobs {
		ids[i] = int64(j.Payment)
	}
	return ids
}
