package deadletter

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"pollux/internal/payment/currency"
	"pollux/internal/redelivery"
)

// The states of a replay.
const (
	Planned          = "planned"           // its letters are being chosen: seen by whoever makes it, and left behind by who makes one by hand
	AwaitingApproval = "awaiting_approval" // nothing is released before a second person has said so
	Running          = "running"
	Stopped          = "stopped"   // by itself: the fault came back
	Cancelled        = "cancelled" // by a person; what was released goes on
	Undone           = "undone"    // by a person; what was released and not yet polled was taken back
	Done             = "done"      // all that was chosen is released
)

// The states of a letter in a replay.
const (
	Chosen      = "chosen"       // not released yet
	Queued      = "queued"       // its payment is due, or being polled
	Closed      = "resolved"     // its payment is final since
	FailedAgain = "failed_again" // it is with a person again
	Final       = "final"        // its payment was final before it was released: nothing was polled
	Refused     = "refused"
)

// Verdict says what a replay does with a letter.
type Verdict string

// The verdicts. The first three are of letters that are polled.
const (
	WouldPoll      Verdict = "would_be_polled"
	BreakerOpen    Verdict = "breaker_open"    // it is due, and sleeps until the gateway is called again
	DeadlinePassed Verdict = "deadline_passed" // it is polled once more and then comes back, unless it is final
	Missing        Verdict = "missing"
	NoPayment      Verdict = "no_payment"
	AlreadyFinal   Verdict = "already_final"
	Elsewhere      Verdict = "in_another_replay"
	NotOpen        Verdict = "not_open"
	AlreadyPolled  Verdict = "already_polled"
	TooOften       Verdict = "replayed_too_often"
)

// Polls reports whether a payment with this verdict is polled.
func (v Verdict) Polls() bool { return v == WouldPoll || v == BreakerOpen || v == DeadlinePassed }

// Why says a verdict in words. detail is a status, a state or a number, whatever the verdict is about.
func (v Verdict) Why(detail string) string {
	switch v {
	case BreakerOpen:
		return "the breaker of its gateway is open: it sleeps until the gateway is called again"
	case DeadlinePassed:
		return "its own deadline has passed: it is asked about once more"
	case Missing:
		return "there is no such dead letter"
	case NoPayment:
		return "its message belongs to no payment: there is nothing to poll"
	case AlreadyFinal:
		return "its payment is " + detail
	case Elsewhere:
		return "it is in replay " + detail
	case NotOpen:
		return "it is " + detail
	case AlreadyPolled:
		return "its payment is polled already"
	case TooOften:
		return "it was replayed " + detail + " times already and is put aside; pollux dlq reopen takes it back"
	}
	return ""
}

// Priority says in which order letters are replayed.
type Priority string

// The priorities. Whichever it is, one letter of each fingerprint goes first, so that the canary tries each fault.
const (
	ByAge   Priority = "age"   // what died first goes first
	ByMoney Priority = "money" // the largest amounts go first, in whole units of whatever currency
)

// The slowest and the fastest replay, in payments a second.
const (
	MinRate = 0.001
	MaxRate = 100_000
)

// Rate is how fast a replay releases: a number of payments a second, or a part of what the gateways allow.
type Rate struct {
	PerSecond float64
	Share     float64 // above 0: this part of the lowest limit of the gateways that are replayed to
}

// ParseRate reads 10, 10/s, 90/m, 1000/h or 10%.
func ParseRate(s string) (Rate, error) {
	wrong := fmt.Errorf("%.40q: payments a second, as in 10 or 90/m, or a part of the gateway's limit, as in 10%%", s)
	if share, found := strings.CutSuffix(s, "%"); found {
		n, err := strconv.ParseFloat(share, 64)
		if err != nil || !(n > 0 && n <= 100) {
			return Rate{}, wrong
		}
		return Rate{Share: n / 100}, nil
	}
	number, unit, _ := strings.Cut(s, "/")
	per, known := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !known || math.IsNaN(n) {
		return Rate{}, wrong
	}
	r := Rate{PerSecond: n / per}
	return r, r.validate(r.PerSecond)
}

func (r Rate) validate(n float64) error {
	if !(n >= MinRate && n <= MaxRate) {
		return fmt.Errorf("%g payments a second: between %g and %d", n, MinRate, MaxRate)
	}
	return nil
}

// Of is the rate for gateways, whose limits are in calls a second; 0 is no limit.
func (r Rate) Of(limits map[string]float64, gateways []string) (float64, error) {
	if r.Share == 0 {
		return r.PerSecond, r.validate(r.PerSecond)
	}
	lowest := math.Inf(1)
	for _, g := range gateways {
		if limits[g] <= 0 {
			return 0, fmt.Errorf("--rate %g%%: gateway %s has no limit in the configuration; give payments a second, as in --rate 10", r.Share*100, g)
		}
		lowest = min(lowest, limits[g])
	}
	if len(gateways) == 0 {
		return MinRate, nil
	}
	return max(lowest*r.Share, MinRate), nil
}

// Approval says from where on a second person must agree.
type Approval struct {
	Letters int              // more than so many; 0: any number without
	Money   map[string]int64 // more than so many minor units of a currency
}

// Needed says why a second person must agree; empty when none must.
func (a Approval) Needed(letters int, money map[string]int64) string {
	if a.Letters > 0 && letters > a.Letters {
		return fmt.Sprintf("%d letters, and more than %d need a second person", letters, a.Letters)
	}
	for _, code := range sortedKeys(money) {
		if most, limited := a.Money[code]; limited && money[code] > most {
			return fmt.Sprintf("%s, and more than %s need a second person", currency.Format(money[code], code), currency.Format(most, code))
		}
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Order is what a replay is asked for.
type Order struct {
	RequestID string // the same one again is the same replay
	Selection Selection
	Rate      Rate
	Limits    map[string]float64 // of the gateways, in calls a second; for a rate that is a share
	Priority  Priority
	NoCanary  bool // everything at the rate, without trying a few first
	MaxTimes  int  // a letter that was replayed so often is put aside; 0: never
	Approval  Approval
}

// Text is what is chosen and how, in words that are the same for the same order.
func (o Order) Text() string {
	var b strings.Builder
	if o.Selection.ByID() {
		for i, id := range o.Selection.IDs {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strconv.FormatInt(id, 10))
		}
		return "id=" + b.String()
	}
	return o.Selection.Filter.Opened().String()
}

// Replay is a replay as it stands.
type Replay struct {
	ID            int64            `json:"id"`
	RequestID     string           `json:"request_id"`
	Selection     string           `json:"selection"`
	Reason        string           `json:"reason"`
	State         string           `json:"state"`
	Why           string           `json:"why"` // it is stopped, or waits; kept when it is ended then
	Letters       int              `json:"letters"`
	Money         map[string]int64 `json:"money"` // minor units by currency
	Gateways      []string         `json:"gateways"`
	Checksum      string           `json:"checksum"` // of letters, payments and amounts, in the order of the replay
	Rate          float64          `json:"rate"`     // payments a second
	Priority      Priority         `json:"priority"`
	Stage         int              `json:"stage"`
	CreatedAt     time.Time        `json:"created_at"`
	CreatedBy     string           `json:"created_by"`
	Login         string           `json:"login"`
	Mine          bool             `json:"-"` // the login that reads asked for it, and is not that of the schema's owner
	ApprovedBy    string           `json:"approved_by"`
	ApprovedLogin string           `json:"approved_login"`
	ApprovedAt    *time.Time       `json:"approved_at"`
	EndedAt       *time.Time       `json:"ended_at"`
	EndedBy       string           `json:"ended_by"`  // who cancelled or undid it
	EndedWhy      string           `json:"ended_why"` // and why
	Driver        string           `json:"driver"`    // who released the last one
	DrivenAt      *time.Time       `json:"driven_at"`
	Counts        Counts           `json:"counts"`
}

// Counts are the letters of a replay by what became of them.
type Counts struct {
	Chosen      int64 `json:"chosen"`   // not released yet
	Queued      int64 `json:"queued"`   // released, and neither final nor back
	Answered    int64 `json:"answered"` // of these: the gateway has answered, and it is still pending
	Resolved    int64 `json:"resolved"`
	FailedAgain int64 `json:"failed_again"`
	CameBack    int64 `json:"came_back"` // of these: with the same fingerprint
	Final       int64 `json:"final"`     // was final before it was released
	Refused     int64 `json:"refused"`
	Cancelled   int64 `json:"cancelled"`
	Undone      int64 `json:"undone"`
}

// Released is how many letters were released.
func (c Counts) Released() int64 { return c.Queued + c.Resolved + c.FailedAgain }

// Unanswered is how many released letters nobody knows anything about yet.
func (c Counts) Unanswered() int64 { return c.Queued - c.Answered }

// Item is what became of one letter in a replay.
type Item struct {
	Ord         int64      `json:"place"`
	Letter      int64      `json:"letter"`
	Payment     *int64     `json:"payment"`
	Gateway     string     `json:"gateway"`
	Reference   string     `json:"reference"`
	AmountMinor *int64     `json:"amount_minor"`
	Currency    string     `json:"currency"`
	State       string     `json:"state"`
	Why         string     `json:"why"`
	CameBack    bool       `json:"came_back"`
	Status      string     `json:"payment_status"`
	ReleasedAt  *time.Time `json:"released_at"`
	EndedAt     *time.Time `json:"ended_at"`
}

// Preview is what a replay would do now.
type Preview struct {
	Letters  int              `json:"letters"` // that would be polled
	Money    map[string]int64 `json:"money"`
	Gateways []string         `json:"gateways"`
	Verdicts map[Verdict]int  `json:"verdicts"`
	First    []Previewed      `json:"first"` // of the replay, as many as were asked for
	Rate     float64          `json:"rate"`
	Approval string           `json:"approval"` // why a second person must agree; empty: none must
}

// Previewed is a letter and what would become of it.
type Previewed struct {
	Letter
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"-"`
	Why     string  `json:"why"`
	Says    string  `json:"gateway_says"` // now; empty when it was not asked
}

// Takes is how long n payments take at a rate: until the last of them is due.
func Takes(n int, rate float64) time.Duration {
	if n < 2 || rate <= 0 {
		return 0
	}
	return time.Duration(float64(n-1) / rate * float64(time.Second))
}

// CheckDuration refuses a replay that would take longer than a year.
func CheckDuration(n int, rate float64) error {
	if float64(n)/rate > redelivery.MaxDelay.Seconds() {
		return fmt.Errorf("%d payments at %g a second would take longer than a year; replay faster, or fewer", n, rate)
	}
	return nil
}

// Errors of replays.
var (
	ErrNoReplay   = errors.New("no such replay")
	ErrNothing    = errors.New("nothing matches")
	ErrOther      = errors.New("this request id was used for another replay")
	ErrSamePerson = errors.New("whoever asked for a replay cannot approve it")
	ErrSameLogin  = errors.New("the login that asked for a replay cannot approve it, whatever name it gives")
)

// StateError is the error of a verb that a replay's state does not allow.
type StateError struct {
	ID    int64
	State string
	Verb  string
}

func (e *StateError) Error() string {
	return fmt.Sprintf("replay %d is %s: it cannot be %s", e.ID, e.State, e.Verb)
}
