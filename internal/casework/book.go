package casework

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pollux/internal/message"
	"pollux/internal/payment"
)

// Filter chooses payments. Empty fields choose all.
type Filter struct {
	Gateway  string
	Account  string
	Class    string
	Status   payment.Status // pending when empty and no place says otherwise; Any for all
	Place    Place
	Older    time.Duration // tracked at least so long ago
	Newer    time.Duration // tracked at most so long ago
	Currency string
	Least    *int64 // at least so much, in minor units of Currency
	Most     *int64 // at most so much
	Text     string // in the reference or the merchant's reference
}

// Any is the status of a filter that chooses all.
const Any payment.Status = "any"

// Validate returns what is wrong with the filter.
func (f Filter) Validate() error {
	var errs []error
	for _, token := range []struct{ flag, value string }{{"gateway", f.Gateway}, {"class", f.Class}} {
		if token.value != "" && !message.ValidToken(token.value) {
			errs = append(errs, fmt.Errorf("--%s %q: 1 to 64 of a-z, 0-9, _ and -", token.flag, token.value))
		}
	}
	if f.Status != "" && f.Status != Any && !f.Status.Valid() {
		errs = append(errs, fmt.Errorf("--status %q: one of pending, succeeded, failed, cancelled, expired, any", f.Status))
	}
	if f.Place != "" && !slices.Contains(Places, f.Place) {
		errs = append(errs, fmt.Errorf("--where %q: one of %s", f.Place, placeNames()))
	}
	if f.Place == Final && f.Status == payment.Pending || f.Place != "" && f.Place != Final && f.Status.Final() {
		errs = append(errs, fmt.Errorf("--where %s and --status %s exclude each other", f.Place, f.Status))
	}
	if f.Older < 0 || f.Newer < 0 {
		errs = append(errs, errors.New("--older, --newer: not below 0"))
	}
	if f.Newer > 0 && f.Older > f.Newer {
		errs = append(errs, errors.New("--older is more than --newer: nothing was tracked both before and after"))
	}
	if f.Least != nil && f.Most != nil && *f.Least > *f.Most {
		errs = append(errs, errors.New("--min-amount is more than --max-amount: no amount is both"))
	}
	return errors.Join(errs...)
}

func placeNames() string {
	names := make([]string, len(Places))
	for i, p := range Places {
		names[i] = string(p)
	}
	return strings.Join(names, ", ")
}

// Pending reports whether the filter chooses none but pending payments: those are found by their jobs.
func (f Filter) Pending() bool {
	return f.Status == payment.Pending || f.Place != "" && f.Place != Final || f.Status == "" && f.Place == ""
}

// Total is the money of payments in one currency.
type Total struct {
	Currency    string `json:"currency"`
	Count       int64  `json:"count"`
	AmountMinor int64  `json:"amount_minor"` // the largest number there is when it is more
}

// Waiting is a payment as it is listed: with when it is due.
type Waiting struct {
	Payment
	Due      *time.Time `json:"due_at"` // nil when nothing polls it
	Attempts int        `json:"attempts"`
	Failures int        `json:"failures"`
}

// Count says where all payments are.
type Count struct {
	Tracked int64           `json:"tracked"`
	In      map[Place]int64 `json:"in"`           // a sum over Places and Nowhere is Tracked
	ByHand  int64           `json:"held_by_hand"` // of those held: by an operator
	Overdue int64           `json:"overdue"`      // due for longer than Patience, and nobody took them
	Oldest  *time.Time      `json:"oldest_due_at"`
	Strays  []Stray         `json:"strays"` // what fits none, MaxStrays of them at most
	Lost    int64           `json:"stray"`  // how many there are
	Events  Events          `json:"events"`
}

// Events says whether the record announces what payments became, and nothing else. The event of a change of status must be there, once, as long as the outbox keeps those of its day.
type Events struct {
	Judged int64   `json:"judged"` // final payments whose event must be there
	Wrong  int64   `json:"wrong"`  // payments with an event that is missing, there twice, or that says what never was
	Named  []Stray `json:"named"`  // MaxStrays of them at most
}

// Stray is what is in no place.
type Stray struct {
	ID  int64  `json:"id"`
	Why string `json:"why"`
}

// The limits of a count.
const (
	MaxStrays = 100
	Patience  = 10 * time.Minute // the relay publishes within moments, or holds back because the consumers are behind
)

// Sound reports whether every payment is in exactly one place, and the events say what became of them.
func (c Count) Sound() bool {
	var sum int64
	for _, p := range Places {
		sum += c.In[p]
	}
	return c.Lost == 0 && sum == c.Tracked && c.Events.Wrong == 0
}

// Book is the record as a whole.
type Book interface {
	// List returns payments below an id (0: from the newest), the newest first.
	List(ctx context.Context, f Filter, before int64, limit int) ([]Waiting, error)
	// Totals returns the money of all that the filter chooses, by currency.
	Totals(ctx context.Context, f Filter) ([]Total, error)
	// Count counts all payments, in one snapshot, and their events in another.
	Count(ctx context.Context) (Count, error)
}

// MaxPage is the most payments in one page.
const MaxPage = 1000
