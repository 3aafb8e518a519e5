package gatewaysim

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"sync"
)

// BombSize is what a gzip bomb becomes: a gigabyte of blanks, which are valid before JSON, and then the payment. So a client
// without a bound reads a good answer, and pays a gigabyte for it.
const BombSize = 1 << 30

// fuse is the blanks, compressed. A gzip stream may consist of many members, so one of a megabyte is made and repeated.
var fuse = sync.OnceValue(func() []byte {
	const member = 1 << 20
	return bytes.Repeat(compress(bytes.Repeat([]byte(" "), member), gzip.BestCompression), BombSize/member)
})

// sendBomb sends the bomb, whether the client said that it can decompress or not.
func sendBomb(w http.ResponseWriter, p *reply) int {
	w.Header()["Content-Type"] = asJSON
	w.Header().Set("Content-Encoding", "gzip")
	w.WriteHeader(http.StatusOK)
	if _, err := w.Write(fuse()); err == nil {
		_, _ = w.Write(compress(p.appendBody(nil), gzip.NoCompression))
	}
	return http.StatusOK
}

func compress(b []byte, level int) []byte {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, level)
	if err != nil {
		panic(err) // the levels are constants
	}
	_, _ = z.Write(b) // a bytes.Buffer takes everything
	_ = z.Close()
	return out.Bytes()
}
