-- The way in, for a login that may call it and nothing else; and what holds, whoever calls.

-- +goose Up

-- Both functions run with the rights of their owner, so that the payment service needs none on the tables: with a right to insert jobs it could begin one that is none, by a
-- trigger of its own on a table of its own.
-- roles: tracker, operator
alter function pollux.track_payment security definer set search_path = pg_catalog, pg_temp;
alter function pollux.track_payments security definer set search_path = pg_catalog, pg_temp;
revoke execute on function pollux.track_payment, pollux.track_payments, pollux.payment_fault, pollux.first_poll, pollux.incoming,
  pollux.element_fault, pollux.key_fault, pollux.value_fault from public;

-- What the schema holds is held with PostgreSQL's own operators and functions, whatever search_path the caller has: one that may create objects somewhere could put its own before them.
alter function pollux.bury set search_path = pg_catalog, pg_temp;
alter function pollux.contradict set search_path = pg_catalog, pg_temp;
alter function pollux.dead_letter_begins set search_path = pg_catalog, pg_temp;
alter function pollux.dead_letter_left set search_path = pg_catalog, pg_temp;
alter function pollux.end_jobs set search_path = pg_catalog, pg_temp;
alter function pollux.jobs_end set search_path = pg_catalog, pg_temp;
alter function pollux.payment_succeeded_late set search_path = pg_catalog, pg_temp;
alter function pollux.payments_turned set search_path = pg_catalog, pg_temp;
alter function pollux.review set search_path = pg_catalog, pg_temp;
alter function pollux.truncated set search_path = pg_catalog, pg_temp;
alter function pollux.webhook_contradicts set search_path = pg_catalog, pg_temp;
alter function pollux.webhook_waits set search_path = pg_catalog, pg_temp;

-- Nearly all payments pass at the first look, and those with a deadline, metadata or a trace at the second: each expression is set up anew in each transaction, with all that it
-- calls, whether it comes to it or not. So the first look has few calls, is stricter than what must hold, and its patterns have few states. What does not pass is looked at
-- argument by argument.
-- +goose StatementBegin
create or replace function pollux.payment_is_sound() returns trigger language plpgsql as $$
declare
  fault text;
begin
  if new.gateway || ' ' || new.class ~ '^[a-z0-9][a-z0-9_-]* [a-z0-9][a-z0-9_-]*$'
    and new.currency ~ '^[A-Z][A-Z][A-Z]$' and new.amount_minor >= 0 and new.lane in ('normal', 'high', 'low')
    and new.reference !~ '[^!-~]' and new.reference <> '' and new.account !~ '[^A-Za-z0-9_.:-]' and new.merchant_reference !~ '[\x01-\x1f\x7f]'
    and octet_length(new.gateway || new.class || new.account) <= 64 and octet_length(new.reference || new.merchant_reference) <= 255
    and new.status = 'pending' and new.status_detail = ''
    and new.poll_after <= now() + interval '8784 hours' and new.poll_after > '-infinity' and isfinite(new.created_at)
  then
    if num_nulls(new.expires_at, new.metadata, new.traceparent) = 3 then
      return new;
    elsif coalesce(isfinite(new.expires_at), true)
      and coalesce(octet_length(new.metadata::text) <= 16384, true) -- its size in a row depends on whether it is compressed there
      and coalesce(new.traceparent like '__-________________________________-________________-__'
        and new.traceparent ~ '^[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$', true)
    then
      return new;
    end if;
  end if;
  fault := case
    when new.status in ('pending', 'succeeded', 'failed', 'cancelled', 'expired') is not true then 'status: there is no such one'
    when new.status_source not in ('poll', 'webhook', 'operator', 'reconciliation') then 'status_source: there is no such one'
    when new.status <> 'pending' and new.status_source is null then 'status_source: a final status needs it'
    when length(new.status_detail) <= 255 is not true then 'status_detail: at most 255 characters'
    when isfinite(new.created_at) is not true then 'created_at: an instant'
    else pollux.payment_fault(new.gateway, new.account, new.reference, new.merchant_reference, new.class, new.lane, new.amount_minor, new.currency,
      new.poll_after, new.expires_at, new.metadata, new.traceparent)
  end;
  if fault is not null then
    raise exception 'payment not tracked: %', fault using errcode = 'invalid_parameter_value',
      hint = 'Nothing was written. Correct the argument and call pollux.track_payment again.';
  end if;
  return new;
end $$;
-- +goose StatementEnd

-- +goose Down

alter function pollux.bury reset search_path;
alter function pollux.contradict reset search_path;
alter function pollux.dead_letter_begins reset search_path;
alter function pollux.dead_letter_left reset search_path;
alter function pollux.end_jobs reset search_path;
alter function pollux.jobs_end reset search_path;
alter function pollux.payment_succeeded_late reset search_path;
alter function pollux.payments_turned reset search_path;
alter function pollux.review reset search_path;
alter function pollux.truncated reset search_path;
alter function pollux.webhook_contradicts reset search_path;
alter function pollux.webhook_waits reset search_path;

-- Who tracks needs the rights on the tables again, which the build before gives with its own migrate up only.
-- +goose StatementBegin
do $$
declare
  role name;
begin
  for role in select rolname from pg_roles where rolname in ('pollux_tracker', 'pollux_operator') loop
    execute format('grant select (id, gateway, account, reference, amount_minor, currency),
      insert (gateway, account, reference, merchant_reference, class, lane, amount_minor, currency, poll_after, expires_at, metadata, traceparent) on pollux.payments to %I', role);
    execute format('grant insert (payment_id, gateway, lane, next_poll_at) on pollux.poll_jobs to %I', role);
  end loop;
end $$;
-- +goose StatementEnd
alter function pollux.track_payment security invoker reset search_path;
alter function pollux.track_payments security invoker reset search_path;
grant execute on function pollux.track_payment, pollux.track_payments, pollux.payment_fault, pollux.first_poll, pollux.incoming,
  pollux.element_fault, pollux.key_fault, pollux.value_fault to public;

-- +goose StatementBegin
create or replace function pollux.payment_is_sound() returns trigger language plpgsql as $$
declare
  fault text;
begin
  if new.gateway || ' ' || new.class || ' ' || new.currency || ' ' || new.lane || ' ' || new.account || ' ' || new.reference
      ~ '^[a-z0-9][a-z0-9_-]* [a-z0-9][a-z0-9_-]* [A-Z][A-Z][A-Z] (?:high|normal|low) [A-Za-z0-9_.:-]* [!-~]+$'
    and length(new.gateway) <= 64 and length(new.class) <= 64 and length(new.account) <= 128 and length(new.reference) <= 255
    and length(new.merchant_reference) <= 255 and new.merchant_reference !~ '[\x01-\x1f\x7f]'
    and new.amount_minor >= 0 and new.status = 'pending' and length(new.status_detail) <= 255
    and new.poll_after <= now() + interval '366 days' and isfinite(new.poll_after) and isfinite(new.created_at) and coalesce(isfinite(new.expires_at), true)
    and coalesce(octet_length(new.metadata::text) <= 16384, true) -- its size in a row depends on whether it is compressed there
    and coalesce(new.traceparent like '__-________________________________-________________-__'
      and new.traceparent ~ '^[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$', true)
  then
    return new;
  end if;
  fault := case
    when new.status in ('pending', 'succeeded', 'failed', 'cancelled', 'expired') is not true then 'status: there is no such one'
    when new.status_source not in ('poll', 'webhook', 'operator', 'reconciliation') then 'status_source: there is no such one'
    when new.status <> 'pending' and new.status_source is null then 'status_source: a final status needs it'
    when length(new.status_detail) <= 255 is not true then 'status_detail: at most 255 characters'
    when isfinite(new.created_at) is not true then 'created_at: an instant'
    else pollux.payment_fault(new.gateway, new.account, new.reference, new.merchant_reference, new.class, new.lane, new.amount_minor, new.currency,
      new.poll_after, new.expires_at, new.metadata, new.traceparent)
  end;
  if fault is not null then
    raise exception 'payment not tracked: %', fault using errcode = 'invalid_parameter_value',
      hint = 'Nothing was written. Correct the argument and call pollux.track_payment again.';
  end if;
  return new;
end $$;
-- +goose StatementEnd
