package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// settle is how long nobody gets more of a limit whose record is new: the store may have been lost, and in that time all instances enter what they
// use. They notice with their next look.
const settle = lapse + beatEvery + 500*time.Millisecond

// rollVersion is the version of the record that this build reads and writes.
const rollVersion = 1

// roll is the record of who has which part of a gateway's limit, in the order in which they came. The parts in it never add up to more than
// the whole: an instance uses less before it enters less, and enters more before it uses more, by compare-and-set.
type roll struct {
	Version int      `json:"v"`
	Lineage string   `json:"lineage"` // another one when the record was lost and made again
	Settled bool     `json:"settled"`
	Members []member `json:"members"`
}

type member struct {
	ID    string  `json:"id"`
	Share float64 `json:"share"`
}

func decodeRoll(e Entry) (r roll, err error) {
	if e.Value == nil {
		return roll{}, nil
	}
	if json.Unmarshal(e.Value, &r) != nil || r.Version == 0 {
		return roll{}, errors.New("it is not the JSON object it should be")
	}
	if r.Version != rollVersion {
		return roll{}, fmt.Errorf("it is of version %d, this build reads %d", r.Version, rollVersion)
	}
	return r, nil
}

func (r roll) index(id string) int {
	return slices.IndexFunc(r.Members, func(m member) bool { return m.ID == id })
}

// fair is the part that is due to the member at an index: all have the same, and when there are more members than parts that allow a
// call, those who came last stand by.
func (r roll) fair(index, seats int) float64 {
	n := len(r.Members)
	if seats > 0 {
		n = min(n, seats)
	}
	if index >= n {
		return 0
	}
	return 1 / float64(n)
}

// others is the sum of what all but one have.
func (r roll) others(index int) float64 {
	sum := 0.0
	for i, m := range r.Members {
		if i != index {
			sum += max(m.Share, 0)
		}
	}
	return sum
}

// plan is what a member wants of the roll: the parts that it uses and that calls under way still hold, and the members that it knows to be dead.
// It returns the new roll, and the part that may be used: at once if it is less, and once the roll is written if it is more.
func (r roll) plan(me string, using, held float64, seats int, dead map[string]bool) (roll, float64) {
	r.Members = slices.DeleteFunc(slices.Clone(r.Members), func(m member) bool { return dead[m.ID] })
	i := r.index(me)
	if i < 0 {
		if len(r.Members) >= MaxMembers {
			return r, 0
		}
		i = len(r.Members)
		r.Members = append(r.Members, member{ID: me})
	}
	target := r.fair(i, seats)
	claim := max(min(using, target), held)
	if free := 1 - r.others(i); r.Settled && target > claim {
		claim = max(claim, min(target, free))
	}
	r.Members[i].Share = claim
	return r, min(target, claim)
}

// seat is this instance's place among those that share a gateway's limit. It is for the goroutine that runs the gate.
type seat struct {
	record record
	me     string

	using   float64
	lineage string    // of the record in which this instance is a member
	seen    string    // the lineage that was last seen
	since   time.Time // when it was first seen
	unread  bool
}

// run keeps this instance's part of the limit in step until ctx ends, and then gives it back.
func (g *Gate) run(ctx context.Context) {
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		g.reseat(ctx)
		select {
		case <-ctx.Done():
			g.leave(ctx)
			return
		case <-g.nudge:
		case <-t.C:
		}
	}
}

func (g *Gate) wake() {
	select {
	case g.nudge <- struct{}{}:
	default:
	}
}

// reseat takes over the roll, writes what this instance has to change in it, and uses the part that it then has. When the store does not
// answer it goes on with the part that it has; the next look is a second away.
func (g *Gate) reseat(ctx context.Context) {
	s := &g.seat
	if !g.shared() { // the limit was taken away: what there is to share is as much as anybody likes
		g.use(1, 0)
		s.using = 0 // of the next limit nothing is ours yet
		g.giveBack(ctx)
		return
	}
	if !s.record.read(ctx) {
		return
	}
	dead := g.deadMembers(ctx)
	granted, members := 0.0, 0
	_, err := s.record.edit(ctx, func(e Entry) []byte {
		r, err := decodeRoll(e)
		if err != nil {
			if !s.unread {
				g.fleet.log.Error("a record of the fleet cannot be read and is left alone", "key", e.Key, "error", err)
			}
			s.unread, granted = true, s.using
			return nil
		}
		s.unread = false
		old := r
		g.enroll(&r)
		next, share := r.plan(s.me, s.using, g.held(), g.config.Load().Limit.Seats(), dead)
		if share < s.using {
			g.use(share, len(next.Members))
		}
		granted, members = share, len(next.Members)
		if old.same(next) {
			return nil
		}
		value, err := json.Marshal(next)
		if err != nil || len(value) > MaxValueBytes { // shares are numbers, and members are few
			granted = s.using
			return nil
		}
		return value
	})
	if err != nil || s.unread {
		return
	}
	s.lineage = s.seen
	g.use(granted, members)
}

// enroll looks at which record it is. Of one that is missing a new one begins. In one that this instance was a member of and is not any more, the others have
// taken it for dead, and use its part.
func (g *Gate) enroll(r *roll) {
	s := &g.seat
	if r.Version == 0 {
		*r = roll{Version: rollVersion, Lineage: newID()}
	}
	if r.Lineage != s.seen {
		s.seen, s.since = r.Lineage, time.Now()
	}
	r.Settled = r.Settled || g.fleet.inTouch(s.since, settle)
	if s.lineage == r.Lineage && r.index(s.me) < 0 {
		g.use(0, len(r.Members))
	}
}

func (r roll) same(other roll) bool {
	return r.Lineage == other.Lineage && r.Settled == other.Settled && slices.Equal(r.Members, other.Members)
}

// deadMembers asks the store about members that have been silent, a few at a time.
func (g *Gate) deadMembers(ctx context.Context) map[string]bool {
	r, err := decodeRoll(g.seat.record.known)
	if err != nil {
		return nil
	}
	dead := map[string]bool{}
	for _, m := range r.Members {
		if len(dead) < 8 && g.fleet.dead(ctx, m.ID) {
			dead[m.ID] = true
			g.fleet.log.Warn("an instance has not been heard of and gives its part of the limit back", "gateway", g.name, "instance", m.ID, "part", m.Share)
		}
	}
	return dead
}

// held is the part that calls under way need.
func (g *Gate) held() float64 {
	held := 0.0
	for _, u := range *g.units.Load() {
		held = max(held, u.limiter.Held())
	}
	return held
}

// use makes a part of the limit the one that is used.
func (g *Gate) use(share float64, members int) {
	g.seat.using = share
	g.mu.Lock()
	defer g.mu.Unlock()
	g.setShare(time.Now(), share, members)
}

// setShare gives a part of the limit to the accounts. g.mu is held.
func (g *Gate) setShare(now time.Time, share float64, members int) {
	g.members = members
	if share == g.share {
		return
	}
	for _, u := range *g.units.Load() {
		u.limiter.SetShare(now, share)
	}
	g.share = share
	close(g.moved)
	g.moved = make(chan struct{})
	g.fleet.log.Info("another part of a gateway's limit", "gateway", g.name, "part", share, "instances", members)
}

// leave gives this instance's part back.
func (g *Gate) leave(ctx context.Context) {
	g.use(0, 0)
	g.giveBack(ctx)
}

// giveBack takes this instance out of the record of shares.
func (g *Gate) giveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveIn)
	defer cancel()
	_, err := g.seat.record.edit(ctx, func(e Entry) []byte {
		r, err := decodeRoll(e)
		i := r.index(g.seat.me)
		if err != nil || i < 0 {
			return nil
		}
		r.Members = slices.Delete(r.Members, i, i+1)
		value, err := json.Marshal(r)
		if err != nil {
			return nil
		}
		return value
	})
	if err != nil {
		g.fleet.log.Warn("the part of a gateway's limit could not be given back; the others take it in five seconds", "gateway", g.name, "error", err)
	}
}
