package outage

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var words = Words{Begins: "the relay waits", Over: "the relay goes on", Hint: "does PostgreSQL run?"}

func pass(d time.Duration) { <-time.After(d) }

// said takes the lines that were written since the last time, without their time.
func said(b *bytes.Buffer) []string {
	var lines []string
	for line := range strings.Lines(b.String()) {
		_, line, _ = strings.Cut(strings.TrimSpace(line), " ")
		lines = append(lines, line)
	}
	b.Reset()
	return lines
}

func TestATroubleIsToldOfWhenItBeginsEverMoreSeldomAndWhenItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		l := New(slog.New(slog.NewTextHandler(&b, nil)), words)
		l.Well(t.Context(), "polls")
		began := time.Now()
		var at []time.Duration
		for time.Since(began) < time.Hour {
			l.Failed(t.Context(), "polls", errors.New("refused"))
			if lines := said(&b); len(lines) > 0 {
				at = append(at, time.Since(began))
				if len(at) == 1 && lines[0] != `level=WARN msg="the relay waits" part=polls error=refused hint="does PostgreSQL run?"` {
					t.Errorf("the first line: %s", lines)
				}
			}
			pass(time.Second)
		}
		want := "[0s 10s 30s 1m10s 2m30s 5m10s 10m30s 20m30s 30m30s 40m30s 50m30s]"
		if got := fmt.Sprint(at); got != want {
			t.Errorf("told at %s, want %s", got, want)
		}
		l.Well(t.Context(), "polls")
		l.Well(t.Context(), "polls")
		if lines := said(&b); len(lines) != 1 || lines[0] != `level=INFO msg="the relay goes on" after=1h0m0s tries=3600` {
			t.Errorf("the last lines: %s", lines)
		}
		pass(time.Minute)
		l.Failed(t.Context(), "polls", errors.New("refused"))
		if lines := said(&b); len(lines) != 1 {
			t.Errorf("another one begins with %s", lines)
		}
	})
}

func TestSeveralPartsHaveOneTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		l := New(slog.New(slog.NewTextHandler(&b, nil)), words)
		refused := errors.New("connection refused")
		for _, part := range []string{"polls", "events", "streams"} {
			l.Failed(t.Context(), part, fmt.Errorf("%s: %w", part, refused))
		}
		if lines := said(&b); len(lines) != 1 || !strings.Contains(lines[0], `part=polls error="polls: connection refused"`) {
			t.Errorf("at its beginning: %s", lines)
		}
		pass(First)
		l.Failed(t.Context(), "partitions", errors.New("permission denied"))
		if lines := said(&b); len(lines) != 1 || !strings.Contains(lines[0], `part=events,partitions,polls,streams error="events: connection refused; permission denied" for=10s tries=4`) {
			t.Errorf("a part that joins: %s", lines)
		}
		for _, part := range []string{"polls", "events", "partitions"} {
			l.Well(t.Context(), part)
		}
		if lines := said(&b); len(lines) != 0 {
			t.Errorf("one part fails still: %s", lines)
		}
		l.Well(t.Context(), "streams")
		if lines := said(&b); len(lines) != 1 {
			t.Errorf("at its end: %s", lines)
		}
	})
}

func TestATroubleThatComesAndGoesIsNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		l := New(slog.New(slog.NewTextHandler(&b, nil)), words)
		for range 600 { // a minute
			l.Failed(t.Context(), "polls", errors.New("refused"))
			pass(50 * time.Millisecond)
			l.Well(t.Context(), "polls")
			pass(50 * time.Millisecond)
		}
		if n := len(said(&b)); n < 10 || n > 14 {
			t.Errorf("%d lines in a minute", n)
		}
	})
}

func TestOneCauseIsToldOnce(t *testing.T) {
	refused := errors.New("connection refused")
	other := errors.New("permission denied")
	got := Distinct(nil, errors.Join(fmt.Errorf("observing A: %w", refused), nil, fmt.Errorf("observing B: %w", errors.Join(refused, other))), fmt.Errorf("events: %w", other), other)
	if fmt.Sprint(got) != "[observing A: connection refused events: permission denied]" {
		t.Errorf("%q", got)
	}
	if Distinct(nil, nil) != nil {
		t.Error("nothing is an error")
	}
}

// known is an error that says itself what to do.
type known struct{ error }

func (known) Hint() string { return "grant it" }

func TestAnErrorThatKnowsWhatToDoSaysIt(t *testing.T) {
	var b bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&b, nil)), words)
	l.Failed(t.Context(), "polls", fmt.Errorf("claiming: %w", known{errors.New("denied")}))
	if lines := said(&b); len(lines) != 1 || !strings.HasSuffix(lines[0], `error="claiming: denied" hint="grant it"`) {
		t.Errorf("%s", lines)
	}
}

// A connection is lost with an EOF, and why it does not come back is known a moment later.
func TestWhatAsksForSomethingElseIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		l := New(slog.New(slog.NewTextHandler(&b, nil)), words)
		first, second := errors.New("EOF"), known{errors.New("denied")}
		l.Failed(t.Context(), "polls", first)
		said(&b)
		pass(time.Second)
		l.Failed(t.Context(), "polls", second)
		if lines := said(&b); len(lines) != 1 || !strings.Contains(lines[0], `error=denied for=1s tries=2 hint="grant it"`) {
			t.Errorf("%s", lines)
		}
		for range 8 { // both in turn: once is enough
			pass(time.Second)
			l.Failed(t.Context(), "polls", first)
			l.Failed(t.Context(), "polls", second)
		}
		if lines := said(&b); len(lines) > 0 {
			t.Errorf("told again: %s", lines)
		}
	})
}
