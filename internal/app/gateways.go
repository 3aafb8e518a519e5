package app

import (
	"errors"
	"fmt"

	"pollux/internal/config"
	"pollux/internal/consumer"
	"pollux/internal/gateway/adyen"
	"pollux/internal/gateway/httpjson"
	"pollux/internal/gateway/iyzico"
	"pollux/internal/gateway/mercadopago"
	"pollux/internal/gateway/paypal"
	"pollux/internal/gateway/razorpay"
	"pollux/internal/gateway/stripe"
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
		if c, ok := g.(interface{ Close() }); ok {
			c.Close()
		}
	}
}

// Gateways are the adapters of all configured gateways, for a program that asks them a few questions; stop lets go of their connections.
func Gateways(c config.Config) (all map[string]consumer.Gateway, stop func(), err error) {
	if all, err = adapters(c); err != nil {
		return nil, nil, err
	}
	return all, func() { closeAll(all) }, nil
}
