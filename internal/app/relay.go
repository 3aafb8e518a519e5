package app

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/outbox"
	"pollux/internal/postgres"
	"pollux/internal/telemetry"
)

// RelayCommand is the command of the outbox relay.
func RelayCommand() *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "outbox-relay",
		Short: "Publishes due polls and events from PostgreSQL to JetStream",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(config.Options{Flags: cmd.Flags(), Skip: config.SkipGateways})
			if err != nil {
				return err
			}
			if once {
				return relayOnce(cmd, cfg)
			}
			return serve(cmd.Context(), cfg, "outbox-relay", Relay)
		},
	}
	config.AddFlags(cmd.Flags())
	config.AddFlag(cmd.Flags(), "listen", "telemetry.listen", "where /metrics, /healthz and /readyz are served")
	cmd.Flags().BoolVar(&once, "once", false, "publish what is due and end, for cron")
	return cmd
}

// Relay runs an outbox relay until ctx ends.
func Relay(ctx context.Context, cfg config.Config, tel *telemetry.Telemetry) error {
	relay, closeAll, err := openRelay(ctx, cfg, tel)
	if err != nil {
		return err
	}
	defer closeAll()
	tel.Log.InfoContext(ctx, "relay starts", "queues", len(queues(cfg)), "every", cfg.Relay.Every)
	return relay.Run(ctx)
}

func relayOnce(cmd *cobra.Command, cfg config.Config) error {
	ctx := cmd.Context()
	cfg.Telemetry.Listen = ""
	tel, err := telemetry.New(ctx, TelemetryConfig(cfg, "outbox-relay"), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer tel.Close(context.WithoutCancel(ctx))
	relay, closeAll, err := openRelay(ctx, cfg, tel)
	if err != nil {
		return err
	}
	defer closeAll()
	polls, events, err := relay.Once(ctx)
	fmt.Fprintf(cmd.OutOrStdout(), "published %d polls and %d events\n", polls, events)
	return err
}

func openRelay(ctx context.Context, cfg config.Config, tel *telemetry.Telemetry) (*outbox.Relay, func(), error) {
	pool, err := postgres.Open(postgres.Options{URL: cfg.Database.URL.Reveal(), MaxConns: cfg.Database.MaxConns, Name: "pollux-relay", Indexed: true})
	if err != nil {
		return nil, nil, err
	}
	record := postgres.NewRelay(pool, cfg.Relay.KeepEvents, cfg.Relay.KeepAttempts)
	if err := await(ctx, tel, "database", record.Check); err != nil {
		pool.Close()
		return nil, nil, err
	}
	conn, err := connect(ctx, cfg, "pollux-relay", tel)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	tel.Health.Register("database", 2*time.Second, record.Check)
	tel.Health.Register("broker", 2*time.Second, ready(conn))
	relay := outbox.New(relayConfig(cfg), record, conn, tel.Metrics, tel.Log)
	return relay, func() { conn.Close(); pool.Close() }, nil
}

// connect opens the broker and checks that its streams are as they were declared.
func connect(ctx context.Context, cfg config.Config, name string, tel *telemetry.Telemetry) (*broker.Conn, error) {
	conn, err := broker.Connect(ctx, brokerConfig(cfg, name), tel.Log)
	if err != nil {
		return nil, err
	}
	if err := await(ctx, tel, "broker", conn.Check); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
