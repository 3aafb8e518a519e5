package httpclient

import (
	"compress/gzip"
	"io"
)

// unpacker is a gzip reader with its memory, to be used again.
type unpacker struct {
	zip  gzip.Reader
	sent capped
}

// capped fails once more than left bytes were read.
type capped struct {
	r    io.Reader
	left int64
}

func (c *capped) Read(p []byte) (int, error) {
	if int64(len(p)) > c.left+1 {
		p = p[:c.left+1]
	}
	n, err := c.r.Read(p)
	if c.left -= int64(n); c.left < 0 {
		return n, errLarge
	}
	return n, err
}
