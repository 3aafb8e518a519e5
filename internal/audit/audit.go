// Package audit is the log of what operators did and what they were refused: its rows, how each is hashed, and how the chain that they make is
// verified. It is pure: it verifies rows of the database and lines of an exported file alike.
package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"pollux/internal/card"
)

// Outcome is how an act ended.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"    // its effect is in the record
	Refused Outcome = "refused" // nothing was changed, and the log says why it was tried
)

// Actor is who acts. The database adds whom it knows: the login, the address of the client and the name of the application.
type Actor struct {
	Name   string // as they say themselves; at most 255 characters
	Origin string // the program and the machine; at most 255 characters
}

// Act is what was done, or refused, to one target or to many at once.
type Act struct {
	Actor
	Action  string // noun and verb: payment.force, dlq.replay, breaker.open
	Outcome Outcome
	Reason  string // why, as the actor says; of a refusal also why it was refused. At most 2000 characters
	Changes []Change
}

// Change is what an act did to one target. Before and After are marshalled as JSON objects; nil means that there was nothing.
type Change struct {
	Target string `json:"target"` // payment:42, dead_letter:7, replay:3, breaker:stripe
	Before any    `json:"before"`
	After  any    `json:"after"`
}

// Payment names a payment as a target.
func Payment(id int64) string { return "payment:" + strconv.FormatInt(id, 10) }

// Letter names a dead letter as a target.
func Letter(id int64) string { return "dead_letter:" + strconv.FormatInt(id, 10) }

// Breaker names the breaker of a gateway's account as a target.
func Breaker(gateway, account string) string {
	if account == "" {
		return "breaker:" + gateway
	}
	return "breaker:" + gateway + "/" + account
}

// MaxReason is the longest reason that an operator may give, in bytes. The log takes more: a refusal adds its own to it.
const MaxReason = 500

// Text returns a text as the log takes it: without control characters and card numbers, which nobody could take out of it again, cut to n bytes.
func Text(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	s = card.Mask(s)
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") // the cut may have gone through a character
	}
	return s
}

// Hash is a SHA-256.
type Hash [sha256.Size]byte

// String returns the hash in hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText is String.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads 64 hexadecimal digits.
func (h *Hash) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(h)) {
		return fmt.Errorf("a hash has %d hexadecimal digits", hex.EncodedLen(len(h)))
	}
	_, err := hex.Decode(h[:], text)
	return err
}

// Entry is a row of the log. Before and After are the texts of JSON objects as they were hashed, byte for byte: in JSON they are strings, so that
// whatever formats a file anew leaves them as they are.
type Entry struct {
	Seq         int64     `json:"seq"` // from 1, without gaps
	At          time.Time `json:"at"`
	Actor       string    `json:"actor"`
	Login       string    `json:"login"`
	Client      string    `json:"client"`
	Application string    `json:"application"`
	Origin      string    `json:"origin"`
	Action      string    `json:"action"`
	Outcome     Outcome   `json:"outcome"`
	Reason      string    `json:"reason"`
	Target      string    `json:"target"`
	Before      *string   `json:"before"`
	After       *string   `json:"after"`
	Previous    Hash      `json:"previous"`
	Hash        Hash      `json:"hash"`
}

// timeLayout is how an instant is hashed: UTC, microseconds.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// Canonical returns the text that is hashed: each column as name, length in bytes and value, so that no value can pass for two columns. The
// database's function pollux.audit writes the same.
func (e Entry) Canonical() []byte {
	var b []byte
	add := func(name string, value *string) {
		b = append(append(b, name...), ' ')
		if value == nil {
			b = append(b, "- \n"...)
			return
		}
		b = strconv.AppendInt(b, int64(len(*value)), 10)
		b = append(append(append(b, ' '), *value...), '\n')
	}
	text := func(name, value string) { add(name, &value) }
	text("seq", strconv.FormatInt(e.Seq, 10))
	text("previous", e.Previous.String())
	text("at", e.At.UTC().Format(timeLayout))
	text("actor", e.Actor)
	text("login", e.Login)
	text("client", e.Client)
	text("application", e.Application)
	text("origin", e.Origin)
	text("action", e.Action)
	text("outcome", string(e.Outcome))
	text("reason", e.Reason)
	text("target", e.Target)
	add("before", e.Before)
	add("after", e.After)
	return b
}

// Sum is the hash that the entry should have.
func (e Entry) Sum() Hash { return sha256.Sum256(e.Canonical()) }

// Line returns the entry as a line of an exported file, without its end.
func (e Entry) Line() ([]byte, error) {
	e.At = e.At.UTC()
	b, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("writing row %d of the audit log: %w", e.Seq, err)
	}
	return b, nil
}

// errLine is the error of a line that Line did not write.
var errLine = errors.New("it is no row of an audit log as pollux audit export writes it")

// columns are the keys of a line, and whether each may be null.
var columns = map[string]bool{
	"seq": false, "at": false, "actor": false, "login": false, "client": false, "application": false, "origin": false, "action": false,
	"outcome": false, "reason": false, "target": false, "before": true, "after": true, "previous": false, "hash": false,
}

// ParseLine reads what Line wrote. White space and the order of the keys may be others, nothing else: what a person or another program could read in a line must be
// what was hashed, so a key is refused that is there twice, that is spelled in another way, or that is no column, as is a column that is not there.
func ParseLine(line []byte) (Entry, error) {
	if err := checkKeys(line); err != nil {
		return Entry{}, err
	}
	var e Entry
	if err := json.Unmarshal(line, &e); err != nil || !e.At.Equal(e.At.Truncate(time.Microsecond)) {
		return Entry{}, errLine
	}
	return e, nil
}

// checkKeys refuses a line whose keys are not the columns, each once. (encoding/json would take ACTION for action, and the last of two.)
func checkKeys(line []byte) error {
	d := json.NewDecoder(bytes.NewReader(line))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errLine
	}
	seen := make(map[string]bool, len(columns))
	for d.More() {
		t, err := d.Token()
		key, text := t.(string)
		if err != nil || !text {
			return errLine
		}
		null, known := columns[key]
		switch {
		case !known:
			return fmt.Errorf("%w: it has a key %.64q, which is no column", errLine, key)
		case seen[key]:
			return fmt.Errorf("%w: it has the key %q twice", errLine, key)
		}
		seen[key] = true
		var value json.RawMessage
		if d.Decode(&value) != nil || !null && string(value) == "null" {
			return errLine
		}
	}
	for key := range columns {
		if !seen[key] {
			return fmt.Errorf("%w: it lacks a key", errLine)
		}
	}
	return nil
}

// Anchor is a row that somebody has written down elsewhere: nobody can then change what is up to it, nor cut it off, without being found.
type Anchor struct {
	Hash Hash
	Seq  int64
}

// String returns the anchor as it is written down: HASH@SEQ.
func (a Anchor) String() string { return fmt.Sprintf("%s@%d", a.Hash, a.Seq) }

// ParseAnchor reads HASH@SEQ.
func ParseAnchor(s string) (Anchor, error) {
	var a Anchor
	wrong := fmt.Errorf("%.100q: an anchor is HASH@SEQ, as pollux audit verify prints it", s)
	hash, seq, ok := strings.Cut(s, "@")
	if !ok || a.Hash.UnmarshalText([]byte(hash)) != nil {
		return Anchor{}, wrong
	}
	var err error
	if a.Seq, err = strconv.ParseInt(seq, 10, 64); err != nil || a.Seq < 1 {
		return Anchor{}, wrong
	}
	return a, nil
}
