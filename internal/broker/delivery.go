package broker

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"pollux/internal/message"
)

// The answers to a delivery.
var (
	ack        = []byte("+ACK")
	nak        = []byte("-NAK")
	inProgress = []byte("+WPI")
)

// delivery is one handing-over of a message by the broker.
type delivery struct {
	conn *nats.Conn
	msg  *nats.Msg
	at   time.Time // when it arrived
	meta *nats.MsgMetadata
}

// metadata reads what the subject of the acknowledgement says, once. A delivery is in one hand at a time. What cannot be read was delivered now, for the first time.
func (d *delivery) metadata() *nats.MsgMetadata {
	if d.meta != nil {
		return d.meta
	}
	m, err := d.msg.Metadata()
	if err != nil {
		m = &nats.MsgMetadata{NumDelivered: 1, Timestamp: d.at}
	}
	d.meta = m
	return m
}

// Body implements consumer.Delivery.
func (d *delivery) Body() []byte { return d.msg.Data }

// Count implements consumer.Delivery.
func (d *delivery) Count() int { return int(d.metadata().NumDelivered) }

// Waited implements consumer.Delivery.
func (d *delivery) Waited() time.Duration { return d.at.Sub(d.metadata().Timestamp) }

// TraceParent implements consumer.Delivery.
func (d *delivery) TraceParent() string { return d.msg.Header.Get(message.HeaderTraceParent) }

// Ack implements consumer.Delivery. While the connection is away it is kept and sent when it is back.
func (d *delivery) Ack() error { return d.answer(ack) }

// Return implements consumer.Delivery. A delay below a millisecond is none: the server takes nanoseconds, and nothing so small is meant.
func (d *delivery) Return(delay time.Duration) error {
	if delay < time.Millisecond {
		return d.answer(nak)
	}
	return d.answer(fmt.Appendf(nil, `-NAK {"delay":%d}`, delay.Nanoseconds()))
}

func (d *delivery) answer(body []byte) error {
	if err := d.conn.Publish(d.msg.Reply, body); err != nil {
		return fmt.Errorf("answering a delivery: %w", err)
	}
	return nil
}

// fresh reports whether the delivery may be handed out. One that lay here for as long as AckWait has been given to somebody
// else; one that lay for a good part of it starts its AckWait anew, so that whoever gets it has all of it.
func (d *delivery) fresh(now time.Time, ackWait time.Duration) bool {
	lay := now.Sub(d.at)
	if lay >= ackWait {
		return false
	}
	if lay > ackWait/4 {
		_ = d.answer(inProgress) // if it is lost, the message may be delivered twice, as ever
	}
	return true
}
