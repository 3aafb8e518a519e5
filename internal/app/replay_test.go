package app

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"pollux/internal/audit"
	"pollux/internal/deadletter"
	"pollux/internal/pgtest"
	"pollux/internal/postgres"
)

// TestAReplayGoesThroughTheBroker replays payments moments after they died, while the broker still remembers the ids of their polls: by relay, JetStream and consumer. The
// first replay finds the gateway as it was and stops after one; when it is mended the rest goes.
func TestAReplayGoesThroughTheBroker(t *testing.T) {
	noLeaks(t)
	s := newSite(t)
	s.dsn = pgtest.New(t, migrated)
	var mended atomic.Bool
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		amount := 199
		if mended.Load() {
			amount = 1999
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"status": "succeeded", "id": %q, "amount": %d, "currency": "EUR"}`, filepath.Base(r.URL.Path), amount)
	}
	s.broker()
	relay := s.serve("outbox-relay", Relay)
	eventually(t, "the relay is ready", s.ready)
	s.listen = freeAddress(t)
	consumer := s.serve("consumer", Consumer)
	eventually(t, "the consumer is ready", s.ready)
	s.exec(`select pollux.track_payment('acme', 'pay_' || i, 1999, 'EUR') from generate_series(1, 30) as i`)
	eventually(t, "all are with a person", func() bool {
		return s.is(`count(*) = 30 and count(distinct fingerprint) = 1 from pollux.dead_letters where state = 'open' and reason = 'mismatch' and policy_hash <> '' and build <> ''`)
	})

	pool, err := postgres.Open(postgres.Options{URL: s.dsn, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	replays := postgres.NewReplays(pool)
	by := postgres.By{Actor: audit.Actor{Name: "ada", Origin: "test"}, Reason: "a test"}
	made, _, err := replays.Create(t.Context(), deadletter.Order{RequestID: "night", Priority: deadletter.ByAge, Rate: deadletter.Rate{PerSecond: 1000}}, by)
	if err != nil {
		t.Fatal(err)
	}
	driver := deadletter.Driver{Steps: postgres.Drive{Replays: replays, By: by}, Transient: postgres.Transient, Settle: true}
	p, err := driver.Run(t.Context(), made.ID)
	if err != nil || p.State != deadletter.Stopped || p.Counts.Released() != 1 || !strings.Contains(p.Why, "the fault came back") {
		t.Errorf("%s: %s, %+v, %v", p.State, p.Why, p.Counts, err)
	}
	mended.Store(true)
	if _, err := replays.Resume(t.Context(), made.ID, by); err != nil {
		t.Fatal(err)
	}
	if p, err = driver.Run(t.Context(), made.ID); err != nil || p.State != deadletter.Done {
		t.Errorf("%s: %s, %v", p.State, p.Why, err)
	}
	eventually(t, "all but the first are final", func() bool {
		return s.is(`count(*) = 29 from pollux.payments where status = 'succeeded'`) && s.is(`count(*) = 29 from pollux.dead_letters where state = 'resolved' and closed_by = 'replay'`)
	})
	if !s.is(`count(*) = 29 and bool_and(released_at is not null) from pollux.replay_items where state = 'resolved'`) || !s.is(`count(*) = 1 from pollux.replay_items where state = 'failed_again' and came_back`) {
		t.Error("the rows of the replay do not say what became of its letters")
	}
	if !s.is(`count(*) = 60 from pollux.poll_attempts where applied`) {
		t.Error("each is polled once before and once by the replay")
	}
	pool.Close()
	for _, v := range []*service{consumer, relay} {
		if err := v.ends(); err != nil {
			t.Error(err)
		}
	}
}
