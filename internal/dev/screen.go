package dev

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"pollux/internal/terminal"
)

// screen is where a person looks: lines that stay, and on a terminal a board below them that is drawn over itself. It is
// safe for concurrent use.
type screen struct {
	out      io.Writer
	terminal bool

	mu    sync.Mutex
	board []string // as it stands on the terminal now
}

func newScreen(out io.Writer) *screen { return &screen{out: out, terminal: terminal.Is(out)} }

// What a terminal is told. A line of the board that is too long for it is cut at its edge: one that were wrapped would be counted wrongly.
const (
	upLines   = "\x1b[%dA"
	clearLine = "\x1b[K"
	clearDown = "\x1b[J"
	wrapOff   = "\x1b[?7l"
	wrapOn    = "\x1b[?7h"
)

// Write writes whole lines, above the board.
func (s *screen) Write(lines []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.board) == 0 {
		return s.out.Write(lines)
	}
	var b strings.Builder
	fmt.Fprintf(&b, upLines+clearDown, len(s.board))
	b.Write(lines)
	draw(&b, s.board)
	if _, err := io.WriteString(s.out, b.String()); err != nil {
		return 0, err
	}
	return len(lines), nil
}

// say writes a line.
func (s *screen) say(format string, a ...any) { fmt.Fprintf(s, format+"\n", a...) }

// show draws the board over the one before: in one write, and without clearing first, so that nothing flickers.
func (s *screen) show(board []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	if n := len(s.board); n > 0 {
		fmt.Fprintf(&b, upLines, n)
	}
	draw(&b, board)
	b.WriteString(clearDown)
	s.board = board
	_, err := io.WriteString(s.out, b.String())
	return err
}

// leave lets the board stand as it is and goes on below it.
func (s *screen) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.board = nil
}

func draw(b *strings.Builder, board []string) {
	b.WriteString(wrapOff)
	for _, line := range board {
		b.WriteString(line)
		b.WriteString(clearLine + "\n")
	}
	b.WriteString(wrapOn)
}
