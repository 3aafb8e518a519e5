package telemetry

import (
	"log/slog"
	"testing"
	"time"
)

func TestDurationsInLogsAreRounded(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{
		124_052_227: 124 * time.Millisecond, 1_523_456_789: 1520 * time.Millisecond, 999: 999, -124_052_227: -124 * time.Millisecond, 0: 0,
		time.Hour + time.Minute + 1_600_000_000: time.Hour + time.Minute + 2*time.Second,
	} {
		if got := legible(nil, slog.Duration("retry_in", d)).Value.Duration(); got != want {
			t.Errorf("%d is written as %s, wanted %s", d, got, want)
		}
	}
	if got := legible(nil, slog.String("error", "124.052227ms")).Value.String(); got != "124.052227ms" {
		t.Error(got)
	}
}
