// Command consumer polls gateways about pending payments and records what they say.
package main

import (
	"os"

	"pollux/internal/app"
)

func main() { os.Exit(app.Main(app.ConsumerCommand())) }
