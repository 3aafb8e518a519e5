// Package adoption brings in the pending payments that a team already has: from a file, or from a table of its own.
//
// All lines are read and checked before the first is tracked. Tracking is idempotent, so an adoption that was interrupted is simply run again.
package adoption

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"pollux/internal/audit"
	"pollux/internal/redelivery"
)

// Row is a payment to be adopted. What is empty takes the default of pollux.track_payment.
type Row struct {
	Line              int64 // of the file, or the number of the row of a query; from 1
	Gateway           string
	Account           string
	Reference         string
	MerchantReference string
	Class             string
	Lane              string
	AmountMinor       int64
	Currency          string
	ExpiresAt         *time.Time
	Metadata          string // a JSON object; empty for none
	TraceParent       string
}

// Problem is what is wrong with a line.
type Problem struct {
	Line   int64  `json:"line"`
	Column string `json:"column"` // empty: of the line as a whole
	Why    string `json:"why"`
}

func (p Problem) String() string {
	if p.Column == "" {
		return fmt.Sprintf("line %d: %s", p.Line, p.Why)
	}
	return fmt.Sprintf("line %d, %s: %s", p.Line, p.Column, p.Why)
}

// Source gives lines, the header first. Next ends with io.EOF. A line that cannot be read is an error that unwraps to a *LineError; the next one may be
// readable. Every other error ends the adoption.
type Source interface {
	Header() ([]string, error)
	Next() (line int64, fields []string, err error)
}

// LineError is the error of one line.
type LineError struct {
	Line int64
	Why  string
}

// Error says which line and why.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Why) }

// Money is what payments of one currency amount to.
type Money struct {
	Currency    string `json:"currency"`
	Count       int64  `json:"count"`
	AmountMinor int64  `json:"amount_minor"`
}

// Check is what the record says about all rows of a stage.
type Check struct {
	Problems []Problem     // the first MaxProblems
	Wrong    int64         // how many there are
	New      int64         // payments that will be tracked
	Known    int64         // that are tracked already
	Twice    int64         // lines that name the same payment again
	Refused  []Problem     // payments that are tracked with another amount, the first MaxProblems
	Refusals int64         // how many there are
	Money    []Money       // of the new ones
	Gateways []string      // of all rows
	Span     time.Duration // until the last of the new ones is polled first
}

// Stage holds rows until they are tracked, for one adoption. It is not safe for concurrent use.
type Stage interface {
	// Add adds rows, whose lines are ascending.
	Add(ctx context.Context, rows []Row) error
	// Check checks all that was added, and plans when each new payment is polled first: rate a second for each account of a gateway, after those that an
	// earlier run has planned.
	Check(ctx context.Context, rate float64) (Check, error)
	// Track tracks the next rows after a line, in one transaction with their row of the audit log. It returns the last line, and how many of the rows
	// were new; no line means that nothing is left.
	Track(ctx context.Context, after int64, limit int, by audit.Act) (last int64, fresh int64, err error)
}

// Options say how.
type Options struct {
	Format Format
	Rate   float64   // first polls a second, for each account of a gateway
	DryRun bool      // check and plan, and change nothing
	By     audit.Act // who adopts and why; its one change has the target that names this adoption
}

// The limits.
const (
	MaxProblems = 100
	MinRate     = 0.001
	MaxRate     = 100_000
	Page        = 1000 // rows in one transaction
)

// Report is what an adoption found and did.
type Report struct {
	Lines    int64     `json:"lines"` // that were read, without the header
	New      int64     `json:"new"`   // tracked, or to be tracked by one that is dry
	Tracked  int64     `json:"tracked"`
	Known    int64     `json:"known"`
	Twice    int64     `json:"twice"`
	Refusals int64     `json:"refused_count"`
	Refused  []Problem `json:"refused"`
	Wrong    int64     `json:"wrong"`
	Problems []Problem `json:"problems"`
	Money    []Money   `json:"money"` // of the new ones
	Gateways []string  `json:"gateways"`
	Span     float64   `json:"span_seconds"`
}

// ErrWrong is the error of an adoption whose lines are wrong: nothing was tracked.
var ErrWrong = errors.New("lines are wrong: nothing was tracked")

// Run adopts all payments of a source. With an error the report says what was done before. progress may be nil.
func Run(ctx context.Context, stage Stage, source Source, o Options, progress func(Report)) (Report, error) {
	r := Report{Refused: []Problem{}, Problems: []Problem{}, Money: []Money{}, Gateways: []string{}}
	if !(o.Rate >= MinRate && o.Rate <= MaxRate) {
		return r, fmt.Errorf("--rate %g: between %g and %d payments a second", o.Rate, MinRate, MaxRate)
	}
	if err := r.read(ctx, stage, source, o.Format); err != nil {
		return r, err
	}
	c, err := stage.Check(ctx, o.Rate)
	if err != nil {
		return r, err
	}
	r.take(c)
	switch {
	case r.Wrong > 0:
		return r, ErrWrong
	case c.Span > redelivery.MaxDelay:
		return r, fmt.Errorf("--rate %g: the last payment would be polled after more than a year; adopt faster, or fewer", o.Rate)
	case o.DryRun:
		return r, nil
	}
	for after := int64(0); ; {
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		last, fresh, err := stage.Track(ctx, after, Page, o.By)
		if err != nil {
			return r, err
		}
		if last == 0 {
			return r, nil
		}
		after, r.Tracked = last, r.Tracked+fresh
		if progress != nil {
			progress(r)
		}
	}
}

// read stages all lines of a source that are sound by themselves.
func (r *Report) read(ctx context.Context, stage Stage, source Source, f Format) error {
	header, err := source.Header()
	if err != nil {
		return err
	}
	parser, err := newParser(header, f)
	if err != nil {
		return err
	}
	rows := make([]Row, 0, Page)
	for {
		line, fields, err := source.Next()
		var bad *LineError
		switch {
		case errors.Is(err, io.EOF):
			return stage.Add(ctx, rows)
		case errors.As(err, &bad):
			r.Lines++
			r.wrong(Problem{Line: bad.Line, Why: bad.Why})
			continue
		case err != nil:
			return err
		}
		r.Lines++
		row, problems := parser.parse(line, fields)
		if len(problems) > 0 {
			r.wrong(problems...)
			continue
		}
		if rows = append(rows, row); len(rows) == Page {
			if err := stage.Add(ctx, rows); err != nil {
				return err
			}
			rows = rows[:0]
		}
	}
}

// wrong notes problems, all of them by number and the first by name.
func (r *Report) wrong(problems ...Problem) {
	r.Wrong += int64(len(problems))
	if room := MaxProblems - len(r.Problems); room > 0 {
		r.Problems = append(r.Problems, problems[:min(room, len(problems))]...)
	}
}

func (r *Report) take(c Check) {
	more := c.Wrong - int64(len(c.Problems))
	r.wrong(c.Problems...)
	r.Wrong += more
	r.New, r.Known, r.Twice, r.Refusals, r.Span = c.New, c.Known, c.Twice, c.Refusals, c.Span.Seconds()
	r.Refused, r.Money, r.Gateways = append(r.Refused, c.Refused...), append(r.Money, c.Money...), append(r.Gateways, c.Gateways...)
}
