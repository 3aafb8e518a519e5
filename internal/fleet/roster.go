package fleet

import (
	"context"
	"fmt"
	"strings"
)

// Roster is who takes part in the fleet, as the records say.
type Roster struct {
	Beats  int                // instances with a beat; one that died is among them for a minute
	Shares map[string]Parties // who shares the limit of a gateway, by its name
}

// Parties are the members of a limit.
type Parties struct {
	Members int
	Sum     float64 // of their parts; the whole is 1
	Err     error   // why the record cannot be read; nil when it can
}

// ReadRoster reads who takes part. It needs no instance. Instances beat while some gateway has a limit that they share.
func ReadRoster(ctx context.Context, kv KV) (Roster, error) {
	entries, err := kv.All(ctx)
	if err != nil {
		return Roster{}, fmt.Errorf("reading the records of the fleet: %w", err)
	}
	r := Roster{Shares: map[string]Parties{}}
	for _, e := range entries {
		if strings.HasPrefix(e.Key, beatPrefix) {
			r.Beats++
		}
		gateway, ok := strings.CutPrefix(e.Key, sharePrefix)
		if !ok {
			continue
		}
		roll, err := decodeRoll(e)
		p := Parties{Members: len(roll.Members), Err: err}
		for _, m := range roll.Members {
			p.Sum += max(m.Share, 0)
		}
		r.Shares[gateway] = p
	}
	return r, nil
}
