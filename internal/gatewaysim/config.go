package gatewaysim

import (
	"errors"
	"fmt"
	"time"
)

// The defaults of a Config.
const (
	DefaultAPIKey   = "sim_key"        // it opens nothing but the simulator
	DefaultLogLimit = 2_000_000        // some 100 MB when full
	DefaultCapacity = 5_000_000        // some 1.5 GB when full
	DefaultPatience = 60 * time.Second // well above any client's timeout
)

// Config is what a simulator is made from. The zero value is a calm gateway with the default key.
type Config struct {
	Dialect  Dialect                     // whose API it speaks; nil is the one that the package describes
	APIKey   string                      // in its own dialect, what callers bring as a bearer token; empty is DefaultAPIKey
	Seed     uint64                      // of everything random
	Scenario string                      // the first scenario's name; empty is DefaultScenario
	Adjust   func(Conditions) Conditions // applied to every scenario before it is set; nil leaves them as they are
	LogLimit int                         // how many calls the log keeps; 0 is DefaultLogLimit
	Capacity int                         // how many payments there may be; 0 is DefaultCapacity
	Patience time.Duration               // how long a call is kept waiting that is never answered; 0 is DefaultPatience

	// AllowRemote lets the simulator listen on more than loopback, for a network of containers. What lies under /sim/ answers to
	// loopback all the same.
	AllowRemote bool
}

// withDefaults fills in what is empty.
func (c Config) withDefaults() Config {
	if c.APIKey == "" {
		c.APIKey = DefaultAPIKey
	}
	if c.Scenario == "" {
		c.Scenario = DefaultScenario
	}
	if c.LogLimit == 0 {
		c.LogLimit = DefaultLogLimit
	}
	if c.Capacity == 0 {
		c.Capacity = DefaultCapacity
	}
	if c.Patience == 0 {
		c.Patience = DefaultPatience
	}
	return c
}

// validate returns every problem at once. It expects the defaults to be filled in.
func (c Config) validate() error {
	var errs []error
	if !validKey(c.APIKey) {
		errs = append(errs, errors.New("api key: 1 to 512 visible ASCII characters"))
	}
	if c.LogLimit < 0 {
		errs = append(errs, fmt.Errorf("log limit %d: at least 1, or 0 for the default", c.LogLimit))
	}
	if c.Capacity < 0 {
		errs = append(errs, fmt.Errorf("capacity %d: at least 1, or 0 for the default", c.Capacity))
	}
	if c.Patience < 0 {
		errs = append(errs, fmt.Errorf("patience %s: more than 0s, or 0s for the default", c.Patience))
	}
	return errors.Join(errs...)
}

// validKey reports whether a key can stand in a header.
func validKey(key string) bool {
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return false
		}
	}
	return key != "" && len(key) <= 512
}
