-- A login for each program, a member of its role. Passwords are variables: of psql, or of the environment under the same name in capitals.
--
--   MIGRATOR_PASSWORD=… RELAY_PASSWORD=… CONSUMER_PASSWORD=… … psql --single-transaction -d payments -f logins.sql
--
-- Run again, it gives the logins the passwords of then, and leaves the rest alone.

\set ON_ERROR_STOP on
\getenv migrator_password MIGRATOR_PASSWORD
\getenv relay_password RELAY_PASSWORD
\getenv consumer_password CONSUMER_PASSWORD
\getenv webhook_password WEBHOOK_PASSWORD
\getenv operator_password OPERATOR_PASSWORD
\getenv readonly_password READONLY_PASSWORD
\getenv tracker_password TRACKER_PASSWORD

select not (:{?migrator_password} and :{?relay_password} and :{?consumer_password} and :{?webhook_password} and :{?operator_password} and :{?readonly_password}
  and :{?tracker_password}) as unset \gset
\if :unset
  do $$ begin
    raise exception 'a password is missing: set MIGRATOR_PASSWORD, RELAY_PASSWORD, CONSUMER_PASSWORD, WEBHOOK_PASSWORD, OPERATOR_PASSWORD, READONLY_PASSWORD and TRACKER_PASSWORD';
  end $$;
\endif

set password_encryption = 'scram-sha-256';

-- The payment service that calls pollux.track_payment has a login already, which becomes a member instead: grant pollux_tracker to shop;
-- pollux_operator_login is an example: each operator has a login of their own, for one login is one person.
do $$
declare
  program text;
begin
  foreach program in array array['migrator', 'relay', 'consumer', 'webhook', 'operator', 'readonly', 'tracker'] loop
    if not exists (select from pg_roles where rolname = format('pollux_%s_login', program)) then
      execute format('create role %I login in role %I', format('pollux_%s_login', program), 'pollux_' || program);
    end if;
  end loop;
end $$;

alter role pollux_migrator_login password :'migrator_password';
alter role pollux_migrator_login set role = 'pollux_migrator'; -- what it makes belongs to the role
alter role pollux_relay_login password :'relay_password';
alter role pollux_consumer_login password :'consumer_password';
alter role pollux_webhook_login password :'webhook_password';
alter role pollux_readonly_login password :'readonly_password';
alter role pollux_tracker_login password :'tracker_password';
alter role pollux_operator_login password :'operator_password';
