package cli

import (
	"errors"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/audit"
	"pollux/internal/card"
	"pollux/internal/config"
)

// order is what every command that changes something is told beside what it is to do: who acts, and why. It goes into the audit log.
type order struct {
	actor  string
	reason string
	given  func(flag string) bool // on the command line
}

// flags adds --actor and --reason.
func (o *order) flags(cmd *cobra.Command) {
	o.given = func(flag string) bool { return cmd.Flags().Changed(flag) }
	cmd.Flags().StringVar(&o.actor, "actor", "", "who acts (default $POLLUX_ACTOR, or the user of this machine); the audit log has the login of the database beside it")
	cmd.Flags().StringVar(&o.reason, "reason", "", "why, for the next operator and the audit log")
}

// complete refuses an order that does not say why although it must, masks card numbers in what it says, and fills in who acts.
func (o *order) complete(reasonNeeded bool) error {
	switch {
	case reasonNeeded && strings.TrimSpace(audit.Text(o.reason, audit.MaxReason)) == "":
		return app.Usage("--reason: say why; the next operator will want to know")
	case len(o.reason) > audit.MaxReason:
		return app.Usage("--reason: %d bytes, at most %d; put the rest where the reason points to", len(o.reason), audit.MaxReason)
	case o.given("actor") && strings.TrimSpace(audit.Text(o.actor, 255)) == "":
		return app.Usage("--actor is empty; say who acts, or leave it out")
	case len(o.actor) > 255:
		return app.Usage("--actor: %d bytes, at most 255", len(o.actor))
	}
	o.reason = card.Mask(o.reason) // it is kept for good, in more than one place
	if o.actor == "" {
		o.actor = config.Actor()
	}
	if o.actor == "" {
		o.actor = whoami()
	}
	return nil
}

// by is who acts, as the audit log has it. The order must be complete.
func (o *order) by() audit.Actor {
	return audit.Actor{Name: o.actor, Origin: "pollux " + app.Version() + " on " + hostname()}
}

// act is an act by this order.
func (o *order) act(action string, outcome audit.Outcome, changes ...audit.Change) audit.Act {
	return audit.Act{Actor: o.by(), Action: action, Outcome: outcome, Reason: o.reason, Changes: changes}
}

// whoami is the user of this machine.
func whoami() string {
	if u, err := user.Current(); err == nil {
		return u.Username + "@" + hostname()
	}
	return "unknown@" + hostname()
}

func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return host
}

// moment is the value of a flag that names an instant: a date, a date with a time and its zone, or, unless it is to come, how long ago it was.
type moment struct {
	at     time.Time
	toCome bool
}

func (m *moment) String() string {
	if m.at.IsZero() {
		return ""
	}
	return m.at.UTC().Format(time.RFC3339)
}

func (m *moment) Type() string { return "time" }

func (m *moment) Set(s string) error {
	if d, err := config.ParseDuration(s); err == nil && !m.toCome {
		m.at = time.Now().Add(-d)
		return nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, s); err == nil {
			m.at = at
			return nil
		}
	}
	if m.toCome {
		return errors.New("write 2006-01-02 or 2006-01-02T15:04:05Z")
	}
	return errors.New("write 2006-01-02, 2006-01-02T15:04:05Z, or how long ago it was, such as 2h")
}
