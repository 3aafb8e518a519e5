// Package deadletter is what operators do with payments that Pollux handed to a person: look at them and replay them.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pollux/internal/message"
	"pollux/internal/redelivery"
)

// The states of a letter.
const (
	Open      = "open"      // waits for a person
	Replaying = "replaying" // is polled again
	Resolved  = "resolved"  // its payment is final
	Discarded = "discarded" // a person decided that nothing will be done
)

// Letter is one dead letter, without the bytes of its message.
type Letter struct {
	ID            int64      `json:"id"`
	PaymentID     *int64     `json:"payment_id"` // nil for a message that belongs to no payment
	Gateway       string     `json:"gateway"`
	Account       string     `json:"account"`
	Reference     string     `json:"reference"`
	Class         string     `json:"class"`
	AmountMinor   *int64     `json:"amount_minor"`
	Currency      string     `json:"currency"`
	Reason        string     `json:"reason"`
	State         string     `json:"state"`
	LastClass     string     `json:"last_class"`
	HTTPStatus    int        `json:"http_status"`
	GatewayStatus string     `json:"gateway_status"`
	Message       string     `json:"message"`
	Attempts      int        `json:"attempts"`
	Failures      int        `json:"failures"`
	Deferrals     int        `json:"deferrals"`
	Replays       int        `json:"replays"`
	FirstDied     time.Time  `json:"first_died_at"`
	LastDied      time.Time  `json:"last_died_at"`
	ClosedAt      *time.Time `json:"closed_at"`
	ClosedBy      string     `json:"closed_by"`
}

// Attempt is one call to the gateway.
type Attempt struct {
	At            time.Time `json:"at"`
	Class         string    `json:"class"`
	HTTPStatus    int       `json:"http_status"`
	GatewayStatus string    `json:"gateway_status"`
	Message       string    `json:"message"`
	TookMS        int64     `json:"took_ms"`
	Disposition   string    `json:"disposition"`
	Reason        string    `json:"reason"`
	Worker        string    `json:"worker"`
	TraceID       string    `json:"trace_id"`
}

// Details is all about one letter.
type Details struct {
	Letter
	PaymentStatus string    `json:"payment_status"`
	StatusDetail  string    `json:"status_detail"`
	Policy        string    `json:"policy"`
	Worker        string    `json:"worker"`
	TraceID       string    `json:"trace_id"`
	Subject       string    `json:"subject"`
	Body          []byte    `json:"body"` // of a poison message; nil otherwise
	TrackedAt     time.Time `json:"tracked_at"`
	Polls         []Attempt `json:"polls"` // newest first, at most a hundred
}

// Filter chooses letters. Empty fields choose all.
type Filter struct {
	Gateway string
	Account string
	Class   string
	Reason  string
	State   string        // Open when empty; "any" for all
	Older   time.Duration // died at least so long ago
	Newer   time.Duration // died at most so long ago
}

// Validate returns what is wrong with the filter.
func (f Filter) Validate() error {
	var errs []error
	for _, token := range []struct{ flag, value string }{{"gateway", f.Gateway}, {"class", f.Class}, {"reason", f.Reason}} {
		if token.value != "" && !message.ValidToken(token.value) {
			errs = append(errs, fmt.Errorf("--%s %q: 1 to 64 of a-z, 0-9, _ and -", token.flag, token.value))
		}
	}
	switch f.State {
	case "", "any", Open, Replaying, Resolved, Discarded:
	default:
		errs = append(errs, fmt.Errorf("--state %q: one of open, replaying, resolved, discarded, any", f.State))
	}
	if f.Older < 0 || f.Newer < 0 {
		errs = append(errs, errors.New("--older, --newer: not below 0"))
	}
	return errors.Join(errs...)
}

// Page says which letters of a filter: those with an id below Before (0: from the newest), Limit at the most.
type Page struct {
	Before int64
	Limit  int
}

// ErrNotFound is the error of a letter that does not exist.
var ErrNotFound = errors.New("no such dead letter")

// Outcome is what a replay did.
type Outcome struct {
	Replayed []int64       `json:"replayed"` // letters whose payments are polled again
	Refused  []Refusal     `json:"refused"`  // letters that were chosen and not replayed
	Takes    time.Duration `json:"-"`        // until the last of them is due
}

// Refusal says why a letter was not replayed.
type Refusal struct {
	ID  int64  `json:"id"`
	Why string `json:"why"`
}

// Preview is what a replay would do now.
type Preview struct {
	Letters []Letter      // whose payments would be polled again, in the order of the replay
	Refused []Refusal     // what was chosen and would not be replayed
	Takes   time.Duration // until the last of them would be due
}

// Record is where letters are.
type Record interface {
	// List returns letters, the newest first. It changes nothing.
	List(ctx context.Context, f Filter, p Page) ([]Letter, error)
	// Show returns all about a letter, or ErrNotFound.
	Show(ctx context.Context, id int64) (Details, error)
	// Preview returns the letters that Replay would replay now, in the order of ids, and why not the others. It changes nothing.
	Preview(ctx context.Context, ids []int64) ([]Letter, []Refusal, error)
	// Replay makes the payments of letters due again, the i-th at now + first + i·gap, in one transaction. Counters and window begin anew; the replay is counted.
	// What cannot be replayed is refused with a reason and changes nothing.
	Replay(ctx context.Context, ids []int64, first, gap time.Duration) (Outcome, error)
}

// Desk is an operator's desk.
type Desk struct{ record Record }

// NewDesk returns a desk over a record.
func NewDesk(record Record) *Desk { return &Desk{record: record} }

// MaxPage is the most letters in one page.
const MaxPage = 1000

// List returns a page of letters.
func (d *Desk) List(ctx context.Context, f Filter, p Page) ([]Letter, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	if p.Limit <= 0 || p.Limit > MaxPage {
		return nil, fmt.Errorf("--limit %d: between 1 and %d", p.Limit, MaxPage)
	}
	return d.record.List(ctx, f, p)
}

// Show returns all about one letter.
func (d *Desk) Show(ctx context.Context, id int64) (Details, error) { return d.record.Show(ctx, id) }

// The slowest and the fastest replay, in payments a second.
const (
	MinRate = 0.001
	MaxRate = 100_000
)

// Replay makes the payments of the chosen letters due again, at most rate a second, and reports each page. It takes ids, or, when there
// are none, all open letters that the filter chooses when it begins. It may be stopped and called again at any time: what was replayed is open no
// more. With an error it returns what was done before. progress may be nil.
func (d *Desk) Replay(ctx context.Context, ids []int64, f Filter, rate float64, progress func(done, all int)) (Outcome, error) {
	ids, gap, err := d.plan(ctx, ids, f, rate)
	if err != nil {
		return Outcome{}, err
	}
	var total Outcome
	for page := range slices.Chunk(ids, MaxPage) {
		o, err := d.record.Replay(ctx, page, time.Duration(len(total.Replayed))*gap, gap)
		if err != nil {
			return total, err
		}
		total.Replayed, total.Refused = append(total.Replayed, o.Replayed...), append(total.Refused, o.Refused...)
		total.Takes = spread(len(total.Replayed), gap)
		if progress != nil {
			progress(len(total.Replayed)+len(total.Refused), len(ids))
		}
	}
	return total, nil
}

// plan returns the letters that are chosen and how far apart they are polled.
func (d *Desk) plan(ctx context.Context, ids []int64, f Filter, rate float64) ([]int64, time.Duration, error) {
	if !(rate >= MinRate && rate <= MaxRate) {
		return nil, 0, fmt.Errorf("--rate %g: between %g and %d payments a second", rate, MinRate, MaxRate)
	}
	if len(ids) == 0 {
		var err error
		if ids, err = d.choose(ctx, f); err != nil {
			return nil, 0, err
		}
	}
	ids = distinct(ids)
	gap := time.Duration(float64(time.Second) / rate)
	if most := int64(redelivery.MaxDelay / gap); int64(len(ids)) > most {
		return nil, 0, fmt.Errorf("--rate %g: %d payments would take longer than a year; replay faster, or fewer", rate, len(ids))
	}
	return ids, gap, nil
}

// spread is how long it takes until the last of n payments is due.
func spread(n int, gap time.Duration) time.Duration { return time.Duration(max(n-1, 0)) * gap }

// distinct drops what is named twice.
func distinct(ids []int64) []int64 {
	seen := make(map[int64]bool, len(ids))
	var once []int64
	for _, id := range ids {
		if !seen[id] {
			seen[id], once = true, append(once, id)
		}
	}
	return once
}

// Preview says what Replay would do now with the same arguments. It changes nothing.
func (d *Desk) Preview(ctx context.Context, ids []int64, f Filter, rate float64) (Preview, error) {
	ids, gap, err := d.plan(ctx, ids, f, rate)
	if err != nil {
		return Preview{}, err
	}
	var total Preview
	for page := range slices.Chunk(ids, MaxPage) {
		letters, refused, err := d.record.Preview(ctx, page)
		if err != nil {
			return Preview{}, err
		}
		total.Letters, total.Refused = append(total.Letters, letters...), append(total.Refused, refused...)
	}
	total.Takes = spread(len(total.Letters), gap)
	return total, nil
}

// choose returns the open letters that a filter chooses now.
func (d *Desk) choose(ctx context.Context, f Filter) ([]int64, error) {
	if f.State == "" {
		f.State = Open
	}
	if f.State != Open {
		return nil, fmt.Errorf("--state %s: only open letters are replayed", f.State)
	}
	if err := f.Validate(); err != nil {
		return nil, err
	}
	var all []int64
	page := Page{Limit: MaxPage}
	for {
		letters, err := d.record.List(ctx, f, page)
		if err != nil {
			return nil, err
		}
		for _, l := range letters {
			all = append(all, l.ID)
		}
		if len(letters) < page.Limit {
			return all, nil
		}
		page.Before = letters[len(letters)-1].ID
	}
}
