package config

import (
	"pollux/internal/gateway"
	"pollux/internal/redelivery"
)

// resolved is a policy that is complete: its name, and the way to where it was written.
type resolved struct {
	policy redelivery.Policy
	at     path
}

// Policy returns how payments of a class are retried at a gateway. A class that is not configured is treated as standard, a gateway that is
// not configured has no policies of its own. It is safe for concurrent use.
func (c *Config) Policy(gateway, class string) redelivery.Policy {
	at, ok := c.policies[gateway]
	if !ok {
		at = c.policies[""]
	}
	p, ok := at[class]
	if !ok {
		p = at[Standard]
	}
	return p.policy
}

// PolicyOf returns Policy of one gateway, for its consumer.
func (c *Config) PolicyOf(gateway string) func(class string) redelivery.Policy {
	return func(class string) redelivery.Policy { return c.Policy(gateway, class) }
}

// resolvePolicies works out which policy every class has at every gateway.
func (c *Config) resolvePolicies() {
	c.policies = map[string]map[string]resolved{"": c.resolve(nil, Gateway{})}
	for name, g := range c.Gateways {
		c.policies[name] = c.resolve(path{"gateways", name}, g)
	}
}

func (c *Config) resolve(at path, g Gateway) map[string]resolved {
	classes := map[string]string{Standard: Standard}
	for _, m := range []map[string]string{c.Classes, g.Classes} {
		for class, name := range m {
			classes[class] = name
		}
	}
	all, can := make(map[string]resolved, len(classes)), g.Capabilities()
	for class, name := range classes {
		p, where := c.Policies[name], path{"policies", name}
		if own, ok := g.Policies[name]; ok {
			p, where = own, at.child("policies", name)
		}
		r := resolved{policy: p.named(name), at: where}
		r.policy.MinInterval, r.policy.NeverPoll = can.MinInterval, can.Polling == gateway.Never
		all[class] = r
	}
	return all
}

// named is the policy as it decides.
func (p Policy) named(name string) redelivery.Policy {
	return redelivery.Policy{
		Name:              name,
		Pending:           p.Pending.curve(),
		Error:             p.Error.curve(),
		MaxAttempts:       p.MaxAttempts,
		MaxFailures:       p.MaxFailures,
		Window:            p.Window,
		OutageGrace:       p.OutageGrace,
		HoldLimit:         p.HoldLimit,
		NotFoundGrace:     p.NotFoundGrace,
		UnauthorizedDelay: p.UnauthorizedDelay,
		MaxRetryAfter:     p.MaxRetryAfter,
		PoisonDeliveries:  p.PoisonDeliveries,
	}
}

func (c Curve) curve() redelivery.Curve {
	return redelivery.Curve{Base: c.Base, Cap: c.Cap, List: c.List, Jitter: redelivery.Jitter(c.Jitter)}
}
