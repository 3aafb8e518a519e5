// Package adyen is what Pollux knows of Adyen, which cannot be asked about a payment: it reports by webhook alone. docs/gateways/adyen.md describes
// how to connect.
package adyen

import (
	"context"

	"pollux/internal/gateway"
	"pollux/internal/gateway/httpclient"
)

// Config attaches Adyen. There is nothing to say: nothing is asked.
type Config struct{}

// Complete does nothing.
func (Config) Complete(string) {}

// Client is nil: nothing is asked.
func (Config) Client() *httpclient.Config { return nil }

// Validate returns nil.
func (Config) Validate() error { return nil }

// Capabilities are what can be done with Adyen. It has no way to ask for the state of a payment by its pspReference, and says to rely on webhooks.
func (Config) Capabilities() gateway.Capabilities {
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
