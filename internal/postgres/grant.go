package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Granted is what Grant did.
type Granted struct {
	Made    []Role    // roles that it created
	Changed []Role    // roles whose rights were changed
	Public  Holding   // what everybody (PUBLIC) had that nobody needs, and lacked, and has not and has now
	Left    []Holding // who has not exactly its rights all the same: it has others by another role, or somebody else than the owner granted them
	Missing []Role    // roles that do not exist, and that this login may not create
	Owner   string    // whom the schema belongs to, who alone can grant; empty when it was granted
}

// Grant makes the group roles that do not exist, where the login may, and gives each, and PUBLIC, exactly the rights of this build, in one transaction. It changes nothing where all is as it must
// be, and where the schema is newer than this build, whose rights a newer one has granted. Roles belong to the whole cluster, so none is ever dropped. What an administrator has to do
// for it is no error: until then one login does everything.
func Grant(ctx context.Context, url string) (Granted, error) {
	var g Granted
	cfg, err := migrator(url)
	if err != nil {
		return g, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return g, describe("granting rights", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := g.makeRoles(ctx, conn); err != nil {
		return g, describe("making roles", err)
	}
	return g, describe("granting rights", g.grant(ctx, conn))
}

// makeRoles makes the roles that are missing. Somebody else may make them at the same time, for another database.
func (g *Granted) makeRoles(ctx context.Context, conn *pgx.Conn) error {
	var may bool
	if err := conn.QueryRow(ctx, `select rolsuper or rolcreaterole from pg_catalog.pg_roles where rolname = current_user`).Scan(&may); err != nil {
		return err
	}
	var missing []Role
	for _, r := range Roles {
		exists, err := roleExists(ctx, conn, r)
		if err != nil {
			return err
		}
		if !exists {
			missing = append(missing, r)
		}
	}
	switch {
	case missing == nil:
		return nil
	case !may:
		g.Missing = missing
		return nil
	}
	g.Made = missing
	b := backoff.WithContext(backoff.WithMaxRetries(backoff.NewConstantBackOff(50*time.Millisecond), 10), ctx)
	return backoff.Retry(func() error {
		_, err := conn.Exec(ctx, RolesSQL())
		if err != nil && !alreadyThere(err) {
			return backoff.Permanent(err)
		}
		return err
	}, b)
}

func roleExists(ctx context.Context, db queryer, r Role) (exists bool, err error) {
	err = db.QueryRow(ctx, `select exists (select from pg_catalog.pg_roles where rolname = $1)`, string(r)).Scan(&exists)
	return exists, err
}

// alreadyThere reports whether somebody else made a role, or a member of one, meanwhile: then what is left is made again.
func alreadyThere(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "42710" || pg.Code == "23505" || pg.Code == "XX000")
}

// grant grants what is not granted yet. Those who do so at once take turns.
func (g *Granted) grant(ctx context.Context, conn *pgx.Conn) error {
	err := conn.QueryRow(ctx, `
		select case when pg_has_role(current_user, n.nspowner, 'usage') then '' else n.nspowner::regrole::text end
		from pg_catalog.pg_namespace n
		where n.nspname = 'pollux'`).Scan(&g.Owner)
	if err != nil || g.Owner != "" {
		return err
	}
	var version int64
	if err := conn.QueryRow(ctx, `select coalesce(max(version_id), 0) from pollux.schema_version where is_applied`).Scan(&version); err != nil || version > newest() {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `lock table pollux.schema_version in share row exclusive mode`); err != nil {
			return err
		}
		return g.grantAll(ctx, tx)
	})
}

// grantAll begins with PUBLIC: what everybody may do each role may.
func (g *Granted) grantAll(ctx context.Context, tx pgx.Tx) error {
	before, after, err := makeExact(ctx, tx, PublicSQL(), func() (Holding, error) { return publicHolding(ctx, tx) })
	if err != nil {
		return err
	}
	g.Public = Holding{Excess: gone(before.Excess, after.Excess), Missing: gone(before.Missing, after.Missing)}
	g.left(after)
	for _, r := range Roles {
		if exists, err := roleExists(ctx, tx, r); err != nil || !exists || r == RoleMigrator {
			if err != nil {
				return err
			}
			continue
		}
		before, after, err := makeExact(ctx, tx, r.GrantSQL(), func() (Holding, error) { return holding(ctx, tx, string(r), r) })
		if err != nil {
			return err
		}
		if len(gone(before.Missing, after.Missing))+len(gone(before.Excess, after.Excess)) > 0 {
			g.Changed = append(g.Changed, r)
		}
		g.left(after)
	}
	return nil
}

func (g *Granted) left(h Holding) {
	if !h.Exact() {
		g.Left = append(g.Left, h)
	}
}

// makeExact runs the statements where what is held is not exact, and looks again.
func makeExact(ctx context.Context, tx pgx.Tx, statements []string, look func() (Holding, error)) (before, after Holding, err error) {
	if before, err = look(); err != nil || before.Exact() {
		return before, before, err
	}
	for _, sql := range statements {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return before, before, err
		}
	}
	after, err = look()
	return before, after, err
}

// gone are those that are no more.
func gone(before, after []string) (all []string) {
	for _, one := range before {
		if !slices.Contains(after, one) {
			all = append(all, one)
		}
	}
	return all
}
