// Package doctor examines a running Pollux: its record, its broker, its configuration, and the machine that it is asked on. It judges facts that adapters gather; it
// changes nothing, and says what it could not look at.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Level is how well something is.
type Level string

// The levels, the best first.
const (
	Green   Level = "green"   // as it should be
	Yellow  Level = "yellow"  // works, and will not for ever; or cannot be told without a setting
	Unknown Level = "unknown" // could not be looked at: perhaps well, perhaps not
	Red     Level = "red"     // payments are late, at risk or unwatched
)

// Levels are all levels, the worst first.
var Levels = []Level{Red, Unknown, Yellow, Green}

// worse orders levels, the worst first.
func worse(a, b Level) int { return cmp.Compare(slices.Index(Levels, a), slices.Index(Levels, b)) }

// Area is a part of the system.
type Area string

// The areas.
const (
	Record        Area = "record"        // PostgreSQL, and what stands in it
	Broker        Area = "broker"        // NATS, its streams and consumers
	Configuration Area = "configuration" // settings that contradict each other or the live system
	Gateways      Area = "gateways"      // breakers, limits, notifications
	Security      Area = "security"      // certificates, credentials, rights, files
	Host          Area = "host"          // this machine: its clock and its limits
)

// Areas are all areas, in the order in which they are shown.
var Areas = []Area{Record, Broker, Configuration, Gateways, Security, Host}

// Finding is what a check found about one thing.
type Finding struct {
	ID      string `json:"id"` // of the check, such as record.fsync
	Area    Area   `json:"area"`
	Level   Level  `json:"level"`
	Subject string `json:"subject"` // what of several it is about: a stream, a gateway, a table; empty: all
	Found   string `json:"found"`
	Why     string `json:"why"`  // it matters
	Mend    string `json:"mend"` // the command or the setting; empty when it is green
}

// Counts is how many findings have each level.
type Counts struct {
	Red     int `json:"red"`
	Unknown int `json:"unknown"`
	Yellow  int `json:"yellow"`
	Green   int `json:"green"`
}

// Report is an examination. Findings are ordered by area, and within one the worst come first.
type Report struct {
	At       time.Time `json:"at"`
	Level    Level     `json:"level"` // of the worst finding
	Counts   Counts    `json:"counts"`
	Findings []Finding `json:"findings"`
	Left     []string  `json:"left"` // the checks that were not made because of ErrNotOurs
}

// ErrNotOurs is in the error of a fact that whoever asks has no right to know, and is meant to have none: that is no fault, and says nothing about the system. The check is
// left to an operator.
var ErrNotOurs = errors.New("not for this program to look at")

// left is the level of what is left to others. No finding has it.
const left Level = "left"

// Examine makes all checks of some areas, of all when none is named, at once. What cannot be asked within ctx, or within the time that one fact may take, is Unknown. A check
// that does not apply, to a service without a broker for instance, is left out.
func Examine(ctx context.Context, s *Sources, set *Settings, areas ...Area) Report {
	return examine(ctx, s, set, func(c *Check) bool { return len(areas) == 0 || slices.Contains(areas, c.Area) })
}

func examine(ctx context.Context, s *Sources, set *Settings, wanted func(*Check) bool) Report {
	r := Report{At: time.Now().UTC(), Level: Green, Findings: []Finding{}, Left: []string{}}
	found := make([][]Finding, len(Checks))
	var running sync.WaitGroup
	for i := range Checks {
		if c := &Checks[i]; wanted(c) {
			running.Go(func() { found[i] = c.run(ctx, s, set) })
		}
	}
	running.Wait()
	for _, f := range slices.Concat(found...) {
		if f.Level == left {
			r.Left = append(r.Left, f.ID)
			continue
		}
		r.Findings = append(r.Findings, f)
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(Areas, a.Area), slices.Index(Areas, b.Area)), worse(a.Level, b.Level))
	})
	for _, f := range r.Findings {
		r.Counts.add(f.Level)
		if worse(f.Level, r.Level) < 0 {
			r.Level = f.Level
		}
	}
	return r
}

func (c *Counts) add(l Level) {
	switch l {
	case Red:
		c.Red++
	case Unknown:
		c.Unknown++
	case Yellow:
		c.Yellow++
	default:
		c.Green++
	}
}

// Start is what a service does at its start about a check that is not green.
type Start string

// What a service does.
const (
	Nothing Start = ""        // it is not looked at: it would take too long, or says nothing about the start
	Warns   Start = "warns"   // starts, and says so: not to work would be worse than what was found
	Waits   Start = "waits"   // starts to work when it is green; until then it is not ready and says why
	Refuses Start = "refuses" // does not start when it is red
)

// Check is one thing that is looked at.
type Check struct {
	ID      string
	Area    Area
	What    string // is looked at
	Why     string // it matters
	Start   Start
	examine func(ctx context.Context, s *Sources, set *Settings) []opinion // none: it does not apply
}

func (c *Check) run(ctx context.Context, s *Sources, set *Settings) []Finding {
	var findings []Finding
	for _, o := range c.examine(ctx, s, set) {
		f := Finding{ID: c.ID, Area: c.Area, Level: o.level, Subject: o.subject, Found: o.found, Why: c.Why, Mend: o.mend}
		if f.Level == Green {
			f.Mend = ""
		}
		findings = append(findings, f)
	}
	return findings
}

// opinion is what a judgement says about one thing.
type opinion struct {
	level   Level
	subject string
	found   string
	mend    string
}

// about returns the opinion with its subject.
func (o opinion) about(subject string) opinion { o.subject = subject; return o }

// alone is an opinion as all that a judgement says.
func (o opinion) alone() []opinion { return []opinion{o} }

// all is the opinions, or that everything is well when there are none.
func all(opinions []opinion, well string) []opinion {
	if len(opinions) == 0 {
		return green("%s", well).alone()
	}
	return opinions
}
