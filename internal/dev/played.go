package dev

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"pollux/internal/gatewaysim/notify"
	"pollux/internal/postgres"
	"pollux/internal/webhook"
)

// Played is how one of several gateways did.
type Played struct {
	Tracked           int            `json:"tracked"`
	ResolvedByWebhook int            `json:"resolved_by_webhook"`
	ResolvedByPoll    int            `json:"resolved_by_poll"`
	InReview          int            `json:"in_review"`
	Polls             int            `json:"polls"`
	ForgedAccepted    int            `json:"forged_accepted"` // forgeries that the receiver took
	Notifications     notify.Counts  `json:"notifications"`   // as the gateway counts them
	Decisions         map[string]int `json:"decisions"`       // what became of those that were kept
}

// String is the line of a table.
func (p *Played) String() string {
	n := p.Notifications
	return fmt.Sprintf("%d tracked, %d by webhook, %d by poll, %d polls; %d lost, %d doubled, %d late, %d reordered, %d forged, %d of them accepted",
		p.Tracked, p.ResolvedByWebhook, p.ResolvedByPoll, p.Polls, n.Lost, n.Doubled, n.Late, n.Reordered, n.Forged, p.ForgedAccepted)
}

// played counts how each gateway did, where several were chosen.
func (w *world) played(ctx context.Context, s *Summary, standings []postgres.Standing) error {
	if len(w.options.Gateways) == 0 {
		return nil
	}
	s.Gateways = map[string]*Played{}
	for _, st := range w.stations {
		n := st.sender.Counts()
		s.Gateways[st.name] = &Played{Notifications: n, ForgedAccepted: n.ForgedAccepted, Decisions: map[string]int{}}
	}
	for _, p := range standings {
		if g := s.Gateways[p.Gateway]; g != nil {
			g.count(p)
		}
	}
	return w.decisions(ctx, s.Gateways)
}

func (g *Played) count(p postgres.Standing) {
	g.Tracked++
	g.Polls += p.Polls
	switch {
	case !p.Status.Final():
		if p.Person {
			g.InReview++
		}
	case p.Source == "webhook":
		g.ResolvedByWebhook++
	case p.Source == "poll":
		g.ResolvedByPoll++
	}
}

// decisions reads what became of the notifications of this run.
func (w *world) decisions(ctx context.Context, all map[string]*Played) error {
	rows, err := w.pool.Query(ctx, `
		select gateway, decision, count(*)
		from pollux.webhook_events
		where received_at >= $1
		group by gateway, decision`, w.began)
	if err != nil {
		return fmt.Errorf("reading what became of notifications: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var gateway, decision string
		var n int
		if err := rows.Scan(&gateway, &decision, &n); err != nil {
			return fmt.Errorf("reading what became of notifications: %w", err)
		}
		if g := all[gateway]; g != nil {
			g.Decisions[decision] = n
		}
	}
	return rows.Err()
}

// misheard are what is wrong with how notifications were taken: forgeries that were believed, genuine ones that were not, and some that a person must look at although
// every gateway tells the truth in the end.
func (s Summary) misheard() (all []string) {
	for _, name := range slices.Sorted(maps.Keys(s.Gateways)) {
		g := s.Gateways[name]
		if n := g.ForgedAccepted; n > 0 {
			all = append(all, fmt.Sprintf("%d forged notifications of %s were accepted", n, name))
		}
		if n := g.Notifications; n.Refused+n.GivenUp > 0 {
			all = append(all, fmt.Sprintf("%d genuine notifications of %s were refused, %d were never taken", n.Refused, name, n.GivenUp))
		}
		for decision, n := range g.Decisions {
			if webhook.Decision(decision).ForPerson() {
				all = append(all, fmt.Sprintf("%d notifications of %s are with a person: %s", n, name, decision))
			}
		}
	}
	return all
}
