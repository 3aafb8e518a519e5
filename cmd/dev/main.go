// Command dev runs all of Pollux on this machine: PostgreSQL, JetStream, a gateway to poll, the relay, consumers and some traffic.
package main

import (
	"os"

	"pollux/internal/app"
	"pollux/internal/dev"
)

func main() { os.Exit(app.Main(dev.Command())) }
