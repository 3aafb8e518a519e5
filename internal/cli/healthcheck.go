package cli

import (
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/config"
)

func healthcheckCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "healthcheck [URL]", Short: "Asks a service whether it is ready, or another of its pages; exit code 0 when it is", Args: atMostOne("one URL"),
		Long: `healthcheck asks a page such as http://127.0.0.1:9464/readyz and says what is not ready. Without a URL it asks /readyz where telemetry.listen
of this configuration is. It is for containers without a shell; the services can ask themselves with --healthcheck.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout <= 0 {
				return app.Usage("--timeout %s: above 0s", timeout)
			}
			if len(args) == 1 {
				return app.CheckPage(cmd.Context(), args[0], timeout)
			}
			return app.Healthcheck(cmd.Context(), config.Options{Flags: cmd.Flags()}, "/readyz", timeout)
		},
	}
	config.AddDuration(cmd.Flags(), &timeout, "timeout", app.HealthcheckTimeout, "for the answer")
	return cmd
}
