// Package outage tells in the log of a trouble that lasts: when it begins, ever more seldom that it goes on, and when it is over.
package outage

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// How often a trouble that goes on is told of again: after the first interval, and then at twice the last one each time, up to the longest.
const (
	First   = 10 * time.Second
	Longest = 10 * time.Minute
)

// Words are what is told.
type Words struct {
	Begins string // the message of the first line and of those that follow it
	Over   string // the message of the last line
	Hint   string // what to look at
}

// Log tells of one kind of trouble, which several parts of a process may have at once: it begins with the first part that fails and is over when all
// are well. What asks for something else than was told is told at once, once in a trouble. A trouble that comes and goes makes two lines in each First at the most. It is safe for concurrent use.
type Log struct {
	log   *slog.Logger
	words Words

	mu      sync.Mutex
	failing map[string]error // by part
	since   time.Time        // when it began
	tries   int              // how often something failed since
	told    bool             // that it began
	hints   []string         // that were told of it
	last    time.Time        // when anything was told
	wait    time.Duration    // until it is told of again
}

// New returns a log of a trouble that has not begun.
func New(log *slog.Logger, words Words) *Log {
	return &Log{log: log, words: words, failing: map[string]error{}, wait: First}
}

// Failed says that something went wrong in a part.
func (l *Log) Failed(ctx context.Context, part string, err error) {
	if attrs := l.failed(part, err, time.Now()); attrs != nil {
		l.log.LogAttrs(ctx, slog.LevelWarn, l.words.Begins, attrs...)
	}
}

// failed notes a failure and returns what is to be told of it, if anything.
func (l *Log) failed(part string, err error, now time.Time) []slog.Attr {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failing) == 0 {
		l.since, l.tries, l.told, l.hints = now, 0, false, nil
	}
	_, known := l.failing[part]
	l.failing[part] = err
	l.tries++
	hint := cmp.Or(Hint(err), l.words.Hint)
	quiet := now.Sub(l.last)
	switch {
	case l.told && !slices.Contains(l.hints, hint): // it is something else that is to be done
	case l.last.IsZero(), !l.told && quiet >= First, !known && quiet >= First:
	case quiet >= l.wait:
		l.wait = min(2*l.wait, Longest)
	default:
		return nil
	}
	l.told, l.last = true, now
	if !slices.Contains(l.hints, hint) {
		l.hints = append(l.hints, hint)
	}
	attrs := []slog.Attr{slog.String("part", strings.Join(l.parts(), ",")), slog.String("error", l.text())}
	if l.tries > 1 {
		attrs = append(attrs, slog.Duration("for", now.Sub(l.since).Round(time.Millisecond)), slog.Int("tries", l.tries))
	}
	return append(attrs, slog.String("hint", hint))
}

// Hint is what an error itself knows to do about it; empty when it knows nothing.
func Hint(err error) string {
	var knows interface{ Hint() string }
	if errors.As(err, &knows) {
		return knows.Hint()
	}
	return ""
}

// Well says that a part works.
func (l *Log) Well(ctx context.Context, part string) {
	if attrs := l.well(part, time.Now()); attrs != nil {
		l.log.LogAttrs(ctx, slog.LevelInfo, l.words.Over, attrs...)
	}
}

func (l *Log) well(part string, now time.Time) []slog.Attr {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, failing := l.failing[part]; !failing {
		return nil
	}
	delete(l.failing, part)
	if len(l.failing) > 0 || !l.told {
		return nil
	}
	l.last, l.wait = now, First
	return []slog.Attr{slog.Duration("after", now.Sub(l.since).Round(time.Millisecond)), slog.Int("tries", l.tries)}
}

func (l *Log) parts() []string {
	parts := make([]string, 0, len(l.failing))
	for part := range l.failing {
		parts = append(parts, part)
	}
	slices.Sort(parts)
	return parts
}

// text is what is wrong with all parts. l.mu is held.
func (l *Log) text() string {
	all := make([]error, 0, len(l.failing))
	for _, part := range l.parts() {
		all = append(all, l.failing[part])
	}
	var lines []string
	for _, err := range Distinct(all...) {
		for line := range strings.Lines(err.Error()) {
			if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	return strings.Join(lines, "; ")
}

// Distinct are the errors, and those that are joined in them, without those that have the root of one before: five steps that a database refuses are one
// error. What is nil is left out.
func Distinct(errs ...error) []error {
	var distinct []error
	var roots []string
	var walk func(error)
	walk = func(err error) {
		if err == nil {
			return
		}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, one := range joined.Unwrap() {
				walk(one)
			}
			return
		}
		if root := root(err).Error(); !slices.Contains(roots, root) {
			roots, distinct = append(roots, root), append(distinct, err)
		}
	}
	for _, err := range errs {
		walk(err)
	}
	return distinct
}

// root is what an error comes from in the end; of several the first.
func root(err error) error {
	for {
		below := errors.Unwrap(err)
		if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 {
			below = joined.Unwrap()[0]
		}
		if below == nil {
			return err
		}
		err = below
	}
}
