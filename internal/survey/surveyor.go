package survey

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"pollux/internal/audit"
	"pollux/internal/message"
	"pollux/internal/outage"
)

const (
	// patience is for one part. What takes longer is left for the next time; the database ends the statement by itself.
	patience = 10 * time.Second
	// share bounds the time that looking takes: one part in so many, but it is looked once in longest.
	share   = 20
	longest = 5 * time.Minute
	// missed is how many looks may fail before what was seen is not told any more.
	missed = 3
	// verifyAgain is how often the audit log is read from its beginning: a row that is changed behind the walk's back is found within that.
	verifyAgain = time.Hour
	// longTransaction is from when on a transaction that holds the tables back is written into the log.
	longTransaction = 5 * time.Minute
	// longBlocked is the same of a lock that a session of Pollux waits for.
	longBlocked = 10 * time.Second
)

// Surveyor looks from time to time. One is enough; several do no harm, each for itself.
type Surveyor struct {
	every   time.Duration
	wait    time.Duration // until the next look
	record  Record
	broker  Broker
	metrics Metrics
	log     *slog.Logger

	failing *outage.Log // by part
	holding *outage.Log // who holds the tables back
	broken  *outage.Log // the audit log

	dead, away int64 // letters with a person, and polls at the broker; below 0 when it is not known
	walks      map[Orphan]*walk
	chain      verification
	queues     []Queue // that are told of although nothing is in them
}

// walk is a pass over rows.
type walk struct {
	after int64
	found int // so far
	last  int // by the last whole pass
	ended time.Time
}

// verification is a pass over the audit log.
type verification struct {
	chain audit.Chain
	began time.Time
	found Chain
}

// New returns a surveyor that looks every so often.
func New(every time.Duration, record Record, broker Broker, metrics Metrics, log *slog.Logger) *Surveyor {
	s := &Surveyor{every: every, wait: every, record: record, broker: broker, metrics: metrics, log: log, dead: -1, away: -1, walks: map[Orphan]*walk{}, chain: verification{began: time.Now()},
		failing: outage.New(log, outage.Words{Begins: "a part of the record cannot be looked at; its gauges are not told", Over: "all parts of the record are looked at again",
			Hint: "may the relay's login and user read it, and is it there? pollux doctor says what is wrong"}),
		holding: outage.New(log, outage.Words{Begins: "a session holds the tables back", Over: "no session holds the tables back any more",
			Hint: "look at it in pg_stat_activity and end it there, select pg_terminate_backend(pid), if nobody needs it"}),
		broken: outage.New(log, outage.Words{Begins: "the audit log is not as it was written", Over: "the audit log is in order",
			Hint: "keep a copy of the database as it is, then pollux audit verify"}),
	}
	for _, kind := range OrphanKinds {
		s.walks[kind] = &walk{}
	}
	return s
}

// WithQueues returns the surveyor with queues that are told of also while nothing is in them. It is called before Run.
func (s *Surveyor) WithQueues(queues []Queue) *Surveyor {
	s.queues = queues
	return s
}

// Run looks until ctx ends, and returns nil: what goes wrong is tried again.
func (s *Surveyor) Run(ctx context.Context) error {
	for {
		s.Look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.wait):
		}
	}
}

// Look looks at everything once. It is called by one at a time.
func (s *Surveyor) Look(ctx context.Context) {
	var took time.Duration
	for _, part := range Parts {
		if ctx.Err() == nil {
			took += s.look(ctx, part)
		}
	}
	s.wait = max(s.every, min(share*took, longest))
}

// look looks at a part and returns how long that took; a look that failed is not held against the next one.
func (s *Surveyor) look(ctx context.Context, part Part) time.Duration {
	look, cancel := context.WithTimeoutCause(ctx, patience, errors.New("no answer in time"))
	defer cancel()
	began := time.Now()
	found, err := s.find(look, part)
	took := time.Since(began)
	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		s.failing.Failed(ctx, string(part), err)
		return 0
	}
	s.failing.Well(ctx, string(part))
	s.metrics.Surveyed(found, took, missed*s.wait+patience)
	return took
}

func (s *Surveyor) find(ctx context.Context, part Part) (Finding, error) {
	switch part {
	case PartJobs:
		return s.jobs(ctx)
	case PartLetters:
		return s.letters(ctx)
	case PartEvents:
		return s.record.Events(ctx)
	case PartTables:
		return s.record.Storage(ctx)
	case PartSessions:
		return s.sessions(ctx)
	case PartOrphans:
		return s.orphans(ctx)
	case PartAudit:
		return s.verify(ctx)
	}
	return s.streams(ctx)
}

// jobs adds what sleeps in the database: what is pending and nowhere else. It cannot be counted, since a million may sleep there; where the rest is was seen moments ago.
func (s *Surveyor) jobs(ctx context.Context) (Jobs, error) {
	j, err := s.record.Jobs(ctx)
	if err != nil {
		return j, err
	}
	for _, q := range s.queues {
		if !slices.ContainsFunc(j.Queues, func(found Queue) bool { return found.Gateway == q.Gateway && found.Lane == q.Lane }) {
			j.Queues = append(j.Queues, Queue{Gateway: q.Gateway, Lane: q.Lane})
		}
	}
	j.Parked = -1
	if s.dead >= 0 && s.away >= 0 {
		j.Parked = j.Pending - s.dead - s.away
		for _, q := range j.Queues {
			j.Parked -= int64(q.Due)
		}
		j.Parked = max(j.Parked, 0)
	}
	return j, nil
}

func (s *Surveyor) letters(ctx context.Context) (Letters, error) {
	l, err := s.record.Letters(ctx)
	if s.dead = l.Dead; err != nil {
		s.dead = -1
	}
	return l, err
}

func (s *Surveyor) streams(ctx context.Context) (Streams, error) {
	found, err := s.broker.Survey(ctx)
	if err != nil {
		s.away = -1
		return found, err
	}
	s.away = found.Waiting
	for _, l := range found.Unacked {
		if l.Lane != message.LaneDeferred { // those are among what sleeps
			s.away += l.N
		}
	}
	for _, l := range found.Deferred {
		s.away += l.N
	}
	return found, nil
}

// sessions says in the log who holds the tables back: a process id is no label, and a person who is called wants it.
func (s *Surveyor) sessions(ctx context.Context) (Sessions, error) {
	found, err := s.record.Sessions(ctx)
	if err != nil {
		return found, err
	}
	s.tell(ctx, "transaction", found.Transaction, longTransaction, "its transaction is open for")
	s.tell(ctx, "lock", found.Blocked, longBlocked, "a session of Pollux has waited for its lock for")
	return found, nil
}

func (s *Surveyor) tell(ctx context.Context, part string, who Session, long time.Duration, what string) {
	if who.For < long {
		s.holding.Well(ctx, part)
		return
	}
	s.holding.Failed(ctx, part, fmt.Errorf("pid %d, application %q, user %q, %s: %s %s", who.PID, who.Application, who.User, who.State, what, who.For.Round(time.Second)))
}

func (s *Surveyor) orphans(ctx context.Context) (Orphans, error) {
	all := Orphans{}
	for kind, w := range s.walks {
		found, last, err := s.record.Orphans(ctx, kind, w.after)
		if err != nil {
			return nil, err
		}
		w.after, w.found = last, w.found+found
		if last == 0 { // the end of a pass: the next look begins another
			w.last, w.found, w.ended = w.found, 0, time.Now()
		}
		all[kind] = Walk{Found: max(w.last, w.found), Ended: w.ended}
	}
	return all, nil
}

// verify reads on in the audit log. From time to time it begins anew, and expects the last row of before.
func (s *Surveyor) verify(ctx context.Context) (Chain, error) {
	v := &s.chain
	rows, err := s.record.Entries(ctx, v.chain.Head().Seq)
	if err != nil {
		return Chain{}, err
	}
	for _, row := range rows {
		if err := v.chain.Next(row); err != nil {
			return s.breach(ctx, err), nil
		}
	}
	if len(rows) < Slice { // its end
		if err := v.chain.End(); err != nil {
			return s.breach(ctx, err), nil
		}
		v.found = Chain{Rows: v.chain.Rows(), Verified: time.Now()}
		s.broken.Well(ctx, "audit")
		if time.Since(v.began) > verifyAgain {
			v.again(v.chain.Head())
		}
	}
	return v.found, nil
}

// breach notes that the chain is broken. It is read again from its beginning: somebody may restore it.
func (s *Surveyor) breach(ctx context.Context, err error) Chain {
	v := &s.chain
	v.found.Broken, v.found.Why = v.chain.Head().Seq+1, err.Error()
	if broken, ok := errors.AsType[*audit.Broken](err); ok {
		v.found.Broken = max(broken.Seq, 1)
	}
	s.broken.Failed(ctx, "audit", err)
	expect := v.chain.Expect
	if expect == nil && v.chain.Rows() > 0 {
		head := v.chain.Head()
		expect = &head
	}
	v.chain, v.began = audit.Chain{Expect: expect}, time.Now()
	return v.found
}

func (v *verification) again(head audit.Anchor) {
	v.chain, v.began = audit.Chain{}, time.Now()
	if head.Seq > 0 {
		v.chain.Expect = &head
	}
}
