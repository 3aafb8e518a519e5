package payment_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pollux/internal/payment"
)

func TestTransitionsBetweenStatuses(t *testing.T) {
	const (
		conflict = payment.Conflict
		same     = payment.Same
		resolved = payment.Resolution
		late     = payment.LateSuccess
	)
	to := []payment.Status{payment.Pending, payment.Succeeded, payment.Failed, payment.Cancelled, payment.Expired, "", "paid"}
	for from, want := range map[payment.Status][]payment.Transition{
		payment.Pending:   {same, resolved, resolved, resolved, resolved, conflict, conflict},
		payment.Succeeded: {conflict, same, conflict, conflict, conflict, conflict, conflict},
		payment.Failed:    {conflict, late, same, conflict, conflict, conflict, conflict},
		payment.Cancelled: {conflict, late, conflict, same, conflict, conflict, conflict},
		payment.Expired:   {conflict, late, conflict, conflict, same, conflict, conflict},
		"":                {conflict, conflict, conflict, conflict, conflict, conflict, conflict},
		"paid":            {conflict, conflict, conflict, conflict, conflict, conflict, conflict},
	} {
		for i, s := range to {
			if got := payment.Between(from, s); got != want[i] {
				t.Errorf("%q to %q is %s, want %s", from, s, got, want[i])
			}
		}
	}
}

func TestOnlyPendingIsNotFinal(t *testing.T) {
	for _, s := range payment.Statuses {
		if !s.Valid() {
			t.Errorf("%s is not valid", s)
		}
		if s.Final() != (s != payment.Pending) {
			t.Errorf("%s final: %t", s, s.Final())
		}
	}
	for _, s := range []payment.Status{"", "paid", "PENDING", "succeeded "} {
		if s.Valid() || s.Final() {
			t.Errorf("%q is taken for a status", s)
		}
	}
}

// Whatever sources report, in whatever order and however often: a payment never becomes pending again, what succeeded
// stays so, and one that anybody reported as succeeded ends so.
func TestReportsInAnyOrderConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reports := rapid.SliceOf(rapid.SampledFrom(append(slices.Clone(payment.Statuses), "", "paid"))).Draw(t, "reports")
		status, changes := payment.Pending, 0
		for _, r := range reports {
			switch payment.Between(status, r) {
			case payment.Resolution, payment.LateSuccess:
				status = r
				changes++
			}
			if changes > 0 && !status.Final() {
				t.Fatalf("%q after a final status", status)
			}
		}
		if slices.Contains(reports, payment.Succeeded) && status != payment.Succeeded {
			t.Fatalf("reported as succeeded, ended %s", status)
		}
		if changes > 2 {
			t.Fatalf("%d changes of a status that changes twice at most", changes)
		}
	})
}

func TestTransitionsHaveNames(t *testing.T) {
	for tr, want := range map[payment.Transition]string{
		payment.Conflict: "conflict", payment.Same: "same", payment.Resolution: "resolution", payment.LateSuccess: "late_success", 99: "conflict",
	} {
		if got := tr.String(); got != want {
			t.Errorf("transition %d is %q, want %q", tr, got, want)
		}
	}
}
