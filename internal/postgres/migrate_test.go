package postgres

import (
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"

	"pollux/internal/pgtest"
)

// left lists what the schema pollux holds besides goose's table of versions.
const left = `
	select coalesce(string_agg(name, ', '), '')
	from (
	  select c.relname::text as name from pg_class c where c.relnamespace = 'pollux'::regnamespace and c.relname !~ '^schema_version'
	  union all
	  select p.proname from pg_proc p where p.pronamespace = 'pollux'::regnamespace
	  union all
	  select t.typname from pg_type t where t.typnamespace = 'pollux'::regnamespace and t.typname !~ 'schema_version'
	) x`

func TestMigrationsGoUpAndDownAndUpAgain(t *testing.T) {
	ctx, url := t.Context(), pgtest.New(t, nil)
	r := openRecord(t, url)
	if err := CheckSchema(ctx, r.pool); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "it has no schema pollux; run: pollux migrate up") {
		t.Fatalf("an empty database: %v", err)
	}
	all, err := Migrations(ctx, url)
	if err != nil || len(all) == 0 {
		t.Fatalf("steps: %v, %v", all, err)
	}
	for _, m := range all {
		if !m.AppliedAt.IsZero() {
			t.Errorf("step %s is applied in an empty database", m.Name)
		}
	}
	for range 2 {
		steps, err := Migrate(ctx, url)
		if err != nil || len(steps) != len(all) {
			t.Fatalf("up: %d steps of %d, %v", len(steps), len(all), err)
		}
		if steps, err := Migrate(ctx, url); err != nil || len(steps) != 0 {
			t.Fatalf("up when it is up: %v, %v", steps, err)
		}
		if err := CheckSchema(ctx, r.pool); err != nil {
			t.Fatal(err)
		}
		applied, err := Migrations(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range applied {
			if m.AppliedAt.IsZero() {
				t.Errorf("step %s is not applied after up", m.Name)
			}
		}
		id := query[int64](t, r, `select pollux.track_payment('sim', 'one', 100, 'EUR')`)
		if jobs := query[int](t, r, `select count(*) from pollux.poll_jobs where payment_id = $1`, id); jobs != 1 {
			t.Fatalf("%d jobs", jobs)
		}
		for i := range all {
			step, err := MigrateDown(ctx, url)
			if err != nil || step.Version != all[len(all)-1-i].Version {
				t.Fatalf("down: %+v, %v", step, err)
			}
		}
		if rest := query[string](t, r, left); rest != "" {
			t.Fatalf("down leaves %s", rest)
		}
		if err := CheckSchema(ctx, r.pool); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "version 0") || !strings.Contains(err.Error(), "run: pollux migrate up") {
			t.Fatalf("after down: %v", err)
		}
	}
	if step, err := MigrateDown(ctx, url); err == nil {
		t.Fatalf("down when it is down: %+v", step)
	}
}

func TestMigratorsAtOnceTakeTurns(t *testing.T) {
	ctx, url := t.Context(), pgtest.New(t, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for range 4 {
		wg.Go(func() {
			steps, err := Migrate(ctx, url)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			taken += len(steps)
			mu.Unlock()
		})
	}
	wg.Wait()
	all, err := Migrations(ctx, url)
	if err != nil || taken != len(all) {
		t.Fatalf("%d steps were taken of %d, %v", taken, len(all), err)
	}
	if err := CheckSchema(ctx, openRecord(t, url).pool); err != nil {
		t.Fatal(err)
	}
}

// The build before goes on while a newer one is rolled out, and after it was rolled back, until a step says that it takes away what that needs.
func TestANewerSchemaServesTheBuildBeforeUntilItSaysOtherwise(t *testing.T) {
	r := newRecord(t)
	check := func() []error {
		return []error{CheckSchema(t.Context(), r.pool), r.relay.Check(t.Context()), r.jobs.Check(t.Context())}
	}
	r.exec(t, `insert into pollux.schema_version (version_id, is_applied) values (99999, true)`)
	for _, err := range check() {
		if err != nil {
			t.Error(err)
		}
	}
	r.exec(t, `update pollux.schema_serves set since = 99999`)
	for _, err := range check() {
		if !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "version 99999") || !strings.Contains(err.Error(), "run a newer build") {
			t.Error(err)
		}
	}
}

// A step after the first release that takes something away says which builds the schema serves from then on.
func TestAStepThatTakesAwaySaysWhichBuildsItServes(t *testing.T) {
	for _, m := range embedded() {
		text, err := migrations.ReadFile("migrations/" + m.Name)
		if err != nil {
			t.Fatal(err)
		}
		if m.Version > firstRelease && silent(string(text)) {
			t.Errorf("%s takes something away and leaves schema_serves as it is: the build before would go on and fail", m.Name)
		}
	}
	for text, want := range map[string]bool{
		"create table pollux.x (a int);\n-- +goose Down\ndrop table pollux.x;":             false,
		"alter table pollux.x add b int not null default 0, alter column c set default 1;": false,
		"alter table pollux.x drop column b;":                                              true,
		"alter table pollux.x rename b to c;":                                              true,
		"alter table pollux.x alter column b type text;":                                   true,
		"ALTER TABLE pollux.x ALTER COLUMN b SET NOT NULL;":                                true,
		"alter table pollux.x drop column b;\nupdate pollux.schema_serves set since = 10;": false,
	} {
		if silent(text) != want {
			t.Errorf("%v expected of %q", want, text)
		}
	}
}

var takesAway = regexp.MustCompile(`(?i)\b(drop|rename)\b|\balter column\b.*\b(type|set not null)\b`)

// silent reports whether a step takes something away on its way up and does not say which builds it serves.
func silent(step string) bool {
	up, _, _ := strings.Cut(step, "-- +goose Down")
	return takesAway.MatchString(up) && !strings.Contains(up, "update pollux.schema_serves")
}

// firstRelease is the last step of the first release.
const firstRelease = 11

func TestAMigrationGivesUpWaitingForATableThatOthersUse(t *testing.T) {
	ctx, url := t.Context(), pgtest.New(t, migrate)
	r := openRecord(t, url)
	for range 2 { // to the step that makes the table
		if _, err := MigrateDown(ctx, url); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `lock table pollux.schema_serves in access share mode`); err != nil {
		t.Fatal(err)
	}
	if _, err := MigrateDown(ctx, url); err == nil || !strings.Contains(err.Error(), "somebody uses a table that the step changes, for longer than 5s; nothing was changed") {
		t.Fatalf("%v", err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if applied, err := Migrate(ctx, url); err != nil || len(applied) != 2 {
		t.Fatalf("%v, %v", applied, err)
	}
	if err := CheckSchema(ctx, r.pool); err != nil {
		t.Fatal(err)
	}
}

func TestAMigrationThatCannotConnectSaysSoWithoutThePassword(t *testing.T) {
	for _, url := range []string{"postgres://me:hunter2@127.0.0.1:1/none", "postgres://me:hunter2@127.0.0.1:port/none"} {
		_, err := Migrate(t.Context(), url)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Fatalf("%v", err)
		}
	}
}
