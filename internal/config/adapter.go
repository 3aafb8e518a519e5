package config

import (
	"slices"
	"time"

	"pollux/internal/gateway"
	"pollux/internal/gateway/adyen"
	"pollux/internal/gateway/httpclient"
)

// Adapter is the section of an adapter.
type Adapter interface {
	// Complete names the gateway and writes every default out.
	Complete(name string)
	// Client is how the gateway is reached; nil for one that is never asked.
	Client() *httpclient.Config
	// Validate returns every problem at once, each beginning with its key.
	Validate() error
	// Capabilities are what can be done with the gateway.
	Capabilities() gateway.Capabilities
}

// Adapters are the names of all adapters.
var Adapters = []string{"httpjson", "stripe", "paypal", "razorpay", "mercadopago", "iyzico", "adyen"}

// Section is the section of the gateway's adapter, an empty one where it was not written; nil for an adapter that does not exist.
func (g Gateway) Section() Adapter { return g.section() }

func (g *Gateway) section() Adapter {
	switch g.Adapter {
	case "httpjson":
		return made(&g.HTTPJSON)
	case "stripe":
		return made(&g.Stripe)
	case "paypal":
		return made(&g.PayPal)
	case "razorpay":
		return made(&g.Razorpay)
	case "mercadopago":
		return made(&g.MercadoPago)
	case "iyzico":
		return made(&g.Iyzico)
	case "adyen":
		return adyen.Config{}
	}
	return nil
}

// made is a section, made where there was none.
func made[C any, P interface {
	*C
	Adapter
}](at *P) Adapter {
	if *at == nil {
		*at = new(C)
	}
	return *at
}

// Timeout is for all of one call to the gateway; 0 for a gateway that is never asked.
func (g Gateway) Timeout() time.Duration {
	if s := g.section(); s != nil && s.Client() != nil {
		return s.Client().Timeout
	}
	return 0
}

// Capabilities are what can be done with the gateway: what its adapter knows, and what the configuration says.
func (g Gateway) Capabilities() gateway.Capabilities {
	var c gateway.Capabilities
	if s := g.section(); s != nil {
		c = s.Capabilities()
	}
	if g.MinInterval != nil {
		c.MinInterval = *g.MinInterval
	}
	switch {
	case g.WebhookOnly || c.Polling == gateway.Never:
		c.Polling, c.MinInterval = gateway.Never, 0
	case c.MinInterval > 0:
		c.Polling = gateway.Sparingly
	default:
		c.Polling = gateway.Freely
	}
	return c
}

// isAdapter reports whether there is an adapter of a name.
func isAdapter(name string) bool { return slices.Contains(Adapters, name) }
