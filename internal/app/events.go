package app

import (
	"context"
	"fmt"
	"time"

	"pollux/internal/config"
	"pollux/internal/consumer"
	"pollux/internal/fleet"
	"pollux/internal/gateway"
	"pollux/internal/gateway/paypal"
	"pollux/internal/gateway/stripe"
	"pollux/internal/limit"
	"pollux/internal/webhook"
)

// lister is an adapter of a gateway that lists what it told. An answer that is not pending comes without a page.
type lister interface {
	Events(ctx context.Context, account string, since time.Time, after string) (webhook.Events, gateway.Answer)
}

// events asks an adapter through the gate that polls go through.
type events struct {
	lister
	entrance consumer.Gate
}

// Events implements webhook.Source. That our key may not list events says nothing about polls, and is not held against it.
func (e events) Events(ctx context.Context, account string, since time.Time, after string) (webhook.Events, error) {
	pass, no := e.entrance.Enter(ctx, account)
	if pass == nil {
		return webhook.Events{}, fmt.Errorf("the gateway may not be asked now; breaker open: %t", no.Open)
	}
	page, ans := e.lister.Events(ctx, account, since, after)
	class := ans.Class
	if class == gateway.Unauthorized {
		class = gateway.Local
	}
	pass.Done(class, ans.RetryAfter)
	if ans.Class != gateway.Pending {
		return webhook.Events{}, fmt.Errorf("listing events: %s: %s", ans.Class, ans.Message)
	}
	return page, nil
}

var (
	_ lister         = (*stripe.Adapter)(nil)
	_ lister         = (*paypal.Adapter)(nil)
	_ webhook.Source = events{}
)

// fetchConfig says which gateways of the configuration are asked for what they told, should they be silent.
func (p *Process) fetchConfig(c config.Config, gateways map[string]consumer.Gateway, gates map[string]*fleet.Gate) webhook.FetchConfig {
	all := webhook.FetchConfig{Every: listenEvery}
	for _, name := range hookNames(c) {
		h := c.Webhooks.Gateways[name]
		l, ok := gateways[name].(lister)
		if !ok || !h.Silence.Fetch {
			continue
		}
		source := events{l, entrance{gates[name], limit.Retry, name, p.Metrics}}
		for _, account := range h.AccountNames() {
			all.Targets = append(all.Targets, webhook.Target{Gateway: name, Account: account, Source: source, Mode: h.Mode,
				Silence: webhook.Silence{After: h.Silence.After, Pending: h.Silence.Pending}})
		}
	}
	return all
}
