package fleet_test

import (
	"math"
	"testing"

	"pollux/internal/fleet"
)

func TestTheRosterSaysWhoTakesPart(t *testing.T) {
	store := newStore()
	for key, value := range map[string]string{
		"beat.a": "7", "beat.b": "9",
		"share.acme":   `{"v":1,"lineage":"x","settled":true,"members":[{"id":"a","share":0.5},{"id":"b","share":0.25}]}`,
		"share.other":  `{"v":9}`,
		"breaker.acme": `{}`,
	} {
		store.set(key, []byte(value))
	}
	r, err := fleet.ReadRoster(t.Context(), store.line(0))
	if err != nil {
		t.Fatal(err)
	}
	acme, other := r.Shares["acme"], r.Shares["other"]
	if r.Beats != 2 || acme.Members != 2 || math.Abs(acme.Sum-0.75) > 1e-9 || acme.Err != nil || other.Err == nil || len(r.Shares) != 2 {
		t.Errorf("%+v", r)
	}
}
