package limit_test

import (
	"strings"
	"testing"
	"time"

	"pollux/internal/breaker"
	"pollux/internal/limit"
)

func TestRateIsWrittenWithItsUnit(t *testing.T) {
	for text, want := range map[string]limit.Rate{"60/s": 60, "0.5/s": 0.5, " 90 / m ": 1.5, "1000/h": limit.Rate(1000.0 / 3600), "0/s": 0} {
		got, err := limit.ParseRate(text)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v", text, float64(got), err)
		}
		again, err := limit.ParseRate(got.String())
		if diff := float64(again - got); err != nil || diff > 1e-9 || diff < -1e-9 {
			t.Errorf("%q is shown as %q, which is read as %v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "60", "60/", "/s", "x/s", "60/d", "-1/s", "NaN/s", "Inf/s", "60/s/s"} {
		if got, err := limit.ParseRate(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
	for rate, want := range map[limit.Rate]string{60: "60/s", 1: "1/s", 0.5: "30/m", 1.0 / 3600: "1/h", 0: "0/s"} {
		if got := rate.String(); got != want {
			t.Errorf("%v is shown as %s, want %s", float64(rate), got, want)
		}
	}
}

func TestConfigurationIsCheckedWhole(t *testing.T) {
	if err := (limit.Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	err := limit.Config{
		Rate: -1, Burst: -1, Concurrency: -1, Shares: limit.Shares{breaker.Percent(99), breaker.Percent(2)},
		Pause: time.Hour, MaxPause: 25 * time.Hour, Recovery: time.Millisecond, MaxWait: time.Hour,
	}.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"rate", "burst", "concurrency", "share of deferred", "share of replay", "add up to 101%", "max_pause", "recovery", "max_wait"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing about %s in: %v", want, err)
		}
	}
	if _, err := limit.New(limit.Config{Rate: 1e9}); err == nil {
		t.Error("a rate of a billion a second is accepted")
	}
}

func TestSeatsAreAsManyAsPartsThatAllowACall(t *testing.T) {
	for _, c := range []struct {
		limit.Config
		want int
	}{
		{limit.Config{}, 0}, {limit.Config{Rate: 5}, 1}, {limit.Config{Rate: 60}, 6}, {limit.Config{Rate: 60, Burst: 3}, 3},
		{limit.Config{Concurrency: 4}, 4}, {limit.Config{Rate: 60, Concurrency: 4}, 4}, {limit.Config{Rate: 60, Burst: 2, Concurrency: 4}, 2},
	} {
		if got := c.Seats(); got != c.want {
			t.Errorf("%+v: %d seats, want %d", c.Config, got, c.want)
		}
	}
}
