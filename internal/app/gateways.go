package app

import (
	"errors"
	"fmt"

	"pollux/internal/config"
	"pollux/internal/consumer"
	"pollux/internal/gateway/httpjson"
)

// adapters builds what speaks with each configured gateway, or returns all that is wrong with them.
func adapters(c config.Config) (map[string]consumer.Gateway, error) {
	all := make(map[string]consumer.Gateway, len(c.Gateways))
	var errs []error
	for _, name := range gatewayNames(c) {
		cfg := *c.Gateways[name].HTTPJSON
		cfg.Name = name
		adapter, err := httpjson.New(cfg)
		if err != nil {
			errs = append(errs, fmt.Errorf("gateways.%s: %w", name, err))
			continue
		}
		all[name] = adapter
	}
	return all, errors.Join(errs...)
}

// closeAll lets go of the connections that are kept open to gateways.
func closeAll(gateways map[string]consumer.Gateway) {
	for _, g := range gateways {
		if c, ok := g.(interface{ Close() }); ok {
			c.Close()
		}
	}
}
