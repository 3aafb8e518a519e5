-- The group roles of Pollux, and the place of its schema. Run once by whoever may create roles, and schemas in the database of the payments (no superuser is needed):
--
--   psql -d payments -f roles.sql
--
-- The roles are those that `pollux perms print postgres` begins with. They cannot log in and hold no rights yet: `pollux migrate up` grants those.

do $$
declare
  role text;
begin
  foreach role in array array['pollux_migrator', 'pollux_relay', 'pollux_consumer', 'pollux_webhook', 'pollux_operator', 'pollux_readonly', 'pollux_tracker'] loop
    if not exists (select from pg_roles where rolname = role) then
      execute format('create role %I nologin', role);
    end if;
  end loop;
  begin
    grant pg_read_all_stats to pollux_relay, pollux_operator, pollux_readonly;
  exception when insufficient_privilege then
    raise notice 'a superuser may let them see whose transactions are old: grant pg_read_all_stats to pollux_relay, pollux_operator, pollux_readonly';
  end;
end $$;

-- Who hands a schema over is a member of the role that gets it; a superuser need not be. Since PostgreSQL 16 whoever makes a role may grant it, and is no such member by that.
do $$
begin
  if not pg_has_role(current_user, 'pollux_migrator', 'usage') then
    grant pollux_migrator to current_user;
  end if;
end $$;
create schema if not exists pollux authorization pollux_migrator;

-- Where Pollux ran with one login before, that login's objects change hands:
--   reassign owned by the_login to pollux_migrator;
