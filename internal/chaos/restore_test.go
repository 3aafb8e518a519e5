//go:build unix

package chaos

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// A database that is restored from a backup has forgotten what came after, and the streams have not: the events of payments that it does not know any more, and of
// others that it takes for pending. The payment service brings back what it tracked since.
func TestARestoredDatabaseGivesNoIDTwice(t *testing.T) {
	w := build(t, plan{relays: 1, consumers: 1, gateway: steady(0)})
	before := w.trackAtOnce(30)
	w.storeEvents(10)
	backup := filepath.Join(w.dir, "backup")
	w.whileDown(func() { w.copyData(w.postgres.Dir(), backup) })
	w.must(w.startServices())

	since := w.trackAtOnce(30)
	w.settle()
	w.log("%d events are published, and now the database is restored", w.published())
	w.whileDown(func() {
		w.run("rm", "-rf", filepath.Join(w.postgres.Dir(), "data"))
		w.copyData(filepath.Join(backup, "data"), filepath.Join(w.postgres.Dir(), "data"))
	})
	w.log("%d of them are forgotten", len(before)+len(since)-w.published())
	w.operate("restored", "--reason", "the disk of yesterday", "--actor", "test")

	after := w.trackAtOnce(40) // others take the places that those had that were tracked since the backup
	for _, p := range since {
		if f := (&shop{w: w}).try(context.Background(), p.Payment, false, "normal"); f != acknowledged {
			t.Fatalf("tracking %s again: %s", p.Reference, f)
		}
	}
	w.must(w.startServices())
	w.settle()
	w.check(append(append(before, since...), after...))
}

// whileDown does something while the services and the database are down, and starts the database again.
func (w *world) whileDown(do func()) {
	w.t.Helper()
	for _, s := range w.services() {
		s.kill()
	}
	w.postgres.Kill()
	do()
	w.must(w.postgres.Restart(context.Background()))
	w.until("the database is back", func(ctx context.Context) (bool, error) { return true, w.pool.Ping(ctx) })
}

// copyData copies a folder with its owners, which PostgreSQL is particular about.
func (w *world) copyData(from, to string) { w.run("cp", "-a", from, to) }

func (w *world) run(name string, args ...string) {
	w.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		w.must(fmt.Errorf("%s %v: %w: %s", name, args, err, out))
	}
}
