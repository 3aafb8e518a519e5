package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"pollux/internal/deadletter"
)

// replayOf is a replay as -o json shows it.
func replayOf(r deadletter.Replay) deadletter.Replay {
	r.CreatedAt, r.ApprovedAt, r.EndedAt, r.DrivenAt = r.CreatedAt.UTC(), utc(r.ApprovedAt), utc(r.EndedAt), utc(r.DrivenAt)
	r.Gateways = orEmpty(r.Gateways)
	return r
}

func replaysOf(all []deadletter.Replay) []deadletter.Replay {
	list := make([]deadletter.Replay, len(all))
	for i, r := range all {
		list[i] = replayOf(r)
	}
	return list
}

func printReplays(w io.Writer, all []deadletter.Replay) {
	if len(all) == 0 {
		row(w, "no replays")
		return
	}
	row(w, "REPLAY", "STATE", "LETTERS", "RELEASED", "RESOLVED", "FAILED AGAIN", "OF THESE THE SAME", "BY", "MADE", "SELECTION")
	for _, r := range all {
		row(w, r.ID, r.State, r.Letters, r.Counts.Released(), r.Counts.Resolved, r.Counts.FailedAgain, r.Counts.CameBack, r.CreatedBy, ago(r.CreatedAt), cut(r.Selection, 60))
	}
}

// idle is after how long without a step nobody seems to drive a replay.
const idle = 30 * time.Second

func printReplay(w io.Writer, r deadletter.Replay, left []deadletter.Item) {
	c := r.Counts
	row(w, "replay", r.ID)
	row(w, "state", replayState(r))
	row(w, "selection", cut(r.Selection, 200))
	row(w, "letters", fmt.Sprintf("%d, %s", r.Letters, moneyOf(r.Money)))
	row(w, "checksum", r.Checksum)
	row(w, "rate", fmt.Sprintf("%g a second, by %s", r.Rate, r.Priority))
	if (r.State == deadletter.Cancelled || r.State == deadletter.Undone) && r.Why != "" {
		row(w, "before that", r.Why)
	}
	row(w, "made", fmt.Sprintf("%s, by %s: %s", when(r.CreatedAt), r.CreatedBy, r.Reason))
	if r.ApprovedAt != nil {
		row(w, "approved", fmt.Sprintf("%s, by %s", when(*r.ApprovedAt), approver(r)))
	}
	if r.DrivenAt != nil {
		row(w, "released last", fmt.Sprintf("%s, by %s", when(*r.DrivenAt), r.Driver))
	}
	row(w)
	for _, part := range []struct {
		name string
		n    int64
	}{
		{"not released yet", c.Chosen}, {"released, nothing known yet", c.Unanswered()}, {"answered, still pending", c.Answered}, {"resolved", c.Resolved},
		{"failed again", c.FailedAgain}, {"with the same fingerprint", c.CameBack}, {"was final already, not polled", c.Final}, {"refused", c.Refused}, {"cancelled", c.Cancelled}, {"undone", c.Undone},
	} {
		if part.n > 0 {
			row(w, part.name, part.n)
		}
	}
	for _, i := range left {
		row(w, fmt.Sprintf("%d was not polled: %s", i.Letter, i.Why))
	}
	if next := replayNext(r); next != "" {
		row(w)
		row(w, next)
	}
}

// replayState is the state of a replay in words.
func replayState(r deadletter.Replay) string {
	switch {
	case r.State == deadletter.Cancelled || r.State == deadletter.Undone:
		return fmt.Sprintf("%s by %s: %s", r.State, orDash(r.EndedBy), r.EndedWhy)
	case r.Why != "":
		return r.State + ": " + r.Why
	case r.State == deadletter.Done:
		return "done: " + fates(r)
	case r.State == deadletter.Running && r.Counts.Chosen > 0:
		return fmt.Sprintf("running, %s; the rest takes %s", stageOf(r), deadletter.Takes(int(r.Counts.Chosen), r.Rate).Round(time.Second))
	}
	return r.State
}

// fates are what became of the letters of a replay that is done, in words: that all are released does not say that one was resolved.
func fates(r deadletter.Replay) string {
	c := r.Counts
	if r.Letters == 0 {
		return fmt.Sprintf("nothing was polled, %s", counted(int(c.Refused+c.Final), "letter was left alone", "letters were left alone"))
	}
	var parts []string
	for _, part := range []struct {
		n    int64
		what string
	}{{c.Resolved, "resolved"}, {c.FailedAgain, "failed again"}, {c.Answered, "still pending"}, {c.Unanswered(), "not answered yet"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "none was polled")
	}
	return fmt.Sprintf("of %d %s", r.Letters, strings.Join(parts, ", "))
}

// stageOf is the stage of a replay in words.
func stageOf(r deadletter.Replay) string {
	if r.Stage < len(deadletter.Canary) {
		return fmt.Sprintf("trying %d first", deadletter.Canary[r.Stage])
	}
	return "releasing the rest"
}

// replayNext is what can be done with a replay.
func replayNext(r deadletter.Replay) string {
	switch {
	case r.State == deadletter.AwaitingApproval:
		return fmt.Sprintf("a second person lets it begin: pollux approve %d --reason WHY", r.ID)
	case r.State == deadletter.Stopped:
		return fmt.Sprintf("when the cause is mended: pollux dlq resume %d --reason WHY; to give up: pollux dlq cancel %d --reason WHY", r.ID, r.ID)
	case r.State == deadletter.Running && (r.DrivenAt == nil || time.Since(*r.DrivenAt) > idle):
		return fmt.Sprintf("nobody seems to release it: pollux dlq resume %d", r.ID)
	case r.Counts.Refused+r.Counts.FailedAgain+r.Counts.Final > 0:
		return fmt.Sprintf("each of them: pollux dlq outcomes %d", r.ID)
	}
	return ""
}

// progressLine is how far a replay has come, in a line.
func progressLine(p deadletter.Progress, speed float64) string {
	c := p.Counts
	parts := []string{fmt.Sprintf("replay %d: %d of %d released", p.ID, c.Released(), p.Letters)}
	if speed > 0 && c.Chosen > 0 {
		parts[0] += fmt.Sprintf(" (%.3g/s)", speed)
	}
	for _, part := range []struct {
		n    int64
		what string
	}{{c.Resolved, "resolved"}, {c.FailedAgain, "failed again"}, {c.Answered, "still pending"}, {c.Unanswered(), "not answered yet"}, {c.Final + c.Refused, "not polled"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	switch {
	case p.State == deadletter.Running && p.Stage < len(deadletter.Canary) && c.Chosen > 0:
		parts = append(parts, stageOf(p.Replay))
	case p.State == deadletter.Running && c.Chosen > 0:
		parts = append(parts, "about "+deadletter.Takes(int(c.Chosen), p.Rate).Round(time.Second).String()+" left")
	}
	return strings.Join(parts, ", ")
}

// approver is who approved a replay, by name and by login: two names with one login may be one person.
func approver(r deadletter.Replay) string {
	switch r.ApprovedLogin {
	case "":
		return r.ApprovedBy
	case r.Login:
		return fmt.Sprintf("%s, with the login that asked for it, %s", r.ApprovedBy, r.Login)
	}
	return fmt.Sprintf("%s, login %s", r.ApprovedBy, r.ApprovedLogin)
}
