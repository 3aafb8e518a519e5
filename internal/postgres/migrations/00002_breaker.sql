-- What became of the breakers: who opened or closed one, why, and when. The state itself is in the fleet's store; this is for people.

-- +goose Up

create table pollux.breaker_transitions (
  id         bigint generated always as identity primary key,
  at         timestamptz not null,
  gateway    text not null,
  account    text not null default '',
  from_state text not null,
  to_state   text not null,
  cause      text not null,
  reason     text not null default '',
  actor      text not null default '',
  epoch      bigint not null default 0,
  retry_at   timestamptz,
  instance   text not null default '',
  created_at timestamptz not null default now()
);

create index breaker_transitions_newest on pollux.breaker_transitions (gateway, account, id desc);

comment on table pollux.breaker_transitions is 'Transitions of the gateways'' breakers, written by the instance that made them.';

-- +goose Down

drop table pollux.breaker_transitions;
