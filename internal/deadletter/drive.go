package deadletter

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Canary are the sizes of the first stages of a replay: one letter is tried, then ten, then the rest goes.
var Canary = []int64{1, 10}

// Of the rest a few may come back, since faults differ: a replay stops when at least this many did, and at least every second one that has ended.
const comeBackMost = 10

// Leg is what was released since the stage began, or since the replay was resumed.
type Leg struct {
	Released   int64
	Unanswered int64 // of these: nobody knows anything yet
	CameBack   int64 // died again with the fingerprint that they had, or were answered with it
	Ended      int64
}

// Progress is where a replay stands.
type Progress struct {
	Replay
	Leg   Leg
	Ready int           // how many the rate allows now
	Wait  time.Duration // until it allows one more
}

// Deed is what is to be done next with a replay.
type Deed struct {
	Release int    // so many letters
	Advance bool   // the next stage begins
	Finish  bool   // nothing is left to release
	Stop    string // the fault came back, and how
}

// MaxRelease is the most letters that are released in one transaction.
const MaxRelease = 1000

// Next says what is to be done next. It is all that decides about a replay, and it is pure: the same progress always leads to the same deed. The zero
// deed is to wait.
func Next(p Progress) Deed {
	if p.State != Running {
		return Deed{}
	}
	if why := p.cameBack(); why != "" {
		return Deed{Stop: why}
	}
	if p.Counts.Chosen == 0 {
		return Deed{Finish: true}
	}
	ready := min(int64(p.Ready), MaxRelease, p.Counts.Chosen)
	if p.Stage >= len(Canary) {
		return Deed{Release: int(ready)}
	}
	size := Canary[p.Stage]
	switch {
	case p.Leg.Released < size:
		return Deed{Release: int(min(ready, size-p.Leg.Released))}
	case p.Leg.Unanswered > 0:
		return Deed{}
	}
	return Deed{Advance: true}
}

// cameBack says why a replay must stop.
func (p Progress) cameBack() string {
	switch n := p.Leg.CameBack; {
	case n == 0:
		return ""
	case p.Stage < len(Canary):
		return fmt.Sprintf("the fault came back: %d of %d that were tried first have the fingerprint again that they died with", n, p.Leg.Released)
	case n >= comeBackMost && 2*n >= p.Leg.Ended:
		return fmt.Sprintf("the fault came back: %d of the last %d have the fingerprint again that they died with", n, p.Leg.Ended)
	}
	return ""
}

// Stepper takes a replay a step further.
type Stepper interface {
	// Step reads where a replay stands, lets next decide, does it and returns where it stands then, all in one transaction in which nobody else
	// takes the replay further. Letters whose payments cannot be polled any more are refused, each with a reason.
	Step(ctx context.Context, id int64, next func(Progress) Deed) (Progress, Deed, error)
}

// Driver takes replays to their end. Any number of them may drive the same one.
type Driver struct {
	Steps     Stepper
	Transient func(error) bool // whether the same step may succeed a moment later; nil: never
	Report    func(Progress)   // after each step; may be nil
	Settle    bool             // go on until something is known about each letter that was released
}

// large is from how many letters on a replay is looked at less often, since looking counts them.
const large = 100_000

// Ahead is how far ahead letters are released, each due at its own moment: so far a replay goes on by itself when nobody drives it.
func (r Replay) Ahead() time.Duration {
	if r.Letters > large {
		return 5 * time.Second
	}
	return 500 * time.Millisecond
}

// pause is how long to wait before the next look at a replay: not as long as what was released lasts, or the rate would not be kept.
func pause(p Progress, d Deed) time.Duration {
	if d.Release >= MaxRelease || d.Advance {
		return time.Millisecond
	}
	ahead := p.Ahead()
	return min(max(p.Wait, ahead/2), 2*ahead)
}

// Run drives a replay until nothing is left to do for it: it is done, stopped, cancelled or waits for approval. It ends with ctx, and with an error when the record
// has been away for a minute. The replay then waits for the next driver.
func (d Driver) Run(ctx context.Context, id int64) (Progress, error) {
	for {
		p, deed, err := d.step(ctx, id)
		if err != nil {
			return p, err
		}
		if d.Report != nil {
			d.Report(p)
		}
		if p.State != Running && !(d.Settle && p.settling()) {
			return p, nil
		}
		select {
		case <-ctx.Done():
			return p, context.Cause(ctx)
		case <-time.After(pause(p, deed)):
		}
	}
}

// settling reports whether something is still to be learned about letters that were released.
func (p Progress) settling() bool {
	return (p.State == Done || p.State == Stopped) && p.Counts.Unanswered() > 0
}

// step is tried again while the record is away.
func (d Driver) step(ctx context.Context, id int64) (Progress, Deed, error) {
	type step struct {
		progress Progress
		deed     Deed
	}
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond), backoff.WithMaxInterval(5*time.Second),
		backoff.WithMaxElapsedTime(time.Minute))
	s, err := backoff.RetryWithData(func() (step, error) {
		p, deed, err := d.Steps.Step(ctx, id, Next)
		if err != nil && (d.Transient == nil || !d.Transient(err)) {
			err = backoff.Permanent(err)
		}
		return step{p, deed}, err
	}, backoff.WithContext(b, ctx))
	return s.progress, s.deed, err
}
