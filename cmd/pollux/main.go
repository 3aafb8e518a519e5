// Command pollux is an operator's tool: migrations, streams, configuration, dead letters.
package main

import (
	"os"

	"pollux/internal/app"
	"pollux/internal/cli"
)

func main() { os.Exit(app.Main(cli.Command())) }
