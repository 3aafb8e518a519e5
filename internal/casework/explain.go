package casework

import (
	"fmt"
	"strings"
	"time"

	"pollux/internal/payment"
	"pollux/internal/redelivery"
)

// Settings are what the configuration says about a payment's gateway and class.
type Settings struct {
	Policy     redelivery.Policy
	Configured bool   // the gateway is in the configuration
	Limit      string // of its calls, such as 60/s; empty without one
}

// Explanation says in words where a payment is, why, and what happens next.
type Explanation struct {
	ID      int64      `json:"id"`
	Place   Place      `json:"place"`
	Where   string     `json:"where"`
	Next    string     `json:"next"`
	NextAt  *time.Time `json:"next_at"` // nil when nothing happens by itself
	Because string     `json:"because"` // of the next poll's time; empty without one
	Bounds  []string   `json:"bounds"`  // what ends it, and what else holds
}

// Explain explains a payment. It is pure: the same dossier and settings give the same words, and the clock is the dossier's.
func Explain(d Dossier, s Settings) Explanation {
	e := Explanation{ID: d.Payment.ID, Place: d.Payment.Place, Bounds: []string{}}
	switch {
	case d.Payment.Place == Final:
		e.explainFinal(d)
		return e
	case d.Payment.Place == Nowhere || d.Job == nil:
		e.Where = "the record is not sound: this payment is in none of the places that there are"
		e.Next = "run: pollux verify"
		return e
	case d.Payment.Place == WithPerson:
		e.explainPerson(d)
	default:
		e.Where = polled(d)
		if s.Policy.NeverPoll {
			e.Where = fmt.Sprintf("it was tracked %s; %s is never asked, it reports by webhook", ago(d.Now, d.Payment.TrackedAt), d.Payment.Gateway)
		}
		e.explainNext(d, s)
	}
	e.bounds(d, s)
	return e
}

func (e *Explanation) explainFinal(d Dossier) {
	p := d.Payment
	e.Where = fmt.Sprintf("it is %s since %s, %s", p.Status, ago(d.Now, p.StatusSince), sources[p.StatusSource])
	e.Next = "nothing: it is not polled any more"
	if p.Status != payment.Succeeded {
		e.Next += "; should the gateway say that it has succeeded after all, that is a late success"
	}
	if p.forced() {
		e.Next = "nothing: it is not polled any more; what the gateway says otherwise becomes a conflict for a person and changes nothing"
		if a := d.lastAct("payment.force"); a != nil {
			e.Where = fmt.Sprintf("it is %s since %s, forced by %s: %s", p.Status, ago(d.Now, p.StatusSince), a.Actor, a.Reason)
		}
	}
	if l := d.letter(); l != nil {
		e.Next = fmt.Sprintf("a person decides: %s; see: pollux dlq show %d", strings.TrimSpace(l.Said+" "+l.Message), l.ID)
	}
}

// sources say who gave a payment its status.
var sources = map[payment.Source]string{
	payment.ByPoll: "as the gateway answered a poll", payment.ByWebhook: "as the gateway notified", payment.ByOperator: "by an operator",
	payment.ByReconciliation: "by reconciliation",
}

func (e *Explanation) explainPerson(d Dossier) {
	l := d.letter()
	if l == nil { // discarded: nothing will be done, and nothing is polled
		e.Where = "it is with a person, who closed its dead letter without an end"
		e.Next = fmt.Sprintf("nothing: it stays pending; to end it: pollux payment force %d STATUS --reason WHY", e.ID)
		return
	}
	e.Where = fmt.Sprintf("it is with a person since %s, reason %s: dead letter %d", ago(d.Now, l.DiedAt), l.Reason, l.ID)
	if l.Message != "" {
		e.Where += ", " + l.Message
	}
	e.Next = fmt.Sprintf("nothing by itself, unless its gateway notifies; see: pollux dlq show %d; to poll it again: pollux dlq replay %d --reason WHY", l.ID, l.ID)
}

// polled says what was asked and answered so far.
func polled(d Dossier) string {
	j, a := d.Job, d.last()
	switch {
	case a == nil:
		return fmt.Sprintf("it was tracked %s and not polled yet", ago(d.Now, d.Payment.TrackedAt))
	case replayed(d):
		return fmt.Sprintf("it is being replayed, for the %s time, and not polled again yet", ordinal(j.Replays))
	case j.Failures > 0:
		return fmt.Sprintf("it was polled, and the last %s failed: %s", count(j.Failures, "call", "calls"), a.answer(d.Now))
	case j.Attempts > 0:
		what, ok := still[a.Reason]
		if !ok {
			what = "still pending"
		}
		return fmt.Sprintf("polled %s, %s: %s", count(j.Attempts, "time", "times"), what, a.answer(d.Now))
	}
	return "it was polled: " + a.answer(d.Now)
}

// still says what an answer that ended nothing means.
var still = map[string]string{
	string(redelivery.ReasonUnknownStatus): "the last time with a status that is not in the map",
	string(redelivery.ReasonNotFound):      "unknown to the gateway",
	string(redelivery.ReasonRateLimited):   "the last time too often for the gateway",
	string(redelivery.ReasonUnauthorized):  "the last time with a key that it refused",
}

func (a Attempt) answer(now time.Time) string {
	s := a.Class
	if a.GatewayStatus != "" {
		s = fmt.Sprintf("%q", a.GatewayStatus)
	} else if a.Message != "" {
		s += ", " + a.Message
	}
	return s + ", " + ago(now, a.At)
}

// replayed reports whether the job began anew after its last poll.
func replayed(d Dossier) bool {
	a := d.last()
	return d.Job.Replays > 0 && (a == nil || a.At.Before(d.Job.WindowFrom) && d.Job.Attempts+d.Job.Failures+d.Job.NotFounds == 0)
}

func (e *Explanation) explainNext(d Dossier, s Settings) {
	j := d.Job
	leased := j.LockedUntil != nil && j.LockedUntil.After(d.Now)
	due := j.Due
	switch {
	case j.HeldUntil != nil && j.HeldUntil.After(d.Now):
		e.NextAt = latest(j.HeldUntil, due)
		e.Next = fmt.Sprintf("an operator holds it%s until %s; then it is polled; to end that: pollux payment release %d", holder(d), in(d.Now, *j.HeldUntil), e.ID)
		return
	case e.Place == Deferred && leased:
		e.Next = fmt.Sprintf("it sleeps until the breaker of %s lets calls in again; at no cost to its attempts. See: pollux breaker show %s", d.Payment.Gateway, d.Payment.breaker())
		return
	case e.Place == InFlight && leased:
		e.Next = fmt.Sprintf("its poll is on its way, published by %s; without a result by %s it is published anew", j.LockedBy, in(d.Now, *j.LockedUntil))
		e.NextAt = j.LockedUntil
		return
	case j.LockedUntil != nil && !leased:
		due = *latest(j.LockedUntil, due)
	}
	e.NextAt, e.Because = &due, because(d, s.Policy)
	switch {
	case !due.After(d.Now):
		e.Next = fmt.Sprintf("a poll, due since %s: the relay publishes it at its next look. If it stays so: does a relay run, do consumers of %s", ago(d.Now, due), d.Payment.Gateway)
		if !s.Configured {
			e.Next += " (which is not in the configuration here)"
		}
		e.Next += ", and do they reach NATS?"
	case s.Policy.NeverPoll:
		e.Because = "its deadline or its window ends then"
		e.Next = fmt.Sprintf("a webhook finishes it; without one a person is asked %s, because %s", in(d.Now, due), e.Because)
	case e.Place == Held:
		e.Next = fmt.Sprintf("next poll %s, because %s; the broker holds it until then", in(d.Now, due), e.Because)
	default:
		e.Next = fmt.Sprintf("next poll %s, because %s", in(d.Now, due), e.Because)
	}
}

// holder is who holds a payment and why, as far as the audit log tells.
func holder(d Dossier) string {
	if a := d.lastAct("payment.hold"); a != nil {
		return fmt.Sprintf(" (%s: %s)", a.Actor, a.Reason)
	}
	return ""
}

// because says why the next poll is when it is.
func because(d Dossier, p redelivery.Policy) string {
	j, a := d.Job, d.last()
	if act := d.lastAct("payment.poll-now"); act != nil && (a == nil || act.At.After(a.At)) {
		return act.Actor + " wanted a poll now"
	}
	switch {
	case a == nil && j.Replays == 0:
		return "that is when its first poll was wanted"
	case replayed(d):
		return "that is its turn in the replay"
	}
	why := map[string]string{
		string(redelivery.ReasonStillPending):  term(p.Name, p.Pending, j.Attempts-1),
		string(redelivery.ReasonUnknownStatus): term(p.Name, p.Pending, j.Attempts-1),
		string(redelivery.ReasonFailure):       term(p.Name+".error", p.Error, j.Failures-1),
		string(redelivery.ReasonNotFound):      term(p.Name+".error", p.Error, j.NotFounds-1),
		string(redelivery.ReasonRateLimited):   "the gateway was asked too often (429)",
		string(redelivery.ReasonUnauthorized):  "the gateway refused our key: not before " + short(p.UnauthorizedDelay),
	}[a.Reason]
	if why == "" {
		why = "of the last delivery: " + j.LastClass
	}
	if p.MinInterval > 0 {
		why += fmt.Sprintf(", and at least %s after the poll before, as its gateway wishes", short(p.MinInterval))
	}
	if wait := time.Duration(a.RetryAfterMS) * time.Millisecond; wait > 0 {
		why += fmt.Sprintf(", and not before the %s that the gateway asked for", short(min(wait, max(p.MaxRetryAfter, 0))))
	}
	return why
}

// term is the n-th delay of a curve, as a person would find it in the configuration: standard[3] = 30m ±20 %.
func term(name string, c redelivery.Curve, n int) string {
	n = max(n, 0)
	plain := redelivery.Curve{Base: c.Base, Cap: c.Cap, List: c.List}.Delay(n, 0, 0)
	var s string
	if len(c.List) > 0 {
		s = fmt.Sprintf("%s[%d] = %s", name, min(n, len(c.List)-1), short(plain))
	} else {
		s = fmt.Sprintf("%s[%d] = min(%s, %s·2^%d) = %s", name, n, short(c.Cap), short(c.Base), n, short(plain))
	}
	switch c.Jitter.Kind {
	case redelivery.JitterPercent:
		s += fmt.Sprintf(" ±%d %%", c.Jitter.Percent)
	case redelivery.JitterFull:
		s += ", of which chance takes any part"
	case redelivery.JitterEqual:
		s += ", of which chance takes up to half"
	case redelivery.JitterDecorrelated:
		s = fmt.Sprintf("%s = between %s and three times the delay before, at most %s", name, short(c.Base), short(c.Cap))
	}
	return s
}

// bounds says what ends the payment's polls, and what else bears upon them.
func (e *Explanation) bounds(d Dossier, s Settings) {
	j, p := d.Job, s.Policy
	say := func(format string, a ...any) { e.Bounds = append(e.Bounds, fmt.Sprintf(format, a...)) }
	say("attempts: %d%s; failures in a row: %d%s; policy %s", j.Attempts, of(p.MaxAttempts), j.Failures, of(p.MaxFailures), p.Name)
	person := d.Payment.Place == WithPerson // what would hand it to one has done so
	if p.Window > 0 && !person {
		if left := j.WindowFrom.Add(p.Window).Sub(d.Now); left > 0 {
			say("window: %s of %s left; after that a poll that brings no end hands it to a person", short(left), short(p.Window))
		} else {
			say("window: over since %s; the next poll that brings no end hands it to a person", short(-left))
		}
	}
	if at := d.Payment.ExpiresAt; at != nil && !person {
		say("its own deadline: %s; the poll then is its last", in(d.Now, *at))
	}
	if j.Deferrals > 0 {
		say("it slept %s behind an open breaker", count(j.Deferrals, "time", "times"))
	}
	if j.Replays > 0 {
		say("it was replayed %s", count(j.Replays, "time", "times"))
	}
	say("breaker of %s: %s", d.Payment.Gateway, d.breaker())
	if s.Limit != "" {
		say("limit of %s: %s for the whole fleet", d.Payment.Gateway, s.Limit)
	}
	if !s.Configured {
		say("%s is not in the configuration here: what is said about its policy is what any gateway has", d.Payment.Gateway)
	}
}

// breaker is the state of the breaker as the record knows it.
func (d Dossier) breaker() string {
	if len(d.Breaker) == 0 {
		return "closed, as far as the record knows"
	}
	t := d.Breaker[len(d.Breaker)-1]
	s := fmt.Sprintf("%s since %s (%s), as far as the record knows", t.To, ago(d.Now, t.At), t.Cause)
	if t.RetryAt != nil && t.RetryAt.After(d.Now) && t.To == "open" {
		s += ", next probe " + in(d.Now, *t.RetryAt)
	}
	return s
}

func latest(a *time.Time, b time.Time) *time.Time {
	if a.Before(b) {
		return &b
	}
	return a
}

// in is an instant to come: 14:32:10, in 7m. Another day has its date.
func in(now, t time.Time) string {
	now, t = now.UTC(), t.UTC()
	layout := "15:04:05Z"
	if now.Format(time.DateOnly) != t.Format(time.DateOnly) {
		layout = "2006-01-02 15:04:05Z"
	}
	d := t.Sub(now)
	if d <= 0 {
		return t.Format(layout) + ", " + short(-d) + " ago"
	}
	return t.Format(layout) + ", in " + short(d)
}

// ago is an instant that has passed: 14:32:10, 7m ago.
func ago(now, t time.Time) string { return in(now, t) }

func of(bound int) string {
	if bound == 0 {
		return " (no bound)"
	}
	return fmt.Sprintf(" of %d", bound)
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprintf("%d%s", n, suffix)
}
