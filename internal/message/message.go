// Package message is the wire format between the relay and the consumers: subjects, headers, ids and the body
// of a poll. It is pure.
package message

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"pollux/internal/payment"
)

// The streams that Pollux uses; their definitions are in the folder streams.
const (
	StreamPoll     = "PAYMENTS_POLL"
	StreamDeferred = "PAYMENTS_DEFERRED"
	StreamEvents   = "PAYMENTS_EVENTS"
	StreamDead     = "PAYMENTS_DEAD"
)

// The headers that Pollux writes. No other header is ever copied from a stored message: some of them command the server.
const (
	HeaderID          = "Nats-Msg-Id"
	HeaderTraceParent = "traceparent"
)

// Lanes are the priorities that a payment can be tracked with, the most urgent first.
var Lanes = []string{"high", "normal", "low"}

// The lanes of polls that are not the first one: after a sleep in the database, and after an operator's replay. Payments of the lane high stay there.
const (
	LaneRetry  = "retry"
	LaneReplay = "replay"
)

// LaneDeferred is what the polls of PAYMENTS_DEFERRED are called where a lane is wanted. Nothing is published to it.
const LaneDeferred = "deferred"

// DeferredConsumer is the name of the durable consumer of a gateway's deferred polls.
func DeferredConsumer(gateway string) string { return "deferred_" + gateway }

// DeferredID is the id under which a poll is put to sleep for the n-th time. Under its token it was published before, and would be taken for a duplicate.
func DeferredID(token string, n int) string { return token + "-deferred-" + strconv.Itoa(n) }

var token = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// ValidToken reports whether s may stand in a subject: a gateway, a lane, a reason. Everything else (dots, wildcards,
// blanks, $JS, NUL) would be accepted by the broker and published to somebody else's subject.
func ValidToken(s string) bool { return token.MatchString(s) }

// PollSubject is where polls of a gateway's lane are published. Both must be valid tokens.
func PollSubject(gateway, lane string) string { return "payments.poll." + gateway + "." + lane }

// DeferredSubject is where polls of a gateway sleep while its breaker is open.
func DeferredSubject(gateway string) string { return "payments.deferred." + gateway }

// DeadSubject is where a dead letter is announced.
func DeadSubject(gateway, reason string) string { return "payments.dead." + gateway + "." + reason }

// ConsumerName is the name of the durable consumer of a gateway's lane.
func ConsumerName(gateway, lane string) string { return "poll_" + gateway + "_" + lane }

// ValidSubject reports whether s is a subject that an event may be published to: it begins with "payments." and
// every token of it is valid.
func ValidSubject(s string) bool {
	if len(s) > 255 || !strings.HasPrefix(s, "payments.") {
		return false
	}
	for t := range strings.SplitSeq(s, ".") {
		if !ValidToken(t) {
			return false
		}
	}
	return true
}

// Poll asks a consumer to poll one payment. Token is the lease under which the relay published it; Revision is the
// revision of the job when it was leased, so that a consumer can tell deliveries that were recorded from those that were not.
type Poll struct {
	Payment  payment.ID
	Token    string // the job's lock token, in the canonical form of a UUID
	Revision int64
}

type wirePoll struct {
	V        int    `json:"v"`
	Payment  int64  `json:"payment"`
	Token    string `json:"token"`
	Revision int64  `json:"revision"`
}

// MaxPollBytes bounds a poll's body; a larger one is poison.
const MaxPollBytes = 1024

var uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// EncodePoll returns the body of a poll. Its token must be a UUID in canonical form.
func EncodePoll(p Poll) []byte {
	b := make([]byte, 0, 96)
	return fmt.Appendf(b, `{"v":1,"payment":%d,"token":"%s","revision":%d}`, p.Payment, p.Token, p.Revision)
}

// DecodePoll reads the body of a poll. It takes exactly the bytes that EncodePoll writes, for the relay alone writes
// polls: no unknown, missing, repeated or oddly spelled fields, other versions, trailing bytes, ids that cannot be or
// tokens that are not UUIDs. Whatever it refuses is poison. Its errors carry nothing of the body.
func DecodePoll(b []byte) (Poll, error) {
	if len(b) > MaxPollBytes {
		return Poll{}, fmt.Errorf("poll message of %d bytes, at most %d are read", len(b), MaxPollBytes)
	}
	var w wirePoll
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return Poll{}, errors.New("poll message is not the JSON object it should be")
	}
	if _, err := d.Token(); err != io.EOF {
		return Poll{}, errors.New("poll message has bytes after its JSON object")
	}
	switch {
	case w.V != 1:
		return Poll{}, fmt.Errorf("poll message of version %d, this build reads version 1", w.V)
	case w.Payment <= 0:
		return Poll{}, errors.New("poll message without a payment")
	case !uuid.MatchString(w.Token):
		return Poll{}, errors.New("poll message without a lease token")
	case w.Revision < 0:
		return Poll{}, errors.New("poll message with a negative revision")
	}
	p := Poll{Payment: payment.ID(w.Payment), Token: w.Token, Revision: w.Revision}
	if !bytes.Equal(b, EncodePoll(p)) { // encoding/json takes keys twice, in any case, and none at all
		return Poll{}, errors.New("poll message is not in the form that the relay writes")
	}
	return p, nil
}
