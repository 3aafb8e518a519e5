package natsfacts_test

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"pollux/internal/natsembed"
	"pollux/internal/natstest"
)

// inShiftedTime runs f in a bubble whose clock says now, with a server on a copied store.
func inShiftedTime(t *testing.T, store string, now time.Time, f func(t *testing.T, w world)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T) {
		natstest.Pass(time.Until(now))
		srv := natstest.On(t, natsembed.Options{StoreDir: store, InProcess: true})
		nc := srv.Connect()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		f(t, world{t, srv, nc, js})
	})
}

// blockFiles counts the files that messages are kept in.
func blockFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(e.Name(), ".blk") {
			n++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
