// Package casework is what operators do with single payments: find them, read all that is known about one, have it explained, and put it right.
package casework

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"pollux/internal/audit"
	"pollux/internal/payment"
)

// Place is where a payment is. Each payment is in exactly one.
type Place string

// The places.
const (
	Final      Place = "final"       // it has a final status
	Scheduled  Place = "scheduled"   // it is due, or sleeps until it is
	InFlight   Place = "in_flight"   // its poll is with the broker or a consumer
	Held       Place = "held"        // for seconds by the broker, or by an operator for as long as they said
	Deferred   Place = "deferred"    // its gateway's breaker is open: it sleeps in the deferred stream
	WithPerson Place = "with_person" // it is a dead letter
	Nowhere    Place = "nowhere"     // none of these: the record is not sound
)

// Places are all places but Nowhere, in the order in which they are shown.
var Places = []Place{Final, Scheduled, InFlight, Held, Deferred, WithPerson}

// Payment is a payment and where it stands.
type Payment struct {
	ID                int64          `json:"id"`
	Gateway           string         `json:"gateway"`
	Account           string         `json:"account"`
	Reference         string         `json:"reference"`
	MerchantReference string         `json:"merchant_reference"`
	Class             string         `json:"class"`
	Lane              string         `json:"lane"`
	AmountMinor       int64          `json:"amount_minor"`
	Currency          string         `json:"currency"`
	Status            payment.Status `json:"status"`
	StatusDetail      string         `json:"status_detail"`
	StatusSource      payment.Source `json:"status_source"` // empty while nobody has set one
	StatusSince       time.Time      `json:"status_since_at"`
	TrackedAt         time.Time      `json:"tracked_at"`
	ExpiresAt         *time.Time     `json:"expires_at"` // its own deadline; nil when it has none
	TraceParent       string         `json:"traceparent"`
	Place             Place          `json:"place"`
}

// StatusLine is the status with its detail, in a line.
func (p Payment) StatusLine() string {
	if p.StatusDetail == "" || p.StatusDetail == string(p.Status) {
		return string(p.Status)
	}
	return string(p.Status) + " " + p.StatusDetail
}

// Key is how an operator names a payment: its id, or its gateway with its reference and perhaps its account.
type Key struct {
	ID      int64
	Gateway string
	Names   [][2]string // account and reference: a slash may part them, or be in the reference
}

// ParseKey reads ID, GATEWAY/REFERENCE or GATEWAY/ACCOUNT/REFERENCE.
func ParseKey(s string) (Key, error) {
	if id, err := strconv.ParseInt(s, 10, 64); err == nil && id > 0 {
		return Key{ID: id}, nil
	}
	gateway, rest, ok := strings.Cut(s, "/")
	if !ok || gateway == "" || rest == "" || len(s) > 600 {
		return Key{}, fmt.Errorf("%.100q: name a payment by its id, or as GATEWAY/REFERENCE or GATEWAY/ACCOUNT/REFERENCE", s)
	}
	k := Key{Gateway: gateway, Names: [][2]string{{"", rest}}}
	if account, reference, ok := strings.Cut(rest, "/"); ok && reference != "" {
		k.Names = append(k.Names, [2]string{account, reference})
	}
	return k, nil
}

// String is the key as an operator writes it.
func (k Key) String() string {
	if k.ID > 0 || len(k.Names) == 0 {
		return strconv.FormatInt(k.ID, 10)
	}
	return k.Gateway + "/" + k.Names[0][1]
}

// The errors of Find.
var (
	ErrNotFound  = errors.New("no such payment")
	ErrAmbiguous = errors.New("more than one payment is called so")
)

// Verb is what an operator may do to a payment.
type Verb string

// The verbs.
const (
	PollNow Verb = "poll-now"
	Force   Verb = "force"
	Hold    Verb = "hold"
	Release Verb = "release"
)

// Act is what an operator wants done to a payment.
type Act struct {
	Verb     Verb
	Status   payment.Status // of Force: the final status
	Overrule bool           // of Force: also against what the gateway has said
	For      time.Duration  // of Hold: for so long, by the database's clock
	Until    time.Time      // of Hold: until then; zero when For says it
	By       audit.Actor
	Reason   string
}

// Standing is what an act depends on, as the record has it, locked.
type Standing struct {
	Now       time.Time
	Payment   Payment
	Due       time.Time // of the next poll
	Leased    bool      // with a lease that has not run out
	HeldUntil time.Time // by an operator; zero when by none
	Letter    int64     // the letter that is open; 0 when none is
}

// Refusal is the error of an act that is not done: why, and what to do instead.
type Refusal struct {
	Why  string
	Hint string
}

// Error is why.
func (r *Refusal) Error() string { return r.Why }

func refuse(hint, why string, a ...any) error {
	return &Refusal{Why: fmt.Sprintf(why, a...), Hint: hint}
}

// MaxHold is the longest hold: a payment that nobody remembers is worse than one that is polled.
const MaxHold = 31 * 24 * time.Hour

// Judge says whether an act may be done to a payment that stands so. It is pure: the record calls it while it has the payment locked.
func Judge(s Standing, a Act) error {
	p := s.Payment
	switch a.Verb {
	case Force:
		return judgeForce(s, a)
	case PollNow, Hold, Release:
	default:
		return refuse("", "there is no act %q", a.Verb)
	}
	if p.Place == Final {
		return refuse(fmt.Sprintf("pollux payment show %d has how it came to that", p.ID), "it is %s since %s: nothing polls it any more", p.Status, clock(p.StatusSince))
	}
	if p.Place == WithPerson && s.Letter == 0 {
		return refuse(fmt.Sprintf("pollux payment force %d STATUS --reason WHY ends it", p.ID), "it is with a person, who discarded its dead letter: nothing polls it")
	}
	if p.Place == WithPerson {
		return refuse(fmt.Sprintf("pollux dlq show %d says why; pollux dlq replay %d --reason WHY polls it again", s.Letter, s.Letter), "it is with a person, nothing polls it: dead letter %d", s.Letter)
	}
	switch a.Verb {
	case PollNow:
		return judgePollNow(s)
	case Hold:
		return judgeHold(s, a)
	}
	if s.HeldUntil.IsZero() {
		return refuse(fmt.Sprintf("pollux payment explain %d says what happens next", p.ID), "no operator holds it")
	}
	return nil
}

func judgePollNow(s Standing) error {
	p := s.Payment
	explain := fmt.Sprintf("pollux payment explain %d says what it waits for", p.ID)
	switch {
	case !s.HeldUntil.IsZero():
		return refuse(fmt.Sprintf("pollux payment release %d ends that", p.ID), "an operator holds it until %s", clock(s.HeldUntil))
	case p.Place == Deferred && s.Leased:
		return refuse("pollux breaker show "+p.breaker()+" says when it is tried again", "it sleeps because the breaker of %s was open: a poll now would only put it to sleep again", p.Gateway)
	case p.Place == InFlight && s.Leased:
		return refuse(explain, "its poll is on its way already")
	case p.Place == Scheduled && !s.Due.After(s.Now):
		return refuse(explain, "it is due since %s already", clock(s.Due))
	}
	return nil
}

func judgeHold(s Standing, a Act) error {
	until := HoldUntil(s, a)
	switch {
	case !until.After(s.Now):
		return refuse("say a time that is to come with --until, or how long with --for 2h", "the hold would be over at %s, which is past", clock(until))
	case until.After(s.Now.Add(MaxHold)):
		return refuse("hold it again when that is over", "a hold is at most %s, this one would be until %s", days(MaxHold), clock(until))
	}
	return nil
}

// HoldUntil is when a hold ends.
func HoldUntil(s Standing, a Act) time.Time {
	if a.Until.IsZero() {
		return s.Now.Add(a.For)
	}
	return a.Until
}

func judgeForce(s Standing, a Act) error {
	p := s.Payment
	switch {
	case !a.Status.Final():
		return refuse("succeeded, failed, cancelled or expired", "%q is no final status", a.Status)
	case p.Status == a.Status:
		return refuse(fmt.Sprintf("there is nothing to do; pollux payment show %d has how it came to that", p.ID), "it is %s already, since %s by %s", p.Status, clock(p.StatusSince), p.StatusSource)
	case p.Status.Final() && p.StatusSource != payment.ByOperator && !a.Overrule:
		return refuse("pollux payment show has the evidence; --against-gateway forces it all the same", "the gateway has said that it is %s (%s, %s)", p.Status, p.StatusSource, clock(p.StatusSince))
	}
	return nil
}

// clock is an instant in a sentence.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

func days(d time.Duration) string { return fmt.Sprintf("%d days", int(d.Hours()/24)) }

// Outcome is what an act did.
type Outcome struct {
	ID     int64     `json:"id"`
	Verb   Verb      `json:"verb"`
	Before Condition `json:"before"`
	After  Condition `json:"after"`
}

// Condition is what acts change, as the audit log has it before and after.
type Condition struct {
	Status    payment.Status `json:"status"`
	Source    payment.Source `json:"source,omitempty"`
	Place     Place          `json:"place"`
	Due       *time.Time     `json:"due_at,omitempty"`
	HeldUntil *time.Time     `json:"held_until,omitempty"`
}

// Record is where payments are acted upon.
type Record interface {
	// Find returns the id of a payment, ErrNotFound or ErrAmbiguous.
	Find(ctx context.Context, k Key) (int64, error)
	// Act locks a payment, asks judge, and does what was wanted, with its row in the audit log, in one transaction. When judge refuses,
	// nothing is changed but that row, and its error is returned. The error of a payment that does not exist is ErrNotFound.
	Act(ctx context.Context, id int64, a Act, judge func(Standing, Act) error) (Outcome, error)
	// Refuse writes an act to the audit log that was refused because of the key of its payment.
	Refuse(ctx context.Context, k Key, a Act, why error) error
	// Dossier returns all that is known about a payment, or ErrNotFound.
	Dossier(ctx context.Context, id int64) (Dossier, error)
}

// Desk is an operator's desk. It is safe for concurrent use.
type Desk struct{ record Record }

// NewDesk returns a desk over a record.
func NewDesk(r Record) *Desk { return &Desk{r} }

// Act does what an operator wants done to a payment. The error is a *Refusal when it is not to be done. What names no payment, or more than one, is in the
// audit log as any other refusal.
func (d *Desk) Act(ctx context.Context, k Key, a Act) (Outcome, error) {
	id, err := d.record.Find(ctx, k)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrAmbiguous) {
		if unwritten := d.record.Refuse(ctx, k, a, err); unwritten != nil {
			return Outcome{}, unwritten
		}
	}
	if err != nil {
		return Outcome{}, err
	}
	return d.record.Act(ctx, id, a, Judge)
}

// Show returns all that is known about a payment.
func (d *Desk) Show(ctx context.Context, k Key) (Dossier, error) {
	id, err := d.record.Find(ctx, k)
	if err != nil {
		return Dossier{}, err
	}
	return d.record.Dossier(ctx, id)
}
