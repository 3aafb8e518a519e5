package gatewaysim

import (
	"fmt"
	"time"
)

// Window is a time, From inclusive and To exclusive, counted from the moment at which the conditions were set.
type Window struct {
	From, To time.Duration
}

// holds reports whether at lies in the window.
func (w Window) holds(at time.Duration) bool { return at >= w.From && at < w.To }

func (w Window) validate() error {
	if w.From < 0 || w.To <= w.From {
		return fmt.Errorf("window %s to %s: from 0s on, and its end after its beginning", w.From, w.To)
	}
	return nil
}

// Outage is a window in which every call fails.
type Outage struct {
	Window
	With Outcome // Reset, which is also the default, Unavailable or Timeout
}

func (o Outage) validate() error {
	if err := o.Window.validate(); err != nil {
		return err
	}
	return validateDown(o.With)
}

// Flapping is a gateway that is up for a while, then down for a while, and so on. The zero value does not flap.
type Flapping struct {
	Up, Down time.Duration
	With     Outcome // Reset, which is also the default, Unavailable or Timeout
}

// down reports whether it is a time of being down.
func (f Flapping) down(at time.Duration) bool {
	return f.Down > 0 && at%(f.Up+f.Down) >= f.Up
}

func (f Flapping) validate() error {
	if f.Up < 0 || f.Down < 0 {
		return fmt.Errorf("flapping: up %s and down %s: not below 0s", f.Up, f.Down)
	}
	return validateDown(f.With)
}

// Brownout is a window in which answers are slower and a share of the calls fails with 503. The gateway counts as up.
type Brownout struct {
	Window
	Latency, Jitter time.Duration // instead of the usual ones
	Failing         float64
}

func (b Brownout) validate() error {
	if err := b.Window.validate(); err != nil {
		return err
	}
	if b.Latency < 0 || b.Jitter < 0 || b.Latency >= time.Hour || b.Jitter >= time.Hour || !share(b.Failing) {
		return fmt.Errorf("brownout: latency and jitter from 0s to below 1h, failing a share between 0 and 1")
	}
	return nil
}

// validateDown refuses what a gateway that is down cannot do.
func validateDown(with Outcome) error {
	switch with {
	case Answered, Reset, Unavailable, Timeout:
		return nil
	}
	return fmt.Errorf("down with %s: reset, http_503 or timeout", with)
}

// downWith fills in the default.
func downWith(with Outcome) Outcome {
	if with == Answered {
		return Reset
	}
	return with
}

// Over is when the last of the windows of trouble has ended, for flapping the first time of being down; 0 when the conditions are always the same.
func (c Conditions) Over() time.Duration {
	var over time.Duration
	if c.Flapping.Down > 0 {
		over = c.Flapping.Up + c.Flapping.Down
	}
	for _, o := range c.Outages {
		over = max(over, o.To)
	}
	for _, b := range c.Brownouts {
		over = max(over, b.To)
	}
	for _, w := range c.ExpiredKey {
		over = max(over, w.To)
	}
	return over
}
