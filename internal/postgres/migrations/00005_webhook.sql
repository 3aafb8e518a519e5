-- What gateways tell of their own accord: each notice once, what it said, and what became of it. It is no queue: what was judged is never read again but by
-- people, and what waits for its payment is looked for at growing distances, so that notices about payments that are never tracked (another system's, of the
-- same account) cost a few looks each and then nothing.
--
-- One table, not one a day: its key is what keeps a notice from being taken twice, and vendors send for a month. Old rows are deleted in small steps.
--
-- Lock order: the job, the payment, then the notice.

-- +goose Up

create table pollux.webhook_events (
  id           bigint generated always as identity primary key,
  gateway      text not null,
  account      text not null default '',
  event_id     text not null,
  kind         text not null default '',
  refs         text[] not null default '{}',
  effect       text not null,
  status       text not null default '',
  detail       text not null default '',
  amount_minor bigint,
  currency     text,
  part         boolean not null default false,
  occurred_at  timestamptz,
  mode         text not null default '',
  key          text not null default '',
  digest       bytea not null,
  body         bytea,
  received_at  timestamptz not null default now(),
  decision     text not null,
  why          text not null default '',
  payment_id   bigint,
  decided_at   timestamptz not null default now(),
  look_at      timestamptz,
  constraint webhook_events_once unique (gateway, account, event_id),
  constraint webhook_events_effect check (effect in ('report', 'hint', 'nothing')),
  constraint webhook_events_waits check ((decision = 'waiting') = (look_at is not null)),
  constraint webhook_events_digest check (length(digest) = 32)
);

-- An expression, so that a plan that was made while the table was empty cannot take this index for the key.
create index webhook_events_newest on pollux.webhook_events ((gateway || ''), id);
create index webhook_events_payment on pollux.webhook_events (payment_id, occurred_at) where payment_id is not null;
create index webhook_events_waiting on pollux.webhook_events (look_at) where decision = 'waiting';
create index webhook_events_people on pollux.webhook_events (id) where decision in ('late_hint', 'conflict', 'mismatch', 'quarantined');

comment on table pollux.webhook_events is 'Verified notifications of gateways, each once, and what became of them.';
comment on column pollux.webhook_events.event_id is 'the vendor''s id of the event, or a key of what makes it one; sha256:… of the body where it has neither';
comment on column pollux.webhook_events.refs is 'the gateway''s ids of the payment that it may be about, the likeliest first';
comment on column pollux.webhook_events.effect is 'report: it says where the payment stands; hint: poll it now; nothing: it is about no status';
comment on column pollux.webhook_events.part is 'it may be about a part of the payment only';
comment on column pollux.webhook_events.digest is 'SHA-256 of the body as it came';
comment on column pollux.webhook_events.body is 'the body of what is quarantined, for a person; of nothing else';
comment on column pollux.webhook_events.key is 'the name of the key that signed it';
comment on column pollux.webhook_events.look_at is 'when its payment is looked for next';

-- What contradicts a final payment is for a person: its status is a dead letter, which announces itself, and so is a hint that something changed later; its money is announced here, for nothing else tells of
-- it. (A notice that hands a pending payment to a person is announced by the dead letter.)
-- +goose StatementBegin
create function pollux.webhook_contradicts() returns trigger language plpgsql set timezone = 'UTC' as $$
declare
  event_id text := 'webhook-' || new.id || '-' || new.decision;
begin
  if new.decision = 'conflict' then
    perform pollux.contradict(p, new.status, new.detail, 'webhook')
    from pollux.payments p
    where p.id = new.payment_id;
    return null;
  end if;
  if new.decision = 'late_hint' then
    perform pollux.review(new.payment_id, 'late_hint', 'webhook', '', new.why);
    return null;
  end if;
  insert into pollux.outbox (event_id, payment_id, subject, body, traceparent)
  select event_id, p.id, 'payments.review.' || new.gateway || '.' || new.decision,
    json_build_object('event_id', event_id, 'webhook_event_id', new.id, 'payment_id', p.id, 'gateway', p.gateway, 'account', p.account,
      'reference', p.reference, 'merchant_reference', p.merchant_reference, 'class', p.class, 'amount_minor', p.amount_minor, 'currency', p.currency,
      'status', p.status, 'reported_status', new.status, 'reported_amount_minor', new.amount_minor, 'reported_currency', new.currency,
      'reason', new.why, 'occurred_at', new.decided_at),
    p.traceparent
  from pollux.payments p
  where p.id = new.payment_id
    and p.status <> 'pending';
  perform pollux.review(new.payment_id, 'conflict', 'notification', coalesce(new.status, ''), new.why);
  return null;
end $$;
-- +goose StatementEnd

create trigger webhook_contradicts after insert on pollux.webhook_events
  for each row when (new.decision in ('late_hint', 'conflict', 'mismatch')) execute function pollux.webhook_contradicts();
create trigger webhook_contradicts_late after update on pollux.webhook_events
  for each row when (old.decision = 'waiting' and new.decision in ('late_hint', 'conflict', 'mismatch')) execute function pollux.webhook_contradicts();

comment on column pollux.poll_jobs.next_poll_at is 'when the next poll is due; made earlier by nothing but what the gateway tells, or its silence';

-- ------------------------------------------------------------------------------------------------ who may call what

-- PostgreSQL lets everybody execute a new function. Here that is the way in and what it asks, which write nothing beyond what the caller's own rights allow.
revoke execute on all functions in schema pollux from public;
grant execute on function pollux.track_payment, pollux.track_payments, pollux.payment_fault, pollux.first_poll, pollux.incoming, pollux.element_fault, pollux.key_fault,
  pollux.value_fault to public;

-- +goose Down

grant execute on all functions in schema pollux to public;

comment on column pollux.poll_jobs.next_poll_at is 'when the next poll is due; never made earlier';
drop table pollux.webhook_events;
drop function pollux.webhook_contradicts;
