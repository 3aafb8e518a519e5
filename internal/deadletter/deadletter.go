// Package deadletter is what operators do with payments that Pollux handed to a person: find them, see what they have in common, say who looks after them,
// and poll them again without making it worse.
package deadletter

import (
	"errors"
	"slices"
	"time"
)

// The states of a letter.
const (
	Open      = "open"      // waits for a person
	Replaying = "replaying" // is polled again
	Resolved  = "resolved"  // its payment is final, or a person has settled it
	Discarded = "discarded" // a person decided that nothing will be done
	Parked    = "parked"    // put aside: replays do not take it
)

// States are all states of a letter.
var States = []string{Open, Replaying, Resolved, Discarded, Parked}

// Letter is one dead letter, without the bytes of its message.
type Letter struct {
	ID            int64      `json:"id"`
	PaymentID     *int64     `json:"payment_id"` // nil for a message that belongs to no payment
	Gateway       string     `json:"gateway"`
	Account       string     `json:"account"`
	Reference     string     `json:"reference"`
	Class         string     `json:"class"`
	AmountMinor   *int64     `json:"amount_minor"`
	Currency      string     `json:"currency"`
	Reason        string     `json:"reason"`
	State         string     `json:"state"`
	Fingerprint   string     `json:"fingerprint"`
	Owner         string     `json:"owner"`
	Link          string     `json:"link"`
	LastClass     string     `json:"last_class"`
	HTTPStatus    int        `json:"http_status"`
	GatewayStatus string     `json:"gateway_status"`
	Message       string     `json:"message"`
	Attempts      int        `json:"attempts"`
	Failures      int        `json:"failures"`
	Deferrals     int        `json:"deferrals"`
	Replays       int        `json:"replays"`
	FirstDied     time.Time  `json:"first_died_at"`
	LastDied      time.Time  `json:"last_died_at"`
	ClosedAt      *time.Time `json:"closed_at"`
	ClosedBy      string     `json:"closed_by"`
	Replay        int64      `json:"replay"` // the replay that it waits in or is polled by; 0: none
}

// Attempt is one call to the gateway.
type Attempt struct {
	At            time.Time `json:"at"`
	Class         string    `json:"class"`
	HTTPStatus    int       `json:"http_status"`
	GatewayStatus string    `json:"gateway_status"`
	Message       string    `json:"message"`
	TookMS        int64     `json:"took_ms"`
	Disposition   string    `json:"disposition"`
	Reason        string    `json:"reason"`
	Worker        string    `json:"worker"`
	TraceID       string    `json:"trace_id"`
}

// Note is what somebody found out.
type Note struct {
	At    time.Time `json:"at"`
	Actor string    `json:"actor"`
	Login string    `json:"login"` // of the database
	Text  string    `json:"text"`
}

// Details is all about one letter.
type Details struct {
	Letter
	Review        bool           `json:"review"` // its payment is final: nothing is to be polled
	PaymentStatus string         `json:"payment_status"`
	StatusDetail  string         `json:"status_detail"`
	Classes       map[string]int `json:"classes"` // how often the gateway answered with each class, of the last thousand
	FirstClass    string         `json:"first_class"`
	FirstMessage  string         `json:"first_message"`
	FirstAt       *time.Time     `json:"first_error_at"`
	Policy        string         `json:"policy"`
	PolicyHash    string         `json:"policy_hash"`
	Build         string         `json:"build"`
	Worker        string         `json:"worker"`
	TraceID       string         `json:"trace_id"`
	Subject       string         `json:"subject"`
	Deliveries    int            `json:"deliveries"`
	Body          []byte         `json:"body"` // of a poison message; nil otherwise
	TrackedAt     time.Time      `json:"tracked_at"`
	Polls         []Attempt      `json:"polls"` // newest first, at most MaxPolls
	Notes         []Note         `json:"notes"` // oldest first
	InReplays     []InReplay     `json:"in_replays"`
}

// MaxPolls is how many polls of a payment are shown at most.
const MaxPolls = 100

// InReplay is what became of a letter in one replay.
type InReplay struct {
	Replay     int64      `json:"replay"`
	By         string     `json:"by"`
	State      string     `json:"state"`
	Why        string     `json:"why"`
	ReleasedAt *time.Time `json:"released_at"`
	EndedAt    *time.Time `json:"ended_at"`
}

// Group is letters with the same fingerprint.
type Group struct {
	Fingerprint string           `json:"fingerprint"`
	Letters     int64            `json:"letters"`
	Money       map[string]int64 `json:"money"` // minor units by currency
	Gateways    []string         `json:"gateways"`
	Reasons     []string         `json:"reasons"`
	First       time.Time        `json:"first_at"`
	Last        time.Time        `json:"last_at"`
	LastHour    int64            `json:"last_hour"`   // that died in the last hour
	HourBefore  int64            `json:"hour_before"` // and in the hour before
	CameBack    int64            `json:"came_back"`   // that were replayed already
	Sample      Letter           `json:"sample"`      // the newest of them
}

// Total is what all groups of a filter add up to.
type Total struct {
	Groups  int
	Letters int64
	Money   map[string]int64
}

// Trend says in a word whether a group grows.
func (g Group) Trend() string {
	switch {
	case g.LastHour == 0 && g.HourBefore == 0:
		return "quiet"
	case g.HourBefore == 0 && g.LastHour == g.Letters:
		return "new"
	case g.LastHour > g.HourBefore+g.HourBefore/5:
		return "rising"
	case g.LastHour+g.LastHour/5 < g.HourBefore:
		return "falling"
	}
	return "steady"
}

// Page says which letters of a filter: those with an id below Before (0: from the newest), Limit at the most.
type Page struct {
	Before int64
	Limit  int
}

// The most of what can be asked for at once.
const (
	MaxPage   = 1000      // letters in one page
	MaxGroups = 1000      // groups
	MaxChange = 10_000    // letters that one command changes
	MaxReplay = 1_000_000 // letters of one replay
)

// ErrNotFound is the error of a letter that does not exist.
var ErrNotFound = errors.New("no such dead letter")

// Selection is what a command is about: letters by id, or what a filter chooses when it begins.
type Selection struct {
	IDs    []int64
	Filter Filter
}

// ByID reports whether letters are named.
func (s Selection) ByID() bool { return len(s.IDs) > 0 }

// Distinct is the selection with each letter named once, in order.
func (s Selection) Distinct() Selection {
	s.IDs = slices.Clone(s.IDs)
	slices.Sort(s.IDs)
	s.IDs = slices.Compact(s.IDs)
	return s
}

// Verb is what a person does with letters beside replaying them.
type Verb string

// The verbs.
const (
	Discard Verb = "discard" // decides that nothing will be done
	Park    Verb = "park"    // puts aside
	Reopen  Verb = "reopen"  // takes back what was discarded or put aside
	Settle  Verb = "resolve" // settles by hand what there is nothing to poll for
	Assign  Verb = "assign"  // says who looks after it
	Remark  Verb = "note"    // says what was found out, or where more is
)

// From are the states from which a verb leads to another one.
func (v Verb) From() []string {
	switch v {
	case Discard:
		return []string{Open, Parked}
	case Park, Settle:
		return []string{Open}
	case Reopen:
		return []string{Discarded, Parked}
	}
	return States
}

// To is the state that a verb leads to; empty where it changes none.
func (v Verb) To() string {
	switch v {
	case Discard:
		return Discarded
	case Park:
		return Parked
	case Reopen:
		return Open
	case Settle:
		return Resolved
	}
	return ""
}

// Change is what is to become of letters.
type Change struct {
	Verb  Verb
	Owner string // of Assign; empty: nobody
	Link  string // of Remark; empty: as it is
	Note  string // kept with each letter; empty: none
}

// Outcome is what a change did.
type Outcome struct {
	Changed []int64   `json:"changed"`
	Refused []Refusal `json:"refused"`
}

// Refusal says why a letter was left as it was.
type Refusal struct {
	ID  int64  `json:"id"`
	Why string `json:"why"`
}

// Case is what decides whether a verb can be done to a letter.
type Case struct {
	State   string
	Review  bool
	Payment bool   // it is about a payment
	Status  string // of the payment; empty without one
	Dead    bool   // the payment's job is with a person: nothing polls it
	Other   bool   // another letter of the payment is open
}

// Refuses says why a verb cannot be done to a letter; empty when it can.
func (v Verb) Refuses(c Case) string {
	pending := c.Payment && !c.Review
	switch {
	case v == Reopen && pending && c.Status != "pending":
		return "its payment is " + c.Status
	case v == Reopen && pending && !c.Dead:
		return "its payment is polled already"
	case v == Reopen && c.Other:
		return "another letter of its payment is open"
	case v == Settle && pending && c.Status == "pending":
		return "its payment is pending, and only a status ends it: pollux payment force PAYMENT STATUS --reason WHY"
	case v == Settle && pending && c.State != Open:
		return "it is " + c.State + ", and its payment is " + c.Status
	case !slices.Contains(v.From(), c.State):
		return "it is " + c.State
	}
	return ""
}
