package natstest

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// Bubble runs f in a synctest bubble in which a server with InProcess works in virtual time: NAK delays, AckWait and duplicate
// windows of hours pass at once, and exactly.
//
// The server keeps one clock for the ages of messages outside of any bubble: a goroutine per process, which would never be idle in
// one. So it is started out here, and the bubble begins at the real present, since to that clock messages of the year 2000, where
// bubbles begin, would be long past every max_age. It follows that max_age does not pass in virtual time. Tests that use it must not
// run in parallel.
func Bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	ats.Register()
	defer ats.Unregister()
	emptyPools()
	defer emptyPools()
	present := time.Now().Round(0).Add(time.Second)
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) }) // last of all: goroutines of a stopped server that sleep a little longer end
		time.Sleep(time.Until(present))
		f(t)
	})
}

// Pass lets virtual time pass in a bubble, and then all that is due happen. Outside of one it panics: tests do not sleep.
func Pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// emptyPools empties every sync.Pool, which takes two collections. nats.go keeps timers in one, and a timer of a bubble used outside of it, or
// in another one, ends the program.
func emptyPools() {
	runtime.GC()
	runtime.GC()
}
