package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"pollux/internal/deadletter"
	"pollux/internal/gateway"
	"pollux/internal/payment/currency"
	"pollux/internal/redelivery"
)

// meanings say what the reason of a dead letter means, to somebody who was woken by it.
var meanings = map[redelivery.Reason]string{
	redelivery.ReasonMismatch:      "the gateway's answer is about another payment, amount or currency: compare before anything else",
	redelivery.ReasonNotFound:      "the gateway does not know it, three times in a row and past the grace: was it ever sent there?",
	redelivery.ReasonDeadline:      "the payment's own deadline passed and the gateway had not decided",
	redelivery.ReasonAttempts:      "the gateway answered as often as the policy allows and did not decide",
	redelivery.ReasonFailures:      "as many calls in a row failed as the policy allows",
	redelivery.ReasonWindow:        "it is as old as the policy allows and the gateway has not decided",
	redelivery.ReasonPoison:        "it was delivered again and again and never recorded: look for crashes of the consumers",
	redelivery.ReasonRefused:       "the database refuses to record the result: the message names the constraint",
	redelivery.ReasonConflict:      "the gateway contradicts the payment's final status, or one that an operator forced: nothing was changed; compare, and force what is right",
	redelivery.ReasonUndecodable:   "a message that is none of ours: somebody else publishes to this subject",
	redelivery.ReasonUnpublishable: "the broker refuses to take its poll",
	redelivery.ReasonLateSuccess:   "it had failed and has succeeded: was it paid twice, or given up by the shop meanwhile?",
	redelivery.ReasonLateHint:      "it had ended without success and its gateway says that something changed: ask with pollux gateway test, and force what is right",
}

// lettersOf are letters as -o json shows them: with times in UTC.
func lettersOf(letters []deadletter.Letter) []deadletter.Letter {
	list := make([]deadletter.Letter, len(letters))
	for i, l := range letters {
		list[i] = letterOf(l)
	}
	return list
}

func letterOf(l deadletter.Letter) deadletter.Letter {
	l.FirstDied, l.LastDied, l.ClosedAt = l.FirstDied.UTC(), l.LastDied.UTC(), utc(l.ClosedAt)
	return l
}

// detailsOf are details as -o json shows them.
func detailsOf(d deadletter.Details) deadletter.Details {
	d.Letter, d.TrackedAt, d.FirstAt = letterOf(d.Letter), d.TrackedAt.UTC(), utc(d.FirstAt)
	polls := make([]deadletter.Attempt, len(d.Polls))
	for i, p := range d.Polls {
		p.At = p.At.UTC()
		polls[i] = p
	}
	d.Polls = polls
	notes := make([]deadletter.Note, len(d.Notes))
	for i, n := range d.Notes {
		n.At = n.At.UTC()
		notes[i] = n
	}
	d.Notes = notes
	replays := make([]deadletter.InReplay, len(d.InReplays))
	for i, r := range d.InReplays {
		r.ReleasedAt, r.EndedAt = utc(r.ReleasedAt), utc(r.EndedAt)
		replays[i] = r
	}
	d.InReplays = replays
	return d
}

func printPage(w io.Writer, letters []deadletter.Letter, f deadletter.Filter, page deadletter.Page) {
	if len(letters) == 0 {
		row(w, nothing(f, page.Before > 0))
		return
	}
	printLetters(w, letters, f.Has("state"))
	if len(letters) == page.Limit {
		row(w, fmt.Sprintf("there may be more: add --before %d", letters[len(letters)-1].ID))
	}
}

// nothing says why a page is empty.
func nothing(f deadletter.Filter, further bool) string {
	if further {
		return "no more of them"
	}
	if text := f.Opened().String(); text != "state="+deadletter.Any {
		return "no dead letters with " + text
	}
	return "no dead letters"
}

func printLetters(w io.Writer, letters []deadletter.Letter, states bool) {
	head := []any{"ID", "DIED", "REASON", "GATEWAY", "REFERENCE", "AMOUNT", "REPLAYS", "OWNER", "LAST ANSWER"}
	if states {
		head = append([]any{"ID", "STATE"}, head[1:]...)
	}
	row(w, head...)
	for _, l := range letters {
		cells := []any{l.ID, ago(l.LastDied), l.Reason, l.Gateway, orDash(cut(l.Reference, 40)), amount(l), l.Replays, orDash(cut(l.Owner, 20)), orDash(cut(lastAnswer(l), 70))}
		if states {
			cells = append([]any{l.ID, l.State}, cells[1:]...)
		}
		row(w, cells...)
	}
}

// groupsOf are groups as -o json shows them.
func groupsOf(groups []deadletter.Group) []deadletter.Group {
	list := make([]deadletter.Group, len(groups))
	for i, g := range groups {
		g.First, g.Last, g.Sample = g.First.UTC(), g.Last.UTC(), letterOf(g.Sample)
		list[i] = g
	}
	return list
}

func printGroups(w io.Writer, groups []deadletter.Group, total deadletter.Total, f deadletter.Filter) {
	if len(groups) == 0 {
		row(w, nothing(f, false))
		return
	}
	row(w, "FINGERPRINT", "LETTERS", "MONEY", "FIRST", "LAST", "TREND", "CAME BACK", "GATEWAYS", "REASONS", "LAST ANSWER")
	for _, g := range groups {
		row(w, g.Fingerprint, g.Letters, moneyOf(g.Money), ago(g.First), ago(g.Last), g.Trend(), g.CameBack, strings.Join(g.Gateways, ","), strings.Join(g.Reasons, ","),
			orDash(ends(fault(g.Sample), 100)))
	}
	if more := total.Groups - len(groups); more > 0 {
		row(w, fmt.Sprintf("and %d smaller groups: --limit shows more", more))
	}
	row(w)
	row(w, fmt.Sprintf("%s, %s", counted(int(total.Letters), "letter", "letters"), moneyOf(total.Money)))
}

// moneyOf is an amount for each currency.
func moneyOf(money map[string]int64) string {
	if len(money) == 0 {
		return "-"
	}
	var parts []string
	for _, code := range slices.Sorted(maps.Keys(money)) {
		parts = append(parts, currency.Format(money[code], code))
	}
	return strings.Join(parts, ", ")
}

// amount is a letter's money as people write it.
func amount(l deadletter.Letter) string {
	if l.AmountMinor == nil {
		return "-"
	}
	return currency.Format(*l.AmountMinor, l.Currency)
}

// lastAnswer is what the gateway said last, in a line. A class that the reason repeats is left out.
func lastAnswer(l deadletter.Letter) string {
	var words []string
	if l.LastClass != l.Reason {
		words = append(words, l.LastClass)
	}
	if l.HTTPStatus != 0 && !strings.HasPrefix(l.Message, fmt.Sprintf("HTTP %d", l.HTTPStatus)) {
		words = append(words, fmt.Sprint(l.HTTPStatus))
	}
	if l.GatewayStatus != "" {
		words = append(words, fmt.Sprintf("%q", l.GatewayStatus))
	}
	s := strings.TrimSpace(strings.Join(words, " "))
	switch {
	case l.Message == "":
		return s
	case s == "":
		return l.Message
	}
	return s + ": " + l.Message
}

// fault is what a group has in common, by one of its letters: of a mismatch the gateway's status is that of the payment, and no part of it.
func fault(l deadletter.Letter) string {
	if l.LastClass == gateway.Mismatch.String() {
		l.GatewayStatus = ""
	}
	return lastAnswer(l)
}

// ends is a text of at most n characters: of a longer one its beginning and its end, where messages differ.
func ends(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	head := n / 2
	return string(r[:head]) + "…" + string(r[len(r)-(n-head-1):])
}

// maxShown is how many bytes of a message are shown. -o json has all of them.
const maxShown = 1024

func printDetails(w io.Writer, d deadletter.Details) {
	row(w, "dead letter", d.ID)
	row(w, "state", state(d.Letter))
	row(w, "reason", reason(d.Reason))
	row(w, "fingerprint", d.Fingerprint)
	row(w, "owner", orDash(d.Owner))
	if d.Link != "" {
		row(w, "link", d.Link)
	}
	if d.PaymentID != nil {
		printPayment(w, d)
	} else {
		row(w, "subject", d.Subject)
	}
	if d.Body != nil {
		row(w, "message", fmt.Sprintf("%d bytes: %q", len(d.Body), d.Body[:min(len(d.Body), maxShown)]))
	}
	row(w, "died", when(d.LastDied))
	if !d.FirstDied.Equal(d.LastDied) {
		row(w, "died first", when(d.FirstDied))
	}
	if d.PaymentID != nil && !d.Review {
		printCounters(w, d)
	}
	row(w, "worker", orDash(d.Worker))
	if d.Build != "" {
		row(w, "build", d.Build)
	}
	if d.TraceID != "" {
		row(w, "trace", d.TraceID)
	}
	if d.FirstAt != nil {
		row(w, "first error", strings.TrimSpace(d.FirstClass+" "+d.FirstMessage)+", "+when(*d.FirstAt))
	}
	row(w, "last answer", orDash(lastAnswer(d.Letter)))
	printPolls(w, d.Polls)
	printInReplays(w, d.InReplays)
	printNotes(w, d.Notes)
	if next := whatNext(d); next != "" {
		row(w)
		row(w, next)
	}
}

func printCounters(w io.Writer, d deadletter.Details) {
	row(w, "counters", fmt.Sprintf("%d attempts, %d failures in a row, %d deferrals, %d replays", d.Attempts, d.Failures, d.Deferrals, d.Replays))
	if len(d.Classes) > 0 {
		var parts []string
		for _, class := range slices.Sorted(maps.Keys(d.Classes)) {
			parts = append(parts, fmt.Sprintf("%d %s", d.Classes[class], class))
		}
		row(w, "answers", strings.Join(parts, ", "))
	}
	policy := d.Policy
	if d.PolicyHash != "" {
		policy += " (" + d.PolicyHash + ")"
	}
	row(w, "policy", orDash(policy))
}

func printInReplays(w io.Writer, replays []deadletter.InReplay) {
	if len(replays) == 0 {
		return
	}
	row(w)
	row(w, "REPLAY", "BY", "STATE", "RELEASED", "ENDED", "WHY")
	for _, r := range replays {
		row(w, r.Replay, r.By, r.State, orDash(agoOf(r.ReleasedAt)), orDash(agoOf(r.EndedAt)), orDash(r.Why))
	}
}

func printNotes(w io.Writer, notes []deadletter.Note) {
	if len(notes) == 0 {
		return
	}
	row(w)
	row(w, "NOTED", "BY", "TEXT")
	for _, n := range notes {
		row(w, instant(n.At), n.Actor, n.Text)
	}
}

// whatNext is what can be done with a letter.
func whatNext(d deadletter.Details) string {
	switch {
	case d.Replay != 0:
		return fmt.Sprintf("it is in replay %d: pollux dlq status %d", d.Replay, d.Replay)
	case d.State == deadletter.Parked || d.State == deadletter.Discarded:
		return fmt.Sprintf("to take it back: pollux dlq reopen %d --reason WHY", d.ID)
	case d.State != deadletter.Open:
		return ""
	case d.PaymentID == nil || d.Review:
		return fmt.Sprintf("to close it: pollux dlq resolve %d --reason WHY", d.ID)
	}
	return fmt.Sprintf("to poll it again: pollux dlq replay %d --reason WHY", d.ID)
}

func state(l deadletter.Letter) string {
	if l.ClosedAt == nil {
		return l.State
	}
	return fmt.Sprintf("%s by %s, %s", l.State, orDash(l.ClosedBy), when(*l.ClosedAt))
}

func reason(r string) string {
	if m := meanings[redelivery.Reason(r)]; m != "" {
		return r + ": " + m
	}
	return r
}

func printPayment(w io.Writer, d deadletter.Details) {
	row(w, "payment", *d.PaymentID)
	row(w, "gateway", d.Gateway)
	if d.Account != "" {
		row(w, "account", d.Account)
	}
	row(w, "reference", d.Reference)
	row(w, "amount", amount(d.Letter))
	row(w, "class", d.Class)
	row(w, "status", strings.TrimSpace(d.PaymentStatus+" "+d.StatusDetail))
	row(w, "tracked", when(d.TrackedAt))
}

func printPolls(w io.Writer, polls []deadletter.Attempt) {
	if len(polls) == 0 {
		return
	}
	row(w)
	row(w, "POLLED", "CLASS", "HTTP", "SAID", "TOOK", "DECIDED", "MESSAGE")
	for i, p := range polls {
		message := orDash(p.Message)
		if i > 0 && p.Message != "" && p.Message == polls[i-1].Message {
			message = "the same"
		}
		row(w, p.At.UTC().Format("2006-01-02 15:04:05.000Z"), p.Class, code(p.HTTPStatus), orDash(p.GatewayStatus), took(p.TookMS),
			p.Disposition+", "+p.Reason, message)
	}
	if len(polls) == deadletter.MaxPolls {
		row(w, fmt.Sprintf("the newest %d; the others are in pollux.poll_attempts", deadletter.MaxPolls))
	}
}

func code(status int) string {
	if status == 0 {
		return "-"
	}
	return fmt.Sprint(status)
}

func took(ms int64) string { return (time.Duration(ms) * time.Millisecond).String() }

func printRefused(w io.Writer, refused []deadletter.Refusal, what string) {
	for _, r := range refused {
		row(w, fmt.Sprintf("%d %s: %s", r.ID, what, r.Why))
	}
}

// letterHead names the columns of an exported letter.
var letterHead = []any{"id", "state", "payment_id", "gateway", "account", "reference", "class", "amount", "currency", "amount_minor", "reason", "fingerprint", "owner", "link", "last_class",
	"http_status", "gateway_status", "message", "attempts", "failures", "deferrals", "replays", "first_died_at", "last_died_at", "closed_at", "closed_by"}

func letterCells(l deadletter.Letter) []any {
	return []any{l.ID, l.State, number(l.PaymentID), l.Gateway, l.Account, l.Reference, l.Class, decimal(l.AmountMinor, l.Currency), l.Currency, number(l.AmountMinor), l.Reason, l.Fingerprint,
		l.Owner, l.Link, l.LastClass, l.HTTPStatus, l.GatewayStatus, l.Message, l.Attempts, l.Failures, l.Deferrals, l.Replays, stamp(&l.FirstDied), stamp(&l.LastDied), stamp(l.ClosedAt), l.ClosedBy}
}

// itemHead names the columns of an exported outcome.
var itemHead = []any{"place", "letter", "payment", "gateway", "reference", "amount", "currency", "amount_minor", "state", "why", "came_back", "payment_status", "released_at", "ended_at"}

func itemCells(i deadletter.Item) []any {
	return []any{i.Ord, i.Letter, number(i.Payment), i.Gateway, i.Reference, decimal(i.AmountMinor, i.Currency), i.Currency, number(i.AmountMinor), i.State, i.Why, fmt.Sprint(i.CameBack), i.Status,
		stamp(i.ReleasedAt), stamp(i.EndedAt)}
}

func itemOf(i deadletter.Item) deadletter.Item {
	i.ReleasedAt, i.EndedAt = utc(i.ReleasedAt), utc(i.EndedAt)
	return i
}

// number is a cell that may be empty.
func number(n *int64) any {
	if n == nil {
		return ""
	}
	return *n
}

// decimal is an amount without its currency.
func decimal(minor *int64, code string) string {
	if minor == nil {
		return ""
	}
	return strings.TrimSuffix(currency.Format(*minor, code), " "+code)
}

func stamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
