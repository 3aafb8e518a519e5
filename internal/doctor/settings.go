package doctor

import (
	"slices"
	"time"
)

// Settings are what the configuration says, as far as checks need it.
type Settings struct {
	Gateways       []Gateway
	Lanes          []string // that the relay publishes to, for every gateway
	AckWait        time.Duration
	ConsumerLease  time.Duration
	RelayLease     time.Duration
	PublishTimeout time.Duration
	Retry          time.Duration
	HoldBudget     int
	MaxAckPending  int
	MaxConns       int  // of a pool
	Writers        int  // of a consumer
	InFlight       int  // batches of a relay
	Receiver       bool // notifications are received
	Keys           []Key
	TelemetryOff   bool
	NoGateways     bool // the program needs none in its configuration
	Unusable       []Unusable
	Now            time.Time // of this machine, for what expires
}

// Gateway is what the configuration says about a gateway.
type Gateway struct {
	Name        string
	Timeout     time.Duration
	MaxWait     time.Duration // for its turn, where there are limits
	Rate        float64       // calls a second, of the fleet; 0: no limit
	Concurrency int           // 0: no limit
	Seats       int           // how many instances can share the limit; 0: any number
	Workers     int
	HoldLimit   time.Duration // the longest of its policies
	NeverAsked  bool
}

// Key is a key that notifications are verified with.
type Key struct {
	Gateway, Account, Name string
	Until                  time.Time // zero: no end
}

// Unusable is a secret or a certificate that the configuration names and that cannot be used.
type Unusable struct {
	Key   string // that names it
	Where string // the key was written: file and line, or variable
	Why   string
}

// unusable reports whether what a key names cannot be used.
func (s *Settings) unusable(key string) bool {
	return slices.ContainsFunc(s.Unusable, func(u Unusable) bool { return u.Key == key })
}

// gateway returns the gateway of a name.
func (s *Settings) gateway(name string) (Gateway, bool) {
	for _, g := range s.Gateways {
		if g.Name == name {
			return g, true
		}
	}
	return Gateway{}, false
}
