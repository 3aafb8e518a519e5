-- The roles of deploy/postgres and a login for each service, with the passwords that `make secrets` made. What is there already stays.
\set ON_ERROR_STOP on
\ir roles.sql
select not exists (select from pg_roles where rolname = 'pollux_relay_login') as first \gset
\if :first
  \set password `cat /run/secrets/migrator_password`
  \setenv MIGRATOR_PASSWORD :password
  \set password `cat /run/secrets/relay_password`
  \setenv RELAY_PASSWORD :password
  \set password `cat /run/secrets/consumer_password`
  \setenv CONSUMER_PASSWORD :password
  \set password `cat /run/secrets/webhook_password`
  \setenv WEBHOOK_PASSWORD :password
  \set password `cat /run/secrets/operator_password`
  \setenv OPERATOR_PASSWORD :password
  \set password `cat /run/secrets/readonly_password`
  \setenv READONLY_PASSWORD :password
  \set password `cat /run/secrets/tracker_password`
  \setenv TRACKER_PASSWORD :password
  \ir services.sql
\endif
