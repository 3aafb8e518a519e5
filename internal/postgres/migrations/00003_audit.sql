-- What operators do: the log of it, and payments that they hold.

-- +goose Up

-- ------------------------------------------------------------------------------------------------ audit_log

create table pollux.audit_log (
  seq         bigint primary key,
  at          timestamptz not null,
  actor       text not null,
  login       text not null,
  client      text not null,
  application text not null,
  origin      text not null,
  action      text not null,
  outcome     text not null,
  reason      text not null,
  target      text not null,
  before      text,
  after       text,
  previous    bytea not null,
  hash        bytea not null
);

create index audit_log_target on pollux.audit_log (target, seq);
create index audit_log_at on pollux.audit_log (at);

comment on table pollux.audit_log is 'What operators did and what they were refused, in one chain: each row carries the hash of the row before it. It is only ever added to.';
comment on column pollux.audit_log.seq is 'without gaps, from 1: the chain is numbered by itself, since a sequence leaves gaps where transactions are rolled back';
comment on column pollux.audit_log.actor is 'who acted, as they said themselves; login is who the database knows them as';
comment on column pollux.audit_log.origin is 'the program that acted and where';
comment on column pollux.audit_log.before is 'the text of a JSON object, as it was hashed; null when there was nothing before';
comment on column pollux.audit_log.hash is 'sha256 of pollux.audit_field of each column, in the order seq, previous, at, actor, login, client, application, origin, action, outcome, reason, target, before, after';

-- Whoever adds to the log holds this row until their transaction ends. An advisory lock could be taken, and kept, by any login; a row needs a right on its table.
create table pollux.audit_turn (
  one boolean primary key default true,
  constraint audit_turn_one check (one)
);
insert into pollux.audit_turn default values;

comment on table pollux.audit_turn is 'One row, which is locked by whoever adds to the audit log.';

-- A column as it is hashed: name, length in bytes, value. With the length no value can look like two columns; null has the length "-".
create function pollux.audit_field(name text, value text) returns text language sql stable parallel safe as $$
  select name || ' ' || coalesce(octet_length(convert_to(value, 'UTF8'))::text, '-') || ' ' || coalesce(value, '') || E'\n'
$$;

-- Writes what was done, or refused, to each of the targets, in the transaction of the effect. It is the last statement of that: from here on nobody else adds to
-- the chain before the transaction ends. Entries are objects {"target": "payment:42", "before": {…} or null, "after": {…} or null}; without entries
-- nothing is written. It runs with the rights of its owner, so that who may act needs no right on the table.
-- +goose StatementBegin
create function pollux.audit(actor text, origin text, action text, outcome text, reason text, entries jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
  fault text;
  stamp timestamptz;
  alike text; -- the part that is the same in all rows
  client text := coalesce(host(inet_client_addr()), '');
  application text := coalesce(current_setting('application_name', true), '');
  number bigint;
  link bytea;
  element jsonb;
  old_text text;
  new_text text;
  numbers bigint[] := '{}';
  targets text[] := '{}';
  befores text[] := '{}';
  afters text[] := '{}';
  links bytea[] := '{}';
  hashes bytea[] := '{}';
begin
  fault := case
    when current_setting('transaction_isolation') <> 'read committed' then 'the chain is continued in transactions that are read committed only'
    when coalesce(length(audit.actor), 0) not between 1 and 255 then 'actor: 1 to 255 characters'
    when coalesce(length(audit.origin), 0) not between 1 and 255 then 'origin: 1 to 255 characters'
    when (audit.action ~ '^[a-z][a-z_]*[.][a-z][a-z_-]*$' and length(audit.action) <= 64) is not true then 'action: such as payment.force, at most 64 characters'
    when (audit.outcome in ('done', 'refused')) is not true then 'outcome: done or refused'
    when coalesce(length(audit.reason), 0) > 2000 then 'reason: at most 2000 characters'
    when jsonb_typeof(audit.entries) is distinct from 'array' then 'entries: an array of objects with target, before and after'
  end;
  if fault is not null then
    raise exception 'not audited: %', fault using errcode = 'invalid_parameter_value', hint = 'Nothing was written; what was to be audited must not be committed.';
  end if;
  if audit.entries = '[]' then
    return;
  end if;

  begin
    perform from pollux.audit_turn for update;
    if not found then
      raise exception 'not audited: pollux.audit_turn is empty' using hint = 'insert into pollux.audit_turn default values';
    end if;
  exception when lock_not_available then
    raise exception 'not audited: another transaction has held the audit log for 10 seconds' using errcode = 'lock_not_available',
      hint = 'Nothing was changed; try again. Whose it is: select pid, usename, application_name, state, xact_start from pg_stat_activity where xact_start is not null order by xact_start';
  end;
  select a.seq, a.hash into number, link
  from pollux.audit_log a
  order by a.seq desc
  limit 1;
  number := coalesce(number, 0);
  link := coalesce(link, decode(repeat('00', 32), 'hex'));
  stamp := clock_timestamp();
  alike := pollux.audit_field('at', to_char(stamp at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) || pollux.audit_field('actor', audit.actor)
    || pollux.audit_field('login', session_user::text) || pollux.audit_field('client', client) || pollux.audit_field('application', application)
    || pollux.audit_field('origin', audit.origin) || pollux.audit_field('action', audit.action) || pollux.audit_field('outcome', audit.outcome)
    || pollux.audit_field('reason', coalesce(audit.reason, ''));

  for element in select x.element from jsonb_array_elements(audit.entries) with ordinality as x(element, ord) order by x.ord loop
    if (length(element ->> 'target') between 1 and 255) is not true then
      raise exception 'not audited: target: 1 to 255 characters' using errcode = 'invalid_parameter_value';
    end if;
    old_text := nullif(element -> 'before', 'null')::text;
    new_text := nullif(element -> 'after', 'null')::text;
    number := number + 1;
    numbers := array_append(numbers, number);
    targets := array_append(targets, element ->> 'target');
    befores := array_append(befores, old_text);
    afters := array_append(afters, new_text);
    links := array_append(links, link);
    link := sha256(convert_to(
      pollux.audit_field('seq', number::text) || pollux.audit_field('previous', encode(link, 'hex')) || alike
        || pollux.audit_field('target', element ->> 'target') || pollux.audit_field('before', old_text) || pollux.audit_field('after', new_text), 'UTF8'));
    hashes := array_append(hashes, link);
  end loop;

  insert into pollux.audit_log (seq, at, actor, login, client, application, origin, action, outcome, reason, target, before, after, previous, hash)
  select r.seq, stamp, audit.actor, session_user::text, client, application, audit.origin, audit.action, audit.outcome, coalesce(audit.reason, ''),
    r.target, r.before, r.after, r.previous, r.hash
  from unnest(numbers, targets, befores, afters, links, hashes) as r(seq, target, before, after, previous, hash);
end $$;
-- +goose StatementEnd

comment on function pollux.audit is 'Adds what an operator did, or was refused, to the audit log, a row for each target, in the transaction of the effect and as its last statement.';

-- Not even in a session that replays a replication.
create trigger audit_log_stays before update or delete or truncate on pollux.audit_log
  for each statement execute function pollux.stays('the audit log is only ever added to', 'audit_log_append_only');
alter table pollux.audit_log enable always trigger audit_log_stays;

-- ------------------------------------------------------------------------------------------------ holds

-- A hold is one more time before which a job is not claimed, so that nothing that makes a job due (a notification, a stream that was lost) ends it.
drop index pollux.poll_jobs_claim;
alter table pollux.poll_jobs drop column claimable_at;
alter table pollux.poll_jobs
  add column held_until timestamptz,
  add column claimable_at timestamptz not null generated always as (
    case when state = 'dead' then timestamptz 'infinity' else greatest(next_poll_at, locked_until, held_until) end
  ) stored;
create index poll_jobs_claim on pollux.poll_jobs (gateway, lane, claimable_at);

comment on column pollux.poll_jobs.held_until is 'an operator holds it until then; null, or past, when none does';
comment on column pollux.poll_jobs.claimable_at is 'when a relay may take it: the latest of due time, lease and hold. The one time that the relay''s index has.';

create trigger job_held after update on pollux.poll_jobs
  for each row when (not isfinite(new.held_until))
  execute function pollux.stays('a hold ends at an instant', 'poll_jobs_hold');

-- ------------------------------------------------------------------------------------------------ events of one payment

-- Events are written in the order of their time, so that a summary of blocks finds them and costs an event nothing.
create index outbox_created on pollux.outbox using brin (created_at) with (pages_per_range = 16, autosummarize = on);

-- +goose Down

drop index pollux.outbox_created;
drop trigger job_held on pollux.poll_jobs;
drop index pollux.poll_jobs_claim;
alter table pollux.poll_jobs drop column claimable_at;
alter table pollux.poll_jobs drop column held_until;
alter table pollux.poll_jobs
  add column claimable_at timestamptz not null generated always as (
    case when state = 'dead' then timestamptz 'infinity' else greatest(next_poll_at, locked_until) end
  ) stored;
create index poll_jobs_claim on pollux.poll_jobs (gateway, lane, claimable_at);
comment on column pollux.poll_jobs.claimable_at is 'when a relay may take it: the later of due time and lease. The one time that the relay''s index has.';

drop table pollux.audit_log, pollux.audit_turn;
drop function pollux.audit, pollux.audit_field;
