-- Who may do what: what the grants of internal/postgres/rights.go need of the schema. Roles belong to the whole cluster, which may hold other databases: they are made and
-- granted by `pollux migrate up` after the migrations, or by an administrator, and no step down drops them.

-- +goose Up

-- ------------------------------------------------------------------------------------------------ turns

-- Whoever takes turns locks a row. An advisory lock could be taken, and kept, by any login that may connect; a row needs a right on its table.
create table pollux.maintain_turn (
  one boolean primary key default true,
  constraint maintain_turn_one check (one)
);
insert into pollux.maintain_turn default values;

create table pollux.replay_turn (
  one boolean primary key default true,
  constraint replay_turn_one check (one)
);
insert into pollux.replay_turn default values;

create table pollux.fetch_turns (
  gateway text primary key
);

comment on table pollux.maintain_turn is 'One row, which is locked by whoever makes and drops partitions. pollux.maintain does: nobody needs a right on it.';
comment on table pollux.replay_turn is 'One row, which is locked by whoever makes a replay, so that what one has chosen the next one sees.';
comment on table pollux.fetch_turns is 'A row for each gateway, which is locked by the consumer that fetches what the gateway told.';

-- ------------------------------------------------------------------------------------------------ partitions

-- Making and dropping partitions needs their owner. The relay may have that done and nothing else: the function runs with the rights of its owner, knows the two tables
-- itself, and keeps events an hour and attempts a day whatever it is asked.
-- +goose StatementBegin
create or replace function pollux.maintain(keep_events interval, keep_attempts interval) returns text language plpgsql
security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
  parent text;
  day date;
  part text;
  n bigint;
begin
  perform from pollux.maintain_turn for update skip locked;
  if not found then
    return null; -- somebody else is at it
  end if;
  keep_events := greatest(keep_events, interval '1 hour');
  keep_attempts := greatest(keep_attempts, interval '1 day');
  for parent, day in
    select t.name, current_date + d
    from unnest(array['outbox', 'poll_attempts']) as t(name), generate_series(1, 3) as d
    order by d
  loop
    if pollux.make_partition(parent, day) then
      return format('made the partition of %s for %s', parent, day);
    end if;
  end loop;
  for parent, part in
    select p.relname, c.relname
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    join pg_class p on p.oid = i.inhparent
    where i.inhparent in ('pollux.outbox'::regclass, 'pollux.poll_attempts'::regclass)
      and case when c.relname ~ '_\d{8}$' then (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamptz end
        <= now() - case p.relname when 'outbox' then keep_events else keep_attempts end
    order by c.relname
  loop
    if pollux.drop_partition(parent, part) then
      return format('dropped %s', part);
    end if;
  end loop;
  delete from pollux.outbox_default where created_at < now() - keep_events and published_at is not null;
  get diagnostics n = row_count;
  if n = 0 then
    delete from pollux.poll_attempts_default where at < now() - keep_attempts;
    get diagnostics n = row_count;
  end if;
  return case when n > 0 then format('deleted %s old rows of a default partition', n) end;
end $$;
-- +goose StatementEnd

revoke execute on function pollux.maintain from public;

-- ------------------------------------------------------------------------------------------------ the operators' word

-- What an operator says is final against everybody else's word, so that nobody else may speak as one: an operator is who may write to the audit log.
-- +goose StatementBegin
create or replace function pollux.payment_turns() returns trigger language plpgsql as $$
declare
  fault text;
  broken text := 'payments_machine';
begin
  if new.status = 'pending' and old.status <> 'pending' then
    fault := 'it does not become pending again';
  elsif new.status not in ('pending', 'succeeded', 'failed', 'cancelled', 'expired') then
    fault := 'there is no status ' || new.status;
    broken := 'payments_status';
  elsif new.status_source not in ('poll', 'webhook', 'operator', 'reconciliation') then
    fault := 'there is no source ' || new.status_source;
    broken := 'payments_status_source';
  elsif new.status <> 'pending' and new.status_source is null then
    fault := 'a final status needs its source';
  elsif new.status_source = 'operator' and not pg_catalog.has_function_privilege('pollux.audit(text, text, text, text, text, jsonb)', 'execute') then
    raise exception 'payment % is %: only an operator has the last word on it', old.id, old.status using errcode = 'insufficient_privilege',
      hint = 'An operator may execute pollux.audit: grant the login the role pollux_operator.';
  elsif new.status <> old.status and old.status <> 'pending' and new.status_source <> 'operator'
    and (new.status <> 'succeeded' or old.status_source = 'operator')
  then
    perform pollux.contradict(old, new.status, nullif(left(new.status_detail, 255), old.status_detail), new.status_source);
    return null;
  elsif length(new.status_detail) > 255 then
    fault := 'its status_detail has more than 255 characters';
    broken := 'payments_status_detail';
  end if;
  if fault is not null then
    raise exception 'payment % is %: %', old.id, old.status, fault using errcode = 'check_violation', constraint = broken;
  end if;
  if new.status <> old.status then
    new.revision := old.revision + 1;
    new.status_updated_at := now();
  end if;
  return new;
end $$;
-- +goose StatementEnd

-- ------------------------------------------------------------------------------------------------ the second person

alter table pollux.replays add column approved_login text;

comment on column pollux.replays.login is 'whom the database knows as the one who asked for it';
comment on column pollux.replays.approved_login is 'whom the database knows as the one who approved it';

-- A replay that waits for a second person begins with the word of one, and not of the same login. The login that owns the schema may be everybody's, as it is where there are
-- no roles: then names alone are compared, by whoever approves.
-- +goose StatementBegin
create function pollux.replay_begins() returns trigger language plpgsql as $$
begin
  if new.approved_by is null then
    raise exception 'replay % waits for a second person', old.id using errcode = 'check_violation', constraint = 'replays_approved',
      hint = 'pollux approve';
  elsif old.login = session_user and not pg_has_role(session_user, (select c.relowner from pg_catalog.pg_class c where c.oid = tg_relid), 'usage') then
    raise exception 'the login % asked for replay %: another one approves it', old.login, old.id using errcode = 'check_violation', constraint = 'replays_second_login',
      hint = 'Give each operator a login of their own.';
  end if;
  new.approved_login := session_user;
  return new;
end $$;
-- +goose StatementEnd

revoke execute on function pollux.replay_begins from public;

-- What has ended stays so: begun again, it would go past the second person.
create trigger replay_ended before update on pollux.replays
  for each row when (old.state in ('cancelled', 'undone', 'done') and new.state not in ('cancelled', 'undone', 'done'))
  execute function pollux.stays('a replay that has ended does not begin again: make another', 'replays_ended');

create trigger replay_begins before update on pollux.replays
  for each row when (old.state = 'awaiting_approval' and new.state not in ('awaiting_approval', 'cancelled', 'undone'))
  execute function pollux.replay_begins();

-- +goose Down

drop trigger replay_begins on pollux.replays;
drop trigger replay_ended on pollux.replays;
drop function pollux.replay_begins;
alter table pollux.replays drop column approved_login;
comment on column pollux.replays.login is null;

-- +goose StatementBegin
create or replace function pollux.payment_turns() returns trigger language plpgsql as $$
declare
  fault text;
  broken text := 'payments_machine';
begin
  if new.status = 'pending' and old.status <> 'pending' then
    fault := 'it does not become pending again';
  elsif new.status not in ('pending', 'succeeded', 'failed', 'cancelled', 'expired') then
    fault := 'there is no status ' || new.status;
    broken := 'payments_status';
  elsif new.status_source not in ('poll', 'webhook', 'operator', 'reconciliation') then
    fault := 'there is no source ' || new.status_source;
    broken := 'payments_status_source';
  elsif new.status <> 'pending' and new.status_source is null then
    fault := 'a final status needs its source';
  elsif new.status <> old.status and old.status <> 'pending' and new.status_source <> 'operator'
    and (new.status <> 'succeeded' or old.status_source = 'operator')
  then
    perform pollux.contradict(old, new.status, nullif(left(new.status_detail, 255), old.status_detail), new.status_source);
    return null;
  elsif length(new.status_detail) > 255 then
    fault := 'its status_detail has more than 255 characters';
    broken := 'payments_status_detail';
  end if;
  if fault is not null then
    raise exception 'payment % is %: %', old.id, old.status, fault using errcode = 'check_violation', constraint = broken;
  end if;
  if new.status <> old.status then
    new.revision := old.revision + 1;
    new.status_updated_at := now();
  end if;
  return new;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function pollux.maintain(keep_events interval, keep_attempts interval) returns text language plpgsql
set timezone = 'UTC' as $$
declare
  parent text;
  day date;
  part text;
  n bigint;
begin
  if not pg_try_advisory_xact_lock(hashtext('pollux.maintain')) then
    return null; -- somebody else is at it
  end if;
  for parent, day in
    select t.name, current_date + d
    from unnest(array['outbox', 'poll_attempts']) as t(name), generate_series(1, 3) as d
    order by d
  loop
    if pollux.make_partition(parent, day) then
      return format('made the partition of %s for %s', parent, day);
    end if;
  end loop;
  for parent, part in
    select p.relname, c.relname
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    join pg_class p on p.oid = i.inhparent
    where i.inhparent in ('pollux.outbox'::regclass, 'pollux.poll_attempts'::regclass)
      and case when c.relname ~ '_\d{8}$' then (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamptz end
        <= now() - case p.relname when 'outbox' then keep_events else keep_attempts end
    order by c.relname
  loop
    if pollux.drop_partition(parent, part) then
      return format('dropped %s', part);
    end if;
  end loop;
  delete from pollux.outbox_default where created_at < now() - keep_events and published_at is not null;
  get diagnostics n = row_count;
  if n = 0 then
    delete from pollux.poll_attempts_default where at < now() - keep_attempts;
    get diagnostics n = row_count;
  end if;
  return case when n > 0 then format('deleted %s old rows of a default partition', n) end;
end $$;
-- +goose StatementEnd

drop table pollux.maintain_turn, pollux.replay_turn, pollux.fetch_turns;
