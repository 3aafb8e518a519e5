package natstest

import (
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
	present := time.Now().Round(0).Add(time.Second)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(present))
		f(t)
	})
}
