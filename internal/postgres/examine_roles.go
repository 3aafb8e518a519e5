package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"pollux/internal/doctor"
)

// everybody is what PostgreSQL calls those who have what was granted to all.
const everybody = "public"

// rolesHeldSQL is heldSQL for several roles of the cluster at once, and for everybody. A superuser is none of ours, and holds everything.
var rolesHeldSQL = fmt.Sprintf(`
	with grantees as (
	  select oid, rolname
	  from pg_catalog.pg_roles
	  where rolname = any ($1)
	    and not rolsuper
	  union all
	  select %d, '%s'
	)
	select r.rolname, held.*
	from grantees r
	cross join lateral (%s) as held (privilege, attribute, object)`, everybodyOID, everybody, strings.ReplaceAll(heldSQL, "$1::oid", "r.oid"))

// Roles tells what each role of Pollux that the cluster has lacks and has too much, and what everybody has too much. It reads the catalog, once for all, which every login may. The owner of the
// schema is not looked at, which is granted nothing. A service is left out of it: its own rights it knows (Rights).
func (e *Examiner) Roles(ctx context.Context) ([]doctor.Rights, error) {
	if !slices.Contains([]Role{"", RoleOperator, RoleReadOnly, RoleMigrator}, e.opts.Role) {
		return nil, fmt.Errorf("%w: %s has a role of its own", doctor.ErrNotOurs, e.opts.Role)
	}
	granted := slices.DeleteFunc(slices.Clone(Roles), func(r Role) bool { return r == RoleMigrator })
	rows, err := e.pool.Query(ctx, rolesHeldSQL, granted)
	if err != nil {
		return nil, describe("reading the rights of the roles", err)
	}
	defer rows.Close()
	held := map[Role]rightSet{}
	for rows.Next() {
		var role Role
		var what, column, object string
		if err := rows.Scan(&role, &what, &column, &object); err != nil {
			return nil, describe("reading the rights of the roles", err)
		}
		if held[role] == nil {
			held[role] = rightSet{}
		}
		held[role].add(what, column, object)
	}
	if err := rows.Err(); err != nil {
		return nil, describe("reading the rights of the roles", err)
	}
	public := rightSet{}
	public.addRights(publicRights()...)
	tooMuch := held[everybody].without(public)
	var all []doctor.Rights
	if len(tooMuch) > 0 {
		all = append(all, doctor.Rights{Login: everybody, Role: everybody, Excessive: names(tooMuch)})
	}
	for _, role := range granted {
		if held[role] == nil {
			continue // no such role: whoever has logins of their own needs none
		}
		needed := rightSet{}
		needed.addRights(append(role.rights(), schemaUsage)...)
		missing := needed.without(held[role])
		needed.addRights(publicRights()...)
		needed.addRights(tooMuch...)
		all = append(all, doctor.Rights{Login: string(role), Role: string(role), Missing: names(missing), Excessive: names(held[role].without(needed))})
	}
	return all, nil
}
