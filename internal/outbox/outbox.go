// Package outbox moves what is due from the record to the broker: polls of pending payments and the events that
// tell what became of them.
package outbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"pollux/internal/payment"
)

// Queue is one gateway's lane: one subject, one durable consumer.
type Queue struct {
	Gateway string
	Lane    string
}

// Room says how many polls a queue can take now.
type Room struct {
	Queue
	N int
}

// Job is a due poll that the relay has leased.
type Job struct {
	Queue
	Payment     payment.ID
	Token       string // the lease, a UUID; also the message's id
	Revision    int64  // the job's revision when it was leased
	DueAt       time.Time
	TraceParent string
	Lag         time.Duration // how late the claim is, by the database's clock
}

// Event is a row of the outbox.
type Event struct {
	Seq         int64 // the row's key
	ID          string
	Subject     string
	Body        []byte
	TraceParent string
	Lag         time.Duration // since it was committed, by the database's clock
}

// Message is what the broker publishes. ID becomes Nats-Msg-Id: the same message published twice is stored once.
type Message struct {
	Subject     string
	ID          string
	Body        []byte
	TraceParent string // may be empty
	Later       bool   // its payment was polled before: what becomes of it is told in a trace of its own, linked to that of TraceParent
}

// Receipt is what became of a published message. Err is nil when the broker stored it, now or earlier.
type Receipt struct {
	Stream    string
	Sequence  uint64
	Session   uint64 // which connection it came by: another one than before means that the broker may have crashed between
	Duplicate bool   // the broker had stored a message with this id before
	Err       error
}

// Mark is a message that a stream acknowledged. A stream that lost its tail and has grown again since has another message there. The zero value
// marks nothing.
type Mark struct {
	Sequence uint64
	ID       string
}

// StreamState identifies the contents of a stream: another Created is another stream, a smaller LastSequence or a message that was replaced is a lost tail.
type StreamState struct {
	Name         string
	Created      time.Time
	LastSequence uint64
	LastID       string // of the last message; empty when it is not there any more
	Replaced     bool   // there is another message at a mark, or the stream ends before it
}

// Look returns the state of a stream, and whether a mark still holds.
type Look func(ctx context.Context, stream string, mark Mark) (StreamState, error)

// Broker is where messages go. It is safe for concurrent use.
type Broker interface {
	// Publish stores all messages and waits until the broker has said so or ctx ends. Receipts are in the order of the
	// messages, one for each. An error that is a *Refusal will come again for the same message; any other may not,
	// and the message may have been stored all the same.
	Publish(ctx context.Context, messages []Message) []Receipt
	// Backlog returns how many messages of a queue wait undelivered, and false when its consumer does not exist. Queues are asked for side by side.
	Backlog(ctx context.Context, q Queue) (n int, exists bool, err error)
	// Stream returns the state of a stream, and whether marks still hold.
	Stream(ctx context.Context, name string, marks ...Mark) (StreamState, error)
}

// Refusal is the broker's (or our own) final word that a message cannot be published: an invalid subject, too large a body.
type Refusal struct{ Reason string }

func (r *Refusal) Error() string { return r.Reason }

// SetAside is a row that cannot be published, and why.
type SetAside struct {
	Job    Job
	Reason string
}

// Record is where due polls and events come from. It is safe for concurrent use.
type Record interface {
	// Claim leases due jobs for lease: of each queue at most its room, n in all, queues in the order of rooms, and of each queue the
	// oldest first. A relay that dies gives them back when the lease runs out. It returns an empty slice, not an error, when nothing is due.
	Claim(ctx context.Context, rooms []Room, n int, owner string, lease time.Duration) ([]Job, error)
	// Release ends leases early, so that the jobs are due again at once. Jobs whose lease was taken by somebody else stay as they are.
	Release(ctx context.Context, jobs []Job) error
	// SetAside hands jobs that cannot be published to a person, each with its reason.
	SetAside(ctx context.Context, jobs []SetAside) error
	// Queues lists the queues that have jobs, asleep or due.
	Queues(ctx context.Context) ([]Queue, error)
	// Due returns for each queue, in their order, how many polls are due and wait to be claimed; most is told where there are so many or more.
	Due(ctx context.Context, queues []Queue, most int) ([]int, error)
	// PublishEvents hands up to n unpublished events, oldest first, to publish and marks them by its receipts, in one transaction: relays
	// side by side never see the same event, and one that dies leaves its events unpublished. Events refused for good are set aside, others
	// that failed are tried again after retry. It returns how many events it took.
	//
	// It returns a *LostError when a stream gave a message a sequence that it had given before. Everything that was taken is marked then, and
	// what had those sequences is publishable again.
	PublishEvents(ctx context.Context, n int, retry time.Duration, publish func(context.Context, []Event) []Receipt) (int, error)
	// Observe looks at a stream and compares it with what was last seen of it. When messages were lost it makes what was in them
	// publishable again: jobs in flight or held for the poll stream, published events for the others. Of several relays that see
	// the same loss one puts it right: look is called while the others wait, so that nobody compares an old look with a newer memory.
	Observe(ctx context.Context, name string, look Look) (Recovery, error)
	// Maintain makes the partitions of the coming days and drops those past their time.
	Maintain(ctx context.Context) error
}

// LostError says that streams have lost what they had acknowledged, and how many events of each are published again for it.
type LostError struct{ Events map[string]int }

func (e *LostError) Error() string {
	return fmt.Sprintf("streams have lost messages that they had acknowledged: %v", slices.Sorted(maps.Keys(e.Events)))
}

// Recovery says what Observe put right. Lost is false when nothing was lost.
type Recovery struct {
	Lost   bool
	Jobs   int
	Events int
}
