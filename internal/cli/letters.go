package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/deadletter"
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
	d.Letter, d.TrackedAt = letterOf(d.Letter), d.TrackedAt.UTC()
	polls := make([]deadletter.Attempt, len(d.Polls))
	for i, p := range d.Polls {
		p.At = p.At.UTC()
		polls[i] = p
	}
	d.Polls = polls
	return d
}

func printPage(w io.Writer, letters []deadletter.Letter, f deadletter.Filter, page deadletter.Page) {
	if len(letters) == 0 {
		row(w, nothing(f, page))
		return
	}
	printLetters(w, letters, f.State == "any")
	if len(letters) == page.Limit {
		row(w, fmt.Sprintf("there may be more: add --before %d", letters[len(letters)-1].ID))
	}
}

// nothing says why a page is empty.
func nothing(f deadletter.Filter, page deadletter.Page) string {
	state := f.State
	switch {
	case page.Before > 0:
		return "no more of them"
	case state == "any":
		return "no dead letters"
	case state == "":
		state = deadletter.Open
	}
	return "no dead letters that are " + state
}

func printLetters(w io.Writer, letters []deadletter.Letter, states bool) {
	head := []any{"ID", "DIED", "REASON", "GATEWAY", "REFERENCE", "AMOUNT", "REPLAYS", "LAST ANSWER"}
	if states {
		head = append([]any{"ID", "STATE"}, head[1:]...)
	}
	row(w, head...)
	for _, l := range letters {
		cells := []any{l.ID, ago(l.LastDied), l.Reason, l.Gateway, orDash(cut(l.Reference, 40)), amount(l), l.Replays, orDash(cut(lastAnswer(l), 70))}
		if states {
			cells = append([]any{l.ID, l.State}, cells[1:]...)
		}
		row(w, cells...)
	}
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

// maxShown is how many bytes of a message are shown. -o json has all of them.
const maxShown = 1024

func printDetails(w io.Writer, d deadletter.Details) {
	row(w, "dead letter", d.ID)
	row(w, "state", state(d.Letter))
	row(w, "reason", reason(d.Reason))
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
	if d.PaymentID != nil {
		row(w, "counters", fmt.Sprintf("%d attempts, %d failures in a row, %d deferrals, %d replays", d.Attempts, d.Failures, d.Deferrals, d.Replays))
		row(w, "policy", orDash(d.Policy))
		row(w, "worker", orDash(d.Worker))
	}
	if d.TraceID != "" {
		row(w, "trace", d.TraceID)
	}
	row(w, "last answer", orDash(lastAnswer(d.Letter)))
	printPolls(w, d.Polls)
	if d.State == deadletter.Open && d.PaymentID != nil {
		row(w)
		row(w, fmt.Sprintf("to poll it again: pollux dlq replay %d", d.ID))
	}
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

// maxPolls is how many polls of a payment are shown at most: what postgres.Letters reads.
const maxPolls = 100

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
	if len(polls) == maxPolls {
		row(w, fmt.Sprintf("the newest %d; the others are in pollux.poll_attempts", maxPolls))
	}
}

func code(status int) string {
	if status == 0 {
		return "-"
	}
	return fmt.Sprint(status)
}

func took(ms int64) string { return (time.Duration(ms) * time.Millisecond).String() }

// outcome is what a replay did, as -o json shows it.
type outcome struct {
	Replayed []int64              `json:"replayed"`
	Refused  []deadletter.Refusal `json:"refused"`
	Takes    float64              `json:"takes_seconds"` // until the last of them is due
}

func printOutcome(cmd *cobra.Command, o deadletter.Outcome) error {
	v := outcome{orEmpty(o.Replayed), orEmpty(o.Refused), o.Takes.Seconds()}
	err := show(cmd, v, func(w io.Writer) {
		printRefused(w, o.Refused, "was not replayed")
		if len(o.Replayed) > 0 || len(o.Refused) == 0 {
			row(w, counted(len(o.Replayed), "payment is", "payments are")+" polled again, "+takes(o.Takes))
		}
	})
	if err == nil && len(o.Refused) > 0 {
		return app.ErrFindings
	}
	return err
}

func printRefused(w io.Writer, refused []deadletter.Refusal, what string) {
	for _, r := range refused {
		row(w, fmt.Sprintf("%d %s: %s", r.ID, what, r.Why))
	}
}

// preview is what a replay would do, as -o json shows it.
type preview struct {
	WouldReplay []deadletter.Letter  `json:"would_replay"`
	Refused     []deadletter.Refusal `json:"refused"`
	Takes       float64              `json:"takes_seconds"`
}

func printPreview(cmd *cobra.Command, p deadletter.Preview) error {
	v := preview{lettersOf(p.Letters), orEmpty(p.Refused), p.Takes.Seconds()}
	err := show(cmd, v, func(w io.Writer) {
		if len(p.Letters) > 0 {
			printLetters(w, p.Letters, false)
		}
		printRefused(w, p.Refused, "would not be replayed")
		row(w, counted(len(p.Letters), "payment", "payments")+" would be polled again, "+takes(p.Takes)+"; nothing was changed")
	})
	if err == nil && len(p.Refused) > 0 {
		return app.ErrFindings
	}
	return err
}
