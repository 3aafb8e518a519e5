package config

import (
	"log/slog"
	"time"

	"pollux/internal/limit"
	"pollux/internal/message"
	"pollux/internal/redelivery"
)

// The names of the policies and classes that always exist.
const (
	Standard   = "standard"
	HighValue  = "high_value"
	Background = "background"
)

// Default returns the configuration of somebody who says nothing. It is not complete: a database, a broker and gateways have no default.
func Default() Config {
	return Config{
		Database:  Database{MaxConns: 8},
		NATS:      NATS{MaxOutstanding: 4096, Batches: "auto", BatchThreshold: 64},
		Log:       Log{Format: "text", Level: Level(slog.LevelInfo)},
		Telemetry: Telemetry{Listen: "127.0.0.1:9464", TraceRatio: 1, MaxGateways: 64, OTLPEvery: 15 * time.Second},
		Relay: Relay{
			Every:          10 * time.Millisecond,
			Batch:          1000,
			InFlight:       2,
			Lease:          5 * time.Minute,
			Backlog:        5000,
			PublishTimeout: 5 * time.Second,
			Retry:          time.Second,
			Watch:          5 * time.Second,
			Observe:        15 * time.Second,
			KeepEvents:     day,
			KeepAttempts:   30 * day,
		},
		Consumer: Consumer{
			Lanes:         message.Lanes,
			AckWait:       time.Minute,
			Lease:         5 * time.Minute,
			HoldBudget:    5000,
			MaxAckPending: 10_000,
			Drain:         25 * time.Second,
			Record:        Record{Batch: 500, Linger: 2 * time.Millisecond, Writers: 2, Patience: 20 * time.Second},
		},
		Webhooks:  defaultWebhooks(),
		Operators: Operators{MaxReplays: 5},
		Policies: map[string]Policy{
			Standard:   standardPolicy(),
			HighValue:  highValuePolicy(),
			Background: backgroundPolicy(),
		},
		Classes: map[string]string{Standard: Standard, HighValue: HighValue, Background: Background},
	}
}

// defaultGateway is what a gateway has that says nothing but its adapter.
func defaultGateway(adapter string) Gateway {
	g := Gateway{Adapter: "httpjson", Workers: 64, Limits: defaultLimits(), Breaker: defaultBreaker()}
	if rate, published := rates[adapter]; published {
		g.Limits.Rate = rate
	}
	return g
}

// rates are the calls a second that a vendor allows, less a fifth for the shop's own. Stripe allows 25 to one endpoint, and that of PaymentIntents by
// their ids is one (docs.stripe.com/rate-limits). The others publish none.
var rates = map[string]limit.Rate{"stripe": 20}

// standardPolicy asks soon and then ever more patiently, for a day. A shopper who is still there is answered within minutes; a payment that
// is unclear after a day costs a customer's trust and a call to support, which is what a person's minute costs. An outage of the gateway, however
// long within that day, costs no payment its place.
func standardPolicy() Policy {
	return Policy{
		Pending: Curve{
			List:   []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 3 * time.Hour},
			Jitter: percent(20),
		},
		Error:             Curve{Base: 500 * time.Millisecond, Cap: 10 * time.Minute, Jitter: full},
		Window:            day,
		OutageGrace:       day,
		HoldLimit:         30 * time.Second,
		NotFoundGrace:     2 * time.Minute,
		UnauthorizedDelay: time.Minute,
		MaxRetryAfter:     time.Hour,
		PoisonDeliveries:  20,
	}
}

// highValuePolicy asks nine times within five minutes and then calls a person: goods or money of that value wait for the answer, and each
// minute of it costs more than the calls. Failed calls are repeated within seconds.
func highValuePolicy() Policy {
	p := standardPolicy()
	p.Pending = Curve{
		List: []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second, 45 * time.Second,
			time.Minute, time.Minute},
		Jitter: percent(10),
	}
	p.Error = Curve{Base: 250 * time.Millisecond, Cap: 15 * time.Second, Jitter: full}
	p.MaxAttempts = 9
	p.Window = 5 * time.Minute
	p.OutageGrace = time.Hour
	p.NotFoundGrace = time.Minute
	p.UnauthorizedDelay = 10 * time.Second
	p.MaxRetryAfter = time.Minute
	return p
}

// backgroundPolicy asks three times in a day: nobody waits for the answer, and a call may cost more than it is worth.
func backgroundPolicy() Policy {
	p := standardPolicy()
	p.Pending = Curve{List: []time.Duration{time.Hour, 12 * time.Hour}, Jitter: percent(20)}
	p.Error = Curve{Base: 5 * time.Second, Cap: time.Hour, Jitter: full}
	p.MaxAttempts = 3
	p.Window = 3 * day
	p.OutageGrace = 3 * day
	p.NotFoundGrace = 10 * time.Minute
	p.UnauthorizedDelay = 10 * time.Minute
	p.MaxRetryAfter = 6 * time.Hour
	return p
}

var full = Jitter{Kind: redelivery.JitterFull}

func percent(n int) Jitter { return Jitter{Kind: redelivery.JitterPercent, Percent: n} }
