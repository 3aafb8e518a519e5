// Package consumer takes deliveries of due polls, asks the gateway, decides what becomes of each, records it and
// carries it out.
package consumer

import (
	"context"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/message"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// Delivery is one handing-over of a message by the broker.
type Delivery interface {
	// Body is the message. It must not be changed.
	Body() []byte
	// Count is how often the broker has delivered this message, this time included.
	Count() int
	// Waited is how long the message was with the broker before this delivery, by the clocks of both: it may be below 0.
	Waited() time.Duration
	// TraceParent is the trace context that the message carries, or nothing.
	TraceParent() string
	// Ack ends the message. It does not wait for the broker: an acknowledgement that is lost costs a delivery that is dropped.
	Ack() error
	// Return gives the message back; it comes again after delay, at once when delay ≤ 0.
	Return(delay time.Duration) error
}

// Source is where deliveries of one queue come from.
type Source interface {
	// Fetch waits for a delivery and returns it with those that have already arrived, n at the most. It returns
	// ctx's error when ctx ends first. It survives lost connections, consumers and streams by itself.
	Fetch(ctx context.Context, n int) ([]Delivery, error)
	// Held is how many messages of the queue are with consumers or held, fleet-wide, as last seen.
	Held() int
	// Close stops the source and gives back what it has fetched and not returned. Deliveries that it has returned can still be ended.
	Close() error
}

// Gateway asks the gateway about payments.
type Gateway interface {
	// Poll asks once. It always answers, well before the delivery's AckWait and soon after ctx ends; what goes wrong is in the answer's
	// class. It is safe for concurrent use.
	Poll(ctx context.Context, q gateway.Query) gateway.Answer
}

// Gate stands before the gateway: its breaker and its limits. It is safe for concurrent use.
type Gate interface {
	// Open reports whether the breaker of an account keeps calls away.
	Open(account string) bool
	// Enter asks for leave to call the gateway. It may wait for its turn, for seconds at the most. Leave ends with Pass.Done; a refusal says for how long
	// asking again is of no use.
	Enter(ctx context.Context, account string) (Pass, Refusal)
}

// Pass is leave to call the gateway once.
type Pass interface {
	// Done says how the call ended: exactly once and whatever happens.
	Done(c gateway.Class, retryAfter time.Duration)
}

// Refusal says why the gateway may not be called. The zero value means that it may.
type Refusal struct {
	Open bool          // the breaker keeps the call away
	Wait time.Duration // asking earlier is of no use
}

// Sleeper is where polls sleep while a breaker is open.
type Sleeper interface {
	// Sleep stores polls until somebody wakes them, and returns for each, in their order, why it could not.
	Sleep(ctx context.Context, polls []Sleep) []error
}

// Sleep is a poll to be put to sleep.
type Sleep struct {
	Gateway     string
	Poll        message.Poll
	ID          string // of the message: another one each time that a poll is put to sleep
	TraceParent string
}

// Job is what the record says about a delivered poll.
type Job struct {
	Tracked      bool
	Payment      payment.Payment
	Detail       string // the payment's status detail
	TokenCurrent bool   // the job exists and carries the delivery's token
	Dead         bool   // the job is with a person
	Revision     int64
	Counters     redelivery.Counters
	UntilDue     time.Duration // by the database's clock; ≤ 0 when due
	Age          time.Duration // since tracked or last replayed
	HasDeadline  bool
	UntilEnd     time.Duration // until the payment's own deadline
	Previous     time.Duration // the delay before this poll
	LastClass    string        // the class of the answer before, or why it was not asked for; empty when there was none
	LeaseLeft    time.Duration // how long the lease still runs
	DueAt        time.Time
	ReadAt       time.Time // the database's clock when the row was read
}

// Result is the outcome of a delivery, to be recorded if the job still has its token and revision.
type Result struct {
	Payment     payment.ID
	Gateway     string
	Account     string
	Token       string
	Revision    int64
	Disposition redelivery.Disposition
	Policy      string
	PolicyHash  string // of a dead letter; empty otherwise
	Build       string
	Polled      bool           // the gateway was asked: Answer is to be logged as an attempt
	Answer      gateway.Answer // zero when not polled
	DetailNew   bool           // the status detail differs from what the record has
	DueAt       time.Time
	StartedAt   time.Time // by the database's clock
	TraceParent string    // of the call, or of the payment when there was none; may be empty
	Body        []byte    // of a message that is poison; nil otherwise
}

// Verdict is what the record did with a result.
type Verdict struct {
	Applied bool   // false: the lease or the revision had moved on, nothing was changed
	Late    bool   // applied to a payment that had become final otherwise meanwhile, and has succeeded after all
	Refused string // not empty: the database refuses this row, today and tomorrow, and why. The record then says Applied: false; a recorder says true when it has set the payment aside
}

// Poison is a message that cannot be tied to a payment.
type Poison struct {
	Subject string
	Gateway string
	Body    []byte
	Why     string
	Count   int
}

// Record is where jobs are read and results written.
type Record interface {
	// Read returns what the record says about each poll, in their order, in one query. An error says that the record could not be asked: no
	// row is such that it cannot be read, or it would keep all others from being read.
	Read(ctx context.Context, polls []message.Poll) ([]Job, error)
	// Extend prolongs the leases of polls to at least d from now and reports for each whether it still had its lease.
	Extend(ctx context.Context, polls []message.Poll, d time.Duration) ([]bool, error)
	// Write records all results in one transaction and returns a verdict for each, in their order. When the database refuses single rows
	// it finds them, writes the others and says so in their verdicts. An error means that nothing was written.
	Write(ctx context.Context, results []Result, worker string, lease time.Duration) ([]Verdict, error)
	// Bury records a message that cannot be tied to a payment as a dead letter.
	Bury(ctx context.Context, p Poison) error
	// Ping reports whether the record can be reached.
	Ping(ctx context.Context) error
}

// Metrics is what a consumer counts.
type Metrics interface {
	Delivery(gateway string, v redelivery.Verb, r redelivery.Reason)
	// Call, Lateness, Delivered and Finality are told the context of the poll, so that a measurement can name its trace.
	Call(ctx context.Context, gateway string, c gateway.Class, took time.Duration)
	Lateness(ctx context.Context, gateway, lane string, late time.Duration)
	// Delivered says how long a delivery took whose payment was polled.
	Delivered(ctx context.Context, gateway string, took time.Duration)
	// Finality says how old a payment was when it became final, and how many calls the gateway had answered.
	Finality(ctx context.Context, gateway, class string, took time.Duration, attempts int)
	// Waited says how long a poll waited at the broker for its first delivery.
	Waited(gateway, lane string, waited time.Duration)
	// Read says that the rows of n deliveries were read together.
	Read(n int, took time.Duration)
	Resolved(gateway string, status payment.Status)
	Batch(n int, took time.Duration)
	Refused(n int)
	Superseded(n int)
	Held(gateway, lane string, n int)
	InFlight(gateway string, delta int)
}

// Origin is where a delivery comes from, for its trace. The first delivery of a message goes on in the trace of who sent it; a later one, after a wait that may
// have taken hours, begins a trace of its own that is linked to that.
type Origin struct {
	TraceParent string // may be empty
	Later       bool
}

// Tracer continues the trace of a payment.
type Tracer interface {
	// Poll begins the span of a delivery.
	Poll(ctx context.Context, from Origin, subject, gateway string, id payment.ID) (context.Context, func(error))
	// Call begins the span of a call to a gateway.
	Call(ctx context.Context, gateway string) (context.Context, func(gateway.Answer))
	// TraceParent is the trace context to pass on: ctx's span, or the fallback where nothing is traced.
	TraceParent(ctx context.Context, fallback string) string
}

// BatchTracer traces what is written for many payments at once.
type BatchTracer interface {
	// Record begins the span of writing n results, linked to what traceParent says of each of them. Where nothing is traced it does nothing.
	Record(ctx context.Context, n int, traceParent func(i int) string) (context.Context, func(error))
}
