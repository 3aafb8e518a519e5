package config

import (
	"time"

	"github.com/spf13/pflag"
)

// AddDuration adds a flag whose value is a duration, written as in the configuration: 250ms, 90m, 2d. Negative ones are refused. A value of 0 is no default that
// its help would show.
func AddDuration(fs *pflag.FlagSet, d *time.Duration, name string, value time.Duration, usage string) {
	*d = value
	fs.Var((*duration)(d), name, usage)
}

// duration is the value of a flag that is a duration.
type duration time.Duration

// String is the duration as Set reads it; that of 0 is empty.
func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return FormatDuration(time.Duration(*d))
}

// Type is how help calls it.
func (d *duration) Type() string { return "duration" }

// Set reads a duration.
func (d *duration) Set(s string) error {
	parsed, err := ParseDuration(s)
	if err == nil {
		*d = duration(parsed)
	}
	return err
}
