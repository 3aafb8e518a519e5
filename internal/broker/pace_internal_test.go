package broker

import (
	"testing"
	"time"
)

func TestBatchesAreTakenWhereTheyAreCheaper(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, tc := range map[string]struct {
		p    pace
		n    int
		want bool
	}{
		"never measured":                     {pace{}, 1000, false},
		"server that syncs later":            {pace{message: 10 * time.Microsecond, messageAt: now}, 1000, false},
		"server that syncs each":             {pace{message: 200 * time.Microsecond, messageAt: now}, 1000, true},
		"server that syncs each, few":        {pace{message: 200 * time.Microsecond, messageAt: now}, 64, false},
		"more than one batch is as one":      {pace{message: 9 * time.Microsecond, messageAt: now}, 100_000, false},
		"measured too long ago":              {pace{message: time.Millisecond, messageAt: ago(paceMemory)}, 1000, false},
		"batches measured as dear":           {pace{message: 200 * time.Microsecond, messageAt: now, batch: time.Second, batchAt: now}, 1000, false},
		"batches measured as dear, long ago": {pace{message: 200 * time.Microsecond, messageAt: now, batch: time.Second, batchAt: ago(paceMemory)}, 1000, true},
		"batches measured as cheap":          {pace{message: 10 * time.Microsecond, messageAt: now, batch: time.Millisecond, batchAt: now}, 1000, true},
		"batches not taken":                  {pace{message: time.Millisecond, messageAt: now, noBatch: now.Add(1)}, 1000, false},
	} {
		if got := tc.p.batches(tc.n, now); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestPaceIsMeasuredAgainOnlyWhenItIsNotKnown(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		p    pace
		want bool
	}{
		"never measured":    {pace{}, false},
		"just measured":     {pace{messageAt: now}, true},
		"long ago":          {pace{messageAt: now.Add(-paceMemory)}, false},
		"batches not taken": {pace{noBatch: now.Add(1)}, true},
	} {
		if got := tc.p.known(now); got != tc.want {
			t.Errorf("%s: known %v, want %v", name, got, tc.want)
		}
	}
}
