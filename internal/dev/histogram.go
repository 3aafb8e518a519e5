package dev

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// bucket is the width of a column of a histogram.
const bucket = 100 * time.Millisecond

// histogram is the calls in each tenth of a second, one after the other.
type histogram struct {
	from  time.Time // when the first began
	calls []uint32
}

// index is the number of the bucket of an instant, which may lie outside.
func (h histogram) index(at time.Time) int {
	return int(at.Sub(h.from).Round(time.Microsecond) / bucket)
}

// at is the calls in a bucket, none outside.
func (h histogram) at(i int) int {
	if i < 0 || i >= len(h.calls) {
		return 0
	}
	return int(h.calls[i])
}

// max is the most calls in one bucket of a time.
func (h histogram) max(from, to time.Time) (most int) {
	for i := max(h.index(from), 0); i <= min(h.index(to), len(h.calls)-1); i++ {
		most = max(most, h.at(i))
	}
	return most
}

// plotWidth is the length of the longest bar.
const plotWidth = 60

// plot draws the calls from a second before an instant to four after it, a line for each tenth of a second.
func (h histogram) plot(out io.Writer, title string, at time.Time) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s, calls in each tenth of a second:\n", title)
	zero := h.index(at)
	from, to := zero-int(time.Second/bucket), zero+int(4*time.Second/bucket)
	scale := 1
	for i := from; i < to; i++ {
		scale = max(scale, h.at(i))
	}
	for i := from; i < to; i++ {
		n := h.at(i)
		width := (n*plotWidth + scale - 1) / scale // a single call is seen, too
		line := fmt.Sprintf("%+5.1f s %5d  %s", (time.Duration(i-zero) * bucket).Seconds(), n, strings.Repeat("#", width))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
