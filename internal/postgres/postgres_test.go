package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"pollux/internal/message"
)

func TestErrorsKeepRowContentsAndPasswordsToThemselves(t *testing.T) {
	const secret = "sk_live_4242424242424242"
	r := newRecord(t)
	r.exec(t, `insert into pollux.payments (gateway, reference, amount_minor, currency) values ('sim', $1, 1, 'EUR')`, secret)
	r.exec(t, `create table checked (reference text, n int constraint payments_n check (n > 0))`)
	for _, sql := range []string{
		`insert into pollux.payments (gateway, reference, amount_minor, currency) values ('sim', $1, 1, 'EUR')`, // a key that exists
		`insert into checked (reference, n) values ($1, -1)`,                                                    // a row that fails a check
	} {
		_, err := r.pool.Exec(t.Context(), sql, secret)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || !strings.Contains(pg.Detail, secret) {
			t.Fatalf("the server did not say what was in the row: %v", err)
		}
		for _, shown := range []string{describe("writing", err).Error(), fmt.Sprintf("%+v", describe("writing", err)), Why(err)} {
			if strings.Contains(shown, secret) {
				t.Errorf("shown: %s", shown)
			}
		}
		if !strings.Contains(Why(err), pg.Code) || !strings.Contains(Why(err), "constraint payments_") {
			t.Errorf("a person is told %q", Why(err))
		}
	}
}

func TestABadURLIsNotShown(t *testing.T) {
	for _, url := range []string{"postgres://me:hunter2@host:port/db", "host=x password=hunter2 port=y", "hunter2"} {
		if _, err := Open(Options{URL: url}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v", err)
		}
	}
	pool := open(t, Options{URL: "postgres://me:hunter2@127.0.0.1:1/none"})
	if err := NewJobs(pool).Ping(t.Context()); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}

func TestPinnedPlansHoldInEverySession(t *testing.T) {
	r := newRecord(t)
	for name, want := range map[string]string{"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off",
		"plan_cache_mode": "force_generic_plan", "TimeZone": "UTC", "application_name": "test"} {
		if got := query[string](t, r, `select current_setting($1)`, name); got != want {
			t.Errorf("%s is %s, not %s", name, got, want)
		}
	}
}

func TestWhatTheDatabaseRefusesIsToldFromWhatPasses(t *testing.T) {
	const name = "payments_status"
	for code, want := range map[string]struct{ refused, transient, conflict bool }{
		"22021": {refused: true},                     // a NUL in a text
		"22P02": {refused: true},                     // not a number
		"23505": {refused: true},                     // a key that exists
		"23514": {refused: true},                     // a check
		"P0001": {refused: true},                     // raised by a function
		"40001": {transient: true, conflict: true},   // serialization failure
		"40P01": {transient: true, conflict: true},   // deadlock
		"55P03": {transient: true, conflict: true},   // lock timeout
		"57P01": {transient: true, conflict: false},  // shutting down
		"53300": {transient: true, conflict: false},  // too many connections
		"08006": {transient: true, conflict: false},  // connection lost
		"42P01": {transient: false, conflict: false}, // no such table
	} {
		err := fmt.Errorf("writing: %w", &pgconn.PgError{Code: code, ConstraintName: name})
		if Refused(err) != want.refused || Transient(err) != want.transient || conflict(err) != want.conflict {
			t.Errorf("%s: refused %t, transient %t, conflict %t", code, Refused(err), Transient(err), conflict(err))
		}
	}
	// the row waited for the default partition while its own was made; the check of a partition has no name
	if err := error(&pgconn.PgError{Code: "23514"}); Refused(err) || !Transient(err) || !conflict(err) {
		t.Error("a row that another partition takes is refused")
	}
	if err := errors.New("no error of the database"); Refused(err) || Transient(err) || conflict(err) {
		t.Error(err)
	}
}

func TestTextsAreCleaned(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 10, ""},
		{"plain", 10, "plain"},
		{"plain", 3, "pla"},
		{"größer", 3, "gr"},   // the cut would go through ö
		{"größer", 4, "grö"},  // and here it does not
		{"a\x00b", 10, "a b"}, // the database takes no NUL
		{"a\x1b[31mb", 10, "a [31mb"},
		{"a\xffb", 10, "a b"}, // no UTF-8
		{"a\r\nb", 10, "a  b"},
		{"a\u202eb", 10, "a b"}, // would turn the rest of the line around
		{"日本", 6, "日本"},
	} {
		if got := clean(c.in, c.n); got != c.want {
			t.Errorf("clean(%q, %d) is %q, not %q", c.in, c.n, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		n := rapid.IntRange(0, 40).Draw(t, "n")
		got := clean(in, n)
		switch {
		case len(got) > n:
			t.Fatalf("%q has %d bytes, not %d at the most", got, len(got), n)
		case !utf8.ValidString(got):
			t.Fatalf("%q is not UTF-8", got)
		case strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }):
			t.Fatalf("%q is not printable", got)
		case clean(got, n) != got:
			t.Fatalf("%q is cleaned once more", got)
		}
	})
}

func TestTheSchemaTakesTheNamesThatSubjectsTake(t *testing.T) {
	r := newRecord(t)
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(
			rapid.StringMatching(`[a-z0-9_-]{0,66}`),
			rapid.StringMatching(`[a-z]{0,3}[A-Z.*> \n$é]?[a-z]{0,3}`),
			rapid.StringN(0, 4, -1).Filter(func(s string) bool { return !strings.Contains(s, "\x00") }),
		).Draw(t, "name")
		var fault *string
		err := r.pool.QueryRow(t.Context(), `select pollux.payment_fault($1, '', 'r', '', 'standard', 'normal', 1, 'EUR', now(), null, null, null)`, name).Scan(&fault)
		if err != nil {
			t.Fatal(err)
		}
		if message.ValidToken(name) != (fault == nil) {
			t.Fatalf("%q: the schema says %v, subjects take it: %t", name, fault, message.ValidToken(name))
		}
	})
}
