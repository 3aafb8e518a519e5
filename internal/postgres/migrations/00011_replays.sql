-- A replay is what the second person saw, whoever writes.

-- +goose Up

alter table pollux.replays
  alter column state set default 'planned',
  drop constraint replays_state,
  add constraint replays_state check (state in ('planned', 'awaiting_approval', 'running', 'stopped', 'cancelled', 'undone', 'done'));

-- A replay is planned first, by whoever writes: its letters are chosen and what they add up to is written down. With its first turn it is frozen. Then no letter comes to it, so that
-- what begins is what the second person saw, and that somebody approved is said of one that waits alone.
create trigger replay_planned before insert on pollux.replays
  for each row when (new.state <> 'planned' or new.approved_by is not null or new.approved_at is not null)
  execute function pollux.stays('a replay is planned before it waits or runs: insert it without a state, choose its letters, then turn it', 'replays_planned');

create trigger replay_frozen before update on pollux.replays
  for each row when (
    old.state <> 'planned'
    and (
      new.state = 'planned'
      or (old.id, old.request_id, old.selection, old.letters, old.money, old.gateways, old.checksum, old.rate, old.created_at, old.created_by, old.login)
        is distinct from (new.id, new.request_id, new.selection, new.letters, new.money, new.gateways, new.checksum, new.rate, new.created_at, new.created_by, new.login)
    )
  ) execute function pollux.stays('what a replay is made of is frozen once it is planned: cancel it and make another', 'replays_frozen');

create trigger replay_approved before update on pollux.replays
  for each row when (old.state <> 'awaiting_approval' and (old.approved_by, old.approved_at) is distinct from (new.approved_by, new.approved_at))
  execute function pollux.stays('a replay is approved while it waits for that', 'replays_approval');

-- Whoever turns the replay meanwhile waits for whoever chooses, and the other way round.
-- +goose StatementBegin
create function pollux.replay_chosen() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  replay bigint;
begin
  for replay in select distinct i.replay_id from inserted i loop
    perform from pollux.replays r where r.id = replay and r.state = 'planned' for share;
    if not found then
      raise exception 'replay % is not being planned: no letter comes to it', replay using errcode = 'check_violation', constraint = 'replay_items_frozen',
        hint = 'pollux dlq replay makes another';
    end if;
  end loop;
  return null;
end $$;
-- +goose StatementEnd

revoke execute on function pollux.replay_chosen from public;

create trigger replay_chosen after insert on pollux.replay_items
  referencing new table as inserted
  for each statement execute function pollux.replay_chosen();

create trigger replay_item_left before update on pollux.replay_items
  for each row when (
    old.state not in ('chosen', 'queued') and new.state in ('chosen', 'queued')
    or (old.replay_id, old.letter_id, old.payment_id, old.amount_minor, old.currency) is distinct from (new.replay_id, new.letter_id, new.payment_id, new.amount_minor, new.currency)
  ) execute function pollux.stays('a letter that has left its replay does not come back to it', 'replay_items_frozen');

-- Who has the last word, and who may approve, is asked with PostgreSQL's own operators, whatever search_path the caller has: one of the caller's own would say what the caller likes.
alter function pollux.payment_turns set search_path = pg_catalog, pg_temp;
alter function pollux.replay_begins set search_path = pg_catalog, pg_temp;

-- +goose Down

alter function pollux.payment_turns reset search_path;
alter function pollux.replay_begins reset search_path;
drop trigger replay_approved on pollux.replays;
drop trigger replay_frozen on pollux.replays;
drop trigger replay_planned on pollux.replays;
drop trigger replay_chosen on pollux.replay_items;
drop trigger replay_item_left on pollux.replay_items;
drop function pollux.replay_chosen;
update pollux.replays set state = 'cancelled', ended_at = now() where state = 'planned';
alter table pollux.replays
  alter column state set default 'running',
  drop constraint replays_state,
  add constraint replays_state check (state in ('awaiting_approval', 'running', 'stopped', 'cancelled', 'undone', 'done'));
