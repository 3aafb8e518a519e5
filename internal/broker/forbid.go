package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// PermissionError is the error of what the server forbids the user that we connect as. It is an nats.ErrPermissionViolation.
type PermissionError struct {
	Subscribe bool // to read what is sent to the subject; otherwise to publish to it
	Subject   string
	As        string // who we say that we are, as the configuration says it; empty: nobody in particular
}

// Error names the subject and says where to look.
func (e *PermissionError) Error() string {
	if e.Subscribe {
		return fmt.Sprintf("the NATS user may not subscribe to %s: permissions violation; %s See: pollux perms print nats", e.Subject, e.ours())
	}
	return fmt.Sprintf("the NATS user may not publish to %s: permissions violation; see: pollux perms print nats", e.Subject)
}

// Hint says what to do about it, to whoever reads a log.
func (e *PermissionError) Hint() string {
	if e.Subscribe {
		return e.ours() + " A program that has the key of another, or the inboxes of another, hears no answer. docs/permissions.md"
	}
	return "does the server have what pollux perms print nats prints of this configuration, and is " + cmp.Or(e.As, "nats.nkey_file") + " the key of this program? docs/permissions.md"
}

// ours asks whether we are who we should be: a server lets each user read its own inboxes only, and does not say whose key ours is.
func (e *PermissionError) ours() string {
	return "is " + cmp.Or(e.As, "nats.nkey_file") + " the key of this program, and is nats.inbox_prefix that of its role?"
}

// Is reports whether target is nats.ErrPermissionViolation.
func (e *PermissionError) Is(target error) bool { return target == nats.ErrPermissionViolation }

// A server says what it forbids beside the request, not in answer to it, and as a sentence: the request itself is never answered.
var (
	forbiddenPublish   = regexp.MustCompile(`(?i)for publish to "([^"]*)"`)
	forbiddenSubscribe = regexp.MustCompile(`(?i)for subscription to "([^"]*)"`)
)

// violation reads what a server forbids us; nil when that is something else.
func (c *Conn) violation(err error) *PermissionError {
	no := violation(err)
	if no != nil {
		no.As = c.who()
	}
	return no
}

func violation(err error) *PermissionError {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return nil
	}
	if m := forbiddenPublish.FindStringSubmatch(err.Error()); m != nil {
		return &PermissionError{Subject: m[1]}
	}
	if m := forbiddenSubscribe.FindStringSubmatch(err.Error()); m != nil {
		return &PermissionError{Subscribe: true, Subject: m[1]}
	}
	return nil
}

// forbidMemory is for how long a subject that is forbidden is not logged again.
const forbidMemory = 30 * time.Second

// forbids brings what the server forbids to those who wait for an answer that will never come. All our subscriptions are inboxes, so that one that is forbidden leaves everybody
// without answers, until the connection is made again. Its zero value is ready. It is safe for concurrent use.
type forbids struct {
	mu      sync.Mutex
	waiting map[*waiter]struct{}
	deaf    *PermissionError
	logged  map[string]time.Time
}

// waiter waits for answers to what it publishes to some subjects.
type waiter struct {
	subjects []string
	fail     func(error)
}

// watch calls fail, perhaps more than once, with what is forbidden of the subjects until it is stopped. fail must not block.
func (f *forbids) watch(fail func(error), subjects ...string) (stop func()) {
	w := &waiter{subjects, fail}
	f.mu.Lock()
	deaf := f.deaf
	if f.waiting == nil {
		f.waiting = map[*waiter]struct{}{}
	}
	f.waiting[w] = struct{}{}
	f.mu.Unlock()
	if deaf != nil {
		fail(deaf)
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.waiting, w)
	}
}

// told tells those who wait.
func (f *forbids) told(e *PermissionError) {
	f.mu.Lock()
	if e.Subscribe {
		f.deaf = e
	}
	var hit []*waiter
	for w := range f.waiting {
		if e.Subscribe || slices.Contains(w.subjects, e.Subject) {
			hit = append(hit, w)
		}
	}
	f.mu.Unlock()
	for _, w := range hit {
		w.fail(e)
	}
}

// forget forgets that answers cannot be heard: the next server says so again.
func (f *forbids) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deaf = nil
}

// fresh reports whether something forbidden, or reported otherwise, is to be logged.
func (f *forbids) fresh(subject string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.logged[subject]) < forbidMemory {
		return false
	}
	if f.logged == nil || len(f.logged) > 1000 { // subjects of acknowledgements never come again
		f.logged = map[string]time.Time{}
	}
	f.logged[subject] = now
	return true
}

// asking is for one request, or a few, to subjects: its context ends at once when the server forbids one of them, and named, which must be called when they are over, makes that the
// error.
func (c *Conn) asking(ctx context.Context, subjects ...string) (asked context.Context, named func(error) error) {
	asked, cancel := context.WithCancelCause(ctx)
	stop := c.forbids.watch(func(err error) { cancel(err) }, subjects...)
	return asked, func(err error) error {
		stop()
		cause := context.Cause(asked)
		cancel(nil)
		var no *PermissionError
		if err != nil && errors.As(cause, &no) {
			return no
		}
		return err
	}
}

// asyncError is called by nats.go for what a server says beside everything else.
func (c *Conn) asyncError(_ *nats.Conn, sub *nats.Subscription, err error) {
	if no := c.violation(err); no != nil {
		c.forbid(no)
		return
	}
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	if !c.forbids.fresh(subject+" "+err.Error(), time.Now()) {
		return
	}
	c.log.Error("NATS reports an error", "subject", subject, "error", err)
}

func (c *Conn) forbid(no *PermissionError) {
	c.forbids.told(no)
	if no.Subscribe {
		c.acks.abandon(no)
	} else {
		c.acks.forbid(no.Subject, no)
	}
	if c.forbids.fresh(no.Subject, time.Now()) {
		c.log.Error("NATS forbids a subject", slog.String("subject", no.Subject), slog.Any("error", no))
	}
}
