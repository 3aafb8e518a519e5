package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/internal/payment"
	"pollux/internal/pgtest"
	"pollux/internal/redelivery"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func migrate(ctx context.Context, url string) error {
	_, err := Migrate(ctx, url)
	return err
}

// record is a migrated database of the test's own, as the services open it.
type record struct {
	url     string
	pool    *pgxpool.Pool
	relay   *Relay
	jobs    *Jobs
	letters *Letters
	replays *Replays
}

func newRecord(tb testing.TB) *record {
	tb.Helper()
	return openRecord(tb, pgtest.New(tb, migrate))
}

func openRecord(tb testing.TB, url string) *record {
	tb.Helper()
	pool := open(tb, Options{URL: url, MaxConns: 16, Name: "test", Indexed: true})
	return &record{url: url, pool: pool, relay: NewRelay(pool, 24*time.Hour, 30*24*time.Hour), jobs: NewJobs(pool), letters: NewLetters(pool), replays: NewReplays(pool)}
}

func open(tb testing.TB, o Options) *pgxpool.Pool {
	tb.Helper()
	pool, err := Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

func (r *record) exec(tb testing.TB, sql string, args ...any) int64 {
	tb.Helper()
	tag, err := r.pool.Exec(tb.Context(), sql, args...)
	if err != nil {
		tb.Fatalf("%v\n%s", err, sql)
	}
	return tag.RowsAffected()
}

func query[T any](tb testing.TB, r *record, sql string, args ...any) T {
	tb.Helper()
	var v T
	if err := r.pool.QueryRow(tb.Context(), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%v\n%s", err, sql)
	}
	return v
}

// track tracks n payments of gateway sim, whose references begin with prefix, and returns their ids.
func (r *record) track(tb testing.TB, prefix string, n int) []payment.ID {
	tb.Helper()
	type element struct {
		Gateway   string `json:"gateway"`
		Reference string `json:"reference"`
		Amount    int64  `json:"amount_minor"`
		Currency  string `json:"currency"`
	}
	var ids []payment.ID
	for at := 0; at < n; at += 1000 {
		var batch []element
		for i := at; i < min(at+1000, n); i++ {
			batch = append(batch, element{"sim", fmt.Sprintf("%s%d", prefix, i), 1999, "EUR"})
		}
		b, err := json.Marshal(batch)
		if err != nil {
			tb.Fatal(err)
		}
		rows, err := r.pool.Query(tb.Context(), `select id from pollux.track_payments($1::jsonb)`, string(b))
		if err != nil {
			tb.Fatal(err)
		}
		for rows.Next() {
			var id payment.ID
			if err := rows.Scan(&id); err != nil {
				tb.Fatal(err)
			}
			ids = append(ids, id)
		}
		if rows.Err() != nil {
			tb.Fatal(rows.Err())
		}
	}
	return ids
}

// room is room in all lanes that the tests' jobs come into.
func room(n int) []outbox.Room {
	var rooms []outbox.Room
	for _, lane := range []string{"normal", "high", message.LaneRetry, message.LaneReplay} {
		rooms = append(rooms, outbox.Room{Queue: outbox.Queue{Gateway: "sim", Lane: lane}, N: n})
	}
	return rooms
}

// claim claims up to n jobs of gateway sim.
func (r *record) claim(tb testing.TB, n int, lease time.Duration) []outbox.Job {
	tb.Helper()
	jobs, err := r.relay.Claim(tb.Context(), room(n), n, "relay-1", lease)
	if err != nil {
		tb.Fatal(err)
	}
	return jobs
}

func pollsOf(jobs []outbox.Job) []message.Poll {
	polls := make([]message.Poll, len(jobs))
	for i, j := range jobs {
		polls[i] = message.Poll{Payment: j.Payment, Token: j.Token, Revision: j.Revision}
	}
	return polls
}

// read reads the rows of claimed jobs.
func (r *record) read(tb testing.TB, jobs []outbox.Job) []consumer.Job {
	tb.Helper()
	rows, err := r.jobs.Read(tb.Context(), pollsOf(jobs))
	if err != nil {
		tb.Fatal(err)
	}
	return rows
}

// result is a result of a claimed job, with a poll behind it.
func result(j outbox.Job, row consumer.Job, d redelivery.Disposition, a gateway.Answer) consumer.Result {
	return consumer.Result{Payment: j.Payment, Gateway: j.Gateway, Token: j.Token, Revision: row.Revision, Disposition: d, Policy: "standard",
		Polled: true, Answer: a, StartedAt: row.ReadAt, DueAt: row.DueAt, TraceParent: "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"}
}

func resolve(s payment.Status) (redelivery.Disposition, gateway.Answer) {
	return redelivery.Disposition{Verb: redelivery.Resolve, Reason: redelivery.ReasonResolved, Status: s, Counters: redelivery.Counters{Attempts: 1}},
		gateway.Answer{Class: gateway.Final, Status: s, HTTPStatus: 200, GatewayStatus: string(s), Took: 3 * time.Millisecond}
}

func stillPending(v redelivery.Verb, delay time.Duration) (redelivery.Disposition, gateway.Answer) {
	return redelivery.Disposition{Verb: v, Reason: redelivery.ReasonStillPending, Delay: delay, Counters: redelivery.Counters{Attempts: 1}},
		gateway.Answer{Class: gateway.Pending, Status: payment.Pending, HTTPStatus: 200, GatewayStatus: "processing", Took: 3 * time.Millisecond}
}

// mixed are results of all verbs for claimed jobs.
func mixed(jobs []outbox.Job, rows []consumer.Job) []consumer.Result {
	verbs := []redelivery.Verb{redelivery.Resolve, redelivery.Hold, redelivery.Park, redelivery.Defer, redelivery.DeadLetter}
	results := make([]consumer.Result, len(jobs))
	for i, j := range jobs {
		d := redelivery.Disposition{Verb: verbs[i%len(verbs)], Reason: redelivery.ReasonStillPending, Delay: time.Hour, Status: payment.Failed, Detail: "processing"}
		results[i] = result(j, rows[i], d, gateway.Answer{Class: gateway.Pending, HTTPStatus: 200})
		results[i].DetailNew = true
	}
	return results
}

// eventually waits until a condition of another connection holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			tb.Fatalf("it did not happen: %s", what)
		}
	}
}
