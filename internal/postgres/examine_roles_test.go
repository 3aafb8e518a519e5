package postgres

import (
	"errors"
	"slices"
	"testing"

	"pollux/internal/doctor"
)

func TestAnOperatorSeesWhatARoleLacksAndHasTooMuch(t *testing.T) {
	r := newGranted(t)
	of := func(role Role) map[string]doctor.Rights {
		t.Helper()
		roles, err := NewExaminer(r.login(t, role).pool, ExamineOptions{Role: role}).Roles(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]doctor.Rights{}
		for _, rights := range roles {
			all[rights.Role] = rights
		}
		return all
	}
	well := of(RoleOperator)
	if len(well) != len(Roles)-1 {
		t.Errorf("%+v", well)
	}
	for _, rights := range well {
		if len(rights.Missing)+len(rights.Excessive) > 0 {
			t.Errorf("%+v", rights)
		}
	}
	r.exec(t, "revoke update (state) on pollux.poll_jobs from pollux_relay; revoke all on all tables in schema pollux from pollux_readonly; revoke usage on schema pollux from pollux_readonly")
	r.exec(t, "grant select on pollux.payments to pollux_tracker; grant execute on function pollux.audit to public")
	ill := of(RoleOperator)
	if got := ill["pollux_relay"]; !slices.Equal(got.Missing, []string{"update (state) on poll_jobs"}) || len(got.Excessive) > 0 {
		t.Errorf("%+v", got)
	}
	if got := ill["pollux_tracker"]; len(got.Missing) > 0 || !slices.Equal(got.Excessive, []string{"select on payments"}) {
		t.Errorf("%+v", got)
	}
	if got := ill["public"]; !slices.Equal(got.Excessive, []string{"execute on audit"}) {
		t.Errorf("%+v", got)
	}
	if got := ill["pollux_readonly"]; len(got.Missing) < 10 || !slices.Contains(got.Missing, schemaUsage.String()) {
		t.Errorf("%+v", got)
	}
	if got := of(RoleMigrator); len(got["pollux_relay"].Missing) != 1 { // who owns nothing of this schema reads the catalog all the same
		t.Errorf("%+v", got)
	}
	r.grant(t)
	for _, rights := range of(RoleReadOnly) {
		if len(rights.Missing)+len(rights.Excessive) > 0 {
			t.Errorf("pollux migrate up does not mend %+v", rights)
		}
	}
	if _, err := NewExaminer(r.pool, ExamineOptions{Role: RoleRelay}).Roles(t.Context()); !errors.Is(err, doctor.ErrNotOurs) {
		t.Errorf("a relay looks at the rights of others: %v", err)
	}
}

func TestWhoDoesNotSeeAllSessionsCountsNoConnections(t *testing.T) {
	r := newGranted(t)
	for role, sees := range map[Role]bool{RoleRelay: true, RoleOperator: true, RoleConsumer: false, RoleWebhook: false} {
		c, err := NewExaminer(r.login(t, role).pool, ExamineOptions{Role: role}).Connections(t.Context())
		switch {
		case sees && (err != nil || !c.Hidden && c.Used < 2): // pg_read_all_stats is granted by who may
			t.Errorf("%s: %+v %v", role, c, err)
		case !sees && !errors.Is(err, doctor.ErrNotOurs):
			t.Errorf("%s: %+v %v", role, c, err)
		}
	}
}
