package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Role is a group role of PostgreSQL: what one of the programs, or one kind of person, needs of the schema pollux and nothing else. Logins are made members of it.
type Role string

// The roles. The migrator is who owns the schema; it is granted nothing.
const (
	RoleMigrator Role = "pollux_migrator"
	RoleRelay    Role = "pollux_relay"
	RoleConsumer Role = "pollux_consumer"
	RoleWebhook  Role = "pollux_webhook"
	RoleOperator Role = "pollux_operator"
	RoleReadOnly Role = "pollux_readonly"
	RoleTracker  Role = "pollux_tracker"
)

// Roles are all roles, the owner first.
var Roles = []Role{RoleMigrator, RoleRelay, RoleConsumer, RoleWebhook, RoleOperator, RoleReadOnly, RoleTracker}

// Does says who a role is for, in a few words.
func (r Role) Does() string {
	return map[Role]string{
		RoleMigrator: "pollux migrate up: owns the schema",
		RoleRelay:    "outbox-relay",
		RoleConsumer: "consumer",
		RoleWebhook:  "webhook",
		RoleOperator: "people who act with pollux, each with a login of their own",
		RoleReadOnly: "people and dashboards that look",
		RoleTracker:  "the payment service, which calls pollux.track_payment",
	}[r]
}

// The columns that several statements and triggers write.
const (
	eventColumns = `(event_id, payment_id, subject, body, traceparent) on outbox` // of a transition, a dead letter, a notice
	buryColumns  = `payment_id, gateway, account, class, amount_minor, currency, reason, last_class, http_status, gateway_status, message, attempts, failures, deferrals, replays, ` +
		`policy, worker, trace_id, body, policy_hash, build, last_attempts, classes, first_class, first_message, first_at` // pollux.bury
	reburyColumns = `state, reason, last_class, http_status, gateway_status, message, attempts, failures, deferrals, replays, policy, worker, trace_id, body, policy_hash, build, ` +
		`last_attempts, classes, died_at, first_class, first_message, first_at`
	statusColumns = `(status, status_detail, status_source) on payments`
	leaveColumns  = `(state, detail, came_back, ended_at) on replay_items` // a letter that leaves its replay
	noteColumns   = `(letter_id, actor, text) on dead_letter_notes`
	noticeColumns = `(gateway, account, event_id, kind, refs, effect, status, detail, amount_minor, currency, part, occurred_at, mode, key, digest, body, decision, why, payment_id, look_at) on webhook_events`
	shownTables   = `payments, poll_jobs, poll_attempts, outbox, dead_letters, dead_letter_notes, replays, replay_items, streams, webhook_events, webhook_waiting, breaker_transitions, audit_log, schema_version`
)

// taking are the rights of whoever takes notifications: the receiver, and the consumers, which fetch what was not delivered.
var taking = []string{
	`select on payments, poll_jobs, poll_attempts, dead_letters, replay_items, webhook_events, webhook_waiting, schema_version`,
	`select (payment_id) on outbox`, // which the trigger of a transition returns
	`update ` + statusColumns,
	`delete on poll_jobs`,
	`insert ` + eventColumns,
	`usage on outbox_seq`,
	`insert (` + buryColumns + `, review, deliveries, said) on dead_letters`,
	`update (` + reburyColumns + `, deliveries, said, closed_at, closed_by) on dead_letters`,
	`insert ` + noteColumns,
	`update ` + leaveColumns,
	`insert ` + noticeColumns,
	`update (decision, why, payment_id, decided_at, look_at) on webhook_events`,
	`insert, delete on webhook_waiting`,
	`execute on bury, review, contradict, end_jobs, fingerprint, audit_reload`,
}

// rights are what each role needs, as grant has it. A right that the build before needs stays here until the release after: it goes on while the new one is rolled out.
//
// They are written as grant has them: tables with their columns where not all are meant, functions and sequences by their names. Triggers and functions run with the
// rights of who calls them, so that what they write is here too; those that do not are the way in (pollux.track_payment and pollux.track_payments), pollux.audit,
// pollux.audit_reload and pollux.maintain.
var rights = map[Role][]string{
	RoleRelay: {
		`select on payments, poll_jobs, poll_attempts, outbox, dead_letters, replay_items, streams, schema_version`,
		`select on audit_log`, // whose chain it verifies while it looks at the record
		`update (state, locked_until, locked_by, lock_token, revision, last_message, updated_at) on poll_jobs`,
		`update (published_at, stream, stream_seq, set_aside, tries, publish_at) on outbox`,
		`insert (name, created, last_sequence) on streams`,
		`update (created, last_sequence, last_id, seen_at, lost_at) on streams`,
		`insert (` + buryColumns + `) on dead_letters`, // a poll that can never be published
		`update (` + reburyColumns + `) on dead_letters`,
		`update ` + leaveColumns,
		`insert ` + eventColumns,
		`usage on outbox_seq`,
		`execute on bury, fingerprint, maintain, audit_reload`,
	},
	RoleConsumer: append(slices.Clone(taking),
		`update (state, lane, next_poll_at, locked_until, locked_by, lock_token, revision, attempts, failures, not_founds, deferrals, replays, last_delay_ms, last_class, last_message, `+
			`window_started_at, updated_at) on poll_jobs`,
		`insert on poll_attempts`,
		`insert (subject) on dead_letters`, // a message that nobody can read
		`insert (at, gateway, account, from_state, to_state, cause, reason, actor, epoch, retry_at, instance) on breaker_transitions`,
		`select, insert (gateway), update (gateway) on fetch_turns`,
	),
	RoleWebhook: append(slices.Clone(taking),
		`update (state, lane, next_poll_at, locked_until, locked_by, lock_token, revision, attempts, failures, not_founds, replays, last_class, last_message, window_started_at, updated_at) `+
			`on poll_jobs`,
		`delete on webhook_events`,
	),
	RoleOperator: {
		`select on ` + shownTables,
		`update ` + statusColumns,
		`update (state, lane, next_poll_at, held_until, locked_until, locked_by, lock_token, revision, attempts, failures, not_founds, deferrals, replays, last_delay_ms, window_started_at, ` +
			`updated_at) on poll_jobs`,
		`delete on poll_jobs`,
		`insert ` + eventColumns,
		`usage on outbox_seq`,
		`update (state, owner, link, closed_at, closed_by) on dead_letters`,
		`insert ` + noteColumns,
		`insert (request_id, selection, reason, priority, stage, created_by) on replays`,
		`update (state, why, letters, money, gateways, checksum, rate, stage, leg, next_release_at, driven_at, driver, approved_by, approved_at, ended_at, ended_by, ended_why) on replays`,
		`insert (replay_id, ord, letter_id, payment_id, gateway, fingerprint, amount_minor, currency, state, verdict, detail, ended_at) on replay_items`,
		`update (state, verdict, detail, revision, released_at, leg, answered_at, came_back, ended_at) on replay_items`,
		`select, update (one) on replay_turn`,
		`insert (at, gateway, account, from_state, to_state, cause, reason, actor, epoch, retry_at, instance) on breaker_transitions`,
		`execute on audit, end_jobs, fingerprint`,
		`execute on track_payments, payment_fault`, // pollux payments import
	},
	RoleReadOnly: {
		`select on ` + shownTables,
	},
	RoleTracker: {
		`execute on track_payment, track_payments`,
	},
}

// public are what everybody may do, by migrations: the check of the schema.
var public = []string{
	`select on schema_serves`,
}

// watchers are the roles that see the sessions of all logins (pg_read_all_stats).
const watchers = "pollux_relay, pollux_operator, pollux_readonly"

// watches reports whether a role sees the sessions of all logins.
func (r Role) watches() bool { return slices.Contains(strings.Split(watchers, ", "), string(r)) }

// Beyond reports whether err is that of reading a table which the role has no right to read, and needs none: no fault of the login.
func (r Role) Beyond(err error) bool {
	denied, ok := errors.AsType[*Denied](err)
	if !ok || r == RoleMigrator {
		return false
	}
	table, ok := strings.CutPrefix(denied.Object, "table ")
	return ok && !slices.ContainsFunc(r.rights(), func(have right) bool {
		return have.privilege == "select" && len(have.columns) == 0 && have.object == table
	})
}

// nobodys are the tables and functions that no role needs, for they are used by functions that run as their owner. Functions of triggers are nobody's too.
var nobodys = []string{"audit_turn", "maintain_turn", "audit_field", "make_partition", "drop_partition",
	"first_poll", "incoming", "element_fault", "key_fault", "value_fault"}

// right is one thing that can be granted.
type right struct {
	privilege string
	columns   []string // none: of all of it
	object    string
}

// String is the right as a person reads it, without the schema's name.
func (r right) String() string {
	if len(r.columns) == 0 {
		return r.privilege + " on " + r.object
	}
	return fmt.Sprintf("%s (%s) on %s", r.privilege, strings.Join(r.columns, ", "), r.object)
}

// sql is the right as grant has it.
func (r right) sql() string {
	object := "pollux." + r.object
	switch {
	case r.object == schemaUsage.object:
		object = r.object
	case r.privilege == "execute":
		object = "function " + object
	case r.privilege == "usage":
		object = "sequence " + object
	}
	if len(r.columns) == 0 {
		return r.privilege + " on " + object
	}
	return fmt.Sprintf("%s (%s) on %s", r.privilege, strings.Join(r.columns, ", "), object)
}

var privilege = regexp.MustCompile(`([a-z]+)(?: \(([^)]*)\))?(?:, |$)`)

// parse reads a line of rights: privileges, each perhaps with columns, and objects.
func parse(line string) (all []right) {
	what, objects, _ := strings.Cut(line, " on ")
	for object := range strings.SplitSeq(objects, ", ") {
		for _, m := range privilege.FindAllStringSubmatch(what, -1) {
			r := right{privilege: m[1], object: object}
			if m[2] != "" {
				r.columns = strings.Split(m[2], ", ")
			}
			all = append(all, r)
		}
	}
	return all
}

// rights are what a role needs.
func (r Role) rights() (all []right) {
	for _, line := range rights[r] {
		all = append(all, parse(line)...)
	}
	return all
}

// Rights are what a role is granted, one line for each, for people.
func (r Role) Rights() []string {
	all := []string{}
	for _, right := range r.rights() {
		all = append(all, right.String())
	}
	return all
}

// GrantSQL are the statements that give a role what it needs, and nothing else of the schema. Its owner runs them, all in one transaction.
func (r Role) GrantSQL() []string {
	if r == RoleMigrator {
		return nil
	}
	return grantSQL(string(r), append([]right{schemaUsage}, r.rights()...))
}

// PublicSQL are the statements that leave everybody, which PostgreSQL calls PUBLIC, what the migrations give to all, and nothing else of the schema. To PUBLIC may have been granted by hand; and a dump that
// was restored without its privileges lets everybody call each function. The owner of the schema runs them, all in one transaction.
func PublicSQL() []string { return grantSQL("public", publicRights()) }

func grantSQL(grantee string, rights []right) []string {
	all := []string{
		"revoke all on all tables in schema pollux from " + grantee,
		"revoke all on all sequences in schema pollux from " + grantee,
		"revoke all on all functions in schema pollux from " + grantee,
		"revoke all on schema pollux from " + grantee,
	}
	for _, right := range rights {
		all = append(all, "grant "+right.sql()+" to "+grantee)
	}
	return all
}

// publicRights are what everybody may do.
func publicRights() (all []right) {
	for _, line := range public {
		all = append(all, parse(line)...)
	}
	return all
}

// RolesSQL makes the roles that are missing. It needs the right to create roles, and leaves those alone that exist. Those who look after the server besides see when the transactions of
// others began, where whoever runs it may grant that.
func RolesSQL() string {
	var b strings.Builder
	b.WriteString("do $$\ndeclare\n  role text;\nbegin\n  foreach role in array array['")
	for i, r := range Roles {
		if i > 0 {
			b.WriteString("', '")
		}
		b.WriteString(string(r))
	}
	b.WriteString("'] loop\n    if not exists (select from pg_roles where rolname = role) then\n      execute format('create role %I nologin', role);\n    end if;\n  end loop;\n")
	b.WriteString("  begin\n    grant pg_read_all_stats to " + watchers + ";\n  exception when insufficient_privilege then\n" +
		"    raise notice 'a superuser may let them see whose transactions are old: grant pg_read_all_stats to " + watchers + "';\n  end;\nend $$;\n")
	return b.String()
}

// Holding is what a login may do in the schema, compared with what a role needs.
type Holding struct {
	Login string
	// Everything is why the login may do all there is: it is a superuser, or owns the schema. Empty: it may not.
	Everything string
	Missing    []string // rights that the role needs and the login lacks, as grant names them
	Excess     []string // rights that the login has and the role does not need
	// Revoke are the statements that take the excess away which everybody has, so that revoking it from the login, or its role, does nothing.
	Revoke []string
}

const ownsSchema = "it owns the schema"

// Exact reports whether the login has what the role needs and nothing else.
func (h Holding) Exact() bool { return h.Everything == "" && len(h.Missing)+len(h.Excess) == 0 }

// Rights compares what the login of db may do, by itself and by the roles that it is a member of, with what a role needs. It reads the catalog only. For the migrator
// it says whether the login owns the schema.
func Rights(ctx context.Context, db queryer, role Role) (Holding, error) {
	h, err := holding(ctx, db, "", role)
	return h, describe("reading the rights of the login", err)
}

// heldSQL lists what a role may do in the schema, column by column only where it may not do it to all of the table. Nobody needs a right on a partition, since rows are found by their
// parents; a right on one is a way past the parent's, and is listed as that of any other table.
const heldSQL = `
	with tables as (
	  select c.oid, c.relname, c.relkind
	  from pg_catalog.pg_class c
	  where c.relnamespace = to_regnamespace('pollux')
	    and c.relkind in ('r', 'p', 'v', 'm', 'S')
	)
	select p, '', t.relname::text
	from tables t
	cross join unnest(array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger']) as p
	where t.relkind <> 'S'
	  and has_table_privilege($1::oid, t.oid, p)
	union all
	select p, a.attname::text, t.relname::text
	from tables t
	join pg_catalog.pg_attribute a on a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped
	cross join unnest(array['select', 'insert', 'update', 'references']) as p
	where t.relkind <> 'S'
	  and not has_table_privilege($1::oid, t.oid, p)
	  and has_column_privilege($1::oid, t.oid, a.attnum, p)
	union all
	select p, '', t.relname::text
	from tables t
	cross join unnest(array['usage', 'select', 'update']) as p
	where case when t.relkind = 'S' then has_sequence_privilege($1::oid, t.oid, p) end
	union all
	select 'execute', '', f.proname::text
	from pg_catalog.pg_proc f
	where f.pronamespace = to_regnamespace('pollux')
	  and has_function_privilege($1::oid, f.oid, 'execute')
	union all
	select p, '', 'schema pollux'
	from unnest(array['usage', 'create']) as p
	where has_schema_privilege($1::oid, to_regnamespace('pollux'), p)`

// schemaUsage is what every role has besides its own rights.
var schemaUsage = right{privilege: "usage", object: "schema pollux"}

// holding is Rights for the login of db, or for another role of the cluster.
func holding(ctx context.Context, db queryer, name string, role Role) (Holding, error) {
	var h Holding
	var oid uint32
	var superuser, owner bool
	err := db.QueryRow(ctx, `
		select r.oid, r.rolname, r.rolsuper, coalesce((
		  select pg_has_role(r.oid, n.nspowner, 'usage')
		  from pg_catalog.pg_namespace n
		  where n.nspname = 'pollux'), false)
		from pg_catalog.pg_roles r
		where r.rolname = coalesce(nullif($1, ''), current_user)`, name).Scan(&oid, &h.Login, &superuser, &owner)
	if err != nil {
		return h, err
	}
	switch {
	case superuser:
		h.Everything = "it is a superuser"
	case owner:
		h.Everything = ownsSchema
	case role == RoleMigrator:
		h.Missing = []string{"to own the schema pollux"}
	}
	if h.Everything != "" || role == RoleMigrator {
		return h, nil
	}
	held, err := heldBy(ctx, db, oid)
	if err != nil {
		return h, err
	}
	everybody, err := heldBy(ctx, db, everybodyOID)
	if err != nil {
		return h, err
	}
	needed := rightSet{}
	needed.addRights(append(role.rights(), schemaUsage)...)
	h.Missing = names(needed.without(held))
	needed.addRights(publicRights()...)
	h.Excess = names(held.without(needed))
	public := rightSet{}
	public.addRights(publicRights()...)
	for _, r := range everybody.without(public) {
		h.Revoke = append(h.Revoke, "revoke "+r.sql()+" from public")
	}
	return h, nil
}

// publicHolding is what everybody may do in the schema, compared with what everybody needs.
func publicHolding(ctx context.Context, db queryer) (Holding, error) {
	held, err := heldBy(ctx, db, everybodyOID)
	if err != nil {
		return Holding{}, err
	}
	needed := rightSet{}
	needed.addRights(publicRights()...)
	return Holding{Login: "public", Missing: names(needed.without(held)), Excess: names(held.without(needed))}, nil
}

// everybodyOID stands for PUBLIC where PostgreSQL asks for a role.
const everybodyOID = 0

func heldBy(ctx context.Context, db queryer, oid uint32) (rightSet, error) {
	rows, err := db.Query(ctx, heldSQL, oid)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	held := rightSet{}
	for rows.Next() {
		var what, column, object string
		if err := rows.Scan(&what, &column, &object); err != nil {
			return nil, err
		}
		held.add(what, column, object)
	}
	return held, rows.Err()
}

// rightSet are columns by privilege and object; the column "" means all of it.
type rightSet map[[2]string]map[string]bool

func (s rightSet) add(privilege, column, object string) {
	key := [2]string{privilege, object}
	if s[key] == nil {
		s[key] = map[string]bool{}
	}
	s[key][column] = true
}

func (s rightSet) addRights(rights ...right) {
	for _, r := range rights {
		if len(r.columns) == 0 {
			s.add(r.privilege, "", r.object)
		}
		for _, c := range r.columns {
			s.add(r.privilege, c, r.object)
		}
	}
}

// names are rights as people read them.
func names(rights []right) (all []string) {
	for _, r := range rights {
		all = append(all, r.String())
	}
	return all
}

// without are the rights that are not in another set, in order.
func (s rightSet) without(other rightSet) []right {
	var all []right
	for key, columns := range s {
		r := right{privilege: key[0], object: key[1]}
		has := other[key]
		switch {
		case has[""]:
			continue
		case columns[""]:
			all = append(all, r)
			continue
		}
		for _, c := range slices.Sorted(maps.Keys(columns)) {
			if !has[c] {
				r.columns = append(r.columns, c)
			}
		}
		if len(r.columns) > 0 {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b right) int { return strings.Compare(a.String(), b.String()) })
	return all
}
