package app

import (
	"github.com/spf13/pflag"

	"pollux/internal/config"
	"pollux/internal/message"
)

// Unused is what a program does not use of the configuration: it need not be there, and its secrets may be for others to read.
func Unused(program string) config.Skip {
	switch program {
	case message.UserRelay:
		return config.SkipGateways | config.SkipWebhooks
	case message.UserConsumer:
		return config.SkipWebhooks
	case programWebhook:
		return config.SkipBroker | config.SkipGateways
	}
	return config.SkipGateways | config.SkipWebhooks | config.SkipTelemetry
}

// Diagnose reads the configuration as a program does. What is wrong with secrets and certificates alone comes with it, and is no error: see config.Diagnose.
func Diagnose(o config.Options, program string) (config.Config, []config.Problem, error) {
	o.Skip = Unused(program)
	if program == message.UserMigrator { // pollux migrate up needs no broker, and pollux streams apply does
		o.Skip |= config.SkipBroker
	}
	c, unusable, err := config.Diagnose(o)
	if err == nil && program == message.UserMigrator && len(c.NATS.URLs) > 0 {
		o.Skip &^= config.SkipBroker
		c, unusable, err = config.Diagnose(o)
	}
	return c, unusable, NotTried(err)
}

// LoadAs reads the configuration as a program does, or all of it for none, and refuses what a service would.
func LoadAs(o config.Options, program string) (config.Config, error) {
	if program == "" {
		return Load(o)
	}
	c, unusable, err := Diagnose(o, program)
	if err == nil && len(unusable) > 0 {
		err = NotTried(&config.Invalid{Problems: unusable})
	}
	return c, err
}

// CheckFile is config.CheckFile of what a program uses, or of everything for none.
func CheckFile(file string, flags *pflag.FlagSet, program string) error {
	var skip config.Skip
	switch program {
	case "":
	case message.UserMigrator:
		skip = Unused(program) | config.SkipBroker
	default:
		skip = Unused(program)
	}
	return NotTried(config.CheckFile(file, flags, skip))
}
