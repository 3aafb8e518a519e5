-- The record: payments, their poll jobs, what was asked and answered, what is to be published, what is with a person.
-- Time is the database's everywhere: due times and leases are set and compared with now().
-- Payments and jobs have no check constraints: each statement that writes a row reads them from the catalog anew, which costs a payment that is tracked more than
-- all that they check. Triggers hold the same: functions are read once in a session, and conditions of triggers for updates cost an insert nothing.
-- No pattern has a bounded repetition: '^[[:graph:]]{1,255}$' alone takes 20 to 40 µs, sixty times what a length and an unbounded pattern take. None has a
-- class of characters either: what [[:graph:]] means depends on the database's locale.
-- Lock order, where one transaction touches both: the job first, then the payment.
-- Statements inside functions are written so that there is one way to run them, by key: their plans are made once for a
-- session, perhaps while the tables were empty, and are kept when they have grown.

-- +goose Up

comment on schema pollux is 'Pollux: pending payments on their way to a final status';

-- ------------------------------------------------------------------------------------------------ payments

create table pollux.payments (
  id                 bigint generated always as identity primary key,
  gateway            text not null,
  account            text not null default '',
  reference          text not null,
  merchant_reference text not null default '',
  class              text not null default 'standard',
  lane               text not null default 'normal',
  amount_minor       bigint not null,
  currency           text not null,
  status             text not null default 'pending',
  status_detail      text not null default '',
  status_source      text,
  status_updated_at  timestamptz not null default now(),
  revision           integer not null default 0,
  poll_after         timestamptz not null default now(),
  expires_at         timestamptz,
  created_at         timestamptz not null default now(),
  metadata           jsonb,
  traceparent        text,
  constraint payments_identity unique (gateway, account, reference)
) with (fillfactor = 85);

comment on table pollux.payments is 'Every payment that Pollux tracks. No index may contain the status, not even a partial one: updates would stop being HOT.';
comment on column pollux.payments.amount_minor is 'in the minor unit of the currency (ISO 4217): cents, yen, fils';
comment on column pollux.payments.status_detail is 'why it is pending or how it ended: processing, requires_action, authorized, …';
comment on column pollux.payments.revision is 'how often the status has changed; with the id it makes the id of the event';
comment on column pollux.payments.poll_after is 'when the first poll is due';
comment on column pollux.payments.expires_at is 'the payment''s own deadline: its last poll, then a person';

-- ------------------------------------------------------------------------------------------------ poll_jobs

-- No foreign key: the triggers below hold more than it would, and it would cost a third of what tracking a payment costs.
create table pollux.poll_jobs (
  payment_id        bigint primary key,
  gateway           text not null,
  lane              text not null,
  state             text not null default 'scheduled',
  next_poll_at      timestamptz not null default now(),
  locked_until      timestamptz,
  locked_by         text,
  lock_token        uuid,
  claimable_at      timestamptz not null generated always as (
                      case when state = 'dead' then timestamptz 'infinity' else greatest(next_poll_at, locked_until) end
                    ) stored,
  revision          bigint not null default 0,
  attempts          integer not null default 0,
  failures          integer not null default 0,
  not_founds        integer not null default 0,
  deferrals         integer not null default 0,
  replays           integer not null default 0,
  last_delay_ms     bigint not null default 0,
  last_class        text,
  last_message      text,
  window_started_at timestamptz not null default now(),
  updated_at        timestamptz not null default now()
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

comment on table pollux.poll_jobs is 'One row for each pending payment, none for any other.';
comment on column pollux.poll_jobs.state is 'scheduled, in_flight, held, deferred or dead; all but the first and the last have a lease';
comment on column pollux.poll_jobs.next_poll_at is 'when the next poll is due; never made earlier';
comment on column pollux.poll_jobs.claimable_at is 'when a relay may take it: the later of due time and lease. The one time that the relay''s index has.';
comment on column pollux.poll_jobs.revision is 'grows with every recorded delivery: with the token it is the fence of a consumer''s write';
comment on column pollux.poll_jobs.attempts is 'calls that the gateway answered';
comment on column pollux.poll_jobs.failures is 'consecutive calls that failed';
comment on column pollux.poll_jobs.not_founds is 'consecutive answers that the gateway does not know the payment';
comment on column pollux.poll_jobs.window_started_at is 'when the policy''s window began: tracked or last replayed';

-- Sleeping, leased, held and dead jobs are all behind its front, whatever their state, and a queue that
-- may take nothing now is not in the way of another.
create index poll_jobs_claim on pollux.poll_jobs (gateway, lane, claimable_at);

-- ------------------------------------------------------------------------------------------------ poll_attempts

create table pollux.poll_attempts (
  payment_id     bigint not null,
  at             timestamptz not null,
  due_at         timestamptz not null,
  took_us        bigint not null,
  class          text not null,
  http_status    smallint not null,
  gateway_status text not null,
  retry_after_ms bigint not null,
  message        text not null,
  disposition    text not null,
  reason         text not null,
  delay_ms       bigint not null,
  applied        boolean not null,
  attempts       integer not null,
  failures       integer not null,
  policy         text not null,
  worker         text not null,
  trace_id       text not null
) partition by range (at);

create index poll_attempts_payment on pollux.poll_attempts (payment_id);

comment on table pollux.poll_attempts is 'Every call to a gateway, a partition a day.';
comment on column pollux.poll_attempts.applied is 'false when the lease or the revision had moved on: the answer changed nothing';

-- ------------------------------------------------------------------------------------------------ outbox

create sequence pollux.outbox_seq;

create table pollux.outbox (
  seq          bigint not null default nextval('pollux.outbox_seq'),
  event_id     text not null,
  payment_id   bigint,
  subject      text not null,
  body         text not null,
  traceparent  text,
  created_at   timestamptz not null default now(),
  publish_at   timestamptz not null default now(),
  published_at timestamptz,
  stream       text,
  stream_seq   bigint,
  tries        integer not null default 0,
  set_aside    text,
  primary key (seq, created_at),
  constraint outbox_aside check ((set_aside is null) = isfinite(publish_at))
) partition by range (created_at);

alter sequence pollux.outbox_seq owned by pollux.outbox.seq;

create index outbox_unpublished on pollux.outbox (publish_at, seq) where published_at is null;

-- The events of one payment, for people. A tree would cost every event; this costs next to nothing, and leads to a few pages of a day's millions.
create index outbox_payment on pollux.outbox using brin (payment_id int8_bloom_ops) with (autosummarize = on);

comment on table pollux.outbox is 'Events to publish, kept a while after: a broker that lost its disk gets them again.';
comment on column pollux.outbox.publish_at is 'when it is to be published: at once, a while after a failure, never when it is set aside';
comment on column pollux.outbox.set_aside is 'why it can never be published; null when it can';

-- ------------------------------------------------------------------------------------------------ dead_letters

create table pollux.dead_letters (
  id             bigint generated always as identity primary key,
  payment_id     bigint references pollux.payments (id),
  gateway        text not null,
  account        text not null default '',
  class          text not null default '',
  amount_minor   bigint,
  currency       text,
  reason         text not null,
  state          text not null default 'open',
  last_class     text not null default '',
  http_status    smallint not null default 0,
  gateway_status text not null default '',
  message        text not null default '',
  attempts       integer not null default 0,
  failures       integer not null default 0,
  deferrals      integer not null default 0,
  replays        integer not null default 0,
  last_attempts  jsonb not null default '[]',
  policy         text not null default '',
  worker         text not null default '',
  trace_id       text not null default '',
  subject        text not null default '',
  body           bytea,
  deliveries     integer not null default 0,
  created_at     timestamptz not null default now(),
  died_at        timestamptz not null default now(),
  closed_at      timestamptz,
  closed_by      text,
  constraint dead_letters_state check (state in ('open', 'replaying', 'resolved', 'discarded')),
  constraint dead_letters_closed check ((state in ('resolved', 'discarded')) = (closed_at is not null)),
  constraint dead_letters_tied check (payment_id is not null or body is not null)
);

create unique index dead_letters_one_open on pollux.dead_letters (payment_id) where state in ('open', 'replaying');
create unique index dead_letters_one_message on pollux.dead_letters (subject, sha256(body)) where payment_id is null and state = 'open';
create index dead_letters_newest on pollux.dead_letters (state, id);
create index dead_letters_payment on pollux.dead_letters (payment_id);

comment on table pollux.dead_letters is 'What is with a person. The row is the truth, the message on payments.dead.> its announcement.';
comment on column pollux.dead_letters.created_at is 'when it died first; died_at is when it died last, after replays';

-- ------------------------------------------------------------------------------------------------ streams

create table pollux.streams (
  name          text primary key,
  created       timestamptz not null,
  last_sequence bigint not null,
  last_id       text not null default '',
  seen_at       timestamptz not null default now(),
  lost_at       timestamptz
);

comment on table pollux.streams is 'What the relays last saw of each stream: another creation time, a smaller sequence or another message at it means that messages were lost.';

-- ------------------------------------------------------------------------------------------------ the way in

-- +goose StatementBegin
create function pollux.payment_fault(
  gateway text, account text, reference text, merchant_reference text, class text, lane text, amount_minor bigint, currency text,
  poll_after timestamptz, expires_at timestamptz, metadata jsonb, traceparent text
) returns text language plpgsql stable parallel safe as $$
begin
  if gateway is null or length(gateway) > 64 or gateway !~ '^[a-z0-9][a-z0-9_-]*$' then
    return 'gateway: 1 to 64 of a-z, 0-9, _ and -, as it is named in the configuration of Pollux';
  elsif reference is null or length(reference) not between 1 and 255 or reference ~ '[^!-~]' then
    return 'reference: the gateway''s id of the payment, 1 to 255 printable ASCII characters without blanks';
  elsif amount_minor is null or amount_minor < 0 then
    return 'amount_minor: not below 0, in the minor unit of the currency (1999 for 19.99 EUR)';
  elsif currency is null or currency !~ '^[A-Z][A-Z][A-Z]$' then
    return 'currency: three capital letters (ISO 4217)';
  elsif class is null or length(class) > 64 or class !~ '^[a-z0-9][a-z0-9_-]*$' then
    return 'class: 1 to 64 of a-z, 0-9, _ and -; it chooses the policy';
  elsif account is null or length(account) > 128 or account ~ '[^A-Za-z0-9_.:-]' then
    return 'account: at most 128 of letters, digits and _ . : -';
  elsif merchant_reference is null or length(merchant_reference) > 255 or merchant_reference ~ '[\x01-\x1f\x7f]' then
    return 'merchant_reference: at most 255 characters without control characters';
  elsif lane is null or lane not in ('high', 'normal', 'low') then
    return 'lane: high, normal or low';
  elsif poll_after is null or not isfinite(poll_after) or poll_after > now() + interval '366 days' then
    return 'first_poll_after: between 0 and 1 year';
  elsif not isfinite(expires_at) then
    return 'expires_at: an instant, or null';
  elsif metadata is not null and octet_length(metadata::text) > 16384 then
    return 'metadata: at most 16 KiB as text';
  elsif traceparent is not null and (traceparent not like '__-________________________________-________________-__'
      or traceparent !~ '^[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$') then
    return 'traceparent: of the form of W3C Trace Context, or null';
  end if;
  return null;
end $$;
-- +goose StatementEnd

comment on function pollux.payment_fault is 'What is wrong with a payment to be tracked, or null.';

-- Nearly all payments pass at one look: one expression is set up once in a transaction, and a dozen take a dozen times as long. Only what does not pass is looked at
-- argument by argument.
-- +goose StatementBegin
create function pollux.payment_is_sound() returns trigger language plpgsql as $$
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

create trigger payment_is_sound before insert or update of gateway, account, reference, merchant_reference, class, lane, amount_minor, currency,
  poll_after, expires_at, created_at, metadata, traceparent on pollux.payments
  for each row execute function pollux.payment_is_sound();

-- A poll before now is refused as one that is never: now() and an interval would not tell.
create function pollux.first_poll(after interval) returns timestamptz language sql stable parallel safe as $$
  select case when after >= interval '0' then now() + after end
$$;

-- +goose StatementBegin
create function pollux.track_payment(
  gateway text, reference text, amount_minor bigint, currency text, class text default 'standard',
  account text default '', merchant_reference text default '', lane text default 'normal',
  first_poll_after interval default '0', expires_at timestamptz default null,
  metadata jsonb default null, traceparent text default null
) returns bigint language plpgsql as $$
#variable_conflict use_column
declare
  tracked bigint;
  known record;
begin
  loop
    insert into pollux.payments (gateway, account, reference, merchant_reference, class, lane, amount_minor, currency,
      poll_after, expires_at, metadata, traceparent)
    values (track_payment.gateway, track_payment.account, track_payment.reference, track_payment.merchant_reference,
      track_payment.class, track_payment.lane, track_payment.amount_minor, track_payment.currency,
      pollux.first_poll(first_poll_after), track_payment.expires_at, track_payment.metadata, track_payment.traceparent)
    on conflict (gateway, account, reference) do nothing
    returning id into tracked;
    if found then
      return tracked;
    end if;
    select p.id, p.amount_minor, p.currency into known
    from pollux.payments p
    where p.gateway = track_payment.gateway
      and p.account = track_payment.account
      and p.reference = track_payment.reference;
    exit when found; -- it may be gone by now
  end loop;
  if known.amount_minor <> track_payment.amount_minor or known.currency <> track_payment.currency then
    raise exception 'payment %/% is already tracked with % %, not % %', track_payment.gateway, track_payment.reference,
      known.amount_minor, known.currency, track_payment.amount_minor, track_payment.currency
      using errcode = 'unique_violation', hint = 'A payment keeps its amount. Another amount is another payment, with another reference.';
  end if;
  return known.id;
end $$;
-- +goose StatementEnd

comment on function pollux.track_payment is 'Tracks a pending payment in the caller''s own transaction and returns its id. Calling it again for the same payment is harmless; with another amount it is an error.';

create function pollux.incoming(payments jsonb)
returns table (
  ord bigint, gateway text, account text, reference text, merchant_reference text, class text, lane text, amount_minor bigint,
  currency text, poll_after timestamptz, expires_at timestamptz, metadata jsonb, traceparent text
) language sql stable parallel safe as $$
  select r.ord, r.gateway, coalesce(r.account, ''), r.reference, coalesce(r.merchant_reference, ''), coalesce(r.class, 'standard'),
    coalesce(r.lane, 'normal'), r.amount_minor, r.currency, pollux.first_poll(coalesce(r.first_poll_after, interval '0')), r.expires_at, r.metadata, r.traceparent
  from rows from (jsonb_to_recordset(payments) as (
    gateway text, account text, reference text, merchant_reference text, class text, lane text, amount_minor bigint,
    currency text, first_poll_after interval, expires_at timestamptz, metadata jsonb, traceparent text
  )) with ordinality as r(gateway, account, reference, merchant_reference, class, lane, amount_minor, currency, first_poll_after,
    expires_at, metadata, traceparent, ord)
$$;

-- What is wrong with the keys of an element that has others than pollux.track_payment has arguments.
create function pollux.key_fault(element jsonb) returns text language sql immutable parallel safe as $$
  select 'the key "' || left(min(k), 64) || '" is no argument of pollux.track_payment'
  from jsonb_object_keys(element) k
  where k <> all (array['gateway', 'account', 'reference', 'merchant_reference', 'class', 'lane', 'amount_minor', 'currency',
    'first_poll_after', 'expires_at', 'metadata', 'traceparent'])
$$;

-- What is wrong with the shape of an element: an argument that is misspelled would be taken for one that is not given.
create function pollux.element_fault(element jsonb) returns text language sql immutable parallel safe as $$
  select case
    when jsonb_typeof(element) <> 'object' then 'an object is needed, not ' || jsonb_typeof(element)
    when element - array['gateway', 'account', 'reference', 'merchant_reference', 'class', 'lane', 'amount_minor', 'currency',
      'first_poll_after', 'expires_at', 'metadata', 'traceparent'] <> '{}' then pollux.key_fault(element)
  end
$$;

-- What is wrong with a value that cannot be read as what it is to be, or null. It is asked only when an element could not be read.
-- +goose StatementBegin
create function pollux.value_fault(element jsonb) returns text language plpgsql stable as $$
begin
  begin
    perform (element ->> 'amount_minor')::bigint;
  exception when data_exception then
    return 'amount_minor: a whole number, in the minor unit of the currency (1999 for 19.99 EUR)';
  end;
  begin
    perform pollux.first_poll((element ->> 'first_poll_after')::interval);
  exception when data_exception then
    return 'first_poll_after: an interval between 0 and 1 year, such as "5 minutes"';
  end;
  begin
    perform (element ->> 'expires_at')::timestamptz;
  exception when data_exception then
    return 'expires_at: an instant, such as "2030-01-31T12:00:00Z", or null';
  end;
  return null;
end $$;
-- +goose StatementEnd

-- Elements are written in the order of their keys, so that two callers with the same payments wait for each other and never for ever.
-- +goose StatementBegin
create function pollux.track_payments(payments jsonb)
returns table (id bigint, gateway text, account text, reference text, tracked boolean)
language plpgsql set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
declare
  bad record;
  fault record;
  fresh bigint[];
begin
  if jsonb_typeof(payments) is distinct from 'array' then
    raise exception 'payments not tracked: the argument is an array of objects' using errcode = 'invalid_parameter_value',
      hint = 'For instance [{"gateway": "acme", "reference": "pay_1", "amount_minor": 1999, "currency": "EUR"}]';
  end if;
  select e.ord, pollux.element_fault(e.element) as fault into bad
  from jsonb_array_elements(payments) with ordinality as e(element, ord)
  where pollux.element_fault(e.element) is not null
  order by e.ord
  limit 1;
  if found then
    raise exception 'payments not tracked: element %: %', bad.ord - 1, bad.fault
      using errcode = 'invalid_parameter_value', hint = 'Nothing was written. Elements are counted from 0.';
  end if;

  begin
    with inserted as (
      insert into pollux.payments (gateway, account, reference, merchant_reference, class, lane, amount_minor, currency,
        poll_after, expires_at, metadata, traceparent)
      select i.gateway, i.account, i.reference, i.merchant_reference, i.class, i.lane, i.amount_minor, i.currency,
        i.poll_after, i.expires_at, i.metadata, i.traceparent
      from pollux.incoming(payments) i
      order by i.gateway, i.account, i.reference, i.ord
      on conflict (gateway, account, reference) do nothing
      returning id
    )
    select coalesce(array_agg(id), '{}') into fresh from inserted;
  exception when data_exception then -- of one of them: which, and is it the first?
    if sqlstate <> '22023' then -- not a fault that is named: an element cannot be read, so that only those before it can be looked at as payments
      select e.ord, pollux.value_fault(e.element) as fault into bad
      from jsonb_array_elements(payments) with ordinality as e(element, ord)
      where pollux.value_fault(e.element) is not null
      order by e.ord
      limit 1;
      if not found then
        raise;
      end if;
      payments := (
        select coalesce(jsonb_agg(e.element order by e.ord), '[]')
        from jsonb_array_elements(payments) with ordinality as e(element, ord)
        where e.ord < bad.ord
      );
    end if;
    select f.ord, f.fault into fault
    from (
      select i.ord, pollux.payment_fault(i.gateway, i.account, i.reference, i.merchant_reference, i.class, i.lane, i.amount_minor, i.currency,
        i.poll_after, i.expires_at, i.metadata, i.traceparent) as fault
      from pollux.incoming(payments) i
      offset 0
    ) f
    where f.fault is not null
    order by f.ord
    limit 1;
    if found then
      bad := fault;
    elsif sqlstate = '22023' then
      raise;
    end if;
    raise exception 'payments not tracked: element %: %', bad.ord - 1, bad.fault
      using errcode = 'invalid_parameter_value', hint = 'Nothing was written. Elements are counted from 0.';
  end;

  -- as many new ones as elements: none was known, none came twice
  if cardinality(fresh) < jsonb_array_length(payments) then
    select i.ord, i.amount_minor, i.currency, p.amount_minor as known_amount, p.currency as known_currency, i.gateway, i.reference into bad
    from pollux.incoming(payments) i
    join pollux.payments p on p.gateway = i.gateway and p.account = i.account and p.reference = i.reference
    where p.amount_minor <> i.amount_minor or p.currency <> i.currency
    order by i.ord
    limit 1;
    if found then
      raise exception 'payments not tracked: element %: payment %/% is already tracked with % %, not % %', bad.ord - 1, bad.gateway, bad.reference,
        bad.known_amount, bad.known_currency, bad.amount_minor, bad.currency
        using errcode = 'unique_violation', hint = 'Nothing was written. A payment keeps its amount; another amount is another payment.';
    end if;
  end if;

  return query
  select p.id, p.gateway, p.account, p.reference, p.id in (select unnest(fresh))
  from pollux.incoming(payments) i
  join pollux.payments p on p.gateway = i.gateway and p.account = i.account and p.reference = i.reference
  order by i.ord;
end $$;
-- +goose StatementEnd

comment on function pollux.track_payments is 'Tracks many pending payments in one call: an array of objects with the arguments of pollux.track_payment. All or nothing. It returns each one''s id, in order, and whether it is new.';

-- ------------------------------------------------------------------------------------------------ what must always hold

-- A pending payment has a job from the statement on that inserts it, whoever inserts it.
-- +goose StatementBegin
create function pollux.payments_begin() returns trigger language plpgsql as $$
begin
  insert into pollux.poll_jobs (payment_id, gateway, lane, next_poll_at)
  select id, gateway, lane, poll_after
  from begun
  where status = 'pending';
  return null;
end $$;
-- +goose StatementEnd

create trigger payments_begin after insert on pollux.payments
  referencing new table as begun
  for each statement execute function pollux.payments_begin();

-- A job begins in no other way. (Inside the trigger above the depth is 1.)
-- +goose StatementBegin
create function pollux.jobs_begin() returns trigger language plpgsql as $$
begin
  raise exception 'a poll job begins with its payment' using errcode = 'check_violation', constraint = 'poll_jobs_while_pending',
    hint = 'Call pollux.track_payment, or insert into pollux.payments.';
end $$;
-- +goose StatementEnd

create trigger jobs_begin before insert on pollux.poll_jobs
  for each statement when (pg_trigger_depth() = 0) execute function pollux.jobs_begin();

-- What contradicts a final status is put before a person, once for each thing that is said, and changes nothing.
-- +goose StatementBegin
create function pollux.contradict(p pollux.payments, said text, detail text, source text) returns void language plpgsql set enable_seqscan = off as $$
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

-- The status machine. Only an operator may contradict a final status, and nobody makes a payment pending again. What anybody else says against a final status, or
-- against what an operator has said, is a conflict: the row stays as it is, the statement changes none, and a person is asked.
-- +goose StatementBegin
create function pollux.payment_turns() returns trigger language plpgsql as $$
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

create trigger payment_turns before update on pollux.payments
  for each row when (
    old.status <> new.status
    or old.status_source is distinct from new.status_source
    or length(new.status_detail) > 255
  ) execute function pollux.payment_turns();

-- Whoever finishes a payment (a poll, a webhook, an operator) writes its event and ends its job with the same statement.
-- The two scans of the changed rows are hashed together: a nested loop planned for one row would be used for a thousand.
-- +goose StatementBegin
create function pollux.payments_turned() returns trigger language plpgsql
set enable_hashjoin = on set enable_nestloop = off set enable_mergejoin = off set timezone = 'UTC' as $$
declare
  turned bigint[];
begin
  with event as (
    insert into pollux.outbox (event_id, payment_id, subject, body, traceparent)
    select e.event_id, e.payment_id,
      case when e.previous_status <> 'pending' and e.status = 'succeeded' then 'payments.late_success.' || e.gateway
           else 'payments.resolved.' || e.gateway || '.' || e.status end,
      row_to_json(e), a.traceparent
    from after a
    join before b on b.id = a.id
    cross join lateral (
      select a.id || '-' || a.revision || '-' || a.status as event_id, a.id as payment_id, a.gateway, a.account, a.reference,
        a.merchant_reference, a.class, a.amount_minor, a.currency, a.status, b.status as previous_status, a.status_detail,
        a.status_source as source, a.status_updated_at as occurred_at, a.metadata
    ) e
    where a.status <> b.status
    returning payment_id
  )
  select array_agg(payment_id) into turned from event;
  if turned is not null then
    perform pollux.end_jobs(turned);
  end if;
  return null;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create function pollux.end_jobs(turned bigint[]) returns void language plpgsql set enable_seqscan = off as $$
begin
  delete from pollux.poll_jobs
  where payment_id = any (turned);
  update pollux.dead_letters d
  set state = 'resolved', closed_at = now(), closed_by = (select p.status_source from pollux.payments p where p.id = d.payment_id)
  where d.payment_id = any (turned)
    and d.state in ('open', 'replaying');
end $$;
-- +goose StatementEnd

create trigger payments_turned after update on pollux.payments
  referencing old table as before new table as after
  for each statement execute function pollux.payments_turned();

-- A job goes only with its payment's end.
-- +goose StatementBegin
create function pollux.jobs_end() returns trigger language plpgsql set enable_seqscan = off as $$
begin
  if exists (select from pollux.payments where id = any (array(select payment_id from gone)) and status = 'pending') then
    raise exception 'a pending payment keeps its poll job' using errcode = 'check_violation', constraint = 'poll_jobs_while_pending',
      hint = 'To stop polling a payment, hand it to a person; to end it, give it a final status.';
  end if;
  return null;
end $$;
-- +goose StatementEnd

create trigger jobs_end after delete on pollux.poll_jobs
  referencing old table as gone
  for each statement execute function pollux.jobs_end();

-- Nor does a pending payment go, nor a job change its payment; and a job has a lease exactly while it is with the broker or a consumer.
-- +goose StatementBegin
create function pollux.stays() returns trigger language plpgsql as $$
begin
  raise exception '%', tg_argv[0] using errcode = 'check_violation', constraint = tg_argv[1];
end $$;
-- +goose StatementEnd

create trigger payment_stays before delete on pollux.payments
  for each row when (old.status = 'pending')
  execute function pollux.stays('a pending payment is not deleted', 'poll_jobs_while_pending');

-- Its id, its identity and its money are what jobs, letters and events are about. An update that names none of these columns does not come here.
create trigger payment_keeps after update of id, gateway, account, reference, amount_minor, currency on pollux.payments
  for each row when (
    (old.id, old.gateway, old.account, old.reference, old.amount_minor, old.currency)
      is distinct from (new.id, new.gateway, new.account, new.reference, new.amount_minor, new.currency)
  ) execute function pollux.stays('a payment keeps its id, gateway, account, reference and amount: another one is another payment', 'payments_keep');

-- Afterwards, for a row that a trigger sees before it changes is locked once more.
create trigger job_stays after update on pollux.poll_jobs
  for each row when (old.payment_id <> new.payment_id)
  execute function pollux.stays('a poll job keeps its payment', 'poll_jobs_while_pending');
create trigger job_leased after update on pollux.poll_jobs
  for each row when (
    (new.lock_token is null) <> (new.state = 'scheduled' or new.state = 'dead')
    or (new.locked_until is null) <> (new.lock_token is null)
    or not isfinite(new.next_poll_at)
    or not isfinite(new.locked_until)
  ) execute function pollux.stays('a poll job has a lease unless it is scheduled or dead, and its times are instants', 'poll_jobs_lease');

-- +goose StatementBegin
create function pollux.truncated() returns trigger language plpgsql as $$
begin
  if exists (select from pollux.payments p where p.status = 'pending' and not exists (select from pollux.poll_jobs j where j.payment_id = p.id))
    or exists (select from pollux.poll_jobs j where not exists (select from pollux.payments p where p.id = j.payment_id)) then
    raise exception 'payments and poll jobs go together' using errcode = 'check_violation', constraint = 'poll_jobs_while_pending',
      hint = 'To empty the record: truncate pollux.payments, pollux.poll_jobs, pollux.dead_letters';
  end if;
  return null;
end $$;
-- +goose StatementEnd

create trigger payments_truncated after truncate on pollux.payments for each statement execute function pollux.truncated();
create trigger jobs_truncated after truncate on pollux.poll_jobs for each statement execute function pollux.truncated();

-- Hands a payment to a person: its job must be dead by now. A payment that dies again after a replay keeps its letter.
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

-- A dead letter announces itself, each time that it dies.
-- +goose StatementBegin
create function pollux.dead_letter_begins() returns trigger language plpgsql set timezone = 'UTC' as $$
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

create trigger dead_letter_begins after insert on pollux.dead_letters
  for each row when (new.state = 'open') execute function pollux.dead_letter_begins();
create trigger dead_letter_again after update on pollux.dead_letters
  for each row when (old.state = 'replaying' and new.state = 'open') execute function pollux.dead_letter_begins();

-- ------------------------------------------------------------------------------------------------ partitions

-- Locks are waited for a moment only, for whoever comes after waits behind: a dump that reads a table for an hour must not stop the payments.
-- Parents are locked before their parts, as by everybody else.

-- Makes the partition of a day and returns whether it did. It must not be a day that rows are written for: a session that has read the partitions while
-- one is attached may go on without it for a while, and would leave rows in the default partition that nobody finds there. Rows that lie in the default
-- partition because theirs was missing stay there.
-- +goose StatementBegin
create function pollux.make_partition(parent text, day date) returns boolean language plpgsql
set lock_timeout = '500ms' set timezone = 'UTC' set enable_seqscan = off as $$
declare
  part text := parent || '_' || to_char(day, 'YYYYMMDD');
  key text := case parent when 'outbox' then 'created_at' else 'at' end;
  used boolean;
begin
  if to_regclass('pollux.' || part) is not null then
    return false;
  end if;
  execute format('select exists (select from pollux.%I where %I >= %L and %I < %L)',
    parent || '_default', key, day::timestamptz, key, (day + 1)::timestamptz) into used;
  if used then
    return false;
  end if;
  execute format('create table pollux.%I (like pollux.%I including defaults including constraints)', part, parent);
  execute format('alter table pollux.%I attach partition pollux.%I for values from (%L) to (%L)', parent, part, day::timestamptz, (day + 1)::timestamptz);
  return true;
end $$;
-- +goose StatementEnd

-- Drops the partition of a day and returns whether it did: events that are not published stay.
-- +goose StatementBegin
create function pollux.drop_partition(parent text, part text) returns boolean language plpgsql
set lock_timeout = '500ms' set enable_seqscan = off as $$
declare
  waiting boolean := false;
begin
  if parent = 'outbox' then
    execute format('select exists (select from pollux.%I where published_at is null)', part) into waiting;
    if not waiting then
      execute format('lock table only pollux.%I in access exclusive mode', parent);
      execute format('lock table pollux.%I in access exclusive mode', part);
      execute format('select exists (select from pollux.%I where published_at is null)', part) into waiting;
    end if;
  end if;
  if not waiting then
    execute format('drop table pollux.%I', part);
  end if;
  return not waiting;
end $$;
-- +goose StatementEnd

-- Does one thing that is to be done, in a transaction of its own so that its locks are short, and says what; null when there is nothing left.
-- +goose StatementBegin
create function pollux.maintain(keep_events interval, keep_attempts interval) returns text language plpgsql
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

comment on function pollux.maintain is 'Makes the partitions of the next three days and drops those past their time, one thing a call: select it until it returns null. A partition with unpublished events is never dropped.';

create table pollux.outbox_default partition of pollux.outbox default;
create table pollux.poll_attempts_default partition of pollux.poll_attempts default;
select pollux.make_partition(t, (now() at time zone 'UTC')::date + d)
from unnest(array['outbox', 'poll_attempts']) as t, generate_series(0, 3) as d;

-- +goose Down

drop function pollux.track_payments, pollux.element_fault, pollux.key_fault, pollux.value_fault, pollux.incoming, pollux.track_payment, pollux.first_poll, pollux.payment_fault,
  pollux.maintain, pollux.make_partition, pollux.drop_partition, pollux.contradict;
drop table pollux.streams, pollux.dead_letters, pollux.outbox, pollux.poll_attempts, pollux.poll_jobs, pollux.payments;
drop function pollux.payment_is_sound, pollux.payments_begin, pollux.jobs_begin, pollux.payment_turns, pollux.payments_turned, pollux.end_jobs, pollux.jobs_end,
  pollux.stays, pollux.truncated, pollux.bury, pollux.dead_letter_begins;
