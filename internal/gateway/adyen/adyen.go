// Package adyen is what Pollux knows of Adyen, which cannot be asked about a payment: it reports by webhook alone. docs/gateways/adyen.md describes
// how to connect.
package adyen

import (
	"context"
	"fmt"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
)

// Config attaches accounts of Adyen. What each key means to an operator is in docs/gateways/adyen.md.
type Config struct {
	Mode string `koanf:"mode"` // `live` or `test`: whether the money is real. A webhook from the other mode is refused. Default `live`.
}

// Complete writes every default out.
func (c *Config) Complete(string) {
	if c.Mode == "" {
		c.Mode = string(gateway.Live)
	}
}

// Client is nil: nothing is asked.
func (c *Config) Client() *httpclient.Config { return nil }

// Validate returns what is wrong, naming the key and what to write instead.
func (c Config) Validate() error {
	c.Complete("")
	if c.Mode != string(gateway.Live) && c.Mode != string(gateway.Test) {
		return fmt.Errorf("mode: %.20q is not known; live or test", c.Mode)
	}
	return nil
}

// Capabilities are what can be done with Adyen. It has no way to ask for the state of a payment by its pspReference, and says to rely on webhooks.
func (c Config) Capabilities() gateway.Capabilities {
	return gateway.Capabilities{Polling: gateway.Never}
}

// Adapter stands for Adyen where an adapter has to stand. The zero value is ready.
type Adapter struct{}

// Capabilities are what can be done with Adyen.
func (Adapter) Capabilities() gateway.Capabilities { return Config{}.Capabilities() }

// Poll asks nobody. No policy of a gateway that is never polled comes here; if one did, it would cost the payment nothing.
func (Adapter) Poll(context.Context, gateway.Query) gateway.Answer {
	return gateway.Answer{Class: gateway.Local, Message: "Adyen cannot be asked about a payment: it reports by webhook alone"}
}
