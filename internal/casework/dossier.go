package casework

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"pollux/internal/audit"
	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// Dossier is all that is known about a payment, in one snapshot. Lists are the oldest first and hold the newest MaxRows at most.
type Dossier struct {
	Now      time.Time     `json:"read_at"`
	Payment  Payment       `json:"payment"`
	Job      *Job          `json:"job"` // nil when there is none
	Letters  []Letter      `json:"dead_letters"`
	Attempts []Attempt     `json:"attempts"`
	Events   []Event       `json:"events"`
	Notices  []Notice      `json:"webhooks"`
	Breaker  []Transition  `json:"breaker_transitions"` // of its gateway's account: the last before it was tracked, and those while it was pending
	Acts     []audit.Entry `json:"acts"`
}

// MaxRows is how many rows of a kind a dossier holds.
const MaxRows = 100

// Job is the poll job of a pending payment.
type Job struct {
	State       string              `json:"state"`
	Due         time.Time           `json:"due_at"`
	LockedUntil *time.Time          `json:"leased_until"`
	LockedBy    string              `json:"leased_by"`
	HeldUntil   *time.Time          `json:"held_until"` // by an operator
	Lane        string              `json:"lane"`
	Counters    redelivery.Counters `json:"-"`
	Attempts    int                 `json:"attempts"`
	Failures    int                 `json:"failures"`
	NotFounds   int                 `json:"not_founds"`
	Deferrals   int                 `json:"deferrals"`
	Replays     int                 `json:"replays"`
	Delay       time.Duration       `json:"-"` // the last one
	LastClass   string              `json:"last_class"`
	LastMessage string              `json:"last_message"`
	WindowFrom  time.Time           `json:"window_started_at"`
}

// Letter is a dead letter of a payment.
type Letter struct {
	ID        int64      `json:"id"`
	Reason    string     `json:"reason"`
	State     string     `json:"state"`
	Said      string     `json:"gateway_status"`
	Message   string     `json:"message"`
	CreatedAt time.Time  `json:"created_at"`
	DiedAt    time.Time  `json:"died_at"`
	ClosedAt  *time.Time `json:"closed_at"`
	ClosedBy  string     `json:"closed_by"`
}

// Attempt is one call to the gateway.
type Attempt struct {
	At            time.Time     `json:"at"`
	Due           time.Time     `json:"due_at"`
	Took          time.Duration `json:"-"`
	TookMS        int64         `json:"took_ms"`
	Class         string        `json:"class"`
	HTTPStatus    int           `json:"http_status"`
	GatewayStatus string        `json:"gateway_status"`
	RetryAfterMS  int64         `json:"retry_after_ms"`
	Message       string        `json:"message"`
	Disposition   string        `json:"disposition"`
	Reason        string        `json:"reason"`
	DelayMS       int64         `json:"delay_ms"`
	Applied       bool          `json:"applied"` // false: the answer came too late and changed nothing
	Policy        string        `json:"policy"`
	Worker        string        `json:"worker"`
	TraceID       string        `json:"trace_id"`
}

// Event is a message of the outbox.
type Event struct {
	ID          string     `json:"event_id"`
	Subject     string     `json:"subject"`
	CreatedAt   time.Time  `json:"created_at"`
	PublishedAt *time.Time `json:"published_at"`
	SetAside    string     `json:"set_aside"` // why it can never be published; empty when it can
}

// Notice is a notification of the gateway.
type Notice struct {
	ID       string    `json:"event_id"`
	At       time.Time `json:"received_at"`
	Kind     string    `json:"kind"`
	Status   string    `json:"status"` // that it reports; empty when it reports none
	Decision string    `json:"decision"`
	Why      string    `json:"why"`
}

// Transition is a change of the breaker of the payment's gateway.
type Transition struct {
	At      time.Time  `json:"at"`
	From    string     `json:"from"`
	To      string     `json:"to"`
	Cause   string     `json:"cause"`
	Reason  string     `json:"reason"`
	Actor   string     `json:"actor"`
	RetryAt *time.Time `json:"retry_at"`
}

// Moment is a line of a payment's timeline.
type Moment struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind"` // tracked, polled, webhook, event, breaker, dead letter, operator, status
	Text string    `json:"text"`
}

// Timeline is the payment's story, the oldest first.
func (d Dossier) Timeline() []Moment {
	p := d.Payment
	line := []Moment{{p.TrackedAt, "tracked", fmt.Sprintf("class %s, lane %s", p.Class, p.Lane)}}
	for _, a := range d.Attempts {
		line = append(line, Moment{a.At, "polled", a.text()})
	}
	line = append(line, d.breakerMoments()...)
	for _, l := range d.Letters {
		line = append(line, l.moments()...)
	}
	for _, e := range d.Events {
		line = append(line, e.moment())
	}
	for _, n := range d.Notices {
		line = append(line, Moment{n.At, "webhook", n.text()})
	}
	for _, a := range d.Acts {
		line = append(line, Moment{a.At, "operator", act(a)})
	}
	if p.Status.Final() {
		line = append(line, Moment{p.StatusSince, "status", fmt.Sprintf("%s by %s", p.StatusLine(), p.StatusSource)})
	}
	slices.SortStableFunc(line, func(a, b Moment) int { return cmp.Compare(a.At.UnixMicro(), b.At.UnixMicro()) })
	return line
}

// The first and the last changes of a breaker that a timeline has. An outage has many, and they are the gateway's story.
const (
	firstChanges = 3
	lastChanges  = 5
)

// breakerMoments are the changes of the breaker while the payment was pending.
func (d Dossier) breakerMoments() []Moment {
	var all []Moment
	for _, t := range d.Breaker {
		if t.At.After(d.Payment.TrackedAt) {
			all = append(all, Moment{t.At, "breaker", t.text(d.Payment.Gateway)})
		}
	}
	left := len(all) - firstChanges - lastChanges
	if left < 2 {
		return all
	}
	between := Moment{all[firstChanges].At, "breaker", fmt.Sprintf("of %s: %d changes between; pollux breaker show %s has them", d.Payment.Gateway, left, d.Payment.breaker())}
	return slices.Concat(all[:firstChanges], []Moment{between}, all[len(all)-lastChanges:])
}

// End is when the payment became final first, as far as is known, or now.
func (d Dossier) End() time.Time {
	if !d.Payment.Status.Final() {
		return d.Now
	}
	for _, e := range d.Events {
		if strings.HasPrefix(e.Subject, "payments.resolved.") {
			return e.CreatedAt
		}
	}
	return d.Payment.StatusSince
}

func (a Attempt) text() string {
	words := []string{a.Class}
	if a.HTTPStatus != 0 {
		words = append(words, fmt.Sprint(a.HTTPStatus))
	}
	if a.GatewayStatus != "" {
		words = append(words, fmt.Sprintf("%q", a.GatewayStatus))
	}
	words = append(words, "in "+short(a.Took))
	s := strings.Join(words, " ") + ": " + strings.ReplaceAll(a.Disposition, "_", " ") + ", " + a.Reason
	if a.DelayMS > 0 {
		s += ", again in " + short(time.Duration(a.DelayMS)*time.Millisecond)
	}
	if !a.Applied {
		s += "; it came too late and changed nothing"
	}
	if a.Message != "" {
		s += "; " + a.Message
	}
	return s
}

func (n Notice) text() string {
	s := strings.Join(strings.Fields(n.Kind+" "+n.Status), " ") + ": " + n.Decision
	if n.Why != "" {
		s += ", " + n.Why
	}
	return s
}

func (t Transition) text(gateway string) string {
	s := fmt.Sprintf("of %s: %s to %s, %s", gateway, t.From, t.To, t.Cause)
	if t.Actor != "" {
		s += " by " + t.Actor
	}
	if t.Reason != "" {
		s += ": " + t.Reason
	}
	return s
}

func (l Letter) moments() []Moment {
	text := fmt.Sprintf("%d: %s", l.ID, l.Reason)
	if l.Message != "" {
		text += ": " + l.Message
	}
	var all []Moment
	if !l.CreatedAt.Equal(l.DiedAt) {
		all = append(all, Moment{l.CreatedAt, "dead letter", fmt.Sprintf("%d", l.ID)})
		text += " (again)"
	}
	all = append(all, Moment{l.DiedAt, "dead letter", text})
	if l.ClosedAt != nil {
		all = append(all, Moment{*l.ClosedAt, "dead letter", fmt.Sprintf("%d is %s by %s", l.ID, l.State, l.ClosedBy)})
	}
	return all
}

func (e Event) moment() Moment {
	s := e.ID + " on " + e.Subject
	switch {
	case e.SetAside != "":
		s += ", set aside: " + e.SetAside
	case e.PublishedAt == nil:
		s += ", not published yet"
	default:
		s += ", published " + short(e.PublishedAt.Sub(e.CreatedAt)) + " later"
	}
	return Moment{e.CreatedAt, "event", s}
}

func act(e audit.Entry) string {
	s := fmt.Sprintf("%s: %s", e.Actor, e.Action)
	if e.Outcome != audit.Done {
		s += ", " + string(e.Outcome)
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// short is a duration as people say it: two units at the most.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + short(-d)
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	d = d.Round(time.Second)
	units := []struct {
		name string
		of   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	var said []string
	for _, u := range units {
		if n := d / u.of; n > 0 && len(said) < 2 {
			said = append(said, fmt.Sprintf("%d%s", n, u.name))
			d -= n * u.of
		} else if len(said) > 0 {
			break
		}
	}
	return strings.Join(said, " ")
}

// letter is the letter that a person is to read: the newest that is not closed, or none.
func (d Dossier) letter() *Letter {
	for i := len(d.Letters) - 1; i >= 0; i-- {
		if d.Letters[i].ClosedAt == nil {
			return &d.Letters[i]
		}
	}
	return nil
}

// last returns the newest attempt, or none.
func (d Dossier) last() *Attempt {
	if len(d.Attempts) == 0 {
		return nil
	}
	return &d.Attempts[len(d.Attempts)-1]
}

// lastAct is the newest act of a kind that was done, or none.
func (d Dossier) lastAct(action string) *audit.Entry {
	for i := len(d.Acts) - 1; i >= 0; i-- {
		if a := d.Acts[i]; a.Action == action && a.Outcome == audit.Done {
			return &d.Acts[i]
		}
	}
	return nil
}

// breaker names the breaker of the payment's gateway and account, as commands take it.
func (p Payment) breaker() string {
	if p.Account == "" {
		return p.Gateway
	}
	return p.Gateway + "/" + p.Account
}

// forced reports whether an operator gave the payment its status.
func (p Payment) forced() bool { return p.Status.Final() && p.StatusSource == payment.ByOperator }
