package config

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestAFlagTakesTheDurationsOfTheConfiguration(t *testing.T) {
	for text, want := range map[string]time.Duration{"2d": 48 * time.Hour, "1d12h": 36 * time.Hour, "90m": 90 * time.Minute, "0s": 0} {
		var d time.Duration
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		AddDuration(fs, &d, "for", time.Minute, "how long")
		if d != time.Minute || fs.Lookup("for").DefValue != "1m" {
			t.Fatalf("the default is %v, shown as %q", d, fs.Lookup("for").DefValue)
		}
		if err := fs.Parse([]string{"--for", text}); err != nil || d != want {
			t.Errorf("%s: %v, %v", text, d, err)
		}
	}
	for _, text := range []string{"2", "-1h", "1w", "", "soon"} {
		var d time.Duration
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		AddDuration(fs, &d, "for", 0, "how long")
		if err := fs.Parse([]string{"--for=" + text}); err == nil || !strings.Contains(err.Error(), "write") {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
}
