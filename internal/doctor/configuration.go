package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// setting makes a check of the configuration alone.
func setting(judge func(*Settings) []opinion) func(context.Context, *Sources, *Settings) []opinion {
	return func(_ context.Context, _ *Sources, set *Settings) []opinion { return judge(set) }
}

func judgeAnyGateway(set *Settings) []opinion {
	switch {
	case len(set.Gateways) == 0 && set.NoGateways:
		return green("this program needs none").alone()
	case len(set.Gateways) == 0:
		return yellow("gateways: in the configuration, as that of the consumers has it; docs/gateways says how", "none is configured: queues and consumers are compared with none").alone()
	}
	return green("%s", counted(len(set.Gateways), "gateway", "gateways")).alone()
}

func judgeSecrets(set *Settings) []opinion {
	var found []opinion
	for _, u := range set.Unusable {
		mend := "put a good one there, mode 0600"
		if u.Where != "" {
			mend += ", or change what " + u.Where + " names"
		}
		found = append(found, red(mend+": a file is taken up without a restart; until then a running service goes on with the last good one, and none starts", "%s", u.Why).about(u.Key))
	}
	return all(found, "all that this program uses can be")
}

func judgePools(set *Settings) []opinion {
	need := max(set.InFlight+1, set.Writers+2) // a relay's batches and its events; a consumer's writers, and one that reads while another does
	if set.MaxConns < need {
		return yellow(fmt.Sprintf("database.max_conns: %d", need), "%d connections, and %d may be wanted at once", set.MaxConns, need).alone()
	}
	return green("%d connections for %d at once", set.MaxConns, need).alone()
}

func judgePages(set *Settings) []opinion {
	if set.TelemetryOff {
		return yellow("telemetry.listen: 127.0.0.1:9464, or :9464 in a container", "telemetry.listen is empty").alone()
	}
	return green("they are").alone()
}

func judgeLimits(set *Settings) []opinion {
	var found []opinion
	for _, g := range set.Gateways {
		if g.Rate == 0 && g.Concurrency == 0 && !g.NeverAsked {
			found = append(found, yellow("gateways."+g.Name+".limits.rate: what its contract says, such as 20/s", "it has neither").about(g.Name))
		}
	}
	return all(found, "all have")
}

func judgeShares(f Fleet, set *Settings) []opinion {
	var found []opinion
	for _, g := range set.Gateways {
		share, ok := f.Shares[g.Name]
		if !ok {
			continue
		}
		switch {
		case share.Unread != "":
			found = append(found, yellow("are instances of several versions running?", "who shares its limit cannot be read: %s", share.Unread).about(g.Name))
		case share.Sum > 1.001:
			found = append(found, red("stop all consumers; with their key: nats --nkey consumer.nk --inbox-prefix _INBOX_pollux_consumer kv del pollux_fleet share."+g.Name+" --force; start them", "the parts add up to %.0f%%: the fleet may call too often", 100*share.Sum).about(g.Name))
		case g.Seats > 0 && share.Members > g.Seats:
			found = append(found, yellow(fmt.Sprintf("run at most %d consumers, or raise limits.concurrency or limits.burst of the gateway", g.Seats),
				"%d instances share what %d can: the others stand by", share.Members, g.Seats).about(g.Name))
		case g.Rate > 0 && share.Members > 1 && g.Rate/float64(share.Members) < 0.1:
			found = append(found, yellow("run fewer consumers", "each of %d instances may call once in %s", share.Members, long(time.Duration(float64(share.Members)/g.Rate*float64(time.Second)))).about(g.Name))
		}
	}
	if f.Instances == 0 {
		return all(found, "no instance has a limit to share")
	}
	return all(found, counted(f.Instances, "instance shares them", "instances share them"))
}

func judgeBreakers(f Fleet, _ *Settings) []opinion {
	var found []opinion
	for _, b := range f.Breakers {
		name := nameOf(b)
		switch {
		case b.Unread != "":
			found = append(found, yellow("pollux breaker reset "+b.Gateway+" --reason WHY once all instances are of one version", "its record cannot be read: %s", b.Unread).about(name))
		case b.Forced != "":
			found = append(found, yellow("pollux breaker release "+b.Gateway+" --reason WHY when its reason is over", "forced %s by %s until %s: %s", b.Forced, b.Actor, whenever(b.Until), b.Reason).about(name))
		case b.State == "open" || b.State == "half_open":
			if b.Cause == credentialsCause {
				continue // a check of its own
			}
			found = append(found, yellow("it closes by itself when the gateway answers; pollux gateway test "+b.Gateway+" asks it once", "%s since %s: %s", b.State, whenever(b.Since), b.Cause).about(name))
		case b.Rate < 0.5:
			found = append(found, yellow("lower limits.rate of the gateway to what it bears", "its complaints have brought the rate down to %.0f%%", 100*b.Rate).about(name))
		}
	}
	return all(found, "none is")
}

// credentialsCause is the cause of a breaker that opened because the gateway refuses our key.
const credentialsCause = "credentials"

func judgeCredentials(f Fleet, _ *Settings) []opinion {
	var found []opinion
	for _, b := range f.Breakers {
		if b.Cause == credentialsCause && b.Unread == "" && (b.State == "open" || b.State == "half_open") {
			found = append(found, red("put the new key into its file: it is in force within 15 s, without a restart; then: pollux breaker reset "+b.Gateway+` --reason "new key in place"`,
				"it has refused our key since %s", whenever(b.Since)).about(nameOf(b)))
		}
	}
	return all(found, "none does")
}

func nameOf(b Breaker) string {
	if b.Account == "" {
		return b.Gateway
	}
	return b.Gateway + "/" + b.Account
}

func judgeSilence(silent []Silent, set *Settings) []opinion {
	var found []opinion
	for _, s := range silent {
		if !s.Waiting || s.Heard && s.For < s.After {
			continue
		}
		o := yellow("look at the endpoint in the gateway's console: many switch it off after failures", "nothing has come for %s, and payments wait", long(s.For)).about(s.Gateway)
		if !s.Heard {
			o.found = "nothing has ever come, and payments wait"
		}
		if g, known := set.gateway(s.Gateway); known && g.NeverAsked {
			o.level = Red
		}
		found = append(found, o)
	}
	if len(silent) == 0 {
		return green("no gateway is expected to send any").alone()
	}
	return all(found, "all have, or nothing waits for any")
}

// The times before something ends in which it is to be renewed. Certificates are renewed by machines a month before, by people when somebody says so.
const (
	soon     = 30 * 24 * time.Hour
	verySoon = 7 * 24 * time.Hour
)

func judgeKeys(set *Settings) []opinion {
	type receiver struct{ gateway, account string }
	open, last := map[receiver]bool{}, map[receiver]Key{}
	for _, k := range set.Keys {
		r := receiver{k.Gateway, k.Account}
		if k.Until.IsZero() {
			open[r] = true
		} else if old, ok := last[r]; !ok || k.Until.After(old.Until) {
			last[r] = k
		}
	}
	var found []opinion
	for r, k := range last {
		if open[r] {
			continue // another key goes on
		}
		if o, ends := endsSoon(k.Until, set.Now, "add the next key beside it: webhooks.gateways."+r.gateway+".keys; docs/webhooks.md", "its last key, "+k.Name+","); ends {
			found = append(found, o.about(nameOf(Breaker{Gateway: r.gateway, Account: r.account})))
		}
	}
	slices.SortFunc(found, func(a, b opinion) int { return cmp.Compare(a.subject, b.subject) })
	return all(found, "none ends soon")
}

// endsSoon is what to say of something that ends at an instant; false when that is far.
func endsSoon(at, now time.Time, mend, what string) (opinion, bool) {
	switch left := at.Sub(now); {
	case at.IsZero() || left > soon:
		return opinion{}, false
	case left <= 0:
		return red(mend, "%s ended on %s", what, day(at)), true
	case left <= verySoon:
		return red(mend, "%s ends on %s, in %s", what, day(at), long(left)), true
	default:
		return yellow(mend, "%s ends on %s, in %s", what, day(at), long(left)), true
	}
}
