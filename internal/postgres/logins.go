package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"pollux/internal/doctor"
)

// loginsSQL lists who is a member of one of our roles, and what the cluster and the database let them do beside it. Triggers run with the rights of who calls them, and with their
// search_path: an operator of one's own in any schema at all can stand in the place of one that a trigger means. Who may take the migrator's role is left out, who owns everything anyway.
// A membership that is for handing on alone (PostgreSQL 16 gives one to whoever creates a role) gives no right. The payment service makes tables of its own, in schemas of its own.
const loginsSQL = `
	with recursive ours(oid, role) as (
	  select r.oid, r.rolname
	  from pg_catalog.pg_roles r
	  where r.rolname = any ($1)
	  union
	  select m.member, o.role
	  from pg_catalog.pg_auth_members m
	  join ours o on o.oid = m.roleid
	  where coalesce((to_jsonb(m) ->> 'inherit_option')::boolean or (to_jsonb(m) ->> 'set_option')::boolean, true)
	), logins as (
	  select o.oid, min(o.role) filter (where o.role <> $2) as role, coalesce(bool_and(o.role = $3) filter (where o.role <> $2), false) as tracks
	  from ours o
	  group by o.oid
	  having not bool_or(o.role = $2)
	)
	select r.rolname, l.role,
	  exists (select from pg_catalog.pg_roles s where s.rolsuper and pg_has_role(r.oid, s.oid, 'member')),
	  exists (select from pg_catalog.pg_roles s where s.rolcreaterole and pg_has_role(r.oid, s.oid, 'member')),
	  pg_has_role(r.oid, (select n.nspowner from pg_catalog.pg_namespace n where n.nspname = 'pollux'), 'member'),
	  not l.tracks and has_database_privilege(r.oid, current_database(), 'create'),
	  array(
	    select n.nspname::text
	    from pg_catalog.pg_namespace n
	    where not l.tracks
	      and n.nspname !~ '^pg_'
	      and n.nspname <> 'information_schema'
	      and has_schema_privilege(r.oid, n.oid, 'create')
	      and not has_schema_privilege('public', n.oid, 'create')
	    order by 1
	  )
	from logins l
	join pg_catalog.pg_roles r on r.oid = l.oid
	where $4 or r.rolname = current_user
	order by 1`

// Logins tells what those who have our roles may do beyond them, and in which schemas everybody may make things.
func (e *Examiner) Logins(ctx context.Context) (doctor.Logins, error) { return e.logins(ctx, true) }

// Self is Logins of the login alone that asks.
func (e *Examiner) Self(ctx context.Context) (doctor.Logins, error) { return e.logins(ctx, false) }

func (e *Examiner) logins(ctx context.Context, others bool) (l doctor.Logins, err error) {
	names := make([]string, len(Roles))
	for i, r := range Roles {
		names[i] = string(r)
	}
	if l.Open, err = collect(ctx, e.pool, `
		select n.nspname::text
		from pg_catalog.pg_namespace n
		where n.nspname !~ '^pg_'
		  and has_schema_privilege('public', n.oid, 'create')
		order by 1`, pgx.RowTo[string]); err != nil {
		return l, describe("looking at the schemas", err)
	}
	l.Logins, err = collect(ctx, e.pool, loginsSQL, pgx.RowToStructByPos[doctor.Login], names, string(RoleMigrator), string(RoleTracker), others)
	return l, describe("looking at the logins", err)
}
