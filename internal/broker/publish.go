package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"pollux/internal/message"
	"pollux/internal/outbox"
	"pollux/streams"
)

const (
	// maxBatch is how many messages a server takes in an atomic batch (max_batch_size of its JetStream limits).
	maxBatch = 1000
	// maxBatchBytes bounds a batch's bodies: a server stages a batch as a whole before it stores it.
	maxBatchBytes = 4 << 20
	// headerRoom is more than all our headers together take. A server's max_payload counts them.
	headerRoom = 512
	// maxIDBytes bounds a message's id.
	maxIDBytes = 200
)

// The headers of an atomic batch (ADR-50 of the NATS architecture).
const (
	headerBatchID       = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
)

// Publish implements outbox.Broker. It sends messages without waiting for each other's answers, and from BatchThreshold on, where
// that is faster, as atomic batches of up to 1000 that are stored and synced as one; the messages of a batch that the server refuses go one by
// one. Without an answer within the publish timeout, an outcome is unknown.
func (c *Conn) Publish(ctx context.Context, messages []outbox.Message) []outbox.Receipt {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.PublishTimeout, errNoAnswer)
	defer cancel()
	p := publication{conn: c, messages: messages, receipts: make([]outbox.Receipt, len(messages))}
	if !c.Connected() {
		for i := range p.receipts {
			p.receipts[i].Err = c.notConnected()
		}
		return p.receipts
	}
	session := c.nc.Stats().Reconnects
	for i := range p.receipts {
		p.receipts[i].Session = session
	}
	order, byStream := p.sort()
	for _, stream := range order {
		p.publish(ctx, stream, byStream[stream])
	}
	return p.receipts
}

// publication is one call of Publish. Messages are named by their index.
type publication struct {
	conn     *Conn
	messages []outbox.Message
	receipts []outbox.Receipt
}

// sort refuses what can never be published and divides the rest by stream.
func (p *publication) sort() (order []string, byStream map[string][]int) {
	byStream = map[string][]int{}
	for i, m := range p.messages {
		stream, refusal := p.conn.check(m)
		if refusal != nil {
			p.receipts[i].Err = refusal
			continue
		}
		p.receipts[i].Stream = stream
		if byStream[stream] == nil {
			order = append(order, stream)
		}
		byStream[stream] = append(byStream[stream], i)
	}
	return order, byStream
}

// publish publishes messages of one stream. Of a stream whose pace is not known, the first go singly, to measure it.
func (p *publication) publish(ctx context.Context, stream string, indexes []int) {
	c, n := p.conn, p.conn.cfg.BatchThreshold
	if len(indexes) > n && c.unknownPace(stream) {
		p.singly(ctx, stream, indexes[:n])
		indexes = indexes[n:]
	}
	if len(indexes) >= n && c.prefersBatches(stream, len(indexes)) {
		indexes = p.inBatches(ctx, stream, indexes)
	}
	p.singly(ctx, stream, indexes)
}

// singly sends every message by itself.
func (p *publication) singly(ctx context.Context, stream string, indexes []int) {
	start := time.Now()
	parcels := make([]parcel, len(indexes))
	for n, i := range indexes {
		parcels[n].messages = p.pack(indexes[n : n+1])
		p.receipts[i].Stream = stream
	}
	p.conn.acks.send(ctx, parcels)
	stored := 0
	for n, i := range indexes {
		r, got := &p.receipts[i], parcels[n]
		if got.err != nil {
			r.Err = verdict(stream, got.err)
			continue
		}
		if !got.ack.Duplicate { // a duplicate is answered without touching the disk
			stored++
		}
		r.Stream, r.Sequence, r.Duplicate = got.ack.Stream, got.ack.Sequence, got.ack.Duplicate
	}
	p.conn.tookSingly(stream, stored, time.Since(start))
}

// inBatches sends messages in batches and returns those that are to be sent singly after all: too few were left for a batch, or the
// server refused theirs and stored nothing of it.
func (p *publication) inBatches(ctx context.Context, stream string, indexes []int) (rest []int) {
	var batches [][]int
	for len(indexes) > 0 {
		n := p.fits(indexes)
		if n < max(p.conn.cfg.BatchThreshold, 2) {
			break
		}
		batches, indexes = append(batches, indexes[:n]), indexes[n:]
	}
	rest = slices.Clone(indexes)
	start, stored := time.Now(), 0
	parcels := make([]parcel, len(batches))
	for n, b := range batches {
		parcels[n].messages = p.pack(b)
	}
	p.conn.acks.send(ctx, parcels)
	for n, b := range batches {
		switch {
		case !p.received(stream, b, parcels[n]):
			rest = append(rest, b...)
		case parcels[n].err == nil:
			stored++
		}
	}
	if stored == len(batches) {
		p.conn.tookBatches(stream, stored, time.Since(start))
	}
	return rest
}

// fits is how many of the messages make a batch.
func (p *publication) fits(indexes []int) int {
	bytes := 0
	for n, i := range indexes {
		bytes += len(p.messages[i].Body)
		if n == maxBatch || bytes > maxBatchBytes {
			return n
		}
	}
	return len(indexes)
}

// received fills in the receipts of a batch. It returns false when its messages are to be sent singly: the server said no to
// the batch as a whole (a message that is stored already, no room for all of them, batches not allowed), or does not know batches and stored
// its messages without saying where.
func (p *publication) received(stream string, batch []int, got parcel) bool {
	var no *apiError
	if errors.As(got.err, &no) {
		if no.Code == codeAtomicDisabled || no.Code == codeAtomicTooLarge {
			p.conn.noBatches(stream, no.Description)
		}
		return false
	}
	if got.err == nil && got.ack.BatchSize != len(batch) {
		p.conn.noBatches(stream, "the server does not know them")
		return false
	}
	for n, i := range batch {
		p.receipts[i].Err = got.err
		if got.err == nil {
			p.receipts[i].Stream = got.ack.Stream
			p.receipts[i].Sequence = got.ack.Sequence - uint64(len(batch)-1-n)
		}
	}
	return true
}

// pack makes what is sent of one message, or of a batch. Only the headers that are written here are ever published.
func (p *publication) pack(indexes []int) []*nats.Msg {
	out := make([]*nats.Msg, len(indexes))
	batch := ""
	if len(indexes) > 1 {
		batch = nuid.Next()
	}
	for n, i := range indexes {
		m := p.messages[i]
		h := nats.Header{message.HeaderID: {m.ID}}
		if validTraceParent(m.TraceParent) {
			h[message.HeaderTraceParent] = []string{m.TraceParent}
		}
		if batch != "" {
			h[headerBatchID] = []string{batch}
			h[headerBatchSequence] = []string{strconv.Itoa(n + 1)}
		}
		out[n] = &nats.Msg{Subject: m.Subject, Data: m.Body, Header: h}
	}
	if batch != "" {
		out[len(out)-1].Header[headerBatchCommit] = []string{"1"}
	}
	return out
}

// check returns a message's stream, or why it can never be published.
func (c *Conn) check(m outbox.Message) (string, error) {
	refuse := func(format string, a ...any) (string, error) {
		return "", &outbox.Refusal{Reason: fmt.Sprintf(format, a...)}
	}
	if !message.ValidSubject(m.Subject) {
		return refuse("subject %.80q: must begin with payments. and have tokens of a-z, 0-9, _ and - only", m.Subject)
	}
	stream, ok := streams.Of(m.Subject)
	if !ok {
		return refuse("subject %q: no stream takes it", m.Subject)
	}
	if !validID(m.ID) {
		return refuse("id %.80q: must be 1 to %d printable ASCII characters without blanks", m.ID, maxIDBytes)
	}
	if limit := c.nc.MaxPayload(); limit > 0 && int64(len(m.Body)+headerRoom) > limit {
		return refuse("body of %d bytes: with its headers more than the %d that the server takes (max_payload)", len(m.Body), limit)
	}
	return stream, nil
}

// validID keeps what would end the header, or be cut from it, out of it.
func validID(id string) bool {
	if id == "" || len(id) > maxIDBytes {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// validTraceParent reports whether s is a W3C trace context of version 00. One that is not is left out, as the
// recommendation says: no payment waits for the sake of a trace.
func validTraceParent(s string) bool {
	if len(s) != 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return false
	}
	for i := range len(s) {
		hex := s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'f'
		if !hex && i != 2 && i != 35 && i != 52 {
			return false
		}
	}
	return true
}
