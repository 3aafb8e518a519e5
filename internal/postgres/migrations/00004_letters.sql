-- What a person needs to put dead letters right: what they have in common, who is at it and what was found out, and replays whose every row is known.
-- Lock order, where one transaction touches several: the replay, then jobs in the order of their payments, payments, letters, the rows of a replay.

-- +goose Up

-- ------------------------------------------------------------------------------------------------ what letters have in common

-- The fingerprint of a fault: its class, the gateway's codes and its message without what differs from payment to payment. What is quoted, every amount with
-- its currency and every word with a digit in it (numbers, ids, uuids, addresses) is the same as any other. Of a mismatch the gateway's status is that of the
-- payment, and no part of the fault.
create function pollux.fingerprint(class text, http_status integer, gateway_status text, message text) returns text
language sql immutable parallel safe as $$
  select left(encode(sha256(convert_to(class || ' ' || http_status || ' ' || case when class = 'mismatch' then '' else gateway_status end || ' ' ||
    left(regexp_replace(regexp_replace(regexp_replace(regexp_replace(
      lower(regexp_replace(regexp_replace(message, '; it last changed .*', ''), '-?[0-9][0-9.,]* ?[A-Z]{3}\M', '0', 'g')),
      '"[^"]*"|`[^`]*`|(?:^|(?<=[ :=(]))''[^'']*''', '?', 'g'),
      '[a-z0-9_-]*[0-9][a-z0-9_-]*', '?', 'g'),
      '\?(?:[.,:/]+\?)+', '?', 'g'),
      '[ \t\r\n]+', ' ', 'g'), 200), 'UTF8')), 'hex'), 12)
$$;

comment on function pollux.fingerprint is 'Letters with the same fingerprint have the same fault: class, codes and message, without ids, amounts and numbers.';

alter table pollux.dead_letters
  add column fingerprint text generated always as (
    pollux.fingerprint(case when last_class = '' then reason else last_class end, http_status, gateway_status, message)
  ) stored,
  add column review boolean not null default false,
  add column owner text not null default '',
  add column link text not null default '',
  add column first_class text not null default '',
  add column first_message text not null default '',
  add column first_at timestamptz,
  add column classes jsonb not null default '{}',
  add column policy_hash text not null default '',
  add column build text not null default '',
  add column said text[] not null default '{}',
  drop constraint dead_letters_state,
  add constraint dead_letters_state check (state in ('open', 'replaying', 'resolved', 'discarded', 'parked'));

-- An index alone answers only where the table was vacuumed.
alter table pollux.dead_letters set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

comment on column pollux.dead_letters.review is 'about a payment that is final: a person is to look, nothing is to be polled';
comment on column pollux.dead_letters.said is 'of a letter about a final payment: the different things that were said, the newest first, twenty at the most';
comment on column pollux.dead_letters.owner is 'who looks after it; empty: nobody';
comment on column pollux.dead_letters.classes is 'how often the gateway answered with each class, of the last thousand answers';
comment on column pollux.dead_letters.first_class is 'of the first answer that was not a status of the payment, as is first_message';

drop index pollux.dead_letters_one_open;
create unique index dead_letters_one_open on pollux.dead_letters (payment_id) where state in ('open', 'replaying', 'parked') and not review;
create unique index dead_letters_one_review on pollux.dead_letters (payment_id, reason) where state in ('open', 'parked') and review;
-- Groups are counted from this index alone; a group's letters are at one place in it.
create index dead_letters_groups on pollux.dead_letters (state, fingerprint, gateway, reason, currency) include (amount_minor, created_at, died_at, replays, id);
create index dead_letters_gateway on pollux.dead_letters (state, gateway, id);
create index dead_letters_reason on pollux.dead_letters (state, reason, id);
create index dead_letters_age on pollux.dead_letters (state, died_at);

-- ------------------------------------------------------------------------------------------------ what people say

create table pollux.dead_letter_notes (
  id        bigint generated always as identity primary key,
  letter_id bigint not null,
  at        timestamptz not null default now(),
  actor     text not null,
  login     text not null default session_user,
  text      text not null,
  constraint dead_letter_notes_text check (length(text) between 1 and 2000)
);

create index dead_letter_notes_letter on pollux.dead_letter_notes (letter_id, id);

comment on table pollux.dead_letter_notes is 'What people found out about dead letters, and what those about final payments said before. Rows are added, never changed.';

create trigger notes_stay before update or delete on pollux.dead_letter_notes
  for each row execute function pollux.stays('a note stays as it was written', 'dead_letter_notes_append_only');

create trigger notes_stay_all before truncate on pollux.dead_letter_notes
  for each statement execute function pollux.stays('a note stays as it was written', 'dead_letter_notes_append_only');

-- ------------------------------------------------------------------------------------------------ replays

create table pollux.replays (
  id              bigint generated always as identity primary key,
  request_id      text not null,
  selection       text not null,
  reason          text not null,
  state           text not null default 'running',
  why             text not null default '',
  letters         integer not null default 0,
  money           jsonb not null default '{}',
  gateways        text[] not null default '{}',
  checksum        text not null default '',
  rate            double precision not null default 1,
  priority        text not null default 'age',
  stage           integer not null default 0,
  leg             integer not null default 0,
  next_release_at timestamptz not null default now(),
  driven_at       timestamptz,
  driver          text not null default '',
  created_at      timestamptz not null default now(),
  created_by      text not null,
  login           text not null default session_user,
  approved_by     text,
  approved_at     timestamptz,
  ended_at        timestamptz,
  ended_by        text not null default '',
  ended_why       text not null default '',
  constraint replays_request unique (request_id),
  constraint replays_state check (state in ('awaiting_approval', 'running', 'stopped', 'cancelled', 'undone', 'done'))
);

comment on table pollux.replays is 'Replays of dead letters: what was chosen, frozen, and how far it has come.';
comment on column pollux.replays.stage is '0: one letter is tried, 1: ten more, 2: the rest';
comment on column pollux.replays.leg is 'grows with each stage and each time that it is resumed: what came back in an earlier leg does not stop this one';
comment on column pollux.replays.ended_by is 'who cancelled or undid it; empty: nobody';
comment on column pollux.replays.next_release_at is 'when the rate allows the next one; whoever drives the replay';

-- No foreign keys: a replay of a million letters is written in one statement, and letters stay.
create table pollux.replay_items (
  replay_id    bigint not null,
  ord          integer not null,
  letter_id    bigint not null,
  payment_id   bigint,
  gateway      text not null default '',
  fingerprint  text not null default '',
  amount_minor bigint,
  currency     text,
  state        text not null default 'chosen',
  verdict      text not null default '',
  detail       text not null default '',
  leg          integer,
  revision     bigint,
  released_at  timestamptz,
  answered_at  timestamptz,
  ended_at     timestamptz,
  came_back    boolean not null default false,
  primary key (replay_id, ord),
  constraint replay_items_state check (state in ('chosen', 'queued', 'resolved', 'failed_again', 'final', 'refused', 'cancelled', 'undone'))
);

-- A letter is in one replay at a time, whoever asks for it.
create unique index replay_items_active on pollux.replay_items (letter_id) where state in ('chosen', 'queued');
create index replay_items_progress on pollux.replay_items (replay_id, state, ord);
create index replay_items_letter on pollux.replay_items (letter_id);

comment on table pollux.replay_items is 'The letters of a replay and what became of each.';
comment on column pollux.replay_items.revision is 'of the job when it was made due: as long as it has that, nobody has polled it';
comment on column pollux.replay_items.came_back is 'with the same fingerprint';

-- A letter that leaves its replay says how.
-- +goose StatementBegin
create function pollux.dead_letter_left() returns trigger language plpgsql set enable_seqscan = off as $$
begin
  update pollux.replay_items i
  set state = case
        when new.state = 'resolved' then 'resolved'
        when new.state = 'open' and new.died_at <> old.died_at then 'failed_again'
        when new.state = 'open' then 'undone'
        else 'cancelled'
      end,
      detail = case when new.state = 'open' then new.reason else coalesce(new.closed_by, '') end,
      came_back = new.state = 'open' and new.died_at <> old.died_at and new.fingerprint = i.fingerprint,
      ended_at = now()
  where i.letter_id = new.id
    and i.state = 'queued';
  return null;
end $$;
-- +goose StatementEnd

create trigger dead_letter_left after update on pollux.dead_letters
  for each row when (old.state = 'replaying' and new.state <> 'replaying') execute function pollux.dead_letter_left();

-- ------------------------------------------------------------------------------------------------ how letters come and go

drop function pollux.bury(bigint, text, text, smallint, text, text, text, text, text, bytea);

-- Hands a payment to a person: its job must be dead by now. A payment that dies again after a replay keeps its letter.
-- +goose StatementBegin
create function pollux.bury(
  payment_id bigint, reason text, last_class text, http_status smallint, gateway_status text, message text,
  policy text, worker text, trace_id text, body bytea, policy_hash text default '', build text default ''
) returns void language plpgsql set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
begin
  insert into pollux.dead_letters as d (payment_id, gateway, account, class, amount_minor, currency, reason, last_class, http_status,
    gateway_status, message, attempts, failures, deferrals, replays, policy, worker, trace_id, body, policy_hash, build,
    last_attempts, classes, first_class, first_message, first_at)
  select p.id, p.gateway, p.account, p.class, p.amount_minor, p.currency, bury.reason, bury.last_class, bury.http_status,
    bury.gateway_status, bury.message, j.attempts, j.failures, j.deferrals, j.replays, bury.policy, bury.worker, bury.trace_id, bury.body,
    bury.policy_hash, bury.build,
    coalesce((
      select jsonb_agg(jsonb_build_object('at', a.at, 'class', a.class, 'http_status', a.http_status, 'gateway_status', a.gateway_status,
        'message', a.message, 'took_ms', a.took_us / 1000, 'disposition', a.disposition, 'reason', a.reason) order by a.at desc)
      from (select * from pollux.poll_attempts t where t.payment_id = p.id order by t.at desc limit 10) a
    ), '[]'),
    coalesce((
      select jsonb_object_agg(c.class, c.n)
      from (
        select a.class, count(*) as n
        from (select t.class from pollux.poll_attempts t where t.payment_id = p.id order by t.at desc limit 1000) a
        group by a.class
      ) c
    ), '{}'),
    coalesce(f.class, ''), coalesce(f.message, ''), f.at
  from pollux.payments p
  join pollux.poll_jobs j on j.payment_id = p.id
  left join lateral (
    select t.class, t.message, t.at
    from pollux.poll_attempts t
    where t.payment_id = p.id
      and t.class not in ('pending', 'final', 'local')
    order by t.at
    limit 1
  ) f on true
  where p.id = bury.payment_id
    and j.state = 'dead'
  on conflict (payment_id) where state in ('open', 'replaying', 'parked') and not review do update
  set state = 'open', reason = excluded.reason, last_class = excluded.last_class, http_status = excluded.http_status,
      gateway_status = excluded.gateway_status, message = excluded.message, attempts = excluded.attempts, failures = excluded.failures,
      deferrals = excluded.deferrals, replays = excluded.replays, policy = excluded.policy, worker = excluded.worker,
      trace_id = excluded.trace_id, body = excluded.body, policy_hash = excluded.policy_hash, build = excluded.build,
      last_attempts = excluded.last_attempts, classes = excluded.classes, died_at = now(),
      first_class = case when d.first_at is null then excluded.first_class else d.first_class end,
      first_message = case when d.first_at is null then excluded.first_message else d.first_message end,
      first_at = coalesce(d.first_at, excluded.first_at);
end $$;
-- +goose StatementEnd

-- Asks a person to look at a payment that is final: what somebody says contradicts it, or it succeeded late. Said again, it is the same letter. What is said besides
-- is the same letter too: it stands in it then, what stood in it becomes a note, it announces itself again, and is open if it was parked.
-- +goose StatementBegin
create function pollux.review(
  payment_id bigint, reason text, source text, gateway_status text default '', message text default '', http_status smallint default 0,
  trace_id text default '', body bytea default null
) returns bigint language plpgsql set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
declare
  thing text := left(case when review.source = 'notification' then review.message else review.gateway_status end, 512);
  known text[];
  letter bigint;
begin
  insert into pollux.dead_letters as d (payment_id, gateway, account, class, amount_minor, currency, reason, review, last_class, http_status,
    gateway_status, message, worker, trace_id, body, deliveries, said)
  select p.id, p.gateway, p.account, p.class, p.amount_minor, p.currency, review.reason, true, review.reason, review.http_status,
    left(review.gateway_status, 64), left(review.message, 512), review.source, review.trace_id, review.body, 1, array[thing]
  from pollux.payments p
  where p.id = review.payment_id
    and p.status <> 'pending'
  on conflict (payment_id, reason) where state in ('open', 'parked') and review do update
  set deliveries = d.deliveries + 1
  returning d.id, d.said into letter, known;
  if letter is null or thing = any (known) then
    return letter;
  end if;
  insert into pollux.dead_letter_notes (letter_id, actor, text)
  select d.id, coalesce(nullif(d.worker, ''), 'pollux'), concat_ws(': ',
    'said before, at ' || to_char(d.died_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"'), nullif(d.gateway_status, ''), nullif(d.message, ''))
  from pollux.dead_letters d
  where d.id = letter;
  update pollux.dead_letters d
  set state = 'open', http_status = review.http_status, gateway_status = left(review.gateway_status, 64), message = left(review.message, 512), worker = review.source,
      trace_id = review.trace_id, body = review.body, died_at = now(), said = (thing || d.said)[:20]
  where d.id = letter;
  return letter;
end $$;
-- +goose StatementEnd

comment on function pollux.review is 'Puts a final payment before a person: reason conflict (source says what contradicts the status), late_success or late_hint. It returns the letter; null for a payment that is pending or not tracked.';

-- What contradicts a final status is put before a person, once for each thing that is said, and changes nothing.
-- +goose StatementBegin
create or replace function pollux.contradict(p pollux.payments, said text, detail text, source text) returns void language plpgsql set enable_seqscan = off as $$
begin
  if not exists (select from pollux.dead_letters d where d.payment_id = p.id and d.reason = 'conflict' and contradict.said = any (d.said)) then
    perform pollux.review(p.id, 'conflict', source, said,
      format('said by %s, but it is %s by %s since %s', concat_ws(': ', source, nullif(detail, '')), p.status, p.status_source,
        to_char(p.status_updated_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')));
  end if;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create function pollux.payment_succeeded_late() returns trigger language plpgsql as $$
begin
  perform pollux.review(new.id, 'late_success', new.status_source, old.status, 'it was ' || old.status || ' and succeeded, says the ' || new.status_source);
  return null;
end $$;
-- +goose StatementEnd

create trigger payment_succeeded_late after update on pollux.payments
  for each row when (old.status <> 'pending' and new.status = 'succeeded' and old.status <> new.status and new.status_source <> 'operator')
  execute function pollux.payment_succeeded_late();

-- +goose StatementBegin
create or replace function pollux.end_jobs(turned bigint[]) returns void language plpgsql set enable_seqscan = off as $$
begin
  delete from pollux.poll_jobs
  where payment_id = any (turned);
  update pollux.dead_letters d
  set state = 'resolved',
      closed_at = now(),
      closed_by = (
        select case when d.state = 'replaying' and p.status_source = 'poll' then 'replay' else p.status_source end
        from pollux.payments p
        where p.id = d.payment_id
      )
  where d.payment_id = any (turned)
    and d.state in ('open', 'replaying', 'parked')
    and (not d.review or (select p.status_source from pollux.payments p where p.id = d.payment_id) = 'operator'); -- who says what is right has looked
end $$;
-- +goose StatementEnd

-- A dead letter announces itself, each time that it dies; one about a final payment for each thing that is said.
-- +goose StatementBegin
create or replace function pollux.dead_letter_begins() returns trigger language plpgsql set timezone = 'UTC' as $$
declare
  event_id text := case
    when new.review then new.payment_id || '-' || new.reason || '-' || new.id || case when new.deliveries > 1 then '-' || new.deliveries else '' end
    else coalesce(new.payment_id::text, 'message-' || new.id) || '-dead-' || new.replays || '-' || new.reason
  end;
begin
  insert into pollux.outbox (event_id, payment_id, subject, body, traceparent)
  values (
    event_id, new.payment_id, 'payments.dead.' || new.gateway || '.' || new.reason,
    json_build_object('event_id', event_id, 'dead_letter_id', new.id, 'payment_id', new.payment_id,
      'gateway', new.gateway, 'account', new.account, 'class', new.class, 'amount_minor', new.amount_minor, 'currency', new.currency,
      'reason', new.reason, 'fingerprint', new.fingerprint, 'last_class', new.last_class, 'http_status', new.http_status, 'message', new.message,
      'attempts', new.attempts, 'failures', new.failures, 'deferrals', new.deferrals, 'replays', new.replays, 'occurred_at', new.died_at),
    (select p.traceparent from pollux.payments p where p.id = new.payment_id));
  return null;
end $$;
-- +goose StatementEnd

drop trigger dead_letter_begins on pollux.dead_letters;
create trigger dead_letter_begins after insert on pollux.dead_letters
  for each row when (new.state = 'open' and new.reason <> 'late_success' and not (new.review and new.worker = 'notification')) -- these have events of their own
  execute function pollux.dead_letter_begins();
drop trigger dead_letter_again on pollux.dead_letters;
create trigger dead_letter_again after update on pollux.dead_letters
  for each row when (
    not new.review and old.state in ('replaying', 'parked') and new.state = 'open' and new.died_at <> old.died_at
    or new.review and new.said <> old.said and new.worker <> 'notification'
  ) execute function pollux.dead_letter_begins();

-- +goose Down

drop trigger payment_succeeded_late on pollux.payments;
drop function pollux.payment_succeeded_late, pollux.review;
drop trigger dead_letter_left on pollux.dead_letters;
drop function pollux.dead_letter_left;
drop table pollux.replay_items, pollux.replays, pollux.dead_letter_notes;

drop trigger dead_letter_begins on pollux.dead_letters;
create trigger dead_letter_begins after insert on pollux.dead_letters
  for each row when (new.state = 'open') execute function pollux.dead_letter_begins();
drop trigger dead_letter_again on pollux.dead_letters;
create trigger dead_letter_again after update on pollux.dead_letters
  for each row when (old.state = 'replaying' and new.state = 'open') execute function pollux.dead_letter_begins();

drop function pollux.bury(bigint, text, text, smallint, text, text, text, text, text, bytea, text, text);

-- +goose StatementBegin
create or replace function pollux.end_jobs(turned bigint[]) returns void language plpgsql set enable_seqscan = off as $$
begin
  delete from pollux.poll_jobs
  where payment_id = any (turned);
  update pollux.dead_letters d
  set state = 'resolved', closed_at = now(), closed_by = (select p.status_source from pollux.payments p where p.id = d.payment_id)
  where d.payment_id = any (turned)
    and d.state in ('open', 'replaying');
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function pollux.dead_letter_begins() returns trigger language plpgsql set timezone = 'UTC' as $$
declare
  event_id text := coalesce(new.payment_id::text, 'message-' || new.id)
    || case new.reason when 'conflict' then '-conflict-' || new.gateway_status else '-dead-' || new.replays || '-' || new.reason end;
begin
  insert into pollux.outbox (event_id, payment_id, subject, body, traceparent)
  values (
    event_id, new.payment_id, 'payments.dead.' || new.gateway || '.' || new.reason,
    json_build_object('event_id', event_id, 'dead_letter_id', new.id, 'payment_id', new.payment_id,
      'gateway', new.gateway, 'account', new.account, 'class', new.class, 'amount_minor', new.amount_minor, 'currency', new.currency,
      'reason', new.reason, 'last_class', new.last_class, 'http_status', new.http_status, 'message', new.message, 'attempts', new.attempts,
      'failures', new.failures, 'deferrals', new.deferrals, 'replays', new.replays, 'occurred_at', new.died_at),
    (select p.traceparent from pollux.payments p where p.id = new.payment_id));
  return null;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function pollux.contradict(p pollux.payments, said text, detail text, source text) returns void language plpgsql set enable_seqscan = off as $$
begin
  if exists (select from pollux.dead_letters d where d.payment_id = p.id and d.reason = 'conflict' and d.gateway_status = said) then
    return;
  end if;
  insert into pollux.dead_letters as d (payment_id, gateway, account, class, amount_minor, currency, reason, last_class, gateway_status, message)
  values (p.id, p.gateway, p.account, p.class, p.amount_minor, p.currency, 'conflict', 'final', said,
    format('said by %s, but it is %s by %s since %s', concat_ws(': ', source, nullif(detail, '')), p.status, p.status_source,
      to_char(p.status_updated_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')))
  on conflict (payment_id) where state in ('open', 'replaying') do update
  set gateway_status = excluded.gateway_status, message = excluded.message, deliveries = d.deliveries + 1, died_at = now();
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create function pollux.bury(
  payment_id bigint, reason text, last_class text, http_status smallint, gateway_status text, message text,
  policy text, worker text, trace_id text, body bytea
) returns void language plpgsql set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
begin
  insert into pollux.dead_letters as d (payment_id, gateway, account, class, amount_minor, currency, reason, last_class, http_status,
    gateway_status, message, attempts, failures, deferrals, replays, policy, worker, trace_id, body, last_attempts)
  select p.id, p.gateway, p.account, p.class, p.amount_minor, p.currency, bury.reason, bury.last_class, bury.http_status,
    bury.gateway_status, bury.message, j.attempts, j.failures, j.deferrals, j.replays, bury.policy, bury.worker, bury.trace_id, bury.body,
    coalesce((
      select jsonb_agg(jsonb_build_object('at', a.at, 'class', a.class, 'http_status', a.http_status, 'gateway_status', a.gateway_status,
        'message', a.message, 'took_ms', a.took_us / 1000, 'disposition', a.disposition, 'reason', a.reason) order by a.at desc)
      from (select * from pollux.poll_attempts t where t.payment_id = p.id order by t.at desc limit 10) a
    ), '[]')
  from pollux.payments p
  join pollux.poll_jobs j on j.payment_id = p.id
  where p.id = bury.payment_id
    and j.state = 'dead'
  on conflict (payment_id) where state in ('open', 'replaying') do update
  set state = 'open', reason = excluded.reason, last_class = excluded.last_class, http_status = excluded.http_status,
      gateway_status = excluded.gateway_status, message = excluded.message, attempts = excluded.attempts, failures = excluded.failures,
      deferrals = excluded.deferrals, replays = excluded.replays, policy = excluded.policy, worker = excluded.worker,
      trace_id = excluded.trace_id, body = excluded.body, last_attempts = excluded.last_attempts, died_at = now();
end $$;
-- +goose StatementEnd

-- What only the newer schema knows goes; parked letters are open again.
delete from pollux.dead_letters where review;
update pollux.dead_letters set state = 'open' where state = 'parked';
drop index pollux.dead_letters_one_open, pollux.dead_letters_one_review, pollux.dead_letters_groups,
  pollux.dead_letters_gateway, pollux.dead_letters_reason, pollux.dead_letters_age;
alter table pollux.dead_letters
  drop column fingerprint, drop column review, drop column owner, drop column link, drop column first_class, drop column first_message,
  drop column first_at, drop column said, drop column classes, drop column policy_hash, drop column build,
  drop constraint dead_letters_state,
  add constraint dead_letters_state check (state in ('open', 'replaying', 'resolved', 'discarded'));
alter table pollux.dead_letters reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_insert_scale_factor, autovacuum_analyze_scale_factor);
create unique index dead_letters_one_open on pollux.dead_letters (payment_id) where state in ('open', 'replaying');
drop function pollux.fingerprint;
