package app

import (
	"context"
	"strings"
	"testing"
	"time"

	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/webhook"
)

// listed is a gateway that lists its events, and its gate.
type listed struct {
	answer gateway.Answer
	open   bool
	done   []gateway.Class
}

func (l *listed) Events(context.Context, string, time.Time, string) (webhook.Events, gateway.Answer) {
	return webhook.Events{Next: "more"}, l.answer
}

func (l *listed) Open(string) bool { return l.open }

func (l *listed) Enter(context.Context, string) (consumer.Pass, consumer.Refusal) {
	if l.open {
		return nil, consumer.Refusal{Open: true}
	}
	return l, consumer.Refusal{}
}

func (l *listed) Done(c gateway.Class, _ time.Duration) { l.done = append(l.done, c) }

func TestEventsAreListedThroughTheGate(t *testing.T) {
	for _, c := range []struct {
		class, told gateway.Class
		wrong       string
	}{
		{gateway.Pending, gateway.Pending, ""},
		{gateway.Transport, gateway.Transport, "listing events: transport: no"},
		{gateway.Unauthorized, gateway.Local, "listing events: unauthorized: no"}, // the key may be good for polls
	} {
		l := &listed{answer: gateway.Answer{Class: c.class, Message: "no"}}
		page, err := events{l, l}.Events(t.Context(), "", time.Now(), "")
		if (err == nil) != (c.wrong == "") || err != nil && err.Error() != c.wrong || (page.Next == "more") != (err == nil) || len(l.done) != 1 || l.done[0] != c.told {
			t.Errorf("%s: %v %v %v", c.class, page, err, l.done)
		}
	}
	l := &listed{open: true}
	if _, err := (events{l, l}).Events(t.Context(), "", time.Now(), ""); err == nil || !strings.Contains(err.Error(), "breaker open") || l.done != nil {
		t.Errorf("while the breaker is open: %v %v", err, l.done)
	}
}
