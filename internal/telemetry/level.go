package telemetry

import (
	"math"
	"sync/atomic"
	"time"
)

// level is a value that was seen at some time. It is safe for concurrent use. The zero value was never seen.
type level struct{ bits, at atomic.Uint64 }

// see notes a value. Two at once may leave the value of one and the time of the other, which are moments apart.
func (l *level) see(v float64) {
	l.bits.Store(math.Float64bits(v))
	l.at.Store(uint64(time.Since(born)) + 1)
}

// fresh returns the value if it was seen no longer ago than old: what nobody has looked at since is not shown for what is.
func (l *level) fresh(old time.Duration) (float64, bool) {
	at := l.at.Load()
	if at == 0 || time.Since(born)-time.Duration(at) > old {
		return 0, false
	}
	return math.Float64frombits(l.bits.Load()), true
}

// born is an instant with a monotonic clock: times are counted from it.
var born = time.Now()

// queueLevels are what was seen of a gateway's lane.
type queueLevels struct{ ready, backlog, held level }

// defaultStale is how long a level is shown after it was seen last, unless the configuration looks more seldom.
const defaultStale = 2 * time.Minute

// Ready says how many polls of a queue are due and wait in the database, as far as they are counted (outbox.MostReady).
func (m *Metrics) Ready(gateway, lane string, n int) {
	m.gateways.get(gateway).queues[index(lanes, lane)].ready.see(float64(n))
}

// Backlog says how many polls of a queue wait at the broker.
func (m *Metrics) Backlog(gateway, lane string, n int) {
	m.gateways.get(gateway).queues[index(lanes, lane)].backlog.see(float64(n))
}

// Held says how many polls of a queue the broker holds.
func (m *Metrics) Held(gateway, lane string, n int) {
	m.gateways.get(gateway).queues[index(lanes, lane)].held.see(float64(n))
}
