package doctor

import (
	"context"
	"fmt"
	"strings"
)

// AtStart makes the checks that matter at the start of a service, of the facts that it has. What it returns is not green.
func AtStart(ctx context.Context, s *Sources, set *Settings) []Finding {
	r := examine(ctx, s, set, func(c *Check) bool { return c.Start == Warns || c.Start == Refuses })
	var found []Finding
	for _, f := range r.Findings {
		if f.Level != Green {
			found = append(found, f)
		}
	}
	return found
}

// Refusal is the error of a service that does not start, for what its self-check found. Its Hint says what to do.
type Refusal struct{ Findings []Finding }

// Error names what was found.
func (r *Refusal) Error() string {
	words := make([]string, len(r.Findings))
	for i, f := range r.Findings {
		words[i] = f.ID + ": " + f.Found
	}
	return fmt.Sprintf("the self-check at the start refuses: %s", strings.Join(words, "; "))
}

// Hint is what to do.
func (r *Refusal) Hint() string {
	words := make([]string, len(r.Findings))
	for i, f := range r.Findings {
		words[i] = f.Mend
	}
	return strings.Join(words, "; ")
}

// Refused returns a *Refusal when a service must not start with what was found, and nil when it may.
func Refused(found []Finding) error {
	var no []Finding
	for _, f := range found {
		if c, ok := checkOf(f.ID); ok && c.Start == Refuses && f.Level == Red {
			no = append(no, f)
		}
	}
	if len(no) == 0 {
		return nil
	}
	return &Refusal{no}
}

func checkOf(id string) (Check, bool) {
	for _, c := range Checks {
		if c.ID == id {
			return c, true
		}
	}
	return Check{}, false
}
