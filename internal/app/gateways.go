package app

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"pollux/internal/config"
	"pollux/internal/consumer"
	"pollux/internal/gateway"
	"pollux/internal/gateway/adyen"
	"pollux/internal/gateway/httpjson"
	"pollux/internal/gateway/iyzico"
	"pollux/internal/gateway/mercadopago"
	"pollux/internal/gateway/paypal"
	"pollux/internal/gateway/razorpay"
	"pollux/internal/gateway/stripe"
	"pollux/internal/webhook"
)

// adapters builds what speaks with each configured gateway, or returns all that is wrong with them.
func adapters(c config.Config) (map[string]consumer.Gateway, error) {
	all := make(map[string]consumer.Gateway, len(c.Gateways))
	var errs []error
	for _, name := range gatewayNames(c) {
		adapter, err := Adapter(c.Gateways[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("gateways.%s: %w", name, err))
			continue
		}
		all[name] = adapter
	}
	return all, errors.Join(errs...)
}

// renewed is an adapter that is made anew when its section or a secret of it changes. A poll goes on with the one that it began with.
type renewed struct {
	now atomic.Pointer[consumer.Gateway]
}

func (r *renewed) set(g consumer.Gateway) { r.now.Store(&g) }

// Poll implements consumer.Gateway.
func (r *renewed) Poll(ctx context.Context, q gateway.Query) gateway.Answer {
	return (*r.now.Load()).Poll(ctx, q)
}

// Close lets go of the connections that are kept open.
func (r *renewed) Close() { closeOne(*r.now.Load()) }

// renewedLister is a renewed adapter of a gateway that lists what it told.
type renewedLister struct{ *renewed }

// Events implements lister.
func (r renewedLister) Events(ctx context.Context, account string, since time.Time, after string) (webhook.Events, gateway.Answer) {
	return (*r.now.Load()).(lister).Events(ctx, account, since, after) // the kind of adapter stays
}

// renewable builds what speaks with each configured gateway, and has it follow the configuration.
func (p *Process) renewable(cfg config.Config) (map[string]consumer.Gateway, error) {
	all, err := adapters(cfg)
	if err != nil {
		return nil, err
	}
	shells := make(map[string]*renewed, len(all))
	for name, g := range all {
		r := new(renewed)
		r.set(g)
		shells[name], all[name] = r, r
		if _, lists := g.(lister); lists {
			all[name] = renewedLister{r}
		}
	}
	p.shownEnds(&cfg)
	before := &cfg
	err = p.follow(func(next *config.Config) (func(), error) {
		made, errs := map[string]consumer.Gateway{}, []error(nil)
		for name := range shells {
			if before.SameAdapter(next, name) {
				continue
			}
			g, err := Adapter(next.Gateways[name])
			if err != nil {
				errs = append(errs, fmt.Errorf("gateways.%s: %w", name, err))
				continue
			}
			made[name] = g
		}
		return func() {
			before = next
			p.shownEnds(next)
			for name, g := range made {
				old := *shells[name].now.Load()
				shells[name].set(g)
				closeOne(old)
			}
		}, errors.Join(errs...)
	})
	return all, err
}

// shownEnds tells when the first ends of the certificates that gateways want of us.
func (p *Process) shownEnds(c *config.Config) {
	if first := firstShownEnds(c); !first.IsZero() {
		p.Metrics.CertificateExpiry("gateways", first)
	}
}

// firstShownEnds is when the first ends of the certificates that gateways want of us; zero where none wants one.
func firstShownEnds(c *config.Config) (first time.Time) {
	for _, g := range c.Gateways {
		client := g.Section().Client()
		if client == nil {
			continue
		}
		if ends := client.CertificateEnds(); !ends.IsZero() && (first.IsZero() || ends.Before(first)) {
			first = ends
		}
	}
	return first
}

// Adapter builds what speaks with a gateway of a configuration that was checked.
func Adapter(g config.Gateway) (consumer.Gateway, error) {
	switch cfg := g.Section().(type) {
	case *httpjson.Config:
		return httpjson.New(*cfg)
	case *stripe.Config:
		return stripe.New(*cfg)
	case *paypal.Config:
		return paypal.New(*cfg)
	case *razorpay.Config:
		return razorpay.New(*cfg)
	case *mercadopago.Config:
		return mercadopago.New(*cfg)
	case *iyzico.Config:
		return iyzico.New(*cfg)
	case adyen.Config:
		return adyen.Adapter{}, nil
	}
	return nil, fmt.Errorf("%.64q is not an adapter", g.Adapter)
}

// closeAll lets go of the connections that are kept open to gateways.
func closeAll(gateways map[string]consumer.Gateway) {
	for _, g := range gateways {
		closeOne(g)
	}
}

func closeOne(g consumer.Gateway) {
	if c, ok := g.(interface{ Close() }); ok {
		c.Close()
	}
}

// Gateways are the adapters of all configured gateways, for a program that asks them a few questions; stop lets go of their connections.
func Gateways(c config.Config) (all map[string]consumer.Gateway, stop func(), err error) {
	if all, err = adapters(c); err != nil {
		return nil, nil, err
	}
	return all, func() { closeAll(all) }, nil
}
