package breaker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode/utf8"
)

// Instant is a point in time in milliseconds since 1970, UTC. Zero is no instant.
type Instant int64

// maxInstant is the last that RFC 3339 can write.
const maxInstant Instant = 253402300799999

// At returns the instant of t; what lies before 1970 or after the year 9999 is cut.
func At(t time.Time) Instant { return min(max(Instant(t.UnixMilli()), 0), maxInstant) }

// Time returns the instant in UTC, and the zero time for no instant.
func (i Instant) Time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(i)).UTC()
}

// Add returns the instant d later, whole milliseconds counted.
func (i Instant) Add(d time.Duration) Instant {
	return min(max(i+Instant(d.Milliseconds()), 0), maxInstant)
}

// since returns how long after another instant i is, never below 0.
func (i Instant) since(other Instant) time.Duration {
	return time.Duration(min(max(i-other, 0), 1<<40)) * time.Millisecond
}

// MarshalText writes RFC 3339 with milliseconds.
func (i Instant) MarshalText() ([]byte, error) {
	return []byte(i.Time().Format("2006-01-02T15:04:05.000Z07:00")), nil
}

// UnmarshalText reads RFC 3339.
func (i *Instant) UnmarshalText(text []byte) error {
	t, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return errors.New("an instant is written as in 2026-01-02T15:04:05.000Z")
	}
	*i = At(t)
	return nil
}

// Kind is the state of a breaker as people call it.
type Kind uint8

// The kinds of state. Disabled exists only by force.
const (
	Closed   Kind = iota // calls are admitted, at the ramp's share after an opening
	Open                 // no call is admitted
	HalfOpen             // a few probes are admitted
	Disabled             // every call is admitted and none is counted
)

var kindNames = [...]string{"closed", "open", "half_open", "disabled"}

// Kinds are all kinds in a fixed order.
var Kinds = []Kind{Closed, Open, HalfOpen, Disabled}

// String returns the kind as it is stored, logged and used as a metric label.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// MarshalText returns String.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (k *Kind) UnmarshalText(text []byte) error {
	i := slices.Index(kindNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("a breaker is closed, open, half_open or disabled, not %.20q", text)
	}
	*k = Kind(i)
	return nil
}

// Cause says why a breaker changed. Causes are a closed set: they are metric labels.
type Cause string

// The causes.
const (
	CauseNone        Cause = ""
	CauseConsecutive Cause = "consecutive_failures" // as many failures in a row as configured
	CauseFailures    Cause = "failure_ratio"        // too many of the calls in the window failed
	CauseSlow        Cause = "slow_calls"           // too many of the calls in the window were slow, or a probe was
	CauseCredentials Cause = "credentials"          // the gateway refused our key
	CauseProbe       Cause = "probe_failed"         // a probe failed
	CauseCooldown    Cause = "cooldown_over"        // half-open: time to probe
	CauseRecovered   Cause = "probes_succeeded"     // closed: enough probes succeeded
	CauseRampUp      Cause = "ramp_up"              // a step of the ramp is over
	CauseRampBack    Cause = "ramp_back"            // too many failures on the ramp
	CauseForced      Cause = "forced"               // an operator forced a state
	CauseReleased    Cause = "released"             // an operator ended a forced state
	CauseExpired     Cause = "expired"              // a forced state ran out
	CauseReset       Cause = "reset"                // an operator reset it
	CauseAdopted     Cause = "adopted"              // another instance changed it
	CauseUnknown     Cause = "unknown"              // an instance of another version knows
)

// Causes are all causes in a fixed order.
var Causes = []Cause{
	CauseConsecutive, CauseFailures, CauseSlow, CauseCredentials, CauseProbe, CauseCooldown, CauseRecovered, CauseRampUp, CauseRampBack,
	CauseForced, CauseReleased, CauseExpired, CauseReset, CauseAdopted, CauseUnknown,
}

// Forced is a state that an operator chose. The zero value is none.
type Forced struct {
	Mode   Kind    `json:"mode"`   // Open, Closed or Disabled
	Reason string  `json:"reason"` // for the next operator; never empty
	Actor  string  `json:"actor"`  // who; never empty
	Until  Instant `json:"until"`  // when it ends by itself
}

// On reports whether a state is forced.
func (f Forced) On() bool { return f.Until != 0 }

// Validate reports what is wrong with forcing a state now.
func (f Forced) Validate(now Instant) error {
	switch {
	case f.Until <= now || f.Until > now.Add(MaxForced):
		return fmt.Errorf("a state is forced until an instant in the future, at most %s from now", MaxForced)
	}
	return f.validateText()
}

func (f Forced) validateText() error {
	switch {
	case f.Mode != Open && f.Mode != Closed && f.Mode != Disabled:
		return fmt.Errorf("a breaker can be forced open, closed or disabled, not %s", f.Mode)
	case f.Reason == "" || len(f.Reason) > 256:
		return errors.New("forcing a state needs a reason of at most 256 bytes")
	case f.Actor == "" || len(f.Actor) > 128:
		return errors.New("forcing a state needs an actor of at most 128 bytes")
	case !utf8.ValidString(f.Reason) || !utf8.ValidString(f.Actor):
		return errors.New("forcing a state needs a reason and an actor in UTF-8")
	}
	return nil
}

// Lease is the place of one probe. Whoever holds it may call the gateway once; when its deadline passes the place is free.
type Lease struct {
	ID       uint64  `json:"id"` // random; 0 is no lease
	Deadline Instant `json:"deadline"`
}

// Shared is what the fleet agrees on. It is a plain value: == tells whether it changed. The zero value is closed, as if it
// had never opened. It grows only by decisions, never by time alone: the steps of the ramp and the end of a cooldown
// follow from it and the clock, so that instances need not write them.
type Shared struct {
	Kind      Kind // Closed, Open or HalfOpen
	Epoch     uint64
	Cause     Cause            // why it opened; none while closed
	Since     Instant          // when it took its kind
	RetryAt   Instant          // no probe before
	Trips     int              // openings without a full recovery between: the cooldown grows with them
	Successes int              // of probes, while half-open
	Probes    [MaxProbes]Lease // while half-open; those there are stand in front
	Step      int              // of the ramp, at StepAt
	StepAt    Instant
	Forced    Forced
}

// Local is what an instance counts for itself, in its present generation: since the breaker took its kind. The zero
// value is empty.
type Local struct {
	Generation  uint64          // calls of another generation tell nothing about this one
	Slot        int64           // number of the newest bucket
	Buckets     [buckets]Bucket // by slot modulo their number
	Calls       int             // sums of the buckets
	Failed      int
	Slow        int
	Consecutive int  // failures in a row
	Refused     int  // refused credentials in a row
	Credit      int  // of the ramp: a call is admitted for each hundred percent
	Step        int  // of the ramp, as last seen
	Backs       int  // steps back of the ramp
	Word        Word // not told to the fleet yet
}

// Bucket counts the calls that started in a part of the window.
type Bucket struct {
	Started int // without those that were inconclusive
	Done    int
	Failed  int
	Slow    int
}

// State is the whole state of a breaker: a plain value without pointers. The zero value is closed and has seen nothing.
type State struct {
	Shared Shared
	Local  Local
}

// Version is the version of the shared record that this build reads and writes.
const Version = 1

// MaxRecordBytes bounds a shared record; a longer one is not read.
const MaxRecordBytes = 4096

type record struct {
	Version   int     `json:"v"`
	Kind      Kind    `json:"kind"`
	Epoch     uint64  `json:"epoch"`
	Cause     Cause   `json:"cause,omitempty"`
	Since     Instant `json:"since,omitzero"`
	RetryAt   Instant `json:"retry_at,omitzero"`
	Trips     int     `json:"trips,omitempty"`
	Successes int     `json:"successes,omitempty"`
	Probes    []Lease `json:"probes,omitempty"`
	Step      int     `json:"step,omitempty"`
	StepAt    Instant `json:"step_at,omitzero"`
	Forced    *Forced `json:"forced,omitempty"`
}

// Encode returns the shared record as it is stored.
func (s Shared) Encode() []byte {
	r := record{
		Version: Version, Kind: s.Kind, Epoch: s.Epoch, Cause: s.Cause, Since: s.Since, RetryAt: s.RetryAt,
		Trips: s.Trips, Successes: s.Successes, Step: s.Step, StepAt: s.StepAt,
	}
	for _, l := range s.Probes {
		if l.ID != 0 {
			r.Probes = append(r.Probes, l)
		}
	}
	if s.Forced.On() {
		r.Forced = &s.Forced
	}
	b, err := json.Marshal(r)
	if err != nil { // nothing in a record can fail to be written
		panic("breaker: encoding a record: " + err.Error())
	}
	return b
}

// ErrVersion is the error of a record that another version wrote.
var ErrVersion = errors.New("breaker record of another version")

// Decode reads a stored record. Whatever it refuses is to be left alone: the instance goes on with its own state and the
// next transition overwrites the record. What it accepts may still be nonsense in time; adopting it (Machine.Step)
// bounds every instant by the configuration, so that no record keeps a breaker open, closed or probing for good.
func Decode(b []byte) (Shared, error) {
	if len(b) > MaxRecordBytes {
		return Shared{}, fmt.Errorf("breaker record of %d bytes, at most %d are read", len(b), MaxRecordBytes)
	}
	var v struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return Shared{}, errors.New("breaker record is not the JSON object it should be")
	}
	if v.Version != Version {
		return Shared{}, fmt.Errorf("%w: %d, this build reads %d", ErrVersion, v.Version, Version)
	}
	var r record
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Shared{}, errors.New("breaker record with a field of another shape, or one that this build does not know")
	}
	if _, err := d.Token(); err != io.EOF {
		return Shared{}, errors.New("breaker record has bytes after its JSON object")
	}
	return r.shared()
}

func (r record) shared() (Shared, error) {
	s := Shared{
		Kind: r.Kind, Epoch: r.Epoch, Cause: r.Cause, Since: r.Since, RetryAt: r.RetryAt,
		Trips: r.Trips, Successes: r.Successes, Step: r.Step, StepAt: r.StepAt,
	}
	switch {
	case r.Kind == Disabled:
		return Shared{}, errors.New("breaker record: disabled is a state only by force")
	case r.Trips < 0 || r.Successes < 0 || r.Step < 0:
		return Shared{}, errors.New("breaker record with a negative count")
	case len(r.Probes) > MaxProbes:
		return Shared{}, fmt.Errorf("breaker record with %d probes, at most %d", len(r.Probes), MaxProbes)
	}
	if s.Cause != CauseNone && !slices.Contains(Causes, s.Cause) {
		s.Cause = CauseUnknown
	}
	for i, l := range r.Probes {
		if l.ID == 0 {
			return Shared{}, errors.New("breaker record with a probe without an id")
		}
		s.Probes[i] = l
	}
	if r.Forced != nil {
		if err := r.Forced.validateText(); err != nil {
			return Shared{}, fmt.Errorf("breaker record: %w", err)
		}
		if !r.Forced.On() {
			return Shared{}, errors.New("breaker record with a forced state without an end")
		}
		s.Forced = *r.Forced
	}
	return s, nil
}
