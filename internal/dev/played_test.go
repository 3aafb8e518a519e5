package dev

import (
	"encoding/json"
	"strings"
	"testing"

	"pollux/internal/app"
	"pollux/internal/gatewaysim/notify"
)

// TestEveryVendorEndsAsItsBookSays plays all vendors: some of their notifications are lost, doubled, late, reordered and forged.
func TestEveryVendorEndsAsItsBookSays(t *testing.T) {
	t.Parallel()
	const each = 10
	names := partNames()
	o := launch(t.Context(), "--once", "-o", "json", "--gateways", strings.Join(names, ","), "--payments", "70", "--database-url", database(t), "--timeout", patience.String())
	if o.code != app.ExitOK {
		t.Fatalf("exit code %d: %s", o.code, o.stderr)
	}
	var s struct {
		Summary
		Gateways map[string]Played `json:"gateways"`
	}
	if err := json.Unmarshal([]byte(o.stdout), &s); err != nil {
		t.Fatal(err)
	}
	if s.Tracked != each*len(names) || s.Lost+s.Twice+s.Wrong+s.InReview != 0 || s.Succeeded+s.Failed+s.Cancelled+s.Expired != s.Tracked {
		t.Errorf("summary: %s", o.stdout)
	}
	hints := map[string]bool{"paypal": true, "mercadopago": true, "iyzico": true} // what they tell has to be asked for
	forged := 0
	for _, name := range names {
		g := s.Gateways[name]
		switch {
		case g.Tracked != each || g.ResolvedByWebhook+g.ResolvedByPoll != each:
			t.Errorf("%s: %+v", name, g)
		case name == "adyen" && (g.ResolvedByPoll != 0 || g.Polls != 0):
			t.Errorf("adyen was asked: %+v", g)
		case hints[name] != (g.ResolvedByWebhook == 0):
			t.Errorf("%s: %+v", name, g)
		case hints[name] && g.Polls < each:
			t.Errorf("%s: %+v", name, g)
		case g.ForgedAccepted != 0 || g.Notifications.Refused != 0 || g.Notifications.Accepted == 0:
			t.Errorf("%s: %+v", name, g)
		}
		forged += g.Notifications.Forged
	}
	if forged == 0 {
		t.Error("nothing was forged")
	}
}

func TestWhatTheReceiverMustNotDoIsComplainedOf(t *testing.T) {
	for want, g := range map[string]Played{
		"":                                     {Tracked: 3, Decisions: map[string]int{"applied": 3, "stale": 1}},
		"2 forged notifications of acme":       {ForgedAccepted: 2},
		"1 genuine notifications of acme were": {Notifications: notify.Counts{Refused: 1}},
		"0 genuine notifications of acme were refused, 4 were never taken": {Notifications: notify.Counts{GivenUp: 4}},
		"1 notifications of acme are with a person: conflict":              {Decisions: map[string]int{"conflict": 1}},
	} {
		s := Summary{Gateways: map[string]*Played{"acme": &g}}
		if got := s.complaint(); s.Good() != (want == "") || !strings.Contains(got, want) {
			t.Errorf("good %v, %q; want %q", s.Good(), got, want)
		}
	}
}

// TestASummaryOfOneGatewayIsAsItWas keeps the fields of those who read it.
func TestASummaryOfOneGatewayIsAsItWas(t *testing.T) {
	text, err := json.Marshal(Summary{})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "gateways") {
		t.Errorf("%s", text)
	}
}
