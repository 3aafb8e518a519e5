package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"pollux/internal/payment"
)

func pgCode(err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ""
	}
	return pg.Code
}

func (r *record) payments(tb testing.TB) int {
	tb.Helper()
	return query[int](tb, r, `select count(*) from pollux.payments`)
}

func TestTrackingAPaymentTwiceIsHarmless(t *testing.T) {
	r := newRecord(t)
	const track = `select pollux.track_payment('sim', 'pay_1', 1999, 'EUR', first_poll_after => '1 hour')`
	id := query[int64](t, r, track)
	if again := query[int64](t, r, track); again != id {
		t.Fatalf("it is %d the first time and %d the second", id, again)
	}
	if late := query[bool](t, r, `select next_poll_at between now() + '59 minutes' and now() + '1 hour' from pollux.poll_jobs where payment_id = $1`, id); !late {
		t.Error("the first poll is not due in an hour")
	}
	if other := query[int64](t, r, `select pollux.track_payment('sim', 'pay_1', 1999, 'EUR', account => 'de')`); other == id {
		t.Error("a payment of another account is the same")
	}
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'poll' where id = $1`, id)
	if again := query[int64](t, r, track); again != id {
		t.Error("a final payment is tracked once more")
	}
	requireSound(t, r)
}

func TestAPaymentKeepsItsAmount(t *testing.T) {
	r := newRecord(t)
	query[int64](t, r, `select pollux.track_payment('sim', 'pay_1', 1999, 'EUR')`)
	for _, sql := range []string{
		`select pollux.track_payment('sim', 'pay_1', 2000, 'EUR')`,
		`select pollux.track_payment('sim', 'pay_1', 1999, 'USD')`,
		`select id from pollux.track_payments('[{"gateway":"sim","reference":"new","amount_minor":1,"currency":"EUR"},{"gateway":"sim","reference":"pay_1","amount_minor":2000,"currency":"EUR"}]')`,
		`select id from pollux.track_payments('[{"gateway":"sim","reference":"new","amount_minor":1,"currency":"EUR"},{"gateway":"sim","reference":"new","amount_minor":2,"currency":"EUR"}]')`,
	} {
		_, err := r.pool.Exec(t.Context(), sql)
		if pgCode(err) != "23505" || !strings.Contains(err.Error(), "is already tracked with") {
			t.Errorf("%v: %s", err, sql)
		}
	}
	if n := r.payments(t); n != 1 {
		t.Errorf("%d payments", n)
	}
}

func TestAPaymentThatCannotBeTrackedIsRefusedByName(t *testing.T) {
	r := newRecord(t)
	const good = `"gateway":"sim","reference":"r","amount_minor":1,"currency":"EUR"`
	long := strings.Repeat("x", 300)
	for _, c := range []struct{ argument, value, json string }{
		{"gateway", `'Sim'`, `"Sim"`},
		{"gateway", `''`, `""`},
		{"gateway", `'a.b'`, `"a.b"`},
		{"gateway", `'` + long + `'`, `"` + long + `"`},
		{"gateway", `null`, `null`},
		{"reference", `''`, `""`},
		{"reference", `'a b'`, `"a b"`},
		{"reference", `E'a\tb'`, `"a\tb"`},
		{"reference", `'größe'`, `"größe"`},
		{"reference", `'` + long + `'`, `"` + long + `"`},
		{"reference", `null`, `null`},
		{"amount_minor", `-1`, `-1`},
		{"amount_minor", `null`, `null`},
		{"currency", `'eur'`, `"eur"`},
		{"currency", `'EURO'`, `"EURO"`},
		{"currency", `null`, `null`},
		{"class", `'High'`, `"High"`},
		{"class", `''`, `""`},
		{"account", `'a b'`, `"a b"`},
		{"account", `'` + long + `'`, `"` + long + `"`},
		{"merchant_reference", `E'a\nb'`, `"a\nb"`},
		{"merchant_reference", `'` + long + `'`, `"` + long + `"`},
		{"lane", `'urgent'`, `"urgent"`},
		{"first_poll_after", `'-1 second'`, `"-1 second"`},
		{"first_poll_after", `'2 years'`, `"2 years"`},
		{"expires_at", `'infinity'`, `"infinity"`},
		{"expires_at", `'-infinity'`, `"-infinity"`},
		{"metadata", `jsonb_build_object('x', (select string_agg(md5(g::text), '') from generate_series(1, 1000) g))`, `"` + strings.Repeat("0123456789abcdef", 2000) + `"`},
		{"traceparent", `'00-xyz'`, `"00-xyz"`},
		{"traceparent", `'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0G'`, `"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0G"`},
	} {
		args := map[string]string{"gateway": `'sim'`, "reference": `'r'`, "amount_minor": `1`, "currency": `'EUR'`}
		args[c.argument] = c.value
		var named []string
		for name, value := range args {
			named = append(named, name+" => "+value)
		}
		_, err := r.pool.Exec(t.Context(), `select pollux.track_payment(`+strings.Join(named, ", ")+`)`)
		if pgCode(err) != "22023" || !strings.Contains(err.Error(), "payment not tracked: "+c.argument+": ") {
			t.Errorf("%s => %.60s: %v", c.argument, c.value, err)
		}
		element := fmt.Sprintf(`{%s,"%s":%s}`, good, c.argument, c.json) // jsonb keeps the last of two keys
		_, err = r.pool.Exec(t.Context(), `select id from pollux.track_payments($1::jsonb)`, fmt.Sprintf(`[{%s},%s]`, good, element))
		if pgCode(err) != "22023" || !strings.Contains(err.Error(), "payments not tracked: element 1: "+c.argument+": ") {
			t.Errorf("%.80s: %v", element, err)
		}
	}
	for _, c := range []struct{ json, want string }{
		{`{}`, "the argument is an array of objects"},
		{`null`, "the argument is an array of objects"},
		{`[1]`, "element 0: an object is needed, not number"},
		{`[{` + good + `},[]]`, "element 1: an object is needed, not array"},
		{`[{` + good + `,"accout":"de"}]`, `element 0: the key "accout" is no argument of pollux.track_payment`},
		{`[{` + good + `,"metadata":{"x":"\u0000"}}]`, "unsupported Unicode escape sequence"},
		{`[{"gateway":"sim","reference":"r","amount_minor":19.99,"currency":"EUR"}]`, "element 0: amount_minor: a whole number, in the minor unit"},
		{`[{"gateway":"sim","reference":"r","amount_minor":99999999999999999999,"currency":"EUR"}]`, "element 0: amount_minor: a whole number"},
		{`[{` + good + `},{` + good + `,"amount_minor":"x"},{` + good + `,"amount_minor":1.5}]`, "element 1: amount_minor: a whole number"},
		{`[{` + good + `},{` + good + `,"class":"High"},{` + good + `,"amount_minor":1.5}]`, "element 1: class: "},
		{`[{` + good + `,"first_poll_after":"soon"}]`, "element 0: first_poll_after: an interval"},
		{`[{` + good + `,"first_poll_after":"100000000 years"}]`, "element 0: first_poll_after: an interval"},
		{`[{` + good + `,"expires_at":"2030-13-01"}]`, "element 0: expires_at: an instant"},
	} {
		_, err := r.pool.Exec(t.Context(), `select id from pollux.track_payments($1::jsonb)`, c.json)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.json, err)
		}
	}
	if _, err := r.pool.Exec(t.Context(), `select id from pollux.track_payments(null)`); pgCode(err) != "22023" {
		t.Errorf("null: %v", err)
	}
	if _, err := r.pool.Exec(t.Context(), `select pollux.track_payment('sim', $1, 1, 'EUR')`, "a\x00b"); pgCode(err) != "22021" {
		t.Errorf("a NUL: %v", err)
	}
	if n := r.payments(t); n != 0 {
		t.Errorf("%d payments were written", n)
	}
}

func TestWhatIsWrittenPastTheFunctionsIsCheckedAsWell(t *testing.T) {
	r := newRecord(t)
	id := r.insert(t, "good", payment.Pending)
	for column, value := range map[string]string{
		"gateway": `'a.b'`, "reference": `'a b'`, "amount_minor": `-1`, "currency": `'eur'`, "class": `'High'`, "account": `'a b'`, "merchant_reference": `E'a\nb'`,
		"lane": `'urgent'`, "poll_after": `'infinity'`, "expires_at": `'infinity'`, "created_at": `'-infinity'`, "traceparent": `'00-xyz'`,
		"metadata": `jsonb_build_object('x', (select string_agg(md5(g::text), '') from generate_series(1, 1000) g))`,
		"status":   `'done'`, "status_source": `'me'`, "status_detail": `repeat('x', 256)`,
	} {
		columns := map[string]string{"gateway": `'sim'`, "reference": `'r'`, "amount_minor": `1`, "currency": `'EUR'`, "status": `'failed'`, "status_source": `'poll'`}
		columns[column] = value
		var names, values []string
		for n, v := range columns {
			names, values = append(names, n), append(values, v)
		}
		_, err := r.pool.Exec(t.Context(), `insert into pollux.payments (`+strings.Join(names, ", ")+`) values (`+strings.Join(values, ", ")+`)`)
		if pgCode(err) != "22023" {
			t.Errorf("insert %s %s: %v", column, value, err)
		}
		_, err = r.pool.Exec(t.Context(), `update pollux.payments set status = 'failed', status_source = 'poll', `+column+` = `+value+` where id = $1`, int64(id))
		if !strings.HasPrefix(column, "status") && pgCode(err) != "22023" {
			t.Errorf("update %s %s: %v", column, value, err)
		}
	}
	for _, set := range []string{`status = 'done', status_source = 'poll'`, `status = 'failed', status_source = 'me'`, `status = 'failed'`, `status_detail = repeat('x', 256)`,
		`status = 'failed', status_source = 'poll', status_detail = repeat('x', 256)`} {
		if _, err := r.pool.Exec(t.Context(), `update pollux.payments set `+set); pgCode(err) != "23514" {
			t.Errorf("update %s: %v", set, err)
		}
	}
	if n := r.payments(t); n != 1 {
		t.Errorf("%d payments", n)
	}
}

// Payments that pass at one look must be those that pass argument by argument.
func TestOneLookAtAPaymentSaysWhatTwelveSay(t *testing.T) {
	r := newRecord(t)
	odd := rapid.OneOf(rapid.StringMatching(`[a-zA-Z0-9_.:\- \n~!é-]{0,5}`), rapid.StringOfN(rapid.RuneFrom([]rune("aA0- ")), 60, 70, -1),
		rapid.StringOfN(rapid.RuneFrom([]rune("a1")), 125, 260, -1))
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		args := []any{
			rapid.SampledFrom([]string{"sim", "a_b-1"}).Draw(t, "gateway"), rapid.SampledFrom([]string{"", "acct_1.x:y"}).Draw(t, "account"),
			rapid.SampledFrom([]string{"pay_1", "~!x"}).Draw(t, "reference"), rapid.SampledFrom([]string{"", "ü„"}).Draw(t, "merchant_reference"),
			rapid.SampledFrom([]string{"standard", "c-1"}).Draw(t, "class"), rapid.SampledFrom([]string{"high", "normal", "low"}).Draw(t, "lane"),
			rapid.SampledFrom([]string{"EUR", "JPY"}).Draw(t, "currency"),
			rapid.SampledFrom([]string{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319--b7ad6b7169203331-01"}).Draw(t, "traceparent"),
			rapid.Int64Range(-1, 9).Draw(t, "amount_minor"), rapid.SampledFrom([]string{"0", "1 day", "366 days", "367 days"}).Draw(t, "first_poll_after"),
		}
		if wrong := rapid.IntRange(-4, 7).Draw(t, "wrong"); wrong >= 0 {
			args[wrong] = odd.Draw(t, "value")
		}
		var fault *string
		tx, err := r.pool.Begin(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if err := tx.QueryRow(context.Background(), `select pollux.payment_fault($1, $2, $3, $4, $5, $6, $9, $7, now() + $10::text::interval, null, null, $8)`, args...).Scan(&fault); err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(context.Background(), `insert into pollux.payments (gateway, account, reference, merchant_reference, class, lane, currency, traceparent, amount_minor, poll_after)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, now() + $10::text::interval)`, args...)
		if (err == nil) != (fault == nil) {
			t.Fatalf("argument by argument it says %v, at one look %v", fault, err)
		}
		if err == nil {
			passed++
		}
	})
	if passed == 0 {
		t.Error("no payment passed: the test does not show what it is about")
	}
}

func TestQuotesAreOnlyCharacters(t *testing.T) {
	r := newRecord(t)
	const reference, merchant = `');drop--"\$1'{}`, `Robert'); drop table payments;-- „ü“ ☃`
	id := query[int64](t, r, `select pollux.track_payment('sim', $1, 1, 'EUR', merchant_reference => $2, metadata => jsonb_build_object('q', $2::text))`, reference, merchant)
	element, err := json.Marshal([]map[string]any{{"gateway": "sim", "reference": reference, "amount_minor": 1, "currency": "EUR", "merchant_reference": merchant}})
	if err != nil {
		t.Fatal(err)
	}
	if same := query[int64](t, r, `select id from pollux.track_payments($1::jsonb)`, string(element)); same != id {
		t.Error("the same payment has another id")
	}
	r.exec(t, `update pollux.payments set status = 'failed', status_source = 'poll'`)
	events := r.eventsOf(t, 1)
	if len(events) != 1 || events[0].Body["reference"] != reference || events[0].Body["merchant_reference"] != merchant {
		t.Errorf("%v", events)
	}
}

// A payment service may call the way in, and nothing else: also not what the way in does, by a trigger of its own.
func TestAPaymentServiceTracksWithTheWayInAlone(t *testing.T) {
	r := newRecord(t)
	conn := r.stranger(t, "execute on function pollux.track_payment, pollux.track_payments")
	var first, again int64
	const one = `select pollux.track_payment('sim', 'p1', 1999, 'EUR', metadata => '{"a": 1}')`
	if err := errors.Join(conn.QueryRow(t.Context(), one).Scan(&first), conn.QueryRow(t.Context(), one).Scan(&again)); err != nil || first != again {
		t.Fatalf("%v: %d, %d", err, first, again)
	}
	const many = `select count(*) from pollux.track_payments('[{"gateway": "sim", "reference": "p1", "amount_minor": 1999, "currency": "EUR"}, {"gateway": "sim", "reference": "p2", "amount_minor": 1, "currency": "EUR"}]')`
	if err := conn.QueryRow(t.Context(), many).Scan(&again); err != nil || again != 2 {
		t.Errorf("%v: %d", err, again)
	}
	for element, why := range map[string]string{
		`{"gateway": "SIM"}`: "element 0: gateway", `{"gatewai": "sim"}`: `the key "gatewai"`, `{"gateway": "sim", "amount_minor": "x"}`: "element 0: amount_minor",
	} {
		if _, err := conn.Exec(t.Context(), `select from pollux.track_payments($1::jsonb)`, "["+element+"]"); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", element, err)
		}
	}
	if _, err := conn.Exec(t.Context(), `
		create temporary table mine (id bigint);
		create function pg_temp.begin() returns trigger language plpgsql as $$
		begin insert into pollux.poll_jobs (payment_id, gateway, lane) values (new.id, 'sim', 'normal'); return null; end $$;
		create trigger begins after insert on mine for each row execute function pg_temp.begin()`); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`insert into mine values (99)`, `select id from pollux.payments`, `insert into pollux.payments (gateway, reference, amount_minor, currency) values ('sim', 'p3', 1, 'EUR')`,
		`update pollux.payments set status = 'succeeded', status_source = 'operator'`, `delete from pollux.poll_jobs`, `select pollux.maintain('1 day', '1 day')`, `select from pollux.audit_log`,
	} {
		if _, err := conn.Exec(t.Context(), sql); !denied(err) {
			t.Errorf("%v: %s", err, sql)
		}
	}
	requireSound(t, r)
}

func TestTrackingIsPartOfTheCallersTransaction(t *testing.T) {
	r := newRecord(t)
	ctx := t.Context()
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `select pollux.track_payment('sim', 'r', 1, 'EUR')`); err != nil {
		t.Fatal(err)
	}
	if jobs := r.claim(t, 10, 0); len(jobs) != 0 {
		t.Error("it is claimed before its commit")
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if n := r.payments(t); n != 0 {
		t.Errorf("%d payments are left after a rollback", n)
	}
}

func TestManyCallersOfOnePaymentGetOneId(t *testing.T) {
	r := newRecord(t)
	for round := range 20 {
		reference := fmt.Sprintf("r%d", round)
		ids := make([]int64, 8)
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				sql := `select pollux.track_payment('sim', $1, 1, 'EUR')`
				if i%2 == 1 {
					sql = `select id from pollux.track_payments(jsonb_build_array(jsonb_build_object('gateway', 'sim', 'reference', $1::text, 'amount_minor', 1, 'currency', 'EUR')))`
				}
				if err := r.pool.QueryRow(t.Context(), sql, reference).Scan(&ids[i]); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Fatalf("ids %v", ids)
			}
		}
	}
	if n := r.payments(t); n != 20 {
		t.Errorf("%d payments", n)
	}
	requireSound(t, r)
}

// A second caller waits for the first one's commit, and then either finds its payment or, when it rolled back, writes its own.
func TestTheSecondCallerWaitsForTheFirst(t *testing.T) {
	r := newRecord(t)
	ctx := t.Context()
	for _, commit := range []bool{true, false} {
		first, err := r.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		reference := fmt.Sprintf("r%t", commit)
		var id, second int64
		if err := first.QueryRow(ctx, `select pollux.track_payment('sim', $1, 1, 'EUR')`, reference).Scan(&id); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.pool.QueryRow(ctx, `select pollux.track_payment('sim', $1, 1, 'EUR')`, reference).Scan(&second); err != nil {
				t.Error(err)
			}
		})
		eventually(t, "the second caller waits", func() bool {
			return query[bool](t, r, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
		})
		if commit {
			err = first.Commit(ctx)
		} else {
			err = first.Rollback(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if second == 0 || (second == id) != commit {
			t.Errorf("commit %t: the first got %d, the second %d", commit, id, second)
		}
	}
	requireSound(t, r)
}

func TestACallerInRepeatableReadIsToldToBeginAnew(t *testing.T) {
	r := newRecord(t)
	ctx := t.Context()
	tx, err := r.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, `select count(*) from pollux.payments`); err != nil {
		t.Fatal(err)
	}
	query[int64](t, r, `select pollux.track_payment('sim', 'r', 1, 'EUR')`)
	if _, err := tx.Exec(ctx, `select pollux.track_payment('sim', 'r', 1, 'EUR')`); pgCode(err) != "40001" {
		t.Fatalf("%v", err)
	}
}

func TestBatchesOfTheSamePaymentsDoNotDeadlock(t *testing.T) {
	r := newRecord(t)
	batch := func(round int, reversed bool) string {
		elements := make([]string, 50)
		for i := range elements {
			at := i
			if reversed {
				at = len(elements) - 1 - i
			}
			elements[at] = fmt.Sprintf(`{"gateway":"sim","reference":"r%d-%d","amount_minor":1,"currency":"EUR"}`, round, i)
		}
		return "[" + strings.Join(elements, ",") + "]"
	}
	for round := range 30 {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				if _, err := r.pool.Exec(t.Context(), `select count(*) from pollux.track_payments($1::jsonb)`, batch(round, i%2 == 0)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	if n := r.payments(t); n != 30*50 {
		t.Errorf("%d payments", n)
	}
}

func TestABatchIsAnsweredInItsOrder(t *testing.T) {
	r := newRecord(t)
	known := query[int64](t, r, `select pollux.track_payment('sim', 'm', 1, 'EUR')`)
	rows, err := r.pool.Query(t.Context(), `select id, reference, tracked from pollux.track_payments('[
		{"gateway":"sim","reference":"z","amount_minor":1,"currency":"EUR"},
		{"gateway":"sim","reference":"m","amount_minor":1,"currency":"EUR","lane":null,"account":null},
		{"gateway":"sim","reference":"a","amount_minor":1,"currency":"EUR","lane":"high","class":"c","account":"x","merchant_reference":"m","first_poll_after":"5 minutes",
		 "expires_at":"2099-01-01T00:00:00Z","metadata":{"k":1},"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		{"gateway":"sim","reference":"z","amount_minor":1,"currency":"EUR"}]')`)
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		ID        int64
		Reference string
		Tracked   bool
	}
	answers, err := pgx.CollectRows(rows, pgx.RowToStructByPos[answer])
	if err != nil || len(answers) != 4 {
		t.Fatalf("%v, %v", answers, err)
	}
	for i, want := range []answer{{answers[0].ID, "z", true}, {known, "m", false}, {answers[2].ID, "a", true}, {answers[0].ID, "z", true}} {
		if answers[i] != want {
			t.Errorf("element %d: %+v, not %+v", i, answers[i], want)
		}
	}
	kept := query[string](t, r, `
		select concat_ws(' ', lane, class, account, merchant_reference, poll_after - created_at, expires_at at time zone 'UTC', metadata, traceparent)
		from pollux.payments where id = $1`, answers[2].ID)
	if want := `high c x m 00:05:00 2099-01-01 00:00:00 {"k": 1} 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01`; kept != want {
		t.Errorf("kept %s", kept)
	}
	if n := query[int](t, r, `select count(*) from pollux.track_payments('[]')`); n != 0 {
		t.Errorf("an empty batch has %d answers", n)
	}
	requireSound(t, r)
}

func TestAVeryLargeBatchIsTracked(t *testing.T) {
	r := newRecord(t)
	const batch = `select count(*) filter (where tracked) from pollux.track_payments((
		select jsonb_agg(jsonb_build_object('gateway', 'sim', 'reference', 'r' || g, 'amount_minor', g, 'currency', 'EUR')) from generate_series(1, 30000) g))`
	for _, want := range []int{30000, 0} {
		if n := query[int](t, r, batch); n != want {
			t.Fatalf("%d are new, not %d", n, want)
		}
	}
	if n := query[int](t, r, `select count(*) from pollux.poll_jobs`); n != 30000 {
		t.Fatalf("%d jobs", n)
	}
}
