-- A login for each program, a member of its role. Passwords are variables: of psql, or of the environment under the same name in capitals.
--
--   MIGRATOR_PASSWORD=… RELAY_PASSWORD=… CONSUMER_PASSWORD=… … psql -d payments -f logins.sql

\set ON_ERROR_STOP on
\getenv migrator_password MIGRATOR_PASSWORD
\getenv relay_password RELAY_PASSWORD
\getenv consumer_password CONSUMER_PASSWORD
\getenv webhook_password WEBHOOK_PASSWORD
\getenv operator_password OPERATOR_PASSWORD
\getenv readonly_password READONLY_PASSWORD
\getenv tracker_password TRACKER_PASSWORD

set password_encryption = 'scram-sha-256';

create role pollux_migrator_login login password :'migrator_password' in role pollux_migrator;
alter role pollux_migrator_login set role = 'pollux_migrator'; -- what it makes belongs to the role

create role pollux_relay_login login password :'relay_password' in role pollux_relay;
create role pollux_consumer_login login password :'consumer_password' in role pollux_consumer;
create role pollux_webhook_login login password :'webhook_password' in role pollux_webhook;
create role pollux_readonly_login login password :'readonly_password' in role pollux_readonly;

-- The payment service that calls pollux.track_payment has a login already, which becomes a member: grant pollux_tracker to shop;
create role pollux_tracker_login login password :'tracker_password' in role pollux_tracker;

-- An example: each operator has a login of their own, for one login is one person.
create role pollux_operator_login login password :'operator_password' in role pollux_operator;
