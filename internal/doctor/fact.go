package doctor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// factTimeout is how long it may take to learn one fact. The slowest reads some hundred thousand rows, which takes a second.
const factTimeout = 5 * time.Second

// Fact is something about the live system. It is asked for once, by whichever check needs it first. It is safe for concurrent use.
type Fact[T any] struct {
	ask   func(context.Context) (T, error)
	begun atomic.Bool
	known chan struct{} // closed when it was asked for
	value T
	err   error
}

// Ask returns a fact that is to be asked for. The function must return when its context ends.
func Ask[T any](ask func(context.Context) (T, error)) *Fact[T] {
	return &Fact[T]{ask: ask, known: make(chan struct{})}
}

// Know returns a fact that is known.
func Know[T any](v T) *Fact[T] {
	return Ask(func(context.Context) (T, error) { return v, nil })
}

// Get returns the fact, or why it cannot be known. The first call asks, for five seconds at the most.
func (f *Fact[T]) Get(ctx context.Context) (T, error) {
	if f.begun.Swap(true) {
		<-f.known
		return f.value, f.err
	}
	defer close(f.known)
	ctx, cancel := context.WithTimeoutCause(ctx, factTimeout, fmt.Errorf("no answer within %s", factTimeout))
	defer cancel()
	f.value, f.err = f.ask(ctx)
	if errors.Is(f.err, context.DeadlineExceeded) && ctx.Err() != nil {
		f.err = context.Cause(ctx)
	}
	return f.value, f.err
}

// of makes a check of a fact and its judgement, which depends on its arguments alone. A fact that is not known makes the check Unknown, or leaves it to others; one that nobody
// can tell does not apply.
func of[T any](pick func(*Sources) *Fact[T], judge func(T, *Settings) []opinion) func(context.Context, *Sources, *Settings) []opinion {
	return func(ctx context.Context, s *Sources, set *Settings) []opinion {
		f := pick(s)
		if f == nil {
			return nil
		}
		v, err := f.Get(ctx)
		if err != nil {
			return unknown(err).alone()
		}
		return judge(v, set)
	}
}

// of2 is of for two facts.
func of2[A, B any](pickA func(*Sources) *Fact[A], pickB func(*Sources) *Fact[B], judge func(A, B, *Settings) []opinion) func(context.Context, *Sources, *Settings) []opinion {
	return func(ctx context.Context, s *Sources, set *Settings) []opinion {
		fa, fb := pickA(s), pickB(s)
		if fa == nil || fb == nil {
			return nil
		}
		a, err := fa.Get(ctx)
		if err != nil {
			return unknown(err).alone()
		}
		b, err := fb.Get(ctx)
		if err != nil {
			return unknown(err).alone()
		}
		return judge(a, b, set)
	}
}

// reached makes a check of whether something can be reached at all: it is red when not.
func reached[T any](pick func(*Sources) *Fact[T], mend string, judge func(T) string) func(context.Context, *Sources, *Settings) []opinion {
	return func(ctx context.Context, s *Sources, _ *Settings) []opinion {
		f := pick(s)
		if f == nil {
			return nil
		}
		v, err := f.Get(ctx)
		if errors.Is(err, ErrNotOurs) {
			return unknown(err).alone()
		}
		if err != nil {
			if h, ok := errors.AsType[hint](err); ok && h.Hint() != "" {
				mend = h.Hint()
			}
			return red(mend, "%s", oneLine(err)).alone()
		}
		return green("%s", judge(v)).alone()
	}
}

// hint is an error that knows what to do about itself.
type hint interface {
	error
	Hint() string
}

// unknown is what to say of what cannot be known: nothing, where whoever asks is not meant to know it.
func unknown(err error) opinion {
	if errors.Is(err, ErrNotOurs) {
		return opinion{level: left}
	}
	mend := "see record.reachable, record.locks and broker.reachable, and ask again when they are well"
	if h, ok := errors.AsType[hint](err); ok && h.Hint() != "" {
		mend = h.Hint()
	}
	return opinion{level: Unknown, found: "not looked at: " + oneLine(err), mend: mend}
}

func green(format string, a ...any) opinion {
	return opinion{level: Green, found: fmt.Sprintf(format, a...)}
}

func yellow(mend, format string, a ...any) opinion {
	return opinion{level: Yellow, found: fmt.Sprintf(format, a...), mend: mend}
}

func red(mend, format string, a ...any) opinion {
	return opinion{level: Red, found: fmt.Sprintf(format, a...), mend: mend}
}
