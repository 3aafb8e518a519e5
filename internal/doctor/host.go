package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The offsets of a clock that matter. NTP keeps a machine within some ten milliseconds; signatures of notifications are judged by the minute.
const (
	skewed    = time.Second
	farSkewed = 30 * time.Second
)

const mendClock = "chronyc tracking, or timedatectl; let every machine follow the same servers"

// clockCheck compares three clocks. One that cannot be read is unknown, and the others are compared all the same.
func clockCheck(ctx context.Context, s *Sources, _ *Settings) []opinion {
	var found []opinion
	var read []named
	for _, c := range []struct {
		name string
		fact *Fact[Clock]
	}{{"database", s.Clock}, {"broker", s.BrokerClock}} {
		if c.fact == nil {
			continue
		}
		clock, err := c.fact.Get(ctx)
		if errors.Is(err, ErrNotOurs) {
			continue
		}
		if err != nil {
			found = append(found, unknown(err).about(c.name))
			continue
		}
		read = append(read, named{c.name, clock})
	}
	return append(found, judgeClocks(read)...)
}

type named struct {
	name  string
	clock Clock
}

func judgeClocks(clocks []named) []opinion {
	var found []opinion
	well := ""
	for _, c := range clocks {
		o, off := judgeOffset(c.clock.Offset, c.clock.Within, "this machine")
		if off {
			found = append(found, o.about(c.name))
		}
		well += fmt.Sprintf("%s %+.1f ms (within %.1f ms)  ", c.name, ms(c.clock.Offset), ms(c.clock.Within))
	}
	if len(clocks) == 2 {
		a, b := clocks[0], clocks[1]
		if o, off := judgeOffset(b.clock.Offset-a.clock.Offset, a.clock.Within+b.clock.Within, "the "+a.name); off {
			found = append(found, o.about(a.name+" and "+b.name))
		}
	}
	if len(clocks) == 0 || len(found) > 0 {
		return found
	}
	return green("%s", well[:len(well)-2]).alone()
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// judgeOffset is what to say of an offset, less what it may be wrong by.
func judgeOffset(offset, within time.Duration, from string) (opinion, bool) {
	least := offset.Abs() - within
	if least < skewed {
		return opinion{}, false
	}
	word := "ahead of"
	if offset < 0 {
		word = "behind"
	}
	o := yellow(mendClock, "it is %s %s %s", long(offset.Abs()), word, from)
	if least >= farSkewed {
		o.level = Red
	}
	return o, true
}

func judgeOpenFiles(m Machine, set *Settings) []opinion {
	if m.OpenFiles == 0 {
		return green("this system sets no such limit").alone()
	}
	need := uint64(256 + set.MaxConns)
	for _, g := range set.Gateways {
		need += uint64(g.Workers * len(set.Lanes)) //nolint:gosec // both are small and positive
	}
	if m.OpenFiles < need {
		return yellow(fmt.Sprintf("ulimit -n %d, or LimitNOFILE= of the unit", roundUp(int(need))), "%d, and up to %d may be open at once", m.OpenFiles, need).alone() //nolint:gosec // small
	}
	return green("%d, of which %d may be wanted", m.OpenFiles, need).alone()
}

func judgeMemory(m Machine, _ *Settings) []opinion {
	switch {
	case m.Memory == 0:
		return green("no limit is set for this process").alone()
	case m.GoLimit == 0:
		return yellow(fmt.Sprintf("GOMEMLIMIT=%dMiB, nine tenths of the container's limit", m.Memory*9/10>>20), "the container may use %s, and GOMEMLIMIT is not set", size(m.Memory)).alone()
	case m.GoLimit > m.Memory:
		return yellow(fmt.Sprintf("GOMEMLIMIT=%dMiB", m.Memory*9/10>>20), "GOMEMLIMIT is %s, and the container may use %s", size(m.GoLimit), size(m.Memory)).alone()
	}
	return green("GOMEMLIMIT is %s of %s", size(m.GoLimit), size(m.Memory)).alone()
}

func judgeRoot(m Machine, _ *Settings) []opinion {
	if m.Root {
		return yellow("run it as a user of its own, such as 65532", "it runs as root").alone()
	}
	return green("it does not").alone()
}

// ReadClock reads another machine's clock several times and keeps the reading that took the least: the reading is taken for the middle of the way there and back, and is wrong by half of it
// at most.
func ReadClock(times int, read func() (time.Time, error)) (Clock, error) {
	best := Clock{Within: -1}
	for range times {
		before := time.Now()
		theirs, err := read()
		if err != nil {
			return Clock{}, err
		}
		took := time.Since(before) // by the steady clock
		c := Clock{Within: took / 2, At: before.Add(took / 2)}
		c.Offset = theirs.Sub(c.At)
		if best.Within < 0 || c.Within < best.Within {
			best = c
		}
	}
	return best, nil
}
