-- What services write into the audit log: that their configuration was reloaded, or was refused. They may write nothing else there.

-- +goose Up

-- roles: relay, consumer, webhook
-- It runs with the rights of its owner, so that a service needs no right to write other acts.
-- +goose StatementBegin
create function pollux.audit_reload(instance text, outcome text, reason text, entries jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from jsonb_array_elements(audit_reload.entries) as e where (e ->> 'target' ~ '^config(:|$)') is not true) then
    raise exception 'not audited: a reload is about keys of the configuration' using errcode = 'invalid_parameter_value';
  end if;
  perform pollux.audit(audit_reload.instance, audit_reload.instance, 'config.reload', audit_reload.outcome, audit_reload.reason, audit_reload.entries);
end
$$;
-- +goose StatementEnd
revoke all on function pollux.audit_reload from public;
comment on function pollux.audit_reload is 'Adds the reload of a service''s configuration to the audit log, a row for each key that changed.';

-- +goose Down

drop function pollux.audit_reload;
