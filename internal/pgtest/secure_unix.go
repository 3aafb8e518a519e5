//go:build unix

package pgtest

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pollux/internal/certificate/certificatetest"
	"pollux/internal/localpg"
)

// Secure has a server of Server speak TLS with a certificate of an authority, and ask clients for theirs.
func Secure(t testing.TB, server *localpg.Server, a *certificatetest.Authority) {
	t.Helper()
	st, err := os.Stat(server.Dir())
	if err != nil {
		t.Fatal(err)
	}
	owner := st.Sys().(*syscall.Stat_t)
	cert, key := a.Issue("server", time.Hour)
	settings := map[string]string{"ssl": "on"}
	for name, content := range map[string][]byte{"ssl_cert_file": cert, "ssl_key_file": key, "ssl_ca_file": a.PEM} {
		settings[name] = certificatetest.Write(t, filepath.Join(server.Dir(), name), content)
		if err := os.Chown(settings[name], int(owner.Uid), int(owner.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := within(timeout, "having the server speak TLS")
	defer cancel()
	err = withConn(ctx, server.DSN("postgres"), func(c *pgx.Conn) error { return alterSystem(ctx, c, settings) })
	if err == nil {
		err = server.Restart(ctx)
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

func alterSystem(ctx context.Context, c *pgx.Conn, settings map[string]string) error {
	for name, value := range settings {
		if _, err := c.Exec(ctx, "alter system set "+quote(name)+" = '"+value+"'"); err != nil {
			return err
		}
	}
	return nil
}
