package postgres

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pollux/internal/adoption"
	"pollux/internal/audit"
)

// adopt imports lines at a rate of ten a second.
func (r *record) adopt(tb testing.TB, source adoption.Source, dry bool) (adoption.Report, error) {
	tb.Helper()
	stage, err := NewStage(tb.Context(), r.pool)
	if err != nil {
		tb.Fatal(err)
	}
	defer stage.Close()
	return adoption.Run(tb.Context(), stage, source, adoption.Options{Format: adoption.Format{Amounts: adoption.MinorUnits}, Rate: 10, DryRun: dry,
		By: acted("payments.import", "the old system ends", audit.Change{Target: "import:test"})}, nil)
}

func csvOf(lines ...string) adoption.Source {
	return adoption.NewCSV(strings.NewReader("gateway,account,reference,amount,currency,class\n"+strings.Join(lines, "\n")), ',')
}

func TestPaymentsAreAdoptedOnceAndSpreadOverTime(t *testing.T) {
	r := newRecord(t)
	lines := []string{"sim,,p1,100,EUR,", "sim,de,p1,200,EUR,high", "sim,,p2,300,JPY,", "sim,,p1,100,EUR,", "sim,,p3,400,EUR,"}
	report, err := r.adopt(t, csvOf(lines...), true)
	if err != nil || report.New != 4 || report.Twice != 1 || query[int](t, r, `select count(*) from pollux.payments`) != 0 {
		t.Fatalf("a dry run: %v, %+v", err, report)
	}
	if diff := cmp.Diff([]adoption.Money{{Currency: "EUR", Count: 3, AmountMinor: 700}, {Currency: "JPY", Count: 1, AmountMinor: 300}}, report.Money); diff != "" {
		t.Error(diff)
	}
	report, err = r.adopt(t, csvOf(lines...), false)
	if err != nil || report.Tracked != 4 || report.Span != 0.2 {
		t.Fatalf("%v, %+v", err, report)
	}
	got := query[string](t, r, `select string_agg(concat_ws(' ', account, reference, amount_minor, currency, class, lane, extract(epoch from poll_after - created_at)::float8), ', ' order by reference, account) from pollux.payments`)
	if want := " p1 100 EUR standard normal 0, de p1 200 EUR high normal 0, p2 300 JPY standard normal 0.1, p3 400 EUR standard normal 0.2"; got != strings.ReplaceAll(want, ", p", ",  p") {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	log := r.auditLog(t)
	if len(log) != 1 || log[0].Target != "import:test" || *log[0].After != `{"new": 4, "known": 0, "last_line": 6, "first_line": 2}` {
		t.Errorf("%+v", log)
	}
	// Run again, with more: what is known stays, what follows is planned behind it.
	r.exec(t, `update pollux.payments set poll_after = now() + interval '1 hour' where reference = 'p3'`)
	report, err = r.adopt(t, csvOf(append(lines, "sim,,p4,500,EUR,", "sim,de,p4,500,EUR,", "sim,,p2,301,JPY,")...), false)
	if !errors.Is(err, adoption.ErrWrong) || report.Wrong != 1 || report.Problems[0].String() != "line 9, reference: the same payment as in line 4, with another amount" {
		t.Fatalf("%v, %+v", err, report)
	}
	report, err = r.adopt(t, csvOf("sim,,p3,400,EUR,", "sim,,p4,500,EUR,", "sim,de,p4,500,EUR,", "sim,,p2,301,JPY,"), false)
	if err != nil || report.Tracked != 2 || report.Known != 1 || report.Refusals != 1 || report.Refused[0].String() != "line 5: it is tracked already, with 300 JPY in minor units" {
		t.Fatalf("%v, %+v", err, report)
	}
	if report.Span < 3500 || report.Span > 3601 { // an hour since it was planned, and a turn
		t.Errorf("the last is polled after %g seconds", report.Span)
	}
	if report, err = r.adopt(t, csvOf(lines...), false); err != nil || report.Tracked != 0 || report.Known != 4 {
		t.Errorf("%v, %+v", err, report)
	}
	if n := len(r.auditLog(t)); n != 2 {
		t.Errorf("%d acts; what did nothing is not one", n)
	}
	if err := r.verifyAudit(t, nil); err != nil {
		t.Error(err)
	}
	requireSound(t, r)
}

func TestWhatTheDatabaseWouldRefuseIsNamedByLine(t *testing.T) {
	r := newRecord(t)
	report, err := r.adopt(t, csvOf("SIM,,p1,100,EUR,", "sim,,p2,-1,EUR,", "sim,a b,p3,1,EUR,", "sim,,p 4,1,EUR,", "sim,,p5,1,eur,", "sim,,p6,1,EUR,X", "sim,,p7,1,EUR,"), false)
	if !errors.Is(err, adoption.ErrWrong) || query[int](t, r, `select count(*) from pollux.payments`) != 0 || len(r.auditLog(t)) != 0 {
		t.Errorf("%v", err)
	}
	var columns []string
	for _, p := range report.Problems {
		columns = append(columns, fmt.Sprintf("%d %s", p.Line, p.Column))
	}
	if diff := cmp.Diff([]string{"2 gateway", "3 amount_minor", "4 account", "5 reference", "6 currency", "7 class"}, columns); diff != "" {
		t.Error(diff)
	}
}

// What a check says is what the schema says: the size of metadata is that of its text, not of a row that is compressed.
func TestMetadataIsMeasuredTheSameBeforeAndWhenItIsTracked(t *testing.T) {
	r := newRecord(t)
	sized := func(n int) string { return fmt.Sprintf(`{"a": "%s"}`, strings.Repeat("x", n-len(`{"a": ""}`))) }
	file := func(last string) adoption.Source {
		var b strings.Builder
		b.WriteString("gateway,reference,amount,currency,metadata\n")
		for i := range adoption.Page + 10 {
			fmt.Fprintf(&b, "sim,p%d,100,EUR,\n", i)
		}
		fmt.Fprintf(&b, "sim,last,100,EUR,\"%s\"\n", strings.ReplaceAll(last, `"`, `""`))
		return adoption.NewCSV(strings.NewReader(b.String()), ',')
	}
	for _, size := range []int{16385, 100_000} {
		for _, dry := range []bool{true, false} {
			report, err := r.adopt(t, file(sized(size)), dry)
			if !errors.Is(err, adoption.ErrWrong) || report.Wrong != 1 || report.Problems[0].String() != "line 1012, metadata: at most 16 KiB as text" {
				t.Errorf("%d bytes, dry %t: %v, %+v", size, dry, err, report.Problems)
			}
		}
		if _, err := r.pool.Exec(t.Context(), `select pollux.track_payment('sim', 'x', 1, 'EUR', metadata => $1::jsonb)`, sized(size)); err == nil || !strings.Contains(err.Error(), "metadata: at most 16 KiB") {
			t.Errorf("%d bytes are tracked: %v", size, err)
		}
	}
	if n := query[int](t, r, `select count(*) from pollux.payments`); n != 0 {
		t.Errorf("%d payments are tracked of files that are wrong", n)
	}
	if report, err := r.adopt(t, file(sized(16384)), false); err != nil || report.Tracked != adoption.Page+11 {
		t.Errorf("%v, %+v", err, report)
	}
}

func TestAQueryIsASourceThatChangesNothing(t *testing.T) {
	r := newRecord(t)
	r.exec(t, `create table orders (id bigint, psp text, total numeric, cur char(3), due timestamptz, note text)`)
	r.exec(t, `insert into orders select g, 'p' || g, g * 100, 'EUR', now() + interval '1 day', null from generate_series(1, 2500) g`)
	source := func(sql string) (*QuerySource, error) { return NewQuerySource(t.Context(), r.url, sql) }
	s, err := source(`select 'sim' as gateway, '' as account, psp as reference, total as amount, cur as currency, due as expires_at, note as class from orders order by id`)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	report, err := r.adopt(t, s, false)
	if err != nil || report.Tracked != 2500 || report.Lines != 2500 {
		t.Fatalf("%v, %+v", err, report)
	}
	if n := query[int](t, r, `select count(*) from pollux.payments where expires_at is not null and class = 'standard' and amount_minor = substr(reference, 2)::bigint * 100`); n != 2500 {
		t.Errorf("%d payments are as the query said", n)
	}
	if n := len(r.auditLog(t)); n != 3 {
		t.Errorf("%d pages", n)
	}
	for _, sql := range []string{`delete from orders`, `select 1; delete from orders`, `commit; delete from orders`, `nonsense`, `select 1/0 as gateway from orders`, ``} {
		s, err := source(sql)
		if err == nil {
			if _, err = s.Header(); err == nil {
				_, _, err = s.Next()
			}
			s.Close()
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%q: %v", sql, err)
		}
	}
	if n := query[int](t, r, `select count(*) from orders`); n != 2500 {
		t.Error("a source was changed")
	}
	requireSound(t, r)
}

// BenchmarkAdopt imports a hundred thousand payments.
func BenchmarkAdopt(b *testing.B) {
	r := newRecord(b)
	lines := make([]string, 100_000)
	for b.Loop() {
		for i := range lines {
			lines[i] = fmt.Sprintf("sim,,p%d-%d,1999,EUR,", b.N, i)
		}
		r.exec(b, `truncate pollux.payments, pollux.poll_jobs, pollux.dead_letters`)
		if report, err := r.adopt(b, csvOf(lines...), false); err != nil || report.Tracked != int64(len(lines)) {
			b.Fatalf("%v, %+v", err, report)
		}
	}
	b.ReportMetric(float64(b.N*len(lines))/b.Elapsed().Seconds(), "payments/s")
}
