// Command outbox-relay publishes due polls and events from PostgreSQL to JetStream.
package main

import (
	"os"

	"pollux/internal/app"
)

func main() { os.Exit(app.Main(app.RelayCommand())) }
