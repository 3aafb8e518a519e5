-- What the notices are about that wait for their payment: an index of a few rows, so that a payment that is tracked is found to be waited for without a query where it
-- is tracked. Nobody but the triggers below writes here.

-- +goose Up

create table pollux.webhook_waiting (
  event_id  bigint not null references pollux.webhook_events on delete cascade,
  gateway   text not null,
  account   text not null,
  reference text not null,
  primary key (event_id, reference)
);

create index webhook_waiting_reference on pollux.webhook_waiting (gateway, account, reference, event_id);

comment on table pollux.webhook_waiting is 'The references of notices whose decision is waiting.';
comment on column pollux.webhook_waiting.event_id is 'the id of the notice in pollux.webhook_events';

-- +goose StatementBegin
create function pollux.webhook_waits() returns trigger language plpgsql as $$
begin
  if new.decision = 'waiting' then
    insert into pollux.webhook_waiting (event_id, gateway, account, reference)
    select distinct new.id, new.gateway, new.account, r
    from unnest(new.refs) r;
  else
    delete from pollux.webhook_waiting
    where event_id = new.id;
  end if;
  return null;
end $$;
-- +goose StatementEnd

revoke execute on function pollux.webhook_waits from public;

create trigger webhook_waits after insert on pollux.webhook_events
  for each row when (new.decision = 'waiting') execute function pollux.webhook_waits();
create trigger webhook_waits_no_more after update on pollux.webhook_events
  for each row when (old.decision = 'waiting' and new.decision <> 'waiting') execute function pollux.webhook_waits();

insert into pollux.webhook_waiting (event_id, gateway, account, reference)
select distinct id, gateway, account, r
from pollux.webhook_events
cross join unnest(refs) r
where decision = 'waiting';

-- +goose Down

drop trigger webhook_waits on pollux.webhook_events;
drop trigger webhook_waits_no_more on pollux.webhook_events;
drop function pollux.webhook_waits;
drop table pollux.webhook_waiting;
