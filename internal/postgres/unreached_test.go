package postgres

import (
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pollux/internal/certificate/certificatetest"
	"pollux/internal/outage"
	"pollux/internal/outbox"
	"pollux/internal/pgtest"
)

// TestWhatKeepsAConnectionAwayIsTheHint asks as the relay does, whose log it is in.
func TestWhatKeepsAConnectionAwayIsTheHint(t *testing.T) {
	r := newGranted(t)
	name := r.login(t, RoleRelay).pool.Config().ConnConfig.User
	at := func(change func(*url.URL)) string {
		u, err := url.Parse(withLogin(t, r.url, name))
		if err != nil {
			t.Fatal(err)
		}
		change(u)
		return u.String()
	}
	for what, c := range map[string]struct{ url, hint string }{
		"a wrong password":    {at(func(u *url.URL) { u.User = url.UserPassword(name, "wrong-password") }), "the user or the password of database.url"},
		"an unknown user":     {at(func(u *url.URL) { u.User = url.UserPassword("nobody_of_this_name", "wrong-password") }), "the user or the password of database.url"},
		"another database":    {at(func(u *url.URL) { u.Path = "/no_such_database" }), "there is no database of that name"},
		"no server":           {"postgres://relay:wrong-password@127.0.0.1:1/payments", "does PostgreSQL run there"},
		"a server without it": {at(func(u *url.URL) { u.RawQuery = "sslmode=require" }), "has no TLS there"},
	} {
		requireHint(t, what, c.url, c.hint)
	}
}

// A statement for which the disk has no room says so, whatever the loop that ran it thinks of first.
func TestAFullDiskIsTheHint(t *testing.T) {
	pool := open(t, Options{URL: pgtest.New(t, migrate), MaxConns: 1})
	_, err := pool.Exec(t.Context(), `do $$ begin raise exception 'could not extend file "base/1/2": No space left on device' using errcode = '53100'; end $$`)
	err = describe("recording results", err)
	if got := outage.Hint(err); !strings.Contains(got, "disk of PostgreSQL is full") || !strings.Contains(err.Error(), "base/1/2") || Refused(err) {
		t.Errorf("of %v the hint is %q, refused %t", err, got, Refused(err))
	}
}

func requireHint(t *testing.T, what, url, want string) {
	t.Helper()
	relay := NewRelay(open(t, Options{URL: url, Name: "test"}), time.Hour, time.Hour)
	_, err := relay.Claim(t.Context(), []outbox.Room{{N: 1}}, 1, "test", time.Minute)
	var away *Unreached
	if got := outage.Hint(err); !errors.As(err, &away) || !strings.Contains(got, want) || strings.Contains(err.Error()+got, "wrong-password") {
		t.Errorf("%s: %v: the hint is %q, want %s", what, err, got, want)
	}
	if err := relay.Check(t.Context()); !strings.Contains(outage.Hint(err), want) {
		t.Errorf("%s: readiness says %v, with the hint %q", what, err, outage.Hint(err))
	}
}

func TestTheCertificateOfTheDatabaseIsTheHint(t *testing.T) {
	a, dir := certificatetest.New(t), t.TempDir()
	srv := pgtest.Server(t)
	pgtest.Secure(t, srv, a)
	u, err := url.Parse(srv.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {certificatetest.Write(t, filepath.Join(dir, "ca"), certificatetest.New(t).PEM)}}.Encode()
	requireHint(t, "an authority that is not ours", u.String(), "database.ca_file")
}

// TestWhatKeepsTheSourceOfAnImportAwayIsMendedThere looks for hints that lead to the record's own settings, or to the rights of its roles.
func TestWhatKeepsTheSourceOfAnImportAwayIsMendedThere(t *testing.T) {
	r := newGranted(t)
	name := r.login(t, RoleTracker).pool.Config().ConnConfig.User
	a, dir := certificatetest.New(t), t.TempDir()
	srv := pgtest.Server(t)
	pgtest.Secure(t, srv, a)
	other := url.Values{"sslmode": {"verify-full"}, "sslrootcert": {certificatetest.Write(t, filepath.Join(dir, "ca"), certificatetest.New(t).PEM)}}.Encode()
	at := func(dsn string, change func(*url.URL)) string {
		u, err := url.Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		change(u)
		return u.String()
	}
	own := withLogin(t, r.url, name)
	for what, c := range map[string]struct{ url, hint string }{
		"a wrong password": {at(own, func(u *url.URL) { u.User = url.UserPassword(name, "wrong-password") }), "the user or the password of the URL of --from"},
		"another database": {at(own, func(u *url.URL) { u.Path = "/no_such_database" }), "mend the URL of --from"},
		"no server":        {"postgres://shop:wrong-password@127.0.0.1:1/shop", "the URL of --from says where"},
		"an authority":     {at(srv.DSN("postgres"), func(u *url.URL) { u.RawQuery = other }), "sslrootcert in the URL of --from"},
		"a right":          {own, "select on what the query reads"},
	} {
		s, err := NewQuerySource(t.Context(), c.url, "select reference from pollux.payments")
		if err == nil {
			_, err = s.Header()
			s.Close()
		}
		hint := outage.Hint(err)
		var denied *Denied
		if !strings.Contains(hint, c.hint) || strings.Contains(hint, "database.") || strings.Contains(err.Error()+hint, "wrong-password") || errors.As(err, &denied) {
			t.Errorf("%s: %v: the hint is %q, want %s", what, err, hint, c.hint)
		}
	}
}
