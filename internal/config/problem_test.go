package config

import "testing"

func TestProblemsInOneLine(t *testing.T) {
	e := &Invalid{Problems: []Problem{{Where: "line 3", Key: "relay.evry", What: "unknown"}, {Key: "nats.urls", What: "missing"}}}
	if got, want := e.Line(), "line 3: relay.evry: unknown; nats.urls: missing"; got != want {
		t.Errorf("%q, wanted %q", got, want)
	}
}
