package audit

import "fmt"

// Broken is the error of a log that somebody has tampered with. Seq is the first row that is wrong, or after which rows are missing.
type Broken struct {
	Seq int64
	Why string
}

// Error says which row and what is wrong with it.
func (b *Broken) Error() string { return fmt.Sprintf("row %d: %s", b.Seq, b.Why) }

func broken(seq int64, format string, a ...any) error {
	return &Broken{Seq: seq, Why: fmt.Sprintf(format, a...)}
}

// Chain verifies a log, row by row, in the order of Seq. The zero value expects a whole log, whose first row is 1. It is for one goroutine.
type Chain struct {
	Part   bool    // what is verified may begin in the middle of the log: an export of some days
	Expect *Anchor // a row that must be there as it was; nil when nothing was written down

	head Anchor
	rows int64
}

// Rows is how many rows were verified.
func (c *Chain) Rows() int64 { return c.rows }

// Head is the last row that was verified: what to write down for the next time.
func (c *Chain) Head() Anchor { return c.head }

// Next verifies one more row. Its error is a *Broken; what comes after a broken row says nothing more.
func (c *Chain) Next(e Entry) error {
	switch follows := c.head.Seq + 1; {
	case c.rows == 0 && c.Part:
	case e.Seq < follows:
		return broken(e.Seq, "it comes after row %d, which is not the order of the log", c.head.Seq)
	case e.Seq > follows && c.rows == 0:
		return broken(follows, "the beginning is missing: the first row that is there is %d", e.Seq)
	case e.Seq > follows:
		return broken(follows, "it is missing: after row %d comes %d", c.head.Seq, e.Seq)
	case e.Previous != c.head.Hash:
		return broken(e.Seq, "it does not follow the row before it, which was replaced")
	}
	if e.Hash != e.Sum() {
		return broken(e.Seq, "it was changed: its hash is not that of its columns")
	}
	if c.Expect != nil && e.Seq == c.Expect.Seq && e.Hash != c.Expect.Hash {
		return broken(e.Seq, "it is not the row that was there when its hash was written down: the log was written anew")
	}
	c.head, c.rows = Anchor{Hash: e.Hash, Seq: e.Seq}, c.rows+1
	return nil
}

// End verifies that the log does not end too early. Without an anchor that cannot be known.
func (c *Chain) End() error {
	if c.Expect != nil && c.Expect.Seq > c.head.Seq {
		return broken(c.head.Seq+1, "the end is missing: row %d was there when its hash was written down", c.Expect.Seq)
	}
	return nil
}
