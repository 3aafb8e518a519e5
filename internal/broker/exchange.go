package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/semaphore"
)

var (
	errConnectionLost = errors.New("the connection to NATS was lost before the stream answered; whether it stored the message is unknown")
	errNoStream       = errors.New("no stream takes this subject; run: pollux streams diff")
)

// errNoAnswer is what a full disk looks like from here: the server keeps the connection, and swallows what it cannot store. It swallows batches too that are more than it may store; single
// messages it refuses then.
var errNoAnswer error = &hinted{
	errors.New("the stream did not answer in time; whether it stored the message is unknown"),
	"is the disk of NATS full, its max_file_store reached, or is it slow? its log says so. After a full disk: make room, then restart that server, for it stores nothing before",
}

// exchange sends messages to streams and brings each answer to its message. One subscription serves all: an answer's subject
// is <inbox>.<call>.<index>. It is the asynchronous half of nats.go's publisher with what that lacks here: one bound on what is outstanding, messages
// alone and in batches; an end of waiting by context; and the name of a permission that is missing.
type exchange struct {
	nc     *nats.Conn
	inbox  string // with its final dot
	window *semaphore.Weighted

	mu    sync.Mutex
	last  uint64
	calls map[uint64]*call
}

// call is one round of sending: a number of parcels and their answers.
type call struct {
	ex      *exchange
	id      uint64
	parcels []parcel
	done    chan struct{} // closed when every parcel that was sent is settled and sending is over

	mu      sync.Mutex
	open    int  // sent and not settled
	sending bool // more may be sent
}

// parcel is what gets one answer: a message, or a batch of them whose last one asks for it.
type parcel struct {
	messages []*nats.Msg
	ack      pubAck
	err      error
	state    parcelState
}

type parcelState uint8

const (
	unsent parcelState = iota
	outstanding
	settled
)

// pubAck is what a stream answers.
type pubAck struct {
	Stream    string    `json:"stream"`
	Sequence  uint64    `json:"seq"`
	Duplicate bool      `json:"duplicate"`
	BatchSize int       `json:"count"` // for a batch: how many messages it had
	Error     *apiError `json:"error"`
}

func newExchange(outstanding int) *exchange {
	return &exchange{window: semaphore.NewWeighted(int64(outstanding)), calls: map[uint64]*call{}}
}

func (x *exchange) listen(nc *nats.Conn) error {
	x.nc, x.inbox = nc, nc.NewInbox()+"."
	_, err := nc.Subscribe(x.inbox+"*.*", x.answer)
	return err
}

// send sends the parcels and waits until each is answered, ctx ends, or the connection is lost. Afterwards every parcel is settled.
func (x *exchange) send(ctx context.Context, parcels []parcel) {
	c := x.begin(parcels)
	for i := range parcels {
		if err := c.post(ctx, i); err != nil {
			c.settle(i, pubAck{}, err)
		}
	}
	c.sent()
	select {
	case <-c.done:
	case <-ctx.Done():
	}
	x.end(c)
	c.settleAll(errNoAnswer)
}

func (x *exchange) begin(parcels []parcel) *call {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last++
	c := &call{ex: x, id: x.last, parcels: parcels, done: make(chan struct{}), sending: true}
	x.calls[c.id] = c
	return c
}

func (x *exchange) end(c *call) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.calls, c.id)
}

// post sends one parcel once the window has room. An error means that nothing of it was, or will be, stored.
func (c *call) post(ctx context.Context, i int) error {
	p := &c.parcels[i]
	if err := c.ex.window.Acquire(ctx, int64(len(p.messages))); err != nil {
		return fmt.Errorf("not sent: too much is outstanding: %w", context.Cause(ctx))
	}
	c.mu.Lock()
	p.state = outstanding
	c.open++
	c.mu.Unlock()
	last := p.messages[len(p.messages)-1]
	last.Reply = c.ex.inbox + strconv.FormatUint(c.id, 36) + "." + strconv.Itoa(i)
	for _, m := range p.messages {
		if err := c.ex.nc.PublishMsg(m); err != nil {
			return fmt.Errorf("not sent: %w", err)
		}
	}
	return nil
}

// sent says that nothing more will be sent.
func (c *call) sent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sending = false
	c.finish()
}

// settle records the outcome of a parcel; the first one counts.
func (c *call) settle(i int, ack pubAck, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked(i, ack, err)
	c.finish()
}

func (c *call) settleLocked(i int, ack pubAck, err error) {
	p := &c.parcels[i]
	if p.state == settled {
		return
	}
	if p.state == outstanding {
		c.open--
		c.ex.window.Release(int64(len(p.messages)))
	}
	p.ack, p.err, p.state = ack, err, settled
}

func (c *call) finish() {
	if c.sending || c.open > 0 {
		return
	}
	select {
	case <-c.done:
	default:
		close(c.done)
	}
}

// settleAll gives up on what is outstanding.
func (c *call) settleAll(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.parcels {
		if c.parcels[i].state == outstanding {
			c.settleLocked(i, pubAck{}, why)
		}
	}
	c.finish()
}

// answer is called by nats.go for every answer, one after the other.
func (x *exchange) answer(m *nats.Msg) {
	id, index, ok := strings.Cut(strings.TrimPrefix(m.Subject, x.inbox), ".")
	if !ok {
		return
	}
	callID, err1 := strconv.ParseUint(id, 36, 64)
	i, err2 := strconv.Atoi(index)
	if err1 != nil || err2 != nil {
		return
	}
	x.mu.Lock()
	c := x.calls[callID]
	x.mu.Unlock()
	if c == nil || i < 0 || i >= len(c.parcels) {
		return // came too late
	}
	ack, err := parseAck(m)
	c.settle(i, ack, err)
}

func parseAck(m *nats.Msg) (pubAck, error) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return pubAck{}, errNoStream
	}
	var ack pubAck
	if err := json.Unmarshal(m.Data, &ack); err != nil {
		return pubAck{}, errors.New("the stream's answer is not an acknowledgement; whether it stored the message is unknown")
	}
	if ack.Error != nil {
		return ack, ack.Error
	}
	if ack.Stream == "" || ack.Sequence == 0 {
		return pubAck{}, errors.New("the stream's answer is not an acknowledgement; whether it stored the message is unknown")
	}
	return ack, nil
}

// abandon settles everything that is outstanding.
func (x *exchange) abandon(why error) {
	for _, c := range x.current() {
		c.settleAll(why)
	}
}

// forbid settles the parcels that have a message on a subject that the server forbade us.
func (x *exchange) forbid(subject string, why error) {
	for _, c := range x.current() {
		c.mu.Lock()
		for i := range c.parcels {
			if p := &c.parcels[i]; p.state == outstanding && p.has(subject) {
				c.settleLocked(i, pubAck{}, why)
			}
		}
		c.finish()
		c.mu.Unlock()
	}
}

func (p *parcel) has(subject string) bool {
	for _, m := range p.messages {
		if m.Subject == subject {
			return true
		}
	}
	return false
}

func (x *exchange) current() []*call {
	x.mu.Lock()
	defer x.mu.Unlock()
	calls := make([]*call, 0, len(x.calls))
	for _, c := range x.calls {
		calls = append(calls, c)
	}
	return calls
}
