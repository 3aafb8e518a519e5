package postgres

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"pollux/internal/audit"
	"pollux/internal/consumer"
	"pollux/internal/deadletter"
	"pollux/internal/gateway"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// Whoever writes SQL by hand goes the way of the command.
func TestAReplayIsPlannedAndThenFrozen(t *testing.T) {
	r := newGranted(t)
	ada := r.login(t, RoleOperator)
	grace := r.login(t, RoleOperator)
	letters := []int64{}
	for i := range 3 {
		letters = append(letters, query[int64](t, r, `insert into pollux.dead_letters (gateway, reason, subject, body) values ('sim', 'undecodable', $1, 'b') returning id`, fmt.Sprint("s", i)))
	}
	const plan = `insert into pollux.replays (request_id, selection, reason, created_by) values ($1, 's', 'w', 'ada') returning id`
	const choose = `insert into pollux.replay_items (replay_id, ord, letter_id) values ($1, $2, $3)`
	refused := func(by *record, constraint, sql string, args ...any) {
		t.Helper()
		if _, err := by.pool.Exec(t.Context(), sql, args...); !refusedBy(err, constraint) {
			t.Errorf("%s: %v", sql, err)
		}
	}
	refused(r, "replays_planned", `insert into pollux.replays (request_id, selection, reason, created_by, state) values ('x', 's', 'w', 'ada', 'running')`)
	refused(r, "replays_planned", `insert into pollux.replays (request_id, selection, reason, created_by, approved_by) values ('x', 's', 'w', 'ada', 'grace')`)
	id := query[int64](t, ada, plan, "by hand")
	if state := query[string](t, ada, `select state from pollux.replays where id = $1`, id); state != deadletter.Planned {
		t.Errorf("it begins %s", state)
	}
	refused(ada, "replays_approval", `update pollux.replays set state = 'running', approved_by = 'grace' where id = $1`, id)
	ada.exec(t, choose, id, 1, letters[0])
	ada.exec(t, choose, id, 2, letters[1])
	ada.exec(t, `update pollux.replays set letters = 2, money = '{"EUR": 1}', state = 'awaiting_approval' where id = $1`, id)
	for _, state := range []string{"awaiting_approval", "running", "stopped", "cancelled"} {
		switch state {
		case "running":
			grace.exec(t, `update pollux.replays set state = 'running', approved_by = 'grace', approved_at = now() where id = $1`, id)
		default:
			ada.exec(t, `update pollux.replays set state = $2 where id = $1`, id, state)
		}
		refused(ada, "replay_items_frozen", choose, id, 3, letters[2])
		if state == "running" || state == "stopped" {
			refused(ada, "replays_frozen", `update pollux.replays set state = 'planned' where id = $1`, id)
		}
		refused(ada, "replays_frozen", `update pollux.replays set letters = 1 where id = $1`, id)
		refused(ada, "replays_frozen", `update pollux.replays set money = '{"EUR": 2}' where id = $1`, id)
		refused(ada, "replays_frozen", `update pollux.replays set rate = 1000 where id = $1`, id)
		if state != "awaiting_approval" {
			refused(ada, "replays_approval", `update pollux.replays set approved_by = 'eve' where id = $1`, id)
		}
	}
	ada.exec(t, `update pollux.replay_items set state = 'cancelled' where replay_id = $1`, id)
	refused(ada, "replay_items_frozen", `update pollux.replay_items set state = 'chosen' where replay_id = $1`, id)
	refused(ada, "replay_items_frozen", choose, id+1, 1, letters[2])

	left := query[int64](t, ada, plan, "left behind")
	if ended, err := ada.replays.Cancel(t.Context(), left, operator); err != nil || ended.State != deadletter.Cancelled {
		t.Errorf("%v, %+v", err, ended)
	}
}

// Whoever adds a letter while the replay is turned waits, or has the other wait: none is in it that the second person could not see.
func TestNoLetterComesToAReplayWhileItIsTurned(t *testing.T) {
	r := newGranted(t)
	ada := r.login(t, RoleOperator)
	letter := query[int64](t, r, `insert into pollux.dead_letters (gateway, reason, subject, body) values ('sim', 'undecodable', 's', 'b') returning id`)
	id := query[int64](t, ada, `insert into pollux.replays (request_id, selection, reason, created_by) values ('x', 's', 'w', 'ada') returning id`)
	adding, err := ada.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer adding.Rollback(context.WithoutCancel(t.Context()))
	if _, err := adding.Exec(t.Context(), `insert into pollux.replay_items (replay_id, ord, letter_id) values ($1, 1, $2)`, id, letter); err != nil {
		t.Fatal(err)
	}
	const turn = `update pollux.replays set state = 'awaiting_approval' where id = $1`
	err = pgx.BeginFunc(t.Context(), ada.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `set local lock_timeout = '50ms'`); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), turn, id)
		return err
	})
	if pgCode(err) != "55P03" {
		t.Errorf("it is turned beside an open choice: %v", err)
	}
	if err := adding.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	ada.exec(t, turn, id)
}

// order is a replay of letters at once, without trying a few first.
func order(ids ...int64) deadletter.Order {
	return deadletter.Order{RequestID: uuid.NewString(), Selection: deadletter.Selection{IDs: ids}, Rate: deadletter.Rate{PerSecond: deadletter.MaxRate}, NoCanary: true,
		Priority: deadletter.ByAge}
}

func (r *record) create(tb testing.TB, o deadletter.Order) deadletter.Replay {
	tb.Helper()
	replay, _, err := r.replays.Create(tb.Context(), o, operator)
	if err != nil {
		tb.Fatal(err)
	}
	return replay
}

func (r *record) step(tb testing.TB, id int64) (deadletter.Progress, deadletter.Deed) {
	tb.Helper()
	p, d, err := (Drive{r.replays, operator}).Step(tb.Context(), id, deadletter.Next)
	if err != nil {
		tb.Fatal(err)
	}
	return p, d
}

// released is what became of a selection that was replayed.
type released struct {
	Replay   deadletter.Replay
	Released []int64
	Refused  []deadletter.Refusal
}

// replay replays letters at once.
func (r *record) replay(tb testing.TB, ids []int64) (o released) {
	tb.Helper()
	if len(ids) == 0 {
		return o
	}
	o.Replay = r.create(tb, order(ids...))
	for o.Replay.State == deadletter.Running {
		p, _ := r.step(tb, o.Replay.ID)
		o.Replay = p.Replay
	}
	for _, i := range r.items(tb, o.Replay.ID) {
		switch i.State {
		case deadletter.Refused, deadletter.Final:
			o.Refused = append(o.Refused, deadletter.Refusal{ID: i.Letter, Why: i.Why})
		default:
			o.Released = append(o.Released, i.Letter)
		}
	}
	slices.Sort(o.Released)
	return o
}

// giveUpReplays cancels whatever is not over.
func (r *record) giveUpReplays(tb testing.TB) {
	tb.Helper()
	for _, id := range query[[]int64](tb, r, `select coalesce(array_agg(id), '{}') from pollux.replays where state in ('running', 'stopped')`) {
		if _, err := r.replays.Cancel(tb.Context(), id, operator); err != nil {
			tb.Fatal(err)
		}
	}
}

func (r *record) items(tb testing.TB, id int64) (items []deadletter.Item) {
	tb.Helper()
	if err := r.replays.Items(tb.Context(), id, func(i deadletter.Item) error { items = append(items, i); return nil }); err != nil {
		tb.Fatal(err)
	}
	return items
}

// answer claims what is due and lets the gateway answer.
func (r *record) answer(tb testing.TB, say func(payment.ID) (redelivery.Disposition, gateway.Answer)) int {
	tb.Helper()
	r.exec(tb, `update pollux.poll_jobs set next_poll_at = now() where state = 'scheduled' and lane = 'replay' and next_poll_at < now() + interval '1 minute'`)
	r.relay.jobs.forget()
	jobs := r.claim(tb, 1000, time.Minute)
	var results []consumer.Result
	for i, row := range r.read(tb, jobs) {
		d, a := say(jobs[i].Payment)
		results = append(results, result(jobs[i], row, d, a))
	}
	r.write(tb, results...)
	return len(jobs)
}

func diesAgain(payment.ID) (redelivery.Disposition, gateway.Answer) {
	return redelivery.Disposition{Verb: redelivery.DeadLetter, Reason: redelivery.ReasonAttempts}, gateway.Answer{Class: gateway.Transport, Message: "connection refused"}
}

func succeeds(payment.ID) (redelivery.Disposition, gateway.Answer) { return resolve(payment.Succeeded) }

func TestReplayedPaymentsAreDueOneAfterTheOther(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 4)
	r.exec(t, `update pollux.poll_jobs set attempts = 9, failures = 8, not_founds = 7, deferrals = 6, window_started_at = now() - interval '1 day', last_delay_ms = 5`)
	o := order(3, 1, 3, 4)
	o.Rate.PerSecond = 4
	replay := r.create(t, o)
	if replay.Letters != 3 || replay.Money["EUR"] != 3*1999 || !slices.Equal(replay.Gateways, []string{"sim"}) || len(replay.Checksum) != 64 || replay.State != deadletter.Running {
		t.Fatalf("%+v", replay)
	}
	p, deed := r.step(t, replay.ID)
	if deed.Release != 3 || p.Counts.Queued != 3 || p.Counts.Chosen != 0 {
		t.Fatalf("%+v %+v", deed, p)
	}
	got := query[string](t, r, `
		select string_agg(concat_ws(' ', payment_id, state, lane, next_poll_at - updated_at, window_started_at = next_poll_at, attempts, failures, not_founds, deferrals, replays,
		  last_delay_ms, revision), ', ' order by next_poll_at)
		from pollux.poll_jobs where state <> 'dead'`)
	if want := "1 scheduled replay 00:00:00 t 0 0 0 6 1 0 2, 3 scheduled replay 00:00:00.25 t 0 0 0 6 1 0 2, 4 scheduled replay 00:00:00.5 t 0 0 0 6 1 0 2"; got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	if open, replaying := r.openLetters(t, ""), r.openLetters(t, "state=replaying"); !slices.Equal(open, []int64{2}) || !slices.Equal(replaying, []int64{1, 3, 4}) {
		t.Errorf("open %v, replaying %v", open, replaying)
	}
	if in := r.openLetters(t, "state=any replay=1"); !slices.Equal(in, []int64{1, 3, 4}) {
		t.Errorf("in the replay: %v", in)
	}
	requireSound(t, r)
}

// The rate belongs to the replay: whoever drives it, and however many do, it is not exceeded.
func TestARateIsThatOfTheReplayNotOfItsDrivers(t *testing.T) {
	r := newRecord(t)
	ids := r.dead(t, "p", 20)
	o := order(ids...)
	o.Rate.PerSecond = 2
	replay := r.create(t, o)
	released := 0
	for range 10 {
		_, deed := r.step(t, replay.ID)
		released += deed.Release
	}
	if most := query[int](t, r, `select 2 + ceil(extract(epoch from now() - created_at) * 2)::int from pollux.replays`); released < 1 || released > most {
		t.Errorf("%d were released, at most %d at that rate", released, most)
	}
	gap := query[time.Duration](t, r, `select coalesce(min(gap), interval '1 hour') from (select next_poll_at - lag(next_poll_at) over (order by next_poll_at) as gap from pollux.poll_jobs where state = 'scheduled') g`)
	if gap < 500*time.Millisecond-time.Microsecond {
		t.Errorf("two are due within %s at 2 a second", gap)
	}
}

func TestAReplayRefusesWithAReason(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 6)
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'webhook' where id = 2`)
	r.replay(t, []int64{3})
	r.change(t, deadletter.Change{Verb: deadletter.Park}, 4)
	r.exec(t, `update pollux.dead_letters set replays = 5 where id = 5`)
	if err := r.jobs.Bury(t.Context(), consumer.Poison{Subject: "s", Gateway: "sim", Body: []byte("x"), Why: "x"}); err != nil {
		t.Fatal(err)
	}
	o := order(1, 2, 3, 4, 5, 7, 999)
	o.MaxTimes = 5
	preview, err := r.replays.Preview(t.Context(), o, 10)
	if err != nil {
		t.Fatal(err)
	}
	replay := r.create(t, o)
	got := map[int64]string{}
	for _, i := range r.items(t, replay.ID) {
		got[i.Letter] = i.State + ": " + i.Why
	}
	want := map[int64]string{
		1: "chosen: ", 2: "final: its payment is succeeded", 3: "refused: it is in replay 1", 4: "refused: it is parked",
		5: "refused: it was replayed 5 times already and is put aside; pollux dlq reopen takes it back", 7: "refused: its message belongs to no payment: there is nothing to poll",
		999: "refused: there is no such dead letter",
	}
	for id := range want {
		if got[id] != want[id] {
			t.Errorf("%d is %q, not %q", id, got[id], want[id])
		}
		for _, p := range preview.First {
			if p.ID == id && p.Why != strings.TrimSpace(got[id][strings.Index(got[id], ":")+1:]) {
				t.Errorf("%d: the dry run said %q, the replay says %q", id, p.Why, got[id])
			}
		}
	}
	if len(preview.First) != len(want) || preview.Letters != 1 || preview.Verdicts[deadletter.TooOften] != 1 || preview.Verdicts[deadletter.Missing] != 1 {
		t.Errorf("%+v", preview)
	}
	if parked := r.openLetters(t, "state=parked"); !slices.Equal(parked, []int64{4, 5}) {
		t.Errorf("put aside: %v", parked)
	}
	r.exec(t, `update pollux.dead_letters set replays = 0 where id = 5`)
	requireSound(t, r)
}

func TestWhatDiesLaterIsNotInAReplay(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 5)
	o := order()
	o.Selection.Filter = filter(t, "gateway=sim")
	replay := r.create(t, o)
	r.dead(t, "q", 5)
	for replay.State == deadletter.Running {
		p, _ := r.step(t, replay.ID)
		replay = p.Replay
	}
	if open := r.openLetters(t, ""); replay.Letters != 5 || len(open) != 5 || open[0] != 6 {
		t.Errorf("%d letters, open %v", replay.Letters, open)
	}
}

func TestTheSameRequestIsTheSameReplay(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 3)
	o := order(1, 2)
	first, fresh, err := r.replays.Create(t.Context(), o, operator)
	if err != nil || !fresh {
		t.Fatal(fresh, err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			again, fresh, err := r.replays.Create(t.Context(), o, operator)
			if err != nil || fresh || again.ID != first.ID {
				t.Errorf("%d, %t, %v", again.ID, fresh, err)
			}
		})
	}
	wg.Wait()
	other := order(3)
	other.RequestID = o.RequestID
	if _, _, err := r.replays.Create(t.Context(), other, operator); !errors.Is(err, deadletter.ErrOther) {
		t.Errorf("another selection with the same id: %v", err)
	}
}

func TestACanaryIsTriedFirstAndStopsTheReplay(t *testing.T) {
	r := newRecord(t)
	ids := r.dead(t, "p", 30)
	o := order(ids...)
	o.NoCanary = false
	replay := r.create(t, o)
	steps := func(n int) (p deadletter.Progress) {
		for range n {
			p, _ = r.step(t, replay.ID)
		}
		return p
	}
	if p := steps(3); p.Counts.Queued != 1 || p.Stage != 0 {
		t.Fatalf("%+v", p.Counts)
	}
	r.answer(t, succeeds)
	if p := steps(4); p.Counts.Queued != 10 || p.Stage != 1 || p.Counts.Resolved != 1 {
		t.Fatalf("%+v", p.Counts)
	}
	// nine succeed, one comes back with another fault, which stops nothing
	r.answer(t, func(id payment.ID) (redelivery.Disposition, gateway.Answer) {
		if id == 5 {
			d, a := diesAgain(id)
			a.Message = "something else"
			return d, a
		}
		return succeeds(id)
	})
	if p := steps(3); p.Counts.Queued != 19 || p.Stage != 2 || p.Counts.FailedAgain != 1 {
		t.Fatalf("%+v", p.Counts)
	}
	requireSound(t, r)

	again := r.dead(t, "q", 5)
	o = order(again[1:]...) // the first of them is from before
	o.NoCanary = false
	replay = r.create(t, o)
	steps(1)
	r.answer(t, diesAgain)
	p := steps(1)
	if p.State != deadletter.Stopped || !strings.Contains(p.Why, "the fault came back: 1 of 1") || p.Counts.Released() != 1 {
		t.Fatalf("%s: %s, %+v", p.State, p.Why, p.Counts)
	}
	if _, err := r.replays.Resume(t.Context(), replay.ID, operator); err != nil {
		t.Fatal(err)
	}
	if p := steps(2); p.State != deadletter.Running || p.Counts.Queued != 1 {
		t.Errorf("resumed: %s, %+v", p.State, p.Counts)
	}
	requireSound(t, r)
}

// A call that fails as before is enough to stop: whether the payment dies of it may take a day to know.
func TestACanaryStopsAtTheFirstCallThatFailsAsBefore(t *testing.T) {
	r := newRecord(t)
	ids := r.dead(t, "p", 5)
	o := order(ids...)
	o.NoCanary = false
	replay := r.create(t, o)
	r.step(t, replay.ID)
	r.answer(t, func(payment.ID) (redelivery.Disposition, gateway.Answer) {
		return redelivery.Disposition{Verb: redelivery.Park, Delay: time.Hour, Reason: redelivery.ReasonFailure, Counters: redelivery.Counters{Failures: 1}},
			gateway.Answer{Class: gateway.Transport, Message: "connection refused"}
	})
	if p, _ := r.step(t, replay.ID); p.State != deadletter.Stopped || p.Counts.Queued != 1 {
		t.Errorf("%s, %+v", p.State, p.Counts)
	}
	requireSound(t, r)
}

// An answer that it is still pending is news: the gateway knows the payment again.
func TestACanaryThatIsStillPendingLetsTheRestGo(t *testing.T) {
	r := newRecord(t)
	o := order(r.dead(t, "p", 5)...)
	o.NoCanary = false
	replay := r.create(t, o)
	r.step(t, replay.ID)
	r.answer(t, func(payment.ID) (redelivery.Disposition, gateway.Answer) {
		return stillPending(redelivery.Park, time.Hour)
	})
	for range 3 {
		r.step(t, replay.ID)
	}
	if p, _ := r.step(t, replay.ID); p.Stage != 1 || p.Counts.Queued != 5 || p.Counts.Answered != 1 {
		t.Errorf("stage %d, %+v", p.Stage, p.Counts)
	}
}

func TestOneOfEachFaultIsTriedFirst(t *testing.T) {
	r := newRecord(t)
	ids := r.dead(t, "p", 30)
	r.exec(t, `update pollux.dead_letters set message = 'another' where id = 29`)
	r.exec(t, `update pollux.dead_letters set message = 'a third', amount_minor = 5 where id = 30`)
	r.exec(t, `update pollux.dead_letters set currency = 'JPY' where id = 7`)
	items := r.items(t, r.create(t, order(ids...)).ID)
	if items[0].Letter != 1 || items[1].Letter != 29 || items[2].Letter != 30 || items[3].Letter != 2 {
		t.Errorf("%v", items[:4])
	}
	for _, id := range []int64{1} {
		if _, err := r.replays.Undo(t.Context(), id, operator); err != nil {
			t.Fatal(err)
		}
	}
	o := order(ids...)
	o.Priority = deadletter.ByMoney // 1999 yen are more units than 19.99 EUR
	items = r.items(t, r.create(t, o).ID)
	if items[0].Letter != 7 || items[1].Letter != 29 || items[2].Letter != 30 || items[3].Letter != 1 {
		t.Errorf("%v", items[:4])
	}
}

func TestOperatorsWhoReplayTheSameLettersAtOnceReplayThemOnce(t *testing.T) {
	r := newRecord(t)
	ids := r.dead(t, "p", 100)
	var wg sync.WaitGroup
	for i := range 4 {
		mine := slices.Clone(ids[i*10 : len(ids)-(3-i)*10])
		if i%2 == 1 {
			slices.Reverse(mine)
		}
		wg.Go(func() {
			o := order(mine...)
			replay, _, err := r.replays.Create(t.Context(), o, operator)
			if err != nil {
				t.Error(err)
				return
			}
			var drivers sync.WaitGroup
			for range 2 { // two terminals drive it
				drivers.Go(func() {
					d := deadletter.Driver{Steps: Drive{r.replays, operator}, Transient: Transient}
					if p, err := d.Run(t.Context(), replay.ID); err != nil || p.State != deadletter.Done {
						t.Errorf("%s, %v", p.State, err)
					}
				})
			}
			drivers.Wait()
		})
	}
	wg.Wait()
	if n := query[int](t, r, `select count(*) from pollux.poll_jobs where replays <> 1 or state = 'dead'`); n != 0 {
		t.Errorf("%d jobs were not replayed once", n)
	}
	if n := query[int](t, r, `select count(*) - count(distinct letter_id) from pollux.replay_items where state = 'queued'`); n != 0 {
		t.Errorf("%d letters were released twice", n)
	}
	if n := query[int](t, r, `select count(*) from pollux.audit_log where action = 'dlq.replay' and outcome = 'done'`); n != 100 {
		t.Errorf("%d replays are in the audit log", n)
	}
	requireSound(t, r)
}

// TestAReplayAndAWebhookAtOnce lets both have the same thousand payments. Each becomes final once, and each letter says what became of it.
func TestAReplayAndAWebhookAtOnce(t *testing.T) {
	r := newRecord(t)
	const n = 1000
	ids := r.dead(t, "p", n)
	o := order(ids...)
	replay := r.create(t, o)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			p, _, err := (Drive{r.replays, operator}).Step(t.Context(), replay.ID, func(p deadletter.Progress) deadletter.Deed {
				d := deadletter.Next(p)
				d.Release = min(d.Release, 7)
				return d
			})
			if err != nil || p.State != deadletter.Running {
				if err != nil {
					t.Error(err)
				}
				return
			}
		}
	})
	for part := range 2 {
		wg.Go(func() {
			for i := part; i < n; i += 2 {
				id := ids[n-1-i]
				if i%4 == 0 {
					id = ids[i]
				}
				if _, err := r.pool.Exec(t.Context(), `update pollux.payments set status = 'succeeded', status_source = 'webhook' where id = $1 and status = 'pending'`, id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for r.answer(t, succeeds) > 0 {
	}
	if got := query[string](t, r, `select string_agg(distinct status, ',') from pollux.payments`); got != "succeeded" {
		t.Errorf("payments are %s", got)
	}
	counts, err := r.replays.Replay(t.Context(), replay.ID)
	if c := counts.Counts; err != nil || c.Resolved+c.Final != n || c.Queued != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	if n := query[int](t, r, `select count(*) from (select payment_id from pollux.outbox where subject like 'payments.resolved.%' group by payment_id having count(*) <> 1) x`); n != 0 {
		t.Errorf("%d payments were finished twice", n)
	}
	requireSound(t, r)
}

func TestUndoTakesBackWhatNobodyHasPolled(t *testing.T) {
	r := newRecord(t)
	ids := r.dead(t, "p", 10)
	r.exec(t, `update pollux.dead_letters set attempts = 9, failures = 2 where id = 3`)
	before := query[string](t, r, `select string_agg(concat_ws(' ', id, state, died_at, replays), ',' order by id) from pollux.dead_letters where id > 2`)
	replay := r.create(t, order(ids...))
	p, _, err := (Drive{r.replays, operator}).Step(t.Context(), replay.ID, func(deadletter.Progress) deadletter.Deed { return deadletter.Deed{Release: 5} })
	if err != nil || p.Counts.Queued != 5 {
		t.Fatalf("%+v, %v", p.Counts, err)
	}
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now() where payment_id in (1, 2)`)
	r.exec(t, `update pollux.poll_jobs set next_poll_at = now() + interval '1 hour' where payment_id in (3, 4, 5)`)
	jobs := r.claim(t, 10, time.Minute) // 1 and 2 are on their way
	if len(jobs) != 2 {
		t.Fatalf("%d jobs", len(jobs))
	}
	undone, err := r.replays.Undo(t.Context(), replay.ID, operator)
	if err != nil || undone.State != deadletter.Undone || undone.Counts.Undone != 8 || undone.Counts.Queued != 2 {
		t.Fatalf("%+v, %v", undone, err)
	}
	if after := query[string](t, r, `select string_agg(concat_ws(' ', id, state, died_at, replays), ',' order by id) from pollux.dead_letters where id > 2`); after != before {
		t.Errorf("%s\nbefore\n%s", after, before)
	}
	if got := query[string](t, r, `select concat_ws(' ', state, replays, attempts, failures) from pollux.poll_jobs where payment_id = 3`); got != "dead 0 9 2" {
		t.Errorf("its job is %s", got)
	}
	if events := r.eventsOf(t, 3); len(events) != 1 {
		t.Errorf("what was taken back is announced again: %v", events)
	}
	var refused *deadletter.StateError
	if _, err := r.replays.Cancel(t.Context(), replay.ID, operator); !errors.As(err, &refused) {
		t.Errorf("%v", err)
	}
	if o := r.replay(t, []int64{3, 4, 5}); len(o.Released) != 3 {
		t.Errorf("they are not replayed again: %+v", o)
	}
	requireSound(t, r)
}

func TestCancelLeavesTheRestOpen(t *testing.T) {
	r := newRecord(t)
	replay := r.create(t, order(r.dead(t, "p", 10)...))
	if _, _, err := (Drive{r.replays, operator}).Step(t.Context(), replay.ID, func(deadletter.Progress) deadletter.Deed { return deadletter.Deed{Release: 4} }); err != nil {
		t.Fatal(err)
	}
	replay, err := r.replays.Cancel(t.Context(), replay.ID, operator)
	if err != nil || replay.Counts.Cancelled != 6 || replay.Counts.Queued != 4 || replay.EndedBy != operator.Name || replay.EndedWhy != operator.Reason {
		t.Fatalf("%+v, %v", replay.Counts, err)
	}
	if p, deed := r.step(t, replay.ID); deed != (deadletter.Deed{}) || p.State != deadletter.Cancelled {
		t.Errorf("it goes on: %+v", deed)
	}
	r.answer(t, succeeds)
	if replay, err = r.replays.Replay(t.Context(), replay.ID); err != nil || replay.Counts.Resolved != 4 || len(r.openLetters(t, "")) != 6 {
		t.Errorf("%+v, %v", replay.Counts, err)
	}
	requireSound(t, r)
}

func TestAReplayOfNothingIsNone(t *testing.T) {
	r := newRecord(t)
	r.dead(t, "p", 2)
	o := order()
	o.Selection.Filter = filter(t, "gateway=nope")
	if _, fresh, err := r.replays.Create(t.Context(), o, operator); fresh || !errors.Is(err, deadletter.ErrNothing) {
		t.Errorf("%t, %v", fresh, err)
	}
	if _, err := r.replays.Preview(t.Context(), o, 5); !errors.Is(err, deadletter.ErrNothing) {
		t.Errorf("%v", err)
	}
	if rows := query[int](t, r, `select count(*) from pollux.replays`); rows != 0 {
		t.Errorf("%d replays", rows)
	}
	if acts := query[int](t, r, `select count(*) from pollux.audit_log where action = 'replay.create' and outcome = 'refused'`); acts != 1 {
		t.Errorf("%d refusals in the audit log", acts)
	}
	if unknown, err := r.replays.Unknown(t.Context(), o.Selection.Filter); err != nil || len(unknown) != 1 || unknown[0] != "gateway=nope" {
		t.Errorf("%v, %v", unknown, err)
	}
	requireSound(t, r)
}

func TestALargeReplayNeedsASecondPerson(t *testing.T) {
	r := newRecord(t)
	o := order(r.dead(t, "p", 3)...)
	o.Approval.Money = map[string]int64{"EUR": 3*1999 - 1}
	replay := r.create(t, o)
	if replay.State != deadletter.AwaitingApproval || replay.Why != "59.97 EUR, and more than 59.96 EUR need a second person" {
		t.Fatalf("%s: %s", replay.State, replay.Why)
	}
	if _, deed := r.step(t, replay.ID); deed != (deadletter.Deed{}) {
		t.Errorf("it begins by itself: %+v", deed)
	}
	if _, err := r.replays.Approve(t.Context(), replay.ID, operator); !errors.Is(err, deadletter.ErrSamePerson) {
		t.Errorf("the same person approves: %v", err)
	}
	for _, name := range []string{"Ada", " ada ", "ADA\t"} {
		if _, err := r.replays.Approve(t.Context(), replay.ID, By{Actor: audit.Actor{Name: name, Origin: "test"}, Reason: "x"}); !errors.Is(err, deadletter.ErrSamePerson) {
			t.Errorf("%q approves what ada asked for: %v", name, err)
		}
	}
	second := By{Actor: audit.Actor{Name: "grace", Origin: "test"}, Reason: "looked at"}
	if replay, err := r.replays.Approve(t.Context(), replay.ID, second); err != nil || replay.State != deadletter.Running || replay.ApprovedBy != "grace" {
		t.Errorf("%+v, %v", replay, err)
	}
	var refused *deadletter.StateError
	if _, err := r.replays.Approve(t.Context(), replay.ID, second); !errors.As(err, &refused) {
		t.Errorf("approved twice: %v", err)
	}
	if _, err := r.replays.Approve(t.Context(), 99, second); !errors.Is(err, deadletter.ErrNoReplay) {
		t.Errorf("%v", err)
	}
	for what, turn := range map[string]func(context.Context, int64, By) (deadletter.Replay, error){"cancel": r.replays.Cancel, "undo": r.replays.Undo, "resume": r.replays.Resume} {
		if _, err := turn(t.Context(), 99, second); !errors.Is(err, deadletter.ErrNoReplay) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := query[int](t, r, `select count(*) from pollux.audit_log where target = 'replay:99' and outcome = 'refused' and reason = 'looked at: no such replay'`); n != 4 {
		t.Errorf("%d refusals about a replay that does not exist", n)
	}
	if _, deed := r.step(t, replay.ID); deed.Release != 3 {
		t.Errorf("%+v", deed)
	}
	got := query[string](t, r, `select string_agg(concat_ws(' ', actor, action, outcome), ', ' order by seq) from pollux.audit_log where target = 'replay:1' and lower(trim(actor)) = actor`)
	if want := "ada replay.create done, ada replay.approve refused, grace replay.approve done, grace replay.approve refused"; got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
}

func TestADriverGoesOnUntilNothingIsLeftToLearn(t *testing.T) {
	r := newRecord(t)
	o := order(r.dead(t, "p", 30)...)
	o.NoCanary = false
	replay := r.create(t, o)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { // the gateway
		for ctx.Err() == nil {
			r.answer(t, succeeds)
		}
	})
	steps := 0
	d := deadletter.Driver{Steps: Drive{r.replays, operator}, Report: func(deadletter.Progress) { steps++ }, Settle: true}
	p, err := d.Run(t.Context(), replay.ID)
	stop()
	wg.Wait()
	if err != nil || p.State != deadletter.Done || p.Counts.Unanswered() != 0 || steps < 3 {
		t.Errorf("%s, %+v, %d steps, %v", p.State, p.Counts, steps, err)
	}
	requireSound(t, r)
}

var releasedLetters = flag.Int("letters.released", 3000, "how many dead letters TestAReplayIsReleasedInPages releases; the documents' figure is of 10000")

// TestAReplayIsReleasedInPages releases letters as fast as it can: a page at a time, whatever their number. It shows how long that takes.
func TestAReplayIsReleasedInPages(t *testing.T) {
	r := newRecord(t)
	many := *releasedLetters
	r.exec(t, fmt.Sprintf(`
		do $$
		declare
		  payment bigint;
		begin
		  for i in 1..%d loop
		    payment := pollux.track_payment('acme', 'pay_' || i, 1999, 'EUR');
		    update pollux.poll_jobs set state = 'dead', revision = revision + 1 where payment_id = payment;
		    perform pollux.bury(payment, 'window', 'pending', 200::smallint, 'processing', '', 'standard', 'consumer@a#1', '', null);
		  end loop;
		end $$`, many))
	o := order()
	o.Selection.Filter = filter(t, "gateway=acme")
	began := time.Now()
	replay := r.create(t, o)
	t.Logf("frozen in %s", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	steps := 0
	d := deadletter.Driver{Steps: Drive{r.replays, operator}, Report: func(deadletter.Progress) { steps++ }}
	p, err := d.Run(t.Context(), replay.ID)
	took := time.Since(began)
	if err != nil || p.Counts.Queued != int64(many) || steps > many/deadletter.MaxRelease+3 {
		t.Errorf("%d steps, %+v, %v", steps, p.Counts, err)
	}
	t.Logf("released in %s, %.0f a second, with their rows of the audit log", took.Round(time.Millisecond), float64(many)/took.Seconds())
}

var manyLetters = flag.Int("letters.many", 50_000, "how many dead letters TestManyLetters looks at; the README's figures are of 1000000")

// TestManyLetters looks at many dead letters: pages must not read them all, and groups only the index. It shows how long that takes.
func TestManyLetters(t *testing.T) {
	r := newRecord(t)
	many := *manyLetters
	conn, err := r.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), fmt.Sprintf(`
		alter table pollux.dead_letters set (autovacuum_enabled = off);
		set synchronous_commit = on; -- vacuum takes no row for visible whose commit is not written yet
		set session_replication_role = replica;
		insert into pollux.dead_letters (payment_id, gateway, reason, last_class, http_status, message, amount_minor, currency, died_at, created_at, replays)
		select g, 'g' || g %% 5, (array['failures', 'window', 'attempts'])[1 + g %% 3], 'transport', 500 + g %% 4, 'connection refused by host ' || chr(97 + g %% 10) || ' ' || g,
		  g, (array['EUR', 'USD', 'JPY'])[1 + g %% 3], now() - g * interval '0.1 second', now() - g * interval '0.2 second', g %% 2
		from generate_series(1, %d) g;
		reset session_replication_role`, many)); err != nil {
		t.Fatal(err)
	}
	conn.Release()
	operator, plans := explain(t, r.url, false)
	began := time.Now()
	if _, total, err := operator.letters.Groups(t.Context(), deadletter.Filter{}, 50); err != nil || total.Letters != int64(many) {
		t.Fatal(total, err)
	}
	t.Logf("groups before the first vacuum: %s", time.Since(began).Round(time.Millisecond))
	for _, p := range plans.take() {
		p.Plan.walk(func(n node) {
			if n.Relation == "dead_letters" && n.Type != "Seq Scan" && n.rows() > 20 {
				t.Errorf("before the first vacuum %s %s looks up %.0f letters:\n%s", n.Type, n.Index, n.rows(), p.Query)
			}
		})
	}
	r.exec(t, `vacuum (freeze, analyze) pollux.dead_letters`)
	look := func(what string, most float64, fn func() error) {
		t.Helper()
		plans.take()
		began := time.Now()
		if err := fn(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		t.Logf("%s: %s", what, time.Since(began).Round(time.Millisecond))
		for _, p := range plans.take() {
			p.Plan.walk(func(n node) {
				if n.Type == "Seq Scan" && n.Relation == "dead_letters" {
					t.Errorf("%s scans all letters:\n%s", what, p.Query)
				}
				if n.Relation == "dead_letters" && n.Type != "Index Only Scan" && n.rows() > max(most, 20) { // a sample of each group
					t.Errorf("%s: %s %s reads %.0f rows:\n%s", what, n.Type, n.Index, n.rows(), p.Query)
				}
			})
		}
	}
	list := func(s string, before int64) func() error {
		return func() error {
			letters, err := operator.letters.List(t.Context(), filter(t, s), deadletter.Page{Before: before, Limit: 50})
			if err == nil && len(letters) != 50 {
				err = fmt.Errorf("%d letters", len(letters))
			}
			return err
		}
	}
	look("the first page", 100, list("", 0))
	look("a page in the middle", 100, list("", int64(many/2)))
	look("a gateway", 400, list("gateway=g3", int64(many/2)))
	look("a reason", 400, list("reason=window", 0))
	look("several terms", 5000, list("gateway=g3 reason=window amount>=100USD", 0))
	fingerprint := query[string](t, r, `select fingerprint from pollux.dead_letters where id = 1`)
	look("a fingerprint", 5000, list("fingerprint="+fingerprint, 0))
	look("groups", 0, func() error {
		groups, total, err := operator.letters.Groups(t.Context(), deadletter.Filter{}, 50)
		if err == nil && (total.Groups != 20 || groups[0].Letters != int64(many/20)) {
			err = fmt.Errorf("%d groups, the largest of %d", total.Groups, groups[0].Letters)
		}
		return err
	})
	look("groups of a gateway", 0, func() error {
		_, _, err := operator.letters.Groups(t.Context(), filter(t, "gateway=g3"), 50)
		return err
	})
	look("show", 10, func() error { _, err := operator.letters.Show(t.Context(), int64(many/2)); return err })
}
