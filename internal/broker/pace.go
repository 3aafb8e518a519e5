package broker

import "time"

const (
	// assumedBatch is what a batch is taken to cost until one was measured: the syncs of staging and storing it.
	assumedBatch = 20 * time.Millisecond
	// paceMemory is for how long a measurement is believed.
	paceMemory = time.Minute
	// noBatchMemory is for how long a stream that does not take batches is not offered any.
	noBatchMemory = time.Minute
)

// pace is what publishing to a stream costs, as last measured. A server syncs an atomic batch to disk, always: where it would have synced every
// message that replaces a thousand syncs by a few, where it would not it adds them. A server does not tell which it is; the time it takes does.
type pace struct {
	message   time.Duration // of one, sent among many
	messageAt time.Time
	batch     time.Duration // of a whole one
	batchAt   time.Time
	noBatch   time.Time // until then batches are not offered
}

// known reports whether there is a measurement to decide by.
func (p pace) known(now time.Time) bool {
	return now.Before(p.noBatch) || !p.messageAt.IsZero() && now.Sub(p.messageAt) < paceMemory
}

// batches reports whether n messages are cheaper in batches.
func (p pace) batches(n int, now time.Time) bool {
	if now.Before(p.noBatch) || !p.known(now) {
		return false
	}
	batch := assumedBatch
	if !p.batchAt.IsZero() && now.Sub(p.batchAt) < paceMemory {
		batch = p.batch
	}
	return time.Duration(min(n, maxBatch))*p.message > batch
}

// unknownPace reports whether a stream is to be measured before it is decided how many messages go to it.
func (c *Conn) unknownPace(stream string) bool {
	if c.cfg.Batches != BatchesAuto {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.paces[stream].known(time.Now())
}

// prefersBatches reports whether n messages are to go to a stream in batches.
func (c *Conn) prefersBatches(stream string, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, now := c.paces[stream], time.Now()
	switch c.cfg.Batches {
	case BatchesNever:
		return false
	case BatchesAlways:
		return !now.Before(p.noBatch)
	}
	return p.batches(n, now)
}

// tookSingly takes note of how long n messages took that were sent one by one and stored. Few say nothing: most of their time is the way to and fro.
func (c *Conn) tookSingly(stream string, n int, took time.Duration) {
	if n < c.cfg.BatchThreshold {
		return
	}
	c.notePace(stream, func(p *pace, now time.Time) { p.message, p.messageAt = took/time.Duration(n), now })
}

// tookBatches takes note of how long n batches took that were stored.
func (c *Conn) tookBatches(stream string, n int, took time.Duration) {
	if n == 0 {
		return
	}
	c.notePace(stream, func(p *pace, now time.Time) { p.batch, p.batchAt = took/time.Duration(n), now })
}

func (c *Conn) noBatches(stream, why string) {
	c.notePace(stream, func(p *pace, now time.Time) { p.noBatch = now.Add(noBatchMemory) })
	c.log.Warn("atomic batches are not taken; publishing one by one, slowly where every message is synced",
		"stream", stream, "why", why, "try_again_in", noBatchMemory)
}

func (c *Conn) notePace(stream string, note func(*pace, time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.paces[stream]
	note(&p, time.Now())
	c.paces[stream] = p
}
