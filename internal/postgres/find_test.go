package postgres

import (
	"fmt"
	"testing"
	"time"

	"pollux/internal/payment"
)

func TestAPaymentIsFoundByItsIdentity(t *testing.T) {
	r := newRecord(t)
	ids := r.track(t, "pay", 3)
	job, found, err := r.jobs.Find(t.Context(), "sim", "", "pay1")
	if err != nil || !found || job.Payment.ID != ids[1] || job.Payment.AmountMinor != 1999 || job.Payment.Currency != "EUR" || job.TokenCurrent || job.Age < 0 || job.Age > time.Hour {
		t.Errorf("%+v %t %v", job, found, err)
	}
	for _, other := range [][3]string{{"sim", "", "pay9"}, {"other", "", "pay1"}, {"sim", "eu", "pay1"}} {
		if _, found, err := r.jobs.Find(t.Context(), other[0], other[1], other[2]); found || err != nil {
			t.Errorf("%v: %t %v", other, found, err)
		}
	}
	r.exec(t, `update pollux.payments set status = 'succeeded', status_source = 'operator' where reference = 'pay1'`)
	if job, found, err = r.jobs.Find(t.Context(), "sim", "", "pay1"); err != nil || !found || job.Payment.Status != payment.Succeeded {
		t.Errorf("without a job: %+v %t %v", job, found, err)
	}
}

func TestPaymentsAreComparedByLookingEachUp(t *testing.T) {
	r := newRecord(t)
	r.track(t, "pay", hotBatch)
	fill(t, r, 100_000)
	r.exec(t, `update pollux.payments set status = 'failed', status_source = 'operator' where reference = 'pay1'`)
	r.exec(t, `analyze pollux.payments`)
	looker, plans := explain(t, r.url, false)
	references := []string{"nowhere", ""}
	for i := range hotBatch {
		references = append(references, fmt.Sprintf("pay%d", i))
	}
	known, err := looker.jobs.Compare(t.Context(), "sim", "", references)
	if err != nil || len(known) != hotBatch || known["pay1"] != (Known{payment.Failed, 1999, "EUR"}) || known["pay2"].Status != payment.Pending {
		t.Errorf("%d, %+v, %v", len(known), known["pay1"], err)
	}
	if n := checkPlans(t, plans, true); n != 1 {
		t.Errorf("%d statements", n)
	}
}
