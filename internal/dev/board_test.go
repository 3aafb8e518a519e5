package dev

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pollux/internal/payment"
	"pollux/internal/postgres"
)

var control = regexp.MustCompile(`^\x1b\[\??([0-9]*)([A-Za-z])`)

func TestTheBoardStaysBelowTheLines(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, terminal: true}
	s.say("before")
	for i := range 3 {
		if err := s.show([]string{fmt.Sprintf("board %d", i), "second line"}); err != nil {
			t.Fatal(err)
		}
		s.say("log %d", i)
	}
	if err := s.show([]string{"short"}); err != nil {
		t.Fatal(err)
	}
	s.leave()
	s.say("after")
	if got, want := render(t, out.String()), "before\nlog 0\nlog 1\nlog 2\nshort\nafter"; got != want {
		t.Errorf("the terminal shows\n%s\nwanted\n%s", got, want)
	}
}

// render is what a terminal shows after these bytes.
func render(t *testing.T, s string) string {
	t.Helper()
	lines, row, column := []string{""}, 0, 0
	for s != "" {
		if m := control.FindStringSubmatch(s); m != nil {
			s = s[len(m[0]):]
			switch m[2] {
			case "A":
				n, err := strconv.Atoi(m[1])
				if err != nil || n > row {
					t.Fatalf("%q from row %d", m[0], row)
				}
				row, column = row-n, 0
			case "K":
				lines[row] = lines[row][:min(column, len(lines[row]))]
			case "J":
				lines = lines[:row+1]
				lines[row] = lines[row][:min(column, len(lines[row]))]
			case "h", "l":
			default:
				t.Fatalf("what is %q?", m[0])
			}
			continue
		}
		c := s[0]
		s = s[1:]
		if c == '\n' {
			if row, column = row+1, 0; row == len(lines) {
				lines = append(lines, "")
			}
			continue
		}
		lines[row] = lines[row][:min(column, len(lines[row]))] + string(c) + lines[row][min(column+1, len(lines[row])):]
		column++
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

func TestNothingFlickers(t *testing.T) {
	var writes []string
	s := &screen{out: recorder(func(p string) { writes = append(writes, p) }), terminal: true}
	for range 3 {
		if err := s.show([]string{"a", "b"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(writes) != 3 {
		t.Errorf("%d writes for three boards", len(writes))
	}
	for _, w := range writes {
		if i := strings.Index(w, clearDown); i < strings.Index(w, "b") {
			t.Errorf("cleared before it is drawn: %q", w)
		}
		if !strings.Contains(w, wrapOff) || !strings.HasSuffix(strings.TrimSuffix(w, clearDown), wrapOn) {
			t.Errorf("lines that are too long are wrapped, or are for ever after: %q", w)
		}
	}
}

type recorder func(string)

func (r recorder) Write(p []byte) (int, error) { r(string(p)); return len(p), nil }

var _ io.Writer = recorder(nil)

func someMoment() moment {
	return moment{
		scenario: "outage", running: 3*time.Minute + 7*time.Second, rate: 20, polls: 46.6,
		census: postgres.Census{Tracked: 1234567, InFlight: 4, Held: 12, Parked: 7, Deferred: 1, Dead: 2, ByStatus: map[payment.Status]int{
			payment.Pending: 26, payment.Succeeded: 1200000, payment.Failed: 21, payment.Cancelled: 9, payment.Expired: 7}},
		recent: postgres.Quantiles{Finality50: 146 * time.Millisecond, Finality99: 1580 * time.Millisecond},
	}
}

func TestTheBoardFitsAndItsColumnsStandUnderTheirNames(t *testing.T) {
	board := someMoment().board()
	if !strings.Contains(board[0], "outage · 3:07 · 20 payments a second") {
		t.Errorf("%q does not say the scenario and how long it runs", board[0])
	}
	pairs := 0
	for i, line := range board {
		if n := utf8.RuneCountInString(line); n > 79 {
			t.Errorf("%d characters: %q", n, line)
		}
		names := regexp.MustCompile(`\S+( \S+)*`).FindAllStringIndex(line, -1)
		if !strings.Contains(line, "tracked") && !strings.Contains(line, "polls/s") {
			continue
		}
		pairs++
		values := regexp.MustCompile(`\S+`).FindAllStringIndex(board[i+1], -1)
		if len(names) != len(values) {
			t.Fatalf("%d names over %d values:\n%s\n%s", len(names), len(values), line, board[i+1])
		}
		for k := range names {
			if names[k][1] != values[k][1] {
				t.Errorf("a value does not end under its name:\n%s\n%s", line, board[i+1])
			}
		}
	}
	if pairs != 2 {
		t.Errorf("the board is\n%s", strings.Join(board, "\n"))
	}
}

func TestElsewhereAMomentIsALine(t *testing.T) {
	want := "outage 3:07 tracked=1234567 pending=26 in_flight=4 held=12 parked=7 deferred=1 succeeded=1200000 failed=21 cancelled=9 expired=7 dead=2 polls/s=47 p50=0.146s p99=1.580s"
	if got := someMoment().line(); got != want {
		t.Errorf("%s\nwanted\n%s", got, want)
	}
}

func TestAClockCountsHours(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0:00", 59*time.Second + 900*time.Millisecond: "0:59", time.Hour - time.Second: "59:59", time.Hour: "1:00:00", 25*time.Hour + 61*time.Second: "25:01:01"} {
		if got := clock(d); got != want {
			t.Errorf("%s: %s, wanted %s", d, got, want)
		}
	}
}
