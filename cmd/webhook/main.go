// Command webhook receives gateways' notifications, verifies them and applies what they say.
package main

import (
	"os"

	"pollux/internal/app"
)

func main() { os.Exit(app.Main(app.WebhookCommand())) }
