package gatewaysim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Scenario is a set of conditions with a name.
type Scenario struct {
	Name       string
	About      string // one line, for a person
	Conditions Conditions
}

// DefaultScenario is what a simulator begins with when it is not told otherwise.
const DefaultScenario = "calm"

// Scenarios returns all scenarios, the calm one first. Their time constants let some thousand payments be finished in well under
// a minute, and no payment is failed more often in a row than a patient client bears; what must end with a person never answers
// rightly at all.
func Scenarios() []Scenario {
	usual := Mix{MaxPending: 1, Failed: 0.06, Cancelled: 0.03, Expired: 0.03}
	long, flawed := usual, usual
	long.MinPending, long.MaxPending = 2, 5
	flawed.Flawed = 0.12
	flawed.Flaws = []Outcome{OtherID, OtherAmount, OtherCurrency, HTML, Empty, UnknownStatus}
	const ms = time.Millisecond

	return []Scenario{
		{"calm", "answers in a few milliseconds, at most one of them still pending", Conditions{
			Latency: 2 * ms, Jitter: 4 * ms, Mix: usual,
		}},
		{"slow", "two to five still-pending answers before the final one, and slower ones", Conditions{
			Latency: 20 * ms, Jitter: 30 * ms, Mix: long,
		}},
		{"errors", "a third of the calls fail: 5xx, resets, timeouts, cut bodies, malformed answers, payments not found at first", Conditions{
			Latency: 2 * ms, Jitter: 10 * ms, Mix: usual, FaultsInRow: 3,
			Late: Late{For: 300 * ms, Share: 0.05},
			Faults: []Share{
				{ServerError, 0.06}, {BadGateway, 0.05}, {Unavailable, 0.05}, {Reset, 0.05}, {Timeout, 0.01},
				{CutHeaders, 0.02}, {CutBody, 0.03}, {Empty, 0.01}, {EmptyObject, 0.01}, {Null, 0.01}, {HTML, 0.01},
				{UnknownStatus, 0.005}, {Drip, 0.005}, {Redirect, 0.01}, {GzipBomb, 0.002},
			},
		}},
		{"throttled", "400 calls a second with a burst of 100; above it 429 with Retry-After, a quarter as HTTP dates", Conditions{
			Latency: 2 * ms, Jitter: 4 * ms, Mix: usual,
			Limit: Limit{Rate: 400, Burst: 100, RetryAfter: time.Second, Dates: 0.25},
		}},
		{"outage", "down from second 1 to 6: first resets, then 503", Conditions{
			Latency: 2 * ms, Jitter: 4 * ms, Mix: usual,
			Outages: []Outage{
				{Window{time.Second, 4 * time.Second}, Reset},
				{Window{4 * time.Second, 6 * time.Second}, Unavailable},
			},
		}},
		{"hung-probe", "down from second 1 to 7: first resets, then calls hang and are never answered", Conditions{
			Latency: 2 * ms, Jitter: 4 * ms, Mix: usual,
			Outages: []Outage{
				{Window{time.Second, 2 * time.Second}, Reset},
				{Window{2 * time.Second, 7 * time.Second}, Timeout},
			},
		}},
		{"flapping", "up for two seconds, down for two, again and again", Conditions{
			Latency: 2 * ms, Jitter: 4 * ms, Mix: usual,
			Flapping: Flapping{Up: 2 * time.Second, Down: 2 * time.Second},
		}},
		{"brownout", "from second 1 to 8 answers take 300 to 700 ms and half of them fail with 503", Conditions{
			Latency: 2 * ms, Jitter: 4 * ms, Mix: usual, FaultsInRow: 3,
			Brownouts: []Brownout{{Window{time.Second, 8 * time.Second}, 300 * ms, 400 * ms, 0.5}},
		}},
		{"expired-key", "every key is refused with 401 from second 1 to 5", Conditions{
			Latency: 2 * ms, Jitter: 4 * ms, Mix: usual,
			ExpiredKey: []Window{{time.Second, 5 * time.Second}},
		}},
		{"wrong", "one payment in eight never answers rightly: other id, amount or currency, HTML, empty, unknown status", Conditions{
			Latency: 2 * ms, Jitter: 4 * ms, Mix: flawed,
		}},
	}
}

// ScenarioNamed returns the scenario of that name, or an error that lists the names there are.
func ScenarioNamed(name string) (Scenario, error) {
	all := Scenarios()
	i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == name })
	if i < 0 {
		names := make([]string, len(all))
		for i, s := range all {
			names[i] = s.Name
		}
		return Scenario{}, fmt.Errorf("scenario %.40q: one of %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}
