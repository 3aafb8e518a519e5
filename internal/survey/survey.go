// Package survey looks at the record and at the streams from time to time, for those who watch: what waits and for how long, what is with a person and what it
// is worth, what holds the tables back, and whether something is there that must not be.
package survey

import (
	"context"
	"time"

	"pollux/internal/audit"
)

// Part is a part of what is looked at. The parts fail by themselves: the others are told all the same.
type Part string

// The parts.
const (
	PartJobs     Part = "jobs"     // what waits to be polled
	PartLetters  Part = "letters"  // what is with a person
	PartEvents   Part = "events"   // what waits to be published
	PartTables   Part = "tables"   // how large the tables are, and how much of that is dead
	PartSessions Part = "sessions" // who holds the tables back
	PartOrphans  Part = "orphans"  // what lacks its other half
	PartAudit    Part = "audit"    // whether the chain of the audit log holds
	PartStreams  Part = "streams"  // what is in the streams, and whether they are as they must be
)

// Parts are all parts, in the order in which they are looked at.
var Parts = []Part{PartSessions, PartLetters, PartStreams, PartJobs, PartEvents, PartTables, PartOrphans, PartAudit}

// The limits of a look, so that it costs the same whatever there is to be seen.
const (
	// Most is up to where rows that wait are counted: that many entries of an index take some milliseconds.
	Most = 10_000
	// Slice is how many rows of a walk are read at once: of payments, of jobs and of the audit log. At one look in 15 s a walk comes to a million rows in two hours.
	Slice = 2_000
	// LongDue is how long after it was due a poll is overdue that no relay took.
	LongDue = 10 * time.Minute
)

// Finding is what was seen of a part.
type Finding interface{ Part() Part }

// Jobs are the polls.
type Jobs struct {
	Pending int64 // an estimate
	Parked  int64 // an estimate; below 0 when it cannot be said
	Queues  []Queue
}

// Queue is a gateway's lane with polls in the database.
type Queue struct {
	Gateway, Lane string
	Due           int           // Most at the most
	Overdue       int           // Most at the most
	Oldest        time.Duration // how long the one that waits longest has been due; 0 when none waits
}

// Letters are the dead letters that are not closed.
type Letters struct {
	Groups []Group
	AtRisk []Sum // of payments that are pending
	Dead   int64 // payments whose job is dead
}

// Group is how many dead letters are alike.
type Group struct {
	Gateway, Reason, State string
	N                      int
	Oldest                 time.Duration // since the oldest of them died last
}

// Sum is money. It is a float: what all payments of a gateway add up to may be more than an integer takes.
type Sum struct {
	Gateway, Currency string
	Minor             float64
}

// LetterStates are the states of a dead letter that is not closed.
var LetterStates = []string{"open", "replaying", "parked"}

// Events are those of the outbox.
type Events struct {
	Waiting  int           // Most at the most
	Oldest   time.Duration // since the oldest was committed; 0 when none waits
	SetAside int           // Most at the most
}

// Tables are the tables that change much.
var Tables = []string{"payments", "poll_jobs", "outbox", "dead_letters", "webhook_events"}

// Storage is what the tables take.
type Storage []Table

// Table is a table, its partitions together. The numbers are the database's own statistics.
type Table struct {
	Name       string
	Live, Dead int64     // rows
	Size       int64     // bytes, without indexes
	Bloat      int64     // bytes beyond what the rows need: an estimate
	Indexes    int64     // bytes
	Vacuumed   time.Time // zero when it never was
}

// Sessions are those of the database that matter to others.
type Sessions struct {
	Transaction Session // whose transaction has kept vacuum from its work for longest
	Blocked     Session // whom the session of Pollux waits for that has waited for a lock for longest
}

// Session is somebody else's at the database. The zero value is nobody's.
type Session struct {
	PID         int // 0 of a prepared transaction, which has no session
	Application string
	User        string
	State       string
	For         time.Duration
}

// Orphan is what lacks its other half.
type Orphan string

// The kinds of orphans.
const (
	PaymentWithoutJob Orphan = "payment_without_job" // it is pending and nobody will poll it
	JobWithoutPayment Orphan = "job_without_payment" // its payment is not pending, or not there
)

// OrphanKinds are all kinds of orphans.
var OrphanKinds = []Orphan{PaymentWithoutJob, JobWithoutPayment}

// Orphans are what was found, by kind.
type Orphans map[Orphan]Walk

// Walk is a pass over many rows, some at each look.
type Walk struct {
	Found int       // by the last whole pass or by the one under way, whichever found more
	Ended time.Time // when the last whole pass ended; zero when none has
}

// Chain is how far the audit log is in order.
type Chain struct {
	Broken   int64     // the first row that is not; 0 when all is well as far as it was read
	Why      string    // what is wrong with it
	Rows     int64     // that were found in order
	Verified time.Time // when it was read up to its end and found in order; zero when it never was
}

// Streams are the streams.
type Streams struct {
	Streams  []Stream
	Unacked  []Load // delivered and not acknowledged
	Deferred []Load // asleep; of no lane
	Waiting  int64  // polls that were not delivered yet
}

// Stream is a stream.
type Stream struct {
	Name     string
	Messages int64
	Bytes    int64
	Oldest   time.Duration // age of its oldest message; 0 when it is empty
	Lag      int64         // messages that the consumer which is furthest behind was not sent
	Drift    int           // settings that are not as they must be
}

// Load is how many polls of a queue are somewhere.
type Load struct {
	Gateway, Lane string
	N             int64
}

// Part implements Finding.
func (Jobs) Part() Part { return PartJobs }

// Part implements Finding.
func (Letters) Part() Part { return PartLetters }

// Part implements Finding.
func (Events) Part() Part { return PartEvents }

// Part implements Finding.
func (Storage) Part() Part { return PartTables }

// Part implements Finding.
func (Sessions) Part() Part { return PartSessions }

// Part implements Finding.
func (Orphans) Part() Part { return PartOrphans }

// Part implements Finding.
func (Chain) Part() Part { return PartAudit }

// Part implements Finding.
func (Streams) Part() Part { return PartStreams }

// Record is where rows are looked at. Every look is bounded: it reads no more than it says, whatever sleeps there, and the database ends it after a few seconds.
type Record interface {
	// Jobs looks at what is due. Parked is not said.
	Jobs(ctx context.Context) (Jobs, error)
	// Letters counts dead letters. It reads those that are not closed.
	Letters(ctx context.Context) (Letters, error)
	// Events looks at what is not published.
	Events(ctx context.Context) (Events, error)
	// Storage looks at the tables.
	Storage(ctx context.Context) (Storage, error)
	// Sessions looks at who is at the database. It is an error when others cannot be seen.
	Sessions(ctx context.Context) (Sessions, error)
	// Orphans looks at the Slice of rows behind one and returns how many are orphans, and the last row; 0 when these were the last ones.
	Orphans(ctx context.Context, kind Orphan, after int64) (found int, last int64, err error)
	// Entries returns the Slice of rows of the audit log behind one.
	Entries(ctx context.Context, after int64) ([]audit.Entry, error)
}

// Broker is where streams are looked at.
type Broker interface {
	Survey(ctx context.Context) (Streams, error)
}

// Metrics takes what was found.
type Metrics interface {
	// Surveyed says what was found, how long that took, and for how long it may be taken for what is.
	Surveyed(f Finding, took, good time.Duration)
}
