package app

import (
	"strings"
	"testing"

	"pollux/internal/telemetry"
)

func TestAProcessHasOneName(t *testing.T) {
	p := &Process{Telemetry: &telemetry.Telemetry{Instance: instance("consumer")}}
	if a, b := p.name("consumer"), p.name("consumer"); a != b || a != p.Instance {
		t.Errorf("%s and %s and %s", a, b, p.Instance)
	}
	several := &Process{Telemetry: &telemetry.Telemetry{Instance: instance("dev")}}
	if a, b := several.name("consumer"), several.name("consumer"); a == b || !strings.HasPrefix(a, "consumer@") {
		t.Errorf("two consumers of a process have the leases of one: %s, %s", a, b)
	}
}

func TestAMemberOfTheFleetIsNamedAsItsProcess(t *testing.T) {
	for name, want := range map[string]string{
		"consumer@vm#8f3f32ff":             "consumer=vm=8f3f32ff",
		"consumer@pay_1.example.#8f3f32ff": "consumer=pay_1-example-=8f3f32ff",
		"consumer@über host#8f3f32ff":      "consumer=-ber-host=8f3f32ff",
	} {
		if got := memberOf(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
