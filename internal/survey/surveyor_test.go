package survey

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pollux/internal/audit"
)

// place is a record and a broker that say what they are told.
type place struct {
	jobs     Jobs
	letters  Letters
	streams  Streams
	sessions Sessions
	away     map[Part]error

	orphans map[Orphan][]int // found in each slice of a pass
	entries []audit.Entry

	seen map[Part]Finding
	good time.Duration
}

func (p *place) Jobs(context.Context) (Jobs, error)         { return p.jobs, p.away[PartJobs] }
func (p *place) Letters(context.Context) (Letters, error)   { return p.letters, p.away[PartLetters] }
func (p *place) Events(context.Context) (Events, error)     { return Events{}, p.away[PartEvents] }
func (p *place) Storage(context.Context) (Storage, error)   { return nil, p.away[PartTables] }
func (p *place) Sessions(context.Context) (Sessions, error) { return p.sessions, p.away[PartSessions] }
func (p *place) Survey(context.Context) (Streams, error)    { return p.streams, p.away[PartStreams] }

func (p *place) Orphans(_ context.Context, kind Orphan, after int64) (found int, last int64, err error) {
	slices := p.orphans[kind]
	if int(after) >= len(slices) {
		return 0, 0, nil
	}
	if last = after + 1; int(last) == len(slices) {
		last = 0
	}
	return slices[after], last, nil
}

func (p *place) Entries(_ context.Context, after int64) ([]audit.Entry, error) {
	var behind []audit.Entry
	for _, e := range p.entries {
		if e.Seq > after && len(behind) < Slice {
			behind = append(behind, e)
		}
	}
	return behind, nil
}

func (p *place) Surveyed(f Finding, _, good time.Duration) { p.seen[f.Part()], p.good = f, good }

func newPlace() (*place, *Surveyor, *bytes.Buffer) {
	p := &place{seen: map[Part]Finding{}, away: map[Part]error{}, orphans: map[Orphan][]int{}}
	var log bytes.Buffer
	return p, New(15*time.Second, p, p, p, slog.New(slog.NewTextHandler(&log, nil))), &log
}

// chainOf is a log of n rows.
func chainOf(n int) []audit.Entry {
	rows := make([]audit.Entry, n)
	var previous audit.Hash
	for i := range rows {
		rows[i] = audit.Entry{Seq: int64(i + 1), Action: "payment.hold", Previous: previous}
		rows[i].Hash = rows[i].Sum()
		previous = rows[i].Hash
	}
	return rows
}

func TestEveryPartIsToldAndKeptForThreeLooks(t *testing.T) {
	p, s, _ := newPlace()
	s.Look(t.Context())
	for _, part := range Parts {
		if p.seen[part] == nil {
			t.Errorf("nothing is told of %s", part)
		}
	}
	if p.good < 45*time.Second {
		t.Errorf("it is good for %s only", p.good)
	}
}

func TestAPartThatFailsKeepsNoOtherFromBeingTold(t *testing.T) {
	p, s, log := newPlace()
	p.away[PartLetters] = errors.New("permission denied")
	s.Look(t.Context())
	s.Look(t.Context())
	if p.seen[PartLetters] != nil || p.seen[PartEvents] == nil {
		t.Errorf("told of %v", p.seen)
	}
	if n := strings.Count(log.String(), "permission denied"); n != 1 {
		t.Errorf("it is said %d times:\n%s", n, log)
	}
}

func TestWhatSleepsIsWhatIsNowhereElse(t *testing.T) {
	p, s, _ := newPlace()
	s.WithQueues([]Queue{{Gateway: "acme", Lane: "high"}})
	p.jobs = Jobs{Pending: 1000, Queues: []Queue{{Due: 100}, {Due: 50}}}
	p.letters = Letters{Dead: 7}
	p.streams = Streams{Waiting: 30, Unacked: []Load{{Lane: "normal", N: 20}, {Lane: "deferred", N: 5}}, Deferred: []Load{{N: 40}}}
	s.Look(t.Context())
	if j := p.seen[PartJobs].(Jobs); j.Parked != 1000-150-7-30-20-40 || len(j.Queues) != 3 || j.Queues[2].Gateway != "acme" {
		t.Errorf("%d sleep, queues %+v", j.Parked, j.Queues)
	}
	p.away[PartStreams] = errors.New("the broker is away")
	s.Look(t.Context())
	if j := p.seen[PartJobs].(Jobs); j.Parked >= 0 {
		t.Errorf("%d sleep, although nobody knows what is at the broker", j.Parked)
	}
}

func TestAPassOverOrphansIsToldBetweenItsSlices(t *testing.T) {
	p, s, _ := newPlace()
	p.orphans[PaymentWithoutJob] = []int{0, 2, 0}
	for i, want := range []struct {
		found int
		ended bool
	}{{0, false}, {2, false}, {2, true}, {2, true}} {
		s.Look(t.Context())
		got := p.seen[PartOrphans].(Orphans)[PaymentWithoutJob]
		if got.Found != want.found || got.Ended.IsZero() == want.ended {
			t.Errorf("look %d: %+v", i, got)
		}
	}
	p.orphans[PaymentWithoutJob] = []int{0}
	s.Look(t.Context()) // to the end of the pass under way
	s.Look(t.Context())
	if got := p.seen[PartOrphans].(Orphans)[PaymentWithoutJob]; got.Found != 0 {
		t.Errorf("they are still told of: %+v", got)
	}
}

func TestTheChainIsReadOnAndABreakIsToldUntilItIsMended(t *testing.T) {
	p, s, log := newPlace()
	p.entries = chainOf(Slice + 10)
	chain := func() Chain {
		s.Look(t.Context())
		return p.seen[PartAudit].(Chain)
	}
	if c := chain(); c.Broken != 0 || !c.Verified.IsZero() {
		t.Errorf("after a slice: %+v", c)
	}
	if c := chain(); c.Broken != 0 || c.Verified.IsZero() || c.Rows != Slice+10 {
		t.Errorf("at its end: %+v", c)
	}
	whole := p.entries
	p.entries = whole[:Slice+9] // the last row is cut off; nobody has read on since
	s.chain.again(s.chain.chain.Head())
	chain()
	if c := chain(); c.Broken != Slice+10 {
		t.Errorf("the end is missing: %+v", c)
	}
	if !strings.Contains(log.String(), "the audit log is not as it was written") {
		t.Errorf("nobody is told:\n%s", log)
	}
	p.entries = whole
	chain()
	if c := chain(); c.Broken != 0 {
		t.Errorf("it is mended: %+v", c)
	}
	changed := append([]audit.Entry(nil), whole...)
	changed[4].Reason = "somebody else's"
	p.entries = changed
	s.chain.again(s.chain.chain.Head())
	if c := chain(); c.Broken != 5 {
		t.Errorf("a row was changed: %+v", c)
	}
}

func TestWhoHoldsTheTablesBackIsWrittenDown(t *testing.T) {
	p, s, log := newPlace()
	p.sessions = Sessions{Transaction: Session{PID: 4711, Application: "report", User: "ada", State: "idle in transaction", For: time.Hour}}
	s.Look(t.Context())
	for _, want := range []string{"pid 4711", "report", "idle in transaction", "pg_terminate_backend"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
	}
	p.sessions = Sessions{}
	s.Look(t.Context())
	if !strings.Contains(log.String(), "no session holds the tables back any more") {
		t.Errorf("it does not say that it is over:\n%s", log)
	}
}

func TestALookEndsWithItsContext(t *testing.T) {
	p, s, log := newPlace()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil || len(p.seen) != 0 || log.Len() != 0 {
		t.Errorf("%v, %v, %s", err, p.seen, log)
	}
}
