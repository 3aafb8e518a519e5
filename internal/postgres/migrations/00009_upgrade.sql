-- Which builds may work on the schema. A step that only adds (a table, a column with a default, an index) leaves it as it is, so that the build before goes on while the new
-- one is rolled out, and can be rolled back to without touching the database. A step that takes away or changes what the build before needs comes a release later and says
-- here which step a build must know at least:
--   update pollux.schema_serves set since = 10;

-- +goose Up

create table pollux.schema_serves (
  since bigint not null
);

create unique index schema_serves_one on pollux.schema_serves ((true));

insert into pollux.schema_serves (since) values (9);

grant select on pollux.schema_serves to public;

comment on table pollux.schema_serves is 'One row: the oldest step that a build must know to work on this schema.';

-- +goose Down

drop table pollux.schema_serves;
