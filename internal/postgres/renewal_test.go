//go:build unix

package postgres

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/certificate/certificatetest"
	"pollux/internal/pgtest"
)

// ask asks on a new connection.
func ask(t *testing.T, pool *pgxpool.Pool, sql string) (string, error) {
	t.Helper()
	pool.Reset()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var s string
	err := pool.QueryRow(ctx, sql).Scan(&s)
	return s, err
}

func TestNewConnectionsHaveTheCertificatesOfTheFiles(t *testing.T) {
	a, dir := certificatetest.New(t), t.TempDir()
	srv := pgtest.Server(t)
	pgtest.Secure(t, srv, a)
	u, err := url.Parse(srv.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for parameter, name := range map[string]string{"sslcert": "cert", "sslkey": "key", "sslrootcert": "ca"} {
		q.Set(parameter, filepath.Join(dir, name))
	}
	q.Set("sslmode", "verify-full")
	u.RawQuery = q.Encode()
	write := func(name string) {
		cert, key := a.Issue(name, time.Hour)
		certificatetest.Write(t, filepath.Join(dir, "cert"), cert)
		certificatetest.Write(t, filepath.Join(dir, "key"), key)
	}
	certificatetest.Write(t, filepath.Join(dir, "ca"), a.PEM)
	write("first")
	pool := open(t, Options{URL: u.String(), MaxConns: 1, Name: "test", Fresh: func() (string, error) { return u.String(), nil }})
	const shown = `select client_dn from pg_stat_ssl where pid = pg_backend_pid() and ssl`
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() {}, "/CN=first"},
		{func() { write("second") }, "/CN=second"},
		{func() { certificatetest.Write(t, filepath.Join(dir, "key"), []byte("broken")) }, "/CN=second"},
		{func() { write("third") }, "/CN=third"},
	} {
		c.change()
		if got, err := ask(t, pool, shown); err != nil || got != c.want {
			t.Errorf("the server sees %s, want %s: %v", got, c.want, err)
		}
	}
	certificatetest.Write(t, filepath.Join(dir, "ca"), certificatetest.New(t).PEM)
	if _, err := ask(t, pool, shown); err == nil || !strings.Contains(err.Error(), "certificate signed by unknown authority") {
		t.Errorf("a server of another authority is believed: %v", err)
	}
}

func TestNewConnectionsHaveTheNewPassword(t *testing.T) {
	srv := pgtest.New(t, nil)
	admin := open(t, Options{URL: srv, MaxConns: 1, Name: "admin"})
	const role = "renewal_test"
	alter := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	alter(`create role ` + role + ` login password 'first'`)
	defer func() { _, _ = admin.Exec(context.Background(), `drop role `+role) }() // its database goes with the test
	u, err := url.Parse(srv)
	if err != nil {
		t.Fatal(err)
	}
	as := func(password string) string {
		u.User = url.UserPassword(role, password)
		return u.String()
	}
	var now atomic.Pointer[string]
	say := func(s string) { now.Store(&s) }
	say(as("first"))
	broken := errors.New("the file is being written")
	pool := open(t, Options{URL: as("first"), MaxConns: 1, Name: "test", Fresh: func() (string, error) {
		if s := *now.Load(); s != "" {
			return s, nil
		}
		return "", broken
	}})
	try := func(what string, works bool) {
		t.Helper()
		if _, err := ask(t, pool, `select 'x'`); (err == nil) != works {
			t.Errorf("%s: %v", what, err)
		}
	}
	try("the first password", true)
	alter(`alter role ` + role + ` password 'second'`)
	try("the old password", false)
	say(as("second"))
	try("the new password", true)
	say("")
	try("while the file cannot be read", true)
	say("postgres://nobody@elsewhere.example/other")
	try("while it leads elsewhere", true)
}
